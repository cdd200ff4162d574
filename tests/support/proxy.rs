//! A TCP proxy with faults, for what a network does to a call.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::runtime::Runtime;
use tokio::sync::watch;

const CHUNK: usize = 64 * 1024;

/// What the proxy does to the bytes. It holds for open connections too, from
/// the next chunk on. (A chunk is what arrives at once: for small messages, a
/// message.)
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    Pass,
    /// Requests arrive, some replies are lost: of the request chunks that
    /// contain the text `request`, each `every`-th goes to the target, its
    /// connection carries no reply from then on, and it is cut as soon as a
    /// reply chunk contains the text `reply`: by then the target has done what
    /// was asked. Empty texts match everything. HTTP/2 answers with control
    /// frames before it answers with a message, so for gRPC give `reply`
    /// something that only the message holds, such as an id.
    DropReplies {
        /// 1 for every one.
        every: usize,
        /// What marks a request, such as `commitTransaction`.
        request: String,
        /// What marks its reply.
        reply: String,
    },
    /// Nothing gets through in either direction, and nobody is told. What is
    /// held back goes on when the fault ends, as after a network partition.
    BlackHole,
    /// Connections are cut, and so is each new one.
    Refuse,
    /// Every chunk is late by this much, in both directions.
    Delay(Duration),
}

/// A proxy on a free port in front of one address. It runs on a thread of its
/// own, so that a test that blocks does not hold it up. Dropping it cuts
/// everything.
///
/// A MongoDB driver that goes through it must be told
/// `directConnection=true`, or it finds out where the members really are.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    state: Arc<State>,
    runtime: Option<Runtime>,
}

#[derive(Debug)]
struct State {
    target: SocketAddr,
    fault: watch::Sender<Fault>,
    cut: watch::Sender<()>,
    connections: AtomicUsize,
    requests: AtomicUsize,
    lost: AtomicUsize,
}

impl Proxy {
    /// Starts a proxy in front of `target` that passes everything.
    pub fn start(target: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        listener.set_nonblocking(true).expect("a socket can be made non-blocking");
        let address = listener.local_addr().expect("a bound socket has an address");
        let state = Arc::new(State {
            target,
            fault: watch::Sender::new(Fault::Pass),
            cut: watch::Sender::new(()),
            connections: AtomicUsize::new(0),
            requests: AtomicUsize::new(0),
            lost: AtomicUsize::new(0),
        });
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("proxy")
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.spawn(accept(listener, Arc::clone(&state)));
        Self { address, state, runtime: Some(runtime) }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Changes the fault. Counting of request chunks starts anew.
    pub fn set(&self, fault: Fault) {
        self.state.requests.store(0, Ordering::SeqCst);
        let refuse = fault == Fault::Refuse;
        self.state.fault.send_replace(fault);
        if refuse {
            self.cut_all();
        }
    }

    /// Cuts every open connection; new ones are served.
    pub fn cut_all(&self) {
        self.state.cut.send_replace(());
    }

    /// How many connections it has taken so far.
    pub fn connections(&self) -> usize {
        self.state.connections.load(Ordering::SeqCst)
    }

    /// How many times [`Fault::DropReplies`] has struck so far: a test on it
    /// that never sees it strike has tested nothing.
    pub fn lost(&self) -> usize {
        self.state.lost.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // A plain drop waits, which a runtime's thread is not allowed to.
            runtime.shutdown_background();
        }
    }
}

async fn accept(listener: TcpListener, state: Arc<State>) {
    let listener = tokio::net::TcpListener::from_std(listener).expect("a listening socket");
    loop {
        let Ok((client, _)) = listener.accept().await else { continue };
        state.connections.fetch_add(1, Ordering::SeqCst);
        // Subscribed before anybody can know of the connection: no cut is
        // missed.
        let cut = state.cut.subscribe();
        if *state.fault.borrow() != Fault::Refuse {
            tokio::spawn(serve(client, cut, Arc::clone(&state)));
        }
    }
}

async fn serve(client: TcpStream, mut cut: watch::Receiver<()>, state: Arc<State>) {
    let Ok(target) = TcpStream::connect(state.target).await else { return };
    let _ = client.set_nodelay(true);
    let _ = target.set_nodelay(true);
    let doomed = AtomicBool::new(false);
    let (from_client, to_client) = client.into_split();
    let (from_target, to_target) = target.into_split();
    // Whatever ends first ends both directions.
    tokio::select! {
        _ = carry_requests(from_client, to_target, &state, &doomed) => {}
        _ = carry_replies(from_target, to_client, &state, &doomed) => {}
        _ = cut.changed() => {}
    }
}

async fn carry_requests(
    from: OwnedReadHalf,
    to: OwnedWriteHalf,
    state: &State,
    doomed: &AtomicBool,
) -> io::Result<()> {
    let mut fault = state.fault.subscribe();
    let mut buffer = vec![0; CHUNK];
    loop {
        let chunk = read(&from, &mut buffer).await?;
        if let Fault::DropReplies { every, request, .. } = hold_back(&mut fault).await
            && contains(chunk, &request)
        {
            let count = state.requests.fetch_add(1, Ordering::SeqCst) + 1;
            // Before the request leaves, so that its reply cannot slip by.
            doomed.fetch_or(count.is_multiple_of(every), Ordering::SeqCst);
        }
        write(&to, chunk).await?;
    }
}

async fn carry_replies(
    from: OwnedReadHalf,
    to: OwnedWriteHalf,
    state: &State,
    doomed: &AtomicBool,
) -> io::Result<()> {
    let mut fault = state.fault.subscribe();
    let mut buffer = vec![0; CHUNK];
    loop {
        let chunk = read(&from, &mut buffer).await?;
        let fault = hold_back(&mut fault).await;
        if !doomed.load(Ordering::SeqCst) {
            write(&to, chunk).await?;
            continue;
        }
        // Where the fault has changed meanwhile, the connection is lost all
        // the same: it lacks bytes.
        let awaited = match &fault {
            Fault::DropReplies { reply, .. } => reply,
            _ => "",
        };
        if contains(chunk, awaited) {
            state.lost.fetch_add(1, Ordering::SeqCst);
            return Ok(());
        }
    }
}

/// Waits as long as the fault wants the bytes to wait, and gives the fault.
async fn hold_back(fault: &mut watch::Receiver<Fault>) -> Fault {
    let now = fault.wait_for(|fault| *fault != Fault::BlackHole).await;
    let now = now.expect("the state outlives its connections").clone();
    if let Fault::Delay(delay) = now {
        tokio::time::sleep(delay).await;
    }
    now
}

fn contains(chunk: &[u8], text: &str) -> bool {
    text.is_empty() || chunk.windows(text.len()).any(|part| part == text.as_bytes())
}

/// The next chunk. The end of the stream is an error: it ends the connection.
async fn read<'a>(from: &OwnedReadHalf, buffer: &'a mut [u8]) -> io::Result<&'a [u8]> {
    loop {
        from.readable().await?;
        match from.try_read(buffer) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => return Ok(&buffer[..read]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}

async fn write(to: &OwnedWriteHalf, mut chunk: &[u8]) -> io::Result<()> {
    while !chunk.is_empty() {
        to.writable().await?;
        match to.try_write(chunk) {
            Ok(written) => chunk = &chunk[written..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

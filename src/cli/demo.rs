//! `quotad demo`: a server, many callers, and what came of it.

mod blog;
mod crowd;
mod docs;
mod paste;
mod shop;
mod stage;

use std::env;
use std::io;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context as _;
use clap::Args as ClapArgs;
use tempfile::TempDir;

use super::output::{Failure, Output, talk};
use super::{exit, logging, serve};
use crate::engine;
use crate::server::{Server, StoreAddress, StoreClock};
use stage::Stage;

/// What was typed.
#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// End after the stories instead of staying up for calls of your own.
    #[arg(long)]
    once: bool,
    /// Where to listen; where that is taken, a free port of the same address.
    #[arg(long, default_value = "127.0.0.1:50051")]
    listen: SocketAddr,
}

/// Plays the stories; succeeds only if they end as they must.
pub(super) async fn run(args: Args) -> ExitCode {
    logging::start("warn");
    let out = Output::new(false);
    let (mut server, folder) = match start(args.listen).await {
        Ok(started) => started,
        Err(error) => return out.failed(&Failure::Other(error)).into(),
    };
    let played = tokio::select! {
        played = play(out, &args, &mut server) => played,
        // Also in the middle of it: the folder must not stay behind.
        _ = serve::stop_signal() => Ok(exit::OK),
    };
    let code = played.unwrap_or_else(|failure| out.failed(&failure));
    server.stop();
    if let Err(error) = server.ended().await {
        talk(&format!("the server did not end well: {error:#}"));
    }
    // Only now: the server writes there until its end.
    drop(folder);
    code.into()
}

/// A server on an embedded store in a folder that goes with the demo.
async fn start(listen: SocketAddr) -> anyhow::Result<(Server, TempDir)> {
    let folder = tempfile::Builder::new().prefix("quotad-demo-").tempdir();
    let folder = folder.context("cannot make a temporary folder")?;
    let store = StoreAddress::Embedded(folder.path().join("data")).open(StoreClock::Own).await?;
    let settings = engine::Settings::default;
    let server = match Server::over(Arc::clone(&store), listen, settings()).await {
        Err(error) if is_taken(&error) => {
            let free = SocketAddr::new(listen.ip(), 0);
            let server = Server::over(store, free, settings()).await?;
            talk(&format!("{listen} is taken; listening on {} instead", server.address));
            server
        }
        started => started?,
    };
    Ok((server, folder))
}

fn is_taken(error: &anyhow::Error) -> bool {
    let kind = error.root_cause().downcast_ref().map(io::Error::kind);
    kind == Some(io::ErrorKind::AddrInUse)
}

async fn play(out: Output, args: &Args, server: &mut Server) -> Result<u8, Failure> {
    let mut stage = Stage::open(out, server.address).await?;
    blog::play(&mut stage).await?;
    shop::play(&mut stage).await?;
    docs::play(&mut stage).await?;
    stage.table()?;
    let differs = stage.differs();
    if !differs.is_empty() {
        talk("this is not as it must be:");
        for line in differs {
            talk(&format!("  {line}"));
        }
        return Ok(exit::FAILED);
    }
    out.line("Everything is as it must be.")?;
    if args.once {
        return Ok(exit::OK);
    }
    let program = env::args().next().unwrap_or_else(|| "quotad".to_owned());
    out.line(&paste::calls(server.address, &program))?;
    server.ended().await.map_err(Failure::Other)?;
    Ok(exit::OK)
}

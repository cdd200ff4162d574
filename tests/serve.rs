//! `quotad serve --policy`: files that become policies, at the start and while
//! the server runs.

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use quota_authority::proto::v1;
use quota_authority::proto::v1::policy_service_client::PolicyServiceClient;
use support::{Server, eventually, mongo};
use tempfile::TempDir;

/// How long anything may take that a file sets off.
const SOON: Duration = Duration::from_secs(20);
/// How long a file that is to change nothing is given to change something.
const WHILE: Duration = Duration::from_secs(2);

fn text(namespace: &str, max: i64) -> String {
    format!(
        "namespace: {namespace}\nmetrics: {{ m: {{}} }}\nlimits:\n  - name: l\n    metric: m\n    \
         window: lifetime\n    max: {max}\n"
    )
}

/// The same with a fault on line 7, at column 5.
fn faulty(namespace: &str) -> String {
    text(namespace, -1)
}

/// A folder of policy files.
struct Files(TempDir);

impl Files {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a folder"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Writes a file as editors do: another one, renamed.
    fn put(&self, name: &str, text: &str) -> String {
        let path = self.path(name);
        let draft = self.path(&format!(".{name}.draft"));
        fs::write(&draft, text).expect("a written file");
        fs::rename(&draft, &path).expect("a renamed file");
        shown(&path)
    }
}

fn shown(path: &Path) -> String {
    path.to_str().expect("a path in UTF-8").to_owned()
}

/// A policy in force: its revision, its max, who it is by.
type InForce = (i64, i64, String);

async fn in_force(server: &Server, namespace: &str) -> Option<InForce> {
    let mut client = PolicyServiceClient::new(server.channel().await);
    let request = v1::GetPolicyRequest { namespace: namespace.to_owned(), revision: 0 };
    let answer = match client.get_policy(request).await {
        Ok(answer) => answer.into_inner(),
        Err(status) if status.code() == tonic::Code::NotFound => return None,
        Err(status) => panic!("{status}"),
    };
    let max = answer.policy?.limits.remove(0).max?.kind;
    let Some(v1::max::Kind::Amount(max)) = max else { panic!("{max:?}") };
    let revision = answer.revision?;
    Some((revision.revision, max, revision.principal))
}

fn by_file(revision: i64, max: i64, name: &str) -> InForce {
    (revision, max, format!("file:{name}"))
}

async fn comes_into_force(server: &Server, namespace: &str, expected: InForce) {
    eventually(SOON, &format!("{expected:?} to be in force"), async || {
        (in_force(server, namespace).await.as_ref() == Some(&expected)).then_some(())
    })
    .await;
}

async fn is_logged(server: &Server, what: &str) {
    eventually(SOON, &format!("{what:?} in the log"), async || {
        server.log().contains(what).then_some(())
    })
    .await;
}

/// Applies a policy by a call.
async fn call(server: &Server, namespace: &str, max: i64) {
    let mut client = PolicyServiceClient::new(server.channel().await);
    let request = v1::GetPolicyRequest { namespace: namespace.to_owned(), revision: 0 };
    let present = client.get_policy(request).await.expect("a policy").into_inner();
    let mut policy = present.policy.expect("a policy");
    policy.limits[0].max = Some(v1::Max { kind: Some(v1::max::Kind::Amount(max)) });
    let request = v1::ApplyPolicyRequest { policy: Some(policy), ..Default::default() };
    client.apply_policy(request).await.expect("a sound policy");
}

#[tokio::test(flavor = "multi_thread")]
async fn files_are_in_force_when_the_server_listens_and_again_when_they_change() {
    let files = Files::new();
    let (a, b) = (files.put("a.yaml", &text("a", 1)), files.put("b.yaml", &text("b", 2)));
    let server = Server::start(&["--store", "memory", "--policy", &a, "--policy", &b], &[]).await;
    assert_eq!(in_force(&server, "a").await, Some(by_file(1, 1, "a.yaml")));
    assert_eq!(in_force(&server, "b").await, Some(by_file(1, 2, "b.yaml")));

    files.put("a.yaml", &text("a", 10));
    comes_into_force(&server, "a", by_file(2, 10, "a.yaml")).await;
    // Written in place; and other words for the same are no new revision.
    fs::write(&b, format!("# twenty\n{}", text("b", 20))).expect("a written file");
    comes_into_force(&server, "b", by_file(2, 20, "b.yaml")).await;
    files.put("b.yaml", &format!("# still twenty\n{}", text("b", 20)));
    is_logged(&server, "in force already").await;
    assert_eq!(in_force(&server, "b").await, Some(by_file(2, 20, "b.yaml")));
    assert_eq!(in_force(&server, "a").await, Some(by_file(2, 10, "a.yaml")), "each by itself");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_symlink_that_is_swapped_above_the_file_is_followed() {
    let files = Files::new();
    for (folder, max) in [("v1", 1), ("v2", 2)] {
        fs::create_dir(files.path(folder)).expect("a folder");
        fs::write(files.path(folder).join("p.yaml"), text("n", max)).expect("a written file");
    }
    // As Kubernetes lays out a volume: p.yaml -> data/p.yaml, data -> v1.
    std::os::unix::fs::symlink("v1", files.path("data")).expect("a symlink");
    std::os::unix::fs::symlink("data/p.yaml", files.path("p.yaml")).expect("a symlink");
    let server =
        Server::start(&["--store", "memory", "--policy", &shown(&files.path("p.yaml"))], &[]).await;
    assert_eq!(in_force(&server, "n").await, Some(by_file(1, 1, "p.yaml")));
    std::os::unix::fs::symlink("v2", files.path("next")).expect("a symlink");
    fs::rename(files.path("next"), files.path("data")).expect("a swapped symlink");
    comes_into_force(&server, "n", by_file(2, 2, "p.yaml")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_goes_wrong_leaves_the_policy_in_force_until_it_is_mended() {
    let files = Files::new();
    let path = files.put("p.yaml", &text("n", 1));
    let mut server = Server::start(&["--store", "memory", "--policy", &path], &[]).await;
    files.put("p.yaml", &faulty("n"));
    is_logged(&server, &format!("{path}:7:5: limits[0].max: ")).await;
    assert_eq!(in_force(&server, "n").await, Some(by_file(1, 1, "p.yaml")));
    fs::remove_file(&path).expect("it was there");
    is_logged(&server, "cannot read").await;
    tokio::time::sleep(WHILE).await;
    assert_eq!(in_force(&server, "n").await, Some(by_file(1, 1, "p.yaml")));
    assert!(server.ended().is_none());
    for (what, times) in [("7:5: limits[0].max", 1), ("cannot read", 1)] {
        assert_eq!(server.log().matches(what).count(), times, "{what} is told once");
    }
    files.put("p.yaml", &text("n", 3));
    comes_into_force(&server, "n", by_file(2, 3, "p.yaml")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_files_at_the_start_are_wrong_use_and_nothing_is_applied() {
    let files = Files::new();
    let store = format!("embedded:{}", shown(&files.path("data")));
    let (good, bad) = (files.put("a.yaml", &text("a", 1)), files.put("b.yaml", &faulty("b")));
    let missing = shown(&files.path("missing.yaml"));
    let refused = async |args: &[&str], env: &[(&str, &str)]| {
        let mut server = Server::spawn(&[&["--store", &store], args].concat(), env);
        let status = server.wait_exit(Duration::from_secs(30)).await;
        assert_eq!(status.code(), Some(2), "{}", server.log());
        server.log()
    };
    let log = refused(&["--policy", &good, "--policy", &bad, "--policy", &missing], &[]).await;
    let lines: Vec<&str> = log.lines().collect();
    assert_eq!(lines.len(), 2, "{log}");
    assert!(lines[0].starts_with(&format!("{bad}:7:5: limits[0].max: ")), "{log}");
    assert!(lines[1].starts_with(&format!("cannot read {missing}: ")), "{log}");
    // Two files for one namespace, by way of the environment.
    let twin = files.put("twin.yaml", &text("a", 5));
    let log = refused(&[], &[("QUOTAD_POLICY", &format!("{good}:{twin}"))]).await;
    assert_eq!(log.trim(), format!("{twin}: namespace 'a' has its policy from {good} already"));

    let server = Server::start(&["--store", &store], &[("QUOTAD_POLICY", "")]).await;
    assert_eq!(in_force(&server, "a").await, None, "nothing was applied");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_call_has_applied_is_replaced_by_force_alone() {
    let files = Files::new();
    let uri = mongo().uri_for(&mongo().fresh_database());
    let path = files.put("p.yaml", &text("n", 1));
    let args = ["--store", &uri, "--policy", &path];
    let mut server = Server::start(&args, &[]).await;
    call(&server, "n", 2).await;
    let by_call = || Some((2, 2, "anonymous".to_owned()));
    assert_eq!(in_force(&server, "n").await, by_call());
    // Neither when it changes, nor at the next start.
    files.put("p.yaml", &text("n", 3));
    is_logged(&server, "revision 2 was applied by a call of anonymous").await;
    is_logged(&server, &format!("quotad policy apply -f {path}, or serve with --policy-force"))
        .await;
    assert_eq!(in_force(&server, "n").await, by_call());
    // Once a call has applied what the file says, the file may go on from there.
    call(&server, "n", 3).await;
    files.put("p.yaml", &text("n", 4));
    comes_into_force(&server, "n", by_file(4, 4, "p.yaml")).await;
    call(&server, "n", 2).await;
    let by_call = || Some((5, 2, "anonymous".to_owned()));
    server.sigterm();
    assert!(server.wait_exit(Duration::from_secs(30)).await.success());
    let mut server = Server::start(&args, &[]).await;
    is_logged(&server, "--policy-force").await;
    assert_eq!(in_force(&server, "n").await, by_call());
    server.sigterm();
    assert!(server.wait_exit(Duration::from_secs(30)).await.success());

    let mut server = Server::start(&args, &[("QUOTAD_POLICY_FORCE", "true")]).await;
    assert_eq!(in_force(&server, "n").await, Some(by_file(6, 4, "p.yaml")));
    server.sigterm();
    assert!(server.wait_exit(Duration::from_secs(30)).await.success());
    // From a file once more, so a file may change it.
    files.put("p.yaml", &text("n", 5));
    let server = Server::start(&args, &[]).await;
    assert_eq!(in_force(&server, "n").await, Some(by_file(7, 5, "p.yaml")));
}

/// Several servers with the same file make one revision, and one server's
/// reload is in force on the others.
#[tokio::test(flavor = "multi_thread")]
async fn servers_that_share_a_file_make_one_revision_of_it() {
    let files = Files::new();
    let uri = mongo().uri_for(&mongo().fresh_database());
    let path = files.put("p.yaml", &text("n", 1));
    let args = ["--store", &uri, "--policy", &path];
    let started = [Server::start(&args, &[]), Server::start(&args, &[]), Server::start(&args, &[])];
    let servers = futures_util::future::join_all(started).await;
    for server in &servers {
        assert_eq!(in_force(server, "n").await, Some(by_file(1, 1, "p.yaml")));
    }
    files.put("p.yaml", &text("n", 2));
    for server in &servers {
        comes_into_force(server, "n", by_file(2, 2, "p.yaml")).await;
    }
}

/// A store that is away while a file changes gets it when it is back.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_the_store_cannot_take_is_tried_again() {
    let files = Files::new();
    let set = support::ReplicaSet::start(1, &[]).await;
    let path = files.put("p.yaml", &text("n", 1));
    let server = Server::start(&["--store", &set.uri_for("files"), "--policy", &path], &[]).await;
    set.member(0).kill9();
    files.put("p.yaml", &text("n", 2));
    is_logged(&server, "the policy in force stays: the store is unavailable").await;
    set.restart(0).await;
    eventually(Duration::from_mins(1), "the policy to be in force", async || {
        let mut client = PolicyServiceClient::new(server.channel().await);
        let request = v1::GetPolicyRequest { namespace: "n".to_owned(), revision: 2 };
        client.get_policy(request).await.ok()
    })
    .await;
}

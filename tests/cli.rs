//! The command line as people and scripts use it: what it prints, where, and
//! the exit code.

mod support;

#[path = "cli/admin.rs"]
mod admin;
#[path = "cli/events.rs"]
mod events;
#[path = "cli/life.rs"]
mod life;

use std::fs;
use std::io::Write as _;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use support::{Quotad, Server, eventually_blocking, quotad};
use tempfile::TempDir;

const BLOG: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/policies/blog.yaml");
/// Three faults, on lines 7, 9 and 10.
const FAULTY: &str = "\
namespace: blog
plans: [free]
metrics:
  posts: { requires: [user] }
limits:
  - name: a
    metric: postz
    per: [user]
    window: { calendar: { unit: fortnight } }
    max: -1
";

const OK: i32 = 0;
const USAGE: i32 = 2;
const REFUSED: i32 = 3;
const UNREACHABLE: i32 = 4;

/// A server in memory with the blog's policy.
struct Blog {
    server: Server,
}

impl Blog {
    async fn start() -> Self {
        let blog = Self::without_policy().await;
        blog.run(&["policy", "apply", "-f", BLOG]).code(OK);
        blog
    }

    async fn without_policy() -> Self {
        Self { server: Server::start(&["--store", "memory"], &[]).await }
    }

    fn run(&self, args: &[&str]) -> Ran {
        let address = self.server.address().to_string();
        let env = [("QUOTAD_SERVER", address.as_str()), ("QUOTAD_NAMESPACE", "blog")];
        Ran(quotad(args, &env))
    }
}

/// What a command did, to be looked at step by step.
struct Ran(Quotad);

impl Ran {
    #[track_caller]
    fn code(self, expected: i32) -> Self {
        assert_eq!(self.0.code, expected, "{:?}", self.0);
        self
    }

    #[track_caller]
    fn prints(self, text: &str) -> Self {
        assert!(self.0.stdout.contains(text), "no {text:?} in {:?}", self.0);
        self
    }

    /// MAX, USED, HELD and AVAILABLE of the last limit.
    #[track_caller]
    fn ends_with_numbers(self, expected: &str) -> Self {
        let last = self.0.stdout.lines().last().unwrap_or_default();
        let row: Vec<&str> = last.split_whitespace().collect();
        let numbers = row.get(row.len().saturating_sub(4)..).unwrap_or_default();
        assert_eq!(numbers.join(" "), expected, "{:?}", self.0);
        self
    }

    #[track_caller]
    fn says(self, text: &str) -> Self {
        assert!(self.0.stderr.contains(text), "no {text:?} in {:?}", self.0);
        self
    }

    #[track_caller]
    fn prints_nothing(self) -> Self {
        assert_eq!(self.0.stdout, "", "{:?}", self.0);
        self
    }

    #[track_caller]
    fn json(&self) -> Value {
        serde_json::from_str(&self.0.stdout).unwrap_or_else(|e| panic!("{e}: {:?}", self.0))
    }

    #[track_caller]
    fn json_error(&self) -> Value {
        serde_json::from_str(&self.0.stderr).unwrap_or_else(|e| panic!("{e}: {:?}", self.0))
    }
}

/// A child that does not outlive a test that fails.
struct Mortal(Child);

impl Drop for Mortal {
    fn drop(&mut self) {
        // One that has ended already is what is wanted.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Without any server.
fn run(args: &[&str]) -> Ran {
    Ran(quotad(args, &[]))
}

/// A file in a folder that goes with the test.
fn file(text: &str) -> (TempDir, PathBuf) {
    let folder = TempDir::new().expect("a temporary folder");
    let path = folder.path().join("policy.yaml");
    fs::write(&path, text).expect("a written file");
    (folder, path)
}

#[test]
fn the_demo_ends_as_it_must_and_shows_what_came_of_it() {
    // Its port is taken: it says so and takes another.
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let taken = taken.local_addr().map(|address| (taken, address)).expect("an address");
    let listen = taken.1.to_string();
    let ran = run(&["demo", "--once", "--listen", &listen]).code(OK);
    let ran = ran.says(&format!("{listen} is taken"));
    let ran = ran.prints("3 admitted, 97 refused").prints("17 admitted, 83 refused");
    let ran = ran.prints("refused (QUOTA_EXCEEDED): quota exceeded: limit 'posts-per-period'");
    let ran = ran.prints("Everything is as it must be.");
    let rows: Vec<Vec<&str>> = ran
        .0
        .stdout
        .lines()
        .skip_while(|line| !line.starts_with("STORY"))
        .map(|line| line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect())
        .collect();
    assert_eq!(rows[0], ["STORY", "STEP", "WHY REFUSED", "CALLS", "ADMITTED", "REFUSED"]);
    let why = |limit: &str| format!("QUOTA_EXCEEDED: {limit}");
    for (story, step, why, numbers) in [
        ("blog", "100 callers at once, plan free", why("posts-per-period"), ["100", "3", "97"]),
        ("blog", "a fourth post", why("posts-per-period"), ["1", "0", "1"]),
        (
            "blog",
            "100 callers at once, upgraded to basic",
            why("posts-per-period"),
            ["100", "17", "83"],
        ),
        ("blog", "100 callers at once, a new period", why("posts-per-period"), ["100", "3", "97"]),
        ("shop", "100 callers at once, 3 a day", why("game-daily"), ["100", "3", "97"]),
        ("shop", "another account, same phone", why("item-per-phone"), ["1", "0", "1"]),
        ("docs", "writer B meanwhile", why("one-writer"), ["1", "0", "1"]),
        ("docs", "writer C", "-".to_owned(), ["1", "1", "0"]),
    ] {
        let row = [&[story, step, &why][..], &numbers[..]].concat();
        assert!(rows.contains(&row), "{row:?} in {rows:?}");
    }
}

#[test]
fn the_demo_stays_up_with_calls_to_paste_until_it_is_told_to_end() {
    let folder = TempDir::new().expect("a temporary folder");
    let log = folder.path().join("stdout");
    let demo = Command::new(env!("CARGO_BIN_EXE_quotad"))
        .args(["demo", "--listen", "127.0.0.1:0"])
        .env("TMPDIR", folder.path())
        .stdin(Stdio::null())
        .stdout(fs::File::create(&log).expect("a file"))
        .stderr(Stdio::null())
        .spawn()
        .expect("quotad starts");
    let mut demo = Mortal(demo);
    let read = || fs::read_to_string(&log).expect("its output");
    let text = eventually_blocking(Duration::from_mins(1), "the demo's calls to paste", || {
        let text = read();
        text.contains("Ctrl-C").then_some(text)
    });
    let line = text.lines().find(|line| line.contains(" usage -n blog posts -d user=7"));
    let line = line.expect("a usage call to paste");
    let args: Vec<&str> = line.split_whitespace().skip(1).collect();
    run(&args).code(OK).ends_with_numbers("3 1 0 2");
    for rpc in ["Reserve", "Commit", "GetUsage", "PutSubject"] {
        let call = text.lines().find(|line| line.ends_with(rpc)).expect(rpc);
        assert!(call.starts_with("grpcurl -plaintext -d '{\"namespace\":\"blog\""), "{call}");
    }
    let pid = demo.0.id().to_string();
    let told = Command::new("kill").args(["-INT", &pid]).status().expect("kill starts");
    assert!(told.success());
    let ended = demo.0.wait().expect("it ends");
    assert!(ended.success(), "{ended}");
    let left: Vec<_> = fs::read_dir(folder.path()).expect("the folder").collect();
    assert_eq!(left.len(), 1, "nothing but the log stays behind: {left:?}");
}

#[test]
fn a_policy_is_checked_without_a_server() {
    run(&["policy", "check", BLOG]).code(OK).prints("blog.yaml: ok, 1 limit\n");
    let (_folder, path) = file(FAULTY);
    let path = path.to_str().expect("a path in UTF-8");
    let ran = run(&["policy", "check", path]).code(USAGE).prints_nothing();
    let places: Vec<&str> = ran.0.stderr.lines().collect();
    for (line, at) in places.iter().zip([
        ":7:5: limits[0].metric: ",
        ":9:27: limits[0].window.calendar.unit: ",
        ":10:5: limits[0].max: ",
    ]) {
        assert!(line.starts_with(&format!("{path}{at}")), "{line}");
    }
    assert_eq!(places.len(), 3, "{places:?}");
    run(&["policy", "check", "/nowhere/policy.yaml"]).code(USAGE).says("cannot read");
}

#[test]
fn a_policy_may_come_by_stdin() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_quotad"))
        .args(["policy", "check", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("quotad starts");
    let mut stdin = child.stdin.take().expect("stdin is a pipe");
    stdin.write_all(FAULTY.as_bytes()).expect("it reads");
    drop(stdin);
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(USAGE));
    assert!(String::from_utf8_lossy(&output.stderr).starts_with("stdin:7:5: "), "{output:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_is_applied_shown_and_applied_again() {
    let blog = Blog::without_policy().await;
    blog.run(&["policy", "show"]).code(REFUSED).says("refused (NAMESPACE_NOT_FOUND)");
    let (_folder, faulty) = file(FAULTY);
    let faulty = faulty.to_str().expect("a path in UTF-8");
    blog.run(&["policy", "apply", "-f", faulty]).code(USAGE).says("policy.yaml:7:5: ");
    let dry = blog.run(&["policy", "apply", "-f", BLOG, "--dry-run"]);
    dry.code(OK).prints("would become revision 1 of 'blog'; nothing was changed");
    blog.run(&["policy", "apply", "-f", BLOG]).code(OK).prints("applied revision 1 of 'blog'");
    blog.run(&["policy", "apply", "-f", BLOG]).code(OK).prints("unchanged: 'blog'");
    let expecting = |revision| ["policy", "apply", "-f", BLOG, "--expected-revision", revision];
    blog.run(&expecting("-1")).code(OK).prints("unchanged: 'blog'");
    blog.run(&expecting("7")).code(REFUSED).says("POLICY_REVISION_MISMATCH");

    // What is shown may be applied: it is the same policy.
    let shown = blog.run(&["policy", "show"]).code(OK).prints("# revision 1, applied ");
    let (_folder, copy) = file(&shown.0.stdout);
    let copy = copy.to_str().expect("a path in UTF-8");
    blog.run(&["policy", "apply", "-f", copy]).code(OK).prints("unchanged: 'blog'");

    let daily = fs::read_to_string(BLOG).expect("the policy").replace("month, time", "day, time");
    let (_folder, daily) = file(&daily);
    let daily = daily.to_str().expect("a path in UTF-8");
    let applied = blog.run(&["policy", "apply", "-f", daily, "--json"]).code(OK).json();
    assert_eq!(applied["revision"], "2");
    assert_eq!(applied["restartedLimits"][0], "posts-per-period");
    let first = blog.run(&["policy", "show", "--revision", "1", "--json"]).code(OK).json();
    assert_eq!(first["revision"]["revision"], "1");
    let unit =
        &first["policy"]["limits"][0]["window"]["billing"]["withoutPeriod"]["calendar"]["unit"];
    assert_eq!(unit, "CALENDAR_UNIT_MONTH");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_post_is_reserved_committed_and_seen_in_the_usage() {
    let blog = Blog::start().await;
    let reserved = blog.run(&["reserve", "posts", "-d", "user=42", "--id", "p1", "--ttl", "5m"]);
    let reserved = reserved.code(OK).prints("reserved p1 (held until 2");
    assert!(reserved.0.stdout.contains("LIMIT"), "{:?}", reserved.0);
    let row = |numbers: &str| {
        let usage = blog.run(&["usage", "posts", "-d", "user=42"]).code(OK);
        usage.prints("posts-per-period  user=42  2").ends_with_numbers(numbers);
    };
    row("3 0 1 2");
    let again = blog.run(&["reserve", "posts", "-d", "user=42", "--id", "p1", "--ttl", "5m"]);
    again.code(OK).prints("(replayed)");
    blog.run(&["commit", "p1", "--resource", "post/1"]).code(OK).prints("committed p1");
    row("3 1 0 2");

    // Two items of one call, the second for a user of its own.
    let both = ["reserve", "posts=2,user=42", "posts,user=43", "--id", "p2"];
    blog.run(&both).code(OK).prints("user=43");
    row("3 1 2 0");
    blog.run(&["check", "posts", "-d", "user=42"]).code(REFUSED).prints("would be refused");
    blog.run(&["commit", "p2", "--amount", "1", "--amount", "0"]).code(OK);
    row("3 2 0 1");
    blog.run(&["check", "posts", "-d", "user=42"]).code(OK).prints("would be admitted");
    blog.run(&["reserve", "posts", "-d", "user=42", "--id", "p3"]).code(OK);
    let released = blog.run(&["release", "p3", "--reason", "not created"]);
    released.code(OK).prints("released p3");
    row("3 2 0 1");
    let at_once = ["reserve", "posts", "-d", "user=42", "--commit", "--resource", "post/4"];
    blog.run(&at_once).code(OK).prints("committed ");
    row("3 3 0 0");

    // The cancel that comes first wins.
    blog.run(&["release", "p9"]).code(REFUSED).says("RESERVATION_NOT_FOUND");
    blog.run(&["release", "p9", "--allow-missing"]).code(OK);
    let late = blog.run(&["reserve", "posts", "-d", "user=43", "--id", "p9"]);
    late.code(REFUSED).says("ALREADY_RELEASED");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_is_explained_and_has_its_exit_code() {
    let blog = Blog::start().await;
    blog.run(&["reserve", "posts=3", "-d", "user=42", "--commit"]).code(OK);
    let refused = blog.run(&["reserve", "posts", "-d", "user=42"]).code(REFUSED).prints_nothing();
    let refused =
        refused.says("refused (QUOTA_EXCEEDED): quota exceeded: limit 'posts-per-period'");
    let refused = refused.says("REQUESTED").says("\ncould pass at 2");
    // It holds nothing, so its id is of no use.
    assert!(!refused.0.stderr.contains("--id"), "{:?}", refused.0);
    let json = blog.run(&["reserve", "posts", "-d", "user=42", "--json"]).code(REFUSED);
    let error = json.prints_nothing().json_error();
    assert_eq!(error["code"], "RESOURCE_EXHAUSTED");
    assert_eq!(error["reason"], "QUOTA_EXCEEDED");
    let details = error["details"].as_array().expect("details");
    let refusal = details.iter().find(|detail| {
        detail["@type"].as_str().is_some_and(|name| name.ends_with("/quota.v1.Refusal"))
    });
    let limit = &refusal.expect("a refusal")["limits"][0];
    assert_eq!((&limit["limit"], &limit["used"]), (&"posts-per-period".into(), &"3".into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subject_is_changed_where_asked_and_nowhere_else() {
    let blog = Blog::start().await;
    let set = |args: &[&str]| blog.run(&[&["subject", "set", "user/42"], args].concat());
    blog.run(&["subject", "show", "user/42"]).code(REFUSED).says("SUBJECT_NOT_FOUND");
    set(&["--plan", "basic", "--label", "team=red"]).code(OK).prints("set user/42");
    set(&["--plan", "basic"]).code(OK).prints("unchanged: user/42");
    set(&["--frozen"]).code(OK);
    let frozen = blog.run(&["reserve", "posts", "-d", "user=42"]);
    frozen.code(REFUSED).says("SUBJECT_FROZEN");
    set(&["--unfrozen", "--set", "posts-per-period=50@2999-01-01T00:00:00Z"]).code(OK);
    let shown = blog.run(&["subject", "show", "user/42", "--json"]).code(OK).json();
    let subject = &shown["subject"];
    assert_eq!(subject["plan"], "basic");
    assert_eq!(subject["frozen"], false);
    assert_eq!(subject["labels"]["team"], "red");
    assert_eq!(subject["overrides"][0]["set"], "50");
    assert_eq!(subject["overrides"][0]["expireTime"], "2999-01-01T00:00:00Z");
    let usage = blog.run(&["usage", "posts", "-d", "user=42", "--json"]).code(OK).json();
    assert_eq!(usage["limits"][0]["max"], "50");
    set(&["--add", "posts-per-period=-5"]).code(OK).prints("max -5");
    let usage = blog.run(&["usage", "posts", "-d", "user=42", "--json"]).code(OK).json();
    assert_eq!(usage["limits"][0]["max"], "15");
    set(&["--unset", "posts-per-period", "--label", "team="]).code(OK);
    let shown = blog.run(&["subject", "show", "user/42", "--json"]).code(OK).json();
    assert_eq!(shown["subject"]["overrides"], Value::Array(Vec::new()));
    assert_eq!(shown["subject"]["labels"], serde_json::json!({}));
    set(&["--plan", "gold"]).code(USAGE).says("subject.plan: 'gold' is not a plan");
}

#[tokio::test(flavor = "multi_thread")]
async fn json_is_one_document_per_answer_with_every_field() {
    let blog = Blog::start().await;
    let reserve = ["reserve", "posts", "-d", "user=42", "--id", "p1", "--json"];
    let reserved = blog.run(&reserve).code(OK).json();
    assert_eq!(reserved["reservation"]["state"], "RESERVATION_STATE_HELD");
    assert_eq!(reserved["replayed"], false);
    assert_eq!(reserved["limits"][0]["held"], "1");
    let committed = blog.run(&["commit", "p1", "--json"]).code(OK).json();
    assert_eq!(committed["reservation"]["state"], "RESERVATION_STATE_COMMITTED");
    let released = blog.run(&["release", "p2", "--allow-missing", "--json"]).code(OK).json();
    assert_eq!(released["reservation"]["state"], "RESERVATION_STATE_RELEASED");
    let check = blog.run(&["check", "posts=9", "-d", "user=42", "--json"]).code(REFUSED).json();
    assert_eq!(check["admitted"], false);
}

#[test]
fn nobody_there_is_told_apart_from_a_refusal() {
    // Bound and closed again: nobody listens there.
    let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let address = free.expect("a free port").to_string();
    let usage = ["usage", "-n", "blog", "posts", "-d", "user=42", "--server", &address];
    let ran = run(&usage).code(UNREACHABLE).prints_nothing();
    ran.says(&format!("cannot reach the server at http://{address}: "));
    let error = run(&[&usage[..], &["--json"]].concat()).code(UNREACHABLE).json_error();
    assert_eq!(error["code"], "UNAVAILABLE");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_hangs_is_given_up_in_time_with_the_id_to_send_again() {
    let mut blog = Blog::start().await;
    blog.server.sigstop();
    let ran = blog.run(&["reserve", "posts", "-d", "user=42", "--timeout", "300ms"]);
    blog.server.sigcont();
    let ran = ran.code(UNREACHABLE).says("unavailable (DEADLINE_EXCEEDED)");
    let id = ran.0.stderr.split("--id ").nth(1).expect("the id").trim();
    blog.run(&["reserve", "posts", "-d", "user=42", "--id", id]).code(OK);
    let usage = blog.run(&["usage", "posts", "-d", "user=42", "--json"]).code(OK).json();
    assert_eq!(usage["limits"][0]["held"], "1", "it was held once at most");
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_use_has_its_exit_code_wherever_it_is_found() {
    for args in [
        &["reserve", "posts"][..],
        &["reserve", "-n", "blog", "posts=many"],
        &["reserve", "-n", "blog", "posts", "-d", "user"],
        &["reserve", "-n", "blog", "posts", "-d", "user=1", "-d", "user=2"],
        &["reserve", "-n", "blog", "posts", "--ttl", "soon"],
        &["usage", "-n", "blog", "posts", "--at", "yesterday"],
        &["usage", "-n", "blog", "posts", "--server", "https://127.0.0.1:1"],
        &["subject", "set", "-n", "blog", "user/42"],
        &["subject", "set", "-n", "blog", "user", "--plan", "pro"],
        &["bench"],
        &["bench", "--store", "memory", "--baseline"],
        &["nonsense"],
        &[],
    ] {
        run(args).code(USAGE).prints_nothing();
    }
    let blog = Blog::start().await;
    let ran = blog.run(&["reserve", "posts=0", "-d", "user=42"]).code(USAGE);
    ran.says("invalid (INVALID_FIELD):\n  items[0].amount: is 0; must be 1 to 2^63-1");
    run(&["--help"]).code(OK).prints("Exit codes:").prints("3  refused");
}

#[test]
fn the_benchmark_measures_with_and_without_replays() {
    let bench = ["bench", "--store", "memory", "--seconds", "1", "--callers", "4", "--keys", "2"];
    let report = run(&[&bench[..], &["--replays", "20", "--json"]].concat()).code(OK).json();
    assert!(report["quotad"]["pairs"].as_u64().is_some_and(|pairs| pairs > 0), "{report}");
    assert_eq!(report["quotad"]["errors"], 0);
    assert!(report["quotad"]["reserve_ms"]["p99"].as_f64().is_some_and(|ms| ms > 0.0), "{report}");
    assert!(report["replays"]["replays"].as_u64().is_some_and(|replays| replays > 0), "{report}");
    run(&bench).code(OK).prints("PAIRS/S");
}

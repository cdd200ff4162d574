//! Renewing, waiting, refunding, watching; correcting, recounting, comparing.

use serde_json::Value;

use crate::{Blog, OK, REFUSED, UNREACHABLE, USAGE, file, run};

/// Where something differs that was not mended.
const DIFFERENT: i32 = 1;

/// Limits printed: MAX, USED, HELD, AVAILABLE of the only one.
fn numbers(blog: &Blog, expected: &str) {
    blog.run(&["usage", "posts", "-d", "user=42"]).code(OK).ends_with_numbers(expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_is_renewed_and_its_commit_refunded() {
    let blog = Blog::start().await;
    blog.run(&["reserve", "posts", "-d", "user=42", "--id", "r", "--ttl", "5s"]).code(OK);
    let renewed =
        blog.run(&["extend", "r", "--ttl", "1h"]).code(OK).prints("extended r (held until ");
    assert!(renewed.0.stderr.is_empty(), "{:?}", renewed.0);
    let json = blog.run(&["extend", "r", "--ttl", "2h", "--json"]).code(OK).json();
    assert_eq!(json["reservation"]["history"][1]["event"], "extended");
    assert_eq!(json["reservation"]["history"][1]["times"], "2");
    blog.run(&["extend", "nobody's"]).code(REFUSED).says("RESERVATION_NOT_FOUND");
    blog.run(&["extend", "r", "--ttl", "25h"]).code(USAGE).says("ttl");
    blog.run(&["commit", "r", "--resource", "post/1"]).code(OK);
    blog.run(&["extend", "r"]).code(REFUSED).says("ALREADY_COMMITTED");
    numbers(&blog, "3 1 0 2");
    blog.run(&["refund"]).code(USAGE);
    blog.run(&["refund", "r", "--resource", "post/1"]).code(USAGE);
    blog.run(&["refund", "r", "--amount", "2"]).code(REFUSED).says("REFUND_EXCEEDS_COMMIT");
    let refund = ["refund", "--resource", "post/1", "--refund-id", "f", "--reason", "deleted"];
    blog.run(&refund).code(OK).prints("committed r").ends_with_numbers("3 0 0 3");
    blog.run(&refund).code(OK).prints("(replayed)");
    let json = blog.run(&["refund", "r", "--refund-id", "f", "--json"]).code(OK).json();
    assert_eq!((&json["replayed"], &json["limits"][0]["used"]), (&Value::Bool(true), &"0".into()));
    blog.run(&["refund", "r"]).code(REFUSED).says("nothing left");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_commit_is_refused_reclaimed_or_overdrawn() {
    let blog = Blog::start().await;
    for (id, user) in [("a", "1"), ("b", "2")] {
        let user = format!("user={user}");
        blog.run(&["reserve", "posts=3", "-d", &user, "--id", id, "--ttl", "1s"]).code(OK);
    }
    for user in ["user=1", "user=2"] {
        // When the hold has run out, there is room for another.
        let full = ["reserve", "posts=2", "-d", user, "--wait", "30s"];
        blog.run(&full).code(OK).prints("reserved ");
    }
    blog.run(&["commit", "a"]).code(REFUSED).says("RESERVATION_EXPIRED");
    let reclaim = ["commit", "a", "--if-expired", "reclaim"];
    blog.run(&reclaim).code(REFUSED).says("QUOTA_EXCEEDED");
    blog.run(&["commit", "a", "--if-expired", "reclaim", "--amount", "1"]).code(OK);
    blog.run(&["commit", "b", "--if-expired", "overdraw"]).code(OK).ends_with_numbers("3 3 2 0");
    blog.run(&["commit", "b", "--if-expired", "never"]).code(USAGE).says("overdraw");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_waits_in_vain_is_told_so() {
    let blog = Blog::start().await;
    blog.run(&["reserve", "posts=3", "-d", "user=42", "--id", "r"]).code(OK);
    let wait = |wait| blog.run(&["reserve", "posts", "-d", "user=42", "--wait", wait]);
    wait("300ms").code(REFUSED).says("WAIT_TIMED_OUT").prints_nothing();
    wait("25h").code(USAGE).says("wait");
    let never = ["reserve", "posts=4", "-d", "user=42", "--wait", "60s"];
    blog.run(&never).code(REFUSED).says("QUOTA_EXCEEDED").says("can never fit");
}

#[tokio::test(flavor = "multi_thread")]
async fn counters_are_corrected_and_recounted() {
    let blog = Blog::start().await;
    blog.run(&["audit"]).code(OK).prints("every counter equals the sum of its reservations");
    let adjust = |delta, id| {
        let to = ["adjust", "posts-per-period", delta, "-d", "user=42", "--reason", "import"];
        blog.run(&[&to[..], &["--id", id]].concat())
    };
    adjust("5", "i").code(OK).prints("adjusted as i").ends_with_numbers("3 5 0 0");
    adjust("5", "i").code(OK).prints("(replayed)");
    adjust("-9", "j").code(USAGE).says("delta").says("only 5 are used");
    let json =
        ["adjust", "posts-per-period", "-4", "-d", "user=42", "--reason", "too many", "--json"];
    let json = blog.run(&json).code(OK).json();
    assert_eq!((&json["limit"]["used"], &json["replayed"]), (&"1".into(), &Value::Bool(false)));
    blog.run(&["adjust", "posts-per-period", "1", "-d", "user=42"]).code(USAGE).says("--reason");
    blog.run(&["adjust", "posts", "1", "--reason", "x"]).code(REFUSED).says("LIMIT_NOT_FOUND");
    for command in ["audit", "repair"] {
        blog.run(&[command]).code(OK).prints("every counter equals");
        blog.run(&[command, "--json"]).code(OK).prints_nothing();
        blog.run(&[command, "-n", "none"]).code(REFUSED).says("NAMESPACE_NOT_FOUND");
    }
    blog.run(&["events"]).code(OK).prints("adjusted").prints("too many");
    let nobody = ["audit", "-n", "n", "--server", "http://127.0.0.1:1"];
    run(&nobody).code(UNREACHABLE);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_exists_is_compared() {
    let blog = Blog::start().await;
    for n in ["1", "2"] {
        blog.run(&["reserve", "posts", "-d", "user=42", "--id", n]).code(OK);
        blog.run(&["commit", n, "--resource", &format!("post/{n}")]).code(OK);
    }
    let (_folder, path) = file("post/1\n\npost/3\n");
    let live = path.to_str().expect("a path in UTF-8");
    let compare = ["reconcile", "posts-per-period", "--live", live];
    let found = blog.run(&compare).code(DIFFERENT).prints("leaked").prints("missing");
    let rows: Vec<Vec<&str>> =
        found.0.stdout.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows, [vec!["post/3", "missing", "no"], vec!["post/2", "leaked", "2", "no"]]);
    let mend = ["--refund-leaked", "--book-missing", "--reason", "nightly", "--json"];
    blog.run(&[&compare[..], &mend].concat()).code(USAGE).says("key");
    let mended = blog.run(&[&compare[..], &mend, &["-d", "user=42"]].concat()).code(OK);
    let lines: Vec<Value> =
        mended.0.stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(lines.len(), 2);
    assert!(lines.iter().all(|line| line["mended"] == true), "{lines:?}");
    blog.run(&compare).code(OK).prints("what is committed is what exists");
    numbers(&blog, "3 2 0 1");
    let missing = ["reconcile", "posts-per-period", "--live", "/no/such/file"];
    blog.run(&missing).code(DIFFERENT).says("/no/such/file");
    blog.run(&["reconcile", "posts", "--live", live]).code(REFUSED).says("LIMIT_NOT_FOUND");
}

//! Listing and deleting subjects, comparing policies.

use std::fs;

use quota_authority::proto::v1::policy_service_client::PolicyServiceClient;
use quota_authority::proto::v1::{PutSubjectRequest, Subject};
use serde_json::Value;
use tempfile::TempDir;

use crate::{BLOG, Blog, FAULTY, OK, REFUSED, Ran, UNREACHABLE, USAGE, file, run};

/// With `--exit-code`, where there is a difference.
const DIFFERENT: i32 = 1;

/// The blog's policy with other numbers, in a file.
fn blog_with(from: &str, to: &str) -> (TempDir, String) {
    let text = fs::read_to_string(BLOG).expect("the policy");
    assert!(text.contains(from), "{text}");
    let (folder, path) = file(&text.replace(from, to));
    (folder, path.to_str().expect("a path in UTF-8").to_owned())
}

/// Each line of stdout, its columns apart.
fn rows(ran: &Ran) -> Vec<Vec<&str>> {
    let lines = ran.0.stdout.lines();
    lines.map(|l| l.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn subjects_are_listed_and_deleted() {
    let blog = Blog::start().await;
    blog.run(&["subject", "list", "-n", "none"]).code(REFUSED).says("NAMESPACE_NOT_FOUND");
    let none = blog.run(&["subject", "list"]).code(OK);
    assert_eq!(rows(&none), [["SUBJECT", "PLAN", "FROZEN", "OVERRIDES", "UPDATED"]]);
    for (subject, plan) in [("user/1", "pro"), ("user/2", ""), ("team/a/b", "pro")] {
        blog.run(&["subject", "set", subject, "--plan", plan, "--label", "n=1"]).code(OK);
    }
    let add = ["subject", "set", "user/1", "--add", "posts-per-period=5", "--frozen"];
    blog.run(&add).code(OK);
    let all = blog.run(&["subject", "list"]).code(OK);
    let found: Vec<Vec<&str>> = rows(&all)[1..].iter().map(|row| row[..4].to_vec()).collect();
    let expected = [
        ["team/a/b", "pro", "no", "0"],
        ["user/1", "pro", "yes", "1"],
        ["user/2", "(default)", "no", "0"],
    ];
    assert_eq!(found, expected);
    let names = |args: &[&str]| {
        let listed = blog.run(&[&["subject", "list", "--json"], args].concat()).code(OK);
        let line = |line: &str| {
            let subject: Value = serde_json::from_str(line).expect("an object on each line");
            subject["id"].as_str().expect("an id").to_owned()
        };
        listed.0.stdout.lines().map(line).collect::<Vec<_>>()
    };
    assert_eq!(names(&[]), ["a/b", "1", "2"]);
    assert_eq!(names(&["--kind", "user", "--plan", "pro"]), ["1"]);
    assert_eq!(names(&["--plan", "free"]), ["2"], "one without a plan is on the default");
    assert!(names(&["--kind", "nobody"]).is_empty());

    let shown = blog.run(&["subject", "show", "user/1", "--json"]).code(OK).json();
    let etag = shown["subject"]["etag"].as_str().expect("an etag").to_owned();
    let mismatch = "POLICY_REVISION_MISMATCH";
    let set = |etag: &str| blog.run(&["subject", "set", "user/1", "--unfrozen", "--etag", etag]);
    set("7").code(REFUSED).says(mismatch);
    set(&etag).code(OK).prints("set user/1");
    set(&etag).code(OK).prints("unchanged: user/1");
    let delete = |etag: &str| blog.run(&["subject", "delete", "user/1", "--etag", etag]);
    delete(&etag).code(REFUSED).says(mismatch);
    let shown = blog.run(&["subject", "show", "user/1", "--json"]).code(OK).json();
    delete(shown["subject"]["etag"].as_str().expect("an etag")).code(OK).prints("deleted user/1\n");
    blog.run(&["subject", "show", "user/1"]).code(REFUSED).says("SUBJECT_NOT_FOUND");
    blog.run(&["subject", "delete", "user/1"]).code(REFUSED).says("SUBJECT_NOT_FOUND");
    let json = blog.run(&["subject", "delete", "team/a/b", "--json"]).code(OK).json();
    assert_eq!(json, serde_json::json!({}));
    assert_eq!(names(&[]), ["2"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn all_pages_of_a_listing_are_read() {
    let blog = Blog::start().await;
    let address = format!("http://{}", blog.server.address());
    let mut client = PolicyServiceClient::connect(address).await.expect("a connection");
    for n in 0..1003 {
        let (kind, id) = ("user".to_owned(), format!("{n:04}"));
        let subject = Some(Subject { kind, id, ..Subject::default() });
        let (namespace, etag) = ("blog".to_owned(), String::new());
        let request = PutSubjectRequest { namespace, subject, etag };
        client.put_subject(request).await.expect("a subject");
    }
    let listed = blog.run(&["subject", "list", "--json"]).code(OK);
    assert_eq!(listed.0.stdout.lines().count(), 1003);
    let listed = blog.run(&["subject", "list"]).code(OK).prints("user/1002");
    assert_eq!(listed.0.stdout.lines().count(), 1 + 1003);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_is_compared_with_what_is_in_force() {
    let blog = Blog::without_policy().await;
    let (_folder, faulty) = file(FAULTY);
    let faulty = faulty.to_str().expect("a path in UTF-8");
    blog.run(&["policy", "diff", "-f", faulty]).code(USAGE).says("policy.yaml:7:5: ");
    let first = blog.run(&["policy", "diff", "-f", BLOG]).code(OK);
    let first = first.prints("would become revision 1 of 'blog'; nothing was changed\n");
    first.prints("\n--- no policy yet\n+++ ").prints("\n+namespace: blog\n");
    blog.run(&["policy", "show"]).code(REFUSED);
    blog.run(&["policy", "apply", "-f", BLOG]).code(OK);

    // What is only written otherwise is no difference.
    let (_folder, same) = blog_with("namespace: blog", "namespace: \"blog\"  # that one");
    let alike = blog.run(&["policy", "diff", "-f", &same, "--exit-code"]).code(OK);
    alike.prints("unchanged: 'blog' is at revision 1 with this content\n").says("no difference");

    blog.run(&["reserve", "posts=3", "-d", "user=42", "--commit"]).code(OK);
    blog.run(&["reserve", "posts=2", "-d", "user=43"]).code(OK);
    let (_folder, lower) = blog_with("free: 3", "free: 1");
    let differs = blog.run(&["policy", "diff", "-f", &lower]).code(OK);
    let differs = differs.prints("would become revision 2 of 'blog'; nothing was changed\n");
    let differs = differs.prints("2 counters would be above a limit that was lowered:\nLIMIT");
    let differs = differs.prints("user=42").prints("user=43");
    let differs = differs.prints(&format!("--- blog, revision 1\n+++ {lower}\n@@ "));
    let removed = differs.0.stdout.lines().find(|line| line.starts_with('-') && line.contains('3'));
    let removed = removed.expect("the line that goes").replacen('-', "+", 1).replace('3', "1");
    let differs = differs.prints(&removed);
    assert!(!differs.0.stdout.contains('\u{1b}'), "no colours but on a terminal");
    blog.run(&["policy", "diff", "-f", &lower, "--exit-code"]).code(DIFFERENT);
    let json = blog.run(&["policy", "diff", "-f", &lower, "--json"]).code(OK).json();
    assert_eq!(json["different"], true);
    assert_eq!(json["apply"]["overLimit"]["count"], "2");
    assert_eq!(json["apply"]["overLimit"]["incomplete"], false);
    assert!(json["diff"].as_str().is_some_and(|diff| diff.starts_with("--- blog, revision 1\n")));
    let (_folder, daily) = blog_with("month, time", "day, time");
    let restarts = blog.run(&["policy", "diff", "-f", &daily]).code(OK);
    restarts.prints("these limits would start with fresh counters: posts-per-period\n");

    let applied = blog.run(&["policy", "apply", "-f", &lower]).code(OK);
    applied.prints("2 counters are above a limit that was lowered:\nLIMIT");
    let closed = ["policy", "diff", "-f", BLOG, "--server", "127.0.0.1:1"];
    blog.run(&closed).code(UNREACHABLE);
}

#[tokio::test(flavor = "multi_thread")]
async fn revisions_are_listed_and_compared() {
    let blog = Blog::without_policy().await;
    blog.run(&["policy", "revisions"]).code(REFUSED).says("NAMESPACE_NOT_FOUND");
    let (_first, lower) = blog_with("free: 3", "free: 1");
    let (_second, higher) = blog_with("pro: 100", "pro: 200");
    for policy in [BLOG, &lower, &higher] {
        blog.run(&["policy", "apply", "-f", policy]).code(OK);
    }
    let listed = blog.run(&["policy", "revisions"]).code(OK);
    let numbers: Vec<&str> = rows(&listed).iter().map(|row| row[0]).collect();
    assert_eq!(numbers, ["REVISION", "3", "2", "1"]);
    let json = blog.run(&["policy", "revisions", "--json"]).code(OK);
    let newest: Value = serde_json::from_str(json.0.stdout.lines().next().expect("a line"))
        .expect("an object on each line");
    assert_eq!((&newest["revision"], &newest["principal"]), (&"3".into(), &"anonymous".into()));

    let between = blog.run(&["policy", "diff", "--from", "1", "--to", "2"]).code(OK);
    let between = between.prints("--- blog, revision 1\n+++ blog, revision 2\n");
    assert!(!between.0.stdout.contains("200"), "{:?}", between.0);
    let current = blog.run(&["policy", "diff", "-n", "blog", "--from", "2", "--exit-code"]);
    current.code(DIFFERENT).prints("+++ blog, revision 3\n").prints("200");
    let same = blog.run(&["policy", "diff", "--from", "3", "--exit-code"]).code(OK);
    same.prints_nothing().says("no difference");
    let json = blog.run(&["policy", "diff", "--from", "3", "--json"]).code(OK).json();
    assert_eq!(json, serde_json::json!({ "different": false, "diff": "" }));
    blog.run(&["policy", "diff", "--from", "9"]).code(REFUSED).says("has no revision 9");
    for wrong in [
        &["policy", "diff"][..],
        &["policy", "diff", "--from", "1"],
        &["policy", "diff", "-n", "blog", "--from", "0"],
        &["policy", "diff", "-n", "blog", "--to", "1"],
        &["policy", "diff", "-n", "blog", "--from", "1", "-f", BLOG],
    ] {
        run(wrong).code(USAGE).prints_nothing();
    }
    run(&["policy", "diff", "--help"]).code(OK).prints("--exit-code: there is one");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subject_has_billing_periods_or_an_anchor_or_none() {
    let blog = Blog::start().await;
    let set =
        |changes: &[&str]| blog.run(&[&["subject", "set", "user/42"], changes].concat()).code(OK);
    let typed = ["--period", "2026-08-15/2026-09-15=in_1", "--on-lapse", "roll"];
    set(&typed)
        .prints("billing period         2026-08-15T00:00:00Z to 2026-09-15T00:00:00Z (in_1)")
        .prints("after the last period  the same length again");
    set(&typed).prints("unchanged: user/42");
    // What is not given stays.
    set(&["--plan", "pro"]).prints("billing period ");
    set(&["--anchor", "2024-01-31T09:00:00Z", "--every", "1mo", "--time-zone", "Europe/Berlin"])
        .prints("from 2024-01-31T09:00:00Z every month in Europe/Berlin");
    let reserved = blog.run(&["reserve", "posts", "-d", "user=42", "--id", "p", "--json"]);
    let window = &reserved.code(OK).json()["limits"][0]["window"];
    assert!(window["startTime"].as_str().is_some_and(|start| start.contains("T0")), "{window}");
    let none = set(&["--no-billing"]);
    assert!(!none.0.stdout.contains("billing"), "{:?}", none.0);

    let wrong = |changes: &[&str]| {
        blog.run(&[&["subject", "set", "user/42"], changes].concat()).code(USAGE)
    };
    wrong(&["--anchor", "2024-01-31"]).says("--every");
    wrong(&["--period", "2026-08-15"]).says("must be START/END");
    wrong(&["--period", "2026-08-15/2026-09-15", "--no-billing"]).says("cannot be used with");
    wrong(&["--on-lapse", "roll"]).says("subject.billing.on_lapse");
    let overlap = ["--period", "2026-08-15/2026-09-15", "--period", "2026-09-14/2026-10-15"];
    wrong(&overlap).says("subject.billing.periods[1]: overlaps periods[0]");
}

#[tokio::test(flavor = "multi_thread")]
async fn reservations_and_counters_are_listed() {
    let blog = Blog::start().await;
    for (id, user) in [("r1", "42"), ("r2", "42"), ("r3", "7")] {
        let user = format!("user={user}");
        blog.run(&["reserve", "posts", "-d", &user, "--id", id]).code(OK);
    }
    blog.run(&["commit", "r1"]).code(OK);
    let all = blog.run(&["reservations"]).code(OK);
    let all = rows(&all);
    assert_eq!(all[0][..2], ["RESERVATION", "STATE"]);
    let mut ids: Vec<&str> = all[1..].iter().map(|row| row[0]).collect();
    ids.sort_unstable();
    assert_eq!(ids, ["r1", "r2", "r3"]);
    let of_one = ["reservations", "--limit", "posts-per-period", "-d", "user=42"];
    let held = blog.run(&[&of_one[..], &["--state", "held"]].concat()).code(OK);
    let held = rows(&held);
    assert_eq!((held.len(), &held[1][..2]), (2, &["r2", "held"][..]));
    assert_eq!(held[1].last(), Some(&"posts=1,user=42"));
    let json = blog.run(&[&of_one[..], &["--state", "committed", "--json"]].concat()).code(OK);
    let json = json.json();
    assert_eq!(
        (&json["reservationId"], &json["state"]),
        (&"r1".into(), &"RESERVATION_STATE_COMMITTED".into())
    );
    assert_eq!(rows(&blog.run(&["reservations", "--most", "1"]).code(OK)).len(), 2);
    blog.run(&["reservations", "--limit", "nothing"]).code(REFUSED);
    let twice = ["--created-after", "2026-01-01T00:00:00Z"];
    let twice = [&["reservations"][..], &twice, &["--created-before", "2026-01-01T00:00:00Z"]];
    blog.run(&twice.concat()).code(USAGE);

    let usage = blog.run(&["usage", "posts", "-d", "user=42", "--holds"]).code(OK);
    usage.prints("posts-per-period").prints("r2").prints("held");
    let listed = blog.run(&["usage", "--limit", "posts-per-period"]).code(OK);
    assert_eq!(rows(&listed).len(), 3);
    let full = ["usage", "--limit", "posts-per-period", "--min-utilization", "0.5"];
    let full = blog.run(&full).code(OK).prints("user=42");
    assert_eq!(rows(&full).len(), 2);
    for wrong in [
        &["usage", "--limit", "posts-per-period", "--min-utilization", "2"][..],
        &["usage", "--limit", "posts-per-period", "--holds"],
        &["usage", "posts", "--min-utilization", "1"],
        &["usage"],
    ] {
        blog.run(wrong).code(USAGE);
    }
}

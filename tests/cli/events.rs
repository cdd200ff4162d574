//! The trail.

use std::time::Duration;

use serde_json::Value;

use crate::{Blog, OK, REFUSED, USAGE, eventually_blocking};

/// How long a refusal may take to be in the trail.
const SOON: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread")]
async fn the_trail_tells_what_happened_and_why() {
    let blog = Blog::start().await;
    blog.run(&["events", "-n", "none"]).code(REFUSED).says("NAMESPACE_NOT_FOUND");
    blog.run(&["subject", "set", "user/42", "--plan", "free"]).code(OK);
    let reserve = |id: &str, item: &str| blog.run(&["reserve", item, "-d", "user=42", "--id", id]);
    reserve("one", "posts=2").code(OK);
    blog.run(&["release", "one", "--reason", "changed his mind"]).code(OK);
    reserve("two", "posts=99").code(REFUSED);
    let lines = |args: &[&str]| {
        let ran = blog.run(&[&["events", "--json"], args].concat()).code(OK);
        let line = |line: &str| serde_json::from_str(line).expect("an object on each line");
        ran.0.stdout.lines().map(line).collect::<Vec<Value>>()
    };
    let all = eventually_blocking(SOON, "the refusal in the trail", || {
        let lines = lines(&[]);
        lines.iter().any(|event| event["kind"] == "refused").then_some(lines)
    });
    let kinds = |events: &[Value]| {
        let kinds = events.iter().map(|event| event["kind"].as_str().expect("a kind").to_owned());
        kinds.collect::<Vec<_>>()
    };
    assert_eq!(kinds(&all), ["refused", "released", "reserved", "subject put", "policy applied"]);
    assert_eq!(all[1]["changes"][0]["heldDelta"], "-2");
    assert_eq!(kinds(&lines(&["--reservation", "one"])), ["released", "reserved"]);
    assert_eq!(kinds(&lines(&["--most", "2"])), ["refused", "released"]);
    assert_eq!(kinds(&lines(&["--most", "0", "--subject", "user/42"])).len(), 4);
    assert_eq!(kinds(&lines(&["--limit", "posts-per-period"])).len(), 3);
    let at = all[2]["time"].as_str().expect("a time");
    assert!(lines(&["--since", at]).contains(&all[2]));
    assert!(!lines(&["--until", at]).contains(&all[2]));
    assert!(lines(&["--subject", "user/43"]).is_empty());

    let table = blog.run(&["events"]).code(OK).prints("TIME").prints("changed his mind");
    let table = table.prints("one (user/42)").prints("QUOTA_EXCEEDED").prints("requested 99");
    let table = table.prints("posts-per-period [user=42] held -2").prints("plan after=free");
    assert_eq!(table.0.stdout.lines().count(), 6, "{:?}", table.0);
    for wrong in [["--subject", "user"], ["--since", "yesterday"], ["--most", "-1"]] {
        blog.run(&[&["events"], &wrong[..]].concat()).code(USAGE);
    }
}

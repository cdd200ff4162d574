//! What a policy file may say, and where its faults are found.

use proptest::prelude::*;

use super::*;
use crate::domain::policy::{Bound, MaxSpec, Mode, WindowSpec};

const GOOD: &str = "\
namespace: shop
default_plan: standard
plans: [standard, vip]
metrics:
  purchases: { requires: [user] }
limits:
  - name: daily
    metric: purchases
    per: [user]
    window: { calendar: { unit: day, time_zone: Asia/Shanghai } }
    max: { by_plan: { standard: 3, vip: unlimited } }
";

/// The faults of a text, each on its line.
fn faults(text: &str) -> Vec<String> {
    parse(text).unwrap_err().iter().map(ToString::to_string).collect()
}

/// The faults of [`GOOD`] with some of its text replaced.
#[track_caller]
fn without(good: &str, bad: &str) -> Vec<String> {
    assert!(GOOD.contains(good), "{good}");
    faults(&GOOD.replace(good, bad))
}

proptest! {
    #[test]
    fn a_policy_that_is_written_reads_back(spec in PolicyDoc::any_spec()) {
        let text = to_yaml(&spec).unwrap();
        let root: Node = serde_saphyr::from_str_with_options(&text, options()).unwrap();
        prop_assert_eq!(PolicyDoc::from(root.tree(&text)).into_spec(), Ok(spec), "{}", text);
    }

    #[test]
    fn every_fault_has_a_place_within_the_text(
        from in 0..GOOD.len(),
        len in 0..9_usize,
        by in r"\PC{0,3}",
    ) {
        let to = (from + len).min(GOOD.len());
        let text = format!("{}{by}{}", &GOOD[..from], &GOOD[to..]);
        let lines: Vec<&str> = text.split('\n').collect();
        for fault in parse(&text).err().unwrap_or_default() {
            prop_assert!((1..=lines.len()).contains(&fault.line), "{}\n{}", fault, text);
            let columns = lines[fault.line - 1].chars().count() + 1;
            prop_assert!((1..=columns).contains(&fault.column), "{}\n{}", fault, text);
        }
    }

    #[test]
    fn nothing_makes_it_panic(text in r"(\PC|[\n \-:{}\[\]&*!|>'#]){0,60}") {
        let _ = parse(&text);
    }
}

#[test]
fn the_bundled_policies_have_no_faults() {
    let policies = [
        ("blog", include_str!("../../../deploy/policies/blog.yaml")),
        ("shop", include_str!("../../../deploy/policies/shop.yaml")),
        ("docs", include_str!("../../../deploy/policies/docs.yaml")),
    ];
    for (name, text) in policies {
        let spec = parse(text).unwrap_or_else(|faults| panic!("{name}: {}", faults[0]));
        assert_eq!(spec.namespace, name);
        assert_eq!(parse(&to_yaml(&spec).unwrap()), Ok(spec));
    }
}

#[test]
fn reads_a_good_file() {
    let spec = parse(GOOD).unwrap();
    assert_eq!(spec.default_plan.as_deref(), Some("standard"));
    let limit = &spec.limits[0];
    let WindowSpec::Calendar(calendar) = &limit.window else { panic!("{:?}", limit.window) };
    assert_eq!(calendar.time_zone, "Asia/Shanghai");
    let MaxSpec::ByPlan(by_plan) = &limit.max else { panic!("{:?}", limit.max) };
    assert_eq!((by_plan["standard"], by_plan["vip"]), (Bound::AtMost(3), Bound::Unlimited));
    assert_eq!(limit.mode, Mode::Enforced);
}

#[test]
fn a_fault_stands_at_its_key_or_list_entry() {
    assert_eq!(
        without("standard: 3", "standard: -1"),
        ["11:23: limits[0].max.by_plan[standard]: must be 0 to 2^63-1, or unlimited in so many \
             words"]
    );
    assert_eq!(
        without("Asia/Shanghai", "Asia/Shangri-La"),
        ["10:38: limits[0].window.calendar.time_zone: 'Asia/Shangri-La' is not an IANA time zone"]
    );
    assert_eq!(
        without("[standard, vip]", "[standard, vip, vip]"),
        ["3:24: plans[2]: 'vip' stands here twice"]
    );
    assert_eq!(
        without("    per: [user]\n", "    per: [user]\n    mode: shadow\n"),
        ["10:5: limits[0].mode: must be enforced or observed, not 'shadow'"]
    );
}

#[test]
fn a_fault_of_what_is_not_there_stands_at_what_is_around_it() {
    assert_eq!(without("    metric: purchases\n", ""), ["7:5: limits[0].metric: is missing"]);
    assert_eq!(
        without(", vip: unlimited", ""),
        ["11:12: limits[0].max.by_plan: lacks plan 'vip': write its max, 0 or unlimited"]
    );
    assert_eq!(without("namespace: shop\n", ""), ["1:1: namespace: is missing"]);
    for text in ["", "# nothing\n", "---\n"] {
        let faults = faults(text);
        assert!(faults.len() == 1 && faults[0].contains("must be a map"), "{text:?}: {faults:?}");
    }
}

#[test]
fn names_every_fault_in_the_order_of_lines() {
    let text = "\
namespace: shop
default_plan: gold
plans: [standard, 1.5]
metrics:
  purchases: { requires: [user], needs: [item] }
limits:
  - name: a
    metric: purchase
    per: [user]
    window: { rolling: { buckets: many } }
    max: unlimeted
  - name: a
    metric: purchases
    where: { level: [1, 2], vip: yes }
    window: { fixed: { length: 1 h } }
    max: '3'
    max: 9223372036854775808
    mode: on
  - name: c
    metric: purchases
    per: [user, user]
    window: lifetime
    max: -1
    optional: yes
";
    assert_eq!(
        faults(text),
        [
            "3:19: plans[1]: '1.5' is read as a number: write it in quotes",
            "5:34: metrics[purchases].needs: is not a key here; allowed: requires",
            "8:5: limits[0].metric: 'purchase' is not one of metrics",
            "10:15: limits[0].window.rolling.length: is missing",
            "10:26: limits[0].window.rolling.buckets: must be a whole number, not 'many'",
            "11:5: limits[0].max: must be 0 to 2^63-1, or unlimited, or a map with by_plan, not \
             'unlimeted'",
            "12:5: limits[1].name: 'a' is used twice",
            "15:24: limits[1].window.fixed.length: must be whole numbers with units w, d, h, m, s \
             or ms, from large to small, such as 60s or 1h30m, not '1 h'",
            "17:5: limits[1].max: stands here twice",
            "17:5: limits[1].max: must be 0 to 2^63-1, or unlimited, or a map with by_plan, not \
             '9223372036854775808'",
            "18:5: limits[1].mode: must be enforced or observed, not 'on'",
            "21:17: limits[2].per[1]: 'user' stands here twice",
            "23:5: limits[2].max: must be 0 to 2^63-1, or unlimited in so many words",
            "24:5: limits[2].optional: must be true or false, not 'yes'",
        ]
    );
}

#[test]
fn a_fault_of_form_brings_no_others_with_it() {
    let shape = "must be a list of texts, not 'user'";
    assert_eq!(
        without("requires: [user]", "requires: user"),
        [format!("5:16: metrics[purchases].requires: {shape}")]
    );
    assert_eq!(without("per: [user]", "per: user"), [format!("9:5: limits[0].per: {shape}")]);
    assert_eq!(
        without("plans: [standard, vip]", "plans:"),
        ["3:1: plans: must be a list of texts, not nothing"]
    );
    assert_eq!(
        without("metrics:\n  purchases: { requires: [user] }\n", "metrics: []\n"),
        ["4:1: metrics: must be a map by name, not a list"]
    );
}

#[test]
fn only_plain_digits_are_a_number_and_a_name() {
    for (max, shown) in [
        ("0x10", "'0x10'"),
        ("1_000", "'1_000'"),
        ("007", "'007'"),
        ("+3", "'+3'"),
        ("1e3", "'1e3'"),
    ] {
        let faults = without("{ by_plan: { standard: 3, vip: unlimited } }", max);
        assert!(faults.len() == 1 && faults[0].contains(&format!("not {shown}")), "{faults:?}");
    }
    let text = GOOD
        .replace("[standard, vip]", "[1, 007, yes, 'no', \"1.5\", 1_000, ~x]")
        .replace("default_plan: standard", "default_plan: 007")
        .replace("{ by_plan: { standard: 3, vip: unlimited } }", "3");
    let plans = parse(&text).unwrap().plans;
    assert_eq!(plans, ["1", "007", "yes", "no", "1.5", "1_000", "~x"]);
    for plan in ["1.50", "0x10", "true", "~", "1e3"] {
        let text = text.replace("[1, 007,", &format!("[{plan}, 007,"));
        let faults = faults(&text);
        assert!(faults.len() == 1 && faults[0].starts_with("3:9: plans[0]: "), "{faults:?}");
    }
}

#[test]
fn text_that_is_no_yaml_is_one_fault_in_its_place() {
    let cases = [
        ("namespace: [a\nplans: b\n", "2:6: "),
        ("plans:\n\t- free\n", "2:2: "),
        ("namespace: 'shop\n", "1:12: "),
        ("namespace: shop\nnamespace: b: c\n", "2:13: "),
        ("namespace: *unknown\n", "1:12: "),
        ("namespace: !include /etc/passwd\n", "1:21: unsupported tag"),
        ("a: 1\n---\nb: 2\n", "2:1: "),
    ];
    for (text, place) in cases {
        let faults = faults(text);
        assert!(faults.len() == 1 && faults[0].starts_with(place), "{text:?}: {faults:?}");
        assert!(!faults[0].contains("at line"), "{faults:?}");
    }
}

#[test]
fn aliases_are_read_and_keep_within_bounds() {
    let text = GOOD.replace("metrics:", "metrics: &m").replace("per: [user]", "per: &p [user]")
        + "  - { name: b, metric: purchases, per: *p, window: lifetime, max: -1 }\n";
    assert_eq!(
        faults(&text),
        ["12:62: limits[1].max: must be 0 to 2^63-1, or unlimited in so many words"]
    );
    let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned();
    for n in 1..9 {
        let list = vec![format!("*a{}", n - 1); 9].join(", ");
        bomb = format!("{bomb}a{n}: &a{n} [{list}]\n");
    }
    let found = faults(&bomb);
    assert!(
        found.len() == 1 && found[0].starts_with("6:10: ") && found[0].contains("too complex"),
        "{found:?}"
    );
    let merged = GOOD.replace("  - name: daily", "  - <<: { name: x }\n    name: daily");
    assert!(faults(&merged)[0].starts_with("7:5: limits[0].<<: is not a key here"));
    let deep = "[".repeat(40) + &"]".repeat(40);
    assert_eq!(faults(&deep).len(), 1);
}

#[test]
fn names_with_dots_and_brackets_are_found() {
    let text = GOOD
        .replace(
            "  purchases: { requires: [user] }",
            "  purchases: { requires: [user] }\n  a.b[c].requires: { x: 1 }",
        )
        .replace("standard: 3", "standard: 3, 'a].b': -1");
    assert_eq!(
        faults(&text),
        [
            "6:22: metrics[a.b[c].requires].x: is not a key here; allowed: requires",
            "12:36: limits[0].max.by_plan[a].b]: must be 0 to 2^63-1, or unlimited in so many \
             words",
            "12:36: limits[0].max.by_plan[a].b]: 'a].b' is not one of plans",
        ]
    );
}

#[test]
fn a_file_beyond_all_bounds_is_refused_unread() {
    let text = "#".repeat(MAX_FILE_BYTES + 1);
    assert_eq!(faults(&text), ["1:1: has 4194305 bytes; at most 4194304 are allowed"]);
}

//! From the written form to a policy, naming everything that is wrong with the
//! form. What a policy must say to make sense is checked elsewhere.

use std::collections::BTreeMap;

use super::length::parse_length;
use super::tree::Tree;
use super::words::{LIFETIME, MODES, UNITS, UNLIMITED, UTC, WEEKDAYS};
use crate::domain::name::Violation;
use crate::domain::policy::{
    Bound, CalendarSpec, CalendarUnit, LimitSpec, MaxSpec, MetricSpec, PolicySpec, WindowSpec,
};
use crate::domain::time::Span;
use crate::domain::window::DEFAULT_BUCKETS;

const POLICY: &[&str] = &["namespace", "default_plan", "plans", "metrics", "limits"];
const METRIC: &[&str] = &["requires"];
const LIMIT: &[&str] =
    &["name", "metric", "where", "per", "optional", "plan_of", "window", "max", "mode"];
const WINDOW: &[&str] = &["calendar", "fixed", "billing", "rolling"];
const CALENDAR: &[&str] = &["unit", "time_zone", "week_start"];
const FIXED: &[&str] = &["length"];
const BILLING: &[&str] = &["subject", "without_period"];
const ROLLING: &[&str] = &["length", "buckets"];
const MAX: &[&str] = &["by_plan"];

/// What can be read of a policy, with a harmless value in the place of every
/// fault, and the faults.
pub fn policy(tree: &Tree) -> (PolicySpec, Vec<Violation>) {
    let mut read = Reader::default();
    let fields = read.fields("", tree, POLICY);
    let spec = PolicySpec {
        namespace: read.required(&fields, "namespace", Reader::text).unwrap_or_default(),
        default_plan: read.optional(&fields, "default_plan", Reader::text),
        plans: read.optional(&fields, "plans", Reader::texts).unwrap_or_default(),
        metrics: read.required(&fields, "metrics", Reader::metrics).unwrap_or_default(),
        limits: read.required(&fields, "limits", Reader::limits).unwrap_or_default(),
    };
    (spec, read.faults)
}

/// The entries of a map that has a fixed set of keys.
struct Fields<'t> {
    path: String,
    /// Absent where no map was found, which is a fault already.
    by_key: Option<BTreeMap<&'t str, &'t Tree>>,
}

impl Fields<'_> {
    fn path(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }
}

#[derive(Default)]
struct Reader {
    faults: Vec<Violation>,
}

impl Reader {
    fn fault(&mut self, path: impl Into<String>, message: impl Into<String>) {
        self.faults.push(Violation::new(path, message));
    }

    /// A map with keys from `known`; others are faults, and so is a key that
    /// is there twice.
    fn fields<'t>(&mut self, path: &str, tree: &'t Tree, known: &[&str]) -> Fields<'t> {
        let mut fields = Fields { path: path.to_owned(), by_key: None };
        let Tree::Map(entries) = tree else {
            let message = format!("must be a map with {}, not {tree}", listed(known, "and"));
            self.fault(path, message);
            return fields;
        };
        let mut by_key = BTreeMap::new();
        for (key, value) in entries {
            if !known.contains(&key.as_str()) {
                let message = format!("is not a key here; allowed: {}", listed(known, "and"));
                self.fault(fields.path(key), message);
            } else if by_key.insert(key.as_str(), value).is_some() {
                self.fault(fields.path(key), "stands here twice");
            }
        }
        fields.by_key = Some(by_key);
        fields
    }

    /// A map with keys of the writer's choice.
    fn named<T>(
        &mut self,
        path: &str,
        tree: &Tree,
        value: impl Fn(&mut Self, &str, &Tree) -> T,
    ) -> BTreeMap<String, T> {
        let mut map = BTreeMap::new();
        let Tree::Map(entries) = tree else {
            self.fault(path, format!("must be a map by name, not {tree}"));
            return map;
        };
        for (name, tree) in entries {
            let path = format!("{path}[{name}]");
            let read = value(self, &path, tree);
            if map.insert(name.clone(), read).is_some() {
                self.fault(path, "stands here twice");
            }
        }
        map
    }

    fn required<T>(
        &mut self,
        fields: &Fields<'_>,
        key: &str,
        value: impl Fn(&mut Self, &str, &Tree) -> T,
    ) -> Option<T> {
        if fields.by_key.as_ref().is_some_and(|by_key| !by_key.contains_key(key)) {
            self.fault(fields.path(key), "is missing");
        }
        self.optional(fields, key, value)
    }

    /// A value that may be left out. Leaving it empty (`per:` and no more) is
    /// not the same and more likely a slip than an intent.
    fn optional<T>(
        &mut self,
        fields: &Fields<'_>,
        key: &str,
        value: impl Fn(&mut Self, &str, &Tree) -> T,
    ) -> Option<T> {
        let tree = fields.by_key.as_ref()?.get(key)?;
        Some(value(self, &fields.path(key), tree))
    }

    /// A text; a whole number in plain digits will do too, since plans and
    /// levels are often called 1 and 2.
    fn text(&mut self, path: &str, tree: &Tree) -> String {
        match tree {
            Tree::Text(text) => return text.clone(),
            Tree::Int(number) => return number.to_string(),
            Tree::Number(_) => {
                self.fault(path, format!("{tree} is read as a number: write it in quotes"));
            }
            Tree::Bool(_) => {
                self.fault(path, format!("{tree} is not read as text: write it in quotes"));
            }
            Tree::Null | Tree::List(_) | Tree::Map(_) => {
                self.fault(path, format!("must be a text, not {tree}"));
            }
        }
        String::new()
    }

    fn texts(&mut self, path: &str, tree: &Tree) -> Vec<String> {
        match tree {
            Tree::List(list) => {
                let texts = list.iter().enumerate();
                texts.map(|(n, tree)| self.text(&format!("{path}[{n}]"), tree)).collect()
            }
            tree => {
                self.fault(path, format!("must be a list of texts, not {tree}"));
                Vec::new()
            }
        }
    }

    fn one_or_more(&mut self, path: &str, tree: &Tree) -> Vec<String> {
        match tree {
            Tree::Text(_) | Tree::Int(_) | Tree::Number(_) | Tree::Bool(_) => {
                vec![self.text(path, tree)]
            }
            Tree::Null | Tree::List(_) | Tree::Map(_) => self.texts(path, tree),
        }
    }

    fn word<T: Copy>(&mut self, path: &str, tree: &Tree, words: &[(&str, T)]) -> Option<T> {
        if let Tree::Text(text) = tree
            && let Some((_, meaning)) = words.iter().find(|(word, _)| word == text)
        {
            return Some(*meaning);
        }
        let allowed: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        self.fault(path, format!("must be {}, not {tree}", listed(&allowed, "or")));
        None
    }

    fn flag(&mut self, path: &str, tree: &Tree) -> bool {
        if let Tree::Bool(value) = tree {
            return *value;
        }
        self.fault(path, format!("must be true or false, not {tree}"));
        false
    }

    fn metrics(&mut self, path: &str, tree: &Tree) -> BTreeMap<String, MetricSpec> {
        self.named(path, tree, |read, path, tree| {
            let fields = read.fields(path, tree, METRIC);
            let requires = read.optional(&fields, "requires", Self::texts).unwrap_or_default();
            MetricSpec { requires }
        })
    }

    fn limits(&mut self, path: &str, tree: &Tree) -> Vec<LimitSpec> {
        let Tree::List(list) = tree else {
            self.fault(path, format!("must be a list of limits, not {tree}"));
            return Vec::new();
        };
        let limits = list.iter().enumerate();
        limits.map(|(n, tree)| self.limit(&format!("{path}[{n}]"), tree)).collect()
    }

    fn limit(&mut self, path: &str, tree: &Tree) -> LimitSpec {
        let fields = self.fields(path, tree, LIMIT);
        let mode = |read: &mut Self, path: &str, tree: &Tree| read.word(path, tree, &MODES);
        let conditions =
            |read: &mut Self, path: &str, tree: &Tree| read.named(path, tree, Self::one_or_more);
        LimitSpec {
            name: self.required(&fields, "name", Self::text).unwrap_or_default(),
            metric: self.required(&fields, "metric", Self::text).unwrap_or_default(),
            conditions: self.optional(&fields, "where", conditions).unwrap_or_default(),
            per: self.optional(&fields, "per", Self::texts).unwrap_or_default(),
            optional: self.optional(&fields, "optional", Self::flag).unwrap_or_default(),
            plan_of: self.optional(&fields, "plan_of", Self::text),
            window: self.required(&fields, "window", Self::window).unwrap_or(WindowSpec::Lifetime),
            max: self.required(&fields, "max", Self::max).unwrap_or(MaxSpec::Same(NO_BOUND)),
            mode: self.optional(&fields, "mode", mode).flatten().unwrap_or_default(),
        }
    }

    fn window(&mut self, path: &str, tree: &Tree) -> WindowSpec {
        if matches!(tree, Tree::Text(text) if text == LIFETIME) {
            return WindowSpec::Lifetime;
        }
        let kinds = listed(WINDOW, "or");
        let Tree::Map(entries) = tree else {
            let message = format!("must be {LIFETIME}, or a map with {kinds}, not {tree}");
            self.fault(path, message);
            return WindowSpec::Lifetime;
        };
        let fields = self.fields(path, tree, WINDOW);
        let calendar = self.optional(&fields, "calendar", Self::calendar);
        let fixed = self.optional(&fields, "fixed", Self::fixed);
        let billing = self.optional(&fields, "billing", Self::billing);
        let rolling = self.optional(&fields, "rolling", Self::rolling);
        if entries.len() != 1 {
            let kinds = listed(WINDOW, "and");
            self.fault(path, format!("must be {LIFETIME}, or have exactly one of {kinds}"));
        }
        let calendar = calendar.map(WindowSpec::Calendar);
        calendar.or(fixed).or(billing).or(rolling).unwrap_or(WindowSpec::Lifetime)
    }

    fn calendar(&mut self, path: &str, tree: &Tree) -> CalendarSpec {
        let fields = self.fields(path, tree, CALENDAR);
        let unit = |read: &mut Self, path: &str, tree: &Tree| read.word(path, tree, &UNITS);
        let day = |read: &mut Self, path: &str, tree: &Tree| read.word(path, tree, &WEEKDAYS);
        CalendarSpec {
            unit: self.required(&fields, "unit", unit).flatten().unwrap_or(CalendarUnit::Day),
            time_zone: self
                .optional(&fields, "time_zone", Self::text)
                .unwrap_or_else(|| UTC.to_owned()),
            week_start: self.optional(&fields, "week_start", day).flatten(),
        }
    }

    fn fixed(&mut self, path: &str, tree: &Tree) -> WindowSpec {
        let fields = self.fields(path, tree, FIXED);
        WindowSpec::Fixed(self.required(&fields, "length", Self::length).unwrap_or(Span::ZERO))
    }

    fn billing(&mut self, path: &str, tree: &Tree) -> WindowSpec {
        let fields = self.fields(path, tree, BILLING);
        let without_period = self.optional(&fields, "without_period", Self::window);
        WindowSpec::Billing {
            subject: self.optional(&fields, "subject", Self::text),
            without_period: without_period.map(Box::new),
        }
    }

    fn rolling(&mut self, path: &str, tree: &Tree) -> WindowSpec {
        let fields = self.fields(path, tree, ROLLING);
        let length = self.required(&fields, "length", Self::length).unwrap_or(Span::ZERO);
        let buckets = self.optional(&fields, "buckets", |read, path, tree| match tree {
            Tree::Int(buckets) => *buckets,
            tree => {
                read.fault(path, format!("must be a whole number, not {tree}"));
                DEFAULT_BUCKETS
            }
        });
        WindowSpec::Rolling { length, buckets: buckets.unwrap_or(DEFAULT_BUCKETS) }
    }

    fn length(&mut self, path: &str, tree: &Tree) -> Span {
        let length = match tree {
            Tree::Text(text) => parse_length(text),
            tree => Err(format!("must be a length with its unit, such as 60s, not {tree}")),
        };
        length.unwrap_or_else(|message| {
            self.fault(path, message);
            Span::ZERO
        })
    }

    fn max(&mut self, path: &str, tree: &Tree) -> MaxSpec {
        let Tree::Map(_) = tree else {
            return MaxSpec::Same(self.bound(path, tree, ", or a map with by_plan"));
        };
        let fields = self.fields(path, tree, MAX);
        let by_plan = |read: &mut Self, path: &str, tree: &Tree| {
            read.named(path, tree, |read, path, tree| read.bound(path, tree, ""))
        };
        self.required(&fields, "by_plan", by_plan).map_or(MaxSpec::Same(NO_BOUND), MaxSpec::ByPlan)
    }

    fn bound(&mut self, path: &str, tree: &Tree, or: &str) -> Bound {
        let hint = match tree {
            Tree::Int(max) => return Bound::AtMost(*max),
            Tree::Text(text) if text == UNLIMITED => return Bound::Unlimited,
            Tree::Text(text) if text.parse::<i64>().is_ok() => "; write the number without quotes",
            _ => "",
        };
        let message = format!("must be 0 to 2^63-1, or {UNLIMITED}{or}, not {tree}{hint}");
        self.fault(path, message);
        NO_BOUND
    }
}

/// What stands for a max that could not be read.
const NO_BOUND: Bound = Bound::AtMost(0);

/// `a, b and c`.
fn listed(words: &[&str], last: &str) -> String {
    match words {
        [] => String::new(),
        [only] => (*only).to_owned(),
        [first @ .., end] => format!("{} {last} {end}", first.join(", ")),
    }
}

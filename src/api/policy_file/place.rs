//! Where in the text every value stands.

use std::fmt;

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{Location, Spanned};

use crate::store::document::policy::Tree;

/// A line and a column, both counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub line: usize,
    pub column: usize,
}

impl From<Location> for Place {
    fn from(at: Location) -> Self {
        let number = |n: u64| usize::try_from(n).unwrap_or(usize::MAX).max(1);
        Self { line: number(at.line()), column: number(at.column()) }
    }
}

/// A value of the document with its place.
#[derive(Debug)]
pub struct Node(Spanned<Content>);

#[derive(Debug)]
enum Content {
    Null,
    Bool(bool),
    /// The text of it is taken from the document: `1.50` and `0x10` say more
    /// than their values.
    Number,
    Text(String),
    List(Vec<Node>),
    Map(Vec<(Spanned<String>, Node)>),
}

impl Node {
    /// The value without its places. `text` is the document.
    pub fn tree(&self, text: &str) -> Tree {
        match &self.0.value {
            Content::Null => Tree::Null,
            Content::Bool(value) => Tree::Bool(*value),
            Content::Number => number(written(text, self.0.defined)),
            Content::Text(text) => Tree::Text(text.clone()),
            Content::List(list) => Tree::List(list.iter().map(|node| node.tree(text)).collect()),
            Content::Map(map) => {
                let entries = map.iter().map(|(key, node)| (key.value.clone(), node.tree(text)));
                Tree::Map(entries.collect())
            }
        }
    }

    /// The place of the value at `path`, or of the nearest one around it that
    /// is there. An entry of a map stands where its key does; what came from
    /// an alias, where the alias does.
    pub fn find(&self, path: &str) -> Place {
        let here = Place::from(self.0.referenced);
        self.deepest(path, here, 0).1
    }

    /// How much of the path could be followed from here, and where that led.
    /// Keys may contain any character, so that a path can be read in more than
    /// one way; the one that leads deepest is meant.
    fn deepest(&self, path: &str, here: Place, depth: usize) -> (usize, Place) {
        let mut best = (depth, here);
        if path.is_empty() {
            return best;
        }
        let mut follow = |node: &Self, rest: &str, at: Place| {
            let found = node.deepest(rest, at, depth + path.len() - rest.len());
            // The later of two entries with one key is the one that counts.
            if found.0 >= best.0 {
                best = found;
            }
        };
        match &self.0.value {
            Content::Map(map) => {
                for (key, node) in map {
                    if let Some(rest) = after_key(path, &key.value) {
                        follow(node, rest, Place::from(key.referenced));
                    }
                }
            }
            Content::List(list) => {
                if let Some((n, rest)) = after_index(path)
                    && let Some(node) = list.get(n)
                {
                    follow(node, rest, Place::from(node.0.referenced));
                }
            }
            Content::Null | Content::Bool(_) | Content::Number | Content::Text(_) => {}
        }
        best
    }
}

/// What follows `.key`, `[key]` or, at the very start, `key` in `path`.
fn after_key<'p>(path: &'p str, key: &str) -> Option<&'p str> {
    let rest = match path.strip_prefix('[') {
        Some(inner) => inner.strip_prefix(key)?.strip_prefix(']')?,
        None => path.strip_prefix('.').unwrap_or(path).strip_prefix(key)?,
    };
    (rest.is_empty() || rest.starts_with(['.', '['])).then_some(rest)
}

/// The index at the start of `path`, and what follows.
fn after_index(path: &str) -> Option<(usize, &str)> {
    let (index, rest) = path.strip_prefix('[')?.split_once(']')?;
    Some((index.parse().ok()?, rest))
}

fn written(text: &str, at: Location) -> &str {
    let range = || {
        let start = usize::try_from(at.span().byte_offset()?).ok()?;
        let length = usize::try_from(at.span().byte_len()?).ok()?;
        text.get(start..start.checked_add(length)?)
    };
    range().unwrap_or_default()
}

/// A number as it was written. Only plain decimal digits count as an integer,
/// so that no other spelling changes its text where a name is wanted.
fn number(written: &str) -> Tree {
    match written.parse::<i64>() {
        Ok(value) if value.to_string() == written => Tree::Int(value),
        _ => Tree::Number(written.to_owned()),
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Spanned::deserialize(deserializer).map(Self)
    }
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ContentVisitor)
    }
}

struct ContentVisitor;

impl<'de> Visitor<'de> for ContentVisitor {
    type Value = Content;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E: de::Error>(self) -> Result<Content, E> {
        Ok(Content::Null)
    }

    fn visit_none<E: de::Error>(self) -> Result<Content, E> {
        Ok(Content::Null)
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Content, E> {
        Ok(Content::Bool(value))
    }

    fn visit_i64<E: de::Error>(self, _: i64) -> Result<Content, E> {
        Ok(Content::Number)
    }

    fn visit_u64<E: de::Error>(self, _: u64) -> Result<Content, E> {
        Ok(Content::Number)
    }

    fn visit_i128<E: de::Error>(self, _: i128) -> Result<Content, E> {
        Ok(Content::Number)
    }

    fn visit_u128<E: de::Error>(self, _: u128) -> Result<Content, E> {
        Ok(Content::Number)
    }

    fn visit_f64<E: de::Error>(self, _: f64) -> Result<Content, E> {
        Ok(Content::Number)
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Content, E> {
        Ok(Content::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Content, A::Error> {
        let mut list = Vec::new();
        while let Some(node) = access.next_element()? {
            list.push(node);
        }
        Ok(Content::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Content, A::Error> {
        let mut map = Vec::new();
        while let Some(entry) = access.next_entry()? {
            map.push(entry);
        }
        Ok(Content::Map(map))
    }
}

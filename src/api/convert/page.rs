//! Pages of what is listed.
//!
//! A token names the last record of its page, never a place in a count: what is
//! made or removed between two pages moves nobody else to the wrong one. It
//! carries a checksum over the RPC and what was asked of it besides, so that a
//! token that was mangled, or that belongs to another request, is refused
//! rather than answered from the wrong place.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use prost::Message;

use crate::domain::name::{Violation, join_key};

/// How many records a page has that does not say.
const DEFAULT_SIZE: usize = 100;
/// The most records of one page.
const MAX_SIZE: usize = 1000;
/// The most bytes of one page: with room for the rest, what a client takes by
/// default (4 MiB).
const MAX_BYTES: usize = 3 << 20;
/// Bytes of the checksum in front of the key.
const CHECKSUM: usize = 4;

/// A page that is asked for.
#[derive(Debug)]
pub struct Page {
    /// The key of the last record of the page before; `None` for the first page.
    pub after: Option<String>,
    size: usize,
    /// The RPC and its filters.
    scope: String,
}

impl Page {
    /// The page of `size` records that `token` leads to, in `rpc` with these
    /// filters. A fault leaves some page in its place.
    pub fn new<'f>(
        rpc: &'f str,
        filters: impl IntoIterator<Item = &'f str>,
        size: i32,
        token: &str,
        faults: &mut Vec<Violation>,
    ) -> Self {
        let scope = join_key(std::iter::once(rpc).chain(filters));
        let sized = match usize::try_from(size) {
            Ok(0) => DEFAULT_SIZE,
            Ok(size) if size <= MAX_SIZE => size,
            _ => {
                let message =
                    format!("is {size}; must be 1 to {MAX_SIZE}, or 0 for {DEFAULT_SIZE}");
                faults.push(Violation::new("page_size", message));
                DEFAULT_SIZE
            }
        };
        let after = (!token.is_empty()).then(|| read(&scope, token));
        if matches!(after, Some(None)) {
            faults.push(token_fault());
        }
        Self { after: after.flatten(), size: sized, scope }
    }

    /// How many records the page has room for.
    pub fn size(&self) -> usize {
        self.size
    }

    /// How many records to ask for: one more than the page has tells whether
    /// another page follows.
    pub fn ask(&self) -> usize {
        self.size + 1
    }

    /// The page of these records, each with its key, and the token of the next
    /// page; empty where this is the last. A page of large records has fewer
    /// than were asked for, but one at least.
    pub fn cut<M: Message>(
        &self,
        records: impl IntoIterator<Item = (String, M)>,
    ) -> (Vec<M>, String) {
        let (mut page, mut bytes, mut last) = (Vec::new(), 0, String::new());
        for (key, message) in records {
            bytes += message.encoded_len();
            if page.len() == self.size || (bytes > MAX_BYTES && !page.is_empty()) {
                return (page, write(&self.scope, &last));
            }
            page.push(message);
            last = key;
        }
        (page, String::new())
    }

    /// The token of a page that begins after that key, whatever this page has.
    pub fn lead_on(&self, key: &str) -> String {
        write(&self.scope, key)
    }
}

/// A page that is being filled by whoever looks records through: not all that he
/// looks at are meant, and he may have looked at enough before it is full.
pub struct Filling<'p, M> {
    page: &'p Page,
    records: Vec<M>,
    bytes: usize,
}

impl<'p, M: Message> Filling<'p, M> {
    /// An empty page.
    pub fn new(page: &'p Page) -> Self {
        Self { page, records: Vec::new(), bytes: 0 }
    }

    /// Adds a record; false where there is no room for it.
    pub fn add(&mut self, record: M) -> bool {
        self.bytes += record.encoded_len();
        let full = self.records.len() == self.page.size;
        let room = !full && (self.bytes <= MAX_BYTES || self.records.is_empty());
        if room {
            self.records.push(record);
        }
        room
    }

    /// The page, and the token of the next one, which begins behind that place;
    /// empty where this is the last.
    pub fn end(self, next: Option<String>) -> (Vec<M>, String) {
        (self.records, next.map_or_else(String::new, |next| write(&self.page.scope, &next)))
    }
}

/// Cuts messages off that one answer has no room for.
pub fn cut_to_fit<M: Message>(messages: impl Iterator<Item = M>) -> (Vec<M>, bool) {
    let (mut fitting, mut bytes) = (Vec::new(), 0);
    for message in messages {
        bytes += message.encoded_len();
        if bytes > MAX_BYTES && !fitting.is_empty() {
            return (fitting, true);
        }
        fitting.push(message);
    }
    (fitting, false)
}

/// What is said of a token that no page of this request ended with.
pub fn token_fault() -> Violation {
    let message = "must be empty or the next_page_token of an answer to this very request; \
                   begin again without one";
    Violation::new("page_token", message)
}

fn write(scope: &str, key: &str) -> String {
    let mut bytes = checksum(scope, key).to_vec();
    bytes.extend(key.as_bytes());
    URL_SAFE_NO_PAD.encode(bytes)
}

fn read(scope: &str, token: &str) -> Option<String> {
    let bytes = URL_SAFE_NO_PAD.decode(token).ok()?;
    let (found, key) = bytes.split_at_checked(CHECKSUM)?;
    let key = std::str::from_utf8(key).ok()?;
    (found == checksum(scope, key)).then(|| key.to_owned())
}

fn checksum(scope: &str, key: &str) -> [u8; CHECKSUM] {
    crc32fast::hash(join_key([scope, key]).as_bytes()).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::v1::PolicyRevision;
    use proptest::prelude::*;

    fn page(rpc: &str, filters: &[&str], size: i32, token: &str) -> Result<Page, Vec<String>> {
        let mut faults = Vec::new();
        let page = Page::new(rpc, filters.iter().copied(), size, token, &mut faults);
        if faults.is_empty() {
            Ok(page)
        } else {
            Err(faults.into_iter().map(|f| f.field).collect())
        }
    }

    fn record(principal: &str) -> (String, PolicyRevision) {
        let principal = principal.to_owned();
        (principal.clone(), PolicyRevision { principal, ..PolicyRevision::default() })
    }

    proptest! {
        #[test]
        fn tokens_lead_on_and_are_safe_in_a_url(key in ".{0,40}", filter in ".{0,8}") {
            let token = write(&join_key(["List", &filter]), &key);
            prop_assert!(token.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c)));
            prop_assert_eq!(page("List", &[&filter], 0, &token).unwrap().after, Some(key));
        }

        #[test]
        fn a_mangled_token_is_refused(key in ".{0,40}", at in 0usize..1000, to in "[A-Za-z0-9_-]") {
            let token = write(&join_key(["List", ""]), &key);
            let at = at % token.len();
            let mangled = format!("{}{to}{}", &token[..at], &token[at + 1..]);
            prop_assume!(mangled != token);
            prop_assert_eq!(page("List", &[""], 0, &mangled).unwrap_err(), ["page_token"]);
            prop_assert!(page("List", &[""], 0, &token[..at]).is_err() || at == 0);
        }
    }

    #[test]
    fn a_token_belongs_to_one_request() {
        let token = write(&join_key(["List", "a", "b"]), "k");
        assert!(page("List", &["a", "b"], 7, &token).is_ok());
        for (rpc, filters) in
            [("Other", ["a", "b"]), ("List", ["a", ""]), ("List", ["", "b"]), ("List", ["a/b", ""])]
        {
            assert_eq!(page(rpc, &filters, 0, &token).unwrap_err(), ["page_token"]);
        }
        for garbage in ["x", "AAAA", "AAAAAA", "=", "é", "AAAA AAAA"] {
            let faults = page("List", &[], -1, garbage).unwrap_err();
            assert_eq!(faults, ["page_size", "page_token"], "{garbage:?}");
        }
    }

    #[test]
    fn sizes_are_bounded() {
        for (asked, size) in [(0, 100), (1, 1), (1000, 1000)] {
            assert_eq!(page("List", &[], asked, "").unwrap().ask(), size + 1);
        }
        for bad in [-1, 1001, i32::MAX, i32::MIN] {
            assert_eq!(page("List", &[], bad, "").unwrap_err(), ["page_size"]);
        }
    }

    #[test]
    fn a_page_is_filled_up_to_its_size_or_its_bytes() {
        let two = page("List", &[], 2, "").unwrap();
        let mut filling = Filling::new(&two);
        for (name, taken) in [("a", true), ("b", true), ("c", false)] {
            assert_eq!(filling.add(record(name).1), taken, "{name}");
        }
        let (found, token) = filling.end(Some("b".to_owned()));
        assert_eq!(found.len(), 2);
        assert_eq!(page("List", &[], 2, &token).unwrap().after.as_deref(), Some("b"));
        let large = "x".repeat(MAX_BYTES);
        let mut filling = Filling::new(&two);
        assert!(filling.add(record(&large).1), "one at least");
        assert!(!filling.add(record("b").1));
        assert_eq!(filling.end(None).1, "");
        let (fitting, cut) = cut_to_fit(["a", &large].map(|name| record(name).1).into_iter());
        assert_eq!((fitting.len(), cut), (1, true));
        let (fitting, cut) = cut_to_fit([&*large].map(|name| record(name).1).into_iter());
        assert_eq!((fitting.len(), cut), (1, false));
    }

    #[test]
    fn a_page_ends_with_its_size_or_its_bytes() {
        let two = page("List", &[], 2, "").unwrap();
        let (found, token) = two.cut(["a", "b"].map(record));
        assert_eq!((found.len(), token.as_str()), (2, ""));
        let (found, token) = two.cut(["a", "b", "c"].map(record));
        assert_eq!(found.len(), 2);
        assert_eq!(page("List", &[], 5, &token).unwrap().after.as_deref(), Some("b"));
        let large = "x".repeat(MAX_BYTES);
        let (found, token) = two.cut(["a", &large].map(record));
        assert_eq!(found.len(), 1);
        assert_eq!(page("List", &[], 2, &token).unwrap().after.as_deref(), Some("a"));
        let (found, token) = two.cut([&*large, "b"].map(record));
        assert_eq!((found.len(), token.is_empty()), (1, false));
    }
}

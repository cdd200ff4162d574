//! Lengths of time as people write them.

use crate::domain::name::quoted;
use crate::domain::time::Span;

/// The units, from large to small, with their milliseconds.
const UNITS: [(&str, i64); 6] = [
    ("w", 7 * 86_400_000),
    ("d", 86_400_000),
    ("h", 3_600_000),
    ("m", 60_000),
    ("s", 1000),
    ("ms", 1),
];

/// Reads a length such as `60s`, `1500ms` or `1h30m`: whole numbers with units
/// w, d, h, m, s and ms, from large to small and each at most once. Days have
/// 24 hours.
///
/// # Errors
///
/// What is wrong, for a person: another form, or more than 2^63-1 ms.
pub fn parse_length(text: &str) -> Result<Span, String> {
    let malformed = || {
        format!(
            "must be whole numbers with units w, d, h, m, s or ms, from large to small, such as \
             60s or 1h30m, not {}",
            quoted(text)
        )
    };
    let too_long = || format!("{} is longer than 2^63-1 ms", quoted(text));
    let mut total: i64 = 0;
    let mut smaller = &UNITS[..];
    let mut rest = text;
    while !rest.is_empty() {
        let (digits, after) = split(rest, |c| c.is_ascii_digit());
        let (unit, after) = split(after, |c| c.is_ascii_lowercase());
        let n = smaller.iter().position(|(name, _)| *name == unit).ok_or_else(malformed)?;
        if digits.is_empty() {
            return Err(malformed());
        }
        // Only digits are left, so that parsing fails for too many alone.
        let count: i64 = digits.parse().map_err(|_| too_long())?;
        let millis = count.checked_mul(smaller[n].1).ok_or_else(too_long)?;
        total = total.checked_add(millis).ok_or_else(too_long)?;
        smaller = &smaller[n + 1..];
        rest = after;
    }
    if text.is_empty() { Err(malformed()) } else { Ok(Span::from_millis(total)) }
}

/// The longest start of `text` that holds such characters, and what follows.
fn split(text: &str, such: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(|c| !such(c)).unwrap_or(text.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_length_reads_back(millis in 0..=i64::MAX) {
            let span = Span::from_millis(millis);
            prop_assert_eq!(parse_length(&span.to_string()), Ok(span));
        }

        #[test]
        fn nothing_makes_it_panic(text in "[0-9wdhms .-]{0,30}|.*") {
            let _ = parse_length(&text);
        }
    }

    #[test]
    fn reads_what_people_write() {
        let cases = [
            ("60s", 60_000),
            ("90m", 5_400_000),
            ("24h", 86_400_000),
            ("7d", 604_800_000),
            ("2w", 1_209_600_000),
            ("1500ms", 1500),
            ("1h30m", 5_400_000),
            ("1w2d3h4m5s6ms", 788_645_006),
            ("0s", 0),
        ];
        for (text, millis) in cases {
            assert_eq!(parse_length(text), Ok(Span::from_millis(millis)), "{text}");
        }
    }

    #[test]
    fn refuses_everything_else() {
        for text in
            ["", "60", "s", "60 s", "1.5h", "-1s", "+1s", "1H", "30m1h", "1s1s", "1y", "1mo", "١s"]
        {
            let message = parse_length(text).unwrap_err();
            assert!(message.contains("such as 60s or 1h30m"), "{text}: {message}");
        }
        for text in ["99999999999999999999ms", "9223372036854775807s", "9223372036854775s808ms"] {
            let message = parse_length(text).unwrap_err();
            assert!(message.contains("longer than 2^63-1 ms"), "{text}: {message}");
        }
    }
}

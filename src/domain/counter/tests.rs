//! A counter against what it must mean.

use super::*;
use crate::domain::window::Rolling;
use proptest::prelude::*;

fn at(millis: i64) -> Time {
    Time::from_millis(millis).unwrap()
}

fn counter(window: Window) -> Counter {
    Counter::new(Arc::new(CounterId::new("n", "l", "m", 1, Dimensions::new(), window)))
}

fn charge(counter: &mut Counter, amount: i64, until: Option<Time>, now: Time) -> i64 {
    let id = Arc::clone(&counter.id);
    counter.charge(&id, amount, until, now)
}

proptest! {
    #[test]
    fn expiry_is_on_the_grid_and_at_most_a_32nd_late(now in 0i64..4_000_000_000_000, ttl in 1000i64..=86_400_000) {
        let span = Span::from_millis(ttl);
        let late = expire_time(at(now), span).as_millis() - now - ttl;
        prop_assert!(late >= 0);
        prop_assert!(late < (ttl / 32).max(16));
    }
}

#[test]
fn grid_is_the_largest_power_of_two_not_above_a_32nd() {
    let grid_of = |ttl: Span| {
        let expiry = expire_time(at(1), ttl).as_millis();
        1i64 << expiry.trailing_zeros()
    };
    assert!(grid_of(Span::from_secs(1)) >= 16);
    assert!(grid_of(Span::from_secs(60)) >= 1024);
    assert!(grid_of(Span::from_secs(86_400)) >= 2_097_152);
}

#[test]
fn a_hold_lapses_at_its_instant_in_decisions_and_reads_alike() {
    let mut counter = counter(Window::Lifetime);
    charge(&mut counter, 4, Some(at(100)), at(0));
    assert_eq!(counter.held(at(99)), 4);
    assert_eq!(counter.held(at(100)), 0);
    assert!(!counter.fits(Bound::AtMost(4), 1, at(99)));
    assert!(counter.fits(Bound::AtMost(4), 4, at(100)));
}

#[test]
fn time_never_runs_back() {
    let mut counter = counter(Window::Lifetime);
    charge(&mut counter, 1, Some(at(500)), at(400));
    charge(&mut counter, 1, Some(at(900)), at(100));
    assert_eq!(counter.as_of, at(400));
}

#[test]
fn tokens_grow_even_when_the_clock_stands_still() {
    let mut counter = counter(Window::Lifetime);
    let first = charge(&mut counter, 1, None, at(5));
    let second = charge(&mut counter, 1, None, at(5));
    assert_eq!((first, second), (5000, 5001));
}

#[test]
fn sums_beyond_int64_never_fit() {
    let mut counter = counter(Window::Lifetime);
    assert!(counter.fits(Bound::AtMost(i64::MAX), i64::MAX, at(0)));
    charge(&mut counter, i64::MAX, Some(at(10)), at(0));
    assert!(!counter.fits(Bound::AtMost(i64::MAX), i64::MAX, at(1)));
    assert!(!counter.fits(Bound::Unlimited, 1, at(1)));
}

#[test]
fn the_first_fit_is_when_enough_holds_have_lapsed() {
    let mut open = counter(Window::Lifetime);
    charge(&mut open, 2, Some(at(100)), at(0));
    charge(&mut open, 3, Some(at(200)), at(0));
    assert_eq!(open.first_fit(Bound::AtMost(5), 2, at(1)), Some(at(100)));
    assert_eq!(open.first_fit(Bound::AtMost(5), 3, at(1)), Some(at(200)));
    assert_eq!(open.first_fit(Bound::AtMost(5), 3, at(200)), Some(at(200)));
    assert_eq!(open.first_fit(Bound::AtMost(5), 6, at(1)), None);
    charge(&mut open, 1, None, at(1));
    assert_eq!(open.first_fit(Bound::AtMost(5), 5, at(1)), None);
}

#[test]
fn rolling_units_return_a_length_after_the_last_of_their_bucket() {
    let mut rolling = counter(Window::Rolling(Rolling::new(Span::from_millis(1000), 10)));
    charge(&mut rolling, 1, None, at(110));
    charge(&mut rolling, 1, None, at(190));
    charge(&mut rolling, 1, None, at(200));
    assert_eq!(rolling.used(at(1189)), 3);
    assert_eq!(rolling.used(at(1190)), 1);
    assert_eq!(rolling.used(at(1200)), 0);
    assert_eq!(rolling.first_fit(Bound::AtMost(3), 1, at(300)), Some(at(1190)));
    assert_eq!(rolling.first_fit(Bound::AtMost(3), 3, at(300)), Some(at(1200)));
}

/// What a caller did to a rolling counter.
#[derive(Clone, Debug)]
enum Step {
    Wait(i64),
    Use(i64),
    Hold(i64, i64),
    /// Settles the oldest live hold with at most so many units used.
    Settle(i64),
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0i64..400).prop_map(Step::Wait),
        (1i64..5).prop_map(Step::Use),
        ((1i64..5), (16i64..600)).prop_map(|(n, ttl)| Step::Hold(n, ttl)),
        (0i64..5).prop_map(Step::Settle),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]
    /// Against a log of everything that was counted: no span of the
    /// length ever holds more than the max, nothing returns more than a
    /// bucket late, the first fit is exact, and the counter stays small.
    #[test]
    fn a_rolling_counter_agrees_with_a_log_of_events(
        buckets in 1i64..30,
        length in 50i64..2000,
        max in 1i64..12,
        steps in proptest::collection::vec(any_step(), 1..120),
    ) {
        let rolling = Rolling::new(Span::from_millis(length), buckets);
        let bound = Bound::AtMost(max);
        let mut counter = counter(Window::Rolling(rolling));
        let mut log: Vec<(i64, i64)> = Vec::new();
        let mut holds: Vec<(i64, i64)> = Vec::new();
        let mut now = 1_000_000;
        for step in steps {
            holds.retain(|(until, _)| *until > now);
            let held: i64 = holds.iter().map(|(_, units)| units).sum();
            let since = |from: i64| -> i64 {
                log.iter().filter(|(when, _)| *when > from).map(|(_, units)| units).sum()
            };
            // What certainly counts, and what may count still.
            let least = since(now - length) + held;
            let most = since(now - length - rolling.bucket.as_millis()) + held;
            let total = counter.used(at(now)) + counter.held(at(now));
            prop_assert!((least..=most).contains(&total), "{total} of {least}..={most}");
            match step {
                Step::Wait(millis) => now += millis,
                Step::Use(units) | Step::Hold(units, _) => {
                    let fits = counter.fits(bound, units, at(now));
                    prop_assert!(!fits || least + units <= max, "over-admitted");
                    prop_assert!(fits || most + units > max, "refused without need");
                    let first = counter.first_fit(bound, units, at(now));
                    prop_assert_eq!(first == Some(at(now)), fits);
                    if let Some(first) = first.filter(|_| !fits) {
                        prop_assert!(counter.fits(bound, units, first));
                        let before = Time::saturating(first.as_millis() - 1);
                        prop_assert!(!counter.fits(bound, units, before));
                    }
                    let until = match step {
                        Step::Hold(_, ttl) => Some(now + ttl),
                        _ => None,
                    };
                    if fits {
                        charge(&mut counter, units, until.map(at), at(now));
                        match until {
                            Some(until) => holds.push((until, units)),
                            None => log.push((now, units)),
                        }
                    }
                }
                Step::Settle(units) => {
                    if let Some((until, held)) = holds.first().copied() {
                        holds.remove(0);
                        let used = units.min(held);
                        counter.settle(held, at(until), used, at(now));
                        log.push((now, used));
                    }
                }
            }
            let Used::Recent(kept) = &counter.used else { unreachable!() };
            let many = length / rolling.bucket.as_millis() + 2;
            prop_assert!(i64::try_from(kept.len()).unwrap() <= many);
        }
        for &(from, _) in &log {
            let span = log.iter().filter(|(when, _)| (from..from + length).contains(when));
            let units: i64 = span.map(|(_, units)| units).sum();
            prop_assert!(units <= max, "{units} within {length} ms from {from}");
        }
    }
}

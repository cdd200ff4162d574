//! What must hold at the end of every case, whatever it did.

use std::sync::Arc;

use quota_authority::domain::counter::Counter;
use quota_authority::domain::invariants::breaches;
use quota_authority::domain::name::ReservationKey;
use quota_authority::domain::reservation::{HistoryEvent, Reservation, Settled};
use tonic::Code;

use super::calls::Sent;
use super::{Refused, World};

const PAGE: usize = 1000;

impl World {
    /// Reads back every record and holds it to the promises; then sends the
    /// calls of the case once more, which must change nothing (I6).
    pub(super) async fn keeps_its_promises(&self) {
        let (reservations, counters) = self.records().await;
        assert!(!reservations.is_empty(), "a case that reserves nothing proves nothing");
        let seen = counters.iter().map(|counter| counter.as_of);
        let now = seen.fold(self.now(), Ord::max);
        let found = breaches(&counters, &reservations, now);
        assert!(found.is_empty(), "{found:#?}");
        for counter in &counters {
            assert!(!counter.has_negative(), "{counter:?}");
        }
        for reservation in &reservations {
            has_a_trail(reservation);
        }
        self.replay().await;
        let (again, counters_again) = self.records().await;
        assert_eq!(again, reservations, "the same calls once more change no reservation");
        assert_eq!(counters_again, counters, "the same calls once more change no counter");
    }

    /// Every reservation and counter.
    pub async fn records(&self) -> (Vec<Arc<Reservation>>, Vec<Counter>) {
        let store = &self.servers[0].store;
        let mut reservations: Vec<Arc<Reservation>> = Vec::new();
        loop {
            let last = reservations.last().map(|last| last.key.clone());
            let last = last.as_ref().map(ReservationKey::as_str);
            let page = store.reservations_after(last, PAGE).await.expect("a page");
            if page.is_empty() {
                break;
            }
            reservations.extend(page);
        }
        let mut counters: Vec<Counter> = Vec::new();
        loop {
            let last = counters.last().map(|last| last.id.text.as_str());
            let page = store.counters_after(last, PAGE).await.expect("a page");
            if page.is_empty() {
                return (reservations, counters);
            }
            counters.extend(page);
        }
    }

    async fn replay(&self) {
        for (n, sent) in self.sent().into_iter().enumerate() {
            let mut quota = self.client(n).quota;
            let (replayed, call) = match sent.clone() {
                Sent::Reserve(call) => {
                    (quota.reserve(call).await.map(|a| a.into_inner().replayed), "Reserve")
                }
                Sent::Commit(call) => {
                    (quota.commit(call).await.map(|a| a.into_inner().replayed), "Commit")
                }
                Sent::Release(call) => {
                    (quota.release(call).await.map(|a| a.into_inner().replayed), "Release")
                }
                Sent::Refund(call) => {
                    (quota.refund(call).await.map(|a| a.into_inner().replayed), "Refund")
                }
            };
            match replayed {
                Ok(replayed) => assert!(replayed, "{call} once more is a replay: {sent:?}"),
                // A Reserve whose hold is gone says so.
                Err(status) => {
                    let refused = Refused::from(status);
                    let lost = call == "Reserve" && refused.code == Code::FailedPrecondition;
                    assert!(lost, "{refused:?} to {sent:?}");
                }
            }
        }
    }
}

/// Each change once, and nothing that was not done (I8).
fn has_a_trail(reservation: &Reservation) {
    let mut events: Vec<_> = reservation.history.iter().map(|entry| entry.event).collect();
    let adjusted = reservation.request.as_ref().is_some_and(|request| request.adjustment);
    let made = reservation.request.is_some().then_some(HistoryEvent::Reserved);
    let settled = match &reservation.settled {
        Settled::Open => None,
        Settled::Committed { .. } => Some(HistoryEvent::Committed),
        Settled::Released { .. } => Some(HistoryEvent::Released),
    };
    let expected: Vec<_> = if adjusted {
        vec![HistoryEvent::Adjusted]
    } else {
        made.into_iter().chain(settled).collect()
    };
    // Renewals come before it is settled, refunds after, as often as they like.
    events.dedup();
    events.retain(|event| *event != HistoryEvent::Extended);
    while events.len() > expected.len() && events.last() == Some(&HistoryEvent::Refunded) {
        events.pop();
    }
    assert_eq!(events, expected, "{}", reservation.key);
    assert!(reservation.history.iter().all(|entry| !entry.principal.is_empty()));
    assert!(reservation.history.is_sorted_by_key(|entry| entry.time), "{}", reservation.key);
}

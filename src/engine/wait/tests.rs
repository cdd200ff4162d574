//! The room, the places in it, and answers on their way.

use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{advance, timeout};

use super::*;
use crate::domain::counter::{Counter, CounterId};
use crate::domain::decide::{Answer, Command, Line as _, Reserve};
use crate::domain::name::{Dimensions, ReservationKey};
use crate::domain::policy::Bound;
use crate::domain::reservation::{DEFAULT_TTL, ItemRequest, Request, Reservation, Settled};
use crate::domain::status::LimitStatus;
use crate::domain::window::Window;
use crate::engine::pulse::Pulse;
use crate::engine::queue::{Pending, Queue};
use crate::engine::ticket::Ticket;
use crate::engine::{Error, Settings};

const T0: Time = Time::saturating(1_000_000);
const LONG: Span = Span::from_secs(60);

fn counter(limit: &str) -> Arc<CounterId> {
    let key = Dimensions::from([("user".to_owned(), "s".to_owned())]);
    Arc::new(CounterId::new("n", limit, "m", 1, key, Window::Lifetime))
}

fn command(id: &str) -> Command {
    let metric = "m".to_owned();
    let item = ItemRequest { metric, amount: 1, dimensions: Dimensions::new() };
    Command::Reserve(Reserve {
        key: ReservationKey::new("n", id),
        request: Arc::new(Request {
            items: vec![item],
            ttl: DEFAULT_TTL,
            commit: false,
            resources: Vec::new(),
            labels: Dimensions::new(),
            adjustment: false,
        }),
        principal: String::new(),
    })
}

type Told = oneshot::Receiver<Delivery>;

fn pending(id: &str, length: Span) -> (Pending, Told) {
    let (sender, told) = oneshot::channel();
    let wait = Wait::new(length, None, None);
    (Pending::new(command(id), Arc::default(), sender).waiting(Some(wait)), told)
}

fn refusal(limits: &[&str], retry_time: Option<Time>) -> Refusal {
    let status = |limit: &&str| {
        let counter = Counter::new(counter(limit));
        let at_rest = LimitStatus::at_rest(&counter, Bound::AtMost(1), true, T0);
        LimitStatus { requested: 1, exceeded: true, retry_time, ..at_rest }
    };
    Refusal::QuotaExceeded { limits: limits.iter().map(status).collect(), retry_time, now: T0 }
}

struct House {
    room: Room,
    lines: Arc<Lines>,
    told: Vec<Told>,
}

impl House {
    fn new(waiters: usize) -> Self {
        let settings = Settings { waiters, ..Settings::default() };
        let lines = Lines::new(&Arc::new(Pulse::default()), &settings);
        Self { room: Room::new(Arc::clone(&lines), false), lines, told: Vec::new() }
    }

    fn waits(&mut self, id: &str, limits: &[&str]) -> Arc<Ticket> {
        let (pending, told) = pending(id, LONG);
        let ticket = Arc::clone(&pending.ticket);
        assert!(self.room.take_in(pending, &refusal(limits, None)).is_none());
        self.told.push(told);
        ticket
    }

    /// Those who are due, by id; they stay.
    fn due(&mut self, most: usize) -> Vec<String> {
        let due = self.room.due(T0, most);
        let id = |pending: &Pending| pending.reserves().unwrap().id().into_owned();
        let ids = due.iter().map(id).collect();
        for pending in due {
            assert!(self.room.put_back(pending).is_none());
        }
        ids
    }

    fn waiting(&self, limit: &str) -> usize {
        let counter = Counter::new(counter(limit));
        let mut status = [LimitStatus::at_rest(&counter, Bound::AtMost(1), true, T0)];
        self.lines.count(&mut status);
        status[0].waiting
    }
}

#[tokio::test(start_paused = true)]
async fn a_change_wakes_those_who_wait_for_it_in_the_order_of_their_arrival() {
    let mut house = House::new(1000);
    for n in 0..70 {
        house.waits(&format!("{n}"), &["a"]);
    }
    house.waits("other", &["b"]);
    assert_eq!(house.due(100), ["0", "other"], "what changed before anybody listened");
    assert!(house.due(100).is_empty());
    house.room.counter_changed(&counter("a"));
    house.room.counter_changed(&counter("c"));
    let first: Vec<String> = (0..64).map(|n| format!("{n}")).collect();
    assert_eq!(house.due(100), first);
    assert!(house.due(100).is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_heads_are_looked_at_again() {
    let mut house = House::new(1000);
    for (id, limits) in [("1", &["a"][..]), ("2", &["a", "b"]), ("3", &["b"])] {
        house.waits(id, limits);
    }
    house.due(100);
    let look = house.room.next_look(T0).unwrap();
    assert!(look <= Instant::now() + Duration::from_millis(500));
    advance(Duration::from_millis(500)).await;
    assert_eq!(house.due(100), ["1", "2"]);
}

#[tokio::test(start_paused = true)]
async fn the_instant_at_which_it_could_pass_wakes() {
    let mut house = House::new(1000);
    let (first, _told) = pending("1", LONG);
    let at = T0.plus(Span::from_millis(100));
    assert!(house.room.take_in(first, &refusal(&["a"], Some(at))).is_none());
    for pending in house.room.due(T0, 100) {
        assert!(house.room.take_in(pending, &refusal(&["a"], Some(at))).is_none());
    }
    assert_eq!(house.room.next_look(T0).unwrap(), Instant::now() + Duration::from_millis(100));
    let due = house.room.due(at, 100);
    assert_eq!(due.len(), 1);
    assert!(!due[0].wait.as_ref().unwrap().over);
}

#[tokio::test(start_paused = true)]
async fn whose_time_is_over_has_a_last_chance() {
    let mut house = House::new(1000);
    let (short, _told) = pending("short", Span::from_millis(200));
    house.waits("long", &["a"]);
    assert!(house.room.take_in(short, &refusal(&["a"], None)).is_none());
    for pending in house.room.due(T0, 100) {
        assert!(house.room.take_in(pending, &refusal(&["a"], None)).is_none());
    }
    advance(Duration::from_millis(200)).await;
    let due = house.room.due(T0, 100);
    assert_eq!(due.len(), 1);
    assert!(due[0].wait.as_ref().unwrap().over && !due[0].may_stay());
    let refused = due[0].wait.as_ref().unwrap().in_vain(refusal(&["a"], None));
    let waited = Span::from_millis(200);
    assert!(matches!(refused, Refusal::WaitTimedOut { waited: w, .. } if w == waited));
    assert_eq!(house.waiting("a"), 2, "until it is answered");
    drop(due);
    assert_eq!(house.waiting("a"), 1);
}

#[tokio::test(start_paused = true)]
async fn whoever_goes_lets_those_behind_be_tried() {
    let mut house = House::new(1000);
    let first = house.waits("1", &["a", "b"]);
    house.waits("2", &["b"]);
    house.due(100);
    assert_eq!((house.waiting("a"), house.waiting("b")), (1, 2));
    let leaving =
        Leaving { abandoned: first.cancel_on_drop(), ear: Some(Arc::clone(house.lines.ear())) };
    house.lines.ear().take();
    drop(leaving);
    timeout(Duration::from_secs(1), house.lines.ear().rung()).await.unwrap();
    assert_eq!(house.due(100), ["2"]);
    assert_eq!((house.waiting("a"), house.waiting("b")), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn only_so_many_may_wait() {
    let mut house = House::new(2);
    house.waits("1", &["a"]);
    house.waits("2", &["a"]);
    let (third, _told) = pending("3", LONG);
    let sent_away = house.room.take_in(third, &refusal(&["a"], None));
    assert!(sent_away.is_some());
    drop(sent_away);
    house.room.dismiss(&Error::Unavailable("going".to_owned()));
    assert!(house.room.is_empty());
    assert_eq!(house.waiting("a"), 0);
    for told in std::mem::take(&mut house.told) {
        assert_eq!(told.await.unwrap().accept(), Err(Error::Unavailable("going".to_owned())));
    }
    house.waits("4", &["a"]);
}

#[tokio::test(start_paused = true)]
async fn those_who_came_earlier_stand_before_and_nobody_before_himself() {
    let mut house = House::new(1000);
    house.waits("1", &["a"]);
    house.waits("2", &["a", "b"]);
    house.room.counter_changed(&counter("a"));
    let due = house.room.due(T0, 1);
    let [first, second] = due.as_slice() else { panic!("two are woken") };
    let mut ahead = Ahead::of(&house.room);
    ahead.next(first);
    assert!(!ahead.stands(&counter("a")));
    ahead.stays(first, &refusal(&["a"], None));
    ahead.next(second);
    assert!(ahead.stands(&counter("a")) && !ahead.stands(&counter("b")));
    let one = ReservationKey::new("n", "1");
    assert!(ahead.asked_under(&one).is_some());
    assert!(ahead.asked_under(&ReservationKey::new("n", "2")).is_none());
    for pending in due {
        assert!(house.room.put_back(pending).is_none());
    }
    let mut ahead = Ahead::of(&house.room);
    ahead.next(&pending("3", LONG).0);
    assert!(ahead.stands(&counter("a")) && ahead.stands(&counter("b")));
    assert!(!ahead.stands(&counter("c")));
    assert!(ahead.asked_under(&one).is_some());
}

fn granted(id: &str) -> Answer {
    let reservation = Arc::new(Reservation {
        key: ReservationKey::new("n", id),
        request: None,
        charges: Arc::default(),
        create_time: T0,
        expire_time: T0,
        settled: Settled::Open,
        history: Vec::new(),
        policy_revision: 1,
        principal: String::new(),
        purge_at: None,
    });
    Answer { reservation, limits: Vec::new(), replayed: false, now: T0 }
}

fn undone(queue: &Queue) -> usize {
    let taken = queue.take(10);
    assert!(taken.iter().all(|pending| matches!(pending.command, Command::Undo(_)) && pending.own));
    taken.len()
}

#[tokio::test]
async fn a_grant_that_reaches_nobody_is_undone() {
    let queue = Arc::new(Queue::new(&Settings::default()));
    let mut grants = Grants::default();
    // The caller has gone before, or with the answer in his hands.
    let (gone, told) = pending("1", LONG);
    drop(told);
    gone.done(granted("1"), &queue, &mut grants);
    assert_eq!(undone(&queue), 1);
    let (goes, told) = pending("1", LONG);
    goes.done(granted("1"), &queue, &mut grants);
    assert_eq!(undone(&queue), 0);
    drop(told);
    assert_eq!(undone(&queue), 1);
    // He has it.
    let (stays, told) = pending("1", LONG);
    stays.done(granted("1"), &queue, &mut grants);
    assert_eq!(told.await.unwrap().accept(), Ok(granted("1")));
    assert_eq!(undone(&queue), 0);
}

#[tokio::test]
async fn a_grant_stays_that_was_not_waited_for_or_that_somebody_else_was_told_of() {
    let queue = Arc::new(Queue::new(&Settings::default()));
    let mut grants = Grants::default();
    let at_once = Pending::new(command("1"), Arc::default(), oneshot::channel().0);
    at_once.done(granted("1"), &queue, &mut grants);
    assert_eq!(undone(&queue), 0);
    // The same id was sent again, and that call hears of the grant.
    let (first, told) = pending("1", LONG);
    let (again, _told) = pending("1", LONG);
    first.done(granted("1"), &queue, &mut grants);
    drop(told);
    again.done(Answer { replayed: true, ..granted("1") }, &queue, &mut grants);
    assert_eq!(undone(&queue), 0, "it is his");
    // He was told to ask, and will find it.
    let (unsure, told) = pending("2", LONG);
    assert!(unsure.ticket.begin());
    Arc::clone(&unsure.ticket).cancel_on_drop().keep();
    unsure.done(granted("2"), &queue, &mut grants);
    drop(told);
    assert_eq!(undone(&queue), 0);
}

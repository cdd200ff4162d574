//! Plans that go up and down at random in the middle of billing periods, against
//! a plain count of what was taken.

use std::collections::BTreeMap;

use quota_authority::domain::time::{Span, Time};

use crate::world::{Client, Denied, Rules, World, cases, instant, limit, text, user, v1};

cases! {
    manual_clock: [b32_plans_up_and_down_at_random],
}

const PLANS: [(&str, i64); 3] = [("free", 3), ("basic", 20), ("pro", 100)];
const STEPS: usize = 250;

/// What was taken, by the start of the period.
#[derive(Default)]
struct Model {
    used: BTreeMap<String, i64>,
    holds: Vec<Hold>,
}

struct Hold {
    id: String,
    amount: i64,
    until: Time,
    period: String,
}

impl Model {
    fn held(&self, period: &str, now: Time) -> i64 {
        let live = self.holds.iter().filter(|hold| hold.period == period && hold.until > now);
        live.map(|hold| hold.amount).sum()
    }

    fn used(&self, period: &str) -> i64 {
        self.used.get(period).copied().unwrap_or_default()
    }
}

/// The period that is open, and what the server says is used and held of it.
async fn standing(client: &Client) -> (String, i64, i64) {
    let limits = client.usage("units", &[("user", "s")]).await.unwrap();
    let period = limits[0].window.as_ref().unwrap().start_time.as_ref();
    (text(period), limits[0].used, limits[0].held)
}

async fn b32_plans_up_and_down_at_random(world: &mut World) {
    let mut seed = 0x9E37_79B9_7F4A_7C15_u64;
    let mut random = move |below: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed % below
    };
    world.begin_at("2024-01-31T10:00:00Z").await;
    let rule = limit("posts", "units").per(&["user"]).by_plan(&PLANS).billing();
    let plans = PLANS.map(|(plan, _)| plan);
    let client = world.rules(Rules::of_units([rule]).plans(&plans, "free")).await;
    let mut model = Model::default();
    let mut max = 0;
    for step in 0..world.rounds(STEPS, STEPS / 3) {
        match random(10) {
            // The first step puts the subject.
            0 | 1 => {}
            _ if step == 0 => {}
            2..=5 => reserve(&client, &mut model, step, 1 + random(8), max, world.now()).await,
            6 | 7 => settle(&client, &mut model, random(2) == 0, world.now()).await,
            8 => world.pass(Span::from_secs(i64::try_from(random(70)).unwrap())).await,
            _ => world.pass(Span::from_days(i64::try_from(random(12)).unwrap())).await,
        }
        if step == 0 || random(6) == 0 {
            let (plan, allowed) = PLANS[usize::try_from(random(3)).unwrap()];
            let owner = user("s").plan(plan).monthly(1, "2024-01-31T09:00:00Z", "Europe/Berlin");
            client.put(owner).await.unwrap();
            max = allowed;
        }
        // A plan changes what is allowed and nothing else.
        let (period, used, held) = standing(&client).await;
        let expected = (model.used(&period), model.held(&period, world.now()));
        assert_eq!((used, held), expected, "step {step}, {period}");
    }
    for (period, used) in &model.used {
        let then = client.usage_at("units", &[("user", "s")], Some(period)).await.unwrap();
        assert_eq!(then[0].used, *used, "{period}");
    }
}

async fn reserve(
    client: &Client,
    model: &mut Model,
    step: usize,
    amount: u64,
    max: i64,
    now: Time,
) {
    let (id, amount) = (format!("r{step}"), i64::try_from(amount).unwrap());
    let (period, used, held) = standing(client).await;
    let answer = client.take(&id, amount).send().await;
    if used + held + amount > max {
        answer.denied(&["posts"]);
        return;
    }
    let reservation = answer.unwrap().reservation.unwrap();
    let until = instant(&text(reservation.expire_time.as_ref()));
    assert!(until > now);
    model.holds.push(Hold { id, amount, until, period });
}

/// Settles the oldest hold: into the period that it was taken from, whatever
/// plan and period there are now.
async fn settle(client: &Client, model: &mut Model, commit: bool, now: Time) {
    if model.holds.is_empty() {
        return;
    }
    let hold = model.holds.remove(0);
    let expired = hold.until <= now;
    if !commit {
        assert_eq!(client.release(&hold.id).await.is_err(), expired);
    } else if expired {
        assert_eq!(client.state(&hold.id).await, v1::ReservationState::Expired);
        client.commit(&hold.id).await.unwrap_err();
    } else {
        client.commit(&hold.id).await.unwrap();
        *model.used.entry(hold.period).or_default() += hold.amount;
    }
}

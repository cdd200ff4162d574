//! Subjects, to and fro.

mod billing;

use super::page::Page;
use super::request::Faults;
use super::times::{time, timestamp};
use crate::domain::name::{Violation, check_name};
use crate::domain::refusal::Refusal;
use crate::domain::subject::{Override, OverrideChange, Subject};
use crate::proto::v1;

/// Checks the names that find a subject.
///
/// # Errors
///
/// Every fault of them.
pub fn check_key(namespace: &str, kind: &str, id: &str) -> Result<(), Refusal> {
    let mut faults = Faults::default();
    check_name("namespace", namespace, &mut faults.0);
    check_name("kind", kind, &mut faults.0);
    check_name("id", id, &mut faults.0);
    faults.or(())
}

/// What a `ListSubjects` asks for.
pub struct Listing {
    pub namespace: String,
    pub kind: Option<String>,
    pub plan: Option<String>,
    pub page: Page,
}

/// A `ListSubjects`.
///
/// # Errors
///
/// Every fault of the request.
pub fn listing(request: v1::ListSubjectsRequest) -> Result<Listing, Refusal> {
    let v1::ListSubjectsRequest { namespace, kind, plan, page_size, page_token } = request;
    let mut faults = Faults::default();
    check_name("namespace", &namespace, &mut faults.0);
    let mut given = |field: &str, name: String| {
        let name = (!name.is_empty()).then_some(name)?;
        check_name(field, &name, &mut faults.0);
        Some(name)
    };
    let (kind, plan) = (given("kind", kind), given("plan", plan));
    let filters = [&*namespace, kind.as_deref().unwrap_or(""), plan.as_deref().unwrap_or("")];
    let page = Page::new("ListSubjects", filters, page_size, &page_token, &mut faults.0);
    faults.or(()).map(|()| Listing { namespace, kind, plan, page })
}

/// The subject of a `PutSubject`.
///
/// # Errors
///
/// Faults of the request's form, and with them those that [`Subject::faults`]
/// finds: nobody is told of one after the other.
pub fn from_request(namespace: &str, subject: Option<v1::Subject>) -> Result<Subject, Refusal> {
    let mut faults = Faults::default();
    check_name("namespace", namespace, &mut faults.0);
    let Some(subject) = subject else {
        faults.0.push(Violation::new("subject", "must be given"));
        return faults.or(Subject::default());
    };
    let billing = subject.billing.and_then(|given| billing::read(given, &mut faults.0));
    let mut overrides = Vec::new();
    for (n, over) in subject.overrides.into_iter().enumerate() {
        let field = format!("subject.overrides[{n}]");
        let change = match over.change {
            Some(v1::r#override::Change::Set(max)) => OverrideChange::Set(max),
            Some(v1::r#override::Change::Add(more)) => OverrideChange::Add(more),
            None => {
                faults.0.push(Violation::new(&field, "must have either set or add"));
                OverrideChange::Add(0)
            }
        };
        let expire_time = over.expire_time.map(|at| time(&format!("{field}.expire_time"), at));
        let expire_time = expire_time.transpose().unwrap_or_else(|fault| {
            faults.0.push(fault);
            None
        });
        overrides.push(Override { limit: over.limit, change, expire_time });
    }
    let subject = Subject {
        namespace: namespace.to_owned(),
        kind: subject.kind,
        id: subject.id,
        plan: subject.plan,
        billing,
        overrides,
        frozen: subject.frozen,
        labels: subject.labels.into_iter().collect(),
        ..Subject::default()
    };
    if !faults.0.is_empty() {
        faults.0.extend(subject.faults());
    }
    faults.or(subject)
}

/// The message of a stored subject.
pub fn message(subject: &Subject, etag: String) -> v1::Subject {
    let over = |over: &Override| v1::Override {
        limit: over.limit.clone(),
        expire_time: over.expire_time.map(timestamp),
        change: Some(match over.change {
            OverrideChange::Set(max) => v1::r#override::Change::Set(max),
            OverrideChange::Add(more) => v1::r#override::Change::Add(more),
        }),
    };
    v1::Subject {
        kind: subject.kind.clone(),
        id: subject.id.clone(),
        plan: subject.plan.clone(),
        billing: subject.billing.as_ref().map(billing::message),
        overrides: subject.overrides.iter().map(over).collect(),
        frozen: subject.frozen,
        labels: subject.labels.clone().into_iter().collect(),
        etag,
        update_time: Some(timestamp(subject.update_time)),
    }
}

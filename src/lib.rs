//! `quotad`: the one place that decides whether a quota has room.
//!
//! # Bird's eye
//!
//! A backend calls *Reserve* (hold units of a quota), creates its resource,
//! then calls *Commit* or *Release*. If it crashes between, the hold expires by
//! itself. Limits live here; a caller says what he is about to do, never what
//! his plan is. State lives in MongoDB, several servers may share it, and none
//! of them leads.
//!
//! # The life of a Reserve
//!
//! 1. [`api`] checks the request and makes a [`domain::decide::Command`] of it.
//! 2. [`engine`] puts it in the queue. What arrives while one batch is being
//!    written forms the next batch.
//! 3. The batch loop brings in the records that the rules ask for, from its
//!    cache or from the store, and folds [`domain::decide::decide`] over the
//!    batch in arrival order. Each decision checks everything, crosses one
//!    line, and changes the [`domain::state::State`].
//! 4. What changed goes to the [`store`] as one change set, each record under
//!    the version it was decided over: one transaction, all or nothing.
//! 5. Once that is durable everybody in the batch is answered. On a conflict
//!    nobody is: the batch is read afresh and decided again.
//!
//! A Reserve that may wait and finds no room is not answered in step 5 but kept,
//! and decided again ahead of new ones when something has changed that it waits
//! for (`engine/wait/`).
//!
//! A refusal or a replay changes nothing, so no guard proves it: it only ever
//! rests on records that were read during its own batch, or that the same batch
//! writes under guard (`engine/plan.rs`).
//!
//! # Promises
//!
//! * **I1** At every admission under an enforced limit, used + held ≤ the max
//!   in force, whatever runs concurrently.
//! * **I2** A counter equals the sum over the reservations charged to it.
//! * **I3** used ≥ 0 and held ≥ 0.
//! * **I4** A reservation is settled at most once; terminal states stay.
//! * **I5** An acknowledged answer survives what the store survives.
//! * **I6** Repeating any call with its id changes nothing.
//! * **I7** State, counters and trail are one atomic write, or none of it.
//! * **I8** Every change leaves its trace: who, what, when, why.
//!
//! [`domain::invariants`] has I1 to I3 as predicates.
//!
//! # Who may import whom
//!
//! `cli → server → api → engine → store → domain`, never back; [`proto`] is
//! generated and used by `api` and `cli`. `tests/layers.rs` holds it.
//!
//! | to change | look in |
//! | --- | --- |
//! | a rule | `domain/decide/`, `domain/policy/` |
//! | what a window is | `domain/window/` |
//! | a request's bounds | `api/convert/request.rs` |
//! | how listings are paged | `api/convert/page.rs` |
//! | what the trail tells | `domain/trail.rs`, `engine/trail/` |
//! | how counters are recounted and mended | `domain/recount.rs`, `engine/audit/` |
//! | what exists against what is committed | `engine/reconcile.rs` |
//! | an error's name or text | `api/catalogue.rs` |
//! | how batches form | `engine/queue.rs`, `engine/batch.rs` |
//! | who waits, and what wakes him | `engine/wait/`, `engine/pulse.rs` |
//! | how records are written down | `store/document/` |
//! | how policy files come into force | `server/policy_files.rs` |
//! | what MongoDB is asked | `store/mongo/` |
//! | which clock decides, and the test clock | `store/test_clock.rs` |

// The map above and those of the modules lead into private parts too; the
// documentation is built with them.
#![allow(rustdoc::private_intra_doc_links)]
#![warn(clippy::unwrap_used)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod api;
pub mod cli;
pub mod domain;
pub mod engine;
pub mod proto;
pub mod server;
pub mod store;

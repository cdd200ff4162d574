//! What every store must do, asked of all of them.
//!
//! One suite (`suite.rs`) over the same records (`records.rs`). The only
//! exemption: a memory store forgets, so durability is not asked of it.

mod support;

#[path = "store_conformance/charged.rs"]
mod charged;
#[path = "store_conformance/life.rs"]
mod life;
#[path = "store_conformance/listing.rs"]
mod listing;
#[path = "store_conformance/records.rs"]
mod records;
#[path = "store_conformance/suite.rs"]
mod suite;
#[path = "store_conformance/trail.rs"]
mod trail;

use std::sync::Arc;

use quota_authority::domain::time::Time;
use quota_authority::store::SharedStore;
use quota_authority::store::clock::{Clock, ManualClock};
use quota_authority::store::embedded::EmbeddedStore;
use quota_authority::store::memory::MemoryStore;
use quota_authority::store::mongo::MongoStore;

/// One place where records live, and a way to open it once more.
enum Place {
    Memory,
    Embedded(tempfile::TempDir),
    Mongo(String),
}

impl Place {
    async fn open(&self) -> SharedStore {
        let noon = Time::from_millis(1_700_000_000_000).unwrap();
        let clock = Clock::Manual(ManualClock::at(noon));
        match self {
            Self::Memory => Arc::new(MemoryStore::new(clock)),
            Self::Embedded(folder) => {
                Arc::new(EmbeddedStore::open(folder.path(), clock).expect("a store in a folder"))
            }
            Self::Mongo(uri) => {
                Arc::new(MongoStore::connect(uri).await.expect("a store in MongoDB"))
            }
        }
    }
}

macro_rules! suite {
    ($($store:ident: $place:expr, [$($test:ident),+ $(,)?];)+) => {$(
        mod $store {
            use super::*;
            $(
                #[tokio::test(flavor = "multi_thread")]
                async fn $test() {
                    suite::$test(&$place).await;
                }
            )+
        }
    )+};
}

fn in_mongo() -> Place {
    let mongo = support::mongo();
    Place::Mongo(mongo.uri_for(&mongo.fresh_database()))
}

fn in_folder() -> Place {
    Place::Embedded(tempfile::tempdir().expect("a folder"))
}

macro_rules! all_but_durability {
    ($($store:ident: $place:expr;)+) => {
        suite! {$(
            $store: $place, [
                absent_records_are_answered_as_absent,
                every_kind_of_record_reads_back_as_written,
                counters_of_every_window_read_back_and_change,
                subjects_with_every_billing_read_back,
                strange_names_keep_apart,
                a_reservation_is_made_once,
                a_stale_version_changes_nothing,
                a_counter_that_appeared_meanwhile_is_a_conflict,
                a_resource_is_bound_once,
                a_policy_revision_is_added_once,
                a_subject_is_removed_as_it_was_seen,
                nothing_is_written_after_its_time,
                of_many_writers_from_one_version_one_wins,
                guarded_increments_lose_nothing,
                large_change_sets_are_whole,
                pages_are_complete_and_in_order,
                a_read_after_a_write_sees_it,
                a_value_is_swapped_only_for_the_one_expected,
                of_many_swaps_from_one_value_one_wins,
                subjects_are_listed_by_namespace_kind_and_plan,
                subjects_of_a_plan_are_found_among_many,
                a_listing_goes_on_where_it_was_whatever_changes,
                revisions_are_listed_newest_first,
                events_read_back_as_written,
                events_are_listed_newest_first,
                refusals_read_back_as_noted,
                refusals_are_listed_newest_first,
                what_is_charged_is_shown_once_after_its_counters,
                live_holds_are_shown_soonest_first,
                a_visitor_may_break_off,
                counters_and_what_is_charged_to_them_are_of_one_moment,
                what_is_charged_includes_all_that_was_written_before,
                reservations_are_listed_newest_first,
                a_reservation_that_is_made_anew_is_listed_where_it_belongs,
                counters_are_listed_by_the_end_of_their_windows,
                a_reservation_is_removed_as_it_was_seen,
                instants_move_only_where_the_change_says_so,
                another_reservation_takes_the_place_of_one,
                a_resource_is_free_again_and_bound_anew,
            ];
        )+}
    };
}

all_but_durability! {
    memory: Place::Memory;
    embedded: in_folder();
    mongo: in_mongo();
}

mod ring {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn memory() {
        trail::the_oldest_refusals_make_room(&Place::Memory).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn embedded() {
        trail::the_oldest_refusals_make_room(&in_folder()).await;
    }
}

mod durable {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn embedded_trail() {
        trail::the_trail_survives_a_restart(&in_folder()).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn mongo_trail() {
        trail::the_trail_survives_a_restart(&in_mongo()).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn embedded() {
        suite::records_survive_a_restart(&in_folder()).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn mongo() {
        suite::records_survive_a_restart(&in_mongo()).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn listings_embedded() {
        suite::listings_survive_a_restart(&in_folder()).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn listings_mongo() {
        suite::listings_survive_a_restart(&in_mongo()).await;
    }
}

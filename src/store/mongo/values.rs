//! Named values, each a document of `meta`.
//!
//! A value is written as a date, which has 64 bits too: the only one that there
//! is is a time, and so reads as one in a Mongo shell.

use bson::{DateTime, doc};
use mongodb::error::{ErrorKind, WriteFailure};

use super::error::DUPLICATE_KEY;
use super::load::limited;
use super::{Collections, unavailable};
use crate::store::StoreError;

pub(super) async fn read(collections: &Collections, name: &str) -> Result<Option<i64>, StoreError> {
    let find = collections.meta.find_one(doc! { "_id": name });
    let found = limited(async { find.await.map_err(|error| unavailable(&error)) }).await?;
    let date = found.and_then(|document| document.get_datetime("time").copied().ok());
    Ok(date.map(DateTime::timestamp_millis))
}

pub(super) async fn swap(
    collections: &Collections,
    name: &str,
    expected: Option<i64>,
    new: i64,
) -> Result<bool, StoreError> {
    let time = DateTime::from_millis(new);
    let Some(expected) = expected else {
        let insert = collections.meta.insert_one(doc! { "_id": name, "time": time });
        return limited(async {
            match insert.await {
                Ok(_) => Ok(true),
                Err(error) if is_duplicate(&error) => Ok(false),
                Err(error) => Err(unavailable(&error)),
            }
        })
        .await;
    };
    let guard = doc! { "_id": name, "time": DateTime::from_millis(expected) };
    let update = collections.meta.update_one(guard, doc! { "$set": { "time": time } });
    let updated = limited(async { update.await.map_err(|error| unavailable(&error)) }).await?;
    Ok(updated.matched_count == 1)
}

fn is_duplicate(error: &mongodb::error::Error) -> bool {
    matches!(
        error.kind.as_ref(),
        ErrorKind::Write(WriteFailure::WriteError(error)) if error.code == DUPLICATE_KEY
    )
}

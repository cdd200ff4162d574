//! How records are written down: BSON documents with words, not codes, the
//! same in every store that keeps bytes.

mod policy;
mod records;
mod reservation;

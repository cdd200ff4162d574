//! The three stories that this program is for, word for word, each under the
//! policy that is bundled for it.

#[path = "stories/blog.rs"]
mod blog;
#[path = "stories/docs.rs"]
mod docs;
#[path = "stories/shop.rs"]
mod shop;

use std::fs;
use std::path::Path;

use quota_authority::api::policy_file;

use crate::world::{Client, Rules, World};

/// A caller under the bundled policy of that name.
async fn bundled(world: &World, name: &str) -> Client {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("deploy/policies/{name}.yaml"));
    let text = fs::read_to_string(&file).expect("a bundled policy");
    let spec = policy_file::parse(&text).expect("a bundled policy is a good one");
    assert_eq!(spec.namespace, name);
    let client = world.caller().within(name);
    client.apply(Rules(policy_file::to_message(&spec))).await.expect("it applies");
    client
}

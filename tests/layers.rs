//! Who may import whom: `cli → server → api → engine → store → domain`, never
//! back. The contract's generated code belongs to `api`, and to `cli` as a
//! client; the driver of MongoDB to `store/mongo`.

use std::fs;
use std::path::{Path, PathBuf};

/// From the lowest to the highest.
const LAYERS: [&str; 6] = ["domain", "store", "engine", "api", "server", "cli"];

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder of sources") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}

/// Every `.rs` file of a layer, with its code but without its comments.
fn code_of(layer: &str) -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(layer);
    let files = sources(&root);
    assert!(!files.is_empty(), "{layer} has sources");
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path).expect("readable sources");
        let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        let code = code.collect::<Vec<_>>().join("\n");
        (path, code)
    };
    files.into_iter().map(read).collect()
}

#[test]
fn no_layer_imports_one_above_it() {
    for (height, layer) in LAYERS.iter().enumerate() {
        for (path, code) in code_of(layer) {
            for above in &LAYERS[height + 1..] {
                let import = format!("crate::{above}");
                assert!(!code.contains(&import), "{} imports {import}", path.display());
            }
        }
    }
}

#[test]
fn the_domain_is_pure() {
    let foreign = [
        "tokio",
        "async ",
        "tracing",
        "serde",
        "bson",
        "mongodb",
        "tonic",
        "prost",
        "SystemTime",
        "Instant::now",
        "crate::proto",
    ];
    for (path, code) in code_of("domain") {
        for name in foreign {
            assert!(!code.contains(name), "{} uses {name}", path.display());
        }
    }
}

#[test]
fn the_wire_is_known_to_api_and_clients_alone() {
    for layer in ["domain", "store", "engine"] {
        for (path, code) in code_of(layer) {
            for name in ["crate::proto", "tonic::", "prost"] {
                assert!(!code.contains(name), "{} uses {name}", path.display());
            }
        }
    }
}

#[test]
fn only_the_mongo_store_knows_the_driver() {
    for layer in LAYERS {
        for (path, code) in code_of(layer) {
            let shown = path.display().to_string();
            // The benchmark measures what users would write by hand instead.
            let exempt = shown.contains("store/mongo/") || shown.contains("cli/bench/");
            assert!(exempt || !code.contains("mongodb::"), "{shown} uses the driver");
        }
    }
}

//! Parts of the README that are made elsewhere, each between two marks.

use std::fs;
use std::path::PathBuf;

/// Compares what stands between the marks of that name with `made`. Under
/// `UPDATE_README=1` writes it there instead; `test` is the test binary that
/// does so.
pub fn holds(test: &str, name: &str, made: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("README.md");
    let readme = fs::read_to_string(&path).expect("the README");
    let (begin, end) = (format!("<!-- {name} -->\n"), format!("<!-- end of {name} -->"));
    let (before, rest) = readme.split_once(&begin).expect("the part's first mark");
    let (stands, after) = rest.split_once(&end).expect("the part's last mark");
    if stands != made && std::env::var_os("UPDATE_README").is_some() {
        let updated = [before, &begin, made, &end, after].concat();
        fs::write(&path, updated).expect("the README is written");
        return;
    }
    assert_eq!(stands, made, "{name}: UPDATE_README=1 cargo test --test {test} writes it anew");
}

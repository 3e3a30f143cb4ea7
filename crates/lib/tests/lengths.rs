//! A source file tells one story: none in the tree is over 500 lines.

mod support;

use std::fs;
use std::path::{Path, PathBuf};

use support::root;

/// Lines of a source file at most.
const LINES: usize = 500;

/// All Rust sources of the tree, what was built apart.
fn sources() -> Vec<PathBuf> {
    let (mut found, mut folders) = (Vec::new(), vec![root()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder") {
            let entry = entry.expect("an entry");
            let (path, name) = (entry.path(), entry.file_name());
            let built = name == "target" || name.as_encoded_bytes().starts_with(b".");
            // A link leads to what is found by itself, or out of the tree.
            match entry.file_type().expect("a type") {
                kind if kind.is_dir() && !built => folders.push(path),
                kind if kind.is_file() && path.extension().is_some_and(|e| e == "rs") => found.push(path),
                _ => {}
            }
        }
    }
    found
}

fn lines(path: &Path) -> usize {
    fs::read_to_string(path).expect("a source").lines().count()
}

#[test]
fn no_source_file_is_over_500_lines() {
    let all = sources();
    assert!(all.len() > 400, "only {} files were found", all.len());
    let long: Vec<_> = all.iter().map(|path| (lines(path), path)).filter(|(n, _)| *n > LINES).collect();
    assert!(long.is_empty(), "split by story: {long:#?}");
}

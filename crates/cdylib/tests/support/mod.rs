//! What tests have in common: the object; of documents the tree, its sources, words in backticks.
#![allow(dead_code, reason = "each test takes a part")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Words that name no component.
pub(crate) const WORDS: [&str; 4] = ["nobody", "somebody", "whoever", "anybody"];

/// The top of the tree.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The object that cargo built beside this test.
pub(crate) fn object() -> PathBuf {
    let test = std::env::current_exe().expect("the test's own path");
    test.parent().expect("deps/").join("libverbena_rdma.so")
}

/// All Rust sources of the tree, what was built apart.
pub(crate) fn sources() -> Vec<PathBuf> {
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

/// A file of the tree, by its path from the top.
pub(crate) fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// The Markdown pages of a folder, each with its path.
pub(crate) fn pages_in(folder: &str) -> Vec<(String, String)> {
    let entries = fs::read_dir(root().join(folder)).expect("the pages");
    let mut names: Vec<String> = entries
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("a name"))
        .filter(|name| name.ends_with(".md"))
        .map(|name| format!("{folder}/{name}"))
        .collect();
    names.sort();
    names.into_iter().map(|name| (name.clone(), read(&name))).collect()
}

/// The words in backticks of a line.
pub(crate) fn quoted(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// Whether a source file has a test of this name.
pub(crate) fn has_test(source: &str, name: &str) -> bool {
    source.match_indices(&format!("fn {name}(")).any(|(at, _)| {
        let before = &source[..at];
        let attributes = before.rsplit('}').next().unwrap_or(before);
        attributes.contains("#[test]") || attributes.contains("#[verbena::test")
    })
}

/// The Rust sources of a crate, tests among them, each with its path below the crate's folder.
pub(crate) type Sources = Vec<(PathBuf, String)>;

/// The crates by the names that documents use, which are those of their folders, with `_` for `-`;
/// `fuzz` is the fuzzers' harness.
pub(crate) fn crates() -> BTreeMap<String, Sources> {
    let folders = fs::read_dir(root().join("crates")).expect("the crates");
    let mut all: BTreeMap<String, Sources> = folders
        .map(|entry| entry.expect("an entry"))
        .map(|entry| (entry.file_name().into_string().expect("a name"), entry.path()))
        .map(|(folder, path)| (folder.replace('-', "_"), sources_below(&path)))
        .collect();
    all.insert("fuzz".to_owned(), sources_below(&root().join("fuzz/harness")));
    all
}

fn sources_below(folder: &Path) -> Sources {
    let (mut found, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(at) = folders.pop() {
        for entry in fs::read_dir(&at).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                let text = fs::read_to_string(&path).expect("a source");
                found.push((path.strip_prefix(folder).expect("below it").to_owned(), text));
            }
        }
    }
    found
}

/// The pages of docs/design, each with its path.
pub(crate) fn design() -> Vec<(String, String)> {
    pages_in("docs/design")
}

/// The documents whose names are looked up.
pub(crate) fn documents() -> Vec<(String, String)> {
    let others = ["ARCHITECTURE.md", "CONTRIBUTING.md"].map(|name| (name.to_owned(), read(name)));
    design().into_iter().chain(others).collect()
}

/// Those, and the other documents that are wrapped and name components.
pub(crate) fn all_documents() -> Vec<(String, String)> {
    let others = [
        "README.md",
        "SECURITY.md",
        "RELEASING.md",
        "conformance/README.md",
        "fuzz/README.md",
        "docs/GLOSSARY.md",
        "docs/historic-bugs.md",
        "docs/rpma-wire.md",
    ];
    documents().into_iter().chain(others.map(|name| (name.to_owned(), read(name)))).collect()
}

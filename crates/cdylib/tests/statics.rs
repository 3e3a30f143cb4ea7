//! What a child of fork(2) must not find: a lock of its parent's. Another thread of the parent may
//! have held it, and does not exist in the child. So nothing static in the shared object's crates
//! has a lock, or waits for another thread, but through `sys::per_process`, whose documentation
//! has the rule.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// What waits. `Once` stands for `OnceLock` too.
const WAITING: [&str; 7] = ["Mutex", "RwLock", "Condvar", "Once", "LazyLock", "Barrier", "mpsc"];
/// What begins anew in a child, whatever is inside, or never waits.
const FRESH: [&str; 4] = ["PerProcess<", "Kept<", "Known<", "Live"];

/// The crates of this workspace that the shared objects are made of: `cdylib`, `librpma` and, by
/// their manifests, all they depend on.
fn linked(root: &Path) -> BTreeSet<String> {
    let (mut all, mut next) = (
        BTreeSet::new(),
        vec!["cdylib".to_owned(), "librpma".to_owned(), "libumad".to_owned(), "librspreload".to_owned()],
    );
    while let Some(name) = next.pop() {
        let manifest = fs::read_to_string(root.join(&name).join("Cargo.toml")).expect("a manifest");
        let sections = manifest.split("\n[").filter(|section| section.starts_with("dependencies]"));
        let dependencies =
            sections.flat_map(str::lines).filter_map(|line| line.split(['.', ' ', '=']).next());
        // A folder has the name of the package, with `-` where the library has `_`.
        let folders = dependencies.filter(|d| !d.is_empty()).map(|d| d.replace('_', "-"));
        next.extend(folders.filter(|folder| root.join(folder).join("src").is_dir()));
        all.insert(name);
        next.retain(|name| !all.contains(name));
    }
    all
}

fn sources(at: &Path, all: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(at).expect("a folder of sources") {
        let path = entry.expect("an entry").path();
        match path.extension() {
            _ if path.is_dir() => sources(&path, all),
            Some(extension) if extension == "rs" => all.push(path),
            _ => {}
        }
    }
}

/// The statics of a source, each as its name and type.
fn statics(source: &str) -> Vec<String> {
    let code = source.split("#[cfg(test)]\nmod tests {").next().unwrap_or(source);
    let begins = |line: &str| {
        let line = line.trim_start();
        let line = line.split_once(") static ").map_or(line, |(_, rest)| rest);
        let line = line.trim_start_matches("pub ").trim_start_matches("static ");
        line.split(':').next().is_some_and(|name| {
            !name.is_empty() && name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
        })
    };
    let mut all = Vec::new();
    let lines: Vec<&str> = code.lines().collect();
    for (n, line) in lines.iter().enumerate() {
        if line.contains("static ") && !line.trim_start().starts_with("//") && begins(line) {
            // The type may go on in the next lines, up to the value.
            let text = lines[n..lines.len().min(n + 4)].join(" ");
            all.push(text.split(" = ").next().unwrap_or(&text).to_owned());
        }
    }
    all
}

#[test]
fn nothing_static_holds_a_lock_that_a_forked_child_could_find_taken() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let (mut found, mut bad) = (0, Vec::new());
    let crates = linked(&root);
    assert!(
        crates.len() > 8 && crates.contains("wire"),
        "only {crates:?}: does this test still read manifests?"
    );
    for name in crates {
        let mut files = Vec::new();
        sources(&root.join(name).join("src"), &mut files);
        for file in files {
            let source = fs::read_to_string(&file).expect("a source");
            for declaration in statics(&source) {
                found += 1;
                let waits = WAITING.iter().any(|w| declaration.contains(w));
                if waits && !FRESH.iter().any(|f| declaration.contains(f)) {
                    bad.push(format!("{}: {}", file.display(), declaration.trim()));
                }
            }
        }
    }
    assert!(found > 20, "only {found} statics were found: does this test still read them?");
    assert!(bad.is_empty(), "wrap these in host's PerProcess or Kept:\n{}", bad.join("\n"));
}

#[test]
fn the_reader_of_statics_sees_plain_ones() {
    let source = "static A: Mutex<u8> = Mutex::new(0);\n    pub(crate) static B_2: OnceLock<\n        u8,\n    > = x;\n\
                  // static C: u8\nfn f(x: &'static str) {}\n";
    let seen = statics(source);
    assert_eq!(seen.len(), 2, "{seen:?}");
    assert!(seen[0].contains("Mutex") && seen[1].contains("OnceLock"), "{seen:?}");
}

//! Files that know each other in a circle must be read all at once: there is no circle of more than
//! three in `capi`, `nic` and `local`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// A module by its path in the crate, the crate's root being empty.
type Module = Vec<String>;

/// The modules of a crate, each with its file's code: without comments and tests.
fn modules(at: &Path, path: &Module, all: &mut BTreeMap<Module, String>) {
    for entry in fs::read_dir(at).expect("a folder of sources") {
        let file = entry.expect("an entry").path();
        let name = file.file_stem().expect("a name").to_string_lossy().into_owned();
        let mut module = path.clone();
        if file.is_dir() {
            module.push(name);
            modules(&file, &module, all);
            continue;
        }
        if !["mod", "lib"].contains(&&*name) {
            module.push(name);
        }
        let source = fs::read_to_string(&file).expect("a source");
        let code = source.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
        let lines = code.lines().map(|l| l.split("//").next().unwrap_or_default());
        all.insert(module, lines.collect::<Vec<_>>().join("\n"));
    }
}

/// The paths that a tree of `use` names: `a::{b, c::{d, e}}` is `a::b`, `a::c::d`, `a::c::e`.
fn expand(before: &str, tree: &str, all: &mut Vec<String>) {
    let Some((front, inner)) = tree.split_once('{') else {
        return all.push(format!("{before}{}", tree.split(" as ").next().unwrap_or_default().trim()));
    };
    let inner = inner.rsplit_once('}').map_or(inner, |(inner, _)| inner);
    let (mut depth, mut start) = (0, 0);
    for (i, c) in inner.char_indices().chain([(inner.len(), ',')]) {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                let branch = inner[start..i].trim();
                start = inner.len().min(i + 1);
                if !branch.is_empty() {
                    expand(&format!("{before}{}", front.trim()), branch, all);
                }
            }
            _ => {}
        }
    }
}

/// The paths in a module's code that begin in the crate: those of `use`, and those written out.
fn paths(code: &str) -> Vec<String> {
    let mut all = Vec::new();
    let mut rest = String::new();
    for (i, part) in code.split("use ").enumerate() {
        match part.split_once(';') {
            Some((tree, after)) if i > 0 => {
                expand("", tree.trim(), &mut all);
                rest.push_str(after);
            }
            _ => rest.push_str(part),
        }
    }
    let is_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    all.extend(rest.split(|c| !is_path(c)).filter(|p| p.contains("::")).map(str::to_owned));
    all
}

/// The module that a path of `from` leads into, the longest there is.
fn target(path: &str, from: &Module, all: &BTreeMap<Module, String>) -> Option<Module> {
    let mut parts: Vec<String> = path.split("::").map(str::to_owned).collect();
    let base = match parts.first().map(String::as_str)? {
        "crate" => Module::new(),
        "self" => from.clone(),
        "super" => from[..from.len().checked_sub(1)?].to_vec(),
        // A child, as in a folder's `pub use`.
        child if all.contains_key(&[&from[..], &[child.to_owned()]].concat()) => {
            parts.insert(0, String::new());
            from.clone()
        }
        _ => return None,
    };
    let whole = [&base[..], &parts[1..]].concat();
    (0..=whole.len()).rev().map(|n| whole[..n].to_vec()).find(|m| all.contains_key(m)).filter(|m| m != from)
}

/// What can be reached from a module.
fn reached<'a>(from: &'a Module, edges: &'a BTreeMap<Module, BTreeSet<Module>>) -> BTreeSet<&'a Module> {
    let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
    while let Some(module) = next.pop() {
        for to in edges.get(module).into_iter().flatten() {
            if seen.insert(to) {
                next.push(to);
            }
        }
    }
    seen
}

/// The circles of a crate: the sets of modules that can all reach each other.
fn circles(all: &BTreeMap<Module, String>) -> BTreeSet<Vec<String>> {
    let edge = |(module, code): (&Module, &String)| {
        (module.clone(), paths(code).iter().filter_map(|path| target(path, module, all)).collect())
    };
    let edges: BTreeMap<Module, BTreeSet<Module>> = all.iter().map(edge).collect();
    let from: BTreeMap<&Module, BTreeSet<&Module>> = all.keys().map(|m| (m, reached(m, &edges))).collect();
    let circle = |m: &Module| -> Vec<String> {
        let together = from[m].iter().filter(|other| from[**other].contains(m));
        together.map(|module| module.join("::")).collect()
    };
    all.keys().map(circle).filter(|circle| !circle.is_empty()).collect()
}

/// Refuses circles of more than three files in a crate, of which at least so many files are read.
fn check(name: &str, least: usize) {
    let mut all = BTreeMap::new();
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name).join("src");
    modules(&sources, &Module::new(), &mut all);
    assert!(all.len() > least, "only {} files were read", all.len());
    let large: Vec<_> = circles(&all).into_iter().filter(|circle| circle.len() > 3).collect();
    assert!(large.is_empty(), "{large:#?}");
}

#[test]
fn no_more_than_three_files_of_capi_know_each_other_in_a_circle() {
    check("capi", 50);
}

#[test]
fn no_more_than_three_files_of_nic_know_each_other_in_a_circle() {
    check("nic", 40);
}

#[test]
fn no_more_than_three_files_of_local_know_each_other_in_a_circle() {
    check("local", 30);
}

#[test]
fn a_circle_is_seen_through_every_form_of_path() {
    let files = [
        ("a", "use std::fmt;\nuse crate::{b::{self, B}, d};"),
        ("b", "fn f() { crate::c::g() }"),
        ("c", "use super::a::A;"),
        ("d", "struct D;"),
    ];
    let module = |name: &str| vec![name.to_owned()];
    let all = files.into_iter().map(|(name, code)| (module(name), code.to_owned())).collect();
    assert_eq!(circles(&all), BTreeSet::from([["a", "b", "c"].map(str::to_owned).to_vec()]));
}

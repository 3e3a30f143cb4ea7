//! What the documents name is there: files, functions, tests, rows of the conformance table. So a
//! rename that forgets a page fails here, with the page and the name.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use support::{Sources, WORDS, all_documents, crates, design, documents, has_test, quoted, read, root};

/// Lines of ARCHITECTURE.md at most: more is in docs/design.
const ARCHITECTURE_LINES: usize = 150;
/// Words of a design page at most, without tables and code.
const DESIGN_WORDS: usize = 1_600;
/// Columns of a line at most, but for tables, code and the steps of ARCHITECTURE.md's walks.
const COLUMNS: usize = 100;
/// What a table of claims begins with.
const CLAIMS: &str = "| what holds | shown by |";
/// What a claim without a test says in place of one.
const NO_TEST: &str = "no test";
/// Names that begin so are not ours.
const OTHERS: [&str; 3] = ["std", "libc", "clippy"];

/// The lines of a document that are no code block, with their numbers.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut code = false;
    text.lines().enumerate().map(|(n, line)| (n + 1, line)).filter(move |(_, line)| {
        let fence = line.starts_with("```");
        code ^= fence;
        !code && !fence
    })
}

/// The rows of the conformance table, as "where: what".
fn rows() -> BTreeSet<String> {
    let cells = |line: &str| line.split(" | ").map(str::to_owned).collect::<Vec<_>>();
    let table = read("conformance/RESULTS.md");
    let rows = table.lines().filter_map(|line| line.strip_prefix("| ")).map(cells);
    rows.filter(|cells| cells.len() > 3).map(|cells| format!("{}: {}", cells[0], cells[1])).collect()
}

/// Why a test that a page names is not there.
fn missing(name: &str, crates: &BTreeMap<String, Sources>, rows: &BTreeSet<String>) -> Option<String> {
    if let Some(row) = name.strip_prefix("conformance: ") {
        return (!rows.contains(row)).then(|| format!("no row `{row}` in conformance/RESULTS.md"));
    }
    let Some((home, test)) = name.split_once("::") else { return Some(format!("`{name}` names no test")) };
    let has = |sources: &Sources| sources.iter().any(|(_, source)| has_test(source, test));
    if crates.get(home).is_some_and(has) {
        return None;
    }
    let elsewhere: Vec<&String> = crates.iter().filter(|(_, s)| has(s)).map(|(name, _)| name).collect();
    Some(format!("{home} has no test `{test}`; these have: {elsewhere:?}"))
}

#[test]
fn every_claim_of_a_design_page_names_a_test_that_is_there_or_says_that_none_is() {
    let (crates, rows) = (crates(), rows());
    let (mut bad, mut claimed) = (Vec::new(), 0);
    for (page, text) in design().iter().filter(|(page, _)| !page.ends_with("/README.md")) {
        let sections: Vec<&str> = text.split("\n## ").skip(1).collect();
        if sections.is_empty() {
            bad.push(format!("{page} has no section"));
        }
        for section in sections {
            let title = section.lines().next().unwrap_or_default();
            let claims = section.split_once(CLAIMS).map_or("", |(_, claims)| claims);
            let mut tests = 0;
            for line in claims.lines().skip(2).take_while(|line| line.starts_with("| ")) {
                let shown = line.trim_end_matches(" |").rsplit(" | ").next().unwrap_or_default();
                let names: Vec<&str> = quoted(shown).filter(|name| name.contains(':')).collect();
                let why = names.iter().filter_map(|name| missing(name, &crates, &rows));
                bad.extend(why.map(|why| format!("{page}, {title}: {why}")));
                if names.is_empty() && !shown.starts_with(NO_TEST) {
                    bad.push(format!("{page}, {title}: neither a test nor `{NO_TEST}`: {line}"));
                }
                claimed += 1;
                tests += if shown.starts_with(NO_TEST) { 0 } else { names.len() };
            }
            if tests == 0 {
                bad.push(format!("{page}, {title}: no test in a table that begins with `{CLAIMS}`"));
            }
        }
    }
    assert!(claimed > 150, "only {claimed} claims were found: does this test still read them?");
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}

/// Whether a word stands in a text, not as a part of another.
fn has_word(text: &str, word: &str) -> bool {
    let in_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.match_indices(word)
        .any(|(at, _)| !text[..at].ends_with(in_word) && !text[at + word.len()..].starts_with(in_word))
}

/// Whether a crate has a module or defines an item, field or variant of this name.
fn defines(sources: &Sources, name: &str) -> bool {
    const KINDS: [&str; 9] =
        ["fn", "struct", "enum", "trait", "mod", "const", "static", "type", "macro_rules!"];
    let is_module =
        |path: &Path| path.iter().any(|part| Path::new(part).file_stem().is_some_and(|s| s == name));
    let is_item = |source: &str| {
        KINDS.iter().any(|kind| has_word(source, &format!("{kind} {name}")))
            || has_word(source, &format!("pub {name}"))
            || has_word(source, &format!("pub(crate) {name}"))
    };
    let is_variant = |source: &str| {
        let begins =
            |line: &str| line.trim_start().strip_prefix(name).is_some_and(|r| r.starts_with([',', '(', ' ']));
        name.starts_with(|c: char| c.is_ascii_uppercase()) && source.lines().any(begins)
    };
    sources.iter().any(|(path, source)| is_module(path) || is_item(source) || is_variant(source))
}

/// Why a name in backticks leads nowhere; names that are not of this tree lead somewhere.
fn astray(name: &str, crates: &BTreeMap<String, Sources>) -> Option<String> {
    let is_name =
        |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let parts: Vec<&str> = name.trim_end_matches("()").split("::").collect();
    if parts.len() > 1 && parts.iter().all(|part| is_name(part)) {
        if OTHERS.contains(&parts[0]) {
            return None;
        }
        let Some(sources) = crates.get(parts[0]) else {
            return Some(format!("`{name}` begins with no crate"));
        };
        let lost = parts[1..].iter().find(|part| !defines(sources, part));
        return lost.map(|part| format!("`{name}`: {} does not define `{part}`", parts[0]));
    }
    let top = name.trim_start_matches("./").split('/').next().unwrap_or_default();
    let ours = name.contains('/') && !name.contains([' ', '*']) && root().join(top).exists();
    (ours && !top.is_empty() && !root().join(name).exists()).then(|| format!("`{name}` does not exist"))
}

#[test]
fn every_file_and_function_that_a_document_names_exists() {
    let crates = crates();
    let mut bad = Vec::new();
    for (page, text) in documents() {
        for (number, line) in prose(&text) {
            let claim = line.starts_with("| ") && page.starts_with("docs/design/");
            // The tests of a claim are looked up by another test.
            let said = if claim {
                line.trim_end_matches(" |").rsplit_once(" | ").map_or(line, |(c, _)| c)
            } else {
                line
            };
            let said = if page.ends_with("/README.md") { line } else { said };
            let why = quoted(said).filter_map(|name| astray(name, &crates));
            bad.extend(why.map(|why| format!("{page}:{number}: {why}")));
        }
    }
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}

#[test]
fn every_link_of_a_document_leads_to_a_file() {
    let mut bad = Vec::new();
    let others = [
        "README.md",
        "guide/src/ci.md",
        "guide/src/deviations.md",
        "conformance/README.md",
        "fuzz/README.md",
    ];
    for (page, text) in documents().into_iter().chain(others.map(|name| (name.to_owned(), read(name)))) {
        let folder = root().join(&page).parent().expect("a folder").to_owned();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let file = link.split('#').next().unwrap_or_default();
            if !link.contains("://") && !file.is_empty() && !folder.join(file).exists() {
                bad.push(format!("{page}: {link}"));
            }
        }
    }
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}

#[test]
fn each_step_of_the_walks_names_a_function_and_the_file_it_is_in() {
    let text = read("ARCHITECTURE.md");
    let walks =
        text.split_once("\n## The walks").expect("the walks").1.split("\n## ").next().unwrap_or_default();
    let steps: Vec<&str> =
        walks.lines().filter(|line| line.starts_with(|c: char| c.is_ascii_digit())).collect();
    assert!(steps.len() > 20, "only {} steps were found: does this test still read them?", steps.len());
    let mut bad = Vec::new();
    for step in steps {
        let mut words = quoted(step);
        let (Some(name), Some(file)) = (words.next(), words.next()) else {
            bad.push(format!("neither a function nor a file: {step}"));
            continue;
        };
        let function = name.rsplit("::").next().unwrap_or(name);
        if !has_word(&read(file), &format!("fn {function}")) {
            bad.push(format!("{file} has no function {function}"));
        }
    }
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}

#[test]
fn architecture_is_short() {
    let lines = read("ARCHITECTURE.md").lines().count();
    assert!(lines <= ARCHITECTURE_LINES, "{lines} lines");
}

/// Words of a text that are neither in a table nor in code.
fn words(text: &str) -> usize {
    let is_prose = |line: &&str| !line.starts_with(['|', '#']);
    prose(text).map(|(_, line)| line).filter(is_prose).map(|line| line.split_whitespace().count()).sum()
}

#[test]
fn design_pages_are_short() {
    let long: Vec<String> = design()
        .iter()
        .map(|(page, text)| (page, words(text)))
        .filter(|(_, words)| *words > DESIGN_WORDS)
        .map(|(page, words)| format!("{page}: {words} words, {DESIGN_WORDS} are allowed"))
        .collect();
    assert!(long.is_empty(), "{}", long.join("\n"));
}

#[test]
fn documents_are_wrapped() {
    let mut bad = Vec::new();
    for (page, text) in all_documents() {
        for (number, line) in prose(&text) {
            let is_step = line.starts_with(|c: char| c.is_ascii_digit());
            let may_be_long = is_step || line.starts_with('|') || line.starts_with("    ");
            if !may_be_long && line.chars().count() > COLUMNS {
                bad.push(format!("{page}:{number}: longer than {COLUMNS} columns"));
            }
        }
    }
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}

#[test]
fn documents_name_components() {
    let mut bad = Vec::new();
    for (page, text) in all_documents() {
        for (number, line) in prose(&text) {
            // Outside of backticks, where names of tests are.
            let said: String = line.split('`').step_by(2).collect::<Vec<_>>().join(" ").to_lowercase();
            let found = WORDS.iter().filter(|word| has_word(&said, word));
            bad.extend(found.map(|word| format!("{page}:{number}: {word}")));
        }
    }
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}

#[test]
fn the_reader_of_documents_sees_what_is_missing() {
    let crates = crates();
    assert_eq!(astray("nic::Qp", &crates), None);
    assert_eq!(astray("std::sync::Once", &crates), None);
    assert_eq!(astray("crates/nic/src/lib.rs", &crates), None);
    assert_eq!(astray("/sys/class/infiniband", &crates), None);
    assert!(astray("nic::no_such_thing", &crates).is_some());
    assert!(astray("Qp::post", &crates).is_some(), "without a crate nobody knows where to look");
    assert!(astray("crates/nic/src/nothing.rs", &crates).is_some());
    let rows = rows();
    assert_eq!(missing("conformance: one machine: small pings", &crates, &rows), None);
    assert!(missing("conformance: one machine: large pangs", &crates, &rows).is_some());
    assert!(missing("nic::no_such_test", &crates, &rows).is_some());
    assert!(missing("nic::snapshot", &crates, &rows).is_some(), "a function that is no test");
}

//! The generated parts of the guide's reference pages: they come from the code, so they cannot
//! differ from it.
//!
//! | page of `guide/src` | comes from |
//! |---|---|
//! | `command-line.md` | the arguments of `verbena`, as clap has them |
//! | `variables.md` | `variables::VARIABLES`, compared with each `"VERBENA_..."` in the sources |
//! | `counters.md` | the `snapshot` functions, with the doc comments of their counters |
//! | `limits.md` | `nic::limits` and `limits::HOST_LIMITS`, with their doc comments and values |
//!
//! A generated part stands between `<!-- generated: NAME -->` and `<!-- end -->`; the rest of a
//! page is written by hand. A test for each page compares. With `VERBENA_RENEW=1` it writes the
//! page anew.

mod command_line;
mod counters;
mod limits;
mod variables;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// What renews the pages.
const RENEW: &str = "VERBENA_RENEW=1 cargo test -p verbena-cli pages";
/// Words of a table's cell at most.
const CELL_WORDS: usize = 15;
/// Columns of a code block at most.
const COLUMNS: usize = 90;
/// Where the texts of options begin.
const OPTION_COLUMN: usize = 24;

/// A file of the tree, by its path from the top.
fn path(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(file)
}

fn read(file: &str) -> String {
    fs::read_to_string(path(file)).unwrap_or_else(|e| panic!("{file}: {e}"))
}

/// The doc comments of a source file, by the name of what stands below each, which a line has
/// between two texts.
fn documented(source: &str, before: &str, after: &str) -> BTreeMap<String, String> {
    let (mut found, mut doc) = (BTreeMap::new(), String::new());
    for line in source.lines().map(str::trim) {
        if let Some(text) = line.strip_prefix("///") {
            doc += text;
        } else if let Some(name) = between(line, before, after) {
            found.insert(name.to_owned(), doc.trim().to_owned());
            doc.clear();
        } else {
            doc.clear();
        }
    }
    found
}

/// The name in a line between two texts.
fn between<'a>(line: &'a str, before: &str, after: &str) -> Option<&'a str> {
    let name = line.strip_prefix(before)?.split_once(after)?.0;
    let is_name = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    (is_name && !name.is_empty()).then_some(name)
}

/// A table; no cell is longer than the guide allows.
fn table<const N: usize>(head: [&str; N], rows: impl IntoIterator<Item = [String; N]>) -> String {
    let row = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let mut text = row(&head.map(str::to_owned));
    text += &format!("|{}\n", "---|".repeat(N));
    for cells in rows {
        for cell in &cells {
            let words = cell.split_whitespace().count();
            assert!(
                words <= CELL_WORDS,
                "{words} words in a cell of the guide, {CELL_WORDS} are allowed: {cell}"
            );
        }
        text += &row(&cells);
    }
    text
}

fn code(text: &str) -> String {
    format!("`{text}`")
}

/// A sentence as a cell has it, without its full stop.
fn cell(text: &str) -> String {
    text.trim_end_matches('.').to_owned()
}

/// Compares a page with what its parts should be, or writes it.
fn compare(page: &str, parts: &[(&str, String)]) {
    let file = format!("guide/src/{page}");
    let is = read(&file);
    let (mut rest, mut should, mut seen) = (&is[..], String::new(), Vec::new());
    while let Some((before, after)) = rest.split_once("<!-- generated: ") {
        let (name, after) = after.split_once(" -->\n").expect("a marker ends with its line");
        let (_, after) =
            after.split_once("<!-- end -->").unwrap_or_else(|| panic!("{file}: {name} has no end"));
        let part = parts.iter().find(|(part, _)| *part == name);
        let (_, text) = part.unwrap_or_else(|| panic!("{file}: no part {name} is generated"));
        let _ = write!(should, "{before}<!-- generated: {name} -->\n\n{text}\n<!-- end -->");
        seen.push(name);
        rest = after;
    }
    should += rest;
    let names: Vec<&str> = parts.iter().map(|(name, _)| *name).collect();
    assert_eq!(seen, names, "{file}: the generated parts in their order");
    if is == should {
        return;
    }
    if std::env::var_os("VERBENA_RENEW").is_some_and(|value| value == "1") {
        fs::write(path(&file), should).unwrap_or_else(|e| panic!("{file}: {e}"));
        return;
    }
    let differs = is.lines().zip(should.lines()).find(|(is, should)| is != should);
    let (is, should) = differs.unwrap_or(("the page", "a page of another length"));
    panic!(
        "{file} is not what the code says. It has\n{is}\nwhere the code has\n{should}\nTo renew it: {RENEW}"
    );
}

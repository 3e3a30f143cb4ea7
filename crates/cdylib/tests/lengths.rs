//! A source file tells one story: none in the tree is over 500 lines. Comments are wrapped, and doc
//! comments stand alone.

mod support;

use std::fs;
use std::path::Path;

use support::{WORDS, sources};

/// Lines of a source file at most.
const LINES: usize = 500;

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

/// Columns of a comment at most.
const COLUMNS: usize = 100;

/// Lines of comments that are prose: no row of a table, nothing indented or in a code block.
fn prose(source: &str) -> Vec<(usize, &str)> {
    let mut code = false;
    let mut found = Vec::new();
    for (number, line) in source.lines().enumerate() {
        let Some(text) = line.trim_start().strip_prefix("//") else {
            code = false;
            continue;
        };
        let text = text.trim_start_matches(['/', '!']);
        code ^= text.trim_start().starts_with("```");
        if !code && !text.starts_with("  ") && !text.trim_start().starts_with('|') {
            found.push((number + 1, line));
        }
    }
    found
}

#[test]
fn comments_are_wrapped() {
    let mut long = Vec::new();
    for path in sources() {
        let source = fs::read_to_string(&path).expect("a source");
        let over = prose(&source).into_iter().filter(|(_, line)| line.chars().count() > COLUMNS);
        long.extend(over.map(|(number, _)| format!("{}:{number}", path.display())));
    }
    assert!(long.is_empty(), "longer than {COLUMNS} columns:\n{}", long.join("\n"));
}

/// How a doc comment must not begin: its subject would stand in the line above.
const OPENINGS: [&str; 9] =
    ["The same", "See the module", "One was", "One is ", "It ", "Its ", "They ", "Those ", "These "];

#[test]
fn doc_comments_stand_alone_and_name_components() {
    let mut bad = Vec::new();
    for path in sources() {
        let source = fs::read_to_string(&path).expect("a source");
        let mut begins = true;
        for (number, line) in source.lines().enumerate() {
            let text = line.trim_start();
            let doc = text.strip_prefix("/// ");
            if begins && doc.is_some_and(|doc| OPENINGS.iter().any(|opening| doc.starts_with(opening))) {
                bad.push(format!("{}:{}: {text}", path.display(), number + 1));
            }
            begins = !text.starts_with("///");
        }
        for (number, line) in prose(&source) {
            let mut words = line.split(|c: char| !(c.is_alphanumeric() || c == '_')).map(str::to_lowercase);
            if words.any(|word| WORDS.contains(&word.as_str())) {
                bad.push(format!("{}:{number}: {}", path.display(), line.trim_start()));
            }
        }
    }
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}

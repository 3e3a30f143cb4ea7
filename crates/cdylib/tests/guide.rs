//! README.md and the guide: how long their lines, sentences and cells are, where their links lead,
//! and that what they name exists.

mod support;

use std::collections::{BTreeMap, BTreeSet};

use support::{pages_in, quoted, read, root};

const README_LINES: usize = 100;
const LINE_COLUMNS: usize = 100;
const SENTENCE_WORDS: usize = 35;
const MEAN_WORDS: usize = 18;
const CELL_WORDS: usize = 15;
/// What `cargo doc` writes beside the built guide.
const API: &str = "../verbena/";
/// Where doctests of the guide's Rust blocks are.
const DOCTESTS: &str = "crates/verbena-examples/src/lib.rs";

/// A page: its path, and its text.
type Page = (String, String);

fn guide() -> Vec<Page> {
    pages_in("guide/src")
}

fn pages() -> Vec<Page> {
    ["README.md", "SECURITY.md"]
        .map(|name| (name.to_owned(), read(name)))
        .into_iter()
        .chain(guide())
        .collect()
}

/// A block of a page: lines of prose that belong together, or the cells of a table's row.
enum Block {
    Prose(Vec<String>),
    Row(Vec<String>),
}

/// The blocks of a page outside of code and comments, each with the number of its first line.
fn blocks(text: &str) -> Vec<(usize, Block)> {
    let mut blocks: Vec<(usize, Block)> = Vec::new();
    let (mut code, mut open) = (false, false);
    for (number, line) in text.lines().enumerate().map(|(n, line)| (n + 1, line.trim())) {
        let fence = line.starts_with("```");
        code ^= fence;
        let item = line.starts_with("- ") || line.starts_with(|c: char| c.is_ascii_digit());
        if code || fence || line.is_empty() || line.starts_with("<!--") || line.starts_with('#') {
            open = false;
        } else if let Some(row) = line.strip_prefix('|') {
            open = false;
            let cells = row.trim_end_matches('|').split('|').map(|cell| cell.trim().to_owned());
            blocks.push((number, Block::Row(cells.collect())));
        } else if let (true, false, Some((_, Block::Prose(lines)))) = (open, item, blocks.last_mut()) {
            lines.push(line.to_owned());
        } else {
            open = true;
            blocks.push((number, Block::Prose(vec![line.to_owned()])));
        }
    }
    blocks
}

/// What a reader sees of prose: the text of links, and one word for each code span.
fn plain(text: &str) -> String {
    let mut plain = String::new();
    for (n, part) in text.split('`').enumerate() {
        plain += if n % 2 == 0 { part } else { "code" };
    }
    let mut seen = String::new();
    let mut rest = plain.as_str();
    while let Some((before, after)) = rest.split_once("](") {
        seen += before;
        rest = after.split_once(')').map_or("", |(_, rest)| rest);
    }
    seen + rest
}

/// The lengths of the sentences in prose, in words.
fn sentences(text: &str) -> Vec<usize> {
    let mut lengths = vec![0];
    for word in plain(text).split_whitespace().filter(|word| word.contains(char::is_alphanumeric)) {
        *lengths.last_mut().expect("one") += 1;
        let bare = word.trim_end_matches([')', '*', '"']);
        if bare.ends_with(['.', '!', '?', ':']) {
            lengths.push(0);
        }
    }
    lengths.retain(|n| *n > 0);
    lengths
}

#[test]
fn pages_for_users_keep_to_their_budgets_of_lines_sentences_and_cells() {
    let mut bad = Vec::new();
    let lines = read("README.md").lines().count();
    if lines > README_LINES {
        bad.push(format!("README.md has {lines} lines, {README_LINES} are allowed"));
    }
    for (page, text) in pages() {
        let mut all = Vec::new();
        let mut code = false;
        for (number, line) in text.lines().enumerate() {
            code ^= line.starts_with("```");
            if !code && !line.starts_with(['|', '[', '!', '<']) && line.chars().count() > LINE_COLUMNS {
                bad.push(format!("{page}:{}: longer than {LINE_COLUMNS} columns", number + 1));
            }
        }
        for (number, block) in blocks(&text) {
            match block {
                Block::Row(cells) => {
                    for cell in cells.iter().filter(|c| plain(c).split_whitespace().count() > CELL_WORDS) {
                        bad.push(format!("{page}:{number}: more than {CELL_WORDS} words in a cell: {cell}"));
                    }
                }
                Block::Prose(lines) => {
                    let lengths = sentences(&lines.join(" "));
                    if let Some(longest) = lengths.iter().max().filter(|n| **n > SENTENCE_WORDS) {
                        bad.push(format!("{page}:{number}: a sentence of {longest} words"));
                    }
                    all.extend(lengths);
                }
            }
        }
        let (words, count) = (all.iter().sum::<usize>(), all.len().max(1));
        if words > MEAN_WORDS * count {
            bad.push(format!("{page}: {} words a sentence in the mean", words / count));
        }
    }
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}

/// The anchors of a page, as mdBook makes them from its headings.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut code = false;
    let mut found = BTreeSet::new();
    for line in text.lines() {
        code ^= line.starts_with("```");
        if let (false, Some(heading)) = (code, line.strip_prefix('#')) {
            let heading = plain_heading(heading.trim_start_matches('#').trim());
            let kept = heading.chars().filter_map(|c| match c {
                c if c.is_alphanumeric() || c == '_' || c == '-' => Some(c.to_ascii_lowercase()),
                ' ' => Some('-'),
                _ => None,
            });
            found.insert(kept.collect());
        }
    }
    found
}

fn plain_heading(heading: &str) -> String {
    heading.replace('`', "")
}

/// The targets of a page's links outside of code.
fn links(text: &str) -> Vec<String> {
    let mut code = false;
    let mut found = Vec::new();
    for line in text.lines() {
        code ^= line.starts_with("```");
        if code {
            continue;
        }
        found.extend(line.split("](").skip(1).filter_map(|rest| rest.split(')').next()).map(str::to_owned));
    }
    found
}

#[test]
fn every_link_of_the_pages_leads_to_a_file_and_a_heading_that_are_there() {
    let texts: BTreeMap<String, String> = pages().into_iter().collect();
    let mut bad = Vec::new();
    for (page, text) in &texts {
        let folder = root().join(page).parent().expect("a folder").to_owned();
        for link in links(text) {
            if link.contains("://") || link.starts_with(API) {
                continue;
            }
            let (file, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let to = match (file.is_empty(), page.starts_with("guide/")) {
                (true, _) => page.clone(),
                (false, true) => format!("guide/src/{file}"),
                (false, false) => file.to_owned(),
            };
            // In the built book there is nothing but its own pages.
            let is_page = !page.starts_with("guide/") || texts.contains_key(&to) || file.ends_with(".svg");
            let leads = file.is_empty() || is_page && folder.join(file).exists();
            if !leads {
                bad.push(format!("{page}: {link}: no such page"));
            } else if !anchor.is_empty() && !texts.get(&to).is_some_and(|t| anchors(t).contains(anchor)) {
                bad.push(format!("{page}: {link}: no such heading"));
            }
        }
    }
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}

#[test]
fn the_summary_has_each_page_once() {
    let summary = links(&read("guide/src/SUMMARY.md"));
    let listed: BTreeSet<String> = summary.iter().map(|link| format!("guide/src/{link}")).collect();
    assert_eq!(listed.len(), summary.len(), "a page is listed twice");
    let there: BTreeSet<String> = guide().into_iter().map(|(name, _)| name).collect();
    let expected: BTreeSet<String> =
        there.into_iter().filter(|name| name != "guide/src/SUMMARY.md").collect();
    assert_eq!(listed, expected);
}

#[test]
fn what_the_pages_name_is_in_the_reference_and_in_the_tree() {
    let [variables, counters, commands] =
        ["variables", "counters", "command-line"].map(|page| read(&format!("guide/src/{page}.md")));
    let mut bad = Vec::new();
    for (page, text) in pages() {
        for word in text.split(|c: char| !(c.is_ascii_uppercase() || c == '_')) {
            if word.starts_with("VERBENA_") && !word.ends_with('_') && !variables.contains(word) {
                bad.push(format!("{page}: {word} is not on the page of variables"));
            }
        }
        for name in text.lines().flat_map(quoted) {
            let counter = name.strip_prefix("host.").or(name.strip_prefix("node."));
            let is_name = |rest: &str| rest.chars().all(|c| c.is_ascii_lowercase() || c == '_');
            if counter.is_some_and(|rest| rest != "rs" && !rest.is_empty() && is_name(rest))
                && !counters.contains(name)
            {
                bad.push(format!("{page}: the counter {name} is not on the page of counters"));
            }
            if let Some(words) = name.strip_prefix("verbena run ") {
                for option in words.split(" -- ").next().unwrap_or_default().split_whitespace() {
                    if option.starts_with("--") && option != "--" && !commands.contains(option) {
                        bad.push(format!(
                            "{page}: `{name}`: {option} is not on the page of the command line"
                        ));
                    }
                }
            }
            let top = name.split('/').next().unwrap_or_default();
            let is_path = name.contains('/')
                && ["crates", "bench", "conformance", "docs", "fuzz", "guide", ".ci"].contains(&top)
                && !name.contains([' ', '*', '<']);
            if is_path && !root().join(name).exists() {
                bad.push(format!("{page}: `{name}` does not exist"));
            }
        }
    }
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}

#[test]
fn every_page_with_rust_blocks_is_compiled_as_doctests() {
    let doctests = read(DOCTESTS);
    let is_compiled = |text: &str| text.contains("\n```rust\n") || text.contains("\n```rust,no_run\n");
    let missing: Vec<String> = pages()
        .into_iter()
        .filter(|(page, text)| is_compiled(text) && !doctests.contains(&format!("../../../{page}\"")))
        .map(|(page, _)| page)
        .collect();
    assert!(missing.is_empty(), "{DOCTESTS} does not name {missing:?}");
}

#[test]
fn the_measures_of_prose_count_what_a_reader_sees() {
    assert_eq!(sentences("One two `three four` [five](six.md). Seven!"), [4, 1]);
    assert_eq!(plain("a [b c](d) e `f g`"), "a [b c e code");
    let text = "# A `b` c's\n\nProse\nmore.\n\n- item\n- other\n\n| a | b |\n";
    assert_eq!(anchors(text).into_iter().collect::<Vec<_>>(), ["a-b-cs"]);
    assert_eq!(blocks(text).len(), 4);
}

//! The code and the documents speak the field's words. Each word below was once a name of this
//! project's own for a thing that has a name already; docs/GLOSSARY.md has those that are used.

mod support;

use std::fs;

use support::{all_documents, pages_in, sources};

/// A word that is not used, in its forms, and the word that is.
const OLD: [(&[&str], &str); 14] = [
    (&["seat", "seats"], "driver slot"),
    (&["hog", "hogs"], "CPU contention"),
    (&["lender", "lenders"], "export, exporting process"),
    (&["borrower", "borrowers"], "importer"),
    (&["bearer", "bearers"], "name owner"),
    (&["farewell", "farewells"], "graceful close"),
    (&["kit", "kits"], "engine state; for tests, support"),
    (&["tally", "tallies"], "deferred counter"),
    (&["regulars"], "lock-pinned regions"),
    (&["bell", "bells"], "wake descriptor, event signal"),
    (&["company"], "queue load"),
    (&["stranger", "strangers"], "unsolicited traffic, another user"),
    (&["atonce", "noway", "knownway", "realworld", "simworld"], "direct, path cache, environment"),
    (&["whoever", "somebody", "anybody"], "the component: thread, process, peer"),
];

/// The files that list words which are not used.
const LISTS: [&str; 2] = ["cdylib/tests/words.rs", "cdylib/tests/support/mod.rs"];

/// The words of a text, those of an identifier apart, in lower case: `WakeFd` is "wake" and "fd".
/// An identifier of several words is also one word without what parts them: "wakefd".
fn words(line: &str) -> Vec<String> {
    let mut all = Vec::new();
    for identifier in line.split(|c: char| !(c.is_alphanumeric() || c == '_')) {
        let (mut word, mut was_lower) = (String::new(), false);
        for c in identifier.chars() {
            if c == '_' || (c.is_uppercase() && was_lower) {
                all.push(std::mem::take(&mut word));
            }
            was_lower = c.is_lowercase() || c.is_numeric();
            if c != '_' {
                word.extend(c.to_lowercase());
            }
        }
        all.push(word);
        if identifier.starts_with(char::is_uppercase) {
            all.push(identifier.to_lowercase());
        }
    }
    all
}

/// The old words of a line, each with the word in its place.
fn old_words(line: &str) -> Vec<(&'static str, &'static str)> {
    let words = words(line);
    let is_there = |old: &&&'static str| words.iter().any(|word| word == **old);
    OLD.iter().flat_map(|(old, new)| old.iter().filter(is_there).map(|old| (*old, *new))).collect()
}

#[test]
fn old_words_are_in_no_source_and_in_no_document() {
    let mut texts: Vec<(String, String)> = sources()
        .into_iter()
        .filter(|path| !LISTS.iter().any(|list| path.ends_with(list)))
        .map(|path| (path.display().to_string(), fs::read_to_string(&path).expect("a source")))
        .collect();
    texts.extend(all_documents());
    texts.extend(pages_in("guide/src"));
    let mut bad = Vec::new();
    for (name, text) in texts {
        for (number, line) in text.lines().enumerate() {
            let found = old_words(line).into_iter();
            bad.extend(found.map(|(old, new)| format!("{name}:{}: {old}, say {new}", number + 1)));
        }
    }
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}

#[test]
fn words_are_seen_in_identifiers_of_each_form() {
    for line in ["fn sit_in_seat()", "a seat.", "DriverSeat::new", "SEAT: u32", "`seat`"] {
        assert_eq!(old_words(line).len(), 1, "{line}");
    }
    assert!(old_words("Way::AtOnce, KnownWay").len() == 2);
    assert!(old_words("doorbell, seating, at once").is_empty());
}

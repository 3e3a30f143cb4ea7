//! Environment variables.

use std::collections::BTreeSet;
use std::fs;

use super::{cell, code, compare, path, read, table};

/// A variable, the values it takes, its default, and what it does.
type Variable = (&'static str, &'static str, &'static str, &'static str);

/// The variables for users, in the order of the page.
const VARIABLES: [Variable; 16] = [
    (
        "VERBENA_DEVICES",
        "`NAME=roce:INTERFACE,...`, `NAME=iwarp:INTERFACE,...`",
        "one for each interface",
        "The devices that programs see.",
    ),
    ("VERBENA_SAME_HOST", "`on`, `off`, `ptracer`", "`on`", "How processes of one host exchange data."),
    (
        "VERBENA_LARGE_PAGES",
        "`on`, `off`",
        "`on`",
        "Whether memory that a registration brings in uses large pages.",
    ),
    (
        "VERBENA_CM_TIMEOUT",
        "0.1 to 3600",
        "78",
        "Seconds for which an unanswered connection request is repeated.",
    ),
    ("VERBENA_COUNTERS", "a file", "none", "The file to which counters are written at exit."),
    (
        "VERBENA_PORT_COUNTERS",
        "a directory",
        "none",
        "The devices whose port counters grow; `verbena run` sets it.",
    ),
    ("VERBENA_CAPTURE", "a socket", "none", "The collector of packets; `verbena run --capture` sets it."),
    ("VERBENA_CAPTURE_FILTER", "`qp=NUMBER`, `peer=ADDRESS`", "all", "Which packets the collector gets."),
    ("VERBENA_FAULTS", "rules", "none", "Rules for faults that are brought about."),
    ("VERBENA_FAULTS_SEED", "a number", "none", "The seed that decides about faults."),
    ("VERBENA_CHECK", "`on`, `error`", "none", "Tells what calls the manual pages do not allow."),
    ("VERBENA_CHECK_JSON", "a file", "none", "The file to which findings are appended."),
    ("VERBENA_CHECK_SUPPRESSIONS", "a file", "none", "The file that lists findings that are not told."),
    ("VERBENA_FABRIC", "a name", "the only one", "The fabric that `verbena fabric` and `--on` mean."),
    ("VERBENA_HOST", "a host", "none", "The host of a fabric; `verbena run --on` sets it."),
    ("VERBENA_LIBRARY", "a file", "found by search", "The shared object that `verbena run` loads."),
];

/// The variables of Verbena's own tests and build that a developer may set.
const TEST_VARIABLES: [(&str, &str); 8] = [
    ("VERBENA_SEED", "Runs seeded tests with this one seed and prints each packet."),
    ("VERBENA_SEEDS", "The number of seeds that each seeded test runs."),
    ("VERBENA_THOROUGH", "Set to anything, races are tried ten times as often; `./test` sets it."),
    ("VERBENA_RENEW", "`1` writes the generated parts of this guide's pages anew."),
    (
        "VERBENA_TEST_PROVIDER",
        "What tests of the Rust crates run over: `software`, `system` or `system:FILE`.",
    ),
    ("VERBENA_TEST_ADDRESS", "The IPv4 address that these tests use; by default 127.0.0.1."),
    ("VERBENA_TEST_DAX", "A directory on a file system mounted with `dax`, for one ignored test."),
    ("VERBENA_LINK_ADDRESS", "`any` builds the shared object without a preferred address."),
];

/// Variables that a test sets for the processes it starts; they are not for users.
const INTERNAL: [&str; 8] = [
    "VERBENA_TEST_AT",
    "VERBENA_TEST_DOES",
    "VERBENA_TEST_FILE",
    "VERBENA_TEST_KILLS",
    "VERBENA_TEST_NUMBER",
    "VERBENA_TEST_PROCESSES",
    "VERBENA_TEST_ROLE",
    "VERBENA_TEST_WRITER",
];

/// Sources that describe variables and do not read them. This file reads one.
const DESCRIBING: [&str; 2] = ["crates/cli/src/pages/variables.rs", "crates/cli/src/manual.rs"];

/// The names of variables that the sources have as strings.
fn variables_of_the_sources() -> BTreeSet<String> {
    let (mut names, mut folders) = (BTreeSet::from(["VERBENA_RENEW".to_owned()]), vec![path("crates")]);
    let describing = DESCRIBING.map(path);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder of the sources") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") && !describing.contains(&path) {
                let text = fs::read_to_string(&path).expect("a source");
                for rest in text.split("\"VERBENA_").skip(1) {
                    let end = rest.find(|c: char| !c.is_ascii_uppercase() && c != '_').unwrap_or(rest.len());
                    if rest[end..].starts_with('"') && end > 0 {
                        names.insert(format!("VERBENA_{}", &rest[..end]));
                    }
                }
            }
        }
    }
    names
}

#[test]
fn the_page_of_variables_has_each_variable_that_the_sources_read() {
    let named =
        VARIABLES.iter().map(|variable| variable.0).chain(TEST_VARIABLES.iter().map(|variable| variable.0));
    let named: BTreeSet<String> = named.chain(INTERNAL).map(str::to_owned).collect();
    assert_eq!(
        named,
        variables_of_the_sources(),
        "left the variables that crates/cli/src/pages.rs describes, right those that the sources name"
    );
    let page = read("guide/src/variables.md");
    for (name, ..) in VARIABLES {
        assert!(page.contains(&format!("\n### {name}\n")), "guide/src/variables.md has no section {name}");
    }
    let users = VARIABLES.iter().map(|(name, values, default, text)| {
        let link = format!("[`{name}`](#{})", name.to_lowercase());
        [link, (*values).to_owned(), (*default).to_owned(), cell(text)]
    });
    let tests = TEST_VARIABLES.iter().map(|(name, text)| [code(name), cell(text)]);
    compare(
        "variables.md",
        &[
            ("variables", table(["Variable", "Values", "Default", "Meaning"], users)),
            ("variables of tests", table(["Variable", "Meaning"], tests)),
        ],
    );
}

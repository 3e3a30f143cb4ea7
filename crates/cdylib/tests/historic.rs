//! docs/historic-bugs.md names tests that are there.

mod support;

use support::{has_test, quoted, read};

#[test]
fn every_test_that_the_table_of_historic_bugs_names_exists() {
    let document = read("docs/historic-bugs.md");
    let (bugs, scenarios) =
        document.split_once("| scenario |").expect("a table of bugs, then one of scenarios");
    let mut numbers = Vec::new();
    for line in bugs.lines().filter(|l| l.starts_with("| ")) {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let Ok(number) = cells[1].parse::<u32>() else { continue };
        let (mut source, mut tests) = (String::new(), 0);
        for word in quoted(cells[3]) {
            if word.ends_with(".rs") {
                source = read(word);
            } else {
                assert!(has_test(&source, word), "bug {number}: there is no test {word}");
                tests += 1;
            }
        }
        assert!(tests > 0, "bug {number} has no test");
        numbers.push(number);
    }
    assert!(numbers.starts_with(&(1..=25).collect::<Vec<_>>()));
    assert!(numbers.is_sorted_by(|a, b| a < b), "{numbers:?}");

    let mut lines = scenarios.lines();
    let files: Vec<String> = lines.next().into_iter().flat_map(quoted).map(read).collect();
    assert_eq!(files.len(), 2, "the heading names the file of each role");
    for line in lines.filter(|l| l.starts_with("| ")) {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        for (source, cell) in files.iter().zip(&cells[2..]) {
            for word in quoted(cell) {
                assert!(has_test(source, word), "{}: there is no test {word}", cells[1]);
            }
        }
        assert!(quoted(line).count() > 0, "{} has no test", cells[1]);
    }
}

//! The functions of symbols/hot.txt lie in front of the object's others. symbols/hot writes the
//! list anew where many have other names.

mod support;

use std::path::Path;

use object::{Object, ObjectSection, ObjectSymbol};

/// Whether these words are in a text, in their order.
fn are_in(words: &[&str], mut text: &str) -> bool {
    words.iter().all(|word| match text.split_once(word) {
        Some((_, rest)) => {
            text = rest;
            true
        }
        None => false,
    })
}

#[test]
fn nine_of_ten_hot_functions_lie_in_front() {
    let list = Path::new(env!("CARGO_MANIFEST_DIR")).join("symbols/hot.txt");
    let list = std::fs::read_to_string(list).expect("the list");
    let bytes = std::fs::read(support::object()).expect("the object");
    let file = object::File::parse(&*bytes).expect("an ELF file");
    let code = file.section_by_name(".text").expect("code");
    let middle = code.address() + code.size() / 2;
    let front = file.symbols().filter(|symbol| (code.address()..middle).contains(&symbol.address()));
    let front: Vec<&str> = front.filter_map(|symbol| symbol.name().ok()).collect();
    let hot: Vec<&str> = list.lines().filter(|line| !line.starts_with('#') && !line.is_empty()).collect();
    let is_there = |name: &&&str| {
        let words =
            name.split(|c: char| c != '_' && !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
        let words: Vec<&str> = words.collect();
        front.iter().any(|symbol| are_in(&words, symbol))
    };
    let missing: Vec<_> = hot.iter().filter(|name| !is_there(name)).collect();
    assert!(
        hot.len() > 100 && missing.len() * 10 < hot.len(),
        "other names (run symbols/hot), or a linker that orders nothing: {} of {}: {missing:?}",
        missing.len(),
        hot.len()
    );
}

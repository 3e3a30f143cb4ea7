//! Counters.

use std::collections::BTreeMap;

use super::{cell, code, compare, documented, read, table};

#[test]
fn the_page_of_counters_has_each_counter_with_its_meaning() {
    // What counts drops, and what counts all else.
    let fields = |file: &str| {
        let all = [": DropCounter,", ": AtomicU64,"].map(|end| documented(&read(file), "pub ", end));
        all.into_iter().flatten().collect::<BTreeMap<_, _>>()
    };
    let mut host = documented(&read("crates/linux/src/counters.rs"), "", ",");
    host.extend(documented(&read("crates/local/src/counters.rs"), "", ","));
    // That one is no field.
    let caught = "Panics in wakers and destructors of the Rust program, caught by Verbena.";
    host.insert("program_panics".to_owned(), caught.to_owned());
    let node = fields("crates/stack/src/dispatch.rs");
    let device = fields("crates/nic/src/device/adapter.rs");
    let part = |prefix: &str, names: &[(&'static str, u64)], docs: &BTreeMap<String, String>| {
        let rows = names.iter().map(|(name, _)| {
            let doc = docs.get(*name).filter(|doc| !doc.is_empty());
            let doc = doc.unwrap_or_else(|| panic!("the counter {prefix}.{name} has no doc comment"));
            [code(&format!("{prefix}.{name}")), cell(doc)]
        });
        table(["Counter", "Counts"], rows)
    };
    compare(
        "counters.md",
        &[
            ("host counters", part("host", &linux::Counters::default().snapshot(), &host)),
            ("node counters", part("node", &stack::Counters::default().snapshot(), &node)),
            ("device counters", part("DEVICE", &nic::device::Counters::default().snapshot(), &device)),
        ],
    );
}

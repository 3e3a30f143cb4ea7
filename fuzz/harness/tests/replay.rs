//! Each target over every input that was ever kept: the corpus, and what once failed
//! (`regressions`). No fuzzer is needed.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use harness::TARGETS;

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("fuzz/").join(name)
}

/// The names in a folder; none where there is no folder.
fn files(folder: &Path) -> BTreeSet<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

/// Runs a target on all its files, those that once failed first.
fn replay(target: &str) {
    let (_, run) = TARGETS.iter().find(|(name, _)| *name == target).expect("a target of the table");
    for kind in ["regressions", "corpus"] {
        for file in files(&folder(kind).join(target)) {
            println!("{}", file.display());
            run(&std::fs::read(&file).expect("a file of the repository"));
        }
    }
}

macro_rules! replays {
    ($($target:ident)*) => {
        const REPLAYED: &[&str] = &[$(stringify!($target)),*];
        $(
            #[test]
            fn $target() {
                replay(stringify!($target));
            }
        )*
    };
}

replays! {
    c_functions cm_engine cm_pair fabric_mads fpdu frames_flows icrc export_tables iwarp_pair mad mpa names net_file rc_engine rc_pair ring_records roce_packet rsockets tag_matching uc_ud xrc
}

#[test]
fn every_target_has_a_binary_a_corpus_and_a_test() {
    let names: Vec<&str> = TARGETS.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, REPLAYED);
    let manifest = std::fs::read_to_string(folder("Cargo.toml")).expect("fuzz/Cargo.toml");
    for name in &names {
        assert!(folder("fuzz_targets").join(format!("{name}.rs")).exists(), "{name} has no file of its own");
        assert!(manifest.contains(&format!("name = \"{name}\"")), "{name} is no binary");
        assert!(!files(&folder("corpus").join(name)).is_empty(), "{name} has no corpus");
    }
    for kind in ["corpus", "regressions"] {
        for path in files(&folder(kind)) {
            let known = path.file_name().is_some_and(|name| names.iter().any(|known| name == *known));
            assert!(known || path.extension().is_some(), "{} belongs to no target", path.display());
        }
    }
}

#[test]
fn a_corpus_stays_small() {
    for (name, _) in TARGETS {
        let files = files(&folder("corpus").join(name));
        let bytes: u64 = files.iter().filter_map(|file| file.metadata().ok()).map(|meta| meta.len()).sum();
        assert!(files.len() <= 200 && bytes <= 300 << 10, "{name}: {} files of {bytes} bytes", files.len());
    }
}

/// Bytes of no corpus: what is made of any bytes does not panic.
#[test]
fn every_target_takes_any_bytes() {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for (_, run) in TARGETS {
        for len in (0..1500).step_by(13) {
            let next = |_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state as u8
            };
            run(&(0..len).map(next).collect::<Vec<u8>>());
        }
    }
}

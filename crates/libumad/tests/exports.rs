//! What the object exports, read from the file and held against what Debian's libibumad exports.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use object::Endianness;
use object::elf::{FileHeader64, SHT_DYNSYM};
use object::read::elf::{FileHeader, Sym};

/// The object that cargo built beside this test.
fn object() -> PathBuf {
    let test = std::env::current_exe().expect("the test's own path");
    test.parent().expect("deps/").join("libverbena_umad.so")
}

/// Functions with their versions: `umad_init@IBUMAD_1.0`.
fn exported(path: &Path) -> Result<BTreeSet<String>, object::read::Error> {
    let file = std::fs::read(path).expect("the object");
    let header = FileHeader64::<Endianness>::parse(&file[..])?;
    let endian = header.endian()?;
    let sections = header.sections(endian, &file[..])?;
    let symbols = sections.symbols(endian, &file[..], SHT_DYNSYM)?;
    let versions = sections.versions(endian, &file[..])?.unwrap_or_default();
    let mut all = BTreeSet::new();
    for (index, symbol) in symbols.enumerate() {
        if symbol.is_undefined(endian) || symbol.is_local() {
            continue;
        }
        let name = String::from_utf8_lossy(symbol.name(endian, symbols.strings())?).into_owned();
        let node = versions.version(versions.version_index(endian, index).index())?;
        let node = node.map_or("no version".into(), |node| String::from_utf8_lossy(node.name()));
        // Some linkers define a symbol for each node, with the node's name.
        if name != node {
            all.insert(format!("{name}@{node}"));
        }
    }
    Ok(all)
}

fn listed() -> BTreeSet<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("symbols/umad.txt");
    let text = std::fs::read_to_string(path).expect("the list");
    let words =
        text.lines().filter(|line| !line.starts_with('#')).map(|line| line.split(' ').collect::<Vec<_>>());
    words.map(|words| format!("{}@IBUMAD_{}", words[0], words[1])).collect()
}

#[test]
fn nothing_but_the_list_is_exported_each_with_its_version() {
    assert_eq!(exported(&object()).expect("an ELF file"), listed());
}

#[test]
fn all_that_debians_library_exports_is_there_with_the_same_version() {
    let path = Path::new("/usr/lib/x86_64-linux-gnu/libibumad.so.3");
    if !path.exists() {
        println!("left out: libibumad3 is not installed");
        return;
    }
    let missing: Vec<_> = exported(path).expect("an ELF file").difference(&listed()).cloned().collect();
    assert!(missing.is_empty(), "{missing:?}");
}

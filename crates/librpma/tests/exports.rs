//! What the object exports, asked of the dynamic loader itself, read from the file, and held
//! against what Debian's librpma exports.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString, c_char, c_int};
use std::path::{Path, PathBuf};

use object::Endianness;
use object::elf::{FileHeader64, SHT_DYNSYM};
use object::read::elf::{FileHeader, Sym};

const NODE: &str = "LIBRPMA_1.0";

/// The object that cargo built beside this test.
fn object() -> PathBuf {
    let test = std::env::current_exe().expect("the test's own path");
    test.parent().expect("deps/").join("libverbena_rpma.so")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).expect(path)
}

/// The functions of the list.
fn listed() -> BTreeSet<String> {
    let text = read("symbols/rpma.txt");
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| line.split(' ').next().expect("a word").to_owned()).collect()
}

fn c(s: &str) -> CString {
    CString::new(s).expect("no zero byte inside")
}

#[test]
fn the_list_is_what_debians_library_exports() {
    let text = read("../../conformance/golden/rpma-abi.txt");
    let symbols = text.lines().filter_map(|line| line.strip_prefix("symbol ")?.strip_suffix("@@LIBRPMA_1.0"));
    assert_eq!(symbols.map(str::to_owned).collect::<BTreeSet<_>>(), listed());
}

#[test]
fn nothing_but_the_list_is_exported_and_all_with_the_one_version() {
    let file = std::fs::read(object()).expect("the object");
    let exported = || -> Result<BTreeSet<String>, object::read::Error> {
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
            let name = symbol.name(endian, symbols.strings())?;
            let node = versions.version(versions.version_index(endian, index).index())?;
            let node = node.map_or(&b"no version"[..], |node| node.name());
            // Some linkers define a symbol for each node, with the node's name.
            if name != node {
                assert_eq!(node, NODE.as_bytes(), "{}", String::from_utf8_lossy(name));
                all.insert(String::from_utf8_lossy(name).into_owned());
            }
        }
        Ok(all)
    };
    assert_eq!(exported().expect("an ELF file"), listed());
}

#[test]
fn the_loader_finds_each_and_they_answer_where_no_other_library_is_needed() {
    let path = c(object().to_str().expect("a path in UTF-8"));
    // SAFETY: the object has no constructors of its own; the string ends with a zero byte.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    assert!(!handle.is_null(), "{path:?} does not load");
    let address = |symbol: &str| {
        // SAFETY: the handle is open, both strings end with a zero byte.
        unsafe { libc::dlvsym(handle, c(symbol).as_ptr(), c(NODE).as_ptr()) }
    };
    let missing: Vec<_> = listed().into_iter().filter(|symbol| address(symbol).is_null()).collect();
    assert!(missing.is_empty(), "not found: {missing:?}");
    type Text = unsafe extern "C" fn(c_int) -> *const c_char;
    // SAFETY: the function has this type (librpma.h), and gives a string that stays.
    let text = unsafe {
        CStr::from_ptr(std::mem::transmute::<*mut libc::c_void, Text>(address("rpma_err_2str"))(-100_003))
    };
    assert_eq!(text, c"Out of memory");
    type New = unsafe extern "C" fn(*mut libc::c_void, *mut *mut libc::c_void) -> c_int;
    // SAFETY: likewise; NULL is refused.
    let new = unsafe { std::mem::transmute::<*mut libc::c_void, New>(address("rpma_peer_new")) };
    // SAFETY: likewise.
    assert_eq!(unsafe { new(std::ptr::null_mut(), std::ptr::null_mut()) }, -100_004);
}

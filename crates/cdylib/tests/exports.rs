//! What the shared object exports, asked of the dynamic loader itself and read from the file, and
//! how much of it is not built yet.

mod support;

use std::collections::BTreeSet;
use std::ffi::CString;
use std::path::Path;

use object::Endianness;
use object::elf::{FileHeader64, SHT_DYNSYM};
use object::read::elf::{FileHeader, Sym};

/// How many lines of symbols/unsupported.txt there may be. The number may only fall: lower it with
/// every function built.
const UNSUPPORTED_AT_MOST: usize = 89;

/// The lines of a list in symbols/, without comments, split at spaces.
fn list(name: &str) -> Vec<Vec<String>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("symbols").join(name);
    let text = std::fs::read_to_string(&path).expect("a list of symbols/");
    let lines = text.lines().filter(|l| !l.starts_with('#') && !l.is_empty());
    lines.map(|l| l.split_whitespace().map(str::to_owned).collect()).collect()
}

fn c(s: &str) -> CString {
    CString::new(s).expect("no zero byte inside")
}

#[test]
fn every_symbol_of_the_lists_is_found_under_its_version() {
    let path = c(support::object().to_str().expect("a path in UTF-8"));
    // SAFETY: the object's constructors are Rust's own; the string ends with a zero byte.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    assert!(!handle.is_null(), "{path:?} does not load");
    let mut missing = Vec::new();
    for line in ["ibverbs.txt", "rdmacm.txt", "signals.txt"].into_iter().flat_map(list) {
        let (symbol, node) = (c(&line[0]), c(&line[1]));
        // SAFETY: the handle is open, both strings end with a zero byte; the address is only
        // compared.
        let address = unsafe { libc::dlvsym(handle, symbol.as_ptr(), node.as_ptr()) };
        if address.is_null() {
            missing.push(line.join("@"));
        }
    }
    assert!(missing.is_empty(), "not exported: {}", missing.join(" "));
}

/// perftest is linked to libmlx5, which wants the private node of the libibverbs it was built with:
/// without it no program of the package starts. Debian 12 and 13 have 34, to which 13's release
/// added functions.
#[test]
fn providers_of_every_release_since_2021_find_their_private_node() {
    let listed: BTreeSet<String> = list("ibverbs.txt").into_iter().map(|line| line.join(" ")).collect();
    for number in [34, 57, 59, 64, 65] {
        let symbol = format!("verbs_register_driver_{number} IBVERBS_PRIVATE_{number}");
        assert!(listed.contains(&symbol), "{symbol}");
    }
    assert!(listed.contains("ibv_cmd_create_cq_ex2 IBVERBS_PRIVATE_34"), "of v56, Debian 13");
}

/// The symbols that a file defines for others, as the lists have them: "symbol node".
fn exported(file: &[u8]) -> Result<BTreeSet<String>, object::read::Error> {
    let header = FileHeader64::<Endianness>::parse(file)?;
    let endian = header.endian()?;
    let sections = header.sections(endian, file)?;
    let symbols = sections.symbols(endian, file, SHT_DYNSYM)?;
    let versions = sections.versions(endian, file)?.unwrap_or_default();
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
            all.insert(format!("{} {}", String::from_utf8_lossy(name), String::from_utf8_lossy(node)));
        }
    }
    Ok(all)
}

#[test]
fn nothing_but_the_symbols_of_the_lists_is_exported() {
    let listed = ["ibverbs.txt", "rdmacm.txt", "signals.txt"].into_iter().flat_map(list);
    let listed: BTreeSet<String> = listed.map(|line| line.join(" ")).collect();
    let file = std::fs::read(support::object()).expect("the object");
    let exported = exported(&file).expect("an ELF file");
    let beyond: Vec<_> = exported.difference(&listed).collect();
    assert!(beyond.is_empty(), "exported, and in no list: {beyond:#?}");
    assert_eq!(exported.len(), listed.len(), "the other test says what is missing");
}

#[test]
fn the_number_of_unsupported_functions_only_falls() {
    let unsupported = list("unsupported.txt").len();
    println!("{unsupported} exported functions are unsupported, {} are built", list("built.txt").len());
    assert!(
        unsupported <= UNSUPPORTED_AT_MOST,
        "{unsupported} exported functions are unsupported, {UNSUPPORTED_AT_MOST} were"
    );
}

#[test]
fn an_unsupported_function_fails_as_its_man_page_says() {
    let path = c(support::object().to_str().expect("a path in UTF-8"));
    // SAFETY: as above.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    let call = |symbol: &str, node: &str| -> (isize, i32) {
        let (symbol, node) = (c(symbol), c(node));
        // SAFETY: the handle is open, both strings end with a zero byte.
        let address = unsafe { libc::dlvsym(handle, symbol.as_ptr(), node.as_ptr()) };
        assert!(!address.is_null(), "{symbol:?} is missing");
        // SAFETY: an unsupported function takes no arguments and returns at most 64 bits; errno is
        // this thread's own.
        unsafe {
            *libc::__errno_location() = 0;
            let f: extern "C" fn() -> isize = std::mem::transmute(address);
            (f(), *libc::__errno_location())
        }
    };
    // What provider libraries call is never built: no adapter of the kernel is shown here.
    assert_eq!(call("_verbs_init_and_alloc_context", "IBVERBS_PRIVATE_34"), (0, libc::EOPNOTSUPP));
    assert_eq!(call("ibv_cmd_poll_cq", "IBVERBS_PRIVATE_34"), (-1, libc::EOPNOTSUPP));
    assert_eq!(call("ibv_cmd_alloc_pd", "IBVERBS_PRIVATE_34").0, libc::EOPNOTSUPP as isize);
}

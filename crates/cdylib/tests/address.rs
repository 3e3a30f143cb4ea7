//! On x86-64 every process has the object at one address, where that is free ([`ADDRESS`] of
//! build.rs).
#![cfg(target_arch = "x86_64")]

mod support;

use std::ffi::CStr;
use std::path::Path;
use std::process::Command;

use object::{Object, ObjectSegment};

/// As in build.rs.
const ADDRESS: u64 = 0x5500_0000_0000;

/// The address at which a new process has a file.
fn address_in_a_process(file: &Path) -> u64 {
    let maps = Command::new("cat").arg("/proc/self/maps").env("LD_PRELOAD", file).output().expect("cat runs");
    let maps = String::from_utf8(maps.stdout).expect("text");
    let name = file.to_str().expect("a path in UTF-8");
    let line = maps.lines().find(|line| line.ends_with(name)).expect("the object is loaded");
    u64::from_str_radix(line.split('-').next().expect("a range"), 16).expect("an address")
}

/// Whether the loader looks at what an object asks for, whatever the program is.
fn loader_asks() -> bool {
    // SAFETY: it returns a string that stays.
    let version = unsafe { CStr::from_ptr(libc::gnu_get_libc_version()) }.to_str().expect("a version");
    version.split('.').filter_map(|n| n.parse::<u32>().ok()).ge([2, 36])
}

#[test]
fn every_process_has_the_object_at_one_address() {
    if std::env::var("VERBENA_LINK_ADDRESS").is_ok_and(|address| address == "any") {
        return;
    }
    let path = support::object();
    let bytes = std::fs::read(&path).expect("the object");
    let file = object::File::parse(&*bytes).expect("an ELF file");
    let lowest = file.segments().map(|segment| segment.address()).min();
    assert_eq!(lowest, Some(ADDRESS), "a linker that gives no address");
    if loader_asks() {
        let found: Vec<u64> = (0..3).map(|_| address_in_a_process(&path)).collect();
        assert_eq!(found, [ADDRESS; 3]);
    }
}

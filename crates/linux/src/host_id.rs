//! What makes this host and network namespace unlike all others.

use std::os::unix::fs::MetadataExt;

/// 40 bits from the boot id (random, made by the kernel at each boot) and the inode of the network
/// namespace: the same for all processes that share addresses.
pub(crate) fn host_id() -> u64 {
    // Where /proc is not mounted every host of that kind is the same, which a user of GUIDs must
    // bear.
    let boot = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let namespace = std::fs::metadata("/proc/thread-self/ns/net").map_or(0, |metadata| metadata.ino());
    let bytes = boot.trim_ascii().iter().copied().chain(namespace.to_le_bytes());
    let hash = bytes.fold(0, |hash, byte| mix(hash ^ u64::from(byte)));
    hash >> 24
}

/// The step of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators,
/// OOPSLA 2014).
fn mix(state: u64) -> u64 {
    let mut z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

//! What a peer says of itself to the peers that write to it (rpma_peer_cfg_new(3)), and its
//! descriptor:
//!
//! | byte | what |
//! |---|---|
//! | 0 | whether writes reach persistent memory directly: 0, or anything else |
//! | 1 | absent in upstream's; bit 0: FLUSH is executed, bit 1: ATOMIC WRITE is |
//!
//! Upstream reads the first byte and ignores others, so either side understands the other's. crate
//! `rpma` has the same descriptor.
//!
//! A configuration is of no peer in C. What the second byte says is that of the process's peers:
//! what the devices of all of them do, as it was when the configuration was made. A program asks
//! for the size and then for the bytes, and the one must stay true. Of more than two bytes only the
//! first is looked at, as upstream takes a whole buffer for a descriptor.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use crate::codes::{Result, answer, require};
use crate::object::{end, make, of, put, take};

/// FLUSH is executed, both types.
pub const FLUSH: u8 = 1;
/// ATOMIC WRITE is executed.
pub const ATOMIC_WRITE: u8 = 2;

/// No peer was made yet: nothing is said, and the first says what it has.
const NO_PEER: u8 = 0x80;

/// What all peers of the process execute.
static EXECUTED: AtomicU8 = AtomicU8::new(NO_PEER | FLUSH | ATOMIC_WRITE);

/// A peer of the process executes this, and nothing else.
pub fn executes(native: u8) {
    EXECUTED.fetch_and(native & (FLUSH | ATOMIC_WRITE), Ordering::Relaxed);
}

/// Memory of the process is registered for a flush that the device does not execute on it: peers
/// flush it by a READ.
pub fn does_not_flush() {
    EXECUTED.fetch_and(!FLUSH, Ordering::Relaxed);
}

fn executed() -> u8 {
    match EXECUTED.load(Ordering::Relaxed) {
        all if all & NO_PEER != 0 => 0,
        all => all,
    }
}

/// `struct rpma_peer_cfg`.
pub struct PeerCfg {
    direct_write_to_pmem: AtomicBool,
    native: u8,
    /// Whether it came as a descriptor. Programs also apply a configuration of their own to a
    /// connection, for a peer that has sent none: what this process executes says nothing of
    /// that one.
    heard: bool,
}

impl PeerCfg {
    /// Whether writes reach persistent memory directly.
    pub fn direct_write(&self) -> bool {
        self.direct_write_to_pmem.load(Ordering::Relaxed)
    }
    /// What the other side has said that it executes: [`FLUSH`], [`ATOMIC_WRITE`].
    pub fn native(&self) -> u8 {
        if self.heard { self.native } else { 0 }
    }
    fn size(&self) -> usize {
        if self.native == 0 { 1 } else { 2 }
    }
}

fn new(direct: bool, native: u8, heard: bool) -> Result<*mut PeerCfg> {
    make(PeerCfg { direct_write_to_pmem: AtomicBool::new(direct), native, heard })
}

/// rpma_peer_cfg_new(3).
pub unsafe extern "C" fn rpma_peer_cfg_new(pcfg: *mut *mut PeerCfg) -> c_int {
    // SAFETY: the crate's contract.
    answer(
        require(!pcfg.is_null())
            .and_then(|()| new(false, executed(), false))
            .and_then(|new| unsafe { put(pcfg, new) }),
    )
}

/// rpma_peer_cfg_delete(3).
pub unsafe extern "C" fn rpma_peer_cfg_delete(pcfg: *mut *mut PeerCfg) -> c_int {
    // SAFETY: the crate's contract.
    answer(unsafe { take(pcfg) }.map(|pcfg| {
        if !pcfg.is_null() {
            // SAFETY: likewise.
            unsafe { end(pcfg) }
        }
    }))
}

/// rpma_peer_cfg_set_direct_write_to_pmem(3).
pub unsafe extern "C" fn rpma_peer_cfg_set_direct_write_to_pmem(
    pcfg: *mut PeerCfg,
    supported: bool,
) -> c_int {
    // SAFETY: the crate's contract.
    answer(unsafe { of(pcfg) }.map(|pcfg| pcfg.direct_write_to_pmem.store(supported, Ordering::Relaxed)))
}

/// rpma_peer_cfg_get_direct_write_to_pmem(3).
pub unsafe extern "C" fn rpma_peer_cfg_get_direct_write_to_pmem(
    pcfg: *const PeerCfg,
    supported: *mut bool,
) -> c_int {
    // SAFETY: the crate's contract.
    answer(unsafe { of(pcfg).and_then(|pcfg| put(supported, pcfg.direct_write())) })
}

/// rpma_peer_cfg_get_descriptor(3).
pub unsafe extern "C" fn rpma_peer_cfg_get_descriptor(pcfg: *const PeerCfg, desc: *mut c_void) -> c_int {
    // SAFETY: the crate's contract; there is room for as many bytes as the size says.
    answer(unsafe { of(pcfg) }.and_then(|pcfg| unsafe {
        let desc = desc.cast::<u8>();
        put(desc, u8::from(pcfg.direct_write()))?;
        if pcfg.size() > 1 { put(desc.wrapping_add(1), pcfg.native) } else { Ok(()) }
    }))
}

/// rpma_peer_cfg_get_descriptor_size(3).
pub unsafe extern "C" fn rpma_peer_cfg_get_descriptor_size(pcfg: *const PeerCfg, size: *mut usize) -> c_int {
    // SAFETY: the crate's contract.
    answer(unsafe { of(pcfg).and_then(|pcfg| put(size, pcfg.size())) })
}

/// rpma_peer_cfg_from_descriptor(3).
pub unsafe extern "C" fn rpma_peer_cfg_from_descriptor(
    desc: *const c_void,
    size: usize,
    pcfg: *mut *mut PeerCfg,
) -> c_int {
    let read = || {
        require(!desc.is_null() && !pcfg.is_null() && size > 0)?;
        let desc = desc.cast::<u8>();
        // SAFETY: so many bytes are there, by the crate's contract.
        let (direct, native) =
            unsafe { (desc.read() != 0, if size == 2 { desc.wrapping_add(1).read() } else { 0 }) };
        let new = new(direct, native & (FLUSH | ATOMIC_WRITE), true)?;
        // SAFETY: the crate's contract.
        unsafe { put(pcfg, new) }
    };
    answer(read())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn descriptor(cfg: *const PeerCfg) -> Vec<u8> {
        let (mut size, mut bytes) = (0, [0xee_u8; 8]);
        // SAFETY: a configuration; room for its size, and for its bytes.
        let results = unsafe {
            [
                rpma_peer_cfg_get_descriptor_size(cfg, &raw mut size),
                rpma_peer_cfg_get_descriptor(cfg, bytes.as_mut_ptr().cast()),
            ]
        };
        assert_eq!(results, [0, 0]);
        assert_eq!(bytes[size], 0xee, "no byte beyond the size");
        bytes[..size].to_vec()
    }

    fn from(bytes: &[u8]) -> *mut PeerCfg {
        let mut cfg = std::ptr::null_mut();
        // SAFETY: so many bytes; room for a pointer.
        let result =
            unsafe { rpma_peer_cfg_from_descriptor(bytes.as_ptr().cast(), bytes.len(), &raw mut cfg) };
        assert_eq!(result, 0);
        cfg
    }

    fn of_process() -> *mut PeerCfg {
        let mut cfg = std::ptr::null_mut();
        // SAFETY: room for a pointer.
        assert_eq!(unsafe { rpma_peer_cfg_new(&raw mut cfg) }, 0);
        cfg
    }

    #[test]
    fn a_configuration_says_what_all_devices_of_the_process_execute() {
        let before = of_process();
        assert_eq!(descriptor(before), [0], "no peer yet");
        executes(FLUSH | ATOMIC_WRITE);
        assert_eq!(descriptor(of_process()), [0, 3]);
        // SAFETY: a configuration.
        assert_eq!(unsafe { &*of_process() }.native(), 0, "nothing of the other side, where it is applied");
        assert_eq!(descriptor(before), [0], "what was made is as it was");
        does_not_flush();
        assert_eq!(descriptor(of_process()), [0, 2]);
        executes(0);
        executes(FLUSH | ATOMIC_WRITE);
        assert_eq!(descriptor(of_process()), [0], "one of them does not");
    }

    #[test]
    fn a_second_byte_counts_where_there_are_two() {
        assert_eq!(descriptor(from(&[0x80])), [1]);
        assert_eq!(descriptor(from(&[1, 0xff])), [1, 3]);
        // SAFETY: a configuration.
        assert_eq!(unsafe { &*from(&[0, 2]) }.native(), ATOMIC_WRITE);
        assert_eq!(descriptor(from(&[0, 3, 0])), [0], "a buffer that begins with a descriptor");
    }
}

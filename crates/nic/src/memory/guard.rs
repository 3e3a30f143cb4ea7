//! Copies that fail where memory faults. A program may unmap registered memory, or take the right
//! to write away; an adapter would find that out in its page tables, and so do we: the few
//! instructions that touch registered memory lie in one range of code, and a handler for SIGSEGV
//! and SIGBUS (`handler`) lets those that fault there return an error.
//!
//! Where the program has replaced the handler behind our back, copies go by `process_vm_readv` and
//! `process_vm_writev` to ourselves, which report bad addresses by themselves (about a microsecond
//! each).

#[cfg_attr(miri, allow(dead_code, reason = "its instructions are not Miri's"))]
mod code;
pub(crate) mod granted;
pub(crate) mod handler;
#[cfg(miri)]
mod interpreted;
mod lines;
mod system;

use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, Ordering, fence};

#[cfg(not(miri))]
use code::*;
use handler::is_replaced;
pub(super) use lines::{write_back, writes_back};
use system::{crawl, probe};
use transport::op::{AtomicOp, Fault};
use wire::icrc::{PAGE, Remainder};
#[cfg(miri)]
use {
    code::{verbena_guarded_begin, verbena_guarded_end, verbena_guarded_fault, verbena_guarded_write_back},
    interpreted::*,
};

/// Copies `len` bytes.
///
/// # Safety
///
/// `from` and `to` do not overlap. One of them is memory of ours; the other is an address range
/// that the program has registered, whatever lies there now.
#[inline(always)]
pub(super) unsafe fn copy(to: *mut u8, from: *const u8, len: usize) -> Result<(), Fault> {
    if is_replaced() {
        return crawl(to, from, len);
    }
    // SAFETY: as the caller says.
    unsafe { copy_watched(to, from, len) }
}

/// Like [`copy`], where the handler is in place.
///
/// # Safety
///
/// As for [`copy`].
#[inline(always)]
unsafe fn copy_watched(to: *mut u8, from: *const u8, len: usize) -> Result<(), Fault> {
    // SAFETY: as the caller says; what faults comes back as an error. The wide one has copied whole
    // blocks, none more than there are.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        if len >= LONG && is_wide() {
            let blocks = len & !(BLOCK - 1);
            result(verbena_guarded_wide(to, from, blocks))?;
            return result(verbena_guarded_copy(to.add(blocks), from.add(blocks), len - blocks));
        }
        result(verbena_guarded_copy(to, from, len))
    }
}

/// Copies `len` bytes of our own, and then stores the eight after them at once.
///
/// # Safety
///
/// As for [`copy`], of eight bytes more; where those go is aligned.
#[inline(always)]
pub(super) unsafe fn copy_and_store(to: *mut u8, from: *const u8, len: usize) -> Result<(), Fault> {
    // SAFETY: as the caller says.
    unsafe {
        let (last, value) = (to.add(len).cast::<u64>(), from.add(len).cast::<u64>());
        if is_replaced() {
            crawl(to, from, len)?;
            return crawl(last.cast(), value.cast(), 8);
        }
        copy_watched(to, from, len)?;
        fence(Ordering::Release);
        result(verbena_guarded_store(last, value.read_unaligned()))
    }
}

/// Like [`copy`], to memory that another process reads and writes. In a long store the processor's
/// string instruction need not fetch the lines that it fills from the other process's cache.
///
/// # Safety
///
/// As for [`copy`].
#[inline]
pub(super) unsafe fn copy_shared(to: *mut u8, from: *const u8, len: usize) -> Result<(), Fault> {
    #[cfg(target_arch = "x86_64")]
    if len >= LONG && !is_replaced() && !string_is_slow(to, from) {
        // SAFETY: as the caller says; the direction flag is clear, as the ABI has it.
        return result(unsafe { verbena_guarded_string(to, from, len) });
    }
    // SAFETY: as the caller says.
    unsafe { copy(to, from, len) }
}

/// Whether the processor's string instruction for bytes is slow between these places: AMD's takes
/// fifteen times as long where the destination lies 1 to 15 bytes behind the source in their pages
/// (seen on Zen 4, known of Zen 3).
#[cfg(target_arch = "x86_64")]
#[inline]
pub(super) fn string_is_slow(to: *const u8, from: *const u8) -> bool {
    (1..16).contains(&(to.addr().wrapping_sub(from.addr()) % 4096))
}

/// What the loops over 512-bit registers copy at once, and from how many bytes on they are used.
#[cfg(target_arch = "x86_64")]
const BLOCK: usize = 256;
#[cfg(target_arch = "x86_64")]
const LONG: usize = 1024;

/// Whether the processor has such registers, and multiplies polynomials in them; those that do, do
/// not pay for it with their clock.
#[cfg(target_arch = "x86_64")]
#[inline]
fn is_wide() -> bool {
    std::arch::is_x86_feature_detected!("avx512f") && std::arch::is_x86_feature_detected!("vpclmulqdq")
}

/// Copies [`PAGE`] bytes; and says what they add to an ICRC, where the processor finds that out on
/// the way.
///
/// # Safety
///
/// As for [`copy`].
#[inline]
pub(super) unsafe fn copy_page(to: *mut u8, from: *const u8) -> Result<Option<Remainder>, Fault> {
    #[cfg(target_arch = "x86_64")]
    if !is_replaced() && is_wide() {
        let mut rest = [0; 64];
        // SAFETY: as the caller says; the processor has the instructions; a page is blocks; `rest`
        // and the keys are as long as is said there.
        result(unsafe { verbena_guarded_fold(to, from, PAGE, rest.as_mut_ptr(), KEYS.as_ptr()) })?;
        return Ok(Some(Remainder::of(&rest)));
    }
    // SAFETY: as the caller says.
    unsafe { copy(to, from, PAGE) }.map(|()| None)
}

/// x^(d + 32) and x^(d - 32) modulo the polynomial of CRC-32, their bits reversed in 33, for a
/// distance d of 256 bytes, then for one of 64.
#[cfg(target_arch = "x86_64")]
static KEYS: [u64; 4] = [0x1_1542_778a, 0x1_322d_1430, 0x1_5444_2bd4, 0x1_c6e4_1596];

/// What an atomic does to eight bytes.
#[derive(Clone, Copy)]
pub(super) enum Change {
    Swap(u64),
    Add(u64),
    CompareSwap { compare: u64, swap: u64 },
}

impl From<AtomicOp> for Change {
    fn from(op: AtomicOp) -> Self {
        match op {
            AtomicOp::CompareSwap { compare, swap } => Self::CompareSwap { compare, swap },
            AtomicOp::FetchAdd(more) => Self::Add(more),
            AtomicOp::Write(value) => Self::Swap(value),
        }
    }
}

/// Changes eight aligned bytes atomically, also for the program's own atomics; what was there
/// before.
///
/// # Safety
///
/// `at` is aligned and lies in a range that the program has registered.
pub(super) unsafe fn change(at: *mut u64, change: Change) -> Result<u64, Fault> {
    if is_replaced() {
        // Only the program's own threads can still take the page away between this and the access.
        probe(at)?;
        // SAFETY: aligned, and mapped for writing a moment ago.
        let cell = unsafe { AtomicU64::from_ptr(at) };
        return Ok(match change {
            Change::Swap(value) => cell.swap(value, Ordering::AcqRel),
            Change::Add(value) => cell.fetch_add(value, Ordering::AcqRel),
            Change::CompareSwap { compare, swap } => cell
                .compare_exchange(compare, swap, Ordering::AcqRel, Ordering::Acquire)
                .unwrap_or_else(|seen| seen),
        });
    }
    let mut before = 0;
    // SAFETY: as for `copy`; `before` is ours.
    result(unsafe {
        match change {
            Change::Swap(value) => verbena_guarded_swap(at, value, &raw mut before),
            Change::Add(value) => verbena_guarded_add(at, value, &raw mut before),
            Change::CompareSwap { compare, swap } => {
                verbena_guarded_compare_swap(at, compare, swap, &raw mut before)
            }
        }
    })?;
    Ok(before)
}

#[inline]
fn result(code: c_int) -> Result<(), Fault> {
    if code == 0 { Ok(()) } else { Err(Fault::Unmapped) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_bytes_are_copied_as_are_asked_for_wherever_they_lie() {
        let from: Vec<u8> = (0..400_u32).map(|n| (n * 7 + 1) as u8).collect();
        for len in 0..300 {
            for (at, to_at) in [(0, 0), (1, 8), (7, 3), (16, 16)] {
                let mut to = vec![0; 400];
                // SAFETY: both are longer.
                unsafe { copy(to.as_mut_ptr().add(to_at), from.as_ptr().add(at), len) }.unwrap();
                assert_eq!(to[to_at..to_at + len], from[at..at + len]);
                assert!(to[..to_at].iter().chain(&to[to_at + len..]).all(|byte| *byte == 0), "{len}");
            }
        }
    }

    #[test]
    fn a_long_copy_to_shared_memory_stores_the_same_bytes_and_changes_nothing_beside_them() {
        let from: Vec<u8> = (0..6000_u32).map(|n| (n * 7 + 1) as u8).collect();
        for len in [1023, 1024, 1025, 2048, 4095, 5000] {
            for (at, to_at) in [(0, 64), (1, 64), (63, 8), (8, 9)] {
                let mut to = vec![0; 8192];
                // SAFETY: both are longer.
                unsafe { copy_shared(to.as_mut_ptr().add(to_at), from.as_ptr().add(at), len) }.unwrap();
                assert_eq!(to[to_at..to_at + len], from[at..at + len]);
                assert!(to[..to_at].iter().chain(&to[to_at + len..]).all(|byte| *byte == 0), "{len}");
            }
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "nothing faults there")]
    fn a_long_copy_to_shared_memory_that_faults_is_an_error() {
        handler::install();
        let mut bytes = vec![0_u8; 2048];
        // SAFETY: nothing is mapped at either place that the copy faults at.
        unsafe {
            let here = bytes.as_mut_ptr();
            assert_eq!(copy_shared(here, std::ptr::without_provenance(64), 2048), Err(Fault::Unmapped));
            assert_eq!(copy_shared(std::ptr::without_provenance_mut(64), here, 2048), Err(Fault::Unmapped));
        }
    }

    #[test]
    fn a_word_is_stored_behind_what_is_copied() {
        let from: Vec<u8> = (1..=248).collect();
        for len in (0..240).step_by(8) {
            let mut to = [0_u64; 40];
            // SAFETY: both are longer, and words are aligned.
            unsafe { copy_and_store(to.as_mut_ptr().cast(), from.as_ptr(), len) }.unwrap();
            let bytes: Vec<u8> = to.iter().flat_map(|word| word.to_ne_bytes()).collect();
            assert_eq!(bytes[..len + 8], from[..len + 8]);
            assert!(bytes[len + 8..].iter().all(|byte| *byte == 0));
        }
    }
}

//! How this processor writes cache lines back to memory, for memory that is persistent itself
//! (mmap(2), MAP_SYNC).
//!
//! | processor | instruction |
//! |---|---|
//! | x86-64 | clwb where there is one, else clflushopt, else clflush; then sfence |
//! | aarch64 with FEAT_DPB | dc cvap; then dsb |
//! | other | none: msync(2) |

use std::sync::atomic::{AtomicU64, Ordering};

use transport::op::Fault;

use super::{is_replaced, result, verbena_guarded_write_back};

/// What to write back, and by what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lines {
    /// Bytes of a line, a power of two.
    pub size: u64,
    pub instruction: Instruction,
}

/// As the assembly of `guard` numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "other processors have one"))]
pub(super) enum Instruction {
    Clflush = 1,
    Clflushopt = 2,
    Clwb = 3,
}

/// Whether this processor can write cache lines back to memory that is persistent.
pub(crate) fn writes_back() -> bool {
    how().is_some()
}

/// Writes back the cache lines of `len` bytes, and waits until they are there. `false` where that
/// is for a system call.
///
/// # Safety
///
/// The bytes lie in a range that the program has registered.
pub(crate) unsafe fn write_back(at: u64, len: u64) -> Result<bool, Fault> {
    let Some(lines) = how().filter(|_| !is_replaced()) else { return Ok(false) };
    let first = at & !(lines.size - 1);
    // SAFETY: as for `copy`; lines that the range has a part of lie in its pages.
    result(unsafe { verbena_guarded_write_back(first, at + len, lines.size, lines.instruction as u64) })?;
    Ok(true)
}

/// Asked once: cpuid leaves a virtual machine.
pub(super) fn how() -> Option<Lines> {
    /// 0: not asked yet; 1: none; else the size times four and the instruction.
    static FOUND: AtomicU64 = AtomicU64::new(0);
    let known = FOUND.load(Ordering::Relaxed);
    if known != 0 {
        return decode(known);
    }
    let found = ask();
    FOUND.store(encode(found), Ordering::Relaxed);
    found
}

fn encode(lines: Option<Lines>) -> u64 {
    lines.map_or(1, |lines| lines.size << 2 | lines.instruction as u64)
}

fn decode(number: u64) -> Option<Lines> {
    let instruction = match number & 3 {
        1 => Instruction::Clflush,
        2 => Instruction::Clflushopt,
        _ => Instruction::Clwb,
    };
    let size = number >> 2;
    (size != 0).then_some(Lines { size, instruction })
}

#[cfg(target_arch = "x86_64")]
fn ask() -> Option<Lines> {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    // Each x86-64 has leaf 1. Its EBX has the line's size in bits 8 to 15, in units of 8 bytes
    // (Intel SDM, CPUID).
    let (first, last) = (__cpuid(1), __cpuid(0).eax);
    let size = u64::from(first.ebx >> 8 & 0xff) * 8;
    let features = if last >= 7 { __cpuid_count(7, 0).ebx } else { 0 };
    let instruction = match (features >> 24 & 1, features >> 23 & 1) {
        (1, _) => Instruction::Clwb,
        (_, 1) => Instruction::Clflushopt,
        _ => Instruction::Clflush,
    };
    size.is_power_of_two().then_some(Lines { size, instruction })
}

#[cfg(target_arch = "aarch64")]
fn ask() -> Option<Lines> {
    // SAFETY: asks for a word.
    let has = unsafe { libc::getauxval(libc::AT_HWCAP) } & libc::HWCAP_DCPOP != 0;
    let kind: u64;
    // SAFETY: programs may read this register; the kernel does it for them where they may not.
    unsafe { std::arch::asm!("mrs {}, ctr_el0", out(reg) kind, options(nomem, nostack)) };
    // DminLine: the logarithm of the smallest line, in words of 4 bytes.
    has.then_some(Lines { size: 4 << (kind >> 16 & 0xf), instruction: Instruction::Clwb })
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn ask() -> Option<Lines> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_found_is_found_again() {
        assert_eq!(how(), how());
        assert_eq!(decode(encode(None)), None);
        for instruction in [Instruction::Clflush, Instruction::Clflushopt, Instruction::Clwb] {
            let lines = Some(Lines { size: 64, instruction });
            assert_eq!(decode(encode(lines)), lines);
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn each_instruction_that_there_is_writes_lines_back() {
        let best = how().unwrap();
        let bytes = [7_u8; 300];
        let at = bytes.as_ptr() as u64;
        for instruction in [Instruction::Clflush, Instruction::Clflushopt, Instruction::Clwb] {
            if instruction as u64 <= best.instruction as u64 {
                // SAFETY: bytes of our own.
                let code = unsafe { verbena_guarded_write_back(at, at + 300, 64, instruction as u64) };
                assert_eq!(code, 0);
            }
        }
        assert_eq!(bytes, [7; 300]);
    }
}

//! Copies that fail where memory faults. A program may unmap registered memory, or take the right to write away; an
//! adapter would find that out in its page tables, and so do we: the few instructions that touch registered memory
//! lie in one range of code, and a handler for SIGSEGV and SIGBUS (`handler`) lets those that fault there return an error.
//!
//! Where the program has replaced the handler behind our back, copies go by `process_vm_readv` and `process_vm_writev` to
//! ourselves, which report bad addresses by themselves (about a microsecond each).

pub(crate) mod granted;
pub(crate) mod handler;
mod lines;
mod system;

use std::arch::global_asm;
use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, Ordering};

use handler::is_replaced;
pub use lines::{write_back, writes_back};
use system::{crawl, probe};
use transport::op::Fault;
use wire::icrc::{PAGE, Remainder};

unsafe extern "C" {
    fn verbena_guarded_begin();
    fn verbena_guarded_end();
    fn verbena_guarded_fault();
    fn verbena_guarded_copy(to: *mut u8, from: *const u8, len: usize) -> c_int;
    #[cfg(target_arch = "x86_64")]
    fn verbena_guarded_wide(to: *mut u8, from: *const u8, len: usize) -> c_int;
    #[cfg(target_arch = "x86_64")]
    fn verbena_guarded_string(to: *mut u8, from: *const u8, len: usize) -> c_int;
    #[cfg(target_arch = "x86_64")]
    fn verbena_guarded_fold(
        to: *mut u8,
        from: *const u8,
        len: usize,
        rest: *mut u8,
        keys: *const u64,
    ) -> c_int;
    fn verbena_guarded_store(to: *mut u64, value: u64) -> c_int;
    fn verbena_guarded_swap(at: *mut u64, value: u64, before: *mut u64) -> c_int;
    fn verbena_guarded_add(at: *mut u64, value: u64, before: *mut u64) -> c_int;
    fn verbena_guarded_compare_swap(at: *mut u64, compare: u64, swap: u64, before: *mut u64) -> c_int;
    fn verbena_guarded_write_back(from: u64, end: u64, line: u64, instruction: u64) -> c_int;
}

// Leaf functions without a stack frame, so that a fault anywhere in them may go on at `verbena_guarded_fault`.
#[cfg(target_arch = "x86_64")]
global_asm!(
    ".text",
    ".p2align 4",
    ".hidden verbena_guarded_begin",
    ".globl verbena_guarded_begin",
    "verbena_guarded_begin:",
    ".hidden verbena_guarded_copy",
    ".globl verbena_guarded_copy",
    "verbena_guarded_copy:",
    "cmp rdx, 64",
    "jb 3f",
    ".p2align 4",
    "2:",
    "movups xmm0, [rsi]",
    "movups xmm1, [rsi + 16]",
    "movups xmm2, [rsi + 32]",
    "movups xmm3, [rsi + 48]",
    "movups [rdi], xmm0",
    "movups [rdi + 16], xmm1",
    "movups [rdi + 32], xmm2",
    "movups [rdi + 48], xmm3",
    "add rsi, 64",
    "add rdi, 64",
    "sub rdx, 64",
    "cmp rdx, 64",
    "jae 2b",
    "3:",
    "cmp rdx, 8",
    "jb 5f",
    "4:",
    "mov rax, [rsi]",
    "mov [rdi], rax",
    "add rsi, 8",
    "add rdi, 8",
    "sub rdx, 8",
    "cmp rdx, 8",
    "jae 4b",
    "5:",
    "test rdx, rdx",
    "jz 7f",
    "6:",
    "mov al, [rsi]",
    "mov [rdi], al",
    "inc rsi",
    "inc rdi",
    "dec rdx",
    "jnz 6b",
    "7:",
    "xor eax, eax",
    "ret",
    // The same for a multiple of 256 bytes, at least that. Registers from 16 on leave the older vector instructions no upper halves to care for.
    ".hidden verbena_guarded_wide",
    ".globl verbena_guarded_wide",
    "verbena_guarded_wide:",
    ".p2align 4",
    "2:",
    "vmovdqu64 zmm16, [rsi]",
    "vmovdqu64 zmm17, [rsi + 64]",
    "vmovdqu64 zmm18, [rsi + 128]",
    "vmovdqu64 zmm19, [rsi + 192]",
    "vmovdqu64 [rdi], zmm16",
    "vmovdqu64 [rdi + 64], zmm17",
    "vmovdqu64 [rdi + 128], zmm18",
    "vmovdqu64 [rdi + 192], zmm19",
    "add rsi, 256",
    "add rdi, 256",
    "sub rdx, 256",
    "jnz 2b",
    "xor eax, eax",
    "ret",
    // The same; and on the way the CRC-32 of these bytes, folded to 64 bytes, in four times four lanes of 128 bits
    // (Gopal and others, Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction).
    ".hidden verbena_guarded_fold",
    ".globl verbena_guarded_fold",
    "verbena_guarded_fold:",
    "vbroadcasti32x4 zmm8, [r8]",
    "vmovdqu64 zmm0, [rsi]",
    "vmovdqu64 zmm1, [rsi + 64]",
    "vmovdqu64 zmm2, [rsi + 128]",
    "vmovdqu64 zmm3, [rsi + 192]",
    "vmovdqu64 [rdi], zmm0",
    "vmovdqu64 [rdi + 64], zmm1",
    "vmovdqu64 [rdi + 128], zmm2",
    "vmovdqu64 [rdi + 192], zmm3",
    "jmp 3f",
    ".p2align 4",
    "2:",
    "vmovdqu64 zmm4, [rsi]",
    "vmovdqu64 zmm5, [rsi + 64]",
    "vmovdqu64 zmm6, [rsi + 128]",
    "vmovdqu64 zmm7, [rsi + 192]",
    "vmovdqu64 [rdi], zmm4",
    "vmovdqu64 [rdi + 64], zmm5",
    "vmovdqu64 [rdi + 128], zmm6",
    "vmovdqu64 [rdi + 192], zmm7",
    "vpclmulqdq zmm9, zmm0, zmm8, 0x00",
    "vpclmulqdq zmm10, zmm1, zmm8, 0x00",
    "vpclmulqdq zmm11, zmm2, zmm8, 0x00",
    "vpclmulqdq zmm12, zmm3, zmm8, 0x00",
    "vpclmulqdq zmm0, zmm0, zmm8, 0x11",
    "vpclmulqdq zmm1, zmm1, zmm8, 0x11",
    "vpclmulqdq zmm2, zmm2, zmm8, 0x11",
    "vpclmulqdq zmm3, zmm3, zmm8, 0x11",
    "vpternlogq zmm0, zmm9, zmm4, 0x96",
    "vpternlogq zmm1, zmm10, zmm5, 0x96",
    "vpternlogq zmm2, zmm11, zmm6, 0x96",
    "vpternlogq zmm3, zmm12, zmm7, 0x96",
    "3:",
    "add rsi, 256",
    "add rdi, 256",
    "sub rdx, 256",
    "jnz 2b",
    "vbroadcasti32x4 zmm8, [r8 + 16]",
    "vpclmulqdq zmm9, zmm0, zmm8, 0x00",
    "vpclmulqdq zmm0, zmm0, zmm8, 0x11",
    "vpternlogq zmm0, zmm9, zmm1, 0x96",
    "vpclmulqdq zmm9, zmm0, zmm8, 0x00",
    "vpclmulqdq zmm0, zmm0, zmm8, 0x11",
    "vpternlogq zmm0, zmm9, zmm2, 0x96",
    "vpclmulqdq zmm9, zmm0, zmm8, 0x00",
    "vpclmulqdq zmm0, zmm0, zmm8, 0x11",
    "vpternlogq zmm0, zmm9, zmm3, 0x96",
    "vmovdqu64 [rcx], zmm0",
    "vzeroupper",
    "xor eax, eax",
    "ret",
    ".hidden verbena_guarded_string",
    ".globl verbena_guarded_string",
    "verbena_guarded_string:",
    "mov rcx, rdx",
    "rep movsb",
    "xor eax, eax",
    "ret",
    ".hidden verbena_guarded_store",
    ".globl verbena_guarded_store",
    "verbena_guarded_store:",
    "mov [rdi], rsi",
    "xor eax, eax",
    "ret",
    ".hidden verbena_guarded_swap",
    ".globl verbena_guarded_swap",
    "verbena_guarded_swap:",
    "xchg [rdi], rsi",
    "mov [rdx], rsi",
    "xor eax, eax",
    "ret",
    ".hidden verbena_guarded_add",
    ".globl verbena_guarded_add",
    "verbena_guarded_add:",
    "lock xadd [rdi], rsi",
    "mov [rdx], rsi",
    "xor eax, eax",
    "ret",
    ".hidden verbena_guarded_compare_swap",
    ".globl verbena_guarded_compare_swap",
    "verbena_guarded_compare_swap:",
    "mov rax, rsi",
    "lock cmpxchg [rdi], rdx",
    "mov [rcx], rax",
    "xor eax, eax",
    "ret",
    ".hidden verbena_guarded_write_back",
    ".globl verbena_guarded_write_back",
    "verbena_guarded_write_back:",
    "cmp rdi, rsi",
    "jae 5f",
    "cmp rcx, 2",
    "je 3f",
    "ja 4f",
    "2:",
    "clflush [rdi]",
    "add rdi, rdx",
    "cmp rdi, rsi",
    "jb 2b",
    "jmp 5f",
    "3:",
    "clflushopt [rdi]",
    "add rdi, rdx",
    "cmp rdi, rsi",
    "jb 3b",
    "jmp 5f",
    "4:",
    "clwb [rdi]",
    "add rdi, rdx",
    "cmp rdi, rsi",
    "jb 4b",
    "5:",
    "sfence",
    "xor eax, eax",
    "ret",
    ".hidden verbena_guarded_end",
    ".globl verbena_guarded_end",
    "verbena_guarded_end:",
    ".hidden verbena_guarded_fault",
    ".globl verbena_guarded_fault",
    "verbena_guarded_fault:",
    "mov eax, 1",
    "ret",
);

#[cfg(target_arch = "aarch64")]
global_asm!(
    ".text",
    ".p2align 4",
    ".hidden verbena_guarded_begin",
    ".globl verbena_guarded_begin",
    "verbena_guarded_begin:",
    ".hidden verbena_guarded_copy",
    ".globl verbena_guarded_copy",
    "verbena_guarded_copy:",
    "cmp x2, #64",
    "b.lo 3f",
    "2:",
    "ldp q0, q1, [x1]",
    "ldp q2, q3, [x1, #32]",
    "stp q0, q1, [x0]",
    "stp q2, q3, [x0, #32]",
    "add x1, x1, #64",
    "add x0, x0, #64",
    "sub x2, x2, #64",
    "cmp x2, #64",
    "b.hs 2b",
    "3:",
    "cmp x2, #8",
    "b.lo 5f",
    "4:",
    "ldr x3, [x1], #8",
    "str x3, [x0], #8",
    "sub x2, x2, #8",
    "cmp x2, #8",
    "b.hs 4b",
    "5:",
    "cbz x2, 7f",
    "6:",
    "ldrb w3, [x1], #1",
    "strb w3, [x0], #1",
    "subs x2, x2, #1",
    "b.ne 6b",
    "7:",
    "mov w0, #0",
    "ret",
    ".hidden verbena_guarded_store",
    ".globl verbena_guarded_store",
    "verbena_guarded_store:",
    "stlr x1, [x0]",
    "mov w0, #0",
    "ret",
    ".hidden verbena_guarded_swap",
    ".globl verbena_guarded_swap",
    "verbena_guarded_swap:",
    "2:",
    "ldaxr x3, [x0]",
    "stlxr w4, x1, [x0]",
    "cbnz w4, 2b",
    "str x3, [x2]",
    "mov w0, #0",
    "ret",
    ".hidden verbena_guarded_add",
    ".globl verbena_guarded_add",
    "verbena_guarded_add:",
    "2:",
    "ldaxr x3, [x0]",
    "add x5, x3, x1",
    "stlxr w4, x5, [x0]",
    "cbnz w4, 2b",
    "str x3, [x2]",
    "mov w0, #0",
    "ret",
    ".hidden verbena_guarded_compare_swap",
    ".globl verbena_guarded_compare_swap",
    "verbena_guarded_compare_swap:",
    "2:",
    "ldaxr x4, [x0]",
    "cmp x4, x1",
    "b.ne 3f",
    "stlxr w5, x2, [x0]",
    "cbnz w5, 2b",
    "3:",
    "str x4, [x3]",
    "mov w0, #0",
    "ret",
    // The line's size is x2, and there is one instruction: dc cvap.
    ".hidden verbena_guarded_write_back",
    ".globl verbena_guarded_write_back",
    "verbena_guarded_write_back:",
    "2:",
    "cmp x0, x1",
    "b.hs 3f",
    "sys #3, c7, c12, #1, x0",
    "add x0, x0, x2",
    "b 2b",
    "3:",
    "dsb sy",
    "mov w0, #0",
    "ret",
    ".hidden verbena_guarded_end",
    ".globl verbena_guarded_end",
    "verbena_guarded_end:",
    ".hidden verbena_guarded_fault",
    ".globl verbena_guarded_fault",
    "verbena_guarded_fault:",
    "mov w0, #1",
    "ret",
);

/// Copies `len` bytes.
///
/// # Safety
///
/// `from` and `to` do not overlap. One of them is memory of ours; the other is an address range that the program has
/// registered, whatever lies there now.
#[inline]
pub unsafe fn copy(to: *mut u8, from: *const u8, len: usize) -> Result<(), Fault> {
    if is_replaced() {
        return crawl(to, from, len);
    }
    // SAFETY: as the caller says; what faults comes back as an error. The wide one has copied whole blocks, none more than there are.
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

/// The same to memory that another process reads and writes. Of a long store the processor's string instruction need not fetch the lines that it fills: where
/// those are far away, in the other one's cache, that is a quarter of the time.
///
/// # Safety
///
/// As for [`copy`].
#[inline]
pub unsafe fn copy_shared(to: *mut u8, from: *const u8, len: usize) -> Result<(), Fault> {
    #[cfg(target_arch = "x86_64")]
    if len >= LONG && !string_is_slow(to, from) && !is_replaced() {
        // SAFETY: as the caller says; the direction flag is clear, as the ABI has it.
        return result(unsafe { verbena_guarded_string(to, from, len) });
    }
    // SAFETY: as the caller says.
    unsafe { copy(to, from, len) }
}

/// Whether the processor's string instruction for bytes is slow between these places: AMD's takes fifteen times as long where the destination
/// lies 1 to 15 bytes behind the source in their pages (seen on Zen 4, known of Zen 3).
#[cfg(target_arch = "x86_64")]
#[inline]
pub fn string_is_slow(to: *const u8, from: *const u8) -> bool {
    (1..16).contains(&(to.addr().wrapping_sub(from.addr()) % 4096))
}

/// What the loops over 512-bit registers copy at once, and from how many bytes on they are used.
#[cfg(target_arch = "x86_64")]
const BLOCK: usize = 256;
#[cfg(target_arch = "x86_64")]
const LONG: usize = 1024;

/// Whether the processor has such registers, and multiplies polynomials in them; those that do, do not pay for it with their clock.
#[cfg(target_arch = "x86_64")]
#[inline]
fn is_wide() -> bool {
    std::arch::is_x86_feature_detected!("avx512f") && std::arch::is_x86_feature_detected!("vpclmulqdq")
}

/// Copies [`PAGE`] bytes; and says what they add to an ICRC, where the processor finds that out on the way.
///
/// # Safety
///
/// As for [`copy`].
#[inline]
pub unsafe fn copy_page(to: *mut u8, from: *const u8) -> Result<Option<Remainder>, Fault> {
    #[cfg(target_arch = "x86_64")]
    if !is_replaced() && is_wide() {
        let mut rest = [0; 64];
        // SAFETY: as the caller says; the processor has the instructions; a page is blocks; `rest` and the keys are as long as is said there.
        result(unsafe { verbena_guarded_fold(to, from, PAGE, rest.as_mut_ptr(), KEYS.as_ptr()) })?;
        return Ok(Some(Remainder::of(&rest)));
    }
    // SAFETY: as the caller says.
    unsafe { copy(to, from, PAGE) }.map(|()| None)
}

/// x^(d + 32) and x^(d - 32) modulo the polynomial of CRC-32, their bits reversed in 33, for a distance d of 256 bytes, then for one of 64.
#[cfg(target_arch = "x86_64")]
static KEYS: [u64; 4] = [0x1_1542_778a, 0x1_322d_1430, 0x1_5444_2bd4, 0x1_c6e4_1596];

/// Stores eight aligned bytes at once, behind everything stored before.
///
/// # Safety
///
/// `to` is aligned and lies in a range that the program has registered.
#[inline]
pub unsafe fn store(to: *mut u64, value: u64) -> Result<(), Fault> {
    if is_replaced() {
        return crawl(to.cast(), (&raw const value).cast(), 8);
    }
    std::sync::atomic::fence(Ordering::Release);
    // SAFETY: as for `copy`.
    result(unsafe { verbena_guarded_store(to, value) })
}

/// What an atomic does to eight bytes.
#[derive(Clone, Copy)]
pub enum Change {
    Swap(u64),
    Add(u64),
    CompareSwap { compare: u64, swap: u64 },
}

/// Changes eight aligned bytes atomically, also for the program's own atomics; what was there before.
///
/// # Safety
///
/// As for [`store`].
pub unsafe fn change(at: *mut u64, change: Change) -> Result<u64, Fault> {
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

//! Copies to and from memory of another process that ends when that process takes it back, wherever the copying thread is then.
//!
//! A system call copies whole or not at all before its process is stopped; instructions do not: a thread may be stopped in their midst for hours, and then go
//! on. So they are a restartable sequence (rseq(2), Linux 4.18): the kernel sends a thread that was stopped, preempted or had a signal
//! meanwhile to the begin, where it looks again whether the word still stands by which the owner grants the memory. The owner takes the word
//! back, then waits for threads that run only: whoever is stopped or waits for a processor copies nothing any more.
//!
//! The sequences end with the store of the last bytes. So whoever goes back to the begin has not stored them, and stores nothing that the owner may have looked at.
//!
//! The C library registers threads for it (glibc 2.35). Elsewhere, and on other processors than x86-64, there are no such copies.

use std::sync::atomic::AtomicU64;
#[cfg(target_arch = "x86_64")]
use std::sync::atomic::{AtomicIsize, Ordering};

use super::handler;
#[cfg(target_arch = "x86_64")]
use super::handler::is_replaced;

/// A word in memory that both processes map, and what it says while the owner grants his memory.
#[derive(Clone, Copy, Debug)]
pub struct Grant<'a> {
    /// The word.
    pub word: &'a AtomicU64,
    /// What it says.
    pub says: u64,
}

/// Why bytes were not copied, or not all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Memory is not there.
    Fault,
    /// It is not granted any more.
    TakenBack,
    /// There are no such copies in this thread; or it was disturbed again and again.
    Unable,
}

/// How often a copy goes back to its begin, or goes on behind what it has copied. A debugger that takes it step by step sends it there each time.
#[cfg(target_arch = "x86_64")]
const TRIES: u64 = 100_000;
/// Bytes from which the processor's string instruction is used, also where they are whole words.
#[cfg(target_arch = "x86_64")]
const LONG: usize = 1024;

/// What a sequence works on. The assembly knows the offsets.
#[cfg(target_arch = "x86_64")]
#[repr(C)]
struct Call {
    to: *mut u8,
    from: *const u8,
    len: usize,
    word: *const AtomicU64,
    says: u64,
    /// Where this thread says which sequence it is in.
    sequence: *mut u64,
    tries: u64,
}

#[cfg(target_arch = "x86_64")]
unsafe extern "C" {
    fn verbena_granted_words(call: *const Call) -> std::ffi::c_int;
    fn verbena_granted_string(call: *const Call) -> std::ffi::c_int;
}

// Leaf functions without a stack frame, as in `guard`: a fault goes on at `verbena_guarded_fault`. The kernel has moved the thread to where the sequence is given up
// before it delivers the signal, so that place is in the range, too. In front of it stands the number that the C library registers (RSEQ_SIG).
#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(
    ".pushsection .data.rel.ro,\"aw\",@progbits",
    ".balign 32",
    "20:",
    ".long 0, 0",
    ".quad 22f, 23f - 22f, 24f",
    ".balign 32",
    "30:",
    ".long 0, 0",
    ".quad 32f, 33f - 32f, 34f",
    ".popsection",
    ".text",
    ".p2align 4",
    ".hidden verbena_granted_begin",
    ".globl verbena_granted_begin",
    "verbena_granted_begin:",
    // Whole words, in order, each by one store. Given up: from the begin.
    ".hidden verbena_granted_words",
    ".globl verbena_granted_words",
    "verbena_granted_words:",
    "mov r8, [rdi + 24]",
    "mov r9, rdi",
    "mov r10, [rdi + 40]",
    "mov r11, [rdi + 32]",
    "21:",
    "mov rdi, [r9]",
    "mov rsi, [r9 + 8]",
    "mov rcx, [r9 + 16]",
    "lea rax, [rip + 20b]",
    "mov [r10], rax",
    "22:",
    "cmp [r8], r11",
    "jne 27f",
    "25:",
    "mov rax, [rsi]",
    "sub rcx, 8",
    "jz 26f",
    "mov [rdi], rax",
    "add rsi, 8",
    "add rdi, 8",
    "jmp 25b",
    "26:",
    "mov [rdi], rax",
    "23:",
    "mov qword ptr [r10], 0",
    "xor eax, eax",
    "ret",
    "27:",
    "mov qword ptr [r10], 0",
    "mov eax, 2",
    "ret",
    ".byte 0x0f, 0xb9, 0x3d",
    ".long 0x53053053",
    "24:",
    "dec qword ptr [r9 + 48]",
    "jnz 21b",
    "mov eax, 3",
    "ret",
    // Bytes, by the string instruction, whose registers say at any time what is left. Given up: from there on.
    ".hidden verbena_granted_string",
    ".globl verbena_granted_string",
    "verbena_granted_string:",
    "mov r8, [rdi + 24]",
    "mov r9, rdi",
    "mov r10, [rdi + 40]",
    "mov r11, [rdi + 32]",
    "mov rsi, [r9 + 8]",
    "mov rcx, [r9 + 16]",
    "mov rdi, [r9]",
    "31:",
    "lea rax, [rip + 30b]",
    "mov [r10], rax",
    "32:",
    "cmp [r8], r11",
    "jne 37f",
    "rep movsb",
    "33:",
    "mov qword ptr [r10], 0",
    "xor eax, eax",
    "ret",
    "37:",
    "mov qword ptr [r10], 0",
    "mov eax, 2",
    "ret",
    ".byte 0x0f, 0xb9, 0x3d",
    ".long 0x53053053",
    "34:",
    "dec qword ptr [r9 + 48]",
    "jnz 31b",
    "mov eax, 3",
    "ret",
    ".hidden verbena_granted_end",
    ".globl verbena_granted_end",
    "verbena_granted_end:",
);

/// Copies `len` bytes while `grant` stands; not 0. The last eight are stored behind the others; where `len` is a multiple of eight and `to` is aligned,
/// by one store.
///
/// # Errors
///
/// See [`Ended`]: some bytes may have been copied, the last one not.
///
/// # Safety
///
/// Both are ranges of `len` bytes that may be read, or written, where they are mapped, and of which nobody claims that they do not change.
#[cfg(target_arch = "x86_64")]
pub unsafe fn copy_granted(to: *mut u8, from: *const u8, len: usize, grant: Grant<'_>) -> Result<(), Ended> {
    let Some(sequence) = sequence_of_thread().filter(|_| len > 0 && !is_replaced()) else {
        return Err(Ended::Unable);
    };
    let call = Call { to, from, len, word: grant.word, says: grant.says, sequence, tries: TRIES };
    // SAFETY: as the caller says; `call` lives across the call, in which only this thread uses it, and so is where it says which sequence it is in. The direction
    // flag is clear, as the ABI has it.
    let code = unsafe {
        if len.is_multiple_of(8) && len < LONG {
            verbena_granted_words(&raw const call)
        } else {
            verbena_granted_string(&raw const call)
        }
    };
    match code {
        0 => Ok(()),
        1 => Err(Ended::Fault),
        2 => Err(Ended::TakenBack),
        _ => Err(Ended::Unable),
    }
}

/// There are no such copies on this processor.
///
/// # Safety
///
/// None is needed.
#[cfg(not(target_arch = "x86_64"))]
pub unsafe fn copy_granted(_: *mut u8, _: *const u8, _: usize, _: Grant<'_>) -> Result<(), Ended> {
    Err(Ended::Unable)
}

/// What the C library says of `struct rseq` (linux/rseq.h): its distance from the thread pointer. `None`: it registers none.
#[cfg(target_arch = "x86_64")]
#[inline]
fn distance() -> Option<isize> {
    const UNKNOWN: isize = isize::MAX;
    const NONE: isize = isize::MIN;
    static DISTANCE: AtomicIsize = AtomicIsize::new(UNKNOWN);
    #[cold]
    fn find() -> isize {
        // SAFETY: names that end, which the C library may not have.
        let [offset, size] = [c"__rseq_offset", c"__rseq_size"]
            .map(|name| unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) });
        if offset.is_null() || size.is_null() {
            return NONE;
        }
        // SAFETY: `const ptrdiff_t` and `const unsigned int` of the C library's (sys/rseq.h).
        let (offset, size) = unsafe { (*offset.cast::<isize>(), *size.cast::<u32>()) };
        if size == 0 { NONE } else { offset }
    }
    let mut distance = DISTANCE.load(Ordering::Relaxed);
    if distance == UNKNOWN {
        distance = find();
        DISTANCE.store(distance, Ordering::Relaxed);
    }
    (distance != NONE).then_some(distance)
}

/// Where this thread says which sequence it is in; `None` where the kernel does not look there.
#[cfg(target_arch = "x86_64")]
#[inline]
fn sequence_of_thread() -> Option<*mut u64> {
    /// The fields `cpu_id` and `rseq_cs` of `struct rseq`.
    const PROCESSOR: usize = 4;
    const SEQUENCE: usize = 8;
    let distance = distance()?;
    let thread: *mut u8;
    // SAFETY: the thread pointer is the first word of what it points to (ELF Handling For Thread-Local Storage, x86-64).
    unsafe {
        std::arch::asm!("mov {}, fs:[0]", out(reg) thread, options(nostack, preserves_flags, readonly));
    }
    let area = thread.wrapping_offset(distance);
    // SAFETY: the C library has a `struct rseq` there in each of its threads; the kernel writes this field.
    let processor = unsafe { area.add(PROCESSOR).cast::<i32>().read_volatile() };
    // Negative: not registered, or that failed.
    (processor >= 0).then(|| area.wrapping_add(SEQUENCE).cast())
}

/// Has what faults in such copies come back as an error from now on; to be called before the first one. Whether this thread can make them.
pub fn can_copy_granted() -> bool {
    handler::install();
    #[cfg(target_arch = "x86_64")]
    return sequence_of_thread().is_some() && !is_replaced();
    #[cfg(not(target_arch = "x86_64"))]
    false
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests;

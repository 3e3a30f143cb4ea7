//! Copies to and from memory of another process that ends when that process takes it back, wherever
//! the copying thread is then.
//!
//! A system call copies whole or not at all before its process is stopped. Instructions do not: a
//! thread may be stopped in their midst for hours, and then go on. So they are a restartable
//! sequence (rseq(2), Linux 4.18). The kernel sends a thread that was stopped, preempted or had a
//! signal meanwhile to the begin. There it looks again whether the word still stands by which the
//! owner grants the memory. The owner takes the word back, then waits for threads that run only. A
//! thread that is stopped or waits for a processor copies nothing any more.
//!
//! The sequences end with the store of the last bytes. So a thread that goes back to the begin has
//! not stored them, and stores nothing that the owner may have looked at.
//!
//! The C library registers threads for it (glibc 2.35). Elsewhere, and on other processors than
//! x86-64, there are no such copies.

use std::sync::atomic::AtomicU64;
#[cfg(target_arch = "x86_64")]
use std::sync::atomic::{AtomicIsize, Ordering};

use transport::op::AtomicOp;

use super::handler;
#[cfg(target_arch = "x86_64")]
use super::handler::is_replaced;
#[cfg(target_arch = "x86_64")]
use super::string_is_slow;

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
    /// Memory is not granted any more.
    TakenBack,
    /// Granted copies do not exist in this thread; or the copy was disturbed again and again.
    Unable,
}

/// How often a copy goes back to its begin, or goes on after what it has copied. A debugger that
/// takes it step by step sends it there each time.
#[cfg(target_arch = "x86_64")]
const TRIES: u64 = 100_000;
/// Whole words of fewer bytes are copied one by one, in order; anything else by the processor's
/// string instruction.
pub const IN_ORDER: usize = 1024;

/// Bytes of longer ones that are copied word by word in one go, as each goes back to its own begin.
#[cfg(target_arch = "x86_64")]
const WORDS_AT_ONCE: usize = 64 << 10;

/// What a sequence works on. The assembly knows the offsets.
#[cfg(target_arch = "x86_64")]
#[repr(C)]
struct Call {
    /// Where to, where from, how many bytes. Of an atomic: where, its operand, and what is expected
    /// there.
    to: *mut u8,
    from: u64,
    len: u64,
    word: *const AtomicU64,
    says: u64,
    /// Where this thread says which sequence it is in.
    sequence: *mut u64,
    tries: u64,
    /// What an atomic found.
    before: u64,
}

#[cfg(target_arch = "x86_64")]
unsafe extern "C" {
    fn verbena_granted_words(call: *mut Call) -> std::ffi::c_int;
    fn verbena_granted_string(call: *mut Call) -> std::ffi::c_int;
    fn verbena_granted_swap(call: *mut Call) -> std::ffi::c_int;
    fn verbena_granted_add(call: *mut Call) -> std::ffi::c_int;
    fn verbena_granted_compare_swap(call: *mut Call) -> std::ffi::c_int;
}

/// A sequence: `first` is done once, `each` wherever it begins, then the word is looked at, and
/// `body` ends with the instruction after which nothing is done again. `last` comes after that. A
/// leaf function without a stack frame, as in `guard`: a fault goes on at `verbena_guarded_fault`.
/// The kernel has moved the thread to where the sequence is given up before it delivers the signal,
/// so that place is in the range, too. Before it stands the number that the C library registers
/// (RSEQ_SIG).
///
/// r8: the word. r9: the call. r10: where the thread says which sequence it is in. r11: what the
/// word says while the memory is granted.
#[cfg(target_arch = "x86_64")]
macro_rules! sequence {
    ($name:literal, $first:literal, $each:literal, $body:literal, $last:literal) => {
        concat!(
            ".pushsection .data.rel.ro,\"aw\",@progbits\n.balign 32\n",
            ".L",
            $name,
            "_sequence: .long 0, 0\n.quad .L",
            $name,
            "_begin, .L",
            $name,
            "_end - .L",
            $name,
            "_begin, .L",
            $name,
            "_given_up\n",
            ".popsection\n",
            ".hidden ",
            $name,
            "\n.globl ",
            $name,
            "\n",
            $name,
            ":\n",
            "mov r8, [rdi + 24]\nmov r9, rdi\nmov r10, [rdi + 40]\nmov r11, [rdi + 32]\n",
            $first,
            "\n",
            ".L",
            $name,
            "_again:\n",
            $each,
            "\n",
            "lea rdx, [rip + .L",
            $name,
            "_sequence]\nmov [r10], rdx\n",
            ".L",
            $name,
            "_begin:\ncmp [r8], r11\njne .L",
            $name,
            "_taken_back\n",
            $body,
            "\n",
            ".L",
            $name,
            "_end:\nmov qword ptr [r10], 0\n",
            $last,
            "\nxor eax, eax\nret\n",
            ".L",
            $name,
            "_taken_back:\nmov qword ptr [r10], 0\nmov eax, 2\nret\n",
            ".byte 0x0f, 0xb9, 0x3d\n.long 0x53053053\n",
            ".L",
            $name,
            "_given_up:\ndec qword ptr [r9 + 48]\njnz .L",
            $name,
            "_again\nmov eax, 3\nret\n",
        )
    };
}

#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(
    ".text\n.p2align 4\n.hidden verbena_granted_begin\n.globl verbena_granted_begin\nverbena_granted_begin:\n",
    // Whole words, in order, each by one store. Given up: from the begin.
    sequence!(
        "verbena_granted_words",
        "",
        "mov rdi, [r9]\nmov rsi, [r9 + 8]\nmov rcx, [r9 + 16]",
        "2:\nmov rax, [rsi]\nsub rcx, 8\njz 3f\nmov [rdi], rax\nadd rsi, 8\nadd rdi, 8\njmp 2b\n3:\nmov [rdi], rax",
        ""
    ),
    // Bytes, by the string instruction, whose registers say at any time what is left. Given up:
    // from there on.
    sequence!(
        "verbena_granted_string",
        "mov rdi, [r9]\nmov rsi, [r9 + 8]\nmov rcx, [r9 + 16]",
        "",
        "rep movsb",
        ""
    ),
    // Eight bytes, changed at once; what was there.
    sequence!(
        "verbena_granted_swap",
        "mov rdi, [r9]",
        "mov rsi, [r9 + 8]",
        "xchg [rdi], rsi",
        "mov [r9 + 56], rsi"
    ),
    sequence!(
        "verbena_granted_add",
        "mov rdi, [r9]",
        "mov rsi, [r9 + 8]",
        "lock xadd [rdi], rsi",
        "mov [r9 + 56], rsi"
    ),
    sequence!(
        "verbena_granted_compare_swap",
        "mov rdi, [r9]\nmov rsi, [r9 + 8]",
        "mov rax, [r9 + 16]",
        "lock cmpxchg [rdi], rsi",
        "mov [r9 + 56], rax"
    ),
    ".hidden verbena_granted_end\n.globl verbena_granted_end\nverbena_granted_end:\n",
);

/// Copies `len` bytes while `grant` stands; not 0. A multiple of eight below [`IN_ORDER`] is stored
/// word by word, the last one last, each by one store where `to` is aligned; the bytes of others
/// become visible in any order.
///
/// # Errors
///
/// See [`Ended`]: some bytes may have been copied, the last one not.
///
/// # Safety
///
/// Both are ranges of `len` bytes that may be read, or written, where they are mapped. No code
/// claims that they do not change.
#[cfg(target_arch = "x86_64")]
#[inline]
pub unsafe fn copy_granted(to: *mut u8, from: *const u8, len: usize, grant: Grant<'_>) -> Result<(), Ended> {
    if len == 0 {
        return Err(Ended::Unable);
    }
    let piece = |sequence: Sequence, at: usize, len: usize| {
        let (to, from) = (to.wrapping_add(at), from.wrapping_add(at).expose_provenance() as u64);
        // SAFETY: as the caller says. The direction flag is clear, as the ABI has it.
        unsafe { run(sequence, to, from, len as u64, grant).map(drop) }
    };
    let whole = len & !7;
    if whole == len && len < IN_ORDER {
        return piece(verbena_granted_words, 0, len);
    }
    if len >= IN_ORDER && string_is_slow(to, from) {
        (0..whole)
            .step_by(WORDS_AT_ONCE)
            .try_for_each(|at| piece(verbena_granted_words, at, WORDS_AT_ONCE.min(whole - at)))?;
        return if whole == len { Ok(()) } else { piece(verbena_granted_string, whole, len - whole) };
    }
    piece(verbena_granted_string, 0, len)
}

/// Changes eight aligned bytes at once while `grant` stands; what was there before.
///
/// # Errors
///
/// See [`Ended`]: nothing has changed.
///
/// # Safety
///
/// `at` is aligned, and eight bytes that may be read and written where they are mapped. No code
/// claims that they do not change.
#[cfg(target_arch = "x86_64")]
pub unsafe fn change_granted(at: *mut u64, op: AtomicOp, grant: Grant<'_>) -> Result<u64, Ended> {
    let (sequence, value, compare): (Sequence, _, _) = match op {
        AtomicOp::Write(value) => (verbena_granted_swap, value, 0),
        AtomicOp::FetchAdd(value) => (verbena_granted_add, value, 0),
        AtomicOp::CompareSwap { compare, swap } => (verbena_granted_compare_swap, swap, compare),
    };
    // SAFETY: as the caller says.
    unsafe { run(sequence, at.cast(), value, compare, grant) }
}

#[cfg(target_arch = "x86_64")]
type Sequence = unsafe extern "C" fn(*mut Call) -> std::ffi::c_int;

/// Runs a sequence; what it found.
///
/// # Safety
///
/// What it works on is as it wants it.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn run(sequence: Sequence, to: *mut u8, from: u64, len: u64, grant: Grant<'_>) -> Result<u64, Ended> {
    let Some(place) = sequence_of_thread().filter(|_| !is_replaced()) else { return Err(Ended::Unable) };
    let (word, says) = (std::ptr::from_ref(grant.word), grant.says);
    let mut call = Call { to, from, len, word, says, sequence: place, tries: TRIES, before: 0 };
    // SAFETY: as the caller says; `call` lives across the call, in which only this thread uses it,
    // and so is where it says which sequence it is in.
    match unsafe { sequence(&raw mut call) } {
        0 => Ok(call.before),
        1 => Err(Ended::Fault),
        2 => Err(Ended::TakenBack),
        _ => Err(Ended::Unable),
    }
}

/// Granted copies do not exist on this processor.
///
/// # Safety
///
/// None is needed.
#[cfg(not(target_arch = "x86_64"))]
pub unsafe fn copy_granted(_: *mut u8, _: *const u8, _: usize, _: Grant<'_>) -> Result<(), Ended> {
    Err(Ended::Unable)
}

/// Granted changes do not exist on this processor.
///
/// # Safety
///
/// None is needed.
#[cfg(not(target_arch = "x86_64"))]
pub unsafe fn change_granted(_: *mut u64, _: AtomicOp, _: Grant<'_>) -> Result<u64, Ended> {
    Err(Ended::Unable)
}

/// What the C library says of `struct rseq` (linux/rseq.h): its distance from the thread pointer.
/// `None`: it registers none.
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
    // SAFETY: the thread pointer is the first word of what it points to (ELF Handling For
    // Thread-Local Storage, x86-64).
    unsafe {
        std::arch::asm!("mov {}, fs:[0]", out(reg) thread, options(nostack, preserves_flags, readonly));
    }
    let area = thread.wrapping_offset(distance);
    // SAFETY: the C library has a `struct rseq` there in each of its threads; the kernel writes
    // this field.
    let processor = unsafe { area.add(PROCESSOR).cast::<i32>().read_volatile() };
    // Negative: not registered, or that failed.
    (processor >= 0).then(|| area.wrapping_add(SEQUENCE).cast())
}

/// Has what faults in such copies come back as an error from now on; to be called before the first
/// one. Whether this thread can make them.
pub fn can_copy_granted() -> bool {
    handler::install();
    #[cfg(target_arch = "x86_64")]
    return sequence_of_thread().is_some() && !is_replaced();
    #[cfg(not(target_arch = "x86_64"))]
    false
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests;

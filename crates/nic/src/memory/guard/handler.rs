//! The handler for SIGSEGV and SIGBUS, and the program's own, to which all goes that is not a fault
//! of a guarded copy.
//!
//! Ours is installed with the first registration ([`install`]) and is told of every handler that
//! the program sets from then on through the C library ([`program_sets`], which the shared object's
//! `sigaction` and `signal` call: the program sees and sets its own, and ours stays). A program
//! that goes around them, by a system call of its own or because the dynamic loader bound it to the
//! C library directly, is found out with the next registration and after [`LOOK_EVERY`] copies of a
//! thread at most: from then on its handler stays, and [`is_replaced`].
//!
//! A signal that a process sent (kill(2), by its `si_code`) is no fault, wherever the thread is. It
//! goes to the program's handler, is ignored where the program ignores it, or ends the process.
//!
//! No lock, and nothing that a forked child could find half done: `sigaction` may be called in a
//! signal handler. So what the program set is one word ([`Wish`]), however often it sets one. Its
//! mask stands in the action that the system has, which is ours.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::{verbena_guarded_begin, verbena_guarded_end, verbena_guarded_fault};

/// Copies of one thread between two looks at whether the handler is still ours; a look is two
/// system calls.
const LOOK_EVERY: u32 = 256;

const SIGNALS: [c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];

/// What the program wants done with each signal ([`Wish`]); 0: the default.
static WISHES: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];
/// Ours has been installed for the signal.
static INSTALLED: [AtomicBool; 2] = [AtomicBool::new(false), AtomicBool::new(false)];
/// The program has replaced it without our knowledge.
static REPLACED: AtomicBool = AtomicBool::new(false);

unsafe extern "C" {
    // The C library's own name of `sigaction`, which the shared object does not stand in front of.
    fn __sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int;
}

/// Whether copies have to do without the handler.
#[inline]
pub(crate) fn is_replaced() -> bool {
    thread_local! {
        static COPIES: Cell<u32> = const { Cell::new(0) };
    }
    // A thread at its end has no count any more, and makes few copies.
    let due = COPIES.try_with(|copies| {
        let n = copies.get().wrapping_add(1);
        copies.set(n);
        n % LOOK_EVERY == 0
    });
    if due == Ok(true) {
        look();
    }
    REPLACED.load(Ordering::Relaxed)
}

/// Installs the handler, unless it is (a forked child inherits it), and looks whether it still is
/// in place.
pub(crate) fn install() {
    // Nothing faults there, and there are no signals.
    if cfg!(miri) {
        return;
    }
    for (which, signal) in SIGNALS.into_iter().enumerate() {
        if INSTALLED[which].load(Ordering::Acquire) {
            continue;
        }
        let before = exchange(signal, None);
        if !is_ours(&before) {
            take_over(which, &before);
        }
        INSTALLED[which].store(true, Ordering::Release);
    }
    look();
}

/// Puts ours in the place of a handler that was there before us. One that can not be remembered
/// stays.
fn take_over(which: usize, before: &libc::sigaction) {
    // SAFETY: a structure that the system filled.
    let (mask, Some(wish)) = (unsafe { mask_of(before) }, Wish::of(before.sa_sigaction, before.sa_flags))
    else {
        return;
    };
    // Remembered first: from the moment ours is in place it may be wanted.
    wish.remember(which);
    let displaced = exchange(SIGNALS[which], Some(&ours_for(wish, mask)));
    // The program may just have set another.
    if !is_ours(&displaced)
        && let Some(wish) = Wish::of(displaced.sa_sigaction, displaced.sa_flags)
    {
        wish.remember(which);
    }
}

/// Looks whether the handler is in place.
fn look() {
    if cfg!(miri) {
        return;
    }
    let installed = |which: usize| INSTALLED[which].load(Ordering::Acquire);
    let replaced = (0..2).any(|n| installed(n) && !is_ours(&exchange(SIGNALS[n], None)));
    REPLACED.store(replaced, Ordering::Relaxed);
}

/// The program sets, or asks for, the handler of a signal: for those of ours it is remembered and
/// called by ours; 0. `None` for other signals and before ours is installed: then the C library
/// does it.
///
/// # Safety
///
/// NULL, or structures as sigaction(2) describes them.
pub unsafe fn program_sets(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> Option<c_int> {
    let which = SIGNALS.into_iter().position(|s| s == signal)?;
    let now = exchange(signal, None);
    if !INSTALLED[which].load(Ordering::Acquire) || !is_ours(&now) {
        return None;
    }
    let was = Wish::remembered(which);
    if !new.is_null() {
        // SAFETY: as the caller says. Of the structure these fields are read and no other byte:
        // programs write no more.
        let (function, flags, mask) = unsafe { ((*new).sa_sigaction, (*new).sa_flags, mask_of(new)) };
        if let Some(wish) = Wish::of(function, flags) {
            wish.remember(which);
            exchange(signal, Some(&ours_for(wish, mask)));
        } else {
            // The program's own stays in place, and copies do without.
            exchange(signal, Some(&action(function, flags, mask)));
            REPLACED.store(true, Ordering::Relaxed);
        }
    }
    if !old.is_null() {
        // SAFETY: as the caller says, and a structure that the system filled. The two may be one:
        // `new` was read before.
        unsafe { old.write(action(was.function(), was.flags(), mask_of(&raw const now))) };
    }
    Some(0)
}

/// The C library's `sigaction`, past the shared object's.
///
/// # Safety
///
/// As for [`program_sets`].
pub unsafe fn system_sets(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int {
    // SAFETY: as the caller says.
    unsafe { __sigaction(signal, new, old) }
}

/// What handles a signal now, as the system has it; from now on `new`, where it is given.
fn exchange(signal: c_int, new: Option<&libc::sigaction>) -> libc::sigaction {
    let mut old = default();
    let new = new.map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: a valid signal and structures of ours; the handler keeps to what is safe in one.
    unsafe { __sigaction(signal, new, &raw mut old) };
    old
}

fn is_ours(action: &libc::sigaction) -> bool {
    action.sa_sigaction == handler as *const () as usize
}

fn default() -> libc::sigaction {
    // SAFETY: integers, a nullable function and a signal set of plain bytes; SIG_DFL is 0.
    unsafe { std::mem::zeroed() }
}

/// An action, of which each byte is written.
fn action(function: usize, flags: c_int, mask: u64) -> libc::sigaction {
    let mut action = default();
    (action.sa_sigaction, action.sa_flags) = (function, flags);
    // SAFETY: a signal set is longer than a word.
    unsafe { (&raw mut action.sa_mask).cast::<u64>().write_unaligned(mask) };
    action
}

/// The signals of an action's mask. The system knows 64, the first word of the set. Neither
/// sigemptyset(3) nor sigaction(2) writes what is behind it.
///
/// # Safety
///
/// A structure as sigaction(2) describes it.
unsafe fn mask_of(action: *const libc::sigaction) -> u64 {
    // SAFETY: as the caller says; a signal set is longer than a word.
    unsafe { (&raw const (*action).sa_mask).cast::<u64>().read_unaligned() }
}

/// Our handler, with the mask and flags that the program's asks for. The mask is kept where it has
/// no meaning, too: there it is remembered.
fn ours_for(wish: Wish, mask: u64) -> libc::sigaction {
    // A signal that is ignored interrupts no system call.
    let theirs = if wish.is_function() { wish.flags() } else { libc::SA_RESTART };
    let flags = libc::SA_SIGINFO | libc::SA_ONSTACK | theirs & (libc::SA_NODEFER | libc::SA_RESTART);
    action(handler as *const () as usize, flags, mask)
}

// ---- what programs wished ----

/// What a program set for a signal, but for its mask: the address in the lower bits, and the flags
/// of sigaction(2) above it, by their place in [`FLAGS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Wish(u64);

/// Bits of an address that a program may have: 57 with five levels of tables on x86-64, 52 on
/// aarch64.
const ADDRESS_BITS: u32 = 57;
/// What a program may ask for. A flag that is not here is not the program's afterwards, as with a
/// kernel that does not know it.
const FLAGS: [c_int; 7] = [
    libc::SA_NOCLDSTOP,
    libc::SA_NOCLDWAIT,
    libc::SA_SIGINFO,
    libc::SA_ONSTACK,
    libc::SA_RESTART,
    libc::SA_NODEFER,
    libc::SA_RESETHAND,
];

impl Wish {
    /// `None` for what is no address of a program.
    fn of(function: usize, flags: c_int) -> Option<Self> {
        let address = u64::try_from(function).ok().filter(|address| address >> ADDRESS_BITS == 0)?;
        let bits = FLAGS.iter().zip(0..).map(|(flag, n)| u64::from(flags & flag != 0) << n);
        Some(Self(address | bits.sum::<u64>() << ADDRESS_BITS))
    }

    fn remembered(which: usize) -> Self {
        Self(WISHES[which].load(Ordering::Acquire))
    }

    /// Makes it the signal's.
    fn remember(self, which: usize) {
        WISHES[which].store(self.0, Ordering::Release);
    }

    fn function(self) -> usize {
        (self.0 & ((1 << ADDRESS_BITS) - 1)) as usize
    }

    fn flags(self) -> c_int {
        let bits = self.0 >> ADDRESS_BITS;
        FLAGS.iter().zip(0..).filter(|(_, n)| bits >> n & 1 != 0).fold(0, |all, (flag, _)| all | flag)
    }

    fn is_function(self) -> bool {
        ![libc::SIG_DFL, libc::SIG_IGN].contains(&self.function())
    }
}

// ---- the handler ----

/// A fault in one of our copies goes on where it returns an error. All else goes to the handler
/// that would have it without us. The program's handler may leave by siglongjmp(3) or an exception:
/// this frame has nothing to drop.
extern "C-unwind" fn handler(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // Codes from 1 on are the kernel's for faults; 0 and below say that a process sent the signal
    // (sigaction(2)).
    // SAFETY: the kernel's description of the signal.
    let faulted = unsafe { (*info).si_code } > 0;
    // SAFETY: the kernel's context of the thread.
    let at = unsafe { program_counter(context) };
    if faulted && is_guarded(*at) {
        *at = verbena_guarded_fault as *const () as usize;
        return;
    }
    let which = usize::from(signal != libc::SIGSEGV);
    match Wish::remembered(which) {
        wish if wish.is_function() => {
            if wish.flags() & libc::SA_RESETHAND != 0 {
                // As the kernel does: the flags stay.
                Wish(wish.0 - wish.function() as u64).remember(which);
            }
            if wish.flags() & libc::SA_SIGINFO != 0 {
                // SAFETY: what the program installed for three arguments.
                let f: extern "C-unwind" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
                    unsafe { std::mem::transmute(wish.function()) };
                f(signal, info, context);
            } else {
                // SAFETY: what the program installed for one argument.
                let f: extern "C-unwind" fn(c_int) = unsafe { std::mem::transmute(wish.function()) };
                f(signal);
            }
        }
        // A fault can not be ignored: the kernel ends the process then too.
        wish if wish.function() == libc::SIG_IGN && !faulted => {}
        _ => {
            // The default. A fault happens again when this returns, and ends the process as if we
            // were not there.
            exchange(signal, Some(&default()));
            if !faulted {
                // SAFETY: sends the signal to this thread; it is blocked until the handler returns.
                unsafe {
                    libc::syscall(libc::SYS_tgkill, libc::getpid(), libc::syscall(libc::SYS_gettid), signal)
                };
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
unsafe extern "C" {
    // Of `granted`.
    fn verbena_granted_begin();
    fn verbena_granted_end();
}

/// Whether an address is of code whose faults are errors.
fn is_guarded(at: usize) -> bool {
    let is_in = |begin: *const (), end: *const ()| (begin as usize..end as usize).contains(&at);
    #[cfg(target_arch = "x86_64")]
    if is_in(verbena_granted_begin as *const (), verbena_granted_end as *const ()) {
        return true;
    }
    is_in(verbena_guarded_begin as *const (), verbena_guarded_end as *const ())
}

/// # Safety
///
/// The third argument of a signal handler.
#[cfg(target_arch = "x86_64")]
unsafe fn program_counter<'a>(context: *mut c_void) -> &'a mut usize {
    // SAFETY: as the caller says; a register is eight bytes of any value.
    unsafe {
        let context = context.cast::<libc::ucontext_t>();
        &mut *(&raw mut (*context).uc_mcontext.gregs[libc::REG_RIP as usize]).cast::<usize>()
    }
}

/// # Safety
///
/// The third argument of a signal handler.
#[cfg(target_arch = "aarch64")]
unsafe fn program_counter<'a>(context: *mut c_void) -> &'a mut usize {
    // SAFETY: as the caller says; a register is eight bytes of any value.
    unsafe {
        let context = context.cast::<libc::ucontext_t>();
        &mut *(&raw mut (*context).uc_mcontext.pc).cast::<usize>()
    }
}

#[cfg(test)]
mod tests;

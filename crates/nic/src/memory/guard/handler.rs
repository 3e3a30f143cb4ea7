//! The handler for SIGSEGV and SIGBUS, and the program's own, to which all goes that is not a fault of a guarded copy.
//!
//! Ours is installed with the first registration ([`install`]) and is told of every handler that the program sets from then on
//! through the C library ([`program_sets`], which the shared object's `sigaction` and `signal` call: the program sees and
//! sets its own, and ours stays). A program that goes around them, by a system call of its own or because the dynamic loader
//! bound it to the C library directly, is found out with the next registration and after [`LOOK_EVERY`] copies of a thread
//! at most: from then on its handler stays, and [`is_replaced`].
//!
//! A signal that somebody sent (kill(2), by its `si_code`) is no fault, wherever the thread is: it goes to the program's
//! handler, is ignored where the program ignores it, or ends the process.
//!
//! No lock, and nothing that a forked child could find half done: `sigaction` may be called in a signal handler.

use std::cell::{Cell, UnsafeCell};
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

use super::{verbena_guarded_begin, verbena_guarded_end, verbena_guarded_fault};

/// Copies of one thread between two looks at whether the handler is still ours; a look is two system calls.
const LOOK_EVERY: u32 = 256;

const SIGNALS: [c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];

/// What the program wants done with each signal; NULL: the default.
static WISHES: [AtomicPtr<libc::sigaction>; 2] =
    [AtomicPtr::new(std::ptr::null_mut()), AtomicPtr::new(std::ptr::null_mut())];
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

/// Installs the handler, unless it is (a forked child inherits it), and looks whether it still is in place.
pub(crate) fn install() {
    for (which, signal) in SIGNALS.into_iter().enumerate() {
        if INSTALLED[which].load(Ordering::Acquire) {
            continue;
        }
        let before = exchange(signal, None);
        if !is_ours(&before) {
            // Remembered first: from the moment ours is in place it may be wanted.
            remember(which, &before);
            let displaced = exchange(signal, Some(&ours_for(&before)));
            // The program may just have set another.
            if !is_ours(&displaced) {
                remember(which, &displaced);
            }
        }
        INSTALLED[which].store(true, Ordering::Release);
    }
    look();
}

/// Looks whether the handler is in place.
fn look() {
    let installed = |which: usize| INSTALLED[which].load(Ordering::Acquire);
    let replaced = (0..2).any(|n| installed(n) && !is_ours(&exchange(SIGNALS[n], None)));
    REPLACED.store(replaced, Ordering::Relaxed);
}

/// The program sets, or asks for, the handler of a signal: for those of ours it is remembered and called by ours; 0. `None` for other
/// signals and before ours is installed: then the C library does it.
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
    if !INSTALLED[which].load(Ordering::Acquire) || !is_ours(&exchange(signal, None)) {
        return None;
    }
    // SAFETY: as the caller says; wishes are never freed.
    unsafe {
        let was = WISHES[which].load(Ordering::Acquire).as_ref().copied().unwrap_or_else(default);
        if let Some(new) = new.as_ref() {
            if !remember(which, new) {
                // No room: the program's own stays in place, and copies do without.
                exchange(signal, Some(new));
                REPLACED.store(true, Ordering::Relaxed);
            } else {
                exchange(signal, Some(&ours_for(new)));
            }
        }
        if let Some(old) = old.as_mut() {
            *old = was;
        }
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

/// Our handler, with the mask and flags that the program's asks for.
fn ours_for(wish: &libc::sigaction) -> libc::sigaction {
    let mut ours = default();
    ours.sa_sigaction = handler as *const () as usize;
    ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    if is_function(wish) {
        ours.sa_mask = wish.sa_mask;
        ours.sa_flags |= wish.sa_flags & (libc::SA_NODEFER | libc::SA_RESTART);
    } else {
        // A signal that is ignored interrupts no system call.
        ours.sa_flags |= libc::SA_RESTART;
    }
    ours
}

fn is_function(action: &libc::sigaction) -> bool {
    action.sa_sigaction != libc::SIG_DFL && action.sa_sigaction != libc::SIG_IGN
}

// ---- what programs wished ----

/// Different wishes that are remembered, for good: programs have one or two.
const ROOM: usize = 64;

/// A wish, written once, before [`READY`] points to it.
struct Place(UnsafeCell<MaybeUninit<libc::sigaction>>);

// SAFETY: whoever takes a number from `TAKEN` writes the place of that number, alone and before anybody reads it.
unsafe impl Sync for Place {}

static PLACES: [Place; ROOM] = [const { Place(UnsafeCell::new(MaybeUninit::uninit())) }; ROOM];
static TAKEN: AtomicUsize = AtomicUsize::new(0);
static READY: [AtomicPtr<libc::sigaction>; ROOM] = [const { AtomicPtr::new(std::ptr::null_mut()) }; ROOM];

/// Makes a wish the signal's. False where there is no room for one more.
fn remember(which: usize, wish: &libc::sigaction) -> bool {
    let known = READY.iter().map(|r| r.load(Ordering::Acquire)).find(|known| {
        // SAFETY: NULL, or a place that was written and is not written again.
        unsafe { known.as_ref() }.is_some_and(|known| same(known, wish))
    });
    let place = known.or_else(|| {
        let number = TAKEN.try_update(Ordering::AcqRel, Ordering::Acquire, |n| (n < ROOM).then_some(n + 1));
        let number = number.ok()?;
        let place = PLACES[number].0.get().cast::<libc::sigaction>();
        // SAFETY: the number was given to nobody else.
        unsafe { place.write(*wish) };
        READY[number].store(place, Ordering::Release);
        Some(place)
    });
    if let Some(place) = place {
        WISHES[which].store(place, Ordering::Release);
    }
    place.is_some()
}

fn same(a: &libc::sigaction, b: &libc::sigaction) -> bool {
    // SAFETY: a signal set is plain bytes.
    let mask = |x: &libc::sigaction| unsafe {
        std::mem::transmute::<libc::sigset_t, [u8; size_of::<libc::sigset_t>()]>(x.sa_mask)
    };
    (a.sa_sigaction, a.sa_flags) == (b.sa_sigaction, b.sa_flags) && mask(a) == mask(b)
}

// ---- the handler ----

/// A fault in one of our copies goes on where it returns an error. All else goes to who would handle it without us. The program's
/// handler may leave by siglongjmp(3) or an exception: this frame has nothing to drop.
extern "C-unwind" fn handler(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // Codes from 1 on are the kernel's for faults; 0 and below say that somebody sent the signal (sigaction(2)).
    // SAFETY: the kernel's description of the signal.
    let faulted = unsafe { (*info).si_code } > 0;
    // SAFETY: the kernel's context of the thread.
    let at = unsafe { program_counter(context) };
    if faulted && is_guarded(*at) {
        *at = verbena_guarded_fault as *const () as usize;
        return;
    }
    let which = usize::from(signal != libc::SIGSEGV);
    // SAFETY: NULL, or a wish, which is never freed.
    let wish = unsafe { WISHES[which].load(Ordering::Acquire).as_ref() };
    match wish {
        Some(wish) if is_function(wish) => {
            if wish.sa_flags & libc::SA_RESETHAND != 0 {
                WISHES[which].store(std::ptr::null_mut(), Ordering::Release);
            }
            if wish.sa_flags & libc::SA_SIGINFO != 0 {
                // SAFETY: what the program installed for three arguments.
                let f: extern "C-unwind" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
                    unsafe { std::mem::transmute(wish.sa_sigaction) };
                f(signal, info, context);
            } else {
                // SAFETY: what the program installed for one argument.
                let f: extern "C-unwind" fn(c_int) = unsafe { std::mem::transmute(wish.sa_sigaction) };
                f(signal);
            }
        }
        // A fault can not be ignored: the kernel ends the process then too.
        Some(wish) if wish.sa_sigaction == libc::SIG_IGN && !faulted => {}
        _ => {
            // The default. A fault happens again when this returns, and ends the process as if we were not there.
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

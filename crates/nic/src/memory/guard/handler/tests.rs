//! Each in a process of its own, as dispositions of signals are the process's.

use std::sync::atomic::AtomicU32;

use super::*;
use crate::memory::guard::copy;

/// Runs `f` in a forked process; its status as waitpid(2) has it. A process in which `f` returns
/// exits with 0 where that is true.
fn in_a_process(f: impl FnOnce() -> bool) -> c_int {
    // SAFETY: the child runs `f` and ends.
    unsafe {
        let pid = libc::fork();
        assert!(pid >= 0);
        if pid == 0 {
            libc::alarm(20);
            // The panic hook's and the test harness's handlers are not the program's.
            for signal in SIGNALS {
                exchange(signal, Some(&default()));
            }
            let good = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)).unwrap_or(false);
            libc::_exit(i32::from(!good));
        }
        let mut status = -1;
        assert_eq!(libc::waitpid(pid, &raw mut status, 0), pid);
        status
    }
}

static CALLS: AtomicU32 = AtomicU32::new(0);

extern "C" fn count(_: c_int) {
    CALLS.fetch_add(1, Ordering::Relaxed);
}

fn counting() -> libc::sigaction {
    let mut action = default();
    action.sa_sigaction = count as *const () as usize;
    action
}

fn calls() -> u32 {
    CALLS.load(Ordering::Relaxed)
}

/// Whether a copy from memory that is not mapped is an error.
fn a_bad_copy_fails() -> bool {
    let mut to = [0_u8; 64];
    // SAFETY: the first pages are never mapped, and a fault there is what is tried.
    unsafe { copy(to.as_mut_ptr(), std::ptr::without_provenance(64), 64) }.is_err()
}

fn send(signal: c_int) {
    // SAFETY: a signal to this process.
    unsafe { libc::raise(signal) };
}

#[test]
fn a_signal_that_was_sent_goes_to_the_programs_handler_and_ours_stays() {
    let status = in_a_process(|| {
        exchange(libc::SIGSEGV, Some(&counting()));
        install();
        send(libc::SIGSEGV);
        send(libc::SIGSEGV);
        calls() == 2 && a_bad_copy_fails() && calls() == 2 && !is_replaced()
    });
    assert_eq!(status, 0);
}

#[test]
fn a_signal_that_was_sent_ends_a_process_that_handles_none_as_that_signal() {
    for signal in SIGNALS {
        let status = in_a_process(|| {
            install();
            send(signal);
            true
        });
        assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == signal, "{status:#x}");
    }
}

#[test]
fn a_signal_that_the_program_ignores_is_ignored_and_a_fault_of_its_own_is_not() {
    let ignoring = libc::sigaction { sa_sigaction: libc::SIG_IGN, ..default() };
    let status = in_a_process(|| {
        exchange(libc::SIGSEGV, Some(&ignoring));
        install();
        send(libc::SIGSEGV);
        a_bad_copy_fails()
    });
    assert_eq!(status, 0);
    let status = in_a_process(|| {
        exchange(libc::SIGSEGV, Some(&ignoring));
        install();
        // SAFETY: none: the fault is what is tried.
        unsafe { std::ptr::read_volatile(std::ptr::without_provenance::<u8>(64)) == 0 }
    });
    assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV, "{status:#x}");
}

#[test]
fn a_handler_set_later_is_the_programs_and_sees_no_fault_of_a_copy() {
    let status = in_a_process(|| {
        install();
        let (wish, mut old, mut now) = (counting(), counting(), default());
        // SAFETY: structures of ours.
        unsafe {
            assert_eq!(program_sets(libc::SIGSEGV, &raw const wish, &raw mut old), Some(0));
            assert_eq!(program_sets(libc::SIGSEGV, std::ptr::null(), &raw mut now), Some(0));
            assert_eq!(program_sets(libc::SIGTERM, std::ptr::null(), &raw mut now), None);
        }
        assert_eq!(old.sa_sigaction, libc::SIG_DFL);
        assert_eq!((now.sa_sigaction, now.sa_flags), (counting().sa_sigaction, 0));
        assert!(a_bad_copy_fails() && calls() == 0);
        send(libc::SIGSEGV);
        calls() == 1 && !is_replaced()
    });
    assert_eq!(status, 0);
}

#[test]
fn a_handler_is_called_once_where_the_program_asked_for_that() {
    let status = in_a_process(|| {
        install();
        let once = libc::sigaction { sa_flags: libc::SA_RESETHAND, ..counting() };
        // SAFETY: structures of ours.
        unsafe { program_sets(libc::SIGBUS, &raw const once, std::ptr::null_mut()) };
        send(libc::SIGBUS);
        assert_eq!(calls(), 1);
        send(libc::SIGBUS);
        true
    });
    assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGBUS, "{status:#x}");
}

#[test]
fn a_handler_set_past_us_is_noticed_after_so_many_copies() {
    let status = in_a_process(|| {
        install();
        exchange(libc::SIGSEGV, Some(&counting()));
        let noticed = (0..LOOK_EVERY).any(|_| is_replaced());
        // By system call from now on, and the handler is left alone.
        noticed && a_bad_copy_fails() && calls() == 0
    });
    assert_eq!(status, 0);
}

#[test]
fn a_handler_is_remembered_with_its_flags_and_its_mask() {
    let status = in_a_process(|| {
        install();
        let signals = [libc::SIGHUP, libc::SIGTERM, 64];
        for flags in [0, libc::SA_SIGINFO | libc::SA_ONSTACK, libc::SA_RESTART | libc::SA_NODEFER, -1] {
            for function in [libc::SIG_DFL, libc::SIG_IGN, counting().sa_sigaction] {
                let flags = FLAGS.iter().fold(0, |all, flag| all | flag & flags);
                let mut set = libc::sigaction { sa_sigaction: function, sa_flags: flags, ..default() };
                // SAFETY: signals of this range exist, and a set of ours.
                signals.iter().for_each(|s| _ = unsafe { libc::sigaddset(&raw mut set.sa_mask, *s) });
                let (mut old, mut now) = (default(), default());
                // SAFETY: structures of ours.
                unsafe {
                    assert_eq!(program_sets(libc::SIGBUS, &raw const set, &raw mut old), Some(0));
                    assert_eq!(program_sets(libc::SIGBUS, std::ptr::null(), &raw mut now), Some(0));
                }
                assert_eq!((now.sa_sigaction, now.sa_flags), (function, flags));
                // SAFETY: as above.
                let blocks = |s| unsafe { libc::sigismember(&raw const now.sa_mask, s) == 1 };
                assert!((1..=64).all(|s| blocks(s) == signals.contains(&s)));
            }
        }
        !is_replaced()
    });
    assert_eq!(status, 0);
}

#[test]
fn a_program_may_set_handlers_as_often_as_it_likes_and_ours_stays() {
    let status = in_a_process(|| {
        install();
        for n in 0..=1_000_u32 {
            // Sixteen signals and two flags: 2^18 that differ, and of each structure the bytes
            // behind what sigemptyset(3) writes.
            let mut action = std::mem::MaybeUninit::<libc::sigaction>::uninit();
            // SAFETY: room for an action, all of which is written.
            let set = unsafe {
                action.as_mut_ptr().write_bytes(n as u8, 1);
                let set = action.as_mut_ptr();
                (*set).sa_sigaction = count as *const () as usize;
                (*set).sa_flags =
                    (libc::SA_RESTART * (n % 2) as c_int) | (libc::SA_NODEFER * (n / 2 % 2) as c_int);
                (&raw mut (*set).sa_mask).cast::<u64>().write_unaligned(u64::from(n) << 16);
                set
            };
            // SAFETY: a structure of ours.
            assert_eq!(unsafe { program_sets(libc::SIGSEGV, set, std::ptr::null_mut()) }, Some(0));
            assert!(is_ours(&exchange(libc::SIGSEGV, None)), "set {n} times");
        }
        assert!(a_bad_copy_fails() && calls() == 0 && !is_replaced());
        send(libc::SIGSEGV);
        calls() == 1
    });
    assert_eq!(status, 0);
}

#[test]
fn a_handler_that_is_no_address_is_the_systems_and_copies_do_without() {
    let status = in_a_process(|| {
        install();
        let nowhere = libc::sigaction { sa_sigaction: usize::MAX, ..default() };
        // SAFETY: a structure of ours; the handler is not called.
        unsafe { program_sets(libc::SIGSEGV, &raw const nowhere, std::ptr::null_mut()) };
        assert_eq!(exchange(libc::SIGSEGV, None).sa_sigaction, usize::MAX);
        is_replaced() && a_bad_copy_fails()
    });
    assert_eq!(status, 0);
}

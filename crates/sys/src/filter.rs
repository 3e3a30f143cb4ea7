//! For tests: a thread for which the kernel refuses some system calls (seccomp(2)).

use std::ffi::c_long;

/// Runs `test` on a thread of its own, for which the system calls of these numbers fail with
/// `errno`. What it starts inherits that.
///
/// # Panics
///
/// Where `test` does, and where the kernel takes no filter.
pub fn with_refused<T: Send>(calls: &[c_long], errno: i32, test: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let filtered = scope.spawn(|| {
            refuse(calls, errno);
            test()
        });
        filtered.join().expect("the test on the thread")
    })
}

fn refuse(calls: &[c_long], errno: i32) {
    // linux/filter.h: BPF_LD | BPF_W | BPF_ABS of the call's number, BPF_JMP | BPF_JEQ | BPF_K,
    // BPF_RET | BPF_K.
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let answer = libc::SECCOMP_RET_ERRNO | errno as u32;
    let mut program = vec![step(0x20, 0, 0, 0)];
    for call in calls {
        program.extend([step(0x15, 0, 1, *call as u32), step(0x06, 0, 0, answer)]);
    }
    program.push(step(0x06, 0, 0, libc::SECCOMP_RET_ALLOW));
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the kernel copies one sock_fprog and the instructions it points to, which live across
    // the call. A filter takes rights from the calling thread, and from what it starts, only.
    let taken = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter) == 0
    };
    assert!(taken, "no filter: {}", std::io::Error::last_os_error());
}

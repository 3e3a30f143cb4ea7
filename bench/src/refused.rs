//! A program to which the system refuses copies between processes' memory, as containers do by a
//! filter of system calls (seccomp(2)): `verbena-bench refused PROGRAM ARGS`.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Becomes the program.
///
/// # Errors
/// When there is no such program, or the system takes no filter; `InvalidInput` where none is
/// named.
pub(crate) fn run(args: &[String]) -> io::Result<()> {
    let (program, args) = args.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    refuse()?;
    Err(Command::new(program).args(args).exec())
}

/// From now on process_vm_readv(2) and process_vm_writev(2) fail with EPERM, for this thread and
/// all that it starts.
fn refuse() -> io::Result<()> {
    let instruction = |code: u32, jt, k| libc::sock_filter { code: code as u16, jt, jf: 0, k };
    let is = |number, skip| instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, skip, number as u32);
    let answer = |answer| instruction(libc::BPF_RET | libc::BPF_K, 0, answer);
    let mut filter = [
        // The call's number, which the kernel puts in front of all else.
        instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        is(libc::SYS_process_vm_readv, 2),
        is(libc::SYS_process_vm_writev, 1),
        answer(libc::SECCOMP_RET_ALLOW),
        answer(libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: integers, and a filter that lives across the call, which copies it.
    let done = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
    };
    if done { Ok(()) } else { Err(io::Error::last_os_error()) }
}

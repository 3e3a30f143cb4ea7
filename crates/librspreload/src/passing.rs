//! Descriptors that go to other processes (SCM_RIGHTS, unix(7); posix_spawn(3)), or to calls that a
//! preloaded object does not see: a stream by RDMA becomes an ordinary socket before, and a
//! listener is TCP's alone from then on.

use std::ffi::{c_char, c_int, c_uint};

use libc::{CMSG_DATA, CMSG_FIRSTHDR, CMSG_NXTHDR, FILE, iovec, loff_t, msghdr, off_t, ssize_t};

use crate::sockets::found;
use crate::table::Way;
use crate::{lending, real};

/// Prepares the descriptors of a message that is about to be sent.
///
/// # Safety
///
/// sendmsg(2)'s contract.
pub unsafe fn prepare(msg: *const msghdr) {
    // SAFETY: the caller's message, whose control messages are as long as it says.
    unsafe {
        if msg.is_null() || (*msg).msg_control.is_null() || (*msg).msg_controllen == 0 {
            return;
        }
        let mut header = CMSG_FIRSTHDR(msg);
        while let Some(control) = header.as_ref() {
            if (control.cmsg_level, control.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                let data: *const c_int = CMSG_DATA(header).cast();
                let len = control.cmsg_len.saturating_sub(libc::CMSG_LEN(0) as usize);
                (0..len / size_of::<c_int>()).for_each(|n| passes(data.add(n).read_unaligned()));
            }
            header = CMSG_NXTHDR(msg, header);
        }
    }
}

fn passes(fd: c_int) {
    let Some((entry, calls)) = found(fd) else { return };
    match entry.way() {
        // Where there is no thread for it the receiver finds a socket that is not connected.
        Way::Rdma => _ = lending::lend(calls, &entry),
        Way::Listening => lending::give_up_listener(calls, &entry),
        _ => {}
    }
}

macro_rules! passed {
    ($($(#[$doc:meta])+ fn $name:ident($($arg:ident: $t:ty),*) -> $out:ty, of $($fd:ident),+;)*) => {
        $(
            $(#[$doc])+
            #[cfg_attr(not(test), unsafe(no_mangle))]
            pub unsafe extern "C-unwind" fn $name($($arg: $t),*) -> $out {
                $(passes($fd);)+
                // SAFETY: the man page's contract.
                unsafe { real::$name($($arg),*) }
            }
        )*
    };
}

passed! {
    /// fdopen(3), whose stream makes system calls by itself.
    fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE, of fd;
    /// splice(2).
    fn splice(from: c_int, at: *mut loff_t, to: c_int, to_at: *mut loff_t, len: usize, flags: c_uint) -> ssize_t, of from, to;
    /// preadv2(2).
    fn preadv2(fd: c_int, iov: *const iovec, count: c_int, at: off_t, flags: c_int) -> ssize_t, of fd;
    /// pwritev2(2).
    fn pwritev2(fd: c_int, iov: *const iovec, count: c_int, at: off_t, flags: c_int) -> ssize_t, of fd;
    /// preadv2(2), by the name of files that may be long.
    fn preadv64v2(fd: c_int, iov: *const iovec, count: c_int, at: off_t, flags: c_int) -> ssize_t, of fd;
    /// pwritev2(2), likewise.
    fn pwritev64v2(fd: c_int, iov: *const iovec, count: c_int, at: off_t, flags: c_int) -> ssize_t, of fd;
    /// posix_spawn_file_actions_adddup2(3).
    fn posix_spawn_file_actions_adddup2(actions: *mut libc::posix_spawn_file_actions_t, fd: c_int, to: c_int) -> c_int, of fd;
}

//! A process of this host without the library: its sockets, what it sends by them, and memory that
//! it shares.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use stack::Name;

/// A socket of the kind that names are.
fn socket() -> OwnedFd {
    // SAFETY: integers only; the descriptor is new.
    unsafe { OwnedFd::from_raw_fd(libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET, 0)) }
}

fn address(text: &str) -> (libc::sockaddr_un, u32) {
    // SAFETY: all zero is a valid address.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as u16;
    for (to, from) in address.sun_path[1..].iter_mut().zip(text.bytes()) {
        *to = from as libc::c_char;
    }
    (address, (2 + 1 + text.len()) as u32)
}

/// The text of a name of this process's user.
pub(crate) fn own_text(name: Name) -> String {
    // SAFETY: a query without arguments.
    linux::name_text::text(name, unsafe { libc::geteuid() })
}

/// A connection to the process that bears a name.
pub(crate) fn connect(text: &str) -> OwnedFd {
    let (socket, (address, len)) = (socket(), address(text));
    // SAFETY: an address that lives across the call.
    assert_eq!(unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), len) }, 0);
    socket
}

/// A socket that bears a name, and takes connections.
pub(crate) fn bear(text: &str) -> OwnedFd {
    let (socket, (address, len)) = (socket(), address(text));
    // SAFETY: an address that lives across the calls.
    unsafe {
        assert_eq!(libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len), 0);
        assert_eq!(libc::listen(socket.as_raw_fd(), 8), 0);
    }
    socket
}

/// The next connection to such a socket.
pub(crate) fn accept(listener: &OwnedFd) -> OwnedFd {
    // SAFETY: no address is asked for; the descriptor is new.
    unsafe {
        let fd = libc::accept(listener.as_raw_fd(), std::ptr::null_mut(), std::ptr::null_mut());
        assert!(fd >= 0);
        OwnedFd::from_raw_fd(fd)
    }
}

/// Sends a message, and a descriptor with it.
pub(crate) fn send(socket: &OwnedFd, bytes: &[u8], descriptor: Option<&OwnedFd>) {
    let mut control = [0u64; 3];
    control[0] = 20;
    let kind = [libc::SOL_SOCKET.to_ne_bytes(), libc::SCM_RIGHTS.to_ne_bytes()].concat();
    control[1] = u64::from_ne_bytes(kind.try_into().unwrap());
    control[2] = descriptor.map_or(0, |descriptor| descriptor.as_raw_fd() as u64);
    let mut buffer = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: the message names memory of this frame and of the caller's; the control message has
    // the layout of cmsg(3) on 64-bit Linux.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        (message.msg_iov, message.msg_iovlen) = (&raw mut buffer, 1);
        if descriptor.is_some() {
            (message.msg_control, message.msg_controllen) = (control.as_mut_ptr().cast(), 24);
        }
        let sent = libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL);
        assert_eq!(sent, bytes.len() as isize);
    }
}

/// The next message within a time, and the descriptor with it.
pub(crate) fn receive(socket: &OwnedFd, time: Duration) -> Option<(Vec<u8>, Option<OwnedFd>)> {
    let mut poll = libc::pollfd { fd: socket.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let (mut bytes, mut control) = ([0u8; 64], [0u64; 8]);
    let mut buffer = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: 64 };
    // SAFETY: as above; the kernel writes into arrays of this frame, no more than it is told.
    unsafe {
        if libc::poll(&raw mut poll, 1, time.as_millis() as i32) == 0 {
            return None;
        }
        let mut message: libc::msghdr = std::mem::zeroed();
        (message.msg_iov, message.msg_iovlen) = (&raw mut buffer, 1);
        (message.msg_control, message.msg_controllen) = (control.as_mut_ptr().cast(), 64);
        let len = libc::recvmsg(socket.as_raw_fd(), &raw mut message, 0);
        let descriptor = (message.msg_controllen > 0).then(|| OwnedFd::from_raw_fd(control[2] as u32 as i32));
        (len > 0).then(|| (bytes[..len as usize].to_vec(), descriptor))
    }
}

/// New memory of a length that stays, and its words. They are never unmapped.
pub(crate) fn memory(len: usize) -> (OwnedFd, &'static [AtomicU64]) {
    // SAFETY: a descriptor and a mapping of the test's own.
    unsafe {
        let flags = libc::MFD_ALLOW_SEALING | libc::MFD_CLOEXEC;
        let memory = OwnedFd::from_raw_fd(libc::memfd_create(c"a liar's".as_ptr(), flags));
        assert_eq!(libc::ftruncate(memory.as_raw_fd(), len as i64), 0);
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        assert_eq!(libc::fcntl(memory.as_raw_fd(), libc::F_ADD_SEALS, seals), 0);
        let (rights, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        let at = libc::mmap(std::ptr::null_mut(), len, rights, shared, memory.as_raw_fd(), 0);
        assert_ne!(at, libc::MAP_FAILED);
        (memory, std::slice::from_raw_parts(at.cast::<AtomicU64>(), len / 8))
    }
}

/// The inode of a descriptor.
pub(crate) fn inode(fd: &OwnedFd) -> u64 {
    // SAFETY: all zero is a valid stat, which the kernel fills.
    unsafe {
        let mut about: libc::stat = std::mem::zeroed();
        assert_eq!(libc::fstat(fd.as_raw_fd(), &raw mut about), 0);
        about.st_ino
    }
}

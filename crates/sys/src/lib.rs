//! What Linux offers to a process and neither the standard library nor socket2 does, as safe
//! functions. Also descriptors that end with a fork, and statics that a child finds fresh.
//!
//! Internal to Verbena: it promises no stability.
//!
//! It is under every crate that makes system calls of its own, so that none of them needs another
//! one for that. It knows nothing of RDMA.
//!
//! | module | what |
//! |---|---|
//! | this one | calls of no module: sockets, descriptors, users, namespaces, mounts |
//! | `message` | [`receive`]: recvmsg(2) and its control messages |
//! | `vectored`, `disconnect` | what streams need of sockets |
//! | [`files`] | files without a name, named pipes, one descriptor's poll(2) |
//! | [`inotify`] | what happens to files |
//! | `epoll` | [`Epoll`]: what a thread waits with for many descriptors |
//! | [`time`], [`clock`] | cheap clocks; the time as a number that fits an atomic |
//! | [`thread`] | the calling thread: number, signals, cancellation, processors |
//! | [`limits`], [`file_size`] | how much there is to be had; files that may not grow |
//! | [`refused`] | calls that are not to be had |
//! | [`fork`] | descriptors that end with a fork, and the count of forks |
//! | [`per_process`] | statics that a forked child finds fresh: the rule for all crates |
//! | [`filter`] | for tests: a thread for which the kernel refuses some calls |
//!
//! Its calls go by libc and not by rustix, whose 1.1 has no place for two of them. Its credentials
//! of a peer (SO_PEERCRED) cannot hold process 0, which is what the kernel says of one in another
//! PID namespace. Its `epoll::wait` counts in milliseconds, or with its feature `linux_5_11` works
//! on no older kernel. For the rest, the user's number among it, a second crate for system calls is
//! one too many.

pub mod clock;
mod disconnect;
mod epoll;
pub mod file_size;
pub mod files;
#[doc(hidden)]
pub mod filter;
pub mod fork;
pub mod inotify;
pub mod limits;
mod message;
pub mod per_process;
pub mod refused;
pub mod thread;
pub mod time;
mod vectored;

use std::ffi::{CStr, c_ulong};
use std::fs::File;
use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, RawFd};

use arrayvec::ArrayVec;
use libc::{c_int, c_void, socklen_t};

use crate::fork::Fd;
pub use disconnect::{disconnect, unacknowledged};
pub use epoll::Epoll;
pub use message::{Control, ControlBuffer, Received, Room, receive};
pub use vectored::{receive_pieces, send_pieces};

/// The hop limit where the program asks for none, the number IANA recommends.
pub const DEFAULT_HOP_LIMIT: u8 = 64;

/// What a call that returns -1 on failure came to.
fn check(result: c_int) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// Sets a socket option that is an int.
pub fn set_option(fd: impl AsFd, level: c_int, name: c_int, value: c_int) -> io::Result<()> {
    let fd = fd.as_fd().as_raw_fd();
    // SAFETY: the kernel reads `size_of::<c_int>()` bytes from `value`, which lives across the
    // call.
    let result = unsafe {
        libc::setsockopt(fd, level, name, (&raw const value).cast(), size_of::<c_int>() as socklen_t)
    };
    check(result).map(drop)
}

/// Reads a socket option of fixed size into `value`.
fn option<T: Copy>(fd: &Fd, name: c_int, mut value: T) -> io::Result<T> {
    let mut len = size_of::<T>() as socklen_t;
    // SAFETY: the kernel writes at most `len` bytes into `value`, which is that large; callers name
    // plain numbers only.
    let result = unsafe {
        libc::getsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, name, (&raw mut value).cast(), &raw mut len)
    };
    check(result).map(|_| value)
}

/// The user at the other end of a Unix socket when it connected or listened (SO_PEERCRED, unix(7)),
/// by its number in our user namespace: the overflow uid where it has none there.
pub fn peer_uid(fd: &Fd) -> io::Result<u32> {
    Ok(option(fd, libc::SO_PEERCRED, libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX })?.uid)
}

/// The process at the other end of a Unix socket when it connected or listened (SO_PEERCRED,
/// unix(7)); 0 where it has no number in our namespace.
pub fn peer_pid(fd: &Fd) -> io::Result<i32> {
    Ok(option(fd, libc::SO_PEERCRED, libc::ucred { pid: 0, uid: 0, gid: 0 })?.pid)
}

/// Whether a thread of another process is stopped, by a signal or a debugger (proc_pid_stat(5)).
/// False where that can not be found out.
pub fn is_stopped(process: i32, thread: u32) -> bool {
    let line = std::fs::read_to_string(format!("/proc/{process}/task/{thread}/stat")).unwrap_or_default();
    let state = line.rsplit_once(')').and_then(|(_, rest)| rest.trim_start().chars().next());
    matches!(state, Some('T' | 't'))
}

/// Whether the other end of a connected socket has hung up (poll(2)).
pub fn has_hung_up(fd: &Fd) -> bool {
    let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLRDHUP, revents: 0 };
    // SAFETY: one structure that lives across the call, which does not wait.
    let ready = unsafe { libc::poll(&raw mut poll, 1, 0) };
    ready > 0 && poll.revents & (libc::POLLHUP | libc::POLLRDHUP | libc::POLLERR) != 0
}

/// SO_PEERPIDFD (Linux 6.5; asm-generic/socket.h).
const SO_PEERPIDFD: c_int = 77;
/// Whether the process at the other end of a Unix socket is one that the kernel lets us send a
/// signal to, which it does where the user is ours, whatever its number (kill(2)). False where that
/// can not be found out, and for one that has ended.
pub fn may_signal_peer(fd: &Fd) -> bool {
    let process = option(fd, SO_PEERPIDFD, -1).and_then(|raw| Fd::open_raw(|| raw));
    process.is_ok_and(|process| {
        let information = std::ptr::null::<c_void>();
        // SAFETY: signal 0 is none, and the kernel allows information to be missing.
        let sent =
            unsafe { libc::syscall(libc::SYS_pidfd_send_signal, process.as_raw_fd(), 0, information, 0u32) };
        sent == 0
    })
}

/// Whether the process at the other end of a Unix socket still is the one that connected or
/// listened, as its number says. True, too, where the system can not tell (Linux 6.5 can).
pub fn peer_lives(fd: &Fd) -> bool {
    match option(fd, SO_PEERPIDFD, -1).and_then(|raw| Fd::open_raw(|| raw)) {
        Ok(process) => {
            let mut poll = libc::pollfd { fd: process.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: one structure that lives across the call, which does not wait.
            unsafe { libc::poll(&raw mut poll, 1, 0) == 0 }
        }
        Err(error) => error.raw_os_error() != Some(libc::ESRCH),
    }
}

/// The inode of an open file, which names it as long as it is open anywhere.
pub fn inode(fd: &Fd) -> io::Result<u64> {
    // SAFETY: all zero is a valid stat, which the kernel fills.
    let mut about: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: one stat that lives across the call.
    check(unsafe { libc::fstat(fd.as_raw_fd(), &raw mut about) })?;
    Ok(about.st_ino)
}

/// Sends a signal to a process (kill(2)).
///
/// # Errors
///
/// ESRCH where there is no such process, EPERM where it is not ours.
pub fn send_signal(process: u32, signal: c_int) -> io::Result<()> {
    // SAFETY: no pointers.
    match unsafe { libc::kill(process.cast_signed(), signal) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The effective user of this process.
pub fn own_uid() -> u32 {
    // SAFETY: it takes nothing and can not fail.
    unsafe { libc::geteuid() }
}

/// The effective group of this process.
pub fn own_gid() -> u32 {
    // SAFETY: it takes nothing and can not fail.
    unsafe { libc::getegid() }
}

/// The real user and group of this process.
pub fn real_ids() -> (u32, u32) {
    // SAFETY: they take nothing and can not fail.
    unsafe { (libc::getuid(), libc::getgid()) }
}

/// Whether a file has an extended attribute (xattr(7)).
pub fn has_attribute(file: &CStr, name: &CStr) -> bool {
    // SAFETY: two strings that live across the call, which writes nothing.
    unsafe { libc::getxattr(file.as_ptr(), name.as_ptr(), std::ptr::null_mut(), 0) >= 0 }
}

/// Whether nothing that lies in this directory may be executed: it is on a file system mounted with
/// `noexec` (statvfs(3)).
pub fn refuses_execution(dir: &CStr) -> io::Result<bool> {
    let mut system = MaybeUninit::<libc::statvfs>::zeroed();
    // SAFETY: the string lives across the call; the C library writes one `statvfs`, for which all
    // zero is valid.
    let system = unsafe {
        check(libc::statvfs(dir.as_ptr(), system.as_mut_ptr()))?;
        system.assume_init()
    };
    // MS_NOEXEC of mount(2), 8: the libc crate has ST_NOEXEC of the same value for other systems
    // only.
    Ok(system.f_flag & libc::MS_NOEXEC != 0)
}

/// Moves the process into new namespaces (unshare(2)).
pub fn unshare(namespaces: c_int) -> io::Result<()> {
    // SAFETY: no pointers.
    check(unsafe { libc::unshare(namespaces) }).map(drop)
}

/// Moves the process, which must have one thread, into a user namespace (setns(2)).
pub fn join_user_namespace(namespace: &File) -> io::Result<()> {
    // SAFETY: no pointers.
    check(unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWUSER) }).map(drop)
}

/// The namespace in which a user namespace was made (NS_GET_PARENT, ioctl_ns(2)).
pub fn parent_user_namespace(namespace: &File) -> io::Result<File> {
    // SAFETY: it takes nothing but the descriptor.
    let parent = check(unsafe { libc::ioctl(namespace.as_raw_fd(), libc::NS_GET_PARENT as _) })?;
    // SAFETY: the kernel has opened it for us, and nothing else knows of it.
    Ok(unsafe { File::from_raw_fd(parent as RawFd) })
}

/// mount(2).
pub fn mount(
    source: &CStr,
    target: &CStr,
    kind: Option<&CStr>,
    flags: c_ulong,
    options: Option<&CStr>,
) -> io::Result<()> {
    let pointer = |text: Option<&CStr>| text.map_or(std::ptr::null(), CStr::as_ptr);
    // SAFETY: strings that live across the call, or NULL where the kernel allows it.
    check(unsafe {
        libc::mount(source.as_ptr(), target.as_ptr(), pointer(kind), flags, pointer(options).cast())
    })
    .map(drop)
}

/// Takes a mount away, used or not (umount2(2)).
pub fn unmount(target: &CStr) -> io::Result<()> {
    // SAFETY: a string that lives across the call.
    check(unsafe { libc::umount2(target.as_ptr(), libc::MNT_DETACH) }).map(drop)
}

/// Whether another process may copy from and to the memory of this one: a child tries.
pub fn try_copies() -> io::Result<()> {
    let mut word = 0_u64;
    let ours = libc::iovec { iov_base: (&raw mut word).cast(), iov_len: size_of::<u64>() };
    // SAFETY: no pointers.
    let parent = unsafe { libc::getpid() };
    try_in_child(|| {
        // SAFETY: eight bytes of the child's own, and the same ones of its parent, which nothing
        // else uses.
        let (read, written) = unsafe {
            let read = libc::process_vm_readv(parent, &raw const ours, 1, &raw const ours, 1, 0);
            (read, libc::process_vm_writev(parent, &raw const ours, 1, &raw const ours, 1, 0))
        };
        check(read.min(written) as c_int).map(drop)
    })
}

/// Copies bytes of this process, wherever they are.
///
/// # Errors
///
/// EFAULT where they are not all there to be read; EPERM or ENOSYS where the system refuses the
/// call.
pub fn read_own(addr: u64, bytes: &mut [u8]) -> io::Result<()> {
    let to = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let from =
        libc::iovec { iov_base: std::ptr::without_provenance_mut(addr as usize), iov_len: bytes.len() };
    // SAFETY: the kernel writes to the caller's bytes, and says so where it cannot read the others.
    let read = unsafe { libc::process_vm_readv(libc::getpid(), &raw const to, 1, &raw const from, 1, 0) };
    match usize::try_from(read) {
        Ok(read) if read == bytes.len() => Ok(()),
        Ok(_) => Err(io::Error::from_raw_os_error(libc::EFAULT)),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

/// Runs `attempt` in a forked child, and tells how it ended. Where the process has several threads
/// it makes system calls only.
pub fn try_in_child(attempt: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    // SAFETY: no pointers. With one thread the child may do all that its parent may.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let code = attempt().err().map_or(0, |error| error.raw_os_error().unwrap_or(libc::EIO).clamp(1, 255));
        // SAFETY: it does not return; nothing of the parent's is flushed or run down twice.
        unsafe { libc::_exit(code) };
    }
    check(child)?;
    let mut status = 0;
    // SAFETY: the kernel writes one int.
    while unsafe { libc::waitpid(child, &raw mut status, 0) } == -1 {
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    match (libc::WIFEXITED(status), libc::WEXITSTATUS(status)) {
        (true, 0) => Ok(()),
        (true, code) => Err(io::Error::from_raw_os_error(code)),
        (false, _) => Err(io::Error::from_raw_os_error(libc::EIO)),
    }
}

/// A routing netlink socket, bound, with the multicast groups of `groups` (bit n-1 for group n).
pub fn netlink_socket(groups: u32, flags: c_int) -> io::Result<Fd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | flags;
    // SAFETY: no pointers.
    let fd = Fd::open_raw(|| unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_ROUTE) })?;
    // SAFETY: all zero is a valid sockaddr_nl.
    let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
    address.nl_family = libc::AF_NETLINK as u16;
    address.nl_groups = groups;
    let len = size_of::<libc::sockaddr_nl>() as socklen_t;
    // SAFETY: the kernel reads `len` bytes from `address`.
    check(unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), len) })?;
    Ok(fd)
}

/// Bytes of a cmsghdr: length, level, type.
const CMSG_HEADER: usize = size_of::<libc::cmsghdr>();
const CMSG_ALIGN: usize = size_of::<usize>();

/// The int at the front of `bytes`.
pub fn first_int(bytes: &[u8]) -> Option<c_int> {
    bytes.first_chunk().map(|bytes| c_int::from_ne_bytes(*bytes))
}

/// The control message that makes one `sendmsg` many datagrams of `size` bytes (UDP_SEGMENT,
/// udp(7)).
#[inline]
pub fn segment_control(size: u16) -> [u8; CMSG_HEADER + CMSG_ALIGN] {
    let mut bytes = [0; CMSG_HEADER + CMSG_ALIGN];
    bytes[..size_of::<usize>()].copy_from_slice(&(CMSG_HEADER + 2).to_ne_bytes());
    bytes[CMSG_HEADER - 8..CMSG_HEADER - 4].copy_from_slice(&libc::SOL_UDP.to_ne_bytes());
    bytes[CMSG_HEADER - 4..CMSG_HEADER].copy_from_slice(&libc::UDP_SEGMENT.to_ne_bytes());
    bytes[CMSG_HEADER..CMSG_HEADER + 2].copy_from_slice(&size.to_ne_bytes());
    bytes
}

/// sendmsg(2) of one byte and a descriptor (SCM_RIGHTS, unix(7)) to a connected Unix socket.
pub fn send_descriptor(to: impl AsFd, bytes: &[u8], descriptor: impl AsFd) -> io::Result<()> {
    let mut control = [0; CMSG_HEADER + CMSG_ALIGN];
    control[..size_of::<usize>()].copy_from_slice(&(CMSG_HEADER + size_of::<c_int>()).to_ne_bytes());
    control[CMSG_HEADER - 8..CMSG_HEADER - 4].copy_from_slice(&libc::SOL_SOCKET.to_ne_bytes());
    control[CMSG_HEADER - 4..CMSG_HEADER].copy_from_slice(&libc::SCM_RIGHTS.to_ne_bytes());
    let descriptor = descriptor.as_fd().as_raw_fd();
    control[CMSG_HEADER..CMSG_HEADER + 4].copy_from_slice(&descriptor.to_ne_bytes());
    let buffers = [io::IoSlice::new(bytes)];
    let message = socket2::MsgHdr::new().with_buffers(&buffers).with_control(&control);
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    socket2::SockRef::from(&to).sendmsg(&message, flags).map(drop)
}

/// Two sockets, connected to each other; that a thread waits at by readv(2), and one to wake it by.
pub fn socket_pair() -> io::Result<(Fd, Fd)> {
    let mut second = Err(io::ErrorKind::Other.into());
    let first = Fd::open(|| {
        let (first, other) = std::os::unix::net::UnixStream::pair()?;
        second = Ok(other);
        Ok::<_, io::Error>(first)
    })?;
    Ok((first, Fd::open(|| second)?))
}

/// Writes a byte to a socket, without waiting; false where no process will read it. Where there is
/// no room for it there are bytes that wake the reader.
pub fn wake(socket: &Fd) -> bool {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    let sent = socket2::SockRef::from(socket).send_with_flags(&[1], flags);
    sent.is_ok() || sent.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
}

/// The descriptors that came with a message (SCM_RIGHTS); those that the caller does not take are
/// closed.
pub fn take_descriptors(control: Control<'_>) -> Vec<Fd> {
    let sent = control.filter(|(level, kind, _)| (*level, *kind) == (libc::SOL_SOCKET, libc::SCM_RIGHTS));
    let numbers =
        sent.flat_map(|(_, _, data)| data.as_chunks().0.iter().map(|four| c_int::from_ne_bytes(*four)));
    numbers.filter_map(|raw| Fd::open_raw(|| raw).ok()).collect()
}

/// Two control messages of an int each.
pub type HopControl = [u8; 2 * (CMSG_HEADER + CMSG_ALIGN)];

/// The control messages that give one `sendmsg` its traffic class and hop limit (ip(7), ipv6(7)); 0
/// is the usual hop limit.
pub fn hop_control(v4: bool, traffic_class: u8, hop_limit: u8) -> HopControl {
    let (level, class, limit) = match v4 {
        true => (libc::IPPROTO_IP, libc::IP_TOS, libc::IP_TTL),
        false => (libc::IPPROTO_IPV6, libc::IPV6_TCLASS, libc::IPV6_HOPLIMIT),
    };
    let hop_limit = if hop_limit == 0 { DEFAULT_HOP_LIMIT } else { hop_limit };
    let mut bytes = [0; 2 * (CMSG_HEADER + CMSG_ALIGN)];
    let (first, second) = bytes.split_at_mut(CMSG_HEADER + CMSG_ALIGN);
    for (to, kind, value) in [(first, class, traffic_class), (second, limit, hop_limit)] {
        to[..size_of::<usize>()].copy_from_slice(&(CMSG_HEADER + size_of::<c_int>()).to_ne_bytes());
        to[CMSG_HEADER - 8..CMSG_HEADER - 4].copy_from_slice(&level.to_ne_bytes());
        to[CMSG_HEADER - 4..CMSG_HEADER].copy_from_slice(&kind.to_ne_bytes());
        to[CMSG_HEADER..CMSG_HEADER + 4].copy_from_slice(&c_int::from(value).to_ne_bytes());
    }
    bytes
}

/// Sockets that [`readable`] asks about at once.
pub const ASKED_AT_ONCE: usize = 64;

/// Which of the sockets can be read now, or have an error to tell; all of them where the system
/// does not say. [`ASKED_AT_ONCE`] at most, others are not looked at.
pub fn readable<'a>(sockets: impl Iterator<Item = &'a Fd>) -> ArrayVec<bool, ASKED_AT_ONCE> {
    let of = |fd: &Fd| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let mut asked: ArrayVec<libc::pollfd, ASKED_AT_ONCE> = sockets.take(ASKED_AT_ONCE).map(of).collect();
    // SAFETY: an array of that many structures that lives through the call, which does not wait.
    let told = unsafe { libc::poll(asked.as_mut_ptr(), asked.len() as libc::nfds_t, 0) };
    asked.iter().map(|fd| told < 0 || fd.revents != 0).collect()
}

/// Lets nothing that arrives into a socket: what comes to a port that only sends would lie there
/// for ever. ICMP errors for what was sent are told all the same, as they take another way.
pub fn receive_nothing(fd: &Fd) -> io::Result<()> {
    // BPF_RET | BPF_K: so many bytes of every packet are kept (linux/filter.h).
    let mut none = libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: 0 };
    let program = libc::sock_fprog { len: 1, filter: &raw mut none };
    // SAFETY: the kernel reads one sock_fprog and the one instruction it points to, which live
    // across the call.
    let result = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const program).cast(),
            size_of::<libc::sock_fprog>() as socklen_t,
        )
    };
    check(result).map(drop)
}

/// Touches the pages of a range, as far as they are mapped, to be written where they may be; waits
/// for them.
pub fn touch(addr: u64, len: u64) {
    let (start, end) = (addr & !4095, addr.saturating_add(len).next_multiple_of(4096));
    for advice in [libc::MADV_POPULATE_WRITE, libc::MADV_POPULATE_READ] {
        // SAFETY: this advice changes no content; a range that is not mapped is an error, not a
        // fault.
        if unsafe { libc::madvise(start as *mut c_void, (end - start) as usize, advice) } == 0 {
            return;
        }
    }
}

/// A descriptor that another thread can make readable (eventfd(2)).
pub struct WakeFd(Fd);

impl WakeFd {
    /// A wake descriptor that has not rung.
    ///
    /// # Errors
    ///
    /// What eventfd(2) says.
    pub fn new() -> io::Result<Self> {
        // SAFETY: no pointers.
        Fd::open_raw(|| unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) }).map(WakeFd)
    }

    /// Makes the descriptor readable.
    pub fn wake(&self) {
        let one = 1u64;
        // SAFETY: the kernel reads eight bytes. It fails only where the counter is full, and then
        // it is readable.
        unsafe { libc::write(self.0.as_raw_fd(), (&raw const one).cast(), 8) };
    }

    /// Silences the wake descriptor; returns how often it has rung.
    pub fn drain(&self) -> u64 {
        let mut count = 0u64;
        // SAFETY: the kernel writes eight bytes into `count`. It fails only where nothing has rung.
        unsafe { libc::read(self.0.as_raw_fd(), (&raw mut count).cast(), 8) };
        count
    }
}

impl AsRawFd for WakeFd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

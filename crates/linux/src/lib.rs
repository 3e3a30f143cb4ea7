//! The real environment under a node: interfaces and routes by netlink, UDP sockets, and names
//! shared between the processes of this host. Also the engine thread, which serves threads that do
//! not poll, and the one instance of all that which a process has.
//!
//! Internal to Verbena: it promises no stability.
//!
//! [`Host::start`] makes the environment, has the input handler made on it, and runs both;
//! [`LinuxEnv`] is what the input handler sees. [`process::get`] is the host of this process with a
//! [`stack::Node`] as its input handler: what the C functions use, and what Rust code beside them
//! uses. A [`Host`] is generic over its input handler so that this crate's tests can look at what a
//! input handler is told.
//!
//! | module | what |
//! |---|---|
//! | [`process`] | the one instance of a process: made at first need, fresh in a forked child, counters at exit, `VERBENA_*` |
//! | `host` | [`Host`]: input handler, environment and engine thread, running; polling, and what ends a process |
//! | `env` | the environment's face: [`nic::Link`], [`nic::Frames`], [`nic::Platform`] and [`stack::Env`] |
//! | `progress`, `alarm`, `reactor` | the engine thread, when it wakes, what it waits for |
//! | `tx` | the send path |
//! | `rx_sockets`, `rx_socket`, `management` | the receive path: which sockets, one of them, the messages of connection managers that wait there |
//! | `sockets` | how both kinds are set up |
//! | `service_socket` | [`ServiceSocket`]: the UDP socket of a datagram rsocket |
//! | `tcp` | streams of iWARP devices: opened, accepted, read and written |
//! | `leased` | sockets that polling threads and the engine read by turns |
//! | `to_handler` | what comes by the rings of [`local`] |
//! | `frames` over `packet` | whole frames of an interface |
//! | `capture` | packets, to the collector of `verbena run --capture` |
//! | `faults` | packets that are lost, damaged and repeated on purpose |
//! | [`fabric`] | the process on a host of a simulated InfiniBand fabric |
//! | `packets` | what goes to a process of this host in another form, as packets |
//! | `meter`, [`port_counters`] | what passes the ports, and the files that say so |
//! | `inspected`, [`inspector`] | what this process has, told to `verbena ps` and `verbena show`; how they ask |
//! | `names` over [`name_text`], [`name_messages`], `user` | names, and packets handed from process to process of one user |
//! | `interfaces`, `routes`, `neighbours` over `netlink` | what the kernel knows of the network |
//! | [`eventfd`] | the descriptors that programs poll for events |
//! | [`mount_namespace`], `user_namespace` | a file system view for one program; the namespace that programs of one ordinary user share |
//! | `host_id`, `counters`, `random` | the host's identity, what it counts, random bytes |
//!
//! Its system calls are those of [`sys`]. Unsafe code is in `packet`, `eventfd`, `process` and
//! `tcp` only. What processes of one host share is in [`local`]; this crate tells it what they say
//! over their names, and when a thread polls, waits or leaves.
//!
//! # How data flows
//!
//! Out: a queue pair that is locked calls the environment's `send` with a batch of packets; `tx`
//! finds the socket of the flow, seals each packet and hands runs of equal size to one `sendmsg`.
//!
//! In: a thread that polls ([`Host::poll_cq`]) or the engine thread (`progress`, told by the
//! `reactor`) takes the receive token of a socket (`rx_socket`), reads it, and hands each packet to
//! [`stack::InputHandler::input`] under the token, so that packets keep their order. What is for
//! another process of this host the node gives back ([`stack::Env::forward`]), and `names` hands
//! it on. Which thread reads a socket is the matter of its [`local::lease`].
//!
//! Beside packets: the input handler's timers run in the engine thread, which the input handler
//! wakes by the environment's `wake_at` (`alarm`); changes of interfaces and neighbours, and the
//! ends of other processes, come to it through the `reactor`.
//!
//! # Locks
//!
//! [`locks::Rank`] is the order of all locks, from the process's instance to the reactor. In short,
//! as it is taken:
//!
//! receive token (this crate), connection manager, identifier, devices (`node`), queue pair, shared
//! receive queue, completion queue, channel or event queue (`nic`), then this crate's own: netlink,
//! the lists of sockets, names, the reactor.
//!
//! So a packet may do anything while its socket's token is held; the connection manager moves queue
//! pairs and pushes events while it is locked; a queue pair sends while it is locked; and nothing
//! in this crate calls the input handler with one of its own locks held but the token. A thread
//! holds one token, one identifier and one queue pair at most. Completions are told of when queue
//! pairs and completion queues are unlocked (`nic::cq`).
//!
//! Questions to the kernel (routes, names of ports) are asked with no lock of the node held, see
//! [`stack`]; of a packet's way only its socket's token is.

mod alarm;
mod capture;
mod counters;
mod env;
pub mod eventfd;
pub mod fabric;
mod faults;
mod frames;
mod host;
mod host_id;
mod inspected;
pub mod inspector;
mod interfaces;
#[cfg(test)]
mod layouts;
mod leased;
mod management;
mod meter;
pub mod mount_namespace;
pub mod name_messages;
pub mod name_text;
mod names;
mod neighbours;
mod netlink;
mod packet;
mod packets;
pub mod port_counters;
pub mod process;
mod progress;
mod random;
mod reactor;
mod routes;
mod rx_socket;
mod rx_sockets;
mod service_socket;
mod sockets;
mod tcp;
mod to_handler;
mod tx;
mod user;
mod user_namespace;

use std::io;

use stack::env::Interface;

pub use counters::Counters;
pub use env::LinuxEnv;
pub use host::{Config, Host};
pub use names::other_builds;
pub use service_socket::ServiceSocket;

/// The interfaces of this host as they are now, with nothing started.
///
/// # Errors
///
/// What netlink refused.
pub fn interfaces() -> io::Result<Vec<Interface>> {
    if let Some(place) = process::environment::fabric() {
        return fabric::interfaces(&place);
    }
    let mut requests = netlink::Netlink::for_requests()?;
    let interfaces = interfaces::Interfaces::open(&mut requests)?;
    Ok(interfaces.current().list.clone())
}

/// What tells this host and network namespace from all others, see [`stack::devices::guid`]; 40
/// bits.
pub fn host_id() -> u64 {
    host_id::host_id()
}

/// The effective user of this process.
pub fn user() -> u32 {
    sys::own_uid()
}

/// Whether UDP sockets segment what they send (UDP_SEGMENT, udp(7)).
pub fn has_segmentation() -> bool {
    let socket = std::net::UdpSocket::bind((std::net::Ipv4Addr::UNSPECIFIED, 0));
    socket.is_ok_and(|socket| sys::set_option(&socket, libc::SOL_UDP, libc::UDP_SEGMENT, 0).is_ok())
}

/// Sends a signal to a process (kill(2)).
///
/// # Errors
///
/// ESRCH where there is no such process, EPERM where it is not ours.
pub fn send_signal(process: u32, signal: i32) -> io::Result<()> {
    sys::send_signal(process, signal)
}

/// The real user and group of this process.
pub fn real_ids() -> (u32, u32) {
    sys::real_ids()
}

/// Whether a program has capabilities of its own (setcap(8)), which its caller may not have.
pub fn has_file_capabilities(program: &std::path::Path) -> bool {
    mount_namespace::c_path(program).is_ok_and(|path| sys::has_attribute(&path, c"security.capability"))
}

/// Runs `work`, in which a file that would grow beyond what the process may have (RLIMIT_FSIZE) is
/// EFBIG, and no signal ends the process.
pub fn without_file_size_signal<T>(work: impl FnOnce() -> T) -> T {
    sys::file_size::without_signal(work)
}

/// Whether this is the number of all users that have none in this user namespace
/// (user_namespaces(7)), root among them as a rule.
pub fn is_unknown_user(uid: u32) -> bool {
    user::is_unknown(uid)
}

/// Succeeds where the process at the other end of a Unix socket is of our user.
///
/// # Errors
///
/// PermissionDenied for any other, and for one of which nothing is certain.
pub fn check_user(peer: &sys::fork::Fd) -> io::Result<()> {
    user::check(peer)
}

/// Makes a named pipe that only this user may open.
///
/// # Errors
///
/// What mkfifo(3) says.
pub fn make_pipe(path: &std::path::Path) -> io::Result<()> {
    sys::files::make_pipe(&mount_namespace::c_path(path)?)
}

/// Whether a shared object in this directory can be loaded: not where the file system is mounted
/// with `noexec`.
///
/// # Errors
///
/// What statvfs(3) says.
pub fn may_load_from(dir: &std::path::Path) -> io::Result<bool> {
    Ok(!sys::refuses_execution(&mount_namespace::c_path(dir)?)?)
}

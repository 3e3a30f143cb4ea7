//! The process that has a fabric: one thread that waits for programs, commands and the next
//! deadline. No program can keep it waiting: what a program does not read stays in its queue, which
//! is bounded, and a program that has ended is forgotten with its agents.

mod attached;

use std::collections::BTreeMap;
use std::fs::File;
use std::hash::Hasher;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use ::fabric::protocol::{self, MAX_INLINE, Reply, Request};
use ::fabric::umad::UmadHeader;
use ::fabric::{ClientId, Fabric, MAX_MESSAGE};
use socket2::{Domain, SockAddr, SockRef, Socket, Type};
use sys::fork::Fd;
use sys::{ControlBuffer, Epoll, Room};

use attached::Attached;

use super::commands;
use super::files::{HostFiles, issm};
use super::issm::{Change, Issms};
use super::place::Place;
use crate::object::Fnv;

/// Programs and commands that are connected at once, at most; also no more than half of the
/// descriptors that this process may have, because one that finds none left would turn in circles.
const MAX_CONNECTIONS: usize = 4096;
/// Messages that are read from one program before the others have their turn.
const AT_ONCE: usize = 64;
const BACKLOG: i32 = 128;

/// Tokens of epoll: connections have their number plus this.
const LISTENER: u64 = 0;
const SIGNALS: u64 = 1;
const ISSM: u64 = 2;
const FIRST_CONNECTION: u64 = 1 << 32;
/// Write ends of pipes have their descriptor plus this, which is below the first connection.
const FIRST_PIPE: u64 = 1 << 31;

struct Connection {
    fd: Fd,
    /// Whether it is an open port.
    is_port: bool,
    /// The program has the plane.
    attached: Option<Attached>,
    /// Whether epoll tells when there is room again.
    waits_for_room: bool,
}

/// A fabric and all that it talks to.
pub(crate) struct Daemon {
    pub(super) fabric: Fabric,
    pub(super) place: Place,
    epoll: Epoll,
    listener: Fd,
    signals: UnixStream,
    issms: Issms,
    connections: BTreeMap<ClientId, Connection>,
    hosts: BTreeMap<String, HostFiles>,
    last: u64,
    start: Instant,
    /// What programs map, or why they cannot.
    plane: io::Result<Fd>,
    /// When the files of counters were written last.
    refreshed: Duration,
    room: Room,
    pub(super) stopped: bool,
}

impl Daemon {
    /// Listens at the place.
    ///
    /// # Errors
    ///
    /// What the system refused.
    pub(crate) fn new(mut fabric: Fabric, place: Place) -> io::Result<Self> {
        let plane = attached::map_plane(&mut fabric);
        let listener = Fd::open(|| {
            let socket = Socket::new(Domain::UNIX, Type::SEQPACKET, None)?;
            socket.bind(&SockAddr::unix(place.socket())?)?;
            socket.listen(BACKLOG)?;
            socket.set_nonblocking(true)?;
            Ok::<_, io::Error>(socket)
        })?;
        let (signals, sender) = UnixStream::pair()?;
        signals.set_nonblocking(true)?;
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            signal_hook::low_level::pipe::register(signal, sender.try_clone()?)?;
        }
        let (epoll, issms) = (Epoll::new()?, Issms::new()?);
        let readable = libc::EPOLLIN as u32;
        epoll.add(listener.as_raw_fd(), readable, LISTENER)?;
        epoll.add(signals.as_raw_fd(), readable, SIGNALS)?;
        epoll.add(issms.descriptor(), readable, ISSM)?;
        Ok(Self {
            fabric,
            place,
            epoll,
            listener,
            signals,
            issms,
            connections: BTreeMap::new(),
            hosts: BTreeMap::new(),
            last: 0,
            start: Instant::now(),
            plane,
            refreshed: Duration::ZERO,
            room: Room::new(UmadHeader::LEN + MAX_INLINE),
            stopped: false,
        })
    }

    /// Serves until a command or a signal ends it.
    ///
    /// # Errors
    ///
    /// The system does not let this thread wait.
    pub(crate) fn run(&mut self) -> io::Result<()> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 64];
        while !self.stopped {
            let now = self.now();
            let next = self.fabric.deadline().into_iter().chain(self.refresh_at()).min();
            let timeout = next.map(|at| at.saturating_sub(now));
            let ready: Vec<(u64, u32)> = match self.epoll.wait(&mut events, timeout) {
                Ok(events) => events.iter().map(|event| (event.u64, event.events)).collect(),
                Err(error) if error.kind() == ErrorKind::Interrupted => Vec::new(),
                Err(error) => return Err(error),
            };
            for (token, events) in ready {
                self.on_event(token, events);
            }
            let now = self.now();
            if self.fabric.deadline().is_some_and(|at| at <= now) {
                self.fabric.on_deadline(now);
            }
            self.refresh(now);
            self.finish();
        }
        Ok(())
    }

    /// The time since the start.
    pub(super) fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn on_event(&mut self, token: u64, events: u32) {
        match token {
            LISTENER => self.accept(),
            SIGNALS => self.stopped = true,
            ISSM => {
                let changes = self.issms.read();
                changes.into_iter().for_each(|change| self.on_issm(change));
            }
            token if token >= FIRST_CONNECTION => {
                let id = ClientId(token - FIRST_CONNECTION);
                if events & libc::EPOLLOUT as u32 != 0 {
                    self.flush(id);
                    self.tell(id);
                }
                if events & !(libc::EPOLLOUT as u32) != 0 {
                    self.read(id);
                }
            }
            token => {
                let fd = RawFd::try_from(token - FIRST_PIPE).unwrap_or(-1);
                if let Some(change) = self.issms.hung_up(fd) {
                    self.on_issm(change);
                }
            }
        }
    }

    fn on_issm(&mut self, change: Change) {
        match change {
            Change::Opened(port, fd) => {
                self.fabric.set_is_sm(port, true);
                // Where epoll has no room for it the bit stays until the port's next manager.
                let _ = self.epoll.add(fd, libc::EPOLLERR as u32, FIRST_PIPE + fd as u64);
            }
            Change::Closed(port) => self.fabric.set_is_sm(port, false),
        }
    }

    /// What follows from all that was done: messages leave, files change.
    fn finish(&mut self) {
        self.fabric.settle(self.now());
        commands::report(self);
        for id in self.fabric.take_ready() {
            self.flush(id);
        }
        for host in self.fabric.take_changed_hosts() {
            self.tell_host(&host);
            if let Some(files) = self.hosts.get_mut(&host)
                && let Some(devices) = self.fabric.describe(&host)
                && let Err(error) = files.update(&devices)
            {
                eprintln!("verbena: the files of {host} are not up to date: {error}");
            }
        }
    }

    fn accept(&mut self) {
        while let Ok(fd) = Fd::open(|| SockRef::from(&self.listener).accept().map(|(socket, _)| socket)) {
            if self.connections.len() >= MAX_CONNECTIONS.min(sys::limits::descriptors() / 2)
                || linux::check_user(&fd).is_err()
            {
                continue;
            }
            self.last += 1;
            let id = ClientId(self.last);
            let token = FIRST_CONNECTION + id.0;
            let is_served = SockRef::from(&fd).set_nonblocking(true).is_ok()
                && self.epoll.add(fd.as_raw_fd(), libc::EPOLLIN as u32, token).is_ok();
            if is_served {
                self.connections
                    .insert(id, Connection { fd, is_port: false, attached: None, waits_for_room: false });
            }
        }
    }

    fn close(&mut self, id: ClientId) {
        self.fabric.close(id);
        if self.connections.remove(&id).is_some_and(|connection| connection.attached.is_some()) {
            self.fabric.end_program(u32::try_from(id.0).unwrap_or(u32::MAX));
        }
    }

    /// Reads what a program has sent.
    fn read(&mut self, id: ClientId) {
        for _ in 0..AT_ONCE {
            let Some(connection) = self.connections.get(&id) else { return };
            let mut control = ControlBuffer::new();
            let (descriptors, truncated) =
                match self.room.receive(&connection.fd, &mut control, libc::MSG_CMSG_CLOEXEC) {
                    Ok(received) => (sys::take_descriptors(received.control), received.truncated),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                    Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                    Err(_) => return self.close(id),
                };
            // No message is empty: this is the end.
            if self.room.is_empty() {
                return self.close(id);
            }
            if truncated {
                return self.close(id);
            }
            let bytes = self.room.to_vec();
            let descriptor = descriptors.into_iter().next();
            let is_port = connection.is_port;
            if protocol::is_request(&bytes) {
                self.on_request(id, is_port, &bytes, descriptor);
            } else if is_port {
                self.on_message(id, &bytes, descriptor);
            } else {
                return self.close(id);
            }
        }
    }

    /// A message to a umad port, whose MAD may lie in a file.
    fn on_message(&mut self, id: ClientId, bytes: &[u8], file: Option<Fd>) {
        let now = self.now();
        let Some(file) = file else { return self.fabric.write(now, id, bytes) };
        let len = UmadHeader::parse(bytes).map_or(0, |header| header.length as usize);
        let len = len.saturating_sub(UmadHeader::LEN);
        if len > MAX_MESSAGE {
            return;
        }
        let mut message = bytes.to_vec();
        message.resize(UmadHeader::LEN + len, 0);
        let Ok(file) = file.as_fd().try_clone_to_owned().map(File::from) else { return };
        if file.read_exact_at(&mut message[UmadHeader::LEN..], 0).is_ok() {
            self.fabric.write(now, id, &message);
        }
    }

    fn on_request(&mut self, id: ClientId, is_port: bool, bytes: &[u8], reply_to: Option<Fd>) {
        let refused =
            |why: &dyn std::fmt::Display| Reply::Refused { errno: libc::EINVAL, why: why.to_string() };
        let reply = match protocol::decode(bytes) {
            Ok(Request::Open { host, device, port }) if !is_port => self.open(id, &host, &device, port),
            Ok(Request::Register(wanted)) => match self.fabric.register(id, &wanted) {
                Ok(agent) => Reply::Agent(agent),
                Err(refusal) => Reply::Refused { errno: refusal.errno(), why: refusal.to_string() },
            },
            Ok(Request::Unregister(agent)) => match self.fabric.unregister(id, agent) {
                Ok(()) => Reply::Done,
                Err(refusal) => Reply::Refused { errno: refusal.errno(), why: refusal.to_string() },
            },
            Ok(Request::Describe { host }) => self.describe(&host),
            Ok(Request::Enter { host }) => self.enter(host),
            Ok(Request::Neighbour(address)) => Reply::Neighbour(self.fabric.neighbour(address)),
            Ok(Request::Attach { host }) if !is_port => match self.attach(id, host) {
                Some(refused) => refused,
                None => return,
            },
            Ok(Request::Command(command)) => commands::carry_out(self, command),
            Ok(Request::Open { .. } | Request::Attach { .. }) => refused(&"the port is open"),
            Err(unreadable) => refused(&unreadable),
        };
        let to = match (&reply_to, self.connections.get(&id)) {
            (Some(fd), _) => fd,
            (None, Some(connection)) => &connection.fd,
            (None, None) => return,
        };
        // A program that has no room for its reply has not waited for it.
        if send(to, &protocol::encode(&reply)).is_err() {
            self.close(id);
        }
    }

    fn open(&mut self, id: ClientId, host: &str, device: &str, number: u8) -> Reply {
        let Some(port) = self.fabric.port_of_host(host, device, number) else { return no_device(host) };
        self.fabric.open(id, port);
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.is_port = true;
        }
        Reply::Done
    }

    fn describe(&self, host: &str) -> Reply {
        let directory = self.hosts.get(host).and_then(|files| files.dir.to_str()).map(str::to_owned);
        match self.fabric.describe(host) {
            Some(devices) => Reply::Host { devices, directory },
            None => no_device(host),
        }
    }

    /// Has the files of a host, and watches its issm files.
    fn enter(&mut self, host: String) -> Reply {
        let Some(devices) = self.fabric.describe(&host) else { return no_device(&host) };
        if !self.hosts.contains_key(&host) {
            let mut hash = Fnv::default();
            hash.write(host.as_bytes());
            let dir = self.place.hosts().join(format!("{:016x}", hash.finish()));
            match HostFiles::create(dir, &devices) {
                Ok(mut files) => {
                    let counters = self.fabric.host_counters(&host);
                    if let Err(error) = files.update_counters(&counters) {
                        eprintln!("verbena: the counters of {host} are not there: {error}");
                    }
                    self.watch(&files.dir, &host, &devices);
                    self.hosts.insert(host.clone(), files);
                }
                Err(error) => {
                    let why = format!("the files of {host} cannot be made: {error}");
                    return Reply::Refused { errno: error.raw_os_error().unwrap_or(libc::EIO), why };
                }
            }
        }
        self.describe(&host)
    }

    fn watch(
        &mut self,
        dir: &std::path::Path,
        host: &str,
        devices: &[::fabric::describe::DeviceDescription],
    ) {
        for device in devices {
            for port in &device.ports {
                let Some(at) = self.fabric.port_of_host(host, &device.name, port.number) else { continue };
                let path: PathBuf = issm(dir, port.umad);
                if let Err(error) = self.issms.add(path, at) {
                    eprintln!("verbena: {host} cannot run a subnet manager: {error}");
                }
            }
        }
    }

    /// Gives a program its messages, as many as there is room for.
    fn flush(&mut self, id: ClientId) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let is_full = loop {
            let Some(message) = self.fabric.front(id) else { break false };
            match send(&connection.fd, message) {
                Ok(()) => self.fabric.pop(id),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break true,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // What a program leaves unread must not end the process for lack of descriptors.
                Err(error) if is_lack(&error) => break true,
                Err(_) => return self.close(id),
            }
        };
        if connection.waits_for_room != is_full {
            connection.waits_for_room = is_full;
            let events = libc::EPOLLIN | if is_full { libc::EPOLLOUT } else { 0 };
            let _ = self.epoll.change(connection.fd.as_raw_fd(), events as u32, FIRST_CONNECTION + id.0);
        }
    }
}

fn is_lack(error: &io::Error) -> bool {
    let errno = error.raw_os_error();
    [libc::EMFILE, libc::ENFILE, libc::ETOOMANYREFS, libc::ENOMEM, libc::ENOBUFS].map(Some).contains(&errno)
}

fn no_device(host: &str) -> Reply {
    Reply::Refused { errno: libc::ENODEV, why: format!("the fabric has no such port of a host {host:?}") }
}

/// Sends a message; what is longer than fits is a file.
fn send(to: &Fd, message: &[u8]) -> io::Result<()> {
    if message.len() <= MAX_INLINE {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        return SockRef::from(to).send_with_flags(message, flags).map(drop);
    }
    let (head, rest) = message.split_at(UmadHeader::LEN);
    let file = sys::files::anonymous(c"verbena message", rest)?;
    sys::send_descriptor(to, head, file)
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.place.clear();
        let _ = self.signals.shutdown(std::net::Shutdown::Both);
    }
}

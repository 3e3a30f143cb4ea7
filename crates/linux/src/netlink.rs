//! Just enough of routing netlink (RFC 3549, rtnetlink(7)): requests, dumps, notifications,
//! attributes.
//!
//! | bytes | nlmsghdr |
//! |---|---|
//! | 4 | length, this header included |
//! | 2 | type |
//! | 2 | flags |
//! | 4 | sequence number |
//! | 4 | port of the sender |
//!
//! then a structure that the type determines, then attributes: 2 bytes of length (these four
//! included), 2 of type, the value, padding to 4. All in the byte order of the machine. Only the
//! attributes asked for are looked at, so that what newer kernels add or lengthen does no harm.
//!
//! That is why these bytes are ours. netlink-packet-route (0.34 was looked at) decodes every
//! attribute of a message, statistics, virtual functions and drivers' own included. It fails as a
//! whole where it cannot decode one. An interface would be missing for the sake of an attribute
//! that was not asked for. We look at fourteen attributes of four kinds of message. Framing alone,
//! netlink-packet-core's part, is thirty lines here and would be no fewer with it.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;

use nic::Errno;
use socket2::SockRef;
use sys::Room;
use sys::fork::Fd;

const HEADER: usize = 16;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_DUMP: u16 = 0x300;
/// The dump was disturbed by a change and may be incomplete (linux/netlink.h).
const NLM_F_DUMP_INTR: u16 = 0x10;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
/// Bytes of what the kernel says at once, at most.
const LONGEST: usize = 1 << 16;

/// A netlink socket.
pub(crate) struct Netlink {
    fd: Fd,
    sequence: u32,
    room: Room,
}

/// One message: its type, the structure the type determines, and its attributes.
#[derive(Clone, Copy)]
pub(crate) struct Message<'a> {
    pub(crate) kind: u16,
    payload: &'a [u8],
}

/// An answer that was read to its end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Answer {
    /// The whole of it, as it was at one time.
    Consistent,
    /// A dump that a change interrupted: entries may be missing.
    Interrupted,
}

impl Netlink {
    /// A socket for requests.
    pub(crate) fn for_requests() -> io::Result<Self> {
        let netlink = Self { fd: sys::netlink_socket(0, 0)?, sequence: 0, room: Room::new(LONGEST) };
        // The kernel answers while it handles the request; this is for the day it does not.
        SockRef::from(&netlink.fd).set_read_timeout(Some(Duration::from_secs(1)))?;
        Ok(netlink)
    }

    /// A socket that is told of changes; it never waits. `groups` are RTNLGRP numbers.
    pub(crate) fn for_notifications(groups: &[u32]) -> io::Result<Self> {
        let mask = groups.iter().fold(0, |mask, group| mask | 1 << (group - 1));
        Ok(Self {
            fd: sys::netlink_socket(mask, libc::SOCK_NONBLOCK)?,
            sequence: 0,
            room: Room::new(LONGEST),
        })
    }

    /// Has the kernel lose what does not fit the least buffer: a few notifications do.
    #[cfg(test)]
    pub(crate) fn leave_little_room(&self) {
        sys::set_option(&self.fd, libc::SOL_SOCKET, libc::SO_RCVBUF, 1).unwrap();
    }

    /// Asks one question; `each` gets the answer.
    pub(crate) fn ask(&mut self, kind: u16, body: &[u8], each: impl FnMut(Message<'_>)) -> Result<(), Errno> {
        self.send(kind, NLM_F_REQUEST, body)?;
        self.answers(false, each).map(drop)
    }

    /// Asks for all entries of a table. `each` may get some of them twice, where the table changed
    /// meanwhile: `start` is called before each attempt.
    pub(crate) fn dump<S>(
        &mut self,
        kind: u16,
        body: &[u8],
        start: impl Fn() -> S,
        mut each: impl FnMut(&mut S, Message<'_>),
    ) -> Result<S, Errno> {
        let mut attempt = 0;
        loop {
            let mut state = start();
            self.send(kind, NLM_F_REQUEST | NLM_F_DUMP, body)?;
            let answer = self.answers(true, |message| each(&mut state, message))?;
            attempt += 1;
            if answer == Answer::Consistent || attempt == 5 {
                return Ok(state);
            }
        }
    }

    /// Takes the notifications that have come. ENOBUFS: some were lost.
    pub(crate) fn notifications(&mut self, mut each: impl FnMut(Message<'_>)) -> Result<(), Errno> {
        loop {
            match self.receive() {
                Ok(()) => {}
                Err(Errno::EAGAIN) => return Ok(()),
                Err(errno) => return Err(errno),
            }
            for (_, message) in messages(&self.room) {
                each(message);
            }
        }
    }

    fn send(&mut self, kind: u16, flags: u16, body: &[u8]) -> Result<(), Errno> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut request = Vec::with_capacity(HEADER + body.len());
        request.extend_from_slice(&((HEADER + body.len()) as u32).to_ne_bytes());
        request.extend_from_slice(&kind.to_ne_bytes());
        request.extend_from_slice(&flags.to_ne_bytes());
        request.extend_from_slice(&self.sequence.to_ne_bytes());
        request.extend_from_slice(&0u32.to_ne_bytes());
        request.extend_from_slice(body);
        SockRef::from(&self.fd).send(&request)?;
        Ok(())
    }

    /// Reads to the end of the answer.
    fn answers(&mut self, dump: bool, mut each: impl FnMut(Message<'_>)) -> Result<Answer, Errno> {
        let mut answer = Answer::Consistent;
        loop {
            self.receive()?;
            for (header, message) in messages(&self.room) {
                if header.sequence != self.sequence {
                    continue;
                }
                if header.flags & NLM_F_DUMP_INTR != 0 {
                    answer = Answer::Interrupted;
                }
                match message.kind {
                    NLMSG_DONE => return Ok(answer),
                    NLMSG_ERROR => match sys::first_int(message.payload) {
                        Some(0) => return Ok(answer),
                        Some(error) => return Err(Errno(error.wrapping_neg())),
                        None => return Err(Errno::EIO),
                    },
                    _ => each(message),
                }
                if !dump {
                    return Ok(answer);
                }
            }
        }
    }

    fn receive(&mut self) -> Result<(), Errno> {
        loop {
            match self.room.read(&self.fd) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
                Ok(()) => return Ok(()),
            }
        }
    }
}

impl AsRawFd for Netlink {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

impl<'a> Message<'a> {
    /// The structure at the start, `N` bytes; `None` for a message too short to hold it.
    pub(crate) fn head<const N: usize>(&self) -> Option<&'a [u8; N]> {
        self.payload.first_chunk()
    }

    /// The attributes after a structure of `head` bytes.
    pub(crate) fn attributes(&self, head: usize) -> Attributes<'a> {
        Attributes(self.payload.get(head..).unwrap_or(&[]))
    }
}

/// Attributes: type and value.
#[derive(Clone, Copy)]
pub(crate) struct Attributes<'a>(pub(crate) &'a [u8]);

impl<'a> Iterator for Attributes<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let len = usize::from(u16_at(self.0, 0)?);
        // The two upper bits are flags (NLA_F_NESTED, NLA_F_NET_BYTEORDER).
        let kind = u16_at(self.0, 2)? & 0x3fff;
        let value = self.0.get(4..len)?;
        self.0 = self.0.get(len.next_multiple_of(4)..).unwrap_or(&[]);
        Some((kind, value))
    }
}

/// Appends an attribute to the body of a request.
pub(crate) fn put_attribute(body: &mut Vec<u8>, kind: u16, value: &[u8]) {
    body.extend_from_slice(&(4 + value.len() as u16).to_ne_bytes());
    body.extend_from_slice(&kind.to_ne_bytes());
    body.extend_from_slice(value);
    body.resize(body.len().next_multiple_of(4), 0);
}

/// The number at `at`, in the machine's byte order.
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|bytes| u16::from_ne_bytes(*bytes))
}

/// The number at `at`, in the machine's byte order.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
}

struct Header {
    flags: u16,
    sequence: u32,
}

/// The messages in what one read returned.
fn messages(mut bytes: &[u8]) -> impl Iterator<Item = (Header, Message<'_>)> {
    std::iter::from_fn(move || {
        let len = u32_at(bytes, 0)? as usize;
        let header = Header { flags: u16_at(bytes, 6)?, sequence: u32_at(bytes, 8)? };
        let message = Message { kind: u16_at(bytes, 4)?, payload: bytes.get(HEADER..len)? };
        bytes = bytes.get(len.next_multiple_of(size_of::<u32>())..).unwrap_or(&[]);
        Some((header, message))
    })
}

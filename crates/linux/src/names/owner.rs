//! A connection to the process that bears a name.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use local::Known;
use socket2::SockRef;
use stack::Name;
use sys::ControlBuffer;
use sys::fork::Fd;

use crate::name_messages::{self, Buffer};

/// A connection to the process that bears a name.
pub(crate) struct NameOwner {
    pub(super) name: Name,
    pub(super) fd: Fd,
    pub(super) token: u64,
    /// The number of the process that bore the name when we connected; 0 where it has none here.
    pub(super) pid: i32,
    /// The node wants to know when the owner ends.
    pub(super) watched: AtomicBool,
    /// Packets go to it by a ring that it was offered here.
    pub(super) has_ring: AtomicBool,
    /// The owner takes packets that come by the network only.
    pub(super) declined: AtomicBool,
    /// The owner takes packets alone, by whatever way.
    pub(crate) packets_only: bool,
    /// The owner is of a build with another protocol number ([`crate::name_text`]).
    pub(super) other_build: bool,
}

/// What a process says that was offered a ring.
pub(crate) enum Answer {
    /// The process takes no ring.
    NoRing,
    /// The process took the ring, and exports in return what is in this memory, and what proves
    /// which process it is.
    Export(Fd, Known),
    /// A buffer of it may be mapped.
    Buffer(Fd, Buffer),
    /// A buffer that it had at this address is gone.
    Gone(u64),
    /// The process took the ring, and this descriptor wakes a thread of it.
    WakeFd(Fd),
}

impl NameOwner {
    pub(crate) fn token(&self) -> u64 {
        self.token
    }

    /// Whether it takes what comes by the network only.
    pub(crate) fn has_declined(&self) -> bool {
        self.declined.load(Ordering::Acquire)
    }

    /// Whether the connection is used for more than handing on packets.
    pub(super) fn is_needed(&self) -> bool {
        self.watched.load(Ordering::Acquire) || self.has_ring.load(Ordering::Acquire)
    }

    /// Reads what it says.
    pub(crate) fn hear(&self) -> Option<Answer> {
        let mut bytes = [0; name_messages::EXPORT_LEN];
        let mut control = ControlBuffer::new();
        let received = sys::receive(&self.fd, &mut bytes, &mut control, libc::MSG_CMSG_CLOEXEC).ok()?;
        let descriptor = sys::take_descriptors(received.control).into_iter().next();
        match (&bytes[..received.len], descriptor) {
            ([name_messages::NO_RING], _) => {
                self.declined.store(true, Ordering::Release);
                Some(Answer::NoRing)
            }
            ([name_messages::WAKE_FD], Some(wake_fd)) => Some(Answer::WakeFd(wake_fd)),
            (buffer @ [name_messages::BUFFER, ..], Some(memory)) => {
                Some(Answer::Buffer(memory, name_messages::read_buffer(buffer)?))
            }
            (gone @ [name_messages::GONE, ..], None) => Some(Answer::Gone(name_messages::read_gone(gone)?)),
            (export, Some(tables)) => {
                let (address, says) = name_messages::read_export(export)?;
                Some(Answer::Export(tables, Known { address, says }))
            }
            _ => None,
        }
    }
}

impl local::NameOwner for NameOwner {
    fn token(&self) -> u64 {
        self.token
    }

    fn block(&self) -> Option<u16> {
        if let Name::Block(block) = self.name { Some(block) } else { None }
    }

    fn pid(&self) -> i32 {
        self.pid
    }

    fn is_other_build(&self) -> bool {
        self.other_build
    }

    fn has_declined(&self) -> bool {
        self.has_declined()
    }

    fn offer_ring(&self, memory: &Fd, nonce: u64) -> io::Result<()> {
        sys::send_descriptor(&self.fd, &name_messages::ring_offer(nonce), memory)?;
        self.has_ring.store(true, Ordering::Release);
        Ok(())
    }

    fn wake_reader(&self) {
        // Where its queue is full, what is in that wakes it.
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        let _ = SockRef::from(&self.fd).send_with_flags(&[name_messages::LOOK], flags);
    }

    fn fd(&self) -> &Fd {
        &self.fd
    }
}

impl AsRawFd for NameOwner {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

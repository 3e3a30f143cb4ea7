//! Whole Ethernet frames of an interface, for raw packet queue pairs: a packet socket that sends,
//! and where a rule asks for frames one that receives, which the engine thread reads.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use locks::{Mutex, Rank, RwLock};
use nic::Errno;
use nic::qp::raw_packet::MAX_FRAME;
use stack::{Input, InputHandler};
use sys::fork::Fd;

use crate::Config;
use crate::counters::{Counters, add};
use crate::packet;
use crate::reactor::{IN, Reactor, Source};
use crate::sockets::buffer;

/// Bytes of a VLAN tag (IEEE 802.1Q).
const TAG_LEN: usize = 4;
/// Bytes before it: both hardware addresses.
const ADDRESSES_LEN: usize = 12;

/// The interfaces whose frames the program sends or wants, by their index.
pub(crate) struct Frames(RwLock<HashMap<u32, Open>>);

struct Open {
    users: u32,
    sender: Arc<Fd>,
    watched: Option<Arc<FrameSocket>>,
}

/// A socket that receives every frame of an interface.
pub(crate) struct FrameSocket {
    fd: Fd,
    token: u64,
    interface: u32,
    receiver: Mutex<Receiver>,
}

struct Receiver {
    bytes: Box<[u8]>,
    /// Frames dropped so far, as the socket told last (SO_RXQ_OVFL).
    dropped: u32,
}

impl Default for Frames {
    fn default() -> Self {
        Self(RwLock::new(Rank::FrameSockets, HashMap::new()))
    }
}

impl Frames {
    /// Opens the socket that sends, for one more user.
    pub(crate) fn open(&self, interface: u32) -> Result<(), Errno> {
        let mut open = self.0.write();
        if let Some(open) = open.get_mut(&interface) {
            open.users += 1;
            return Ok(());
        }
        let sender = Arc::new(packet::sender(interface)?);
        open.insert(interface, Open { users: 1, sender, watched: None });
        Ok(())
    }

    /// Undoes [`Frames::open`].
    pub(crate) fn close(&self, interface: u32, reactor: &Reactor) {
        let mut open = self.0.write();
        let Some(entry) = open.get_mut(&interface) else { return };
        entry.users -= 1;
        if entry.users == 0
            && let Some(socket) = open.remove(&interface).and_then(|entry| entry.watched)
        {
            reactor.remove(socket.token, &socket.fd);
        }
    }

    /// Sends a frame.
    pub(crate) fn send(&self, interface: u32, frame: &[u8], counters: &Counters) -> Result<(), Errno> {
        let open = self.0.read();
        let sender = open.get(&interface).map(|open| open.sender.clone()).ok_or(Errno::ENODEV)?;
        drop(open);
        match packet::send(&sender, frame) {
            Ok(()) => {
                add(&counters.frames_sent, 1);
                Ok(())
            }
            Err(error) => {
                add(&counters.packets_dropped_sending, 1);
                Err(error.into())
            }
        }
    }

    /// Begins or ends to receive.
    pub(crate) fn watch(
        &self,
        interface: u32,
        watch: bool,
        config: &Config,
        reactor: &Reactor,
    ) -> Result<(), Errno> {
        let mut open = self.0.write();
        let open = open.get_mut(&interface).ok_or(Errno::ENODEV)?;
        if let Some(socket) = open.watched.take() {
            reactor.remove(socket.token, &socket.fd);
        }
        if watch {
            open.watched = Some(FrameSocket::open(interface, config, reactor)?);
        }
        Ok(())
    }

    /// Closes everything.
    pub(crate) fn close_all(&self, reactor: &Reactor) {
        let open = std::mem::take(&mut *self.0.write());
        for socket in open.into_values().filter_map(|open| open.watched) {
            reactor.remove(socket.token, &socket.fd);
        }
    }
}

impl FrameSocket {
    fn open(interface: u32, config: &Config, reactor: &Reactor) -> io::Result<Arc<Self>> {
        let fd = packet::receiver(interface)?;
        buffer(&fd, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, config.receive_buffer_bytes);
        let bytes = vec![0; TAG_LEN + MAX_FRAME].into_boxed_slice();
        let receiver = Mutex::new(Rank::FrameReceiver, Receiver { bytes, dropped: 0 });
        let socket = Arc::new(Self { fd, token: reactor.token(), interface, receiver });
        reactor.add(socket.token, &socket.fd, IN, Source::Frames(socket.clone()))?;
        Ok(socket)
    }

    /// Reads at most `limit` frames and hands them to the input handler, in order.
    pub(crate) fn drain<G: InputHandler>(&self, limit: usize, handler: &G, counters: &Counters) {
        let mut receiver = self.receiver.lock();
        for _ in 0..limit {
            match self.read(&mut receiver, handler, counters) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The interface went down (ENETDOWN): reading it took it away.
                Err(_) => add(&counters.receive_errors, 1),
            }
        }
    }

    fn read<G: InputHandler>(
        &self,
        receiver: &mut Receiver,
        handler: &G,
        counters: &Counters,
    ) -> io::Result<()> {
        // Room before the frame, for the tag that the system took out.
        let received = packet::receive(&self.fd, &mut receiver.bytes[TAG_LEN..])?;
        if let Some(dropped) = received.dropped {
            add(&counters.overflow_drops, dropped.wrapping_sub(receiver.dropped) as usize);
            receiver.dropped = dropped;
        }
        if received.truncated {
            add(&counters.receive_errors, 1);
            return Ok(());
        }
        if received.outgoing && received.loopback {
            // It comes in again.
            return Ok(());
        }
        add(&counters.frames_received, 1);
        let end = TAG_LEN + received.len;
        let bytes = match received.vlan {
            Some(tag) if received.len >= ADDRESSES_LEN => {
                receiver.bytes.copy_within(TAG_LEN..TAG_LEN + ADDRESSES_LEN, 0);
                receiver.bytes[ADDRESSES_LEN..ADDRESSES_LEN + TAG_LEN].copy_from_slice(&tag);
                &receiver.bytes[..end]
            }
            _ => &receiver.bytes[TAG_LEN..end],
        };
        let input = Input::Frame { interface: self.interface, outgoing: received.outgoing, bytes };
        handler.input(Instant::now(), input);
        Ok(())
    }
}

//! A stream: what the two ends of a connection do with each other's rings.
//!
//! Each end has a receive ring, in two halves, of which it has told the peer by the peer's target
//! list. A write goes to the ring by WRITE, with a message that says how much it was; small writes
//! go together while others are under way. When half of the ring was read the half is offered anew:
//! a WRITE to the peer's target list, with a message of credits.
//!
//! | limit | kept by |
//! |---|---|
//! | bytes that the peer may write | the pieces of the ring that it was told of; a data message beyond them ends the stream |
//! | data messages that are not read | credits: as many as receives; one more ends the stream |
//! | our requests | entries of the send queue, four of them for control messages |
//! | our bytes under way | the send buffer |
//!
//! What a peer writes to our target list is used as an address at that peer only.

mod mappings;
mod receiving;
mod sending;
#[cfg(test)]
mod tests;

use nic::Errno;
use transport::op::Status;

use crate::conn_data::{ConnData, Sge};
use crate::message::{Control, Message};
use crate::settings::{CONTROL_SLOTS, Settings};
use crate::stream::mappings::Mappings;
use crate::stream::receiving::Receiving;
use crate::stream::sending::Sending;
use crate::verbs::{Mark, Payload, Place, Refused, Variant, Verbs};

pub(crate) use mappings::MAPPING_LEN;
pub use mappings::Mapping;
pub(crate) use sending::TARGETS;

/// Which half of a stream ends (shutdown(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// No more is read.
    Read,
    /// No more is written.
    Write,
    /// Neither.
    Both,
}

/// What poll(2) says of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Readiness {
    /// A read returns at once.
    pub readable: bool,
    /// A write returns at once.
    pub writable: bool,
    /// The peer sends no more (POLLRDHUP).
    pub read_hup: bool,
    /// Both halves are over (POLLHUP).
    pub hup: bool,
    /// There is an error to tell (POLLERR).
    pub error: bool,
}

/// One end of a connection.
#[derive(Debug)]
pub struct Stream {
    settings: Settings,
    variant: Variant,
    sending: Sending,
    receiving: Receiving,
    mappings: Mappings,
    /// Entries of the send queue that control messages may take.
    control_free: u32,
    /// Control messages that wait for an entry.
    pending: Option<Control>,
    /// Small writes leave at once as long as there are credits (TCP_NODELAY).
    pub no_delay: bool,
    /// The program writes no more; reads no more.
    write_shut: bool,
    read_shut: bool,
    /// The peer sends no more; nor receives.
    peer_shut: bool,
    peer_gone: bool,
    /// The connection can carry nothing any more.
    broken: bool,
    /// The peer has broken the protocol.
    violated: bool,
    /// An error that the program was not told of.
    error: Option<Errno>,
    /// Receives that wait to be posted again.
    free_slots: Vec<u32>,
}

impl Stream {
    /// A stream whose peer has told this.
    pub fn new(settings: &Settings, variant: Variant, peer: &ConnData) -> Self {
        let settings = settings.in_range();
        Self {
            settings,
            variant,
            sending: Sending::new(&settings, peer),
            receiving: Receiving::new(&settings, peer),
            mappings: Mappings::new(peer),
            control_free: CONTROL_SLOTS,
            pending: None,
            no_delay: false,
            write_shut: false,
            read_shut: false,
            peer_shut: false,
            peer_gone: false,
            broken: false,
            violated: false,
            error: None,
            free_slots: Vec::new(),
        }
    }

    /// What this end tells its peer. Its memory is `verbs`.
    pub fn conn_data(settings: &Settings, verbs: &impl Verbs) -> ConnData {
        let (target_list, ring) = verbs.told();
        ConnData {
            big_endian: cfg!(target_endian = "big"),
            credits: settings.receive_queue as u16,
            mappings: Some(settings.mappings),
            target_list,
            ring: Sge { length: ring.length / 2, ..ring },
        }
    }

    /// A receive of this number has completed, with immediate data or without. What follows a
    /// message that breaks the protocol says nothing.
    pub fn on_received(&mut self, verbs: &mut impl Verbs, slot: u32, immediate: Option<u32>) {
        if self.violated {
            return;
        }
        let word = match (self.variant, immediate) {
            (Variant::Immediate, Some(word)) => word,
            (Variant::Sends, None) => verbs.received(slot),
            _ => return self.refuse(),
        };
        self.free_slots.push(slot);
        let accepted = match Message::decode(word) {
            Some(Message::Data(bytes)) => self.receiving.on_data(bytes),
            Some(Message::Credits(until)) => self.sending.on_credits(until, verbs),
            Some(Message::Mapping(entry)) => self.receiving.on_mapping(entry),
            Some(Message::Control(Control::KeepAlive)) => true,
            Some(Message::Control(Control::Shutdown)) => {
                self.peer_shut = true;
                match &mut self.pending {
                    // What the peer waits for has not left yet.
                    Some(pending) => *pending = Control::Disconnect,
                    None => self.peer_gone |= self.write_shut,
                }
                true
            }
            Some(Message::Control(Control::Disconnect)) => {
                (self.peer_shut, self.peer_gone) = (true, true);
                true
            }
            None => false,
        };
        if !accepted {
            self.refuse();
        }
        if self.read_shut {
            self.receiving.discard();
        }
    }

    /// A request has completed.
    pub fn on_sent(&mut self, mark: Mark, status: Status) {
        match mark.control {
            true => self.control_free = (self.control_free + 1).min(CONTROL_SLOTS),
            false => self.sending.on_sent(mark.bytes),
        }
        if status != Status::Success && !self.broken {
            // A peer that has said goodbye takes its queue pair away.
            let is_told = self.peer_gone || (self.write_shut && self.peer_shut);
            self.broken = true;
            if !is_told {
                self.error = Some(match status {
                    Status::RetryExceeded | Status::RnrRetryExceeded => Errno::ETIMEDOUT,
                    _ => Errno::ECONNRESET,
                });
            }
        }
    }

    /// The connection has ended, after all that was received.
    pub fn on_disconnected(&mut self) {
        if !self.peer_shut && !self.broken {
            self.error = Some(Errno::ECONNRESET);
        }
        (self.peer_gone, self.broken) = (true, true);
    }

    /// The peer has broken the protocol.
    fn refuse(&mut self) {
        self.violated = true;
        self.fail(Errno::ECONNRESET);
    }

    fn fail(&mut self, errno: Errno) {
        if !self.broken {
            self.error = Some(errno);
        }
        self.broken = true;
    }

    /// Does what completions, reads and calls have made possible. Call it after each of them.
    pub fn progress(&mut self, verbs: &mut impl Verbs) {
        if self.broken {
            return;
        }
        let posted = self
            .repost(verbs)
            .and_then(|()| self.give_credits(verbs))
            .and_then(|()| self.send_mappings(verbs))
            .and_then(|()| self.send_corked(verbs))
            .and_then(|()| self.send_pending(verbs));
        if posted.is_err() {
            self.fail(Errno::ECONNRESET);
        }
    }

    fn repost(&mut self, verbs: &mut impl Verbs) -> Result<(), Refused> {
        while let Some(slot) = self.free_slots.pop() {
            verbs.post_receive(slot)?;
        }
        Ok(())
    }

    fn send_pending(&mut self, verbs: &mut impl Verbs) -> Result<(), Refused> {
        let is_behind = !self.mappings.is_told() || self.sending.is_corked();
        if self.control_free == 0 || self.peer_gone || is_behind {
            return Ok(());
        }
        let Some(control) = self.pending.take() else { return Ok(()) };
        self.control_free -= 1;
        self.post_message(verbs, Mark { control: true, bytes: 0 }, Message::Control(control))
    }

    /// A message without data.
    fn post_message(&self, verbs: &mut impl Verbs, mark: Mark, message: Message) -> Result<(), Refused> {
        let (nowhere, nothing) = (Place { addr: 0, key: 0 }, Payload::Inline(&[]));
        match self.variant {
            Variant::Immediate => verbs.write(mark, nowhere, nothing, Some(message.encode())),
            Variant::Sends => verbs.send(mark, message.encode()),
        }
    }

    /// A WRITE and the message that tells of it.
    fn post_write(
        &self,
        verbs: &mut impl Verbs,
        mark: Mark,
        to: Place,
        payload: Payload<'_>,
        message: Message,
    ) -> Result<(), Refused> {
        match self.variant {
            Variant::Immediate => verbs.write(mark, to, payload, Some(message.encode())),
            Variant::Sends => {
                verbs.write(mark, to, payload, None)?;
                verbs.send(Mark { bytes: 0, ..mark }, message.encode())
            }
        }
    }

    /// Entries of the send queue that a WRITE with a message takes.
    fn entries(&self) -> u32 {
        match self.variant {
            Variant::Immediate => 1,
            Variant::Sends => 2,
        }
    }

    /// Writes no more, or reads no more (shutdown(2)). The peer is told by [`Stream::progress`].
    pub fn shutdown(&mut self, how: How) {
        let was = (self.read_shut, self.write_shut);
        self.read_shut |= how != How::Write;
        self.write_shut |= how != How::Read;
        if self.read_shut && !was.0 {
            self.receiving.discard();
        }
        if self.peer_gone || was == (self.read_shut, self.write_shut) {
            return;
        }
        let both = self.write_shut && (self.read_shut || self.peer_shut);
        if both {
            self.pending = Some(Control::Disconnect);
        } else if self.write_shut && !was.1 {
            self.pending = Some(Control::Shutdown);
        }
    }

    /// Says to the peer that this end is there, where a control message may leave. A WRITE of no
    /// bytes: the peer need not do anything.
    pub fn keep_alive(&mut self, verbs: &mut impl Verbs) {
        if self.control_free > 0 && !self.peer_gone && !self.broken {
            self.control_free -= 1;
            let mark = Mark { control: true, bytes: 0 };
            let nothing = Payload::Inline(&[]);
            if verbs.write(mark, Place { addr: 0, key: 0 }, nothing, None).is_err() {
                self.fail(Errno::ECONNRESET);
            }
        }
    }

    /// Whether all that was written has arrived at the peer, or can not any more.
    pub fn is_flushed(&self) -> bool {
        let pending = (self.pending.is_some() || self.sending.is_corked()) && !self.peer_gone;
        self.broken || (self.sending.is_idle() && self.control_free == CONTROL_SLOTS && !pending)
    }

    /// Whether the connection has ended: nothing can be sent or received any more.
    pub fn is_over(&self) -> bool {
        self.broken || self.peer_gone || (self.write_shut && self.peer_shut)
    }

    /// What poll(2) says.
    pub fn readiness(&self) -> Readiness {
        let (over, has_data) = (self.is_over(), self.receiving.has_data());
        let read_hup = self.peer_shut || self.read_shut || over;
        // Programs that see the end look no further, so that it comes after all bytes.
        let ended = self.broken && !has_data;
        Readiness {
            readable: has_data || read_hup,
            writable: over || self.write_shut || self.has_room(),
            read_hup,
            hup: ended || (self.write_shut && read_hup),
            error: self.error.is_some() && !has_data,
        }
    }

    /// The error that the program was not told of (SO_ERROR).
    pub fn take_error(&mut self) -> Option<Errno> {
        self.error.take()
    }

    /// Bytes that may be read (FIONREAD).
    pub fn readable_bytes(&self) -> u64 {
        self.receiving.bytes()
    }

    /// Bytes that the peer has sent since the connection was made.
    pub fn received_bytes(&self) -> u64 {
        self.receiving.received()
    }

    /// Bytes of the send buffer that the peer has not (SIOCOUTQ).
    pub fn unsent_bytes(&self) -> u32 {
        self.settings.send_buffer - self.sending.free()
    }
}

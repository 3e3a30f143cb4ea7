//! Streams: what moves on them, and what nodes are told of it.

use std::time::Duration;

use nic::Errno;
use stack::env::{AcceptedStream, InputHandler, StreamInput, StreamRead};

use super::{ARP_TIMEOUT, Sim, What};
use crate::clock::nanos;
use crate::env::{HostId, ProcessId};
use crate::streams::{End, Other, Phase, SimStream, Socket, StreamDue, Tail};

/// A peer that is not heard of for so long is gone.
const SILENCE: Duration = Duration::from_secs(8);
/// How often a peer is asked whether it is there.
const PROBE: Duration = Duration::from_secs(2);
/// When what was lost is sent again.
const AGAIN: Duration = Duration::from_millis(200);
/// Longest time after which a process reads what has come, and gap between pieces that follow each
/// other.
const LATE: Duration = Duration::from_micros(100);
const GAP: Duration = Duration::from_micros(10);
/// Reads of one stream after which its process gets no end of it.
const MAX_READS: u32 = 10_000_000;

impl Sim {
    /// Resets each stream between two processes at both ends, as a host between them could. How
    /// many there were.
    pub fn reset_streams(&mut self, one: ProcessId, other: ProcessId) -> usize {
        self.flush();
        let of = {
            let streams = self.shared.streams();
            let is_to = |s: &Socket| matches!(s.other, Other::Is(there) if streams.get(there).is_some_and(|t| t.process == other));
            streams.tokens(|s| s.process == one && is_to(s))
        };
        of.iter().for_each(|token| self.break_stream(*token));
        of.len()
    }

    /// Streams that a process has open.
    pub fn streams(&self, process: ProcessId) -> usize {
        self.shared.streams().tokens(|socket| socket.process == process && socket.held).len()
    }

    /// A process has done something with a stream.
    pub(super) fn look_at_stream(&mut self, token: u64) {
        let (here, there) = {
            let mut streams = self.shared.streams();
            let Some(socket) = streams.get(token) else { return };
            let there = match socket.other {
                Other::Is(there) => Some(there),
                _ => None,
            };
            streams.tidy(token);
            (token, there)
        };
        for token in [Some(here), there].into_iter().flatten() {
            self.set_moving(token);
        }
    }

    /// Has the next piece leave, where there is one and none is on its way.
    fn set_moving(&mut self, token: u64) {
        {
            let mut streams = self.shared.streams();
            let may = |socket: &Socket| match socket.other {
                Other::Is(there) => streams.get(there).is_none_or(Socket::has_room),
                Other::Gone => true,
                Other::Awaited => false,
            };
            let goes = |s: &Socket| s.has_more() && !s.is_moving && may(s);
            if !streams.get(token).is_some_and(goes) {
                return;
            }
            streams.get_mut(token).into_iter().for_each(|socket| socket.is_moving = true);
        }
        let at = self.arrival(token);
        self.schedule_at(at, What::Stream(StreamDue::Move(token)));
    }

    /// When what leaves now arrives at the other end.
    fn arrival(&mut self, token: u64) -> u64 {
        let now = self.shared.clock.nanos();
        let Some((from, to)) = self.hosts_of_stream(token) else { return now };
        self.network.stream_arrival(&mut self.shared.streams().dice, from, to, now)
    }

    /// The hosts of an end and of the other one.
    fn hosts_of_stream(&self, token: u64) -> Option<(HostId, HostId)> {
        let (host, peer) = self.shared.streams().get(token).map(|s| (s.host, s.peer))?;
        Some((host, self.shared.host_of(peer.ip().to_canonical())?))
    }

    /// Whether nothing gets from one end to the other now, or not back.
    fn is_cut_off(&self, token: u64, and_back: bool) -> bool {
        let now = self.shared.clock.nanos();
        self.hosts_of_stream(token).is_some_and(|(from, to)| {
            self.network.is_cut(from, to, now) || and_back && self.network.is_cut(to, from, now)
        })
    }

    pub(super) fn stream_due(&mut self, due: StreamDue) {
        match due {
            StreamDue::Syn(token) => self.syn(token),
            StreamDue::SynAck(token) => self.syn_ack(token),
            StreamDue::Ack(token) => self.ack(token),
            StreamDue::Move(token) => self.move_bytes(token),
            StreamDue::Readable(token) => self.read_stream(token),
            StreamDue::Writable(token) => {
                let process = self.open_at(token);
                process.into_iter().for_each(|p| self.tell_stream(p, token, StreamInput::Writable));
            }
            StreamDue::Probe(token) => self.probe(token),
            StreamDue::Lost(token, why) => self.lose_stream(token, why),
        }
    }

    /// The process that is told of an end.
    fn open_at(&self, token: u64) -> Option<ProcessId> {
        let streams = self.shared.streams();
        let socket = streams.get(token).filter(|s| s.held && s.phase == Phase::Open)?;
        Some(socket.process)
    }

    fn tell_stream(&mut self, to: ProcessId, token: u64, input: StreamInput) {
        if let Some(node) = self.node(to) {
            node.stream(self.shared.clock.now(), token, input);
        }
        self.flush();
    }

    /// Sends the wish to connect.
    pub(super) fn connect_stream(&mut self, token: u64) {
        if self.hosts_of_stream(token).is_none() {
            return self.schedule(ARP_TIMEOUT, What::Stream(StreamDue::Lost(token, Errno::EHOSTUNREACH)));
        }
        let at = self.arrival(token);
        self.schedule_at(at, What::Stream(StreamDue::Syn(token)));
        self.schedule(PROBE, What::Stream(StreamDue::Probe(token)));
    }

    /// Whether an end that connects is still wanted; where it is not, it goes.
    fn is_wanted(&mut self, token: u64) -> bool {
        let mut streams = self.shared.streams();
        let Some(socket) = streams.get_mut(token) else { return false };
        let is_wanted = socket.held && socket.tail != Some(Tail::Reset) && socket.end.is_none();
        if !is_wanted {
            socket.other = Other::Gone;
            streams.tidy(token);
        }
        is_wanted
    }

    fn syn(&mut self, token: u64) {
        if !self.is_wanted(token) {
            return;
        }
        if self.is_cut_off(token, true) {
            return self.schedule(AGAIN, What::Stream(StreamDue::Syn(token)));
        }
        let listener = self.listener_of(token);
        let due = match listener {
            Some(_) => StreamDue::SynAck(token),
            None => StreamDue::Lost(token, Errno::ECONNREFUSED),
        };
        self.note("syn", &[token, listener.is_some().into()]);
        let at = self.arrival(token);
        self.schedule_at(at, What::Stream(due));
    }

    fn listener_of(&self, token: u64) -> Option<crate::streams::Listener> {
        let (_, there) = self.hosts_of_stream(token)?;
        let streams = self.shared.streams();
        let to = streams.get(token)?.peer;
        streams.listener(there, to)
    }

    fn syn_ack(&mut self, token: u64) {
        if !self.is_wanted(token) {
            return;
        }
        let process = {
            let (now, mut streams) = (self.shared.clock.nanos(), self.shared.streams());
            let Some(socket) = streams.get_mut(token) else { return };
            (socket.phase, socket.heard) = (Phase::Open, now);
            socket.process
        };
        let at = self.arrival(token);
        self.schedule_at(at, What::Stream(StreamDue::Ack(token)));
        self.tell_stream(process, token, StreamInput::Opened);
    }

    fn ack(&mut self, token: u64) {
        if self.is_cut_off(token, false) {
            return self.schedule(AGAIN, What::Stream(StreamDue::Ack(token)));
        }
        let Some(listener) = self.listener_of(token) else {
            return self.refuse(token);
        };
        let now = self.shared.clock.nanos();
        let told = {
            let mut streams = self.shared.streams();
            let is_over = |s: &Socket| s.tail == Some(Tail::Reset) || s.end.is_some();
            match streams.get_mut(token) {
                None => return,
                Some(socket) if is_over(socket) => {
                    socket.other = Other::Gone;
                    streams.tidy(token);
                    return;
                }
                Some(_) => {}
            }
            let Some(accepted) = streams.accept(token, &listener, now) else { return };
            streams.get(accepted).map(|socket| (accepted, socket.local, socket.peer))
        };
        let Some((accepted, local, peer)) = told else { return };
        self.note("accepted", &[token, accepted]);
        self.schedule(PROBE, What::Stream(StreamDue::Probe(accepted)));
        let stream = SimStream::new(self.shared.clone(), listener.process, listener.host, accepted);
        let told = AcceptedStream { local, peer, stream };
        self.tell_stream(listener.process, accepted, StreamInput::Accepted(told));
        self.look_at_stream(token);
    }

    /// No process has the other end: its system says so.
    fn refuse(&mut self, token: u64) {
        let at = self.arrival(token);
        self.schedule_at(at, What::Stream(StreamDue::Lost(token, Errno::ECONNRESET)));
    }

    fn move_bytes(&mut self, token: u64) {
        let now = self.shared.clock.nanos();
        let Some((from, to)) = self.hosts_of_stream(token) else { return };
        let clogged = self.network.clogged_until(from, to);
        if self.is_cut_off(token, false) {
            return self.schedule(AGAIN, What::Stream(StreamDue::Move(token)));
        }
        if clogged > now {
            return self.schedule_at(clogged, What::Stream(StreamDue::Move(token)));
        }
        if !self.shared.streams().is_there(token) {
            return if self.is_on(to) {
                self.refuse(token)
            };
        }
        let chance = self.network.faults.stream_reset;
        let (shifted, is_reset, is_late, gap) = {
            let mut streams = self.shared.streams();
            streams.get_mut(token).into_iter().for_each(|socket| socket.is_moving = false);
            let is_reset = chance > 0.0 && streams.dice.chance(chance);
            let shifted = if is_reset { None } else { streams.shift(token) };
            (shifted, is_reset, streams.dice.chance(0.1), streams.dice.duration(GAP))
        };
        if is_reset {
            return self.break_stream(token);
        }
        let Some(shifted) = shifted else { return };
        self.counters.pieces += 1;
        self.note("piece", &[token, shifted.len as u64, shifted.has_room.into()]);
        if shifted.is_refused {
            self.shared.streams().lose(shifted.there, Errno::ECONNRESET);
            return self.refuse(token);
        }
        if shifted.goes_on {
            self.shared.streams().get_mut(token).into_iter().for_each(|socket| socket.is_moving = true);
            self.schedule(gap, What::Stream(StreamDue::Move(token)));
        }
        if shifted.has_room {
            let at = self.arrival(shifted.there);
            self.schedule_at(at, What::Stream(StreamDue::Writable(token)));
        }
        self.shared.streams().tidy(token);
        match shifted.is_news {
            true if is_late => self.read_later(shifted.there),
            true => self.read_stream(shifted.there),
            false => {}
        }
    }

    fn read_later(&mut self, token: u64) {
        let late = self.shared.streams().dice.duration(LATE);
        self.schedule(late, What::Stream(StreamDue::Readable(token)));
    }

    /// A process reads all that has come.
    fn read_stream(&mut self, token: u64) {
        for _ in 0..MAX_READS {
            let process = self.shared.streams().get(token).filter(|s| s.is_readable()).map(|s| s.process);
            let Some(node) = process.and_then(|process| self.node(process)) else { return };
            let read = node.read_stream(self.shared.clock.now(), token);
            self.flush();
            if matches!(read, StreamRead::Nothing | StreamRead::Ended | StreamRead::Lost(_)) {
                return;
            }
        }
        panic!("stream {token} is read for ever at {:?}", self.elapsed());
    }

    /// The connection is lost at both ends.
    fn break_stream(&mut self, token: u64) {
        self.counters.resets += 1;
        let other = self.shared.streams().get(token).map(|socket| socket.other);
        self.lose_stream(token, Errno::ECONNRESET);
        if let Some(Other::Is(there)) = other {
            self.lose_stream(there, Errno::ECONNRESET);
        }
    }

    /// The stream is lost at this end.
    fn lose_stream(&mut self, token: u64, why: Errno) {
        let was = {
            let mut streams = self.shared.streams();
            let Some(socket) = streams.get(token) else { return };
            if matches!(socket.end, Some(End::Lost(_))) {
                return;
            }
            let was = (socket.process, socket.phase, socket.held);
            streams.lose(token, why);
            was
        };
        self.note("lost", &[token, why.0 as u64]);
        match was {
            (process, Phase::Connecting, true) => {
                let mut streams = self.shared.streams();
                streams.get_mut(token).into_iter().for_each(|socket| socket.phase = Phase::Over);
                drop(streams);
                self.tell_stream(process, token, StreamInput::Lost(why));
            }
            _ => self.read_stream(token),
        }
    }

    /// Asks whether the peer is there.
    fn probe(&mut self, token: u64) {
        let now = self.shared.clock.nanos();
        let Some((_, peer)) = self.hosts_of_stream(token) else { return };
        let is_cut = self.is_cut_off(token, true);
        let is_on = self.is_on(peer);
        let (why, next) = {
            let mut streams = self.shared.streams();
            let is_there = streams.is_there(token);
            let Some(socket) = streams.get_mut(token) else { return };
            if matches!(socket.end, Some(End::Lost(_))) {
                return;
            }
            let answers = !is_cut && is_on && socket.phase != Phase::Connecting;
            // Its system remembers for a while what its process has ended.
            if answers && (is_there || socket.end.is_some()) {
                socket.heard = now;
            }
            let given_up_at = socket.heard + nanos(SILENCE);
            let why = match answers && !is_there && socket.end.is_none() {
                true => Some(Errno::ECONNRESET),
                false => (now >= given_up_at).then_some(Errno::ETIMEDOUT),
            };
            (why, given_up_at.min(now + nanos(PROBE)))
        };
        match why {
            Some(why) => self.lose_stream(token, why),
            None => self.schedule_at(next, What::Stream(StreamDue::Probe(token))),
        }
    }

    /// Whether a host has power: it runs processes.
    fn is_on(&self, host: HostId) -> bool {
        !self.shared.hosts()[host.0].processes.is_empty()
    }

    /// A process is gone: its system ends its streams.
    pub(super) fn leave_streams(&mut self, process: ProcessId) {
        let all = {
            let mut streams = self.shared.streams();
            streams.forget_listeners(process);
            streams.tokens(|socket| socket.process == process)
        };
        for token in all {
            let other = self.shared.streams().get(token).map(|socket| socket.other);
            self.shared.streams().release(token);
            self.look_at_stream(token);
            if let Some(Other::Is(there)) = other {
                self.set_moving(there);
            }
        }
    }
}

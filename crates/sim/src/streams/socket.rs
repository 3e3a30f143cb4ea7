//! One end of a stream: what was sent and has not arrived, what has come and was not read.

use std::collections::VecDeque;
use std::net::SocketAddr;

use nic::{Errno, Gather, Scatter};

use super::Shifted;
use crate::Dice;
use crate::env::{HostId, ProcessId};

/// Bytes that may be under way, of which each stream has one. A connection manager's message fits.
const ROOMS: [usize; 5] = [1024, 4096, 20_000, 65_536, 262_144];
/// Bytes that may have come and not been read.
const WINDOWS: [usize; 4] = [600, 5_000, 65_536, 200_000];

/// How far a stream has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Connecting,
    Open,
    /// The process is told nothing any more.
    Over,
}

/// The other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Other {
    /// No listener has accepted it yet.
    Awaited,
    Is(u64),
    /// No process has it, and its system knows nothing of it.
    Gone,
}

/// What comes behind the last byte of a half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tail {
    Fin,
    Reset,
}

/// What a reader finds behind the last byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Fin,
    Lost(Errno),
}

#[derive(Debug)]
pub(crate) struct Socket {
    pub process: ProcessId,
    pub host: HostId,
    pub local: SocketAddr,
    pub peer: SocketAddr,
    pub phase: Phase,
    pub other: Other,
    /// A descriptor of a process is there.
    pub held: bool,
    /// When the other end was last known to be there.
    pub heard: u64,
    /// A piece is on its way.
    pub is_moving: bool,
    out: VecDeque<u8>,
    room: usize,
    wants_room: bool,
    pub tail: Option<Tail>,
    tail_sent: bool,
    came: VecDeque<u8>,
    window: usize,
    pub end: Option<End>,
}

impl Socket {
    pub(super) fn new(
        dice: &mut Dice,
        (process, host): (ProcessId, HostId),
        (local, peer): (SocketAddr, SocketAddr),
        now: u64,
    ) -> Self {
        Self {
            process,
            host,
            local,
            peer,
            phase: Phase::Connecting,
            other: Other::Awaited,
            held: true,
            heard: now,
            is_moving: false,
            out: VecDeque::new(),
            room: dice.pick(&ROOMS),
            wants_room: false,
            tail: None,
            tail_sent: false,
            came: VecDeque::new(),
            window: dice.pick(&WINDOWS),
            end: None,
        }
    }

    /// Whether there is anything for the other end.
    pub(crate) fn has_more(&self) -> bool {
        !self.out.is_empty() || self.tail.is_some() && !self.tail_sent
    }

    /// Whether its process has something to read, and may be told so.
    pub(crate) fn is_readable(&self) -> bool {
        self.held && self.phase == Phase::Open && (!self.came.is_empty() || self.end.is_some())
    }

    pub(crate) fn has_room(&self) -> bool {
        self.came.len() < self.window
    }

    pub(super) fn is_done(&self) -> bool {
        !self.held && (self.tail_sent || self.other == Other::Gone)
    }

    pub(super) fn send(&mut self, from: &Gather<'_>, dice: &mut Dice) -> Result<usize, Errno> {
        if let Some(End::Lost(why)) = self.end {
            return Err(why);
        }
        if self.tail.is_some() {
            return Err(Errno::EPIPE);
        }
        let (room, len) = (self.room - self.out.len(), from.len());
        if len > 0 && (room == 0 || self.phase == Phase::Connecting) {
            self.wants_room = true;
            return Err(Errno::EAGAIN);
        }
        let most = some_of(dice, room.min(len));
        let bytes = from.copy_out(most)?;
        self.wants_room = most < len;
        self.out.extend(bytes);
        Ok(most)
    }

    pub(super) fn receive(&mut self, into: &Scatter<'_>, dice: &mut Dice) -> Result<usize, Errno> {
        if self.came.is_empty() {
            let read = match self.end {
                None => return Err(Errno::EAGAIN),
                Some(End::Fin) => Ok(0),
                Some(End::Lost(why)) => Err(why),
            };
            self.phase = Phase::Over;
            return read;
        }
        let most = some_of(dice, self.came.len().min(into.len()));
        self.came.make_contiguous();
        let read = into.copy_in(&self.came.as_slices().0[..most])?;
        self.came.drain(..read);
        Ok(read)
    }

    pub(super) fn finish(&mut self) {
        self.tail.get_or_insert(Tail::Fin);
    }

    /// What has not left is never sent, and what is under way may arrive or not.
    pub(super) fn reset(&mut self, dice: &mut Dice) {
        self.phase = Phase::Over;
        if !self.tail_sent {
            self.out.truncate(dice.below(self.out.len() as u64 + 1) as usize);
            self.tail = Some(Tail::Reset);
        }
        self.came.clear();
        self.end = Some(End::Lost(Errno::ECONNRESET));
    }

    /// The last descriptor is closed: as a system ends it, where the process does not.
    pub(super) fn release(&mut self) {
        if !self.held {
            return;
        }
        (self.held, self.phase) = (false, Phase::Over);
        match self.came.is_empty() {
            true => self.finish(),
            false if self.tail_sent => {}
            // What was not read is lost, which the peer is told.
            false => {
                self.out.clear();
                self.tail = Some(Tail::Reset);
            }
        }
        self.came.clear();
    }

    /// The stream is lost. What has come stays readable.
    pub(super) fn lose(&mut self, why: Errno) {
        self.out.clear();
        self.other = Other::Gone;
        self.end = Some(End::Lost(why));
    }

    /// Moves some bytes to the other end, and what comes behind the last one.
    pub(super) fn shift(&mut self, to: &mut Self, dice: &mut Dice) -> Shifted {
        let most = self.out.len().min(to.window.saturating_sub(to.came.len()));
        let len = piece(dice, most);
        let is_refused = !to.held || matches!(to.end, Some(End::Lost(_)));
        if is_refused && !self.out.is_empty() {
            return Shifted { is_refused: true, ..Shifted::default() };
        }
        to.came.extend(self.out.drain(..len));
        let is_last = self.out.is_empty() && !self.tail_sent;
        let ends = self.tail.filter(|_| is_last && (len == 0 || dice.chance(0.5)));
        match ends {
            // An end that is lost already stays so.
            Some(Tail::Fin) => to.end = to.end.or(Some(End::Fin)),
            Some(Tail::Reset) => to.lose(Errno::ECONNRESET),
            None => {}
        }
        self.tail_sent |= ends.is_some();
        let has_room = self.wants_room && self.out.len() <= self.room / 3 * 2;
        self.wants_room &= !has_room;
        let goes_on = self.has_more() && (self.out.is_empty() || to.has_room());
        let is_news = len > 0 || ends.is_some();
        Shifted { there: 0, len, is_news, is_refused: false, has_room, goes_on }
    }
}

/// How many of so many bytes one call takes: all of them or fewer, but for none.
fn some_of(dice: &mut Dice, most: usize) -> usize {
    if most == 0 || dice.chance(0.5) { most } else { piece(dice, most) }
}

/// How many of so many bytes arrive together: few or many, and one at least.
fn piece(dice: &mut Dice, most: usize) -> usize {
    let limit = match dice.below(5) {
        0 => 3,
        1 => 100,
        2 => 1460,
        _ => usize::MAX,
    };
    match most.min(limit) {
        0 => 0,
        limit => dice.between(1, limit as u64) as usize,
    }
}

//! A stream on which faults happen: bytes wait until they are due, are changed, or never get
//! through, and the stream is cut or given up. What waits leaves or arrives when the node is woken
//! for it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use locks::{Mutex, Rank};
use nic::{Errno, Gather, NewStream, Scatter, Stream};
use wire::iwarp::mpa::{ENHANCED_REVISION, Enhanced, Frame, Kind, MAX_LEN};

use crate::lane::{Blow, End, Lane};
use crate::passage::Ends;
use crate::shared::Shared;

/// Bytes that wait in one direction, at most, as in the buffer of a socket.
const MAX_WAITING: usize = 256 << 10;
/// Bytes that wait on all streams. Beyond that a stream has room for a short piece only.
const MAX_BYTES: usize = 64 << 20;
const PIECE: usize = 16 << 10;
/// When what the stream below had no room for is tried again.
const AGAIN: Duration = Duration::from_millis(1);
/// What is due at once is done so much later.
const SOON: Duration = Duration::from_micros(1);

/// A stream over another one, on which faults happen.
pub(crate) struct FaultStream {
    below: Arc<dyn Stream>,
    shared: Arc<Shared>,
    token: u64,
    ends: Ends,
    began: Instant,
    lanes: Mutex<Lanes>,
}

#[derive(Debug, Default)]
struct Lanes {
    out: Lane,
    inward: Lane,
    /// Why the stream is lost.
    lost: Option<Errno>,
    /// A sender waits for room.
    wants_room: bool,
    /// The stream is looked at then.
    woken_at: Option<Instant>,
    /// No process has it any more.
    is_let_go: bool,
}

impl std::fmt::Debug for FaultStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FaultStream").field("below", &self.below).finish_non_exhaustive()
    }
}

/// What an answer of MPA needs.
fn refusal(revision: u8, out: &mut [u8; MAX_LEN]) -> usize {
    let enhanced = (revision == ENHANCED_REVISION).then(Enhanced::default);
    let (kind, markers, crc, rejected) = (Kind::Reply, false, false, true);
    Frame { kind, markers, crc, rejected, revision, enhanced, private_data: &[] }.emit(out)
}

impl FaultStream {
    pub(crate) fn new(below: Arc<dyn Stream>, shared: Arc<Shared>, new: &NewStream) -> Arc<Self> {
        let ends = Ends { interface: new.interface, theirs: new.theirs };
        let began = shared.around.now();
        let lanes = Mutex::new(Rank::FaultyStream, Lanes::default());
        let stream = Arc::new(Self { below, shared, token: new.token, ends, began, lanes });
        stream.shared.know_stream(new.token, &stream);
        stream.watch();
        stream
    }

    /// Has the stream looked at when rules will have cut it off for too long.
    pub(crate) fn watch(&self) {
        if let Some(at) = self.shared.silent_from(&self.ends, self.began) {
            self.shared.wake_stream(self.token, at);
        }
    }

    /// Room for bytes of a lane.
    fn room(&self, lane: &Lane) -> usize {
        let is_much = self.shared.stream_bytes.load(Ordering::Relaxed) > MAX_BYTES;
        (if is_much { PIECE } else { MAX_WAITING }).saturating_sub(lane.len())
    }

    /// Takes bytes of one direction in; what befalls the stream then.
    fn take(&self, lanes: &mut Lanes, is_out: bool, bytes: &[u8], now: Instant) {
        let lane = if is_out { &mut lanes.out } else { &mut lanes.inward };
        let before = lane.len();
        let mut faults: Vec<&'static str> = Vec::new();
        let blow = lane.push(
            bytes,
            now,
            |part| {
                let passage = self.shared.passage(&self.ends, is_out, part, now);
                faults.extend(passage.fault);
                passage
            },
            |(rule, rate), len, from| self.shared.state.lock().held.turn((rule, rate), is_out, len, from),
        );
        self.shared.stream_bytes.fetch_add(lane.len() - before, Ordering::Relaxed);
        faults.into_iter().for_each(|what| self.below.fault(is_out, what));
        match blow {
            Some(Blow::Reset) => self.cut(lanes, Errno::ECONNRESET, now),
            Some(Blow::Rejected(revision)) => self.reject(lanes, is_out, revision, now),
            None => {}
        }
    }

    /// The stream is lost at both ends.
    fn cut(&self, lanes: &mut Lanes, why: Errno, now: Instant) {
        if lanes.lost.is_none() {
            lanes.lost = Some(why);
            self.forget(lanes);
            self.below.reset();
            self.wake(lanes, now);
        }
    }

    /// A connection request is rejected in the place of the one that would answer it.
    fn reject(&self, lanes: &mut Lanes, is_out: bool, revision: u8, now: Instant) {
        let mut frame = [0; MAX_LEN];
        let len = refusal(revision, &mut frame);
        let frame = frame.get(..len).unwrap_or_default();
        if is_out {
            self.shared.stream_bytes.fetch_add(frame.len(), Ordering::Relaxed);
            lanes.inward.forge(frame, now);
            self.wake(lanes, now);
        } else {
            // The first bytes of the stream: there is room. Where it is lost the peer knows.
            _ = self.below.send(&Gather::of(frame));
            lanes.inward = Lane::default();
            lanes.inward.finish(End::Fin, now);
            self.wake(lanes, now);
        }
    }

    fn forget(&self, lanes: &mut Lanes) {
        let gone = lanes.out.clear() + lanes.inward.clear();
        self.shared.stream_bytes.fetch_sub(gone, Ordering::Relaxed);
    }

    /// Has the stream looked at, where it is not earlier anyway. Not at once: the thread may be one
    /// that has just done what was due.
    fn wake(&self, lanes: &mut Lanes, at: Instant) {
        let at = at.max(self.shared.around.now() + SOON);
        if lanes.woken_at.is_none_or(|earlier| at < earlier) {
            lanes.woken_at = Some(at);
            self.shared.wake_stream(self.token, at);
        }
    }

    /// Sends what is due.
    fn flush(&self, lanes: &mut Lanes, now: Instant) {
        while lanes.lost.is_none() {
            let bytes = lanes.out.front(now, MAX_WAITING);
            if bytes.is_empty() {
                break;
            }
            match self.below.send(&Gather::of(&bytes)) {
                Ok(sent) => {
                    lanes.out.advance(sent);
                    self.shared.stream_bytes.fetch_sub(sent, Ordering::Relaxed);
                }
                Err(Errno::EAGAIN) => return self.wake(lanes, now + AGAIN),
                Err(errno) => {
                    lanes.lost = Some(errno);
                    self.forget(lanes);
                    self.wake(lanes, now);
                }
            }
        }
        let next = [lanes.out.due(), lanes.out.given_up].into_iter().flatten().min();
        if let (Some(at), None) = (next, lanes.lost) {
            self.wake(lanes, at);
        }
        match lanes.out.reached_end() {
            Some(End::Fin) => self.below.finish(),
            Some(End::Close) => self.below.close(),
            Some(End::Lost(_)) | None => return,
        }
        lanes.out.end = None;
    }

    /// Takes in what has come, as far as there is room; whether that was all.
    fn read(&self, lanes: &mut Lanes, now: Instant) -> bool {
        let mut buffer = vec![0; PIECE];
        while lanes.inward.end.is_none() && lanes.lost.is_none() {
            let room = self.room(&lanes.inward);
            if room == 0 {
                return false;
            }
            let piece = buffer.get_mut(..room.min(PIECE)).unwrap_or_default();
            let came = self.below.receive(&Scatter::of(piece));
            match came {
                Ok(0) => lanes.inward.finish(End::Fin, now),
                Ok(len) => self.take(lanes, false, buffer.get(..len).unwrap_or_default(), now),
                Err(Errno::EAGAIN) => break,
                Err(errno) => lanes.inward.finish(End::Lost(errno), now),
            }
        }
        true
    }

    /// The time has come to look at it: what is due leaves. Whether there is room again; `None`
    /// where it is to be looked at later.
    pub(crate) fn look(&self, now: Instant) -> Option<bool> {
        let mut lanes = self.lanes.lock();
        let silent = self.shared.silent_from(&self.ends, self.began);
        let given_up = [lanes.out.given_up, lanes.inward.given_up, silent].into_iter().flatten().min();
        if given_up.is_some_and(|at| at <= now) {
            self.cut(&mut lanes, Errno::ETIMEDOUT, now);
        }
        // Of several times at which it was to be looked at, one is the first that is left.
        if lanes.woken_at.is_some_and(|at| at > now) {
            return None;
        }
        lanes.woken_at = None;
        if self.is_stopped(&mut lanes) {
            return None;
        }
        self.flush(&mut lanes, now);
        if lanes.is_let_go && (lanes.lost.is_some() || lanes.out.len() == 0) {
            drop(lanes);
            self.shared.linger(self.token, false);
            return None;
        }
        if let Some(at) = lanes.inward.due().filter(|at| *at > now) {
            self.wake(&mut lanes, at);
        }
        let has_room = lanes.wants_room && lanes.out.len() <= MAX_WAITING / 2;
        lanes.wants_room &= !has_room;
        Some(has_room)
    }

    /// Whether the engine stands still, for which the stream waits.
    fn is_stopped(&self, lanes: &mut Lanes) -> bool {
        let until = self.shared.stopped_until();
        until.into_iter().for_each(|until| self.wake(lanes, until));
        until.is_some()
    }

    /// The process ends: what waits leaves now, and the end behind it. No lock is waited for.
    pub(crate) fn leave_now(&self, now: Instant) {
        let Some(mut lanes) = self.lanes.try_lock() else { return };
        lanes.out.release(now);
        loop {
            let bytes = lanes.out.front(now, MAX_WAITING);
            match self.below.send(&Gather::of(&bytes)) {
                Ok(sent @ 1..) => lanes.out.advance(sent),
                _ => break,
            }
        }
        if lanes.out.reached_end().is_some() {
            self.below.close();
        }
    }
}

impl Stream for FaultStream {
    fn send(&self, from: &Gather<'_>) -> Result<usize, Errno> {
        let (now, mut lanes) = (self.shared.around.now(), self.lanes.lock());
        if let Some(errno) = lanes.lost {
            return Err(errno);
        }
        let room = self.room(&lanes.out);
        if room == 0 {
            lanes.wants_room = true;
            return Err(Errno::EAGAIN);
        }
        let bytes = from.copy_out(room)?;
        self.take(&mut lanes, true, &bytes, now);
        if !self.is_stopped(&mut lanes) {
            self.flush(&mut lanes, now);
        }
        lanes.lost.map_or(Ok(bytes.len()), Err)
    }

    fn receive(&self, into: &Scatter<'_>) -> Result<usize, Errno> {
        let (now, mut lanes) = (self.shared.around.now(), self.lanes.lock());
        if let Some(errno) = lanes.lost {
            return Err(errno);
        }
        if self.is_stopped(&mut lanes) {
            return Err(Errno::EAGAIN);
        }
        let is_all = self.read(&mut lanes, now);
        if let Some(errno) = lanes.lost {
            return Err(errno);
        }
        let bytes = lanes.inward.front(now, into.len());
        let came = into.copy_in(&bytes)?;
        lanes.inward.advance(came);
        self.shared.stream_bytes.fetch_sub(came, Ordering::Relaxed);
        let next = [lanes.inward.due(), lanes.inward.given_up].into_iter().flatten().min();
        // There is room again for what has come.
        let next = if is_all || came == 0 { next } else { Some(now) };
        match (came, lanes.inward.reached_end()) {
            (0, Some(End::Lost(errno))) => return Err(errno),
            (0, Some(_)) => return Ok(0),
            // The end is read by another call.
            (_, Some(_)) => self.wake(&mut lanes, now),
            (_, None) => next.into_iter().for_each(|at| self.wake(&mut lanes, at)),
        }
        if came == 0 { Err(Errno::EAGAIN) } else { Ok(came) }
    }

    fn finish(&self) {
        let (now, mut lanes) = (self.shared.around.now(), self.lanes.lock());
        if lanes.lost.is_none() {
            lanes.out.finish(End::Fin, now);
            self.flush(&mut lanes, now);
        }
    }

    fn close(&self) {
        let (now, mut lanes) = (self.shared.around.now(), self.lanes.lock());
        if lanes.lost.is_some() {
            return;
        }
        lanes.is_let_go = true;
        if lanes.out.is_blocked() {
            // Nothing gets through, so the peer is to hear of no end that it could take for one.
            return self.cut(&mut lanes, Errno::ECONNRESET, now);
        }
        lanes.out.finish(End::Close, now);
        self.flush(&mut lanes, now);
        let lingers = lanes.out.len() > 0 && lanes.lost.is_none();
        drop(lanes);
        if lingers {
            self.shared.linger(self.token, true);
        }
    }

    fn reset(&self) {
        let (now, mut lanes) = (self.shared.around.now(), self.lanes.lock());
        self.cut(&mut lanes, Errno::ECONNRESET, now);
    }

    fn opened(&self) {
        self.below.opened();
    }
    fn lost(&self, why: Errno) {
        self.below.lost(why);
    }
    fn fault(&self, is_out: bool, what: &'static str) {
        self.below.fault(is_out, what);
    }
}

impl Drop for FaultStream {
    fn drop(&mut self) {
        let mut lanes = self.lanes.lock();
        self.forget(&mut lanes);
    }
}

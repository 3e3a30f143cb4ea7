//! What a link with faults and its streams share: the rules, the devices, what is held.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use locks::{Mutex, Rank};
use nic::Frames;
use nic::faults::Named;

use crate::connections::Connections;
use crate::decide::Decider;
use crate::held::{Held, Ticket, What};
use crate::link::Surroundings;
use crate::requests::Requests;
use crate::stream::FaultStream;

pub(crate) struct Shared {
    pub around: Arc<dyn Surroundings>,
    pub devices: OnceLock<Vec<Named>>,
    pub rules: ArcSwapOption<Rules>,
    pub state: Mutex<State>,
    /// What sends the frames that were held.
    pub frames: OnceLock<Arc<dyn Frames>>,
    /// Bytes that all streams hold.
    pub stream_bytes: AtomicUsize,
}

/// Rules at work since some time.
pub(crate) struct Rules {
    pub decider: Decider,
    pub began: Instant,
}

/// What the link remembers.
#[derive(Default)]
pub(crate) struct State {
    pub held: Held,
    pub requests: Requests,
    pub connections: Connections,
    /// Times at which ports or the engine change, the last one first.
    pub boundaries: Vec<Instant>,
    /// The ports are to be looked at.
    pub ports_due: bool,
    /// Streams by their tokens.
    streams: BTreeMap<u64, Known>,
}

/// A stream that the link knows.
struct Known {
    stream: Weak<FaultStream>,
    /// Keeps a stream that its queue pair has let go of, while bytes wait to leave.
    lingers: Option<Arc<FaultStream>>,
}

impl Shared {
    pub(crate) fn new(around: Arc<dyn Surroundings>) -> Arc<Self> {
        Arc::new(Self {
            around,
            devices: OnceLock::new(),
            frames: OnceLock::new(),
            rules: ArcSwapOption::empty(),
            state: Mutex::new(Rank::HeldPackets, State::default()),
            stream_bytes: AtomicUsize::new(0),
        })
    }

    /// The device over an interface: the one of iWARP, or the other.
    pub(crate) fn device(&self, interface: u32, has_streams: bool) -> Option<&Named> {
        let is_it = |device: &&Named| (device.interface, device.has_streams) == (interface, has_streams);
        self.devices.get()?.iter().find(is_it)
    }

    /// The rules, and how long they have held.
    pub(crate) fn rules_now(&self) -> Option<(Arc<Rules>, Duration)> {
        let rules = self.rules.load_full()?;
        let time = self.around.now().saturating_duration_since(rules.began);
        Some((rules, time))
    }

    /// Until when the engine stands still.
    pub(crate) fn stopped_until(&self) -> Option<Instant> {
        let (rules, time) = self.rules_now()?;
        rules.decider.stopped_until(time).map(|until| rules.began + until)
    }

    /// Holds a packet or a frame.
    pub(crate) fn hold(&self, ticket: Ticket, what: What) {
        self.state.lock().held.push(ticket, what);
        self.around.wake_at(ticket.due());
    }

    /// A stream is to be looked at.
    pub(crate) fn wake_stream(&self, token: u64, at: Instant) {
        self.hold(Ticket::at(at), What::Stream(token));
    }

    pub(crate) fn know_stream(&self, token: u64, stream: &Arc<FaultStream>) {
        let known = Known { stream: Arc::downgrade(stream), lingers: None };
        let before = {
            let mut state = self.state.lock();
            state.streams.retain(|_, known| known.stream.strong_count() > 0);
            state.streams.insert(token, known)
        };
        drop(before);
    }

    pub(crate) fn stream(&self, token: u64) -> Option<Arc<FaultStream>> {
        self.state.lock().streams.get(&token)?.stream.upgrade()
    }

    /// All streams that there are, where no other thread has the lock.
    pub(crate) fn try_streams(&self) -> Vec<Arc<FaultStream>> {
        let state = self.state.try_lock();
        let known = state.iter().flat_map(|state| state.streams.values());
        known.filter_map(|known| known.stream.upgrade()).collect()
    }

    /// Whether a stream is kept that no queue pair has any more.
    pub(crate) fn linger(&self, token: u64, is_kept: bool) {
        let before = {
            let mut state = self.state.lock();
            let known = state.streams.get_mut(&token);
            known.map(|known| {
                let kept = if is_kept { known.stream.upgrade() } else { None };
                std::mem::replace(&mut known.lingers, kept)
            })
        };
        // The last share of a stream locks.
        drop(before);
    }
}

//! What becomes of a part of a stream. TCP sends again what is lost, so a part that rules lose is
//! late by the time that takes, and what follows waits behind it. All of that follows from rules
//! and times at once: nothing is decided again later.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::decide::{Item, Seen, Verdict};
use crate::framing::Part;
use crate::shared::Shared;
use crate::spec::Action;

/// When TCP first sends again (RFC 6298 §2 as Linux has it: TCP_RTO_MIN); each later time takes
/// twice as long.
const AGAIN: Duration = Duration::from_millis(200);
/// A peer that acknowledges nothing for so long is gone (TCP_USER_TIMEOUT, as streams have it).
pub(crate) const SILENCE: Duration = Duration::from_secs(8);

/// The ends of a stream, and what it goes by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ends {
    pub interface: u32,
    pub theirs: SocketAddr,
}

/// What becomes of a part.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Passage {
    /// When it arrives at the earliest, or when the stream is given up.
    pub at: Instant,
    pub fate: Fate,
    /// The first fault that befalls it.
    pub fault: Option<&'static str>,
    /// The rule by which its bytes wait for their turn, and its bits in a second.
    pub rate: Option<(usize, u64)>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Fate {
    Arrives,
    /// A bit of it is changed, which these bits choose.
    Damaged(u64),
    /// Nothing gets through any more, and the stream is lost.
    GivenUp,
    /// The stream is cut.
    Reset,
    /// A connection request that is not answered.
    Unanswered,
    /// A connection request that is rejected.
    Rejected,
}

impl Shared {
    /// What becomes of a part that would leave, or has come, now.
    pub(crate) fn passage(&self, ends: &Ends, is_out: bool, part: Part, now: Instant) -> Passage {
        let rules = self.rules.load();
        let mut passage = Passage { at: now, fate: Fate::Arrives, fault: None, rate: None };
        let Some(rules) = &*rules else { return passage };
        let device = self.device(ends.interface, true);
        let (peer, mut wait) = (ends.theirs.ip().to_canonical(), AGAIN);
        loop {
            let time = passage.at.saturating_duration_since(rules.began);
            let begins_connection = passage.at == now && matches!(part, Part::Request(_));
            let seen = Seen {
                is_out,
                peer: Some(peer.into()),
                device,
                item: Item::Part(part),
                time,
                begins_request: false,
                begins_connection,
            };
            let verdict = rules.decider.decide(&seen);
            let is_down = rules.decider.port(device, time).is_some();
            let Some(lost_by) = lost(&verdict, is_down) else {
                passage.arrives(&verdict, is_out);
                let stopped = rules.decider.stopped_until(passage.at.saturating_duration_since(rules.began));
                if let Some(until) = stopped {
                    passage.at = rules.began + until;
                    passage.fault.get_or_insert("stop");
                }
                return passage;
            };
            passage.fault.get_or_insert(lost_by);
            passage.at += wait;
            wait *= 2;
            if passage.at >= now + SILENCE {
                (passage.at, passage.fate) = (now + SILENCE, Fate::GivenUp);
                return passage;
            }
        }
    }

    /// When a stream that has been there since `began` is given up though nothing is sent by it:
    /// rules cut it off for long enough. Of several times the first.
    pub(crate) fn silent_from(&self, ends: &Ends, began: Instant) -> Option<Instant> {
        let rules = self.rules.load_full()?;
        let device = self.device(ends.interface, true);
        let peer = ends.theirs.ip().to_canonical();
        let cuts = rules.decider.cuts(device, peer);
        let given_up = cuts.filter_map(|(from, until)| {
            let at = (rules.began + from).max(began) + SILENCE;
            until.is_none_or(|until| rules.began + until >= at).then_some(at)
        });
        given_up.min()
    }
}

impl Passage {
    /// The part gets through.
    fn arrives(&mut self, verdict: &Verdict, is_out: bool) {
        self.rate = verdict.rate;
        if let Some((_, late)) = verdict.late.filter(|(_, late)| !late.is_zero()) {
            self.at += late;
            self.fault.get_or_insert("delay");
        }
        let fate = match (verdict.connection, verdict.fate) {
            (Some(Action::Reject(_)), _) => Fate::Rejected,
            (Some(_), _) => Fate::Unanswered,
            (None, Some(fate)) => match fate.action {
                Action::Reset => Fate::Reset,
                Action::Corrupt if !is_out => Fate::Damaged(fate.bits),
                _ => Fate::Arrives,
            },
            (None, None) => Fate::Arrives,
        };
        self.fate = fate;
        let name = match fate {
            Fate::Reset => "reset",
            Fate::Damaged(_) => "corrupt",
            Fate::Unanswered => "unanswered",
            Fate::Rejected => "reject",
            Fate::Arrives | Fate::GivenUp => return,
        };
        self.fault = Some(name);
    }
}

/// The name of what loses a part.
fn lost(verdict: &Verdict, is_down: bool) -> Option<&'static str> {
    match verdict.fate.map(|fate| fate.action) {
        _ if is_down => Some(Action::PortDown.name()),
        Some(action @ (Action::Loss | Action::Partition)) => Some(action.name()),
        _ => None,
    }
}

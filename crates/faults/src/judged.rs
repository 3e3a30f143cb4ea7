//! What becomes of a packet or a frame, by what the rules say of it.

use std::borrow::Cow;
use std::time::Instant;

use crate::decide::{Decision, Verdict};
use crate::held::{Full, Size, Ticket};
use crate::shared::{Rules, State};
use crate::spec::Action;

/// What becomes of a packet or a frame.
#[derive(Default)]
pub(crate) struct Judged {
    /// What befalls it, with the bits that the decision leaves open.
    pub fault: Option<(&'static str, u64)>,
    /// A bit of it is wrong when it arrives.
    is_damaged: bool,
    /// When each copy goes on; `None` is at once.
    pub copies: Vec<Option<Ticket>>,
}

impl Judged {
    /// By a verdict, of a packet of this size.
    pub(crate) fn of(verdict: &Verdict, size: Size, rules: &Rules, now: Instant, state: &mut State) -> Self {
        let mut judged = Self::default();
        let copies = match verdict.fate {
            None => 1,
            Some(Decision { action: Action::Duplicate, .. }) => 2,
            Some(Decision { action: Action::Corrupt, .. }) => {
                judged.is_damaged = !size.is_out;
                usize::from(size.is_out || !size.drops_damaged)
            }
            Some(_) => 0,
        };
        // Only what has arrived is damaged: a packet that leaves is sealed below.
        let acts = |decision: &Decision| judged.is_damaged || decision.action != Action::Corrupt;
        judged.fault = verdict.fate.filter(acts).map(|decision| (decision.action.name(), decision.bits));
        let time = now.saturating_duration_since(rules.began);
        let stopped = rules.decider.stopped_until(time).map(|until| rules.began + until);
        for _ in 0..copies {
            match state.held.schedule(now, &rules.decider, verdict, size, stopped) {
                Ok(ticket) => judged.copies.push(ticket),
                Err(Full) => judged.fault = judged.fault.or(Some(("limit", 0))),
            }
        }
        if judged.fault.is_none() && judged.copies.iter().any(Option::is_some) {
            let name = if verdict.late.is_some() { "delay" } else { "rate" };
            judged.fault = Some((if stopped.is_some() { "stop" } else { name }, 0));
        }
        judged
    }

    /// The bytes as they arrive.
    pub(crate) fn damage<'a>(&self, bytes: &'a [u8]) -> Cow<'a, [u8]> {
        let Some((_, bits)) = self.fault.filter(|_| self.is_damaged) else { return bytes.into() };
        let mut damaged = bytes.to_vec();
        let bit = (bits % (8 * damaged.len().max(1) as u64)) as usize;
        if let Some(byte) = damaged.get_mut(bit / 8) {
            *byte ^= 1 << (bit % 8);
        }
        damaged.into()
    }

    /// The fault's name, where none of it goes on.
    pub(crate) fn lost(&self) -> Option<&'static str> {
        self.copies.is_empty().then(|| self.fault.map_or("loss", |(name, _)| name))
    }
}

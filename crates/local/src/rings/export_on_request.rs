//! What is exported to the process at the other end of a ring, as what it sent is executed.
//!
//! A thread that dispatches what came by a ring says so, while it does (`brought_by`). A request
//! that is executed meanwhile was named by the process at the other end of that ring: its number,
//! its key and its range have passed all that the responder asks. So that process may reach the
//! region from then on, as its next packet would.

use std::cell::Cell;

use wire::Qpn;

use super::brought_by::ring;
use crate::arena;
use crate::peer_memory::{As, ExportOutcome};
use crate::rings::Rings;

/// What was exported lately is remembered in so many places.
const PLACES: usize = 16;

/// Something that was exported by a ring, after so many changes of what may be reached.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Lately {
    ring: u64,
    changes: u64,
    qpn: Qpn,
    key: u32,
    how: As,
    /// What the queue pair lets its peer do.
    access: u32,
}

thread_local! {
    static LATELY: [Cell<Option<Lately>>; PLACES] = const { [const { Cell::new(None) }; PLACES] };
}

impl<O: Send> Rings<O> {
    /// The peer of a queue pair, which lets it do so much, has named a region in a request that was
    /// executed.
    #[inline]
    pub fn named(&self, qpn: Qpn, access: u32, key: u32) {
        if let Some(ring) = ring() {
            let exports = &self.exports;
            let changes = exports.changes();
            let lately = Lately { ring, changes, qpn, key, how: As::Named, access };
            let place = (key >> 16) as usize % PLACES;
            if LATELY.with(|all| all[place].get()) != Some(lately) {
                exports.hear(qpn, ring);
                self.export(lately, place);
            }
        }
    }

    /// The peer of a queue pair was heard: what came bore the right numbers. Whether it came by a
    /// ring.
    pub fn has_received(&self, qpn: Qpn) -> bool {
        ring().is_some_and(|ring| self.exports.hear(qpn, ring))
    }

    /// A queue pair exports its peer a region for a message. Whether the peer's process is exported
    /// it.
    pub fn told(&self, qpn: Qpn, key: u32) -> bool {
        let exports = &self.exports;
        let Some(ring) = exports.has_received(qpn) else { return false };
        let lately = Lately { ring, changes: exports.changes(), qpn, key, how: As::Told, access: 0 };
        // Another part of the places than that of named ones.
        let place = ((key >> 16) as usize + PLACES / 2) % PLACES;
        LATELY.with(|all| all[place].get()) == Some(lately) || self.export(lately, place)
    }

    #[cold]
    fn export(&self, lately: Lately, place: usize) -> bool {
        let Lately { ring, qpn, key, how, access: granted, .. } = lately;
        let Some(rx) = self.reading(ring) else { return false };
        let exports = &self.exports;
        if !rx.may_export(exports) {
            return false;
        }
        let give = |addr, len, access| {
            arena::give(addr, len, access & granted, rx.connection());
        };
        match exports.export(ring, qpn, key, how, give) {
            ExportOutcome::Nothing => return false,
            ExportOutcome::Done => {}
            ExportOutcome::First(tables) => rx.export(&tables),
        }
        LATELY.with(|all| all[place].set(Some(lately)));
        true
    }
}

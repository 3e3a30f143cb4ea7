//! The counters of a port by the names that infiniband-diags have for them, and by which a user
//! sets them.

use wire::mad::perf::PortCounters;

/// A counter of [`PortCounters`].
#[derive(Clone, Copy, Debug)]
pub struct Counter {
    /// The name, as perfquery(8) prints it.
    pub name: &'static str,
    get: fn(&PortCounters) -> u64,
    set: fn(&mut PortCounters, u64),
    /// The bit of a Set's selection, in [`SELECTION`]'s order (IBA 1.4 table 232).
    bit: u32,
}

/// A row of [`SELECTION`]. A value that does not fit becomes the highest one.
macro_rules! counter {
    ($name:literal, $field:ident, $bit:literal) => {
        Counter {
            name: $name,
            get: |counters| u64::from(counters.$field),
            set: |counters, value| counters.$field = value.try_into().unwrap_or(!0),
            bit: $bit,
        }
    };
}
/// All counters, in the order of PortCounters.
pub const SELECTION: [Counter; 17] = [
    counter!("SymbolErrorCounter", symbol_errors, 0),
    counter!("LinkErrorRecoveryCounter", link_error_recovery, 1),
    counter!("LinkDownedCounter", link_downed, 2),
    counter!("PortRcvErrors", receive_errors, 3),
    counter!("PortRcvRemotePhysicalErrors", remote_physical_errors, 4),
    counter!("PortRcvSwitchRelayErrors", switch_relay_errors, 5),
    counter!("PortXmitDiscards", transmit_discards, 6),
    counter!("PortXmitConstraintErrors", transmit_constraint_errors, 7),
    counter!("PortRcvConstraintErrors", receive_constraint_errors, 8),
    counter!("LocalLinkIntegrityErrors", local_link_integrity_errors, 9),
    counter!("ExcessiveBufferOverrunErrors", buffer_overrun_errors, 10),
    counter!("VL15Dropped", vl15_dropped, 11),
    counter!("PortXmitData", transmit_words, 12),
    counter!("PortRcvData", receive_words, 13),
    counter!("PortXmitPkts", transmit_packets, 14),
    counter!("PortRcvPkts", receive_packets, 15),
    counter!("PortXmitWait", transmit_wait, 16),
];

impl Counter {
    /// The counter of a name, in any case; some have a shorter name without "Counter".
    pub fn named(name: &str) -> Option<Self> {
        SELECTION.into_iter().find(|counter| {
            let short = counter.name.strip_suffix("Counter").unwrap_or(counter.name);
            counter.name.eq_ignore_ascii_case(name) || short.eq_ignore_ascii_case(name)
        })
    }

    /// The counter's value.
    pub fn get(self, counters: &PortCounters) -> u64 {
        (self.get)(counters)
    }

    /// Sets it; a value that does not fit becomes the highest one.
    pub fn set(self, counters: &mut PortCounters, value: u64) {
        (self.set)(counters, value);
    }

    /// Whether a Set of PortCounters with these selections changes it. The second one has the bits
    /// from 16 on.
    pub const fn is_selected(self, selection: u32) -> bool {
        selection >> self.bit & 1 != 0
    }
}

/// Adds what a port has counted, for a question about all ports.
pub fn add(sum: &mut PortCounters, more: &PortCounters) {
    for counter in SELECTION {
        counter.set(sum, counter.get(sum).saturating_add(counter.get(more)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_has_two_names_and_stays_at_its_highest_value() {
        let symbols = Counter::named("symbolerror").unwrap();
        assert_eq!(symbols.name, Counter::named("SymbolErrorCounter").unwrap().name);
        assert!(Counter::named("Symbol").is_none());
        let mut counters = PortCounters::default();
        symbols.set(&mut counters, 70_000);
        assert_eq!(counters.symbol_errors, 0xffff);
        let more = PortCounters { symbol_errors: 1, transmit_words: 5, ..counters };
        add(&mut counters, &more);
        assert_eq!((counters.symbol_errors, counters.transmit_words), (0xffff, 5));
    }
}

//! The performance management agent of a node (IBA 1.4 §16.1): ClassPortInfo and the counters.

use wire::mad::perf::{self, ALL_PORTS, DATA_LEN, PortCounters, attribute};
use wire::mad::{method, status};

use crate::counters::{self, SELECTION};
use crate::subnet::{PortId, Subnet};

/// AllPortSelect, extended counters, PortXmitWait (IBA 1.4 table 231).
const CAPABILITIES: u16 = 0x1300;
/// Bits of the selection of extended counters: words and packets, out and in, as in [`SELECTION`]
/// from bit 12 on.
const EXTENDED_SHIFT: u32 = 12;

impl Subnet {
    /// Answers a Get or Set at a port: the data after it, and the status.
    pub(crate) fn pma(&mut self, at: PortId, kind: u8, attribute: u16, data: &mut [u8; DATA_LEN]) -> u16 {
        match attribute {
            attribute::CLASS_PORT_INFO => {
                *data = perf::class_port_info(CAPABILITIES);
                status::OK
            }
            attribute::PORT_COUNTERS | attribute::PORT_COUNTERS_EXTENDED => {
                let is_extended = attribute == attribute::PORT_COUNTERS_EXTENDED;
                let [_, port, selected @ ..] = *data;
                let selected = [selected[0], selected[1]];
                let Some(ports) = self.selected(at, port) else { return status::BAD_FIELD };
                if kind == method::SET {
                    let low = u32::from(u16::from_be_bytes(selected));
                    let selection =
                        if is_extended { low << EXTENDED_SHIFT } else { low | u32::from(data[18] & 1) << 16 };
                    let new = if is_extended { extended(data) } else { plain(data) };
                    ports.clone().for_each(|at| set(&mut self.port_mut(at).counters, selection, &new));
                }
                let mut sum = PortCounters::default();
                ports.for_each(|at| counters::add(&mut sum, &self.port(at).counters));
                *data =
                    if is_extended { sum.emit_extended(port, selected) } else { sum.emit(port, selected) };
                status::OK
            }
            _ => status::BAD_ATTRIBUTE,
        }
    }

    fn selected(&self, at: PortId, port: u8) -> Option<impl Iterator<Item = PortId> + Clone + use<>> {
        let node = self.node_at(at);
        let numbers = match port {
            ALL_PORTS => 1..=node.ports,
            port if port <= node.ports => port..=port,
            _ => return None,
        };
        let first = node.first;
        Some(numbers.map(move |number| PortId(first + u32::from(number))))
    }
}

fn set(counters: &mut PortCounters, selection: u32, new: &PortCounters) {
    for counter in SELECTION.into_iter().filter(|counter| counter.is_selected(selection)) {
        counter.set(counters, counter.get(new));
    }
}

/// The values of a Set of PortCounters.
fn plain(data: &[u8; DATA_LEN]) -> PortCounters {
    let half = |at: usize| u16::from_be_bytes([data[at], data[at + 1]]);
    let word = |at: usize| u32::from(half(at)) << 16 | u32::from(half(at + 2));
    PortCounters {
        symbol_errors: half(4),
        link_error_recovery: data[6],
        link_downed: data[7],
        receive_errors: half(8),
        remote_physical_errors: half(10),
        switch_relay_errors: half(12),
        transmit_discards: half(14),
        transmit_constraint_errors: data[16],
        receive_constraint_errors: data[17],
        local_link_integrity_errors: data[19] >> 4,
        buffer_overrun_errors: data[19] & 15,
        vl15_dropped: half(22),
        transmit_words: word(24).into(),
        receive_words: word(28).into(),
        transmit_packets: word(32).into(),
        receive_packets: word(36).into(),
        transmit_wait: word(40),
    }
}

/// The values of a Set of PortCountersExtended.
fn extended(data: &[u8; DATA_LEN]) -> PortCounters {
    let long = |at: usize| data[at..].first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
    PortCounters {
        transmit_words: long(8),
        receive_words: long(16),
        transmit_packets: long(24),
        receive_packets: long(32),
        ..PortCounters::default()
    }
}

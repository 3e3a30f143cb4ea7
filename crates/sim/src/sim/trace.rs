//! What a run was: a number that is the same for the same seed, and the log for its readers.

use wire::icrc::{Flow, ICRC_LEN};
use wire::roce::Packet;

use super::Sim;
use crate::env::Record;

impl Sim {
    /// Adds something to the trace.
    pub(super) fn record(&mut self, word: &str, numbers: &[u64]) {
        self.mix(self.shared.clock.nanos());
        word.bytes().for_each(|b| self.mix(b.into()));
        numbers.iter().for_each(|n| self.mix(*n));
    }

    /// Records something that is not a packet.
    pub(super) fn note(&mut self, word: &str, numbers: &[u64]) {
        self.record(word, numbers);
        if self.log {
            eprintln!("{:>12?} {word:>9} {numbers:?}", self.elapsed());
        }
    }

    pub(super) fn note_packet(&mut self, word: &str, flow: &Flow, bytes: &[u8]) {
        // The ICRC stands for all bytes of a packet; the first ones are there for those with a byte
        // changed.
        let (head, tail) = (bytes.first_chunk().copied().unwrap_or([0; 8]), bytes.last_chunk().copied());
        let icrc = u32::from_le_bytes(tail.unwrap_or([0; ICRC_LEN]));
        let ports = u64::from(flow.source.port()) << 32 | u64::from(icrc);
        self.record(word, &[u64::from_le_bytes(head), ports, bytes.len() as u64]);
        if self.log {
            let packet = bytes.split_last_chunk::<ICRC_LEN>().and_then(|(b, _)| Packet::parse(b).ok());
            let (time, from, to) = (self.elapsed(), flow.source, flow.dest.ip());
            match packet {
                Some(p) => eprintln!(
                    "{time:>12?} {word:>9} {from}>{to} {:?} psn {:#08x} {:?} {}",
                    p.header.bth.dest_qp,
                    p.header.bth.psn.get(),
                    p.header.op,
                    p.payload.len()
                ),
                None => eprintln!("{time:>12?} {word:>9} {from}>{to} not a packet"),
            }
        }
    }

    /// Records what goes by a channel, which is not sealed.
    pub(super) fn note_record(&mut self, word: &str, record: &Record) {
        let flow = Flow { source: record.source, dest: record.dest };
        if let Some(short) = record.short {
            // As the packet that it stands for.
            let header = short.packet(&record.bytes).header;
            let mut bytes = vec![0; header.len()];
            header.emit(record.bytes.len(), &mut bytes);
            bytes.extend(&record.bytes);
            bytes.resize(bytes.len().next_multiple_of(4) + ICRC_LEN, 0);
            return self.note_packet(word, &flow, &bytes);
        }
        if let Some(headers) = &record.headers {
            let bytes = [headers, &record.bytes[..], &[0; ICRC_LEN + 3]].concat();
            let whole = headers.len() + record.bytes.len().next_multiple_of(4) + ICRC_LEN;
            self.note_packet(word, &flow, &bytes[..whole]);
        } else {
            record.bytes.chunks(record.size.max(1)).for_each(|bytes| self.note_packet(word, &flow, bytes));
        }
        record.bytes.chunks(8).for_each(|chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.mix(u64::from_le_bytes(word));
        });
    }

    pub(super) fn mix(&mut self, value: u64) {
        // FNV-1a, a word at a time.
        self.trace = (self.trace ^ value).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(17);
    }
}

//! Packets that stand for several of a SEND of a process of this host, whose bytes are copied from its memory.

use wire::bth::{Bth, NakCode};
use wire::roce::SendAt;

use super::{Broken, Connection, Responder};
use crate::execute::SendPiece;
use crate::op::{Context, Payload, Pull};
use crate::segmentation::send_place;

impl Responder {
    /// Packets of a SEND, from this one on, whose payload is to be pulled. What can not be is asked for by a NAK: it comes again, with its
    /// payload.
    pub fn pull(
        &mut self,
        conn: &Connection,
        bth: &Bth,
        at: SendAt,
        pull: Pull,
        cx: &mut impl Context,
    ) -> Result<(), Broken> {
        if self.answers.is_full() {
            return Ok(());
        }
        let ahead = bth.psn.since(self.expected);
        if let Some(flushing) = &mut self.flushing {
            flushing.missed |= ahead > 0;
            return Ok(());
        }
        if ahead < 0 {
            self.answers.ack(self.expected.add(0xff_ffff), self.msn);
            return Ok(());
        }
        let (first, end) = send_place(at);
        let mtu = conn.mtu as u32;
        let packets = pull.len.div_ceil(mtu);
        let is_whole = end.is_some() || pull.len.is_multiple_of(mtu);
        let is_good = (1..=Pull::MOST_PACKETS).contains(&packets) && is_whole;
        let piece = SendPiece { bytes: Payload::Own(&[]), first, end, solicited: bth.solicited };
        let pulled = match ahead == 0 && is_good {
            true => self.inbound.pull(conn.ends(), piece, pull, cx),
            false => Ok(false),
        };
        match pulled {
            Ok(true) => {
                self.quiet = false;
                self.take(packets, end.is_some());
                if bth.ack_request {
                    self.answers.ack(bth.psn.add(packets - 1), self.msn);
                }
            }
            Ok(false) if std::mem::replace(&mut self.quiet, true) => {}
            Ok(false) => self.answers.nak(self.expected, self.msn, NakCode::PsnSequence),
            Err(refusal) => return self.refuse(conn, bth.psn, refusal, cx),
        }
        Ok(())
    }
}

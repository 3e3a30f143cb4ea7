//! The receiving half (IBA 1.4 §9.8.2.2): has messages executed ([`crate::execute`]) whose packets
//! come one after the other, and drops all others in silence.
//!
//! The PSN expected is the one after the last that came, whatever became of that packet: a gap
//! abandons the message that is arriving, and the next first packet begins anew. A receive that an
//! abandoned SEND had begun to fill serves the next message.

use wire::Psn;
use wire::roce::{Op, Packet, SendAt, WriteAt};

use super::Connection;
use crate::execute::{Inbound, Refusal, SendPiece};
use crate::op::{Context, NetworkHeader, Payload, Status};
use crate::segmentation::{check_len, send_place, write_place};

#[derive(Debug, Default)]
pub(super) struct Responder {
    expected: Psn,
    inbound: Inbound,
}

/// The queue pair goes to the error state: a receive named memory that it must not.
#[derive(Debug)]
pub(super) struct Broken;

impl Responder {
    pub(super) fn start(&mut self, psn: Psn) {
        self.expected = psn;
    }
    pub(super) fn expected(&self) -> Psn {
        self.expected
    }
    /// A receive in use completes as flushed.
    pub(super) fn flush(&mut self, conn: &Connection, cx: &mut impl Context) {
        self.inbound.flush_receive(conn.ends(), cx);
    }

    /// The receive in use, or the next one posted, completes with a status. False where there is
    /// none.
    pub(super) fn fail_receive(&mut self, conn: &Connection, status: Status, cx: &mut impl Context) -> bool {
        self.inbound.fail_receive(status, conn.ends(), cx)
    }

    pub(super) fn request(
        &mut self,
        conn: &Connection,
        packet: &Packet<'_>,
        cx: &mut impl Context,
    ) -> Result<(), Broken> {
        let psn = packet.header.bth.psn;
        if psn != self.expected {
            self.inbound.abandon();
        }
        self.expected = psn.add(1);
        let executed = match packet.header.op {
            Op::Send(at) => self.send(conn, at, packet, cx),
            Op::Write(at) => self.write(conn, at, packet, cx),
            // IBA 1.4 table 38 has no other operation of this service.
            _ => Err(Refusal::Illegal),
        };
        match executed {
            Ok(()) => Ok(()),
            Err(refusal @ Refusal::Local(_)) => {
                self.inbound.fail(refusal, conn.ends(), cx);
                Err(Broken)
            }
            // The message is dropped, the receive is still good (IBA 1.4 §9.9.3, class D).
            Err(
                Refusal::NoReceive
                | Refusal::TooLong
                | Refusal::Remote(_)
                | Refusal::Illegal
                | Refusal::Away
                | Refusal::Absent,
            ) => {
                self.inbound.abandon();
                Ok(())
            }
        }
    }

    fn send(
        &mut self,
        conn: &Connection,
        at: SendAt,
        packet: &Packet<'_>,
        cx: &mut impl Context,
    ) -> Result<(), Refusal> {
        let (first, end) = send_place(at);
        if first {
            self.inbound.abandon();
        }
        check_len(conn.mtu, packet.payload.len(), first, end.is_some())?;
        let piece = SendPiece {
            bytes: packet.payload.into(),
            first,
            end,
            solicited: packet.header.bth.solicited,
            header: NetworkHeader::Unseen,
            shows: None,
        };
        self.inbound.send(conn.ends(), piece, cx)
    }

    fn write(
        &mut self,
        conn: &Connection,
        at: WriteAt,
        packet: &Packet<'_>,
        cx: &mut impl Context,
    ) -> Result<(), Refusal> {
        let (to, last, immediate) = write_place(at);
        if to.is_some() {
            self.inbound.abandon();
        }
        let bytes = Payload::Own(packet.payload);
        check_len(conn.mtu, bytes.len(), to.is_some(), last)?;
        match immediate {
            None => self.inbound.write(to, bytes, last, cx),
            Some(imm) => {
                let solicited = packet.header.bth.solicited;
                self.inbound.write_with_imm(conn.ends(), to, bytes, imm, solicited, cx)
            }
        }
    }
}

//! Management datagrams: every message of the connection manager (IBA 1.4 §13.4.2, §12.6), and of
//! the other classes the parts in modules of their own.
//!
//! | module | what |
//! |---|---|
//! | [`class`], [`method`], [`status`] | values of the common header, [`Header`] |
//! | [`smp`] | subnet management packets and their attributes |
//! | [`perf`] | counters of performance management |
//! | [`rmpp`] | the header of messages of several MADs |
//! | [`sa`] | subnet administration: its header and records |
//!
//! A MAD is 256 bytes: 24 of common header (base version 1, class 7 "communication management",
//! class version 2, method 3 Send, status 0, transaction id, attribute id, modifier), then 232 of
//! the message.
//!
//! | bytes | field |
//! |---|---|
//! | 0 | base version: 1 |
//! | 1 | management class: 7 |
//! | 2 | class version: 2 |
//! | 3 | method: 3 |
//! | 4..6, 6..8 | status, class specific |
//! | 8..16 | transaction id |
//! | 16..18, 18..20 | attribute id, reserved |
//! | 20..24 | attribute modifier: in REQ and REP the options of [`Ece`], else 0 |
//! | 24..256 | message |

mod drep;
mod dreq;
mod header;
mod ip_cm;
mod lap;
mod mra;
mod node_info;
mod notice;
pub mod perf;
mod port_info;
mod rej;
mod rep;
mod req;
pub mod rmpp;
mod rtu;
pub mod sa;
mod sidr;
mod sm_info;
pub mod smp;
mod switch_info;

pub use drep::Drep;
pub use dreq::Dreq;
pub use header::{Header, class, method, status};
pub use ip_cm::{IpCm, PortSpace};
pub use lap::{Apr, Lap, apr_status};
pub use mra::Mra;
pub use node_info::{NodeInfo, NodeType};
pub use notice::Trap;
pub use port_info::{PhysicalState, PortInfo, PortState, capability};
pub use rej::{Rej, reason};
pub use rep::Rep;
pub use req::{Req, ReqPath};
pub use rtu::Rtu;
pub use sidr::{SidrRep, SidrReq, sidr_status};
pub use sm_info::{SmInfo, SmState};
pub use switch_info::SwitchInfo;

/// A program's private data in a REQ, in bytes (rdma_connect(3)): after [`IpCm`].
pub const REQ_DATA: usize = 92 - IpCm::LEN;
/// A program's private data in a REP, in bytes (rdma_accept(3)).
pub const REP_DATA: usize = 196;
/// A program's private data in a REJ, in bytes (rdma_reject(3)).
pub const REJ_DATA: usize = 148;
/// A program's private data in a SIDR_REQ, in bytes: after [`IpCm`].
pub const SIDR_REQ_DATA: usize = 216 - IpCm::LEN;
/// A program's private data in a SIDR_REP, in bytes.
pub const SIDR_REP_DATA: usize = 136;

use crate::bytes::{Reader, Writer};
use crate::{Malformed, Qkey};

/// Length of every MAD.
pub const MAD_LEN: usize = 256;

/// Well-known Q_Key of QP1 (IBA 1.4 §10.2.5).
pub const GSI_QKEY: Qkey = Qkey(0x8001_0000);

/// A connection manager MAD.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mad {
    /// Transaction id: chosen by the side that starts an exchange, echoed in answers.
    pub transaction_id: u64,
    /// The message.
    pub message: Message,
}

/// A message of the connection manager.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// ConnectRequest, attribute 0x0010.
    Req(Req),
    /// MsgRcptAck, 0x0011.
    Mra(Mra),
    /// ConnectReject, 0x0012.
    Rej(Rej),
    /// ConnectReply, 0x0013.
    Rep(Rep),
    /// ReadyToUse, 0x0014.
    Rtu(Rtu),
    /// DisconnectRequest, 0x0015.
    Dreq(Dreq),
    /// DisconnectReply, 0x0016.
    Drep(Drep),
    /// ServiceIDResReq, 0x0017.
    SidrReq(SidrReq),
    /// ServiceIDResReqResp, 0x0018.
    SidrRep(SidrRep),
    /// LoadAlternatePath, 0x0019.
    Lap(Lap),
    /// AlternatePathResponse, 0x001a.
    Apr(Apr),
}

/// Enhanced Connection Establishment: what the queue pairs' drivers have to tell each other, in REQ
/// and REP. The options travel in the attribute modifier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ece {
    /// The vendor that gives the options a meaning, 24 bits; 0: there are none.
    pub vendor_id: u32,
    /// The options.
    pub options: u32,
}

/// A private data field: always the message's full size on the wire, zero-padded.
pub type PrivateData<const N: usize> = [u8; N];

const BASE_VERSION: u8 = 1;
const CLASS_COMMUNICATION_MANAGEMENT: u8 = 7;
const CLASS_VERSION: u8 = 2;
const METHOD_SEND: u8 = 3;

impl Mad {
    /// Parses a MAD of [`MAD_LEN`] bytes. Reserved bits and the status are ignored, and so is the
    /// attribute modifier but for REQ and REP, where it holds the options of [`Ece`].
    ///
    /// # Errors
    ///
    /// `Truncated`: shorter. `Length`: longer. `Field`: another class, version or method, an
    /// attribute that is no message here, or a REQ whose path MTU is none.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        match bytes.len() {
            ..MAD_LEN => return Err(Malformed::Truncated),
            MAD_LEN => {}
            _ => return Err(Malformed::Length),
        }
        let from = &mut Reader::new(bytes);
        let [base_version, class, class_version, method] = from.array()?;
        for (value, legal, name) in [
            (base_version, BASE_VERSION, "MAD base version"),
            (class, CLASS_COMMUNICATION_MANAGEMENT, "MAD class"),
            (class_version, CLASS_VERSION, "MAD class version"),
            (method, METHOD_SEND, "MAD method"),
        ] {
            if value != legal {
                return Err(Malformed::Field(name));
            }
        }
        from.skip::<4>()?;
        let transaction_id = from.u64()?;
        let attribute = from.u16()?;
        from.skip::<2>()?;
        let modifier = from.u32()?;
        let message = match attribute {
            0x0010 => Message::Req(Req::read(from, modifier)?),
            0x0011 => Message::Mra(Mra::read(from)?),
            0x0012 => Message::Rej(Rej::read(from)?),
            0x0013 => Message::Rep(Rep::read(from, modifier)?),
            0x0014 => Message::Rtu(Rtu::read(from)?),
            0x0015 => Message::Dreq(Dreq::read(from)?),
            0x0016 => Message::Drep(Drep::read(from)?),
            0x0017 => Message::SidrReq(SidrReq::read(from)?),
            0x0018 => Message::SidrRep(SidrRep::read(from)?),
            0x0019 => Message::Lap(Lap::read(from)?),
            0x001a => Message::Apr(Apr::read(from)?),
            _ => return Err(Malformed::Field("MAD attribute")),
        };
        Ok(Self { transaction_id, message })
    }

    /// The MAD as bytes. Of a field narrower than its type the low bits are taken.
    pub fn emit(&self) -> [u8; MAD_LEN] {
        let mut bytes = [0; MAD_LEN];
        let out = &mut Writer::new(&mut bytes);
        out.array([BASE_VERSION, CLASS_COMMUNICATION_MANAGEMENT, CLASS_VERSION, METHOD_SEND]);
        out.skip::<4>();
        out.u64(self.transaction_id);
        out.u16(self.message.attribute());
        out.skip::<2>();
        out.u32(match &self.message {
            Message::Req(req) => req.ece.options,
            Message::Rep(rep) => rep.ece.options,
            _ => 0,
        });
        match &self.message {
            Message::Req(message) => message.write(out),
            Message::Mra(message) => message.write(out),
            Message::Rej(message) => message.write(out),
            Message::Rep(message) => message.write(out),
            Message::Rtu(message) => message.write(out),
            Message::Dreq(message) => message.write(out),
            Message::Drep(message) => message.write(out),
            Message::SidrReq(message) => message.write(out),
            Message::SidrRep(message) => message.write(out),
            Message::Lap(message) => message.write(out),
            Message::Apr(message) => message.write(out),
        }
        bytes
    }
}

impl Message {
    /// The attribute id that names the message (IBA 1.4 table 105).
    pub fn attribute(&self) -> u16 {
        match self {
            Self::Req(_) => 0x0010,
            Self::Mra(_) => 0x0011,
            Self::Rej(_) => 0x0012,
            Self::Rep(_) => 0x0013,
            Self::Rtu(_) => 0x0014,
            Self::Dreq(_) => 0x0015,
            Self::Drep(_) => 0x0016,
            Self::SidrReq(_) => 0x0017,
            Self::SidrRep(_) => 0x0018,
            Self::Lap(_) => 0x0019,
            Self::Apr(_) => 0x001a,
        }
    }
}

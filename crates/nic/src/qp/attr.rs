//! Queue pair types, states and attributes, with the masks of `ibv_modify_qp` (IBA 1.4 §10.3,
//! tables 91 to 95).

use wire::{Mtu, Psn, Qkey, Qpn};

use crate::error::{Error, in_range};
use crate::limits;

/// Transport service of a queue pair: `enum ibv_qp_type`, same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum QpType {
    /// Reliable connection.
    Rc = 2,
    /// Unreliable connection.
    Uc = 3,
    /// Unreliable datagram.
    Ud = 4,
    /// Whole Ethernet frames.
    RawPacket = 8,
    /// Initiator of an extended reliable connection.
    XrcSend = 9,
    /// Target of an extended reliable connection.
    XrcRecv = 10,
}

impl QpType {
    /// From `enum ibv_qp_type`; `None` for what this adapter does not have.
    pub fn from_code(code: u32) -> Option<Self> {
        use QpType::*;
        [Rc, Uc, Ud, RawPacket, XrcSend, XrcRecv].into_iter().find(|t| *t as u32 == code)
    }

    /// The type's name in the manual pages, without IBV_QPT_.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Ud => "UD",
            Self::RawPacket => "RAW_PACKET",
            Self::XrcSend => "XRC_SEND",
            Self::XrcRecv => "XRC_RECV",
        }
    }

    /// The attributes of [`mask`] that a reliable connection has and this half of one has not.
    pub fn lacks(self) -> u32 {
        match self {
            Self::XrcSend => ANSWERING,
            Self::XrcRecv => ASKING,
            Self::Uc => ASKING | ANSWERING | mask::TIMEOUT,
            _ => 0,
        }
    }

    /// The attributes of [`mask`] that `ibv_modify_qp` ignores: those that the half of an XRC
    /// connection lacks. Programs pass one mask for both halves, and uverbs takes these out of it.
    pub fn ignores(self) -> u32 {
        match self {
            Self::XrcSend | Self::XrcRecv => self.lacks(),
            _ => 0,
        }
    }
}

/// State of a queue pair: `enum ibv_qp_state`, same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
#[expect(missing_docs, reason = "the names are the header's")]
pub enum QpState {
    Reset = 0,
    Init = 1,
    Rtr = 2,
    Rts = 3,
    Sqd = 4,
    Sqe = 5,
    Error = 6,
}

impl QpState {
    /// From `enum ibv_qp_state`.
    pub fn from_code(code: u32) -> Option<Self> {
        use QpState::*;
        [Reset, Init, Rtr, Rts, Sqd, Sqe, Error].into_iter().find(|s| *s as u32 == code)
    }

    /// The state's name in the manual pages, without IBV_QPS_.
    pub fn name(self) -> &'static str {
        match self {
            Self::Reset => "RESET",
            Self::Init => "INIT",
            Self::Rtr => "RTR",
            Self::Rts => "RTS",
            Self::Sqd => "SQD",
            Self::Sqe => "SQE",
            Self::Error => "ERR",
        }
    }
}

/// Bits of `enum ibv_qp_attr_mask`: which fields of a [`QpAttr`] a call means.
#[expect(missing_docs, reason = "the names are the header's")]
pub mod mask {
    pub const STATE: u32 = 1 << 0;
    pub const CUR_STATE: u32 = 1 << 1;
    pub const EN_SQD_ASYNC_NOTIFY: u32 = 1 << 2;
    pub const ACCESS_FLAGS: u32 = 1 << 3;
    pub const PKEY_INDEX: u32 = 1 << 4;
    pub const PORT: u32 = 1 << 5;
    pub const QKEY: u32 = 1 << 6;
    pub const AV: u32 = 1 << 7;
    pub const PATH_MTU: u32 = 1 << 8;
    pub const TIMEOUT: u32 = 1 << 9;
    pub const RETRY_CNT: u32 = 1 << 10;
    pub const RNR_RETRY: u32 = 1 << 11;
    pub const RQ_PSN: u32 = 1 << 12;
    pub const MAX_QP_RD_ATOMIC: u32 = 1 << 13;
    pub const ALT_PATH: u32 = 1 << 14;
    pub const MIN_RNR_TIMER: u32 = 1 << 15;
    pub const SQ_PSN: u32 = 1 << 16;
    pub const MAX_DEST_RD_ATOMIC: u32 = 1 << 17;
    pub const PATH_MIG_STATE: u32 = 1 << 18;
    pub const CAP: u32 = 1 << 19;
    pub const DEST_QPN: u32 = 1 << 20;
    pub const RATE_LIMIT: u32 = 1 << 25;

    /// Each bit with its name, without IBV_QP_ (`enum ibv_qp_attr_mask`).
    pub const NAMES: [(u32, &str); 22] = [
        (STATE, "STATE"),
        (CUR_STATE, "CUR_STATE"),
        (EN_SQD_ASYNC_NOTIFY, "EN_SQD_ASYNC_NOTIFY"),
        (ACCESS_FLAGS, "ACCESS_FLAGS"),
        (PKEY_INDEX, "PKEY_INDEX"),
        (PORT, "PORT"),
        (QKEY, "QKEY"),
        (AV, "AV"),
        (PATH_MTU, "PATH_MTU"),
        (TIMEOUT, "TIMEOUT"),
        (RETRY_CNT, "RETRY_CNT"),
        (RNR_RETRY, "RNR_RETRY"),
        (RQ_PSN, "RQ_PSN"),
        (MAX_QP_RD_ATOMIC, "MAX_QP_RD_ATOMIC"),
        (ALT_PATH, "ALT_PATH"),
        (MIN_RNR_TIMER, "MIN_RNR_TIMER"),
        (SQ_PSN, "SQ_PSN"),
        (MAX_DEST_RD_ATOMIC, "MAX_DEST_RD_ATOMIC"),
        (PATH_MIG_STATE, "PATH_MIG_STATE"),
        (CAP, "CAP"),
        (DEST_QPN, "DEST_QPN"),
        (RATE_LIMIT, "RATE_LIMIT"),
    ];

    /// What `rdma_init_qp_attr` sets for INIT.
    pub const INIT: u32 = STATE | PKEY_INDEX | PORT | ACCESS_FLAGS;
    /// What `rdma_init_qp_attr` sets for RTR.
    pub const RTR: u32 = STATE | AV | PATH_MTU | DEST_QPN | RQ_PSN | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER;
    /// What `rdma_init_qp_attr` sets for RTS.
    pub const RTS: u32 = STATE | TIMEOUT | RETRY_CNT | RNR_RETRY | SQ_PSN | MAX_QP_RD_ATOMIC;
}

/// Where a queue pair's packets go (`struct ibv_ah_attr`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AddressVector {
    /// The peer's GID.
    pub dgid: wire::Gid,
    /// Index of our GID.
    pub sgid_index: u8,
    /// 20 bits.
    pub flow_label: u32,
    /// Hop limit; 0 leaves the system's default.
    pub hop_limit: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Service level, 4 bits; RoCE keeps it for queries only.
    pub sl: u8,
    /// The peer's LID on InfiniBand; kept for queries on RoCE.
    pub dlid: u16,
    /// Which of the port's LIDs packets bear on InfiniBand, 7 bits.
    pub src_path_bits: u8,
    /// Static rate, in the code of `enum ibv_rate`; kept for queries only.
    pub static_rate: u8,
    /// A GRH is present: always so on RoCE.
    pub is_global: bool,
    /// Port, 1.
    pub port: u8,
}

/// All attributes of a queue pair (`struct ibv_qp_attr`); `mask` bits say which of them a call
/// means.
#[derive(Clone, Copy, Debug)]
pub struct QpAttr {
    /// State to go to, or the current one in a query.
    pub state: QpState,
    /// State the caller believes the queue pair to be in.
    pub cur_state: QpState,
    /// Path MTU.
    pub path_mtu: Mtu,
    /// Q_Key of a datagram queue pair.
    pub qkey: Qkey,
    /// First PSN expected.
    pub rq_psn: Psn,
    /// First PSN sent.
    pub sq_psn: Psn,
    /// The peer's queue pair.
    pub dest_qpn: Qpn,
    /// `enum ibv_access_flags` bits that peers may use.
    pub access: u32,
    /// Address vector.
    pub av: AddressVector,
    /// Index of the partition's key in the port's table.
    pub pkey_index: u16,
    /// READs and atomics started at once.
    pub max_rd_atomic: u8,
    /// READs and atomics accepted at once.
    pub max_dest_rd_atomic: u8,
    /// Timer code sent in RNR NAKs, 0 to 31.
    pub min_rnr_timer: u8,
    /// Port, 1.
    pub port: u8,
    /// Local ACK timeout code, 0 to 31.
    pub timeout: u8,
    /// Retries on timeout, 0 to 7.
    pub retry_cnt: u8,
    /// Retries on RNR NAK, 0 to 7 (7: for ever).
    pub rnr_retry: u8,
    /// Path migration state, `enum ibv_mig_state`: 0, migrated.
    pub path_mig_state: u32,
    /// On the way to SQD: tell by an event when the send queue has drained. Not asked about, it is
    /// told, as rdma_rxe does.
    pub en_sqd_async_notify: bool,
    /// In SQD: requests that had begun are not all complete. Read only.
    pub sq_draining: bool,
}

impl QpAttr {
    /// The attributes, for a move to another state.
    #[must_use]
    pub fn with_state(self, state: QpState) -> Self {
        Self { state, ..self }
    }
}

impl QpAttr {
    /// Takes over the attributes that `bits` name.
    pub(crate) fn merge(&mut self, new: &Self, bits: u32) {
        macro_rules! take {
            ($($bit:ident: $($field:ident),+;)*) => {
                $(if bits & mask::$bit != 0 { $(self.$field = new.$field;)+ })*
            };
        }
        take! {
            ACCESS_FLAGS: access;
            PKEY_INDEX: pkey_index;
            PORT: port;
            QKEY: qkey;
            AV: av;
            PATH_MTU: path_mtu;
            TIMEOUT: timeout;
            RETRY_CNT: retry_cnt;
            RNR_RETRY: rnr_retry;
            RQ_PSN: rq_psn;
            MAX_QP_RD_ATOMIC: max_rd_atomic;
            MIN_RNR_TIMER: min_rnr_timer;
            SQ_PSN: sq_psn;
            MAX_DEST_RD_ATOMIC: max_dest_rd_atomic;
            PATH_MIG_STATE: path_mig_state;
            DEST_QPN: dest_qpn;
        }
    }
}

impl Default for QpAttr {
    fn default() -> Self {
        Self {
            state: QpState::Reset,
            cur_state: QpState::Reset,
            path_mtu: Mtu::M256,
            qkey: Qkey(0),
            rq_psn: Psn::new(0),
            sq_psn: Psn::new(0),
            dest_qpn: Qpn::new(0),
            access: 0,
            av: AddressVector::default(),
            pkey_index: 0,
            max_rd_atomic: 0,
            max_dest_rd_atomic: 0,
            min_rnr_timer: 0,
            port: 0,
            timeout: 0,
            retry_cnt: 0,
            rnr_retry: 0,
            path_mig_state: 0,
            en_sqd_async_notify: true,
            sq_draining: false,
        }
    }
}

/// What a transition of an RC queue pair requires and allows beside STATE and CUR_STATE (IBA 1.4
/// table 91). `None`: no such transition. Alternate paths are in no table: RoCE has none.
fn rc_masks(from: QpState, to: QpState) -> Option<(u32, u32)> {
    use QpState::*;
    use mask::*;
    let any = ACCESS_FLAGS | PKEY_INDEX;
    let running = ACCESS_FLAGS | MIN_RNR_TIMER | PATH_MIG_STATE;
    Some(match (from, to) {
        (Reset, Init) => (PKEY_INDEX | PORT | ACCESS_FLAGS, 0),
        (Init, Init) => (0, any | PORT),
        (Init, Rtr) => (AV | PATH_MTU | DEST_QPN | RQ_PSN | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER, any),
        (Rtr, Rts) => (TIMEOUT | RETRY_CNT | RNR_RETRY | SQ_PSN | MAX_QP_RD_ATOMIC, running),
        (Rts | Sqd, Rts) => (0, running),
        (Rts, Sqd) => (0, EN_SQD_ASYNC_NOTIFY),
        (Sqd, Sqd) => (
            0,
            any | PORT
                | AV
                | TIMEOUT
                | RETRY_CNT
                | RNR_RETRY
                | MAX_QP_RD_ATOMIC
                | MAX_DEST_RD_ATOMIC
                | MIN_RNR_TIMER
                | PATH_MIG_STATE,
        ),
        _ => return None,
    })
}

/// What only the responder of a connection wants to know, and an XRC initiator has not.
const ANSWERING: u32 = mask::MAX_DEST_RD_ATOMIC | mask::MIN_RNR_TIMER;
/// What only the requester wants to know, and an XRC target has not. (A target takes timeout and
/// PSN, of which it makes no use.)
const ASKING: u32 = mask::RETRY_CNT | mask::RNR_RETRY | mask::MAX_QP_RD_ATOMIC;

/// Requires and allows all but `bits`.
fn without((required, optional): (u32, u32), bits: u32) -> (u32, u32) {
    (required & !bits, optional & !bits)
}

/// What a transition of a UC queue pair requires and allows: no retries, no READs and atomics.
fn uc_masks(from: QpState, to: QpState) -> Option<(u32, u32)> {
    use QpState::*;
    use mask::*;
    let any = ACCESS_FLAGS | PKEY_INDEX;
    let running = ACCESS_FLAGS | PATH_MIG_STATE;
    Some(match (from, to) {
        (Reset, Init) => (PKEY_INDEX | PORT | ACCESS_FLAGS, 0),
        (Init, Init) => (0, any | PORT),
        (Init, Rtr) => (AV | PATH_MTU | DEST_QPN | RQ_PSN, any),
        (Rtr, Rts) => (SQ_PSN, running),
        (Rts, Rts) | (Sqd, Rts) => (0, running),
        (Sqe, Rts) => (0, ACCESS_FLAGS),
        (Rts, Sqd) => (0, EN_SQD_ASYNC_NOTIFY),
        (Sqd, Sqd) => (0, any | AV | PATH_MIG_STATE),
        _ => return None,
    })
}

/// What a transition of a UD queue pair requires and allows: it has no peer, but a Q_Key.
fn ud_masks(from: QpState, to: QpState) -> Option<(u32, u32)> {
    use QpState::*;
    use mask::*;
    Some(match (from, to) {
        (Reset, Init) => (PKEY_INDEX | PORT | QKEY, 0),
        (Init, Init) => (0, PKEY_INDEX | PORT | QKEY),
        (Init, Rtr) => (0, PKEY_INDEX | QKEY),
        (Rtr, Rts) => (SQ_PSN, QKEY),
        (Rts, Rts) | (Sqd, Rts) | (Sqe, Rts) => (0, QKEY),
        (Rts, Sqd) => (0, EN_SQD_ASYNC_NOTIFY),
        (Sqd, Sqd) => (0, PKEY_INDEX | QKEY),
        _ => return None,
    })
}

/// What a transition of a raw packet queue pair requires and allows: it has a port and nothing
/// else.
fn raw_masks(from: QpState, to: QpState) -> Option<(u32, u32)> {
    use QpState::*;
    use mask::*;
    Some(match (from, to) {
        (Reset, Init) => (PORT, 0),
        (Init, Init | Rtr) | (Rtr | Rts | Sqd | Sqe, Rts) | (Rts | Sqd, Sqd) => (0, 0),
        _ => return None,
    })
}

/// Checks a call of `ibv_modify_qp` against state, masks and ranges; returns the state to go to.
pub fn check(kind: QpType, current: QpState, attr: &QpAttr, bits: u32) -> Result<QpState, Error> {
    let wrong = |what, asked: QpState| Error::State { what, asked: asked.name(), current: current.name() };
    if bits & mask::CUR_STATE != 0 && attr.cur_state != current {
        return Err(wrong("cur_qp_state is", attr.cur_state));
    }
    let to = if bits & mask::STATE != 0 { attr.state } else { current };
    let masks = match kind {
        _ if to == QpState::Error && current == QpState::Reset => None,
        _ if matches!(to, QpState::Reset | QpState::Error) => Some((0, 0)),
        QpType::Rc => rc_masks(current, to),
        QpType::Uc => uc_masks(current, to),
        QpType::Ud => ud_masks(current, to),
        QpType::RawPacket => raw_masks(current, to),
        QpType::XrcSend | QpType::XrcRecv => rc_masks(current, to).map(|m| without(m, kind.lacks())),
    };
    let (required, mut optional) = masks.ok_or(wrong("no transition to", to))?;
    if to == QpState::Rts {
        optional |= mask::CUR_STATE;
    }
    let given = bits & !mask::STATE;
    let missing = required & !given;
    if missing != 0 {
        return Err(Error::hex("attr_mask lacks attributes that the transition requires", missing));
    }
    let foreign = given & !(required | optional);
    if foreign != 0 {
        return Err(Error::hex("attr_mask has attributes that do not belong to the transition", foreign));
    }
    if matches!(to, QpState::Reset | QpState::Error) {
        return Ok(to);
    }
    let ranged = |bit, what, value: u16, least: u16, most: u16| match given & bit {
        0 => Ok(()),
        _ => in_range(what, value, least, most),
    };
    let depth = limits::MAX_RD_ATOMIC.into();
    ranged(mask::PORT, "port_num", attr.port.into(), 1, 1)?;
    ranged(mask::MAX_QP_RD_ATOMIC, "max_rd_atomic", attr.max_rd_atomic.into(), 0, depth)?;
    ranged(mask::MAX_DEST_RD_ATOMIC, "max_dest_rd_atomic", attr.max_dest_rd_atomic.into(), 0, depth)?;
    ranged(mask::TIMEOUT, "timeout", attr.timeout.into(), 0, 31)?;
    ranged(mask::RETRY_CNT, "retry_cnt", attr.retry_cnt.into(), 0, 7)?;
    ranged(mask::RNR_RETRY, "rnr_retry", attr.rnr_retry.into(), 0, 7)?;
    ranged(mask::MIN_RNR_TIMER, "min_rnr_timer", attr.min_rnr_timer.into(), 0, 31)?;
    Ok(to)
}

#[cfg(test)]
mod tests;

//! Headers of tag matching as they travel in a message.
//!
//! Names, order and values are the header's; each field's meaning is in ibv_create_srq_ex(3) and
//! <infiniband/tm_types.h>.
#![expect(missing_docs, reason = "fields and values: the header's own, see above")]

use crate::{be32, be64};

/// Which tag-matching message.
pub type ibv_tmh_op = u32;
pub const IBV_TMH_NO_TAG: ibv_tmh_op = 0;
pub const IBV_TMH_RNDV: ibv_tmh_op = 1;
pub const IBV_TMH_FIN: ibv_tmh_op = 1 << 1;
pub const IBV_TMH_EAGER: ibv_tmh_op = 3;

/// The tag-matching header.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ibv_tmh {
    pub opcode: u8,
    pub reserved: [u8; 3],
    pub app_ctx: be32,
    pub tag: be64,
}

/// The rendezvous header that may follow it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ibv_rvh {
    pub va: be64,
    pub rkey: be32,
    pub len: be32,
}

//! Completion queues, the channels that announce their events, and the calls that read one
//! completion at a time.
//!
//! Names, order and values are the header's; each field's meaning is in ibv_create_cq(3),
//! ibv_create_comp_channel(3), ibv_create_cq_ex(3), ibv_modify_cq(3).
#![expect(missing_docs, reason = "fields and values: the header's own, see above")]

use libc::{pthread_cond_t, pthread_mutex_t};
use std::ffi::{c_int, c_uint, c_void};

use crate::be32;
use crate::verbs::{ibv_context, ibv_pd, ibv_wc_opcode, ibv_wc_status, ibv_wc_tm_info};

/// Bits of `ibv_cq_init_attr_ex::comp_mask`.
pub type ibv_cq_init_attr_mask = u32;
pub const IBV_CQ_INIT_ATTR_MASK_FLAGS: ibv_cq_init_attr_mask = 1;
pub const IBV_CQ_INIT_ATTR_MASK_PD: ibv_cq_init_attr_mask = 1 << 1;

/// Bits of `ibv_cq_init_attr_ex::flags`.
pub type ibv_create_cq_attr_flags = u32;
pub const IBV_CREATE_CQ_ATTR_SINGLE_THREADED: ibv_create_cq_attr_flags = 1;
pub const IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN: ibv_create_cq_attr_flags = 1 << 1;

/// Bits of `ibv_modify_cq_attr::attr_mask`.
pub type ibv_cq_attr_mask = u32;
pub const IBV_CQ_ATTR_MODERATE: ibv_cq_attr_mask = 1;
pub const IBV_CQ_ATTR_RESERVED: ibv_cq_attr_mask = 1 << 1;

/// A completion channel; programs poll `fd`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_comp_channel {
    pub context: *mut ibv_context,
    pub fd: c_int,
    pub refcnt: c_int,
}

/// A completion queue.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_cq {
    pub context: *mut ibv_context,
    pub channel: *mut ibv_comp_channel,
    pub cq_context: *mut c_void,
    pub handle: u32,
    pub cqe: c_int,
    pub mutex: pthread_mutex_t,
    pub cond: pthread_cond_t,
    pub comp_events_completed: u32,
    pub async_events_completed: u32,
}

/// How to make an extended completion queue.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_cq_init_attr_ex {
    pub cqe: u32,
    pub cq_context: *mut c_void,
    pub channel: *mut ibv_comp_channel,
    pub comp_vector: u32,
    pub wc_flags: u64,
    pub comp_mask: u32,
    pub flags: u32,
    pub parent_domain: *mut ibv_pd,
}

/// An extended completion queue; its first fields are those of [`ibv_cq`], and programs cast
/// between the two.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_cq_ex {
    pub context: *mut ibv_context,
    pub channel: *mut ibv_comp_channel,
    pub cq_context: *mut c_void,
    pub handle: u32,
    pub cqe: c_int,
    pub mutex: pthread_mutex_t,
    pub cond: pthread_cond_t,
    pub comp_events_completed: u32,
    pub async_events_completed: u32,
    pub comp_mask: u32,
    pub status: ibv_wc_status,
    pub wr_id: u64,
    pub start_poll: Option<unsafe extern "C" fn(current: *mut Self, attr: *mut ibv_poll_cq_attr) -> c_int>,
    pub next_poll: Option<unsafe extern "C" fn(current: *mut Self) -> c_int>,
    pub end_poll: Option<unsafe extern "C" fn(current: *mut Self)>,
    pub read_opcode: Option<unsafe extern "C" fn(current: *mut Self) -> ibv_wc_opcode>,
    pub read_vendor_err: Option<unsafe extern "C" fn(current: *mut Self) -> u32>,
    pub read_byte_len: Option<unsafe extern "C" fn(current: *mut Self) -> u32>,
    pub read_imm_data: Option<unsafe extern "C" fn(current: *mut Self) -> be32>,
    pub read_qp_num: Option<unsafe extern "C" fn(current: *mut Self) -> u32>,
    pub read_src_qp: Option<unsafe extern "C" fn(current: *mut Self) -> u32>,
    pub read_wc_flags: Option<unsafe extern "C" fn(current: *mut Self) -> c_uint>,
    pub read_slid: Option<unsafe extern "C" fn(current: *mut Self) -> u32>,
    pub read_sl: Option<unsafe extern "C" fn(current: *mut Self) -> u8>,
    pub read_dlid_path_bits: Option<unsafe extern "C" fn(current: *mut Self) -> u8>,
    pub read_completion_ts: Option<unsafe extern "C" fn(current: *mut Self) -> u64>,
    pub read_cvlan: Option<unsafe extern "C" fn(current: *mut Self) -> u16>,
    pub read_flow_tag: Option<unsafe extern "C" fn(current: *mut Self) -> u32>,
    pub read_tm_info: Option<unsafe extern "C" fn(current: *mut Self, tm_info: *mut ibv_wc_tm_info)>,
    pub read_completion_wallclock_ns: Option<unsafe extern "C" fn(current: *mut Self) -> u64>,
}

/// The argument of `ibv_start_poll`; its mask is 0.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ibv_poll_cq_attr {
    pub comp_mask: u32,
}

/// After how many completions or microseconds to announce them.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ibv_moderate_cq {
    pub cq_count: u16,
    pub cq_period: u16,
}

/// What `ibv_modify_cq` shall change.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ibv_modify_cq_attr {
    pub attr_mask: u32,
    pub moderate: ibv_moderate_cq,
}

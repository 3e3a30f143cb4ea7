//! The RDMA connection manager's types (`<rdma/rdma_cma.h>`).
//!
//! Names, order and values are the header's; each field's meaning is in rdma_cm(7),
//! rdma_get_cm_event(3), rdma_getaddrinfo(3).
#![expect(missing_docs, reason = "fields and values: the header's own, see above")]

use libc::{sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage, socklen_t};
use std::ffi::{c_char, c_int, c_void};

use crate::sa::ibv_sa_path_rec;
use crate::verbs::{
    ibv_ah_attr, ibv_comp_channel, ibv_context, ibv_cq, ibv_gid, ibv_pd, ibv_qp, ibv_qp_type, ibv_srq,
};
use crate::{be16, be32, be64};

/// What the connection manager reports.
pub type rdma_cm_event_type = u32;
pub const RDMA_CM_EVENT_ADDR_RESOLVED: rdma_cm_event_type = 0;
pub const RDMA_CM_EVENT_ADDR_ERROR: rdma_cm_event_type = 1;
pub const RDMA_CM_EVENT_ROUTE_RESOLVED: rdma_cm_event_type = 2;
pub const RDMA_CM_EVENT_ROUTE_ERROR: rdma_cm_event_type = 3;
pub const RDMA_CM_EVENT_CONNECT_REQUEST: rdma_cm_event_type = 4;
pub const RDMA_CM_EVENT_CONNECT_RESPONSE: rdma_cm_event_type = 5;
pub const RDMA_CM_EVENT_CONNECT_ERROR: rdma_cm_event_type = 6;
pub const RDMA_CM_EVENT_UNREACHABLE: rdma_cm_event_type = 7;
pub const RDMA_CM_EVENT_REJECTED: rdma_cm_event_type = 8;
pub const RDMA_CM_EVENT_ESTABLISHED: rdma_cm_event_type = 9;
pub const RDMA_CM_EVENT_DISCONNECTED: rdma_cm_event_type = 10;
pub const RDMA_CM_EVENT_DEVICE_REMOVAL: rdma_cm_event_type = 11;
pub const RDMA_CM_EVENT_MULTICAST_JOIN: rdma_cm_event_type = 12;
pub const RDMA_CM_EVENT_MULTICAST_ERROR: rdma_cm_event_type = 13;
pub const RDMA_CM_EVENT_ADDR_CHANGE: rdma_cm_event_type = 14;
pub const RDMA_CM_EVENT_TIMEWAIT_EXIT: rdma_cm_event_type = 15;
pub const RDMA_CM_EVENT_ADDRINFO_RESOLVED: rdma_cm_event_type = 16;
pub const RDMA_CM_EVENT_ADDRINFO_ERROR: rdma_cm_event_type = 17;
pub const RDMA_CM_EVENT_USER: rdma_cm_event_type = 18;
pub const RDMA_CM_EVENT_INTERNAL: rdma_cm_event_type = 19;

/// A port space; the 16-bit ports of each are its own.
pub type rdma_port_space = u32;
pub const RDMA_PS_IPOIB: rdma_port_space = 0x2;
pub const RDMA_PS_TCP: rdma_port_space = 0x106;
pub const RDMA_PS_UDP: rdma_port_space = 0x111;
pub const RDMA_PS_IB: rdma_port_space = 0x13f;

/// The parts of the 64-bit service id that stands for a port of a port space (`AF_IB` addresses).
pub const RDMA_IB_IP_PS_MASK: u64 = 0xffff_ffff_ffff_0000;
pub const RDMA_IB_IP_PORT_MASK: u64 = 0x0000_0000_0000_ffff;
pub const RDMA_IB_IP_PS_TCP: u64 = 0x0000_0000_0106_0000;
pub const RDMA_IB_IP_PS_UDP: u64 = 0x0000_0000_0111_0000;
pub const RDMA_IB_PS_IB: u64 = 0x0000_0000_013f_0000;

/// The family of [`sockaddr_ib`] (`<infiniband/ib.h>`).
pub const AF_IB: c_int = 27;

/// An address of a service on an InfiniBand port (`<infiniband/ib.h>`).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sockaddr_ib {
    pub sib_family: u16,
    pub sib_pkey: be16,
    pub sib_flowinfo: be32,
    pub sib_addr: ibv_gid,
    pub sib_sid: be64,
    pub sib_sid_mask: be64,
    pub sib_scope_id: u64,
}

/// The queue key of every queue pair in [`RDMA_PS_UDP`].
pub const RDMA_UDP_QKEY: u32 = 0x0123_4567;

/// "As much as the device allows", in [`rdma_conn_param`].
pub const RDMA_MAX_RESP_RES: u8 = 0xff;
pub const RDMA_MAX_INIT_DEPTH: u8 = 0xff;

/// Levels of `rdma_set_option`.
pub const RDMA_OPTION_ID: c_int = 0;
pub const RDMA_OPTION_IB: c_int = 1;
/// Options of level [`RDMA_OPTION_ID`]: the type of service (`u8`), reuse of the address (`int`),
/// IPv6 only (`int`), the local ACK timeout (`u8`).
pub const RDMA_OPTION_ID_TOS: c_int = 0;
pub const RDMA_OPTION_ID_REUSEADDR: c_int = 1;
pub const RDMA_OPTION_ID_AFONLY: c_int = 2;
pub const RDMA_OPTION_ID_ACK_TIMEOUT: c_int = 3;
/// The option of level [`RDMA_OPTION_IB`]: an array of [`ibv_path_data`](crate::sa::ibv_path_data).
pub const RDMA_OPTION_IB_PATH: c_int = 1;

/// Bits of `rdma_addrinfo::ai_flags`.
pub const RAI_PASSIVE: c_int = 0x01;
pub const RAI_NUMERICHOST: c_int = 0x02;
pub const RAI_NOROUTE: c_int = 0x04;
pub const RAI_FAMILY: c_int = 0x08;
pub const RAI_SA: c_int = 0x10;
pub const RAI_DNS: c_int = 0x20;

/// Bits of `rdma_cm_join_mc_attr_ex::comp_mask`.
pub type rdma_cm_join_mc_attr_mask = u32;
pub const RDMA_CM_JOIN_MC_ATTR_ADDRESS: rdma_cm_join_mc_attr_mask = 1;
pub const RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS: rdma_cm_join_mc_attr_mask = 1 << 1;
pub const RDMA_CM_JOIN_MC_ATTR_RESERVED: rdma_cm_join_mc_attr_mask = 1 << 2;

/// How to join a multicast group.
pub type rdma_cm_mc_join_flags = u32;
pub const RDMA_MC_JOIN_FLAG_FULLMEMBER: rdma_cm_mc_join_flags = 0;
pub const RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER: rdma_cm_mc_join_flags = 1;
pub const RDMA_MC_JOIN_FLAG_RESERVED: rdma_cm_mc_join_flags = 1 << 1;

/// An event channel; programs poll `fd`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct rdma_event_channel {
    pub fd: c_int,
}

/// A communication identifier; the connection manager's socket.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdma_cm_id {
    pub verbs: *mut ibv_context,
    pub channel: *mut rdma_event_channel,
    pub context: *mut c_void,
    pub qp: *mut ibv_qp,
    pub route: rdma_route,
    pub ps: rdma_port_space,
    pub port_num: u8,
    pub event: *mut rdma_cm_event,
    pub send_cq_channel: *mut ibv_comp_channel,
    pub send_cq: *mut ibv_cq,
    pub recv_cq_channel: *mut ibv_comp_channel,
    pub recv_cq: *mut ibv_cq,
    pub srq: *mut ibv_srq,
    pub pd: *mut ibv_pd,
    pub qp_type: ibv_qp_type,
}

/// Addresses and path of an identifier.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdma_route {
    pub addr: rdma_addr,
    pub path_rec: *mut ibv_sa_path_rec,
    pub num_paths: c_int,
}

/// Both ends' addresses.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdma_addr {
    pub src: rdma_sockaddr,
    pub dst: rdma_sockaddr,
    pub addr: rdma_addr_addr,
}

/// A socket address of any of the families. In C the union has no name: its members are `src_addr`
/// or `dst_addr` and so on.
#[repr(C)]
#[derive(Clone, Copy)]
pub union rdma_sockaddr {
    pub addr: sockaddr,
    pub sin: sockaddr_in,
    pub sin6: sockaddr_in6,
    pub sib: sockaddr_ib,
    pub storage: sockaddr_storage,
}

/// What the addresses are in the transport's terms.
#[repr(C)]
#[derive(Clone, Copy)]
pub union rdma_addr_addr {
    pub ibaddr: rdma_ib_addr,
}

/// GIDs and partition of a connection.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdma_ib_addr {
    pub sgid: ibv_gid,
    pub dgid: ibv_gid,
    pub pkey: be16,
}

/// Parameters of a connection, asked for or offered.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdma_conn_param {
    pub private_data: *const c_void,
    pub private_data_len: u8,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub flow_control: u8,
    pub retry_count: u8,
    pub rnr_retry_count: u8,
    pub srq: u8,
    pub qp_num: u32,
}

/// Where a datagram service's peer is.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdma_ud_param {
    pub private_data: *const c_void,
    pub private_data_len: u8,
    pub ah_attr: ibv_ah_attr,
    pub qp_num: u32,
    pub qkey: u32,
}

/// An event, valid until `rdma_ack_cm_event`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdma_cm_event {
    pub id: *mut rdma_cm_id,
    pub listen_id: *mut rdma_cm_id,
    pub event: rdma_cm_event_type,
    pub status: c_int,
    pub param: rdma_cm_event_param,
}

/// Parameters that came with an event, by the identifier's port space; `arg` with
/// `RDMA_CM_EVENT_USER`.
#[repr(C)]
#[derive(Clone, Copy)]
pub union rdma_cm_event_param {
    pub conn: rdma_conn_param,
    pub ud: rdma_ud_param,
    pub arg: u64,
}

/// An answer of `rdma_getaddrinfo`, a list.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdma_addrinfo {
    pub ai_flags: c_int,
    pub ai_family: c_int,
    pub ai_qp_type: c_int,
    pub ai_port_space: c_int,
    pub ai_src_len: socklen_t,
    pub ai_dst_len: socklen_t,
    pub ai_src_addr: *mut sockaddr,
    pub ai_dst_addr: *mut sockaddr,
    pub ai_src_canonname: *mut c_char,
    pub ai_dst_canonname: *mut c_char,
    pub ai_route_len: usize,
    pub ai_route: *mut c_void,
    pub ai_connect_len: usize,
    pub ai_connect: *mut c_void,
    pub ai_next: *mut Self,
}

/// Which multicast group to join, and how.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct rdma_cm_join_mc_attr_ex {
    pub comp_mask: u32,
    pub join_flags: u32,
    pub addr: *mut sockaddr,
}

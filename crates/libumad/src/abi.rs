//! The structures of infiniband/umad.h, as rdma-core 44 has them.

use std::ffi::{c_char, c_int, c_uint};

/// UMAD_CA_NAME_LEN.
pub const NAME_LEN: usize = 20;
/// UMAD_CA_MAX_PORTS.
pub const MAX_PORTS: usize = 10;

/// A name with a zero byte behind it.
pub type Name = [u8; NAME_LEN];

/// `umad_port_t`.
#[repr(C)]
#[derive(Clone, Copy)]
#[expect(missing_docs, reason = "named as in umad.h")]
pub struct umad_port {
    pub ca_name: Name,
    pub portnum: c_int,
    pub base_lid: c_uint,
    pub lmc: c_uint,
    pub sm_lid: c_uint,
    pub sm_sl: c_uint,
    pub state: c_uint,
    pub phys_state: c_uint,
    pub rate: c_uint,
    pub capmask: u32,
    pub gid_prefix: u64,
    pub port_guid: u64,
    pub pkeys_size: c_uint,
    pub pkeys: *mut u16,
    pub link_layer: Name,
}

/// `umad_ca_t`.
#[repr(C)]
#[expect(missing_docs, reason = "named as in umad.h")]
pub struct umad_ca {
    pub ca_name: Name,
    pub node_type: c_uint,
    pub numports: c_int,
    pub fw_ver: [u8; 20],
    pub ca_type: [u8; 40],
    pub hw_ver: [u8; 20],
    pub node_guid: u64,
    pub system_guid: u64,
    pub ports: [*mut umad_port; MAX_PORTS],
}

/// `ib_mad_addr_t`: numbers of the network's order, but for the P_Key index.
#[repr(C)]
#[derive(Clone, Copy)]
#[expect(missing_docs, reason = "named as in umad.h")]
pub struct ib_mad_addr {
    pub qpn: u32,
    pub qkey: u32,
    pub lid: u16,
    pub sl: u8,
    pub path_bits: u8,
    pub grh_present: u8,
    pub gid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub gid: [u8; 16],
    pub flow_label: u32,
    pub pkey_index: u16,
    pub reserved: [u8; 6],
}

/// `ib_user_mad_t`; the MAD follows.
#[repr(C)]
#[derive(Clone, Copy)]
#[expect(missing_docs, reason = "named as in umad.h")]
pub struct ib_user_mad {
    pub agent_id: u32,
    pub status: u32,
    pub timeout_ms: u32,
    pub retries: u32,
    pub length: u32,
    pub addr: ib_mad_addr,
}

/// `struct umad_device_node`.
#[repr(C)]
#[expect(missing_docs, reason = "named as in umad.h")]
pub struct umad_device_node {
    pub next: *mut Self,
    pub ca_name: *const c_char,
}

/// `struct umad_reg_attr`.
#[repr(C)]
#[expect(missing_docs, reason = "named as in umad.h")]
pub struct umad_reg_attr {
    pub mgmt_class: u8,
    pub mgmt_class_version: u8,
    pub flags: u32,
    pub method_mask: [u64; 2],
    pub oui: u32,
    pub rmpp_version: u8,
}

/// `struct umad_ca_pair` of later rdma-core.
#[repr(C)]
#[expect(missing_docs, reason = "named as in umad.h")]
pub struct umad_ca_pair {
    pub smi_name: Name,
    pub smi_preferred_port: u32,
    pub gsi_name: Name,
    pub gsi_preferred_port: u32,
}

const _: () =
    assert!(size_of::<ib_user_mad>() == 64 && size_of::<umad_port>() == 112 && size_of::<umad_ca>() == 208);

/// Puts text into a name or the like; what does not fit with its zero byte is left out.
pub fn put_text(to: &mut [u8], text: &str) {
    to.fill(0);
    let room = to.len().saturating_sub(1);
    to.iter_mut().take(room).zip(text.bytes()).for_each(|(to, byte)| *to = byte);
}

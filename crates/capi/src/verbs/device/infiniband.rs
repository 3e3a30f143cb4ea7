//! What a port of InfiniBand says in ibv_query_port(3).

use std::ffi::c_int;

use nic::device::IbPort;
use rdma_core_abi::verbs::ibv_port_attr;

const LINK_LAYER_INFINIBAND: u8 = 1;
/// IBV_QPF_GRH_REQUIRED, of `ibv_port_attr`.
const GRH_REQUIRED: u8 = 1;

/// What a port says of its LIDs, its subnet manager and its tables.
pub(super) fn say_infiniband(a: &mut ibv_port_attr, ib: &IbPort) {
    a.link_layer = LINK_LAYER_INFINIBAND;
    a.max_mtu = ib.mtu_max.code().into();
    a.active_mtu = ib.mtu_active.code().into();
    (a.lid, a.lmc, a.sm_lid, a.sm_sl) = (ib.lid, ib.lmc, ib.sm_lid, ib.sm_sl);
    (a.subnet_timeout, a.init_type_reply, a.max_vl_num) = (ib.subnet_timeout, ib.init_type_reply, ib.max_vl);
    a.gid_tbl_len = c_int::from(table_len(&ib.guids));
    a.flags = if ib.grh_required { GRH_REQUIRED } else { 0 };
}

/// The length of a port's table.
pub(super) fn table_len<T>(entries: &[T]) -> u16 {
    u16::try_from(entries.len()).unwrap_or(u16::MAX)
}

//! What devices and ports are (ibv_query_device(3), ibv_query_port(3), ibv_query_gid(3),
//! ibv_query_pkey(3)).

use std::ffi::{c_char, c_int, c_uint};

use nic::device::{observed, port};
use nic::fate::DropCounter;
use nic::{Transport, limits};
use rdma_core_abi::verbs::{
    _compat_ibv_port_attr, IBV_VALUES_MASK_RAW_CLOCK, ibv_context, ibv_cq_moderation_caps, ibv_device_attr,
    ibv_device_attr_ex, ibv_gid, ibv_gid_entry, ibv_odp_caps, ibv_port_attr, ibv_query_device_ex_input,
    ibv_rss_caps, ibv_tm_caps, ibv_values_ex,
};

use crate::ffi_guard::{self, Errno};
use crate::verbs::cq::clock::clock_ns;
use crate::verbs::device::context::Context;
use crate::verbs::device::infiniband::{say_infiniband, table_len};

const ATOMIC_NONE: i32 = 0;
const ATOMIC_HCA: i32 = 1;
/// IB_UVERBS_DEVICE_FLUSH_GLOBAL, FLUSH_PERSISTENT and ATOMIC_WRITE, which the header has no names
/// for.
const SINCE_ANNEX_A19: u64 = 0b111 << 38;
/// Ticks of a completion's raw timestamp are nanoseconds.
const CLOCK_KHZ: u64 = 1_000_000;
const LINK_LAYER_ETHERNET: u8 = 2;
/// IBV_GID_TYPE_ROCE_V2 of `ibv_gid_entry`, and IBV_GID_TYPE_SYSFS_ROCE_V2 of the older call.
const GID_ROCE_V2: u32 = 2;
const GID_SYSFS_ROCE_V2: u32 = 1;
/// IBV_GID_TYPE_IB, and IBV_GID_TYPE_SYSFS_IB_ROCE_V1: what they say of a GID of iWARP.
const GID_IB: u32 = 0;
const GID_SYSFS_IB_ROCE_V1: u32 = 0;

fn device_attr(context: &Context) -> ibv_device_attr {
    use rdma_core_abi::verbs as v;
    // SAFETY: integers only.
    let mut a: ibv_device_attr = unsafe { std::mem::zeroed() };
    for (to, byte) in a.fw_ver.iter_mut().zip(port::FIRMWARE.bytes()) {
        *to = c_char::from_ne_bytes([byte]);
    }
    a.node_guid = context.nic.config.guid.0.to_be();
    a.sys_image_guid = a.node_guid;
    a.max_pkeys = limits::PKEYS;
    a.max_mr_size = u64::MAX;
    a.page_size_cap = 0xffff_f000;
    a.vendor_id = 0xff_ffff;
    a.max_qp = limits::MAX_QP as c_int;
    a.max_qp_wr = limits::MAX_QP_WR as c_int;
    a.device_cap_flags = v::IBV_DEVICE_RC_RNR_NAK_GEN
        | v::IBV_DEVICE_UD_AV_PORT_ENFORCE
        | v::IBV_DEVICE_CURR_QP_STATE_MOD
        | v::IBV_DEVICE_SYS_IMAGE_GUID
        | v::IBV_DEVICE_SRQ_RESIZE
        | v::IBV_DEVICE_XRC
        | v::IBV_DEVICE_MEM_WINDOW
        | v::IBV_DEVICE_MEM_WINDOW_TYPE_2B
        | v::IBV_DEVICE_MEM_MGT_EXTENSIONS
        | v::IBV_DEVICE_MANAGED_FLOW_STEERING;
    a.max_sge = limits::MAX_SGE as c_int;
    a.max_sge_rd = limits::MAX_SGE as c_int;
    a.max_cq = limits::MAX_CQ as c_int;
    a.max_cqe = limits::MAX_CQE as c_int;
    a.max_mr = limits::MAX_MR as c_int;
    a.max_pd = limits::MAX_PD as c_int;
    a.max_qp_rd_atom = limits::MAX_RD_ATOMIC.into();
    a.max_qp_init_rd_atom = limits::MAX_RD_ATOMIC.into();
    a.max_res_rd_atom = (limits::MAX_QP * u32::from(limits::MAX_RD_ATOMIC)) as c_int;
    a.atomic_cap = ATOMIC_HCA as _;
    a.max_mcast_grp = limits::MAX_GROUPS as c_int;
    a.max_mcast_qp_attach = limits::MAX_GROUP_QP as c_int;
    a.max_total_mcast_qp_attach = (limits::MAX_GROUPS * limits::MAX_GROUP_QP) as c_int;
    a.max_raw_ethy_qp = limits::MAX_QP as c_int;
    a.max_ah = limits::MAX_AH as c_int;
    a.max_mw = limits::MAX_MR as c_int;
    a.max_srq = limits::MAX_SRQ as c_int;
    a.max_srq_wr = limits::MAX_SRQ_WR as c_int;
    a.max_srq_sge = limits::MAX_SGE as c_int;
    a.local_ca_ack_delay = 15;
    a.phys_port_cnt = 1;
    if let Some(ib) = &context.nic.port().ib {
        a.sys_image_guid = ib.system_image_guid.0.to_be();
        (a.vendor_id, a.vendor_part_id) = (ib.vendor_id, ib.device_id.into());
        a.max_pkeys = table_len(&ib.pkeys);
        // No Ethernet frames pass a port of InfiniBand.
        a.max_raw_ethy_qp = 0;
    }
    if context.nic.config.transport == Transport::Iwarp {
        leave_to_iwarp(&mut a);
    }
    a
}

/// Takes out what iWARP has not: datagrams, groups, XRC, atomics.
fn leave_to_iwarp(a: &mut ibv_device_attr) {
    use rdma_core_abi::verbs as v;
    a.device_cap_flags =
        v::IBV_DEVICE_MEM_WINDOW | v::IBV_DEVICE_MEM_WINDOW_TYPE_2B | v::IBV_DEVICE_MEM_MGT_EXTENSIONS;
    a.atomic_cap = ATOMIC_NONE as _;
    (a.max_mcast_grp, a.max_mcast_qp_attach, a.max_total_mcast_qp_attach) = (0, 0, 0);
    (a.max_raw_ethy_qp, a.max_ah, a.max_pkeys, a.local_ca_ack_delay) = (0, 0, 0, 0);
}

/// Takes out what iWARP has not: FLUSH, ATOMIC WRITE, tag matching, work queues of raw packets.
fn leave_to_iwarp_too(a: &mut ibv_device_attr_ex) {
    use rdma_core_abi::verbs as v;
    a.device_cap_flags_ex &= !SINCE_ANNEX_A19;
    // SAFETY: integers only.
    (a.tm_caps, a.rss_caps) = unsafe { std::mem::zeroed() };
    (a.max_wq_type_rq, a.xrc_odp_caps) = (0, 0);
    let transports = &mut a.odp_caps.per_transport_caps;
    transports.rc_odp_caps &= !v::IBV_ODP_SUPPORT_ATOMIC;
    (transports.uc_odp_caps, transports.ud_odp_caps) = (0, 0);
}

/// ibv_query_device(3).
pub unsafe extern "C" fn ibv_query_device(context: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int {
    // SAFETY: a context of ours and the caller's structure, by the man page's contract.
    ffi_guard::or_errno(|| unsafe {
        attr.write(device_attr(Context::of(context)));
        Ok(())
    })
}

/// ibv_query_device_ex(3), through the context's table: fills the `size` bytes that the program
/// knows.
pub(crate) unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
    size: usize,
) -> c_int {
    ffi_guard::or_errno(|| {
        // SAFETY: NULL or the caller's structure.
        if size < size_of::<ibv_device_attr>() || unsafe { !input.is_null() && (*input).comp_mask != 0 } {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: integers only.
        let mut a: ibv_device_attr_ex = unsafe { std::mem::zeroed() };
        // SAFETY: a context of ours, by the man page's contract.
        let context = unsafe { Context::of(context) };
        a.orig_attr = device_attr(context);
        a.device_cap_flags_ex = u64::from(a.orig_attr.device_cap_flags) | SINCE_ANNEX_A19;
        a.phys_port_cnt_ex = 1;
        a.max_dm_size = limits::MAX_DM;
        a.odp_caps = on_demand_paging();
        a.rss_caps = receive_side_scaling();
        a.max_wq_type_rq = limits::MAX_WQ;
        a.xrc_odp_caps = a.odp_caps.per_transport_caps.rc_odp_caps;
        a.tm_caps = tag_matching();
        a.completion_timestamp_mask = u64::MAX;
        a.hca_core_clock = CLOCK_KHZ;
        a.cq_mod_caps = ibv_cq_moderation_caps { max_cq_count: u16::MAX, max_cq_period: u16::MAX };
        if context.nic.config.transport == Transport::Iwarp {
            leave_to_iwarp_too(&mut a);
        }
        // SAFETY: the caller's structure has `size` bytes.
        unsafe {
            attr.cast::<u8>().write_bytes(0, size);
            let n = size.min(size_of::<ibv_device_attr_ex>());
            std::ptr::copy_nonoverlapping((&raw const a).cast::<u8>(), attr.cast::<u8>(), n);
        }
        Ok(())
    })
}

/// Tag matching.
fn tag_matching() -> ibv_tm_caps {
    ibv_tm_caps {
        max_rndv_hdr_size: limits::MAX_RENDEZVOUS_HEADER as u32,
        max_num_tags: limits::MAX_TAGS,
        flags: rdma_core_abi::verbs::IBV_TM_CAP_RC,
        max_ops: limits::MAX_TAG_OPS,
        max_sge: limits::MAX_SGE,
    }
}

/// How raw packet queue pairs spread their frames.
fn receive_side_scaling() -> ibv_rss_caps {
    use rdma_core_abi::verbs as v;
    ibv_rss_caps {
        supported_qpts: 1 << v::IBV_QPT_RAW_PACKET,
        max_rwq_indirection_tables: limits::MAX_QP,
        max_rwq_indirection_table_size: 1 << limits::MAX_LOG_TABLE,
        rx_hash_fields_mask: nic::steering::rss::fields::ALL,
        rx_hash_function: v::IBV_RX_HASH_FUNC_TOEPLITZ as u8,
    }
}

/// What memory registered for on-demand paging can be used for: everything, and the whole address
/// space at once.
fn on_demand_paging() -> ibv_odp_caps {
    use rdma_core_abi::verbs as v;
    let rc = v::IBV_ODP_SUPPORT_SEND
        | v::IBV_ODP_SUPPORT_RECV
        | v::IBV_ODP_SUPPORT_WRITE
        | v::IBV_ODP_SUPPORT_READ
        | v::IBV_ODP_SUPPORT_ATOMIC
        | v::IBV_ODP_SUPPORT_SRQ_RECV;
    let ud = v::IBV_ODP_SUPPORT_SEND | v::IBV_ODP_SUPPORT_RECV | v::IBV_ODP_SUPPORT_SRQ_RECV;
    ibv_odp_caps {
        general_caps: (v::IBV_ODP_SUPPORT | v::IBV_ODP_SUPPORT_IMPLICIT).into(),
        per_transport_caps: v::ibv_odp_per_transport_caps {
            rc_odp_caps: rc,
            uc_odp_caps: ud | v::IBV_ODP_SUPPORT_WRITE,
            ud_odp_caps: ud,
        },
    }
}

/// ibv_query_rt_values_ex(3), through the context's table: the clock of the completions'
/// timestamps, in ticks. EINVAL for values that are not known.
pub(crate) unsafe extern "C" fn query_rt_values(
    context: *mut ibv_context,
    values: *mut ibv_values_ex,
) -> c_int {
    ffi_guard::or_errno(|| {
        // SAFETY: a context of ours and the caller's structure, by the man page's contract.
        let values = unsafe {
            Context::of(context).instance.check()?;
            &mut *values
        };
        if values.comp_mask & !IBV_VALUES_MASK_RAW_CLOCK != 0 {
            return Err(Errno(libc::EINVAL));
        }
        if values.comp_mask & IBV_VALUES_MASK_RAW_CLOCK != 0 {
            let ticks = clock_ns(libc::CLOCK_MONOTONIC_RAW);
            values.raw_clock = libc::timespec { tv_sec: 0, tv_nsec: ticks.cast_signed() };
        }
        Ok(())
    })
}

fn port_attr(context: &Context, number: u8) -> Result<ibv_port_attr, Errno> {
    if number != 1 {
        return Err(Errno(libc::EINVAL));
    }
    let p = context.nic.port();
    // SAFETY: integers only.
    let mut a: ibv_port_attr = unsafe { std::mem::zeroed() };
    a.state = p.state() as _;
    a.phys_state = p.phys_state() as _;
    a.max_mtu = wire::Mtu::M4096.code().into();
    a.active_mtu = p.mtu.code().into();
    a.gid_tbl_len = observed::gid_table_len(context.nic.config.transport) as c_int;
    a.port_cap_flags = p.capabilities();
    a.max_msg_sz = limits::MAX_MESSAGE as u32;
    let counters = &context.nic.counters;
    a.bad_pkey_cntr = port_counter(&counters.wrong_pkey);
    a.qkey_viol_cntr = port_counter(&counters.wrong_qkey);
    a.pkey_tbl_len = table_len(p.pkeys());
    a.max_vl_num = 1;
    let rate = p.rate();
    a.active_width = rate.width;
    // XDR has no code of eight bits.
    a.active_speed = u8::try_from(rate.speed).unwrap_or(128);
    a.active_speed_ex = rate.speed.into();
    a.link_layer = LINK_LAYER_ETHERNET;
    if let Some(ib) = &p.ib {
        say_infiniband(&mut a, ib);
    }
    Ok(a)
}

/// A counter of 16 bits that stays at its highest (IBA 1.4 §14.2.5.6).
fn port_counter(counter: &DropCounter) -> u32 {
    counter.get().min(0xffff) as u32
}

/// ibv_query_port(3), the exported form that programs built against old headers call.
pub unsafe extern "C" fn ibv_query_port(
    context: *mut ibv_context,
    port: u8,
    attr: *mut _compat_ibv_port_attr,
) -> c_int {
    // SAFETY: a context of ours and the caller's structure, by the man page's contract. The old
    // structure is the first part of the new one.
    ffi_guard::or_errno(|| unsafe {
        let a = port_attr(Context::of(context), port)?;
        let n = size_of::<_compat_ibv_port_attr>();
        std::ptr::copy_nonoverlapping((&raw const a).cast::<u8>(), attr.cast::<u8>(), n);
        Ok(())
    })
}

/// ibv_query_port(3), through the context's table: fills the `size` bytes that the program knows.
pub(crate) unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
    size: usize,
) -> c_int {
    // SAFETY: a context of ours, and a structure of `size` bytes.
    ffi_guard::or_errno(|| unsafe {
        let a = port_attr(Context::of(context), port)?;
        attr.cast::<u8>().write_bytes(0, size);
        let n = size.min(size_of::<ibv_port_attr>());
        std::ptr::copy_nonoverlapping((&raw const a).cast::<u8>(), attr.cast::<u8>(), n);
        Ok(())
    })
}

/// ibv_query_port_speed(3): in units of 100 Mb/s; what has no speed, such as loopback, counts as 1
/// Gb/s. EINVAL for a port that is not 1.
pub unsafe extern "C" fn ibv_query_port_speed(
    context: *mut ibv_context,
    port: u32,
    speed: *mut u64,
) -> c_int {
    ffi_guard::or_errno(|| {
        if port != 1 || speed.is_null() {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: a context of ours and the caller's variable, by the man page's contract.
        unsafe {
            let port = Context::of(context).nic.port();
            let rate = port.rate();
            *speed = match port.ib {
                Some(_) => u64::from(rate.lanes()) * u64::from(rate.lane().0),
                None => u64::from(port.speed_mbps.unwrap_or(1_000)).div_ceil(100),
            };
        }
        Ok(())
    })
}

fn index_in_table(context: &Context, port: u8, index: u32) -> Result<usize, Errno> {
    let index = usize::try_from(index).unwrap_or(usize::MAX);
    let len = match &context.nic.port().ib {
        Some(ib) => ib.guids.len(),
        None => observed::gid_table_len(context.nic.config.transport),
    };
    let is_there = port == 1 && index < len;
    is_there.then_some(index).ok_or(Errno(libc::EINVAL))
}

/// ibv_query_gid(3): an index without an entry gives the zero GID. errno: EINVAL beyond the table.
pub unsafe extern "C" fn ibv_query_gid(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    gid: *mut ibv_gid,
) -> c_int {
    ffi_guard::or_minus_one(|| {
        // SAFETY: a context of ours, by the man page's contract.
        let context = unsafe { Context::of(context) };
        let index = index_in_table(context, port, index.cast_unsigned())?;
        let found = entry(context, index);
        // SAFETY: the caller's structure.
        unsafe { *gid = found.map_or(ibv_gid { raw: [0; 16] }, |entry| entry.gid) };
        Ok(0)
    })
}

/// `ibv_query_gid_type`, no man page: all entries of a RoCE device are RoCE v2. Those of others
/// have the word for the rest.
pub unsafe extern "C" fn ibv_query_gid_type(
    context: *mut ibv_context,
    port: u8,
    index: c_uint,
    kind: *mut u32,
) -> c_int {
    ffi_guard::or_minus_one(|| {
        // SAFETY: a context of ours, by the man page's contract.
        let context = unsafe { Context::of(context) };
        index_in_table(context, port, index)?;
        let found = match context.nic.config.transport {
            Transport::Roce => GID_SYSFS_ROCE_V2,
            Transport::Iwarp | Transport::Ib => GID_SYSFS_IB_ROCE_V1,
        };
        // SAFETY: the caller's variable.
        unsafe { *kind = found };
        Ok(0)
    })
}

/// The entries that a device reports, as much of them as the program knows.
fn entries(context: &Context) -> impl Iterator<Item = ibv_gid_entry> {
    let config = &context.nic.config;
    observed::reported_gids(config, &context.nic.port()).into_iter().map(|(index, gid)| {
        // SAFETY: integers and a union of bytes.
        let mut e: ibv_gid_entry = unsafe { std::mem::zeroed() };
        e.gid = ibv_gid { raw: gid.0 };
        e.gid_index = index as u32;
        e.port_num = 1;
        e.gid_type = match config.transport {
            Transport::Roce => GID_ROCE_V2,
            Transport::Iwarp | Transport::Ib => GID_IB,
        };
        e.ndev_ifindex = match config.transport {
            Transport::Roce | Transport::Iwarp => config.interface,
            // No network device bears a GID of InfiniBand.
            Transport::Ib => 0,
        };
        e
    })
}

/// The entry of one index.
fn entry(context: &Context, index: usize) -> Option<ibv_gid_entry> {
    entries(context).find(|entry| entry.gid_index as usize == index)
}

/// ibv_query_gid_ex(3): ENODATA for an index without an entry.
pub unsafe extern "C" fn _ibv_query_gid_ex(
    context: *mut ibv_context,
    port: u32,
    index: u32,
    to: *mut ibv_gid_entry,
    flags: u32,
    size: usize,
) -> c_int {
    ffi_guard::or_errno(|| {
        // SAFETY: a context of ours, by the man page's contract.
        let context = unsafe { Context::of(context) };
        let port = u8::try_from(port).map_err(|_| Errno(libc::EINVAL))?;
        let index = index_in_table(context, port, index)?;
        if flags != 0 {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        let e = entry(context, index).ok_or(Errno(libc::ENODATA))?;
        // SAFETY: the caller's structure has `size` bytes.
        unsafe { put(&e, to.cast(), size) };
        Ok(())
    })
}

/// # Safety
///
/// `to` has `size` bytes.
unsafe fn put(e: &ibv_gid_entry, to: *mut u8, size: usize) {
    let n = size.min(size_of::<ibv_gid_entry>());
    // SAFETY: as the caller says.
    unsafe { std::ptr::copy_nonoverlapping((&raw const *e).cast::<u8>(), to, n) };
}

/// ibv_query_gid_table(3): the entries there are; how many, or a negative errno: EINVAL where the
/// array has no room for all.
pub unsafe extern "C" fn _ibv_query_gid_table(
    context: *mut ibv_context,
    to: *mut ibv_gid_entry,
    most: usize,
    flags: u32,
    size: usize,
) -> isize {
    let result = ffi_guard::or(Err(libc::EIO), || {
        if flags != 0 {
            return Ok(Err(libc::EOPNOTSUPP));
        }
        // SAFETY: a context of ours, by the man page's contract.
        let context = unsafe { Context::of(context) };
        let entries: Vec<_> = entries(context).collect();
        if entries.len() > most {
            return Ok(Err(libc::EINVAL));
        }
        for (i, e) in entries.iter().enumerate() {
            // SAFETY: the caller's array has `most` structures of `size` bytes.
            unsafe { put(e, to.cast::<u8>().add(i * size), size) };
        }
        Ok(Ok(entries.len() as isize))
    });
    result.unwrap_or_else(|errno| -(errno as isize))
}

/// ibv_query_pkey(3): an empty entry gives 0. errno: EINVAL beyond the table.
pub unsafe extern "C" fn ibv_query_pkey(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    pkey: *mut u16,
) -> c_int {
    ffi_guard::or_minus_one(|| {
        // SAFETY: a context of ours, by the man page's contract.
        let table = unsafe { Context::of(context).nic.port() };
        let index = usize::try_from(index).map_err(|_| Errno(libc::EINVAL))?;
        let found = table.pkeys().get(index).filter(|_| port == 1).ok_or(Errno(libc::EINVAL))?;
        // SAFETY: the caller's variable.
        unsafe { *pkey = found.0.to_be() };
        Ok(0)
    })
}

/// ibv_get_pkey_index(3): the pkey is in network byte order; an entry of the same partition is
/// found, whatever the membership. errno: EINVAL where the table has none like it.
pub unsafe extern "C" fn ibv_get_pkey_index(context: *mut ibv_context, port: u8, pkey: u16) -> c_int {
    ffi_guard::or_minus_one(|| {
        // SAFETY: a context of ours, by the man page's contract.
        let table = unsafe { Context::of(context).nic.port() };
        let partition = |key: u16| key & 0x7fff;
        let wanted = partition(u16::from_be(pkey));
        let is_it = |key: &wire::Pkey| wanted != 0 && partition(key.0) == wanted;
        let found = table.pkeys().iter().position(is_it).filter(|_| port == 1);
        found.and_then(|index| c_int::try_from(index).ok()).ok_or(Errno(libc::EINVAL))
    })
}

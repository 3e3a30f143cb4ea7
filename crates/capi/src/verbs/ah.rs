//! Address handles (ibv_create_ah(3), ibv_create_ah_from_wc(3)).

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::net::IpAddr;
use std::sync::atomic::Ordering;

use nic::AddressVector;
use rdma_core_abi::verbs::{
    IBV_WC_GRH, ibv_ah, ibv_ah_attr, ibv_context, ibv_gid, ibv_global_route, ibv_grh, ibv_pd, ibv_wc,
};
use stack::env::RouteQuery;
use wire::Gid;
use wire::grh::{GRH_LEN, Grh};

use crate::checked;
use crate::ffi_guard::{self, Errno};
use crate::verbs::device::context::Context;
use crate::verbs::memory::pd::Pd;

/// An address handle as C sees it, and the adapter's.
#[repr(C)]
pub(crate) struct Ah {
    c: UnsafeCell<ibv_ah>,
    pub nic: nic::Ah,
}

impl Ah {
    /// # Safety
    ///
    /// `ah` came from [`ibv_create_ah`] and lives.
    pub(crate) unsafe fn of<'a>(ah: *mut ibv_ah) -> &'a Self {
        // SAFETY: the C part is the first field.
        unsafe { &*ah.cast::<Self>() }
    }
}

/// An address as the adapter has it.
pub(crate) fn from_c(a: &ibv_ah_attr) -> AddressVector {
    AddressVector {
        // SAFETY: a union of plain bytes.
        dgid: Gid(unsafe { a.grh.dgid.raw }),
        sgid_index: a.grh.sgid_index,
        flow_label: a.grh.flow_label & 0xf_ffff,
        hop_limit: a.grh.hop_limit,
        traffic_class: a.grh.traffic_class,
        sl: a.sl,
        dlid: a.dlid,
        src_path_bits: a.src_path_bits,
        static_rate: a.static_rate,
        is_global: a.is_global != 0,
        port: a.port_num,
    }
}

/// An address as C has it.
pub(crate) fn to_c(av: &AddressVector) -> ibv_ah_attr {
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: av.dgid.0 },
            flow_label: av.flow_label,
            sgid_index: av.sgid_index,
            hop_limit: av.hop_limit,
            traffic_class: av.traffic_class,
        },
        dlid: av.dlid,
        sl: av.sl,
        src_path_bits: av.src_path_bits,
        static_rate: av.static_rate,
        is_global: av.is_global.into(),
        port_num: av.port,
    }
}

/// # Safety
///
/// A domain of ours that lives.
unsafe fn create(pd: *mut ibv_pd, attr: &ibv_ah_attr) -> Result<*mut ibv_ah, Errno> {
    // SAFETY: as the caller says; its context lives as long as it.
    let (ours, context) = unsafe { (Pd::of(pd), (*pd).context) };
    // SAFETY: as above.
    unsafe { Context::usable(context)? };
    let nic = nic::Ah::new(&ours.nic, from_c(attr));
    let nic = nic.inspect_err(checked::refusals::tell("ibv_create_ah"))?;
    ours.users.fetch_add(1, Ordering::AcqRel);
    let c = ibv_ah { context, pd, handle: 0 };
    Ok(Box::into_raw(Box::new(Ah { c: c.into(), nic })).cast())
}

/// ibv_create_ah(3). errno: EINVAL for another port than 1, an address without a GRH where the port
/// needs one, a GID of another address family than that at the index, and on InfiniBand a LID or a
/// service level that there is not; ENODATA for an index without a GID; EOPNOTSUPP on an iWARP
/// device; ENODEV in a forked child.
pub unsafe extern "C" fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    // SAFETY: a domain of ours and the caller's structure, by the man page's contract.
    ffi_guard::or_null(|| unsafe { create(pd, &*attr) })
}

/// `ibv_destroy_ah`, ibv_create_ah(3): requests that name it may still be on their way.
pub unsafe extern "C" fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int {
    ffi_guard::or_errno(|| {
        // SAFETY: made by `Box::into_raw` in `create`, by the man page's contract.
        let ah = unsafe { Box::from_raw(ah.cast::<Ah>()) };
        // SAFETY: a domain lives as long as its handles, by `ibv_dealloc_pd`'s EBUSY.
        unsafe { Pd::of(ah.c.into_inner().pd) }.users.fetch_sub(1, Ordering::AcqRel);
        Ok(())
    })
}

/// The address of a datagram's sender, from its completion and the first 40 bytes of its buffer.
///
/// # Safety
///
/// A context of ours, and a GRH where the completion says so.
unsafe fn sender_of(
    context: *mut ibv_context,
    port: u8,
    wc: &ibv_wc,
    grh: *const ibv_grh,
) -> Result<ibv_ah_attr, Errno> {
    let (dlid, src_path_bits) = (wc.slid, wc.dlid_path_bits);
    let mut av = AddressVector { port, sl: wc.sl, dlid, src_path_bits, ..AddressVector::default() };
    if wc.wc_flags & IBV_WC_GRH == 0 {
        return Ok(to_c(&av));
    }
    // SAFETY: as the caller says; a buffer may begin anywhere.
    let (ours, bytes) = unsafe { (Context::of(context), grh.cast::<[u8; GRH_LEN]>().read_unaligned()) };
    av.is_global = true;
    let (source, dest) = match Grh::parse(&bytes).map_err(|_| Errno(libc::EPROTONOSUPPORT))? {
        Grh::V4 { tos, ttl, source, dest, .. } => {
            (av.traffic_class, av.hop_limit) = (tos, ttl);
            (IpAddr::V4(source), IpAddr::V4(dest))
        }
        Grh::V6 { traffic_class, flow_label, hop_limit, source, dest, .. } => {
            (av.traffic_class, av.flow_label, av.hop_limit) = (traffic_class, flow_label, hop_limit);
            (IpAddr::V6(source), IpAddr::V6(dest))
        }
        Grh::Ib { traffic_class, flow_label, hop_limit, sgid, dgid, .. } => {
            (av.traffic_class, av.flow_label, av.hop_limit) = (traffic_class, flow_label, hop_limit);
            let index = ours.nic.port().gids.index_of_gid(dgid);
            (av.dgid, av.sgid_index) = (sgid, index.ok_or(Errno(libc::EINVAL))?);
            return Ok(to_c(&av));
        }
    };
    // The port's table has no groups: a program that received a multicast datagram chooses an index
    // itself.
    let index = ours.nic.port().gids.index_of(dest);
    av.sgid_index = index.ok_or(Errno(libc::EINVAL))?;
    av.dgid = source.into();
    Ok(to_c(&av))
}

/// `ibv_init_ah_from_wc`, ibv_create_ah_from_wc(3): -1 and errno EPROTONOSUPPORT for bytes that are
/// no GRH, EINVAL where the datagram was sent to no GID of the port (to a multicast group, say).
pub unsafe extern "C" fn ibv_init_ah_from_wc(
    context: *mut ibv_context,
    port: u8,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    attr: *mut ibv_ah_attr,
) -> c_int {
    ffi_guard::or_minus_one(|| {
        // SAFETY: by the man page's contract.
        unsafe { attr.write(sender_of(context, port, &*wc, grh)?) };
        Ok(0)
    })
}

/// ibv_create_ah_from_wc(3). errno: as `ibv_init_ah_from_wc` and `ibv_create_ah`.
pub unsafe extern "C" fn ibv_create_ah_from_wc(
    pd: *mut ibv_pd,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    port: u8,
) -> *mut ibv_ah {
    // SAFETY: by the man page's contract.
    ffi_guard::or_null(|| unsafe { create(pd, &sender_of((*pd).context, port, &*wc, grh)?) })
}

/// `ibv_resolve_eth_l2_from_gid`, no man page: the Ethernet address of the neighbour that packets
/// to an address go to first, and the VLAN of the interface or 0xffff. Returns 0, or a negative
/// errno. EINVAL for another port than 1 or an index without a GID, EHOSTUNREACH where no host
/// answers for three seconds, ENETUNREACH and others as the routing table says.
pub unsafe extern "C" fn ibv_resolve_eth_l2_from_gid(
    context: *mut ibv_context,
    attr: *mut ibv_ah_attr,
    eth_mac: *mut [u8; 6],
    vid: *mut u16,
) -> c_int {
    let code = ffi_guard::or_errno(|| {
        // SAFETY: a context of ours and the caller's structures, by the man page's contract.
        let (ours, av) = unsafe { (Context::usable(context)?, from_c(&*attr)) };
        let entry = ours.nic.gid(av.sgid_index).filter(|_| av.port == 1).ok_or(Errno(libc::EINVAL))?;
        let dest = ours.nic.address_of(av.dgid, &entry)?;
        let query = RouteQuery { dest, scope: ours.nic.config.interface, source: entry.address };
        let (mac, vlan) = ours.instance.host.env().ethernet_address(query)?;
        // SAFETY: the caller's variables; the second may be NULL.
        unsafe {
            *eth_mac = mac;
            if let Some(vid) = vid.as_mut() {
                *vid = vlan.unwrap_or(0xffff);
            }
        }
        Ok(())
    });
    -code
}

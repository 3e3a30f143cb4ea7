//! The fields of a message: a header of the kernel's layout, and the MAD.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicI32, Ordering};

use crate::abi::{ib_mad_addr, ib_user_mad};

/// What umad_debug has set.
static DEBUG: AtomicI32 = AtomicI32::new(0);

/// umad_size(3). A library of rdma-core says 8 less before it knows how new the kernel is.
pub extern "C" fn umad_size() -> usize {
    size_of::<ib_user_mad>()
}

/// umad_get_mad(3).
pub unsafe extern "C" fn umad_get_mad(umad: *mut c_void) -> *mut c_void {
    // SAFETY: the caller's message has a header, and the MAD behind it.
    unsafe { umad.byte_add(size_of::<ib_user_mad>()) }
}

/// umad_status(3).
pub unsafe extern "C" fn umad_status(umad: *mut c_void) -> c_int {
    // SAFETY: the crate's contract.
    unsafe { (*umad.cast::<ib_user_mad>()).status.cast_signed() }
}

/// umad_get_mad_addr(3).
pub unsafe extern "C" fn umad_get_mad_addr(umad: *mut c_void) -> *mut ib_mad_addr {
    // SAFETY: the crate's contract.
    unsafe { &raw mut (*umad.cast::<ib_user_mad>()).addr }
}

/// The address in a message.
///
/// # Safety
///
/// The message has a header.
unsafe fn address<'a>(umad: *mut c_void) -> &'a mut ib_mad_addr {
    // SAFETY: as the caller says.
    unsafe { &mut *umad_get_mad_addr(umad) }
}

/// umad_set_grh(3): NULL is none. The flow label is in the host's order.
pub unsafe extern "C" fn umad_set_grh(umad: *mut c_void, mad_addr: *const ib_mad_addr) -> c_int {
    // SAFETY: the crate's contract.
    let (to, from) = unsafe { (address(umad), mad_addr.as_ref()) };
    to.grh_present = u8::from(from.is_some());
    if let Some(from) = from {
        to.gid = from.gid;
        to.flow_label = from.flow_label.to_be();
        (to.hop_limit, to.traffic_class) = (from.hop_limit, from.traffic_class);
    }
    0
}

/// umad_set_pkey(3).
pub unsafe extern "C" fn umad_set_pkey(umad: *mut c_void, pkey_index: c_int) -> c_int {
    // SAFETY: the crate's contract.
    unsafe { address(umad) }.pkey_index = pkey_index as u16;
    0
}

/// umad_get_pkey(3).
pub unsafe extern "C" fn umad_get_pkey(umad: *mut c_void) -> c_int {
    // SAFETY: the crate's contract.
    unsafe { address(umad) }.pkey_index.into()
}

/// umad_set_addr(3): numbers of the host's order.
pub unsafe extern "C" fn umad_set_addr(
    umad: *mut c_void,
    dlid: c_int,
    dqp: c_int,
    sl: c_int,
    qkey: c_int,
) -> c_int {
    let (lid, qpn, qkey) = ((dlid as u16).to_be(), dqp.cast_unsigned().to_be(), qkey.cast_unsigned().to_be());
    // SAFETY: the crate's contract.
    unsafe { umad_set_addr_net(umad, lid, qpn, sl, qkey) }
}

/// umad_set_addr_net(3): numbers of the network's order.
pub unsafe extern "C" fn umad_set_addr_net(
    umad: *mut c_void,
    dlid: u16,
    dqp: u32,
    sl: c_int,
    qkey: u32,
) -> c_int {
    // SAFETY: the crate's contract.
    let to = unsafe { address(umad) };
    (to.lid, to.qpn, to.sl, to.qkey) = (dlid, dqp, sl as u8, qkey);
    0
}

/// umad_debug(3): sets a level that is not negative, and gives the one that is set. Nothing is
/// printed here.
pub extern "C" fn umad_debug(level: c_int) -> c_int {
    if level >= 0 {
        DEBUG.store(level, Ordering::Relaxed);
    }
    DEBUG.load(Ordering::Relaxed)
}

/// umad_addr_dump(3).
pub unsafe extern "C" fn umad_addr_dump(addr: *mut ib_mad_addr) {
    // SAFETY: the crate's contract.
    let Some(addr) = (unsafe { addr.as_ref() }) else { return };
    let gid: String = addr.gid.iter().map(|byte| format!("{byte:02x}")).collect();
    eprintln!(
        "ibwarn: [{}] umad_addr_dump: qpn {} qkey 0x{:x} lid {} sl {}\n\
         grh_present {} gid_index {} hop_limit {} traffic_class {} flow_label 0x{:x} pkey_index 0x{:x}\n\
         Gid 0x{gid}",
        std::process::id(),
        u32::from_be(addr.qpn),
        u32::from_be(addr.qkey),
        u16::from_be(addr.lid),
        addr.sl,
        addr.grh_present,
        addr.gid_index,
        addr.hop_limit,
        addr.traffic_class,
        u32::from_be(addr.flow_label),
        addr.pkey_index
    );
}

/// umad_dump(3).
pub unsafe extern "C" fn umad_dump(umad: *mut c_void) {
    // SAFETY: the crate's contract.
    let mad = unsafe { umad.cast::<ib_user_mad>().read_unaligned() };
    eprintln!(
        "ibwarn: [{}] umad_dump: agent id {} status {:x} timeout {}",
        std::process::id(),
        mad.agent_id.cast_signed(),
        mad.status,
        mad.timeout_ms
    );
    // SAFETY: as above.
    unsafe { umad_addr_dump(umad_get_mad_addr(umad)) };
}

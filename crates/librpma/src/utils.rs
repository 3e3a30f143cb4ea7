//! Devices by address (rpma_utils_get_ibv_context(3)), addresses by name, and the texts of events.

use std::ffi::{CStr, c_char, c_int};
use std::ptr::null_mut;

use rdma_core_abi::cma::{RAI_PASSIVE, RDMA_PS_TCP, rdma_addrinfo, rdma_cm_id};
use rdma_core_abi::verbs::{
    IBV_ODP_SUPPORT, IBV_ODP_SUPPORT_READ, IBV_ODP_SUPPORT_WRITE, IBV_QPT_RC, ibv_context, ibv_device_attr_ex,
};

use crate::codes::{INVAL, PROVIDER, Result, answer, errno, failed, number, require};
use crate::log;
use crate::object::{end, make, put};
use crate::stack::{Calls, calls, query_device_ex};

/// RPMA_DEFAULT_TIMEOUT_MS.
pub const DEFAULT_TIMEOUT_MS: c_int = 1000;

/// Which end of a connection an address is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The one that listens: an address of this host.
    Passive,
    /// The one that connects: an address of the other.
    Active,
}

/// rdma_getaddrinfo(3): an answer, to be freed with rdma_freeaddrinfo(3).
///
/// # Safety
///
/// Strings, or NULL for the port.
#[track_caller]
pub unsafe fn address(
    calls: &Calls,
    function: &'static CStr,
    addr: *const c_char,
    port: *const c_char,
    which: End,
) -> Result<*mut rdma_addrinfo> {
    // SAFETY: numbers and NULL pointers: all zeros are hints.
    let mut hints: rdma_addrinfo = unsafe { std::mem::zeroed() };
    hints.ai_flags = if which == End::Passive { RAI_PASSIVE } else { 0 };
    (hints.ai_qp_type, hints.ai_port_space) = (IBV_QPT_RC as c_int, RDMA_PS_TCP as c_int);
    let mut found = null_mut();
    // SAFETY: strings, as the caller says; hints; room for an answer.
    let result = unsafe { (calls.rdma_getaddrinfo)(addr, port, &raw const hints, &raw mut found) };
    match result {
        0 => Ok(found),
        // An errno, or an EAI_* of getaddrinfo(3), which is negative and has another text.
        -1 => Err(failed(function, "rdma_getaddrinfo", errno())),
        _ => {
            // SAFETY: a string that stays, for every number.
            let text = unsafe { CStr::from_ptr(libc::gai_strerror(result)) };
            log::error(
                function,
                format_args!("rdma_getaddrinfo failed: {}", text.to_str().unwrap_or("no such address")),
            );
            Err(PROVIDER)
        }
    }
}

const GET: &CStr = c"rpma_utils_get_ibv_context";

/// rpma_utils_get_ibv_context(3).
///
/// A local address may belong to no one device: those of lo do, and the wildcard. For them
/// rdma_bind_addr(3) succeeds and names no device, on a kernel too: a program that listens there
/// listens on all. Upstream then gives a NULL context with success, which rpma_peer_new(3) refuses.
/// Here it is the device that a connection to the address goes through; RPMA_E_PROVIDER where there
/// is none.
pub unsafe extern "C-unwind" fn rpma_utils_get_ibv_context(
    addr: *const c_char,
    type_: c_int,
    context: *mut *mut ibv_context,
) -> c_int {
    // SAFETY: the crate's contract.
    answer(unsafe { get_ibv_context(addr, type_, context) })
}

/// # Safety
///
/// That of the function above.
unsafe fn get_ibv_context(addr: *const c_char, type_: c_int, out: *mut *mut ibv_context) -> Result<()> {
    require(!addr.is_null() && !out.is_null())?;
    let which = match type_ {
        0 => End::Passive,
        1 => End::Active,
        _ => return Err(INVAL),
    };
    // Nothing of this library's own is needed, so it is libibverbs and librdmacm that may lack
    // memory.
    room()?;
    let calls = calls()?;
    // SAFETY: a string, as the caller says.
    let found = unsafe { address(calls, GET, addr, std::ptr::null(), which) }?;
    // SAFETY: an answer that is there.
    let mut context = unsafe { device(calls, found, which) };
    if context == Ok(null_mut()) {
        // SAFETY: likewise.
        context = unsafe { device(calls, found, End::Active) };
    }
    // SAFETY: no thread uses the answer any more.
    unsafe { (calls.rdma_freeaddrinfo)(found) };
    let context = context?;
    if context.is_null() {
        return Err(failed(GET, "finding a device with this address", libc::ENODEV));
    }
    // SAFETY: as the caller says.
    unsafe { put(out, context) }
}

/// `NOMEM` where the heap is at its end.
fn room() -> Result<()> {
    let made = make([0_u8; 64])?;
    // SAFETY: just made.
    unsafe { end(made) };
    Ok(())
}

/// The device of an address, or NULL where it has none.
///
/// # Safety
///
/// An answer of rdma_getaddrinfo(3).
unsafe fn device(calls: &Calls, found: *const rdma_addrinfo, which: End) -> Result<*mut ibv_context> {
    let mut id: *mut rdma_cm_id = null_mut();
    // SAFETY: room for an identifier. Without a channel its calls wait.
    number(GET, "rdma_create_id", unsafe {
        (calls.rdma_create_id)(null_mut(), &raw mut id, null_mut(), RDMA_PS_TCP)
    })?;
    // SAFETY: the answer and the identifier are there. An answer for a listener has its address as
    // source.
    let (result, context) = unsafe {
        let (from, to) = ((*found).ai_src_addr, (*found).ai_dst_addr);
        let result = match which {
            End::Passive => number(GET, "rdma_bind_addr", (calls.rdma_bind_addr)(id, from)),
            End::Active if to.is_null() => {
                let result = (calls.rdma_resolve_addr)(id, null_mut(), from, DEFAULT_TIMEOUT_MS);
                number(GET, "rdma_resolve_addr", result)
            }
            End::Active => {
                number(GET, "rdma_resolve_addr", (calls.rdma_resolve_addr)(id, from, to, DEFAULT_TIMEOUT_MS))
            }
        };
        let context = (*id).verbs;
        // The device stays open: librdmacm keeps its devices. A failure has no caller to tell.
        (calls.rdma_destroy_id)(id);
        (result, context)
    };
    result.map(|()| context)
}

/// Whether a device pages regions on demand for what librpma does.
pub fn has_odp(attr: &ibv_device_attr_ex) -> bool {
    let needed = IBV_ODP_SUPPORT_READ | IBV_ODP_SUPPORT_WRITE;
    attr.odp_caps.general_caps & u64::from(IBV_ODP_SUPPORT) != 0
        && attr.odp_caps.per_transport_caps.rc_odp_caps & needed == needed
}

/// rpma_utils_ibv_context_is_odp_capable(3).
pub unsafe extern "C" fn rpma_utils_ibv_context_is_odp_capable(
    context: *mut ibv_context,
    is_capable: *mut c_int,
) -> c_int {
    let asked = || {
        require(!context.is_null() && !is_capable.is_null())?;
        // SAFETY: the crate's contract.
        let attr = unsafe { query_device_ex(context) }.map_err(|errno| {
            failed(c"rpma_utils_ibv_context_is_odp_capable", "ibv_query_device_ex", errno)
        })?;
        // SAFETY: likewise.
        unsafe { put(is_capable, c_int::from(has_odp(&attr))) }
    };
    answer(asked())
}

/// rpma_utils_conn_event_2str(3).
pub extern "C" fn rpma_utils_conn_event_2str(event: c_int) -> *const c_char {
    event_text(event).as_ptr()
}

/// The text of an event.
pub fn event_text(event: c_int) -> &'static CStr {
    match event {
        -1 => c"Undefined connection event",
        0 => c"Connection established",
        1 => c"Connection closed",
        2 => c"Connection lost",
        3 => c"Connection rejected",
        4 => c"Connection unreachable",
        _ => c"Unsupported connection event",
    }
}

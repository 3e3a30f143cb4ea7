//! Endpoints, synchronous operation, identifiers that move or end while events wait, and queue
//! pairs that no identifier owns.
#![expect(clippy::undocumented_unsafe_blocks, reason = "all are calls by the contract of their man pages")]

#[path = "../support/cm.rs"]
mod cm;
mod create_ep;
mod events;
mod external_qp;
mod port_spaces;
#[path = "../support/mod.rs"]
mod support;

use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use capi::cma::{addrinfo, channel, connect, devices, ece, endpoint, id, qp, srq};
use capi::verbs as v;
use rdma_core_abi::cma::*;
use rdma_core_abi::sa::*;
use rdma_core_abi::verbs::*;

use cm::*;
use support::errno;

/// A pointer that goes to another thread.
struct Sent<T>(*mut T);
unsafe impl<T> Send for Sent<T> {}
impl<T> Sent<T> {
    fn get(&self) -> *mut T {
        self.0
    }
}

/// The argument of an event that the program wrote.
fn arg(seen: &Seen) -> u64 {
    assert_eq!(seen.event, RDMA_CM_EVENT_USER);
    unsafe { seen.param.arg }
}

/// Addresses of 127.0.0.1 to make an endpoint from.
fn info(port: u16, passive: bool, ps: u32, kind: u32) -> *mut rdma_addrinfo {
    let service = std::ffi::CString::new(port.to_string()).unwrap();
    unsafe {
        let mut hints: rdma_addrinfo = std::mem::zeroed();
        (hints.ai_port_space, hints.ai_qp_type) = (ps as c_int, kind as c_int);
        hints.ai_flags = if passive { RAI_PASSIVE } else { 0 };
        let mut found = null_mut();
        let node = c"127.0.0.1".as_ptr();
        assert_eq!(addrinfo::rdma_getaddrinfo(node, service.as_ptr(), &raw const hints, &raw mut found), 0);
        found
    }
}

fn passive(attr: *mut ibv_qp_init_attr, pd: *mut ibv_pd) -> (*mut rdma_cm_id, u16) {
    passive_in(RDMA_PS_TCP, IBV_QPT_RC, attr, pd)
}

fn passive_in(ps: u32, kind: u32, attr: *mut ibv_qp_init_attr, pd: *mut ibv_pd) -> (*mut rdma_cm_id, u16) {
    unsafe {
        let (res, mut made) = (info(0, true, ps, kind), null_mut());
        works(endpoint::rdma_create_ep(&raw mut made, res, pd, attr));
        addrinfo::rdma_freeaddrinfo(res);
        works(connect::rdma_listen(made, 4));
        (made, u16::from_be(connect::rdma_get_src_port(made)))
    }
}

fn active_in(ps: u32, kind: u32, port: u16, attr: *mut ibv_qp_init_attr, pd: *mut ibv_pd) -> *mut rdma_cm_id {
    unsafe {
        let (res, mut made) = (info(port, false, ps, kind), null_mut());
        works(endpoint::rdma_create_ep(&raw mut made, res, pd, attr));
        addrinfo::rdma_freeaddrinfo(res);
        made
    }
}

fn active(port: u16) -> *mut rdma_cm_id {
    active_in(RDMA_PS_TCP, IBV_QPT_RC, port, &mut attr(), null_mut())
}

/// Connects in a thread of its own, as a synchronous caller must; its return value and errno.
fn connecting(id: *mut rdma_cm_id) -> std::thread::JoinHandle<(c_int, c_int)> {
    let id = Sent(id);
    std::thread::spawn(move || unsafe { (connect::rdma_connect(id.get(), null_mut()), errno()) })
}

fn request(listener: *mut rdma_cm_id) -> *mut rdma_cm_id {
    let mut made = null_mut();
    works(unsafe { connect::rdma_get_request(listener, &raw mut made) });
    made
}

fn device_pd() -> *mut ibv_pd {
    unsafe {
        let list = devices::rdma_get_devices(null_mut());
        let mut at = list;
        while std::ffi::CStr::from_ptr(v::device::ibv_get_device_name((**at).device)) != c"rxe_lo" {
            at = at.add(1);
        }
        let pd = v::memory::ibv_alloc_pd(*at);
        devices::rdma_free_devices(list);
        pd
    }
}

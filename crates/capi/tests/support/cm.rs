//! What the tests of rdma_cm share: identifiers on 127.0.0.1 and their events.

#![allow(dead_code, reason = "each test file uses its part")]

use std::ffi::c_int;
use std::ptr::null_mut;

use capi::cma::{channel, connect, id, qp};
use rdma_core_abi::cma::*;
use rdma_core_abi::verbs::*;

use super::errno;

/// The call fails with -1 and that errno.
#[track_caller]
pub(crate) fn fails(returned: c_int, with: c_int) {
    assert_eq!((returned, errno()), (-1, with));
}

/// The call succeeds.
#[track_caller]
pub(crate) fn works(returned: c_int) {
    assert_eq!(returned, 0, "errno {}", errno());
}

/// 127.0.0.1 and a port.
pub(crate) fn loopback(port: u16) -> libc::sockaddr_in {
    at([127, 0, 0, 1], port)
}

/// An IPv4 address and a port.
pub(crate) fn at(ip: [u8; 4], port: u16) -> libc::sockaddr_in {
    let mut a: libc::sockaddr_in = unsafe { std::mem::zeroed() };
    a.sin_family = libc::AF_INET as _;
    a.sin_port = port.to_be();
    a.sin_addr.s_addr = u32::from_ne_bytes(ip);
    a
}

/// An IPv6 address and a port.
pub(crate) fn at6(ip: std::net::Ipv6Addr, port: u16) -> libc::sockaddr_in6 {
    let mut a: libc::sockaddr_in6 = unsafe { std::mem::zeroed() };
    a.sin6_family = libc::AF_INET6 as _;
    a.sin6_port = port.to_be();
    a.sin6_addr.s6_addr = ip.octets();
    a
}

/// `rdma_bind_addr`.
pub(crate) fn bind<A>(id: *mut rdma_cm_id, addr: &A) -> c_int {
    unsafe { connect::rdma_bind_addr(id, (&raw const *addr).cast_mut().cast()) }
}

/// `rdma_resolve_addr` without a source.
pub(crate) fn resolve<A>(id: *mut rdma_cm_id, addr: &A) -> c_int {
    unsafe { connect::rdma_resolve_addr(id, null_mut(), (&raw const *addr).cast_mut().cast(), 2000) }
}

/// `rdma_set_option`.
pub(crate) fn option<T>(id: *mut rdma_cm_id, level: c_int, name: c_int, value: T) -> c_int {
    let mut value = value;
    unsafe { capi::cma::option::rdma_set_option(id, level, name, (&raw mut value).cast(), size_of::<T>()) }
}

/// A new event channel.
pub(crate) fn channel() -> *mut rdma_event_channel {
    let made = unsafe { channel::rdma_create_event_channel() };
    assert!(!made.is_null(), "errno {}", errno());
    made
}

/// A new identifier, synchronous without a channel.
pub(crate) fn id(channel: *mut rdma_event_channel, ps: u32) -> *mut rdma_cm_id {
    let mut made = null_mut();
    works(unsafe { id::rdma_create_id(channel, &raw mut made, null_mut(), ps) });
    made
}

/// `rdma_destroy_id`, after its queue pair if it has one.
pub(crate) fn destroy(id: *mut rdma_cm_id) {
    unsafe {
        qp::rdma_destroy_qp(id);
        works(id::rdma_destroy_id(id));
    }
}

/// An event that was acknowledged.
pub(crate) struct Seen {
    pub id: *mut rdma_cm_id,
    pub listen_id: *mut rdma_cm_id,
    pub event: u32,
    pub status: c_int,
    pub param: rdma_cm_event_param,
    pub data: Vec<u8>,
}

/// Whether an event comes within so many milliseconds.
pub(crate) fn comes(channel: *mut rdma_event_channel, ms: c_int) -> bool {
    let mut p = libc::pollfd { fd: unsafe { (*channel).fd }, events: libc::POLLIN, revents: 0 };
    unsafe { libc::poll(&raw mut p, 1, ms) == 1 }
}

/// The next event, not acknowledged.
#[track_caller]
pub(crate) fn fetch(channel: *mut rdma_event_channel) -> *mut rdma_cm_event {
    assert!(comes(channel, 5000), "no event within five seconds");
    let mut event = null_mut();
    works(unsafe { channel::rdma_get_cm_event(channel, &raw mut event) });
    event
}

/// The next event, acknowledged.
#[track_caller]
pub(crate) fn next(channel: *mut rdma_event_channel) -> Seen {
    let event = fetch(channel);
    unsafe {
        let e = &*event;
        let (data, len) = match (*e.id).qp_type {
            IBV_QPT_UD => (e.param.ud.private_data, e.param.ud.private_data_len),
            _ => (e.param.conn.private_data, e.param.conn.private_data_len),
        };
        let data = match len {
            0 => Vec::new(),
            len => std::slice::from_raw_parts(data.cast::<u8>(), len.into()).to_vec(),
        };
        let (id, listen_id, kind, status) = (e.id, e.listen_id, e.event, e.status);
        let seen = Seen { id, listen_id, event: kind, status, param: e.param, data };
        works(channel::rdma_ack_cm_event(event));
        seen
    }
}

/// The next event, which is of that type.
#[track_caller]
pub(crate) fn expect(channel: *mut rdma_event_channel, event: u32) -> Seen {
    let seen = next(channel);
    assert_eq!(seen.event, event, "status {}", seen.status);
    seen
}

/// An identifier that listens on 127.0.0.1, and its port.
pub(crate) fn listener(channel: *mut rdma_event_channel, ps: u32, backlog: c_int) -> (*mut rdma_cm_id, u16) {
    let made = id(channel, ps);
    works(bind(made, &loopback(0)));
    works(unsafe { connect::rdma_listen(made, backlog) });
    let port = u16::from_be(unsafe { connect::rdma_get_src_port(made) });
    assert_ne!(port, 0);
    (made, port)
}

/// An identifier whose route to a port of 127.0.0.1 is resolved.
pub(crate) fn routed(channel: *mut rdma_event_channel, ps: u32, port: u16) -> *mut rdma_cm_id {
    let made = id(channel, ps);
    works(resolve(made, &loopback(port)));
    expect(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
    works(unsafe { connect::rdma_resolve_route(made, 2000) });
    expect(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
    made
}

/// A small queue pair.
pub(crate) fn attr() -> ibv_qp_init_attr {
    let mut a: ibv_qp_init_attr = unsafe { std::mem::zeroed() };
    (a.cap.max_send_wr, a.cap.max_recv_wr, a.cap.max_send_sge, a.cap.max_recv_sge) = (4, 4, 1, 1);
    a
}

/// Gives an identifier a queue pair.
#[track_caller]
pub(crate) fn with_qp(id: *mut rdma_cm_id) {
    let mut a = attr();
    a.qp_type = unsafe { (*id).qp_type };
    works(unsafe { qp::rdma_create_qp(id, null_mut(), &raw mut a) });
}

/// Parameters that any device takes.
pub(crate) fn param() -> rdma_conn_param {
    let mut p: rdma_conn_param = unsafe { std::mem::zeroed() };
    (p.responder_resources, p.initiator_depth, p.retry_count, p.rnr_retry_count) = (1, 1, 7, 7);
    p
}

/// Parameters with private data.
pub(crate) fn with_data(p: rdma_conn_param, data: &[u8]) -> rdma_conn_param {
    rdma_conn_param { private_data: data.as_ptr().cast(), private_data_len: data.len() as u8, ..p }
}

/// Both ends of a connection on the way: the asking one waits for an answer to its request.
pub(crate) struct Asking {
    pub ours: *mut rdma_event_channel,
    pub theirs: *mut rdma_event_channel,
    pub listener: *mut rdma_cm_id,
    pub active: *mut rdma_cm_id,
    pub passive: *mut rdma_cm_id,
    /// The event of the request.
    pub request: Seen,
}

impl Asking {
    /// Asks with these parameters, from a queue pair or without one.
    #[track_caller]
    pub(crate) fn with(param: &rdma_conn_param, has_qp: bool, ps: u32) -> Self {
        Self::prepared(param, ps, |active| {
            if has_qp {
                with_qp(active);
            }
        })
    }

    /// Asks after `prepare` has seen the active identifier.
    #[track_caller]
    pub(crate) fn prepared(param: &rdma_conn_param, ps: u32, prepare: impl FnOnce(*mut rdma_cm_id)) -> Self {
        let (ours, theirs) = (channel(), channel());
        let (listener, port) = listener(theirs, ps, 4);
        let active = routed(ours, ps, port);
        prepare(active);
        let mut param = *param;
        works(unsafe { connect::rdma_connect(active, &raw mut param) });
        let request = expect(theirs, RDMA_CM_EVENT_CONNECT_REQUEST);
        assert_eq!(request.listen_id, listener);
        Self { ours, theirs, listener, active, passive: request.id, request }
    }

    /// Accepts with these parameters; the events of both sides.
    #[track_caller]
    pub(crate) fn accept(&self, param: &rdma_conn_param) -> (Seen, Seen) {
        with_qp(self.passive);
        let mut param = *param;
        works(unsafe { connect::rdma_accept(self.passive, &raw mut param) });
        (expect(self.ours, RDMA_CM_EVENT_ESTABLISHED), expect(self.theirs, RDMA_CM_EVENT_ESTABLISHED))
    }

    /// Destroys everything.
    pub(crate) fn close(self) {
        for id in [self.active, self.passive, self.listener] {
            destroy(id);
        }
        for ch in [self.ours, self.theirs] {
            unsafe { channel::rdma_destroy_event_channel(ch) };
        }
    }
}

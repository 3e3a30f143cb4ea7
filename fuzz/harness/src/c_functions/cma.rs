//! The calls of librdmacm: identifiers on 127.0.0.1 that connect to each other, or try, with any
//! parameters in any state.

use std::ffi::c_int;
use std::mem::zeroed;
use std::ptr::null_mut;

use capi::cma::{channel, connect, ece, id, option, qp, strings};
use rdma_core_abi::cma::*;
use rdma_core_abi::verbs::*;

use super::do_not_wait;
use super::verbs::Scene;
use crate::Input;

/// Most identifiers at once.
const MAX: usize = 6;
/// Ports that are bound by number.
const FIRST_PORT: u16 = 17_471;

/// Identifiers on two channels.
pub(super) struct Ids {
    channels: [*mut rdma_event_channel; 2],
    ids: Vec<*mut rdma_cm_id>,
    /// Ports that identifiers of this input listen on.
    ports: Vec<u16>,
}

/// An address with room for one of any family.
fn address(port: u16) -> libc::sockaddr_storage {
    // SAFETY: all zero is a value of both structures, and the larger is aligned for the other.
    unsafe {
        let mut address: libc::sockaddr_storage = zeroed();
        let v4 = &mut *(&raw mut address).cast::<libc::sockaddr_in>();
        (v4.sin_family, v4.sin_port) = (libc::AF_INET as _, port.to_be());
        v4.sin_addr.s_addr = u32::from_ne_bytes([127, 0, 0, 1]);
        address
    }
}

impl Ids {
    /// No identifier yet.
    ///
    /// # Safety
    ///
    /// The other functions are given no event and no identifier of other channels.
    pub(super) unsafe fn new() -> Self {
        let channel = || {
            // SAFETY: as above.
            let made = unsafe { channel::rdma_create_event_channel() };
            assert!(!made.is_null(), "no event channel");
            // SAFETY: a channel that was made just now.
            do_not_wait(unsafe { (*made).fd });
            made
        };
        Self { channels: [channel(), channel()], ids: Vec::new(), ports: Vec::new() }
    }

    /// One call, or a few that belong together.
    ///
    /// # Safety
    ///
    /// The objects of the scene live.
    pub(super) unsafe fn step(&mut self, scene: &mut Scene<'_, '_>) {
        // SAFETY: as above; what was destroyed is in no pool.
        unsafe {
            let input = &mut *scene.input;
            match input.below(8) {
                0 => self.create(input),
                1 | 2 => self.events(scene),
                3 if input.one_in(3) && !self.ids.is_empty() => {
                    let at = input.index(self.ids.len());
                    end(self.ids.remove(at));
                }
                _ => {
                    if let Some(id) = input.pick(&self.ids) {
                        self.call(scene, id);
                    }
                }
            }
        }
    }

    /// Destroys everything.
    ///
    /// # Safety
    ///
    /// As of [`Ids::step`].
    pub(super) unsafe fn close(mut self) {
        // SAFETY: every object once, and no event is left that a thread waits for.
        unsafe {
            // A request that has come is an identifier too.
            while let Some(event) = self.next() {
                channel::rdma_ack_cm_event(event);
            }
            for id in self.ids.drain(..) {
                end(id);
            }
            for channel in self.channels {
                channel::rdma_destroy_event_channel(channel);
            }
        }
    }

    unsafe fn create(&mut self, input: &mut Input<'_>) {
        if self.ids.len() >= MAX {
            return;
        }
        const SPACES: [u32; 6] =
            [RDMA_PS_TCP, RDMA_PS_TCP, RDMA_PS_TCP, RDMA_PS_UDP, RDMA_PS_IB, RDMA_PS_IPOIB];
        let space = if input.one_in(16) { input.odd() } else { input.choose(&SPACES) };
        let mut made = null_mut();
        // SAFETY: a channel that lives, room for the identifier.
        unsafe {
            if id::rdma_create_id(input.choose(&self.channels), &raw mut made, null_mut(), space) == 0 {
                self.ids.push(made);
            }
        }
    }

    /// The next event, of either channel, not acknowledged. An identifier that comes with it is
    /// kept.
    unsafe fn next(&mut self) -> Option<*mut rdma_cm_event> {
        for channel in self.channels {
            let mut event = null_mut();
            // SAFETY: a channel that lives, room for the event.
            unsafe {
                if channel::rdma_get_cm_event(channel, &raw mut event) == 0 {
                    if (*event).event == RDMA_CM_EVENT_CONNECT_REQUEST {
                        self.ids.push((*event).id);
                    }
                    assert!(!strings::rdma_event_str((*event).event).is_null());
                    return Some(event);
                }
            }
        }
        None
    }

    /// Takes an event, and mostly does what programs do then.
    unsafe fn events(&mut self, scene: &mut Scene<'_, '_>) {
        // SAFETY: the event is acknowledged once, its identifier lives until then.
        unsafe {
            let Some(event) = self.next() else { return };
            let (id, kind) = ((*event).id, (*event).event);
            channel::rdma_ack_cm_event(event);
            if scene.input.one_in(6) {
                return;
            }
            match kind {
                RDMA_CM_EVENT_ADDR_RESOLVED => _ = connect::rdma_resolve_route(id, 1000),
                RDMA_CM_EVENT_ROUTE_RESOLVED => {
                    give_qp(scene, id);
                    let (data, mut param) = (0_u8, param(scene.input));
                    (param.private_data, param.private_data_len) = ((&raw const data).cast(), 1);
                    connect::rdma_connect(id, &raw mut param);
                }
                RDMA_CM_EVENT_CONNECT_REQUEST => {
                    give_qp(scene, id);
                    let mut param = param(scene.input);
                    connect::rdma_accept(id, if scene.input.any() { null_mut() } else { &raw mut param });
                }
                RDMA_CM_EVENT_CONNECT_RESPONSE => _ = connect::rdma_establish(id),
                RDMA_CM_EVENT_ESTABLISHED if scene.input.any() => _ = connect::rdma_disconnect(id),
                _ => {}
            }
        }
    }

    /// Any call with an identifier in whatever state.
    #[expect(clippy::too_many_lines, reason = "an arm a function")]
    unsafe fn call(&mut self, scene: &mut Scene<'_, '_>, id: *mut rdma_cm_id) {
        let data = [7_u8; 256];
        // SAFETY: an identifier that lives; structures that live as long as the call, with the
        // lengths that are named.
        unsafe {
            match scene.input.below(20) {
                0 | 1 => {
                    let port = FIRST_PORT + scene.input.below(4) as u16;
                    let mut at = address(if scene.input.one_in(3) { port } else { 0 });
                    if scene.input.one_in(16) {
                        at.ss_family = scene.input.odd() as _;
                    }
                    connect::rdma_bind_addr(id, (&raw mut at).cast());
                }
                2 | 3 => {
                    let backlog = scene.input.odd() as c_int;
                    if connect::rdma_listen(id, backlog) == 0 {
                        self.ports.push(u16::from_be(connect::rdma_get_src_port(id)));
                    }
                }
                4..=6 => {
                    let port = scene.input.pick(&self.ports).unwrap_or(FIRST_PORT);
                    let (mut to, mut from) = (address(port), address(0));
                    let source = if scene.input.any() { null_mut() } else { (&raw mut from).cast() };
                    connect::rdma_resolve_addr(id, source, (&raw mut to).cast(), 1000);
                }
                7 => _ = connect::rdma_resolve_route(id, 1000),
                8 => give_qp(scene, id),
                9 => qp::rdma_destroy_qp(id),
                10 | 11 => {
                    let mut param = param(scene.input);
                    (param.private_data, param.private_data_len) = (data.as_ptr().cast(), scene.input.u8());
                    match scene.input.below(2) {
                        0 => connect::rdma_connect(id, &raw mut param),
                        _ => connect::rdma_accept(id, &raw mut param),
                    };
                }
                12 => _ = connect::rdma_reject(id, data.as_ptr().cast(), scene.input.u8()),
                13 => _ = connect::rdma_reject_ece(id, data.as_ptr().cast(), scene.input.u8()),
                14 => match scene.input.below(4) {
                    0 => _ = connect::rdma_establish(id),
                    1 => _ = connect::rdma_notify(id, scene.input.odd()),
                    2 => _ = id::rdma_migrate_id(id, scene.input.choose(&self.channels)),
                    _ => {
                        let (kind, status) = (scene.input.below(21), scene.input.odd() as c_int);
                        connect::rdma_write_cm_event(id, kind, status, 9);
                    }
                },
                15 | 16 => _ = connect::rdma_disconnect(id),
                17 => {
                    let (level, name) = (scene.input.below(4), scene.input.below(8));
                    let (mut value, len) = ([scene.input.u8(); 16], scene.input.below(17) as usize);
                    let value = value.as_mut_ptr().cast();
                    option::rdma_set_option(id, level as c_int, name as c_int, value, len);
                }
                18 => {
                    let (mut attr, mut mask): (ibv_qp_attr, c_int) = (zeroed(), 0);
                    attr.qp_state = scene.input.below(9);
                    connect::rdma_init_qp_attr(id, &raw mut attr, &raw mut mask);
                }
                _ => {
                    let mut ece: ibv_ece = zeroed();
                    (ece.vendor_id, ece.options) = (scene.input.u32(), scene.input.u32());
                    ece::rdma_set_local_ece(id, &raw mut ece);
                    ece::rdma_get_remote_ece(id, &raw mut ece);
                    let _ = (connect::rdma_get_src_port(id), connect::rdma_get_dst_port(id));
                }
            }
        }
    }
}

/// Any parameters, mostly legal ones.
fn param(input: &mut Input<'_>) -> rdma_conn_param {
    // SAFETY: all zero is a value of the structure.
    let mut param: rdma_conn_param = unsafe { zeroed() };
    (param.responder_resources, param.initiator_depth) = (1, 1);
    (param.retry_count, param.rnr_retry_count) = (7, 7);
    if input.one_in(4) {
        (param.responder_resources, param.initiator_depth) = (input.u8(), input.u8());
        (param.retry_count, param.rnr_retry_count, param.srq) = (input.u8(), input.u8(), input.u8());
        (param.flow_control, param.qp_num) = (input.u8(), input.u32());
    }
    param
}

/// A queue pair of its own for an identifier, with its default protection domain.
unsafe fn give_qp(scene: &mut Scene<'_, '_>, id: *mut rdma_cm_id) {
    // SAFETY: an identifier that lives; all zero is a value of the structure.
    unsafe {
        let mut attr: ibv_qp_init_attr = zeroed();
        attr.cap = ibv_qp_cap {
            max_send_wr: 4,
            max_recv_wr: 4,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 16,
        };
        attr.qp_type = if scene.input.one_in(16) { scene.input.below(12) } else { (*id).qp_type };
        qp::rdma_create_qp(id, null_mut(), &raw mut attr);
    }
}

/// Destroys an identifier after its queue pair.
unsafe fn end(id: *mut rdma_cm_id) {
    // SAFETY: an identifier that lives, all of whose events are acknowledged.
    unsafe {
        qp::rdma_destroy_qp(id);
        assert_eq!(id::rdma_destroy_id(id), 0, "an identifier that lives is destroyed");
    }
}

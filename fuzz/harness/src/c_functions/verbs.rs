//! The verbs: objects made, changed, used and destroyed in any order.

mod work;

use std::ffi::{c_int, c_void};
use std::mem::zeroed;
use std::ptr::null_mut;

use capi::verbs::{ah, cq, device, memory, qp, rate, srq, strings};
use rdma_core_abi::verbs::*;

use super::{ARENA, arena, destroy_all, destroy_one, do_not_wait, keep, loopback, maybe, open};
use crate::Input;

/// Most objects of a kind.
const MAX: usize = 4;

/// A device, and objects on it.
pub(super) struct Scene<'a, 'b> {
    pub input: &'a mut Input<'b>,
    context: *mut ibv_context,
    pub pds: Vec<*mut ibv_pd>,
    channels: Vec<*mut ibv_comp_channel>,
    cqs: Vec<*mut ibv_cq>,
    srqs: Vec<*mut ibv_srq>,
    qps: Vec<*mut ibv_qp>,
    mrs: Vec<*mut ibv_mr>,
    mws: Vec<*mut ibv_mw>,
    ahs: Vec<*mut ibv_ah>,
    counters: Vec<*mut ibv_comp_cntr>,
}

/// Element `at` of the arena.
fn place(at: u32) -> *mut u8 {
    // SAFETY: within the arena.
    unsafe { arena().add(at as usize % ARENA) }
}

impl<'a, 'b> Scene<'a, 'b> {
    /// Opens the loopback device.
    pub(super) fn open(input: &'a mut Input<'b>) -> Self {
        let context = open();
        // SAFETY: an open context's descriptor.
        do_not_wait(unsafe { (*context).async_fd });
        let (pds, channels, cqs, srqs, qps) = Default::default();
        let (mrs, mws, ahs, counters) = Default::default();
        Scene { input, context, pds, channels, cqs, srqs, qps, mrs, mws, ahs, counters }
    }

    /// One call, or a few that belong together.
    ///
    /// # Safety
    ///
    /// All objects live: what was destroyed is in no pool.
    pub(super) unsafe fn step(&mut self) {
        // SAFETY: as above.
        unsafe {
            match self.input.below(24) {
                0 | 1 => self.make(),
                2 | 3 => self.make_qp(),
                4 => self.make_memory(),
                5 => self.destroy(),
                6..=9 => self.move_qp(),
                10..=14 => self.post_send(),
                15 | 16 => self.post_receive(),
                17..=19 => self.poll(),
                20 => self.change(),
                21 => self.query(),
                22 => self.ask_device(),
                _ => self.count(),
            }
        }
    }

    /// Destroys everything. An object that refuses is still referred to by one that is gone: a
    /// leak.
    ///
    /// # Safety
    ///
    /// As of [`Scene::step`].
    pub(super) unsafe fn close(mut self) {
        // SAFETY: as above; every object is destroyed once, those that refer to others first.
        unsafe {
            self.events();
            let ops = (*self.context).ops;
            destroy_all("queue pair", self.qps, |qp| qp::ibv_destroy_qp(qp));
            destroy_all("memory window", self.mws, |mw| ops.dealloc_mw.map_or(-1, |f| f(mw)));
            destroy_all("address handle", self.ahs, |ah| ah::ibv_destroy_ah(ah));
            destroy_all("counter", self.counters, |counter| cq::ibv_destroy_comp_cntr(counter));
            destroy_all("memory region", self.mrs, |mr| memory::ibv_dereg_mr(mr));
            destroy_all("shared receive queue", self.srqs, |srq| srq::ibv_destroy_srq(srq));
            destroy_all("completion queue", self.cqs, |cq| cq::ibv_destroy_cq(cq));
            destroy_all("completion channel", self.channels, |c| cq::ibv_destroy_comp_channel(c));
            destroy_all("protection domain", self.pds, |pd| memory::ibv_dealloc_pd(pd));
            assert_eq!(device::ibv_close_device(self.context), 0, "the device is still used");
        }
    }

    unsafe fn make(&mut self) {
        let input = &mut *self.input;
        // SAFETY: objects of the pools.
        unsafe {
            match input.below(6) {
                0 if self.pds.len() < MAX => keep(&mut self.pds, memory::ibv_alloc_pd(self.context)),
                1 if self.channels.len() < MAX => {
                    let made = cq::ibv_create_comp_channel(self.context);
                    if !made.is_null() {
                        do_not_wait((*made).fd);
                    }
                    keep(&mut self.channels, made);
                }
                2 | 3 if self.cqs.len() < MAX => {
                    let (cqe, vector) = (input.odd() as c_int, if input.one_in(8) { input.odd() } else { 0 });
                    let channel = maybe(input, &self.channels);
                    let made = cq::ibv_create_cq(self.context, cqe, null_mut(), channel, vector as c_int);
                    keep(&mut self.cqs, made);
                }
                4 if self.srqs.len() < MAX => {
                    let Some(pd) = input.pick(&self.pds) else { return };
                    let (max_wr, max_sge, srq_limit) = (input.odd(), input.odd(), input.odd());
                    let attr = ibv_srq_attr { max_wr, max_sge, srq_limit };
                    let mut init = ibv_srq_init_attr { srq_context: null_mut(), attr };
                    keep(&mut self.srqs, srq::ibv_create_srq(pd, &raw mut init));
                }
                5 if self.ahs.len() < MAX => {
                    let Some(pd) = input.pick(&self.pds) else { return };
                    let mut attr = address(input);
                    keep(&mut self.ahs, ah::ibv_create_ah(pd, &raw mut attr));
                }
                _ => {}
            }
        }
    }

    unsafe fn make_qp(&mut self) {
        let input = &mut *self.input;
        let (Some(pd), Some(send_cq), Some(recv_cq)) =
            (input.pick(&self.pds), input.pick(&self.cqs), input.pick(&self.cqs))
        else {
            return;
        };
        if self.qps.len() >= 2 * MAX {
            return;
        }
        const KINDS: [u32; 6] = [IBV_QPT_RC, IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD, IBV_QPT_XRC_SEND, 77];
        // SAFETY: objects of the pools; all zero is a value of the structure.
        unsafe {
            let mut init: ibv_qp_init_attr = zeroed();
            (init.send_cq, init.recv_cq) = (send_cq, recv_cq);
            init.srq = if input.one_in(4) { maybe(input, &self.srqs) } else { null_mut() };
            init.qp_type = if input.one_in(16) { input.odd() } else { input.choose(&KINDS) };
            init.sq_sig_all = input.any::<bool>().into();
            let any = input.one_in(6);
            let mut size = |small: u32| if any { input.odd() } else { small };
            init.cap = ibv_qp_cap {
                max_send_wr: size(16),
                max_recv_wr: size(16),
                max_send_sge: size(3),
                max_recv_sge: size(3),
                max_inline_data: size(100),
            };
            keep(&mut self.qps, qp::ibv_create_qp(pd, &raw mut init));
        }
    }

    unsafe fn make_memory(&mut self) {
        let input = &mut *self.input;
        let Some(pd) = input.pick(&self.pds) else { return };
        let at = input.below(ARENA as u32);
        let room = ARENA as u32 - at;
        let addr = place(at).cast::<c_void>();
        // What is longer than the arena is longer than any memory: no peer may write to what is
        // this process's own.
        let length = match input.below(8) {
            0 => input.choose(&[0, usize::MAX, usize::MAX / 2, 1 << 60]),
            _ => input.below(room + 1) as usize,
        };
        const ON_DEMAND: u32 = IBV_ACCESS_ON_DEMAND;
        let access = if input.one_in(4) { input.u32() & !ON_DEMAND } else { input.u32() & 0x1f | 1 };
        // SAFETY: objects of the pools; memory that is there, as far as it is any.
        unsafe {
            match input.below(6) {
                0 if self.mws.len() < MAX => {
                    let kind = input.below(4);
                    let made = (*self.context).ops.alloc_mw.map_or(null_mut(), |alloc| alloc(pd, kind));
                    keep(&mut self.mws, made);
                }
                1 => {
                    let (Some(mr), flags) = (input.pick(&self.mrs), input.below(16)) else { return };
                    memory::ibv_rereg_mr(mr, flags as c_int, pd, addr, length, access as c_int);
                }
                _ if self.mrs.len() >= 2 * MAX => {}
                2 => {
                    let made = memory::ibv_reg_mr_iova(pd, addr, length, input.u64(), access as c_int);
                    keep(&mut self.mrs, made);
                }
                3 => keep(&mut self.mrs, memory::ibv_reg_mr_iova2(pd, addr, length, input.u64(), access)),
                _ => keep(&mut self.mrs, memory::ibv_reg_mr(pd, addr, length, access as c_int)),
            }
        }
    }

    unsafe fn destroy(&mut self) {
        let input = &mut *self.input;
        // SAFETY: objects of the pools, which they leave.
        unsafe {
            let ops = (*self.context).ops;
            match input.below(9) {
                0 => destroy_one(input, &mut self.pds, |pd| memory::ibv_dealloc_pd(pd)),
                1 => destroy_one(input, &mut self.channels, |c| cq::ibv_destroy_comp_channel(c)),
                2 => destroy_one(input, &mut self.cqs, |cq| cq::ibv_destroy_cq(cq)),
                3 => destroy_one(input, &mut self.srqs, |srq| srq::ibv_destroy_srq(srq)),
                4 | 5 => destroy_one(input, &mut self.qps, |qp| qp::ibv_destroy_qp(qp)),
                6 => destroy_one(input, &mut self.mrs, |mr| memory::ibv_dereg_mr(mr)),
                7 => destroy_one(input, &mut self.mws, |mw| ops.dealloc_mw.map_or(-1, |f| f(mw))),
                _ => destroy_one(input, &mut self.ahs, |ah| ah::ibv_destroy_ah(ah)),
            }
        }
    }

    /// Changes what may be changed.
    unsafe fn change(&mut self) {
        let input = &mut *self.input;
        // SAFETY: objects of the pools; structures that live as long as the call.
        unsafe {
            match (input.below(4), input.pick(&self.cqs), input.pick(&self.srqs), input.pick(&self.qps)) {
                (0, Some(cq), ..) => _ = cq::ibv_resize_cq(cq, input.odd() as c_int),
                (1, _, Some(srq), _) => {
                    let (max_wr, max_sge, srq_limit) = (input.odd(), input.odd(), input.odd());
                    let mut attr = ibv_srq_attr { max_wr, max_sge, srq_limit };
                    srq::ibv_modify_srq(srq, &raw mut attr, input.below(8) as c_int);
                }
                (2, .., Some(qp)) => {
                    let mut ece: ibv_ece = zeroed();
                    qp::ibv_query_ece(qp, &raw mut ece);
                    qp::ibv_set_ece(qp, &raw mut ece);
                    qp::ibv_query_qp_data_in_order(qp, input.odd(), input.below(8));
                }
                _ => {}
            }
        }
    }

    unsafe fn query(&mut self) {
        let input = &mut *self.input;
        let (context, port, index) = (self.context, input.choose(&[1, 0, 2, 255]), input.odd());
        // SAFETY: structures to be written, of the sizes that are named.
        unsafe {
            let mut gid = ibv_gid { raw: [0; 16] };
            device::ibv_query_gid(context, port, index as c_int, &raw mut gid);
            let mut kind = 0;
            device::ibv_query_gid_type(context, port, index, &raw mut kind);
            let mut entries: [ibv_gid_entry; 4] = zeroed();
            let (most, flags) = (input.below(5) as usize, input.below(3));
            let size = size_of::<ibv_gid_entry>();
            device::_ibv_query_gid_ex(context, port.into(), index, entries.as_mut_ptr(), flags, size);
            device::_ibv_query_gid_table(context, entries.as_mut_ptr(), most, flags, size);
            let mut pkey = 0;
            device::ibv_query_pkey(context, port, index as c_int, &raw mut pkey);
            device::ibv_get_pkey_index(context, port, input.u32() as u16);
            let mut attr: _compat_ibv_port_attr = zeroed();
            device::ibv_query_port(context, port, &raw mut attr);
            let mut speed = 0;
            device::ibv_query_port_speed(context, port.into(), &raw mut speed);
            let mut device: ibv_device_attr = zeroed();
            assert_eq!(device::ibv_query_device(context, &raw mut device), 0);
            if let Some(srq) = input.pick(&self.srqs) {
                let mut attr = ibv_srq_attr::default();
                assert_eq!(srq::ibv_query_srq(srq, &raw mut attr), 0);
            }
        }
    }

    /// What needs no object.
    unsafe fn ask_device(&mut self) {
        let input = &mut *self.input;
        let n = input.odd();
        // SAFETY: a device; structures that live as long as the call.
        unsafe {
            let device = loopback();
            let _ = (device::ibv_get_device_guid(device), device::ibv_get_device_index(device));
            assert!(!device::ibv_get_device_name(device).is_null());
            let texts = [
                strings::ibv_node_type_str(n as _),
                strings::ibv_port_state_str(n),
                strings::ibv_wr_opcode_str(n),
                strings::ibv_event_type_str(n),
                strings::ibv_wc_status_str(n),
            ];
            assert!(texts.iter().all(|text| !text.is_null()));
            let _ = (rate::ibv_rate_to_mbps(n), rate::ibv_rate_to_mult(n));
            let _ = (rate::mbps_to_ibv_rate(n as c_int), rate::mult_to_ibv_rate(n as c_int));
            let mut attr = address(input);
            let (mut wc, mut grh): (ibv_wc, ibv_grh) = (zeroed(), zeroed());
            (wc.wc_flags, wc.src_qp) = (input.below(4), input.u32());
            grh.version_tclass_flow = input.u32();
            grh.sgid.raw[..4].copy_from_slice(&input.u32().to_ne_bytes());
            ah::ibv_init_ah_from_wc(self.context, 1, &raw mut wc, &raw mut grh, &raw mut attr);
            let (mut mac, mut vid) = ([0; 6], 0);
            ah::ibv_resolve_eth_l2_from_gid(self.context, &raw mut attr, &raw mut mac, &raw mut vid);
            if let Some(pd) = input.pick(&self.pds) {
                let made = ah::ibv_create_ah_from_wc(pd, &raw mut wc, &raw mut grh, 1);
                // It may name any host: nothing is sent there.
                if !made.is_null() {
                    assert_eq!(ah::ibv_destroy_ah(made), 0);
                }
            }
        }
    }

    /// Completion counters.
    unsafe fn count(&mut self) {
        let input = &mut *self.input;
        // SAFETY: objects of the pools; structures that live as long as the call.
        unsafe {
            if self.counters.len() < MAX && input.one_in(3) {
                let mut attr: ibv_comp_cntr_init_attr = zeroed();
                attr.comp_mask = if input.one_in(8) { input.odd() } else { 0 };
                keep(&mut self.counters, cq::ibv_create_comp_cntr(self.context, &raw mut attr));
            }
            let Some(counter) = input.pick(&self.counters) else { return };
            let (value, mut read) = (input.u64(), 0);
            match input.below(8) {
                0 => _ = cq::ibv_set_comp_cntr(counter, value),
                1 => _ = cq::ibv_set_err_comp_cntr(counter, value),
                2 => _ = cq::ibv_inc_comp_cntr(counter, value),
                3 => _ = cq::ibv_inc_err_comp_cntr(counter, value),
                4 => _ = cq::ibv_read_comp_cntr(counter, &raw mut read),
                5 => _ = cq::ibv_read_err_comp_cntr(counter, &raw mut read),
                6 => {
                    let mut caps: ibv_comp_cntr_caps = zeroed();
                    let size = size_of::<ibv_comp_cntr_caps>();
                    cq::_ibv_query_comp_cntr_caps(self.context, &raw mut caps, size);
                }
                _ => {
                    let Some(qp) = input.pick(&self.qps) else { return };
                    let mut attr: ibv_qp_attach_comp_cntr_attr = zeroed();
                    attr.op_mask = input.below(64);
                    cq::ibv_qp_attach_comp_cntr(qp, counter, &raw mut attr);
                }
            }
            if input.one_in(8) {
                destroy_one(input, &mut self.counters, |counter| cq::ibv_destroy_comp_cntr(counter));
            }
        }
    }
}

/// An address: mostly this host's.
fn address(input: &mut Input<'_>) -> ibv_ah_attr {
    // SAFETY: all zero is a value of the structure.
    let mut attr: ibv_ah_attr = unsafe { zeroed() };
    attr.is_global = u8::from(!input.one_in(16));
    attr.port_num = if input.one_in(16) { input.u8() } else { 1 };
    attr.grh.sgid_index = if input.one_in(16) { input.u8() } else { 1 };
    // Perhaps no listener is there; nothing leaves this host.
    let last = if input.one_in(16) { input.u8() } else { 1 };
    attr.grh.dgid.raw = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, last];
    attr
}

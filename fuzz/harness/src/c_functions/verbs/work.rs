//! Queue pairs at work: moved between their states, requests posted, completions and events taken.

use std::ffi::c_int;
use std::mem::zeroed;
use std::ptr::null_mut;

use capi::verbs::{cq, device, qp, strings};
use rdma_core_abi::verbs::*;

use super::{Scene, address, place};
use crate::c_functions::ARENA;

/// Elements of a request: more than any queue takes.
const SGES: usize = 40;

impl Scene<'_, '_> {
    /// Moves a queue pair on, or anywhere.
    pub(crate) unsafe fn move_qp(&mut self) {
        let input = &mut *self.input;
        let Some(qp) = input.pick(&self.qps) else { return };
        // SAFETY: objects of the pools; structures to be written.
        unsafe {
            let mut attr: ibv_qp_attr = zeroed();
            let mut init: ibv_qp_init_attr = zeroed();
            assert_eq!(qp::ibv_query_qp(qp, &raw mut attr, IBV_QP_STATE as c_int, &raw mut init), 0);
            let kind = init.qp_type;
            let (to, mut bits) = match attr.qp_state {
                IBV_QPS_RESET => (IBV_QPS_INIT, to_init(kind)),
                IBV_QPS_INIT => (IBV_QPS_RTR, to_rtr(kind)),
                IBV_QPS_RTR => (IBV_QPS_RTS, to_rts(kind)),
                IBV_QPS_RTS if input.one_in(4) => (IBV_QPS_SQD, 0),
                IBV_QPS_RTS => (IBV_QPS_RTS, 0),
                IBV_QPS_SQD | IBV_QPS_SQE => (IBV_QPS_RTS, 0),
                _ => (IBV_QPS_RESET, 0),
            };
            attr = zeroed();
            attr.qp_state = if input.one_in(16) { input.below(9) } else { to };
            (attr.port_num, attr.qkey, attr.path_mtu) = (1, 5, input.choose(&[1, 3, 5]));
            attr.qp_access_flags = if input.one_in(8) { input.u32() } else { 0xf };
            let peer = input.pick(&self.qps).unwrap_or(qp);
            attr.dest_qp_num = if input.one_in(8) { input.u32() } else { (*peer).qp_num };
            [attr.max_rd_atomic, attr.max_dest_rd_atomic] = [4, 4];
            [attr.min_rnr_timer, attr.timeout, attr.retry_cnt, attr.rnr_retry] = [1, 8, 7, 7];
            if input.one_in(8) {
                [attr.max_rd_atomic, attr.max_dest_rd_atomic] = [input.u8(), input.u8()];
                [attr.min_rnr_timer, attr.timeout, attr.retry_cnt, attr.rnr_retry] =
                    [input.u8(), input.u8(), input.u8(), input.u8()];
                (attr.rq_psn, attr.sq_psn, attr.pkey_index) = (input.u32(), input.u32(), input.u8().into());
            }
            attr.ah_attr = address(input);
            if input.one_in(16) {
                bits = input.u32() & 0x3ff_ffff;
            }
            qp::ibv_modify_qp(qp, &raw mut attr, (bits | IBV_QP_STATE) as c_int);
        }
    }

    /// Elements: mostly of a region that is registered.
    unsafe fn sges(&mut self, inline: bool) -> [ibv_sge; SGES] {
        let input = &mut *self.input;
        let mut sges = [ibv_sge::default(); SGES];
        for sge in &mut sges[..4] {
            let at = input.below(ARENA as u32 / 2);
            // SAFETY: a region of the pool.
            let mr = input.pick(&self.mrs).map(|mr| unsafe { *mr });
            sge.addr = place(at).expose_provenance() as u64;
            sge.length = input.below(5000);
            if let Some(mr) = mr {
                sge.lkey = mr.lkey;
                if !inline && !input.one_in(8) {
                    sge.addr = mr.addr.expose_provenance() as u64 + u64::from(input.u8());
                }
            }
            if !inline && input.one_in(8) {
                (sge.addr, sge.length, sge.lkey) = (input.u64(), input.odd(), input.u32());
            }
        }
        sges
    }

    pub(crate) unsafe fn post_send(&mut self) {
        let Some(qp) = self.input.pick(&self.qps) else { return };
        let flags = self.input.u32() & 0x1f;
        // SAFETY: objects of the pools; requests and elements that live as long as the call; what
        // is inline is in the arena.
        unsafe {
            let mut sges = self.sges(flags & IBV_SEND_INLINE != 0);
            let input = &mut *self.input;
            let mut wr: ibv_send_wr = zeroed();
            (wr.wr_id, wr.sg_list, wr.send_flags) = (input.u64(), sges.as_mut_ptr(), flags);
            wr.num_sge = input.choose(&[1, 1, 1, 0, 2, 3, 4, 33, SGES as c_int, -1]);
            wr.opcode = if input.one_in(4) { input.below(17) } else { input.below(7) };
            let mr = input.pick(&self.mrs);
            let (key, base) = mr.map_or((0, 0), |mr| ((*mr).rkey, (*mr).addr.expose_provenance() as u64));
            let remote_addr = if input.one_in(8) { input.u64() } else { base + u64::from(input.u8()) * 8 };
            let rkey = if input.one_in(8) { input.u32() } else { key };
            match wr.opcode {
                IBV_WR_BIND_MW => {
                    let (Some(mw), Some(mr)) = (input.pick(&self.mws), mr) else { return };
                    let (addr, length) = (base + u64::from(input.u8()), input.odd().into());
                    let mw_access_flags = input.below(64);
                    let bind_info = ibv_mw_bind_info { mr, addr, length, mw_access_flags };
                    let rkey = (*mw).rkey.wrapping_add(input.below(3));
                    wr.op.bind_mw = ibv_send_wr_bind_mw { mw, rkey, bind_info };
                }
                // Its header is at a pointer of its own.
                IBV_WR_TSO => wr.op.tso = ibv_send_wr_tso { hdr: place(0).cast(), hdr_sz: 14, mss: 100 },
                _ if (*qp).qp_type == IBV_QPT_UD => {
                    let Some(ah) = input.pick(&self.ahs) else { return };
                    let peer = input.pick(&self.qps).map_or(1, |peer| (*peer).qp_num);
                    wr.wr.ud = ibv_send_wr_ud { ah, remote_qpn: peer, remote_qkey: 5 };
                }
                IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD => {
                    let (compare_add, swap) = (input.u64(), input.u64());
                    wr.wr.atomic = ibv_send_wr_atomic { remote_addr, compare_add, swap, rkey };
                }
                _ => wr.wr.rdma = ibv_send_wr_rdma { remote_addr, rkey },
            }
            let mut bad = null_mut();
            if let Some(post) = (*self.context).ops.post_send {
                post(qp, &raw mut wr, &raw mut bad);
            }
        }
    }

    pub(crate) unsafe fn post_receive(&mut self) {
        // SAFETY: as in `post_send`.
        unsafe {
            let mut sges = self.sges(false);
            let input = &mut *self.input;
            let num_sge = input.choose(&[1, 1, 0, 2, 3, SGES as c_int, -1]);
            let mut wr = ibv_recv_wr { wr_id: 1, next: null_mut(), sg_list: sges.as_mut_ptr(), num_sge };
            let (mut bad, ops) = (null_mut(), (*self.context).ops);
            match (input.one_in(3), input.pick(&self.srqs), input.pick(&self.qps)) {
                (true, Some(srq), _) => {
                    _ = ops.post_srq_recv.map(|post| post(srq, &raw mut wr, &raw mut bad))
                }
                (_, _, Some(qp)) => _ = ops.post_recv.map(|post| post(qp, &raw mut wr, &raw mut bad)),
                _ => {}
            }
        }
    }

    pub(crate) unsafe fn poll(&mut self) {
        let input = &mut *self.input;
        let Some(cq) = input.pick(&self.cqs) else { return };
        // SAFETY: objects of the pools; room for as many completions as are asked for.
        unsafe {
            let ops = (*self.context).ops;
            let mut wcs: [ibv_wc; 16] = zeroed();
            match input.below(6) {
                0 => _ = ops.req_notify_cq.map(|arm| arm(cq, input.below(2) as c_int)),
                1 => self.events(),
                _ => {
                    let most = input.choose(&[16, 1, 0, -1]);
                    let got = ops.poll_cq.map_or(0, |poll| poll(cq, most, wcs.as_mut_ptr()));
                    assert!(got <= most.max(0), "{got} completions where {most} were asked for");
                    for wc in wcs.iter().take(got.max(0) as usize) {
                        assert!(!strings::ibv_wc_status_str(wc.status).is_null());
                    }
                }
            }
        }
    }

    /// Takes all events that are there.
    pub(crate) unsafe fn events(&mut self) {
        // SAFETY: objects of the pools; events are acknowledged once.
        unsafe {
            for channel in &self.channels {
                let (mut cq, mut user) = (null_mut(), null_mut());
                while cq::ibv_get_cq_event(*channel, &raw mut cq, &raw mut user) == 0 {
                    cq::ibv_ack_cq_events(cq, 1);
                }
            }
            let mut event: ibv_async_event = zeroed();
            while device::ibv_get_async_event(self.context, &raw mut event) == 0 {
                assert!(!strings::ibv_event_type_str(event.event_type).is_null());
                device::ibv_ack_async_event(&raw mut event);
            }
        }
    }
}

fn to_init(kind: u32) -> u32 {
    let last = if kind == IBV_QPT_UD { IBV_QP_QKEY } else { IBV_QP_ACCESS_FLAGS };
    IBV_QP_PKEY_INDEX | IBV_QP_PORT | last
}

fn to_rtr(kind: u32) -> u32 {
    let connected = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    match kind {
        IBV_QPT_UD => 0,
        IBV_QPT_RC => connected | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
        _ => connected,
    }
}

fn to_rts(kind: u32) -> u32 {
    match kind {
        IBV_QPT_RC | IBV_QPT_XRC_SEND => {
            IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC
        }
        _ => IBV_QP_SQ_PSN,
    }
}

//! A heap at its end: making an object is ENOMEM, and the process goes on.
#![expect(clippy::undocumented_unsafe_blocks, reason = "all are calls by the contract of their man pages")]

#[path = "support/cm.rs"]
mod cm;
mod support;

use std::ffi::c_int;
use std::ptr::null_mut;

use capi::cma::{channel, connect, id, qp as cm_qp};
use capi::verbs::{ah, cq, device, memory, qp, srq};
use rdma_core_abi::cma::*;
use rdma_core_abi::verbs::*;

use support::{Loop, errno, in_a_child, init, loopback};

/// All that the heap gives, each block holding the address of the one before.
struct Hoard(*mut *mut u8, libc::rlimit);

impl Hoard {
    fn take() -> Self {
        unsafe {
            let mut limit: libc::rlimit = std::mem::zeroed();
            libc::getrlimit(libc::RLIMIT_AS, &raw mut limit);
            let none = libc::rlimit { rlim_cur: 1, ..limit };
            libc::setrlimit(libc::RLIMIT_AS, &raw const none);
            let mut last: *mut *mut u8 = null_mut();
            for size in [1 << 16, 1 << 12, 1 << 8] {
                loop {
                    let block = libc::malloc(size).cast::<*mut u8>();
                    if block.is_null() {
                        break;
                    }
                    *block = last.cast();
                    last = block;
                }
            }
            Self(last, limit)
        }
    }

    fn give_back(self) {
        unsafe {
            libc::setrlimit(libc::RLIMIT_AS, &raw const self.1);
            let mut at = self.0;
            while !at.is_null() {
                let before = (*at).cast();
                libc::free(at.cast());
                at = before;
            }
        }
    }
}

#[test]
fn making_an_object_with_the_heap_at_its_end_is_enomem_and_the_process_goes_on() {
    assert!(in_a_child(|| {
        let l = Loop::open();
        let device = loopback();
        let events = cm::channel();
        let made = cm::id(events, RDMA_PS_TCP);
        cm::works(cm::bind(made, &cm::loopback(0)));
        let mut way: ibv_ah_attr = unsafe { std::mem::zeroed() };
        (way.is_global, way.port_num, way.grh.sgid_index, way.grh.hop_limit) = (1, 1, 1, 9);
        way.grh.dgid = ibv_gid { raw: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1] };
        let rights = IBV_ACCESS_LOCAL_WRITE as c_int;
        let at = l.memory.as_ptr().cast_mut().cast();
        let (mut qp_init, mut cm_init, mut srq_init) =
            (init(l.cq), cm::attr(), unsafe { std::mem::zeroed::<ibv_srq_init_attr>() });
        srq_init.attr = ibv_srq_attr { max_wr: 4, max_sge: 1, srq_limit: 0 };
        cm_init.qp_type = IBV_QPT_RC;

        let hoard = Hoard::take();
        // Nothing in here allocates but the calls.
        let mut codes = [0; 12];
        unsafe {
            let mut another = null_mut();
            let mut n = 0;
            let mut failed = |failed: bool| {
                codes[n] = if failed { errno() } else { -1 };
                n += 1;
            };
            failed(device::ibv_open_device(device).is_null());
            failed(memory::ibv_alloc_pd(l.context).is_null());
            failed(cq::ibv_create_cq(l.context, 1 << 20, null_mut(), null_mut(), 0).is_null());
            failed(cq::ibv_create_comp_channel(l.context).is_null());
            failed(qp::ibv_create_qp(l.pd, &raw mut qp_init).is_null());
            failed(srq::ibv_create_srq(l.pd, &raw mut srq_init).is_null());
            failed(ah::ibv_create_ah(l.pd, &raw mut way).is_null());
            failed(memory::ibv_reg_mr(l.pd, at, 4096, rights).is_null());
            failed(channel::rdma_create_event_channel().is_null());
            failed(id::rdma_create_id(events, &raw mut another, null_mut(), RDMA_PS_TCP) != 0);
            failed(cm_qp::rdma_create_qp(made, null_mut(), &raw mut cm_init) != 0);
            failed(connect::rdma_listen(made, 1024) != 0);
        }
        hoard.give_back();
        assert_eq!(codes, [libc::ENOMEM; 12]);

        // Everything goes on as if nothing had been.
        cm::works(unsafe { connect::rdma_listen(made, 1024) });
        cm::destroy(made);
        unsafe { channel::rdma_destroy_event_channel(events) };
        l.close();
        Loop::open().close();
    }));
}

#[test]
fn receives_posted_with_the_heap_at_its_end_are_refused_where_their_queue_can_not_grow() {
    assert!(in_a_child(|| {
        let l = Loop::open();
        let mut large = init(l.cq);
        large.cap.max_recv_wr = nic::limits::MAX_QP_WR;
        let made = unsafe { qp::ibv_create_qp(l.pd, &raw mut large) };
        // Without a peer: so no other thread needs memory meanwhile.
        let mut attr: ibv_qp_attr = unsafe { std::mem::zeroed() };
        (attr.qp_state, attr.port_num) = (IBV_QPS_INIT, 1);
        let mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
        assert_eq!(unsafe { qp::ibv_modify_qp(made, &raw mut attr, mask as c_int) }, 0);
        let mut wr = ibv_recv_wr { wr_id: 1, next: null_mut(), sg_list: null_mut(), num_sge: 0 };
        let mut bad = null_mut();
        let post = unsafe { (*l.context).ops.post_recv.expect("built") };
        let hoard = Hoard::take();
        let mut posted = 0;
        let refused = loop {
            match unsafe { post(made, &raw mut wr, &raw mut bad) } {
                0 => posted += 1,
                code => break code,
            }
        };
        hoard.give_back();
        assert_eq!(refused, libc::ENOMEM);
        assert!(posted < nic::limits::MAX_QP_WR, "{posted}");
        assert_eq!(unsafe { post(made, &raw mut wr, &raw mut bad) }, 0);
        assert_eq!(unsafe { qp::ibv_destroy_qp(made) }, 0);
        l.close();
    }));
}

//! What the tests of the verbs share: the loopback device, and a queue pair connected to itself.
#![allow(dead_code, reason = "each test file uses its part")]

use std::ffi::{CStr, c_int};
use std::ptr::null_mut;

use capi::verbs::{cq, device, memory, qp};
use rdma_core_abi::verbs::*;

/// errno of the last call of this thread.
pub(crate) fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// The loopback device.
pub(crate) fn loopback() -> *mut ibv_device {
    device_named(c"rxe_lo")
}

/// The device of a name, in a list that is freed at once: devices outlive it.
pub(crate) fn device_named(name: &CStr) -> *mut ibv_device {
    let mut n = -1;
    unsafe {
        let list = device::ibv_get_device_list(&raw mut n);
        assert!(!list.is_null() && n > 0, "no device: errno {}", errno());
        let found = (0..n as usize)
            .map(|i| *list.add(i))
            .find(|&d| CStr::from_ptr(device::ibv_get_device_name(d)) == name);
        assert!((*list.add(n as usize)).is_null());
        device::ibv_free_device_list(list);
        found.expect("a device of this name")
    }
}

/// Everything a queue pair needs, and the queue pair, connected to itself over 127.0.0.1.
pub(crate) struct Loop {
    pub context: *mut ibv_context,
    pub pd: *mut ibv_pd,
    pub channel: *mut ibv_comp_channel,
    pub cq: *mut ibv_cq,
    pub qp: *mut ibv_qp,
    pub mr: *mut ibv_mr,
    /// The first half is sent, the second received into.
    pub memory: Box<[u8; 8192]>,
}

/// The half of a [`Loop`]'s memory.
pub(crate) const HALF: usize = 4096;

impl Loop {
    /// Opens the loopback device and makes a queue pair in state RTS.
    pub(crate) fn open() -> Self {
        Self::of(loopback())
    }

    /// Like [`Loop::open`], on a given device.
    pub(crate) fn of(device: *mut ibv_device) -> Self {
        let mut memory = Box::new([0; 8192]);
        unsafe {
            let context = device::ibv_open_device(device);
            assert!(!context.is_null(), "open: errno {}", errno());
            let pd = memory::ibv_alloc_pd(context);
            let channel = cq::ibv_create_comp_channel(context);
            let cq = cq::ibv_create_cq(context, 16, null_mut(), channel, 0);
            assert!(!pd.is_null() && !channel.is_null() && !cq.is_null());
            let rights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
            let mr = memory::ibv_reg_mr(pd, memory.as_mut_ptr().cast(), memory.len(), rights as c_int);
            assert!(!mr.is_null(), "reg_mr: errno {}", errno());
            let mut init = init(cq);
            let qp = qp::ibv_create_qp(pd, &raw mut init);
            assert!(!qp.is_null(), "create_qp: errno {}", errno());
            connect(qp);
            Self { context, pd, channel, cq, qp, mr, memory }
        }
    }

    /// An element over `range` of the memory.
    pub(crate) fn sge(&self, at: usize, length: u32) -> ibv_sge {
        let addr = self.memory.as_ptr().expose_provenance() + at;
        ibv_sge { addr: addr as u64, length, lkey: unsafe { (*self.mr).lkey } }
    }

    /// Posts one send request; its errno.
    pub(crate) fn post_send(&self, wr: &mut ibv_send_wr) -> c_int {
        let mut bad = null_mut();
        unsafe { (*self.context).ops.post_send.expect("built")(self.qp, wr, &raw mut bad) }
    }

    /// Posts one receive of `length` bytes into the second half.
    pub(crate) fn post_recv(&self, wr_id: u64, length: u32) -> c_int {
        let mut sge = self.sge(HALF, length);
        let mut wr = ibv_recv_wr { wr_id, next: null_mut(), sg_list: &raw mut sge, num_sge: 1 };
        let mut bad = null_mut();
        unsafe { (*self.context).ops.post_recv.expect("built")(self.qp, &raw mut wr, &raw mut bad) }
    }

    /// Polls until there are `n` completions, up to five seconds.
    pub(crate) fn completions(&self, n: usize) -> Vec<ibv_wc> {
        let start = std::time::Instant::now();
        let mut all = Vec::new();
        while all.len() < n {
            let mut wc: ibv_wc = unsafe { std::mem::zeroed() };
            match unsafe { (*self.context).ops.poll_cq.expect("built")(self.cq, 1, &raw mut wc) } {
                0 => assert!(start.elapsed().as_secs() < 5, "only {} of {n} completions", all.len()),
                1 => all.push(wc),
                e => panic!("poll_cq: {e}"),
            }
        }
        all
    }

    /// Destroys everything; every call must succeed.
    pub(crate) fn close(self) {
        unsafe {
            assert_eq!(qp::ibv_destroy_qp(self.qp), 0);
            assert_eq!(cq::ibv_destroy_cq(self.cq), 0);
            assert_eq!(cq::ibv_destroy_comp_channel(self.channel), 0);
            assert_eq!(memory::ibv_dereg_mr(self.mr), 0);
            assert_eq!(memory::ibv_dealloc_pd(self.pd), 0);
            assert_eq!(device::ibv_close_device(self.context), 0);
        }
    }
}

/// What a queue pair of the tests is made from.
pub(crate) fn init(cq: *mut ibv_cq) -> ibv_qp_init_attr {
    ibv_qp_init_attr {
        qp_context: std::ptr::without_provenance_mut(7),
        send_cq: cq,
        recv_cq: cq,
        srq: null_mut(),
        cap: ibv_qp_cap {
            max_send_wr: 4,
            max_recv_wr: 4,
            max_send_sge: 2,
            max_recv_sge: 1,
            max_inline_data: 64,
        },
        qp_type: IBV_QPT_RC,
        sq_sig_all: 0,
    }
}

/// A send request of these elements, signaled.
pub(crate) fn send(wr_id: u64, opcode: ibv_wr_opcode, sges: &mut [ibv_sge]) -> ibv_send_wr {
    let mut wr: ibv_send_wr = unsafe { std::mem::zeroed() };
    wr.wr_id = wr_id;
    wr.opcode = opcode;
    wr.sg_list = sges.as_mut_ptr();
    wr.num_sge = sges.len() as c_int;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr
}

/// Takes a queue pair to RTS with itself as its peer.
pub(crate) fn connect(qp: *mut ibv_qp) {
    connect_to(qp, unsafe { (*qp).qp_num });
}

/// Takes a queue pair to RTS with another of the loopback device as its peer.
pub(crate) fn connect_to(qp: *mut ibv_qp, peer: u32) {
    // What belongs to the half that an XRC queue pair has not.
    let unknown = match unsafe { (*qp).qp_type } {
        IBV_QPT_XRC_SEND => IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
        IBV_QPT_XRC_RECV => IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC,
        _ => 0,
    };
    let modify = |attr: &mut ibv_qp_attr, mask: u32| {
        assert_eq!(unsafe { qp::ibv_modify_qp(qp, attr, (mask & !unknown) as c_int) }, 0);
    };
    let mut a: ibv_qp_attr = unsafe { std::mem::zeroed() };
    a.qp_state = IBV_QPS_INIT;
    a.port_num = 1;
    a.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
    modify(&mut a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    a.qp_state = IBV_QPS_RTR;
    a.path_mtu = IBV_MTU_1024;
    a.dest_qp_num = peer;
    a.rq_psn = 0x12_3456;
    a.max_dest_rd_atomic = 4;
    a.min_rnr_timer = 12;
    a.ah_attr.is_global = 1;
    a.ah_attr.port_num = 1;
    a.ah_attr.grh.sgid_index = 1;
    a.ah_attr.grh.hop_limit = 9;
    a.ah_attr.grh.dgid = ibv_gid { raw: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1] };
    modify(
        &mut a,
        IBV_QP_STATE
            | IBV_QP_AV
            | IBV_QP_PATH_MTU
            | IBV_QP_DEST_QPN
            | IBV_QP_RQ_PSN
            | IBV_QP_MAX_DEST_RD_ATOMIC
            | IBV_QP_MIN_RNR_TIMER,
    );
    a.qp_state = IBV_QPS_RTS;
    a.sq_psn = 0x12_3456;
    a.timeout = 14;
    a.retry_cnt = 7;
    a.rnr_retry = 0;
    a.max_rd_atomic = 4;
    modify(
        &mut a,
        IBV_QP_STATE
            | IBV_QP_SQ_PSN
            | IBV_QP_TIMEOUT
            | IBV_QP_RETRY_CNT
            | IBV_QP_RNR_RETRY
            | IBV_QP_MAX_QP_RD_ATOMIC,
    );
    assert_eq!(unsafe { (*qp).state }, IBV_QPS_RTS);
}

/// Runs `child` in a forked process, which ends after twenty seconds at the latest; whether it
/// returned without a panic.
pub(crate) fn in_a_child(child: impl FnOnce()) -> bool {
    unsafe {
        let pid = libc::fork();
        assert!(pid >= 0);
        if pid == 0 {
            libc::alarm(20);
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child));
            libc::_exit(if done.is_ok() { 0 } else { 1 });
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(pid, &raw mut status, 0), pid);
        libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
    }
}

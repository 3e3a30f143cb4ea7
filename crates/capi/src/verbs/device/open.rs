//! Opening and closing devices (ibv_open_device(3)): the one place that knows every function of a
//! context's tables.

use std::ffi::c_int;

use nic::device::async_events::AsyncEventQueue;
use rdma_core_abi::verbs::{VERBS_ABI_IS_EXTENDED, ibv_context, ibv_device, verbs_context};

use crate::checked;
use crate::eventfd::Counter;
use crate::ffi_guard::{self, Errno};
use crate::verbs::device::context::Context;
use crate::verbs::device::list::{self, Device};
use crate::verbs::device::{command_fd, query};
use crate::verbs::memory::{dm, mr, mw, pd};
use crate::verbs::steering::{counters, flow, wq};
use crate::verbs::{cq, qp, srq, xrcd};

/// Opens a device. In a forked child a device that the parent listed is the child's of the same
/// name.
pub(crate) fn open(device: *mut ibv_device) -> Result<*mut ibv_context, Errno> {
    // SAFETY: a device of our list, by the man page's contract.
    let device = unsafe { list::of_this_process(device)? };
    // SAFETY: as above.
    let ours = unsafe { Device::of(device) };
    ours.instance.check()?;
    if !ours.nic.is_there() {
        return Err(Errno(libc::ENODEV));
    }
    let fd = Counter::new()?;
    let command = command_fd::make(&ours.nic)?;
    let events = AsyncEventQueue::new(Box::new(fd.clone()));
    ours.nic.tell(&events);
    // SAFETY: every field is an integer, a pointer, a nullable function or a mutex of zeroes; those
    // C looks at are set below.
    let mut c: verbs_context = unsafe { std::mem::zeroed() };
    c.sz = size_of::<verbs_context>();
    c.context.device = device;
    c.context.num_comp_vectors = 1;
    c.context.mutex = libc::PTHREAD_MUTEX_INITIALIZER;
    c.context.abi_compat = VERBS_ABI_IS_EXTENDED;
    set_functions(&mut c);
    Ok(Context::make(c, ours.nic.clone(), ours.instance.clone(), events, fd, command))
}

/// Fills the tables that the inline functions of verbs.h call through.
fn set_functions(c: &mut verbs_context) {
    c.query_device_ex = Some(query::query_device_ex);
    c.query_port = Some(query::query_port);
    c.query_rt_values = Some(query::query_rt_values);
    c.create_cq_ex = Some(cq::cq_ex::create_cq_ex);
    c.create_qp_ex = Some(qp::create_ex::create_qp_ex);
    c.modify_cq = Some(cq::create::modify_cq);
    c.advise_mr = Some(mr::advise_mr);
    c.alloc_null_mr = Some(mr::alloc_null_mr);
    c.alloc_parent_domain = Some(pd::alloc_parent_domain);
    c.alloc_td = Some(pd::alloc_td);
    c.dealloc_td = Some(pd::dealloc_td);
    c.context.ops.alloc_mw = Some(mw::alloc_mw);
    c.context.ops.dealloc_mw = Some(mw::dealloc_mw);
    c.context.ops.bind_mw = Some(mw::bind_mw);
    c.context.ops.poll_cq = Some(cq::poll::poll_cq);
    c.context.ops.req_notify_cq = Some(cq::poll::req_notify_cq);
    c.context.ops.post_send = Some(qp::post::post_send);
    c.context.ops.post_recv = Some(qp::post::post_recv);
    c.context.ops.post_srq_recv = Some(srq::object::post_srq_recv);
    if checked::is_on() {
        checked::calls::set_functions(&mut c.context.ops);
    }
    c.create_srq_ex = Some(srq::object::create_srq_ex);
    c.get_srq_num = Some(srq::object::get_srq_num);
    c.post_srq_ops = Some(srq::tags::post_srq_ops);
    c.ibv_create_flow = Some(flow::create_flow);
    c.ibv_destroy_flow = Some(flow::destroy_flow);
    c.create_wq = Some(wq::create_wq);
    c.modify_wq = Some(wq::modify_wq);
    c.destroy_wq = Some(wq::destroy_wq);
    c.create_rwq_ind_table = Some(wq::create_rwq_ind_table);
    c.destroy_rwq_ind_table = Some(wq::destroy_rwq_ind_table);
    c.open_xrcd = Some(xrcd::open_xrcd);
    c.close_xrcd = Some(xrcd::close_xrcd);
    c.open_qp = Some(qp::xrc::open_qp);
    c.alloc_dm = Some(dm::alloc_dm);
    c.free_dm = Some(dm::free_dm);
    c.reg_dm_mr = Some(dm::reg_dm_mr);
    c.create_counters = Some(counters::create_counters);
    c.destroy_counters = Some(counters::destroy_counters);
    c.attach_counters_point_flow = Some(counters::attach_counters_point_flow);
    c.read_counters = Some(counters::read_counters);
}

/// ibv_open_device(3). errno: ENODEV for a device that the parent listed and a forked child has
/// not; EIO after the device became fatal; EMFILE, ENFILE, ENOMEM. Unlike rdma-core: a parent's
/// device is opened as the child's own of the same name.
pub unsafe extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    ffi_guard::or_null(|| open(device))
}

/// `ibv_close_device`, ibv_open_device(3): what was made on it ends, as in the kernel when the file
/// closes: queue pairs are destroyed, regions and windows are no more. The objects themselves are
/// freed by their own calls, before or after.
pub unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    ffi_guard::or_minus_one(|| {
        // SAFETY: a context of ours that is not closed, by the man page's contract.
        let ours = unsafe { Context::of(context) };
        if ours.instance.is_ours() && ours.close() {
            qp::destroy::end_all(ours);
            mw::end_all(ours);
            mr::end_all(ours);
        }
        // SAFETY: as above: closed once.
        unsafe { Context::give_up(context) };
        Ok(0)
    })
}

//! Devices and contexts of libibverbs 1.0: listed, opened, asked, closed.

use std::ffi::{c_char, c_int};
use std::ptr::null_mut;

use rdma_core_abi::verbs::{self as v, ibv_gid};

use crate::ffi_guard;
use crate::verbs::abi_1_0::contexts::contexts;
use crate::verbs::abi_1_0::inline::{poll_cq, post_recv, post_send, post_srq_recv, req_notify_cq};
use crate::verbs::abi_1_0::layout::{Context, ContextOps, Device};
use crate::verbs::device::{list, open, query};

/// `ibv_get_device_list` of libibverbs 1.0, for old objects: behind the NULL-terminated array's
/// front stands the new list.
pub unsafe extern "C" fn ibv_get_device_list(num: *mut c_int) -> *mut *mut Device {
    let mut n = 0;
    // SAFETY: a variable of ours.
    let list = unsafe { list::ibv_get_device_list(&raw mut n) };
    if list.is_null() {
        return null_mut();
    }
    ffi_guard::or_null(|| {
        let mut whole: Vec<*mut Device> = vec![list.cast()];
        for i in 0..n as usize {
            // SAFETY: the list has `n` devices.
            let real = unsafe { *list.add(i) };
            whole.push(Box::into_raw(Box::new(Device {
                sysfs: [null_mut(); 2],
                real,
                ops: [null_mut(); 2],
            })));
        }
        whole.push(null_mut());
        if !num.is_null() {
            // SAFETY: the caller's integer.
            unsafe { *num = n };
        }
        // SAFETY: inside the array, which has two elements at least.
        Ok(unsafe { Box::into_raw(whole.into_boxed_slice()).cast::<*mut Device>().add(1) })
    })
}

/// `ibv_free_device_list` of libibverbs 1.0, for old objects: opened devices must be closed before,
/// as in 1.0.
pub unsafe extern "C" fn ibv_free_device_list(list: *mut *mut Device) {
    ffi_guard::nothing(|| {
        // SAFETY: an array of `ibv_get_device_list`, by the man page's contract: one element
        // before, NULL at the end.
        unsafe {
            let mut n = 0;
            while !(*list.add(n)).is_null() {
                drop(Box::from_raw(*list.add(n)));
                n += 1;
            }
            let whole = std::ptr::slice_from_raw_parts_mut(list.sub(1), n + 2);
            list::ibv_free_device_list((*list.sub(1)).cast());
            drop(Box::from_raw(whole));
        }
    });
}

/// `ibv_get_device_name` of libibverbs 1.0, for old objects.
pub unsafe extern "C" fn ibv_get_device_name(device: *mut Device) -> *const c_char {
    // SAFETY: a device of the list, by the man page's contract.
    unsafe { list::ibv_get_device_name((*device).real) }
}

/// `ibv_get_device_guid` of libibverbs 1.0, for old objects.
pub unsafe extern "C" fn ibv_get_device_guid(device: *mut Device) -> rdma_core_abi::be64 {
    // SAFETY: as above.
    unsafe { list::ibv_get_device_guid((*device).real) }
}

/// `ibv_open_device` of libibverbs 1.0, for old objects.
pub unsafe extern "C" fn ibv_open_device(device: *mut Device) -> *mut Context {
    ffi_guard::or_null(|| {
        // SAFETY: a device of the list, by the man page's contract.
        let real = open::open(unsafe { (*device).real })?;
        // SAFETY: a context just made.
        let (cmd_fd, async_fd, num_comp_vectors) =
            unsafe { ((*real).cmd_fd, (*real).async_fd, (*real).num_comp_vectors) };
        let ops = ContextOps {
            before_poll: [null_mut(); 7],
            poll_cq,
            req_notify_cq,
            before_post_srq_recv: [null_mut(); 7],
            post_srq_recv,
            before_post_send: [null_mut(); 4],
            post_send,
            post_recv,
            rest: [null_mut(); 4],
        };
        let old = Box::into_raw(Box::new(Context { device, ops, cmd_fd, async_fd, num_comp_vectors, real }));
        contexts().insert(old.expose_provenance());
        Ok(old)
    })
}

/// `ibv_close_device` of libibverbs 1.0, for old objects.
pub unsafe extern "C" fn ibv_close_device(context: *mut Context) -> c_int {
    ffi_guard::or_minus_one(|| {
        contexts().remove(&context.addr());
        // SAFETY: made by `Box::into_raw` in `ibv_open_device`, and no thread uses it any more, by
        // the man page's contract.
        let old = unsafe { Box::from_raw(context) };
        // SAFETY: as above.
        Ok(unsafe { open::ibv_close_device(old.real) })
    })
}

/// `ibv_query_device` of libibverbs 1.0, for old objects.
pub unsafe extern "C" fn ibv_query_device(context: *mut Context, attr: *mut v::ibv_device_attr) -> c_int {
    // SAFETY: the man page's contract.
    unsafe { query::ibv_query_device((*context).real, attr) }
}

/// `ibv_query_port` of libibverbs 1.0, for old objects.
pub unsafe extern "C" fn ibv_query_port(
    context: *mut Context,
    port: u8,
    attr: *mut v::_compat_ibv_port_attr,
) -> c_int {
    // SAFETY: the man page's contract.
    unsafe { query::ibv_query_port((*context).real, port, attr) }
}

/// `ibv_query_gid` of libibverbs 1.0, for old objects.
pub unsafe extern "C" fn ibv_query_gid(
    context: *mut Context,
    port: u8,
    index: c_int,
    gid: *mut ibv_gid,
) -> c_int {
    // SAFETY: the man page's contract.
    unsafe { query::ibv_query_gid((*context).real, port, index, gid) }
}

/// `ibv_query_pkey` of libibverbs 1.0, for old objects.
pub unsafe extern "C" fn ibv_query_pkey(
    context: *mut Context,
    port: u8,
    index: c_int,
    pkey: *mut u16,
) -> c_int {
    // SAFETY: the man page's contract.
    unsafe { query::ibv_query_pkey((*context).real, port, index, pkey) }
}

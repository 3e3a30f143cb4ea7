//! Completion queues: of a connection, of its receives, of a shared receive queue
//! (rpma_cq_get_wc(3)).

use std::ffi::{CStr, c_int, c_void};
use std::ptr::null_mut;

use rdma_core_abi::verbs::{ibv_comp_channel, ibv_context, ibv_cq, ibv_wc};

use crate::codes::{
    NO_COMPLETION, PROVIDER, Result, SHARED_CHANNEL, UNKNOWN, answer, errno_of, failed, made, require,
};
use crate::object::{end, make, of, put};
use crate::stack::{Calls, req_notify_cq};

/// `struct rpma_cq`.
pub struct Cq {
    calls: &'static Calls,
    /// The queue.
    pub cq: *mut ibv_cq,
    channel: *mut ibv_comp_channel,
    shared: bool,
}

/// Makes a queue that announces its first completion, on `shared` or, where that is NULL, on a
/// channel of its own.
///
/// # Safety
///
/// The context and the channel live.
pub unsafe fn new(
    calls: &'static Calls,
    function: &'static CStr,
    context: *mut ibv_context,
    size: u32,
    shared: *mut ibv_comp_channel,
) -> Result<*mut Cq> {
    let new = make(Cq { calls, cq: null_mut(), channel: shared, shared: !shared.is_null() })?;
    // SAFETY: just made.
    let done = unsafe { fill(&mut *new, function, context, size) };
    if let Err(code) = done {
        // SAFETY: just made, and no other thread has it. What failed last is told of already.
        unsafe {
            if !(*new).cq.is_null() {
                (calls.ibv_destroy_cq)((*new).cq);
            }
            if !(*new).shared && !(*new).channel.is_null() {
                (calls.ibv_destroy_comp_channel)((*new).channel);
            }
            end(new);
        }
        return Err(code);
    }
    Ok(new)
}

/// # Safety
///
/// As above.
unsafe fn fill(new: &mut Cq, function: &'static CStr, context: *mut ibv_context, size: u32) -> Result<()> {
    // SAFETY: the context lives, and what is made of it. More entries than an int has are fewer
    // than none, which is refused.
    unsafe {
        if !new.shared {
            let channel = (new.calls.ibv_create_comp_channel)(context);
            new.channel = made(function, "ibv_create_comp_channel", channel)?;
        }
        let cq = (new.calls.ibv_create_cq)(context, size as c_int, null_mut(), new.channel, 0);
        new.cq = made(function, "ibv_create_cq", cq)?;
        errno_of(function, "ibv_req_notify_cq", req_notify_cq(new.cq))
    }
}

/// Ends a queue; NULL is none.
///
/// # Safety
///
/// It came from [`new`], and no thread uses it any more.
pub unsafe fn delete(function: &'static CStr, cq: *mut Cq) -> Result<()> {
    if cq.is_null() {
        return Ok(());
    }
    // SAFETY: as the caller says.
    unsafe {
        let calls = (*cq).calls;
        let queue = errno_of(function, "ibv_destroy_cq", (calls.ibv_destroy_cq)((*cq).cq));
        let channel = match (*cq).shared {
            true => Ok(()),
            false => {
                let result = (calls.ibv_destroy_comp_channel)((*cq).channel);
                errno_of(function, "ibv_destroy_comp_channel", result)
            }
        };
        end(cq);
        queue.and(channel)
    }
}

/// rpma_cq_get_fd(3). As upstream's, it gives a shared channel's too.
pub unsafe extern "C" fn rpma_cq_get_fd(cq: *const Cq, fd: *mut c_int) -> c_int {
    // SAFETY: the crate's contract.
    answer(unsafe { of(cq).and_then(|cq| put(fd, (*cq.channel).fd)) })
}

/// rpma_cq_wait(3).
pub unsafe extern "C-unwind" fn rpma_cq_wait(cq: *mut Cq) -> c_int {
    // SAFETY: the crate's contract.
    answer(unsafe { wait(cq) })
}

/// # Safety
///
/// That of the function above.
unsafe fn wait(cq: *const Cq) -> Result<()> {
    // SAFETY: as the caller says.
    let cq = unsafe { of(cq) }?;
    if cq.shared {
        return Err(SHARED_CHANNEL);
    }
    // SAFETY: they live.
    let announced = unsafe { event(cq.calls, cq.channel) }?;
    // SAFETY: likewise: the channel is this queue's alone.
    unsafe { again(cq.calls, c"rpma_cq_wait", announced) }
}

/// Waits for an event of a channel: whose it is. `NO_COMPLETION` where it can not be had.
///
/// # Safety
///
/// The channel lives.
pub unsafe fn event(calls: &Calls, channel: *mut ibv_comp_channel) -> Result<*mut ibv_cq> {
    let (mut cq, mut context): (*mut ibv_cq, *mut c_void) = (null_mut(), null_mut());
    // SAFETY: as the caller says; room for both.
    match unsafe { (calls.ibv_get_cq_event)(channel, &raw mut cq, &raw mut context) } {
        0 => Ok(cq),
        _ => Err(NO_COMPLETION),
    }
}

/// Acknowledges an event of a queue, and has it announce the next.
///
/// # Safety
///
/// The queue lives, and the event was its.
pub unsafe fn again(calls: &Calls, function: &'static CStr, cq: *mut ibv_cq) -> Result<()> {
    // SAFETY: as the caller says.
    unsafe {
        (calls.ibv_ack_cq_events)(cq, 1);
        errno_of(function, "ibv_req_notify_cq", req_notify_cq(cq))
    }
}

/// rpma_cq_get_wc(3).
pub unsafe extern "C" fn rpma_cq_get_wc(
    cq: *mut Cq,
    num_entries: c_int,
    wc: *mut ibv_wc,
    num_entries_got: *mut c_int,
) -> c_int {
    // SAFETY: the crate's contract.
    answer(unsafe { get_wc(cq, num_entries, wc, num_entries_got) })
}

/// # Safety
///
/// That of the function above.
unsafe fn get_wc(cq: *const Cq, most: c_int, wc: *mut ibv_wc, got: *mut c_int) -> Result<()> {
    // SAFETY: as the caller says.
    let cq = unsafe { of(cq) }?;
    require(!wc.is_null() && most >= 1 && (most == 1 || !got.is_null()))?;
    // SAFETY: the queue, and so its context, live; verbs.h calls this function.
    let poll = unsafe { (*(*cq.cq).context).ops.poll_cq }.ok_or(PROVIDER)?;
    // SAFETY: room for so many completions.
    match unsafe { poll(cq.cq, most, wc) } {
        0 => Err(NO_COMPLETION),
        number if number < 0 => Err(failed(c"rpma_cq_get_wc", "ibv_poll_cq", libc::EIO)),
        number if number > most => Err(UNKNOWN),
        number => {
            if !got.is_null() {
                // SAFETY: as the caller says.
                unsafe { got.write(number) };
            }
            Ok(())
        }
    }
}

//! Counters of flow rules (ibv_create_counters(3), ibv_attach_counters_point_flow(3),
//! ibv_read_counters(3)).

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use locks::{Mutex, Rank};
use nic::steering::flow::FlowCounter;
use rdma_core_abi::verbs::{
    IBV_COUNTER_BYTES, IBV_COUNTER_PACKETS, IBV_READ_COUNTERS_ATTR_PREFER_CACHED, ibv_context,
    ibv_counter_attach_attr, ibv_counters, ibv_counters_init_attr, ibv_flow,
};

use crate::ffi_guard::{self, Errno};
use crate::instance::Instance;
use crate::verbs::device::context::Context;

/// Places in the array of values.
const MAX_INDEX: u32 = 16;

/// Counters as C sees them, what counts, and which number goes to which place.
#[repr(C)]
struct Counters {
    c: UnsafeCell<ibv_counters>,
    nic: Arc<FlowCounter>,
    /// What, and where.
    points: Mutex<Vec<(u32, u32)>>,
    instance: Arc<Instance>,
    _context: Arc<Context>,
}

impl Counters {
    /// # Safety
    ///
    /// `counters` came from [`create_counters`] and lives.
    unsafe fn of<'a>(counters: *mut ibv_counters) -> &'a Self {
        // SAFETY: the C part is the first field.
        unsafe { &*counters.cast::<Self>() }
    }

    /// Whether rules count into them: each has its share of the counter.
    fn is_bound(&self) -> bool {
        self.instance.is_ours() && Arc::strong_count(&self.nic) > 1
    }
}

/// The counter for a rule that names these counters.
///
/// # Safety
///
/// NULL, or as for [`Counters::of`].
pub(crate) unsafe fn of(counters: *mut ibv_counters) -> Option<Arc<FlowCounter>> {
    // SAFETY: as the caller says.
    (!counters.is_null()).then(|| unsafe { Counters::of(counters) }.nic.clone())
}

/// ibv_create_counters(3). errno: EINVAL for an unknown `comp_mask`.
pub(crate) unsafe extern "C" fn create_counters(
    context: *mut ibv_context,
    attr: *mut ibv_counters_init_attr,
) -> *mut ibv_counters {
    ffi_guard::or_null(|| {
        // SAFETY: a context of ours and the caller's structure, by the man page's contract.
        let (ours, mask) = unsafe { (Context::usable(context)?, (*attr).comp_mask) };
        if mask != 0 {
            return Err(Errno(libc::EINVAL));
        }
        let counters = Counters {
            c: ibv_counters { context }.into(),
            nic: Arc::default(),
            points: Mutex::new(Rank::CounterPoints, Vec::new()),
            instance: ours.instance.clone(),
            // SAFETY: as above.
            _context: unsafe { Context::share(context) },
        };
        Ok(Box::into_raw(Box::new(counters)).cast())
    })
}

/// `ibv_destroy_counters`, ibv_create_counters(3): EBUSY while rules count into them.
pub(crate) unsafe extern "C" fn destroy_counters(counters: *mut ibv_counters) -> c_int {
    ffi_guard::or_errno(|| {
        // SAFETY: counters of ours, by the man page's contract.
        if unsafe { Counters::of(counters) }.is_bound() {
            return Err(Errno(libc::EBUSY));
        }
        // SAFETY: made by `Box::into_raw` in `create_counters`, and no thread uses it.
        drop(unsafe { Box::from_raw(counters.cast::<Counters>()) });
        Ok(())
    })
}

/// ibv_attach_counters_point_flow(3): before the rule is made, which names the counters. EINVAL for
/// an index from 16 on, EBUSY where a rule has them already, ENOTSUP for a rule that exists,
/// another description or an unknown `comp_mask`.
pub(crate) unsafe extern "C" fn attach_counters_point_flow(
    counters: *mut ibv_counters,
    attr: *mut ibv_counter_attach_attr,
    flow: *mut ibv_flow,
) -> c_int {
    ffi_guard::or_errno(|| {
        // SAFETY: counters of ours and the caller's structure, by the man page's contract.
        let (ours, attr) = unsafe { (Counters::of(counters), &*attr) };
        let known = matches!(attr.counter_desc, IBV_COUNTER_PACKETS | IBV_COUNTER_BYTES);
        if !flow.is_null() || !known || attr.comp_mask != 0 {
            return Err(Errno(libc::ENOTSUP));
        }
        if attr.index >= MAX_INDEX {
            return Err(Errno(libc::EINVAL));
        }
        if ours.is_bound() {
            return Err(Errno(libc::EBUSY));
        }
        let mut points = ours.points.lock();
        if points.len() >= MAX_INDEX as usize {
            return Err(Errno(libc::ENOMEM));
        }
        points.push((attr.counter_desc, attr.index));
        Ok(())
    })
}

/// ibv_read_counters(3): places that several points share hold their sum. EINVAL for unknown flags,
/// or fewer places than the points need.
pub(crate) unsafe extern "C" fn read_counters(
    counters: *mut ibv_counters,
    values: *mut u64,
    n: u32,
    flags: u32,
) -> c_int {
    ffi_guard::or_errno(|| {
        // SAFETY: counters of ours, by the man page's contract.
        let ours = unsafe { Counters::of(counters) };
        let points = ours.points.lock();
        if flags & !IBV_READ_COUNTERS_ATTR_PREFER_CACHED != 0 || points.iter().any(|(_, index)| *index >= n) {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: the caller's array has `n` values, and every index lies below that.
        unsafe {
            values.write_bytes(0, n as usize);
            for &(what, index) in points.iter() {
                let count = if what == IBV_COUNTER_BYTES { &ours.nic.bytes } else { &ours.nic.packets };
                let place = values.add(index as usize);
                *place = (*place).wrapping_add(count.load(Ordering::Relaxed));
            }
        }
        Ok(())
    })
}

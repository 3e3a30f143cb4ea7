//! The C functions of libibverbs and librdmacm, found in the two libraries that the dynamic linker
//! gives the program: those that it has loaded already, where it has. verbs.h's inline functions,
//! which call through a context, are here as they are there.
//!
//! They are opened when the first function is wanted, for as long as the process lives. They are
//! not linked to, so that the object can be made where neither library is, and loads beside one
//! that lacks a function which no program calls.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::mem::{MaybeUninit, offset_of};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::sockaddr;
use rdma_core_abi::cma::{
    rdma_addrinfo, rdma_cm_event, rdma_cm_event_type, rdma_cm_id, rdma_conn_param, rdma_event_channel,
    rdma_port_space,
};
use rdma_core_abi::verbs::{
    VERBS_ABI_IS_EXTENDED, ibv_advise_mr_advice, ibv_comp_channel, ibv_context, ibv_cq, ibv_device_attr_ex,
    ibv_mr, ibv_pd, ibv_qp, ibv_qp_ex, ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_query_device_ex_input,
    ibv_sge, ibv_srq, ibv_srq_init_attr, verbs_context,
};

use crate::codes::{PROVIDER, Result};
use crate::log;
use crate::object::{end, make};

macro_rules! calls {
    ($($library:ident $name:ident($($arg:ident: $t:ty),*) $(-> $out:ty)?;)*) => {
        /// The functions that every rdma-core has had since 17, and one that came later. They may
        /// be left by unwinding: threads are cancelled in those that block.
        #[allow(missing_docs, reason = "the C names")]
        pub struct Calls {
            $(pub $name: unsafe extern "C-unwind" fn($($arg: $t),*) $(-> $out)?,)*
            /// Since rdma-core 23.
            pub ibv_qp_to_qp_ex: Option<unsafe extern "C-unwind" fn(*mut ibv_qp) -> *mut ibv_qp_ex>,
        }

        impl Calls {
            fn find(both: &Both) -> Option<Calls> {
                Some(Calls {
                    // SAFETY: the function of this name has this type (verbs.h, rdma_cma.h).
                    $($name: unsafe { both.$library.symbol(concat!(stringify!($name), "\0"))? },)*
                    // SAFETY: likewise; NULL is None.
                    ibv_qp_to_qp_ex: unsafe { std::mem::transmute::<*mut c_void, Option<_>>(both.ibverbs.address("ibv_qp_to_qp_ex\0")) },
                })
            }
        }
    };
}

struct Both {
    ibverbs: Library,
    rdmacm: Library,
}

calls! {
    ibverbs ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd;
    ibverbs ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int;
    ibverbs ibv_reg_mr(pd: *mut ibv_pd, addr: *mut c_void, length: usize, access: c_int) -> *mut ibv_mr;
    ibverbs ibv_dereg_mr(mr: *mut ibv_mr) -> c_int;
    ibverbs ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel;
    ibverbs ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int;
    ibverbs ibv_create_cq(context: *mut ibv_context, cqe: c_int, cq_context: *mut c_void, channel: *mut ibv_comp_channel, vector: c_int) -> *mut ibv_cq;
    ibverbs ibv_destroy_cq(cq: *mut ibv_cq) -> c_int;
    ibverbs ibv_get_cq_event(channel: *mut ibv_comp_channel, cq: *mut *mut ibv_cq, cq_context: *mut *mut c_void) -> c_int;
    ibverbs ibv_ack_cq_events(cq: *mut ibv_cq, count: c_uint);
    ibverbs ibv_create_srq(pd: *mut ibv_pd, init: *mut ibv_srq_init_attr) -> *mut ibv_srq;
    ibverbs ibv_destroy_srq(srq: *mut ibv_srq) -> c_int;
    rdmacm rdma_create_event_channel() -> *mut rdma_event_channel;
    rdmacm rdma_destroy_event_channel(channel: *mut rdma_event_channel);
    rdmacm rdma_get_cm_event(channel: *mut rdma_event_channel, event: *mut *mut rdma_cm_event) -> c_int;
    rdmacm rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int;
    rdmacm rdma_event_str(event: rdma_cm_event_type) -> *const c_char;
    rdmacm rdma_create_id(channel: *mut rdma_event_channel, id: *mut *mut rdma_cm_id, context: *mut c_void, ps: rdma_port_space) -> c_int;
    rdmacm rdma_destroy_id(id: *mut rdma_cm_id) -> c_int;
    rdmacm rdma_migrate_id(id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> c_int;
    rdmacm rdma_getaddrinfo(node: *const c_char, service: *const c_char, hints: *const rdma_addrinfo, found: *mut *mut rdma_addrinfo) -> c_int;
    rdmacm rdma_freeaddrinfo(found: *mut rdma_addrinfo);
    rdmacm rdma_bind_addr(id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int;
    rdmacm rdma_resolve_addr(id: *mut rdma_cm_id, from: *mut sockaddr, to: *mut sockaddr, timeout_ms: c_int) -> c_int;
    rdmacm rdma_resolve_route(id: *mut rdma_cm_id, timeout_ms: c_int) -> c_int;
    rdmacm rdma_create_qp(id: *mut rdma_cm_id, pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> c_int;
    rdmacm rdma_create_qp_ex(id: *mut rdma_cm_id, init: *mut ibv_qp_init_attr_ex) -> c_int;
    rdmacm rdma_destroy_qp(id: *mut rdma_cm_id);
    rdmacm rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int;
    rdmacm rdma_connect(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int;
    rdmacm rdma_accept(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int;
    rdmacm rdma_reject(id: *mut rdma_cm_id, data: *const c_void, len: u8) -> c_int;
    rdmacm rdma_disconnect(id: *mut rdma_cm_id) -> c_int;
}

/// A library that is open.
struct Library(*mut c_void);

/// What the dynamic linker said last, or nothing.
fn linker_says() -> &'static str {
    // SAFETY: a string of this thread's, until it calls the dynamic linker again, which it does
    // after it was read.
    let said = unsafe { libc::dlerror().as_ref().map(|text| CStr::from_ptr(text)) };
    said.and_then(|text| text.to_str().ok()).unwrap_or("no reason is known")
}

impl Library {
    fn open(name: &CStr) -> Option<Self> {
        // SAFETY: its constructors are those of a library that RDMA programs load by this name.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            log::error(c"dlopen", format_args!("rdma-core is needed: {}", linker_says()));
        }
        (!handle.is_null()).then_some(Self(handle))
    }
    /// Where a symbol is, whose name ends in a zero byte; or NULL.
    fn address(&self, name: &str) -> *mut c_void {
        // SAFETY: the handle is open, the name ends in a zero byte.
        unsafe { libc::dlsym(self.0, name.as_ptr().cast()) }
    }
    /// # Safety
    ///
    /// `T` is a function's type, and the function of this name, which ends in a zero byte, has it.
    unsafe fn symbol<T: Copy>(&self, name: &str) -> Option<T> {
        const { assert!(size_of::<T>() == size_of::<*mut c_void>()) };
        let address = self.address(name);
        if address.is_null() {
            log::error(c"dlopen", format_args!("rdma-core 17 or later is needed: {}", linker_says()));
            return None;
        }
        // SAFETY: as the caller says.
        Some(unsafe { std::mem::transmute_copy::<*mut c_void, T>(&address) })
    }
}

/// The functions, once they are found. No lock: a child of fork(2) would find it as another thread
/// of its parent held it.
static CALLS: AtomicPtr<Calls> = AtomicPtr::new(null_mut());

/// The functions. `PROVIDER`, after a message that says what is missing, where there are none; it
/// is tried again the next time.
pub fn calls() -> Result<&'static Calls> {
    // SAFETY: what is stored stays.
    if let Some(calls) = unsafe { CALLS.load(Ordering::Acquire).as_ref() } {
        return Ok(calls);
    }
    let opened = Library::open(c"libibverbs.so.1").zip(Library::open(c"librdmacm.so.1"));
    let found =
        opened.and_then(|(ibverbs, rdmacm)| Calls::find(&Both { ibverbs, rdmacm })).ok_or(PROVIDER)?;
    let new = make(found)?;
    match CALLS.compare_exchange(null_mut(), new, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: just made, and it stays.
        Ok(_) => Ok(unsafe { &*new }),
        // SAFETY: no other thread has the new one; the other stays.
        Err(other) => unsafe {
            end(new);
            Ok(&*other)
        },
    }
}

/// A function of a context's second table, as verbs.h's verbs_get_ctx_op finds it.
///
/// # Safety
///
/// The context lives, `offset` is that of a member of `verbs_context`, and `F` is the member's type
/// less its `Option`.
unsafe fn member<F>(context: *mut ibv_context, offset: usize) -> Option<F> {
    // SAFETY: the context lives.
    if unsafe { (*context).abi_compat } != VERBS_ABI_IS_EXTENDED {
        return None;
    }
    // The table grows at its front, where an older library's begins later.
    let at = |offset: usize| {
        context.cast::<u8>().wrapping_sub(offset_of!(verbs_context, context)).wrapping_add(offset)
    };
    // SAFETY: an extended context has its size just before it.
    let size = unsafe { at(offset_of!(verbs_context, sz)).cast::<usize>().read() };
    if size < size_of::<verbs_context>().saturating_sub(offset) {
        return None;
    }
    // SAFETY: the size says that the member is there; the caller, that an `Option<F>` is.
    unsafe { at(offset).cast::<Option<F>>().read() }
}

/// ibv_query_device_ex(3): 0 and what the device can do, or an errno.
///
/// # Safety
///
/// The context lives.
pub unsafe fn query_device_ex(context: *mut ibv_context) -> std::result::Result<ibv_device_attr_ex, c_int> {
    type Query = unsafe extern "C" fn(
        *mut ibv_context,
        *const ibv_query_device_ex_input,
        *mut ibv_device_attr_ex,
        usize,
    ) -> c_int;
    // SAFETY: the context lives; verbs.h has this type.
    let query: Option<Query> = unsafe { member(context, offset_of!(verbs_context, query_device_ex)) };
    let query = query.ok_or(libc::EOPNOTSUPP)?;
    let mut attr = MaybeUninit::<ibv_device_attr_ex>::zeroed();
    // SAFETY: there is room for so many bytes.
    match unsafe { query(context, null(), attr.as_mut_ptr(), size_of::<ibv_device_attr_ex>()) } {
        // SAFETY: numbers, written or zero.
        0 => Ok(unsafe { attr.assume_init() }),
        errno => Err(errno),
    }
}

/// ibv_advise_mr(3): 0, or an errno.
///
/// # Safety
///
/// The protection domain lives, and the elements are there.
pub unsafe fn advise_mr(
    pd: *mut ibv_pd,
    advice: ibv_advise_mr_advice,
    flags: u32,
    sge: &mut ibv_sge,
) -> c_int {
    type Advise = unsafe extern "C" fn(*mut ibv_pd, ibv_advise_mr_advice, u32, *mut ibv_sge, u32) -> c_int;
    // SAFETY: the domain and so its context live; verbs.h has this type.
    let advise: Option<Advise> = unsafe { member((*pd).context, offset_of!(verbs_context, advise_mr)) };
    match advise {
        // SAFETY: one element.
        Some(advise) => unsafe { advise(pd, advice, flags, sge, 1) },
        None => libc::EOPNOTSUPP,
    }
}

/// ibv_req_notify_cq(3), of every completion: 0, or an errno.
///
/// # Safety
///
/// The queue lives.
pub unsafe fn req_notify_cq(cq: *mut ibv_cq) -> c_int {
    // SAFETY: the queue, and so its context, live.
    match unsafe { (*(*cq).context).ops.req_notify_cq } {
        // SAFETY: likewise.
        Some(notify) => unsafe { notify(cq, 0) },
        None => libc::EOPNOTSUPP,
    }
}

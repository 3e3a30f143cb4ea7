//! Which libraries, and their functions.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fmt;
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};

use libc::sockaddr;
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use rdma_core_abi::cma::{
    rdma_addrinfo, rdma_cm_event, rdma_cm_id, rdma_cm_join_mc_attr_ex, rdma_conn_param, rdma_event_channel,
    rdma_port_space,
};
use rdma_core_abi::verbs::{
    _compat_ibv_port_attr, ibv_ah, ibv_ah_attr, ibv_comp_channel, ibv_context, ibv_cq, ibv_device,
    ibv_device_attr, ibv_gid, ibv_gid_entry, ibv_mr, ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_ex,
    ibv_qp_init_attr, ibv_srq, ibv_srq_init_attr,
};

/// The files of the two libraries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    /// libibverbs.
    pub ibverbs: PathBuf,
    /// librdmacm; Verbena's object is both.
    pub rdmacm: PathBuf,
    /// Whether the libraries may be Verbena's own.
    pub may_be_ours: bool,
}

impl Files {
    /// The files that the dynamic linker finds, by ld.so(8)'s rules.
    pub fn of_machine() -> Self {
        Self { ibverbs: "libibverbs.so.1".into(), rdmacm: "librdmacm.so.1".into(), may_be_ours: false }
    }
}

/// Why there are no functions. Its text says what was found where, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpenError {
    /// A library, or a function of it, is not there.
    Missing {
        /// Which library.
        library: PathBuf,
        /// What the dynamic linker says.
        why: String,
    },
    /// The library that was found is Verbena itself, which was not asked for.
    Ours {
        /// Which library.
        library: PathBuf,
        /// The file that it came from.
        file: String,
    },
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { library, why } => write!(
                f,
                "{}: {why}; rdma-core is needed, 17 or later (Debian: libibverbs1, ibverbs-providers, librdmacm1)",
                library.display()
            ),
            Self::Ours { library, file } => write!(
                f,
                "{} is Verbena itself here, from {file}, as under `verbena run`; start the program without it, or use \
                 Provider::software, or name the file to Provider::system_from",
                library.display()
            ),
        }
    }
}

impl std::error::Error for OpenError {}

macro_rules! calls {
    ($($library:ident $name:ident($($arg:ident: $t:ty),*) -> $out:ty;)*) => {
        /// The functions that both libraries have had since rdma-core 17, and some that came later.
        #[allow(missing_docs, reason = "the C names")]
        pub(crate) struct Calls {
            $(pub $name: unsafe extern "C" fn($($arg: $t),*) -> $out,)*
            /// Since rdma-core 28.
            pub ibv_reg_mr_iova2:
                Option<unsafe extern "C" fn(*mut ibv_pd, *mut c_void, usize, u64, c_uint) -> *mut ibv_mr>,
            /// Since rdma-core 33.
            pub _ibv_query_gid_ex: Option<
                unsafe extern "C" fn(*mut ibv_context, u32, u32, *mut ibv_gid_entry, u32, usize) -> c_int,
            >,
            /// Since rdma-core 34.
            pub ibv_reg_dmabuf_mr:
                Option<unsafe extern "C" fn(*mut ibv_pd, u64, usize, u64, c_int, c_int) -> *mut ibv_mr>,
            /// Since rdma-core 23.
            pub ibv_qp_to_qp_ex: Option<unsafe extern "C" fn(*mut ibv_qp) -> *mut ibv_qp_ex>,
        }

        impl Calls {
            /// # Safety
            ///
            /// The libraries are what they are named after, and stay.
            unsafe fn find(both: &Both) -> Result<Calls, OpenError> {
                Ok(Calls {
                    // SAFETY: the functions of these names have these types (verbs.h, rdma_cma.h).
                    $($name: unsafe { *both.$library.symbol(concat!(stringify!($name), "\0"))? },)*
                    // SAFETY: likewise.
                    ibv_reg_mr_iova2: unsafe { both.ibverbs.symbol("ibv_reg_mr_iova2\0") }.ok().map(|found| *found),
                    // SAFETY: likewise.
                    _ibv_query_gid_ex: unsafe { both.ibverbs.symbol("_ibv_query_gid_ex\0") }.ok().map(|found| *found),
                    // SAFETY: likewise.
                    ibv_reg_dmabuf_mr: unsafe { both.ibverbs.symbol("ibv_reg_dmabuf_mr\0") }.ok().map(|found| *found),
                    // SAFETY: likewise.
                    ibv_qp_to_qp_ex: unsafe { both.ibverbs.symbol("ibv_qp_to_qp_ex\0") }.ok().map(|found| *found),
                })
            }
        }
    };
}

calls! {
    ibverbs ibv_fork_init() -> c_int;
    ibverbs ibv_get_device_name(device: *mut ibv_device) -> *const c_char;
    ibverbs ibv_query_device(context: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int;
    ibverbs ibv_query_port(context: *mut ibv_context, port: u8, attr: *mut _compat_ibv_port_attr) -> c_int;
    ibverbs ibv_query_gid(context: *mut ibv_context, port: u8, index: c_int, gid: *mut ibv_gid) -> c_int;
    ibverbs ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd;
    ibverbs ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int;
    ibverbs ibv_reg_mr(pd: *mut ibv_pd, addr: *mut c_void, length: usize, access: c_int) -> *mut ibv_mr;
    ibverbs ibv_dereg_mr(mr: *mut ibv_mr) -> c_int;
    ibverbs ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel;
    ibverbs ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int;
    ibverbs ibv_create_cq(context: *mut ibv_context, cqe: c_int, cq_context: *mut c_void, channel: *mut ibv_comp_channel, vector: c_int) -> *mut ibv_cq;
    ibverbs ibv_destroy_cq(cq: *mut ibv_cq) -> c_int;
    ibverbs ibv_get_cq_event(channel: *mut ibv_comp_channel, cq: *mut *mut ibv_cq, cq_context: *mut *mut c_void) -> c_int;
    ibverbs ibv_ack_cq_events(cq: *mut ibv_cq, count: c_uint) -> ();
    ibverbs ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int;
    ibverbs ibv_create_srq(pd: *mut ibv_pd, init: *mut ibv_srq_init_attr) -> *mut ibv_srq;
    ibverbs ibv_destroy_srq(srq: *mut ibv_srq) -> c_int;
    ibverbs ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah;
    ibverbs ibv_destroy_ah(ah: *mut ibv_ah) -> c_int;
    ibverbs ibv_attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int;
    ibverbs ibv_detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int;
    ibverbs ibv_create_qp(pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> *mut ibv_qp;
    ibverbs ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int;
    ibverbs ibv_query_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int, init: *mut ibv_qp_init_attr) -> c_int;
    ibverbs ibv_destroy_qp(qp: *mut ibv_qp) -> c_int;
    rdmacm rdma_create_event_channel() -> *mut rdma_event_channel;
    rdmacm rdma_get_cm_event(channel: *mut rdma_event_channel, event: *mut *mut rdma_cm_event) -> c_int;
    rdmacm rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int;
    rdmacm rdma_create_id(channel: *mut rdma_event_channel, id: *mut *mut rdma_cm_id, context: *mut c_void, ps: rdma_port_space) -> c_int;
    rdmacm rdma_create_ep(id: *mut *mut rdma_cm_id, info: *mut rdma_addrinfo, pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> c_int;
    rdmacm rdma_migrate_id(id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> c_int;
    rdmacm rdma_join_multicast_ex(id: *mut rdma_cm_id, attr: *mut rdma_cm_join_mc_attr_ex, context: *mut c_void) -> c_int;
    rdmacm rdma_leave_multicast(id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int;
    rdmacm rdma_destroy_id(id: *mut rdma_cm_id) -> c_int;
    rdmacm rdma_set_option(id: *mut rdma_cm_id, level: c_int, name: c_int, value: *mut c_void, len: usize) -> c_int;
    rdmacm rdma_bind_addr(id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int;
    rdmacm rdma_resolve_addr(id: *mut rdma_cm_id, from: *mut sockaddr, to: *mut sockaddr, timeout_ms: c_int) -> c_int;
    rdmacm rdma_resolve_route(id: *mut rdma_cm_id, timeout_ms: c_int) -> c_int;
    rdmacm rdma_init_qp_attr(id: *mut rdma_cm_id, attr: *mut ibv_qp_attr, mask: *mut c_int) -> c_int;
    rdmacm rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int;
    rdmacm rdma_connect(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int;
    rdmacm rdma_accept(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int;
    rdmacm rdma_reject(id: *mut rdma_cm_id, data: *const c_void, len: u8) -> c_int;
    rdmacm rdma_establish(id: *mut rdma_cm_id) -> c_int;
    rdmacm rdma_disconnect(id: *mut rdma_cm_id) -> c_int;
    rdmacm rdma_get_devices(count: *mut c_int) -> *mut *mut ibv_context;
    rdmacm rdma_free_devices(list: *mut *mut ibv_context) -> ();
}

/// A library that was opened.
struct Named {
    library: Library,
    name: PathBuf,
}

struct Both {
    ibverbs: Named,
    rdmacm: Named,
}

impl Named {
    fn open(name: &Path) -> Result<Self, OpenError> {
        // SAFETY: constructors of a library that the program's owner has installed, or names; RDMA
        // programs run the same.
        let opened = unsafe { Library::open(Some(name), RTLD_NOW | RTLD_LOCAL) };
        let missing =
            |why: libloading::Error| OpenError::Missing { library: name.to_owned(), why: why.to_string() };
        Ok(Self { library: opened.map_err(missing)?, name: name.to_owned() })
    }

    /// # Safety
    ///
    /// A symbol of this name, which ends in NUL, is of this type.
    unsafe fn symbol<T>(&self, name: &str) -> Result<libloading::os::unix::Symbol<T>, OpenError> {
        // SAFETY: as the caller says.
        let found = unsafe { self.library.get(name.as_bytes()) };
        found.map_err(|_| OpenError::Missing {
            library: self.name.clone(),
            why: format!("it has no {}", name.trim_end_matches('\0')),
        })
    }

    /// Where the object lies that has the symbol, and its file.
    fn object_of(&self, name: &str) -> Option<(usize, String)> {
        // SAFETY: only its address is looked at.
        let symbol = unsafe { self.symbol::<*const c_void>(name) }.ok()?;
        let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
        // SAFETY: any address may be asked for; the result says whether the structure was written.
        let known = unsafe { libc::dladdr(symbol.into_raw().cast_const(), info.as_mut_ptr()) };
        if known == 0 {
            return None;
        }
        // SAFETY: written.
        let info = unsafe { info.assume_init() };
        let file = if info.dli_fname.is_null() {
            String::new()
        } else {
            // SAFETY: a string of the dynamic linker's, which stays as long as the object.
            unsafe { CStr::from_ptr(info.dli_fname) }.to_string_lossy().into_owned()
        };
        Some((info.dli_fbase.addr(), file))
    }

    /// The file, where it is Verbena's: one object that has both libraries' functions, which
    /// rdma-core's are not.
    fn ours(&self) -> Option<String> {
        let (verbs, file) = self.object_of("ibv_alloc_pd\0")?;
        let (cm, _) = self.object_of("rdma_create_id\0")?;
        (verbs == cm).then_some(file)
    }
}

impl Calls {
    /// Opens both, for as long as the process lives: they may have threads and exit handlers.
    pub(crate) fn open(files: &Files) -> Result<Self, OpenError> {
        let both = Both { ibverbs: Named::open(&files.ibverbs)?, rdmacm: Named::open(&files.rdmacm)? };
        for library in [&both.ibverbs, &both.rdmacm] {
            if let Some(file) = library.ours().filter(|_| !files.may_be_ours) {
                return Err(OpenError::Ours { library: library.name.clone(), file });
            }
        }
        // SAFETY: their names say what they are; they are never closed.
        let calls = unsafe { Self::find(&both)? };
        std::mem::forget(both);
        Ok(calls)
    }
}

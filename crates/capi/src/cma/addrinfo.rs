//! Names to addresses (rdma_getaddrinfo(3)).
//!
//! | flag | effect |
//! |---|---|
//! | RAI_PASSIVE | the addresses are to listen on: `ai_src_addr`; without it to connect to: `ai_dst_addr` |
//! | RAI_NUMERICHOST | the node is no name |
//! | RAI_NOROUTE | the routing table is not asked which of our addresses leads there (`ai_src_addr`) |
//! | RAI_FAMILY | the node is of the family of the hints; with `AF_IB` and RAI_NUMERICHOST it is a GID |
//! | RAI_SA | the service is one that a subnet administrator knows, of which there is none: ENOENT |
//! | RAI_DNS | what is done without RAI_SA anyway |

use std::ffi::{c_char, c_int};

use libc::{addrinfo, socklen_t};
use rdma_core_abi::cma::{self, rdma_addrinfo, rdma_sockaddr, sockaddr_ib};
use rdma_core_abi::verbs::{IBV_QPT_RC, IBV_QPT_UD};
use stack::IbService;

use crate::cma::sockaddr::{self, Address};
use crate::ffi_guard::{self, Errno};
use crate::instance;

/// All flags there are.
const FLAGS: c_int =
    cma::RAI_PASSIVE | cma::RAI_NUMERICHOST | cma::RAI_NOROUTE | cma::RAI_FAMILY | cma::RAI_SA | cma::RAI_DNS;
/// Partition of the `AF_IB` addresses that are made here.
const DEFAULT_PKEY: u16 = 0xffff;

/// Why there is no address.
pub(crate) enum Failure {
    /// -1, and errno.
    Errno(Errno),
    /// The code of getaddrinfo(3).
    Eai(c_int),
}

impl From<Errno> for Failure {
    fn from(e: Errno) -> Self {
        Self::Errno(e)
    }
}

impl Failure {
    /// errno, which the man page promises for -1 only, but programs print in any case.
    pub(crate) fn errno(&self) -> Errno {
        match *self {
            Self::Errno(e) => e,
            Self::Eai(libc::EAI_SYSTEM) => Errno::last(),
            Self::Eai(libc::EAI_MEMORY) => Errno(libc::ENOMEM),
            Self::Eai(libc::EAI_AGAIN) => Errno(libc::EAGAIN),
            Self::Eai(libc::EAI_BADFLAGS | libc::EAI_FAMILY | libc::EAI_SERVICE | libc::EAI_SOCKTYPE) => {
                Errno(libc::EINVAL)
            }
            Self::Eai(_) => Errno(libc::ENODATA),
        }
    }

    fn code(&self) -> c_int {
        match *self {
            Self::Errno(_) => -1,
            Self::Eai(code) => code,
        }
    }
}

/// rdma_getaddrinfo(3): -1 and errno (EINVAL for NULL, EOPNOTSUPP for RAI_SA with a node or
/// RAI_DNS, ENOENT for RAI_SA), or one of the EAI_ codes of getaddrinfo(3), errno then being the
/// nearest. The list goes to [`rdma_freeaddrinfo`].
pub unsafe extern "C" fn rdma_getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
    res: *mut *mut rdma_addrinfo,
) -> c_int {
    ffi_guard::or_minus_one(|| {
        if res.is_null() {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: strings and structures of the caller, by the man page's contract.
        match unsafe { look_up(node, service, hints) } {
            Ok(list) => {
                // SAFETY: the caller's variable.
                unsafe { *res = list };
                Ok(0)
            }
            Err(failure) => {
                ffi_guard::set_errno(failure.errno());
                Ok(failure.code())
            }
        }
    })
}

/// Frees what getaddrinfo made.
struct Found(*mut addrinfo);

impl Drop for Found {
    fn drop(&mut self) {
        // SAFETY: from getaddrinfo.
        unsafe { libc::freeaddrinfo(self.0) }
    }
}

/// A list that is freed unless it is finished.
struct List {
    first: *mut rdma_addrinfo,
    last: *mut rdma_addrinfo,
}

impl List {
    fn push(&mut self, info: rdma_addrinfo) {
        let new = Box::into_raw(Box::new(info));
        if self.first.is_null() {
            self.first = new;
        } else {
            // SAFETY: made here.
            unsafe { (*self.last).ai_next = new };
        }
        self.last = new;
    }

    fn finish(mut self) -> *mut rdma_addrinfo {
        std::mem::replace(&mut self.first, std::ptr::null_mut())
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: made by `push`, or NULL.
        unsafe { rdma_freeaddrinfo(self.first) }
    }
}

/// The list that rdma_getaddrinfo(3) makes.
///
/// # Safety
///
/// Strings and a structure with its addresses, each or NULL.
pub(crate) unsafe fn look_up(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
) -> Result<*mut rdma_addrinfo, Failure> {
    if node.is_null() && service.is_null() && hints.is_null() {
        return Err(Errno(libc::EINVAL).into());
    }
    let hints = match hints.is_null() {
        // SAFETY: integers and pointers only.
        true => unsafe { rdma_addrinfo { ai_port_space: cma::RDMA_PS_TCP as c_int, ..std::mem::zeroed() } },
        // SAFETY: the caller's structure.
        false => unsafe { *hints },
    };
    check_flags(node, service, &hints)?;
    let mut list = List { first: std::ptr::null_mut(), last: std::ptr::null_mut() };
    let passive = hints.ai_flags & cma::RAI_PASSIVE != 0;
    if node.is_null() && service.is_null() {
        let mut info = plain(&hints);
        if hints.ai_dst_len != 0 {
            // SAFETY: the caller's address, of the length it says.
            unsafe {
                copy_to(hints.ai_dst_addr, hints.ai_dst_len, &mut info.ai_dst_addr, &mut info.ai_dst_len)?
            };
        }
        list.push(info);
    } else {
        // SAFETY: the caller's strings.
        let found = unsafe { ask(node, service, &hints)? };
        let mut at = found.0;
        // SAFETY: a list of getaddrinfo.
        while let Some(one) = unsafe { at.as_ref() } {
            list.push(plain(&hints));
            // SAFETY: just made.
            unsafe { convert(&mut *list.last, one, &hints, passive)? };
            at = one.ai_next;
        }
    }
    let mut at = list.first;
    // SAFETY: made here.
    while let Some(info) = unsafe { at.as_mut() } {
        // SAFETY: made here; the caller's address, of the length it says.
        unsafe { set_source(info, &hints)? };
        at = info.ai_next;
    }
    Ok(list.finish())
}

/// Refuses flags that there are not, and services that a subnet administrator would know.
fn check_flags(node: *const c_char, service: *const c_char, hints: &rdma_addrinfo) -> Result<(), Failure> {
    if hints.ai_flags & !FLAGS != 0 {
        return Err(Failure::Eai(libc::EAI_BADFLAGS));
    }
    if hints.ai_flags & cma::RAI_SA == 0 {
        return Ok(());
    }
    let why = if !node.is_null() || hints.ai_flags & cma::RAI_DNS != 0 {
        libc::EOPNOTSUPP
    } else if service.is_null() {
        libc::EINVAL
    } else {
        libc::ENOENT
    };
    Err(Errno(why).into())
}

/// The source address of an answer: that of the hints, or the one that leads to its destination.
///
/// # Safety
///
/// `info` was made here. The hints' address is as long as they say.
unsafe fn set_source(info: &mut rdma_addrinfo, hints: &rdma_addrinfo) -> Result<(), Errno> {
    if info.ai_src_len == 0 && hints.ai_src_len != 0 {
        // SAFETY: as the caller says.
        unsafe { copy_to(hints.ai_src_addr, hints.ai_src_len, &mut info.ai_src_addr, &mut info.ai_src_len)? };
    }
    if hints.ai_flags & (cma::RAI_PASSIVE | cma::RAI_NOROUTE) == 0 && info.ai_src_len == 0 {
        // SAFETY: as the caller says.
        unsafe { choose_source(info)? };
    }
    Ok(())
}

/// An answer that says what the hints say.
fn plain(hints: &rdma_addrinfo) -> rdma_addrinfo {
    let datagrams = wants_datagrams(hints);
    let (space, kind) =
        if datagrams { (cma::RDMA_PS_UDP, IBV_QPT_UD) } else { (cma::RDMA_PS_TCP, IBV_QPT_RC) };
    rdma_addrinfo {
        ai_flags: hints.ai_flags,
        ai_family: hints.ai_family,
        ai_port_space: if hints.ai_port_space == 0 { space as c_int } else { hints.ai_port_space },
        ai_qp_type: if hints.ai_qp_type == 0 { kind as c_int } else { hints.ai_qp_type },
        // SAFETY: integers and pointers only.
        ..unsafe { std::mem::zeroed() }
    }
}

fn wants_datagrams(hints: &rdma_addrinfo) -> bool {
    match hints.ai_qp_type {
        0 => [cma::RDMA_PS_UDP, cma::RDMA_PS_IPOIB].contains(&(hints.ai_port_space as u32)),
        given => given == IBV_QPT_UD as c_int,
    }
}

/// Asks getaddrinfo(3).
///
/// # Safety
///
/// Strings, each or NULL.
unsafe fn ask(node: *const c_char, service: *const c_char, hints: &rdma_addrinfo) -> Result<Found, Failure> {
    // SAFETY: integers and pointers only.
    let mut want: addrinfo = unsafe { std::mem::zeroed() };
    // A type that does not fit its port space is found out by getaddrinfo.
    want.ai_socktype = if wants_datagrams(hints) { libc::SOCK_DGRAM } else { libc::SOCK_STREAM };
    want.ai_protocol = match hints.ai_port_space as u32 {
        cma::RDMA_PS_TCP => libc::IPPROTO_TCP,
        cma::RDMA_PS_UDP | cma::RDMA_PS_IPOIB => libc::IPPROTO_UDP,
        _ => 0,
    };
    if hints.ai_flags & cma::RAI_PASSIVE != 0 {
        want.ai_flags |= libc::AI_PASSIVE;
    }
    if hints.ai_flags & cma::RAI_NUMERICHOST != 0 {
        want.ai_flags |= libc::AI_NUMERICHOST;
    }
    if hints.ai_family != cma::AF_IB {
        want.ai_family = hints.ai_family;
    }
    let mut first: *mut addrinfo = std::ptr::null_mut();
    // SAFETY: the caller's strings; the result is freed by `Found`.
    match unsafe { libc::getaddrinfo(node, service, &raw const want, &raw mut first) } {
        0 => Ok(Found(first)),
        code => Err(Failure::Eai(code)),
    }
}

/// # Safety
///
/// `one` came from getaddrinfo.
unsafe fn convert(
    info: &mut rdma_addrinfo,
    one: &addrinfo,
    hints: &rdma_addrinfo,
    passive: bool,
) -> Result<(), Errno> {
    let (to, len) = match passive {
        true => (&mut info.ai_src_addr, &mut info.ai_src_len),
        false => (&mut info.ai_dst_addr, &mut info.ai_dst_len),
    };
    let gid = cma::RAI_FAMILY | cma::RAI_NUMERICHOST;
    if hints.ai_flags & gid != gid || hints.ai_family != cma::AF_IB {
        info.ai_family = one.ai_family;
        // SAFETY: as the caller says.
        return unsafe { copy_to(one.ai_addr, one.ai_addrlen, to, len) };
    }
    // SAFETY: as the caller says.
    let addr = unsafe { sockaddr::read_ip(one.ai_addr)? };
    let port = addr.port();
    let scope = if let std::net::SocketAddr::V6(v6) = addr { v6.scope_id() } else { 0 };
    let service = IbService {
        pkey: DEFAULT_PKEY,
        flow_info: 0,
        sid: u64::from(info.ai_port_space as u32) << 16 | u64::from(port),
        sid_mask: cma::RDMA_IB_IP_PS_MASK | if port == 0 { 0 } else { cma::RDMA_IB_IP_PORT_MASK },
        scope_id: scope.into(),
    };
    info.ai_family = cma::AF_IB;
    let gid = if addr.ip().is_unspecified() { wire::Gid::default() } else { addr.ip().into() };
    let sib = sockaddr::ib(gid, &service);
    // SAFETY: an address of that length.
    unsafe { copy_to((&raw const sib).cast(), size_of::<sockaddr_ib>() as socklen_t, to, len) }
}

/// Which of our addresses leads to the destination, where one does.
///
/// # Safety
///
/// `info` was made here.
unsafe fn choose_source(info: &mut rdma_addrinfo) -> Result<(), Errno> {
    if info.ai_dst_len == 0 {
        return Ok(());
    }
    // SAFETY: the destination is as long as its family says: it is getaddrinfo's, or the caller's.
    let Ok(Address::Ip(dest)) = (unsafe { sockaddr::read(info.ai_dst_addr) }) else { return Ok(()) };
    let Ok(instance) = instance::get() else { return Ok(()) };
    let Some(source) = instance.node().source_for(&dest) else { return Ok(()) };
    // SAFETY: all-zero bytes are an address of no family.
    let mut c: rdma_sockaddr = unsafe { std::mem::zeroed() };
    let len = sockaddr::write(&source, &mut c);
    // SAFETY: an address of that length.
    unsafe { copy_to((&raw const c).cast(), len as socklen_t, &mut info.ai_src_addr, &mut info.ai_src_len) }
}

/// Makes a copy that [`rdma_freeaddrinfo`] frees.
///
/// # Safety
///
/// `len` bytes at `addr`.
unsafe fn copy_to(
    addr: *const libc::sockaddr,
    len: socklen_t,
    to: &mut *mut libc::sockaddr,
    to_len: &mut socklen_t,
) -> Result<(), Errno> {
    if addr.is_null() {
        return Err(Errno(libc::EINVAL));
    }
    // SAFETY: plain allocation; readers of an address take the whole of its family's type.
    let copy = unsafe { libc::calloc(1, (len as usize).max(size_of::<sockaddr_ib>())) };
    if copy.is_null() {
        return Err(Errno(libc::ENOMEM));
    }
    // SAFETY: both have `len` bytes.
    unsafe { std::ptr::copy_nonoverlapping(addr.cast::<u8>(), copy.cast::<u8>(), len as usize) };
    (*to, *to_len) = (copy.cast(), len);
    Ok(())
}

/// rdma_freeaddrinfo(3).
pub unsafe extern "C" fn rdma_freeaddrinfo(res: *mut rdma_addrinfo) {
    // SAFETY: a list from `rdma_getaddrinfo` or `rdma_query_addrinfo`, or NULL.
    ffi_guard::nothing(|| unsafe {
        let mut at = res;
        while !at.is_null() {
            let info = Box::from_raw(at);
            libc::free(info.ai_src_addr.cast());
            libc::free(info.ai_dst_addr.cast());
            at = info.ai_next;
        }
    });
}

/// The outcome of rdma_resolve_addrinfo.
#[derive(Default)]
pub(crate) enum Resolution {
    /// rdma_resolve_addrinfo was not called, or its answer was taken.
    #[default]
    None,
    /// The answer waits to be taken.
    Resolved(Owned),
}

/// A list that is freed with its owner.
pub(crate) struct Owned(pub *mut rdma_addrinfo);

// SAFETY: no other thread knows the list.
unsafe impl Send for Owned {}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: from `look_up`, or NULL.
        unsafe { rdma_freeaddrinfo(self.0) }
    }
}

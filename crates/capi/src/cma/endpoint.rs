//! Endpoints (rdma_create_ep(3)) and the addresses they are made from (rdma_getaddrinfo(3)).

use std::ffi::{c_char, c_int};

use abi::cma::{self, rdma_addrinfo, rdma_cm_id};
use abi::verbs::{IBV_QPT_RC, IBV_QPT_UD, ibv_pd, ibv_qp_init_attr};
use libc::{addrinfo, sockaddr, socklen_t};

use crate::border::{self, Errno};
use crate::cma::connect::{rdma_bind_addr, rdma_resolve_addr, rdma_resolve_route};
use crate::cma::id::{CmId, Saved, create, rdma_destroy_id};
use crate::cma::{qp, srq};

/// How long an endpoint's address and route may take to resolve, as in librdmacm.
const RESOLVE_MS: c_int = 2_000;

/// `rdma_create_ep`: passive with RAI_PASSIVE: bound, `pd` and `attr` kept for its requests; else resolved, with a queue pair
/// where `attr` is given. errno: EINVAL for NULL, and those of the calls it stands for.
pub unsafe extern "C-unwind" fn rdma_create_ep(
    id: *mut *mut rdma_cm_id,
    res: *mut rdma_addrinfo,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> c_int {
    if id.is_null() || res.is_null() {
        Errno(libc::EINVAL).set();
        return -1;
    }
    // SAFETY: the caller's structures, by the man page's contract.
    unsafe {
        let ps = (*res).ai_port_space as u32;
        if !attr.is_null() {
            (*attr).qp_type = (*res).ai_qp_type as u32;
        }
        let new = border::or_null(|| create(std::ptr::null_mut(), std::ptr::null_mut(), ps));
        if new.is_null() {
            return -1;
        }
        let done = if (*res).ai_flags & cma::RAI_PASSIVE != 0 {
            let bound = rdma_bind_addr(new, (*res).ai_src_addr);
            if bound == 0 && !attr.is_null() {
                CmId::whole(new).saved = Some(Saved { pd, init: *attr });
            }
            (*new).pd = pd;
            bound
        } else {
            active(new, res, pd, attr)
        };
        if done != 0 {
            let why = Errno::last();
            rdma_destroy_id(new);
            why.set();
            return -1;
        }
        *id = new;
    }
    0
}

unsafe extern "C-unwind" fn active(
    id: *mut rdma_cm_id,
    res: *mut rdma_addrinfo,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: as in `rdma_create_ep`.
    unsafe {
        if rdma_resolve_addr(id, (*res).ai_src_addr, (*res).ai_dst_addr, RESOLVE_MS) != 0
            || rdma_resolve_route(id, RESOLVE_MS) != 0
        {
            return -1;
        }
        match attr.is_null() {
            true => 0,
            false => border::or_minus_one(|| qp::create(id, pd, attr).map(|()| 0)),
        }
    }
}

/// `rdma_destroy_ep`: the queue pair and the shared receive queue too.
pub unsafe extern "C" fn rdma_destroy_ep(id: *mut rdma_cm_id) {
    if !id.is_null() {
        // SAFETY: an identifier of ours, by the man page's contract.
        unsafe {
            qp::rdma_destroy_qp(id);
            srq::rdma_destroy_srq(id);
            rdma_destroy_id(id);
        }
    }
}

/// `rdma_getaddrinfo`: errno as for getaddrinfo's EAI_SYSTEM, else EINVAL for bad flags, ENODATA for a name nobody knows.
pub unsafe extern "C" fn rdma_getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
    res: *mut *mut rdma_addrinfo,
) -> c_int {
    // SAFETY: strings and structures of the caller, by the man page's contract.
    border::or_minus_one(|| unsafe {
        if res.is_null() || (node.is_null() && service.is_null() && hints.is_null()) {
            return Err(Errno(libc::EINVAL));
        }
        let mut plain: rdma_addrinfo = std::mem::zeroed();
        if hints.is_null() {
            plain.ai_port_space = cma::RDMA_PS_TCP as c_int;
        } else {
            plain = *hints;
        }
        *res = look_up(node, service, &plain, !hints.is_null())?;
        Ok(0)
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

unsafe fn look_up(
    node: *const c_char,
    service: *const c_char,
    hints: &rdma_addrinfo,
    hinted: bool,
) -> Result<*mut rdma_addrinfo, Errno> {
    let passive = hints.ai_flags & cma::RAI_PASSIVE != 0;
    // SAFETY: integers and pointers only.
    let mut want: addrinfo = unsafe { std::mem::zeroed() };
    let of_datagrams =
        [cma::RDMA_PS_UDP as c_int, cma::RDMA_PS_IPOIB as c_int].contains(&hints.ai_port_space);
    let datagrams = match hints.ai_qp_type {
        0 => of_datagrams,
        given => given == IBV_QPT_UD as c_int,
    };
    // A type that does not fit its port space is found out by getaddrinfo.
    want.ai_socktype = if datagrams { libc::SOCK_DGRAM } else { libc::SOCK_STREAM };
    want.ai_protocol = match hints.ai_port_space as u32 {
        cma::RDMA_PS_TCP => libc::IPPROTO_TCP,
        _ if of_datagrams => libc::IPPROTO_UDP,
        _ => 0,
    };
    if passive {
        want.ai_flags |= libc::AI_PASSIVE;
    }
    if hints.ai_flags & cma::RAI_NUMERICHOST != 0 {
        want.ai_flags |= libc::AI_NUMERICHOST;
    }
    if hints.ai_flags & cma::RAI_FAMILY != 0 || (hinted && hints.ai_family != 0) {
        want.ai_family = hints.ai_family;
    }
    let mut first: *mut addrinfo = std::ptr::null_mut();
    if !(node.is_null() && service.is_null()) {
        // SAFETY: the caller's strings; the result is freed by `Found`.
        match unsafe { libc::getaddrinfo(node, service, &raw const want, &raw mut first) } {
            0 => {}
            libc::EAI_SYSTEM => return Err(Errno::last()),
            libc::EAI_MEMORY => return Err(Errno(libc::ENOMEM)),
            libc::EAI_BADFLAGS | libc::EAI_FAMILY | libc::EAI_SERVICE | libc::EAI_SOCKTYPE => {
                return Err(Errno(libc::EINVAL));
            }
            _ => return Err(Errno(libc::ENODATA)),
        }
    }
    let found = Found(first);
    // SAFETY: integers and pointers only.
    let mut info: rdma_addrinfo = unsafe { std::mem::zeroed() };
    info.ai_flags = hints.ai_flags;
    let (space, kind) =
        if datagrams { (cma::RDMA_PS_UDP, IBV_QPT_UD) } else { (cma::RDMA_PS_TCP, IBV_QPT_RC) };
    info.ai_port_space = if hints.ai_port_space == 0 { space as c_int } else { hints.ai_port_space };
    info.ai_qp_type = if hints.ai_qp_type == 0 { kind as c_int } else { hints.ai_qp_type };
    info.ai_family = hints.ai_family;
    if !found.0.is_null() {
        // SAFETY: a result of getaddrinfo.
        let (family, addr, len) = unsafe { ((*first).ai_family, (*first).ai_addr, (*first).ai_addrlen) };
        info.ai_family = family;
        // SAFETY: as above.
        let copy = unsafe { duplicate(addr, len)? };
        if passive {
            (info.ai_src_addr, info.ai_src_len) = (copy, len);
        } else {
            (info.ai_dst_addr, info.ai_dst_len) = (copy, len);
        }
    }
    if !passive && !hints.ai_src_addr.is_null() {
        // SAFETY: the caller's address, of the length it says.
        info.ai_src_addr = unsafe { duplicate(hints.ai_src_addr, hints.ai_src_len)? };
        info.ai_src_len = hints.ai_src_len;
    }
    Ok(Box::into_raw(Box::new(info)))
}

/// A copy to be freed by `rdma_freeaddrinfo`.
unsafe fn duplicate(addr: *const sockaddr, len: socklen_t) -> Result<*mut sockaddr, Errno> {
    // SAFETY: plain allocation.
    let copy = unsafe { libc::calloc(1, (len as usize).max(1)) };
    if copy.is_null() {
        return Err(Errno(libc::ENOMEM));
    }
    // SAFETY: both have `len` bytes.
    unsafe { std::ptr::copy_nonoverlapping(addr.cast::<u8>(), copy.cast::<u8>(), len as usize) };
    Ok(copy.cast())
}

/// `rdma_freeaddrinfo`.
pub unsafe extern "C" fn rdma_freeaddrinfo(res: *mut rdma_addrinfo) {
    // SAFETY: a list from `rdma_getaddrinfo`, or NULL.
    border::nothing(|| unsafe {
        let mut at = res;
        while !at.is_null() {
            let info = Box::from_raw(at);
            libc::free(info.ai_src_addr.cast());
            libc::free(info.ai_dst_addr.cast());
            at = info.ai_next;
        }
    });
}

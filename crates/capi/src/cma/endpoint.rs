//! Endpoints (rdma_create_ep(3)): identifiers made from the addresses of rdma_getaddrinfo(3).

use std::ffi::c_int;

use rdma_core_abi::cma::{self, rdma_addrinfo, rdma_cm_id};
use rdma_core_abi::verbs::{ibv_pd, ibv_qp_init_attr};
use stack::connect::CONNECT_DATA;

use crate::cma::cm_id::{CmId, Saved};
use crate::cma::connect::{rdma_bind_addr, rdma_resolve_addr, rdma_resolve_route};
use crate::cma::id::{complete, create, rdma_destroy_id};
use crate::cma::option::rdma_set_option;
use crate::cma::{qp, srq};
use crate::ffi_guard::{self, Errno};

/// How long an endpoint's address and route may take to resolve, as in librdmacm.
const RESOLVE_MS: c_int = 2_000;

/// rdma_create_ep(3): passive with RAI_PASSIVE: bound, `pd` and `attr` kept for its requests. Else
/// resolved, with a queue pair where `attr` is given; by the path `ai_route`, and with `ai_connect`
/// before the request's private data, where `res` has them. errno: EINVAL for NULL, and those of
/// the calls it stands for.
pub unsafe extern "C-unwind" fn rdma_create_ep(
    id: *mut *mut rdma_cm_id,
    res: *mut rdma_addrinfo,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> c_int {
    if id.is_null() || res.is_null() {
        ffi_guard::set_errno(Errno(libc::EINVAL));
        return -1;
    }
    // SAFETY: the caller's structures, by the man page's contract.
    unsafe {
        let ps = (*res).ai_port_space as u32;
        let kind = (*res).ai_qp_type as u32;
        let new = ffi_guard::or_null(|| create(std::ptr::null_mut(), std::ptr::null_mut(), ps, kind));
        if new.is_null() {
            return -1;
        }
        let done = if (*res).ai_flags & cma::RAI_PASSIVE != 0 {
            let bound = rdma_bind_addr(new, (*res).ai_src_addr);
            if bound == 0 && !attr.is_null() {
                keep(new, Saved { pd, init: ibv_qp_init_attr { qp_type: kind, ..*attr } });
            }
            (*new).pd = pd;
            bound
        } else {
            active(new, res, pd, attr)
        };
        if done != 0 {
            let why = Errno::last();
            rdma_destroy_id(new);
            ffi_guard::set_errno(why);
            return -1;
        }
        *id = new;
    }
    0
}

/// What a passive endpoint keeps for its requests.
fn keep(id: *mut rdma_cm_id, saved: Saved) {
    ffi_guard::nothing(|| {
        if let Ok(ours) = CmId::checked(id) {
            *ours.saved() = Some(saved);
        }
    });
}

/// Resolves an active endpoint and gives it what `res` and `attr` say.
unsafe extern "C-unwind" fn active(
    id: *mut rdma_cm_id,
    res: *mut rdma_addrinfo,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: as in `rdma_create_ep`.
    unsafe {
        if rdma_resolve_addr(id, (*res).ai_src_addr, (*res).ai_dst_addr, RESOLVE_MS) != 0
            || take_route(id, res) != 0
        {
            return -1;
        }
        ffi_guard::or_minus_one(|| {
            if (*res).ai_connect_len != 0 && !(*res).ai_connect.is_null() {
                let data = std::slice::from_raw_parts((*res).ai_connect.cast::<u8>(), (*res).ai_connect_len);
                if data.len() > CONNECT_DATA {
                    return Err(Errno(libc::EINVAL));
                }
                let ours = CmId::checked(id)?;
                *ours.connect_data.lock() = data.to_vec();
            }
            if !attr.is_null() {
                (*attr).qp_type = (*res).ai_qp_type as u32;
                qp::create(id, pd, attr)?;
            }
            Ok(0)
        })
    }
}

/// The route that the addresses came with, else one that is resolved.
unsafe extern "C-unwind" fn take_route(id: *mut rdma_cm_id, res: *mut rdma_addrinfo) -> c_int {
    // SAFETY: as in `rdma_create_ep`.
    unsafe {
        if (*res).ai_route_len == 0 {
            return rdma_resolve_route(id, RESOLVE_MS);
        }
        let (level, name) = (cma::RDMA_OPTION_IB, cma::RDMA_OPTION_IB_PATH);
        complete(id, rdma_set_option(id, level, name, (*res).ai_route, (*res).ai_route_len))
    }
}

/// rdma_destroy_ep(3): the queue pair and the shared receive queue too.
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

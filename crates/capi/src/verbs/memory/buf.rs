//! Buffers of the library and of the kernel as memory regions (ibv_alloc_buf(3), ibv_reg_mr(3)).
//!
//! A dma-buf is mapped into the process and is a region like any other from then on: the processor
//! copies. What can be mapped as shared memory can be registered so, a memory file too
//! (memfd_create(2)).

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use rdma_core_abi::verbs::{
    self as v, ibv_buf, ibv_context, ibv_dm, ibv_dmah, ibv_dmah_init_attr, ibv_mr, ibv_mr_init_attr, ibv_pd,
};

use crate::ffi_guard::{self, Errno};
use crate::verbs::device::context::Context;
use crate::verbs::memory::mapping::{Mapping, PAGE};
use crate::verbs::memory::mr::{self, Under};
use crate::verbs::memory::pd::Pd;

/// What stands behind an `ibv_buf`.
struct Buffer {
    pd: *mut ibv_pd,
    addr: *mut c_void,
    size: usize,
    /// `None`: the C library's.
    arena: Option<local::arena::Buffer>,
}

/// `ibv_reg_dmabuf_mr`, ibv_reg_mr(3): `addr` of the region is the offset. errno: EINVAL for other
/// rights than local and remote ones, an address and an offset that lie differently in their pages,
/// or bytes beyond the end; EBADF; EOPNOTSUPP for what cannot be mapped.
pub unsafe extern "C" fn ibv_reg_dmabuf_mr(
    pd: *mut ibv_pd,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the man page's contract.
    ffi_guard::or_null(|| unsafe { register_dmabuf(pd, offset, length, iova, fd, access.cast_unsigned()) })
}

/// # Safety
///
/// A domain of ours that lives.
unsafe fn register_dmabuf(
    pd: *mut ibv_pd,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: u32,
) -> Result<*mut ibv_mr, Errno> {
    const CHANGE: u32 = v::IBV_ACCESS_LOCAL_WRITE | v::IBV_ACCESS_REMOTE_WRITE | v::IBV_ACCESS_REMOTE_ATOMIC;
    const KNOWN: u32 = CHANGE | v::IBV_ACCESS_REMOTE_READ | v::IBV_ACCESS_OPTIONAL_RANGE;
    // SAFETY: as the caller says.
    unsafe { Context::usable((*pd).context)? };
    if access & !KNOWN != 0 || offset % PAGE != iova % PAGE {
        return Err(Errno(libc::EINVAL));
    }
    let (mapping, at) = Mapping::of(fd, offset, length, access & CHANGE != 0)?;
    // The mapping has brought its pages in, which are not always such that advice about them is
    // taken.
    let rights = access | v::IBV_ACCESS_ON_DEMAND;
    // SAFETY: as the caller says; the mapping is ours, and stays as long as the region keeps it.
    let nic = unsafe { Pd::of(pd).nic.register(at, length as u64, iova, rights)? };
    let addr = std::ptr::without_provenance_mut(offset as usize);
    // SAFETY: as the caller says.
    Ok(unsafe { mr::make(pd, nic, addr, length, access, Some(Under::Mapping(mapping))) })
}

/// `ibv_reg_mr_ex`, ibv_reg_mr(3): what the other calls register, by attributes. errno: EINVAL for
/// attributes that do not go together or a buffer of another domain; EOPNOTSUPP for a DMA handle or
/// others not known; and those of `ibv_reg_mr` and `ibv_reg_dmabuf_mr`.
pub unsafe extern "C" fn ibv_reg_mr_ex(pd: *mut ibv_pd, attr: *mut ibv_mr_init_attr) -> *mut ibv_mr {
    const IOVA: u64 = v::IBV_REG_MR_MASK_IOVA as u64;
    const ADDR: u64 = v::IBV_REG_MR_MASK_ADDR as u64;
    const FD: u64 = v::IBV_REG_MR_MASK_FD as u64;
    const OFFSET: u64 = v::IBV_REG_MR_MASK_FD_OFFSET as u64;
    const BUF: u64 = v::IBV_REG_MR_MASK_BUF as u64;
    ffi_guard::or_null(|| {
        // SAFETY: the caller's structure, of which only what the mask names is looked at.
        let attr = unsafe { &*attr };
        let mask = attr.comp_mask;
        let access = attr.access.cast_unsigned();
        if mask & !(IOVA | ADDR | FD | OFFSET | BUF) != 0 {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        if mask & FD != 0 {
            if mask != IOVA | FD | OFFSET {
                return Err(Errno(libc::EINVAL));
            }
            // SAFETY: a domain of ours, by the man page's contract.
            return unsafe { register_dmabuf(pd, attr.fd_offset, attr.length, attr.iova, attr.fd, access) };
        }
        if mask & ADDR == 0 || mask & OFFSET != 0 {
            return Err(Errno(libc::EINVAL));
        }
        if mask & BUF != 0 {
            // SAFETY: a buffer of ours, by the man page's contract.
            unsafe { lies_in(attr.buf, pd, attr.addr, attr.length)? };
        }
        if mask & IOVA != 0 {
            return mr::register_as(pd, attr.addr, attr.length, attr.iova, access);
        }
        let zero_based = access & v::IBV_ACCESS_ZERO_BASED != 0;
        let iova = if zero_based { 0 } else { attr.addr.expose_provenance() as u64 };
        mr::register(pd, attr.addr, attr.length, iova, access)
    })
}

/// EINVAL for a range that leaves the buffer, or for another domain's buffer.
///
/// # Safety
///
/// A buffer of ours that lives.
unsafe fn lies_in(buf: *mut ibv_buf, pd: *mut ibv_pd, addr: *mut c_void, len: usize) -> Result<(), Errno> {
    // SAFETY: as the caller says.
    let buffer = unsafe { buf.cast::<Buffer>().as_ref() }.ok_or(Errno(libc::EINVAL))?;
    let room = addr.addr().checked_sub(buffer.addr.addr()).and_then(|at| buffer.size.checked_sub(at));
    let inside = room.is_some_and(|room| len <= room);
    if inside && buffer.pd == pd { Ok(()) } else { Err(Errno(libc::EINVAL)) }
}

/// ibv_alloc_buf(3): whole pages, which processes of this host map, too, where they can: those
/// write and read them, where a region lets them, without a system call. errno: EINVAL for NULL or
/// no bytes, ENOMEM.
pub unsafe extern "C" fn ibv_alloc_buf(pd: *mut ibv_pd, size: usize, buf: *mut *mut ibv_buf) -> *mut c_void {
    ffi_guard::or_null(|| {
        if pd.is_null() || buf.is_null() || size == 0 {
            return Err(Errno(libc::EINVAL));
        }
        let arena = local::arena::take(size);
        let mut addr: *mut c_void = arena.as_ref().map_or(null_mut(), |buffer| buffer.as_ptr().cast());
        if addr.is_null() {
            // SAFETY: a variable of ours and a power of two.
            let code = unsafe { libc::posix_memalign(&raw mut addr, PAGE as usize, size) };
            if code != 0 {
                return Err(Errno(code));
            }
        }
        // SAFETY: the caller's variable.
        unsafe { buf.write(Box::into_raw(Box::new(Buffer { pd, addr, size, arena })).cast()) };
        Ok(addr)
    })
}

/// `ibv_free_buf`, ibv_alloc_buf(3).
pub unsafe extern "C" fn ibv_free_buf(buf: *mut ibv_buf) {
    if buf.is_null() {
        return;
    }
    ffi_guard::nothing(|| {
        // SAFETY: made by `Box::into_raw` in `ibv_alloc_buf`, by the man page's contract.
        let buffer = unsafe { Box::from_raw(buf.cast::<Buffer>()) };
        if buffer.arena.is_none() {
            // SAFETY: memory of `posix_memalign`.
            unsafe { libc::free(buffer.addr) };
        }
    });
}

/// `ibv_reg_buf_mr`, ibv_alloc_buf(3): errno as of [`ibv_reg_mr_ex`].
pub unsafe extern "C" fn ibv_reg_buf_mr(
    pd: *mut ibv_pd,
    buf: *mut ibv_buf,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    ffi_guard::or_null(|| {
        // SAFETY: a buffer of ours, by the man page's contract.
        unsafe { lies_in(buf, pd, addr, length)? };
        mr::register(pd, addr, length, addr.expose_provenance() as u64, access.cast_unsigned())
    })
}

/// `ibv_export_buf_dmabuf_fd`, ibv_alloc_buf(3): errno ENODATA, because no buffer here is a
/// dma-buf.
pub unsafe extern "C" fn ibv_export_buf_dmabuf_fd(_buf: *mut ibv_buf) -> c_int {
    ffi_guard::or_minus_one(|| Err(Errno(libc::ENODATA)))
}

/// ibv_alloc_dmah(3): errno EOPNOTSUPP. A DMA handle steers an adapter's writes into a processor's
/// cache; here processors write.
pub unsafe extern "C" fn ibv_alloc_dmah(
    _context: *mut ibv_context,
    _attr: *mut ibv_dmah_init_attr,
) -> *mut ibv_dmah {
    ffi_guard::or_null(|| Err(Errno(libc::EOPNOTSUPP)))
}

/// `ibv_dealloc_dmah`, ibv_alloc_dmah(3): EOPNOTSUPP, as there is none.
pub unsafe extern "C" fn ibv_dealloc_dmah(_dmah: *mut ibv_dmah) -> c_int {
    ffi_guard::or_errno(|| Err(Errno(libc::EOPNOTSUPP)))
}

/// ibv_dm_export_dmabuf_fd(3): errno EOPNOTSUPP. Device memory here is the process's own, and no
/// dma-buf.
pub unsafe extern "C" fn ibv_dm_export_dmabuf_fd(_dm: *mut ibv_dm) -> c_int {
    ffi_guard::or_minus_one(|| Err(Errno(libc::EOPNOTSUPP)))
}

//! XRC domains (ibv_open_xrcd(3)). A domain is shared by its file's inode among the handles of this
//! process; two processes that open one file have a domain each.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use nic::Inode;
use rdma_core_abi::verbs::{self as v, ibv_context, ibv_xrcd, ibv_xrcd_init_attr};

use crate::checked;
use crate::ffi_guard::{self, Errno};
use crate::instance::Instance;
use crate::verbs::device::context::Context;

/// An XRC domain as C sees it, and the adapter's.
#[repr(C)]
pub(crate) struct Xrcd {
    c: UnsafeCell<ibv_xrcd>,
    pub nic: Arc<nic::Xrcd>,
    /// Queue pairs and shared receive queues made with this handle.
    pub users: AtomicU32,
    instance: Arc<Instance>,
    _context: Arc<Context>,
}

impl Xrcd {
    /// # Safety
    ///
    /// `xrcd` came from [`open_xrcd`] and is not closed.
    pub(crate) unsafe fn of<'a>(xrcd: *mut ibv_xrcd) -> &'a Self {
        // SAFETY: the C part is the first field.
        unsafe { &*xrcd.cast::<Self>() }
    }

    /// Like [`Xrcd::of`]: EINVAL for NULL, ENODEV for a parent's domain in a forked child.
    ///
    /// # Safety
    ///
    /// NULL, or as for [`Xrcd::of`].
    pub(crate) unsafe fn usable<'a>(xrcd: *mut ibv_xrcd) -> Result<&'a Self, Errno> {
        if xrcd.is_null() {
            return Err(Errno(libc::EINVAL));
        }
        checked::objects::refuse_gone(xrcd)?;
        // SAFETY: as the caller says.
        let ours = unsafe { Self::of(xrcd) };
        if ours.instance.is_ours() { Ok(ours) } else { Err(Errno(libc::ENODEV)) }
    }
}

/// The file behind a descriptor; none for -1. EBADF for one that is not open.
fn inode_of(fd: c_int) -> Result<Option<Inode>, Errno> {
    if fd == -1 {
        return Ok(None);
    }
    // SAFETY: integers only.
    let mut file: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: a variable of our own.
    if unsafe { libc::fstat(fd, &raw mut file) } != 0 {
        return Err(Errno::last());
    }
    Ok(Some((file.st_dev, file.st_ino)))
}

/// ibv_open_xrcd(3), through the context's table. errno: EINVAL without both attributes, and for
/// O_EXCL where the file has a domain; EAGAIN without O_CREAT where the file has no domain; EBADF;
/// EOPNOTSUPP for attributes that are not known; ENOMEM. As in uverbs, other bits of `oflags` are
/// ignored, and so are all where `fd` is -1.
pub(crate) unsafe extern "C" fn open_xrcd(
    context: *mut ibv_context,
    attr: *mut ibv_xrcd_init_attr,
) -> *mut ibv_xrcd {
    ffi_guard::or_null(|| {
        // SAFETY: a context of ours and the caller's structure, by the man page's contract.
        let (ours, init) = unsafe { (Context::usable(context)?, *attr) };
        let both = v::IBV_XRCD_INIT_ATTR_FD | v::IBV_XRCD_INIT_ATTR_OFLAGS;
        if init.comp_mask & !both != 0 {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        if init.comp_mask != both {
            return Err(Errno(libc::EINVAL));
        }
        let asked = |flag| init.oflags & flag != 0;
        let inode = inode_of(init.fd)?;
        let create = inode.is_none() || asked(libc::O_CREAT);
        let opened = ours.nic.open_xrcd(inode, create, asked(libc::O_EXCL));
        let nic = opened.map_err(|e| match e {
            nic::Error::Missing(_) => Errno(libc::EAGAIN),
            other => other.into(),
        })?;
        let xrcd = Xrcd {
            c: ibv_xrcd { context }.into(),
            nic,
            users: AtomicU32::new(0),
            instance: ours.instance.clone(),
            // SAFETY: as above.
            _context: unsafe { Context::share(context) },
        };
        let xrcd = Box::into_raw(Box::new(xrcd)).cast();
        checked::objects::xrc_domain_made(xrcd);
        Ok(xrcd)
    })
}

/// `ibv_close_xrcd`, ibv_open_xrcd(3), through the context's table: EBUSY while queue pairs or
/// shared receive queues made with it live.
pub(crate) unsafe extern "C" fn close_xrcd(xrcd: *mut ibv_xrcd) -> c_int {
    ffi_guard::or_errno(|| {
        checked::objects::refuse_gone(xrcd)?;
        // SAFETY: a domain of ours, by the man page's contract.
        if unsafe { Xrcd::of(xrcd) }.users.load(Ordering::Acquire) > 0 {
            return Err(Errno(libc::EBUSY));
        }
        checked::objects::domain_gone(xrcd);
        // SAFETY: made by `Box::into_raw` in `open_xrcd`, and no thread uses it.
        drop(unsafe { checked::take(xrcd.cast::<Xrcd>(), "XRC domain") });
        Ok(())
    })
}

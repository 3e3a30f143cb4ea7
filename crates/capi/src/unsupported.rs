//! The answers of exported functions that are not built, so unsupported: for each kind of result
//! the failure that the man pages document. Which function answers how stands in
//! `crates/cdylib/symbols/unsupported.txt`.
//!
//! They take no arguments whatever the function takes: a C caller removes its own. Their result is
//! 64 bits wide, of which a caller of an `int` function looks at the lower half.

use std::ffi::c_void;

use crate::ffi_guard::{self, Errno};

macro_rules! answers {
    ($($(#[$doc:meta])* $name:ident -> $ty:ty = $value:expr, $errno:expr;)*) => {
        $($(#[$doc])* pub extern "C" fn $name() -> $ty {
            let errno: Option<i32> = $errno;
            if let Some(errno) = errno {
                ffi_guard::set_errno(Errno(errno));
            }
            $value
        })*
    };
}

answers! {
    /// NULL, "no kernel support for RDMA": `ibv_get_device_list`.
    null_enosys -> *mut c_void = std::ptr::null_mut(), Some(libc::ENOSYS);
    /// NULL: what makes an object.
    null_eopnotsupp -> *mut c_void = std::ptr::null_mut(), Some(libc::EOPNOTSUPP);
    /// -1 and errno.
    minus_one_eopnotsupp -> isize = -1, Some(libc::EOPNOTSUPP);
    /// The errno itself.
    eopnotsupp -> isize = libc::EOPNOTSUPP as isize, Some(libc::EOPNOTSUPP);
    /// The errno, negative: `ibv_query_gid_table`.
    negative_eopnotsupp -> isize = -(libc::EOPNOTSUPP as isize), Some(libc::EOPNOTSUPP);
    /// 0 where that says "none" or "not guaranteed".
    zero -> isize = 0, None;
    /// Nothing: what frees or acknowledges what nothing made.
    nothing -> () = (), None;
}

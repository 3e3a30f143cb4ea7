//! What rdma-core's own provider libraries ask of libibverbs when they are loaded: programs link
//! libmlx5 and libefa for their direct verbs even where no such adapter is.

use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::ffi_guard::{self, Errno};

/// `verbs_register_driver`, no man page: a provider offers itself, from its constructor. No adapter
/// of the kernel is ever shown here, so none is asked for. Unlike rdma-core: no provider is ever
/// used.
pub unsafe extern "C" fn verbs_register_driver(_ops: *const c_void) {}

/// `ibv_register_driver`, no man page: the same in the older form that stands in node IBVERBS_1.1.
/// Unlike rdma-core: no provider is ever used.
pub unsafe extern "C" fn ibv_register_driver(_name: *const c_char, _init: *const c_void) {}

/// `ibv_get_sysfs_path`, no man page: where sysfs is mounted.
pub unsafe extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    c"/sys".as_ptr()
}

/// `ibv_read_sysfs_file`, no man page: reads a file of sysfs, without its last newline, into `size`
/// bytes with a zero byte after them. Returns the length, or -1 for a file that cannot be read or
/// has no room.
pub unsafe extern "C" fn ibv_read_sysfs_file(
    dir: *const c_char,
    file: *const c_char,
    buf: *mut c_char,
    size: usize,
) -> c_int {
    ffi_guard::or_minus_one(|| {
        if dir.is_null() || file.is_null() || buf.is_null() {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: the caller's strings, and its buffer of `size` bytes.
        let (dir, file, buf) = unsafe {
            buf.write_bytes(0, size);
            let buf = std::slice::from_raw_parts_mut(buf.cast::<u8>(), size);
            (CStr::from_ptr(dir).to_bytes(), CStr::from_ptr(file).to_bytes(), buf)
        };
        // `file` may begin with a slash: it lies under `dir` all the same.
        let mut path = dir.to_vec();
        path.push(b'/');
        path.extend_from_slice(file);
        let len = File::open(Path::new(OsStr::from_bytes(&path)))?.read(buf)?;
        match len.checked_sub(1) {
            None => Ok(0),
            Some(last) if buf[last] == b'\n' => {
                buf[last] = 0;
                Ok(last as c_int)
            }
            Some(_) if len < size => Ok(len as c_int),
            Some(_) => Err(Errno(libc::ENAMETOOLONG)),
        }
    })
}

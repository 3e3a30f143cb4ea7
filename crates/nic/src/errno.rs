//! The number by which the system, and every C function of libibverbs and librdmacm, says why it
//! failed.

use std::fmt;
use std::io;

/// A value of errno(3): positive, Linux's. The traits that the environment implements
/// ([`Link`](crate::Link) and its like) fail with one, and [`Error`](crate::Error) and
/// [`PostError`](crate::PostError) become one where a C function returns.
///
/// It prints as name and number, `ENODEV (19)`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

/// A constant for each name, and the way back from number to name.
macro_rules! names {
    ($($name:ident)*) => {
        impl Errno {
            $(
                #[doc = concat!("`", stringify!($name), "` of errno(3).")]
                pub const $name: Errno = Errno(libc::$name);
            )*

            /// The number's name in errno(3); `None` where it has none there.
            pub fn name(self) -> Option<&'static str> {
                match self {
                    $(Errno::$name => Some(stringify!($name)),)*
                    _ => None,
                }
            }
        }
    };
}

// What system calls that open, map, lock, send or receive may say, and what the manual pages of
// both libraries name.
names! {
    EPERM ENOENT EINTR EIO ENXIO E2BIG EBADF ECHILD EAGAIN ENOMEM EACCES EFAULT EBUSY EEXIST EXDEV ENODEV ENOTDIR EISDIR EINVAL
    ENFILE EMFILE ENOTTY EFBIG ENOSPC ESPIPE EROFS EMLINK EPIPE EDOM ERANGE EDEADLK ENAMETOOLONG ENOSYS ELOOP ENODATA ETIME EPROTO
    EOVERFLOW EILSEQ ENOTSOCK EDESTADDRREQ EMSGSIZE EPROTOTYPE ENOPROTOOPT EPROTONOSUPPORT ESOCKTNOSUPPORT EOPNOTSUPP
    EPFNOSUPPORT EAFNOSUPPORT EADDRINUSE EADDRNOTAVAIL ENETDOWN ENETUNREACH ENETRESET ECONNABORTED ECONNRESET ENOBUFS EISCONN
    ENOTCONN ESHUTDOWN ETIMEDOUT ECONNREFUSED EHOSTDOWN EHOSTUNREACH EALREADY EINPROGRESS ESTALE EDQUOT ECANCELED
}

impl Errno {
    /// This thread's errno, after a call that failed.
    pub fn last() -> Self {
        io::Error::last_os_error().into()
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "{name} ({})", self.0),
            None => write!(f, "errno {}", self.0),
        }
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Errno {}

impl From<Errno> for io::Error {
    fn from(errno: Errno) -> Self {
        Self::from_raw_os_error(errno.0)
    }
}

impl From<io::Error> for Errno {
    /// EIO where the error does not come from the system.
    fn from(error: io::Error) -> Self {
        error.raw_os_error().map_or(Self::EIO, Errno)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_errno_prints_as_name_and_number() {
        assert_eq!(Errno::ENODEV.to_string(), "ENODEV (19)");
        assert_eq!(format!("{:?}", Errno(libc::ETIMEDOUT)), "ETIMEDOUT (110)");
        assert_eq!(Errno(4095).to_string(), "errno 4095");
    }

    #[test]
    fn an_io_error_keeps_its_errno_and_one_without_is_eio() {
        assert_eq!(Errno::from(io::Error::from(Errno::EADDRINUSE)), Errno::EADDRINUSE);
        assert_eq!(Errno::from(io::Error::other("no system call")), Errno::EIO);
    }
}

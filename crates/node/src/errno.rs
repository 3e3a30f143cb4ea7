//! The errno values that rdma_cm's manual pages name, as on Linux.
#![allow(missing_docs)]

pub const ENODEV: i32 = 19;
pub const EINVAL: i32 = 22;
pub const ENOMEM: i32 = 12;
pub const EPROTONOSUPPORT: i32 = 93;
pub const EOPNOTSUPP: i32 = 95;
pub const EADDRINUSE: i32 = 98;
pub const EADDRNOTAVAIL: i32 = 99;
pub const EISCONN: i32 = 106;
pub const ETIMEDOUT: i32 = 110;
pub const ECONNREFUSED: i32 = 111;
pub const EHOSTUNREACH: i32 = 113;

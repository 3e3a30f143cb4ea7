//! The software adapter's objects: device, GID table, PD, MR, CQ, completion channel, QP, asynchronous events; key
//! checks. It never waits and owns no file descriptor.

pub mod outlet;

pub use outlet::{Outlet, Path, Signal};

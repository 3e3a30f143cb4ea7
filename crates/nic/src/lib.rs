//! The software adapter's objects: device, GID table, PD, MR, AH, CQ, completion channel, QP, flow rules, work queues,
//! asynchronous events; key checks. It never waits and owns no file descriptor: whoever must be told gave a [`Signal`].
//!
//! Locks, in order: QP, then SRQ, then CQ, then channel or event queue. Never two queue pairs at once; completions are told of
//! after queue pairs and completion queues are unlocked. Timers and turns come last of all.
#![deny(unsafe_code)]

pub mod cq;
pub mod device;
pub mod limits;
pub mod link;
#[allow(unsafe_code)]
pub mod memory;
pub mod qp;
pub mod srq;
pub mod steering;

pub use cq::counter::CompletionCounter;
pub use cq::{Arm, Channel, Clock, Cq, CqExtras, Moderation, Stamp};
pub use device::async_events::{AsyncEvent, Element, EventKind};
pub use device::gid::{GidEntry, GidTable};
pub use device::{Device, DeviceConfig, Numbers};
pub use link::{Frames, Link, Path, Persist, Platform, Signal};
pub use memory::{Access, Advice, Buffer, Mr, Mw, Pd, WindowType};
pub use qp::ah::{Ah, Datagram};
pub use qp::attr::{AddressVector, QpAttr, QpState, QpType, mask};
pub use qp::post::{PostError, Request};
pub use qp::xrc::{Inode, Xrcd};
pub use qp::{Qp, QpCap, QpInit};
pub use srq::tag_matching::{TagOp, TagWr};
pub use srq::{Srq, SrqAttr};
pub use steering::flow::{Flow, FlowId, FlowKind};
pub use steering::rss::{Spread, Wq, WqState};

/// Why the adapter refuses a call; the C functions map each to its errno.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// An argument is out of its range or does not fit the object's state (EINVAL).
    #[error("invalid argument: {0}")]
    Invalid(&'static str),
    /// A limit of the table in [`limits`] is reached (ENOMEM).
    #[error("limit reached: {0}")]
    Limit(&'static str),
    /// Memory is not mapped, or not with the rights asked for (EFAULT).
    #[error("memory is not mapped with the access asked for")]
    Fault,
    /// What a name stands for does not exist (ENOENT).
    #[error("there is none: {0}")]
    Missing(&'static str),
    /// The object is still used by others (EBUSY).
    #[error("object is in use")]
    Busy,
    /// Not something this adapter does (EOPNOTSUPP).
    #[error("not supported: {0}")]
    Unsupported(&'static str),
    /// The system refused; its errno.
    #[error("the system refused: errno {0}")]
    System(i32),
}

impl Error {
    /// The errno of the manual pages.
    pub fn errno(self) -> i32 {
        match self {
            Error::Invalid(_) => libc::EINVAL,
            Error::Limit(_) => libc::ENOMEM,
            Error::Fault => libc::EFAULT,
            Error::Missing(_) => libc::ENOENT,
            Error::Busy => libc::EBUSY,
            Error::Unsupported(_) => libc::EOPNOTSUPP,
            Error::System(errno) => errno,
        }
    }
}

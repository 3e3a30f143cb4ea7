//! The operation: what a work request asks, what memory allows, how it completes. Shared by every
//! way an operation travels.

mod completion;
mod context;
mod local_path;
mod memory;
mod payload;
mod work_request;

pub use completion::{Completed, Completion, NetworkHeader, Status, TagInfo};
pub use context::{Context, Place, QpEvent, Side, Tagged, Whole};
pub use local_path::{
    DirectOutcome, FragmentBytes, FragmentOutcome, LocalPath, MAX_DIRECT, NoLocalPath, Part, Source,
};
pub use memory::{Access, AtomicOp, Bind, Fault, Flush, LocalOp, Memory, Remote, Sge, Tail};
pub use payload::{Payload, SharedBytes, ZeroCopy};
pub use work_request::{Data, MAX_INLINE, MAX_MESSAGE, MAX_SGE, RecvWr, SendOp, SendWr, SgeList};

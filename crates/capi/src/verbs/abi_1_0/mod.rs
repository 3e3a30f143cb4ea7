//! The names of node IBVERBS_1.0, for programs linked before 2007: objects had other layouts then.
//! Each old object points to the one it stands for, and the new one's user context leads back to
//! it. Layouts: libibverbs 1.0's `verbs.h`, with the real object after the old fields.
//!
//! ```text
//! old object                       new object
//! [ fields of 1.0 | real ] ------> [ fields | *_context ]
//!        ^------------------------------------'
//! ```

pub(crate) mod contexts;
mod device;
mod event;
mod inline;
mod layout;
mod objects;

pub use device::*;
pub use event::*;
pub use layout::*;
pub use objects::*;

//! What goes beyond connecting by address: what a device can, how its port is, and queue pairs that
//! are connected by hand.
//!
//! | file | what |
//! |---|---|
//! | `device` | [`DeviceAttr`], [`PortAttr`] |
//! | `events` | [`DeviceEvents`], and where asynchronous events come in |
//! | `unconnected` | [`Unconnected`], [`Endpoint`] |
//! | `xrc` | [`XrcDomain`], [`XrcTarget`] |
//! | `attributes` | [`ConnectAttr`]: what rdma_cm says of a connection to be |

mod attributes;
mod device;
mod events;
mod unconnected;
mod xrc;

pub use attributes::ConnectAttr;
pub use device::{AtomicCaps, DeviceAttr, PortAttr};
pub(crate) use events::AsyncEvents;
pub use events::{AsyncEvent, DeviceEvents};
pub use unconnected::{Endpoint, Unconnected};
pub use xrc::{UnconnectedTarget, XrcDomain, XrcTarget};

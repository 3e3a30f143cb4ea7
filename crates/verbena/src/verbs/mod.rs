//! What goes beyond connecting by address: what a device can, and how its port is.
//!
//! | file | what |
//! |---|---|
//! | `device` | [`DeviceAttr`], [`PortAttr`] |

mod device;

pub use device::{AtomicCaps, DeviceAttr, PortAttr};

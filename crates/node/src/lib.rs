//! One RDMA host: the adapters, the connection manager, rdma_cm identifiers and port spaces. Generic over [`World`]:
//! written once, run by the real world and by the simulated one.
#![forbid(unsafe_code)]

pub mod world;

pub use world::{Guest, Input, Interface, Name, World};

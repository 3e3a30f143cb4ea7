//! An InfiniBand subnet in memory: nodes, links and tables, the management agents of all nodes, and
//! the programs that have umad ports open.
//!
//! Internal to Verbena: it promises no stability. It is no model of performance: a MAD arrives in
//! the moment in which it is sent.
//!
//! | module | what lives there |
//! |---|---|
//! | [`net`] | net files: what a fabric consists of |
//! | [`subnet`] | nodes, ports, links |
//! | [`route`] | ways by LID and along directed routes |
//! | `sma`, `pma` | the agents of a node: subnet management, performance management |
//! | [`counters`] | the counters of a port by name |
//! | [`fabric`] | the whole, and what its environment calls |
//! | [`agents`], `client` | what programs register; an open port and its queue |
//! | `deliver`, `rmpp` | where a MAD goes; messages of several |
//! | `transactions`, `traps` | what is repeated until an answer comes |
//! | `memberships` | which programs have their port in which multicast groups |
//! | [`sm`] | a subnet manager with its administration |
//! | [`questions`] | what a program asks the administration of the subnet |
//! | [`umad`] | the header of messages between a program and a port |
//! | `hosts`, [`describe`] | which devices a host has, and what it sees of them |
//! | [`ipoib`] | addresses of IPoIB, by which the connection manager finds ports |
//! | [`faults`] | what a user does to a fabric and asks of it |
//! | `snapshot` | the fabric of now as a net file |
//! | [`plane`] | tables and rows in memory that programs map, for packets of their own |
//! | `dice` | which packets a drop rule takes |
//! | `timed` | faults that time brings about |
//! | [`protocol`] | what programs and the command say to the process that has the fabric |
#![forbid(unsafe_code)]

pub mod agents;
mod client;
pub mod counters;
mod deliver;
pub mod describe;
mod dice;
pub mod fabric;
pub mod faults;
mod hosts;
pub mod ipoib;
mod memberships;
pub mod net;
pub mod plane;
mod pma;
pub mod protocol;
pub mod questions;
mod rmpp;
pub mod route;
pub mod sm;
mod sma;
mod snapshot;
pub mod subnet;
mod timed;
mod transactions;
mod traps;
pub mod umad;

pub use client::{MAX_MESSAGE, MAX_QUEUED, MAX_QUEUED_BYTES};
pub use fabric::{ClientId, Fabric};
pub use subnet::PortId;

//! One RDMA host: the adapters, the connection manager, rdma_cm identifiers and port spaces.
//! Generic over [`Env`]: written once, run by the real environment and by the simulated one.
//!
//! Internal to Verbena: it promises no stability.
//!
//! | file | what lives there |
//! |---|---|
//! | [`mod@env`] | what a node asks of the environment around it, and what the environment tells it |
//! | `dispatch` | packets and everything else that the environment tells: to queue pairs, to QP1, to the part it concerns |
//! | `tapped` | packets and frames as they arrive, past the link's tap |
//! | `global` | InfiniBand packets with a GRH |
//! | `gsi` | QP1: management datagrams come in and leave; which process of the host they are for |
//! | `streams` | streams of iWARP devices: for the connection manager, then for queue pairs |
//! | `unsolicited` | what is for no process, and how much is done about it |
//! | [`number_blocks`] | queue pair numbers and communication ids, and whose they are |
//! | [`devices`] | which devices there are |
//! | [`fabric_ports`] | ports of a host of a simulated fabric as interfaces |
//! | `faults` | faults that the link brings about on purpose |
//! | `device_events` | what identifiers learn of their device |
//! | [`id`] | rdma_cm identifiers |
//! | [`event`] | rdma_cm events and their channels |
//! | `bind`, `ports`, `af_ib`, `address` | addresses and ports: which identifier may have which |
//! | `resolve` | rdma_resolve_addr, rdma_resolve_route |
//! | `sa_client` | questions to the administration of an InfiniBand subnet |
//! | `route_query` | the question for a path |
//! | `address_vector` | a path as a queue pair has it |
//! | [`connect`] | the side that connects |
//! | [`accept`] | the side that is asked: rdma_listen, requests, rdma_accept, rdma_reject |
//! | [`listener`] | requests that wait at a listener |
//! | `disconnect` | how connections end |
//! | `flows` | which port a message of a connection leaves from |
//! | `graceful_close` | what was acknowledged before a connection ends |
//! | [`datagram`], `multicast`, `ib_groups` | datagram services and groups |
//! | [`queue_pair`] | the queue pair of an identifier, moved to RTS |
//! | [`objects`] | how many there are of what it has given out |
//! | `cm_agent` | the tables that all of these use, and what the connection manager's outputs do |
//!
//! # How a connection comes to be
//!
//! ```text
//!  program  connect::connect ──▶ cm::Cm::connect ──▶ cm_agent::carry_out ──▶ gsi::send_mad ──▶ Env::send
//!  REP      dispatch::input ──▶ gsi::management ──▶ cm_agent::on_mad ──▶ cm::mads::Mads::input
//!             ──▶ cm_agent::carry_out ──▶ connect::on_reply ──▶ queue_pair::connect_qp ──▶ event
//!  REQ      ... cm::mads::Mads::input ──▶ cm_agent::carry_out ──▶ accept::on_request
//!             ──▶ (unlocked) accept::look_up ──▶ accept::admit ──▶ event
//! ```
//!
//! # Locks
//!
//! In the order of [`locks::Rank`], from the outermost in: the receive token of a socket (`host`),
//! under which packets come in by [`InputHandler::input`]; then those of this crate, and the
//! adapter's ([`nic`]).
//!
//! | rank | whose | what is done under it |
//! |---|---|---|
//! | `ConnectionManager` | `cm_agent` | messages leave, queue pairs are moved, a process of this host is watched, a first block of numbers is claimed: system calls that do not wait. The routing table is not asked, and no port is claimed |
//! | `Identifiers` | `device_events` | the list is read or written |
//! | `Identifier` | [`Id::lock`](id::Id::lock) | its fields are read and written; nothing of the node is called |
//! | `Unsolicited` | `unsolicited` | they are counted |
//! | `KnownInterfaces` | this file | they are copied |
//! | `Devices` | this file | the list is read; delayed ACKs leave ([`InputHandler::release`]) |
//! | `EventQueue` | [`event`] | an event is put in or taken out, and its signal given |
//! | `NumberBlocks` | [`number_blocks`] | a block is claimed |
//!
//! Ports are claimed, the routing table is asked and random numbers are drawn before an identifier
//! is locked; then it is looked at again. Names are given back after it is unlocked.
#![forbid(unsafe_code)]

pub mod accept;
mod address;
mod address_vector;
mod af_ib;
mod bind;
mod cm_agent;
pub mod connect;
pub mod datagram;
mod device_events;
pub mod devices;
mod disconnect;
mod dispatch;
pub mod env;
pub mod event;
pub mod fabric_ports;
mod faults;
mod flows;
mod global;
mod graceful_close;
mod gsi;
mod ib_groups;
pub mod id;
mod kept_ports;
pub mod listener;
mod multicast;
pub mod number_blocks;
pub mod objects;
mod ports;
pub mod queue_pair;
mod resolve;
mod route_query;
mod sa_client;
mod streams;
mod tapped;
mod unsolicited;

use std::sync::Arc;
use std::time::Instant;

use locks::{Mutex, Rank};
use nic::Link;
use nic::device::Port;
use nic::faults::PortFault;
use nic::{Device, GidTable, Transport};

pub use af_ib::IbService;
pub use cm::PathRecord;
pub use devices::DeviceSpec;
pub use dispatch::Counters;
pub use env::{AcceptedStream, Env, Input, InputHandler, Interface, Name, StreamInput, StreamRead, Watch};
pub use event::{Event, EventChannel};
pub use gsi::owner_names_of;
pub use id::{Id, PathChoice, Progress};
pub use multicast::Group;
pub use nic::{Errno, Error};
pub use number_blocks::NumberBlocks;

/// What a node is made from.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// Devices asked for; `None`: one for each interface that is up and has an address.
    pub devices: Option<Vec<DeviceSpec>>,
    /// Timers of the connection manager.
    pub timing: cm::Timing,
}

/// One RDMA host.
pub struct Node<W> {
    env: Arc<W>,
    /// The only way down for packets: that of the environment, or one that decorates it.
    link: Arc<dyn Link>,
    /// Each at the place that its id says. None comes or goes.
    devices: Vec<Arc<Device>>,
    blocks: Arc<NumberBlocks<W>>,
    cm_agent: cm_agent::CmAgent,
    unsolicited: unsolicited::Unsolicited,
    streams: streams::Streams,
    /// The interfaces, as the environment told of them last.
    interfaces: Mutex<Vec<Interface>>,
    /// The outcome of packets that no queue pair got.
    pub counters: Counters,
}

impl<W: Env> Node<W> {
    /// A node in its environment, with the interfaces that the environment has now. Its packets
    /// leave by the environment's link.
    pub fn new(env: Arc<W>, config: &Config, interfaces: &[Interface]) -> Arc<Self> {
        Self::on_link(env.clone(), env, config, interfaces)
    }

    /// A node in its environment, with the interfaces that the environment has now. Its packets
    /// leave by `link`, which may decorate that of the environment.
    pub fn on_link(env: Arc<W>, link: Arc<dyn Link>, config: &Config, interfaces: &[Interface]) -> Arc<Self> {
        let blocks = Arc::new(NumberBlocks::new(env.clone()));
        let host_id = env.host_id();
        let devices: Vec<Arc<Device>> = devices::choose(config.devices.as_deref(), interfaces, host_id)
            .into_iter()
            .map(|(config, port)| Device::on_link(config, port, env.clone(), link.clone(), blocks.clone()))
            .collect();
        let mut key = [0; 8];
        env.fill_random(&mut key);
        let node = Arc::new(Self {
            unsolicited: unsolicited::Unsolicited::new(env.now(), u64::from_ne_bytes(key)),
            cm_agent: cm_agent::CmAgent::new(&config.timing),
            streams: streams::Streams::default(),
            interfaces: Mutex::new(Rank::KnownInterfaces, interfaces.to_vec()),
            env,
            link,
            devices,
            blocks,
            counters: Counters::default(),
        });
        node.introduce_devices();
        node.share_aliases();
        node
    }

    /// The environment it lives in.
    pub fn env(&self) -> &Arc<W> {
        &self.env
    }

    /// The devices, in the order of interfaces or of the configuration.
    pub fn devices(&self) -> Vec<Arc<Device>> {
        self.devices.clone()
    }

    /// Everything counted since the start, the node's own under `node.` and each device's under its
    /// name; waits for no lock.
    pub fn counted(&self) -> Vec<(String, u64)> {
        let own = self.counters.snapshot().map(|(name, n)| (format!("node.{name}"), n));
        let of_device =
            |d: &Arc<Device>| d.counted().map(|(name, n)| (format!("{}.{name}", d.config.name), n));
        own.into_iter().chain(self.devices.iter().flat_map(of_device)).collect()
    }

    /// Opens the UDP port of a device, which must be done before its first packet; repeated calls
    /// are harmless. EADDRINUSE where another user, or the kernel's rdma_rxe, owns the port.
    pub fn attach(&self, device: &Device) -> Result<(), Error> {
        match device.config.transport {
            Transport::Roce => self.env.attach(device.config.interface).map_err(Error::System),
            // Each connection and each listener has a socket of its own; a port of a subnet needs
            // none.
            Transport::Iwarp | Transport::Ib => Ok(()),
        }
    }

    /// The process ends, while other threads go on and may hold any lock; none is waited for. ACKs
    /// held back leave ([`Device::on_exit`]), and peers hear that connections end.
    pub fn on_exit(&self, now: Instant) {
        self.devices.iter().for_each(|d| d.on_exit());
        self.leave_connections(now);
        self.link.faults().into_iter().for_each(|faults| faults.on_exit());
    }

    /// The interfaces are now as given: ports and GID tables follow, and identifiers are told.
    /// Devices neither come nor go while a program runs; the port of one whose interface is
    /// gone is down and has no GID.
    fn update_interfaces(&self, now: Instant, interfaces: &[Interface]) {
        *self.interfaces.lock() = interfaces.to_vec();
        self.update_ports(now);
    }

    /// Ports follow the interfaces, and what is wrong with them on purpose.
    fn update_ports(&self, now: Instant) {
        let interfaces = self.interfaces.lock().clone();
        for device in &self.devices {
            let before = device.port();
            let fault = self.port_fault(device.config.interface);
            let is_there =
                |i: &&Interface| i.index == device.config.interface && fault != Some(PortFault::Gone);
            let interface = interfaces.iter().find(is_there);
            let port = match interface {
                Some(i) => {
                    let port = devices::port(&before.gids, i);
                    Port { up: port.up && fault.is_none(), ..port }
                }
                None => Port { up: false, gids: GidTable::default(), ..(*before).clone() },
            };
            if port == *before {
                continue;
            }
            let removed = interface.is_none() && !before.gids.is_empty();
            if interface.is_some() {
                device.restore();
            }
            let are_lost = ib_groups::are_lost(&before, &port);
            device.set_port(port);
            if are_lost {
                self.groups_lost(device);
            }
            if removed {
                self.device_removed(now, device);
            } else {
                self.addresses_changed(device, &before.gids);
            }
        }
        self.share_aliases();
    }

    fn share_aliases(&self) {
        let ports: Vec<_> = self.devices.iter().map(|d| d.port()).collect();
        let aliases = devices::shared_aliases(&ports);
        self.devices.iter().for_each(|d| d.set_aliases(aliases.clone()));
    }
}

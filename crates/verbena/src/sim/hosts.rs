//! The hosts of a simulation, each of which runs one process of those that live, or a neighbour
//! beside it: names, addresses, what they boot, power.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::rc::Rc;

use ::fabric::net::Net;
use ::sim::{HostId, Power, Sim};

use super::fabric::host_named;
use super::world::World;

/// MTU of each link of an IP network, in bytes.
const MTU: u32 = 1500;

/// A host, or a neighbour on one: what stays when its process is killed.
pub(super) struct HostState {
    pub name: &'static str,
    pub id: HostId,
    /// The place whose addresses it bears: its own, or that of the host that it is a neighbour on.
    pub at: usize,
    /// The place in the list of processes of the one that lives.
    pub process: Option<usize>,
    /// What each of its processes begins with.
    pub boot: Option<Boot>,
}

/// Starts the task of a host that has begun a process.
pub(super) type Boot = Rc<dyn Fn(&World, usize)>;

/// The addresses of a host.
pub(super) fn addresses(host: usize) -> [IpAddr; 2] {
    let [.., high, low] = (host + 1).to_be_bytes();
    let v6 = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, u16::from_be_bytes([high, low]));
    [Ipv4Addr::new(10, 0, high, low).into(), v6.into()]
}

/// Adds the hosts of a test: to a fabric, or to an IP network.
///
/// # Panics
///
/// Where the fabric has no host of a name, or has more subnets than subnet managers.
pub(super) fn add_hosts(sim: &mut Sim, seed: u64, net: Option<&Net>, names: &[&str]) -> Vec<HostId> {
    let Some(net) = net else {
        return (0..names.len()).map(|n| sim.add_host(&addresses(n), MTU)).collect();
    };
    sim.lay_fabric(net, seed).unwrap_or_else(|why| panic!("{why}"));
    let add = |(n, name): (usize, &&str)| {
        let there = sim.with_fabric(|fabric, _| host_named(fabric, name)).flatten();
        there.and_then(|there| sim.add_fabric_host(&there, &addresses(n))).unwrap_or_else(|| {
            let all = sim.with_fabric(|fabric, _| fabric.hosts().collect::<Vec<_>>().join(", "));
            panic!("the fabric has no host `{name}`, but {}", all.unwrap_or_default())
        })
    };
    names.iter().enumerate().map(add).collect()
}

impl World {
    pub(super) fn host_name(&self, host: usize) -> &'static str {
        self.hosts.borrow().get(host).map_or("", |host| host.name)
    }
    pub(super) fn host_id(&self, host: usize) -> Option<HostId> {
        self.hosts.borrow().get(host).map(|host| host.id)
    }
    /// The place of a host of this name; never that of a neighbour, which bears the same addresses.
    pub(super) fn host_of_name(&self, name: &str) -> Option<usize> {
        self.hosts.borrow().iter().position(|host| host.name == name)
    }
    pub(super) fn addresses_of(&self, host: usize) -> [IpAddr; 2] {
        addresses(self.hosts.borrow().get(host).map_or(host, |host| host.at))
    }
    pub(super) fn living(&self, host: usize) -> Option<usize> {
        self.hosts.borrow().get(host)?.process
    }

    /// Starts another process on the host of this place; its own place.
    pub(super) fn neighbour(&self, host: usize) -> usize {
        let place = {
            let mut hosts = self.hosts.borrow_mut();
            if let Some(&HostState { name, id, at, .. }) = hosts.get(host) {
                let more = HostState { name, id, at, process: None, boot: None };
                hosts.push(more);
            }
            hosts.len() - 1
        };
        self.start(place);
        place
    }

    /// All that run on a host.
    fn places_on(&self, id: HostId) -> Vec<usize> {
        let hosts = self.hosts.borrow();
        hosts.iter().enumerate().filter(|(_, host)| host.id == id).map(|(place, _)| place).collect()
    }

    /// What a host runs whenever it starts; it runs now, too, where its process lives.
    pub(super) fn set_boot(&self, host: usize, boot: Boot) {
        let before = self.hosts.borrow_mut().get_mut(host).and_then(|host| host.boot.replace(boot));
        drop(before);
        self.boot(host);
    }

    pub(super) fn boot(&self, host: usize) {
        let boot = self.hosts.borrow().get(host).and_then(|host| Some((host.boot.clone()?, host.process?)));
        if let Some((boot, process)) = boot {
            let _here = self.enter(Some(process));
            boot(self, process);
        }
    }

    /// The power of a host fails: its processes are killed, then what is not persistent is lost.
    pub(super) fn power_fail(&self, host: usize) {
        let Some(id) = self.host_id(host) else { return };
        self.places_on(id).into_iter().for_each(|place| self.kill(place));
        self.sim.borrow_mut().power_fail(id);
    }

    /// Hosts whose power failed have no tasks any more; those whose power is back begin.
    pub(super) fn follow_power(&self) {
        let power = self.sim.borrow_mut().take_power();
        for power in power {
            let (Power::Failed(id) | Power::Back(id)) = power;
            for place in self.places_on(id) {
                match power {
                    Power::Failed(_) => self.kill(place),
                    // The test may have started it already.
                    Power::Back(_) if self.living(place).is_none() => self.start(place),
                    Power::Back(_) => {}
                }
            }
        }
    }
}

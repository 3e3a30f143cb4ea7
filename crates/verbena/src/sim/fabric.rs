//! A simulated InfiniBand fabric, as a test holds it.

use std::rc::Rc;

use ::fabric::counters::Counter;
use ::fabric::faults::FaultError;
use ::fabric::net::{FatTree, Net, Torus};

use super::world::World;
use crate::error::{Error, ErrorKind, Result, Value};

/// The InfiniBand fabric of a test with `fabric = "..."`, by [`Host::fabric`](super::Host::fabric):
/// switches and cables, by their names in the net file. Clones are the same fabric.
///
/// A port of a switch is known by the switch and a number from 1 on. Errors are `NotFound` with
/// what the fabric does not have.
#[derive(Clone)]
pub struct Fabric {
    world: Rc<World>,
}

impl Fabric {
    pub(super) fn new(world: &Rc<World>) -> Option<Self> {
        let world = world.clone();
        world.with_sim(|sim| sim.with_fabric(|_, _| ())).map(|()| Self { world })
    }

    fn with<T>(
        &self,
        call: &'static str,
        act: impl FnOnce(&mut ::fabric::Fabric) -> Result<T, FaultError>,
    ) -> Result<T> {
        let done = self.world.with_sim(|sim| sim.with_fabric(|fabric, _| act(fabric)));
        let text = |text: String| Error::new(ErrorKind::NotFound, call).with(Value::Text(text));
        done.ok_or_else(|| text("a fabric".to_owned()))?.map_err(|error| text(error.to_string()))
    }

    /// Cuts the cable at a port: packets that leave there are lost, and PortXmitDiscards counts
    /// them. The subnet manager learns of it, and some moments later packets go by other ways, if
    /// there are any.
    ///
    /// # Errors
    ///
    /// `NotFound` for a port that is not there, or has no cable.
    pub fn down(&self, node: &str, port: u8) -> Result<()> {
        self.with("sim::Fabric::down", |fabric| fabric.set_cut(node, port, true))
    }

    /// Mends the cable at a port. The subnet manager makes its ports active some moments later.
    ///
    /// # Errors
    ///
    /// `NotFound` for a port that is not there, or has no cable.
    pub fn up(&self, node: &str, port: u8) -> Result<()> {
        self.with("sim::Fabric::up", |fabric| fabric.set_cut(node, port, false))
    }

    /// Loses this share (0.0 to 1.0) of the packets that leave a port from now on; 0.0 ends that.
    ///
    /// # Errors
    ///
    /// `NotFound` for a port that is not there.
    pub fn set_drop(&self, node: &str, port: u8, share: f64) -> Result<()> {
        self.with("sim::Fabric::set_drop", |fabric| fabric.set_drop(node, port, ppm(share)))
    }

    /// Damages this share (0.0 to 1.0) of the packets that leave a port from now on: the other end
    /// counts them in SymbolErrorCounter and PortRcvErrors, and throws them away.
    ///
    /// # Errors
    ///
    /// `NotFound` for a port that is not there.
    pub fn set_damage(&self, node: &str, port: u8, share: f64) -> Result<()> {
        self.with("sim::Fabric::set_damage", |fabric| fabric.set_damage(node, port, ppm(share)))
    }

    /// A counter of a port by its name, as perfquery(8) prints it: PortXmitPkts, PortXmitData (in
    /// words of four bytes), PortXmitDiscards, LinkDownedCounter and so on.
    ///
    /// # Errors
    ///
    /// `NotFound` for a port or a counter that is not there.
    pub fn counter(&self, node: &str, port: u8, name: &str) -> Result<u64> {
        self.with("sim::Fabric::counter", |fabric| {
            let counter = Counter::named(name).ok_or_else(|| FaultError::NoCounter(name.to_owned()))?;
            Ok(counter.get(&fabric.counters_of(node, port)?))
        })
    }

    /// The way that packets take now from one node to another: the nodes that they leave, each with
    /// the port out.
    ///
    /// # Errors
    ///
    /// `NotFound` for a node that is not there or has no LID, `Unreachable` where the way ends
    /// early.
    pub fn trace(&self, from: &str, to: &str) -> Result<Vec<(String, u8)>> {
        let call = "sim::Fabric::trace";
        let (hops, lost) = self.with(call, |fabric| fabric.trace(from, to))?;
        match lost {
            None => Ok(hops.into_iter().map(|hop| hop.from).collect()),
            Some(lost) => {
                let after = hops.last().map_or(from, |hop| &hop.to.0);
                let text = format!("{to}: {lost}, at {after}");
                Err(Error::new(ErrorKind::Unreachable, call).with(Value::Text(text)))
            }
        }
    }
}

impl std::fmt::Debug for Fabric {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fabric").finish_non_exhaustive()
    }
}

/// A share as parts of a million.
fn ppm(share: f64) -> u32 {
    (share.clamp(0.0, 1.0) * 1e6).round() as u32
}

/// The net that the text of the attribute means.
pub(super) fn net(text: &str) -> Result<Net, String> {
    let name_and_size = text.split_once(' ').unwrap_or((text, ""));
    match name_and_size {
        ("fat-tree", size) => size.parse::<FatTree>().map(FatTree::net).map_err(|wrong| wrong.to_string()),
        ("torus", size) => size.parse::<Torus>().map(Torus::net).map_err(|wrong| wrong.to_string()),
        _ => {
            let file = std::fs::read_to_string(text).map_err(|error| format!("{text}: {error}"))?;
            Net::parse(&file).map_err(|wrong| format!("{text}: {wrong}"))
        }
    }
}

/// The host of a fabric that a parameter of a test names: signs that a name of Rust can not have
/// are `_` there.
pub(super) fn host_named(fabric: &::fabric::Fabric, parameter: &str) -> Option<String> {
    let as_parameter =
        |host: &str| host.replace(|sign: char| !sign.is_ascii_alphanumeric(), "_") == parameter;
    let exact = fabric.hosts().find(|host| *host == parameter);
    exact.or_else(|| fabric.hosts().find(|host| as_parameter(host))).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_a_generator_or_a_file_and_what_is_wrong_is_said() {
        assert_eq!(net("fat-tree 2,4").unwrap().nodes.len(), 8 + 6);
        assert_eq!(net("torus 3x3").unwrap().nodes.len(), 9 + 9);
        assert_eq!(net("fat-tree 2").unwrap_err(), "a fat tree is LEVELS,RADIX: 2,36");
        assert!(net("tests/nowhere.net").unwrap_err().starts_with("tests/nowhere.net: No such file"));
        assert_eq!(ppm(0.01), 10_000);
        assert_eq!([ppm(-1.0), ppm(7.0), ppm(f64::NAN)], [0, 1_000_000, 0]);
    }

    #[test]
    fn a_parameter_names_a_host_whose_name_has_other_signs() {
        let file = "Switch 2 \"s\"\n[1] \"x\"[1]\n[2] \"y\"[1]\nCa 1 \"x\" # \"node-01.rack mlx5_0\"\nCa 1 \"y\" # \"b\"\n";
        let fabric = ::fabric::Fabric::new(&Net::parse(file).unwrap(), 1);
        assert_eq!(host_named(&fabric, "node_01_rack").as_deref(), Some("node-01.rack"));
        assert_eq!(host_named(&fabric, "b").as_deref(), Some("b"));
        assert_eq!(host_named(&fabric, "c"), None);
    }
}

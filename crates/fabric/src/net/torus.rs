//! Tori of two or three dimensions: switches in a grid, each linked to its neighbours, the last of
//! a row to the first, and with a host.

use std::str::FromStr;

use super::builder::Builder;
use super::{MAX_NODES, Net};

/// The size of a torus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Torus {
    /// Switches along each dimension; 1 along the third of two.
    sizes: [usize; 3],
}

/// Why numbers are no torus.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TorusError {
    /// The text is not XxY or XxYxZ.
    #[error("a torus is XxY or XxYxZ: 4x4x4")]
    Text,
    /// A row that is no circle.
    #[error("a row of a torus has 3 switches or more, not {0}")]
    Row(usize),
    /// More nodes than a fabric has.
    #[error("the torus has more than the {MAX_NODES} nodes of a fabric")]
    Nodes,
}

const GUIDS: u64 = 0x0002_c903_0023_0000;
/// Ports of a switch: two a dimension and one for the host.
const PORTS: u8 = 7;

impl FromStr for Torus {
    type Err = TorusError;

    fn from_str(text: &str) -> Result<Self, TorusError> {
        let mut sizes = [1; 3];
        let mut count = 0;
        for (index, word) in text.split('x').enumerate() {
            let size = word.trim().parse().map_err(|_| TorusError::Text)?;
            *sizes.get_mut(index).ok_or(TorusError::Text)? = size;
            if size < 3 {
                return Err(TorusError::Row(size));
            }
            count = index + 1;
        }
        let nodes = sizes.iter().try_fold(2usize, |all, size| all.checked_mul(*size));
        match (count, nodes) {
            (..2, _) => Err(TorusError::Text),
            (_, Some(nodes)) if nodes <= MAX_NODES => Ok(Self { sizes }),
            _ => Err(TorusError::Nodes),
        }
    }
}

impl Torus {
    /// The torus: `sw1_0_2` is the second switch of the first row of the third plane, with host
    /// number 1 + 0 * X + 2 * X * Y.
    pub fn net(self) -> Net {
        let [x, y, z] = self.sizes;
        let mut net = Builder::default();
        let mut switches = Vec::new();
        for place in 0..x * y * z {
            let (a, b, c) = (place % x, place / x % y, place / (x * y));
            let switch = net.switch(PORTS, format!("sw{a}_{b}_{c}"), GUIDS);
            net.hosts(switch, 1);
            switches.push(switch);
        }
        let mut step = 1;
        for (dimension, size) in self.sizes.into_iter().enumerate() {
            let up = 2 + 2 * dimension;
            for place in 0..switches.len() {
                let along = place / step % size;
                let next = place - along * step + (along + 1) % size * step;
                if next != place {
                    net.link((switches[place], up), (switches[next], up + 1));
                }
            }
            step *= size;
        }
        net.finish()
    }
}

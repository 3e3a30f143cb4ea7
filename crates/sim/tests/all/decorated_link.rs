//! A link over the host's own sees every packet, and may lose some: what captures and faults stand
//! on. No engine knows.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::support::both_ways::Pair;
use nic::{Errno, Link, Path};
use sim::{Faults, Sim, SimEnv};
use transport::TxBatch;

/// Loses every hundredth packet.
struct EveryHundredth {
    link: Arc<SimEnv>,
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    packets: AtomicU64,
    lost: AtomicU64,
}

impl Link for EveryHundredth {
    fn send(&self, path: &Path, batch: &mut TxBatch) {
        batch.retain(|_| {
            let is_lost = self.counts.packets.fetch_add(1, Ordering::Relaxed) % 100 == 99;
            self.counts.lost.fetch_add(is_lost.into(), Ordering::Relaxed);
            !is_lost
        });
        self.link.send(path, batch);
    }
    fn can_reach(&self, dest: wire::Address) -> Result<(), Errno> {
        self.link.can_reach(dest)
    }
    fn join(&self, interface: u32, group: IpAddr) -> Result<(), Errno> {
        self.link.join(interface, group)
    }
    fn leave(&self, interface: u32, group: IpAddr) {
        self.link.leave(interface, group);
    }
}

#[test]
fn a_connection_survives_a_link_that_loses_every_hundredth_packet() {
    const LEN: usize = 5_000;
    let sim = Sim::new(1, Faults::none());
    let counts = Arc::new(Counts::default());
    let mut pair = Pair::on_links(sim, |_, link| Arc::new(EveryHundredth { link, counts: counts.clone() }));
    pair.send_each(500, LEN);
    assert!(counts.lost.load(Ordering::Relaxed) >= 25, "some were lost");
}

//! Many connections over a network that loses, doubles, reorders and delays, from many seeds: each
//! is established on both sides or fails on both, and disconnecting ends both. `VERBENA_SEED` runs
//! one seed.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::support::*;
use cm::{ConnId, Event, Refusal};
use wire::mad::Message;
use wire::{CommId, Qpn};

const SEEDS: u64 = 400;
const CONNECTIONS: usize = 6;

#[test]
fn every_connection_ends_the_same_on_both_sides() {
    let chosen = std::env::var("VERBENA_SEED").ok().map(|s| s.parse().expect("VERBENA_SEED is a number"));
    let mut both_established = 0;
    for seed in chosen.map_or(0..SEEDS, |seed| seed..seed + 1) {
        let run = std::panic::catch_unwind(|| Run::new(seed).go());
        both_established +=
            run.unwrap_or_else(|_| panic!("failed: VERBENA_SEED={seed} cargo test -p verbena-cm"));
    }
    assert!(chosen.is_some() || both_established > SEEDS as usize, "most connections are made");
}

struct Run {
    world: World,
    rng: Rng,
    /// (host, connection), as begun.
    begun: Vec<(usize, ConnId, CommId)>,
}

impl Run {
    fn new(seed: u64) -> Self {
        // Two client processes with one address, one server; the server is also a client of the
        // second.
        let mut world = World::new(&[2, 2, 3]);
        world.hosts[0].listens = false;
        let mut rng = Rng(seed);
        let (loss, double, slow) = (rng.below(21), rng.below(21), rng.below(21));
        let mut dice = Rng(rng.next());
        world.network = Box::new(move |_| {
            let mut copies = Vec::new();
            if !dice.percent(loss) {
                copies.push(());
                while dice.percent(double) {
                    copies.push(());
                }
            }
            let delay = |_| match dice.percent(slow) {
                true => Duration::from_millis(dice.below(1500)),
                false => Duration::from_micros(dice.below(300)),
            };
            copies.into_iter().map(delay).collect()
        });
        Self { world, rng, begun: Vec::new() }
    }

    /// The number of connections that were established.
    fn go(mut self) -> usize {
        for host in &mut self.world.hosts {
            host.willing = false;
        }
        for _ in 0..CONNECTIONS {
            let (from, to) = [(0, 2), (1, 2), (2, 1), (0, 1)][self.rng.below(4) as usize];
            let id = self.world.connect(from, to);
            let (ours, _) = self.world.hosts[from].cm.comm_ids(id).unwrap();
            self.begun.push((from, id, ours));
            let ms = self.rng.below(2_000);
            self.pass(ms);
        }
        for _ in 0..150 {
            self.pass(1_000);
        }
        let established = self.judge_handshakes();
        self.disconnect_all();
        for _ in 0..60 {
            self.pass(1_000);
        }
        self.judge_ends();
        established
    }

    /// Lets time pass in steps, with applications that react late and not always well.
    fn pass(&mut self, ms: u64) {
        for _ in 0..ms.div_ceil(100) {
            self.world.run_for(100 * MS);
            self.react();
        }
    }

    fn react(&mut self) {
        let w = &mut self.world;
        for i in 0..w.hosts.len() {
            let mut accept = w.accept_params(i);
            let host = &mut w.hosts[i];
            let (asked, replied): (Vec<_>, Vec<_>) = host
                .events
                .iter()
                .map(|(id, e)| (*id, e.clone()))
                .partition(|(_, e)| matches!(e, Event::Request(_)));
            for (id, _) in asked {
                if host.cm.qp_attr(id).is_some() || self.rng.percent(60) {
                    continue;
                }
                host.next_qpn += 1;
                accept.parameters.qpn = Qpn::new(host.next_qpn);
                // Calls on what is answered already, or over, are refused without harm.
                let _ = match self.rng.below(20) {
                    0 => host.cm.reject(w.now, id, Refusal::ConsumerDefined, &[]),
                    1 => {
                        host.cm.destroy(w.now, id);
                        Ok(())
                    }
                    _ => host.cm.accept(w.now, id, &accept),
                };
            }
            for (id, event) in replied {
                if matches!(event, Event::Reply(_)) && self.rng.percent(70) {
                    let _ = host.cm.established(w.now, id);
                }
            }
        }
        w.pump();
    }

    /// Ends of connections by the active side's communication id: what the active side has come to,
    /// and the passive sides a REQ has made (a late duplicate of one that is over may make
    /// another, which must come to nothing).
    fn judge_handshakes(&self) -> usize {
        let mut established = 0;
        for &(host, id, ours) in &self.begun {
            let made = self.is_up(host, id);
            let passive = self.passive_sides(ours);
            let up = passive.iter().filter(|&&(h, p)| self.is_up(h, p)).count();
            assert_eq!(up, usize::from(made), "{host} {id:?}: {:?}", self.history(host, id, &passive));
            if !made {
                let failed = |e: &Event| matches!(e, Event::Rejected { .. } | Event::Unreachable { .. });
                assert_eq!(self.world.count(host, id, failed), 1, "{:?}", self.history(host, id, &passive));
            }
            established += usize::from(made);
        }
        established
    }

    fn disconnect_all(&mut self) {
        for (host, id, ours) in self.begun.clone() {
            let passive = self.passive_sides(ours);
            let way = self.rng.below(4);
            let now = self.world.now;
            if way != 0 {
                let _ = self.world.hosts[host].cm.disconnect(now, id);
            }
            if way != 1 {
                for (h, p) in passive {
                    let cm = &mut self.world.hosts[h].cm;
                    match way {
                        2 => cm.destroy(now, p),
                        _ => drop(cm.disconnect(now, p)),
                    }
                }
            }
        }
        self.world.pump();
    }

    fn judge_ends(&mut self) {
        for &(host, id, ours) in &self.begun {
            for (h, p) in self.passive_sides(ours).into_iter().chain([(host, id)]) {
                assert!(!self.is_up(h, p), "{h} {p:?} is still up");
                let over = |e: &Event| {
                    matches!(
                        e,
                        Event::Rejected { .. } | Event::Unreachable { .. } | Event::Disconnected { .. }
                    )
                };
                assert!(self.world.count(h, p, over) <= 1, "one end: {:?}", self.history(h, p, &[]));
            }
        }
        let now = self.world.now;
        for host in &mut self.world.hosts {
            let ids: Vec<_> = host.events.iter().map(|&(id, _)| id).collect();
            ids.into_iter().for_each(|id| host.cm.destroy(now, id));
        }
        self.world.run_for(100_000 * MS);
        for host in &self.world.hosts {
            assert!(host.cm.is_empty() && host.cm.deadline().is_none(), "nothing is left: {:?}", host.cm);
            let mut released = BTreeMap::new();
            for &(id, _) in &host.released {
                *released.entry(id).or_insert(0) += 1;
            }
            assert!(released.values().all(|&n| n == 1), "each queue pair is released once");
        }
    }

    fn is_up(&self, host: usize, id: ConnId) -> bool {
        let w = &self.world;
        let up = |e: &Event| matches!(e, Event::Reply(_) | Event::Established);
        let down = |e: &Event| {
            matches!(
                e,
                Event::Rejected { .. }
                    | Event::Unreachable { .. }
                    | Event::Disconnected { .. }
                    | Event::TimewaitExit
            )
        };
        w.hosts[host].cm.qp_attr(id).is_some() && w.saw(host, id, up) && !w.saw(host, id, down)
    }

    fn passive_sides(&self, active: CommId) -> Vec<(usize, ConnId)> {
        let hosts = self.world.hosts.iter().enumerate();
        hosts
            .flat_map(|(i, h)| h.askers.iter().map(move |(id, asker)| (i, *id, *asker)))
            .filter(|(_, _, asker)| *asker == active)
            .map(|(i, id, _)| (i, id))
            .collect()
    }

    /// For the message of a failure.
    fn history(&self, host: usize, id: ConnId, passive: &[(usize, ConnId)]) -> Vec<String> {
        let name = |e: &Event| match e {
            Event::Request(_) => "Request".to_owned(),
            Event::Reply(_) => "Reply".to_owned(),
            Event::Rejected { reason, .. } => format!("Rejected {reason}"),
            other => format!("{other:?}"),
        };
        let sides = passive.iter().copied().chain([(host, id)]);
        let events = sides.flat_map(|(h, of)| {
            self.world.hosts[h].events.iter().filter(move |(id, _)| *id == of).map(move |(id, e)| (h, *id, e))
        });
        let mut lines: Vec<_> = events.map(|(h, id, e)| format!("{h} {id:?} {}", name(e))).collect();
        let of = |s: &&Sent| s.from == host || passive.iter().any(|&(h, _)| h == s.from);
        lines.extend(self.world.sent.iter().filter(of).map(|s| match &s.mad.message {
            Message::Rej(rej) => format!("{:?} {} REJ {}", s.at - self.world.start, s.from, rej.reason),
            _ => format!("{:?} {} {}", s.at - self.world.start, s.from, kind(&s.mad)),
        }));
        lines
    }
}

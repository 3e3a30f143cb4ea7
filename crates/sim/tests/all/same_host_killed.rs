//! A process that is killed at any step, or ends the connection. The step may be in the midst of
//! calls of its own and of copies that others do with its memory. What its peer on the same host is
//! told is true, its queue ends, and no process touches the memory of the dead one.

use std::net::IpAddr;
use std::time::Duration;

use crate::support::connections::{Party, param, resolved};
use crate::support::dying::{ALL, PIECE, POISON, Side};
use crate::support::{Endpoint, Wiring, send, wire_up};
use nic::rdma_cm::EventKind;
use nic::{QpAttr, QpState, mask};
use sim::{Dice, Faults, ProcessId, Sim};
use transport::op::{RecvWr, Status};
use wire::{Mtu, Psn};

/// Ten thousand in a longer run: VERBENA_SEEDS=10000.
const SEEDS: u64 = 200;
/// How the other one dies.
#[derive(Clone, Copy, Debug)]
enum Death {
    /// In the midst of something, at a step of this number.
    AtStep(u64),
    /// Between two things that happen.
    Between(u64),
    /// The process lives: at some moment it ends the connection, and uses its memory for something
    /// else.
    Ends(u64),
}

struct Run {
    sim: Sim,
    dice: Dice,
    /// The one that lives, and the one that is killed.
    sides: [Side; 2],
    /// Another process, which has a queue pair with one of the one that lives.
    witness: Witness,
    takes_back: bool,
    drains: bool,
}

/// A process that nothing happens to, and the queue pairs between it and the one that lives.
struct Witness {
    process: ProcessId,
    ends: [Endpoint; 2],
    told: u64,
}

impl Run {
    fn new(seed: u64) -> Self {
        let mut dice = Dice::new(seed).fork(31);
        let unreached = dice.pick(&[0.0, 0.0, 0.3]);
        let mapped = dice.pick(&[0.0, 0.5, 1.0]);
        let shared = dice.pick(&[0.0, 0.5, 1.0]);
        let mut sim = Sim::new(seed, Faults::none().unreached(unreached).mapped(mapped).shared(shared));
        if sim::seeds::single().is_some() {
            sim.log();
        }
        let address = IpAddr::from([10, 0, 0, 1]);
        let host = sim.add_host(&[address], 1500);
        let [client, server, third] = [0; 3].map(|_| Party::new(&mut sim, host, address));
        let client_dies = dice.chance(0.5);
        let _listener = server.listen();
        let id = resolved(&mut sim, &client, address);
        let [mut client, mut server] = [(client, !client_dies), (server, client_dies)]
            .map(|(party, lives)| Side::new(party, &mut dice, if lives { 0x11 } else { 0x22 }));
        client.party.node.set_qp(&id, &client.endpoint.qp).unwrap();
        client.party.node.connect(&id, &param(), &[]).unwrap();
        sim.run_for(Duration::from_millis(10));
        let request = server.party.next().unwrap();
        assert_eq!(request.kind, EventKind::ConnectRequest);
        server.party.node.set_qp(&request.id, &server.endpoint.qp).unwrap();
        server.party.node.accept(&request.id, None, &[]).unwrap();
        (client.id, server.id) = (Some(id), Some(request.id.clone()));
        if dice.chance(0.8) {
            sim.run_for(Duration::from_millis(10));
        } else {
            // Until both may send: memory is not reached yet, or of one only.
            let both = |client: &Side, server: &Side| {
                [client, server].iter().all(|side| side.endpoint.qp.state() == QpState::Rts)
            };
            let limit = sim.elapsed() + Duration::from_millis(10);
            while !both(&client, &server) {
                assert!(sim.step(limit));
            }
        }
        let sides = if client_dies { [server, client] } else { [client, server] };
        let witness = Witness::new(&sides[0].party, &third, address);
        let (takes_back, drains) = (dice.chance(0.4), dice.chance(0.3));
        Self { sim, dice, sides, witness, takes_back, drains }
    }

    fn is_dead(&mut self) -> bool {
        if self.sides[1].left.is_some() {
            return true;
        }
        if self.sim.lives(self.sides[1].party.process) {
            return false;
        }
        self.poison();
        true
    }

    /// Keeps what the dead process had, and poisons its memory: no process is to see anything of
    /// this.
    fn poison(&mut self) {
        let dead = &mut self.sides[1];
        dead.left = Some(dead.memory.read(0, ALL));
        dead.memory.write(0, &[POISON; ALL]);
        if let Some(extra) = &dead.extra {
            extra.write(0, &[POISON; PIECE]);
        }
    }

    /// The process that lives ends the connection, and has all back that it has posted.
    fn end_connection(&mut self) {
        let side = &self.sides[1];
        side.party.node.disconnect(side.id.as_ref().unwrap()).unwrap();
        self.poll(1);
        assert!(self.sides[1].is_over(), "all is flushed when the call returns");
        self.poison();
    }

    fn poll(&mut self, me: usize) {
        if me == 1 && self.is_dead() {
            return;
        }
        let [a, b] = &mut self.sides;
        let (side, peer) = if me == 0 { (a, b) } else { (b, a) };
        let (sends, receives) =
            (Endpoint::poll(&side.endpoint.sends), Endpoint::poll(&side.endpoint.receives));
        receives.iter().for_each(|c| side.got(peer, c));
        sends.iter().for_each(|c| side.sent(peer, c));
        while let Some(event) = side.party.next() {
            if let (EventKind::Disconnected, Some(id)) = (event.kind, &side.id) {
                side.party.node.disconnect(id).unwrap();
            }
        }
    }

    /// Something that a program does.
    fn act(&mut self, me: usize) {
        if me == 1 && self.is_dead() {
            return;
        }
        let [a, b] = &mut self.sides;
        let (side, peer) = if me == 0 { (a, b) } else { (b, a) };
        match self.dice.below(10) {
            0..=2 => side.post_receive(),
            3 if self.drains => {
                let to = match side.endpoint.qp.state() {
                    QpState::Rts => QpState::Sqd,
                    QpState::Sqd => QpState::Rts,
                    _ => return,
                };
                side.endpoint.qp.modify(side.now(), &QpAttr::default().with_state(to), mask::STATE).unwrap();
            }
            4 if self.takes_back && self.dice.chance(0.2) => {
                if side.extra.take().is_some() && side.left.is_none() {
                    peer.posted_before = peer.posted;
                }
            }
            _ => {
                let named = (peer.memory.addr(), peer.memory.key());
                side.post_send(named, peer.extra_named);
            }
        }
    }

    fn step(&mut self, until: Duration) -> bool {
        let stepped = self.sim.step(until);
        self.is_dead();
        self.poll(0);
        self.poll(1);
        self.witness.check(&mut self.sim);
        stepped
    }

    /// Runs until the one is dead; when.
    fn kill(&mut self, death: Death) -> Duration {
        let victim = self.sides[1].party.process;
        if let Death::AtStep(step) = death {
            self.sim.kill_at_step(victim, step);
        }
        let mut things = 0;
        let timeout = self.sim.elapsed() + Duration::from_millis(20);
        while !self.is_dead() {
            for me in [0, 1] {
                if self.dice.chance(0.5) {
                    self.act(me);
                }
                self.poll(me);
            }
            let pause = Duration::from_nanos(self.dice.below(20_000));
            let until = self.sim.elapsed() + pause;
            loop {
                let over = match death {
                    Death::AtStep(_) => self.sim.elapsed() > timeout,
                    Death::Between(most) | Death::Ends(most) => things >= most,
                };
                if over && !self.is_dead() {
                    match death {
                        Death::Ends(_) => self.end_connection(),
                        _ => self.sim.kill(victim),
                    }
                }
                things += 1;
                if self.is_dead() || !self.step(until) {
                    break;
                }
            }
        }
        self.sim.elapsed()
    }

    /// The one that lives is told, and its queue ends; after how long.
    fn survive(&mut self, died: Duration) -> Duration {
        let second = died + Duration::from_secs(1);
        // It does not know yet, and goes on.
        for _ in 0..self.dice.below(20) {
            self.act(0);
            let until = self.sim.elapsed() + Duration::from_nanos(self.dice.below(20_000));
            while self.step(until) {}
        }
        while !self.sides[0].is_over() {
            let stepped = self.step(second);
            let side = &self.sides[0];
            let all = (side.completed, side.posted, side.received + side.flushed, side.receives_posted);
            assert!(stepped, "its queue does not end: {:?} {all:?}", side.endpoint.qp.state());
        }
        let ended = self.sim.elapsed();
        // Nothing comes after the flushes but those of what is posted now.
        let end = self.sim.elapsed() + Duration::from_millis(300);
        while self.step(end) {}
        let before = self.sides[0].posted;
        self.act(0);
        self.poll(0);
        assert!(self.sides[0].is_over() && self.sides[0].posted <= before + 1);
        ended - died
    }

    fn finish(mut self) -> Sim {
        self.witness.finish(&mut self.sim);
        let [alive, dead] = &mut self.sides;
        assert!(dead.memory.holds(0, &[POISON; ALL]), "the memory of the dead was written to");
        if let Some(extra) = &dead.extra {
            assert!(extra.holds(0, &[POISON; PIECE]), "the memory of the dead was written to");
        }
        let all = alive.memory.read(0, ALL);
        assert!(!all.contains(&POISON), "the memory of the dead was read");
        let id = alive.id.take().unwrap();
        alive.party.node.take_qp(&id).unwrap().destroy();
        alive.party.node.destroy(&id);
        self.sim.run_for(Duration::from_secs(60));
        assert_eq!(self.sides[0].party.node.connections(), 0);
        // All memory of a process goes with it, but for events that the program has not fetched.
        self.sides.iter().for_each(|side| while side.party.next().is_some() {});
        for process in [self.sides[1].party.process, self.sides[0].party.process, self.witness.process] {
            self.sim.kill(process);
        }
        self.sim
    }
}

impl Witness {
    fn new(one: &Party, other: &Party, address: IpAddr) -> Self {
        let ends = [Endpoint::new(&one.node), Endpoint::new(&other.node)];
        let wiring =
            Wiring { mtu: Mtu::M1024, timeout: 14, rnr_retry: 7, min_rnr_timer: 1, max_rd_atomic: 1 };
        let psn = Psn::new(5);
        wire_up(&one.node, &ends[0], &ends[1], address, &wiring, (psn, psn));
        wire_up(&other.node, &ends[1], &ends[0], address, &wiring, (psn, psn));
        Self { process: other.process, ends, told: 0 }
    }

    /// One message is under way all the time.
    fn check(&mut self, sim: &mut Sim) {
        let done = Endpoint::poll(&self.ends[0].sends);
        let [from, to] = &self.ends;
        assert!(done.iter().all(|c| (c.wr_id, c.status) == (self.told, Status::Success)), "{done:?}");
        if done.len() == 1 || self.told == 0 {
            self.told += 1;
            assert!(Endpoint::poll(&to.receives).iter().all(|c| c.status == Status::Success));
            to.qp.post_receive(RecvWr { wr_id: 0, sges: [].into_iter().collect() }).unwrap();
            from.qp.post_send(sim.now(), send(self.told, b"")).unwrap();
        }
    }

    fn finish(&mut self, sim: &mut Sim) {
        assert!(self.told > 3, "it had messages all the time");
        sim.run_for(Duration::from_millis(1));
        assert_eq!(self.ends.each_ref().map(|end| end.qp.state()), [QpState::Rts; 2]);
        self.ends.iter().for_each(|end| end.qp.destroy());
    }
}

fn run(test: &str, salt: u64, death: impl Fn(&mut Dice) -> Death) {
    let (mut copied, mut not_copied, mut longest, mut all) = (0, 0, Duration::ZERO, 0);
    sim::each_seed("same_host_killed", test, SEEDS, |seed| {
        let mut run = Run::new(seed + salt);
        let death = death(&mut run.dice);
        let died = run.kill(death);
        longest = longest.max(run.survive(died));
        let counters = run.finish().counters();
        all += 1;
        copied += counters.copied;
        not_copied += counters.not_copied;
    });
    eprintln!(
        "{all} seeds: {copied} copies, {not_copied} that did not come about; the last queue ended after {longest:?}"
    );
    assert!(all < SEEDS || copied > SEEDS && not_copied > SEEDS / 20, "{copied} {not_copied}");
}

#[test]
fn a_process_killed_at_any_step_leaves_a_neighbour_that_is_told_the_truth_and_a_queue_that_ends() {
    run("a_process_killed_at_any_step", 0, |dice| match dice.chance(0.7) {
        true => Death::AtStep(dice.between(1, 80)),
        false => Death::Between(dice.below(60)),
    });
}

#[test]
fn what_a_program_has_back_is_not_taken_for_what_it_sent_and_nobody_reaches_it() {
    run("what_a_program_has_back", 1_000_000, |dice| Death::Ends(dice.below(100)));
}

//! Connections whose ends do not fit: whatever does not fit, each operation ends between processes
//! of one host as it ends over a network, at both ends. So no short cut asks less than the way that
//! it replaces.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::support;
use crate::support::both_ways::{End, WAYS, signaled};
use crate::support::misfit::{Side, bring_up};
use crate::support::operations::{
    LONG, OPERATIONS, Operation, SEVERAL, Send, SendImmediate, SendInline, SendList, Write, WriteImmediate,
    WriteInline, WriteList, Writes,
};
use crate::support::{Endpoint, RIGHTS, Way};
use nic::memory::WindowType;
use nic::{Access, Buffer, EventKind, QpAttr, QpState, QpType, mask};
use sim::{Faults, Sim};
use transport::op::{Bind, Completed, Completion, LocalOp, RecvWr, SendOp, Status};
use wire::{Mtu, Qpn, Rkey};

/// Bytes of each end's memory.
const LEN: usize = 200_000;
/// All rights but that of binding windows.
const ALL: u32 = RIGHTS | Access::FLUSH_GLOBAL;
/// Rounds before what changes midway does, and in all.
const BEFORE: u64 = 2;
const ROUNDS: u64 = 4;

/// Both ends, of which the second has what does not fit.
struct Ends {
    sim: Sim,
    a: End,
    b: End,
    sides: [Side; 2],
    /// The key by which `a` names memory of `b`, and where that begins.
    key: Rkey,
    /// Rights of memory of `a` for what it names itself.
    lkey: Rkey,
    /// What else has to stay.
    kept: Vec<Buffer>,
}

impl Ends {
    fn new(way: Way) -> Self {
        let mapped = if way == Way::Mapped { 1.0 } else { 0.0 };
        let shared = if way == Way::Shared { 1.0 } else { 0.0 };
        let mut sim = Sim::new(1, Faults::none().mapped(mapped).shared(shared));
        let [here, other, there, another] = [1, 2, 3, 4].map(|n| IpAddr::from([10, 0, 0, n]));
        let hosts = match way.is_one_host() {
            false => [&[here, other], &[there, another]].map(|ours| sim.add_host(ours, 9000)),
            true => [sim.add_host(&[here, other, there, another], 9000); 2],
        };
        let [a, b] = [(hosts[0], here), (hosts[1], there)].map(|(host, address)| {
            let process = sim.start(host, &stack::Config::default());
            let mut end = End::new(&sim, process, address);
            end.memory = Buffer::new(&end.endpoint.pd, LEN, 0x10_0000, ALL | Access::MW_BIND).unwrap();
            end
        });
        a.memory.write(0, &support::both_ways::bytes(LEN, 1));
        let sides = [Side::of(&a, &b), Side::of(&b, &a)];
        let (key, lkey) = (b.memory.key(), a.memory.key());
        Self { sim, a, b, sides, key, lkey, kept: Vec::new() }
    }

    fn pass(&mut self) {
        self.sim.run_for(Duration::from_secs(1));
    }

    /// The second end again, of another kind.
    fn replace(&mut self, kind: QpType) {
        self.b.endpoint = Endpoint { pd: self.b.endpoint.pd.clone(), ..Endpoint::of(&self.b.node, kind) };
        self.sides[0].dest = self.b.endpoint.qp.qpn();
    }

    /// Memory of the second end with these rights, by which the first one names it from now on.
    fn name(&mut self, end: &Arc<nic::Pd>, rights: u32) {
        let buffer = Buffer::new(end, LEN, 0x10_0000, rights).unwrap();
        self.key = buffer.key();
        self.kept.push(buffer);
    }

    /// A window of the second type of all memory at the second end, bound by this queue pair.
    fn bind(&mut self, by: &Endpoint, rights: u32) {
        let window = self.b.endpoint.pd.alloc_window(WindowType::Two).unwrap();
        let key = self.b.endpoint.pd.window_key(window);
        let (region, addr) = (self.b.memory.key(), self.b.memory.addr());
        let bind = Bind { window: window.name(), key, region, addr, length: LEN as u64, access: rights };
        let wr = signaled(90, SendOp::Local(LocalOp::Bind(bind)), self.b.memory.sge(0, 0));
        by.qp.post_send(self.b.now(), wr).unwrap();
        assert_eq!(Endpoint::poll(&by.sends).len(), 1);
        self.key = key;
    }

    /// Ends both connections and begins them again, as far as the sides say.
    fn again(&self, which: [bool; 2]) {
        for (end, (side, again)) in [&self.a, &self.b].into_iter().zip(self.sides.iter().zip(which)) {
            if again {
                end.go_to(QpState::Reset);
                bring_up(end, side);
            }
        }
    }
}

/// What does not fit. Each is made before the ends are connected, when they are, or when they have
/// worked for a while.
#[derive(Clone, Copy)]
struct Misfit {
    name: &'static str,
    before: fn(&mut Ends),
    after: fn(&mut Ends),
    midway: fn(&mut Ends),
}

fn nothing(_: &mut Ends) {}

const fn before(name: &'static str, before: fn(&mut Ends)) -> Misfit {
    Misfit { name, before, after: nothing, midway: nothing }
}
const fn after(name: &'static str, after: fn(&mut Ends)) -> Misfit {
    Misfit { name, before: nothing, after, midway: nothing }
}
const fn midway(name: &'static str, midway: fn(&mut Ends)) -> Misfit {
    Misfit { name, before: nothing, after: nothing, midway }
}

/// Misfits of numbers and packets.
const NUMBERS: &[Misfit] = &[
    before("fits", nothing),
    before("one more number awaited", |e| e.sides[1].rq_psn = e.sides[1].rq_psn.add(1)),
    before("numbers far behind awaited", |e| e.sides[1].rq_psn = e.sides[1].rq_psn.add(7)),
    before("numbers ahead sent", |e| e.sides[0].sq_psn = e.sides[0].sq_psn.add(7)),
    before("numbers half a circle away", |e| e.sides[0].sq_psn = e.sides[0].sq_psn.add(1 << 23)),
    before("answers numbered otherwise", |e| e.sides[1].sq_psn = e.sides[1].sq_psn.add(9)),
    before("1024 and 256", |e| [e.sides[0].mtu, e.sides[1].mtu] = [Mtu::M1024, Mtu::M256]),
    before("256 and 1024", |e| [e.sides[0].mtu, e.sides[1].mtu] = [Mtu::M256, Mtu::M1024]),
    before("4096 and 1024", |e| [e.sides[0].mtu, e.sides[1].mtu] = [Mtu::M4096, Mtu::M1024]),
    before("4096 and 2048", |e| [e.sides[0].mtu, e.sides[1].mtu] = [Mtu::M4096, Mtu::M2048]),
    before("2048 and 4096", |e| [e.sides[0].mtu, e.sides[1].mtu] = [Mtu::M2048, Mtu::M4096]),
    before("1024 and 2048", |e| [e.sides[0].mtu, e.sides[1].mtu] = [Mtu::M1024, Mtu::M2048]),
    before("512 and 4096", |e| [e.sides[0].mtu, e.sides[1].mtu] = [Mtu::M512, Mtu::M4096]),
    before("numbers and path MTU", |e| {
        (e.sides[1].mtu, e.sides[1].rq_psn) = (Mtu::M256, e.sides[1].rq_psn.add(3));
    }),
];

/// Misfits of the queue pairs' attributes and states.
const ATTRIBUTES: &[Misfit] = &[
    before("no responder resources", |e| e.sides[1].resources = 0),
    before("one READ at a time", |e| [e.sides[1].resources, e.sides[0].depth] = [1, 1]),
    before("no initiator depth", |e| e.sides[0].depth = 0),
    before("an initiator depth of one", |e| e.sides[0].depth = 1),
    before("no rights", |e| e.sides[1].access = 0),
    before("the right to write", |e| e.sides[1].access = Access::REMOTE_WRITE),
    before("the right to read", |e| e.sides[1].access = Access::REMOTE_READ),
    before("the right to change", |e| e.sides[1].access = Access::REMOTE_ATOMIC),
    before("no right to flush", |e| e.sides[1].access = RIGHTS),
    before("peer in RESET", |e| e.sides[1].state = QpState::Reset),
    before("peer in INIT", |e| e.sides[1].state = QpState::Init),
    before("peer in RTR", |e| e.sides[1].state = QpState::Rtr),
    before("peer in SQD", |e| e.sides[1].state = QpState::Sqd),
    before("peer in ERR", |e| e.sides[1].state = QpState::Error),
    before("in SQD", |e| e.sides[0].state = QpState::Sqd),
    before("in ERR", |e| e.sides[0].state = QpState::Error),
    before("in RTR", |e| e.sides[0].state = QpState::Rtr),
    before("the peer has another peer", |e| e.sides[1].dest = e.b.endpoint.qp.qpn()),
    before("the peer has a peer that is not there", |e| {
        e.sides[1].dest = Qpn::new(e.sides[1].dest.get() ^ 5)
    }),
    before("no such peer", |e| e.sides[0].dest = Qpn::new(e.sides[0].dest.get() ^ 5)),
    before("to another address of the peer's", |e| e.sides[0].to = IpAddr::from([10, 0, 0, 4])),
    before("from another address", |e| e.sides[0].from = IpAddr::from([10, 0, 0, 2])),
    before("the peer answers to another address", |e| e.sides[1].to = IpAddr::from([10, 0, 0, 2])),
    before("the peer answers from another address", |e| e.sides[1].from = IpAddr::from([10, 0, 0, 4])),
    before("the peer is of UC", |e| e.replace(QpType::Uc)),
    before("the peer is an XRC initiator", |e| e.replace(QpType::XrcSend)),
];

/// Misfits of memory.
const MEMORY: &[Misfit] = &[
    before("a region of another domain", |e| {
        let pd = Arc::new(e.b.node.devices()[0].alloc_pd().unwrap());
        e.name(&pd, ALL);
    }),
    before("a region without rights", |e| e.name(&e.b.endpoint.pd.clone(), Access::LOCAL_WRITE)),
    before("a region to read", |e| e.name(&e.b.endpoint.pd.clone(), Access::REMOTE_READ)),
    before("a region to write", |e| {
        e.name(&e.b.endpoint.pd.clone(), Access::LOCAL_WRITE | Access::REMOTE_WRITE);
    }),
    before("a region to change", |e| {
        e.name(&e.b.endpoint.pd.clone(), Access::LOCAL_WRITE | Access::REMOTE_ATOMIC);
    }),
    before("a key that is none", |e| e.key = Rkey(e.key.0 ^ 1)),
    before("the key 0", |e| e.key = Rkey(0)),
    before("memory of ours that is not to be written to", |e| {
        let buffer = Buffer::new(&e.a.endpoint.pd, LEN, 0x10_0000, Access::REMOTE_READ).unwrap();
        e.lkey = buffer.key();
        e.kept.push(buffer);
    }),
    before("memory of ours of another domain", |e| {
        let pd = Arc::new(e.a.node.devices()[0].alloc_pd().unwrap());
        let buffer = Buffer::new(&pd, LEN, 0x10_0000, ALL).unwrap();
        e.lkey = buffer.key();
        e.kept.push(buffer);
    }),
    before("no memory of ours", |e| e.lkey = Rkey(e.lkey.0 ^ 1)),
    after("a window", |e| {
        let b = Endpoint { qp: e.b.endpoint.qp.clone(), ..clone(&e.b.endpoint) };
        e.bind(&b, ALL & !Access::LOCAL_WRITE);
    }),
    after("a window of another queue pair", |e| {
        let mut other = End::new(&e.sim, e.b.process, e.b.address);
        other.endpoint = Endpoint { pd: e.b.endpoint.pd.clone(), ..of_domain(&e.b, &e.b.endpoint.pd) };
        bring_up(&other, &Side { ..e.sides[1] });
        e.bind(&other.endpoint, ALL & !Access::LOCAL_WRITE);
    }),
];

/// What changes while they work.
const CHANGES: &[Misfit] = &[
    midway("the peer goes to SQD", |e| go(&e.b, QpState::Sqd)),
    midway("the peer goes to ERR", |e| go(&e.b, QpState::Error)),
    midway("the peer goes to RESET", |e| go(&e.b, QpState::Reset)),
    midway("the peer is destroyed", |e| e.b.endpoint.qp.destroy()),
    midway("the peer begins again with its first number", |e| e.again([false, true])),
    midway("the peer begins again with another path MTU", |e| {
        e.sides[1].mtu = Mtu::M256;
        e.again([false, true]);
    }),
    midway("both begin again with other numbers", |e| {
        e.sides[1].rq_psn = e.sides[1].rq_psn.add(1 << 20);
        e.again([true, true]);
    }),
    midway("both begin again with other path MTUs", |e| {
        e.sides[1].mtu = Mtu::M256;
        e.again([true, true]);
    }),
    midway("both begin again without resources", |e| {
        e.sides[1].resources = 0;
        e.again([true, true]);
    }),
    midway("the peer goes to SQD and back", |e| {
        go(&e.b, QpState::Sqd);
        go(&e.b, QpState::Rts);
    }),
    midway("both begin again", |e| e.again([true, true])),
    midway("this end begins again with a number ahead", |e| {
        e.sides[0].sq_psn = e.sides[0].sq_psn.add(1000);
        e.again([true, false]);
    }),
    midway("the peer's rights are taken", |e| {
        change(&e.b, QpAttr { access: 0, ..QpAttr::default() }, mask::ACCESS_FLAGS);
    }),
    midway("the peer's resources are taken", |e| {
        go(&e.b, QpState::Sqd);
        let attr = QpAttr { max_dest_rd_atomic: 0, state: QpState::Sqd, ..QpAttr::default() };
        change(&e.b, attr, mask::STATE | mask::MAX_DEST_RD_ATOMIC);
        go(&e.b, QpState::Rts);
    }),
    midway("our depth is taken", |e| {
        go(&e.a, QpState::Sqd);
        let attr = QpAttr { max_rd_atomic: 0, state: QpState::Sqd, ..QpAttr::default() };
        change(&e.a, attr, mask::STATE | mask::MAX_QP_RD_ATOMIC);
        go(&e.a, QpState::Rts);
    }),
    midway("this end goes to SQD and back", |e| {
        go(&e.a, QpState::Sqd);
        go(&e.a, QpState::Rts);
    }),
    midway("this end goes to ERR", |e| go(&e.a, QpState::Error)),
    midway("the region goes", |e| {
        e.b.memory = Buffer::new(&e.b.endpoint.pd, LEN, 0x10_0000, ALL | Access::MW_BIND).unwrap();
    }),
];

/// Numbers that the peer has seen. What it remembers of READs and atomics it answers again. Of
/// those that needed no thread of its process it remembers nothing: so these are left out.
const USED_UP: &[Misfit] = &[
    midway("this end begins again with its first number", |e| e.again([true, false])),
    midway("this end begins again with another path MTU", |e| {
        e.sides[0].mtu = Mtu::M256;
        e.again([true, false]);
    }),
];

/// A queue pair that has failed stays as it is.
fn change(end: &End, attr: QpAttr, bits: u32) {
    let _ = end.endpoint.qp.modify(end.now(), &attr, bits);
}

fn go(end: &End, state: QpState) {
    change(end, QpAttr::default().with_state(state), mask::STATE);
}

fn clone(of: &Endpoint) -> Endpoint {
    let Endpoint { pd, qp, sends, receives, events } = of;
    Endpoint {
        pd: pd.clone(),
        qp: qp.clone(),
        sends: sends.clone(),
        receives: receives.clone(),
        events: events.clone(),
    }
}

/// A queue pair of this domain.
fn of_domain(end: &End, pd: &Arc<nic::Pd>) -> Endpoint {
    let of = Endpoint::new(&end.node);
    let qp = nic::Qp::create(&end.node.devices()[0], pd, of.qp.init().clone()).unwrap();
    Endpoint { qp, ..of }
}

/// What the program sees of it.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    refused: Vec<String>,
    sent: Vec<(u64, Status, Completed, u32)>,
    received: [Vec<(u64, Status, Completed, u32)>; 2],
    events: [Vec<EventKind>; 2],
    states: [QpState; 2],
    /// The peer's memory, where that is known; and ours, where nothing failed.
    memory: [Vec<u8>; 2],
}

fn told(all: &[Completion]) -> Vec<(u64, Status, Completed, u32)> {
    all.iter().map(|c| (c.wr_id, c.status, c.opcode, c.byte_len)).collect()
}

fn see(way: Way, misfit: &Misfit, operation: Operation) -> Seen {
    let mut e = Ends::new(way);
    (misfit.before)(&mut e);
    bring_up(&e.b, &e.sides[1]);
    bring_up(&e.a, &e.sides[0]);
    (misfit.after)(&mut e);
    // Until each knows what the other one lends: the first request might be copied, if it might at
    // all.
    e.pass();
    let mut refused = Vec::new();
    let mut sent = Vec::new();
    for n in 0..ROUNDS {
        if n == BEFORE {
            (misfit.midway)(&mut e);
        }
        for _ in 0..3 {
            let sges = [e.b.memory.sge(0, LONG)].into_iter().collect();
            let posted = e.b.endpoint.qp.post_receive(RecvWr { wr_id: n, sges });
            refused.extend(posted.err().map(|error| error.to_string()));
        }
        let requests = operation.requests((&e.a, e.lkey), (e.b.memory.addr(), e.key), n);
        let now = e.a.now();
        let time = || now;
        let mut sender = e.a.endpoint.qp.sender_asking(&time);
        let (last, first) = requests.split_last().unwrap();
        for wr in first {
            refused.extend(
                sender.post(&mut wr.clone(), nic::PostFlags::default()).err().map(|error| error.to_string()),
            );
        }
        let posted =
            sender.post(&mut last.clone(), nic::PostFlags { last: first.is_empty(), ..Default::default() });
        refused.extend(posted.err().map(|error| error.to_string()));
        sender.finish();
        e.pass();
        sent.extend(told(&e.a.all_sent()));
    }
    let events = [&e.a, &e.b].map(|end| {
        std::iter::from_fn(|| end.endpoint.events.pop()).map(|event| event.kind).collect::<Vec<_>>()
    });
    let has_failed = sent.iter().any(|(_, status, ..)| *status != Status::Success);
    let ours = if has_failed { Vec::new() } else { e.a.memory.read(0, LEN) };
    // How much of a long message came before that failed is a matter of time.
    let is_part = has_failed && matches!(operation, Send(LONG) | Write(LONG));
    let theirs = if is_part { Vec::new() } else { e.b.memory.read(0, LEN) };
    Seen {
        refused,
        sent,
        received: [&e.a, &e.b].map(|end| told(&end.all_received())),
        events,
        states: [e.a.state(), e.b.state()],
        memory: [theirs, ours],
    }
}

/// Every operation has the effect that it has over a network.
fn compare(misfits: &[Misfit], operations: impl Fn(&Operation) -> bool) {
    let mut differ = Vec::new();
    for misfit in misfits {
        for operation in OPERATIONS.into_iter().filter(&operations) {
            let expected = see(WAYS[0], misfit, operation);
            for way in &WAYS[1..] {
                let seen = see(*way, misfit, operation);
                if seen != expected {
                    let Misfit { name, .. } = misfit;
                    let of = |seen: &Seen| {
                        let Seen { refused, sent, received, events, states, .. } = seen;
                        format!("{refused:?} {sent:?} {received:?} {events:?} {states:?}")
                    };
                    let memory = seen.memory == expected.memory;
                    differ.push(format!(
                        "{name}, {operation:?}, {way:?} (memory: {memory})\n  {}\n  {}",
                        of(&seen),
                        of(&expected)
                    ));
                }
            }
        }
    }
    assert!(differ.is_empty(), "{} differ:\n{}", differ.len(), differ.join("\n"));
}

#[test]
fn numbers_and_path_mtus_that_do_not_fit_end_alike_whichever_way_is_taken() {
    compare(NUMBERS, |_| true);
}

#[test]
fn attributes_and_states_that_do_not_fit_end_alike_whichever_way_is_taken() {
    compare(ATTRIBUTES, |_| true);
}

#[test]
fn memory_that_does_not_fit_ends_alike_whichever_way_is_taken() {
    compare(MEMORY, |_| true);
}

#[test]
fn what_ceases_to_fit_ends_alike_whichever_way_is_taken() {
    compare(CHANGES, |_| true);
}

#[test]
fn psns_used_up_without_a_packet_stay_used_for_the_next_requests() {
    compare(USED_UP, |operation| {
        matches!(
            operation,
            Send(..=SEVERAL)
                | SendImmediate(_)
                | SendInline(_)
                | SendList(_)
                | Write(..=SEVERAL)
                | WriteImmediate(_)
                | WriteInline(_)
                | WriteList(_)
                | Writes(_)
        )
    });
}

//! What once went wrong in other implementations, seen by whole hosts: packets that
//! What once went wrong in other implementations, seen by whole hosts: packets of no connection,
//! of them and their tests.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use crate::support;
use crate::support::connections::{MESSAGE_LEN, connected_with, end_connection};
use crate::support::{Endpoint, SimNode, Wiring, send, wire_up};
use nic::Buffer;
use nic::rdma_cm::{ConnParam, EventKind};
use sim::{Faults, HostId, Mark, Sim};
use stack::env::InputHandler;
use stack::{Event, EventChannel, Id};
use transport::op::{Data, RecvWr, SendWr, Status};
use wire::mad::PortSpace;
use wire::{Mtu, Psn};

const WIRING: Wiring =
    Wiring { mtu: Mtu::M1024, timeout: 14, rnr_retry: 7, min_rnr_timer: 1, max_rd_atomic: 1 };

fn address(n: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, n])
}

/// Hosts 10.0.0.1 to 10.0.0.N on a perfect network.
fn hosts<const N: usize>() -> (Sim, [SimNode; N]) {
    let mut sim = Sim::new(1, Faults::none());
    let ids: [HostId; N] = std::array::from_fn(|n| sim.add_host(&[address(n as u8 + 1)], 1500));
    let nodes = ids.map(|host| {
        let process = sim.start(host, &stack::Config::default());
        sim.node(process).unwrap()
    });
    (sim, nodes)
}

#[test]
fn unsolicited_packets_are_dropped_even_with_the_right_numbers() {
    let (mut sim, [a, b, other]) = hosts();
    let [at_a, at_b, at_other] = [&a, &b, &other].map(Endpoint::new);
    let psn = Psn::new(7);
    wire_up(&a, &at_a, &at_b, address(2), &WIRING, (psn, psn));
    wire_up(&b, &at_b, &at_a, address(1), &WIRING, (psn, psn));
    wire_up(&other, &at_other, &at_b, address(2), &WIRING, (psn, psn));
    let inbox = Buffer::new(&at_b.pd, 64, 0x10_0000, nic::Access::LOCAL_WRITE).unwrap();
    for wr_id in 0..2 {
        at_b.qp.post_receive(RecvWr { wr_id, sges: [inbox.sge(0, 64)].into_iter().collect() }).unwrap();
    }
    let post = |node: &SimNode, from: &Endpoint, text: &[u8]| {
        from.qp.post_send(stack::Env::now(&**node.env()), send(1, text)).unwrap();
    };
    post(&other, &at_other, b"forged");
    sim.run_for(Duration::from_millis(50));
    assert_eq!(Endpoint::poll(&at_b.receives), []);
    let dropped = b.counted().into_iter().find(|(name, _)| name.ends_with(".wrong_peer")).unwrap().1;
    assert!(dropped > 0);
    post(&a, &at_a, b"genuine");
    sim.run_for(Duration::from_millis(50));
    let got: Vec<_> = Endpoint::poll(&at_b.receives).iter().map(|c| (c.wr_id, c.status)).collect();
    assert_eq!(got, [(0, Status::Success)]);
    assert!(inbox.holds(0, b"genuine"));
}

/// Where the ends of a connection are, and what the one does that ends it.
#[derive(Clone, Copy)]
struct Ending {
    together: bool,
    exits: bool,
    /// Steps of the simulation after which the other end gets no processor for a while.
    stalls_after: Option<u64>,
}

/// The server has a message and ends the connection at once; the client hears of the end and
/// flushes what it has not heard of. How the client's message completes.
fn last_message(seed: u64, faults: Faults, ending: Ending) -> Vec<Status> {
    let (mut sim, client, server, ours, mut theirs) = connected_with(seed, ending.together);
    // Others share the addresses, and hand packets of this connection on.
    for host in [client.host, server.host] {
        let process = sim.start(host, &stack::Config::default());
        let other = sim.node(process).unwrap();
        other.attach(&other.devices()[0]).unwrap();
    }
    sim.set_faults(faults);
    let endpoint = ours.endpoint.as_ref().unwrap();
    let sges = [ours.outbox.as_ref().unwrap().sge(0, MESSAGE_LEN)].into_iter().collect();
    let wr = SendWr { data: Data::Sges(sges), ..send(1, b"") };
    endpoint.qp.post_send(stack::Env::now(&**client.node.env()), wr).unwrap();
    let mut completed = Vec::new();
    let until = sim.elapsed() + Duration::from_secs(1);
    let mut stalls_after = ending.stalls_after;
    loop {
        theirs.poll();
        if theirs.received == 1 && !theirs.ending {
            end_connection(&mut theirs, &server.node);
            if ending.exits {
                sim.kill(server.process);
            }
        }
        if theirs.ending && stalls_after == Some(0) {
            // What is due is done first; what arrived meanwhile is still unread.
            let late = stack::Env::now(&**client.node.env()) + Duration::from_millis(300);
            InputHandler::expire(&*client.node, late);
        }
        if theirs.ending {
            stalls_after = stalls_after.and_then(|steps| steps.checked_sub(1));
        }
        let event = client.next();
        if event.as_ref().is_some_and(|event| event.kind == EventKind::Disconnected) {
            client.node.disconnect(ours.id.as_ref().unwrap()).unwrap();
        }
        completed.extend(Endpoint::poll(&endpoint.sends).iter().map(|c| c.status));
        if event.is_some() {
            return completed;
        }
        assert!(sim.step(until), "nobody heard of the end");
    }
}

/// A network that loses nothing, and where all overtake each other.
fn unruly() -> Faults {
    Faults::none().reorder(0.4).reorder_delay(Duration::from_millis(5)).jitter(Duration::from_micros(300))
}

#[test]
fn what_was_delivered_before_the_end_of_its_connection_completes_as_delivered() {
    sim::each_seed("historic", "what_was_delivered", 200, |seed| {
        let ending = Ending { together: seed % 2 == 0, exits: false, stalls_after: None };
        assert_eq!(last_message(seed, unruly(), ending), [Status::Success]);
    });
}

#[test]
fn the_news_that_a_process_ended_does_not_overtake_what_it_acknowledged() {
    sim::each_seed("historic", "the_news", 200, |seed| {
        let ending = Ending { together: true, exits: true, stalls_after: None };
        assert_eq!(last_message(seed, unruly(), ending), [Status::Success]);
    });
}

#[test]
fn an_answer_that_waits_for_the_processor_is_heard_before_the_end_of_the_connection() {
    sim::each_seed("historic", "an_answer_that_waits", 200, |seed| {
        let ending = Ending { together: seed % 2 == 0, exits: false, stalls_after: Some(seed % 10) };
        assert_eq!(last_message(seed, unruly(), ending), [Status::Success]);
    });
}

/// When the server hears of the end of a connection whose last message it fetches after so long, or
/// never.
fn end_is_heard(fetches_after: Option<Duration>) -> Duration {
    let (mut sim, client, server, ours, mut theirs) = connected_with(1, false);
    let endpoint = ours.endpoint.as_ref().unwrap();
    let sges = [ours.outbox.as_ref().unwrap().sge(0, MESSAGE_LEN)].into_iter().collect();
    let wr = SendWr { data: Data::Sges(sges), ..send(1, b"") };
    endpoint.qp.post_send(stack::Env::now(&**client.node.env()), wr).unwrap();
    sim.run_for(Duration::from_millis(5));
    client.node.disconnect(ours.id.as_ref().unwrap()).unwrap();
    let begin = sim.elapsed();
    for _ in 0..300 {
        if server.next().is_some_and(|event| event.kind == EventKind::Disconnected) {
            return sim.elapsed() - begin;
        }
        if fetches_after.is_some_and(|after| sim.elapsed() - begin >= after) {
            theirs.poll();
        }
        sim.run_for(Duration::from_millis(1));
    }
    panic!("nobody heard of the end");
}

#[test]
fn the_end_of_a_connection_waits_for_who_has_not_fetched_the_last_message_and_not_for_long() {
    let ms = Duration::from_millis;
    assert!(end_is_heard(Some(ms(0))) <= ms(5));
    let heard = end_is_heard(Some(ms(30)));
    assert!(ms(30) <= heard && heard <= ms(36), "{heard:?}");
    let heard = end_is_heard(None);
    assert!(ms(100) <= heard && heard <= ms(120), "{heard:?}");
}

/// Whether numbers given one after the other are as scattered as chance makes them: hardly two
/// alike, hardly ever neighbours.
fn scattered(numbers: &[u32]) -> bool {
    let distinct: BTreeSet<_> = numbers.iter().collect();
    let neighbours = numbers.windows(2).filter(|w| w[0].abs_diff(w[1]) <= 2).count();
    distinct.len() + 4 >= numbers.len() && neighbours <= numbers.len() / 8
}

#[test]
fn numbers_of_queue_pairs_and_keys_cannot_be_foreseen() {
    let (_sim, [a, _b]) = hosts();
    let endpoint = Endpoint::new(&a);
    let made: Vec<_> = (0..64).map(|_| Endpoint::new(&a)).collect();
    let numbers: Vec<u32> = made.iter().map(|e| e.qp.qpn().get()).collect();
    assert!(scattered(&numbers), "{numbers:x?}");
    let buffers: Vec<_> =
        (0..64).map(|_| Buffer::new(&endpoint.pd, 8, 0, support::RIGHTS).unwrap()).collect();
    let keys: Vec<u32> = buffers.iter().map(|b| b.key().0 & 0xffff).collect();
    assert!(scattered(&keys), "{keys:x?}");
    let slots: Vec<u32> = buffers.iter().map(|b| b.key().0 >> 16).collect();
    assert!(scattered(&slots), "{slots:x?}");
}

/// An identifier that is to resolve an address; its channel.
struct Caller {
    node: SimNode,
    channel: Arc<EventChannel>,
    id: Arc<Id>,
}

impl Caller {
    fn new(node: &SimNode) -> Self {
        let channel = EventChannel::new(Box::new(Mark::default()));
        let id = node.create_id(&channel, PortSpace::Tcp);
        Self { node: node.clone(), channel, id }
    }
    fn resolve(&self, host: u8, timeout_s: u64) -> bool {
        let dest = SocketAddr::new(address(host), 7471);
        self.node.resolve_addr(&self.id, None, dest, Duration::from_secs(timeout_s)).is_ok()
    }
    fn next(&self) -> Option<Event> {
        self.node.next_event(&self.channel)
    }
    fn told(&self) -> Option<(EventKind, i32)> {
        self.next().map(|e| (e.kind, e.status))
    }
}

#[test]
fn starting_psns_cannot_be_foreseen() {
    let (mut sim, [client, server]) = hosts();
    let listener = Caller::new(&server);
    server.bind(&listener.id, "0.0.0.0:7471".parse().unwrap()).unwrap();
    server.listen(&listener.id, 0).unwrap();
    let mut psns = Vec::new();
    let mut kept = Vec::new();
    for _ in 0..24 {
        let caller = Caller::new(&client);
        assert!(caller.resolve(2, 2));
        sim.run_for(Duration::from_millis(10));
        assert_eq!(caller.told(), Some((EventKind::AddrResolved, 0)));
        client.resolve_route(&caller.id, Duration::from_secs(2)).unwrap();
        assert_eq!(caller.told(), Some((EventKind::RouteResolved, 0)));
        let (ours, theirs) = (Endpoint::new(&client), Endpoint::new(&server));
        client.set_qp(&caller.id, &ours.qp).unwrap();
        client.connect(&caller.id, &ConnParam::default(), &[]).unwrap();
        sim.run_for(Duration::from_millis(10));
        let request = listener.next().unwrap();
        server.set_qp(&request.id, &theirs.qp).unwrap();
        server.accept(&request.id, None, &[]).unwrap();
        sim.run_for(Duration::from_millis(10));
        assert_eq!(caller.told(), Some((EventKind::Established, 0)));
        assert_eq!(listener.told(), Some((EventKind::Established, 0)));
        psns.extend([ours.qp.query().sq_psn.get(), theirs.qp.query().sq_psn.get()]);
        kept.push((caller, request, ours, theirs));
    }
    assert!(scattered(&psns), "{psns:x?}");
}

#[test]
fn an_answer_to_an_earlier_resolution_does_not_end_a_later_one() {
    let (mut sim, [node, _other]) = hosts();
    let caller = Caller::new(&node);
    // No host is there; the neighbour's silence is told after three seconds, but the first caller
    // waits for one only.
    assert!(caller.resolve(8, 1));
    assert!(!caller.resolve(2, 1), "one at a time");
    sim.run_for(Duration::from_millis(1500));
    assert_eq!(caller.told(), Some((EventKind::AddrError, -110)));
    assert!(caller.resolve(9, 10));
    sim.run_for(Duration::from_secs(2));
    assert_eq!(caller.told(), None, "what was found out about the first neighbour");
    sim.run_for(Duration::from_secs(2));
    assert_eq!(caller.told(), Some((EventKind::AddrError, -113)));
    assert!(caller.resolve(2, 1));
    sim.run_for(Duration::from_millis(10));
    assert_eq!(caller.told(), Some((EventKind::AddrResolved, 0)));
    assert_eq!(caller.told(), None);
}

#[test]
fn an_identifier_destroyed_while_its_address_is_resolved_hears_no_more() {
    let (mut sim, [node, _other]) = hosts();
    let caller = Caller::new(&node);
    assert!(caller.resolve(9, 10));
    node.destroy(&caller.id);
    sim.run_for(Duration::from_secs(11));
    assert_eq!(caller.told(), None);
    assert!(sim.is_idle());
}

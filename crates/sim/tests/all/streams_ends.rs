//! How streams end: half closed, reset, cut off, with a process or with a host; and what a listener
//! holds of those that any host may open.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use crate::support::connections::{
    MESSAGE_LEN, MESSAGES, PORT, Party, Side, connected_by, message_bytes, resolved,
};
use crate::support::{Endpoint, Way};
use nic::rdma_cm::EventKind;
use nic::{Errno, Gather, Scatter, Stream};
use sim::{Dice, Faults, Sim};
use stack::Env;
use transport::op::Status;

const SEEDS: u64 = 1000;
const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
const THERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));
/// When a peer that says nothing is given up, and a little more.
const SILENCE: Duration = Duration::from_millis(8_100);

fn slow(dice: &mut Dice) -> Faults {
    Faults::none()
        .loss(dice.pick(&[0.0, 0.1]))
        .clog(dice.pick(&[0.0, 0.02]))
        .jitter(Duration::from_micros(dice.below(100)))
        .delay(Duration::from_micros(dice.between(1, 5_000)))
}

/// All that is told of a connection's end: one event, and each receive that was left flushed.
fn ended(party: &Party, side: &Side, received: u64) {
    let told: Vec<_> = std::iter::from_fn(|| party.next()).map(|event| event.kind).collect();
    assert_eq!(told, [EventKind::Disconnected]);
    let endpoint = side.endpoint.as_ref().unwrap();
    let left = Endpoint::poll(&endpoint.receives);
    let flushed: Vec<_> = (received..MESSAGES).map(|n| (n, Status::WrFlush)).collect();
    assert_eq!(left.iter().map(|c| (c.wr_id, c.status)).collect::<Vec<_>>(), flushed);
}

#[test]
fn what_was_sent_before_a_half_is_closed_arrives_before_its_end() {
    sim::each_seed("streams_ends", "what_was_sent_before", SEEDS, |seed| {
        let mut dice = Dice::new(seed).fork(6000);
        let (mut sim, client, server, ours, mut theirs) = connected_by(Way::Stream, seed, dice.chance(0.2));
        sim.set_faults(slow(&mut dice));
        ours.send_all(&client.node);
        let mut sent = 0;
        while sent < MESSAGES {
            assert!(sim.step(Duration::from_secs(60)));
            let done = Endpoint::poll(&ours.endpoint.as_ref().unwrap().sends);
            assert!(done.iter().all(|c| c.status == Status::Success));
            sent += done.len() as u64;
        }
        client.node.disconnect(ours.id.as_ref().unwrap()).unwrap();
        sim.run_for(Duration::from_secs(5));
        theirs.poll();
        assert_eq!(theirs.received, MESSAGES);
        let inbox = theirs.inbox.as_ref().unwrap();
        assert!(inbox.holds(0, &message_bytes(MESSAGES as usize * MESSAGE_LEN)));
        ended(&client, &ours, 0);
        ended(&server, &theirs, MESSAGES);
    });
}

#[test]
fn a_peer_that_is_cut_off_is_given_up_after_eight_seconds_at_both_ends() {
    sim::each_seed("streams_ends", "a_peer_that_is_cut_off", SEEDS, |seed| {
        let mut dice = Dice::new(seed).fork(7000);
        let (mut sim, client, server, ours, theirs) = connected_by(Way::Stream, seed, false);
        sim.run_for(dice.duration(Duration::from_secs(10)));
        // Either direction is enough.
        let (from, to) = dice.pick(&[(client.host, server.host), (server.host, client.host)]);
        sim.partition(from, to, Duration::from_secs(60));
        // What leaves now does not arrive, and completes all the same.
        let is_busy = dice.chance(0.5);
        if is_busy && from == client.host {
            ours.send_all(&client.node);
        }
        sim.run_for(Duration::from_millis(5_900));
        assert!(client.next().is_none() && server.next().is_none(), "given up too early");
        sim.run_for(SILENCE - Duration::from_millis(5_900));
        ended(&client, &ours, 0);
        ended(&server, &theirs, 0);
    });
}

#[test]
fn a_host_without_power_is_given_up_and_one_that_is_back_resets() {
    for is_back in [false, true] {
        let (mut sim, client, server, ours, _theirs) = connected_by(Way::Stream, 1, false);
        sim.power_fail(server.host);
        sim.run_for(Duration::from_secs(3));
        assert!(client.next().is_none());
        if is_back {
            sim.start(server.host, &Way::Stream.config());
            sim.run_for(Duration::from_millis(2_100));
            assert_eq!(client.next().map(|event| event.kind), Some(EventKind::Disconnected));
            continue;
        }
        sim.run_for(Duration::from_millis(2_900));
        assert!(client.next().is_none(), "given up too early");
        sim.run_for(SILENCE - Duration::from_millis(5_900));
        ended(&client, &ours, 0);
    }
}

#[test]
fn a_reset_in_the_midst_of_messages_both_ways_is_told_once_at_both_ends() {
    sim::each_seed("streams_ends", "a_reset_in_the_midst", SEEDS, |seed| {
        let mut dice = Dice::new(seed).fork(8000);
        let (mut sim, client, server, mut ours, mut theirs) =
            connected_by(Way::Stream, seed, dice.chance(0.2));
        sim.set_faults(slow(&mut dice));
        ours.send_all(&client.node);
        theirs.send_all(&server.node);
        sim.run_for(dice.duration(Duration::from_millis(10)));
        [&mut ours, &mut theirs].into_iter().for_each(Side::poll);
        assert_eq!(sim.reset_streams(client.process, server.process), 1);
        for (party, side) in [(&client, &ours), (&server, &theirs)] {
            ended(party, side, side.received);
        }
    });
}

fn open(sim: &Sim, party: &Party, to: SocketAddr) -> Arc<dyn Stream> {
    let node = sim.node(party.process).unwrap();
    node.env().open_stream((party.address, 0).into(), to).unwrap().1
}

fn parties(sim: &mut Sim) -> [Party; 2] {
    [HERE, THERE].map(|address| {
        let host = sim.add_host(&[address], 1500);
        Party::with(sim, host, address, &Way::Stream.config())
    })
}

#[test]
fn a_listener_keeps_nothing_of_streams_that_end_before_they_ask_whatever_comes_by_them() {
    sim::each_seed("streams_ends", "a_listener_keeps_nothing", SEEDS, |seed| {
        let mut dice = Dice::new(seed).fork(9000);
        let mut sim = Sim::new(seed, slow(&mut dice).stream_reset(dice.pick(&[0.0, 0.1])));
        let [client, server] = parties(&mut sim);
        let _listener = server.listen();
        let mut streams: Vec<_> = (0..20).map(|_| open(&sim, &client, (THERE, PORT).into())).collect();
        sim.run_for(dice.duration(Duration::from_millis(30)));
        for stream in streams.drain(..) {
            let mut bytes = b"MPA ID Req Frame\x40\x02\0\x08........".to_vec();
            bytes.truncate(dice.below(bytes.len() as u64) as usize);
            if dice.chance(0.3) {
                dice.fill(&mut bytes);
            }
            // It may not be open yet.
            _ = stream.send(&Gather::of(&bytes));
            match dice.below(4) {
                0 => stream.finish(),
                1 => stream.close(),
                2 => stream.reset(),
                _ => {}
            }
            if dice.chance(0.5) {
                sim.run_for(dice.duration(Duration::from_millis(5)));
            }
        }
        sim.run_for(Duration::from_secs(30));
        assert_eq!((sim.streams(client.process), sim.streams(server.process)), (0, 0));
        assert!(server.next().is_none());
        assert!(sim.is_idle());
    });
}

#[test]
fn a_stream_to_where_no_listener_is_is_refused() {
    let mut sim = Sim::new(1, Faults::none());
    let [client, server] = parties(&mut sim);
    let listener = server.listen();
    server.node.destroy(&listener);
    let id = resolved(&mut sim, &client, THERE);
    client.node.connect(&id, &crate::support::connections::param(), &[]).unwrap();
    sim.run_for(Duration::from_millis(1));
    let told = client.next().map(|event| (event.kind, event.status));
    assert_eq!(told, Some((EventKind::Rejected, -Errno::ECONNREFUSED.0)));
    // No host has the address.
    let stream = open(&sim, &client, "10.0.0.9:7471".parse().unwrap());
    sim.run_for(Duration::from_millis(2_999));
    let read = |stream: &Arc<dyn Stream>| stream.receive(&Scatter::of(&mut [0; 8]));
    assert_eq!(read(&stream), Err(Errno::EAGAIN));
    sim.run_for(Duration::from_millis(2));
    assert_eq!(read(&stream), Err(Errno::EHOSTUNREACH));
}

#[test]
fn one_listener_has_a_port_of_an_address_until_it_or_its_process_goes() {
    let mut sim = Sim::new(1, Faults::none());
    let v6: IpAddr = "fd00::1".parse().unwrap();
    let host = sim.add_host(&[HERE, v6], 1500);
    let [one, other] = [0, 1].map(|_| Party::with(&mut sim, host, HERE, &Way::Stream.config()));
    let listen = |party: &Party, at: &str, v6_only| {
        party.node.env().listen_streams(at.parse().unwrap(), v6_only).map_err(|errno| errno.name())
    };
    let held = listen(&one, "0.0.0.0:5", false).unwrap();
    for (at, v6_only, refused) in [
        ("0.0.0.0:5", false, Some("EADDRINUSE")),
        ("10.0.0.1:5", false, Some("EADDRINUSE")),
        ("[::]:5", false, Some("EADDRINUSE")),
        ("[::]:5", true, None),
        ("[fd00::1]:5", false, None),
        ("10.0.0.1:6", false, None),
        ("10.0.0.2:5", false, Some("EADDRNOTAVAIL")),
    ] {
        assert_eq!(listen(&other, at, v6_only).err().flatten(), refused, "{at}");
    }
    drop(held);
    let _held = listen(&other, "[::]:5", false).unwrap();
    assert!(listen(&one, "10.0.0.1:5", false).is_err());
    sim.kill(other.process);
    assert!(listen(&one, "10.0.0.1:5", false).is_ok());
    assert!(listen(&other, "10.0.0.1:5", false).is_err(), "a dead process has none");
}

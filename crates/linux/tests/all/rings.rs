//! Packets between processes of one host by memory that they share.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support;
use crate::support::{
    BLOCK, LO, Told, V4, V6, alone, batch, counter, keeps_busy, message, number, overfill, pair, path,
    start_with,
};
use linux::{Config, name_messages};
use nic::{Link, PathCache};
use stack::env::{ClaimError, HandedOver};
use stack::{Env, Name};
use transport::short::{Short, What};
use wire::{Pkey, Psn, Qpn, Rkey};

#[test]
fn packets_for_another_process_come_by_a_ring_from_the_first_one_on() {
    for address in [V4, V6] {
        let _alone = alone();
        let (sender, reader, _claim) = pair();
        for n in 0..10 {
            sender.env().send(&path(address), &mut batch(n * 4, &[512, 512, 100, 4]));
        }
        for n in 0..40 {
            let packet = reader.handler().packet().unwrap();
            assert_eq!((number(&packet), packet.forwarded, packet.interface), (n, false, LO));
            assert_eq!((packet.source.ip(), packet.dest.ip()), (address, address));
        }
        assert_eq!((counter(&sender, "ring_packets_sent"), counter(&sender, "packets_sent")), (40, 0));
        assert_eq!(counter(&reader, "ring_packets_received"), 40);
        assert_eq!((counter(&sender, "rings_offered"), counter(&reader, "rings_taken")), (1, 1));
    }
}

#[test]
fn a_short_message_takes_the_ring_behind_what_it_brought_before_and_nothing_else() {
    let _alone = alone();
    let (sender, reader, _claim) = pair();
    let short = |n: u32| Short {
        dest_qp: Qpn::new(0x123_456),
        pkey: Pkey::default(),
        psn: Psn::new(n),
        solicited: false,
        // Each as a packet that has the number in the byte after its BTH.
        what: match n % 3 {
            0 => What::Send,
            1 => What::SendImmediate([n as u8; 4]),
            _ => What::WriteImmediate([0; 4], Rkey(5), u64::from(n) << 56),
        },
        acknowledged: n.is_multiple_of(2).then(|| Psn::new(n)),
    };
    // A way of each path, as each queue pair has its own.
    let mut ways = [V4, V6].map(|address| (address, PathCache::default()));
    let mut send = |address, n: u32| {
        let (_, way) = ways.iter_mut().find(|(of, _)| *of == address).unwrap();
        sender.env().local().unwrap().send_short(&path(address), &short(n), &[n as u8; 5], way)
    };
    assert!(!send(V4, 0), "there is no ring");
    sender.env().send(&path(V4), &mut batch(0, &[64]));
    for n in 1..100 {
        match n % 7 {
            0 => sender.env().send(&path(V4), &mut batch(n, &[64])),
            _ => assert!(send(V4, n)),
        }
    }
    assert!(!send(V6, 100), "the last packets took another path");
    sender.env().send(&path(V6), &mut batch(100, &[64]));
    assert!(send(V6, 101) && !send(V4, 102));
    for n in 0..102 {
        let packet = reader.handler().packet().unwrap();
        let address = if n < 100 { V4 } else { V6 };
        assert_eq!((number(&packet), packet.forwarded, packet.interface), (n, false, LO));
        assert_eq!((packet.source.ip(), packet.dest.ip()), (address, address));
    }
    let numbers =
        ["ring_messages_sent", "ring_packets_sent", "packets_sent"].map(|name| counter(&sender, name));
    assert_eq!(numbers, [86, 16, 0]);
    assert_eq!(counter(&reader, "ring_messages_received"), 86);
}

#[test]
fn a_process_sends_to_itself_by_a_ring() {
    let _alone = alone();
    let (_, reader, _claim) = pair();
    reader.env().send(&path(V4), &mut batch(7, &[64]));
    assert_eq!(number(&reader.handler().packet().unwrap()), 7);
    assert_eq!(counter(&reader, "ring_packets_sent"), 1);
}

#[test]
fn what_is_not_for_one_process_of_this_host_goes_by_the_network() {
    let _alone = alone();
    let (sender, reader, _claim) = pair();
    reader.env().attach(LO).unwrap();
    // No process bears the block of this queue pair.
    let nobody = nic::Path { dest_qpn: Qpn::new(0x456_000), ..path(V4) };
    let messages = nic::Path { dest_qpn: Qpn::GSI, ..path(V4) };
    for path in [nobody, messages] {
        sender.env().send(&path, &mut batch(1, &[64]));
        assert_eq!(reader.handler().packet().unwrap().psn(), 1);
    }
    assert_eq!((counter(&sender, "packets_sent"), counter(&sender, "ring_packets_sent")), (2, 0));
}

#[test]
fn messages_are_handed_to_their_process_and_take_the_ring_where_there_is_one() {
    let _alone = alone();
    let (sender, reader, claim) = pair();
    let port = Name::Port { space: wire::mad::PortSpace::Tcp, addr: None, port: 7174 };
    let service = reader.env().claim(port).unwrap();
    let to_qp1 = nic::Path { dest_qpn: Qpn::GSI, ..path(V4) };
    // No process bears the first name.
    let elsewhere = Name::Port { space: wire::mad::PortSpace::Tcp, addr: Some(V4), port: 7174 };
    for names in [&[elsewhere, port][..], &[BLOCK]] {
        assert!(sender.env().hand_over(names, &to_qp1, &mut message()) == HandedOver::Done);
        let packet = reader.handler().packet().unwrap();
        assert_eq!((packet.forwarded, packet.interface, packet.dest.ip()), (true, LO, V4));
        assert_eq!(packet.psn(), 0, "sealed");
    }
    sender.env().send(&path(V4), &mut batch(1, &[64]));
    assert_eq!(number(&reader.handler().packet().unwrap()), 1);
    assert!(sender.env().hand_over(&[BLOCK], &to_qp1, &mut message()) == HandedOver::Done);
    assert!(!reader.handler().packet().unwrap().forwarded, "by the ring");
    let sent = |name| counter(&sender, name);
    assert_eq!((sent("messages_handed_over"), sent("ring_packets_sent"), sent("packets_sent")), (2, 2, 0));
    // They are no reason for a socket of their own.
    for _ in 0..10 {
        assert!(sender.env().hand_over(&[port], &to_qp1, &mut message()) == HandedOver::Done);
        assert!(
            !reader.handler().packet().unwrap().forwarded,
            "by the ring of the process that has the service"
        );
    }
    assert_eq!((sent("messages_handed_over"), sent("ring_packets_sent"), sent("packets_sent")), (2, 12, 0));
    assert_eq!((counter(&reader, "promotions"), counter(&reader, "forwarded_in")), (0, 0));
    // That ring ends, and the service is another one's.
    drop(service);
    let other = start_with(Config::default());
    let _service = other.env().claim(port).unwrap();
    drop((claim, reader));
    let end = Instant::now() + support::TIMEOUT;
    while other.handler().find_within(Duration::from_millis(20), support::packet).is_none() {
        assert!(Instant::now() < end, "nothing arrives");
        sender.env().hand_over(&[port], &to_qp1, &mut message());
    }
}

#[test]
fn messages_stay_with_the_network_where_nobody_bears_the_name_or_either_end_wants_it() {
    let _alone = alone();
    let off = || Config { same_host: false, ..Config::default() };
    let to_qp1 = nic::Path { dest_qpn: Qpn::GSI, ..path(V4) };
    {
        let (sender, _reader, _claim) = pair();
        assert!(sender.env().hand_over(&[Name::Block(0x456)], &to_qp1, &mut message()) != HandedOver::Done);
        let not_here = nic::Path { dest: [192, 0, 2, 1].into(), ..to_qp1 };
        assert!(sender.env().hand_over(&[BLOCK], &not_here, &mut message()) != HandedOver::Done);
    }
    let (sender, reader) = (start_with(off()), start_with(Config::default()));
    let claim = reader.env().claim(BLOCK).unwrap();
    assert!(sender.env().hand_over(&[BLOCK], &to_qp1, &mut message()) != HandedOver::Done);
    drop((claim, sender, reader));
    let (sender, reader) = (start_with(Config::default()), start_with(off()));
    let _claim = reader.env().claim(BLOCK).unwrap();
    let end = Instant::now() + support::TIMEOUT;
    while sender.env().hand_over(&[BLOCK], &to_qp1, &mut message()) == HandedOver::Done {
        assert!(Instant::now() < end, "it does not hear that the reader wants none");
        assert!(reader.handler().packet().is_some());
    }
}

#[test]
fn where_rings_are_off_at_either_end_packets_go_by_the_network() {
    let _alone = alone();
    let off = || Config { same_host: false, ..Config::default() };
    for (ours, theirs) in [(off(), Config::default()), (Config::default(), off())] {
        let (sender, reader) = (start_with(ours), start_with(theirs));
        let _claim = reader.env().claim(BLOCK).unwrap();
        reader.env().attach(LO).unwrap();
        // The first one, too: no protocol repeats a datagram.
        for psn in 0..30 {
            sender.env().send(&path(V4), &mut batch(psn, &[64]));
            assert_eq!(reader.handler().packet().unwrap().psn(), psn);
        }
        let counted = ["packets_sent", "rings_offered", "other_builds"].map(|name| counter(&sender, name));
        assert_eq!(counted, [30, 0, 0]);
    }
}

#[test]
fn what_a_full_ring_does_not_take_waits_and_comes_in_order() {
    let _alone = alone();
    let (sender, reader, _claim) = pair();
    let busy = keeps_busy(&reader, &sender);
    // 6 MB.
    overfill(&sender, 100);
    drop(busy);
    // The message is dispatched first.
    assert_ne!(reader.handler().packet().unwrap().bytes.len(), 4112);
    for n in 0..1500u32 {
        let packet = reader.handler().packet().unwrap();
        assert_eq!(number(&packet), n as u8);
    }
    assert_eq!(counter(&sender, "ring_drops"), 0);
}

#[test]
fn a_polling_thread_gets_packets_in_its_own_thread_and_the_engine_when_it_stops() {
    let _alone = alone();
    let (sender, reader, _claim) = pair();
    let thread = |packet: &support::Packet| packet.thread.clone();
    sender.env().send(&path(V4), &mut batch(0, &[64]));
    assert_eq!(thread(&reader.handler().packet().unwrap()), "verbena");
    let polled = {
        let end = Instant::now() + support::TIMEOUT;
        let mut polled = 0;
        while polled < 10 {
            assert!(Instant::now() < end, "the engine takes everything");
            sender.env().send(&path(V4), &mut batch(1, &[64]));
            let sent = Instant::now();
            let packet = loop {
                reader.poll();
                if let Some(packet) = reader.handler().find_within(Duration::ZERO, support::packet) {
                    break packet;
                }
                assert!(sent.elapsed() < support::TIMEOUT);
            };
            polled += u32::from(thread(&packet) != "verbena");
        }
        polled
    };
    assert_eq!(polled, 10);
    // It stops without a word: the engine comes when the lease ends.
    sender.env().send(&path(V4), &mut batch(2, &[64]));
    assert_eq!(thread(&reader.handler().packet().unwrap()), "verbena");
    // It says that it waits: at once.
    reader.poll();
    reader.end_polling();
    sender.env().send(&path(V4), &mut batch(3, &[64]));
    assert_eq!(thread(&reader.handler().packet().unwrap()), "verbena");
}

#[test]
fn many_senders_and_pollers_lose_nothing_and_keep_the_order() {
    let _alone = alone();
    let (_, reader, _claim) = pair();
    let senders: Vec<_> = (0..4).map(|_| start_with(Config::default())).collect();
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let poller = {
        let (reader, stop) = (reader.clone(), stop.clone());
        std::thread::spawn(move || {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                for _ in 0..50 {
                    reader.poll();
                }
                reader.end_polling();
                std::thread::sleep(Duration::from_micros(300));
            }
        })
    };
    const EACH: u32 = 500;
    std::thread::scope(|scope| {
        for (at, sender) in senders.iter().enumerate() {
            // Which sender it is, by the length of the payload.
            let len = 64 + 4 * at;
            scope.spawn(move || (0..EACH).for_each(|n| sender.env().send(&path(V4), &mut batch(n, &[len]))));
        }
    });
    let mut next = [0u32; 4];
    for _ in 0..4 * EACH {
        let packet = reader.handler().packet().unwrap();
        let sender = (packet.bytes.len() - 12 - 64 - 4) / 4;
        assert_eq!(number(&packet), next[sender] as u8, "of sender {sender}");
        next[sender] += 1;
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    poller.join().unwrap();
}

#[test]
fn what_a_process_sent_before_it_ended_comes_before_the_news_of_its_end() {
    let _alone = alone();
    let (sender, reader, _claim) = pair();
    let theirs = sender.env().claim(Name::Block(0x77)).unwrap();
    let watch = reader.env().watch(Name::Block(0x77)).unwrap();
    sender.env().send(&path(V4), &mut batch(0, &[4096; 15]));
    sender.stop();
    drop((theirs, sender));
    for n in 0..15 {
        let news = |told: &Told| (!matches!(told, Told::Interfaces(_))).then(|| told.clone());
        match reader.handler().find(news).unwrap() {
            Told::Datagram { bytes, .. } => assert_eq!(bytes[12], n),
            other => panic!("{other:?} before packet {n}"),
        }
    }
    assert!(
        reader.handler().find(|told| (*told == Told::Gone(Name::Block(0x77), watch)).then_some(())).is_some()
    );
}

#[test]
fn a_name_that_changes_hands_is_watched_in_the_new_ones() {
    let _alone = alone();
    let [one, two, watcher] = [(); 3].map(|()| start_with(Config::default()));
    let name = Name::Block(0x77);
    let claim = one.env().claim(name).unwrap();
    let first = watcher.env().watch(name).unwrap();
    // Its engine is busy: it hears of the end of the first owner when there is a second one.
    let busy = keeps_busy(&watcher, &one);
    drop(claim);
    let claim = two.env().claim(name).unwrap();
    let second = watcher.env().watch(name).unwrap();
    assert_ne!(second, first, "of a connection that has ended");
    drop(busy);
    let gone = |told: &Told| matches!(told, Told::Gone(..)).then(|| told.clone());
    assert_eq!(watcher.handler().find(gone), Some(Told::Gone(name, first)));
    assert_eq!(watcher.env().watch(name), Some(second));
    drop(claim);
    assert_eq!(watcher.handler().find(gone), Some(Told::Gone(name, second)));
}

#[test]
fn a_ring_ends_with_its_reader_and_a_new_owner_gets_a_new_one() {
    let _alone = alone();
    let (sender, reader, claim) = pair();
    sender.env().send(&path(V4), &mut batch(0, &[64]));
    let short = Short {
        dest_qp: Qpn::new(0x123_456),
        pkey: Pkey::default(),
        psn: Psn::new(1),
        solicited: false,
        what: What::Send,
        acknowledged: None,
    };
    // What a queue pair knows of its way ends with the ring.
    let mut way = PathCache::default();
    assert!(sender.env().local().unwrap().send_short(&path(V4), &short, &[1; 4096], &mut way));
    assert!(reader.handler().packet().is_some());
    reader.stop();
    drop((claim, reader));
    let end = Instant::now() + support::TIMEOUT;
    while sender.env().local().unwrap().send_short(&path(V4), &short, b"lost", &mut way) {
        assert!(Instant::now() < end, "it goes on to a process that has ended");
        std::thread::sleep(Duration::from_millis(5));
    }
    let next = start_with(Config::default());
    let _claim = next.env().claim(BLOCK).unwrap();
    let end = Instant::now() + support::TIMEOUT;
    while next.handler().find_within(Duration::from_millis(20), support::packet).is_none() {
        assert!(Instant::now() < end, "nothing arrives");
        sender.env().send(&path(V4), &mut batch(1, &[64]));
    }
    assert_eq!(counter(&next, "rings_taken"), 1);
}

/// A process of a build with another protocol number: it bears the common form of a name alone.
#[test]
fn another_build_gets_whole_packets_by_the_network_and_is_counted() {
    let _alone = alone();
    let listener = support::raw::bear(&linux::name_text::common_text(BLOCK));
    let sender = start_with(Config::default());
    assert_eq!(sender.env().claim(BLOCK).err(), Some(ClaimError::InUse), "its block is taken");
    assert_eq!(linux::other_builds(), 1);
    for n in 0..3 {
        sender.env().send(&path(V4), &mut batch(n, &[64]));
    }
    assert_eq!(counter(&sender, "packets_sent"), 3);
    assert_eq!((counter(&sender, "rings_offered"), counter(&sender, "other_builds")), (0, 1));
    let _connection = support::raw::accept(&listener);
}

#[test]
fn a_ring_that_another_build_offers_is_declined() {
    let _alone = alone();
    let (_, reader, _claim) = pair();
    let other = support::raw::connect(&linux::name_text::common_text(BLOCK));
    let (memory, _) = support::raw::memory(1 << 20);
    support::raw::send(&other, &[name_messages::RING], Some(&memory));
    let heard = support::raw::receive(&other, support::TIMEOUT).unwrap().0;
    assert_eq!(heard, [name_messages::NO_RING]);
    assert_eq!((counter(&reader, "rings_taken"), counter(&reader, "other_builds")), (0, 1));
}

//! Several packets of a message as one fragment, between processes of one host.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::support;
use crate::support::{
    LO, Recording, V4, V6, alone, batch, counter, keeps_busy, number, overfill, pair, path,
};
use nic::Link;
use stack::env::HandedOver;
use stack::{Env, Name};
use transport::op::{Fault, FragmentOutcome, SharedBytes};

/// The headers of a fragment.
const HEADERS: [u8; 12] = [0xa5; 12];

/// The bytes of a fragment; the first one is its number.
fn body(n: u32, len: usize) -> Vec<u8> {
    (0..len).map(|at| (n as usize + at * 7) as u8).collect()
}

fn send_fragment(sender: &Recording, address: IpAddr, body: &[u8]) -> Result<FragmentOutcome, Fault> {
    let mut fill = |to: SharedBytes<'_>| {
        assert_eq!(to.len(), body.len());
        to.store(body);
        Ok(())
    };
    sender.env().local().unwrap().send_fragment(&path(address), &HEADERS, body.len(), &mut fill)
}

#[test]
fn a_fragment_takes_the_ring_behind_what_it_brought_before_and_nothing_else() {
    let _alone = alone();
    let (sender, reader, _claim) = pair();
    assert_eq!(
        send_fragment(&sender, V4, &body(0, 4096)),
        Ok(FragmentOutcome::Unavailable),
        "there is no ring"
    );
    assert_eq!(counter(&sender, "rings_offered"), 0);
    sender.env().send(&path(V4), &mut batch(0, &[64]));
    // Of any length, in whole words and lines or not, up to the longest one; more than the ring
    // holds.
    let len = |n: u32| {
        [1, 2048, 4097, 8192, 10_007, 30_000, sender.env().local().unwrap().max_fragment()][n as usize % 7]
    };
    let arrives = |n: u32, address| {
        let packet = reader.handler().packet().unwrap();
        assert_eq!((number(&packet), packet.forwarded, packet.interface), (n as u8, false, LO));
        assert_eq!((packet.source.ip(), packet.dest.ip()), (address, address));
        packet
    };
    arrives(0, V4);
    let mut fragments = 0;
    for round in 0..20u32 {
        let numbers = round * 10 + 1..round * 10 + 11;
        for n in numbers.clone() {
            if n % 4 == 0 {
                sender.env().send(&path(V4), &mut batch(n, &[64]));
            } else {
                assert_eq!(send_fragment(&sender, V4, &body(n, len(n))), Ok(FragmentOutcome::Sent), "{n}");
                fragments += 1;
            }
        }
        for n in numbers {
            let packet = arrives(n, V4);
            if n % 4 > 0 {
                assert!(packet.bytes == [&HEADERS[..], &body(n, len(n))].concat(), "fragment {n}");
            }
        }
    }
    assert_eq!(
        send_fragment(&sender, V6, &body(0, 4096)),
        Ok(FragmentOutcome::Unavailable),
        "the last packets took another path"
    );
    sender.env().send(&path(V6), &mut batch(201, &[64]));
    assert_eq!(send_fragment(&sender, V6, &body(202, 4096)), Ok(FragmentOutcome::Sent));
    assert_eq!(send_fragment(&sender, V4, &body(0, 4096)), Ok(FragmentOutcome::Unavailable));
    assert!([201, 202].into_iter().all(|n| arrives(n, V6).bytes.len() > 12));
    let sent =
        ["ring_fragments_sent", "ring_packets_sent", "packets_sent"].map(|name| counter(&sender, name));
    assert_eq!(sent, [fragments + 1, 52, 0]);
    assert_eq!(counter(&reader, "ring_fragments_received"), fragments + 1);
}

#[test]
fn a_fragment_whose_bytes_can_not_be_had_is_not_sent() {
    let _alone = alone();
    let (sender, reader, _claim) = pair();
    sender.env().send(&path(V4), &mut batch(0, &[64]));
    // More than a ring holds, if they took any of it.
    for _ in 0..40 {
        let mut fill = |to: SharedBytes<'_>| {
            to.store(&[0xff; 30_000]);
            Err(Fault::Unmapped)
        };
        let outcome = sender.env().local().unwrap().send_fragment(&path(V4), &HEADERS, 60_000, &mut fill);
        assert_eq!(outcome, Err(Fault::Unmapped));
    }
    assert_eq!(send_fragment(&sender, V4, &body(1, 60_000)), Ok(FragmentOutcome::Sent));
    sender.env().send(&path(V4), &mut batch(2, &[64]));
    assert_eq!([0, 1, 2].map(|_| number(&reader.handler().packet().unwrap())), [0, 1, 2]);
    assert_eq!(
        (counter(&sender, "ring_fragments_sent"), counter(&reader, "ring_fragments_received")),
        (1, 1)
    );
    assert_eq!(counter(&reader, "ring_errors"), 0);
}

#[test]
fn a_fragment_does_not_pass_what_waits_for_room() {
    let _alone = alone();
    let (sender, reader, _claim) = pair();
    sender.env().send(&path(V4), &mut batch(0, &[64]));
    assert!(reader.handler().packet().is_some());
    let busy = keeps_busy(&reader, &sender);
    overfill(&sender, 100);
    let mut fill = |_: SharedBytes<'_>| -> Result<(), Fault> { panic!("there is no room") };
    assert_eq!(
        sender.env().local().unwrap().send_fragment(&path(V4), &HEADERS, 4096, &mut fill),
        Ok(FragmentOutcome::Full)
    );
    drop(busy);
    assert_ne!(reader.handler().packet().unwrap().bytes.len(), 4112, "the message comes first");
    for n in 0..1500u32 {
        assert_eq!(number(&reader.handler().packet().unwrap()), n as u8);
    }
    // When there is room it goes.
    let end = Instant::now() + support::TIMEOUT;
    while send_fragment(&sender, V4, &body(1500, 4096)) != Ok(FragmentOutcome::Sent) {
        assert!(Instant::now() < end, "there is no room");
    }
    assert_eq!(reader.handler().packet().unwrap().bytes[12..], body(1500, 4096));
    assert_eq!((counter(&sender, "ring_drops"), counter(&sender, "ring_fragments_sent")), (0, 1));
}

#[test]
fn fragments_fill_a_ring_and_none_is_lost() {
    let _alone = alone();
    let (sender, reader, _claim) = pair();
    sender.env().send(&path(V4), &mut batch(0, &[64]));
    assert!(reader.handler().packet().is_some());
    let busy = keeps_busy(&reader, &sender);
    let mut sent = 0;
    while send_fragment(&sender, V4, &body(sent, 50_000)).unwrap() == FragmentOutcome::Sent {
        sent += 1;
    }
    drop(busy);
    assert!((15..=21).contains(&sent), "{sent} of 50,000 bytes in 1 MiB");
    assert_ne!(reader.handler().packet().unwrap().bytes.len(), 50_012, "the message comes first");
    for n in 0..sent {
        assert!(reader.handler().packet().unwrap().bytes[12..] == body(n, 50_000), "fragment {n}");
    }
    assert_eq!(u64::from(sent), counter(&sender, "ring_fragments_sent"));
}

#[test]
fn what_a_fragment_that_is_not_sent_puts_into_the_ring_before_it_wakes_the_reader() {
    let _alone = alone();
    let (sender, reader, _claim) = pair();
    sender.env().send(&path(V4), &mut batch(0, &[64]));
    assert!(reader.handler().packet().is_some());
    // The sender's engine does not look after what waits for room until the fragment has been
    // tried.
    let own = Name::Block(0x77);
    let _own = sender.env().claim(own).unwrap();
    let to_qp1 = nic::Path { dest_qpn: wire::Qpn::GSI, ..path(V4) };
    let sender_is_busy = support::busy_with(&sender, || {
        assert!(reader.env().hand_over(&[own], &to_qp1, &mut support::message()) == HandedOver::Done);
    });
    // Half a ring more than a ring holds; the reader takes that out, and sleeps.
    let reader_is_busy = keeps_busy(&reader, &sender);
    overfill(&sender, 25);
    drop(reader_is_busy);
    std::thread::sleep(Duration::from_millis(300));
    let mut fill = |_: SharedBytes<'_>| Err(Fault::Unmapped);
    assert_eq!(
        sender.env().local().unwrap().send_fragment(&path(V4), &HEADERS, 60_000, &mut fill),
        Err(Fault::Unmapped)
    );
    drop(sender_is_busy);
    let packets = (0..).take_while(|_| reader.handler().packet().is_some()).take(376).count();
    assert_eq!(packets, 376, "the message, and all packets");
}

#[test]
fn what_the_reader_has_not_taken_is_known() {
    let _alone = alone();
    let (sender, reader, _claim) = pair();
    assert!(!sender.env().has_unread(&path(V4)), "there is no ring");
    let is_taken = || {
        let end = Instant::now() + support::TIMEOUT;
        while sender.env().has_unread(&path(V4)) {
            assert!(Instant::now() < end, "it is taken");
        }
    };
    sender.env().send(&path(V4), &mut batch(0, &[64]));
    assert!(reader.handler().packet().is_some());
    is_taken();
    let busy = keeps_busy(&reader, &sender);
    assert_eq!(send_fragment(&sender, V4, &body(1, 50_000)), Ok(FragmentOutcome::Sent));
    assert!(sender.env().has_unread(&path(V4)));
    drop(busy);
    is_taken();
}

//! Disconnecting, destroying, and peers that vanish.

use crate::support::*;
use cm::{Event, Refusal};
use wire::mad::{Dreq, Mad, Message, reason};
use wire::{CommId, Qpn};

#[test]
fn disconnect_ends_on_both_sides_and_time_wait_follows() {
    let mut w = World::new(&[2, 3]);
    let (active, passive) = w.connected();
    w.hosts[0].cm.disconnect(w.now, active).unwrap();
    w.run_for(10 * MS);
    assert!(w.saw(0, active, disconnected) && w.saw(1, passive, disconnected));
    assert!(w.hosts[0].released.is_empty() && w.hosts[1].released.is_empty(), "the numbers are held");
    assert_eq!(w.hosts[0].cm.len(), 1);
    w.run_for(600 * MS);
    for (host, id) in [(0, active), (1, passive)] {
        assert_eq!(w.hosts[host].events.last(), Some(&(id, Event::TimewaitExit)));
        assert_eq!(w.hosts[host].released.len(), 1);
        assert_eq!(w.count(host, id, disconnected), 1);
        w.hosts[host].cm.disconnect(w.now, id).expect("harmless");
        w.hosts[host].cm.destroy(w.now, id);
        assert!(w.hosts[host].cm.is_empty());
    }
    assert_eq!(w.sent.len(), 5);
}

#[test]
fn time_waits_that_begin_at_about_the_same_time_end_together_and_none_too_early() {
    let mut w = World::new(&[2, 3]);
    let ids: Vec<_> = (0..20).map(|_| w.connected().0).collect();
    let (begin, wait) = (w.now, std::time::Duration::from_nanos(4_096 << 17));
    for &id in &ids {
        w.hosts[0].cm.disconnect(w.now, id).unwrap();
        w.hosts[0].cm.destroy(w.now, id);
        w.run_for(2 * MS);
    }
    let last = w.now;
    w.run_for(wait - (last - begin));
    assert_eq!(w.hosts[0].cm.len(), 20, "none is over before its time");
    let mut ends = 0;
    while !w.hosts[0].cm.is_empty() {
        let before = w.hosts[0].cm.len();
        w.run_for(MS / 4);
        ends += usize::from(w.hosts[0].cm.len() < before);
    }
    assert_eq!(ends, 1);
    assert!(w.now - last <= wait + wait / 8);
}

#[test]
fn duplicate_dreq_gets_the_drep_again_from_time_wait_and_after_it() {
    let mut w = World::new(&[2, 3]);
    let (active, passive) = w.connected();
    w.hosts[0].cm.disconnect(w.now, active).unwrap();
    w.run_for(10 * MS);
    let dreq = w.sent_by(0, "DREQ")[0].mad.clone();
    w.inject(1, gid(2), &dreq);
    assert_eq!(w.sent_by(1, "DREP").len(), 2);
    w.run_for(5000 * MS);
    w.inject(1, gid(2), &dreq);
    let dreps = w.sent_by(1, "DREP");
    assert_eq!(dreps.len(), 3);
    assert!(dreps.iter().all(|s| s.mad == dreps[0].mad));
    assert_eq!(w.count(1, passive, disconnected), 1);
}

#[test]
fn dreq_for_an_unknown_connection_gets_a_drep_all_the_same() {
    let mut w = World::new(&[2, 3]);
    let (local_comm_id, remote_comm_id) = (CommId(0x0012_3456), CommId(0x0020_0001));
    let dreq = Dreq { local_comm_id, remote_comm_id, remote_qpn: Qpn::new(7), private_data: [0; 220] };
    w.inject(1, gid(2), &Mad { transaction_id: 3, message: Message::Dreq(dreq) });
    let Message::Drep(drep) = &w.sent[0].mad.message else { panic!("{:?}", w.sent) };
    assert_eq!((drep.local_comm_id, drep.remote_comm_id), (remote_comm_id, local_comm_id));
    assert_eq!((w.sent[0].to, w.sent[0].mad.transaction_id), (gid(2), 3));
}

#[test]
fn dreqs_that_cross_end_both_sides_once() {
    let mut w = World::new(&[2, 3]);
    let (active, passive) = w.connected();
    w.hosts[0].cm.disconnect(w.now, active).unwrap();
    w.hosts[1].cm.disconnect(w.now, passive).unwrap();
    w.run_for(5000 * MS);
    assert_eq!((w.count(0, active, disconnected), w.count(1, passive, disconnected)), (1, 1));
    assert_eq!((w.sent_by(0, "DREQ").len(), w.sent_by(1, "DREQ").len()), (1, 1));
    assert_eq!((w.sent_by(0, "DREP").len(), w.sent_by(1, "DREP").len()), (1, 1));
}

#[test]
fn peer_that_never_answers_a_dreq_costs_two_seconds() {
    let mut w = World::new(&[2, 3]);
    let (active, _) = w.connected();
    w.lose(|s| s.from == 0);
    w.hosts[0].cm.disconnect(w.now, active).unwrap();
    w.run_for(2001 * MS);
    assert!(w.saw(0, active, |e| *e == Event::Disconnected { status: -110 }));
    assert!((5..20).contains(&w.sent_by(0, "DREQ").len()));
}

#[test]
fn dreq_before_the_rtu_ends_the_accepting_side() {
    let mut w = World::new(&[2, 3]);
    w.lose(|s| kind(&s.mad) == "RTU");
    let active = w.connect(0, 1);
    w.run_for(MS);
    w.hosts[0].cm.disconnect(w.now, active).unwrap();
    w.run_for(10 * MS);
    assert!(w.saw(1, w.request(1), disconnected));
    assert!(w.saw(0, active, disconnected));
}

#[test]
fn repeated_rep_during_disconnection_gets_the_dreq() {
    let mut w = World::new(&[2, 3]);
    w.lose(|s| s.from == 0 && kind(&s.mad) != "REQ");
    let active = w.connect(0, 1);
    w.run_for(240 * MS);
    w.hosts[0].cm.disconnect(w.now, active).unwrap();
    w.pump();
    w.heal();
    w.run_for(13 * MS);
    assert!(w.saw(1, w.request(1), disconnected), "before the DREQ's own repetition after 50 ms");
}

#[test]
fn side_that_accepts_and_disconnects_at_once_ends_both() {
    let mut w = World::new(&[2, 3]);
    w.hosts[1].willing = false;
    w.lose(|s| kind(&s.mad) == "REP");
    let active = w.connect(0, 1);
    w.run_for(MS);
    let (passive, accept) = (w.request(1), w.accept_params(1));
    w.hosts[1].cm.accept(w.now, passive, &accept).unwrap();
    w.hosts[1].cm.disconnect(w.now, passive).unwrap();
    w.run_for(10 * MS);
    assert!(w.saw(1, passive, disconnected));
    assert!(w.saw(0, active, rejected(reason::CONSUMER_DEFINED)));
}

#[test]
fn destroyed_while_waiting_for_the_reply_says_time_out() {
    let mut w = World::new(&[2, 3]);
    w.hosts[1].willing = false;
    let active = w.connect(0, 1);
    w.run_for(MS);
    w.hosts[0].cm.destroy(w.now, active);
    w.run_for(MS);
    assert!(w.hosts[0].cm.is_empty());
    assert_eq!(w.hosts[0].released.len(), 1);
    assert!(w.saw(1, w.request(1), rejected(reason::TIMEOUT)));
}

#[test]
fn destroyed_request_is_rejected() {
    let mut w = World::new(&[2, 3]);
    w.hosts[1].willing = false;
    let active = w.connect(0, 1);
    w.run_for(MS);
    let request = w.request(1);
    w.hosts[1].cm.destroy(w.now, request);
    w.run_for(MS);
    assert!(w.saw(0, active, rejected(reason::CONSUMER_DEFINED)));
    let accept = w.accept_params(1);
    assert!(w.hosts[1].cm.accept(w.now, request, &accept).is_err());
}

#[test]
fn destroyed_before_the_peer_is_ready_rejects() {
    for early in [false, true] {
        let mut w = World::new(&[2, 3]);
        w.hosts[0].willing = false;
        w.lose(move |s| kind(&s.mad) == "REP" && early);
        let active = w.connect(0, 1);
        w.run_for(MS);
        let request = w.request(1);
        w.hosts[1].cm.destroy(w.now, request);
        w.run_for(MS);
        assert!(w.saw(0, active, rejected(reason::CONSUMER_DEFINED)), "REP lost: {early}");
        w.run_for(10_000 * MS);
        assert!(w.hosts[1].cm.is_empty());
    }
}

#[test]
fn destroyed_reply_rejects_the_rep() {
    let mut w = World::new(&[2, 3]);
    w.hosts[0].willing = false;
    let active = w.connect(0, 1);
    w.run_for(MS);
    w.hosts[0].cm.destroy(w.now, active);
    w.run_for(MS);
    assert!(w.saw(1, w.request(1), rejected(reason::CONSUMER_DEFINED)));
    w.run_for(5000 * MS);
    assert!(w.hosts[0].cm.is_empty());
}

#[test]
fn destroyed_connection_repeats_its_dreq_until_it_is_answered() {
    let mut w = World::new(&[2, 3]);
    let (active, passive) = w.connected();
    w.lose(|s| kind(&s.mad) == "DREQ" && s.attempt < 3);
    w.hosts[0].cm.destroy(w.now, active);
    let before = w.hosts[0].events.len();
    w.run_for(5000 * MS);
    assert!(w.saw(1, passive, disconnected));
    assert_eq!(w.hosts[0].events.len(), before, "no event after destroy");
    assert!(w.hosts[0].cm.is_empty());
    assert_eq!(w.hosts[0].released.len(), 1, "but the release of the queue pair is told");
}

#[test]
fn rej_of_a_reply_ends_the_accepting_side() {
    let mut w = World::new(&[2, 3]);
    w.hosts[0].willing = false;
    let active = w.connect(0, 1);
    w.run_for(MS);
    w.hosts[0].cm.reject(w.now, active, Refusal::ConsumerDefined, &[3; 148]).unwrap();
    w.run_for(MS);
    assert!(w.saw(
        1,
        w.request(1),
        |e| matches!(e, Event::Rejected { private_data, .. } if private_data[0] == 3)
    ));
    assert!(w.hosts[0].cm.is_empty());
}

#[test]
fn icmp_ends_what_waits_for_an_answer_and_nothing_else() {
    let mut w = World::new(&[2, 3]);
    let (established, _) = w.connected();
    w.lose(|_| true);
    let waiting = w.connect(0, 1);
    let (ours, _) = w.hosts[0].cm.comm_ids(waiting).unwrap();
    let other = w.connect(0, 1);
    let now = w.now;
    w.hosts[0].cm.peer_unreachable(now, [10, 77, 0, 9].into(), None);
    w.hosts[0].cm.peer_unreachable(now, [10, 77, 0, 3].into(), Some(CommId(1)));
    w.pump();
    assert!(!w.saw(0, waiting, unreachable));
    w.hosts[0].cm.peer_unreachable(now, [10, 77, 0, 3].into(), Some(ours));
    w.pump();
    assert!(w.saw(0, waiting, unreachable) && !w.saw(0, other, unreachable));
    w.hosts[0].cm.peer_unreachable(now, [10, 77, 0, 3].into(), None);
    w.pump();
    assert!(w.saw(0, other, unreachable));
    assert!(!w.saw(0, established, unreachable) && !w.saw(0, established, disconnected));
    w.hosts[0].cm.disconnect(now, established).unwrap();
    w.hosts[0].cm.peer_unreachable(now, [10, 77, 0, 3].into(), None);
    w.pump();
    assert!(w.saw(0, established, disconnected), "nobody is left to answer the DREQ");
}

#[test]
fn killed_process_disconnects_its_peers() {
    // Host 1 and host 2 are processes of one address.
    let mut w = World::new(&[2, 3, 3]);
    w.hosts[2].listens = false;
    let (dead, _) = w.connected();
    let survivor = w.connect(2, 0);
    w.run_for(10 * MS);
    w.hosts[1].willing = false;
    let asked = w.connect(0, 1);
    w.run_for(300 * MS);
    assert_eq!(w.sent_by(1, "MRA").len(), 1, "which tells whose process it is");
    let now = w.now;
    let dead_block = w.hosts[1].block;
    w.hosts[0].cm.peer_gone(now, |id, of| of == gid(3).ip() && id.is_some_and(|id| id.0 >> 20 == dead_block));
    w.pump();
    assert!(w.saw(0, dead, disconnected));
    assert!(w.saw(0, asked, rejected(reason::CONSUMER_DEFINED)));
    assert!(!w.saw(2, survivor, disconnected));
    assert_eq!(w.hosts[0].events.iter().filter(|(_, e)| disconnected(e)).count(), 1);
}

#[test]
fn messages_from_another_address_touch_nothing() {
    let mut w = World::new(&[2, 3]);
    let (active, passive) = w.connected();
    w.lose(|_| true);
    w.hosts[0].cm.disconnect(w.now, active).unwrap();
    w.pump();
    let dreq = w.sent_by(0, "DREQ")[0].mad.clone();
    let before = w.sent.len();
    w.inject(1, gid(66), &dreq);
    assert!(!w.saw(1, passive, disconnected));
    assert_eq!(w.sent.len(), before, "no answer either");
    w.inject(1, gid(2), &dreq);
    assert!(w.saw(1, passive, disconnected));
}

#[test]
fn timeout_of_a_hostile_req_does_not_hold_time_wait_for_hours() {
    let mut w = World::new(&[2, 3]);
    w.lose(|_| true);
    w.connect(0, 1);
    let mut req = w.sent[0].mad.clone();
    let Message::Req(slow) = &mut req.message else { unreachable!() };
    slow.primary.local_ack_timeout = 31;
    w.inject(1, gid(2), &req);
    let passive = w.request(1);
    assert_eq!(w.hosts[1].cm.qp_attr(passive).unwrap().timeout, 31);
    w.hosts[1].cm.destroy(w.now, passive);
    w.run_for(4001 * MS);
    assert!(w.hosts[1].cm.is_empty());
}

#[test]
fn peers_of_a_process_that_ends_hear_what_its_kernel_would_say() {
    let mut w = World::new(&[2, 3]);
    let (_, passive) = w.connected();
    w.hosts[1].willing = false;
    let asking = w.connect(0, 1);
    w.run_for(MS);
    w.hosts[1].cm.leave(w.now);
    w.run_for(10 * MS);
    assert_eq!((w.sent_by(1, "DREQ").len(), w.sent_by(1, "REJ").len()), (1, 1));
    assert!(
        w.hosts[1].events.iter().all(|(id, event)| *id != passive || !disconnected(event)),
        "nobody is told here"
    );
    assert!(w.hosts[0].events.iter().any(|(_, event)| disconnected(event)));
    assert!(w.saw(0, asking, rejected(reason::CONSUMER_DEFINED)));
}

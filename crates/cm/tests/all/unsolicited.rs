//! Messages that any host can write that can send a packet. They end nothing, answer nothing in
//! another's name, and bring no host more packets than a few.

use crate::support::*;
use cm::ib::{Cm, Config};
use cm::{Event, Refusal};
use wire::mad::{Mad, Message, Rej, Rep, Req, reason};
use wire::{CommId, Guid, Qpn};

/// What `host` was told, and what it sent, so far.
fn seen(w: &World, host: usize) -> (usize, usize) {
    (w.hosts[host].events.len(), w.sent.iter().filter(|s| s.from == host).count())
}

/// The first REQ of `host` with some of it changed.
fn req_like(w: &World, host: usize, transaction_id: u64, change: impl Fn(&mut Req)) -> Mad {
    let Message::Req(mut req) = w.sent_by(host, "REQ")[0].mad.message.clone() else { unreachable!() };
    change(&mut req);
    Mad { transaction_id, message: Message::Req(req) }
}

/// The program of a host is started anew: it knows nothing, and gives out the same numbers of queue
/// pairs.
fn restart(w: &mut World, host: usize, first_qpn: u32) {
    let (block, mut rng) = (w.hosts[host].block, Rng(77));
    let comm_ids = move || CommId(block << 20 | (rng.next() & 0xf_ffff) as u32);
    let mut rng = Rng(78);
    w.hosts[host].cm = Cm::new(Config::new(w.hosts[host].guid), comm_ids, move || rng.next());
    w.hosts[host].next_qpn = first_qpn - 1;
}

/// Loses the first message of a kind, and checks that `to` takes it only with its own transaction
/// id and from its sender.
fn only_the_genuine_counts(w: &mut World, lost: &'static str, to: usize, go: impl Fn(&mut World)) {
    w.lose(move |s| s.from != to && kind(&s.mad) == lost);
    go(w);
    let mad = w.sent_by(1 - to, lost)[0].mad.clone();
    let genuine = w.hosts[1 - to].gid;
    let before = (seen(w, to), w.hosts[to].cm.unmatched());
    for bit in [0, 31, 32, 63] {
        let forged = Mad { transaction_id: mad.transaction_id ^ 1 << bit, ..mad.clone() };
        w.inject(to, genuine, &forged);
    }
    w.inject(to, gid(66), &mad);
    assert_eq!(seen(w, to), before.0, "{lost}: no event and no answer");
    assert_eq!(w.hosts[to].cm.unmatched(), before.1 + 5, "{lost}");
    w.inject(to, genuine, &mad);
    assert_ne!(seen(w, to).0, before.0.0, "{lost}: the genuine one is told of");
}

#[test]
fn an_answer_with_another_transaction_id_or_from_another_address_is_dropped_and_counted() {
    let connect = |w: &mut World| {
        w.connect(0, 1);
        w.run_for(MS);
    };
    only_the_genuine_counts(&mut World::new(&[2, 3]), "REP", 0, connect);
    only_the_genuine_counts(&mut World::new(&[2, 3]), "RTU", 1, connect);
    let mut w = World::new(&[2, 3]);
    w.hosts[1].willing = false;
    only_the_genuine_counts(&mut w, "REJ", 0, |w| {
        connect(w);
        let (now, request) = (w.now, w.request(1));
        w.hosts[1].cm.reject(now, request, Refusal::ConsumerDefined, &[]).unwrap();
        w.pump();
    });
    let mut w = World::new(&[2, 3]);
    let (active, _) = w.connected();
    only_the_genuine_counts(&mut w, "DREP", 0, |w| {
        let now = w.now;
        w.hosts[0].cm.disconnect(now, active).unwrap();
        w.run_for(MS);
    });
    let mut w = World::new(&[2, 3]);
    only_the_genuine_counts(&mut w, "SIDR_REP", 0, |w| {
        let path = cm::PathRecord::new(gid(2), gid(3), 7, wire::Mtu::M1024);
        let ask = cm::SidrAsk { service: service(), source_port: 1, path, private_data: vec![] };
        let now = w.now;
        w.hosts[0].cm.sidr_request(now, &ask).unwrap();
        w.run_for(MS);
        let (now, request) = (w.now, w.request(1));
        w.hosts[1].cm.destroy(now, request);
        w.pump();
    });
}

#[test]
fn a_forged_mra_extends_no_timeout() {
    for forged in [true, false] {
        let mut w = World::new(&[2, 3]);
        w.hosts[1].willing = false;
        w.lose(|s| s.from == 1);
        let active = w.connect(0, 1);
        w.run_for(MS);
        let (now, request) = (w.now, w.request(1));
        w.hosts[1].cm.mra(now, request, 24).unwrap();
        w.pump();
        let mad = w.sent_by(1, "MRA")[0].mad.clone();
        w.inject(0, gid(3), &Mad { transaction_id: mad.transaction_id ^ u64::from(forged), ..mad });
        w.run_for(78_000 * MS);
        assert_eq!(w.saw(0, active, unreachable), forged);
    }
}

#[test]
fn transaction_ids_are_the_random_ones_that_the_caller_draws() {
    let mut w = World::new(&[2, 3]);
    w.connected();
    w.connected();
    let ids: Vec<u64> = w.sent_by(0, "REQ").iter().map(|s| s.mad.transaction_id).collect();
    let mut drawn = Rng(!1);
    assert_eq!(ids, [drawn.next(), drawn.next()]);
}

#[test]
fn a_req_that_names_the_peers_queue_pair_or_id_ends_nothing_that_the_peer_still_knows() {
    let mut w = World::new(&[2, 3]);
    let (active, passive) = w.connected();
    let by_queue_pair = req_like(&w, 0, 1, |req| req.local_comm_id = CommId(0x00ab_cdef));
    let by_id = req_like(&w, 0, 2, |req| req.local_qpn = Qpn::new(0x999));
    let by_transaction = req_like(&w, 0, w.sent[0].mad.transaction_id, |req| req.local_qpn = Qpn::new(0x999));
    for forged in [by_queue_pair, by_id, by_transaction] {
        let before = w.sent.len();
        w.inject(1, gid(2), &forged);
        assert_eq!(rej_reason(&w.sent[before].mad), reason::STALE_CONNECTION);
        w.inject(1, gid(2), &forged);
        w.run_for(20_000 * MS);
        assert!(!w.saw(0, active, disconnected) && !w.saw(1, passive, disconnected));
        let questions = w.sent[before..].iter().filter(|s| kind(&s.mad) == "DREQ").count();
        assert!((3..=6).contains(&questions), "{questions}");
    }
    assert_eq!(w.hosts[1].cm.deadline(), None);
    let now = w.now;
    w.hosts[0].cm.disconnect(now, active).unwrap();
    w.run_for(10 * MS);
    assert!(w.saw(1, passive, disconnected), "it ends as any other");
}

#[test]
fn a_peer_that_restarted_with_the_same_numbers_gets_through() {
    let mut w = World::new(&[2, 3]);
    let (_, passive) = w.connected();
    restart(&mut w, 0, 0x1_0001);
    let again = w.connect(0, 1);
    w.run_for(10 * MS);
    assert!(w.saw(0, again, rejected(reason::STALE_CONNECTION)));
    assert_eq!(w.count(1, passive, disconnected), 1, "the peer itself has said that it does not know it");
    w.hosts[0].next_qpn = 0x1_0000;
    let third = w.connect(0, 1);
    w.run_for(10 * MS);
    assert!(w.saw(0, third, |e| matches!(e, Event::Reply(_))), "time wait here is no reason to refuse");
}

#[test]
fn the_question_is_repeated_over_a_bad_network() {
    let mut w = World::new(&[2, 3]);
    let (_, passive) = w.connected();
    restart(&mut w, 0, 0x1_0001);
    let mut left = 3;
    w.lose(move |s| {
        let lose = kind(&s.mad) == "DREQ" && left > 0;
        left -= u32::from(lose);
        lose
    });
    w.connect(0, 1);
    w.run_for(1_800 * MS);
    assert!(w.saw(1, passive, disconnected));
}

#[test]
fn only_the_answer_to_the_question_ends_a_connection_in_doubt() {
    let mut w = World::new(&[2, 3]);
    let (active, passive) = w.connected();
    let stale = req_like(&w, 0, 1, |req| req.local_comm_id = CommId(0x00ab_cdef));
    w.inject(1, gid(2), &stale);
    let question = w.sent_by(1, "DREQ")[0].mad.clone();
    let Message::Dreq(dreq) = &question.message else { unreachable!() };
    assert_ne!(Some(dreq.remote_qpn), w.hosts[0].cm.qp_attr(active).map(|_| Qpn::new(0x1_0001)));
    let drep = |transaction_id| Mad {
        transaction_id,
        message: Message::Drep(wire::mad::Drep {
            local_comm_id: dreq.remote_comm_id,
            remote_comm_id: dreq.local_comm_id,
            private_data: [0; 224],
        }),
    };
    w.inject(1, gid(2), &drep(question.transaction_id ^ 1));
    w.inject(1, gid(2), &drep(w.sent[0].mad.transaction_id));
    w.inject(1, gid(66), &drep(question.transaction_id));
    assert!(!w.saw(1, passive, disconnected));
    w.inject(1, gid(2), &drep(question.transaction_id));
    assert!(w.saw(1, passive, disconnected));
}

#[test]
fn a_server_that_names_anothers_queue_pair_in_its_rep_ends_nothing() {
    let mut w = World::new(&[2, 3]);
    let (active, passive) = w.connected();
    w.lose(|s| kind(&s.mad) == "REP");
    let again = w.connect(0, 1);
    w.run_for(MS);
    let mut rep = w.sent_by(1, "REP").last().unwrap().mad.clone();
    let Message::Rep(Rep { local_qpn, .. }) = &mut rep.message else { unreachable!() };
    *local_qpn = w.hosts[0].cm.qp_attr(active).unwrap().dest_qpn;
    w.inject(0, gid(3), &rep);
    assert!(w.saw(0, again, rejected(reason::STALE_CONNECTION)), "the newcomer is refused");
    w.run_for(20_000 * MS);
    assert!(!w.saw(0, active, disconnected) && !w.saw(1, passive, disconnected));
}

#[test]
fn a_rej_for_a_time_out_needs_the_transaction_and_ends_nothing_that_is_connected() {
    let mut w = World::new(&[2, 3]);
    let (_, passive) = w.connected();
    let (_, theirs) = w.hosts[1].cm.comm_ids(passive).unwrap();
    let mut info = [0; 72];
    info[..8].copy_from_slice(&w.hosts[0].guid.0.to_be_bytes());
    for transaction_id in [1, w.sent[0].mad.transaction_id] {
        for remote_comm_id in [CommId(0), CommId(0x9999)] {
            let rej = Rej {
                local_comm_id: theirs.unwrap(),
                remote_comm_id,
                message: 2,
                info_len: 8,
                reason: reason::TIMEOUT,
                info,
                private_data: [0; 148],
            };
            w.inject(1, gid(2), &Mad { transaction_id, message: Message::Rej(rej) });
        }
    }
    assert!(!w.saw(1, passive, rejected(reason::TIMEOUT)) && !w.saw(1, passive, disconnected));
}

#[test]
fn of_requests_that_name_one_queue_pair_or_one_id_the_one_that_is_confirmed_has_it() {
    let mut w = World::new(&[2, 3]);
    w.hosts[1].willing = false;
    let active = w.connect(0, 1);
    w.sent.truncate(1);
    let by_id = req_like(&w, 0, 1, |req| req.local_qpn = Qpn::new(0x999));
    let by_queue_pair = req_like(&w, 0, 2, |req| req.local_comm_id = CommId(0x00ab_cdef));
    // The forged ones come first.
    w.inject(1, gid(2), &by_id);
    w.inject(1, gid(2), &by_queue_pair);
    w.run_for(MS);
    let requests: Vec<_> = w.hosts[1].events.iter().map(|(id, _)| *id).collect();
    assert_eq!(requests.len(), 3);
    for &request in &requests {
        let accept = w.accept_params(1);
        w.hosts[1].cm.accept(w.now, request, &accept).unwrap();
    }
    w.run_for(10 * MS);
    assert!(w.saw(0, active, |e| matches!(e, Event::Reply(_))));
    let established: Vec<_> =
        requests.iter().filter(|&&id| w.saw(1, id, |e| *e == Event::Established)).collect();
    assert_eq!(established, [&requests[2]]);
}

#[test]
fn a_dreq_of_our_kind_without_the_transaction_is_asked_back_and_a_kernels_is_taken() {
    for is_kin in [true, false] {
        let mut w = World::with(&[2, 3], |config| Config {
            is_kin: if is_kin { |_| true } else { |_| false },
            timing: cm::Timing { probe_after: std::time::Duration::ZERO, ..config.timing },
            ..config
        });
        let (active, passive) = w.connected();
        let (ours, Some(theirs)) = w.hosts[0].cm.comm_ids(active).unwrap() else { unreachable!() };
        let dreq = |remote_qpn| Mad {
            transaction_id: 5,
            message: Message::Dreq(wire::mad::Dreq {
                local_comm_id: ours,
                remote_comm_id: theirs,
                remote_qpn,
                private_data: [0; 220],
            }),
        };
        let before = w.sent.len();
        w.inject(1, gid(2), &dreq(Qpn::new(0x777)));
        assert_eq!(w.sent.len(), before, "of another queue pair");
        w.inject(1, gid(2), &dreq(Qpn::new(0x2_0001)));
        w.run_for(20_000 * MS);
        assert_eq!(w.saw(1, passive, disconnected), !is_kin);
        assert_eq!(w.hosts[1].cm.unmatched(), u64::from(is_kin));
    }
}

/// A server that is asked in the name of a host that is not there: the packets it is sent.
fn packets_for_a_victim(requests: u32, accepted: bool, max_cm_retries: u8) -> usize {
    let mut w =
        World::with(&[2, 3], |config| Config { is_kin: |_| true, process_of: |id| id.0 >> 20, ..config });
    w.lose(|_| true);
    w.connect(0, 1);
    w.hosts[1].willing = accepted;
    for n in 0..requests {
        let req = req_like(&w, 0, n.into(), |req| {
            (req.local_comm_id, req.local_qpn) = (CommId(n + 1), Qpn::new(n + 1));
            (req.local_ca_guid, req.max_cm_retries) = (Guid(9), max_cm_retries);
        });
        w.inject(1, gid(44), &req);
    }
    w.run_for(3_600_000 * MS);
    w.sent.iter().filter(|s| s.to == gid(44)).count()
}

#[test]
fn what_a_req_in_anothers_name_provokes_is_bounded_and_ends() {
    // A reply, and eight packets beside.
    assert_eq!(packets_for_a_victim(1, true, 15), 9);
    // A reply, and the REJ of the end that gives up: the REQ allows no repetition.
    assert_eq!(packets_for_a_victim(1, true, 0), 2);
    assert_eq!(packets_for_a_victim(1, true, 3), 5);
    // The program does not look at it: probes.
    assert_eq!(packets_for_a_victim(1, false, 15), 8);
    // The address counts, however many requests bear it.
    assert_eq!(packets_for_a_victim(100, true, 15), 207);
    assert_eq!(packets_for_a_victim(100, false, 15), 107);
}

#[test]
fn a_reply_is_repeated_until_a_peer_behind_a_bad_network_says_that_it_has_it() {
    let mut w = World::new(&[2, 3]);
    let mut lost = 0;
    w.lose(move |s| {
        lost += u32::from(kind(&s.mad) == "RTU");
        kind(&s.mad) == "RTU" && lost <= 6
    });
    w.connect(0, 1);
    w.run_for(40_000 * MS);
    assert!(w.saw(1, w.request(1), |e| *e == Event::Established), "six RTUs are lost");
    // An address that has answered once is sent what the REQ allows.
    w.hosts[0].willing = false;
    w.lose(|s| s.from == 0 && kind(&s.mad) != "REQ");
    w.connect(0, 1);
    w.run_for(MS);
    let before = w.sent_by(1, "REP").len();
    w.run_for(70_000 * MS);
    assert_eq!(w.sent_by(1, "REP").len() - before, 15);
}

//! REQ, REP, RTU and what may go wrong among them.

use crate::support::*;
use cm::ib::Origin;
use cm::{Event, Refusal};
use wire::mad::{Lap, Mad, Message, Rep, Req, apr_status, reason};
use wire::{Address, CommId, Guid, LidAddress, Psn, Qkey, Qpn, ServiceId};

#[test]
fn a_connection_is_made_by_three_messages() {
    let mut w = World::new(&[2, 3]);
    let (active, passive) = w.connected();
    let kinds: Vec<_> = w.sent.iter().map(|s| (s.from, kind(&s.mad), s.attempt)).collect();
    assert_eq!(kinds, [(0, "REQ", 0), (1, "REP", 0), (0, "RTU", 0)]);
    assert!(w.sent.iter().all(|s| s.mad.transaction_id == w.sent[0].mad.transaction_id));
    assert!(w.saw(0, active, |e| matches!(e, Event::Reply(rep) if rep.private_data == [0x22; 196])));
    assert!(w.saw(1, passive, |e| matches!(e, Event::Request(r)
        if r.private_data == [0x11; 56] && (r.service, r.peer_port) == (service(), 0xc983)
            && (r.parameters.responder_resources, r.parameters.initiator_depth) == (3, 4))));
    assert_eq!(w.hosts[0].cm.deadline(), None);
    assert_eq!(w.hosts[1].cm.deadline(), None);
}

#[test]
fn a_connection_between_lids_is_made_and_ended_like_one_between_ip_addresses() {
    let mut w = World::new(&[2, 3]);
    let lids = [5, 6].map(|lid| LidAddress::new(lid, 3, 1).unwrap());
    w.hosts.iter_mut().zip(lids).for_each(|(host, lid)| host.lid = Some(lid));
    let (active, passive) = w.connected();
    let kinds: Vec<_> = w.sent.iter().map(|s| (s.from, kind(&s.mad), s.attempt)).collect();
    assert_eq!(kinds, [(0, "REQ", 0), (1, "REP", 0), (0, "RTU", 0)]);
    let there = w.hosts[0].cm.qp_attr(active).unwrap().path;
    let back = w.hosts[1].cm.qp_attr(passive).unwrap().path;
    assert_eq!((there.source(), there.dest()), (lids[0].into(), lids[1].into()));
    assert_eq!((back.source(), back.dest()), (there.dest(), there.source()));
    // Packets need not bear GIDs: the request says them.
    assert_eq!((back.local_gid, back.remote_gid), (gid(3), gid(2)));

    let message = |lid: u16, mad| (Origin { source: address(lid), dest: lids[1].into(), link: 7 }, mad);
    let rtu = w.sent_by(0, "RTU")[0].mad.clone();
    let (from, mad) = message(7, rtu);
    w.hosts[1].cm.input(w.now, from, &mad);
    assert_eq!(w.hosts[1].cm.unmatched(), 1, "another LID than the peer's");
    w.hosts[1].cm.peer_unreachable(w.now, address(7), None);
    w.hosts[0].cm.disconnect(w.now, active).unwrap();
    w.run_for(10 * MS);
    assert!(w.saw(0, active, disconnected) && w.saw(1, passive, disconnected));
}

fn address(lid: u16) -> Address {
    LidAddress::new(lid, 3, 1).unwrap().into()
}

#[test]
fn attributes_of_both_queue_pairs_fit_together() {
    let mut w = World::new(&[2, 3]);
    let (active, passive) = w.connected();
    let a = w.hosts[0].cm.qp_attr(active).unwrap();
    let p = w.hosts[1].cm.qp_attr(passive).unwrap();
    // A starting PSN is the one the peer shall begin with (IBA 1.4 §12.7.31; in the captures of rxe
    // likewise).
    assert_eq!((a.rq_psn, a.sq_psn), (Psn::new(0x4e_b0ef), Psn::new(0xbd_5bc6)));
    assert_eq!((p.rq_psn, p.sq_psn), (a.sq_psn, a.rq_psn));
    assert_eq!((a.dest_qpn, p.dest_qpn), (Qpn::new(0x2_0001), Qpn::new(0x1_0001)));
    // Asked: 3 out, 4 in. Accepted: 2 in, 9 out, of which 4 are left.
    assert_eq!((a.max_rd_atomic, a.max_dest_rd_atomic), (2, 4));
    assert_eq!((p.max_rd_atomic, p.max_dest_rd_atomic), (4, 2));
    assert_eq!((a.retry_cnt, a.rnr_retry, a.timeout, a.min_rnr_timer), (6, 7, 17, 0));
    assert_eq!((p.retry_cnt, p.rnr_retry, p.timeout, p.min_rnr_timer), (6, 5, 17, 0));
    assert_eq!((p.path.local_gid, p.path.remote_gid), (a.path.remote_gid, a.path.local_gid));
}

#[test]
fn a_queue_pair_may_be_moved_before_its_request_is_accepted() {
    let mut w = World::new(&[2, 3]);
    w.hosts[1].willing = false;
    let active = w.connect(0, 1);
    w.run_for(10 * MS);
    let (passive, _) = w.hosts[1].events.first().cloned().unwrap();
    assert_eq!(w.hosts[1].cm.qp_attr(passive), None);
    let p = w.hosts[1].cm.requested_qp_attr(passive).unwrap();
    // All that the REQ says; only the PSN of the REP is still to come.
    assert_eq!((p.sq_psn, p.dest_qpn), (Psn::new(0x4e_b0ef), Qpn::new(0x1_0001)));
    assert_eq!((p.path.local_gid, p.path.remote_gid), (gid(3), gid(2)));
    assert_eq!((p.max_rd_atomic, p.max_dest_rd_atomic), (4, 3));
    assert_eq!(w.hosts[0].cm.requested_qp_attr(active), None);
}

#[test]
fn duplicate_req_gets_the_same_rep() {
    let mut w = World::new(&[2, 3]);
    w.hosts[0].willing = false;
    w.connect(0, 1);
    w.run_for(10 * MS);
    let req = w.sent_by(0, "REQ")[0].mad.clone();
    w.inject(1, gid(2), &req);
    w.inject(1, gid(2), &req);
    let reps = w.sent_by(1, "REP");
    assert_eq!(reps.len(), 3);
    assert!(reps.iter().all(|s| s.mad == reps[0].mad));
    assert_eq!(reps.iter().map(|s| s.attempt).collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!(w.hosts[1].events.len(), 1, "one request only");
}

#[test]
fn duplicate_req_gets_the_same_rej() {
    let mut w = World::new(&[2, 3]);
    w.hosts[1].willing = false;
    w.lose(|s| kind(&s.mad) == "REJ" && s.attempt < 2);
    let active = w.connect(0, 1);
    w.run_for(MS);
    let request = w.request(1);
    w.hosts[1].cm.reject(w.now, request, Refusal::ConsumerDefined, &[9; 148]).unwrap();
    w.run_for(5000 * MS);
    assert_eq!(w.sent_by(1, "REJ").len(), 3);
    assert_eq!(w.hosts[1].events.len(), 1, "one request only");
    assert!(w.saw(0, active, |e| matches!(e, Event::Rejected { reason: 28, private_data }
        if *private_data == [9; 148])));
    w.run_for(20_000 * MS);
    assert!(w.hosts[1].cm.is_empty(), "the refusal is forgotten");
}

#[test]
fn duplicate_req_while_the_consumer_decides_gets_an_mra() {
    let mut w = World::new(&[2, 3]);
    w.hosts[1].willing = false;
    let active = w.connect(0, 1);
    w.run_for(60_000 * MS);
    let reqs = w.sent_by(0, "REQ").len();
    assert!((58..=62).contains(&reqs), "once a second, to find out whether the peer is still there: {reqs}");
    assert_eq!(w.sent_by(1, "MRA").len(), reqs - 1);
    let request = w.request(1);
    let accept = w.accept_params(1);
    w.hosts[1].cm.accept(w.now, request, &accept).unwrap();
    w.run_for(10 * MS);
    assert!(w.saw(1, request, |e| *e == Event::Established));
    assert!(w.saw(0, active, |e| matches!(e, Event::Reply(_))));
}

#[test]
fn mra_prolongs_but_not_for_ever() {
    let mut w = World::new(&[2, 3]);
    w.hosts[1].willing = false;
    w.connect(0, 1);
    w.run_for(MS);
    let request = w.request(1);
    assert!(w.hosts[1].cm.mra(w.now, request, 32).is_err());
    w.hosts[1].cm.mra(w.now, request, 20).unwrap();
    w.run_for(4_000 * MS);
    assert_eq!(w.sent_by(0, "REQ").len(), 4);
    w.run_for(3_600_000 * MS);
    assert!(w.hosts[0].events.iter().any(|(_, e)| unreachable(e)));
}

#[test]
fn duplicate_rep_gets_the_rtu_again() {
    let mut w = World::new(&[2, 3]);
    let mut first = true;
    w.lose(move |s| kind(&s.mad) == "RTU" && std::mem::take(&mut first));
    let (_, passive) = {
        w.connect(0, 1);
        w.run_for(1000 * MS);
        ((), w.request(1))
    };
    assert_eq!(w.count(1, passive, |e| *e == Event::Established), 1);
    assert_eq!(w.sent_by(1, "REP").len(), 2);
    let rtus = w.sent_by(0, "RTU");
    assert_eq!(rtus.iter().map(|s| s.attempt).collect::<Vec<_>>(), [0, 1]);
    assert_eq!(w.hosts[0].events.len(), 1, "one reply only");
}

#[test]
fn duplicate_rep_before_the_consumer_confirms_gets_an_mra() {
    let mut w = World::new(&[2, 3]);
    w.hosts[0].willing = false;
    let active = w.connect(0, 1);
    w.run_for(60_000 * MS);
    let reps = w.sent_by(1, "REP").len();
    assert!((58..=62).contains(&reps), "{reps}");
    assert_eq!(w.sent_by(0, "MRA").len(), reps - 1);
    w.hosts[0].cm.established(w.now, active).unwrap();
    w.run_for(10 * MS);
    assert!(w.saw(1, w.request(1), |e| *e == Event::Established));
}

#[test]
fn lost_rtu_is_made_up_by_data() {
    let mut w = World::new(&[2, 3]);
    w.lose(|s| kind(&s.mad) == "RTU");
    w.connect(0, 1);
    w.run_for(10 * MS);
    let passive = w.request(1);
    w.hosts[1].cm.established(w.now, passive).unwrap();
    w.run_for(10_000 * MS);
    assert_eq!(w.count(1, passive, |e| *e == Event::Established), 1);
    assert_eq!(w.sent_by(1, "REP").len(), 1);
    w.heal();
    let rtu = w.sent_by(0, "RTU")[0].mad.clone();
    w.inject(1, gid(2), &rtu);
    assert_eq!(w.count(1, passive, |e| *e == Event::Established), 1, "a late RTU tells nothing new");
}

#[test]
fn silent_host_is_unreachable_after_as_long_as_with_the_kernel() {
    let mut w = World::new(&[2, 3]);
    w.lose(|_| true);
    let active = w.connect(0, 1);
    w.run_for(77_999 * MS);
    assert!(!w.saw(0, active, unreachable));
    w.run_for(2 * MS);
    assert_eq!(w.count(0, active, unreachable), 1);
    let at: Vec<_> = w.sent_by(0, "REQ").iter().map(|s| (s.at - w.start).as_millis()).collect();
    assert_eq!(at[..6], [0, 250, 750, 1750, 2750, 3750]);
    let attempts: Vec<_> = w.sent_by(0, "REQ").iter().map(|s| s.attempt).collect();
    assert!(attempts.iter().copied().eq(0..attempts.len() as u32));
    assert_eq!(w.sent.last().map(|s| rej_reason(&s.mad)), Some(reason::TIMEOUT));
    assert_eq!(w.hosts[0].released.len(), 1);
    w.hosts[0].cm.destroy(w.now, active);
    assert!(w.hosts[0].cm.is_empty());
}

#[test]
fn peer_that_never_gets_ready_is_unreachable() {
    let mut w = World::new(&[2, 3]);
    w.lose(|s| s.from == 1);
    w.hosts[0].willing = false;
    w.connect(0, 1);
    w.run_for(10 * MS);
    let passive = w.request(1);
    w.run_for(66_000 * MS);
    assert_eq!(w.count(1, passive, unreachable), 1);
    assert_eq!(rej_reason(&w.sent_by(1, "REJ")[0].mad), reason::TIMEOUT, "the peer is told");
}

#[test]
fn rep_for_an_unknown_comm_id_is_rejected() {
    let mut w = World::new(&[2, 3]);
    let rep = Rep {
        local_comm_id: CommId(77),
        remote_comm_id: CommId(0x0010_0001),
        ece: Default::default(),
        local_qkey: Qkey(0),
        local_qpn: Qpn::new(5),
        local_eecn: 0,
        starting_psn: Psn::new(1),
        responder_resources: 1,
        initiator_depth: 1,
        target_ack_delay: 15,
        failover: 0,
        flow_control: false,
        rnr_retry_count: 7,
        srq: false,
        local_ca_guid: Guid(1),
        private_data: [0; 196],
    };
    w.inject(0, gid(3), &Mad { transaction_id: 9, message: Message::Rep(rep) });
    let Message::Rej(rej) = &w.sent[0].mad.message else { panic!("{:?}", w.sent) };
    assert_eq!((rej.reason, rej.message), (reason::INVALID_COMM_ID, 1));
    assert_eq!((rej.local_comm_id, rej.remote_comm_id), (CommId(0x0010_0001), CommId(77)));
    assert_eq!(w.sent[0].mad.transaction_id, 9);
}

#[test]
fn accepting_side_whose_peer_is_gone_hears_of_it() {
    let mut w = World::new(&[2, 3]);
    w.hosts[1].willing = false;
    w.lose(|s| kind(&s.mad) == "REJ" && s.from == 0 && rej_reason(&s.mad) == reason::TIMEOUT);
    let active = w.connect(0, 1);
    w.run_for(MS);
    w.hosts[0].cm.destroy(w.now, active);
    let (request, accept) = (w.request(1), w.accept_params(1));
    w.hosts[1].cm.accept(w.now, request, &accept).unwrap();
    w.run_for(10 * MS);
    assert!(w.saw(1, request, rejected(reason::INVALID_COMM_ID)));
}

#[test]
fn another_host_that_claims_the_same_guid_and_queue_pair_harms_nobody() {
    let mut w = World::new(&[2, 3]);
    let (_, passive) = w.connected();
    let mut req = w.sent_by(0, "REQ")[0].mad.clone();
    w.inject(1, gid(66), &req);
    let Message::Req(forged) = &mut req.message else { unreachable!() };
    forged.local_comm_id = CommId(0x00ab_cdef);
    w.inject(1, gid(66), &req);
    w.run_for(10 * MS);
    assert!(!w.saw(1, passive, disconnected));
}

#[test]
fn a_lap_is_declined_and_one_for_an_unknown_connection_refused() {
    let mut w = World::new(&[2, 3]);
    let (active, passive) = w.connected();
    let (theirs, Some(ours)) = w.hosts[1].cm.comm_ids(passive).unwrap() else { unreachable!() };
    let Message::Req(req) = w.sent_by(0, "REQ")[0].mad.message.clone() else { unreachable!() };
    for (remote_comm_id, status) in
        [(theirs, apr_status::UNSUPPORTED), (CommId(1), apr_status::INVALID_COMM_ID)]
    {
        let lap = Lap {
            local_comm_id: ours,
            remote_comm_id,
            remote_qpn: Qpn::new(1),
            remote_cm_response_timeout: 20,
            alternate: req.primary,
            private_data: [0; 168],
        };
        w.inject(1, gid(2), &Mad { transaction_id: 9, message: Message::Lap(lap) });
        let sent = w.sent.last().unwrap();
        assert_eq!((kind(&sent.mad), sent.mad.transaction_id), ("APR", 9));
        let Message::Apr(apr) = &sent.mad.message else { unreachable!() };
        assert_eq!((apr.local_comm_id, apr.remote_comm_id, apr.status), (remote_comm_id, ours, status));
    }
    w.run_for(100 * MS);
    assert!(w.hosts[0].cm.qp_attr(active).is_some() && w.hosts[1].cm.qp_attr(passive).is_some());
}

#[test]
fn reliable_datagram_service_is_refused() {
    let mut w = World::new(&[2, 3]);
    w.lose(|_| true);
    w.connect(0, 1);
    let mut req = w.sent[0].mad.clone();
    let Message::Req(rd) = &mut req.message else { unreachable!() };
    rd.transport_service = 2;
    w.inject(1, gid(2), &req);
    assert_eq!(rej_reason(&w.sent.last().unwrap().mad), reason::INVALID_TRANSPORT_SERVICE);
    assert!(w.hosts[1].cm.is_empty());
}

#[test]
fn a_request_for_no_port_or_in_nobodys_name_is_refused_and_not_shown() {
    let ways: [fn(&mut Req); 2] =
        [|req| req.service_id = ServiceId(1 << 40), |req| req.private_data[0] = 0x11];
    for spoil in ways {
        let mut w = World::new(&[2, 3]);
        w.lose(|_| true);
        w.connect(0, 1);
        let mut mad = w.sent[0].mad.clone();
        let Message::Req(req) = &mut mad.message else { unreachable!() };
        spoil(req);
        w.inject(1, gid(2), &mad);
        w.inject(1, gid(2), &mad);
        let refused = w.sent_by(1, "REJ");
        assert_eq!(refused.len(), 2, "the duplicate gets the same");
        assert!(refused.iter().all(|s| rej_reason(&s.mad) == reason::INVALID_SERVICE_ID));
        assert!(w.hosts[1].events.is_empty());
        w.run_for(11_000 * MS);
        assert!(w.hosts[1].cm.is_empty());
    }
}

#[test]
fn process_connects_to_itself() {
    let mut w = World::new(&[2]);
    let active = w.connect(0, 0);
    w.run_for(10 * MS);
    let passive = w.request(0);
    assert!(w.saw(0, passive, |e| *e == Event::Established));
    let (a, p) = (w.hosts[0].cm.qp_attr(active).unwrap(), w.hosts[0].cm.qp_attr(passive).unwrap());
    assert_eq!((a.sq_psn, a.rq_psn), (p.rq_psn, p.sq_psn));
    w.hosts[0].cm.disconnect(w.now, active).unwrap();
    w.run_for(5000 * MS);
    assert!(w.saw(0, active, disconnected) && w.saw(0, passive, disconnected));
    assert_eq!(w.hosts[0].released.len(), 2);
}

#[test]
fn processes_of_one_host_share_its_guid_without_meeting() {
    // Two clients on host 2, one server on host 3; and a server process of its own on host 2.
    let mut w = World::new(&[2, 2, 3]);
    w.hosts[0].listens = false;
    w.hosts[1].listens = true;
    let a = w.connect(0, 2);
    let b = w.connect(1, 2);
    let local = w.connect(0, 1);
    w.run_for(10 * MS);
    for (host, id) in [(0, a), (1, b), (0, local)] {
        assert!(w.saw(host, id, |e| matches!(e, Event::Reply(_))));
    }
    assert_eq!(w.hosts[2].events.iter().filter(|(_, e)| *e == Event::Established).count(), 2);
    w.hosts[0].cm.disconnect(w.now, a).unwrap();
    w.run_for(10 * MS);
    assert!(w.saw(0, a, disconnected));
    assert_eq!(w.hosts[2].events.iter().filter(|(_, e)| disconnected(e)).count(), 1);
    assert!(!w.saw(1, b, disconnected) && !w.saw(0, local, disconnected));
}

#[test]
fn fields_wider_than_the_wire_are_refused() {
    let mut w = World::new(&[2, 3]);
    let mut wide = w.connect_params(0, 1);
    wide.parameters.rnr_retry_count = 8;
    assert!(w.hosts[0].cm.connect(w.now, &wide).is_err());
    let mut wide = w.connect_params(0, 1);
    wide.path.flow_label = 1 << 20;
    assert!(w.hosts[0].cm.connect(w.now, &wide).is_err());
    assert!(w.hosts[0].cm.is_empty());
}

#[test]
fn private_data_beyond_the_message_is_refused() {
    let mut w = World::new(&[2, 3]);
    w.hosts[1].willing = false;
    let long = cm::Connect { private_data: vec![0; 57], ..w.connect_params(0, 1) };
    assert_eq!(w.hosts[0].cm.connect(w.now, &long), Err(cm::Error::PrivateData(57, 56)));
    w.connect(0, 1);
    w.run_for(MS);
    let (now, request) = (w.now, w.request(1));
    let long = cm::Accept { private_data: vec![0; 197], ..w.accept_params(1) };
    assert_eq!(w.hosts[1].cm.accept(now, request, &long), Err(cm::Error::PrivateData(197, 196)));
    let rejected = w.hosts[1].cm.reject(now, request, Refusal::ConsumerDefined, &[0; 149]);
    assert_eq!(rejected, Err(cm::Error::PrivateData(149, 148)));
    assert!(w.hosts[1].cm.is_unanswered(request));
}

#[test]
fn the_number_of_an_xrc_target_stands_in_the_rep_where_a_context_s_would() {
    let mut w = World::new(&[2, 3]);
    let connect = cm::Connect { transport_service: cm::TransportService::Xrc, ..w.connect_params(0, 1) };
    let active = w.hosts[0].cm.connect(w.now, &connect).unwrap();
    w.pump();
    w.run_for(10 * MS);
    let passive = w.request(1);
    let rep = w
        .sent
        .iter()
        .find_map(|s| if let Message::Rep(rep) = &s.mad.message { Some(rep.clone()) } else { None });
    let rep = rep.unwrap();
    assert_eq!((rep.local_qpn, rep.local_eecn, rep.srq), (Qpn::new(0), 0x2_0001, true));
    let (a, p) = (w.hosts[0].cm.qp_attr(active).unwrap(), w.hosts[1].cm.qp_attr(passive).unwrap());
    assert_eq!((a.dest_qpn, p.dest_qpn), (Qpn::new(0x2_0001), Qpn::new(0x1_0001)));
    w.hosts[0].cm.disconnect(w.now, active).unwrap();
    w.pump();
    w.run_for(10 * MS);
    assert!(w.saw(1, passive, |e| matches!(e, Event::Disconnected { .. })), "{:?}", w.hosts[1].events);
}

//! Service id resolution.

use crate::support::*;
use cm::{ConnId, Event, PathRecord, SidrAnswer, SidrAsk};
use wire::mad::{Message, sidr_status};
use wire::{Mtu, Qkey, Qpn};

fn ask(w: &mut World) -> ConnId {
    let path = PathRecord::new(gid(2), gid(3), 7, Mtu::M1024);
    let ask = SidrAsk { service: service(), source_port: 0xc983, path, private_data: vec![0x33; 180] };
    let id = w.hosts[0].cm.sidr_request(w.now, &ask).unwrap();
    w.pump();
    id
}

fn answer() -> SidrAnswer {
    SidrAnswer { qpn: Qpn::new(0x42), qkey: Qkey(0x0123_4567), private_data: vec![0x44; 136] }
}

fn replied(e: &Event) -> bool {
    let SidrAnswer { qpn, qkey, private_data } = answer();
    *e == Event::SidrReply { status: 0, qpn, qkey, private_data }
}

#[test]
fn question_is_answered() {
    let mut w = World::new(&[2, 3]);
    let asked = ask(&mut w);
    w.run_for(MS);
    let request = w.request(1);
    assert!(w.saw(1, request, |e| matches!(e, Event::SidrRequest(r)
        if (r.service, r.peer_port) == (service(), 0xc983) && r.private_data == [0x33; 180]
            && r.path.remote_gid == gid(2))));
    w.hosts[1].cm.sidr_reply(w.now, request, &answer()).unwrap();
    w.run_for(MS);
    assert!(w.saw(0, asked, replied));
    let Message::SidrRep(rep) = &w.sent[1].mad.message else { unreachable!() };
    assert_eq!(rep.service_id, SERVICE);
    assert_eq!(w.sent[1].mad.transaction_id, w.sent[0].mad.transaction_id);
    w.hosts[0].cm.destroy(w.now, asked);
    assert!(w.hosts[0].cm.is_empty() && w.hosts[0].cm.deadline().is_none());
}

#[test]
fn duplicate_question_gets_the_same_answer() {
    let mut w = World::new(&[2, 3]);
    w.lose(|s| kind(&s.mad) == "SIDR_REP" && s.attempt < 2);
    let asked = ask(&mut w);
    w.run_for(300 * MS);
    let request = w.request(1);
    w.hosts[1].cm.sidr_reply(w.now, request, &answer()).unwrap();
    w.run_for(5000 * MS);
    assert_eq!(w.count(0, asked, replied), 1);
    assert_eq!(w.hosts[1].events.len(), 1, "one request only");
    w.run_for(20_000 * MS);
    assert!(w.hosts[1].cm.is_empty());
}

#[test]
fn an_answer_is_remembered_as_long_as_requests_come() {
    let mut w = World::new(&[2, 3]);
    // Longer than an answer that is not asked for is remembered.
    let deaf = w.now + 30_000 * MS;
    w.lose(move |s| kind(&s.mad) == "SIDR_REP" && s.at < deaf);
    let asked = ask(&mut w);
    w.run_for(MS);
    let request = w.request(1);
    w.hosts[1].cm.sidr_reply(w.now, request, &answer()).unwrap();
    w.run_for(40_000 * MS);
    assert_eq!(w.count(0, asked, replied), 1);
    assert_eq!(w.hosts[1].events.len(), 1, "one request only");
}

#[test]
fn silence_is_unreachable_and_so_is_icmp() {
    let mut w = World::new(&[2, 3]);
    w.lose(|_| true);
    let asked = ask(&mut w);
    w.run_for(78_001 * MS);
    assert_eq!(w.count(0, asked, unreachable), 1);
    let asked = ask(&mut w);
    w.hosts[0].cm.peer_unreachable(w.now, [10, 77, 0, 3].into(), None);
    w.pump();
    assert_eq!(w.count(0, asked, unreachable), 1);
}

#[test]
fn destroyed_question_is_answered_no() {
    let mut w = World::new(&[2, 3]);
    let asked = ask(&mut w);
    w.run_for(MS);
    let request = w.request(1);
    w.hosts[1].cm.destroy(w.now, request);
    w.run_for(MS);
    let no = |e: &Event| matches!(e, Event::SidrReply { status: sidr_status::REJECTED, .. });
    assert!(w.saw(0, asked, no));
}

#[test]
fn calls_for_connections_are_refused() {
    let mut w = World::new(&[2, 3]);
    let asked = ask(&mut w);
    w.run_for(MS);
    let (now, request) = (w.now, w.request(1));
    let accept = w.accept_params(1);
    assert!(w.hosts[1].cm.accept(now, request, &accept).is_err());
    assert!(w.hosts[0].cm.disconnect(now, asked).is_err());
    assert!(w.hosts[0].cm.established(now, asked).is_err());
    assert_eq!(w.hosts[0].cm.qp_attr(asked), None);
}

#[test]
fn a_question_in_nobodys_name_is_answered_no_and_not_shown() {
    let mut w = World::new(&[2, 3]);
    w.lose(|_| true);
    ask(&mut w);
    let mut mad = w.sent[0].mad.clone();
    let Message::SidrReq(req) = &mut mad.message else { unreachable!() };
    req.private_data[0] = 0x11;
    w.inject(1, gid(2), &mad);
    let Message::SidrRep(rep) = &w.sent[1].mad.message else { unreachable!() };
    assert_eq!(rep.status, sidr_status::UNSUPPORTED);
    assert!(w.hosts[1].events.is_empty());
}

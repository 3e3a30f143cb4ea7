//! A peer that sends what it likes: tables stay bounded, nothing panics, others are not disturbed.

use std::time::Duration;

use crate::support::*;
use cm::Refusal;
use wire::mad::{MAD_LEN, Mad, Message, reason};
use wire::{CommId, Qpn};

fn req(w: &mut World) -> Mad {
    w.lose(|_| true);
    w.connect(0, 1);
    w.sent[0].mad.clone()
}

#[test]
fn flood_of_requests_is_refused_at_the_limit() {
    let mut w = World::with(&[2, 3], |config| cm::ib::Config { max_pending_requests: 10, ..config });
    w.hosts[1].willing = false;
    let mut req = req(&mut w);
    for n in 0..1000 {
        let Message::Req(one) = &mut req.message else { unreachable!() };
        (one.local_comm_id, one.local_qpn) = (CommId(n + 1), Qpn::new(n + 1));
        w.inject(1, gid(2), &req);
    }
    assert_eq!(w.hosts[1].cm.len(), 10);
    assert_eq!(w.hosts[1].events.len(), 10);
    let refused = w.sent_by(1, "REJ");
    assert_eq!(refused.len(), 990);
    assert!(refused.iter().all(|s| rej_reason(&s.mad) == reason::NO_RESOURCES));
    // Each answer leaves room for another.
    let (now, first) = (w.now, w.hosts[1].events[0].0);
    w.hosts[1].cm.destroy(now, first);
    w.inject(1, gid(2), &req);
    assert_eq!(w.hosts[1].events.len(), 11);
}

#[test]
fn remembered_refusals_are_bounded() {
    let mut w = World::with(&[2, 3], |config| cm::ib::Config { max_refusals: 10, ..config });
    w.hosts[1].willing = false;
    let mut req = req(&mut w);
    for n in 0..1000 {
        let Message::Req(one) = &mut req.message else { unreachable!() };
        (one.local_comm_id, one.local_qpn) = (CommId(n + 1), Qpn::new(n + 1));
        w.inject(1, gid(2), &req);
        let (now, request) = (w.now, w.request(1));
        w.hosts[1].cm.reject(now, request, Refusal::InvalidService, &[]).unwrap();
        w.pump();
        assert!(w.hosts[1].cm.len() <= 10);
    }
    w.run_for(11_000 * MS);
    assert!(w.hosts[1].cm.is_empty() && w.hosts[1].cm.deadline().is_none());
}

#[test]
fn full_table_refuses_calls_and_requests() {
    let mut w = World::with(&[2, 3], |config| cm::ib::Config { max_connections: 3, ..config });
    let req = req(&mut w);
    for _ in 0..3 {
        w.connect(1, 0);
    }
    let more = w.connect_params(1, 0);
    assert_eq!(w.hosts[1].cm.connect(w.now, &more), Err(cm::Error::Full(3)));
    w.inject(1, gid(2), &req);
    assert_eq!(rej_reason(&w.sent.last().unwrap().mad), reason::NO_RESOURCES);
}

#[test]
fn source_without_free_comm_ids_is_an_error_and_no_loop() {
    let mut w = World::new(&[2, 3]);
    let config = cm::ib::Config::new(w.hosts[0].guid);
    w.hosts[0].cm = cm::ib::Cm::new(config, || CommId(0x0010_0001), || 0);
    w.lose(|_| true);
    w.connect(0, 1);
    let more = w.connect_params(0, 1);
    assert_eq!(w.hosts[0].cm.connect(w.now, &more), Err(cm::Error::CommIds(CommId(0x0010_0001))));
}

/// Messages of both sides, with bits flipped and fields replaced by those of others, in any order,
/// at any time.
#[test]
fn mutated_messages_in_any_order_do_no_harm() {
    for seed in 0..200 {
        let mut rng = Rng(seed);
        let mut w = World::with(&[2, 3], |config| cm::ib::Config {
            max_connections: 50,
            max_pending_requests: 20,
            max_refusals: 10,
            ..config
        });
        let (active, passive) = w.connected();
        w.hosts[0].willing = rng.percent(50);
        w.connect(0, 1);
        w.connect(1, 0);
        w.run_for(MS);
        let now = w.now;
        w.hosts[0].cm.disconnect(now, active).unwrap();
        w.hosts[1].cm.destroy(now, passive);
        w.pump();
        for _ in 0..300 {
            let pool = w.sent.len() as u64;
            let sent = w.sent[rng.below(pool) as usize].clone();
            let mut bytes = sent.mad.emit();
            // Another message's attribute makes one type's bytes another's.
            if rng.percent(30) {
                bytes[17] = 0x10 + rng.below(9) as u8;
            }
            for _ in 0..rng.below(4) {
                bytes[24 + rng.below(100) as usize] ^= 1 << rng.below(8);
            }
            assert_eq!(bytes.len(), MAD_LEN);
            let Ok(mad) = Mad::parse(&bytes) else { continue };
            let source = if rng.percent(80) { w.hosts[sent.from].gid } else { gid(66) };
            let to = rng.below(2) as usize;
            w.inject(to, source, &mad);
            w.run_for(Duration::from_micros(rng.below(200_000)));
            assert!(w.hosts.iter().all(|h| h.cm.len() <= 50));
        }
        let now = w.now;
        for host in &mut w.hosts {
            let ids: Vec<_> = host.events.iter().map(|&(id, _)| id).collect();
            ids.into_iter().for_each(|id| host.cm.destroy(now, id));
        }
    }
}

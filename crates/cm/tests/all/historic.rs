//! Bugs other connection managers have had: a REJ addressed to an id its sender cannot know, a REJ
//! in a late state that the program was not told of, and a lost DREP for which the other side
//! waited out every retry.

use crate::support::*;
use cm::Event;
use wire::CommId;
use wire::mad::{Mad, Message, Rej, reason};

#[test]
fn rej_of_a_side_that_never_learned_our_id_still_finds_its_connection() {
    let mut w = World::new(&[2, 3]);
    w.lose(|s| s.from == 1);
    let active = w.connect(0, 1);
    w.run_for(MS);
    // Accepted on the one side; the other has seen no REP and gives up.
    let passive = w.request(1);
    w.hosts[0].cm.destroy(w.now, active);
    w.run_for(MS);
    let Message::Rej(rej) = &w.sent_by(0, "REJ")[0].mad.message else { unreachable!() };
    assert_eq!((rej.remote_comm_id, rej.message, rej.info_len), (CommId(0), 2, 8));
    assert_eq!(rej.info[..8], w.hosts[0].guid.0.to_be_bytes());
    assert!(w.saw(1, passive, rejected(reason::TIMEOUT)));
}

#[test]
fn rej_to_an_id_nobody_has_is_dropped_in_silence() {
    let mut w = World::new(&[2, 3]);
    let (active, _) = w.connected();
    let before = w.sent.len();
    for why in [reason::TIMEOUT, reason::CONSUMER_DEFINED, reason::INVALID_COMM_ID] {
        for remote_comm_id in [CommId(0), CommId(0x0010_0001)] {
            let rej = Rej {
                local_comm_id: CommId(5),
                remote_comm_id,
                message: 2,
                info_len: 8,
                reason: why,
                info: [0; 72],
                private_data: [0; 148],
            };
            w.inject(0, gid(3), &Mad { transaction_id: 1, message: Message::Rej(rej) });
        }
    }
    assert_eq!(w.sent.len(), before);
    assert_eq!(w.count(0, active, |e| matches!(e, Event::Rejected { .. })), 0);
}

#[test]
fn rej_in_a_late_state_is_reported() {
    let mut w = World::new(&[2, 3]);
    let (active, passive) = w.connected();
    let rej_from = |w: &World, host: usize, id| {
        let (local_comm_id, remote) = w.hosts[host].cm.comm_ids(id).unwrap();
        Mad {
            transaction_id: w.sent[0].mad.transaction_id,
            message: Message::Rej(Rej {
                local_comm_id,
                remote_comm_id: remote.unwrap(),
                message: 1,
                info_len: 0,
                reason: reason::CONSUMER_DEFINED,
                info: [0; 72],
                private_data: [8; 148],
            }),
        }
    };
    // Established.
    let rej = rej_from(&w, 0, active);
    w.inject(1, gid(2), &rej);
    assert!(w.saw(1, passive, rejected(reason::CONSUMER_DEFINED)));
    // Disconnecting: what the consumer waits for is the end of it.
    let rej = rej_from(&w, 1, passive);
    w.lose(|_| true);
    w.hosts[0].cm.disconnect(w.now, active).unwrap();
    w.pump();
    w.inject(0, gid(3), &rej);
    assert!(w.saw(0, active, disconnected));
    w.run_for(5000 * MS);
    assert_eq!(w.hosts[0].released.len() + w.hosts[1].released.len(), 2, "both end in time wait");
}

#[test]
fn lost_drep_costs_a_repetition_and_not_all_of_them() {
    for lost in 1..=3 {
        let mut w = World::new(&[2, 3]);
        let (active, passive) = w.connected();
        let mut left = lost;
        w.lose(move |s| {
            let lose = kind(&s.mad) == "DREP" && left > 0;
            left -= u32::from(lose);
            lose
        });
        let start = w.now;
        w.hosts[0].cm.disconnect(w.now, active).unwrap();
        w.run_for(360 * MS);
        assert!(w.saw(0, active, disconnected), "after {lost} lost DREPs");
        assert_eq!(w.count(1, passive, disconnected), 1);
        let dreps = w.sent_by(1, "DREP");
        assert!((dreps.last().unwrap().at - start) < 360 * MS);
        let attempts: Vec<_> = dreps.iter().map(|s| s.attempt).collect();
        assert!(attempts.iter().copied().eq(0..=lost), "each from another port: {attempts:?}");
    }
}

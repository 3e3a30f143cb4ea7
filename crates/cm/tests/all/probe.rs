//! Probes: a process that is gone is noticed whichever way its host says so, and nothing else ends
//! a connection.

use crate::support::*;
use cm::ib::Config;
use wire::Address;
use wire::mad::Message;

/// Hosts that take each other for kin; a process is a block of communication ids.
fn kin(addresses: &[u8]) -> World {
    World::with(addresses, |config| Config { is_kin: |_| true, process_of: |id| id.0 >> 20, ..config })
}

fn address(last: u8) -> Address {
    [10, 77, 0, last].into()
}

#[test]
fn of_two_that_live_one_probes_and_nothing_ends() {
    let mut w = kin(&[2, 3]);
    let (active, passive) = w.connected();
    for _ in 0..9 {
        w.connected();
    }
    let before = w.sent.len();
    w.run_for(70_000 * MS);
    let probes = &w.sent[before..];
    assert!(probes.iter().all(|s| kind(&s.mad) == "MRA"));
    assert!((98..=102).contains(&probes.len()), "one in 700 ms for all ten: {}", probes.len());
    assert!(!w.saw(0, active, disconnected) && !w.saw(1, passive, disconnected));
}

#[test]
fn others_than_kin_are_not_probed() {
    let mut w = World::new(&[2, 3]);
    w.connected();
    let before = w.sent.len();
    w.run_for(70_000 * MS);
    assert_eq!(w.sent.len(), before);
    assert!(w.hosts.iter().all(|h| h.cm.deadline().is_none()));
}

#[test]
fn the_refusal_of_another_process_ends_all_connections_with_the_one_that_is_gone() {
    for dead in [0, 1] {
        // The third process shares the address of the first, the fourth that of the second.
        let mut w = kin(&[2, 3, 2, 3]);
        let connections: Vec<_> = (0..100).map(|_| w.connected()).collect();
        let heir = dead + 2;
        w.hosts[dead].block = 0xfff;
        w.hosts[heir].block = dead as u32 + 1;
        w.hosts[heir].listens = false;
        w.lose(move |s| s.from == dead);
        w.run_for(1_800 * MS);
        for (active, passive) in connections {
            let (host, id) = if dead == 0 { (1, passive) } else { (0, active) };
            assert!(w.saw(host, id, disconnected));
        }
    }
}

#[test]
fn a_request_of_a_process_that_is_gone_is_rejected_before_it_is_answered() {
    let mut w = kin(&[2, 3, 2]);
    w.hosts[1].willing = false;
    w.connect(0, 1);
    w.run_for(MS);
    let request = w.request(1);
    w.hosts[0].block = 0xfff;
    w.hosts[2].block = 1;
    w.lose(|s| s.from == 0);
    w.run_for(1_800 * MS);
    assert!(w.saw(1, request, rejected(wire::mad::reason::TIMEOUT)), "as its kernel would say");
}

#[test]
fn two_icmp_errors_apart_end_the_connections_with_a_process() {
    let mut w = kin(&[2, 3]);
    let (active, _) = w.connected();
    w.lose(|_| true);
    let icmp = |w: &mut World| {
        let now = w.now;
        w.hosts[0].cm.process_unreachable(now, address(3), 2);
        w.pump();
    };
    icmp(&mut w);
    icmp(&mut w);
    assert!(!w.saw(0, active, disconnected), "those of one moment count once");
    let before = w.sent.len();
    w.run_for(150 * MS);
    assert!(
        w.sent[before..].iter().any(|s| s.from == 0 && matches!(s.mad.message, Message::Lap(_))),
        "it is asked again"
    );
    icmp(&mut w);
    assert!(w.saw(0, active, disconnected));
}

#[test]
fn an_icmp_error_is_forgotten_when_the_process_answers() {
    let mut w = kin(&[2, 3]);
    let (active, passive) = w.connected();
    for host in [0, 1, 0, 1] {
        let (now, peer) = (w.now, [3, 2][host]);
        w.hosts[host].cm.process_unreachable(now, address(peer), 2 - host as u32);
        w.run_for(300 * MS);
        assert_eq!(w.sent_by(1 - host, "APR").len(), w.sent_by(host, "LAP").len());
    }
    w.run_for(2_000 * MS);
    assert_eq!(w.sent_by(0, "LAP").len(), 2, "what was in doubt is not any more");
    assert!(!w.saw(0, active, disconnected) && !w.saw(1, passive, disconnected));
}

#[test]
fn the_second_icmp_error_may_take_long() {
    let mut w = kin(&[2, 3]);
    let (active, _) = w.connected();
    w.lose(|_| true);
    for wait in [60_000, 1] {
        let now = w.now;
        w.hosts[0].cm.process_unreachable(now, address(3), 2);
        w.run_for(wait * MS);
    }
    assert!(w.saw(0, active, disconnected));
}

/// When each of so many processes knows that the last one of another host is gone, in milliseconds,
/// where that host's kernel limits its ICMP errors as Linux does: six at once to a destination,
/// then one a second (icmp_ratelimit in ip-sysctl).
fn all_know_after(processes: usize) -> Vec<u32> {
    const SECOND: u32 = 1000;
    let mut addresses = vec![2; 1 + processes];
    addresses[0] = 3;
    let mut w = kin(&addresses);
    let mut ids = Vec::new();
    for host in 1..=processes {
        ids.push(w.connect(host, 0));
        w.run_for(10 * MS);
    }
    w.lose(|_| true);
    let (mut seen, mut credit, mut known) = (w.sent.len(), 6 * SECOND, Vec::new());
    for ms in 0..60 * SECOND {
        w.run_for(MS);
        credit = (credit + 1).min(6 * SECOND);
        let senders: Vec<usize> = w.sent[seen..].iter().filter(|s| s.from != 0).map(|s| s.from).collect();
        seen = w.sent.len();
        for host in senders {
            if credit >= SECOND {
                credit -= SECOND;
                let now = w.now;
                w.hosts[host].cm.process_unreachable(now, address(3), 1);
                w.pump();
            }
        }
        let know = (1..=processes).filter(|host| w.saw(*host, ids[host - 1], disconnected)).count();
        known.resize(know, ms);
    }
    known
}

#[test]
fn processes_that_share_the_icmp_errors_of_a_host_know_within_two_seconds_for_each() {
    let three = all_know_after(3);
    assert!(three.len() == 3 && three[2] < 2_000, "{three:?}");
    for processes in [8, 16] {
        let known = all_know_after(processes);
        assert_eq!(known.len(), processes, "{known:?}");
        assert!(known[processes - 1] < 2_000 * processes as u32, "{known:?}");
    }
}

#[test]
fn in_doubt_another_process_may_say_that_the_connection_is_unknown() {
    let mut w = kin(&[2, 3, 3]);
    let (active, _) = w.connected();
    w.lose(|s| s.from == 1);
    let now = w.now;
    w.hosts[0].cm.process_unreachable(now, address(3), 2);
    (w.hosts[1].block, w.hosts[2].block) = (0xfff, 2);
    w.run_for(200 * MS);
    assert_eq!(w.sent_by(2, "APR").len(), 1);
    assert!(w.saw(0, active, disconnected));
}

#[test]
fn silence_ends_nothing() {
    let mut w = kin(&[2, 3]);
    let (active, passive) = w.connected();
    w.lose(|_| true);
    w.run_for(600_000 * MS);
    assert!(!w.saw(0, active, disconnected) && !w.saw(1, passive, disconnected));
}

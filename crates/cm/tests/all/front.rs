//! What a node sees of every protocol: connections made and ended by the front alone.

use std::time::Instant;

use crate::support::{Rng, World};
use cm::{Cm, ConnId, Error, Event, Origin, Output, PrivateData, Protocol, Setup, Timing};
use wire::{Address, CommId, Guid};

/// A connection manager of a protocol, in process `block`.
fn started(protocol: Protocol, block: u32) -> Box<dyn Cm> {
    let (mut ids, mut random) = (Rng(block.into()), Rng(!u64::from(block)));
    protocol.start(Setup {
        guid: Guid(block.into()),
        timing: Timing::default(),
        max_pending_requests: 16,
        is_kin: |_| false,
        process_of: |id| id.0 >> 20,
        comm_ids: Box::new(move || CommId(block << 20 | ids.below(1 << 20) as u32)),
        random: Box::new(move || random.next()),
    })
}

/// Carries out what both ends put out until they put out nothing; the events of each.
fn settle(now: Instant, ends: &mut [Box<dyn Cm>; 2]) -> [Vec<(ConnId, Event)>; 2] {
    let mut events = [Vec::new(), Vec::new()];
    loop {
        let output = (0..2).find_map(|n| Some((n, ends[n].poll()?)));
        match output {
            None => return events,
            Some((n, Output::Transmit { path, mad, .. })) => {
                let from = Origin { source: path.source(), dest: path.dest(), link: path.link };
                ends[1 - n].mads().expect("its messages are MADs").input(now, from, &mad);
            }
            Some((n, Output::Event { conn, event })) => events[n].push((conn, event)),
            Some((_, Output::Released { .. })) => {}
        }
    }
}

#[test]
fn each_protocol_makes_and_ends_a_connection_by_what_a_node_calls() {
    for protocol in Protocol::ALL {
        let mut w = World::new(&[2, 3]);
        let (now, room) = (w.now, protocol.private_data());
        let mut ends = [started(protocol, 1), started(protocol, 2)];
        let mut connect = w.connect_params(0, 1);
        connect.private_data = vec![7; room.request];
        let active = ends[0].connect(now, &connect).unwrap();
        let [none, asked] = settle(now, &mut ends);
        let [(passive, Event::Request(request))] = &asked[..] else { panic!("{asked:?}") };
        assert_eq!((none.len(), &request.private_data), (0, &connect.private_data));
        assert!(ends[1].is_unanswered(*passive) && ends[1].is_half_open(*passive));
        assert_eq!(ends[1].half_open(connect.service), [*passive]);
        let mut accept = w.accept_params(1);
        accept.private_data = vec![8; room.reply];
        ends[1].accept(now, *passive, &accept).unwrap();
        let [replied, _] = settle(now, &mut ends);
        let [(_, Event::Reply(reply))] = &replied[..] else { panic!("{replied:?}") };
        assert_eq!(reply.private_data, accept.private_data);
        ends[0].established(now, active).unwrap();
        let [_, established] = settle(now, &mut ends);
        assert_eq!(established, [(*passive, Event::Established)]);

        let peers = |cm: &dyn Cm, process, peer: Address| cm.with_peer(&|p, at| (p, at) == (process, peer));
        assert_eq!(peers(&*ends[0], 2, connect.path.dest()), [active]);
        assert_eq!(peers(&*ends[1], 1, connect.path.source()), [*passive]);
        assert!(peers(&*ends[0], 1, connect.path.dest()).is_empty());
        ends[0].disconnect(now, active).unwrap();
        let ended = |events: &[(ConnId, Event)]| matches!(events, [(_, Event::Disconnected { .. })]);
        let [a, b] = settle(now, &mut ends);
        assert!(ended(&a) && ended(&b), "{a:?} {b:?}");
    }
}

#[test]
fn each_protocol_refuses_more_private_data_than_it_says_and_takes_no_less() {
    for protocol in Protocol::ALL {
        let mut w = World::new(&[2, 3]);
        let (now, room, most) = (w.now, protocol.private_data(), PrivateData::MAX);
        assert!(room.request <= most.request && room.reply <= most.reply && room.rejection <= most.rejection);
        assert!(room.question <= most.question && room.answer <= most.answer);
        let mut cm = started(protocol, 1);
        let mut connect = w.connect_params(0, 1);
        connect.private_data = vec![0; room.request + 1];
        assert_eq!(cm.connect(now, &connect), Err(Error::PrivateData(room.request + 1, room.request)));
        connect.private_data.pop();
        cm.connect(now, &connect).unwrap();
    }
}

//! What a node sees of every protocol: connections made and ended by the front alone.

use std::collections::BTreeMap;
use std::time::Instant;

use crate::support::{Rng, World};
use cm::{Accepted, Action, Cm, ConnId, Error, Event, Origin, Output, PathRecord, PrivateData, Protocol};
use cm::{Setup, StreamId, Timing};
use wire::{Address, CommId, Guid};

/// A connection manager of a protocol, in process `block`.
fn started(protocol: Protocol, block: u32) -> Box<dyn Cm> {
    let (mut ids, mut random) = (Rng(block.into()), Rng(!u64::from(block)));
    protocol.start(Setup {
        guid: Guid(block.into()),
        timing: Timing::default(),
        crc: false,
        max_pending_requests: 16,
        is_kin: |_| false,
        process_of: |id| id.0 >> 20,
        comm_ids: Box::new(move || CommId(block << 20 | ids.below(1 << 20) as u32)),
        random: Box::new(move || random.next()),
    })
}

/// Two connection managers, and the streams between them.
struct Joined {
    ends: [Box<dyn Cm>; 2],
    /// The other end of each stream.
    far: BTreeMap<(usize, StreamId), StreamId>,
}

impl Joined {
    /// Carries out what both ends put out until they put out nothing; the events of each.
    fn settle(&mut self, now: Instant) -> [Vec<(ConnId, Event)>; 2] {
        let mut events = [Vec::new(), Vec::new()];
        loop {
            let output = (0..2).find_map(|n| Some((n, self.ends[n].poll()?)));
            match output {
                None => return events,
                Some((n, Output::Transmit { path, mad, .. })) => {
                    let from = Origin { source: path.source(), dest: path.dest(), link: path.link };
                    self.ends[1 - n].mads().expect("its messages are MADs").input(now, from, &mad);
                }
                Some((n, Output::Stream { stream, action })) => self.act(now, n, stream, action),
                Some((n, Output::Event { conn, event })) => events[n].push((conn, event)),
                Some((_, Output::Released { .. })) => {}
            }
        }
    }

    fn act(&mut self, now: Instant, n: usize, stream: StreamId, action: Action) {
        let far = self.far.get(&(n, stream)).copied();
        let streams = self.ends.each_mut().map(|cm| cm.streams().expect("its messages go by streams"));
        match (action, far) {
            (Action::Open(open), _) => {
                let back = PathRecord::new(open.path.remote_gid, open.path.local_gid, 7, open.path.mtu);
                let accepted = Accepted { path: back, service: open.service, peer_port: open.source_port };
                let far = streams[1 - n].accepted(now, &accepted);
                self.far.extend([((n, stream), far), ((1 - n, far), stream)]);
                streams[n].opened(now, stream);
            }
            (Action::Write(bytes), Some(far)) => streams[1 - n].received(now, far, &bytes),
            (Action::Close(_), Some(far)) => streams[1 - n].ended(now, far),
            (Action::HandOver(_), _) => {}
            (action, None) => panic!("{action:?} to a stream that does not stand"),
        }
    }
}

#[test]
fn each_protocol_makes_and_ends_a_connection_by_what_a_node_calls() {
    for protocol in Protocol::ALL {
        let mut w = World::new(&[2, 3]);
        let (now, room) = (w.now, protocol.private_data());
        let mut joined = Joined { ends: [started(protocol, 1), started(protocol, 2)], far: BTreeMap::new() };
        let mut connect = w.connect_params(0, 1);
        connect.private_data = vec![7; room.request];
        let active = joined.ends[0].connect(now, &connect).unwrap();
        let [none, asked] = joined.settle(now);
        let [(passive, Event::Request(request))] = &asked[..] else { panic!("{asked:?}") };
        assert_eq!((none.len(), &request.private_data), (0, &connect.private_data));
        assert!(joined.ends[1].is_unanswered(*passive) && joined.ends[1].is_half_open(*passive));
        assert_eq!(joined.ends[1].half_open(connect.service), [*passive]);
        let mut accept = w.accept_params(1);
        accept.private_data = vec![8; room.reply];
        joined.ends[1].accept(now, *passive, &accept).unwrap();
        let [replied, mut ready] = joined.settle(now);
        let [(_, Event::Reply(reply))] = &replied[..] else { panic!("{replied:?}") };
        assert_eq!(reply.private_data, accept.private_data);
        joined.ends[0].established(now, active).unwrap();
        let [_, established] = joined.settle(now);
        ready.extend(established);
        assert_eq!(ready, [(*passive, Event::Established)]);

        let peers =
            |n: usize, process, peer: Address| joined.ends[n].with_peer(&|p, at| (p, at) == (process, peer));
        let told = if protocol == Protocol::Iw { [vec![], vec![]] } else { [vec![active], vec![*passive]] };
        assert_eq!([peers(0, 2, connect.path.dest()), peers(1, 1, connect.path.source())], told);
        assert!(peers(0, 1, connect.path.dest()).is_empty());
        joined.ends[0].disconnect(now, active).unwrap();
        let ended = |events: &[(ConnId, Event)]| matches!(events, [(_, Event::Disconnected { .. })]);
        let [a, b] = joined.settle(now);
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

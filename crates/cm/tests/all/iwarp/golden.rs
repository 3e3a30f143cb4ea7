//! MPA frames byte for byte as Linux's siw writes them (kernel 6.12), from the captures of `wire`.

use std::path::Path;

use super::support::*;
use cm::iw::Config;
use cm::{Accept, Connect, Event, Parameters, Refusal};
use wire::iwarp::mpa::{Frame, Kind};

/// All MPA frames of one kind in a capture, in order. Each stands whole in a packet.
fn captured(name: &str, kind: Kind) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../wire/tests/golden");
    let capture = std::fs::read(folder.join(format!("{name}.pcap"))).unwrap();
    let at = |at: usize| {
        let bytes = &capture[at..];
        let frame = Frame::parse(kind, bytes).ok()?.whole()?;
        Some(bytes[..frame.len()].to_vec())
    };
    (0..capture.len()).filter_map(at).collect()
}

/// Depths of an end: IRD, then ORD.
fn depths(depths: [u8; 2]) -> Parameters {
    let [responder_resources, initiator_depth] = depths;
    Parameters { responder_resources, initiator_depth, ..connect().parameters }
}

/// A capture, the depths that its client and its server ask for, and the connection to look at.
const PROGRAMS: [(&str, [u8; 2], [u8; 2], usize); 6] = [
    ("siw-rping-small", [1, 1], [1, 1], 0),
    ("siw-rping-ipv6", [1, 1], [1, 1], 0),
    ("siw-rdma_client", [128, 128], [128, 128], 0),
    ("siw-ib_send_bw", [0, 0], [0, 0], 0),
    ("siw-ib_read_bw", [128, 128], [128, 128], 1),
    // The server asks for an IRD of 0, and has the client's ORD.
    ("siw-rstream", [0, 1], [0, 0], 0),
];

#[test]
fn the_initiator_says_what_siw_says() {
    for (name, client, _, nth) in PROGRAMS {
        let (requests, replies) = (captured(name, Kind::Request), captured(name, Kind::Reply));
        let (request, reply) = (&requests[nth], &replies[nth]);
        let mut end = End::new(Config::default());
        let private_data = parsed(Kind::Request, request).private_data.to_vec();
        let (id, stream, said) =
            end.asking(&Connect { parameters: depths(client), private_data, ..connect() });
        assert_eq!(&said, request, "{name}");
        end.hear(stream, reply, 9);
        let Event::Reply(heard) = end.last(id) else { panic!("{name}: {:?}", end.events) };
        let reply = parsed(Kind::Reply, reply);
        assert_eq!(heard.private_data, reply.private_data);
    }
}

#[test]
fn the_responder_says_what_siw_says() {
    for (name, client, server, nth) in PROGRAMS {
        let (requests, replies) = (captured(name, Kind::Request), captured(name, Kind::Reply));
        let mut end = End::new(Config::default());
        let stream = end.asked_by(&requests[nth], 9);
        let (id, request) = end.request();
        let offered = (request.parameters.initiator_depth, request.parameters.responder_resources);
        assert_eq!(offered, (client[0], client[1]), "{name}");
        let private_data = parsed(Kind::Reply, &replies[nth]).private_data.to_vec();
        end.cm.accept(end.now, id, &Accept { parameters: depths(server), private_data }).unwrap();
        assert_eq!(end.says(stream), replies[nth], "{name}");
    }
}

#[test]
fn a_refusal_is_that_of_siw() {
    let (requests, replies) =
        (captured("siw-ucmatose-rejected", Kind::Request), captured("siw-ucmatose-rejected", Kind::Reply));
    let mut end = End::new(Config::default());
    let stream = end.asked_by(&requests[1], 1000);
    let (id, _) = end.request();
    end.cm.reject(id, Refusal::ConsumerDefined, &[]).unwrap();
    assert_eq!(end.says(stream), replies[1]);

    let mut end = End::new(Config::default());
    let (id, stream, said) =
        end.asking(&Connect { parameters: depths([1, 1]), private_data: vec![], ..connect() });
    assert_eq!(said, requests[1]);
    end.hear(stream, &replies[1], 1000);
    assert_eq!(end.events_of(id), [&rejected(-ECONNRESET)]);
}

//! Whatever is legal survives emit and parse; whatever bytes arrive, parse answers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use proptest::prelude::*;
use wire::bth::{Aeth, AtomicEth, Bth, Deth, Feth, NakCode, Reth, Syndrome, XrcEth};
use wire::grh::Grh;
use wire::icrc::{self, Flow, ICRC_LEN, MAX_PACKET};
use wire::mad::{
    Apr, Drep, Dreq, Ece, IpCm, Lap, MAD_LEN, Mad, Message, Mra, PortSpace, Rej, Rep, Req, ReqPath, Rtu,
    SidrRep, SidrReq,
};
use wire::roce::{Header, Op, Packet, ReadAt, SendAt, SendTail, Service, WriteAt, pad};
use wire::tm::{TmMessage, Tmh};
use wire::{CommId, Gid, Guid, Malformed, Mtu, Pkey, Psn, Qkey, Qpn, Rkey, ServiceId};

fn u24() -> impl Strategy<Value = u32> {
    0..1u32 << 24
}

prop_compose! {
    fn bth()(flags: [bool; 5], pkey: u16, dest_qp: u32, psn: u32) -> Bth {
        let [solicited, migration, fecn, becn, ack_request] = flags;
        let (pkey, dest_qp, psn) = (Pkey(pkey), Qpn::new(dest_qp), Psn::new(psn));
        Bth { solicited, migration, pkey, fecn, becn, dest_qp, ack_request, psn }
    }
}

prop_compose! {
    fn reth()(addr: u64, rkey: u32, length: u32) -> Reth {
        Reth { addr, rkey: Rkey(rkey), length }
    }
}

prop_compose! {
    fn atomic_eth()(addr: u64, rkey: u32, swap_or_add: u64, compare: u64) -> AtomicEth {
        AtomicEth { addr, rkey: Rkey(rkey), swap_or_add, compare }
    }
}

fn aeth() -> impl Strategy<Value = Aeth> {
    use NakCode::*;
    let codes = vec![PsnSequence, InvalidRequest, RemoteAccess, RemoteOperational, InvalidRdRequest];
    let syndrome = prop_oneof![
        (0u8..32).prop_map(|credits| Syndrome::Ack { credits }),
        (0u8..32).prop_map(|timer| Syndrome::RnrNak { timer }),
        proptest::sample::select(codes).prop_map(Syndrome::Nak),
    ];
    (syndrome, u24()).prop_map(|(syndrome, msn)| Aeth { syndrome, msn })
}

/// What UC, RC and XRC have in common; `invalidate` is not for UC.
fn send_or_write(invalidate: bool) -> impl Strategy<Value = Op> {
    let tail = if invalidate {
        prop_oneof![
            Just(SendTail::None),
            any::<[u8; 4]>().prop_map(SendTail::Immediate),
            any::<u32>().prop_map(|rkey| SendTail::Invalidate(Rkey(rkey))),
        ]
        .boxed()
    } else {
        prop_oneof![Just(SendTail::None), any::<[u8; 4]>().prop_map(SendTail::Immediate)].boxed()
    };
    let immediate = || any::<Option<[u8; 4]>>();
    prop_oneof![
        Just(Op::Send(SendAt::First)),
        Just(Op::Send(SendAt::Middle)),
        tail.clone().prop_map(|tail| Op::Send(SendAt::Last(tail))),
        tail.prop_map(|tail| Op::Send(SendAt::Only(tail))),
        reth().prop_map(|reth| Op::Write(WriteAt::First(reth))),
        Just(Op::Write(WriteAt::Middle)),
        immediate().prop_map(|data| Op::Write(WriteAt::Last(data))),
        (reth(), immediate()).prop_map(|(reth, data)| Op::Write(WriteAt::Only(reth, data))),
    ]
}

fn read_or_atomic() -> impl Strategy<Value = Op> {
    prop_oneof![
        reth().prop_map(Op::ReadRequest),
        atomic_eth().prop_map(Op::CompareSwap),
        atomic_eth().prop_map(Op::FetchAdd),
    ]
}

fn response() -> impl Strategy<Value = Op> {
    prop_oneof![
        aeth().prop_map(|aeth| Op::ReadResponse(ReadAt::First(aeth))),
        Just(Op::ReadResponse(ReadAt::Middle)),
        aeth().prop_map(|aeth| Op::ReadResponse(ReadAt::Last(aeth))),
        aeth().prop_map(|aeth| Op::ReadResponse(ReadAt::Only(aeth))),
        aeth().prop_map(Op::Acknowledge),
        (aeth(), any::<u64>()).prop_map(|(aeth, original)| Op::AtomicAcknowledge(aeth, original)),
    ]
}

fn flush_or_atomic_write() -> impl Strategy<Value = Op> {
    let feth = (0u8..16, 0u8..4).prop_map(|(placement, selectivity)| Feth { placement, selectivity });
    prop_oneof![
        (feth, reth()).prop_map(|(feth, reth)| Op::Flush(feth, reth)),
        reth().prop_map(Op::AtomicWrite),
    ]
}

/// Every pair of service and operation that the standard has.
fn service_and_op() -> impl Strategy<Value = (Service, Op)> {
    let datagram = (any::<u32>(), u24(), any::<Option<[u8; 4]>>()).prop_map(|(qkey, source_qp, data)| {
        let deth = Deth { qkey: Qkey(qkey), source_qp: Qpn::new(source_qp) };
        (Service::Ud(deth), Op::Send(SendAt::Only(data.map_or(SendTail::None, SendTail::Immediate))))
    });
    let request = || prop_oneof![send_or_write(true), read_or_atomic(), flush_or_atomic_write()];
    let any_of_rc = prop_oneof![request(), response(), Just(Op::CongestionNotification)];
    prop_oneof![
        any_of_rc.prop_map(|op| (Service::Rc, op)),
        send_or_write(false).prop_map(|op| (Service::Uc, op)),
        datagram,
        (u24(), request()).prop_map(|(srq, op)| (Service::Xrc(Some(XrcEth { srq })), op)),
        response().prop_map(|op| (Service::Xrc(None), op)),
    ]
}

/// Headers with a payload of a length that the operation may have.
fn packet() -> impl Strategy<Value = (Header, Vec<u8>)> {
    (bth(), service_and_op(), proptest::collection::vec(any::<u8>(), 0..300)).prop_map(
        |(bth, (service, op), mut payload)| {
            match op {
                Op::Send(_) | Op::Write(_) | Op::ReadResponse(_) | Op::AtomicWrite(_) => {}
                Op::CongestionNotification => payload.resize(16, 0),
                _ => payload.clear(),
            }
            (Header { bth, service, op }, payload)
        },
    )
}

/// BTH to padding.
fn emit(header: &Header, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; header.len()];
    assert_eq!(header.emit(payload.len(), &mut bytes), header.len());
    bytes.extend_from_slice(payload);
    bytes.resize(bytes.len() + pad(payload.len()), 0);
    bytes
}

fn array<const N: usize>() -> impl Strategy<Value = [u8; N]> {
    proptest::collection::vec(any::<u8>(), N).prop_map(|bytes| bytes.try_into().unwrap())
}

prop_compose! {
    fn req_path()(
        lids: [u16; 2],
        gids: [[u8; 16]; 2],
        flow_label in 0u32..1 << 20,
        packet_rate in 0u8..64,
        [traffic_class, hop_limit] in any::<[u8; 2]>(),
        service_level in 0u8..16,
        subnet_local: bool,
        local_ack_timeout in 0u8..32,
    ) -> ReqPath {
        ReqPath {
            local_lid: lids[0],
            remote_lid: lids[1],
            local_gid: Gid(gids[0]),
            remote_gid: Gid(gids[1]),
            flow_label,
            packet_rate,
            traffic_class,
            hop_limit,
            service_level,
            subnet_local,
            local_ack_timeout,
        }
    }
}

prop_compose! {
    fn req()(
        (local_comm_id, service_id, local_ca_guid, local_qkey) in any::<(u32, u64, u64, u32)>(),
        (local_qpn, local_eecn, remote_eecn, starting_psn) in (u24(), u24(), u24(), u24()),
        (responder_resources, initiator_depth, pkey) in any::<(u8, u8, u16)>(),
        [flow_control, rdc_exists, srq] in any::<[bool; 3]>(),
        (remote_cm_response_timeout, local_cm_response_timeout, transport_service) in (0u8..32, 0u8..32, 0u8..4),
        (retry_count, rnr_retry_count, extended_transport, max_cm_retries) in (0u8..8, 0u8..8, 0u8..8, 0u8..16),
        path_mtu in 1u8..=5,
        (primary, alternate) in (req_path(), req_path()),
        (vendor_id, options) in (u24(), any::<u32>()),
        private_data in array(),
    ) -> Req {
        Req {
            local_comm_id: CommId(local_comm_id),
            ece: Ece { vendor_id, options },
            service_id: ServiceId(service_id),
            local_ca_guid: Guid(local_ca_guid),
            local_qkey: Qkey(local_qkey),
            local_qpn: Qpn::new(local_qpn),
            responder_resources,
            local_eecn,
            initiator_depth,
            remote_eecn,
            remote_cm_response_timeout,
            transport_service,
            flow_control,
            starting_psn: Psn::new(starting_psn),
            local_cm_response_timeout,
            retry_count,
            pkey: Pkey(pkey),
            path_mtu: Mtu::from_code(path_mtu).unwrap(),
            rdc_exists,
            rnr_retry_count,
            max_cm_retries,
            srq,
            extended_transport,
            primary,
            alternate,
            private_data,
        }
    }
}

prop_compose! {
    fn rep()(
        (local_comm_id, remote_comm_id, local_qkey, local_ca_guid) in any::<(u32, u32, u32, u64)>(),
        (local_qpn, local_eecn, starting_psn) in (u24(), u24(), u24()),
        [responder_resources, initiator_depth] in any::<[u8; 2]>(),
        (target_ack_delay, failover, rnr_retry_count) in (0u8..32, 0u8..4, 0u8..8),
        [flow_control, srq] in any::<[bool; 2]>(),
        (vendor_id, options) in (u24(), any::<u32>()),
        private_data in array(),
    ) -> Rep {
        Rep {
            local_comm_id: CommId(local_comm_id),
            remote_comm_id: CommId(remote_comm_id),
            ece: Ece { vendor_id, options },
            local_qkey: Qkey(local_qkey),
            local_qpn: Qpn::new(local_qpn),
            local_eecn,
            starting_psn: Psn::new(starting_psn),
            responder_resources,
            initiator_depth,
            target_ack_delay,
            failover,
            flow_control,
            rnr_retry_count,
            srq,
            local_ca_guid: Guid(local_ca_guid),
            private_data,
        }
    }
}

/// Both communication ids.
fn ids() -> impl Strategy<Value = (CommId, CommId)> {
    any::<(u32, u32)>().prop_map(|(local, remote)| (CommId(local), CommId(remote)))
}

#[expect(clippy::too_many_lines, reason = "an arm a message")]
fn message() -> impl Strategy<Value = Message> {
    let mra = (ids(), 0u8..4, 0u8..32, array()).prop_map(
        |((local_comm_id, remote_comm_id), message, service_timeout, private_data)| {
            Message::Mra(Mra { local_comm_id, remote_comm_id, message, service_timeout, private_data })
        },
    );
    let rej = (ids(), 0u8..4, 0u8..128, any::<u16>(), array(), array()).prop_map(
        |((local_comm_id, remote_comm_id), message, info_len, reason, info, private_data)| {
            Message::Rej(Rej { local_comm_id, remote_comm_id, message, info_len, reason, info, private_data })
        },
    );
    let rtu = (ids(), array()).prop_map(|((local_comm_id, remote_comm_id), private_data)| {
        Message::Rtu(Rtu { local_comm_id, remote_comm_id, private_data })
    });
    let dreq =
        (ids(), u24(), array()).prop_map(|((local_comm_id, remote_comm_id), remote_qpn, private_data)| {
            let remote_qpn = Qpn::new(remote_qpn);
            Message::Dreq(Dreq { local_comm_id, remote_comm_id, remote_qpn, private_data })
        });
    let drep = (ids(), array()).prop_map(|((local_comm_id, remote_comm_id), private_data)| {
        Message::Drep(Drep { local_comm_id, remote_comm_id, private_data })
    });
    let sidr_req = (any::<(u32, u16, u64)>(), array()).prop_map(|((id, pkey, service_id), private_data)| {
        let (request_id, pkey, service_id) = (CommId(id), Pkey(pkey), ServiceId(service_id));
        Message::SidrReq(SidrReq { request_id, pkey, service_id, private_data })
    });
    let sidr_rep = (any::<(u32, u8, u8, u64, u32)>(), u24(), array(), array()).prop_map(
        |((id, status, info_len, service_id, qkey), qpn, info, private_data)| {
            Message::SidrRep(SidrRep {
                request_id: CommId(id),
                status,
                info_len,
                qpn: Qpn::new(qpn),
                service_id: ServiceId(service_id),
                qkey: Qkey(qkey),
                info,
                private_data,
            })
        },
    );
    let lap = (ids(), u24(), 0u8..32, req_path(), array()).prop_map(
        |((local_comm_id, remote_comm_id), qpn, remote_cm_response_timeout, alternate, private_data)| {
            Message::Lap(Lap {
                local_comm_id,
                remote_comm_id,
                remote_qpn: Qpn::new(qpn),
                remote_cm_response_timeout,
                alternate,
                private_data,
            })
        },
    );
    let apr = (ids(), any::<[u8; 2]>(), array(), array()).prop_map(
        |((local_comm_id, remote_comm_id), [info_len, status], info, private_data)| {
            Message::Apr(Apr { local_comm_id, remote_comm_id, info_len, status, info, private_data })
        },
    );
    prop_oneof![
        req().prop_map(Message::Req),
        mra,
        rej,
        rep().prop_map(Message::Rep),
        rtu,
        dreq,
        drep,
        sidr_req,
        sidr_rep,
        lap,
        apr,
    ]
}

fn addresses() -> impl Strategy<Value = (IpAddr, IpAddr)> {
    prop_oneof![
        any::<(u32, u32)>().prop_map(|(a, b)| (Ipv4Addr::from(a).into(), Ipv4Addr::from(b).into())),
        any::<(u128, u128)>().prop_map(|(a, b)| (Ipv6Addr::from(a).into(), Ipv6Addr::from(b).into())),
    ]
}

fn flow() -> impl Strategy<Value = Flow> {
    (addresses(), any::<u16>()).prop_map(|((source, dest), port)| Flow {
        source: SocketAddr::new(source, port),
        dest: SocketAddr::new(dest, wire::ROCE_PORT),
    })
}

prop_compose! {
    fn grh()(
        ips in addresses(),
        [class, hops] in any::<[u8; 2]>(),
        payload_len in 0u16..65516,
        identification: u16,
        flow_label in 0u32..1 << 20,
    ) -> Grh {
        match ips {
            (IpAddr::V4(source), IpAddr::V4(dest)) => {
                Grh::V4 { tos: class, payload_len, identification, ttl: hops, source, dest }
            }
            (source, dest) => Grh::V6 {
                traffic_class: class,
                flow_label,
                payload_len,
                hop_limit: hops,
                source: Gid::from(source).0.into(),
                dest: Gid::from(dest).0.into(),
            },
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 2 } else { 2000 }, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_legal_packet_survives_emit_and_parse((header, payload) in packet()) {
        let bytes = emit(&header, &payload);
        prop_assert!((12..=44).contains(&header.len()));
        prop_assert_eq!(bytes[0], header.opcode());
        prop_assert_eq!(Packet::parse(&bytes), Ok(Packet { header, payload: &payload }));
    }

    #[test]
    fn eight_bytes_of_a_packet_name_its_queue_pair((header, payload) in packet()) {
        let bytes = emit(&header, &payload);
        prop_assert_eq!(Bth::peek_dest_qp(&bytes[..8]), Some(header.bth.dest_qp));
        prop_assert_eq!(Bth::peek_dest_qp(&bytes[..7]), None);
    }

    #[test]
    fn a_packet_cut_anywhere_is_refused_or_shorter_but_never_a_panic((header, payload) in packet()) {
        let bytes = emit(&header, &payload);
        for len in 0..bytes.len() {
            match Packet::parse(&bytes[..len]) {
                Ok(packet) => prop_assert!(packet.payload.len() < payload.len()),
                Err(Malformed::Truncated | Malformed::Length | Malformed::Pad(_)) => {}
                Err(other) => prop_assert!(false, "{other}"),
            }
        }
    }

    #[test]
    fn what_parses_from_any_bytes_reemits_to_a_packet_that_parses_alike(
        opcode: u8,
        version in prop_oneof![9 => Just(0u8), 1 => 0u8..16],
        mut bytes in proptest::collection::vec(any::<u8>(), 0..100),
    ) {
        if let [first, second, ..] = &mut bytes[..] {
            *first = opcode;
            *second = *second & 0xf0 | version;
        }
        if let Ok(packet) = Packet::parse(&bytes) {
            let again = emit(&packet.header, packet.payload);
            prop_assert_eq!(again.len(), bytes.len());
            prop_assert_eq!(Packet::parse(&again), Ok(packet));
        }
    }

    #[test]
    fn every_cm_message_survives_emit_and_parse(transaction_id: u64, message in message()) {
        let mad = Mad { transaction_id, message };
        prop_assert_eq!(Mad::parse(&mad.emit()), Ok(mad));
    }

    #[test]
    fn what_parses_from_any_bytes_as_a_mad_reemits_to_one_that_parses_alike(
        attribute in 0x0fu8..0x1b,
        len in prop_oneof![9 => Just(MAD_LEN), 1 => 0..2 * MAD_LEN],
        mut bytes in array::<{ 2 * MAD_LEN }>(),
    ) {
        bytes[..4].copy_from_slice(&[1, 7, 2, 3]);
        bytes[16..18].copy_from_slice(&[0, attribute]);
        if let Ok(mad) = Mad::parse(&bytes[..len]) {
            prop_assert_eq!(Mad::parse(&mad.emit()), Ok(mad));
        }
    }

    #[test]
    fn every_ip_cm_header_survives_emit_and_parse((source, dest) in addresses(), source_port: u16) {
        let ip_cm = IpCm { source, source_port, dest };
        prop_assert_eq!(IpCm::parse(&ip_cm.emit()), Ok(ip_cm));
    }

    #[test]
    fn arbitrary_bytes_never_make_a_parser_panic(flow in flow(), bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        let _ = Packet::parse(&bytes);
        let _ = Mad::parse(&bytes);
        let _ = IpCm::parse(&bytes);
        let _ = Grh::parse(&bytes);
        let _ = TmMessage::parse(&bytes);
        let _ = icrc::open(&flow, &bytes);
    }

    #[test]
    fn every_tag_matching_header_survives_emit_and_parse(app_ctx: u32, tag: u64, rvh in reth()) {
        let tmh = Tmh { app_ctx, tag };
        for message in [TmMessage::Eager(tmh), TmMessage::Rendezvous(tmh, rvh), TmMessage::Fin(tmh, rvh)] {
            prop_assert_eq!(TmMessage::parse(&message.emit()), message);
        }
    }

    #[test]
    fn every_grh_survives_emit_and_parse(grh in grh()) {
        prop_assert_eq!(Grh::parse(&grh.emit()), Ok(grh));
    }

    #[test]
    fn a_port_survives_its_service_id(port: u16, at in 0usize..4) {
        let space = [PortSpace::Tcp, PortSpace::Udp, PortSpace::Ipoib, PortSpace::Ib][at];
        prop_assert_eq!(ServiceId::from_port(space, port).ip_port(), Some((space, port)));
    }

    #[test]
    fn a_sealed_packet_opens_whatever_its_identification(
        flow in flow(),
        ip_id: u16,
        words in 4usize..MAX_PACKET / 4 + 1,
        seed: u8,
    ) {
        let mut packet: Vec<u8> = (0..words * 4).map(|at| (at as u8).wrapping_mul(seed)).collect();
        icrc::seal(&flow, ip_id, &mut packet);
        prop_assert_eq!(icrc::open(&flow, &packet), Ok(&packet[..packet.len() - ICRC_LEN]));
    }

    #[test]
    fn a_packet_sealed_for_another_flow_does_not_open_over_ipv6(
        a: u128,
        b: u128,
        port: u16,
        other in 1u16..,
        mut packet in array::<64>(),
    ) {
        let (source, dest) = (Ipv6Addr::from(a), Ipv6Addr::from(b));
        let flow = |port| Flow { source: SocketAddr::new(source.into(), port), dest: SocketAddr::new(dest.into(), 4791) };
        prop_assume!(source.to_ipv4_mapped().is_none() || dest.to_ipv4_mapped().is_none());
        icrc::seal(&flow(port), 0, &mut packet);
        prop_assert_eq!(icrc::open(&flow(port ^ other), &packet), Err(Malformed::Icrc));
    }
}

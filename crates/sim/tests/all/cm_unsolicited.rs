//! A host that writes connection manager messages in another's name, beside connections that are
//! made and used. Nothing ends, and no process is connected to any other one.

use std::net::IpAddr;
use std::time::Duration;

use crate::support::SimNode;
use crate::support::connections::{MESSAGES, PORT, Party, Side, param, resolved};
use nic::rdma_cm::EventKind;
use nic::{Link, Path};
use sim::{Dice, Faults, Sim};
use transport::TxBatch;
use wire::bth::{Bth, Deth};
use wire::mad::{Ece, GSI_QKEY, MAD_LEN, Mad, Message, PortSpace, Rej, Rep, Req, ReqPath, reason};
use wire::roce::{Header, Op, SendAt, SendTail, Service};
use wire::{CommId, Guid, Mtu, Pkey, Psn, Qkey, Qpn, ServiceId};

const SEEDS: u64 = 100;
const MS: Duration = Duration::from_millis(1);

/// Sends a MAD from `source`, whichever host that is, to `dest`.
fn forge(other: &SimNode, source: IpAddr, dest: IpAddr, mad: &Mad) {
    let header = Header {
        bth: Bth { dest_qp: Qpn::GSI, ..Bth::default() },
        service: Service::Ud(Deth { qkey: GSI_QKEY, source_qp: Qpn::GSI }),
        op: Op::Send(SendAt::Only(SendTail::None)),
    };
    let mut batch = TxBatch::new();
    let fill = |to: &mut [u8]| {
        to.copy_from_slice(&mad.emit());
        Ok(())
    };
    batch.push(&header, MAD_LEN, fill).unwrap();
    let way = Path {
        source: source.into(),
        dest: dest.into(),
        interface: 1,
        dest_qpn: Qpn::GSI,
        traffic_class: 0,
        hop_limit: 64,
        source_port_epoch: 0,
        no_multicast_loop: false,
    };
    other.env().send(&way, &mut batch);
}

fn req(dice: &mut Dice, source: IpAddr, dest: IpAddr, guid: Guid, qpn: Qpn) -> Mad {
    let path = ReqPath {
        local_lid: 0xffff,
        remote_lid: 0xffff,
        local_gid: source.into(),
        remote_gid: dest.into(),
        flow_label: 0,
        packet_rate: 0,
        traffic_class: 0,
        hop_limit: 64,
        service_level: 0,
        subnet_local: false,
        local_ack_timeout: 17,
    };
    let message = Message::Req(Req {
        local_comm_id: CommId(1 + dice.below(u64::from(u32::MAX)) as u32),
        ece: Ece::default(),
        service_id: ServiceId::from_port(PortSpace::Tcp, PORT),
        local_ca_guid: guid,
        local_qkey: Qkey(0),
        local_qpn: qpn,
        responder_resources: 1,
        local_eecn: 0,
        initiator_depth: 1,
        remote_eecn: 0,
        remote_cm_response_timeout: 20,
        transport_service: 0,
        flow_control: false,
        starting_psn: Psn::new(1),
        local_cm_response_timeout: 20,
        retry_count: 7,
        pkey: Pkey::default(),
        path_mtu: Mtu::M1024,
        rdc_exists: false,
        rnr_retry_count: 7,
        max_cm_retries: 15,
        srq: false,
        extended_transport: 0,
        primary: path,
        alternate: path,
        private_data: [0; 92],
    });
    Mad { transaction_id: dice.below(u64::MAX), message }
}

fn guid(of: &Party) -> Guid {
    of.node.devices()[0].config.guid
}

fn wait(sim: &mut Sim, party: &Party, kind: EventKind) -> stack::Event {
    let until = sim.elapsed() + 2_000 * MS;
    loop {
        if let Some(event) = party.next() {
            assert_eq!(event.kind, kind, "{event:?}");
            return event;
        }
        assert!(sim.step(until), "no {kind:?}");
    }
}

/// A client, a server, a other host.
fn parties(seed: u64) -> (Sim, Dice, [Party; 3]) {
    let mut dice = Dice::new(seed).fork(7000);
    let delay = Duration::from_micros(dice.between(10, 3_000));
    let mut sim = Sim::new(seed, Faults::none().delay(delay));
    if sim::seeds::single().is_some() {
        sim.log();
    }
    let parties = [1, 2, 3].map(|n| {
        let address = IpAddr::from([10, 0, 0, n]);
        let host = sim.add_host(&[address], 1500);
        Party::new(&mut sim, host, address)
    });
    (sim, dice, parties)
}

#[test]
fn requests_that_name_the_queue_pair_of_either_end_leave_the_connection_alone() {
    sim::each_seed("cm_unsolicited", "requests_that_name_the_queue_pair", SEEDS, |seed| {
        let (mut sim, mut dice, [client, server, other]) = parties(seed);
        let _listener = server.listen();
        let _other = client.listen();
        let id = resolved(&mut sim, &client, server.address);
        let mut ours = Side::new(id.clone());
        ours.equip(&client.node);
        client.node.connect(&id, &param(), &[]).unwrap();
        let mut theirs = Side::new(wait(&mut sim, &server, EventKind::ConnectRequest).id);
        theirs.equip(&server.node);
        server.node.accept(theirs.id.as_ref().unwrap(), None, &[]).unwrap();
        wait(&mut sim, &client, EventKind::Established);
        wait(&mut sim, &server, EventKind::Established);
        for _ in 0..20 {
            for (from, to, side) in [(&client, &server, &ours), (&server, &client, &theirs)] {
                let qpn = side.endpoint.as_ref().unwrap().qp.qpn();
                let forged = req(&mut dice, from.address, to.address, guid(from), qpn);
                forge(&other.node, from.address, to.address, &forged);
            }
            sim.run_for(dice.between(1, 1_000) as u32 * MS);
        }
        ours.send_all(&client.node);
        theirs.send_all(&server.node);
        sim.run_for(1_000 * MS);
        ours.poll();
        theirs.poll();
        assert_eq!((ours.received, theirs.received), (MESSAGES, MESSAGES));
        assert!(client.next().is_none() && server.next().is_none());
    });
}

/// What a host that guesses the client's communication id would say to it.
fn answers(dice: &mut Dice, ours: CommId, from: &Party) -> [Mad; 2] {
    let rep = Rep {
        local_comm_id: CommId(0x0bad_cafe),
        remote_comm_id: ours,
        ece: Ece::default(),
        local_qkey: Qkey(0),
        local_qpn: Qpn::new(0xab_cdef),
        local_eecn: 0,
        starting_psn: Psn::new(0x12_3456),
        responder_resources: 1,
        initiator_depth: 1,
        target_ack_delay: 15,
        failover: 0,
        flow_control: false,
        rnr_retry_count: 7,
        srq: false,
        local_ca_guid: guid(from),
        private_data: [0; 196],
    };
    let rej = Rej {
        local_comm_id: CommId(0),
        remote_comm_id: ours,
        message: 0,
        info_len: 0,
        reason: reason::CONSUMER_DEFINED,
        info: [0; 72],
        private_data: [0; 148],
    };
    [Message::Rep(rep), Message::Rej(rej)]
        .map(|message| Mad { transaction_id: dice.below(u64::MAX), message })
}

#[test]
fn answers_to_every_communication_id_of_a_client_are_not_its_servers() {
    // So many that a small part of all ids of the process meets some of them.
    const CONNECTIONS: u32 = 200;
    let (mut sim, mut dice, [client, server, other]) = parties(1);
    let _listener = server.listen();
    let sides: Vec<Side> = (0..CONNECTIONS)
        .map(|_| {
            let id = resolved(&mut sim, &client, server.address);
            let mut side = Side::new(id.clone());
            side.equip(&client.node);
            client.node.connect(&id, &param(), &[]).unwrap();
            side
        })
        .collect();
    let blocks = sim.names(client.host).into_iter().filter_map(|name| match name {
        stack::Name::Block(block) => Some(u32::from(block)),
        _ => None,
    });
    let block = blocks.max().unwrap();
    let counted = |name: &str| client.node.counted().into_iter().find(|(n, _)| n == name).unwrap().1;
    let mut low = dice.below(1 << 20) as u32;
    while counted("node.cm_unmatched") < 20 {
        for _ in 0..1_000 {
            low = (low + 1) & 0xf_ffff;
            for mad in answers(&mut dice, CommId(block << 20 | low), &server) {
                forge(&other.node, server.address, client.address, &mad);
            }
        }
        sim.run_for(10 * MS);
    }
    assert!(client.next().is_none(), "no program was told of anything");
    drop(sides);
}

//! Messages byte for byte as Linux's ib_cm writes them (rping between two rxe devices, kernel
//! 6.12).

use crate::support::*;
use cm::ib::{Cm, Config, Output};
use cm::{Accept, Connect, Parameters, PathRecord, TransportService};
use wire::mad::{MAD_LEN, Mad};
use wire::{CommId, Guid, Mtu, Psn, Qpn};

const CLIENT: CommId = CommId(0xc099_6191);
const SERVER: CommId = CommId(0x0e75_a67b);
const TRANSACTION: u64 = 0x2_9161_99c0;

/// A MAD of the capture: transaction id and attribute, then the message up to its last byte that is
/// not zero.
fn captured(attribute: u8, message: &str) -> [u8; MAD_LEN] {
    let mut mad = [0; MAD_LEN];
    mad[..4].copy_from_slice(&[1, 7, 2, 3]);
    mad[8..16].copy_from_slice(&TRANSACTION.to_be_bytes());
    mad[17] = attribute;
    let digits: Vec<u8> = message.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
    for (byte, pair) in mad[24..].iter_mut().zip(digits.chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    }
    mad
}

fn req() -> [u8; MAD_LEN] {
    captured(
        0x10,
        "c0996191 00000000 0000000001061c06 505400fffe770002 00000000 00000000 000011 01 000000 01 000000 a0
         4eb0ef a7 ffff 37 f0
         ffff ffff 00000000000000000000ffff0a4d0002 00000000000000000000ffff0a4d0003 882e3000 00 40 00 88
         0000 0000 00000000000000000000000000000000 00000000000000000000000000000000 00000000 00 00 00 00
         00 40 c983 0000000000000000000000000a4d0002 0000000000000000000000000a4d0003",
    )
}

fn rep() -> [u8; MAD_LEN] {
    captured(0x13, "0e75a67b c0996191 00000000 000011 00 000000 00 bd5bc6 00 01 01 78 e0 505400fffe770003")
}

/// The next MAD.
fn next(cm: &mut Cm) -> [u8; MAD_LEN] {
    loop {
        if let Output::Transmit { mad, .. } = cm.poll().expect("a MAD") {
            return mad.emit();
        }
    }
}

fn input(w: &World, cm: &mut Cm, from: u8, to: u8, bytes: &[u8]) {
    let origin = cm::ib::Origin { source: gid(from).ip().into(), dest: gid(to).ip().into(), link: 7 };
    cm.input(w.now, origin, &Mad::parse(bytes).unwrap());
}

#[test]
fn the_client_says_what_the_kernel_says() {
    let w = World::new(&[2, 3]);
    let mut cm = Cm::new(Config::new(Guid(0x5054_00ff_fe77_0002)), || CLIENT, || TRANSACTION);
    let connect = Connect {
        service: service(),
        source_port: 0xc983,
        path: PathRecord { flow_label: 0x882e3, ..PathRecord::new(gid(2), gid(3), 7, Mtu::M1024) },
        transport_service: TransportService::Rc,
        parameters: Parameters {
            qpn: Qpn::new(0x11),
            starting_psn: Psn::new(0x4e_b0ef),
            responder_resources: 1,
            initiator_depth: 1,
            retry_count: 7,
            rnr_retry_count: 7,
            ..Parameters::default()
        },
        private_data: vec![],
    };
    let id = cm.connect(w.now, &connect).unwrap();
    assert_eq!(next(&mut cm), req());
    input(&w, &mut cm, 3, 2, &rep());
    let attributes = cm.qp_attr(id).unwrap();
    assert_eq!((attributes.sq_psn, attributes.timeout), (Psn::new(0xbd_5bc6), 17));
    cm.established(w.now, id).unwrap();
    assert_eq!(next(&mut cm), captured(0x14, "c0996191 0e75a67b"));
    cm.disconnect(w.now, id).unwrap();
    assert_eq!(next(&mut cm), captured(0x15, "c0996191 0e75a67b 000011"));
}

#[test]
fn the_server_says_what_the_kernel_says() {
    let w = World::new(&[2, 3]);
    let mut cm = Cm::new(Config::new(Guid(0x5054_00ff_fe77_0003)), || SERVER, || unreachable!());
    input(&w, &mut cm, 2, 3, &req());
    let Some(Output::Event { conn: id, .. }) = cm.poll() else { panic!("a request") };
    let accept = Accept {
        parameters: Parameters {
            qpn: Qpn::new(0x11),
            starting_psn: Psn::new(0xbd_5bc6),
            responder_resources: 1,
            initiator_depth: 1,
            rnr_retry_count: 7,
            ..Parameters::default()
        },
        private_data: vec![],
    };
    cm.accept(w.now, id, &accept).unwrap();
    assert_eq!(next(&mut cm), rep());
    input(&w, &mut cm, 2, 3, &captured(0x14, "c0996191 0e75a67b"));
    input(&w, &mut cm, 2, 3, &captured(0x15, "c0996191 0e75a67b 000011"));
    assert_eq!(next(&mut cm), captured(0x16, "0e75a67b c0996191"));
}

//! MADs of subnet and performance management: whatever is legal survives emit and parse, whatever
//! bytes arrive, parse answers, and the bytes stand where the specification has them.

use proptest::prelude::*;
use wire::mad::perf::{PortCounters, class_port_info};
use wire::mad::rmpp::{self, Kind, Rmpp};
use wire::mad::smp::Smp;
use wire::mad::{
    Header, MAD_LEN, NodeInfo, NodeType, PhysicalState, PortInfo, PortState, SwitchInfo, Trap, class, method,
};
use wire::{Guid, Malformed};

prop_compose! {
    fn header()(bytes: [u8; 4], status: u16, class_specific: u16, transaction_id: u64, attribute: u16, modifier: u32)
        -> Header {
        let [base_version, class, class_version, method] = bytes;
        Header { base_version, class, class_version, method, status, class_specific, transaction_id, attribute, modifier }
    }
}

fn bytes(len: usize) -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(any::<u8>(), len)
}

proptest! {
    #[test]
    fn a_header_comes_back(header in header()) {
        prop_assert_eq!(Header::parse(&header.emit()), Ok(header));
    }

    #[test]
    fn an_smp_that_is_read_is_written_as_it_was(mad in bytes(MAD_LEN)) {
        let mut mad = mad;
        // Reserved bytes.
        mad[18..20].fill(0);
        mad[36..64].fill(0);
        match Smp::parse(&mad) {
            Ok(smp) => prop_assert_eq!(&smp.emit()[..], &mad[..]),
            Err(error) => {
                prop_assert_eq!(error, Malformed::Field("hop count"));
                prop_assert_eq!(mad[1], class::SUBN_DIRECTED_ROUTE);
                prop_assert!(mad[7] > 63 || mad[6] > mad[7] + 1);
            }
        }
    }

    #[test]
    fn any_bytes_are_an_smp_or_an_error(mad in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = (Smp::parse(&mad), Rmpp::parse(&mad), Header::parse(&mad), rmpp::is_active(&mad));
        if mad.len() < MAD_LEN {
            prop_assert_eq!(Smp::parse(&mad), Err(Malformed::Truncated));
        }
    }

    #[test]
    fn port_info_that_is_read_is_written_and_read_alike(data: [u8; 32], more: [u8; 32]) {
        let data: [u8; 64] = std::array::from_fn(|i| if i < 32 { data[i] } else { more[i - 32] });
        if let Ok(info) = PortInfo::parse(&data) {
            prop_assert_eq!(PortInfo::parse(&info.emit()), Ok(info));
        } else {
            prop_assert!(data[32] & 15 > 4 || data[33] >> 4 > 7);
        }
    }

    #[test]
    fn switch_info_that_is_read_is_written_as_it_was(data: [u8; 20]) {
        let mut whole = [0; 64];
        whole[..20].copy_from_slice(&data);
        whole[17] = 0;
        prop_assert_eq!(SwitchInfo::parse(&whole).unwrap().emit(), whole);
    }

    #[test]
    fn node_info_comes_back(guids: [u64; 3], ports: u8, device: u16, revision: u32, local_port: u8, vendor in 0..1u32 << 24) {
        let [system, node, port] = guids.map(Guid);
        let partition_cap = 32;
        for kind in [NodeType::Ca, NodeType::Switch, NodeType::Router] {
            let info = NodeInfo { kind, ports, system, node, port, partition_cap, device, revision, local_port, vendor };
            prop_assert_eq!(NodeInfo::parse(&info.emit()), Ok(info));
        }
    }

    #[test]
    fn an_rmpp_header_comes_back(flags: [bool; 2], response_time in 0..32u8, status: u8, segment: u32, length_or_window: u32) {
        let [is_first, is_last] = flags;
        for kind in [Kind::Data, Kind::Ack, Kind::Stop, Kind::Abort] {
            let rmpp = Rmpp { kind, response_time, is_first, is_last, status, segment, length_or_window };
            let mad = [&[0; Header::LEN][..], &rmpp.emit()].concat();
            prop_assert!(rmpp::is_active(&mad));
            prop_assert_eq!(Rmpp::parse(&mad), Ok(Some(rmpp)));
        }
    }
}

#[test]
fn port_info_stands_where_the_specification_has_it() {
    let info = PortInfo {
        m_key: 1,
        lid: 0x0203,
        sm_lid: 0x0405,
        local_port: 6,
        width_active: 2,
        speed_supported: 7,
        state: PortState::Active,
        physical_state: PhysicalState::LinkUp,
        down_default: 2,
        m_key_protection: 2,
        lmc: 3,
        neighbour_mtu: 5,
        sm_sl: 1,
        mtu_cap: 4,
        operational_vls: 3,
        client_reregister: true,
        subnet_timeout: 18,
        extended_speed_active: 2,
        extended_speed_enabled: 3,
        ..PortInfo::default()
    };
    let data = info.emit();
    for (at, byte) in [
        (7, 1),
        (16, 2),
        (17, 3),
        (18, 4),
        (19, 5),
        (28, 6),
        (31, 2),
        (32, 0x74),
        (33, 0x52),
        (34, 0x83),
        (36, 0x51),
        (41, 0x04),
        (43, 0x30),
        (51, 0x92),
        (62, 0x20),
        (63, 0x03),
    ] {
        assert_eq!(data[at], byte, "byte {at}");
    }
}

#[test]
fn traps_name_their_producer_and_their_port() {
    let link = Trap::LinkStateChange.emit(NodeType::Switch, 0x1234);
    assert_eq!(link[..12], [0x81, 0, 0, 2, 0, 128, 0x12, 0x34, 0, 0, 0x12, 0x34]);
    let change = Trap::CapabilityChange(0x0a0b_0c0d).emit(NodeType::Ca, 7);
    assert_eq!(change[..20], [0x84, 0, 0, 1, 0, 144, 0, 7, 0, 0, 0, 0, 0, 7, 0, 0, 0x0a, 0x0b, 0x0c, 0x0d]);
    let key = Trap::BadMKey { slid: 9, method: method::SET, attribute: 0x15, modifier: 1, m_key: 2 };
    let key = key.emit(NodeType::Ca, 7);
    assert_eq!(key[4..8], [1, 0, 0, 7]);
    assert_eq!(key[12..16], [0, 9, 0, 0]);
    assert_eq!(key[16..32], [2, 0, 0, 0x15, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2]);
    let refused = Trap::BadPkeyAtSwitch { port: 3 }.emit(NodeType::Switch, 0x1234);
    assert_eq!(refused[..10], [0x82, 0, 0, 2, 1, 3, 0x12, 0x34, 0, 0]);
    assert_eq!(refused[10..58], [0; 48]);
    assert_eq!(refused[58..], [0x12, 0x34, 3, 0, 0, 0]);
}

#[test]
fn counters_of_32_bits_stay_at_their_highest_value() {
    let counters = PortCounters {
        symbol_errors: 0x0102,
        link_downed: 3,
        transmit_discards: 4,
        local_link_integrity_errors: 200,
        transmit_words: 1 << 40,
        receive_packets: 5,
        ..PortCounters::default()
    };
    let data = counters.emit(7, [0xff, 0xff]);
    assert_eq!(data[..8], [0, 7, 0xff, 0xff, 1, 2, 0, 3]);
    assert_eq!((data[15], data[19]), (4, 0xf0));
    assert_eq!((&data[24..28], &data[36..40]), (&[0xff; 4][..], &[0, 0, 0, 5][..]));
    let data = counters.emit_extended(7, [0, 0]);
    assert_eq!((data[8 + 2], data[24 + 15]), (1, 5));
    assert_eq!(class_port_info(0x1300)[..8], [1, 1, 0x13, 0, 0, 0, 0, 16]);
}

#[test]
fn classes_and_methods_are_told_apart() {
    assert!(class::is_smp(0x01) && class::is_smp(0x81) && !class::is_smp(0x03));
    assert!(class::has_oui(0x30) && class::has_oui(0x4f) && !class::has_oui(0x50));
    assert!(class::has_rmpp(0x03) && class::has_rmpp(0x32) && !class::has_rmpp(0x04));
    assert!(method::is_response(0x81) && method::is_response(0x07) && !method::is_response(0x05));
}

//! Bytes of programs and files that mean nothing: an answer, and never a panic.

use std::time::Duration;

use fabric::agents::Registration;
use fabric::net::Net;
use fabric::umad::UmadHeader;
use proptest::prelude::*;
use wire::mad::{class, method};

use crate::settings::TEXT as SETTINGS;
use crate::support::{TWO, World, registration};

/// Commands of ibsim for the nodes of [`SETTINGS`].
const COMMANDS: &str = "do Link \"leaf\"[3] \"leaf\"[4]\ndo Unlink \"leaf\"\ndo ReLink \"a\"\ndo Error \"b\"[1] 5\n\
                        do PerformanceSet \"leaf\"[4] PortCounters.PortXmitWait=9\n";

prop_compose! {
    /// A message whose agent, class and method are often those of one that is there.
    fn message()(
        agent in 0..4u32, lid in 0..8u16, timeout_ms in 0..3u32, retries in 0..3u32, qpn in 0..2u32,
        class in prop_oneof![Just(class::SUBN_DIRECTED_ROUTE), Just(class::SUBN_LID_ROUTED), Just(class::PERF_MGMT),
            Just(class::SUBN_ADM), Just(0x32), any::<u8>()],
        method in prop_oneof![Just(method::GET), Just(method::SET), Just(method::GET_RESP), Just(method::TRAP_REPRESS), any::<u8>()],
        attribute in 0..0x30u16,
        mut mad in proptest::collection::vec(any::<u8>(), 24..600),
    ) -> Vec<u8> {
        (mad[1], mad[3]) = (class, method);
        mad[16..18].copy_from_slice(&attribute.to_be_bytes());
        let umad = UmadHeader { agent, lid, timeout_ms, retries, qpn, ..UmadHeader::default() };
        [&umad.emit()[..], &mad].concat()
    }
}

proptest! {
    #[test]
    fn no_message_of_a_program_ends_the_fabric(
        messages in proptest::collection::vec((0..3usize, message()), 0..60),
        raw in proptest::collection::vec(any::<u8>(), 0..400),
    ) {
        let mut world = World::new();
        world.configure("a");
        let clients = ["a", "b", "leaf1"].map(|host| world.open(host));
        for client in clients {
            for class in [class::SUBN_DIRECTED_ROUTE, class::SUBN_LID_ROUTED, class::SUBN_ADM, 0x32] {
                let rmpp_version = u8::from(class::has_rmpp(class));
                let wanted = Registration { rmpp_version, ..registration(class, &[1, 2, 5, 0x12]) };
                world.fabric.register(client, &wanted).unwrap();
            }
        }
        world.fabric.write(world.now, clients[0], &raw);
        for (client, message) in messages {
            world.fabric.write(world.now, clients[client], &message);
            world.pass(Duration::from_millis(1));
        }
        world.pass(Duration::from_secs(2));
        prop_assert!(world.fabric.census().links == 6);
    }

    #[test]
    fn a_net_file_with_bytes_changed_is_a_fabric_or_an_error(
        has_settings: bool,
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut bytes = if has_settings { format!("{SETTINGS}{COMMANDS}") } else { TWO.to_owned() }.into_bytes();
        changes.into_iter().for_each(|(at, byte)| *at.get_mut(&mut bytes) = byte);
        let text = String::from_utf8_lossy(&bytes);
        if let Ok(net) = Net::parse(&text) {
            prop_assert_eq!(Net::parse(&net.write()).unwrap(), net.sorted());
            let written = World::of(&net).fabric.write_net();
            prop_assert_eq!(Net::parse(&written).unwrap(), net.sorted());
        }
    }
}

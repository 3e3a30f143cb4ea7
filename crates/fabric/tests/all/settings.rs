//! What a net file says beside nodes and cables: the fabric begins with it.

use std::net::Ipv4Addr;

use fabric::Fabric;
use fabric::net::NetFile;

pub(crate) const TEXT: &str = "\
Switch 4 \"leaf\"
[1] \"a\"[1] # 1xSDR
#verbena supported=4xEDR SymbolErrorCounter=20
[2] \"b\"[1] # 4xEDR
#verbena down

Ca 1 \"a\" # \"MT4123 Mellanox Technologies\"
#verbena host=node7 device=mlx5_0 mtu=2048 frozen
[1] \"leaf\"[1] # 1xSDR
#verbena ip=10.0.0.1 drop=100% supported=4xEDR

Ca 1 \"b\" # \"MT4123 Mellanox Technologies\"
#verbena host=node7 device=mlx5_1
[1] \"leaf\"[2] # 4xEDR
";

fn fabric() -> Fabric {
    let file = NetFile::parse(TEXT, &mut |_, _| Err(String::new())).unwrap();
    let mut fabric = Fabric::new(&file.net, 1);
    fabric.set_counters(&file.counters);
    fabric
}

#[test]
fn a_fabric_begins_with_what_its_file_says() {
    let mut fabric = fabric();
    assert_eq!(fabric.counters_of("leaf", 1).unwrap().symbol_errors, 20);
    assert_eq!(fabric.counters_of("leaf", 2).unwrap().link_downed, 0, "it was never up");
    let devices = fabric.describe("node7").unwrap();
    let seen: Vec<_> = devices
        .iter()
        .map(|device| {
            let port = &device.ports[0];
            (&*device.name, port.ipoib.unwrap(), port.mtu, port.lanes, &*port.speed, port.physical_state)
        })
        .collect();
    // The address that the first one has is not made for the second one.
    let [first, second] = [[10, 0, 0, 1], [10, 0, 0, 2]].map(Ipv4Addr::from);
    assert_eq!(seen, [("mlx5_0", first, (4, 4), 1, "SDR", 5), ("mlx5_1", second, (5, 5), 4, "EDR", 2)]);
    assert_eq!(fabric.neighbour(second.into()).unwrap().host, first);
    let shown = fabric.show(None).unwrap();
    assert!(shown.contains(", frozen)") && shown.contains("2 cut") && shown.contains("drop 100%"), "{shown}");
    fabric.set_rate("leaf", 1, "4xEDR").unwrap();
}

#[test]
fn what_a_user_does_to_a_fabric_stands_in_the_file_that_it_writes() {
    let mut fabric = fabric();
    fabric.set_cut("leaf", 2, false).unwrap();
    fabric.set_damage("leaf", 1, 1_500).unwrap();
    fabric.set_rate("leaf", 2, "1xSDR").unwrap();
    let written = fabric.write_net();
    let settings: Vec<_> = written.lines().filter(|line| line.starts_with('#')).collect();
    assert_eq!(
        settings,
        [
            "#verbena host=node7 device=mlx5_0 mtu=2048 frozen",
            "#verbena ip=10.0.0.1 drop=100% supported=4xEDR",
            "#verbena host=node7 device=mlx5_1",
            "#verbena supported=4xEDR",
            "#verbena damage=0.15% supported=4xEDR",
            "#verbena supported=4xEDR",
        ]
    );
    let again = NetFile::parse(&written, &mut |_, _| Err(String::new())).unwrap();
    assert_eq!(Fabric::new(&again.net, 1).write_net(), written);
}

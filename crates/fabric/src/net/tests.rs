use super::*;

const TWO: &str = "\
vendid=0x2c9
devid=0x1011
sysimgguid=0x10
caguid=0x10
Ca\t1 \"H-0000000000000010\"\t\t# \"host0 mlx5_0\"
[1](10) \t\"S-0000000000000020\"[2]\t\t# lid 3 lmc 0 \"leaf # 0\" lid 1 4xHDR

switchguid=0x20(20)
Switch\t4 \"S-0000000000000020\"\t\t# \"leaf # 0\" enhanced port 0 lid 1 lmc 0
[2][ext 7]\t\"H-0000000000000010\"[1](10) \t\t# \"host0 mlx5_0\" lid 3 4xHDR
";

fn wrong(text: &str) -> String {
    Net::parse(text).expect_err("a wrong file").to_string()
}

#[test]
fn what_ibnetdiscover_prints_is_read() {
    let net = Net::parse(TWO).unwrap();
    let [host, leaf] = &net.nodes[..] else { panic!("{net:?}") };
    assert_eq!((host.kind, host.ports, host.guid, host.vendor), (NodeType::Ca, 1, Guid(0x10), 0x2c9));
    assert_eq!((&*leaf.description, leaf.enhanced_port_0, leaf.system), ("leaf # 0", true, Guid(0x20)));
    let link = NetLink { guid: Some(Guid(0x10)), peer: 1, peer_port: 2, width: Width::X4, speed: Speed::Hdr };
    assert_eq!(host.links[&1], link);
    assert_eq!((leaf.links[&2].peer, net.links()), (0, 1));
}

#[test]
fn what_ibsim_reads_is_read_and_missing_guids_are_made() {
    let net =
        Net::parse("Hca 2 \"H1\"\n[2] \"S\"[1]\n\nSwitch 8 \"S\"\n\nHca 1 \"H2\"\n[1] \"S\"[3]\n").unwrap();
    let made: Vec<_> = net.nodes.iter().map(|node| (&*node.name, node.guid.0)).collect();
    assert_eq!(made, [("H1", 0x10_0000), ("S", 0x20_0000), ("H2", 0x10_00ff)]);
    assert_eq!(net.nodes[1].links.keys().collect::<Vec<_>>(), [&1, &3], "one end is enough");
}

#[test]
fn a_cable_between_two_adapters_keeps_its_rate_and_guids() {
    // ibnetdiscover(8) prints a blank before the GUID of an adapter at the other end.
    let line = "Ca 1 \"a\"\n[1](15) \t\"b\"[1] (25) \t\t# lid 1 lmc 0 \"b\" lid 2 2xSDR\nCa 1 \"b\"";
    let net = Net::parse(line).unwrap();
    let end = |node: usize| (net.nodes[node].links[&1].guid, net.nodes[node].links[&1].speed);
    assert_eq!([end(0), end(1)], [(Some(Guid(0x15)), Speed::Sdr), (Some(Guid(0x25)), Speed::Sdr)]);
    assert_eq!(Net::parse(&net.write()).unwrap(), net);
}

#[test]
fn an_adapter_has_no_enhanced_port_0() {
    let net = Net::parse("Ca 1 \"a\" # \"a\" enhanced port 0").unwrap();
    assert!(!net.nodes[0].enhanced_port_0);
    assert_eq!(Net::parse(&net.write()).unwrap(), net);
}

#[test]
fn an_error_names_line_and_column() {
    assert_eq!(wrong(""), "line 1, column 1: the file has no node");
    assert_eq!(wrong("\nHost 1"), "line 2, column 1: neither a node, a port nor KEY=VALUE");
    assert_eq!(wrong("[1] \"a\"[1]"), "line 1, column 1: a port before any node");
    assert_eq!(wrong("Ca 0 \"a\""), "line 1, column 4: a node has 1 to 254 ports, not \"0\"");
    assert_eq!(wrong("Ca 300 \"a\""), "line 1, column 4: a node has 1 to 254 ports, not \"300\"");
    assert_eq!(wrong("Ca 255 \"a\""), "line 1, column 4: a node has 1 to 254 ports, not \"255\"");
    assert_eq!(
        wrong("Ca 1 \"a\"\n[0] \"b\"[1]"),
        "line 2, column 1: there is no port \"0\": the node has 1 to 1"
    );
    assert_eq!(wrong("devid=0x12345"), "line 1, column 7: \"0x12345\" is not a hexadecimal number that fits");
    assert_eq!(wrong("Ca 1 \"a"), "line 1, column 8: expected the name of the node in quotes");
    assert_eq!(
        wrong("Ca 1 \"a\"\n  [2] \"b\"[1]"),
        "line 2, column 3: there is no port \"2\": the node has 1 to 1"
    );
    assert_eq!(wrong("Ca 1 \"a\"\n[1] \"b\"[1]"), "line 2, column 5: there is no node \"b\"");
    assert_eq!(wrong("Ca 1 \"a\"\n[1] \"a\"[1]"), "line 2, column 5: a port cannot be linked to itself");
    assert!(wrong(&format!("Ca 1 \"{}\"", "a".repeat(65))).ends_with("longer than 64 bytes"));
    assert!(wrong("Ca 1 \"a\u{7}\"").ends_with("a control character"));
}

#[test]
fn two_lines_that_disagree_are_both_named() {
    let name = "Ca 1 \"a\"\n\nCa 1 \"a\"";
    assert_eq!(wrong(name), "line 3, column 1: the name stands in line 1 already");
    let guid = "caguid=0x7\nCa 1 \"a\"\ncaguid=0x7\nCa 1 \"b\"";
    assert_eq!(wrong(guid), "line 4, column 1: GUID 0x7 stands in line 2 already");
    let port = "Ca 1 \"a\"\n[1] \"b\"[1]\n[1] \"b\"[1]\nCa 1 \"b\"";
    assert_eq!(wrong(port), "line 3, column 1: port 1 stands in line 2 already");
    for (back, what) in [("\"c\"[1]", "node"), ("\"a\"[2]", "port"), ("\"a\"[1] # 4xSDR", "rate")] {
        let text = format!("Ca 2 \"a\"\n[1] \"b\"[1] # 4xEDR\nCa 1 \"b\"\n[1] {back}\nCa 1 \"c\"");
        assert_eq!(wrong(&text), format!("line 2, column 5: the other end, in line 4, tells another {what}"));
    }
    let one_sided = "Ca 1 \"a\"\n[1] \"s\"[1]\nCa 1 \"b\"\n[1] \"s\"[1]\nSwitch 2 \"s\"";
    assert_eq!(wrong(one_sided), "line 4, column 5: the other end, in line 2, tells another port");
}

#[test]
fn a_fat_tree_has_as_many_hosts_as_its_radix_says() {
    for (tree, nodes, links) in [("2,4", 8 + 6, 8 + 8), ("2,36", 702, 1296), ("3,4", 16 + 20, 16 + 32)] {
        let net = tree.parse::<FatTree>().unwrap().net();
        assert_eq!((net.nodes.len(), net.links()), (nodes, links), "{tree}");
    }
    for bad in ["2", "1,36", "4,36", "2,35", "2,0", "3,100", "2,300", "x,y"] {
        assert!(bad.parse::<FatTree>().is_err(), "{bad}");
    }
}

#[test]
fn a_torus_is_closed_in_each_dimension() {
    for (torus, switches, links) in [("3x3", 9, 18 + 9), ("4x3x5", 60, 180 + 60)] {
        let net = torus.parse::<Torus>().unwrap().net();
        assert_eq!((net.nodes.len(), net.links()), (2 * switches, links), "{torus}");
        assert_eq!(Net::parse(&net.write()).unwrap(), net);
    }
    for bad in ["", "4", "2x4", "4x4x4x4", "4xx4", "400x400", "x"] {
        assert!(bad.parse::<Torus>().is_err(), "{bad}");
    }
}

#[test]
fn a_dragonfly_has_one_link_between_each_two_groups() {
    for (dragonfly, groups, switches, hosts) in [("4,2,2", 9, 4, 2), ("1,1,3", 4, 1, 1), ("3,1,1", 4, 3, 1)] {
        let net = dragonfly.parse::<Dragonfly>().unwrap().net();
        let within = groups * (switches * (switches - 1) / 2 + switches * hosts);
        assert_eq!(net.links(), within + groups * (groups - 1) / 2, "{dragonfly}");
        let group = |node: &NetNode| Some(node.description.strip_prefix("sw")?.split_once('_')?.0.to_owned());
        let groups_of: Vec<_> = net.nodes.iter().map(group).collect();
        let mut pairs = Vec::new();
        for (index, node) in net.nodes.iter().enumerate() {
            pairs.extend(node.links.values().map(|link| (&groups_of[index], &groups_of[link.peer])));
        }
        pairs.retain(|(a, b)| a.is_some() && b.is_some() && a < b);
        pairs.sort();
        let count = pairs.len();
        pairs.dedup();
        assert_eq!((pairs.len(), count), (groups * (groups - 1) / 2, pairs.len()), "{dragonfly}");
        assert_eq!(Net::parse(&net.write()).unwrap(), net);
    }
    for bad in ["", "4,2", "0,1,1", "4,2,2,2", "200,100,1", "100,20,100", "x,1,1"] {
        assert!(bad.parse::<Dragonfly>().is_err(), "{bad}");
    }
}

#[test]
fn what_is_written_is_read_back_equal() {
    for net in
        [Net::parse(TWO).unwrap(), FatTree::new(2, 8).unwrap().net(), FatTree::new(3, 4).unwrap().net()]
    {
        let text = net.write();
        assert_eq!(Net::parse(&text).unwrap(), net.sorted());
        assert_eq!(Net::parse(&text).unwrap().write(), text);
    }
}

/// Two hosts at a switch, with something below each line.
fn set(node: &str, port: &str) -> String {
    format!(
        "Ca 2 \"a\" # \"MT4123 Mellanox\"\n{node}\n[1] \"s\"[1] # 4xEDR\n{port}\nSwitch 2 \"s\"\nCa 1 \"b\"\n[1] \"s\"[2]"
    )
}

#[test]
fn settings_stand_below_a_node_or_a_port_and_are_written_again() {
    let node = "#verbena host=node7 device=mlx5_3 mtu=2048 grh=required frozen";
    let port = "#verbena ip=10.4.0.7 down drop=0.01 damage=0.5% supported=12xHDR\n#verbena SymbolError=7";
    let text = set(node, port);
    let file = NetFile::parse(&text, &mut |_, _| Err(String::new())).unwrap();
    let own = &file.net.nodes[0];
    let settings = NodeSettings {
        host: Some("node7".into()),
        device: Some("mlx5_3".into()),
        mtu: Some(4),
        grh_required: true,
        frozen: true,
    };
    assert_eq!(own.settings, settings);
    let settings = PortSettings {
        address: Some([10, 4, 0, 7].into()),
        cut: true,
        drop_ppm: 10_000,
        damage_ppm: 5_000,
        supported: Some((Width::X12, Speed::Hdr)),
        pkeys: Vec::new(),
    };
    assert_eq!(own.port_settings[&1], settings);
    assert!(file.net.nodes[1].port_settings[&1].cut, "a cable is cut at both ends");
    let [preset] = &file.counters[..] else { panic!("{:?}", file.counters) };
    assert_eq!(
        (preset.node, preset.port, preset.counter.name, preset.value),
        (0, 1, "SymbolErrorCounter", 7)
    );
    assert_eq!(Net::parse(&file.net.write()).unwrap(), file.net.sorted());
}

#[test]
fn a_setting_that_is_none_is_named_with_its_column() {
    let at = |node: &str, port: &str| wrong(&set(node, port));
    assert!(at("#verbena ip=10.4.0.7", "").starts_with("line 2, column 10: a node has the settings host"));
    assert!(at("", "#verbena latency=2us").starts_with("line 4, column 10: a port has ip, down"));
    for bad in ["drop=2", "drop=-1%", "drop=NaN", "ip=127.0.0.1", "supported=9xEDR", "SymbolError=x", "drop"]
    {
        let key = bad.split('=').next().unwrap();
        let expected = format!("line 4, column 10: \"{key}\" does not have such a value");
        assert_eq!(at("", &format!("#verbena {bad}")), expected);
    }
    for bad in ["mtu=1500", "grh=no", "host=", "device=a/b", "frozen=yes"] {
        assert!(at(&format!("#verbena {bad}"), "").ends_with("does not have such a value"), "{bad}");
    }
    assert_eq!(
        at("", "#verbena supported=1xHDR"),
        "line 3, column 5: the port supports less than its link does"
    );
    for nothing in ["#verbena", "#verbena drop=0", "#verbena supported=4xEDR", "#verbenas words"] {
        assert_eq!(Net::parse(&set("", nothing)), Net::parse(&set("", "")), "{nothing}");
    }
    assert_eq!(wrong("#verbena frozen\nCa 1 \"a\""), "line 1, column 1: settings before any node");
    let twice =
        "Ca 2 \"a\"\n[1] \"s\"[1]\n#verbena ip=10.4.0.7\n[2] \"s\"[2]\n#verbena ip=10.4.0.7\nSwitch 2 \"s\"";
    assert_eq!(wrong(twice), "line 4, column 5: address 10.4.0.7 stands in line 2 already");
}

const HOSTS: &str = "Switch 4 \"s\"\n[1] \"a\"[1]\n[2] \"b\"[1]\nCa 2 \"a\"\nCa 2 \"b\"\n";

#[test]
fn commands_of_ibsim_are_carried_out_once_all_cables_are_known() {
    let commands = "do Link \"a\"[2] \"b\"[2]\ndo Unlink \"s\"\ndo ReLink \"a\"[1]\ndo Error \"b\"[1] 5\n\
                    do PerformanceSet \"a\"[2] PortCounters.LinkDownedCounter=3\n";
    let file = NetFile::parse(&format!("{commands}{HOSTS}"), &mut |_, _| Err(String::new())).unwrap();
    let [s, a, b] = &file.net.nodes[..] else { panic!("{:?}", file.net) };
    assert_eq!((a.links[&2].peer, a.links[&2].peer_port), (2, 2));
    let is_cut = |node: &NetNode, port| node.port_settings.get(&port).is_some_and(|own| own.cut);
    let cut = [is_cut(s, 1), is_cut(s, 2), is_cut(a, 1), is_cut(b, 1)];
    assert_eq!(cut, [false, true, false, true]);
    assert_eq!(b.port_settings[&1].drop_ppm, 50_000);
    let [preset] = &file.counters[..] else { panic!("{:?}", file.counters) };
    assert_eq!((preset.node, preset.port, preset.counter.name, preset.value), (1, 2, "LinkDownedCounter", 3));
}

#[test]
fn a_command_that_is_none_is_named_with_its_column() {
    let with = |command: &str| wrong(&format!("{HOSTS}{command}"));
    assert_eq!(with("do Link \"x\"[1] \"a\"[2]"), "line 6, column 9: there is no node \"x\"");
    assert_eq!(
        with("do Link \"a\"[1] \"b\"[2]"),
        "line 2, column 5: the other end, in line 6, tells another node"
    );
    assert_eq!(with("do Unlink \"a\"[2]"), "line 6, column 11: the port has no cable");
    assert_eq!(with("do Unlink \"a\"[9]"), "line 6, column 11: there is no port \"9\": the node has 1 to 2");
    assert_eq!(with("do Error \"a\"[1] 101"), "line 6, column 17: expected a share from 0 to 100");
    assert_eq!(with("do Error \"a\"[1] 5 17"), "line 6, column 19: expected the end of the command");
    assert!(with("do Baselid \"a\"[1] 7").ends_with("not \"Baselid\""));
    assert!(with("do PerformanceSet \"a\"[1] PortVLOpData.x=1").contains("expected PortCounters.NAME=VALUE"));
}

#[test]
fn a_file_is_included_where_its_line_stands_and_named_in_messages() {
    let files = |from: Option<&str>, name: &str| match name {
        "hosts" => Ok((format!("{}/hosts", from.unwrap_or("top")), "Ca 1 \"a\"\n[1] \"s\"[1]\n".to_owned())),
        "circle" => Ok(("circle".to_owned(), "include circle".to_owned())),
        "wrong" => Ok(("wrong".to_owned(), "\nCa 0 \"b\"".to_owned())),
        "twice" => Ok(("twice".to_owned(), "Ca 1 \"a\"".to_owned())),
        _ => Err("there is none".to_owned()),
    };
    let parse = |text: &str| NetFile::parse(text, &mut { files }).map_err(|error| error.to_string());
    let file = parse("Switch 2 \"s\"\ninclude \"hosts\"\ndo Unlink \"a\"[1]").unwrap();
    assert_eq!(file.net.nodes.iter().map(|node| &*node.name).collect::<Vec<_>>(), ["s", "a"]);
    for (text, error) in [
        ("include wrong", "wrong: line 2, column 4: a node has 1 to 254 ports, not \"0\""),
        (
            "include hosts\ninclude twice",
            "twice: line 1, column 1: the name stands in line 1 of top/hosts already",
        ),
        ("include  nothing", "line 1, column 1: \"nothing\" is not included: there is none"),
        ("include circle", "circle: line 1, column 1: more than nine files include one another"),
        ("include \"a", "line 1, column 11: expected the name of a file"),
        ("includes", "line 1, column 1: neither a node, a port nor KEY=VALUE"),
    ] {
        assert_eq!(parse(text).unwrap_err(), error);
    }
}

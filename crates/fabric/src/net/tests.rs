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
fn an_error_names_line_and_column() {
    assert_eq!(wrong(""), "line 1, column 1: the file has no node");
    assert_eq!(wrong("\nHost 1"), "line 2, column 1: neither a node, a port nor KEY=VALUE");
    assert_eq!(wrong("[1] \"a\"[1]"), "line 1, column 1: a port before any node");
    assert_eq!(wrong("Ca 0 \"a\""), "line 1, column 4: a node has 1 to 254 ports, not \"0\"");
    assert_eq!(wrong("Ca 300 \"a\""), "line 1, column 4: a node has 1 to 254 ports, not \"300\"");
    assert_eq!(wrong("devid=0x12345"), "line 1, column 7: \"0x12345\" is not a hexadecimal number that fits");
    assert_eq!(wrong("Ca 1 \"a"), "line 1, column 8: expected the name of the node in quotes");
    assert_eq!(
        wrong("Ca 1 \"a\"\n  [2] \"b\"[1]"),
        "line 2, column 3: there is no port \"2\": the node has 1 to 1"
    );
    assert_eq!(wrong("Ca 1 \"a\"\n[1] \"b\"[1]"), "line 2, column 5: there is no node \"b\"");
    assert_eq!(
        wrong("do Link"),
        "line 1, column 1: do of ibsim is not supported: write its text into the file"
    );
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
fn what_is_written_is_read_back_equal() {
    for net in
        [Net::parse(TWO).unwrap(), FatTree::new(2, 8).unwrap().net(), FatTree::new(3, 4).unwrap().net()]
    {
        let text = net.write();
        assert_eq!(Net::parse(&text).unwrap(), net.sorted());
        assert_eq!(Net::parse(&text).unwrap().write(), text);
    }
}

//! `#[verbena::test(fabric = "...")]`: hosts of an InfiniBand fabric, whose switches count, and
//! whose cables are cut.
#![cfg(feature = "sim")]

use std::net::{IpAddr, Ipv4Addr};
use std::panic::catch_unwind;
use std::time::Duration;

use verbena::prelude::*;
use verbena::sim::Host;
use verbena::time::{sleep, timeout};
use verbena::{ErrorKind, UdSocket};

const GROUP: IpAddr = IpAddr::V4(Ipv4Addr::new(239, 1, 2, 3));

async fn echo() -> verbena::Result<()> {
    let conn = verbena::listen("0.0.0.0:7000").await?.accept().await?;
    while let Some(message) = conn.recv().await? {
        conn.send(message).await.buf()?;
    }
    conn.close().await
}

#[verbena::test(seeds = 200, fabric = "tests/two_switches.net")]
async fn a_cut_cable_costs_packets_and_no_message(left: Host, right: Host) -> verbena::Result<()> {
    right.spawn(echo());
    let fabric = left.fabric()?;
    let (leaf0, used) = fabric.trace("left", "right")?[1].clone();
    let cutter = fabric.clone();
    let client = left.spawn(async move {
        let conn = verbena::connect("right:7000").await?;
        for n in 0..10 {
            if n == 5 {
                cutter.down(&leaf0, used)?;
            }
            conn.send_inline(&[n]).await?;
            assert_eq!(conn.recv().await?.as_deref(), Some(&[n][..]));
        }
        conn.close().await
    });
    client.await?;
    assert!(fabric.counter("leaf0", used, "PortXmitDiscards")? > 0, "lost where it was cut");
    assert!(fabric.counter("leaf0", 5 - used, "PortXmitPkts")? >= 5, "by the other cable since");
    Ok(())
}

#[verbena::test(seeds = 20, fabric = "tests/two_switches.net")]
async fn without_a_cable_left_a_connection_waits_until_one_is_mended(
    left: Host,
    right: Host,
) -> verbena::Result<()> {
    right.spawn(echo());
    let fabric = left.fabric()?;
    let client = left.spawn(async {
        let conn = verbena::connect("right:7000").await?;
        sleep(Duration::from_millis(100)).await;
        conn.send_inline(b"through").await?;
        assert_eq!(conn.recv().await?.as_deref(), Some(&b"through"[..]));
        conn.close().await
    });
    sleep(Duration::from_millis(50)).await;
    fabric.down("leaf0", 2)?;
    fabric.down("leaf1", 3)?;
    sleep(Duration::from_millis(60)).await;
    assert_eq!(fabric.trace("left", "right").unwrap_err().kind(), ErrorKind::Unreachable);
    assert!(!client.is_finished());
    fabric.up("leaf0", 3)?;
    client.await?;
    assert_eq!(fabric.counter("leaf0", 2, "LinkDownedCounter")?, 1);
    Ok(())
}

#[verbena::test(seeds = 20, fabric = "fat-tree 2,4")]
async fn a_drop_rule_loses_packets_that_come_again(host0: Host, host7: Host) -> verbena::Result<()> {
    host7.spawn(echo());
    let fabric = host0.fabric()?;
    for (node, port) in fabric.trace("host0", "host7")? {
        fabric.set_drop(&node, port, 0.1)?;
    }
    let client = host0.spawn(async {
        let conn = verbena::connect("host7:7000").await?;
        for n in 0..50 {
            conn.send_inline(&[n]).await?;
            assert_eq!(conn.recv().await?.as_deref(), Some(&[n][..]));
        }
        conn.close().await
    });
    client.await?;
    let ways = fabric.trace("host0", "host7")?;
    let lost: verbena::Result<Vec<u64>> =
        ways.iter().map(|(node, port)| fabric.counter(node, *port, "PortXmitDiscards")).collect();
    assert!(lost?.iter().sum::<u64>() > 0);
    Ok(())
}

/// Hears `count` datagrams to a group, each to its sender again, and leaves.
async fn member(host: Host, count: usize) -> verbena::Result<()> {
    let socket = UdSocket::bind(format!("{}:7000", host.name())).await?;
    let membership = socket.join(GROUP).await?;
    for _ in 0..count {
        let datagram = socket.recv_from().await?;
        assert_eq!(datagram.to, GROUP);
        socket.send_to(datagram.message, &datagram.from).await.buf()?;
    }
    drop(membership);
    // What it has sent is to leave before its queue pair ends.
    sleep(Duration::from_secs(1)).await;
    Ok(())
}

#[verbena::test(seeds = 50, fabric = "fat-tree 2,4")]
async fn datagrams_to_a_group_go_where_its_members_are_and_nowhere_else(
    host0: Host,
    host2: Host,
    host5: Host,
    host7: Host,
) -> verbena::Result<()> {
    let members = [(&host2, 3), (&host5, 1)];
    let tasks = members.map(|(host, count)| host.spawn(member(host.clone(), count)));
    let fabric = host0.fabric()?;
    let sent = |node: &str, port| fabric.counter(node, port, "PortXmitPkts");
    let outsider = host7.name();
    let before = sent("leaf3", 2)?;
    let asks = host0.spawn(async {
        sleep(Duration::from_millis(100)).await;
        let socket = UdSocket::bind("host0:0").await?;
        let group = socket.join(GROUP).send_only().await?;
        for hearers in [2, 1, 1] {
            // The subnet manager has heard of those that have left.
            sleep(Duration::from_millis(100)).await;
            socket.send_inline_to(b"all", group.address()).await?;
            for _ in 0..hearers {
                let answer = timeout(Duration::from_secs(1), socket.recv_from()).await;
                assert_eq!(&answer.expect("an answer")?.message[..], b"all");
            }
            assert!(timeout(Duration::from_millis(50), socket.recv_from()).await.is_err());
        }
        Ok::<_, verbena::Error>(())
    });
    asks.await?;
    for task in tasks {
        task.await?;
    }
    assert_eq!(sent("leaf3", 2)?, before, "nothing goes to {outsider}");
    let heard = [sent("leaf1", 1)?, sent("leaf2", 2)?];
    assert!(heard[0] >= 3 && heard[1] >= 1, "{heard:?}");
    Ok(())
}

#[verbena::test(seeds = 1, fabric = "torus 3x3")]
async fn what_is_not_there_is_said(host0: Host) {
    let fabric = host0.fabric().unwrap();
    let no_port = fabric.down("sw0_0_0", 99).unwrap_err();
    assert_eq!(no_port.kind(), ErrorKind::NotFound);
    assert!(no_port.to_string().contains("\"sw0_0_0\" has no port 99"), "{no_port}");
    assert_eq!(fabric.counter("sw0_0_0", 1, "Ports").unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(fabric.trace("host0", "host99").unwrap_err().kind(), ErrorKind::NotFound);
}

#[verbena::test(seeds = 1)]
async fn a_test_without_a_fabric_has_none(left: Host) {
    assert_eq!(left.fabric().unwrap_err().kind(), ErrorKind::WrongState);
}

#[test]
fn a_parameter_that_the_fabric_does_not_have_fails_the_test_and_names_those_that_it_has() {
    let run =
        || {
            verbena::sim::run_seeds("", "", "seeds = 1, fabric = \"torus 3x3\"", &["left"], |_| {
                Box::pin(async {})
            })
        };
    let text = *catch_unwind(run).unwrap_err().downcast::<String>().unwrap();
    assert!(text.starts_with("the fabric has no host `left`, but host0, host1, host2"), "{text}");
}

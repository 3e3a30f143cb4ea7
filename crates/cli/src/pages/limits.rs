//! Limits of devices, of the connection manager, and between processes of one host.

use std::collections::BTreeSet;

use nic::limits;

use super::{cell, code, compare, documented, read, table};

/// How a number is shown.
#[derive(Clone, Copy)]
enum Unit {
    Count,
    Bytes,
    Seconds,
}

impl Unit {
    fn show(self, n: u64) -> String {
        const SIZES: [(&str, u32); 4] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
        match self {
            Self::Count => grouped(n),
            Self::Seconds => format!("{n} s"),
            Self::Bytes => {
                let whole = SIZES.iter().find(|(_, bits)| n >= 1 << bits && n.trailing_zeros() >= *bits);
                whole.map_or_else(
                    || format!("{} bytes", grouped(n)),
                    |(name, bits)| format!("{} {name}", n >> bits),
                )
            }
        }
    }
}

/// A constant of `nic::limits`, its value, how it is shown, and the line of `ibv_devinfo -v` that
/// has it.
type DeviceLimit = (&'static str, u64, Unit, &'static str);

/// All of `nic::limits`, in the order of the page.
fn device_limits() -> Vec<DeviceLimit> {
    macro_rules! limits {
        ($($name:ident $unit:ident $line:literal,)+) => {
            vec![$((stringify!($name), number(&limits::$name), Unit::$unit, $line),)+]
        };
    }
    let mut all = limits! {
        MAX_QP Count "max_qp",
        MAX_QP_WR Count "max_qp_wr",
        MAX_SGE Count "max_sge",
        MAX_INLINE Bytes "",
        MAX_RD_ATOMIC Count "max_qp_rd_atom",
        MAX_MESSAGE Bytes "max_msg_sz",
        MAX_CQ Count "max_cq",
        MAX_CQE Count "max_cqe",
        MAX_SRQ Count "max_srq",
        MAX_SRQ_WR Count "max_srq_wr",
        MAX_PD Count "max_pd",
        MAX_AH Count "max_ah",
        MAX_MR Count "max_mr",
        MAX_DM Bytes "maximum available device memory",
        MAX_GROUPS Count "max_mcast_grp",
        MAX_GROUP_QP Count "max_mcast_qp_attach",
        MAX_FLOWS Count "",
        MAX_WQ Count "max_wq_type_rq",
        MAX_LOG_TABLE Count "max_rwq_indirection_table_size",
        MAX_TAGS Count "max_num_tags",
        MAX_TAG_OPS Count "max_ops",
        MAX_RENDEZVOUS_HEADER Bytes "max_rndv_hdr_size",
        MAX_COMPLETION_COUNTERS Count "",
        MAX_EVENTS Count "",
        MAX_GIDS Count "gid_tbl_len",
        PKEYS Count "pkey_tbl_len",
    };
    // `ibv_devinfo` shows the number itself.
    for limit in all.iter_mut().filter(|limit| limit.0 == "MAX_LOG_TABLE") {
        limit.1 = 1 << limit.1;
    }
    all
}

/// Doc comments of limits that are no sentence of their own in a table.
const LIMIT_TEXTS: [(&str, &str); 1] = [("MAX_LOG_TABLE", "Entries of an indirection table.")];

/// A limit that is a constant of one source file: the file, the constant, how it is shown, what it
/// means.
type HostLimit = (&'static str, &'static str, Unit, &'static str);

/// Limits of the connection manager.
const CM_LIMITS: [HostLimit; 4] = [
    (
        "crates/nic/src/rdma_cm.rs",
        "MAX_BACKLOG",
        Unit::Count,
        "Requests that wait at one listener, whatever its backlog.",
    ),
    (
        "crates/stack/src/listener.rs",
        "MAX_PENDING",
        Unit::Count,
        "Unanswered requests at all listeners together.",
    ),
    (
        "crates/stack/src/listener.rs",
        "LEAST_SHARE",
        Unit::Count,
        "Waiting requests that each listener may always have.",
    ),
    (
        "crates/stack/src/listener.rs",
        "FULL_FOR",
        Unit::Seconds,
        "How long a request waits for a place in a full backlog.",
    ),
];

/// Limits between processes of one host.
const HOST_LIMITS: [HostLimit; 8] = [
    (
        "crates/local/src/rings/mod.rs",
        "MAX_READ",
        Unit::Count,
        "Rings that a process reads, one for each peer process.",
    ),
    (
        "crates/local/src/record.rs",
        "RING_BYTES",
        Unit::Bytes,
        "Size of a ring; each direction between two processes has one.",
    ),
    (
        "crates/local/src/rings/tx_ring.rs",
        "MAX_WAITING",
        Unit::Bytes,
        "Data that waits for room in a full ring.",
    ),
    (
        "crates/transport/src/short.rs",
        "MAX_SHORT",
        Unit::Bytes,
        "Longest message that a ring carries without packets.",
    ),
    (
        "crates/linux/src/names.rs",
        "MAX_NAME_OWNERS",
        Unit::Count,
        "Connections to other processes for passing packets on.",
    ),
    (
        "crates/local/src/arena.rs",
        "MAX_BUFFERS",
        Unit::Count,
        "Buffers of `ibv_alloc_buf` that peers can map.",
    ),
    ("crates/local/src/arena.rs", "MAX_MAPPED", Unit::Count, "Buffers of peers that a process maps."),
    ("crates/local/src/arena.rs", "MAX_MAPPED_BYTES", Unit::Bytes, "Size of these mapped buffers together."),
];

/// Limits of a process at its UDP sockets.
const SOCKET_LIMITS: [HostLimit; 4] = [
    ("crates/linux/src/tx.rs", "MAX_SOCKETS", Unit::Count, "Sockets that send."),
    (
        "crates/linux/src/rx_sockets/promotion.rs",
        "MAX_PROMOTED",
        Unit::Count,
        "Flows with a receiving socket of their own.",
    ),
    (
        "crates/linux/src/tx/room.rs",
        "IDLE",
        Unit::Seconds,
        "Idle time after which the socket of a flow is closed.",
    ),
    (
        "crates/linux/src/management.rs",
        "MAX",
        Unit::Count,
        "Connection manager messages that wait at the socket of an address.",
    ),
];

/// A limit of any type of number.
fn number(limit: &dyn std::fmt::Display) -> u64 {
    limit.to_string().parse().expect("a number")
}

/// The value of a constant, written as a number, a shift of one, or seconds.
fn constant(source: &str, name: &str) -> Option<u64> {
    let number = |text: &str| text.trim().replace('_', "").parse::<u64>().ok();
    let line = source.lines().find(|line| line.contains(&format!("const {name}: ")))?;
    let value = line.split_once(" = ")?.1.trim_end_matches(';');
    if let Some(seconds) = value.strip_prefix("Duration::from_secs(") {
        return number(seconds.trim_end_matches(')'));
    }
    match value.split_once("<<") {
        Some((base, bits)) => Some(number(base)? << number(bits)?),
        None => number(value),
    }
}

/// A number with a comma before each three digits.
fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[test]
fn the_page_of_limits_has_each_limit_with_its_value() {
    let source = read("crates/nic/src/limits.rs");
    let docs = documented(&source, "pub const ", ":");
    let all = device_limits();
    let names: BTreeSet<&str> = all.iter().map(|limit| limit.0).collect();
    let declared: BTreeSet<&str> = docs.keys().map(String::as_str).collect();
    assert_eq!(
        names, declared,
        "crates/nic/src/limits.rs and `device_limits` of this file have the same constants"
    );
    let device = all.iter().map(|&(name, value, unit, line)| {
        let other = LIMIT_TEXTS.iter().find(|(of, _)| *of == name).map(|(_, text)| *text);
        let text = other.unwrap_or(&docs[name]);
        assert!(!text.is_empty(), "{name} of crates/nic/src/limits.rs has no doc comment");
        let line = if line.is_empty() { "-".to_owned() } else { code(line) };
        [cell(text), unit.show(value), line, code(name)]
    });
    let device = table(["What", "Limit", "`ibv_devinfo -v`", "Constant"], device);
    let others = |limits: &[HostLimit]| {
        let rows = limits.iter().map(|&(file, name, unit, text)| {
            let value = constant(&read(file), name).unwrap_or_else(|| panic!("{file} has no number {name}"));
            [cell(text), unit.show(value)]
        });
        table(["What", "Limit"], rows)
    };
    let [cm, host, sockets] = [&CM_LIMITS[..], &HOST_LIMITS, &SOCKET_LIMITS].map(others);
    compare(
        "limits.md",
        &[
            ("device limits", device),
            ("connection limits", cm),
            ("host limits", host),
            ("socket limits", sockets),
        ],
    );
}

#[test]
fn numbers_constants_and_doc_comments_are_read_as_they_are_written() {
    assert_eq!(
        [Unit::Count.show(65_536), Unit::Bytes.show(16 << 20), Unit::Bytes.show(64), Unit::Seconds.show(2)],
        ["65,536", "16 MiB", "64 bytes", "2 s"]
    );
    let source =
        "const A: usize = 1 << 4;\npub const B: u32 = 1_024;\nconst C: Duration = Duration::from_secs(5);\n";
    assert_eq!(["A", "B", "C"].map(|name| constant(source, name)), [Some(16), Some(1_024), Some(5)]);
    assert_eq!(constant("const A: u32 = other::A;", "A"), None);
    let source =
        "/// One\n/// thing.\npub const A: u32 = 1;\n\n/// Lost.\nfn f() {}\npub const B: u32 = 2;\n";
    let docs = documented(source, "pub const ", ":");
    assert_eq!((&docs["A"][..], &docs["B"][..]), ("One thing.", ""));
}

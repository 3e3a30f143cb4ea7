//! What the fuzz targets do with their bytes, without a fuzzer: the ordinary tests run the same
//! functions over the files of `corpus/` and `regressions/`.
//!
//! | module | what lives there |
//! |---|---|
//! | [`input`] | numbers out of bytes |
//! | [`ground`] | memory and receives under an engine |
//! | [`requests`], [`packets`], [`messages`] | work requests, packets and CM messages out of bytes |
//! | [`ledger`] | what a program knows of its send requests |
//! | [`adapter`] | a device without an environment |
//! | the rest | the targets, see [`TARGETS`] |
#![deny(unsafe_code)]

pub mod adapter;
pub mod ground;
pub mod input;
pub mod ledger;
pub mod messages;
pub mod packets;
pub mod requests;

#[expect(unsafe_code, reason = "calls of C functions")]
pub mod c_functions;
pub mod cm_engine;
pub mod cm_pair;
pub mod export_tables;
pub mod fabric_mads;
pub mod fpdu;
pub mod frames_flows;
pub mod icrc;
pub mod iwarp_pair;
pub mod mad;
pub mod mpa;
pub mod names;
pub mod net_file;
pub mod rc_engine;
pub mod rc_pair;
pub mod ring_records;
pub mod roce_packet;
pub mod rsockets;
pub mod tag_matching;
pub mod uc_ud;
pub mod xrc;

pub use input::Input;

/// A target: its name, and what it does with a fuzzer's bytes.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: &[Target] = &[
    ("c_functions", c_functions::run),
    ("cm_engine", cm_engine::run),
    ("cm_pair", cm_pair::run),
    ("fabric_mads", fabric_mads::run),
    ("fpdu", fpdu::run),
    ("frames_flows", frames_flows::run),
    ("icrc", icrc::run),
    ("export_tables", export_tables::run),
    ("iwarp_pair", iwarp_pair::run),
    ("mad", mad::run),
    ("mpa", mpa::run),
    ("names", names::run),
    ("net_file", net_file::run),
    ("rc_engine", rc_engine::run),
    ("rc_pair", rc_pair::run),
    ("ring_records", ring_records::run),
    ("roce_packet", roce_packet::run),
    ("rsockets", rsockets::run),
    ("tag_matching", tag_matching::run),
    ("uc_ud", uc_ud::run),
    ("xrc", xrc::run),
];

/// Where virtual time begins; only differences to it are ever looked at.
pub fn start() -> std::time::Instant {
    std::time::Instant::now()
}

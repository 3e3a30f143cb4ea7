//! Verbena by the network beside plain sockets, by turns: what either does within a second differs
//! from one second to the next.

use std::io;

use crate::beside::{by_turns_beside_last, figure};
use crate::floor::{self, Acks, Fastest};
use crate::rdma::{BY_NETWORK, Program};
use crate::report::{self, Figure};

/// Runs of each: the figures are medians.
const TURNS: usize = 5;
/// Bytes of a WRITE: from less than a packet to many batches.
const WRITE_SIZES: [usize; 7] = [64, 1 << 10, 4 << 10, 64 << 10, 256 << 10, 1 << 20, 16 << 20];

/// The lines of the table: the sockets' alone where there is no program.
///
/// # Errors
/// When a process or a socket fails.
pub(crate) fn figures(program: Option<&Program>) -> io::Result<Vec<Figure>> {
    let ours = |what: &[&str]| program.map_or(Ok(0.0), |program| program.measure_with(BY_NETWORK, what));
    let line = |what, unit, [ours, floor]: [f64; 2], ratio, floor_is| Figure {
        ours: program.map(|_| ours),
        of_pairs: Some(ratio),
        ..figure(what, unit, ours, floor, floor_is)
    };
    let mut figures = Vec::new();
    for (acks, what, floor_is) in [
        (
            Acks::Sent,
            "64-byte SEND, half round trip",
            "UDP, the same datagrams (80 bytes, and 20 for the ACK)",
        ),
        (Acks::None, "the same, beside UDP without the ACKs", "UDP, 80 bytes"),
    ] {
        let (medians, [ratio, _]) = by_turns_beside_last(TURNS, |at| match at {
            0 => ours(&["lat", "64", "1"]),
            _ => floor::ping_pong(&floor::socket_pair, acks),
        })?;
        figures.push(line(what.to_owned(), "us", medians, ratio, floor_is));
    }
    for list in [1, 32] {
        let (medians, [ratio, _]) = by_turns_beside_last(TURNS, |at| match at {
            0 => ours(&["rate", "64", &list.to_string()]),
            _ => floor::rate(list),
        })?;
        let what = format!("64-byte SENDs, 128 outstanding, posted in lists of {list}");
        figures.push(line(what, "1/s", medians, ratio, "UDP, datagrams of 80 bytes, a call for each list"));
    }
    for size in WRITE_SIZES {
        let fastest = Fastest::find(&floor::socket_pair, size, floor::PAGE, false)?;
        // A queue pair has no floor of its own: the sockets' is one flow.
        let ([one, many, floor], [of_one, of_many, _]) = by_turns_beside_last(TURNS, |at| match at {
            0 => ours(&["bw", &size.to_string(), "1"]),
            1 => ours(&["bw", &size.to_string(), "16"]),
            _ => fastest.measure(),
        })?;
        for (ours, ratio, over) in [(one, of_one, "one QP"), (many, of_many, "16 QPs")] {
            let what = format!("{} WRITEs, {over}", report::bytes(size));
            let datagrams = "UDP with GSO and GRO, a WRITE's datagrams, each message by itself, without loss, with the window in which they are fastest";
            figures.push(line(what, "GB/s", [ours, floor], ratio, datagrams));
        }
    }
    Ok(figures)
}

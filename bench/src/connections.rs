//! Connections beside TCP's, by turns: what one run makes of them in a second differs by a third from the next.

use std::io;

use crate::beside::by_turns;
use crate::floor;
use crate::pin;
use crate::rdma::{BY_NETWORK, Program};
use crate::report::{Better, Figure};

/// Runs of each: the figures are medians.
const TURNS: usize = 5;

/// How many clients make how many connections each, one after the other, and whether other programs want the processors meanwhile.
const CASES: [(usize, usize, &str, bool); 3] = [
    (1, 1000, "connections, one after the other", false),
    (1, 500, "the same, beside a program that computes on each processor", true),
    (64, 500, "connections from 64 processes, 500 each, to one server", false),
];

/// The lines of the table: TCP's alone where there is no program.
///
/// # Errors
/// When a process or a socket fails.
pub fn figures(program: Option<&Program>) -> io::Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for (clients, each, what, busy) in CASES {
        let _busy = busy.then(pin::Busy::start).transpose()?;
        let [floor, network, memory] = by_turns(TURNS, |at| match (at, program) {
            (0, _) => floor::connects(clients, each),
            (_, None) => Ok(0.0),
            (1, Some(program)) => program.connects(BY_NETWORK, clients, each),
            (_, Some(program)) => program.connects(&[], clients, each),
        })?;
        for (ours, by) in [(network, ""), (memory, ", by memory")] {
            figures.push(Figure {
                what: format!("{what}{by}"),
                unit: "1/s",
                better: Better::Higher,
                floor,
                floor_is: "TCP from as many threads: connect, accept, one byte, close",
                ours: program.map(|_| ours),
                of_pairs: None,
                line: None,
            });
        }
    }
    Ok(figures)
}

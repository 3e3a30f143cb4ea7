//! Connections beside TCP's, by turns: what one run makes of them in a second differs by a third
//! from the next.

use std::io;

use crate::beside::{by_turns_beside_last, figure};
use crate::floor;
use crate::pin;
use crate::rdma::{BY_NETWORK, Program};
use crate::report::Figure;

/// Runs of each: the figures are medians.
const TURNS: usize = 5;

/// How many clients make how many connections each, one after the other, and whether other programs
/// want the processors meanwhile.
const CASES: [(usize, usize, &str, bool); 3] = [
    (1, 1000, "connections, one after the other", false),
    (1, 500, "the same, beside a program that computes on each processor", true),
    (64, 500, "connections from 64 processes, 500 each, to one server", false),
];

/// The lines of the table: TCP's alone where there is no program.
///
/// # Errors
/// When a process or a socket fails.
pub(crate) fn figures(program: Option<&Program>) -> io::Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for (clients, each, what, busy) in CASES {
        let _busy = busy.then(pin::Busy::start).transpose()?;
        let ([network, memory, floor], [of_network, of_memory, _]) =
            by_turns_beside_last(TURNS, |at| match (at, program) {
                (2, _) => floor::connects(clients, each),
                (_, None) => Ok(0.0),
                (0, Some(program)) => program.connects(BY_NETWORK, clients, each),
                (_, Some(program)) => program.connects(&[], clients, each),
            })?;
        for (ours, ratio, by) in [(network, of_network, ""), (memory, of_memory, ", by memory")] {
            let tcp = "TCP from as many threads: connect, accept, one byte, close";
            figures.push(Figure {
                ours: program.map(|_| ours),
                of_pairs: Some(ratio),
                ..figure(format!("{what}{by}"), "1/s", ours, floor, tcp)
            });
        }
    }
    Ok(figures)
}

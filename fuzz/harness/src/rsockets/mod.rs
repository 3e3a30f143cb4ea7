//! rsockets against a peer that says anything: the connection data, messages and lists of a
//! stream; the messages to a datagram socket. And both ends of a stream, with one another.

mod datagrams;
mod joined;
mod stream;

use crate::Input;

/// The fuzzer's bytes.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    match input.below(4) {
        0 => datagrams::run(&mut input),
        1 => joined::run(&mut input),
        _ => stream::run(&mut input),
    }
}

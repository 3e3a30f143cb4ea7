//! XRC: an initiator or a target against any packets and calls, or one against the other over a bad
//! network.

use crate::rc_engine::{End, Kind};
use crate::{Input, rc_pair};

/// The fuzzer's bytes.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    match input.below(3) {
        0 => End::new(Kind::Initiator, &mut input).run(),
        1 => End::new(Kind::Target, &mut input).run(),
        _ => rc_pair::run_xrc(&mut input),
    }
}

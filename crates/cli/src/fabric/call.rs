//! A question to the process that has a fabric.

use ::fabric::protocol::{Reply, Request};
use linux::fabric::call::ask;

use super::place::Place;

/// Asks, and waits for the answer.
///
/// # Errors
///
/// A message: no fabric answers, or it refuses.
pub(crate) fn call(place: &Place, request: &Request) -> Result<Reply, String> {
    match ask(&place.socket(), request) {
        Ok((Reply::Refused { why, .. }, ..)) => Err(why),
        Ok((reply, ..)) => Ok(reply),
        Err(error) => Err(format!("fabric {}: {error}", place.name)),
    }
}

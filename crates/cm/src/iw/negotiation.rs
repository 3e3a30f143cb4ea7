//! IRD, ORD and RTR of both ends (RFC 6581 §9), as siw negotiates them.
//!
//! An end that negotiates no depths says 0x3fff. Then our own are what the consumer asked for, and
//! a reply says 0x3fff in turn.
//!
//! | decided by | IRD | ORD |
//! |---|---|---|
//! | responder | the consumer's, or the initiator's ORD where that is more, up to the limit | the consumer's, but not above the initiator's IRD |
//! | initiator | the consumer's, or the responder's ORD where that is more; a TERMINATE above the limit | the consumer's, but not above the responder's IRD |

use wire::iwarp::mpa::{ENHANCED_REVISION, Enhanced};
use wire::iwarp::rdmap::Cause;

use super::config::Config;
use super::connection::Asked;
use crate::parameters::Parameters;
use crate::streams::{Agreed, Rtr, RtrMessage};

/// What our request asks for, and the depths of its consumer. An end that asks for an RTR may have
/// to send a READ for it, so its ORD is 1 at least, as with siw.
pub(super) fn offered(config: &Config, parameters: &Parameters) -> (Asked, Agreed) {
    let (crc, peer_to_peer) = (config.crc, config.enhanced && config.peer_to_peer);
    let ord = parameters.initiator_depth.max(u8::from(peer_to_peer));
    let mine = Agreed { crc, ird: parameters.responder_resources, ord, rtr: Rtr::None };
    let enhanced = Enhanced {
        peer_to_peer,
        send_rtr: false,
        write_rtr: peer_to_peer && config.write_rtr,
        read_rtr: peer_to_peer && config.read_rtr,
        ird: mine.ird.into(),
        ord: mine.ord.into(),
    };
    let revision = if config.enhanced { ENHANCED_REVISION } else { 1 };
    (Asked { revision, crc, enhanced: config.enhanced.then_some(enhanced) }, mine)
}

/// A depth that a peer told, up to the limit; `None` where it negotiates none.
fn told(depth: u16, most: u8) -> Option<u8> {
    let is_negotiated = depth != Enhanced::NOT_NEGOTIATED;
    is_negotiated.then(|| u8::try_from(depth).unwrap_or(u8::MAX).min(most))
}

/// What a request lets the responder have at most: its depths turned round, the limits where it
/// tells none.
pub(super) fn requested(config: &Config, enhanced: Option<Enhanced>) -> Agreed {
    let ird = enhanced.and_then(|peer| told(peer.ord, config.max_ird)).unwrap_or(config.max_ird);
    let ord = enhanced.and_then(|peer| told(peer.ird, config.max_ord)).unwrap_or(config.max_ord);
    Agreed { crc: false, ird, ord, rtr: Rtr::None }
}

/// The RTR that the responder wants: a WRITE if it is offered, else a READ if that is, else a WRITE
/// all the same. A SEND would take a receive of the program, so none is asked for.
fn wanted(peer: &Enhanced) -> Option<RtrMessage> {
    let message = if !peer.write_rtr && peer.read_rtr { RtrMessage::Read } else { RtrMessage::Write };
    peer.peer_to_peer.then_some(message)
}

/// The responder's decision: what it has, and what its reply says.
pub(super) fn accepted(config: &Config, asked: &Asked, ours: &Parameters) -> (Agreed, Asked) {
    let crc = asked.crc || config.crc;
    let (ird, ord) = (ours.responder_resources, ours.initiator_depth);
    let Some(peer) = asked.enhanced else {
        return (Agreed { crc, ird, ord, rtr: Rtr::None }, Asked { crc, ..*asked });
    };
    let (peer_ird, peer_ord) = (told(peer.ird, config.max_ord), told(peer.ord, config.max_ird));
    let (ird, ord) = (ird.max(peer_ord.unwrap_or(0)), ord.min(peer_ird.unwrap_or(u8::MAX)));
    let rtr = wanted(&peer);
    let says = |depth: u8, peers: Option<u8>| peers.map_or(Enhanced::NOT_NEGOTIATED, |_| depth.into());
    let reply = Enhanced {
        peer_to_peer: peer.peer_to_peer,
        send_rtr: false,
        write_rtr: rtr == Some(RtrMessage::Write),
        read_rtr: rtr == Some(RtrMessage::Read),
        ird: says(ird, peer_ord),
        ord: says(ord, peer_ird),
    };
    let agreed = Agreed { crc, ird, ord, rtr: rtr.map_or(Rtr::None, Rtr::Await) };
    (agreed, Asked { crc, enhanced: Some(reply), ..*asked })
}

/// What a reply with R says of the depths: what the request lets us have, as siw echoes it.
pub(super) fn refused(config: &Config, asked: &Asked) -> Asked {
    let most = requested(config, asked.enhanced);
    let ours =
        Parameters { responder_resources: most.ird, initiator_depth: most.ord, ..Parameters::default() };
    accepted(config, asked, &ours).1
}

/// The initiator's decision upon a reply. `mine` has the depths that the consumer asked for.
///
/// # Errors
///
/// What the TERMINATE says: the peer starts more READs than we can accept, or wants no RTR of those
/// that were offered.
pub(super) fn replied(config: &Config, ours: &Asked, mine: Agreed, reply: &Asked) -> Result<Agreed, Cause> {
    let agreed = Agreed { crc: ours.crc || reply.crc, ..mine };
    let (Some(offer), Some(peer)) = (ours.enhanced, reply.enhanced) else { return Ok(agreed) };
    let most = config.max_ird.max(mine.ird);
    if peer.ord != Enhanced::NOT_NEGOTIATED && peer.ord > most.into() {
        return Err(Cause::MpaInsufficientIrd);
    }
    let ird = mine.ird.max(told(peer.ord, most).unwrap_or(0));
    let ord = mine.ord.min(told(peer.ird, u8::MAX).unwrap_or(u8::MAX));
    let rtr = match (offer.write_rtr && peer.write_rtr, offer.read_rtr && peer.read_rtr) {
        _ if !(offer.write_rtr || offer.read_rtr) => Rtr::None,
        (true, _) => Rtr::Send(RtrMessage::Write),
        (_, true) => Rtr::Send(RtrMessage::Read),
        _ => return Err(Cause::MpaNoMatchingRtr),
    };
    Ok(Agreed { ird, ord, rtr, ..agreed })
}

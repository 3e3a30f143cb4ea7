//! MPA frames made, and read from a stream that comes in pieces (RFC 5044 §7.1.1).

use wire::Malformed;
use wire::iwarp::Parsed;
use wire::iwarp::ddp::{Header, Segment, UntaggedOp};
use wire::iwarp::fpdu::Fpdu;
use wire::iwarp::mpa::{
    ENHANCED_REVISION, Frame, Kind, MAX_ENHANCED_PRIVATE_DATA, MAX_LEN, MAX_PRIVATE_DATA,
};
use wire::iwarp::rdmap::{Cause, Terminate};

use super::connection::Asked;
use crate::event::Error;

/// Moves bytes of a frame from a piece of its stream to `front`, and no more than the frame has.
/// Gives the bytes behind a whole frame; `None` while more are missing.
///
/// `front` holds [`MAX_LEN`] bytes at most.
///
/// # Errors
///
/// What came is no such frame. The first byte that tells so is enough.
pub(super) fn fill<'p>(
    kind: Kind,
    front: &mut Vec<u8>,
    mut piece: &'p [u8],
) -> Result<Option<&'p [u8]>, Malformed> {
    while let Parsed::Needs(more) = Frame::parse(kind, front)? {
        if piece.is_empty() {
            return Ok(None);
        }
        let (taken, rest) = piece.split_at(more.min(piece.len()));
        front.extend_from_slice(taken);
        piece = rest;
    }
    Ok(Some(piece))
}

/// Whether private data fits a frame with these headers.
pub(super) fn check_private_data(asked: &Asked, data: &[u8]) -> Result<(), Error> {
    let most = if asked.enhanced.is_some() { MAX_ENHANCED_PRIVATE_DATA } else { MAX_PRIVATE_DATA };
    if data.len() <= most { Ok(()) } else { Err(Error::PrivateData(data.len(), most)) }
}

/// A frame's bytes: a request that asks so, or a reply of that revision.
pub(super) fn frame(kind: Kind, asked: &Asked, rejected: bool, private_data: &[u8]) -> Vec<u8> {
    let Asked { revision, crc, enhanced } = *asked;
    let frame = Frame { kind, markers: false, crc, rejected, revision, enhanced, private_data };
    let mut bytes = [0; MAX_LEN];
    let len = frame.emit(&mut bytes);
    bytes.get(..len).unwrap_or_default().to_vec()
}

/// What a frame asks for.
pub(super) fn asked(frame: &Frame<'_>) -> Asked {
    Asked { revision: frame.revision, crc: frame.crc, enhanced: frame.enhanced }
}

/// Whether the revision is one of those that are spoken here.
pub(super) fn is_known(revision: u8) -> bool {
    (1..=ENHANCED_REVISION).contains(&revision)
}

/// The FPDU of a TERMINATE, the first message of its queue.
pub(super) fn terminate(cause: Cause, crc: bool) -> Vec<u8> {
    let mut payload = [0; Terminate::MAX_LEN];
    let len = Terminate::new(cause).emit(&mut payload);
    let payload = payload.get(..len).unwrap_or_default();
    let segment = Segment::Untagged { op: UntaggedOp::Terminate, msn: 1, mo: 0 };
    let header = Header { payload_len: len as u16, last: true, segment };
    let mut bytes = Vec::new();
    Fpdu { header, payload }.emit(crc, &mut bytes);
    bytes
}

//! Any bytes as the front of a stream that begins with an MPA request or reply: a prefix needs more
//! until the frame is whole or malformed, and what parses must survive emit and parse.
//!
//! | bytes | use |
//! |---|---|
//! | 0 | a request if even, a reply if odd |
//! | rest | stream |

use wire::iwarp::Parsed;
use wire::iwarp::mpa::{self, Frame, Kind};

/// The fuzzer's bytes, laid out as above.
pub fn run(bytes: &[u8]) {
    let Some((choice, stream)) = bytes.split_first() else { return };
    let kind = if choice % 2 == 0 { Kind::Request } else { Kind::Reply };
    let parsed = Frame::parse(kind, stream);
    // A byte at a time, up to where the answer no longer changes.
    let end = stream.len().min(mpa::MAX_LEN);
    let first = (0..=end).map(|len| (len, Frame::parse(kind, &stream[..len])));
    let mut decided = first.filter(|(_, parsed)| !matches!(parsed, Ok(Parsed::Needs(_))));
    match (decided.next(), parsed) {
        (None, parsed) => assert!(matches!(parsed, Ok(Parsed::Needs(1..)))),
        (Some((len, at_first)), parsed) => {
            assert_eq!(at_first, parsed, "another answer behind {len} bytes");
            let Ok(Parsed::Whole(frame)) = parsed else { return };
            assert_eq!(frame.len(), len);
            let mut again = [0; mpa::MAX_LEN];
            assert_eq!(frame.emit(&mut again), len);
            assert_eq!(Frame::parse(kind, &again[..len]), Ok(Parsed::Whole(frame)));
        }
    }
}

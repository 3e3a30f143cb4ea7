//! A stream of FPDUs that arrives in pieces: the FPDUs, and what is malformed behind them, are
//! those of the whole stream; and what parses must survive emit and parse, with CRCs and without.
//!
//! | bytes | use |
//! |---|---|
//! | 0 | CRCs in use if odd |
//! | 1..9 | lengths of the pieces, over and over; 0 is 1 |
//! | rest | stream |

use wire::iwarp::Parsed;
use wire::iwarp::ddp::{Header, Segment, UntaggedOp};
use wire::iwarp::fpdu::{BadFpdu, Fpdu};
use wire::iwarp::rdmap::{ReadRequest, Terminate};

/// Lengths of the pieces.
const PIECES: usize = 8;

/// FPDUs, each its header and payload, and what ends them.
type Collected = (Vec<(Header, Vec<u8>)>, Option<BadFpdu>);

/// The fuzzer's bytes, laid out as above.
pub fn run(bytes: &[u8]) {
    let Some((head, stream)) = bytes.split_first_chunk::<{ 1 + PIECES }>() else { return };
    let (crc, pieces) = (head[0] % 2 == 1, &head[1..]);
    let whole = collect(stream, &[stream.len()], crc);
    assert_eq!(collect_in(stream, pieces, crc), whole);
    if let Some(bad) = whole.1 {
        comes_back(&Terminate::of(bad.cause(), stream));
    }
    for (header, payload) in &whole.0 {
        payload_comes_back(header, payload);
    }
    for crc in [false, true] {
        let mut again = Vec::new();
        for (header, payload) in &whole.0 {
            Fpdu { header: *header, payload }.emit(crc, &mut again);
        }
        assert_eq!(collect_in(&again, pieces, crc), (whole.0.clone(), None));
    }
}

/// What comes of a stream in pieces of these lengths.
fn collect_in(stream: &[u8], pieces: &[u8], crc: bool) -> Collected {
    let mut end = 0;
    let lengths = pieces.iter().cycle().map(|len| usize::from(*len).max(1));
    let ends = lengths.map(|len| {
        end += len;
        end.min(stream.len())
    });
    let mut ends: Vec<usize> = ends.take_while(|end| *end < stream.len()).collect();
    ends.push(stream.len());
    collect(stream, &ends, crc)
}

/// What comes of a stream of which the bytes up to each end arrive one after the other.
fn collect(stream: &[u8], ends: &[usize], crc: bool) -> Collected {
    let (mut found, mut begin) = (Vec::new(), 0);
    for end in ends {
        loop {
            match Fpdu::parse(&stream[begin..*end], crc) {
                Err(bad) => return (found, Some(bad)),
                Ok(Parsed::Needs(more)) => {
                    assert_ne!(more, 0);
                    break;
                }
                Ok(Parsed::Whole(fpdu)) => {
                    begin += fpdu.len();
                    found.push((fpdu.header, fpdu.payload.to_vec()));
                }
            }
        }
    }
    (found, None)
}

fn payload_comes_back(header: &Header, payload: &[u8]) {
    let Segment::Untagged { op, .. } = header.segment else { return };
    match op {
        UntaggedOp::ReadRequest => {
            if let Ok(request) = ReadRequest::parse(payload) {
                assert_eq!(request.emit(), payload);
            }
        }
        UntaggedOp::Terminate => {
            if let Ok(terminate) = Terminate::parse(payload) {
                comes_back(&terminate);
            }
        }
        UntaggedOp::Send { .. } => {}
    }
}

fn comes_back(terminate: &Terminate) {
    let mut again = [0; Terminate::MAX_LEN];
    let len = terminate.emit(&mut again);
    assert_eq!(Terminate::parse(&again[..len]).as_ref(), Ok(terminate));
}

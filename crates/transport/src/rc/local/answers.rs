//! READ responses to a process of the same host: several packets leave as one fragment.

use super::choice::min_zero_copy;
use super::receive::{MAX_PACKETS, fragment, is_the_senders, zero_copy_len};
use crate::op::{Context, Fault, FragmentBytes, FragmentOutcome, LocalPath, Part, Remote, Source};
use crate::rc::Connection;
use crate::rc::answers::Read;

/// Outcome of the next response packets of a READ, which might leave as a fragment.
pub(in crate::rc) enum Fragment {
    /// So many packets have left, for which so many bytes were copied.
    Sent { packets: u32, copied: usize },
    /// The packets leave as a fragment once all packets before them have left.
    Later,
    /// The packets are no fragment.
    No,
}

/// Sends the next response packets of a READ as a fragment. `is_first`: no packet waits before it.
pub(in crate::rc) fn send_fragment(
    read: &mut Read,
    conn: &Connection,
    is_first: bool,
    cx: &mut impl Context,
) -> Result<Fragment, Fault> {
    if let Some(place) = read.place {
        if !is_first {
            return Ok(Fragment::Later);
        }
        match send_zero_copy(read, place, conn, &mut cx.local()) {
            Some((packets, copied)) => return Ok(Fragment::Sent { packets, copied }),
            None => read.place = None,
        }
    }
    let max_bytes = cx.local().max_fragment();
    let next = next(read, conn);
    let Some((packets, len)) = fragment(conn.mtu as u32, next.left, next.rest, max_bytes, MAX_PACKETS) else {
        return Ok(Fragment::No);
    };
    // What was asked for again leaves as packets.
    if max_bytes == 0 || read.repeated {
        return Ok(Fragment::No);
    }
    if !is_first {
        return Ok(Fragment::Later);
    }
    let header = conn.header(read.psn.add(read.next), read.op(packets));
    let part = Part { from: Source::Range(read.from), at: next.at, len: len as usize };
    Ok(match cx.local().send_fragment(&header, part, FragmentBytes::Inline)? {
        FragmentOutcome::Sent => Fragment::Sent { packets, copied: len as usize },
        FragmentOutcome::Full | FragmentOutcome::Unavailable => Fragment::No,
    })
}

/// What is left of a READ.
struct Next {
    /// Where the next response packet begins, in bytes.
    at: u64,
    /// Response packets that have not left.
    left: u32,
    /// Their bytes.
    rest: u64,
}

fn next(read: &Read, conn: &Connection) -> Next {
    let at = u64::from(read.next) * conn.mtu as u64;
    Next { at, left: read.packets - read.next, rest: read.from.length.saturating_sub(at) }
}

/// Sends the next response packets as a fragment that one of both ends copies: how many packets,
/// and how many bytes were copied for that. `None`: this READ goes otherwise from now on.
fn send_zero_copy(
    read: &Read,
    place: Remote,
    conn: &Connection,
    local: &mut impl LocalPath,
) -> Option<(u32, usize)> {
    if !local.reaches() {
        return None;
    }
    let mtu = conn.mtu as u32;
    let Next { at, left, rest } = next(read, conn);
    let most = zero_copy_len(mtu, read.from.length as u32, min_zero_copy(local));
    let (packets, len) = fragment(mtu, left, rest, most as usize, left)?;
    let header = conn.header(read.psn.add(read.next), read.op(packets));
    let part = Part { from: Source::Range(read.from), at, len: len as usize };
    let (bytes, copied) = match is_the_senders(rest - u64::from(len), most) {
        true => {
            let to = Remote { addr: place.addr.wrapping_add(at), length: len.into(), ..place };
            (FragmentBytes::Placed(to), len as usize)
        }
        false => (FragmentBytes::Exported, 0),
    };
    let outcome = local.send_fragment(&header, part, bytes);
    (outcome == Ok(FragmentOutcome::Sent)).then_some((packets, copied))
}

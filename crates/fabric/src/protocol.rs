//! What libibumad and the command say to the process that has the fabric, over sockets of kind
//! SOCK_SEQPACKET.
//!
//! | who | what |
//! |---|---|
//! | program, first message | [`Request`]: opens a port, asks for a host's devices, or a command |
//! | the fabric | [`Reply`] |
//! | program, on an open port | messages ([`crate::umad`]); to register, with a socket for the reply |
//! | the fabric, on an open port | messages as a umad port gives them |
//! | the fabric, to a program that has the plane | [`Reply::Host`], whenever its ports have changed |
//!
//! A request begins with [`MAGIC`], which no agent has as its number. A message longer than
//! [`MAX_INLINE`] is the header alone, with a descriptor of a file that has the rest.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::agents::Registration;
use crate::describe::DeviceDescription;
use crate::ipoib::Neighbour;

/// The first four bytes of a request.
pub const MAGIC: [u8; 4] = *b"VbFb";
/// The number of this protocol. Both ends have the same one.
pub const VERSION: u16 = 3;
/// Bytes of a message that go inline: any socket takes as many (wmem_default is 212,992).
pub const MAX_INLINE: usize = 32 << 10;
/// Bytes of a request at most.
pub const MAX_REQUEST: usize = 16 << 10;

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Makes the connection an open port of a host's device; [`Reply::Done`].
    Open {
        /// The host.
        host: String,
        /// The device.
        device: String,
        /// The number of the port.
        port: u8,
    },
    /// Asks what devices a host has; [`Reply::Host`].
    Describe {
        /// The host.
        host: String,
    },
    /// Has the files of a host written; [`Reply::Host`].
    Enter {
        /// The host.
        host: String,
    },
    /// Gives the program of a host the plane ([`crate::plane`]): [`Reply::Attached`] with its
    /// descriptor, then [`Reply::Host`] at once and whenever the host's ports have changed.
    Attach {
        /// The host.
        host: String,
    },
    /// Asks what bears an address of IPoIB, or a GID as an IPv6 address; [`Reply::Neighbour`].
    Neighbour(IpAddr),
    /// Registers an agent at the open port; [`Reply::Agent`].
    Register(Registration),
    /// Ends an agent of the open port; [`Reply::Done`].
    Unregister(u32),
    /// A command of the user; [`Reply::Text`].
    Command(Command),
}

/// What a user asks of a fabric.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "each is the subcommand of its name")]
pub enum Command {
    Show { node: Option<String> },
    Status,
    Trace { from: String, to: String },
    Cut { node: String, port: u8, cut: bool },
    Set { node: String, port: u8, counter: String, value: u64 },
    Drop { node: String, port: u8, ppm: u32 },
    Freeze { node: String, frozen: bool },
    Counters { node: String, port: u8 },
    Write,
    Stop,
    Damage { node: String, port: u8, ppm: u32 },
    Rate { node: String, port: u8, rate: String },
    Flap { node: String, port: u8, period_ms: u64 },
    Grow { node: String, port: u8, counter: String, a_second: u64 },
}

/// What is answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// The request is carried out.
    Done,
    /// The devices of a host, and the directory of its files, if they are written.
    Host {
        /// The devices.
        devices: Vec<DeviceDescription>,
        /// The directory of the host's files.
        directory: Option<String>,
    },
    /// What bears the address; nothing may.
    Neighbour(Option<Neighbour>),
    /// The program has the plane; the number of its rows there.
    Attached(u32),
    /// The number of a new agent.
    Agent(u32),
    /// Text for the user.
    Text(String),
    /// The request is refused, by this errno and for this reason.
    Refused {
        /// The errno.
        errno: i32,
        /// The reason.
        why: String,
    },
}

/// Why a message is no request or reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// The bytes are none.
    #[error("the message is malformed")]
    Malformed,
    /// The other end has another protocol.
    #[error("the other end is another build of Verbena: its protocol is {0}, not {VERSION}")]
    Version(u16),
}

/// Whether a message on an open port is a request, and not one for the port.
pub fn is_request(bytes: &[u8]) -> bool {
    bytes.starts_with(&MAGIC)
}

/// A request or reply as bytes.
pub fn encode<T: Serialize>(message: &T) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    // A vector takes all that is written, and none of these types refuses.
    if let Ok(more) = postcard::to_allocvec(message) {
        bytes.extend_from_slice(&more);
    }
    bytes
}

/// A request or reply out of its bytes.
///
/// # Errors
///
/// Bytes that are none, or of another version.
pub fn decode<T: for<'a> Deserialize<'a>>(bytes: &[u8]) -> Result<T, Unreadable> {
    let rest = bytes.strip_prefix(&MAGIC).ok_or(Unreadable::Malformed)?;
    let (version, rest) = rest.split_first_chunk().ok_or(Unreadable::Malformed)?;
    match u16::from_le_bytes(*version) {
        VERSION => postcard::from_bytes(rest).map_err(|_| Unreadable::Malformed),
        other => Err(Unreadable::Version(other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_comes_back_and_one_of_another_version_says_so() {
        let request = Request::Open { host: "host0".into(), device: "mlx5_0".into(), port: 1 };
        let mut bytes = encode(&request);
        assert!(is_request(&bytes));
        assert_eq!(decode(&bytes), Ok(request));
        for len in 0..bytes.len() {
            assert_eq!(decode::<Request>(&bytes[..len]), Err(Unreadable::Malformed), "{len} bytes");
        }
        bytes[4] = 9;
        assert_eq!(decode::<Request>(&bytes), Err(Unreadable::Version(9)));
    }
}

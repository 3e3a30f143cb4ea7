//! What the abstract names of `names` look like.
//!
//! | name | what |
//! |---|---|
//! | `verbena/2/1000/block/0a3` | a block of queue pair numbers and communication ids, in hexadecimal |
//! | `verbena/2/1000/port/tcp/*/7174` | a port of a port space on all addresses |
//! | `verbena/2/1000/port/tcp/::/7174` | a port on all addresses of a family |
//! | `verbena/2/1000/port/tcp/10.0.0.1/7174` | a port on one address |
//! | `verbena/2/1000/shared/tcp/*/7174/1c0ffee5` | one of several processes that share a port, with a random number in hexadecimal |
//!
//! 2 is [`PROTOCOL`], the number of everything that two processes say to each other over such a
//! name and in the memory that they share. 1000 is the user: another user can not take the name.
//!
//! A process bears each name in a second form, too: `verbena/1/block/0a3`, with no user. By that
//! one builds of other numbers find it. They exchange whole packets there, and nothing else.
//!
//! A process that takes no ring bears its blocks in a third form, too:
//! `verbena/2/1000/ringless/block/0a3`. Others of its user look for that one first.

use std::net::IpAddr;

use stack::Name;
use wire::mad::PortSpace;

/// The number of the protocol between processes: the messages and records of
/// [`crate::name_messages`], the rings, the tables and hazards of `peer_memory`. It changes with
/// any of them (`the_layouts_are_those_of_the_number`).
pub const PROTOCOL: u32 = 2;
/// Begins the names by which builds of every number find each other.
const COMMON: &str = "verbena/1/";

/// The name of a process of this user as an abstract address, without the leading zero.
pub fn text(name: Name, uid: u32) -> String {
    format!("verbena/{PROTOCOL}/{uid}/{}", kind(name))
}

/// The name by which it tells that it takes no ring, without the leading zero.
pub fn ringless_text(name: Name, uid: u32) -> String {
    format!("verbena/{PROTOCOL}/{uid}/ringless/{}", kind(name))
}

/// The name by which builds of other protocol numbers find it, without the leading zero.
pub fn common_text(name: Name) -> String {
    format!("{COMMON}{}", kind(name))
}

fn kind(name: Name) -> String {
    match name {
        Name::Block(block) => format!("block/{block:03x}"),
        Name::Port { space, addr, port } => {
            format!("port/{}/{}/{port}", space_name(space), addr_name(addr))
        }
        Name::Shared { space, addr, port, holder } => {
            format!("shared/{}/{}/{port}/{holder:x}", space_name(space), addr_name(addr))
        }
    }
}

fn addr_name(addr: Option<IpAddr>) -> String {
    addr.map_or_else(|| "*".to_owned(), |addr| addr.to_string())
}

/// The name in an abstract address, without its leading zero: one of this user and this protocol
/// number.
pub fn parse(text: &str, uid: u32) -> Option<Name> {
    let rest = text.strip_prefix("verbena/")?;
    let (number, rest) = rest.split_once('/')?;
    let (user, rest) = rest.split_once('/')?;
    (number.parse() == Ok(PROTOCOL) && user.parse() == Ok(uid)).then(|| parse_kind(rest))?
}

/// The name in an abstract address by which builds of other protocol numbers find a process.
pub fn parse_common(text: &str) -> Option<Name> {
    parse_kind(text.strip_prefix(COMMON)?)
}

fn parse_kind(text: &str) -> Option<Name> {
    let mut parts = text.split('/');
    let name = match parts.next()? {
        "block" => Name::Block(u16::from_str_radix(parts.next()?, 16).ok()?),
        kind @ ("port" | "shared") => {
            let space = parts.next()?;
            let space = SPACES.into_iter().find(|&known| space_name(known) == space)?;
            let addr = match parts.next()? {
                "*" => None,
                addr => Some(addr.parse().ok()?),
            };
            let port = parts.next()?.parse().ok()?;
            match kind {
                "port" => Name::Port { space, addr, port },
                _ => {
                    let holder = u32::from_str_radix(parts.next()?, 16).ok()?;
                    Name::Shared { space, addr, port, holder }
                }
            }
        }
        _ => return None,
    };
    parts.next().is_none().then_some(name)
}

const SPACES: [PortSpace; 4] = [PortSpace::Tcp, PortSpace::Udp, PortSpace::Ipoib, PortSpace::Ib];

fn space_name(space: PortSpace) -> &'static str {
    match space {
        PortSpace::Tcp => "tcp",
        PortSpace::Udp => "udp",
        PortSpace::Ipoib => "ipoib",
        PortSpace::Ib => "ib",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_read_as_it_was_written_for_its_user_and_no_other() {
        let port = Name::Port { space: PortSpace::Tcp, addr: None, port: 7174 };
        for name in [Name::Block(0xa3), port] {
            assert_eq!(parse(&text(name, 1000), 1000), Some(name));
            assert_eq!(parse(&text(name, 1000), 100), None);
            assert_eq!(parse_common(&common_text(name)), Some(name));
            assert_eq!(parse(&ringless_text(name, 1000), 1000), None);
            assert_eq!((parse(&common_text(name), 1000), parse_common(&text(name, 1000))), (None, None));
        }
        assert_eq!(text(Name::Block(0xa3), 1000), "verbena/2/1000/block/0a3");
        assert_eq!(parse("verbena/3/1000/block/0a3", 1000), None);
    }
}

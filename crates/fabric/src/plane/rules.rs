//! What a link of a way takes not of all packets, but of some: drop rules by dice, packets larger
//! than its MTU, and those of partitions that its switch does not let pass (IBA 1.4 §10.9).

use wire::grh::GRH_LEN;
use wire::icrc::ICRC_LEN;
use wire::lrh::LRH_LEN;
use wire::roce::Packet;
use wire::{Mtu, Pkey};

use super::way::End;
use super::{Plane, PortWord};
use crate::dice::Dice;

/// P_Keys of a port.
const PKEYS: usize = 32;
/// Words of the P_Keys of a port, four a word.
pub(super) const PKEY_WORDS: usize = PKEYS / 4;
/// The bits of a P_Key that name the partition; the other one says which kind of member.
const PARTITION: u16 = 0x7fff;

/// What rules ask of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketInfo {
    /// Words of 4 bytes from LRH to ICRC, as PortXmitData counts them.
    pub words: u64,
    /// Bytes behind the headers.
    pub payload: u32,
    /// The partition that it is of.
    pub pkey: Pkey,
}

impl PacketInfo {
    /// Of a packet from GRH or BTH on, with room for an ICRC.
    pub fn of(packet: &[u8], has_grh: bool) -> Self {
        let words = ((packet.len() + LRH_LEN) / 4) as u64;
        let begin = if has_grh { GRH_LEN } else { 0 };
        let inner = packet.get(begin..packet.len().saturating_sub(ICRC_LEN));
        let parsed = inner.and_then(|inner| Packet::parse(inner).ok());
        match parsed {
            Some(Packet { header, payload, .. }) => {
                Self { words, payload: payload.len() as u32, pkey: header.bth.pkey }
            }
            None => Self { words, payload: 0, pkey: Pkey::default() },
        }
    }
}

/// A rule of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rule {
    /// Which hop of the way.
    pub(super) hop: usize,
    /// The port that packets leave.
    pub(super) out: u32,
    takes: Takes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Takes {
    /// So many of a million packets.
    Dropped(u32),
    /// So many of a million arrive damaged.
    Damaged(u32),
    /// Packets with more bytes behind their headers.
    Larger(u32),
    /// Packets of partitions that the port is not in, before they leave.
    NonMembersOut,
    /// Packets of partitions that the port is not in to which they come.
    NonMembersIn(u32),
}

impl Rule {
    /// The rules of the link out of a port to the next one. `largest`: the MTU of the first link,
    /// which no packet exceeds.
    pub(super) fn of_link(
        plane: Plane<'_>,
        hop: usize,
        (out, port): (u32, &PortWord),
        next: u32,
        largest: Mtu,
    ) -> impl Iterator<Item = Self> {
        let is_in = plane.port(next).is_some_and(|next| next.enforces_in);
        let rules = [
            port.enforces_out.then_some(Takes::NonMembersOut),
            (port.mtu < largest).then_some(Takes::Larger(port.mtu.bytes() as u32)),
            (port.drop_ppm != 0).then_some(Takes::Dropped(port.drop_ppm)),
            (port.damage_ppm != 0).then_some(Takes::Damaged(port.damage_ppm)),
            is_in.then_some(Takes::NonMembersIn(next)),
        ];
        rules.into_iter().flatten().map(move |takes| Self { hop, out, takes })
    }

    /// Whether it takes a packet.
    pub(super) fn takes(&self, plane: Plane<'_>, dice: &mut Dice, packet: &PacketInfo) -> bool {
        match self.takes {
            Takes::Dropped(ppm) | Takes::Damaged(ppm) => dice.is_below(ppm),
            Takes::Larger(mtu) => packet.payload > mtu,
            Takes::NonMembersOut => !plane.admits(self.out, packet.pkey),
            Takes::NonMembersIn(port) => !plane.admits(port, packet.pkey),
        }
    }

    /// Whether it takes nothing of what all queue pairs of the default partition send.
    pub(super) fn is_open(&self, plane: Plane<'_>) -> bool {
        match self.takes {
            Takes::NonMembersOut => plane.admits(self.out, Pkey::default()),
            Takes::NonMembersIn(port) => plane.admits(port, Pkey::default()),
            Takes::Dropped(_) | Takes::Damaged(_) | Takes::Larger(_) => false,
        }
    }

    /// Whether it looks at partitions.
    pub(super) fn looks_at_partitions(&self) -> bool {
        matches!(self.takes, Takes::NonMembersOut | Takes::NonMembersIn(_))
    }

    /// Where the way of a packet ends that it takes, and whether that has passed the link.
    pub(super) fn end(&self) -> (bool, End) {
        match self.takes {
            Takes::Dropped(_) | Takes::Larger(_) => (false, End::Discarded(self.out)),
            Takes::Damaged(_) => (false, End::Damaged(self.out)),
            Takes::NonMembersOut => (false, End::RefusedOut(self.out)),
            Takes::NonMembersIn(port) => (true, End::RefusedIn(port)),
        }
    }
}

impl Plane<'_> {
    /// Whether a port of a switch is in the partition of a packet. The end port alone looks at who
    /// is a full member.
    fn admits(&self, port: u32, pkey: Pkey) -> bool {
        let wanted = pkey.0 & PARTITION;
        let words = (0..PKEY_WORDS).map(|n| self.load(self.layout.pkeys(port) + n));
        let mut keys = words.flat_map(|word| [0, 16, 32, 48].map(|shift| (word >> shift) as u16));
        wanted != 0 && keys.any(|key| key & PARTITION == wanted)
    }

    /// Writes the P_Keys of a port.
    pub(super) fn set_pkeys(&self, port: u32, keys: impl IntoIterator<Item = u16>) {
        let mut all = [0; PKEYS];
        all.iter_mut().zip(keys).for_each(|(to, key)| *to = key);
        for (n, four) in all.as_chunks::<4>().0.iter().enumerate() {
            let word = four.iter().rev().fold(0, |word, key| word << 16 | u64::from(*key));
            self.store(self.layout.pkeys(port) + n, word);
        }
    }
}

//! The invariant CRC of RoCEv2 (IBA annex A17 §A17.3.3), sealed and verified without a raw socket.
//!
//! It is the CRC-32 of Ethernet over a packet in which every bit that a router may change reads
//! one:
//!
//! | bytes | what is covered |
//! |---|---|
//! | 8 | ones, where InfiniBand has its LRH |
//! | 20 or 40 | IP header; ones for the fields that routers change (below) |
//! | 8 | UDP header; ones for the checksum |
//! | 12 | BTH; ones for byte 4 (FECN, BECN, resv8a) |
//! | rest | extension headers, payload, padding |
//!
//! Routers change ToS, TTL and checksum of IPv4, and traffic class, flow label and hop limit of
//! IPv6. The CRC is stored least significant byte first.
//!
//! The IPv4 header is covered with its identification, which a plain UDP socket does not tell. But
//! a CRC is linear: what was received, xored with what the header with identification 0 gives, is
//! the image of the four bytes "identification, flags, fragment offset" alone, multiplied by
//! `x^(32 + 8n)` where n bytes follow them. Dividing that out gives those four bytes back, and they
//! must be ones that an unfragmented datagram can have.
//!
//! By the same rule code that copies a payload may compute its part on the way ([`Remainder`]); the
//! headers are added when they are known.

use std::net::{IpAddr, SocketAddr};

use crc32fast::Hasher;

use crate::bth::{Bth, Feth, Reth};
use crate::{Endpoint, Malformed};

/// The addresses and ports that the ICRC covers; both ends of one address family (an IPv4-mapped
/// IPv6 address, as a dual-stack socket reports it, counts as IPv4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flow {
    /// Sender.
    pub source: SocketAddr,
    /// Receiver.
    pub dest: SocketAddr,
}

impl Flow {
    /// The flow between the ends of a packet; `None` where that did not come over UDP.
    #[inline]
    pub fn between(source: &Endpoint, dest: &Endpoint) -> Option<Self> {
        Some(Self { source: source.udp()?, dest: dest.udp()? })
    }
}

/// Bytes of the ICRC at the end of every packet.
pub const ICRC_LEN: usize = 4;

/// The longest packet from BTH to ICRC: 44 bytes of headers, the largest path MTU, the ICRC.
pub const MAX_PACKET: usize = 44 + 4096 + ICRC_LEN;

/// The payload of a full packet at the largest path MTU: the one length for which a [`Remainder`]
/// serves.
pub const PAGE: usize = 4096;

/// What a payload of [`PAGE`] bytes adds to a packet's ICRC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remainder(u32);

impl Remainder {
    /// The remainder of these bytes, or of those that are to these as polynomials modulo that of
    /// CRC-32.
    #[inline]
    pub fn of(bytes: &[u8]) -> Self {
        Self(!go_on(!0, bytes))
    }
}

/// Writes the ICRC into the last four bytes of `packet` (BTH to ICRC inclusive), as sent over
/// `flow` in an IPv4 datagram with DF set and identification `ip_id` (ignored for IPv6). For one
/// packet; [`Icrc`] is for many.
///
/// # Panics
///
/// If `packet` is shorter than a BTH and the ICRC, 16 bytes.
pub fn seal(flow: &Flow, ip_id: u16, packet: &mut [u8]) {
    Icrc::of(*flow).seal(ip_id, packet);
}

/// Like [`seal`], but for a FLUSH to the kernel's rdma_rxe. That (Linux 6.2 to at least 6.12)
/// covers BTH, FETH and RETH a second time, then unmasked. It drops a FLUSH whose ICRC is the
/// standard's: its opcode table lacks the place of FLUSH's payload. [`open`] takes both.
///
/// # Panics
///
/// If `packet` is shorter than a BTH and the ICRC, 16 bytes.
pub fn seal_rxe_flush(flow: &Flow, ip_id: u16, packet: &mut [u8]) {
    Icrc::of(*flow).seal_rxe_flush(ip_id, packet);
}

/// Checks the ICRC in the last four bytes of `packet` and returns the bytes before it. For one
/// packet; [`Icrc::open`], for many, says what passes, and the errors.
pub fn open<'a>(flow: &Flow, packet: &'a [u8]) -> Result<&'a [u8], Malformed> {
    Icrc::of(*flow).open(packet)
}

/// The ICRCs of a flow's packets, one after the other. What those of one length share is computed
/// once: the CRC of few bytes costs by the call, and that of small packets as much as the packets
/// themselves.
#[derive(Clone, Debug)]
pub struct Icrc {
    flow: Flow,
    version: Version,
    /// The length of a packet, BTH to ICRC, that `head` is for; 0 for none yet.
    len: usize,
    /// The CRC of all before the BTH, with identification 0.
    head: u32,
    /// What a BTH whose byte 4 reads one instead of zero makes of the packet's CRC, where the
    /// packet is whole words.
    mask: Option<u32>,
    /// The identification that the next packet received is likely to have: packets sent in one go
    /// are numbered.
    next_id: u16,
}

impl Icrc {
    /// The ICRC state of a flow.
    #[inline]
    pub fn of(flow: Flow) -> Self {
        let is_v4 = |end: SocketAddr| end.ip().to_canonical().is_ipv4();
        let version = if is_v4(flow.source) && is_v4(flow.dest) { Version::V4 } else { Version::V6 };
        Self { flow, version, len: 0, head: 0, mask: None, next_id: 0 }
    }

    /// Like the function [`seal`], for the flow.
    ///
    /// # Panics
    ///
    /// If `packet` is shorter than a BTH and the ICRC, 16 bytes.
    #[inline]
    pub fn seal(&mut self, ip_id: u16, packet: &mut [u8]) {
        self.turn_to(packet.len());
        let (covered, icrc) = packet.split_last_chunk_mut::<ICRC_LEN>().expect("room for the ICRC");
        let bth = covered.first_chunk::<{ Bth::LEN }>().expect("a whole BTH");
        *icrc = self.crc(ip_id, bth, covered).to_le_bytes();
    }

    /// Like [`Icrc::seal`], for a packet that ends with a payload of [`PAGE`] bytes, whose
    /// remainder is `payload`; any other is sealed without.
    ///
    /// # Panics
    ///
    /// If `packet` is shorter than a BTH and the ICRC, 16 bytes.
    #[inline]
    pub fn seal_with(&mut self, ip_id: u16, packet: &mut [u8], payload: Remainder) {
        self.turn_to(packet.len());
        let (covered, icrc) = packet.split_last_chunk_mut::<ICRC_LEN>().expect("room for the ICRC");
        let bth = covered.first_chunk::<{ Bth::LEN }>().expect("a whole BTH");
        let crc = match covered.len().checked_sub(PAGE) {
            Some(headers) if headers >= Bth::LEN => {
                let mut masked = *bth;
                masked[MASKED] = 0xff;
                let crc = go_on(self.head_with(ip_id), &masked);
                let crc = if headers > Bth::LEN { go_on(crc, &covered[Bth::LEN..headers]) } else { crc };
                !(a_page_before(!crc) ^ payload.0)
            }
            _ => self.crc(ip_id, bth, covered),
        };
        *icrc = crc.to_le_bytes();
    }

    /// Like the function [`seal_rxe_flush`], for the flow.
    ///
    /// # Panics
    ///
    /// If `packet` is shorter than a BTH and the ICRC, 16 bytes.
    pub fn seal_rxe_flush(&mut self, ip_id: u16, packet: &mut [u8]) {
        self.turn_to(packet.len());
        let (covered, icrc) = packet.split_last_chunk_mut::<ICRC_LEN>().expect("room for the ICRC");
        let bth = covered.first_chunk::<{ Bth::LEN }>().expect("a whole BTH");
        *icrc = go_on(self.crc(ip_id, bth, covered), covered).to_le_bytes();
    }

    /// Checks the ICRC in the last four bytes of `packet` and returns the bytes before it. A plain
    /// socket does not see the IPv4 identification, so any of its 65,536 values is accepted,
    /// with DF set or clear; IPv6 has none. Of corrupted IPv4 packets one in 2^15 passes, of
    /// IPv6 packets one in 2^32.
    ///
    /// # Errors
    ///
    /// `Truncated`: shorter than a BTH and the ICRC. `Length`: not whole words, or longer than
    /// [`MAX_PACKET`]. `Icrc`: does not match.
    #[inline]
    pub fn open<'a>(&mut self, packet: &'a [u8]) -> Result<&'a [u8], Malformed> {
        let (covered, icrc) = packet.split_last_chunk::<ICRC_LEN>().ok_or(Malformed::Truncated)?;
        let bth = covered.first_chunk::<{ Bth::LEN }>().ok_or(Malformed::Truncated)?;
        if !packet.len().is_multiple_of(4) || packet.len() > MAX_PACKET {
            return Err(Malformed::Length);
        }
        self.turn_to(packet.len());
        let received = u32::from_le_bytes(*icrc);
        let crc = self.crc(self.next_id, bth, covered);
        if self.matches(received, crc, covered.len()) {
            return Ok(covered);
        }
        // See `seal_rxe_flush`.
        let is_flush = bth[0] == 0x1c && covered.len() == FLUSH_LEN;
        if is_flush && self.matches(received, go_on(crc, covered), 2 * covered.len()) {
            return Ok(covered);
        }
        Err(Malformed::Icrc)
    }

    /// The identification that the IPv4 header of a packet with a good ICRC bore ([`Icrc::open`]).
    /// `None` where the ICRC matches no header.
    pub fn identification(&mut self, packet: &[u8]) -> Option<u16> {
        self.open(packet).ok()?;
        Some(self.next_id.wrapping_sub(1))
    }

    /// Whether the ICRC `received` is the one `computed` with identification `next_id` over `len`
    /// bytes from the BTH, or would be with another identification; the packet after it
    /// probably bears the next one.
    #[inline]
    fn matches(&mut self, received: u32, computed: u32, len: usize) -> bool {
        let other = if received == computed {
            Some(0)
        } else if self.version == Version::V4 {
            identification(received ^ computed, len)
        } else {
            None
        };
        if let Some(difference) = other {
            self.next_id = (self.next_id ^ difference).wrapping_add(1);
        }
        other.is_some()
    }

    /// Computes what packets of this length share, BTH to ICRC.
    #[inline]
    fn turn_to(&mut self, len: usize) {
        if self.len != len {
            self.compute_shared(len);
        }
    }

    fn compute_shared(&mut self, len: usize) {
        self.len = len;
        // No UDP datagram is longer than 16 bits can say.
        let udp_len = (8 + len) as u16;
        let Flow { source, dest } = &self.flow;
        self.head = match (source.ip().to_canonical(), dest.ip().to_canonical()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                let mut head = [0xff; 8 + 20 + 8];
                let [l0, l1] = udp_len.wrapping_add(20).to_be_bytes();
                head[8..20].copy_from_slice(&[0x45, 0xff, l0, l1, 0, 0, DF, 0, 0xff, 17, 0xff, 0xff]);
                head[20..24].copy_from_slice(&from.octets());
                head[24..28].copy_from_slice(&to.octets());
                put_udp(&mut head[28..], &self.flow, udp_len);
                go_on(0, &head)
            }
            (from, to) => {
                let mut head = [0xff; 8 + 40 + 8];
                let [l0, l1] = udp_len.to_be_bytes();
                head[8..16].copy_from_slice(&[0x6f, 0xff, 0xff, 0xff, l0, l1, 17, 0xff]);
                head[16..32].copy_from_slice(&crate::Gid::from(from).0);
                head[32..48].copy_from_slice(&crate::Gid::from(to).0);
                put_udp(&mut head[48..], &self.flow, udp_len);
                go_on(0, &head)
            }
        };
        let words = len.checked_sub(Bth::LEN + ICRC_LEN).filter(|rest| rest.is_multiple_of(4));
        self.mask = words.and_then(|rest| MASK.get(rest / 4).copied());
    }

    /// The CRC of all before the BTH.
    #[inline]
    fn head_with(&self, ip_id: u16) -> u32 {
        match self.version {
            Version::V4 => self.head ^ effect_of_identification(ip_id),
            Version::V6 => self.head,
        }
    }

    /// The CRC of a packet of the length that was turned to, `covered` from its BTH on.
    #[inline]
    fn crc(&self, ip_id: u16, bth: &[u8; Bth::LEN], covered: &[u8]) -> u32 {
        let head = self.head_with(ip_id);
        match self.mask {
            Some(mask) if bth[MASKED] == 0 => go_on(head, covered) ^ mask,
            _ => {
                let mut masked = *bth;
                masked[MASKED] = 0xff;
                go_on(go_on(head, &masked), &covered[Bth::LEN..])
            }
        }
    }
}

/// The CRC of what has this CRC with these bytes after it.
#[inline]
fn go_on(crc: u32, bytes: &[u8]) -> u32 {
    let mut hasher = Hasher::new_with_initial(crc);
    hasher.update(bytes);
    hasher.finalize()
}

/// The byte of a BTH that reads one: FECN, BECN, resv8a.
const MASKED: usize = 4;

/// BTH, FETH, RETH.
const FLUSH_LEN: usize = Bth::LEN + Feth::LEN + Reth::LEN;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    V4,
    V6,
}

/// Don't fragment, the upper byte of the IPv4 flags (RFC 791 §3.1).
const DF: u8 = 0x40;

/// UDP header, 8 bytes.
#[inline]
fn put_udp(out: &mut [u8], flow: &Flow, udp_len: u16) {
    out[0..2].copy_from_slice(&flow.source.port().to_be_bytes());
    out[2..4].copy_from_slice(&flow.dest.port().to_be_bytes());
    out[4..6].copy_from_slice(&udp_len.to_be_bytes());
}

/// The difference of identifications, with DF set or clear and no fragment offset, that makes this
/// difference to the CRC over a packet of `len` bytes from the BTH, a multiple of 4; none where no
/// identification does.
#[inline]
fn identification(difference: u32, len: usize) -> Option<u16> {
    let [high, low, flags, offset] = multiply(difference, UNSHIFT[(len - Bth::LEN) / 4]).to_le_bytes();
    (offset == 0 && (flags == 0 || flags == DF)).then_some(u16::from_be_bytes([high, low]))
}

/// What this identification instead of 0 makes of the CRC of all before the BTH.
#[inline]
fn effect_of_identification(ip_id: u16) -> u32 {
    match IDENTIFICATIONS.get(usize::from(ip_id)) {
        Some(&effect) => effect,
        None => multiply(ip_id.swap_bytes().into(), BEHIND_IDENTIFICATION),
    }
}

// Polynomials over GF(2) modulo that of CRC-32, as the CRC has them: the most significant bit is
// the coefficient of x^0, the least significant that of x^31.

/// The polynomial without its x^32.
const POLYNOMIAL: u32 = 0xedb8_8320;

/// x^-(32 + 8n), where n bytes lie between the IPv4 fragment offset and the ICRC, by the words
/// after the BTH.
static UNSHIFT: [u32; (MAX_PACKET - ICRC_LEN - Bth::LEN) / 4 + 1] = {
    let mut table = [0; (MAX_PACKET - ICRC_LEN - Bth::LEN) / 4 + 1];
    // After the fragment offset: 12 bytes of IPv4, 8 of UDP, the BTH.
    let mut power = divide_by_x(1 << 31, 32 + 8 * (12 + 8 + Bth::LEN));
    let mut word = 0;
    while word < table.len() {
        table[word] = power;
        power = divide_by_x(power, 32);
        word += 1;
    }
    table
};

/// What a byte [`MASKED`] of ones instead of zeros makes of the CRC, by the words after the BTH.
static MASK: [u32; (MAX_PACKET - ICRC_LEN - Bth::LEN) / 4 + 1] = {
    let mut table = [0; (MAX_PACKET - ICRC_LEN - Bth::LEN) / 4 + 1];
    let mut effect = multiply_by_x(0xff, 8 * (Bth::LEN - MASKED));
    let mut word = 0;
    while word < table.len() {
        table[word] = effect;
        effect = multiply_by_x(effect, 32);
        word += 1;
    }
    table
};

/// x^(16 + 8n), where n bytes lie between the IPv4 identification and the BTH: flags and fragment
/// offset, 12 bytes, 8 of UDP.
const BEHIND_IDENTIFICATION: u32 = multiply_by_x(1 << 31, 16 + 8 * (2 + 12 + 8));

/// [`effect_of_identification`] of the packets of one segmented send, which are numbered from 0 on.
static IDENTIFICATIONS: [u32; 64] = {
    let mut table = [0; 64];
    let mut ip_id = 0;
    while ip_id < table.len() {
        table[ip_id] = multiply_by_x((ip_id as u32) << 8, 16 + 8 * (2 + 12 + 8));
        ip_id += 1;
    }
    table
};

/// `a * x^(8 * PAGE)`: what stands a page before the end.
#[inline]
fn a_page_before(a: u32) -> u32 {
    let [b0, b1, b2, b3] = a.to_le_bytes();
    let [t0, t1, t2, t3] = &A_PAGE_BEFORE;
    t0[b0 as usize] ^ t1[b1 as usize] ^ t2[b2 as usize] ^ t3[b3 as usize]
}

/// [`a_page_before`] of each value of each byte.
static A_PAGE_BEFORE: [[u32; 256]; 4] = {
    // Of each bit, the highest of which is the coefficient of x^0.
    let mut powers = [0; 32];
    let mut bit = 32;
    let mut power = multiply_by_x(1 << 31, 8 * PAGE);
    while bit > 0 {
        bit -= 1;
        powers[bit] = power;
        power = times_x(power);
    }
    let mut table = [[0; 256]; 4];
    while bit < 32 {
        let (byte, first) = (bit / 8, 1 << (bit % 8));
        let mut rest = 0;
        while rest < first {
            table[byte][first + rest] = table[byte][rest] ^ powers[bit];
            rest += 1;
        }
        bit += 1;
    }
    table
};

/// `a * x^times`.
const fn multiply_by_x(mut a: u32, times: usize) -> u32 {
    let mut done = 0;
    while done < times {
        a = times_x(a);
        done += 1;
    }
    a
}

/// `a / x^times`.
const fn divide_by_x(mut a: u32, times: usize) -> u32 {
    let mut done = 0;
    while done < times {
        a = if a >> 31 == 1 { (a ^ POLYNOMIAL) << 1 | 1 } else { a << 1 };
        done += 1;
    }
    a
}

/// `a * x`.
const fn times_x(a: u32) -> u32 {
    a >> 1 ^ (if a & 1 == 1 { POLYNOMIAL } else { 0 })
}

/// `a * x^4` for `a` of only the four highest powers, which are the low four bits.
static OVERFLOW: [u32; 16] = {
    let mut table = [0; 16];
    let mut a = 0;
    while a < 16 {
        table[a as usize] = times_x(times_x(times_x(times_x(a))));
        a += 1;
    }
    table
};

/// `a * b`, four bits of `a` at a time.
#[inline]
fn multiply(a: u32, b: u32) -> u32 {
    let (b1, b2) = (times_x(b), times_x(times_x(b)));
    let b3 = times_x(b2);
    let low = [0, b3, b2, b2 ^ b3];
    let high = [0, b1, b, b ^ b1];
    let mut product = 0;
    for nibble in (0..32).step_by(4) {
        let digit = a >> nibble;
        product = product >> 4
            ^ OVERFLOW[(product & 15) as usize]
            ^ low[(digit & 3) as usize]
            ^ high[(digit >> 2 & 3) as usize];
    }
    product
}

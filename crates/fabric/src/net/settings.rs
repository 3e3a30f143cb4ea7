//! What a net file says beside the cables: `#verbena` lines below the line of a node or a port.
//! ibnetdiscover(8) and ibsim take them for comments.
//!
//! | below | words |
//! |---|---|
//! | a node | `host=NAME`, `device=NAME`, `mtu=2048`, `grh=required`, `frozen` |
//! | a port | `ip=ADDRESS`, `down`, `drop=1%`, `damage=1%`, `COUNTER=N` |
//! | a port | `supported=4xEDR`, `pkeys=0x8001,0xffff` |

use std::collections::BTreeSet;
use std::fmt::{self, Write as _};
use std::net::Ipv4Addr;

use super::cursor::Cursor;
use super::parse::rate_of;
use super::{Excerpt, MAX_NAME, NetError, NodeType, Problem, Speed, Width, rate_name};
use crate::counters::Counter;
use crate::hosts::is_device;
use crate::subnet::PARTITION_CAP;

/// How a line begins that has settings.
pub(super) const MARK: &str = "#verbena";
/// A million is all.
pub(crate) const MILLION: u32 = 1_000_000;

/// What a node is beside its ports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeSettings {
    /// The host that has the adapter, where that is not the first word of the description.
    pub host: Option<String>,
    /// The name of the device, where that is not the second word.
    pub device: Option<String>,
    /// PortInfo's code of the largest MTU of each port (IBA 1.4 table 146).
    pub mtu: Option<u8>,
    /// Each path of verbs needs a global routing header (IBV_QPF_GRH_REQUIRED).
    pub grh_required: bool,
    /// The node's management is silent.
    pub frozen: bool,
}

/// What a port is beside its cable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortSettings {
    /// The address of IPoIB.
    pub address: Option<Ipv4Addr>,
    /// The cable is cut.
    pub cut: bool,
    /// Of a million packets that leave, so many are lost.
    pub drop_ppm: u32,
    /// Of a million packets that leave, so many arrive damaged.
    pub damage_ppm: u32,
    /// What the port can do, where its link does less.
    pub supported: Option<(Width, Speed)>,
    /// The P_Keys that the built-in subnet manager gives to the port; none: the default one.
    pub pkeys: Vec<u16>,
}

impl NodeSettings {
    /// Reads the words behind the mark.
    pub(super) fn read(&mut self, kind: NodeType, cursor: &mut Cursor<'_>) -> Result<(), NetError> {
        while let Some((before, key, value)) = word(cursor) {
            let no_value = || before.error(Problem::Value { key: Excerpt::of(key) });
            match (key, value) {
                ("host", Some(name)) if is_word(name) => self.host = Some(name.to_owned()),
                ("device", Some(name)) if is_device(name) && kind != NodeType::Switch => {
                    self.device = Some(name.to_owned());
                }
                ("mtu", Some(bytes)) => self.mtu = Some(mtu(bytes).ok_or_else(no_value)?),
                ("grh", Some("required")) => self.grh_required = true,
                ("frozen", None) => self.frozen = true,
                ("host" | "device" | "grh" | "frozen", _) => return Err(no_value()),
                _ => return Err(before.error(Problem::NoNodeSetting(Excerpt::of(key)))),
            }
        }
        Ok(())
    }

    /// Writes the line, if there is anything to say.
    pub(super) fn write(&self, text: &mut String) -> fmt::Result {
        let mut words = String::new();
        for (key, value) in [("host", &self.host), ("device", &self.device)] {
            value.iter().try_for_each(|value| write!(words, " {key}={value}"))?;
        }
        self.mtu.iter().try_for_each(|code| write!(words, " mtu={}", 128 << code))?;
        words.push_str(if self.grh_required { " grh=required" } else { "" });
        words.push_str(if self.frozen { " frozen" } else { "" });
        if words.is_empty() { Ok(()) } else { writeln!(text, "{MARK}{words}") }
    }
}

impl PortSettings {
    /// Reads the words behind the mark. Counters are not the port's settings, but what it begins
    /// with.
    pub(super) fn read(
        &mut self,
        cursor: &mut Cursor<'_>,
        counters: &mut Vec<(Counter, u64)>,
    ) -> Result<(), NetError> {
        while let Some((before, key, value)) = word(cursor) {
            let no_value = || before.error(Problem::Value { key: Excerpt::of(key) });
            let text = value.unwrap_or_default();
            match key {
                "ip" => self.address = Some(address(text).ok_or_else(no_value)?),
                "down" if value.is_none() => self.cut = true,
                "drop" => self.drop_ppm = share(text).ok_or_else(no_value)?,
                "damage" => self.damage_ppm = share(text).ok_or_else(no_value)?,
                "pkeys" => self.pkeys = pkeys(text).ok_or_else(no_value)?,
                "supported" => self.supported = Some(rate_of(text).ok_or_else(no_value)?),
                _ => {
                    let no_setting = || before.error(Problem::NoPortSetting(Excerpt::of(key)));
                    let counter = Counter::named(key).ok_or_else(no_setting)?;
                    counters.push((counter, text.parse().map_err(|_| no_value())?));
                }
            }
        }
        Ok(())
    }

    /// Writes the line, if there is anything to say.
    pub(super) fn write(&self, text: &mut String) -> fmt::Result {
        let mut words = String::new();
        self.address.iter().try_for_each(|address| write!(words, " ip={address}"))?;
        words.push_str(if self.cut { " down" } else { "" });
        for (key, ppm) in [("drop", self.drop_ppm), ("damage", self.damage_ppm)] {
            if ppm != 0 {
                write!(words, " {key}={}%", f64::from(ppm) / f64::from(MILLION / 100))?;
            }
        }
        let supported = self.supported.iter();
        supported.into_iter().try_for_each(|rate| write!(words, " supported={}", rate_name(*rate)))?;
        for (index, key) in self.pkeys.iter().enumerate() {
            write!(words, "{}{key:#06x}", if index == 0 { " pkeys=" } else { "," })?;
        }
        if words.is_empty() { Ok(()) } else { writeln!(text, "{MARK}{words}") }
    }
}

/// The next KEY or KEY=VALUE, with the place where it begins.
fn word<'a>(cursor: &mut Cursor<'a>) -> Option<(Cursor<'a>, &'a str, Option<&'a str>)> {
    cursor.skip_blanks();
    let before = *cursor;
    let word = cursor.until(char::is_whitespace);
    if word.is_empty() {
        return None;
    }
    let (key, value) = word.split_once('=').map_or((word, None), |(key, value)| (key, Some(value)));
    Some((before, key, value))
}

fn is_word(name: &str) -> bool {
    !name.is_empty() && name.len() <= MAX_NAME && !name.chars().any(|c| c.is_control() || c == '/')
}

/// PortInfo's code of an MTU.
fn mtu(bytes: &str) -> Option<u8> {
    (1..=5).find(|code| (128u32 << code).to_string() == bytes)
}

/// An address that a host may have.
fn address(text: &str) -> Option<Ipv4Addr> {
    let address: Ipv4Addr = text.parse().ok()?;
    let is_none =
        address.is_unspecified() || address.is_loopback() || address.is_multicast() || address.is_broadcast();
    (!is_none).then_some(address)
}

/// P_Keys of a port: one of each partition, so many that the default one has room beside them.
fn pkeys(text: &str) -> Option<Vec<u16>> {
    const FULL: u16 = 0x8000;
    let number = |word: &str| u16::from_str_radix(word.strip_prefix("0x")?, 16).ok();
    let keys: Vec<u16> = text.split(',').map(number).collect::<Option<_>>()?;
    let partitions: BTreeSet<u16> = keys.iter().map(|key| key & !FULL).collect();
    let fits = keys.len() < usize::from(PARTITION_CAP);
    (fits && partitions.len() == keys.len() && !partitions.contains(&0)).then_some(keys)
}

/// A share of packets in millionths: `1%`, `0.01`.
pub(super) fn share(text: &str) -> Option<u32> {
    let (number, whole) = match text.strip_suffix('%') {
        Some(number) => (number, 100.0),
        None => (text, 1.0),
    };
    let share = number.parse::<f64>().ok()? / whole;
    (0.0..=1.0).contains(&share).then_some((share * f64::from(MILLION)).round() as u32)
}

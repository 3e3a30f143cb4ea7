//! The text in `#[verbena::test(..)]`. Everything here is `const`, so that the attribute has the
//! compiler itself check it.
//!
//! ```text
//! settings = [ setting { "," setting } ]
//! setting  = "seeds" "=" whole | "limit" "=" '"' time '"' | "faults" "=" '"' faults '"'
//!          | "fabric" "=" '"' text '"'
//! faults   = [ fault { "," fault } ]
//! fault    = rate-name "=" number "%" | time-name "=" time | ( "delay" | "flush" ) "=" time [ ".." time ]
//! time     = number ("ns" | "us" | "ms" | "s" | "min")
//! ```

use std::time::Duration;

use ::sim::Faults;

/// Seeds of a test that says no number.
const SEEDS: u64 = 100;
/// Virtual time that a test may take which says nothing of it.
const LIMIT: Duration = Duration::from_secs(600);

/// What the arguments of the attribute say.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Settings<'t> {
    pub seeds: u64,
    pub limit: Duration,
    pub faults: Faults,
    /// What the hosts are on, if that is no IP network.
    pub fabric: Option<&'t str>,
}

/// What is wrong, and how many bytes are left from there on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Wrong {
    pub why: &'static str,
    pub left: usize,
}

/// `?` is not for `const`.
macro_rules! get {
    ($result:expr) => {
        match $result {
            Ok(value) => value,
            Err(wrong) => return Err(wrong),
        }
    };
}

impl<'t> Settings<'t> {
    pub(super) const fn parse(text: &'t str) -> Result<Self, Wrong> {
        let mut rest = Text { bytes: text.as_bytes(), behind: 0 };
        let mut settings = Self { seeds: SEEDS, limit: LIMIT, faults: Faults::none(), fabric: None };
        while !rest.at_end() {
            let before = rest.left();
            let name = rest.word();
            get!(rest.sign(b'=', "`=` and a value are missing"));
            if matches!(name, b"seeds") {
                settings.seeds = get!(rest.seeds());
            } else if matches!(name, b"limit") {
                let mut text = get!(rest.quoted());
                settings.limit = get!(text.time());
                get!(text.end());
            } else if matches!(name, b"faults") {
                settings.faults = get!(get!(rest.quoted()).faults());
            } else if matches!(name, b"fabric") {
                settings.fabric = Some(get!(get!(rest.quoted()).text()));
            } else {
                return Err(Wrong { why: "the arguments are seeds, faults, fabric and limit", left: before });
            }
            get!(rest.comma());
        }
        Ok(settings)
    }
}

/// Faults by their text, such as `loss=1%, delay=20us..200us`.
pub(super) const fn faults(text: &str) -> Result<Faults, Wrong> {
    Text { bytes: text.as_bytes(), behind: 0 }.faults()
}

/// What is left to be read.
struct Text<'a> {
    bytes: &'a [u8],
    /// Bytes of the whole that follow, for code that tells a place in it.
    behind: usize,
}

impl<'a> Text<'a> {
    const fn wrong<T>(&self, why: &'static str) -> Result<T, Wrong> {
        Err(Wrong { why, left: self.left() })
    }

    const fn left(&self) -> usize {
        self.bytes.len() + self.behind
    }

    const fn faults(&mut self) -> Result<Faults, Wrong> {
        let mut faults = Faults::none();
        while !self.at_end() {
            let before = self.left();
            let name = self.word();
            get!(self.sign(b'=', "`=` and a value are missing"));
            if matches!(name, b"delay") {
                faults.delay = get!(self.time());
                if let [b'.', b'.', ..] = self.bytes {
                    faults.jitter =
                        get!(self.up_to(faults.delay, "the delay's end lies before its beginning"));
                }
            } else if matches!(name, b"flush") {
                faults.flush = get!(self.time());
                faults.flush_jitter =
                    get!(self.up_to(faults.flush, "the flush's end lies before its beginning"));
            } else if let Some(rate) = rate(&mut faults, name) {
                *rate = get!(self.percent());
            } else if let Some(time) = time(&mut faults, name) {
                *time = get!(self.time());
            } else {
                let why = "faults are delay, loss, duplicate, replay, reorder, corrupt, clog, partition, power_fail, flush, together, unreached (and replay_delay, reorder_delay, clog_time, partition_time, power_time)";
                return Err(Wrong { why, left: before });
            }
            get!(self.comma());
        }
        Ok(faults)
    }

    /// What `..` and a later time add to a time; nothing where there is none.
    const fn up_to(&mut self, least: Duration, why: &'static str) -> Result<Duration, Wrong> {
        let [b'.', b'.', more @ ..] = self.bytes else { return Ok(Duration::ZERO) };
        self.bytes = more;
        match get!(self.time()).checked_sub(least) {
            Some(more) => Ok(more),
            None => self.wrong(why),
        }
    }

    const fn seeds(&mut self) -> Result<u64, Wrong> {
        let (value, scale) = get!(self.number());
        if scale != 1 || value == 0 {
            return self.wrong("seeds is a whole number from 1");
        }
        Ok(value)
    }

    const fn percent(&mut self) -> Result<f64, Wrong> {
        let (value, scale) = get!(self.number());
        get!(self.sign(b'%', "this fault has a rate, such as 1% or 0.5%"));
        match scale.checked_mul(100) {
            Some(all) if value <= all => Ok(value as f64 / all as f64),
            _ => self.wrong("a rate is at most 100%"),
        }
    }

    const fn time(&mut self) -> Result<Duration, Wrong> {
        let (value, scale) = get!(self.number());
        let unit = self.word();
        let nanos: u64 = if matches!(unit, b"ns") {
            1
        } else if matches!(unit, b"us") {
            1_000
        } else if matches!(unit, b"ms") {
            1_000_000
        } else if matches!(unit, b"s") {
            1_000_000_000
        } else if matches!(unit, b"min") {
            60_000_000_000
        } else {
            return self.wrong("a time has a unit: ns, us, ms, s or min");
        };
        match value.checked_mul(nanos) {
            Some(nanos) => Ok(Duration::from_nanos(nanos / scale)),
            None => self.wrong("the time is too long"),
        }
    }

    /// A decimal number: its digits, and what to divide them by.
    const fn number(&mut self) -> Result<(u64, u64), Wrong> {
        self.skip_space();
        let (mut value, mut scale, mut digits, mut point): (u64, u64, u32, bool) = (0, 1, 0, false);
        loop {
            match self.bytes {
                [b'_', rest @ ..] if digits > 0 => self.bytes = rest,
                [b'.', b'0'..=b'9', ..] if digits > 0 && !point => {
                    point = true;
                    self.bytes = self.bytes.split_at(1).1;
                }
                [digit @ b'0'..=b'9', rest @ ..] if digits < 15 => {
                    value = value * 10 + (*digit - b'0') as u64;
                    scale *= if point { 10 } else { 1 };
                    digits += 1;
                    self.bytes = rest;
                }
                [b'0'..=b'9', ..] => return self.wrong("a number has at most 15 digits"),
                _ if digits == 0 => return self.wrong("a number is missing"),
                _ => return Ok((value, scale)),
            }
        }
    }

    const fn quoted(&mut self) -> Result<Self, Wrong> {
        get!(self.sign(b'"', "this value stands in quotes"));
        let mut len = 0;
        while len < self.bytes.len() && self.bytes[len] != b'"' {
            len += 1;
        }
        let (text, rest) = self.bytes.split_at(len);
        self.bytes = rest;
        get!(self.sign(b'"', "the closing quote is missing"));
        Ok(Text { bytes: text, behind: self.left() + 1 })
    }

    /// All that is left, which is not nothing.
    const fn text(&self) -> Result<&'a str, Wrong> {
        match std::str::from_utf8(self.bytes) {
            Ok(text) if !text.is_empty() => Ok(text),
            _ => self.wrong("a fabric is `fat-tree 2,4`, `torus 3x3` or a net file"),
        }
    }

    const fn word(&mut self) -> &'a [u8] {
        self.skip_space();
        let mut len = 0;
        while len < self.bytes.len() && matches!(self.bytes[len], b'a'..=b'z' | b'A'..=b'Z' | b'_') {
            len += 1;
        }
        let (word, rest) = self.bytes.split_at(len);
        self.bytes = rest;
        word
    }

    const fn sign(&mut self, sign: u8, why: &'static str) -> Result<(), Wrong> {
        self.skip_space();
        match self.bytes {
            [first, rest @ ..] if *first == sign => {
                self.bytes = rest;
                Ok(())
            }
            _ => self.wrong(why),
        }
    }

    /// A comma, or the end.
    const fn comma(&mut self) -> Result<(), Wrong> {
        if self.at_end() { Ok(()) } else { self.sign(b',', "a comma is missing, or the value is another") }
    }

    const fn end(&mut self) -> Result<(), Wrong> {
        if self.at_end() { Ok(()) } else { self.wrong("the value ends earlier") }
    }

    const fn at_end(&mut self) -> bool {
        self.skip_space();
        self.bytes.is_empty()
    }

    const fn skip_space(&mut self) {
        self.bytes = self.bytes.trim_ascii_start();
    }
}

const fn rate<'f>(faults: &'f mut Faults, name: &[u8]) -> Option<&'f mut f64> {
    Some(match name {
        b"loss" => &mut faults.loss,
        b"duplicate" => &mut faults.duplicate,
        b"replay" => &mut faults.replay,
        b"reorder" => &mut faults.reorder,
        b"corrupt" => &mut faults.corrupt,
        b"clog" => &mut faults.clog,
        b"partition" => &mut faults.partition,
        b"power_fail" => &mut faults.power_fail,
        b"together" => &mut faults.together,
        b"unreached" => &mut faults.unreached,
        _ => return None,
    })
}

const fn time<'f>(faults: &'f mut Faults, name: &[u8]) -> Option<&'f mut Duration> {
    Some(match name {
        b"jitter" => &mut faults.jitter,
        b"replay_delay" => &mut faults.replay_delay,
        b"reorder_delay" => &mut faults.reorder_delay,
        b"clog_time" => &mut faults.clog_time,
        b"power_time" => &mut faults.power_time,
        b"partition_time" => &mut faults.partition_time,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_an_attribute_becomes_its_settings() {
        let text = r#"seeds = 1_000, faults = "loss=1%, delay=20us..200us, reorder=2.5%, reorder_delay = 1ms", limit = "1.5s","#;
        let faults = Faults::none()
            .loss(0.01)
            .delay(Duration::from_micros(20))
            .jitter(Duration::from_micros(180))
            .reorder(0.025)
            .reorder_delay(Duration::from_millis(1));
        let limit = Duration::from_millis(1500);
        let settings = Settings { seeds: 1000, limit, faults, fabric: None };
        assert_eq!(Settings::parse(text), Ok(settings));
        let text = "fabric = \"fat-tree 2,4\", seeds = 3";
        assert_eq!(Settings::parse(text).unwrap().fabric, Some("fat-tree 2,4"));
    }

    #[test]
    fn nothing_said_is_a_perfect_network_on_a_hundred_seeds() {
        let settings =
            Settings { seeds: 100, limit: Duration::from_secs(600), faults: Faults::none(), fabric: None };
        assert_eq!(Settings::parse(" "), Ok(settings));
    }

    #[test]
    fn what_is_wrong_is_said_with_its_place() {
        for (text, why, from) in [
            ("seed = 3", "the arguments are seeds, faults, fabric and limit", "seed = 3"),
            ("fabric = \"\"", "a fabric is `fat-tree 2,4`, `torus 3x3` or a net file", "\""),
            ("seeds 3", "`=` and a value are missing", "3"),
            ("seeds = 0", "seeds is a whole number from 1", ""),
            ("seeds = 1.5", "seeds is a whole number from 1", ""),
            ("seeds = 1 limit", "a comma is missing, or the value is another", "limit"),
            ("seeds = 12345678901234567890", "a number has at most 15 digits", "67890"),
            ("limit = 3", "this value stands in quotes", "3"),
            ("limit = \"3\"", "a time has a unit: ns, us, ms, s or min", "\""),
            ("limit = \"900000000min\"", "the time is too long", "\""),
            ("limit = \"3s 4\"", "the value ends earlier", "4\""),
            ("faults = \"loss=1", "the closing quote is missing", ""),
        ] {
            assert_eq!(Settings::parse(text), Err(Wrong { why, left: from.len() }), "{text}");
        }
        for (text, why) in [
            ("loss=1", "this fault has a rate, such as 1% or 0.5%"),
            ("loss=101%", "a rate is at most 100%"),
            ("loss=%", "a number is missing"),
            ("delay=5us..3us", "the delay's end lies before its beginning"),
            ("delay=5", "a time has a unit: ns, us, ms, s or min"),
        ] {
            assert_eq!(faults(text).unwrap_err().why, why, "{text}");
        }
        assert!(faults("lost=1%").unwrap_err().why.starts_with("faults are delay, loss"));
    }
}

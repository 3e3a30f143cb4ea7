//! A line of a net file, read from left to right, with the column of each word for messages.

use super::source::At;
use super::{Excerpt, NetError, Problem};

/// What is left of a line.
#[derive(Clone, Copy)]
pub(super) struct Cursor<'a> {
    whole: &'a str,
    rest: &'a str,
    place: At<'a>,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(text: &'a str, place: At<'a>) -> Self {
        let mut cursor = Self { whole: text, rest: text, place };
        cursor.skip_blanks();
        cursor
    }

    pub(super) fn error(&self, problem: Problem) -> NetError {
        let At { file, line } = self.place;
        let column = self.whole.len() - self.rest.len() + 1;
        NetError { file: file.map(str::to_owned), line, column, problem }
    }

    /// Where the line stands.
    pub(super) fn place(&self) -> At<'a> {
        self.place
    }

    pub(super) fn skip_blanks(&mut self) {
        self.rest = self.rest.trim_start();
    }

    /// Whether the line ends here, but for a comment.
    pub(super) fn at_end(&self) -> bool {
        self.rest.is_empty() || self.rest.starts_with('#')
    }

    pub(super) fn begins(&self, text: &str) -> bool {
        self.rest.starts_with(text)
    }

    /// Reads `text`, if it is there.
    pub(super) fn take(&mut self, text: &str) -> bool {
        match self.rest.strip_prefix(text) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    /// Reads up to the first character for which this holds, or to the end.
    pub(super) fn until(&mut self, ends: impl Fn(char) -> bool) -> &'a str {
        let at = self.rest.find(ends).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(at);
        self.rest = rest;
        word
    }

    /// Reads what stands between two characters. The error stands where the first should be, or
    /// at the end of the line.
    pub(super) fn between(
        &mut self,
        open: char,
        close: char,
        what: &'static str,
    ) -> Result<&'a str, NetError> {
        let Some(inner) = self.rest.strip_prefix(open) else {
            return Err(self.error(Problem::Expected(what)));
        };
        let Some((text, rest)) = inner.split_once(close) else {
            self.rest = "";
            return Err(self.error(Problem::Expected(what)));
        };
        self.rest = rest;
        Ok(text)
    }

    /// The number of a port between brackets, which this node must have.
    pub(super) fn port(&mut self, ports: u8) -> Result<u8, NetError> {
        let before = *self;
        let text = self.between('[', ']', "the number of a port between brackets")?;
        let number = text.trim().parse().ok().filter(|number| (1..=ports).contains(number));
        let number =
            number.ok_or_else(|| before.error(Problem::NoPort { port: Excerpt::of(text), ports }))?;
        // The number on the housing of a director switch: `[1][ext 4]`.
        if self.begins("[ext") {
            self.between('[', ']', "a closing bracket")?;
        }
        Ok(number)
    }

    /// A hexadecimal number below `2^bits`, with or without 0x.
    pub(super) fn hex(&mut self, bits: u32) -> Result<u64, NetError> {
        let before = *self;
        let text = self.until(|c| !c.is_ascii_alphanumeric());
        let digits = text.strip_prefix("0x").unwrap_or(text);
        let number = u64::from_str_radix(digits, 16).ok().filter(|n| bits >= 64 || *n >> bits == 0);
        number.ok_or_else(|| before.error(Problem::NotHex(Excerpt::of(text))))
    }
}

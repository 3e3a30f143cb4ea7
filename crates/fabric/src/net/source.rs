//! The texts of a net file and of those that it includes, as lines in the order in which they are
//! read.

use std::collections::BTreeMap;
use std::fmt;

use super::cursor::Cursor;
use super::{Excerpt, NetError, Problem};

/// Files that include one another at most, as ibsim has it.
const MAX_DEPTH: usize = 9;
/// Files of a fabric at most.
const MAX_FILES: usize = 1024;
/// Bytes of all files at most.
const MAX_BYTES: usize = 256 << 20;

/// Reads a file that another one includes: the path of that one, if it has one, and the name that
/// stands there. Gives the path of the file, for messages, and its text.
pub type Include<'a> = &'a mut dyn FnMut(Option<&str>, &str) -> Result<(String, String), String>;

/// A line of a net file, or of one that it includes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The file, where it is included.
    pub file: Option<String>,
    /// The line, from 1 on.
    pub line: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}", self.line)?;
        self.file.as_ref().map_or(Ok(()), |file| write!(f, " of {file}"))
    }
}

/// Where a line stands.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct At<'a> {
    pub(super) file: Option<&'a str>,
    pub(super) line: usize,
}

impl At<'_> {
    pub(super) fn place(self) -> Place {
        Place { file: self.file.map(str::to_owned), line: self.line }
    }
}

/// A line with its place.
#[derive(Clone, Copy)]
pub(super) struct Line<'a> {
    pub(super) at: At<'a>,
    pub(super) text: &'a str,
}

struct Source {
    path: Option<String>,
    text: String,
}

/// All texts. The first one is the net file.
pub(super) struct Sources {
    all: Vec<Source>,
    bytes: usize,
    /// The texts that lines include, by the number of the text and the line.
    included: BTreeMap<(usize, usize), usize>,
}

impl Sources {
    /// Reads what the text includes, and what that includes.
    pub(super) fn read(text: &str, include: Include<'_>) -> Result<Self, NetError> {
        let mut sources = Self { all: Vec::new(), bytes: 0, included: BTreeMap::new() };
        sources.add(None, text.to_owned(), include, 0)?;
        Ok(sources)
    }

    fn add(
        &mut self,
        path: Option<String>,
        text: String,
        include: Include<'_>,
        depth: usize,
    ) -> Result<usize, NetError> {
        let number = self.all.len();
        self.all.push(Source { path: path.clone(), text: String::new() });
        for (index, line) in text.lines().enumerate() {
            if !line.trim_start().starts_with("include") {
                continue;
            }
            let at = At { file: path.as_deref(), line: index + 1 };
            let mut cursor = Cursor::new(line, at);
            let before = cursor;
            let Some(name) = name(&mut cursor)? else { continue };
            if depth + 1 >= MAX_DEPTH {
                return Err(before.error(Problem::TooDeep));
            }
            let failed = |why: String| before.error(Problem::NotIncluded { file: Excerpt::of(name), why });
            let (path, text) = include(path.as_deref(), name).map_err(failed)?;
            self.bytes += text.len();
            if self.all.len() >= MAX_FILES || self.bytes > MAX_BYTES {
                return Err(before.error(Problem::TooManyFiles));
            }
            let other = self.add(Some(path), text, include, depth + 1)?;
            self.included.insert((number, index), other);
        }
        self.all[number].text = text;
        Ok(number)
    }

    /// All lines. Those of an included file stand where the line was that includes it.
    pub(super) fn lines(&self) -> Vec<Line<'_>> {
        let mut lines = Vec::new();
        self.append(0, &mut lines);
        lines
    }

    fn append<'a>(&'a self, number: usize, lines: &mut Vec<Line<'a>>) {
        let Source { path, text } = &self.all[number];
        for (index, text) in text.lines().enumerate() {
            match self.included.get(&(number, index)) {
                Some(other) => self.append(*other, lines),
                None => lines.push(Line { at: At { file: path.as_deref(), line: index + 1 }, text }),
            }
        }
    }
}

/// `include "FILE"`, or without quotes. Other words that begin so are none.
fn name<'a>(cursor: &mut Cursor<'a>) -> Result<Option<&'a str>, NetError> {
    const WHAT: &str = "the name of a file";
    if !cursor.take("include") || !(cursor.begins(" ") || cursor.begins("\t") || cursor.begins("\"")) {
        return Ok(None);
    }
    cursor.skip_blanks();
    let before = *cursor;
    let name =
        if cursor.begins("\"") { cursor.between('"', '"', WHAT)? } else { cursor.until(char::is_whitespace) };
    if name.is_empty() { Err(before.error(Problem::Expected(WHAT))) } else { Ok(Some(name)) }
}

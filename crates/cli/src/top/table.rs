//! Tables: what the cells hold, in which order the rows stand, and which row is selected.

use std::cmp::Ordering;
use std::fmt;

use crate::{output, ps};

/// What stands in one place of a table.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Cell {
    Text(String),
    Count(u64),
    /// In milliseconds.
    Time(u64),
    /// In a second.
    Rate(f64),
    /// Nothing is known.
    Unknown,
}

impl Cell {
    /// Text of another process.
    pub(super) fn text(text: &str) -> Self {
        Self::Text(output::printable(text))
    }

    pub(super) fn rate(rate: Option<f64>) -> Self {
        rate.map_or(Self::Unknown, Self::Rate)
    }

    pub(super) fn count(count: Option<impl Into<u64>>) -> Self {
        count.map_or(Self::Unknown, |count| Self::Count(count.into()))
    }

    fn cmp(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Text(a), Self::Text(b)) => a.cmp(b),
            (Self::Count(a), Self::Count(b)) | (Self::Time(a), Self::Time(b)) => a.cmp(b),
            (Self::Rate(a), Self::Rate(b)) => a.total_cmp(b),
            // A column has one kind, and what is not known.
            _ => Ordering::Equal,
        }
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Count(count) => write!(f, "{count}"),
            Self::Time(ms) => f.write_str(&ps::uptime(ms / 1000)),
            Self::Rate(rate) => f.write_str(&short(*rate)),
            Self::Unknown => f.write_str("-"),
        }
    }
}

/// A rate in at most five characters.
pub(super) fn short(rate: f64) -> String {
    match rate {
        0.0 => "0".to_owned(),
        rate if rate < 9.95 => format!("{rate:.1}"),
        rate if rate < 99_999.5 => format!("{rate:.0}"),
        rate if rate < 9_999_500.0 => format!("{:.0}k", rate / 1e3),
        rate => format!("{:.0}M", rate / 1e6),
    }
}

/// A column of a table.
#[derive(Debug)]
pub(super) struct Column {
    pub(super) name: &'static str,
    /// Text stands at the left and is sorted from its beginning; most numbers the other way.
    pub(super) is_text: bool,
    /// Whether the largest value stands first.
    is_descending: bool,
}

impl Column {
    pub(super) const fn text(name: &'static str) -> Self {
        Self { name, is_text: true, is_descending: false }
    }

    /// The number that an object goes by.
    pub(super) const fn number(name: &'static str) -> Self {
        Self { name, is_text: false, is_descending: false }
    }

    /// How much there is of it.
    pub(super) const fn amount(name: &'static str) -> Self {
        Self { name, is_text: false, is_descending: true }
    }
}

/// A row of a table.
#[derive(Debug)]
pub(super) struct Row {
    /// What the row is of: the selection stays with it.
    pub(super) key: String,
    /// The cells, from the first column on. There are fewer where `said` has the place of the rest.
    pub(super) cells: Vec<Cell>,
    /// The words in place of what is not known.
    pub(super) said: Option<&'static str>,
}

impl Row {
    /// What is known in a column.
    fn known(&self, column: usize) -> Option<&Cell> {
        self.cells.get(column).filter(|cell| **cell != Cell::Unknown)
    }
}

/// How the user looks at a table.
#[derive(Debug, Default)]
pub(super) struct View {
    /// The column by which rows are sorted.
    pub(super) sort: usize,
    pub(super) is_reversed: bool,
    /// The key of the selected row.
    selected: Option<String>,
    /// The place of the selected row, which a row that goes leaves to its successor.
    pub(super) at: usize,
    /// The first row on the screen.
    pub(super) top: usize,
    /// How many columns after the first two are left out, for narrow terminals.
    pub(super) skipped: usize,
}

impl View {
    /// Sorts the rows, and finds the selected one among them.
    pub(super) fn arrange(&mut self, columns: &[Column], rows: &mut [Row]) {
        let (sort, falls) = (self.sort, columns[self.sort].is_descending != self.is_reversed);
        // What is not known stands last in either order.
        rows.sort_by(|a, b| match (a.known(sort), b.known(sort)) {
            (Some(a), Some(b)) if falls => b.cmp(a),
            (Some(a), Some(b)) => a.cmp(b),
            (a, b) => b.is_some().cmp(&a.is_some()),
        });
        let found = self.selected.as_ref().and_then(|key| rows.iter().position(|row| row.key == *key));
        self.select(found.unwrap_or(self.at), rows);
    }

    /// Selects the row at a place, or the last one.
    pub(super) fn select(&mut self, at: usize, rows: &[Row]) {
        self.at = at.min(rows.len().saturating_sub(1));
        self.selected = rows.get(self.at).map(|row| row.key.clone());
    }

    /// Sorts by the next column from now on.
    pub(super) fn sort_by_next(&mut self, columns: &[Column]) {
        self.sort = (self.sort + 1) % columns.len();
        self.is_reversed = false;
    }

    /// Brings the selected row into so many lines.
    pub(super) fn scroll(&mut self, lines: usize) {
        self.top = self.top.clamp((self.at + 1).saturating_sub(lines), self.at);
    }
}

//! Draws the model. Whatever the size of the terminal, what does not fit is left out.

use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::{Color, Style};
use ratatui_core::terminal::Frame;

use super::model::{Model, Shown};
use super::qp::{self, Content};
use super::table::{Cell, Column, Row};
use crate::output;

/// Columns that stay when others are skipped: they say which row it is.
const FIXED: usize = 2;
/// Columns of the label of a line of a queue pair.
const LABEL: usize = 11;

const HELP: &str = "Up/Down or j/k: select  Enter: open  Esc: back  s: sort by the next column  \
                    r: reverse  /: filter by program or pid  Left/Right: columns  h: help  q: quit";
const SHORT_HELP: &str = "h: help  q: quit";

/// Draws the whole screen.
pub(super) fn draw(frame: &mut Frame<'_>, model: &mut Model) {
    let area = frame.area();
    let mut page = Page { buffer: frame.buffer_mut(), area };
    page.footer(model);
    let title = title(model);
    page.line(&title, Style::new().bold());
    if let Some(trouble) = model.trouble() {
        page.line(&format!("The process {trouble}."), alarm());
    } else if matches!(model.shown(), Shown::QueuePair(..)) {
        page.queue_pair(model);
    } else {
        page.table(model);
    }
}

fn title(model: &mut Model) -> String {
    let (head, is_table) = match (model.shown(), model.processes()) {
        (Shown::Processes, None) => return "verbena top: asking processes".to_owned(),
        (Shown::Processes, Some(1)) => ("verbena top: 1 process".to_owned(), true),
        (Shown::Processes, Some(count)) => (format!("verbena top: {count} processes"), true),
        (Shown::Process(process), _) => (process.to_owned(), true),
        (Shown::QueuePair(process, ifname, lqpn), _) => {
            (format!("{process}: qp {}/1 lqpn {lqpn}", output::printable(ifname)), false)
        }
    };
    if !is_table {
        return head;
    }
    let filter = match model.shown() {
        Shown::Processes if !model.filter.is_empty() => format!(", filter {}", model.filter),
        _ => String::new(),
    };
    let (columns, _, view) = model.table();
    let reversed = if view.is_reversed { ", reversed" } else { "" };
    format!("{head}, sorted by {}{reversed}{filter}", columns[view.sort].name)
}

fn alarm() -> Style {
    Style::new().fg(Color::Red).bold()
}

/// What of the screen is still free, from the top.
struct Page<'a> {
    buffer: &'a mut Buffer,
    area: Rect,
}

impl Page<'_> {
    /// Draws a line at the top of what is free.
    fn line(&mut self, text: &str, style: Style) {
        if self.area.is_empty() {
            return;
        }
        // The colours of a line reach to its end.
        self.buffer.set_style(Rect { height: 1, ..self.area }, style);
        self.buffer.set_stringn(self.area.x, self.area.y, text, self.area.width.into(), style);
        self.area.y += 1;
        self.area.height -= 1;
    }

    /// Draws the keys, or the filter that is typed, at the bottom.
    fn footer(&mut self, model: &Model) {
        let text = match (model.is_typing, model.is_help_shown) {
            (true, _) => format!("filter: {}_", model.filter),
            (false, true) => HELP.to_owned(),
            (false, false) => SHORT_HELP.to_owned(),
        };
        let mut lines = wrapped(&text, self.area.width.into());
        // The title and one row more stay.
        lines.truncate(self.area.height.saturating_sub(3).into());
        let height = lines.len() as u16;
        let free = Rect { height: self.area.height - height, ..self.area };
        self.area = Rect { y: free.bottom(), height, ..self.area };
        for line in lines {
            self.line(&line, Style::new().fg(Color::Cyan));
        }
        self.area = free;
    }

    fn table(&mut self, model: &mut Model) {
        let is_empty_list = model.processes() == Some(0);
        let is_list = model.shown() == Shown::Processes;
        let is_filtered = !model.filter.is_empty();
        let (columns, rows, view) = model.table();
        view.scroll(usize::from(self.area.height.saturating_sub(1)).max(1));
        let shown = rows.iter().skip(view.top).take(self.area.height.into());
        let shown: Vec<&Row> = shown.collect();
        let places: Vec<usize> =
            (0..columns.len().min(FIXED)).chain(FIXED + view.skipped..columns.len()).collect();
        let widths = widths(columns, &shown);
        let head = places.iter().map(|at| padded(columns[*at].name, widths[*at], columns[*at].is_text));
        self.line(&head.collect::<Vec<_>>().join(" "), Style::new().reversed());
        let empty = match (rows.is_empty(), is_list) {
            (false, _) => None,
            (true, true) if is_filtered && !is_empty_list => Some("No process has this name or pid."),
            (true, true) if is_empty_list => Some("No process is on Verbena in this network namespace."),
            (true, true) => None,
            (true, false) => Some("The process has no queue pairs."),
        };
        if let Some(empty) = empty {
            self.line(empty, Style::new());
        }
        for (row, at) in shown.into_iter().zip(view.top..) {
            let style = if row.said.is_some() { alarm() } else { Style::new() };
            let style = if at == view.at { style.reversed() } else { style };
            self.line(&of_row(columns, row, &places, &widths), style);
        }
    }

    fn queue_pair(&mut self, model: &mut Model) {
        let Some((process, device, qp, between)) = model.queue_pair() else {
            self.line("The queue pair has been destroyed.", alarm());
            return;
        };
        let lines = qp::lines(process, device, qp, between);
        model.scrolled = model.scrolled.min(lines.len().saturating_sub(self.area.height.into()));
        for line in lines.iter().skip(model.scrolled) {
            let label = padded(line.label, LABEL, true);
            let (text, style) = match &line.content {
                Content::Text(text) => (output::printable(text), Style::new()),
                Content::Alarm(text) => (output::printable(text), alarm()),
                Content::Gauge { fill, of } => {
                    let room = usize::from(self.area.width).saturating_sub(LABEL);
                    (gauge(*fill, *of, room), Style::new())
                }
            };
            self.line(&(label + &text), style);
        }
    }
}

/// The columns that each column takes.
fn widths(columns: &[Column], rows: &[&Row]) -> Vec<usize> {
    let width = |(at, column): (usize, &Column)| {
        let cells = rows.iter().filter_map(|row| row.cells.get(at));
        cells.map(|cell| cell.to_string().chars().count()).max().unwrap_or(0).max(column.name.len())
    };
    columns.iter().enumerate().map(width).collect()
}

fn padded(text: &str, width: usize, is_text: bool) -> String {
    if is_text { format!("{text:<width$}") } else { format!("{text:>width$}") }
}

fn of_row(columns: &[Column], row: &Row, places: &[usize], widths: &[usize]) -> String {
    let known = places.iter().filter(|at| **at < row.cells.len());
    let cells = known.map(|at| {
        let text = row.cells.get(*at).map(Cell::to_string).unwrap_or_default();
        padded(&text, widths[*at], columns[*at].is_text)
    });
    cells.chain(row.said.map(str::to_owned)).collect::<Vec<_>>().join(" ")
}

/// A bar with its numbers at the right end, as htop draws one.
pub(super) fn gauge(fill: u32, of: u32, width: usize) -> String {
    let numbers = format!("{fill}/{of}");
    let room = width.saturating_sub(2).max(numbers.len());
    // A queue that holds nothing has no bar, and one with anything in it has one.
    let bar = match (fill, of) {
        (0, _) | (_, 0) => 0,
        _ => (room as u64 * u64::from(fill.min(of)) / u64::from(of)).max(1) as usize,
    };
    let bar = format!("{:<room$}", "|".repeat(bar));
    format!("[{}{numbers}]", &bar[..room - numbers.len()])
}

/// Text in lines of so many columns, parted between keys.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for part in text.split("  ").map(str::trim) {
        match lines.last_mut() {
            Some(line) if line.len() + 2 + part.len() <= width => {
                line.push_str("  ");
                line.push_str(part);
            }
            _ => lines.push(part.to_owned()),
        }
    }
    lines
}

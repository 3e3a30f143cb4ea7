//! What `verbena top` shows, and what keys do to it. Here is no terminal, no clock and no thread.

use std::collections::BTreeMap;

use inspect::{Device, Process, Qp};
use linux::inspector::{Answer, Asked};
use ratatui_crossterm::crossterm::event::KeyCode;

use super::rates::{self, Between};
use super::table::{Cell, Column, Row, View};
use crate::ps;

/// Rows that PageUp and PageDown go.
const PAGE: usize = 10;

/// The columns of the list of processes.
pub(super) const PROCESSES: [Column; 14] = [
    Column::number("PID"),
    Column::text("COMM"),
    Column::amount("UPTIME"),
    Column::amount("QP"),
    Column::amount("CQ"),
    Column::amount("MR"),
    Column::amount("CM_ID"),
    Column::amount("SENDS"),
    Column::amount("RECVS"),
    Column::amount("IN_FLIGHT"),
    Column::amount("TX/s"),
    Column::amount("RX/s"),
    Column::amount("RETR/s"),
    Column::text("DEVICES"),
];

/// The columns of the list of queue pairs.
pub(super) const QUEUE_PAIRS: [Column; 13] = [
    Column::number("LQPN"),
    Column::text("TYPE"),
    Column::text("STATE"),
    Column::text("PEER"),
    Column::number("RQPN"),
    Column::text("VIA"),
    Column::amount("SENDS"),
    Column::amount("RECVS"),
    Column::amount("IN_FLIGHT"),
    Column::amount("COMPL/s"),
    Column::amount("RETRANS"),
    Column::text("LAST_ERROR"),
    Column::text("DEVICE"),
];

/// What processes said when they were asked, by the names at which they answer.
#[derive(Debug, Default)]
pub(super) struct Look(BTreeMap<String, Seen>);

/// A process that was asked.
#[derive(Debug)]
pub(super) struct Seen {
    /// The process's number; `None` where it has none in this PID namespace.
    pid: Option<u32>,
    /// The program's name, printable.
    comm: String,
    answer: Answer,
}

impl Look {
    /// Looks up what the kernel calls processes that did not answer.
    pub(super) fn of(asked: Vec<Asked>) -> Self {
        let seen = |asked: Asked| {
            let comm = ps::comm(&asked);
            (asked.name, Seen { pid: asked.pid, comm, answer: asked.answer })
        };
        Self(asked.into_iter().map(seen).collect())
    }

    fn process(&self, name: &str) -> Option<&Process> {
        ps::said(&self.0.get(name)?.answer).ok()
    }
}

/// The process that is open.
#[derive(Debug)]
struct Opened {
    /// The name at which the process answers.
    name: String,
    /// The words for it, once it has ended too.
    title: String,
    view: View,
    /// The device and the number of the queue pair that is open.
    qp: Option<(String, u32)>,
}

/// What the whole screen shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shown<'a> {
    Processes,
    /// The queue pairs of a process, which the words are for.
    Process(&'a str),
    /// A queue pair of a process, by device and number.
    QueuePair(&'a str, &'a str, u32),
}

/// What a key leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Go,
    Quit,
}

/// All that is shown, and how the user looks at it.
#[derive(Debug, Default)]
pub(super) struct Model {
    now: Option<Look>,
    before: Look,
    view: View,
    /// What a program's name contains, or a process number begins with.
    pub(super) filter: String,
    /// Whether keys go to the filter.
    pub(super) is_typing: bool,
    pub(super) is_help_shown: bool,
    opened: Option<Opened>,
    /// The first line shown of a queue pair.
    pub(super) scrolled: usize,
}

impl Model {
    /// Takes in what processes said now.
    pub(super) fn look(&mut self, look: Look) {
        self.before = self.now.replace(look).unwrap_or_default();
    }

    pub(super) fn shown(&self) -> Shown<'_> {
        match &self.opened {
            None => Shown::Processes,
            Some(Opened { title, qp: None, .. }) => Shown::Process(title),
            Some(Opened { title, qp: Some((ifname, lqpn)), .. }) => Shown::QueuePair(title, ifname, *lqpn),
        }
    }

    /// How many processes there are; `None` before they have been asked.
    pub(super) fn processes(&self) -> Option<usize> {
        self.now.as_ref().map(|look| look.0.len())
    }

    /// The words for a process that is open and did not answer, or has ended.
    pub(super) fn trouble(&self) -> Option<&'static str> {
        let (opened, look) = (self.opened.as_ref()?, self.now.as_ref()?);
        match look.0.get(&opened.name) {
            Some(seen) => ps::said(&seen.answer).err(),
            None => Some("has ended"),
        }
    }

    /// The device, the queue pair and its process, if it exists, and the last two answers.
    pub(super) fn queue_pair(&self) -> Option<(&Process, &Device, &Qp, Option<Between<'_>>)> {
        let opened = self.opened.as_ref()?;
        let (ifname, lqpn) = opened.qp.as_ref()?;
        let process = self.now.as_ref()?.process(&opened.name)?;
        let device = process.devices.iter().find(|device| device.ifname == *ifname)?;
        let qp = device.qps.iter().find(|qp| qp.lqpn == *lqpn)?;
        Some((process, device, qp, self.between(&opened.name, process)))
    }

    /// The table that is shown: its columns, its rows in their order, and the user's view.
    pub(super) fn table(&mut self) -> (&'static [Column], Vec<Row>, &mut View) {
        let columns: &[Column] = if self.opened.is_none() { &PROCESSES } else { &QUEUE_PAIRS };
        let mut rows = match &self.opened {
            None => self.process_rows(),
            Some(opened) => self.qp_rows(opened),
        };
        let view = self.opened.as_mut().map_or(&mut self.view, |opened| &mut opened.view);
        view.arrange(columns, &mut rows);
        (columns, rows, view)
    }

    fn between<'a>(&'a self, name: &str, now: &'a Process) -> Option<Between<'a>> {
        Between::new(self.before.process(name)?, now)
    }

    fn process_rows(&self) -> Vec<Row> {
        let seen = self.now.iter().flat_map(|look| &look.0);
        let filtered = seen.filter(|(_, seen)| self.is_wanted(seen));
        let rows = filtered.map(|(name, seen)| {
            let mut cells = vec![Cell::count(seen.pid), Cell::Text(seen.comm.clone())];
            let said = ps::said(&seen.answer);
            if let Ok(process) = said {
                let between = self.between(name, process);
                cells.push(Cell::Time(process.uptime_ms));
                cells.extend(ps::numbers(process).map(Cell::Count));
                cells.push(Cell::rate(between.and_then(Between::sent)));
                cells.push(Cell::rate(between.and_then(Between::received)));
                cells.push(Cell::rate(between.map(Between::retransmitted)));
                cells.push(Cell::Text(ps::devices(process)));
            }
            Row { key: name.clone(), cells, said: said.err() }
        });
        rows.collect()
    }

    fn is_wanted(&self, seen: &Seen) -> bool {
        let is_its_pid = || seen.pid.is_some_and(|pid| pid.to_string().starts_with(&self.filter));
        seen.comm.to_lowercase().contains(&self.filter.to_lowercase()) || is_its_pid()
    }

    fn qp_rows(&self, opened: &Opened) -> Vec<Row> {
        let Some(process) = self.now.as_ref().and_then(|look| look.process(&opened.name)) else {
            return Vec::new();
        };
        let between = self.between(&opened.name, process);
        let completed = between.map(|between| between.of_qps(rates::completed)).unwrap_or_default();
        let mut rows = Vec::new();
        for device in &process.devices {
            for qp in &device.qps {
                let rate = completed.get(&(&*device.ifname, qp.lqpn)).copied();
                rows.push(qp_row(device, qp, rate));
            }
        }
        rows
    }

    /// Answers a key.
    pub(super) fn key(&mut self, key: KeyCode) -> Next {
        if self.is_typing {
            self.type_filter(key);
            return Next::Go;
        }
        match key {
            KeyCode::Char('q') => return Next::Quit,
            KeyCode::Char('h' | '?') => self.is_help_shown = !self.is_help_shown,
            KeyCode::Char('/') if self.opened.is_none() => self.is_typing = true,
            KeyCode::Esc | KeyCode::Backspace => self.back(),
            KeyCode::Enter => self.open(),
            _ if matches!(self.shown(), Shown::QueuePair(..)) => {
                self.scrolled = moved(self.scrolled, key).unwrap_or(self.scrolled);
            }
            _ => self.look_at(key),
        }
        Next::Go
    }

    fn type_filter(&mut self, key: KeyCode) {
        match key {
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Esc => {
                self.is_typing = false;
                self.filter.clear();
            }
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Char(c) if !c.is_control() => self.filter.push(c),
            _ => {}
        }
    }

    /// Goes back by one screen. On the first one, all processes are shown again.
    fn back(&mut self) {
        match &mut self.opened {
            Some(opened) if opened.qp.is_some() => opened.qp = None,
            Some(_) => self.opened = None,
            None => self.filter.clear(),
        }
    }

    /// Opens the selected row.
    fn open(&mut self) {
        let (_, rows, view) = self.table();
        let Some(key) = rows.get(view.at).map(|row| row.key.clone()) else { return };
        match &mut self.opened {
            None => {
                let Some(seen) = self.now.as_ref().and_then(|look| look.0.get(&key)) else { return };
                let pid = seen.pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string());
                let title = format!("process {pid} {}", seen.comm);
                self.opened = Some(Opened { name: key, title, view: View::default(), qp: None });
            }
            Some(opened) if opened.qp.is_none() => {
                opened.qp = key
                    .rsplit_once('/')
                    .and_then(|(ifname, lqpn)| Some((ifname.to_owned(), lqpn.parse().ok()?)));
                self.scrolled = 0;
            }
            Some(_) => {}
        }
    }

    /// Answers a key that changes how a table is looked at.
    fn look_at(&mut self, key: KeyCode) {
        let (columns, rows, view) = self.table();
        match key {
            KeyCode::Char('s') => view.sort_by_next(columns),
            KeyCode::Char('r') => view.is_reversed = !view.is_reversed,
            KeyCode::Left => view.skipped = view.skipped.saturating_sub(1),
            KeyCode::Right => view.skipped = (view.skipped + 1).min(columns.len() - 3),
            _ => {
                if let Some(at) = moved(view.at, key) {
                    view.select(at, &rows);
                }
            }
        }
    }
}

/// Where a key leads from a place; `None` for other keys.
fn moved(at: usize, key: KeyCode) -> Option<usize> {
    Some(match key {
        KeyCode::Up | KeyCode::Char('k') => at.saturating_sub(1),
        KeyCode::Down | KeyCode::Char('j') => at.saturating_add(1),
        KeyCode::PageUp => at.saturating_sub(PAGE),
        KeyCode::PageDown => at.saturating_add(PAGE),
        KeyCode::Home => 0,
        KeyCode::End => usize::MAX,
        _ => return None,
    })
}

fn qp_row(device: &Device, qp: &Qp, completed: Option<f64>) -> Row {
    let text = |text: &Option<String>| text.as_deref().map_or(Cell::Unknown, Cell::text);
    let reliable = qp.reliable.as_ref();
    let error = reliable.and_then(|reliable| reliable.last_error.as_ref());
    let cells = vec![
        Cell::Count(qp.lqpn.into()),
        Cell::text(&qp.kind),
        Cell::text(&qp.state),
        text(&qp.dst_addr),
        Cell::count(qp.rqpn),
        text(&qp.via),
        Cell::Count(qp.sends.into()),
        Cell::Count(qp.recvs.into()),
        Cell::count(reliable.map(|reliable| reliable.in_flight)),
        Cell::rate(reliable.and(completed)),
        Cell::count(reliable.map(|reliable| reliable.retransmissions)),
        error.map_or(Cell::Unknown, |error| Cell::text(&error.status)),
        Cell::text(&device.ifname),
    ];
    Row { key: format!("{}/{}", device.ifname, qp.lqpn), cells, said: None }
}

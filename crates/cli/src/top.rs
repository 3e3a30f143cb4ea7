//! `verbena top`: what `verbena ps` and `verbena show` tell, live on a terminal.
//!
//! Three threads send events to the main one: one asks the processes, one reads keys, and one
//! takes signals. So a key is answered at once while a stopped process is waited for. The main
//! thread changes the [`Model`] and draws it.

mod model;
mod qp;
mod rates;
mod screens;
mod table;
mod terminal;
#[cfg(test)]
mod tests;

use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use linux::inspector;
use ratatui_crossterm::crossterm::event::{self, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;

use model::{Look, Model, Next};
use terminal::Screen;

/// Show the processes on Verbena, live
///
/// What `verbena ps` lists, with packets and retransmissions in each second. Enter opens a process,
/// and then one of its queue pairs. The key h lists the keys. Standard output must be a terminal.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Ask the processes each SECONDS, 0.1 to 60
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    interval: Duration,
}

/// A time in seconds that `--interval` takes.
fn interval(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.1..=60.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("it takes 0.1 to 60 seconds".to_owned()),
    }
}

/// What happens to the main thread.
enum Event {
    /// All processes were asked.
    Look(Look),
    Key(KeyEvent),
    /// The terminal has another size.
    Resize,
    Signal(i32),
    /// Keys can no longer be read.
    Lost(io::Error),
}

/// Shows the processes until the user or a signal ends it.
///
/// # Errors
/// A message: standard output is no terminal, or the terminal failed.
pub(crate) fn run(args: &Args) -> Result<ExitCode, String> {
    if !io::stdout().is_terminal() {
        return Err("standard output is not a terminal: `verbena ps` and `verbena show --json` print what \
                    processes have"
            .to_owned());
    }
    let failed = |error: io::Error| format!("the terminal fails: {error}");
    let (sender, events) = mpsc::channel();
    // Before the terminal changes: from here on a signal finds it restored.
    spawn("signals", take_signals(sender.clone()).map_err(failed)?)?;
    let mut screen = Screen::open().map_err(failed)?;
    let (interval, keys) = (args.interval, sender.clone());
    spawn("keys", move || read_keys(&keys))?;
    spawn("asks", move || ask(&sender, interval))?;
    // The terminal is restored when `screen` is dropped, before any message is printed.
    show(&mut screen, &events).map_err(failed)
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), String> {
    let spawned = thread::Builder::new().name(name.to_owned()).spawn(run);
    spawned.map(drop).map_err(|error| format!("no thread to be had: {error}"))
}

/// Draws and answers events until one of them ends it.
fn show(screen: &mut Screen, events: &Receiver<Event>) -> io::Result<ExitCode> {
    let mut model = Model::default();
    loop {
        screen.draw(|frame| screens::draw(frame, &mut model))?;
        // At least one sender lives as long as this thread.
        let Ok(first) = events.recv() else { return Ok(ExitCode::FAILURE) };
        for event in std::iter::once(first).chain(events.try_iter()) {
            match event {
                Event::Look(look) => model.look(look),
                Event::Resize => {}
                Event::Key(key) if is_interrupt(key) => return Ok(ended_by(SIGINT)),
                Event::Key(key) => {
                    if model.key(key.code) == Next::Quit {
                        return Ok(ExitCode::SUCCESS);
                    }
                }
                Event::Signal(SIGCONT) => screen.retake()?,
                Event::Signal(signal) => return Ok(ended_by(signal)),
                Event::Lost(error) => return Err(error),
            }
        }
    }
}

/// Whether the key is Ctrl-C, which is no signal while single keys are read.
fn is_interrupt(key: KeyEvent) -> bool {
    key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL)
}

/// The exit code that shells give a program which a signal ended.
fn ended_by(signal: i32) -> ExitCode {
    ExitCode::from(u8::try_from(128 + signal).unwrap_or(u8::MAX))
}

/// Takes in signals that end the command from now on, or tell that it goes on, and returns what
/// tells them.
fn take_signals(events: Sender<Event>) -> io::Result<impl FnOnce() + Send> {
    let mut signals = Signals::new([SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM])?;
    Ok(move || signals.forever().for_each(|signal| drop(events.send(Event::Signal(signal)))))
}

fn read_keys(events: &Sender<Event>) {
    loop {
        let event = match event::read() {
            Ok(event::Event::Key(key)) if key.kind == KeyEventKind::Press => Event::Key(key),
            Ok(event::Event::Resize(..)) => Event::Resize,
            Ok(_) => continue,
            Err(error) => {
                let _ = events.send(Event::Lost(error));
                return;
            }
        };
        if events.send(event).is_err() {
            return;
        }
    }
}

/// Asks all processes, again and again.
fn ask(events: &Sender<Event>, interval: Duration) {
    loop {
        let began = Instant::now();
        if events.send(Event::Look(Look::of(inspector::processes()))).is_err() {
            return;
        }
        thread::sleep(interval.saturating_sub(began.elapsed()));
    }
}

//! The terminal while `verbena top` has it. Ending restores it: by a return, an error or a panic.

use std::io::{self, Stdout};
use std::mem::ManuallyDrop;
use std::panic;

use ratatui_core::terminal::{Frame, Terminal};
use ratatui_crossterm::CrosstermBackend;
use ratatui_crossterm::crossterm::cursor::Show;
use ratatui_crossterm::crossterm::execute;
use ratatui_crossterm::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};

/// A terminal that shows the alternate screen, and hands on each key. Dropping it restores the
/// terminal.
//
// ratatui's drop prints an error where the terminal is gone, and panics as standard error is, too.
pub(super) struct Screen(ManuallyDrop<Terminal<CrosstermBackend<Stdout>>>);

impl Screen {
    /// Takes the terminal of standard output.
    ///
    /// # Errors
    /// The terminal refuses.
    pub(super) fn open() -> io::Result<Self> {
        restore_on_panic();
        enable_raw_mode()?;
        let entered = execute!(io::stdout(), EnterAlternateScreen);
        let opened = entered.and_then(|()| Terminal::new(CrosstermBackend::new(io::stdout())));
        opened.map(|terminal| Self(ManuallyDrop::new(terminal))).inspect_err(|_| restore())
    }

    /// Draws one picture.
    ///
    /// # Errors
    /// The terminal cannot be written to.
    pub(super) fn draw(&mut self, draw: impl FnOnce(&mut Frame<'_>)) -> io::Result<()> {
        self.0.draw(draw).map(drop)
    }

    /// Takes the terminal again, which another program has had while this one was stopped, and
    /// forgets what stands on it: the next picture is drawn as a whole.
    ///
    /// # Errors
    /// The terminal refuses.
    pub(super) fn retake(&mut self) -> io::Result<()> {
        // The library remembers that keys are read one by one, and would not ask for it again.
        disable_raw_mode()?;
        enable_raw_mode()?;
        execute!(io::stdout(), EnterAlternateScreen)?;
        // `clear` would ask where the cursor is, and wait for what the thread of keys reads.
        let area = self.0.size()?.into();
        self.0.resize(area)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

/// Makes a panic of any thread restore the terminal, print its message there, and end the process.
fn restore_on_panic() {
    let print = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        restore();
        print(info);
        // The main thread would draw over the message if another thread panicked.
        std::process::exit(101);
    }));
}

/// Gives the terminal back as it was. A terminal that is gone needs nothing.
fn restore() {
    let _ = execute!(io::stdout(), LeaveAlternateScreen, Show);
    let _ = disable_raw_mode();
}

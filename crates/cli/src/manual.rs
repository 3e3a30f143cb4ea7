//! `verbena man` and `verbena completions`: what a package installs beside the command, made from
//! the command's own arguments.

use std::io;
use std::process::ExitCode;

use clap::{Command, ValueEnum};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, italic, roman};

use crate::output;

/// Print the manual page, verbena(1)
///
/// `verbena man | man -l -` shows it.
#[derive(clap::Args)]
pub(crate) struct PageArgs {}

/// Print what a shell needs to complete this command's arguments
#[derive(clap::Args)]
pub(crate) struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

/// The shells that a package has files for.
#[derive(Clone, Copy, ValueEnum)]
enum Shell {
    Bash,
    Fish,
    Zsh,
}

/// Each variable for users, with the text of the manual page. The guide's page Environment
/// variables has the same ones.
pub(crate) const ENVIRONMENT: [(&str, &str); 6] = [
    (
        "VERBENA_DEVICES",
        "The devices that programs see, as a comma-separated list of name=roce:interface. Without it, each interface that \
         is up and has an address gives a device rxe_<interface>.",
    ),
    (
        "VERBENA_SAME_HOST",
        "off: all traffic goes through UDP sockets, even between processes of this host; `verbena run --wire` sets it. \
         ptracer: every process of the user may trace the program (PR_SET_PTRACER of prctl(2)), so peers copy its memory \
         directly where kernel.yama.ptrace_scope is 1.",
    ),
    (
        "VERBENA_LARGE_PAGES",
        "off: registration does not ask for large pages. Otherwise memory that a registration brings in lies in pages of \
         2 MiB where it fills them, unless /sys/kernel/mm/transparent_hugepage/enabled says never.",
    ),
    (
        "VERBENA_CM_TIMEOUT",
        "Seconds for which an unanswered connection request is repeated: 0.1 to 3600. Without it 78, as in the kernel.",
    ),
    (
        "VERBENA_COUNTERS",
        "A file to which a program writes its counters when it ends; %p in the name stands for the process id. \
         `verbena run --counters` sets it.",
    ),
    (
        "VERBENA_LIBRARY",
        "The shared object that `verbena run` loads. Without it the one beside the command (a build tree), else \
         ../lib/verbena/libverbena_rdma.so from there, else the one inside the command.",
    ),
];

/// Files that the command makes.
const FILES: [(&str, &str); 2] = [
    (
        "~/.cache/verbena/",
        "the object inside the command, unpacked, where there is none beside it; $XDG_CACHE_HOME goes before ~/.cache",
    ),
    (
        "$XDG_RUNTIME_DIR/verbena-<uid>-<hash>/",
        "the links by which programs find the object; in $TMPDIR or /tmp where there is no such directory",
    ),
];

/// What is worth trying first.
const EXAMPLES: [(&str, &str); 3] = [
    ("verbena demo", "a server and a client process, what happens, and what it costs"),
    (
        "verbena run -- rping -s",
        "a server; in another terminal: verbena run -- rping -c -a 127.0.0.1 -C 10 -v",
    ),
    (
        "CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER=\"verbena run --\" cargo test",
        "a crate's own tests on Verbena",
    ),
];

/// Prints the page.
///
/// # Errors
/// A message where standard output takes nothing.
pub(crate) fn page(mut command: Command) -> Result<ExitCode, String> {
    command.build();
    let mut page = Vec::new();
    write_page(&command, &mut page).map_err(|e| format!("cannot write the page: {e}"))?;
    output::write(page)
}

/// Prints a shell's completions.
///
/// # Errors
/// A message: the system refused to write.
pub(crate) fn completions(args: &CompletionsArgs, mut command: Command) -> Result<ExitCode, String> {
    use clap_complete::shells;
    let (name, mut script) = (command.get_name().to_owned(), Vec::new());
    let out = &mut script;
    match args.shell {
        Shell::Bash => clap_complete::generate(shells::Bash, &mut command, name, out),
        Shell::Fish => clap_complete::generate(shells::Fish, &mut command, name, out),
        Shell::Zsh => clap_complete::generate(shells::Zsh, &mut command, name, out),
    }
    output::write(script)
}

/// One page: the command, each of its commands, then what none of them says.
fn write_page(command: &Command, out: &mut dyn io::Write) -> io::Result<()> {
    let man = Man::new(command.clone());
    man.render_title(out)?;
    man.render_name_section(out)?;
    let mut page = Roff::new();
    page.control("SH", ["SYNOPSIS"]);
    for c in shown(command) {
        let usage = c.clone().render_usage().to_string();
        let usage = usage.trim_start_matches("Usage: ").split_once(' ');
        let (name, rest) = usage.unwrap_or(("verbena", ""));
        page.text([bold(name), roman(format!(" {rest}"))]).control("br", []);
    }
    page.to_writer(out)?;
    man.render_description_section(out)?;
    for c in shown(command) {
        let mut head = Roff::new();
        head.control("SH", [format!("verbena {}", c.get_name()).to_uppercase().as_str()]);
        let about = c.get_long_about().or(c.get_about()).map(ToString::to_string).unwrap_or_default();
        for (n, paragraph) in about.split("\n\n").enumerate() {
            if n > 0 {
                head.control("PP", []);
            }
            head.text([roman(paragraph)]);
        }
        for argument in
            c.get_arguments().filter(|a| !a.is_hide_set() && a.get_id() != "help" && a.get_id() != "version")
        {
            let help =
                argument.get_long_help().or(argument.get_help()).map(ToString::to_string).unwrap_or_default();
            head.control("TP", []).text([bold(argument.to_string())]).text([roman(help)]);
        }
        head.to_writer(out)?;
    }
    let mut rest = Roff::new();
    for (title, entries) in [("ENVIRONMENT", &ENVIRONMENT[..]), ("FILES", &FILES), ("EXAMPLES", &EXAMPLES)] {
        rest.control("SH", [title]);
        for (name, text) in entries {
            rest.control("TP", []).text([if title == "FILES" { italic(*name) } else { bold(*name) }]);
            rest.text([roman(*text)]);
        }
    }
    rest.control("SH", ["SEE ALSO"]);
    rest.text([roman("rdma_cm(7), ibv_devices(1), rping(1), rdma-link(8)")]);
    rest.to_writer(out)
}

/// The commands that the page is about.
fn shown(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|c| !c.is_hide_set() && c.get_name() != "help")
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_page_names_every_command_option_and_variable() {
        let mut command = crate::Cli::command();
        command.build();
        let mut page = Vec::new();
        write_page(&command, &mut page).unwrap();
        let page = String::from_utf8(page).unwrap().replace("\\-", "-");
        for c in shown(&command) {
            assert!(page.contains(&format!(".SH \"VERBENA {}\"", c.get_name().to_uppercase())), "{page}");
        }
        for words in ["--counters <FILE>", "--no-sysfs"].into_iter().chain(ENVIRONMENT.map(|(name, _)| name))
        {
            assert!(page.contains(words), "{words} is not in\n{page}");
        }
        assert!(!page.contains("--server"), "{page}");
    }
}

//! The command line.

use std::fmt::Write as _;

use clap::{Command, CommandFactory};

use super::{COLUMNS, OPTION_COLUMN, compare, read};

/// Text in lines of at most [`COLUMNS`], after a first line that is begun.
fn wrapped(begun: &str, text: &str, indent: usize) -> String {
    let (mut lines, mut line) = (String::new(), begun.to_owned());
    for word in text.split_whitespace() {
        if line.len() + word.len() + 1 > COLUMNS && line.len() > indent {
            let _ = writeln!(lines, "{}", line.trim_end());
            line = " ".repeat(indent);
        }
        if line.trim_end().len() > indent {
            line.push(' ');
        }
        line += word;
    }
    let _ = writeln!(lines, "{}", line.trim_end());
    lines
}

/// What a command is called with: its usage, then each argument and option with its text.
fn usage(command: &Command) -> String {
    let usage = command.clone().render_usage().to_string();
    let mut text = format!("{}\n\n", usage.trim().replace("Usage: ", ""));
    let mut entry = |name: String, help: &str| {
        let begun = format!("  {name}");
        if begun.len() + 2 > OPTION_COLUMN {
            let _ = writeln!(text, "{begun}");
            text += &wrapped(&" ".repeat(OPTION_COLUMN), help, OPTION_COLUMN);
        } else {
            text += &wrapped(&format!("{begun:OPTION_COLUMN$}"), help, OPTION_COLUMN);
        }
    };
    for sub in command.get_subcommands().filter(|c| !c.is_hide_set()) {
        entry(sub.get_name().to_owned(), &sub.get_about().map(ToString::to_string).unwrap_or_default());
    }
    let (positional, options): (Vec<_>, Vec<_>) = command.get_arguments().partition(|a| a.is_positional());
    for argument in positional.into_iter().chain(options).filter(|a| !a.is_hide_set()) {
        let short = argument.get_short().map(|short| format!("-{short}, ")).unwrap_or_default();
        let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
        let values: Vec<String> =
            argument.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect();
        let takes_one = argument.get_action().takes_values() && !values.is_empty();
        let values = if takes_one { format!(" [{}]", values.join(", ")) } else { String::new() };
        let name = argument.to_string();
        entry(format!("{short}{name}"), &format!("{help}{values}"));
    }
    format!("```text\n{text}```\n")
}

/// Whether a subcommand has options that not all have.
fn has_options(command: &Command) -> bool {
    let mut longs = command.get_arguments().filter(|a| !a.is_global_set()).filter_map(clap::Arg::get_long);
    longs.any(|long| !["help", "version"].contains(&long))
}

#[test]
fn the_page_of_the_command_line_has_each_command_and_option() {
    let mut command = crate::Cli::command();
    command.build();
    let mut parts = vec![("verbena".to_owned(), usage(&command))];
    let is_shown = |c: &&Command| !c.is_hide_set() && c.get_name() != "help";
    for sub in command.get_subcommands().filter(is_shown) {
        let name = format!("verbena {}", sub.get_name());
        parts.push((name.clone(), usage(sub)));
        let nested = sub.get_subcommands().filter(is_shown).filter(|nested| has_options(nested));
        parts.extend(nested.map(|nested| (format!("{name} {}", nested.get_name()), usage(nested))));
    }
    let page = read("guide/src/command-line.md");
    // Each option is explained by hand as well, in a list below what is generated.
    let all = command.get_subcommands().filter(is_shown);
    for sub in all.flat_map(|sub| [sub].into_iter().chain(sub.get_subcommands().filter(is_shown))) {
        for long in sub.get_arguments().filter(|a| !a.is_hide_set()).filter_map(clap::Arg::get_long) {
            assert!(
                ["help", "version"].contains(&long) || page.contains(&format!("\n- `--{long}")),
                "guide/src/command-line.md does not explain --{long} of `verbena {}`",
                sub.get_name()
            );
        }
    }
    let parts: Vec<(&str, String)> = parts.iter().map(|(name, text)| (&name[..], text.clone())).collect();
    compare("command-line.md", &parts);
}

#[test]
fn the_text_of_an_option_begins_beside_it() {
    assert_eq!(wrapped("  -h  ", "Print help", 6), "  -h  Print help\n");
}

//! The `verbena` command. One file a subcommand.
#![forbid(unsafe_code)]

mod object;
mod run;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// RDMA in user space: no adapter, no kernel module, no root.
#[derive(Parser)]
#[command(version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(run::Args),
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Run(args) => run::run(args),
    };
    match done {
        Ok(code) => code,
        Err(message) => {
            eprintln!("verbena: {message}");
            ExitCode::FAILURE
        }
    }
}

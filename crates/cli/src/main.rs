//! The `verbena` command. One file a subcommand.
#![forbid(unsafe_code)]

mod demo;
mod devices;
mod object;
mod run;
mod side;

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
    Devices(devices::Args),
    Demo(demo::Args),
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Run(args) => run::run(args),
        Command::Devices(args) => devices::run(&args),
        Command::Demo(args) => demo::run(&args),
    };
    match done {
        Ok(code) => code,
        Err(message) => {
            eprintln!("verbena: {message}");
            ExitCode::FAILURE
        }
    }
}

//! The `verbena` command. One file a subcommand.
#![forbid(unsafe_code)]

mod brought;
mod demo;
mod dev;
mod devices;
mod manual;
mod object;
mod output;
mod packages;
#[cfg(test)]
mod pages;
mod program;
mod rdma;
mod ready;
mod run;
mod sysfs;
mod trusted;
mod unpack;

use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

/// RDMA in user space: no adapter, no kernel module, no root.
#[derive(Parser)]
#[command(name = "verbena", version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(run::Args),
    Devices(devices::Args),
    Demo(demo::Args),
    Man(manual::PageArgs),
    Completions(manual::CompletionsArgs),
}

fn main() -> ExitCode {
    // Under the name `rdma` it stands before iproute2's command, for the programs that `verbena
    // run` starts.
    let name = std::env::args_os().next();
    if name.as_deref().map(Path::new).and_then(Path::file_name).is_some_and(|name| name == "rdma") {
        return rdma::run(std::env::args_os().skip(1).collect());
    }
    let done = match Cli::parse().command {
        Command::Run(args) => run::run(args),
        Command::Devices(args) => devices::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Man(_) => manual::page(Cli::command()),
        Command::Completions(args) => manual::completions(&args, Cli::command()),
    };
    match done {
        Ok(code) => code,
        Err(message) => {
            eprintln!("verbena: {message}");
            ExitCode::FAILURE
        }
    }
}

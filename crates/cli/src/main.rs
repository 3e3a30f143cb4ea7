//! The `verbena` command. One file a subcommand.
#![forbid(unsafe_code)]

mod bench;
mod brought;
mod capture;
mod demo;
mod dev;
mod devices;
mod doctor;
mod fabric;
mod manual;
mod object;
mod output;
mod packages;
#[cfg(test)]
mod pages;
mod program;
mod ps;
mod rdma;
mod ready;
mod run;
mod show;
mod sysfs;
mod top;
mod trusted;
mod unpack;

use std::io::{self, Write};
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
    Run(Box<run::Args>),
    Devices(devices::Args),
    Doctor(doctor::Args),
    Ps(ps::Args),
    Show(show::Args),
    Top(top::Args),
    Demo(demo::Args),
    Bench(Box<bench::Args>),
    Fabric(fabric::Args),
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
        Command::Run(args) => run::run(*args),
        Command::Devices(args) => devices::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Ps(args) => ps::run(&args),
        Command::Show(args) => show::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Fabric(args) => fabric::run(args),
        Command::Man(_) => manual::page(Cli::command()),
        Command::Completions(args) => manual::completions(&args, Cli::command()),
    };
    match done {
        Ok(code) => code,
        Err(message) => {
            // Standard error may be a terminal that is gone.
            let _ = writeln!(io::stderr(), "verbena: {message}");
            ExitCode::FAILURE
        }
    }
}

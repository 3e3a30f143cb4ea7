//! What the process that has a fabric does for the user's commands.

use std::fmt::Write as _;
use std::time::Duration;

use ::fabric::counters::SELECTION;
use ::fabric::protocol::{Command, Reply};
use ::fabric::sm::SmEvent;

use super::daemon::Daemon;
use crate::output;

/// Carries out a command.
pub(super) fn carry_out(daemon: &mut Daemon, command: Command) -> Reply {
    let now = daemon.now();
    let fabric = &mut daemon.fabric;
    let done = |()| String::new();
    let text = match command {
        Command::Show { node } => fabric.show(node.as_deref()),
        Command::Status => Ok(status(daemon)),
        Command::Trace { from, to } => fabric.trace(&from, &to).map(|(hops, lost)| {
            let mut text = String::new();
            for hop in hops {
                // Writing to a string does not fail.
                let _ = writeln!(text, "{} {} -> {} {}", hop.from.0, hop.from.1, hop.to.0, hop.to.1);
            }
            if let Some(lost) = lost {
                let _ = writeln!(text, "no way: {lost}");
            }
            text
        }),
        Command::Cut { node, port, cut } => fabric.set_cut(&node, port, cut).map(done),
        Command::Set { node, port, counter, value } => {
            fabric.set_counter(&node, port, &counter, value).map(done)
        }
        Command::Drop { node, port, ppm } => fabric.set_drop(&node, port, ppm).map(done),
        Command::Counters { node, port } => fabric.counters_of(&node, port).map(|counters| {
            SELECTION.iter().fold(String::new(), |mut text, counter| {
                let _ = writeln!(text, "{:<30}{}", counter.name, counter.get(&counters));
                text
            })
        }),
        Command::Damage { node, port, ppm } => fabric.set_damage(&node, port, ppm).map(done),
        Command::Rate { node, port, rate } => fabric.set_rate(&node, port, &rate).map(done),
        Command::Flap { node, port, period_ms } => {
            fabric.set_flap(now, &node, port, Duration::from_millis(period_ms)).map(done)
        }
        Command::Grow { node, port, counter, a_second } => {
            fabric.set_growth(now, (&node, port), &counter, a_second).map(done)
        }
        Command::Freeze { node, frozen } => fabric.set_frozen(&node, frozen).map(done),
        Command::Write => Ok(fabric.write_net()),
        Command::Stop => {
            daemon.stopped = true;
            Ok(String::new())
        }
    };
    match text {
        Ok(text) => Reply::Text(text),
        Err(error) => Reply::Refused { errno: libc::EINVAL, why: error.to_string() },
    }
}

/// How much there is, and what has become of MADs.
fn status(daemon: &Daemon) -> String {
    let (census, counters) = (daemon.fabric.census(), daemon.fabric.counters());
    let mut text = String::new();
    let hosts = census.nodes - census.switches;
    for (name, value) in [
        ("hosts", hosts as u64),
        ("switches", census.switches as u64),
        ("links", census.links as u64),
        ("linked ports", census.linked_ports as u64),
        ("active ports", census.active_ports as u64),
        ("written", counters.written),
        ("delivered", counters.delivered),
        ("answered", counters.answered),
        ("malformed", counters.malformed),
        ("lost", counters.lost),
        ("silent", counters.silent),
        ("unexpected", counters.unexpected),
        ("duplicate", counters.duplicate),
        ("overflowed", counters.overflowed),
        ("retried", counters.retried),
        ("timed out", counters.timed_out),
        ("traps", counters.traps),
        ("processor ms", sys::time::of_process().as_millis() as u64),
    ] {
        let _ = writeln!(text, "{name:<14}{value}");
    }
    let Some(sm) = daemon.fabric.sm_status() else { return text };
    for (name, value) in [
        ("masters", sm.masters),
        ("sweeps", sm.sweeps),
        ("sm requests", sm.requests),
        ("sm failed", sm.failed),
        ("sa queries", sm.queries),
        ("groups", sm.groups),
    ] {
        let _ = writeln!(text, "{name:<14}{value}");
    }
    text
}

/// Prints what the fabric's own subnet managers have to say.
pub(super) fn report(daemon: &mut Daemon) {
    let now = daemon.now();
    for event in daemon.fabric.take_sm_events() {
        let line = match event {
            SmEvent::SubnetUp { nodes, ports, since } => {
                let seconds = now.saturating_sub(since).as_secs_f64();
                format!("subnet up: {nodes} nodes, {ports} active ports, {seconds:.2} s")
            }
            SmEvent::GaveWay { guid, priority } => {
                format!("another subnet manager has the subnet: port {guid:#018x}, priority {priority}")
            }
        };
        // Nothing depends on a reader of these lines.
        let _ = output::write(format!("fabric {}: {line}\n", daemon.place.name));
    }
}

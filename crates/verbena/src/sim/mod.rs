//! Simulated hosts, for tests of one's own protocols: [`#[verbena::test]`](macro@test).
//!
//! ```
//! use std::time::Duration;
//!
//! use verbena::sim::Host;
//!
//! #[verbena::test(seeds = 20, faults = "loss=1%, delay=20us..200us, reorder=2%")]
//! async fn a_host_that_is_killed_says_nothing_more(left: Host, right: Host) {
//!     let work = right.spawn(async {
//!         verbena::time::sleep(Duration::from_secs(60)).await;
//!         "done"
//!     });
//!     left.partition(&right, Duration::from_millis(3));
//!     verbena::time::sleep(Duration::from_secs(1)).await;
//!     right.kill();
//!     assert_eq!(work.outcome().await, None);
//! }
//! ```
//!
//! That is an ordinary `#[test]`. Its parameters are its hosts and name them. It runs once for each
//! seed, a minute of virtual time in no time at all, and what happens is the same for the same
//! seed, packet for packet and poll for poll.
//!
//! # The code under test is the code that ships
//!
//! | in a task of a host | is |
//! |---|---|
//! | [`Provider::current`](crate::Provider::current), and so all that is not given a provider | that host's |
//! | a host's name in an address, such as `"left:7000"` | its address |
//! | [`verbena::time`](crate::time) | virtual |
//! | [`verbena::spawn`](crate::spawn) | a task of the same host |
//! | a blocking call (`.wait()`) | the error `BlockingInSimulation`: the thread it would block is the only one |
//!
//! The test function itself runs on no host, so that it can kill any; it starts the work by
//! [`Host::spawn`] and has no provider. All hosts of a test run in one thread, so a test may share
//! an `Rc` between them; the code under test should not.
//!
//! # Arguments
//!
//! | argument | meaning | default |
//! |---|---|---|
//! | `seeds = 1000` | the test runs with the seeds 0 to 999 | 100 |
//! | `faults = "loss=1%, ..."` | what happens to packets between hosts | nothing but a delay of 20 us |
//! | `fabric = "fat-tree 2,4"` | the hosts are on an InfiniBand fabric; see below | an IP network |
//! | `limit = "30s"` | virtual time after which a test that has not ended fails: ns, us, ms, s, min | 10 min |
//!
//! The compiler checks them. Rates are for each packet; the fields of [`Faults`] tell more:
//!
//! | fault | meaning |
//! |---|---|
//! | `delay=20us`, `delay=20us..200us` | time on the way; order is kept |
//! | `loss=1%` | never arrives |
//! | `duplicate=1%` | arrives twice |
//! | `replay=1%`, `replay_delay=5ms` | comes again, up to so much later |
//! | `reorder=1%`, `reorder_delay=200us` | is up to so late, and overtaken |
//! | `corrupt=1%` | a byte is changed. Over IPv4 one such packet in 2^15 is taken for right: a real network's UDP checksum, which is not simulated, finds it. Use [`Host::addr_v6`] |
//! | `clog=1%`, `clog_time=5ms` | the link stops for up to so long, beginning with this packet |
//! | `partition=1%`, `partition_time=5ms` | the link loses all for up to so long, beginning with this packet |
//! | `power_fail=1%`, `power_time=5ms` | the host it is sent to, where it has persistent memory, is without power for up to so long; see below |
//! | `flush=10us`, `flush=10us..2ms` | time that a flush to persistence takes |
//! | `together=70%` | packets that arrive at one moment are received as one batch; 70% where it is not set |
//! | `unreached=1%` | what was to be copied from process to process of one host ([`Host::sibling`]) goes by packets, as memory is not there for a moment |
//!
//! At a moment of the test's choice:
//!
//! | call | what happens |
//! |---|---|
//! | [`Host::partition`], [`Host::delay_link`], [`Host::heal`] | one direction of a link loses all, or stops; both end |
//! | [`Host::kill`], [`Host::restart`] | the process ends; another begins |
//! | [`Host::sibling`] | another process on the same host |
//! | [`Host::power_fail`] | the same, and of what was not flushed to persistence any words may be gone |
//! | [`Host::fail_flush`] | the n-th flush to persistence fails |
//! | [`Host::fail_queue_pairs`] | its queue pairs go to the error state, as when an adapter fails |
//! | [`Host::refuse_request`] | its system refuses the n-th request for a connection, for a reason |
//! | [`Host::set_faults`] | the table above, from now on |
//! | [`Host::inject_faults`] | the rules of `verbena run --faults` on one host, from now on: completion errors, rejections, ports and devices that go |
//!
//! # An InfiniBand fabric
//!
//! `fabric = "..."` puts the hosts on a fabric with switches, as `verbena fabric` has them: a
//! generator (`fat-tree 2,4`, `torus 3x3`), or a net file, which is also what `ibnetdiscover`
//! prints, by its path from the package on. Parameters are hosts of it by name; `node-01` is
//! `node_01` here. Devices are InfiniBand ports. Packets follow the tables of a subnet manager that
//! has brought the fabric up before the test begins. It learns of what changes up to 2 ms later.
//! [`Host::fabric`] is the fabric, with its cables, rules of loss and counters:
//!
//! ```
//! use verbena::sim::Host;
//!
//! #[verbena::test(seeds = 20, fabric = "fat-tree 2,4")]
//! async fn a_message_passes_the_leaf(host0: Host, host7: Host) -> verbena::Result<()> {
//!     let server = host7.spawn(async { verbena::listen("0.0.0.0:7000").await?.accept().await?.recv().await });
//!     let client = host0.spawn(async { verbena::connect("host7:7000").await?.send_inline(b"hello").await });
//!     client.await?;
//!     server.await?;
//!     let fabric = host0.fabric()?;
//!     let (leaf, port) = fabric.trace("host0", "host7")?.pop().expect("a way");
//!     assert!(fabric.counter(&leaf, port, "PortXmitPkts")? > 0);
//!     Ok(())
//! }
//! ```
//!
//! What `faults` says comes to packets between hosts as well. Of a host with several ports the
//! first has verbs. Groups of [`UdSocket`](crate::UdSocket) are not built there.
//!
//! # Power failures
//!
//! [`Memory::open`](crate::Memory::open) gives a host memory that outlives its process. When the
//! power fails, the process is gone, and of each aligned eight bytes there is what was flushed
//! last, by a peer or by [`Memory::persist`](crate::Memory::persist), or something that was written
//! since: any of them, in any order, as processors write their caches back. [`Host::boot`] says
//! what a host runs whenever it starts. A protocol that tells of a write before it is persistent is
//! found out by some seed:
//!
//! ```
//! use std::{cell::Cell, rc::Rc};
//!
//! use verbena::prelude::*;
//! use verbena::sim::Host;
//! use verbena::{Memory, Placement, RemoteMemory, RemoteWrite};
//!
//! #[verbena::test(seeds = 20)]
//! async fn what_was_flushed_survives(left: Host, right: Host) {
//!     let found = Rc::new(Cell::new(0));
//!     let seen = found.clone();
//!     right.boot(move || {
//!         let seen = seen.clone();
//!         async move {
//!             let memory = Memory::<RemoteWrite>::open("numbers", 4096)?;
//!             seen.set(memory.shared().load::<u64>(0)?);
//!             let request = verbena::listen("0.0.0.0:7000").await?.request().await?;
//!             let mr = memory.mr(request.pd())?;
//!             let conn = request.accept().private_data(mr.remote().to_bytes()).await?;
//!             conn.recv().await.map(drop)
//!         }
//!     });
//!     let written = left.spawn(async {
//!         let conn = verbena::connect("right:7000").await?;
//!         let there = RemoteMemory::from_bytes(conn.private_data())?.slice(..8)?;
//!         conn.write_inline(&7_u64.to_ne_bytes(), there).await?;
//!         conn.flush(there, Placement::Persistent).await // without it: 0 in some seed
//!     });
//!     written.await.unwrap();
//!     right.power_fail();
//!     right.restart();
//!     verbena::time::sleep(std::time::Duration::from_millis(1)).await;
//!     assert_eq!(found.get(), 7);
//! }
//! ```
//!
//! # When a test fails
//!
//! A panic in any task fails the test. So do a deadlock (all tasks wait and nothing will happen any
//! more), the time limit, and tasks that run on and on without time passing; the message lists the
//! tasks that are not over, by host and by the line that spawned them. After it stands what repeats
//! the seed, with every packet on standard error:
//!
//! ```text
//! VERBENA_SEED=17 cargo test -p my-crate my_test -- --exact --nocapture
//! ```
//!
//! `VERBENA_SEEDS=100000` runs all tests on so many seeds instead of their own number.
//!
//! A run that differs each time takes something from outside: the order of a `HashMap`,
//! `Instant::now()`, a thread. [`Host::trace`] shows it; [`time::now`](crate::time::now) and
//! [`Host::seed`] replace it.
//!
//! # Inside
//!
//! | file | what |
//! |---|---|
//! | `world` | the executor |
//! | `task`, `host`, `fabric` | [`Task`], [`Host`], [`Fabric`] |
//! | `hosts` | what stays of a host when its process is killed |
//! | `settings` | the text of the attribute |
//! | `run` | seeds, and the command that repeats one |

mod fabric;
mod host;
mod hosts;
mod run;
mod settings;
mod task;
#[cfg(test)]
mod tests;
mod world;

use std::future::Future;
use std::net::IpAddr;
use std::panic::Location;
use std::task::Waker;
use std::time::Instant;

pub use ::sim::Faults;
/// Makes an async function a test on simulated hosts, one for each of its parameters. See
/// [`sim`](self).
///
/// The function returns nothing, or a `Result` whose error fails the test. Other attributes, such
/// as `#[ignore]` or `#[should_panic]`, keep their meaning. What is wrong in the arguments does not
/// compile:
///
/// ```compile_fail,E0080
/// #[verbena::test(faults = "loss=1")] // loss=1%
/// async fn works(left: verbena::sim::Host) {}
/// ```
///
/// nor a parameter that names nothing, nor a function that is not async:
///
/// ```compile_fail
/// #[verbena::test]
/// fn works(left: verbena::sim::Host) {}
/// ```
pub use macros::test;
use nic::program::Kept;

pub use fabric::Fabric;
pub use host::Host;
pub use run::Outcome;
#[doc(hidden)]
pub use run::{check, check_settings, run_seeds};
pub use task::Task;
pub(crate) use world::Timer;
use world::world;

use crate::error::{Error, ErrorKind, Result, Value};
use crate::provider::Provider;

/// Faults by their text, as in the attribute: `sim::faults("loss=5%, delay=1ms")?`.
///
/// # Errors
///
/// `OutOfRange` with the text and what is wrong with it.
pub fn faults(text: &str) -> Result<Faults> {
    settings::faults(text).map_err(|wrong| {
        let at = text.get(text.len() - wrong.left..).unwrap_or("");
        let value = Value::Text(format!("{}, at `{at}` of `{text}`", wrong.why));
        Error::new(ErrorKind::OutOfRange, "sim::faults").with(value)
    })
}

/// Whether this thread runs a simulation.
pub(crate) fn is_running() -> bool {
    world().is_some()
}

/// The provider of the simulated host whose task is running.
pub(crate) fn current_provider() -> Option<Provider> {
    let world = world()?;
    world.provider(world.current()?)
}

/// The addresses of a host of the simulation by its name, IPv4 first; none where there is no such
/// host.
pub(crate) fn addresses_of(name: &str) -> Vec<IpAddr> {
    let place = world().and_then(|world| world.host_of_name(name));
    place.map_or_else(Vec::new, |place| hosts::addresses(place).to_vec())
}

/// The simulation's time, in one.
pub(crate) fn now() -> Option<Instant> {
    Some(world()?.now())
}

/// In a simulation, has a task woken at a time; in place of the timer that was set before.
pub(crate) fn wake_at(at: Instant, before: Option<Timer>, waker: Kept<Waker>) -> Option<Timer> {
    Some(world()?.wake_at(at, before, waker))
}

/// Takes a timer back, where its simulation is that of this thread.
pub(crate) fn forget(timer: &Timer) {
    world().into_iter().for_each(|world| world.forget(timer));
}

/// A file of the host whose task is running; `None` outside of a simulation.
pub(crate) fn open_file(name: &str, len: usize) -> Option<Result<::sim::Mapped>> {
    let world = world()?;
    let host = world.current().and_then(|process| world.host_of_process(process));
    let text = || "a simulation's code that belongs to no host; see sim::Host::spawn".to_owned();
    let none = || Error::new(ErrorKind::WrongState, "Memory::open").with(Value::Text(text()));
    Some(host.ok_or_else(none).map(|host| world.with_sim(|sim| sim.open_file(host, name, len))))
}

/// Makes bytes of a host's file persistent.
pub(crate) async fn persist(mapped: &::sim::Mapped, range: std::ops::Range<usize>) -> std::io::Result<()> {
    let gone = || std::io::Error::from_raw_os_error(libc::ENOMEM);
    let time = world().ok_or_else(gone)?.with_sim(|sim| sim.begin_flush(mapped.host()));
    crate::time::sleep(time).await;
    let (at, len) = (mapped.first().expose_provenance() as u64 + range.start as u64, range.len() as u64);
    let done = world().ok_or_else(gone)?.with_sim(|sim| sim.end_flush(mapped.host(), at, len));
    done.map_err(|errno| std::io::Error::from_raw_os_error(errno.0))
}

/// Starts a task where the running one is. Gives the task back outside of a simulation.
pub(crate) fn spawn<F: Future<Output: 'static> + 'static>(
    task: F,
    spawned_at: &'static Location<'static>,
) -> Result<(), F> {
    match world() {
        Some(world) => {
            drop(world.spawn(world.current(), spawned_at, task));
            Ok(())
        }
        None => Err(task),
    }
}

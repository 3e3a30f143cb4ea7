//! The executor: one simulation, its processes, tasks and timers, in one thread.
//!
//! ```text
//! loop {
//!     poll the tasks that are awake, those woken first first; after each what waits in `DeferredWork`
//!     let one thing happen in the network, or time pass to the next timer; then what waits in `DeferredWork`
//!     wake the timers that are due
//! }
//! ```
//!
//! User code (polls, drops, work in `DeferredWork`) runs with no borrow of a cell held and the
//! process it belongs to noted as current.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::panic::Location;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use ::fabric::net::Net;
use ::faults::{FaultLink, Spec};
use ::sim::{HostId, ProcessId, Sim, SimEnv};
use nic::DeferredWork;
use nic::program::{Kept, wake_all};

use super::hosts::{HostState, add_hosts};
use super::settings::Settings;
use super::task::{Body, Slot, Task, TaskWaker, Woken};
use crate::provider::{Ours, Provider, SimProcess, Stack};
use crate::thread_safe::ThreadSafe;

/// Tasks that are polled so often without time passing will never stop.
const MAX_POLLS: u32 = 1_000_000;
/// The test function's task.
const MAIN: u64 = 0;

/// A process, living or not.
#[derive(Clone)]
struct Process {
    host: usize,
    id: ProcessId,
    provider: Provider,
    link: Arc<FaultLink>,
}

/// A simulation.
pub(super) struct World {
    /// Different for each of a process, so that a timer is taken out where it was put in.
    number: u64,
    seed: u64,
    limit: Duration,
    pub(super) sim: RefCell<Sim>,
    pub(super) hosts: RefCell<Vec<HostState>>,
    processes: RefCell<Vec<Process>>,
    tasks: RefCell<BTreeMap<u64, Slot>>,
    woken: Arc<Woken>,
    timers: RefCell<BTreeMap<(Duration, u64), Kept<Waker>>>,
    /// Numbers of tasks and timers.
    numbers: Cell<u64>,
    /// The simulation's beginning.
    zero: Instant,
    elapsed: Cell<Duration>,
    /// The process whose code runs: its place in the list.
    current: Cell<Option<usize>>,
    polls: Cell<u32>,
    /// A hash over what was polled and when.
    trace: Cell<u64>,
    /// Nothing begins any more.
    pub(super) ending: Cell<bool>,
}

thread_local! {
    static WORLD: RefCell<Option<Rc<World>>> = const { RefCell::new(None) };
}

/// The simulation that runs in this thread.
pub(super) fn world() -> Option<Rc<World>> {
    // A thread that ends has none.
    WORLD.try_with(|world| world.borrow().clone()).ok().flatten()
}

/// Makes a simulation that of this thread until it is dropped.
pub(super) struct Entered;

impl Entered {
    pub(super) fn new(world: &Rc<World>) -> Self {
        let before = WORLD.replace(Some(world.clone()));
        assert!(before.is_none(), "a simulation does not run inside of another");
        Self
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        WORLD.take();
    }
}

/// Where a timer stands.
#[derive(Debug)]
pub(crate) struct Timer {
    world: u64,
    at: Duration,
    number: u64,
}

impl World {
    pub(super) fn new(
        seed: u64,
        (settings, net): (&Settings<'_>, Option<&Net>),
        names: &[&'static str],
    ) -> Rc<Self> {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        let mut sim = Sim::new(seed, settings.faults);
        if ::sim::seeds::single().is_some() {
            sim.log();
        }
        let ids = add_hosts(&mut sim, seed, net, names);
        let hosts = names
            .iter()
            .zip(ids)
            .enumerate()
            .map(|(at, (name, id))| HostState { name, id, at, process: None, boot: None })
            .collect();
        let world = Rc::new(Self {
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            seed,
            limit: settings.limit,
            hosts: RefCell::new(hosts),
            processes: RefCell::default(),
            tasks: RefCell::default(),
            woken: Arc::default(),
            timers: RefCell::default(),
            numbers: Cell::new(MAIN),
            zero: sim.now(),
            sim: RefCell::new(sim),
            elapsed: Cell::new(Duration::ZERO),
            current: Cell::new(None),
            polls: Cell::new(0),
            trace: Cell::new(0),
            ending: Cell::new(false),
        });
        (0..names.len()).for_each(|host| world.start(host));
        world
    }

    /// Runs everything until the future is ready.
    ///
    /// # Panics
    ///
    /// Where it never will be: everything waits, the time is over, or tasks run on and on without
    /// time passing.
    pub(super) fn run(&self, main: Body, at: &'static Location<'static>) {
        self.add(MAIN, None, at, main);
        while self.tasks.borrow().contains_key(&MAIN) {
            match self.woken.pop() {
                Some(task) => self.poll(task),
                None => self.advance(),
            }
            self.run_later();
        }
    }

    /// Drops all tasks, then kills all processes, so that nothing keeps memory.
    pub(super) fn end(&self) {
        self.ending.set(true);
        while let Some((_, slot)) = self.pop_task() {
            let _here = self.enter(slot.process);
            drop(slot);
        }
        self.run_later();
        let all = self.processes.borrow().clone();
        all.iter().for_each(|process| self.sim.borrow_mut().kill(process.id));
        self.run_later();
        let timers = self.timers.take();
        drop(timers);
        let boots: Vec<_> = self.hosts.borrow_mut().iter_mut().filter_map(|host| host.boot.take()).collect();
        drop(boots);
        // Providers hold nodes, which hold what the simulation's processes share.
        let processes = self.processes.take();
        drop(processes);
    }

    fn pop_task(&self) -> Option<(u64, Slot)> {
        self.tasks.borrow_mut().pop_first()
    }

    fn poll(&self, number: u64) {
        let taken =
            self.tasks.borrow_mut().get_mut(&number).and_then(|slot| {
                Some((slot.process, slot.spawned_at, slot.waker.clone(), slot.body.take()?))
            });
        // A task that is over may be woken still.
        let Some((process, spawned_at, waker, body)) = taken else { return };
        self.note_poll(number);
        let _here = self.enter(process);
        let told = Told { world: self, process, spawned_at };
        let mut body = body;
        waker.sleeps();
        let ready = body.as_mut().poll(&mut Context::from_waker(&Waker::from(waker))).is_ready();
        drop(told);
        if !ready && let Some(slot) = self.tasks.borrow_mut().get_mut(&number) {
            slot.body = Some(body);
            return;
        }
        // It is over, or its process was killed while it ran. What it holds goes first, so that a
        // task that waits for it finds that gone.
        drop(body);
        self.tasks.borrow_mut().remove(&number);
    }

    fn note_poll(&self, number: u64) {
        let polls = self.polls.get() + 1;
        self.polls.set(polls);
        assert!(polls < MAX_POLLS, "tasks run for ever without time passing, {}", self.state());
        let nanos = self.elapsed.get().as_nanos() as u64;
        self.trace.set(
            (self.trace.get() ^ nanos ^ number << 48).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(17),
        );
    }

    /// Lets the next thing happen, as no task is awake.
    fn advance(&self) {
        let timer = self.timers.borrow().first_key_value().map(|((at, _), _)| *at);
        let idle = timer.is_none() && self.sim.borrow_mut().is_idle();
        assert!(!idle, "deadlock: everything waits, and nothing more will happen, {}", self.state());
        let until = timer.map_or(self.limit, |at| at.min(self.limit));
        let (happened, elapsed) = {
            let mut sim = self.sim.borrow_mut();
            (sim.step(until), sim.elapsed())
        };
        if elapsed > self.elapsed.replace(elapsed) {
            self.polls.set(0);
        }
        self.follow_power();
        let due = self.take_timers(elapsed);
        let over = !happened && due.is_empty() && elapsed >= self.limit;
        assert!(!over, "the time limit is over, {}", self.state());
        wake_all(due);
    }

    fn take_timers(&self, elapsed: Duration) -> Vec<Kept<Waker>> {
        let mut timers = self.timers.borrow_mut();
        let later = timers.split_off(&(elapsed + Duration::from_nanos(1), 0));
        std::mem::replace(&mut *timers, later).into_values().collect()
    }

    /// Does what waits until no lock is held, for killed processes too: others may hold objects of
    /// theirs.
    fn run_later(&self) {
        let mut runs = 0;
        while let Some((process, later)) = self.asked_later() {
            runs += 1;
            assert!(runs < MAX_POLLS, "work asks for more for ever, {}", self.state());
            let _here = self.enter(Some(process));
            later.run();
        }
    }

    fn asked_later(&self) -> Option<(usize, Arc<DeferredWork>)> {
        let processes = self.processes.borrow();
        let asked = processes.iter().enumerate().find(|(_, p)| !p.provider.stack().later().is_empty());
        asked.map(|(place, p)| (place, p.provider.stack().later().clone()))
    }

    /// Where everything stands, for the reader of a failed test.
    fn state(&self) -> String {
        let mut text = format!("{:?} into the simulation. Tasks that are not over:", self.elapsed.get());
        for (number, slot) in &*self.tasks.borrow() {
            let what = if *number == MAIN { "the test function" } else { "task spawned" };
            text += &format!("\n  {}: {what} at {}", self.name_of(slot.process), slot.spawned_at);
        }
        text
    }

    fn name_of(&self, process: Option<usize>) -> &'static str {
        let host = process.and_then(|process| Some(self.processes.borrow().get(process)?.host));
        host.map_or("no host", |host| self.host_name(host))
    }

    pub(super) fn enter(&self, process: Option<usize>) -> Here<'_> {
        Here { world: self, before: self.current.replace(process) }
    }

    fn next_number(&self) -> u64 {
        let next = self.numbers.get() + 1;
        self.numbers.set(next);
        next
    }

    fn add(&self, number: u64, process: Option<usize>, spawned_at: &'static Location<'static>, body: Body) {
        let waker = TaskWaker::new(number, self.woken.clone());
        let slot = Slot { process, spawned_at, body: Some(body), waker: waker.clone() };
        self.tasks.borrow_mut().insert(number, slot);
        Waker::from(waker).wake();
    }
}

/// What tasks, hosts and the rest of the crate ask.
impl World {
    pub(super) fn seed(&self) -> u64 {
        self.seed
    }
    pub(super) fn now(&self) -> Instant {
        self.zero + self.elapsed.get()
    }
    pub(super) fn elapsed(&self) -> Duration {
        self.elapsed.get()
    }
    pub(super) fn trace(&self) -> u64 {
        self.sim.borrow().trace() ^ self.trace.get()
    }
    pub(super) fn with_sim<T>(&self, f: impl FnOnce(&mut Sim) -> T) -> T {
        f(&mut self.sim.borrow_mut())
    }
    pub(super) fn current(&self) -> Option<usize> {
        self.current.get()
    }
    pub(super) fn provider(&self, process: usize) -> Option<Provider> {
        self.processes.borrow().get(process).map(|p| p.provider.clone())
    }

    /// Whether tasks of a process run: it lives, or it is that of no host.
    fn may_spawn(&self, process: Option<usize>) -> bool {
        let Some(place) = process else { return !self.ending.get() };
        let host = self.processes.borrow().get(place).map(|p| p.host);
        !self.ending.get() && host.is_some_and(|host| self.living(host) == process)
    }

    /// Starts a task of a process, or of none. Where that does not live, the task is killed at
    /// once.
    pub(super) fn spawn<T: 'static>(
        &self,
        process: Option<usize>,
        spawned_at: &'static Location<'static>,
        future: impl Future<Output = T> + 'static,
    ) -> Task<T> {
        let (task, body) = Task::new(spawned_at, future);
        if self.may_spawn(process) {
            self.add(self.next_number(), process, spawned_at, body);
        }
        task
    }

    /// Starts a process on a host.
    pub(super) fn start(&self, host: usize) {
        let Some(id) = self.host_id(host).filter(|_| !self.ending.get()) else { return };
        let mut faulty = None;
        let over = |env: Arc<SimEnv>| -> Arc<dyn nic::Link> {
            faulty.insert(Arc::new(FaultLink::new(env.clone(), env))).clone()
        };
        let (id, node) = {
            let mut sim = self.sim.borrow_mut();
            let id = sim.start_on(id, &stack::Config::default(), over);
            (id, sim.node(id))
        };
        let (Some(node), Some(link)) = (node, faulty) else { return };
        let provider = Provider::over(Stack::Ours(Ours::Sim(ThreadSafe::new(Arc::new(SimProcess {
            node,
            later: Arc::default(),
        })))));
        let process = {
            let mut processes = self.processes.borrow_mut();
            processes.push(Process { host, id, provider, link });
            processes.len() - 1
        };
        if let Some(host) = self.hosts.borrow_mut().get_mut(host) {
            host.process = Some(process);
        }
        self.boot(host);
    }

    /// Rules for what happens to a process from now on.
    pub(super) fn inject_faults(&self, process: usize, rules: &Spec) {
        let processes = self.processes.borrow();
        if let Some(Process { link, .. }) = processes.get(process) {
            // Processes decide for themselves.
            link.set(rules, self.seed ^ (process as u64) << 32);
        }
    }

    /// The host that a process runs on.
    pub(super) fn host_of_process(&self, process: usize) -> Option<HostId> {
        let host = self.processes.borrow().get(process)?.host;
        self.host_id(host)
    }

    /// Kills the process of a host: first it can say nothing more, then its tasks are dropped.
    pub(super) fn kill(&self, host: usize) {
        let killed = self.hosts.borrow_mut().get_mut(host).and_then(|host| host.process.take());
        let Some(place) = killed else { return };
        let id = self.processes.borrow().get(place).map(|p| p.id);
        id.into_iter().for_each(|id| self.sim.borrow_mut().kill(id));
        let _here = self.enter(killed);
        while let Some(slot) = self.take_task_of(place) {
            drop(slot);
        }
    }

    fn take_task_of(&self, process: usize) -> Option<Slot> {
        let mut tasks = self.tasks.borrow_mut();
        let number =
            tasks.iter().find(|(_, slot)| slot.process == Some(process)).map(|(number, _)| *number)?;
        tasks.remove(&number)
    }

    /// Has a task woken at a time; in place of the timer that was set before, if any.
    pub(super) fn wake_at(&self, at: Instant, before: Option<Timer>, waker: Kept<Waker>) -> Timer {
        before.into_iter().for_each(|timer| self.forget(&timer));
        let at = at.saturating_duration_since(self.zero);
        let timer = Timer { world: self.number, at, number: self.next_number() };
        self.timers.borrow_mut().insert((at, timer.number), waker);
        timer
    }

    /// Takes a timer back.
    pub(super) fn forget(&self, timer: &Timer) {
        if timer.world == self.number {
            let waker = self.timers.borrow_mut().remove(&(timer.at, timer.number));
            drop(waker);
        }
    }
}

/// The code of a process runs.
pub(super) struct Here<'a> {
    world: &'a World,
    before: Option<usize>,
}

impl Drop for Here<'_> {
    fn drop(&mut self) {
        self.world.current.set(self.before);
    }
}

/// Where a panic happened, and when.
struct Told<'a> {
    world: &'a World,
    process: Option<usize>,
    spawned_at: &'static Location<'static>,
}

impl Drop for Told<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let (host, time) = (self.world.name_of(self.process), self.world.elapsed());
            eprintln!(
                "that was on {host}, in the task spawned at {}, {time:?} into the simulation",
                self.spawned_at
            );
        }
    }
}

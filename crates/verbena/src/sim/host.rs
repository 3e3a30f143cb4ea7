//! A simulated host, as a test holds it.

use std::future::Future;
use std::net::IpAddr;
use std::panic::Location;
use std::rc::Rc;
use std::time::Duration;

use ::sim::{Faults, HostId};

use super::fabric::Fabric;
use super::task::Task;
use super::world::World;
use crate::error::{Error, ErrorKind, RejectReason, Result, Value};
use crate::provider::{Ours, Provider, Stack};

/// A host of a simulation, with one process that runs its tasks; [`Host::sibling`] has another
/// one. Clones are the same host. It stays in the thread of its simulation:
///
/// ```compile_fail,E0277
/// fn sent(_: impl Send) {}
/// fn test(host: verbena::sim::Host) {
///     sent(host);
/// }
/// ```
#[derive(Clone)]
pub struct Host {
    world: Rc<World>,
    place: usize,
}

impl Host {
    pub(super) fn new(world: &Rc<World>, place: usize) -> Self {
        Self { world: world.clone(), place }
    }

    /// The host's name: that of the test's parameter. `verbena::connect("left:7000")` knows it.
    pub fn name(&self) -> &'static str {
        self.world.host_name(self.place)
    }

    /// The host's IPv4 address, the one its name stands for.
    pub fn addr(&self) -> IpAddr {
        self.world.addresses_of(self.place)[0]
    }

    /// The host's IPv6 address.
    pub fn addr_v6(&self) -> IpAddr {
        self.world.addresses_of(self.place)[1]
    }

    /// Starts another process on this host: a [`Host`] of the same name and addresses, whose tasks,
    /// kills, restarts and what it boots are its own. The two share ports, files, power and the
    /// network. Over a connection between them nothing is lost, a WRITE or READ is done at once in
    /// the other one's memory where it may be, and long messages are copied from there, as between
    /// processes of one real host.
    pub fn sibling(&self) -> Self {
        let place = self.world.neighbour(self.place);
        Self::new(&self.world, place)
    }

    /// Starts a task on it: [`Provider::current`](crate::Provider::current) is the host's there. A
    /// panic of the task fails the test. On a host that was killed the task is dropped,
    /// unpolled.
    #[track_caller]
    pub fn spawn<T: 'static>(&self, task: impl Future<Output = T> + 'static) -> Task<T> {
        let spawned_at = Location::caller();
        match self.world.living(self.place) {
            Some(process) => self.world.spawn(Some(process), spawned_at, task),
            None => Task::new(spawned_at, task).0,
        }
    }

    /// Kills its process, as SIGKILL does: from now on it says nothing, what it had sent is still
    /// on its way, and its tasks are dropped without being polled again. A task that kills its
    /// own host runs on to its next `.await`, on a dead host.
    ///
    /// Peers learn of it by what they send: the system of the host says that no process has the
    /// port, or, while that is lost too, no answer comes.
    pub fn kill(&self) {
        self.world.kill(self.place);
    }

    /// What this host runs whenever it starts: now, where its process lives, at each
    /// [`Host::restart`], and when its power is back ([`Faults::power_fail`]). In place of what
    /// was said before. What the task returns is dropped; a panic fails the test.
    #[track_caller]
    pub fn boot<F: Future<Output: 'static> + 'static>(&self, task: impl Fn() -> F + 'static) {
        let spawned_at = Location::caller();
        let boot = move |world: &World, process| drop(world.spawn(Some(process), spawned_at, task()));
        self.world.set_boot(self.place, Rc::new(boot));
    }

    /// Fails the host's power: its process, and that of each neighbour, is gone as by
    /// [`Host::kill`], and of what its files ([`Memory::open`](crate::Memory::open)) had that was
    /// not flushed any words may be. [`Host::restart`] starts it again.
    pub fn power_fail(&self) {
        self.world.power_fail(self.place);
    }

    /// The `nth` flush to persistence on this host from now on fails (1: the next): a peer gets
    /// [`RemoteOperation`](crate::WcStatus::RemoteOperation),
    /// [`Memory::persist`](crate::Memory::persist) an error.
    pub fn fail_flush(&self, nth: u64) {
        let id = self.world.host_id(self.place);
        id.into_iter().for_each(|id| self.world.with_sim(|sim| sim.fail_flush(id, nth)));
    }

    /// What of a file of its own a loss of power would surely leave; `None` where there is none of
    /// that name.
    pub fn persistent(&self, name: &str) -> Option<Vec<u8>> {
        let id = self.world.host_id(self.place)?;
        self.world.with_sim(|sim| sim.persistent(id, name))
    }

    /// Starts a new process, with nothing of the one before, which is killed if it lives.
    pub fn restart(&self) {
        self.kill();
        self.world.start(self.place);
    }

    /// Whether its process lives.
    pub fn is_alive(&self) -> bool {
        self.world.living(self.place).is_some()
    }

    /// All queue pairs of its process fail, as when its adapter has an error: what is under way
    /// completes as [`Flushed`](crate::WcStatus::Flushed), connections end, and peers are told.
    /// New ones may be made.
    pub fn fail_queue_pairs(&self) {
        self.with_node(|node| {
            let now = stack::Env::now(&**node.env());
            node.devices().iter().flat_map(|device| device.qps()).for_each(|qp| qp.fail(now));
        });
    }

    /// The system of this host refuses the `nth` connection request that comes from now on (1: the
    /// next), for this reason, before its program sees it; the peer that asks gets
    /// [`ErrorKind::Rejected`](crate::ErrorKind::Rejected) without private data. Several may be
    /// said at once, each with its number. A host's name stands for two addresses, tried in turn:
    /// by [`Host::addr`] there is one request. A request that comes twice, as its answer was lost,
    /// counts once. The rules end with the process.
    pub fn refuse_request(&self, nth: u64, reason: RejectReason) {
        self.with_node(|node| node.refuse_request(nth, reason.refusal()));
    }

    /// Calls the node of the process that lives, as one of its tasks would.
    fn with_node(&self, f: impl FnOnce(&stack::Node<::sim::SimEnv>)) {
        let provider = self.world.living(self.place).and_then(|process| self.world.provider(process));
        if let Some(Stack::Ours(Ours::Sim(process))) = provider.as_ref().map(Provider::stack) {
            f(&process.node);
        }
    }

    /// Brings faults about on this host by rules, those of `verbena run --faults`, from now on and
    /// in place of rules given before. The seed of the simulation decides. Times count from now on,
    /// and what is counted is counted from now on. The rules end with the process. They concern
    /// no connection to a [`sibling`](Host::sibling), whose packets cross no network.
    ///
    /// # Errors
    ///
    /// `OutOfRange` with what is wrong, and where.
    ///
    /// # Examples
    ///
    /// ```
    /// # macro_rules! run {
    /// #     (#[verbena::test($($args:tt)*)]
    /// #     async fn $name:ident($a:ident: Host, $b:ident: Host) $body:block) => {
    /// #         async fn $name($a: Host, $b: Host) $body
    /// #         let (args, hosts) = (stringify!($($args)*), [stringify!($a), stringify!($b)]);
    /// #         verbena::sim::run_seeds("", stringify!($name), args, &hosts, |hosts| {
    /// #             Box::pin($name(hosts[0].clone(), hosts[1].clone()))
    /// #         });
    /// #     };
    /// # }
    /// use verbena::WcStatus;
    /// use verbena::sim::Host;
    /// # run! {
    /// #[verbena::test(seeds = 2)]
    /// async fn the_third_message_fails(left: Host, right: Host) {
    ///     right.spawn(async {
    ///         let conn = verbena::listen("0.0.0.0:7000").await?.accept().await?;
    ///         while conn.recv().await?.is_some() {}
    ///         Ok::<_, verbena::Error>(())
    ///     });
    ///     left.inject_faults("delay=1ms,jitter=500us; error=rem-access,op=send,nth=3").unwrap();
    ///     let client = left.spawn(async {
    ///         let conn = verbena::connect("right:7000").await?;
    ///         for n in 1..=3_u8 {
    ///             let sent = conn.send_inline(&[n]).await;
    ///             let status = sent.err().and_then(|error| error.status());
    ///             assert_eq!(status, (n == 3).then_some(WcStatus::RemoteAccess));
    ///         }
    ///         Ok::<_, verbena::Error>(())
    ///     });
    ///     client.await.unwrap();
    /// }
    /// # }
    /// ```
    pub fn inject_faults(&self, rules: &str) -> Result<()> {
        let wrong = |error: ::faults::SpecError| {
            Error::new(ErrorKind::OutOfRange, "Host::inject_faults").with(Value::Text(error.to_string()))
        };
        let rules = rules.parse().map_err(wrong)?;
        if let Some(process) = self.world.living(self.place) {
            self.world.inject_faults(process, &rules);
        }
        Ok(())
    }

    /// Loses all packets from this host to `to` for `time` from now on. The other direction works.
    ///
    /// # Examples
    ///
    /// ```
    /// # macro_rules! run {
    /// #     (#[verbena::test($($args:tt)*)]
    /// #     async fn $name:ident($a:ident: Host, $b:ident: Host) $body:block) => {
    /// #         async fn $name($a: Host, $b: Host) $body
    /// #         let (args, hosts) = (stringify!($($args)*), [stringify!($a), stringify!($b)]);
    /// #         verbena::sim::run_seeds("", stringify!($name), args, &hosts, |hosts| {
    /// #             Box::pin($name(hosts[0].clone(), hosts[1].clone()))
    /// #         });
    /// #     };
    /// # }
    /// use std::time::Duration;
    /// use verbena::sim::Host;
    /// # run! {
    /// #[verbena::test(seeds = 2)]
    /// async fn messages_outlast_a_partition(left: Host, right: Host) {
    ///     let server = right.spawn(async { verbena::listen("0.0.0.0:7000").await?.accept().await?.recv().await });
    ///     left.spawn(async {
    ///         let conn = verbena::connect("right:7000").await?;
    ///         conn.send_inline(b"hello").await?;
    ///         conn.close().await
    ///     });
    ///     left.partition(&right, Duration::from_millis(3));
    ///     assert_eq!(&server.await.unwrap().unwrap()[..], b"hello");
    /// }
    /// # }
    /// ```
    pub fn partition(&self, to: &Self, time: Duration) {
        self.link(to, |sim, from, to| sim.partition(from, to, time));
    }

    /// Holds up all packets from this host to `to` for `time` from now on. Then they arrive in
    /// order.
    pub fn delay_link(&self, to: &Self, time: Duration) {
        self.link(to, |sim, from, to| sim.clog(from, to, time));
    }

    fn link(&self, to: &Self, f: impl FnOnce(&mut ::sim::Sim, HostId, HostId)) {
        if let (Some(from), Some(to)) = (self.world.host_id(self.place), self.world.host_id(to.place)) {
            self.world.with_sim(|sim| f(sim, from, to));
        }
    }

    /// The InfiniBand fabric that the hosts of the test are on.
    ///
    /// # Errors
    ///
    /// `WrongState` in a test without `fabric = "..."`.
    pub fn fabric(&self) -> Result<Fabric> {
        Fabric::new(&self.world).ok_or_else(|| Error::new(ErrorKind::WrongState, "Host::fabric"))
    }

    /// Ends all partitions and delays of links of the network.
    pub fn heal(&self) {
        self.world.with_sim(::sim::Sim::heal);
    }

    /// What may happen to packets of the network.
    pub fn faults(&self) -> Faults {
        self.world.with_sim(|sim| sim.faults())
    }

    /// What may happen to all packets of the network that are sent from now on;
    /// [`faults`](super::faults) reads a text.
    pub fn set_faults(&self, faults: Faults) {
        self.world.with_sim(|sim| sim.set_faults(faults));
    }

    /// The simulation's seed, for random choices of the test's own.
    pub fn seed(&self) -> u64 {
        self.world.seed()
    }

    /// Virtual time since the beginning of the simulation.
    pub fn elapsed(&self) -> Duration {
        self.world.elapsed()
    }

    /// A hash over all that has happened in the simulation and when, packets and polls of tasks:
    /// equal in two runs where all was equal. Where it differs between two runs of one seed,
    /// the code under test takes something from outside of the simulation, such as the order of
    /// a `HashMap`, the time of day, or a thread.
    pub fn trace(&self) -> u64 {
        self.world.trace()
    }
}

impl std::fmt::Debug for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Host({})", self.name())
    }
}

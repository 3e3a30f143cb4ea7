//! An rsocket, and what happens to it when no call is under way: the connection manager and the
//! adapter signal it, and whichever thread brought the event takes it in when it holds no lock.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use linux::LinuxEnv;
use linux::eventfd::Counter;
use locks::{Mutex, MutexGuard, Rank};
use nic::{Errno, Pd, Signal, Work};
use rsocket::{How, Memory, Owner, Phase, Readiness, Request, Settings, Socket};

use crate::instance::Instance;
use crate::rsocket::datagram::Datagram;
use crate::rsocket::memory::{Mapped, Region};
use crate::rsocket::mirror::Mirror;
use crate::rsocket::options::Options;
use crate::rsocket::set::Set;
use crate::rsocket::waiting;

/// Connections that wait at a listener to be accepted, at most.
const MAX_BACKLOG: usize = nic::rdma_cm::MAX_BACKLOG;

/// An rsocket.
pub(crate) struct Rsocket {
    me: Weak<Self>,
    pub(super) instance: Arc<Instance>,
    pub(super) nonblocking: AtomicBool,
    pub(super) is_datagram: bool,
    state: Mutex<State>,
}

/// What its lock protects.
pub(super) struct State {
    /// `None` once it is closed, and for datagrams.
    pub(super) socket: Option<Socket<LinuxEnv>>,
    /// Likewise, of datagrams.
    pub(super) datagram: Option<Datagram>,
    pub(super) options: Options,
    pub(super) mirror: Option<Mirror>,
    /// Sets of epoll(7) that have its descriptor, and whether one is edge-triggered.
    pub(super) sets: Vec<(Arc<Set>, c_int)>,
    pub(super) edge: bool,
    /// Writes that found too little room.
    pub(super) refusals: u64,
    /// [`State::arrivals`] that the descriptor's watchers were told of.
    told: u64,
    /// Counters of threads that wait for a change.
    waiters: Vec<Counter>,
    /// Of a listener: connections that are accepted, and were ever; that come about; how many may.
    pub(super) accepted: VecDeque<Arc<Rsocket>>,
    ever_accepted: u64,
    arriving: Vec<Arc<Rsocket>>,
    pub(super) backlog: usize,
    /// Memory that the peer may write to.
    pub(super) mapped: Vec<Mapped>,
    /// Of a connection that comes about: the listener.
    listener: Option<Weak<Rsocket>>,
    /// The descriptor is closed, and what was written is still under way; what ends it then.
    lingers: Option<fn(&Arc<Rsocket>)>,
    /// Bytes that wait for more leave before long.
    pub(super) is_push_due: bool,
}

/// What a set of epoll(7) is told of an rsocket.
#[derive(Clone, Copy, Default)]
pub(super) struct Watched {
    pub(super) ready: Readiness,
    /// Bytes or connections that have come, and writes that found too little room, so far.
    pub(super) arrivals: u64,
    pub(super) refusals: u64,
}

/// What the connection manager and the adapter know of an rsocket.
struct Hook {
    rsocket: Weak<Rsocket>,
    instance: Arc<Instance>,
}

impl Signal for Hook {
    fn signal(&self) {
        // Never the last share: that one would end the connection, and locks are held here.
        if let Some(rsocket) = self.rsocket.upgrade() {
            self.instance.host.later().add(rsocket);
        }
    }
    fn take_back(&self) {}
}

impl Owner for Hook {
    fn signal(&self) -> Box<dyn Signal> {
        Box::new(Self { rsocket: self.rsocket.clone(), instance: self.instance.clone() })
    }
    fn memory(&self, pd: &Arc<Pd>, len: usize, access: u32) -> Result<Box<dyn Memory>, nic::Error> {
        Ok(Box::new(Region::new(pd, len, access)?))
    }
    fn now(&self) -> Instant {
        self.instance.host.just_now()
    }
}

impl Work for Rsocket {
    fn run(self: Arc<Self>) {
        let (listener, is_listener, end) = {
            let mut state = self.lock();
            let (is_listener, listener) = state.step();
            state.settle(true);
            (listener, is_listener, state.has_lingered())
        };
        if let Some(end) = end {
            return end(&self);
        }
        if is_listener {
            self.take_requests();
        }
        if let Some(listener) = listener.and_then(|listener| listener.upgrade()) {
            listener.has_come(&self);
        }
    }
}

impl Rsocket {
    /// An rsocket of nothing yet.
    pub(super) fn new(instance: &Arc<Instance>, settings: Settings, options: Options) -> Arc<Self> {
        let rsocket = Self::empty(instance, options, false);
        let socket = Socket::new(instance.node(), rsocket.hook(), settings);
        rsocket.lock().socket = Some(socket);
        rsocket
    }

    /// An rsocket of datagrams.
    pub(super) fn datagram(
        instance: &Arc<Instance>,
        settings: Settings,
        options: Options,
    ) -> Result<Arc<Self>, Errno> {
        let rsocket = Self::empty(instance, options, true);
        let datagram = Datagram::new(&rsocket, instance, options.domain, settings)?;
        rsocket.lock().datagram = Some(datagram);
        Ok(rsocket)
    }

    fn empty(instance: &Arc<Instance>, options: Options, is_datagram: bool) -> Arc<Self> {
        let state = State {
            socket: None,
            datagram: None,
            options,
            mirror: None,
            sets: Vec::new(),
            edge: false,
            refusals: 0,
            told: 0,
            waiters: Vec::new(),
            accepted: VecDeque::new(),
            ever_accepted: 0,
            arriving: Vec::new(),
            backlog: 0,
            mapped: Vec::new(),
            listener: None,
            lingers: None,
            is_push_due: false,
        };
        Arc::new_cyclic(|me| Self {
            me: me.clone(),
            instance: instance.clone(),
            nonblocking: AtomicBool::new(false),
            is_datagram,
            state: Mutex::new(Rank::Rsocket, state),
        })
    }

    pub(super) fn hook(&self) -> Arc<dyn Owner> {
        Arc::new(Hook { rsocket: self.me.clone(), instance: self.instance.clone() })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    pub(super) fn is_nonblocking(&self) -> bool {
        self.nonblocking.load(Ordering::Relaxed)
    }

    /// Accepts the requests that there is room for.
    pub(super) fn take_requests(self: &Arc<Self>) {
        loop {
            let (request, settings, options) = {
                let mut state = self.lock();
                if state.accepted.len() + state.arriving.len() >= state.backlog {
                    return;
                }
                let options = state.options.inherited();
                let Some(socket) = &mut state.socket else { return };
                let Some(request) = socket.next_request() else { return };
                (request, socket.settings, options)
            };
            self.accept(request, settings, options);
        }
    }

    fn accept(self: &Arc<Self>, request: Request, settings: Settings, options: Options) {
        let child = Self::empty(&self.instance, options, false);
        let Ok(mut socket) = Socket::accept(self.instance.node(), child.hook(), settings, request) else {
            return;
        };
        socket.set_no_delay(options.no_delay);
        // Before another thread can find that it has come.
        self.lock().arriving.push(child.clone());
        {
            let mut state = child.lock();
            state.socket = Some(socket);
            state.listener = Some(Arc::downgrade(self));
        }
        // What was signalled before there was a socket.
        child.run();
    }

    /// A connection has come about, or has failed.
    fn has_come(&self, child: &Arc<Self>) {
        let is_up = child.lock().socket.as_ref().is_some_and(|socket| socket.phase() == Phase::Connected);
        let mut state = self.lock();
        let Some(at) = state.arriving.iter().position(|arriving| Arc::ptr_eq(arriving, child)) else {
            return;
        };
        let child = state.arriving.swap_remove(at);
        if is_up && state.socket.is_some() {
            state.accepted.push_back(child);
            state.ever_accepted += 1;
            state.settle(true);
            return;
        }
        // A connection that ends here takes other locks.
        drop(state);
        drop(child);
    }

    /// Calls `attempt` until it has something to say: at once, or after waits for a change, until
    /// `until`.
    ///
    /// # Errors
    ///
    /// EAGAIN where it may not wait (`wait`) or the time is over; EINTR; what `attempt` says.
    pub(super) fn block<T>(
        &self,
        wait: bool,
        until: Option<Instant>,
        mut attempt: impl FnMut(&mut State) -> Option<Result<T, Errno>>,
    ) -> Result<T, Errno> {
        let mut once = || {
            let mut state = self.lock();
            state.take_completions();
            let done = attempt(&mut state);
            state.settle(false);
            done
        };
        let done = 'done: {
            if let Some(done) = once() {
                break 'done done;
            }
            let mut found = None;
            if !wait {
                // A program that does not wait may be polling.
                self.instance.host.poll();
                self.instance.host.later().run();
                break 'done once().unwrap_or(Err(Errno::EAGAIN));
            }
            loop {
                waiting::spin(&self.instance, || {
                    found = once();
                    found.is_some()
                });
                if let Some(done) = found.take() {
                    break 'done done;
                }
                if until.is_some_and(|until| Instant::now() >= until) {
                    break 'done Err(Errno::EAGAIN);
                }
                let counter = waiting::counter()?;
                self.lock().waiters.push(counter.clone());
                // What came before the counter was listed.
                let slept = match once() {
                    Some(done) => Some(done),
                    None => waiting::sleep(&self.instance, &counter, &mut Vec::new(), until).err().map(Err),
                };
                self.forget_waiter(&counter);
                if let Some(done) = slept {
                    break 'done done;
                }
            }
        };
        self.instance.host.later().run();
        done
    }

    /// A thread waits for a change.
    pub(super) fn add_waiter(&self, counter: &Counter) {
        self.lock().waiters.push(counter.clone());
    }

    pub(super) fn forget_waiter(&self, counter: &Counter) {
        self.lock().waiters.retain(|waiter| waiter.id() != counter.id());
    }

    /// What sets of epoll(7) are told now.
    pub(super) fn watched(&self) -> Watched {
        let mut state = self.lock();
        if let Some(socket) = &mut state.socket {
            socket.take_completions();
        }
        state.watched()
    }

    /// What its descriptor has told sets of the kernel's.
    pub(super) fn told(&self) -> Watched {
        let state = self.lock();
        let ready = state.mirror.as_ref().map(Mirror::shown).unwrap_or_default();
        Watched { ready, arrivals: state.told, refusals: state.refusals }
    }

    /// The descriptor is closed: no set has it any more.
    pub(super) fn leave_sets(&self) {
        let mut state = self.lock();
        std::mem::take(&mut state.sets).into_iter().for_each(|(set, fd)| set.forget(fd));
    }

    /// Tells the peer that nothing more is written or read.
    pub(super) fn say_goodbye(&self) {
        if let Some(socket) = &mut self.lock().socket {
            // An error says that there is no connection.
            _ = socket.shutdown(How::Both);
        }
    }

    /// The descriptor is no more, and neither is memory of the program that the peer may write to.
    /// What was written goes on, and `end` is called when it has arrived; true where it has by now.
    pub(super) fn linger(&self, end: fn(&Arc<Self>)) -> bool {
        let mut state = self.lock();
        state.lingers = Some(end);
        let gone = (state.mirror.take(), std::mem::take(&mut state.mapped));
        let has_arrived = state.has_lingered().is_some();
        drop(state);
        drop(gone);
        has_arrived
    }

    /// Ends it: what was written arrives, as far as that takes no longer than `most`; true where it
    /// has, or can not any more. Else [`Rsocket::linger`] or [`Rsocket::end`] follows.
    pub(super) fn close(&self, most: Duration) -> bool {
        self.say_goodbye();
        let until = Instant::now() + most;
        let flushed = loop {
            let done = self.block(true, Some(until), |state| state.is_flushed().then_some(Ok(())));
            if done != Err(Errno::EINTR) {
                break done.is_ok();
            }
        };
        if flushed {
            self.end();
        }
        flushed
    }

    /// The connection is no more, and neither is the descriptor.
    pub(super) fn end(&self) {
        let mut state = self.lock();
        let gone = (
            state.socket.take(),
            state.datagram.take(),
            state.take_waiting(),
            state.mirror.take(),
            std::mem::take(&mut state.mapped),
        );
        state.wake();
        drop(state);
        drop(gone);
        self.instance.host.later().run();
    }
}

impl State {
    /// The socket of a byte stream. EOPNOTSUPP for datagrams, EBADF where it is closed.
    pub(super) fn stream_socket(&mut self) -> Result<&mut Socket<LinuxEnv>, Errno> {
        let error = if self.datagram.is_some() { Errno::EOPNOTSUPP } else { Errno::EBADF };
        self.socket.as_mut().ok_or(error)
    }

    /// Takes in what has come, for a call that looks at it.
    pub(super) fn take_completions(&mut self) {
        if let Some(socket) = &mut self.socket {
            socket.take_completions();
        } else if let Some(datagram) = &mut self.datagram {
            datagram.engine.take_completions();
        }
    }

    /// Takes in what has happened. Whether it listens, and the listener of a connection that has
    /// come about by that.
    fn step(&mut self) -> (bool, Option<Weak<Rsocket>>) {
        if let Some(datagram) = &mut self.datagram {
            datagram.engine.step();
        }
        let Some(socket) = &mut self.socket else { return (false, None) };
        socket.step();
        let has_come = socket.phase() != Phase::Accepting;
        (socket.phase() == Phase::Listening, if has_come { self.listener.take() } else { None })
    }

    /// Where its descriptor is closed and what was written has arrived since: what ends it.
    fn has_lingered(&mut self) -> Option<fn(&Arc<Rsocket>)> {
        self.lingers.filter(|_| self.is_flushed())
    }

    fn is_flushed(&mut self) -> bool {
        match &self.datagram {
            Some(datagram) => datagram.engine.is_flushed(),
            None => self.socket.as_mut().is_none_or(Socket::is_flushed),
        }
    }

    /// What poll(2) says.
    pub(super) fn readiness(&mut self) -> Readiness {
        if let Some(datagram) = &self.datagram {
            return datagram.engine.readiness();
        }
        let accepted = !self.accepted.is_empty();
        match &mut self.socket {
            Some(socket) if socket.phase() == Phase::Listening => {
                Readiness { readable: accepted, ..Readiness::default() }
            }
            Some(socket) => socket.readiness(),
            None => Readiness { readable: true, writable: true, hup: true, ..Readiness::default() },
        }
    }

    /// Shows what has changed to threads that wait and to the descriptor's watchers. `came`:
    /// something came from outside.
    pub(super) fn settle(&mut self, came: bool) {
        if let Some(datagram) = &mut self.datagram {
            datagram.count();
        }
        if came {
            self.wake();
        }
        if !self.sets.is_empty() {
            self.show_sets();
        }
    }

    /// Bytes of a connection, connections of a listener, or datagrams, that have come so far.
    fn arrivals(&mut self) -> u64 {
        if let Some(datagram) = &self.datagram {
            return datagram.engine.arrivals();
        }
        let stream = self.socket.as_mut().and_then(Socket::stream);
        stream.map_or(self.ever_accepted, |(stream, _)| stream.received_bytes())
    }

    fn wake(&mut self) {
        for waiter in self.waiters.drain(..) {
            waiter.signal();
        }
    }

    /// Has the descriptor be ready for what the rsocket is ready for.
    pub(super) fn show(&mut self) {
        let Watched { ready, arrivals, .. } = self.watched();
        let again = self.edge && arrivals != self.told;
        self.told = arrivals;
        if let Some(mirror) = &mut self.mirror {
            mirror.show(ready, again);
        }
    }

    /// What sets of epoll(7) are told.
    fn watched(&mut self) -> Watched {
        let ready = self.readiness();
        let is_connected = self.socket.as_ref().is_some_and(|socket| socket.phase() == Phase::Connected);
        // The end of a descriptor is for good, and a socket that failed may be connected anew.
        let ready = match is_connected {
            true => Readiness { error: false, ..ready },
            false => Readiness { read_hup: false, hup: false, error: false, ..ready },
        };
        Watched { ready, arrivals: self.arrivals(), refusals: self.refusals }
    }

    /// The connections of a listener that were not accepted yet.
    pub(super) fn take_waiting(&mut self) -> Vec<Arc<Rsocket>> {
        let arriving = std::mem::take(&mut self.arriving);
        std::mem::take(&mut self.accepted).into_iter().chain(arriving).collect()
    }

    /// Listens with room for so many connections.
    pub(super) fn set_backlog(&mut self, backlog: c_int) {
        self.backlog = usize::try_from(backlog).unwrap_or(0).clamp(1, MAX_BACKLOG);
    }
}

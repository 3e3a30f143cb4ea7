//! What an event makes the engine do, by its [`Source`].

use std::panic::catch_unwind;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Instant;

use local::Drained;
use local::lease::LEASE_NANOS;
use nic::Work;
use stack::env::Datagram;
use stack::{Input, InputHandler};
use sys::Room;
use wire::Endpoint;

use super::{Engine, Gone, READS_PER_EVENT, STREAM_NANOS};
use crate::counters::add;
use crate::env::LinuxEnv;
use crate::fabric::{FabricHost, MadPort, News, Said};
use crate::leased::Leased;
use crate::management::Management;
use crate::names::{Answer, Connection, Listener, Message, More, NameOwner};
use crate::reactor::Source;
use crate::rx_socket::{Delivery, RxSocket};
use crate::tcp::TcpStream;

/// The other end of a connection is gone (epoll(7)).
const ENDED: u32 = (libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR) as u32;

impl<G: InputHandler> Engine<G> {
    /// An event of epoll(7): its bits, and the token of its source.
    pub(super) fn event(&mut self, events: u32, token: u64) {
        let env = self.env.clone();
        // Removed since the event: nothing to do.
        let Some(source) = env.reactor.get(token) else { return };
        match source {
            Source::WakeFd => self.wake_fd(),
            Source::Interfaces => self.interfaces(),
            Source::Fabric(token, fabric) => self.fabric(token, &fabric),
            Source::MadPort(token, port) => self.mads(token, &port),
            Source::Neighbours => env.neighbours.follow(),
            Source::Receive(socket) => self.packets(events, &socket),
            Source::Frames(socket) => {
                self.guarded(|handler| socket.drain(READS_PER_EVENT, handler, &env.counters));
            }
            Source::Send(socket) => {
                self.guarded(|handler| socket.report_errors(handler, &env.counters));
            }
            Source::Listener(listener) => self.accept(listener),
            Source::Connection(connection) => self.read_connection(&connection),
            Source::NameOwner(owner) if events & ENDED == 0 => self.read_owner(&owner),
            Source::NameOwner(owner) => self.owner_ended(owner),
            Source::Stream(stream) => self.stream(events, &stream),
            Source::StreamListener(listener) => {
                self.guarded(|handler| listener.accept(handler));
            }
            Source::Service(work) => self.serve(&work),
            Source::Inspected(inspected) => self.unanswered = Some(inspected).filter(|asked| !asked.answer()),
        }
    }

    /// Messages wait at the UDP socket of a datagram rsocket.
    fn serve(&self, work: &Weak<dyn Work>) {
        if let Some(work) = work.upgrade() {
            self.guarded(|_| work.run());
        }
    }

    /// A thread of the program rang, perhaps because the process is about to end and all that came
    /// is to be read.
    fn wake_fd(&self) {
        let env = &self.env;
        env.alarm.wake_fd.drain();
        if env.sweep_asked.load(Ordering::Acquire) {
            self.guarded(|handler| {
                let to = env.delivery(handler);
                env.rings.drain_all(&to.of_rings());
                env.rx_sockets.drain_all(&to);
            });
            env.sweep_asked.store(false, Ordering::Release);
        }
    }

    /// Links or addresses have changed.
    fn interfaces(&mut self) {
        let env = self.env.clone();
        if let Some(known) = env.interfaces.follow(&env.requests) {
            env.rx_sockets.follow(&known, &env.opener());
            env.tx.retain(|address| known.bearing(address, 0).is_some(), &env.reactor);
            self.guarded(|handler| handler.input(Instant::now(), Input::Interfaces(&known.list)));
        }
    }

    /// The fabric says how the ports of this host are now, or has ended. Devices without a fabric
    /// have failed.
    fn fabric(&mut self, token: u64, fabric: &FabricHost) {
        let env = self.env.clone();
        match fabric.news() {
            News::Ports(ports) => {
                if let Some(known) = env.interfaces.set(ports) {
                    self.guarded(|handler| handler.input(Instant::now(), Input::Interfaces(&known.list)));
                }
            }
            News::Nothing => {}
            News::Ended => {
                env.reactor.remove(token, fabric);
                let _ = catch_unwind(env.config.on_failure);
            }
        }
    }

    /// A management datagram has come to QP1 of a port of a fabric's host.
    fn mads(&mut self, token: u64, port: &MadPort) {
        match port.hear() {
            Said::Mad(mad) => {
                let input = Input::Mad { interface: port.interface, bytes: &mad[..] };
                self.guarded(|handler| handler.input(Instant::now(), input));
            }
            Said::Nothing => {}
            Said::Ended => self.env.reactor.remove(token, port),
        }
    }

    /// Packets wait at a socket, or an error does.
    fn packets(&mut self, events: u32, socket: &Arc<RxSocket>) {
        let env = self.env.clone();
        let readable = events & libc::EPOLLIN as u32 != 0;
        let (shared, found_at) = (socket.lease.is_shared(), env.clock.now());
        if readable && !shared && socket.lease.ends_at(found_at).is_some() {
            return self.leave_to_poller(socket.clone());
        }
        let polled_at = env.rx_sockets.polled_at();
        let mut drained = Drained::Empty;
        self.guarded(|handler| {
            let to = env.delivery(handler);
            drained = match shared {
                true => socket.drain_in_turn(READS_PER_EVENT, &to),
                false => socket.drain(READS_PER_EVENT, None, &to),
            };
        });
        match drained {
            Drained::Some { bulk } => {
                let now = env.clock.now();
                socket.lease.engine_found(found_at, polled_at);
                env.rx_sockets.delivered_by_engine(socket, now);
                self.has_read(now, bulk, found_at.saturating_sub(polled_at) < LEASE_NANOS);
            }
            // Its thread may have found it empty before this packet came.
            Drained::Busy => self.leave_to_poller(socket.clone()),
            Drained::Empty => {}
        }
    }

    /// Something has come by a stream, or there is room.
    fn stream(&mut self, events: u32, stream: &Arc<TcpStream>) {
        let env = self.env.clone();
        let (found_at, polled_at) = (env.clock.now(), env.streams.polled_at());
        let is_leased = !stream.lease.is_shared() && stream.lease.ends_at(found_at).is_some();
        let mut drained = Drained::Empty;
        self.guarded(|handler| drained = stream.serve(events, is_leased, handler, &env.reactor));
        match drained {
            Drained::Some { bulk } => {
                let now = env.clock.now();
                stream.lease.engine_found(found_at, polled_at);
                env.streams.delivered_by_engine(stream, now);
                self.has_read(now, bulk, found_at.saturating_sub(polled_at) < LEASE_NANOS);
            }
            Drained::Busy => self.leave_to_poller(stream.clone()),
            Drained::Empty => {}
        }
    }

    /// The engine read something: it stays awake behind bulk, and behind what comes one after the
    /// other where no thread polls.
    fn has_read(&mut self, now: u64, bulk: bool, is_polled: bool) {
        if bulk || !is_polled && now.saturating_sub(self.read_at) < STREAM_NANOS {
            self.stay_awake(now);
        }
        self.read_at = now;
    }

    /// Leaves a socket to a thread that polls: the engine waits for nothing there while its lease
    /// runs.
    fn leave_to_poller(&mut self, socket: Arc<dyn Leased>) {
        self.awake_until = 0;
        socket.lease().renew(self.env.clock.now().max(1));
        socket.disarm(&self.env.reactor);
        if !self.leased.iter().any(|leased| leased.token() == socket.token()) {
            self.leased.push(socket);
            self.leased_since = self.env.clock.now();
            self.leases_at = self.leased_since + LEASE_NANOS;
        }
    }

    /// Accepts some of the connections to a name, and notes where there are more.
    pub(super) fn accept(&mut self, listener: Arc<Listener>) {
        let mut more = listener.accept(&self.env.reactor);
        while more == More::NoDescriptor && self.env.give_up_socket() {
            more = listener.accept(&self.env.reactor);
        }
        // The system does not say when one is free again.
        self.no_descriptor |= more == More::NoDescriptor;
        let known = self.asked.iter().any(|asked| asked.token() == listener.token());
        if more != More::None && !known {
            self.asked.push(listener);
        }
    }

    /// A process that sends to our name has written to its connection, or closed it.
    fn read_connection(&mut self, connection: &Arc<Connection>) {
        let env = self.env.clone();
        let mut room = std::mem::replace(&mut self.room, Room::new(0));
        let mut open = true;
        self.guarded(|handler| {
            let to = env.delivery(handler);
            open = connection.read(READS_PER_EVENT, &mut room, &env.counters, |message| match message {
                Message::Packet(datagram) => forwarded(datagram, &env, &to),
                Message::Ring(memory, nonce) => {
                    if env.rings.add((&memory, nonce), connection.clone(), &*env).is_err() {
                        connection.decline_ring();
                    }
                }
                Message::HandedOver(datagram) => handed_over(datagram, connection, &env, &to),
            });
            if !open {
                env.rings.remove(connection.token(), &to.of_rings());
            }
        });
        self.room = room;
        if !open {
            connection.close(&env.reactor);
        }
    }

    /// A process to whose name we send has answered.
    fn read_owner(&self, owner: &NameOwner) {
        let env = &self.env;
        match owner.hear() {
            Some(Answer::NoRing) => env.rings.declined(owner, &**env),
            Some(Answer::WakeFd(wake_fd)) => env.rings.given(owner, wake_fd),
            Some(Answer::Export(tables, identity)) => env.rings.import(owner, &tables, identity, &**env),
            Some(Answer::Buffer(memory, buffer)) => {
                env.rings.import_buffer(owner, &memory, (buffer.address, buffer.writable), &**env)
            }
            Some(Answer::Gone(address)) => env.rings.gone(owner, address),
            None => {}
        }
    }

    /// A process to whose name we send is gone.
    fn owner_ended(&mut self, owner: Arc<NameOwner>) {
        self.env.rings.ended(&*owner, &*self.env);
        // Said again in each round until it is removed.
        if !self.gone.iter().any(|gone| gone.owner.token() == owner.token()) {
            self.gone.push(Gone { owner, rounds: 0 });
        }
    }
}

/// A packet for us that landed at a socket of another process.
fn forwarded<G: InputHandler>(datagram: Datagram<'_>, env: &LinuxEnv, to: &Delivery<'_, G>) {
    add(&env.counters.forwarded_in, 1);
    let ends = datagram.source.udp().zip(datagram.dest.udp());
    if ends.is_some_and(|(source, dest)| env.rx_sockets.note_forwarded(source, dest, &env.opener())) {
        env.look_for_idle();
    }
    if Management::takes(datagram.bytes) {
        env.rings.drain_all(&to.of_rings());
    }
    to.handler.input(Instant::now(), Input::Datagram(datagram));
}

/// A message that the connection manager of another process wrote to this connection.
fn handed_over<G: InputHandler>(
    datagram: Datagram<'_>,
    connection: &Connection,
    env: &LinuxEnv,
    to: &Delivery<'_, G>,
) {
    // No further one is wanted where all goes by the wire.
    if !env.config.same_host && env.fabric.is_none() {
        connection.decline_ring();
    }
    env.rings.drain_all(&to.of_rings());
    let input = match datagram.dest {
        Endpoint::Udp(_) => Input::Datagram(datagram),
        // No ICRC covers it.
        Endpoint::Lid(_) => {
            Input::Unsealed { run: env.at_interface(datagram), size: datagram.bytes.len().max(1) }
        }
    };
    to.handler.input(Instant::now(), input);
}

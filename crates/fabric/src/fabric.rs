//! The fabric: the subnet, the programs that have umad ports open, and the MADs between them.
//!
//! Sans-IO: messages that programs write and the time come in; messages for programs, deadlines and
//! changed ports go out. A MAD arrives in the moment in which it is sent.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use wire::mad::smp::Smp;
use wire::mad::{Header, sa};

use crate::agents::{MAX_AGENTS, Refusal, Registration};
use crate::client::Client;
use crate::deliver::From;
use crate::hosts::Hosts;
use crate::memberships::Memberships;
use crate::net::{Net, Preset};
use crate::plane::Mirror;
use crate::rmpp::Transfers;
use crate::sm::Manager;
use crate::subnet::{NodeId, PortId, Subnet};
use crate::timed::TimedFaults;
use crate::transactions::{Due, Transaction, Transactions};
use crate::traps::Traps;
use crate::umad::UmadHeader;

/// A program's open umad port, by the number that the environment gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u64);

/// What has become of MADs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Messages that programs have written.
    pub written: u64,
    /// Messages that programs were given to read.
    pub delivered: u64,
    /// Requests that agents of nodes have answered.
    pub answered: u64,
    /// Messages of programs that are no MAD, or are sent by no agent.
    pub malformed: u64,
    /// MADs lost on the way.
    pub lost: u64,
    /// MADs to a node that is frozen, or whose M_Key they do not have.
    pub silent: u64,
    /// Requests and answers that no agent waits for.
    pub unexpected: u64,
    /// Requests with the transaction id of one that is under way.
    pub duplicate: u64,
    /// Messages for a program whose queue is full.
    pub overflowed: u64,
    /// Requests that were sent again.
    pub retried: u64,
    /// Requests that have had no answer in time.
    pub timed_out: u64,
    /// Traps that were sent, repetitions among them.
    pub traps: u64,
}

/// A packet at the port of its sender.
#[derive(Debug)]
pub(crate) struct Packet {
    pub(crate) at: PortId,
    pub(crate) body: Body,
    pub(crate) lid: u16,
    pub(crate) slid: u16,
    pub(crate) sl: u8,
    pub(crate) source_qpn: u32,
    pub(crate) qpn: u32,
    pub(crate) pkey_index: u16,
}

#[derive(Debug)]
pub(crate) enum Body {
    Smp(Box<Smp>),
    /// A MAD of another class, or a whole message of several.
    Gmp(Vec<u8>),
}

/// An InfiniBand subnet and those that talk to it.
#[derive(Debug)]
pub struct Fabric {
    pub(crate) subnet: Subnet,
    pub(crate) hosts: Hosts,
    pub(crate) clients: BTreeMap<ClientId, Client>,
    /// The agents of all programs, by their numbers, which are the upper half of transaction ids.
    pub(crate) agents: BTreeMap<u32, (ClientId, u32)>,
    pub(crate) transactions: Transactions,
    pub(crate) transfers: Transfers,
    pub(crate) traps: Traps,
    pub(crate) memberships: Memberships,
    pub(crate) work: VecDeque<Packet>,
    /// Programs with something to read that the environment was not told of.
    pub(crate) ready: Vec<ClientId>,
    pub(crate) counters: Counters,
    pub(crate) managers: Vec<Manager>,
    pub(crate) timed: TimedFaults,
    last_agent: u32,
    /// What loss follows from.
    pub(crate) seed: u64,
    /// What programs map, if they do.
    pub(crate) plane: Option<Mirror>,
}

impl Fabric {
    /// The fabric of a net file. The seed decides which packets drop rules lose.
    pub fn new(net: &Net, seed: u64) -> Self {
        let subnet = Subnet::new(net, seed);
        Self {
            hosts: Hosts::of(&subnet),
            subnet,
            clients: BTreeMap::new(),
            agents: BTreeMap::new(),
            transactions: Transactions::default(),
            transfers: Transfers::default(),
            traps: Traps::default(),
            memberships: Memberships::default(),
            work: VecDeque::new(),
            ready: Vec::new(),
            counters: Counters::default(),
            managers: Vec::new(),
            timed: TimedFaults::default(),
            last_agent: 0,
            seed,
            plane: None,
        }
    }

    /// Gives ports LIDs before any subnet manager does: by the number of the node in the net file
    /// and that of the port, 0 of a switch. A manager keeps those that it finds.
    pub fn set_lids(&mut self, lids: &BTreeMap<(usize, u8), u16>) {
        for ((node, port), lid) in lids {
            let id = NodeId(*node as u32);
            let is_there = self.subnet.nodes.get(*node).is_some_and(|node| *port <= node.ports);
            if is_there {
                let at = self.subnet.port_of(id, *port);
                self.subnet.port_mut(at).info.lid = *lid;
            }
        }
    }

    /// Gives counters the values with which they begin.
    pub fn set_counters(&mut self, counters: &[Preset]) {
        for Preset { node, port, counter, value } in counters {
            let is_there = self.subnet.nodes.get(*node).is_some_and(|node| *port <= node.ports);
            if is_there {
                let at = self.subnet.port_of(NodeId(*node as u32), *port);
                counter.set(&mut self.subnet.port_mut(at).counters, *value);
            }
        }
    }

    /// A program opens a port.
    pub fn open(&mut self, client: ClientId, at: PortId) {
        self.clients.insert(client, Client::new(self.subnet.end_port(at)));
    }

    /// A program has closed a port, or has ended.
    pub fn close(&mut self, client: ClientId) {
        self.end_memberships(client);
        if let Some(client) = self.clients.remove(&client) {
            client.agents.into_iter().flatten().for_each(|agent| self.end_agent(agent.number));
        }
    }

    /// Registers an agent of a program; the number that the program knows it by.
    ///
    /// # Errors
    ///
    /// As the kernel refuses.
    pub fn register(&mut self, client: ClientId, wanted: &Registration) -> Result<u32, Refusal> {
        let own = self.clients.get(&client).ok_or(Refusal::Unknown)?;
        let at = own.at;
        // As the kernel's umad does it, which looks at the queue pair first and for room then.
        if wanted.qpn <= 1 && own.agents.iter().all(Option::is_some) {
            return Err(Refusal::TooMany);
        }
        wanted.check()?;
        let others = self.clients.values().filter(|other| other.at == at);
        let taken =
            |other: &Client| other.agents.iter().flatten().any(|agent| agent.registration.collides(wanted));
        if wanted.class != 0 && others.into_iter().any(taken) {
            return Err(Refusal::InUse);
        }
        let number = self.free_agent_number();
        let own = self.clients.get_mut(&client).ok_or(Refusal::Unknown)?;
        let id = own.add(number, *wanted).ok_or(Refusal::TooMany)?;
        self.agents.insert(number, (client, id));
        Ok(id)
    }

    /// The next number that no agent has. There are more numbers than agents.
    fn free_agent_number(&mut self) -> u32 {
        loop {
            self.last_agent = self.last_agent.wrapping_add(1).max(1);
            if !self.agents.contains_key(&self.last_agent) {
                return self.last_agent;
            }
        }
    }

    /// Ends an agent and its requests.
    ///
    /// # Errors
    ///
    /// There is none of this number.
    pub fn unregister(&mut self, client: ClientId, id: u32) -> Result<(), Refusal> {
        let own = self.clients.get_mut(&client).ok_or(Refusal::Unknown)?;
        let slot = usize::try_from(id).ok().filter(|id| *id < MAX_AGENTS).ok_or(Refusal::Unknown)?;
        let agent = own.agents[slot].take().ok_or(Refusal::Unknown)?;
        self.end_agent(agent.number);
        Ok(())
    }

    fn end_agent(&mut self, number: u32) {
        self.agents.remove(&number);
        self.transactions.forget(number);
        self.transfers.forget(number);
    }

    /// A program has written a message to its port. One that is no MAD is counted.
    pub fn write(&mut self, now: Duration, client: ClientId, message: &[u8]) {
        self.counters.written += 1;
        self.send(now, client, message, false);
        self.run(now);
    }

    /// Sends a message of a program, for the first time or again.
    fn send(&mut self, now: Duration, client: ClientId, message: &[u8], again: bool) {
        let Some(outgoing) = self.outgoing(client, message) else {
            self.counters.malformed += 1;
            return;
        };
        let (header, mut packet, number, rmpp) = outgoing;
        if !header.is_response() && rmpp != Rmpp::User && !again {
            let umad = UmadHeader::parse(message).unwrap_or_default();
            let key = Transaction { agent: number, low: header.transaction_id as u32 };
            let timeout = Duration::from_millis(umad.timeout_ms.into());
            let is_new = timeout.is_zero()
                || self.transactions.begin(
                    now,
                    key,
                    (client, header.class),
                    (timeout, umad.retries),
                    message.to_vec(),
                );
            if !is_new {
                self.counters.duplicate += 1;
                return;
            }
        }
        let from = From::of(&packet);
        let keeps = self.agents.get(&number).is_some_and(|(_, id)| self.keeps_memberships(client, *id));
        if let Body::Gmp(mad) = &mut packet.body
            && keeps
            && !self.leave_for(client, &header, mad)
        {
            // Other programs of the port are members: the port answers itself.
            let header = Header { method: sa::method::DELETE_RESP, ..header };
            mad[..Header::LEN].copy_from_slice(&header.emit());
            return self.answer_to_agent(&header, packet.at, from, mad);
        }
        self.work.push_back(packet);
    }

    /// All that is due now. Of the work of a subnet manager of its own a part: the next deadline is
    /// in the past while there is more.
    pub fn on_deadline(&mut self, now: Duration) {
        while let Some(due) = self.transactions.due(now) {
            match due {
                Due::Retry(client, message) => {
                    self.counters.retried += 1;
                    self.send(now, client, &message, true);
                }
                Due::TimedOut(client, message) => self.time_out(client, &message),
            }
        }
        self.run_timed_faults(now);
        self.repeat_traps(now);
        self.retry_transfers(now);
        self.run(now);
        self.run_managers(now);
    }

    /// When [`Fabric::on_deadline`] is to be called next.
    pub fn deadline(&mut self) -> Option<Duration> {
        let own = [
            self.transactions.deadline(),
            self.traps.deadline(),
            self.transfers.deadline(),
            self.timed.deadline(),
        ];
        own.into_iter().flatten().chain(self.managers_deadline()).min()
    }

    /// Delivers all packets and all that follow from them.
    pub(crate) fn run(&mut self, now: Duration) {
        loop {
            self.raise_traps(now);
            let Some(packet) = self.work.pop_front() else { return };
            self.deliver(now, packet);
        }
    }

    /// After all that was done: what follows from it, and what the plane is told.
    pub fn settle(&mut self, now: Duration) {
        self.run(now);
        self.follow_plane();
    }

    /// Programs with something to read since the last call.
    pub fn take_ready(&mut self) -> Vec<ClientId> {
        let mut ready = std::mem::take(&mut self.ready);
        ready.sort_unstable();
        ready.dedup();
        ready
    }

    /// The next message that a program has to read.
    pub fn front(&self, client: ClientId) -> Option<&[u8]> {
        self.clients.get(&client)?.queue.front().map(|message| &message[..])
    }

    /// The program has been given the message.
    pub fn pop(&mut self, client: ClientId) {
        if let Some(client) = self.clients.get_mut(&client)
            && let Some(message) = client.queue.pop_front()
        {
            client.queued_bytes -= message.len();
            self.counters.delivered += 1;
        }
    }

    /// What has become of MADs so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }
}

/// How a message of a program is related to RMPP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rmpp {
    /// A single MAD.
    None,
    /// A message that the port segments.
    Kernel,
    /// A segment that the program has made.
    User,
}

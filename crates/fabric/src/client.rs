//! A program's open umad port: its agents and what it has to read.

use std::collections::VecDeque;

use wire::mad::rmpp;
use wire::mad::smp::Smp;
use wire::mad::{Header, MAD_LEN, class};

use crate::agents::{MAX_AGENTS, Registration};
use crate::fabric::{Body, ClientId, Fabric, Packet, Rmpp};
use crate::rmpp::whole;
use crate::subnet::PortId;
use crate::umad::UmadHeader;

/// Messages that wait for a program at most; further ones are lost, as the kernel does it
/// (MAX_UMAD_RECV_LIST_SIZE is 200,000).
pub const MAX_QUEUED: usize = 65_536;
/// Bytes of the messages that wait for a program at most.
pub const MAX_QUEUED_BYTES: usize = 64 << 20;
/// Bytes of a message at most: more than all records of a fabric of [`crate::net::MAX_NODES`].
pub const MAX_MESSAGE: usize = 16 << 20;
/// Bytes of the common header and the one of RMPP.
pub(crate) const RMPP_HEADERS: usize = Header::LEN + rmpp::Rmpp::LEN;

/// An agent of a program.
#[derive(Debug)]
pub(crate) struct Agent {
    /// The upper half of the transaction ids of its requests.
    pub(crate) number: u32,
    pub(crate) registration: Registration,
}

/// An open port.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) at: PortId,
    pub(crate) agents: [Option<Agent>; MAX_AGENTS],
    pub(crate) queue: VecDeque<Vec<u8>>,
    pub(crate) queued_bytes: usize,
}

impl Client {
    pub(crate) fn new(at: PortId) -> Self {
        Self { at, agents: [const { None }; MAX_AGENTS], queue: VecDeque::new(), queued_bytes: 0 }
    }

    /// Takes the lowest number that is free.
    pub(crate) fn add(&mut self, number: u32, registration: Registration) -> Option<u32> {
        let id = self.agents.iter().position(Option::is_none)?;
        self.agents[id] = Some(Agent { number, registration });
        u32::try_from(id).ok()
    }

    pub(crate) fn agent(&self, id: u32) -> Option<&Agent> {
        self.agents.get(usize::try_from(id).ok()?)?.as_ref()
    }
}

impl Fabric {
    /// What a message of a program sends, and the number of its agent; `None` for one that is no
    /// MAD of an agent of this program.
    pub(crate) fn outgoing(&self, client: ClientId, message: &[u8]) -> Option<(Header, Packet, u32, Rmpp)> {
        let own = self.clients.get(&client)?;
        let umad = UmadHeader::parse(message)?;
        let agent = own.agent(umad.agent)?;
        let mad = &message[UmadHeader::LEN..];
        // The kernel takes no message without room for an RMPP header (ib_umad_write).
        if mad.len() < RMPP_HEADERS {
            return None;
        }
        let mut header = Header::parse(mad).ok()?;
        let is_smp = class::is_smp(header.class);
        let is_active = class::has_rmpp(header.class) && rmpp::is_active(mad);
        let rmpp = match (is_active, agent.registration.has_kernel_rmpp()) {
            (false, _) => Rmpp::None,
            (true, true) => Rmpp::Kernel,
            (true, false) => Rmpp::User,
        };
        let fits = if rmpp == Rmpp::Kernel { mad.len() <= MAX_MESSAGE } else { mad.len() <= MAD_LEN };
        if !fits || is_smp != (agent.registration.qpn == 0) {
            return None;
        }
        if !header.is_response() && rmpp != Rmpp::User {
            header.transaction_id = u64::from(agent.number) << 32 | header.transaction_id & 0xffff_ffff;
        }
        let mut bytes = mad.to_vec();
        bytes[..Header::LEN].copy_from_slice(&header.emit());
        if rmpp == Rmpp::Kernel {
            // Of the RMPP header a program sets the flag alone.
            bytes[Header::LEN..RMPP_HEADERS].copy_from_slice(&whole(mad).emit());
        } else {
            bytes.resize(MAD_LEN, 0);
        }
        let body = if is_smp { Body::Smp(Box::new(Smp::parse(&bytes).ok()?)) } else { Body::Gmp(bytes) };
        let info = &self.subnet.port(own.at).info;
        let packet = Packet {
            at: own.at,
            body,
            lid: umad.lid,
            slid: info.lid | u16::from(umad.path_bits) & ((1 << info.lmc) - 1),
            sl: umad.sl,
            source_qpn: agent.registration.qpn,
            qpn: umad.qpn,
            pkey_index: umad.pkey_index,
        };
        Some((header, packet, agent.number, rmpp))
    }

    /// Puts a message into a program's queue.
    pub(crate) fn queue(&mut self, client: ClientId, umad: &UmadHeader, mad: &[u8]) {
        let Some(own) = self.clients.get_mut(&client) else { return };
        let len = UmadHeader::LEN + mad.len();
        if own.queue.len() >= MAX_QUEUED || own.queued_bytes + len > MAX_QUEUED_BYTES {
            self.counters.overflowed += 1;
            return;
        }
        let umad = UmadHeader { length: len as u32, ..*umad };
        let mut message = Vec::with_capacity(len);
        message.extend_from_slice(&umad.emit());
        message.extend_from_slice(mad);
        own.queue.push_back(message);
        own.queued_bytes += len;
        self.ready.push(client);
    }

    /// A request has had no answer: its own header comes back, and the beginning of its MAD.
    pub(crate) fn time_out(&mut self, client: ClientId, message: &[u8]) {
        const ETIMEDOUT: u32 = 110;
        self.counters.timed_out += 1;
        let Some(umad) = UmadHeader::parse(message) else { return };
        let number =
            self.clients.get(&client).and_then(|own| own.agent(umad.agent)).map(|agent| agent.number);
        let header = message.get(UmadHeader::LEN..).and_then(|mad| Header::parse(mad).ok());
        let (Some(number), Some(mut header)) = (number, header) else { return };
        header.transaction_id = u64::from(number) << 32 | header.transaction_id & 0xffff_ffff;
        self.queue(client, &UmadHeader { status: ETIMEDOUT, ..umad }, &header.emit());
    }
}

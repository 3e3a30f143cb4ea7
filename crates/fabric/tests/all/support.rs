//! A small fabric with programs, and a subnet manager of a few lines: LIDs in the order of nodes,
//! tables along the shortest ways, all ports active.

use std::collections::VecDeque;
use std::time::Duration;

use fabric::agents::Registration;
use fabric::net::{Net, NodeType};
use fabric::umad::UmadHeader;
use fabric::{ClientId, Fabric};
use wire::mad::smp::{PERMISSIVE_LID, Smp, attribute};
use wire::mad::{Header, NodeInfo, PortInfo, PortState, class, method};

/// Two hosts on each of two switches, which two cables join.
pub(crate) const TWO: &str = "\
Switch 4 \"leaf0\"
[1] \"a\"[1]
[2] \"b\"[1]
[3] \"leaf1\"[3]
[4] \"leaf1\"[4]

Switch 4 \"leaf1\"
[1] \"c\"[1]
[2] \"d\"[1]

Ca 1 \"a\"
Ca 1 \"b\"
Ca 1 \"c\"
Ca 1 \"d\"
";

pub(crate) struct World {
    pub(crate) fabric: Fabric,
    pub(crate) now: Duration,
    last_client: u64,
    last_tid: u32,
}

/// A message that a program has read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) umad: UmadHeader,
    pub(crate) mad: Vec<u8>,
}

impl Message {
    pub(crate) fn header(&self) -> Header {
        Header::parse(&self.mad).unwrap()
    }
}

impl World {
    pub(crate) fn new() -> Self {
        Self::of(&Net::parse(TWO).unwrap())
    }

    pub(crate) fn of(net: &Net) -> Self {
        Self { fabric: Fabric::new(net, 1), now: Duration::ZERO, last_client: 0, last_tid: 0 }
    }

    pub(crate) fn open(&mut self, host: &str) -> ClientId {
        let number = u8::from(!host.starts_with("leaf"));
        let at = self.fabric.port_of_host(host, "", number).unwrap();
        self.last_client += 1;
        self.fabric.open(ClientId(self.last_client), at);
        ClientId(self.last_client)
    }

    /// A program on a host with an agent for directed routes, which takes no requests.
    pub(crate) fn prober(&mut self, host: &str) -> (ClientId, u32) {
        let client = self.open(host);
        let agent = self.fabric.register(client, &registration(class::SUBN_DIRECTED_ROUTE, &[])).unwrap();
        (client, agent)
    }

    pub(crate) fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(at) = self.fabric.deadline().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.fabric.on_deadline(self.now);
        }
        self.now = end;
    }

    pub(crate) fn send(&mut self, client: ClientId, umad: UmadHeader, mad: &[u8]) {
        let message = [&umad.emit()[..], mad].concat();
        self.fabric.write(self.now, client, &message);
    }

    pub(crate) fn read(&mut self, client: ClientId) -> Option<Message> {
        let bytes = self.fabric.front(client)?.to_vec();
        self.fabric.pop(client);
        let umad = UmadHeader::parse(&bytes)?;
        assert_eq!(umad.length as usize, bytes.len());
        Some(Message { umad, mad: bytes[UmadHeader::LEN..].to_vec() })
    }

    /// Asks along a directed route, once, for half a second.
    pub(crate) fn ask(&mut self, (client, agent): (ClientId, u32), smp: &Smp) -> Option<Smp> {
        let umad = UmadHeader { agent, timeout_ms: 500, lid: PERMISSIVE_LID, ..UmadHeader::default() };
        self.send(client, umad, &smp.emit());
        if let Some(message) = self.read(client) {
            assert_eq!((message.umad.status, message.umad.lid), (0, PERMISSIVE_LID));
            return Some(Smp::parse(&message.mad).unwrap());
        }
        self.pass(Duration::from_secs(1));
        assert_eq!(self.read(client).unwrap().umad.status, 110, "ETIMEDOUT");
        None
    }

    pub(crate) fn smp(&mut self, path: &[u8], method: u8, attribute: u16, modifier: u32) -> Smp {
        self.last_tid += 1;
        let header = Header {
            base_version: 1,
            class: class::SUBN_DIRECTED_ROUTE,
            class_version: 1,
            method,
            class_specific: path.len() as u16,
            transaction_id: self.last_tid.into(),
            attribute,
            modifier,
            ..Header::default()
        };
        let mut initial_path = [0; 64];
        initial_path[1..=path.len()].copy_from_slice(path);
        let (dr_slid, dr_dlid) = (PERMISSIVE_LID, PERMISSIVE_LID);
        Smp { header, m_key: 0, dr_slid, dr_dlid, data: [0; 64], initial_path, return_path: [0; 64] }
    }

    pub(crate) fn get(
        &mut self,
        who: (ClientId, u32),
        path: &[u8],
        attribute: u16,
        modifier: u32,
    ) -> Option<Smp> {
        let smp = self.smp(path, method::GET, attribute, modifier);
        self.ask(who, &smp)
    }

    pub(crate) fn set(
        &mut self,
        who: (ClientId, u32),
        path: &[u8],
        (attribute, modifier): (u16, u32),
        data: [u8; 64],
    ) -> Option<Smp> {
        let smp = Smp { data, ..self.smp(path, method::SET, attribute, modifier) };
        self.ask(who, &smp)
    }

    pub(crate) fn port_info(&mut self, who: (ClientId, u32), path: &[u8], port: u32) -> PortInfo {
        PortInfo::parse(&self.get(who, path, attribute::PORT_INFO, port).unwrap().data).unwrap()
    }

    /// Changes PortInfo; the status of the answer.
    pub(crate) fn change(
        &mut self,
        who: (ClientId, u32),
        (path, port): (&[u8], u32),
        change: impl FnOnce(&mut PortInfo),
    ) -> u16 {
        let mut info = self.port_info(who, path, port);
        (info.state, info.physical_state) = Default::default();
        change(&mut info);
        let answer = self.set(who, path, (attribute::PORT_INFO, port), info.emit()).unwrap();
        answer.header.status & !0x8000
    }

    /// Configures the whole fabric from a host.
    pub(crate) fn configure(&mut self, host: &str) -> (ClientId, u32) {
        let who = self.prober(host);
        let sm_lid = 1;
        let mut known: Vec<(NodeInfo, Vec<u8>)> = Vec::new();
        let mut to_do = VecDeque::from([Vec::new()]);
        while let Some(path) = to_do.pop_front() {
            let Some(answer) = self.get(who, &path, attribute::NODE_INFO, 0) else { continue };
            let info = NodeInfo::parse(&answer.data).unwrap();
            if known.iter().any(|(other, _)| other.node == info.node) {
                continue;
            }
            let ports =
                if info.kind == NodeType::Switch { 1..=info.ports } else { 1..=u8::from(path.is_empty()) };
            to_do.extend(ports.map(|port| [&path[..], &[port]].concat()));
            known.push((info, path));
        }
        for (index, (info, path)) in known.iter().enumerate() {
            let lid = sm_lid + index as u16;
            let first = u32::from(info.kind == NodeType::Ca);
            let port = if info.kind == NodeType::Ca { u32::from(info.local_port) } else { 0 };
            assert_eq!(self.change(who, (path, port), |new| (new.lid, new.sm_lid) = (lid, sm_lid)), 0);
            for port in first.max(1)..=u32::from(info.ports) {
                for state in [PortState::Armed, PortState::Active] {
                    if self.port_info(who, path, port).state != PortState::Down {
                        self.change(who, (path, port), |new| new.state = state);
                    }
                }
            }
            if info.kind == NodeType::Switch {
                let mut block = [255; 64];
                // The way to each node is as long as that from here, or leads back.
                for (other, (_, way)) in known.iter().enumerate() {
                    let out = match way.strip_prefix(&path[..]) {
                        Some([]) => 0,
                        Some([out, ..]) => *out,
                        None => info.local_port,
                    };
                    block[usize::from(sm_lid) + other] = out;
                }
                self.set(who, path, (attribute::LINEAR_FORWARDING, 0), block).unwrap();
            }
        }
        who
    }
}

/// An agent for these methods of a class.
pub(crate) fn registration(class: u8, methods: &[u8]) -> Registration {
    let mut mask = [0; 2];
    methods.iter().for_each(|method| mask[usize::from(method >> 6)] |= 1 << (method & 63));
    Registration {
        qpn: u32::from(!class::is_smp(class)),
        class,
        version: 1,
        oui: u32::from(class::has_oui(class)),
        methods: mask,
        ..Registration::default()
    }
}

/// A single MAD of a vendor's class with OUI 1, as registered above.
pub(crate) fn vendor_mad(method: u8, tid: u64) -> Vec<u8> {
    let header = Header {
        base_version: 1,
        class: 0x32,
        class_version: 1,
        method,
        transaction_id: tid,
        ..Header::default()
    };
    let mut mad = vec![0; 256];
    mad[..Header::LEN].copy_from_slice(&header.emit());
    mad[39] = 1;
    mad
}

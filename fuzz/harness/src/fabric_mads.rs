//! Messages that programs write to umad ports of a small fabric, registrations, faults and time, in
//! any order: each program reads whole messages of its own agents, the queues stay bounded, all
//! that is repeated ends, and what the user cut is mended in the end.
//!
//! | bytes | use |
//! |---|---|
//! | 0 | odd: the fabric has a subnet manager of its own, whose LMC the next two bits are |
//! | 1 | the step: which of the below, and of which program |
//! | next | what the step needs; a message begins with class, method, attribute, LID, agent |

use std::time::Duration;

use fabric::agents::{MAX_AGENTS, Registration};
use fabric::net::{FatTree, Net, NodeSettings};
use fabric::umad::UmadHeader;
use fabric::{ClientId, Fabric, MAX_QUEUED};
use wire::mad::{Header, MAD_LEN, PortInfo, PortState, class};

use crate::Input;

/// Hosts whose programs write.
const HOSTS: [&str; 3] = ["host0", "host5", "spine1"];
/// Classes that a message often has.
const CLASSES: [u8; 6] =
    [class::SUBN_DIRECTED_ROUTE, class::SUBN_LID_ROUTED, class::SUBN_ADM, class::PERF_MGMT, 0x32, 0x07];
/// Steps of a run at most: what the longest inputs do is a sweep for most of them.
const STEPS: usize = 100;
/// Slices of work of the subnet manager at one moment: a sweep of this fabric is one.
const MAX_SLICES: u32 = 64;

/// The fuzzer's bytes, laid out as above.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let net = FatTree::new(2, 4).expect("a fat tree").net();
    let mut world = World::new(&net);
    let first = input.u8();
    if first & 1 == 1 {
        world.fabric.start_managers(world.now, first >> 1 & 3).expect("one subnet");
    }
    for _ in 0..STEPS {
        if !input.more() {
            break;
        }
        let step = input.u8();
        world.step(step, &mut input);
        world.read();
    }
    world.end(&net);
}

struct World {
    fabric: Fabric,
    now: Duration,
    clients: Vec<ClientId>,
    last: u64,
}

impl World {
    fn new(net: &Net) -> Self {
        let mut world =
            Self { fabric: Fabric::new(net, 1), now: Duration::ZERO, clients: Vec::new(), last: 0 };
        for host in HOSTS {
            world.open(host);
        }
        world
    }

    fn open(&mut self, host: &str) {
        let number = u8::from(host.starts_with("host"));
        let Some(at) = self.fabric.port_of_host(host, "", number) else { return };
        self.last += 1;
        self.fabric.open(ClientId(self.last), at);
        self.clients.push(ClientId(self.last));
    }

    fn step(&mut self, step: u8, input: &mut Input<'_>) {
        let client = self.clients[usize::from(step >> 4) % self.clients.len()];
        match step % 8 {
            0 | 1 => {
                let message = message(input);
                self.fabric.write(self.now, client, &message);
            }
            2 => {
                let wanted = registration(input);
                let _ = self.fabric.register(client, &wanted);
            }
            3 => {
                let _ = self.fabric.unregister(client, u32::from(input.u8()) % 40);
            }
            4 => self.pass(Duration::from_millis(u64::from(input.u8()) * 10)),
            5 => {
                let node = ["leaf0", "spine0", "host0"][usize::from(input.u8()) % 3];
                let _ = self.fabric.set_cut(node, input.u8() % 5, step >> 7 == 1);
                self.fabric.settle(self.now);
            }
            6 => {
                let _ = self.fabric.set_drop("leaf1", input.u8() % 5, u32::from(input.u8()) << 12);
                let _ = self.fabric.set_frozen("spine0", step >> 7 == 1);
                let _ = self.fabric.set_damage("leaf2", input.u8() % 5, u32::from(input.u8()) << 12);
                // Not so often that sweeps are all that happens.
                let period = Duration::from_millis(u64::from(input.u8()) * 100);
                let period = if period.is_zero() { period } else { period.max(Duration::from_secs(1)) };
                let _ = self.fabric.set_flap(self.now, "leaf3", input.u8() % 5, period);
                let _ = self.fabric.set_growth(self.now, ("leaf0", 1), "PortXmitWait", input.u8().into());
            }
            _ => {
                self.fabric.close(client);
                self.clients.retain(|other| *other != client);
                self.open(HOSTS[usize::from(input.u8()) % HOSTS.len()]);
            }
        }
    }

    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        let mut slices = 0;
        while let Some(at) = self.fabric.deadline().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.fabric.on_deadline(self.now);
            let next = self.fabric.deadline();
            // What the subnet manager has left to do is due at once.
            slices = if next == Some(Duration::ZERO) { slices + 1 } else { 0 };
            let is_served = next.is_none_or(|next| next > self.now);
            assert!(is_served || (1..MAX_SLICES).contains(&slices), "a deadline that has been served");
        }
        self.now = end;
    }

    /// Every program reads half of what it has.
    fn read(&mut self) {
        for client in self.clients.clone() {
            let mut read = 0;
            while let Some(message) = self.fabric.front(client) {
                let header = UmadHeader::parse(message).expect("a header");
                assert_eq!(header.length as usize, message.len());
                assert!((header.agent as usize) < MAX_AGENTS);
                assert!(message.len() >= UmadHeader::LEN + Header::LEN);
                self.fabric.pop(client);
                read += 1;
                assert!(read <= MAX_QUEUED);
            }
        }
    }

    /// All programs and faults end, and only traps are repeated: none once no port knows a subnet
    /// manager.
    fn end(mut self, net: &Net) {
        for client in std::mem::take(&mut self.clients) {
            self.fabric.close(client);
        }
        // A cable that flaps is a sweep each second, in which nothing is learned.
        for port in 1..5 {
            let _ = self.fabric.set_flap(self.now, "leaf3", port, Duration::ZERO);
        }
        let _ = self.fabric.set_growth(self.now, ("leaf0", 1), "PortXmitWait", 0);
        let _ = self.fabric.set_frozen("spine0", false);
        self.pass(Duration::from_secs(60));
        let mut written = Net::parse(&self.fabric.write_net()).expect("what was written");
        // Rules and cut cables stand in it, too.
        for node in &mut written.nodes {
            node.settings = NodeSettings::default();
            node.port_settings.clear();
        }
        assert_eq!(written, net.sorted());
    }
}

fn registration(input: &mut Input<'_>) -> Registration {
    let class = CLASSES[usize::from(input.u8()) % CLASSES.len()];
    let flags = input.u8();
    Registration {
        qpn: u32::from(!class::is_smp(class)),
        class,
        version: 1 + (flags >> 6 & 1),
        oui: u32::from(flags >> 5 & 1),
        methods: [u64::from(input.u8()) << (flags & 31), 0],
        rmpp_version: u8::from(class::has_rmpp(class) && flags & 1 != 0),
        user_rmpp: flags & 2 != 0,
        keeps_memberships: flags & 4 != 0,
    }
}

fn message(input: &mut Input<'_>) -> Vec<u8> {
    let shape = input.u8();
    let class = CLASSES[usize::from(input.u8()) % CLASSES.len()];
    let header = Header {
        base_version: 1,
        class,
        class_version: 1 + (shape >> 6 & 1),
        method: input.u8(),
        class_specific: u16::from(input.u8() % 5),
        transaction_id: u64::from(input.u8()) << 32 | u64::from(input.u8() % 4),
        attribute: u16::from(input.u8() % 0x3a),
        modifier: u32::from(input.u8() % 8),
        ..Header::default()
    };
    let umad = UmadHeader {
        agent: u32::from(input.u8() % 6),
        timeout_ms: u32::from(input.u8()) * u32::from(shape & 1),
        retries: u32::from(shape >> 1 & 3),
        lid: u16::from(input.u8() % 20),
        qpn: 1,
        ..UmadHeader::default()
    };
    let mut mad = vec![0; MAD_LEN];
    mad[..Header::LEN].copy_from_slice(&header.emit());
    mad[32..36].fill(0xff);
    // RMPP of the classes that have it; the directed route of the one that has that.
    for at in [24, 25, 26, 31, 35, 39, 129, 130, 131] {
        mad[at] = input.u8() % 8;
    }
    if shape & 8 != 0 {
        let info = PortInfo {
            lid: u16::from(input.u8() % 20),
            sm_lid: u16::from(input.u8() % 20),
            state: [PortState::NoChange, PortState::Down, PortState::Armed, PortState::Active]
                [usize::from(input.u8()) % 4],
            m_key: u64::from(input.u8() % 3),
            m_key_protection: input.u8() % 4,
            m_key_lease_s: u16::from(input.u8()),
            ..PortInfo::default()
        };
        mad[64..128].copy_from_slice(&info.emit());
    }
    if shape & 32 != 0 {
        // Of subnet administration: components, and the beginning of the record.
        mad[48..110].fill_with(|| input.u8());
    }
    if shape & 16 != 0 {
        mad.resize(usize::from(input.u8()) * 8, 7);
    }
    [&umad.emit()[..], &mad].concat()
}

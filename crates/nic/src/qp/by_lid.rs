//! A queue pair whose path is between LIDs sends and receives as one between IP addresses does.
//! Nothing gives it such a path yet but these tests.

use std::collections::{BTreeSet, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use transport::TxBatch;
use transport::op::{Completed, Data, RecvWr, SendOp, SendWr, SgeList, Status};
use transport::rc::AckDelay;
use wire::icrc::ICRC_LEN;
use wire::roce::{Packet, SendTail};
use wire::{Address, Guid, LidAddress, Mtu, Qpn};

use crate::cq::Cq;
use crate::device::async_events::AsyncEventQueue;
use crate::device::gid::GidTable;
use crate::device::{Device, DeviceConfig, DeviceId, Numbers, Port, Transport};
use crate::errno::Errno;
use crate::error::Error;
use crate::link::{Frames, Link, Path, Persist, Platform, Signal};
use crate::memory::pd::Pd;
use crate::qp::ah::Ah;
use crate::qp::attr::{AddressVector, QpAttr, QpState, QpType, mask};
use crate::qp::{Qp, QpCap, QpInit};

const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
const THERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));
const MESSAGES: u32 = 40;

/// A link that keeps each packet with its path until the test delivers it.
#[derive(Default)]
struct Wire {
    under_way: Mutex<VecDeque<(Path, Vec<u8>)>>,
    /// The address to which there is no way.
    cut: Mutex<Option<Address>>,
    numbers: Mutex<BTreeSet<u32>>,
}

impl Link for Wire {
    fn send(&self, path: &Path, batch: &mut TxBatch) {
        let packets = batch.iter().map(|packet| (*path, packet[..packet.len() - ICRC_LEN].to_vec()));
        self.under_way.lock().unwrap().extend(packets);
    }
    fn can_reach(&self, dest: Address) -> Result<(), Errno> {
        if *self.cut.lock().unwrap() == Some(dest) { Err(Errno::ENETUNREACH) } else { Ok(()) }
    }
    fn join(&self, _: u32, _: IpAddr) -> Result<(), Errno> {
        Err(Errno::ENODEV)
    }
    fn leave(&self, _: u32, _: IpAddr) {}
}

impl Frames for Wire {}

impl Platform for Wire {
    fn wake_at(&self, _: Instant) {}
    fn fill_random(&self, bytes: &mut [u8]) {
        bytes.fill(0x5a);
    }
    fn persist(&self, _: Persist) {}
}

impl Numbers for Wire {
    fn take(&self) -> Result<Qpn, Error> {
        let mut taken = self.numbers.lock().unwrap();
        let next = 0x100 + taken.len() as u32;
        taken.insert(next);
        Ok(Qpn::new(next))
    }
    fn give(&self, _: Qpn) {}
}

struct Nobody;
impl Signal for Nobody {
    fn signal(&self) {}
    fn take_back(&self) {}
}

/// A device with two queue pairs that are each other's peers.
struct Bench {
    wire: Arc<Wire>,
    device: Arc<Device>,
    pd: Arc<Pd>,
    now: Instant,
}

/// What an end saw: work requests, how they went, and their immediate data.
type Seen = Vec<(u64, Status, Completed, SendTail)>;

impl Bench {
    #[allow(clippy::disallowed_methods, reason = "a moment to begin from")]
    fn new() -> Self {
        let config = DeviceConfig {
            id: DeviceId(0),
            name: "bench".to_owned(),
            transport: Transport::Roce,
            guid: Guid(1),
            interface: 7,
            interface_name: "bench0".to_owned(),
            mac: [2, 0, 0, 0, 0, 9],
        };
        let gids = GidTable::updated(&GidTable::default(), config.mac, &[HERE]);
        let port = Port { up: true, mtu: Mtu::M1024, speed_mbps: None, gids, ib: None };
        let wire = Arc::new(Wire::default());
        let device = Device::new(config, port, wire.clone(), wire.clone());
        let pd = Arc::new(device.alloc_pd().unwrap());
        Self { wire, device, pd, now: Instant::now() }
    }

    fn made(&self) -> Arc<Qp> {
        let events = AsyncEventQueue::new(Box::new(Nobody));
        let cq = Cq::new(2 * MESSAGES, None, events.clone()).unwrap();
        let cap = QpCap { max_send_wr: MESSAGES, max_recv_wr: MESSAGES, ..QpCap::default() };
        let (send_cq, recv_cq) = (cq.clone(), cq);
        let init = QpInit { kind: QpType::Rc, send_cq, recv_cq, srq: None, cap, sq_sig_all: true, events };
        Qp::create(&self.device, &self.pd, init).unwrap()
    }

    fn av(&self) -> AddressVector {
        let sgid_index = self.device.port().gids.index_of(HERE).unwrap();
        AddressVector { dgid: THERE.into(), sgid_index, is_global: true, port: 1, ..Default::default() }
    }

    /// Moves a queue pair to RTS, with a peer at [`THERE`].
    fn connect(&self, qp: &Qp, dest_qpn: Qpn) -> Result<(), Error> {
        let attr = QpAttr {
            av: self.av(),
            dest_qpn,
            path_mtu: Mtu::M1024,
            port: 1,
            timeout: 14,
            retry_cnt: 7,
            ..QpAttr::default()
        };
        let modify = |state, bits| qp.modify(self.now, &attr.with_state(state), mask::STATE | bits);
        modify(QpState::Init, mask::PKEY_INDEX | mask::PORT | mask::ACCESS_FLAGS)?;
        let receive = mask::RQ_PSN | mask::MAX_DEST_RD_ATOMIC | mask::MIN_RNR_TIMER;
        modify(QpState::Rtr, mask::AV | mask::PATH_MTU | mask::DEST_QPN | receive)?;
        let retry = mask::TIMEOUT | mask::RETRY_CNT | mask::RNR_RETRY;
        modify(QpState::Rts, mask::SQ_PSN | mask::MAX_QP_RD_ATOMIC | retry)
    }

    /// Delivers until nothing is under way: each packet comes from where it was sent.
    fn deliver(&self) -> Vec<(Path, Vec<u8>)> {
        let mut delivered = Vec::new();
        loop {
            let Some((path, bytes)) = self.wire.under_way.lock().unwrap().pop_front() else {
                return delivered;
            };
            let packet = Packet::parse(&bytes).unwrap();
            self.device.input(self.now, path.source, path.dest, AckDelay::No, &packet.into(), || None);
            delivered.push((path, bytes));
        }
    }

    /// Messages both ways between two queue pairs at these addresses: what each end saw, and what
    /// went over the wire.
    fn talk(&self, ends: [Address; 2]) -> ([Seen; 2], Vec<(Path, Vec<u8>)>) {
        let qps = [self.made(), self.made()];
        for (n, qp) in qps.iter().enumerate() {
            self.connect(qp, qps[1 - n].qpn()).unwrap();
            let mut inner = qp.lock();
            let path = inner.carrier.datagram().unwrap().path;
            let path = Path { source: ends[n], dest: ends[1 - n], ..path };
            inner.carrier.connect(path, Mtu::M1024, &self.pd.device);
        }
        self.wire.under_way.lock().unwrap().clear();
        for n in 0..u64::from(MESSAGES) {
            for qp in &qps {
                qp.post_receive(RecvWr { wr_id: n, sges: SgeList::from_iter([]) }).unwrap();
            }
        }
        let mut packets = Vec::new();
        for n in 0..MESSAGES {
            let op = SendOp::Send(SendTail::Immediate(n.to_be_bytes()));
            let (wr_id, data) = (u64::from(n), Data::inline(&[]));
            let wr = SendWr { wr_id, op, data, signaled: true, solicited: false, fence: false };
            qps[n as usize % 2].post_send(self.now, wr).unwrap();
            packets.extend(self.deliver());
        }
        let seen = qps.each_ref().map(|qp| {
            let mut seen = Vec::new();
            let all =
                |one: transport::op::Completion| seen.push((one.wr_id, one.status, one.opcode, one.tail));
            qp.init().send_cq.poll(2 * MESSAGES as usize, all).unwrap();
            seen
        });
        qps.iter().for_each(Qp::destroy);
        (seen, packets)
    }
}

fn lid(lid: u16, path_bits: u8) -> Address {
    LidAddress::new(lid, 3, path_bits).unwrap().into()
}

#[test]
fn a_queue_pair_between_lids_sends_and_receives_as_one_between_ip_addresses() {
    let lids = [lid(5, 1), lid(0x1234, 0)];
    let (by_ip, sent_by_ip) = Bench::new().talk([HERE.into(), THERE.into()]);
    let (by_lid, sent_by_lid) = Bench::new().talk(lids);
    assert_eq!(by_lid, by_ip);
    for seen in &by_lid {
        assert_eq!(seen.len(), MESSAGES as usize, "half of them sent, half received");
        assert!(seen.iter().all(|(_, status, ..)| *status == Status::Success));
    }
    let bytes = |sent: &[(Path, Vec<u8>)]| sent.iter().map(|(_, bytes)| bytes.clone()).collect::<Vec<_>>();
    assert_eq!(bytes(&sent_by_lid), bytes(&sent_by_ip), "from BTH on");
    let is_between =
        |(path, _): &(Path, _)| [path.source, path.dest] == lids || [path.dest, path.source] == lids;
    assert!(sent_by_lid.iter().all(is_between));
}

#[test]
fn a_packet_from_another_lid_is_not_the_peers() {
    let bench = Bench::new();
    let ends = [lid(5, 0), lid(6, 0)];
    let (_, packets) = bench.talk(ends);
    let qp = bench.made();
    bench.connect(&qp, Qpn::new(0x77)).unwrap();
    let path = qp.lock().carrier.datagram().unwrap().path;
    let path = Path { source: ends[0], dest: ends[1], ..path };
    qp.lock().carrier.connect(path, Mtu::M1024, &bench.pd.device);
    let mut packet = Packet::parse(&packets[0].1).unwrap();
    packet.header.bth.dest_qp = qp.qpn();
    let unsolicited =
        [(lid(7, 0), ends[0]), (ends[1], lid(8, 0)), (THERE.into(), HERE.into()), (ends[0], ends[1])];
    for (source, dest) in unsolicited {
        bench.device.input(bench.now, source, dest, AckDelay::No, &packet.into(), || None);
    }
    let counted = bench.device.counted();
    assert!(counted.contains(&("wrong_peer", unsolicited.len() as u64)), "{counted:?}");
}

#[test]
fn a_queue_pair_learns_no_peer_at_an_address_that_the_link_cannot_reach() {
    let bench = Bench::new();
    *bench.wire.cut.lock().unwrap() = Some(THERE.into());
    let qp = bench.made();
    assert_eq!(bench.connect(&qp, Qpn::new(0x77)), Err(Error::System(Errno::ENETUNREACH)));
    assert_eq!(qp.state(), QpState::Init);
    assert_eq!(Ah::new(&bench.pd, bench.av()).err(), Some(Error::System(Errno::ENETUNREACH)));
    *bench.wire.cut.lock().unwrap() = None;
    bench.connect(&qp, Qpn::new(0x77)).unwrap();
    assert!(Ah::new(&bench.pd, bench.av()).is_ok());
}

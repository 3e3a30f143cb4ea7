//! Queue pairs whose peers reach memory without them.

mod support;

use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Instant;

use nic::device::async_events::AsyncEventQueue;
use nic::peer_memory::{Grant, Prepared, Region, Regions, terms};
use nic::{
    Access, AddressVector, Buffer, Cq, Device, LocalLink, Path, PathCache, Pd, PostError, Qp, QpAttr, QpCap,
    QpInit, QpState, QpType, mask,
};
use support::{Kept, Nobody};
use transport::op::{Data, DirectOutcome, RecvWr, SendOp, SendWr, Sge, SgeList, Status};
use transport::rc::AckDelay;
use transport::short::{Short, What};
use wire::bth::{Aeth, Bth, Reth, Syndrome};
use wire::roce::{Header, Op, Packet, SendTail, Service, WriteAt};
use wire::{Mtu, Pkey, Psn, Qpn, Rkey};

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// Bytes of a channel.
const ROOM: u32 = 16 << 10;
const BOTH: u32 = Access::REMOTE_WRITE | Access::REMOTE_READ;

/// What a peer may do, and how often it was waited for.
#[derive(Default)]
struct Peer {
    may: Mutex<Option<u32>>,
    waits: Mutex<u32>,
    /// Which queue pairs of peers were prepared for, and whether anything was granted by then.
    prepared: Mutex<Vec<(Qpn, bool)>>,
    qp: OnceLock<Weak<Qp>>,
    /// What becomes of a copy, if any is to be made, and the lengths of those that were tried.
    outcome: Mutex<Option<DirectOutcome>>,
    tried: Mutex<Vec<u64>>,
    /// Short messages are taken, and kept.
    takes_short: AtomicBool,
    short: Mutex<Vec<Short>>,
}

struct Neighbours(Arc<Peer>);

impl LocalLink for Neighbours {
    fn send_short(&self, _path: &Path, short: &Short, _bytes: &[u8], _way: &mut PathCache) -> bool {
        let takes = self.0.takes_short.load(Ordering::Relaxed);
        self.0.short.lock().unwrap().extend(takes.then_some(*short));
        takes
    }
    fn table(&self, _: &Regions) -> Option<u8> {
        Some(0)
    }
    fn publish(&self, _: u8, _: u16, _: &Region) {}
    fn withdraw(&self, _: u8, _: u16) {}
    fn prepare(&self, path: &Path) {
        let granted = self.0.may.lock().unwrap().is_some();
        self.0.prepared.lock().unwrap().push((path.dest_qpn, granted));
    }
    fn open(&self, grant: &Grant<'_>) -> bool {
        let mut may = self.0.may.lock().unwrap();
        let opens = may.is_none_or(|before| before & !grant.access == 0);
        *may = opens.then_some(grant.access);
        opens
    }
    fn close(&self, _: Qpn, wait: bool) {
        *self.0.may.lock().unwrap() = None;
        if wait {
            *self.0.waits.lock().unwrap() += 1;
            // A thread that has a packet for the queue pair takes its lock. Debug assertions tell
            // where we hold it.
            self.0.qp.get().and_then(Weak::upgrade).unwrap().state();
        }
    }
    fn is_local(&self, _: &Path) -> bool {
        true
    }
    fn channel(&self, path: &Path) -> Option<(u16, u32)> {
        Some(((path.dest_qpn.get() >> 12) as u16, ROOM))
    }
    fn reaches(&self, _: &Path) -> bool {
        false
    }
    fn copy(&self, prepared: &Prepared<'_>, _: &mut PathCache) -> DirectOutcome {
        let length = prepared.transfer().remote.length;
        assert_eq!(length, prepared.pieces().iter().map(|piece| piece.len).sum());
        self.0.tried.lock().unwrap().push(length);
        self.0.outcome.lock().unwrap().unwrap_or(DirectOutcome::Unavailable)
    }
}

/// An environment in which this peer is reached, and an adapter there.
fn neighbours() -> (Arc<Peer>, Arc<Kept>, Arc<Device>, Arc<Pd>) {
    let (peer, env) = (Arc::new(Peer::default()), Arc::new(Kept::default()));
    assert!(env.reach.set(Box::new(Neighbours(peer.clone()))).is_ok());
    let device = support::device_of(env.clone(), &[HERE]);
    let pd = Arc::new(device.alloc_pd().unwrap());
    (peer, env, device, pd)
}

/// A connection to this queue pair of this host, with one send request, and what it was made with.
fn connected(device: &Arc<Device>, pd: &Arc<Pd>, dest_qpn: Qpn) -> (Arc<Qp>, QpAttr, Instant) {
    connected_with(1, device, pd, dest_qpn, |_| ())
}

/// Like [`connected`], with so many send requests.
#[allow(clippy::disallowed_methods, reason = "a moment to begin from")]
fn connected_with(
    max_send_wr: u32,
    device: &Arc<Device>,
    pd: &Arc<Pd>,
    dest_qpn: Qpn,
    change: impl Fn(&mut QpAttr),
) -> (Arc<Qp>, QpAttr, Instant) {
    let start = Instant::now();
    let events = AsyncEventQueue::new(Box::new(Nobody));
    let cq = Cq::new(2, None, events.clone()).unwrap();
    let (send_cq, recv_cq) = (cq.clone(), cq);
    let cap = QpCap { max_send_wr, max_send_sge: 3, max_recv_wr: 1, max_recv_sge: 1, ..QpCap::default() };
    let init = QpInit { kind: QpType::Rc, send_cq, recv_cq, srq: None, cap, sq_sig_all: false, events };
    let qp = Qp::create(device, pd, init).unwrap();
    let av =
        AddressVector { dgid: HERE.into(), sgid_index: 1, is_global: true, port: 1, ..Default::default() };
    let mut attr = QpAttr {
        access: BOTH,
        av,
        dest_qpn,
        path_mtu: Mtu::M1024,
        port: 1,
        max_rd_atomic: 1,
        ..QpAttr::default()
    };
    change(&mut attr);
    let modify = |state, bits| qp.modify(start, &attr.with_state(state), mask::STATE | bits).unwrap();
    modify(QpState::Init, mask::PKEY_INDEX | mask::PORT | mask::ACCESS_FLAGS);
    let receive = mask::RQ_PSN | mask::MAX_DEST_RD_ATOMIC | mask::MIN_RNR_TIMER;
    modify(QpState::Rtr, mask::AV | mask::PATH_MTU | mask::DEST_QPN | receive);
    let retry = mask::TIMEOUT | mask::RETRY_CNT | mask::RNR_RETRY;
    modify(QpState::Rts, mask::SQ_PSN | mask::MAX_QP_RD_ATOMIC | retry);
    (qp, attr, start)
}

#[test]
fn a_queue_pair_that_is_about_to_connect_is_ready_for_its_peer_and_grants_nothing_yet() {
    let (peer, _, device, pd) = neighbours();
    let theirs = Qpn::new(0x1234);
    let (qp, ..) = connected(&device, &pd, theirs);
    peer.qp.set(Arc::downgrade(&qp)).unwrap();
    qp.destroy();
    assert_eq!(*peer.prepared.lock().unwrap(), [(theirs, false)], "in RTR, and not again");
}

/// A packet of the peer's comes, without bytes.
fn hear(device: &Device, qp: &Qp, psn: u32, op: Op, start: Instant) {
    let bth = Bth { dest_qp: qp.qpn(), psn: Psn::new(psn), ack_request: true, ..Bth::default() };
    let packet = Packet { header: Header { bth, service: Service::Rc, op }, payload: &[] };
    device.input(start, HERE.into(), HERE.into(), AckDelay::No, &packet.into(), || None);
}

const TO: Reth = Reth { addr: 0, rkey: Rkey(0), length: 0 };
const NOTHING: Op = Op::Write(WriteAt::Only(TO, None));
const READS_NOTHING: Op = Op::ReadRequest(TO);

#[test]
fn a_peer_reaches_nothing_before_a_request_of_its_was_executed() {
    let of_mtu = terms::of_mtu(Mtu::M1024);
    for (resources, terms) in [(0, of_mtu), (1, of_mtu | terms::RESOURCES)] {
        let (peer, _, device, pd) = neighbours();
        let change = |attr: &mut QpAttr| attr.max_dest_rd_atomic = resources;
        let (qp, attr, start) = connected_with(1, &device, &pd, Qpn::default(), change);
        peer.qp.set(Arc::downgrade(&qp)).unwrap();
        let may = || *peer.may.lock().unwrap();
        assert_eq!(may(), Some(0), "it may export and be exported bytes of messages that are in hand");
        hear(&device, &qp, 1, NOTHING, start);
        hear(&device, &qp, 0xff_ffff, NOTHING, start);
        assert_eq!(may(), Some(0), "another number is expected");
        hear(&device, &qp, 0, NOTHING, start);
        assert_eq!(may(), Some(BOTH | terms), "and no other path MTU");
        qp.modify(start, &attr.with_state(QpState::Reset), mask::STATE).unwrap();
        assert_eq!(may(), None);
        qp.destroy();
    }
    let (peer, _, device, pd) = neighbours();
    let (qp, _, start) = connected(&device, &pd, Qpn::default());
    peer.qp.set(Arc::downgrade(&qp)).unwrap();
    hear(&device, &qp, 0, READS_NOTHING, start);
    assert_eq!(*peer.may.lock().unwrap(), None, "no READ is answered, which ends the connection");
}

#[test]
fn other_rights_are_waited_for_without_a_lock_and_then_granted() {
    let (peer, _, device, pd) = neighbours();
    let (qp, attr, start) = connected(&device, &pd, Qpn::default());
    peer.qp.set(Arc::downgrade(&qp)).unwrap();
    hear(&device, &qp, 0, NOTHING, start);
    let of_mtu = terms::of_mtu(Mtu::M1024);
    let now = || {
        let rights = peer.may.lock().unwrap().map(|may| may & !of_mtu);
        (rights, *peer.waits.lock().unwrap())
    };
    assert_eq!(now(), (Some(BOTH), 0));

    let grant = |access| {
        let attr = QpAttr { access, ..attr };
        qp.modify(start, &attr, mask::ACCESS_FLAGS).unwrap();
    };
    grant(Access::REMOTE_READ);
    assert_eq!(now(), (Some(Access::REMOTE_READ), 1));
    grant(Access::REMOTE_READ);
    assert_eq!(now(), (Some(Access::REMOTE_READ), 1));
    qp.modify(start, &attr.with_state(QpState::Error), mask::STATE).unwrap();
    assert_eq!(now(), (None, 2));
    qp.destroy();
    assert_eq!(now(), (None, 3));
}

/// A connection to a process of this host, which has the queue pairs of this thousand; and a
/// message to it of 64 packets, not all of which leave.
fn send_to(thousand: u32, device: &Arc<Device>, pd: &Arc<Pd>) -> Arc<Qp> {
    let (qp, _, start) = connected(device, pd, Qpn::new(thousand << 12));
    let mr = pd.register_null().unwrap();
    let data = Data::Sges([Sge { addr: 0, length: 64 << 10, lkey: mr.key }].into_iter().collect());
    let op = SendOp::Send(SendTail::None);
    let wr = SendWr { wr_id: 1, op, data, signaled: true, solicited: false, fence: false };
    qp.post_send(start, wr).unwrap();
    qp
}

#[test]
fn each_process_of_this_host_has_the_room_of_its_channel() {
    let (_, env, device, pd) = neighbours();
    let lost = || env.lost.load(Ordering::Relaxed);
    let _one = send_to(1, &device, &pd);
    assert_eq!(lost(), 16);
    let _other = send_to(2, &device, &pd);
    assert_eq!(lost(), 32);
    let _same = send_to(2, &device, &pd);
    assert_eq!(lost(), 40, "two share a channel");
}

#[test]
fn a_write_or_read_that_is_alone_is_executed_as_it_is_posted_and_tried_once_where_it_can_not_be() {
    let (peer, env, device, pd) = neighbours();
    let (qp, _, start) = connected(&device, &pd, Qpn::default());
    peer.qp.set(Arc::downgrade(&qp)).unwrap();
    let buffer = Buffer::new(&pd, 16, 0x1000, Access::LOCAL_WRITE).unwrap();
    let request = |wr_id, op, lkey| {
        let data = Data::Sges([Sge { addr: 0x1000, length: 8, lkey }].into_iter().collect());
        SendWr { wr_id, op, data, signaled: true, solicited: false, fence: false }
    };
    let write =
        |wr_id, lkey| request(wr_id, SendOp::Write { addr: 0x2000, rkey: Rkey(7), immediate: None }, lkey);
    let polled = || {
        let mut all = Vec::new();
        qp.init().send_cq.poll(9, |one| all.push((one.wr_id, one.status, one.byte_len))).unwrap();
        all
    };
    let seen = || (std::mem::take(&mut *peer.tried.lock().unwrap()), env.lost.load(Ordering::Relaxed));

    *peer.outcome.lock().unwrap() = Some(DirectOutcome::Done);
    qp.post_send(start, write(0, buffer.key())).unwrap();
    assert_eq!(seen(), (vec![], 1), "the peer has answered nothing yet");
    hear(&device, &qp, 0, Op::Acknowledge(Aeth { syndrome: Syndrome::Ack { credits: 31 }, msn: 1 }), start);
    assert_eq!(polled(), [(0, Status::Success, 0)]);
    qp.post_send(start, write(1, buffer.key())).unwrap();
    assert_eq!(qp.post_send(start, write(2, buffer.key())), Err(PostError::Full), "nobody has polled");
    assert_eq!((polled(), seen()), (vec![(1, Status::Success, 0)], (vec![8], 1)));
    qp.post_send(start, request(3, SendOp::Read { addr: 0x2000, rkey: Rkey(7) }, buffer.key())).unwrap();
    assert_eq!((polled(), seen()), (vec![(3, Status::Success, 8)], (vec![8], 1)));

    // What the peer's responder is to say leaves as a packet.
    *peer.outcome.lock().unwrap() = Some(DirectOutcome::Refused);
    qp.post_send(start, write(4, buffer.key())).unwrap();
    assert_eq!((polled(), seen()), (vec![], (vec![8], 2)));

    // Memory of ours that is not registered is never copied, and the request's error.
    let (qp, _, start) = connected(&device, &pd, Qpn::default());
    qp.post_send(start, write(5, Rkey(buffer.key().0 ^ 1))).unwrap();
    assert_eq!(seen(), (vec![], 2));
    let mut ended = Vec::new();
    qp.init().send_cq.poll(9, |one| ended.push((one.wr_id, one.status))).unwrap();
    assert_eq!(ended, [(5, Status::LocalProtection)]);
}

/// Messages go back and forth, each with the ACK of the one before.
fn back_and_forth(max_send_wr: u32) {
    let (peer, env, device, pd) = neighbours();
    peer.takes_short.store(true, Ordering::Relaxed);
    let (qp, _, start) = connected_with(max_send_wr, &device, &pd, Qpn::default(), |_| ());
    peer.qp.set(Arc::downgrade(&qp)).unwrap();
    let buffer = Buffer::new(&pd, 16, 0x1000, Access::LOCAL_WRITE).unwrap();
    let list: SgeList = [Sge { addr: 0x1000, length: 8, lkey: buffer.key() }].into_iter().collect();
    let time = || start;
    let send = |wr_id: u64, signaled| {
        let (op, data) = (SendOp::Send(SendTail::None), Data::Sges(list.clone()));
        let mut sender = qp.sender_asking(&time);
        let posted = sender.post(
            &mut SendWr { wr_id, op, data, signaled, solicited: false, fence: false },
            nic::PostFlags::LAST,
        );
        sender.finish();
        posted
    };
    let hear = |n: u32| {
        qp.post_receive(RecvWr { wr_id: 100 + u64::from(n), sges: list.clone() }).unwrap();
        let psn = Psn::new(n);
        let short = Short {
            dest_qp: qp.qpn(),
            pkey: Pkey::default(),
            psn,
            solicited: false,
            what: What::Send,
            acknowledged: Some(psn),
        };
        assert!(qp.input_short(start, (HERE.into(), HERE.into()), AckDelay::ForProgram, &short, b"answer"));
    };
    let polled = || {
        let mut all = Vec::new();
        qp.init().send_cq.poll(9, |one| all.push((one.wr_id, one.status))).unwrap();
        all
    };
    for n in 0..20 {
        let signaled = n % 4 == 0;
        send(n.into(), signaled).unwrap();
        if max_send_wr == 1 {
            assert_eq!(send(99, false), Err(PostError::Full), "the peer has not answered");
        }
        hear(n);
        let (sent, came) = ((n.into(), Status::Success), (100 + u64::from(n), Status::Success));
        assert_eq!(polled(), if signaled { vec![came, sent] } else { vec![came] });
    }
    let sent = peer.short.lock().unwrap().iter().map(|s| (s.psn, s.acknowledged)).collect::<Vec<_>>();
    let each = |n: u32| (Psn::new(n), n.checked_sub(1).map(Psn::new));
    assert_eq!(sent, (0..20).map(each).collect::<Vec<_>>());
    assert_eq!(env.lost.load(Ordering::Relaxed), 0, "no packet");
    // Of what the last answer acknowledged nothing is left to end.
    qp.modify(start, &QpAttr::default().with_state(QpState::Error), mask::STATE).unwrap();
    assert_eq!(polled(), []);
}

#[test]
fn an_ack_that_comes_with_a_message_counts_at_once_whenever_the_engine_is_told() {
    back_and_forth(1);
    back_and_forth(2);
}

/// What a message that is posted alone leaves as; `None` where it leaves as a packet.
fn leaves_as(op: &SendOp, lens: &[u32], fence: bool) -> Option<What> {
    let (peer, env, device, pd) = neighbours();
    peer.takes_short.store(true, Ordering::Relaxed);
    let (qp, _, start) = connected(&device, &pd, Qpn::default());
    let buffer = Buffer::new(&pd, 8192, 0x1000, Access::LOCAL_WRITE).unwrap();
    let list = lens.iter().map(|&length| Sge { addr: 0x1000, length, lkey: buffer.key() }).collect();
    let data = Data::Sges(list);
    let op = op.clone();
    qp.post_send(start, SendWr { wr_id: 1, op, data, signaled: true, solicited: false, fence }).unwrap();
    let short = peer.short.lock().unwrap().pop();
    assert_eq!(short.is_none(), env.lost.load(Ordering::Relaxed) > 0);
    short.map(|short| short.what)
}

#[test]
fn a_message_of_one_packet_that_is_posted_alone_needs_none_whatever_it_says() {
    let (send, data) = (SendOp::Send(SendTail::None), *b"imm!");
    let send_immediate = SendOp::Send(SendTail::Immediate(data));
    let (addr, rkey) = (0x2000, Rkey(7));
    let write = |immediate| SendOp::Write { addr, rkey, immediate };
    for lens in [&[][..], &[0], &[1], &[64], &[1024], &[10, 0, 30], &[500, 524]] {
        assert_eq!(leaves_as(&send, lens, false), Some(What::Send), "{lens:?}");
        assert_eq!(leaves_as(&send_immediate, lens, false), Some(What::SendImmediate(data)), "{lens:?}");
        let what = What::WriteImmediate(data, rkey, addr);
        assert_eq!(leaves_as(&write(Some(data)), lens, false), Some(what), "{lens:?}");
        assert_eq!(leaves_as(&write(None), lens, false), None, "{lens:?}");
        assert_eq!(leaves_as(&SendOp::Send(SendTail::Invalidate(rkey)), lens, false), None);
        assert_eq!(leaves_as(&send, lens, true), None, "it waits for READs before it");
        assert_eq!(leaves_as(&write(Some(data)), lens, true), None);
    }
    for lens in [&[1025][..], &[1000, 25]] {
        assert_eq!(leaves_as(&send, lens, false), None, "longer than a packet: {lens:?}");
    }
}

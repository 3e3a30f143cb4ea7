//! Objects that hold others: what goes with what, and what is refused.

mod support;

use std::sync::Arc;
use std::time::Instant;

use nic::device::async_events::AsyncEventQueue;
use nic::{Access, Buffer, Cq, Device, Error, Pd, Qp, QpCap, QpInit, QpType};
use support::{Kept, Nobody};
use transport::rc::AckDelay;
use transport::short::{Short, What};
use wire::{Pkey, Psn};

fn device() -> (Arc<Device>, Arc<Pd>) {
    let device = support::device(Arc::new(Kept::default()));
    let pd = Arc::new(device.alloc_pd().unwrap());
    (device, pd)
}

fn qp(device: &Arc<Device>, pd: &Arc<Pd>) -> Result<Arc<Qp>, Error> {
    let events = AsyncEventQueue::new(Box::new(Nobody));
    let cq = Cq::new(1, None, events.clone()).unwrap();
    let (send_cq, recv_cq, cap) = (cq.clone(), cq, QpCap::default());
    let init = QpInit { kind: QpType::Rc, send_cq, recv_cq, srq: None, cap, sq_sig_all: false, events };
    Qp::create(device, pd, init)
}

#[test]
fn the_key_of_a_buffer_dies_with_it() {
    let (_device, pd) = device();
    let buffer = Buffer::new(&pd, 10, 0x1000, Access::LOCAL_WRITE).unwrap();
    let slot = buffer.key().0 >> 16;
    assert_eq!(pd.region(slot).map(|(mr, len)| (mr.key, len)), Some((buffer.key(), 10)));
    buffer.write(8, b"abc");
    assert_eq!((buffer.read(0, 99), buffer.len()), (b"\0\0\0\0\0\0\0\0ab".to_vec(), 10));
    drop(buffer);
    assert_eq!(pd.region(slot), None);
}

#[test]
fn a_queue_pair_of_another_device_s_domain_is_refused() {
    let ((one, pd), (other, _)) = (device(), device());
    assert!(matches!(qp(&other, &pd), Err(Error::Invalid(_))));
    qp(&one, &pd).unwrap().destroy();
}

#[test]
fn a_queue_pair_that_is_destroyed_lets_its_device_go() {
    let (device, pd) = device();
    let made = qp(&device, &pd).unwrap();
    let seen = Arc::downgrade(&device);
    drop((device, pd));
    made.destroy();
    assert!(seen.upgrade().is_some(), "the handle keeps it");
    drop(made);
    assert!(seen.upgrade().is_none());
}

#[test]
#[allow(clippy::disallowed_methods, reason = "where time starts does not matter")]
fn a_short_message_for_a_destroyed_queue_pair_does_not_reach_it() {
    let (device, pd) = device();
    let made = qp(&device, &pd).unwrap();
    let dest_qp = made.qpn();
    let short = Short {
        dest_qp,
        pkey: Pkey::default(),
        psn: Psn::new(0),
        solicited: false,
        what: What::Send,
        acknowledged: None,
    };
    let (now, ends) = (Instant::now(), ([127, 0, 0, 1].into(), [127, 0, 0, 1].into()));
    let found = device.input_short(now, ends, AckDelay::No, &short, b"abc").unwrap();
    assert!(Arc::ptr_eq(&found, &made) && found.input_short(now, ends, AckDelay::No, &short, b"abc"));
    made.destroy();
    assert!(!found.input_short(now, ends, AckDelay::No, &short, b"abc"));
    assert!(device.input_short(now, ends, AckDelay::No, &short, b"abc").is_none());
    let counted: Vec<_> = device.counted().into_iter().filter(|(_, n)| *n > 0).collect();
    assert_eq!(counted, [("unknown_qp", 1), ("wrong_state", 2)]);
}

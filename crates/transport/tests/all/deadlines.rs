//! Every engine: once it has been served at a time, it wants to be served again later, or not at
//! all. A thread that calls it again at each deadline would turn in circles otherwise.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::*;
use transport::op::SendWr;
use transport::ud::{Destination, Ud};
use transport::{TxBatch, Uc, uc};
use wire::{Mtu, Pkey, Psn, Qkey, Qpn};

const QPN: Qpn = Qpn::new(0x11);

fn memory() -> TestContext {
    End::in_rtr(Mtu::M256, 1 << 16).cx
}

/// Serves an engine again and again at random times, deadlines among them, while `act` does random
/// things to it.
fn serve(
    rng: &mut Rng,
    mut act: impl FnMut(&mut Rng, Instant),
    mut serve: impl FnMut(Instant) -> Option<Instant>,
) {
    let mut now = some_instant();
    for _ in 0..200 {
        act(rng, now);
        let deadline = serve(now);
        assert!(deadline.is_none_or(|at| at > now), "{:?} ago", deadline.map(|at| now - at));
        now = match deadline {
            Some(at) if rng.chance(60) => at,
            _ => now + Duration::from_nanos(rng.below(1_000_000)),
        };
    }
}

fn some_send(rng: &mut Rng) -> SendWr {
    send(1, sge(0, 0, rng.below(4) as u32 * 100))
}

#[test]
fn a_datagram_engine_that_was_served_wants_to_be_served_later() {
    for seed in 0..200 {
        let mut rng = Rng(seed);
        let cell = std::cell::RefCell::new((Ud::new(QPN, Pkey::default(), Arc::default()), memory()));
        cell.borrow_mut().0.ready_to_receive(1024);
        cell.borrow_mut().0.ready_to_send(Psn::new(PSN));
        let act = |rng: &mut Rng, _| {
            let (ud, cx) = &mut *cell.borrow_mut();
            match rng.below(100) {
                0..60 => (0..rng.below(100)).for_each(|_| {
                    let address = rng.below(2);
                    ud.post(some_send(rng), Destination { address, grh: None, qpn: QPN, qkey: Qkey(1) }, cx);
                }),
                60..80 => ud.drain(),
                80..98 => ud.resume(),
                _ => ud.fail(cx),
            }
        };
        serve(&mut rng, act, |now| {
            let (ud, cx) = &mut *cell.borrow_mut();
            let mut batch = TxBatch::new();
            while ud.fill(now, &mut batch, cx).is_some() {
                batch.clear();
            }
            ud.deadline()
        });
    }
}

/// Found as a queue pair in SQD whose deadline had passed: nothing else of the process was served
/// any more.
#[test]
fn a_datagram_engine_that_drains_waits_for_nothing() {
    let (mut ud, mut cx) = (Ud::new(QPN, Pkey::default(), Arc::default()), memory());
    ud.ready_to_receive(1024);
    ud.ready_to_send(Psn::new(PSN));
    for _ in 0..1000 {
        ud.post(
            send(1, sge(0, 0, 1000)),
            Destination { address: 0, grh: None, qpn: QPN, qkey: Qkey(1) },
            &mut cx,
        );
    }
    let (now, mut batch) = (some_instant(), TxBatch::new());
    while ud.fill(now, &mut batch, &mut cx).is_some() {
        batch.clear();
    }
    assert!(ud.deadline().is_some() && ud.outstanding() > 0);
    ud.drain();
    assert_eq!(ud.deadline(), None);
    ud.resume();
    assert!(ud.fill(now + Duration::from_secs(1), &mut batch, &mut cx).is_some());
}

#[test]
fn an_unreliable_connection_that_was_served_wants_to_be_served_later() {
    for seed in 0..200 {
        let mut rng = Rng(seed);
        let cell = std::cell::RefCell::new((Uc::new(QPN, Pkey::default(), Arc::default()), memory()));
        let attr = uc::RtrAttr { dest_qpn: QPN, path_mtu: Mtu::M256, rq_psn: Psn::new(PSN) };
        cell.borrow_mut().0.ready_to_receive(attr);
        cell.borrow_mut().0.ready_to_send(Psn::new(PSN));
        let act = |rng: &mut Rng, _| {
            let (uc, cx) = &mut *cell.borrow_mut();
            match rng.below(100) {
                0..60 => (0..rng.below(10)).for_each(|_| uc.post(send(1, sge(0, 0, 40_000)), cx)),
                60..80 => uc.drain(),
                80..98 => uc.resume(),
                _ => uc.fail(cx),
            }
        };
        serve(&mut rng, act, |now| {
            let (uc, cx) = &mut *cell.borrow_mut();
            let mut batch = TxBatch::new();
            loop {
                batch.clear();
                uc.fill(now, &mut batch, cx);
                if batch.is_empty() {
                    return uc.deadline();
                }
            }
        });
    }
}

#[test]
fn a_reliable_connection_that_was_served_wants_to_be_served_later() {
    for seed in 0..200 {
        let mut rng = Rng(seed);
        let cell = std::cell::RefCell::new(End::new(Mtu::M256, 1 << 16, rts()));
        let act = |rng: &mut Rng, now| {
            let end = &mut *cell.borrow_mut();
            end.now = now;
            let psn = rng.below(40) as i64;
            match rng.below(100) {
                0..20 => end.post(some_send(rng)),
                20..30 => end.post(read(1, sge(0, 0, 3000), sge(1, 0, 3000))),
                30..50 => end.hear(psn, rnr(rng.below(32) as u8, 0), &[]),
                50..75 => end.hear(psn, ack(0), &[]),
                75..85 => end.rc.drain(),
                _ => end.rc.resume(),
            }
        };
        serve(&mut rng, act, |now| {
            let end = &mut *cell.borrow_mut();
            end.now = now;
            end.wait(Duration::ZERO);
            end.fill();
            end.rc.deadline()
        });
    }
}

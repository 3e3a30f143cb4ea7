//! Two engines and a network that loses, repeats, delays and reorders: every byte once and in
//! order, completions exact.

use crate::support::*;
use proptest::prelude::*;
use transport::op::{AtomicOp, Flush, LocalOp, SendOp, SendWr, Side, Status};
use transport::rc::{RtsAttr, State};
use wire::roce::SendTail;
use wire::{Mtu, Rkey};

const LEN: usize = 1 << 20;

/// A run's work, and what must be true at its end.
#[derive(Default)]
struct Work {
    sends: [Vec<(u64, u64)>; 2],
    requests: [u64; 2],
    added: [u64; 2],
    invalidated: [Vec<Rkey>; 2],
}

/// One QP's requests: sources in region 0, results and receives in region 1 of the end that gets
/// them, no two the same.
fn post(pair: &mut Pair, work: &mut Work, from: usize, used: &mut [u64; 2]) {
    let to = 1 - from;
    let id = work.requests[from];
    work.requests[from] += 1;
    let len = match pair.rng.below(4) {
        0 => 0,
        1 => pair.rng.below(64),
        2 => pair.rng.below(3000),
        _ => pair.rng.below(20_000),
    };
    let source = sge(0, pair.rng.below(1000), len as u32);
    let place = |used: &mut [u64; 2], end: usize| {
        let s = sge(1, used[end], len as u32);
        used[end] += len;
        s
    };
    let mut wr = match pair.rng.below(9) {
        0 | 1 => {
            let target = place(used, to);
            pair.ends[to].post_receive(id, target);
            work.sends[to].push((id, len));
            send(id, source)
        }
        2 => write(id, source, place(used, to), None),
        3 => {
            pair.ends[to].post_receive(id, sge(1, 0, 0));
            work.sends[to].push((id, len));
            write(id, source, place(used, to), Some((id as u32).to_be_bytes()))
        }
        4 => read(id, source, place(used, from)),
        5 => {
            work.invalidated[from].push(Rkey(id as u32));
            SendWr { op: SendOp::Local(LocalOp::Invalidate(Rkey(id as u32))), ..send(id, sge(0, 0, 0)) }
        }
        6 => {
            // Eight aligned bytes for each, of those that no other request has.
            used[to] = used[to].next_multiple_of(8);
            let at = sge(1, used[to], 8);
            used[to] += 8;
            atomic(id, AtomicOp::Write(0), at, sge(0, source.addr - BASE, 8))
        }
        7 => {
            let at = sge(1, 0, 64);
            flush(id, at, Flush { global: true, persistent: id.is_multiple_of(3), whole: false })
        }
        _ => {
            work.added[to] += id;
            let counter = sge(1, LEN as u64 - 8, 8);
            atomic(id, AtomicOp::FetchAdd(id), counter, sge(1, LEN as u64 - 16, 8))
        }
    };
    if let SendOp::Send(tail) = &mut wr.op
        && id.is_multiple_of(2)
    {
        *tail = SendTail::Immediate((id as u32).to_be_bytes());
    }
    wr.fence = pair.rng.chance(10);
    expect(pair, &wr, source.addr - BASE, from);
    pair.ends[from].post(wr);
}

thread_local! {
    /// End, offset in region 1, source offset, length.
    static EXPECTED: std::cell::RefCell<Vec<(usize, u64, u64, u64)>> = const { std::cell::RefCell::new(Vec::new()) };
}

fn expect(pair: &Pair, wr: &SendWr, source: u64, from: usize) {
    let to = 1 - from;
    let len = wr.data.len_bytes();
    let entry = match &wr.op {
        SendOp::Send(_) => {
            let target = pair.ends[to].cx.receives.back().expect("posted with the send");
            (to, target.sges.as_slice()[0].addr - 2 * BASE, source, len)
        }
        SendOp::Write { addr, .. } => (to, addr - 2 * BASE, source, len),
        SendOp::Read { addr, .. } => {
            let transport::op::Data::Sges(list) = &wr.data else { unreachable!("reads scatter") };
            (from, list.as_slice()[0].addr - 2 * BASE, addr - BASE, len)
        }
        SendOp::Atomic { addr, op: AtomicOp::Write(_), .. } => (to, addr - 2 * BASE, source, len),
        SendOp::Atomic { .. } | SendOp::Flush { .. } | SendOp::Local(_) => return,
    };
    EXPECTED.with_borrow_mut(|e| e.push(entry));
}

fn run(mtu: Mtu, weather: Weather, seed: u64, both: bool) {
    // Enough tries that this weather never exhausts them: what is tested is exactness, not giving
    // up.
    let rts = RtsAttr { retry_cnt: 200, rnr_retry: 7, timeout: 10, ..rts() };
    let mut pair = Pair::new(mtu, LEN, rts, weather, seed);
    EXPECTED.with_borrow_mut(Vec::clear);
    let mut work = Work::default();
    let mut used = [0; 2];
    for _ in 0..30 {
        post(&mut pair, &mut work, 0, &mut used);
        if both {
            post(&mut pair, &mut work, 1, &mut used);
        }
        for _ in 0..pair.rng.below(20) {
            pair.step();
        }
    }
    pair.run();
    for end in 0..2 {
        let e = &pair.ends[end];
        assert_eq!(e.rc.state(), State::Rts, "end {end}");
        assert_eq!(e.rc.outstanding(), 0);
        assert_eq!((e.rc.deadline(), e.cx.receives.len(), &e.cx.events[..]), (None, 0, &[][..]));
        let of = |side| {
            let mine = e.cx.completions.iter().filter(move |(s, _)| *s == side);
            mine.map(|(_, c)| (c.wr_id, c.status)).collect::<Vec<_>>()
        };
        let sent: Vec<_> = (0..work.requests[end]).map(|id| (id, Status::Success)).collect();
        assert_eq!(of(Side::Send), sent, "end {end}: each once and in order");
        let got: Vec<_> = work.sends[end].iter().map(|&(id, _)| (id, Status::Success)).collect();
        assert_eq!(of(Side::Receive), got, "end {end}: each once and in order");
        let lens: Vec<_> = work.sends[end].iter().map(|&(_, len)| len as u32).collect();
        let receives = e.cx.completions.iter().filter(|(s, _)| *s == Side::Receive);
        assert_eq!(receives.map(|(_, c)| c.byte_len).collect::<Vec<_>>(), lens);
        let memory = e.cx.memory.bytes(1);
        assert_eq!(memory[LEN - 8..], work.added[end].to_ne_bytes(), "end {end}: atomics execute once");
        assert_eq!(
            *e.cx.memory.invalidated.borrow(),
            work.invalidated[end],
            "end {end}: each once, in order"
        );
        let source = e.cx.memory.bytes(0);
        EXPECTED.with_borrow(|all| {
            for &(_, at, from, len) in all.iter().filter(|x| x.0 == end) {
                let (at, from, len) = (at as usize, from as usize, len as usize);
                assert!(memory[at..at + len] == source[from..from + len], "end {end}: bytes at {at}");
            }
        });
    }
}

const MTUS: [Mtu; 5] = [Mtu::M256, Mtu::M512, Mtu::M1024, Mtu::M2048, Mtu::M4096];

#[test]
fn in_fair_weather_everything_arrives_at_every_path_mtu() {
    for mtu in MTUS {
        run(mtu, Weather::default(), 1, true);
    }
}

#[test]
fn seeded_storms_change_nothing_but_the_time_it_takes() {
    for seed in 0..150 {
        let mut rng = Rng(seed);
        let weather = Weather {
            loss: rng.below(15),
            duplication: rng.below(20),
            delay: rng.below(30),
            ghosts: rng.below(5),
        };
        let mtu = MTUS[rng.below(5) as usize];
        println!("seed {seed}: {mtu:?} {weather:?}");
        run(mtu, weather, seed, rng.chance(70));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 1 } else { 40 }, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn any_storm_changes_nothing_but_the_time_it_takes(
        loss in 0u64..20, duplication in 0u64..30, delay in 0u64..40, ghosts in 0u64..6,
        seed: u64, mtu in 0usize..5, both: bool,
    ) {
        run(MTUS[mtu], Weather { loss, duplication, delay, ghosts }, seed, both);
    }
}

#[test]
fn when_nothing_arrives_any_more_all_is_given_up_in_order() {
    let rts = RtsAttr { timeout: 10, ..rts() };
    let mut pair = Pair::new(Mtu::M1024, LEN, rts, Weather { loss: 100, ..Weather::default() }, 3);
    for id in 0..5 {
        pair.ends[0].post(send(id, sge(0, 0, 5000)));
    }
    pair.run();
    let expected: Vec<_> =
        (0..5).map(|id| (id, if id == 0 { Status::RetryExceeded } else { Status::WrFlush })).collect();
    assert_eq!(pair.ends[0].completed(), expected);
}

#[test]
fn a_receive_posted_late_is_found_after_an_rnr_wait() {
    let mut pair = Pair::new(Mtu::M1024, LEN, rts(), Weather::default(), 3);
    pair.ends[0].post(send(1, sge(0, 0, 5000)));
    while pair.ends[0].rc.deadline().is_none_or(|t| t - pair.now > std::time::Duration::from_millis(1)) {
        pair.step();
    }
    pair.ends[1].post_receive(9, sge(1, 0, 5000));
    pair.run();
    assert_eq!(pair.ends[0].completed(), [(1, Status::Success)]);
    assert_eq!(pair.ends[1].completed(), [(9, Status::Success)]);
}

#[test]
fn an_rkey_violation_shows_on_both_sides() {
    let mut pair = Pair::new(Mtu::M1024, LEN, rts(), Weather::default(), 3);
    pair.ends[0].post(write(1, sge(0, 0, 5000), sge(9, 0, 0), None));
    pair.ends[0].post(send(2, sge(0, 0, 8)));
    pair.run();
    assert_eq!(pair.ends[0].completed(), [(1, Status::RemoteAccess), (2, Status::WrFlush)]);
    assert_eq!(pair.ends[1].events(), [transport::op::QpEvent::AccessError]);
}

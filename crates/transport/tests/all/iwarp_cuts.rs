//! iWARP streams that are cut anywhere, and any bytes in place of FPDUs.

use proptest::prelude::*;
use transport::iwarp::Attr;
use transport::op::{RecvWr, SendWr, Side, Status};

use crate::support::*;

const LEN: usize = 1 << 20;

/// What one end posts.
#[derive(Clone, Debug)]
enum Ask {
    Send(u32),
    Write(u32),
    Read(u32),
}

fn ask() -> impl Strategy<Value = Ask> {
    let len = || prop_oneof![0..40_u32, 900..1100_u32, 0..6000_u32];
    prop_oneof![len().prop_map(Ask::Send), len().prop_map(Ask::Write), len().prop_map(Ask::Read)]
}

/// A request; those of one pair of ends use places of their own.
fn request(n: usize, ask: &Ask) -> SendWr {
    let (id, at) = (n as u64, n as u64 * 8192);
    match *ask {
        Ask::Send(len) => send(id, sge(0, at, len)),
        Ask::Write(len) => write(id, sge(0, at, len), sge(1, at, 0), None),
        Ask::Read(len) => read(id, sge(0, at, 0), sge(1, at, len)),
    }
}

proptest! {
    #[test]
    fn cuts_change_nothing(
        asks in prop::collection::vec((any::<bool>(), ask()), 1..24),
        cuts in prop::collection::vec(1..3000_usize, 1..64),
        crc in any::<bool>(),
        max_payload in prop_oneof![Just(1000), Just(60_000)],
    ) {
        let run = |cuts: &[usize], places: bool| {
            let new = || StreamEnd { places, ..StreamEnd::new(Attr { crc, max_payload, ..attr() }, LEN) };
            let (mut a, mut b) = (new(), new());
            for (n, (of_a, ask)) in asks.iter().enumerate() {
                let (asks, takes) = if *of_a { (&mut a, &mut b) } else { (&mut b, &mut a) };
                if let Ask::Send(_) = ask {
                    let sges = [sge(1, n as u64 * 8192, 8192)].into_iter().collect();
                    takes.cx.receives.push_back(RecvWr { wr_id: 1000 + n as u64, sges });
                }
                asks.post(request(n, ask));
            }
            let (mut cuts, mut quiet) = (cuts.iter().cycle(), 0);
            while quiet < 2 {
                let most = *cuts.next().expect("endless");
                let (to_b, to_a) = (a.send(most), b.send(most));
                quiet = if to_b.is_empty() && to_a.is_empty() { quiet + 1 } else { 0 };
                b.hear(&to_b);
                a.hear(&to_a);
            }
            prop_assert_eq!((&a.cx.events[..], &b.cx.events[..]), (&[][..], &[][..]));
            let of = |end: &StreamEnd, side| {
                let all = end.cx.completions.iter().filter(|(of, _)| *of == side);
                all.map(|(_, completion)| *completion).collect::<Vec<_>>()
            };
            let completions =
                [&a, &b].map(|end| (of(end, Side::Send), of(end, Side::Receive)));
            Ok((completions, [&a, &b].map(|end| end.cx.memory.bytes(1))))
        };
        let (whole, cut) = (run(&[usize::MAX], false)?, run(&cuts, true)?);
        prop_assert_eq!(&whole.0, &cut.0);
        prop_assert!(whole.1 == cut.1, "memory differs");
        let mine = asks.iter().filter(|(of_a, _)| *of_a).count();
        prop_assert_eq!(whole.0[0].0.len(), mine);
        prop_assert!(whole.0.iter().flat_map(|(sends, _)| sends).all(|done| done.status == Status::Success));
    }

    #[test]
    fn any_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..400), cut in 1..40_usize, crc in any::<bool>()) {
        let mut b = StreamEnd::new(Attr { crc, ..attr() }, 4096);
        b.post_receive(7, sge(1, 0, 100));
        bytes.chunks(cut).for_each(|chunk| b.hear(chunk));
        b.send_all();
        prop_assert!(b.completed().len() <= 1);
    }
}

//! Two streams joined by queues, and a stream whose peer says anything.

mod pair;

use nic::Errno;
use proptest::prelude::*;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use transport::op::Status;

use crate::settings::Settings;
use crate::stream::{How, Mapping};
use crate::verbs::{Mark, Variant};
use pair::{MAPPED, Pair};

/// Seeds of a run of tests; VERBENA_SEEDS of the environment.
fn seeds() -> u64 {
    std::env::var("VERBENA_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(300)
}

fn below(dice: &mut ChaCha8Rng, most: u32) -> u32 {
    dice.next_u32() % most.max(1)
}

fn some_settings(dice: &mut ChaCha8Rng) -> Settings {
    Settings {
        send_buffer: 4096 + below(dice, 40_000),
        receive_buffer: 4096 + below(dice, 40_000),
        send_queue: 16 + below(dice, 40),
        receive_queue: 16 + below(dice, 40),
        mappings: 2,
        ..Settings::default()
    }
}

/// The byte at a place of the stream of an end.
fn byte(end: usize, at: usize) -> u8 {
    (at.wrapping_mul(31) ^ at >> 8 ^ end) as u8
}

struct Course {
    /// Bytes that each end has written, and has read of the other.
    written: [usize; 2],
    read: [usize; 2],
    most: [usize; 2],
    ended: [bool; 2],
}

fn step(pair: &mut Pair, course: &mut Course, dice: &mut ChaCha8Rng) {
    let n = below(dice, 2) as usize;
    match below(dice, 8) {
        0..=1 => {
            let left = course.most[n] - course.written[n];
            let longest = [300, 30_000][below(dice, 2) as usize];
            let len = left.min(below(dice, longest) as usize);
            let bytes: Vec<u8> = (0..len).map(|i| byte(n, course.written[n] + i)).collect();
            if left > 0 {
                let more = below(dice, 4) == 0;
                course.written[n] += pair.ends[n].write_of(&bytes, more).expect("the stream is open");
            }
            if course.written[n] == course.most[n] && !pair.ends[n].stream.write_shut {
                pair.ends[n].stream.shutdown(How::Write);
                let end = &mut pair.ends[n];
                end.stream.progress(&mut end.port);
            }
        }
        2..=3 => {
            let most = 1 + below(dice, 30_000) as usize;
            match pair.ends[n].read(most).expect("no error") {
                None => {}
                Some(bytes) if bytes.is_empty() => {
                    assert_eq!(course.read[n], course.most[1 - n], "the end came before all bytes");
                    course.ended[n] = true;
                }
                Some(bytes) => {
                    for (i, found) in bytes.iter().enumerate() {
                        assert_eq!(*found, byte(1 - n, course.read[n] + i), "at {}", course.read[n] + i);
                    }
                    course.read[n] += bytes.len();
                }
            }
        }
        4..=5 => _ = pair.deliver(n),
        _ => _ = pair.ends[n].complete(),
    }
}

#[test]
fn bytes_arrive_in_order_once_and_all_before_the_end() {
    for seed in 0..seeds() {
        let mut dice = ChaCha8Rng::seed_from_u64(seed);
        let variant = if seed % 2 == 0 { Variant::Immediate } else { Variant::Sends };
        let settings = [some_settings(&mut dice), some_settings(&mut dice)];
        let mut pair = Pair::new(settings, variant);
        let most = [below(&mut dice, 300_000) as usize, below(&mut dice, 300_000) as usize];
        let mut course = Course { written: [0; 2], read: [0; 2], most, ended: [false; 2] };
        let mut steps = 0;
        while course.ended != [true; 2] {
            step(&mut pair, &mut course, &mut dice);
            steps += 1;
            assert!(steps < 1_000_000, "seed {seed}: the streams stand still");
        }
        pair.settle();
        assert!(pair.ends.iter().all(|end| end.stream.is_flushed() && end.stream.is_over()), "seed {seed}");
    }
}

fn plain(variant: Variant) -> Pair {
    let settings = Settings { mappings: 2, ..Settings::default() };
    Pair::new([settings; 2], variant)
}

#[test]
fn a_mapping_is_known_before_bytes_that_follow_and_written_bytes_arrive_before_them() {
    for variant in [Variant::Immediate, Variant::Sends] {
        let mut pair = plain(variant);
        let mapping = Mapping { offset: 1000, memory: MAPPED };
        pair.ends[0].stream.map(mapping).expect("room for a mapping");
        let end = &mut pair.ends[0];
        end.stream.progress(&mut end.port);
        assert_eq!(end.write(b"mapped"), Ok(6));
        pair.settle();
        assert_eq!(pair.ends[1].read(10), Ok(Some(b"mapped".to_vec())));
        let other = &mut pair.ends[1];
        assert_eq!(other.stream.write_mapped(&mut other.port, b"beyond", 999), Ok(None));
        assert_eq!(other.stream.write_mapped(&mut other.port, b"bytes", 5094), Ok(Some(2)));
        assert_eq!(other.write(b"now"), Ok(3));
        pair.settle();
        assert_eq!(pair.ends[0].port.mapped[4094..], *b"by");
        assert_eq!(pair.ends[0].read(10), Ok(Some(b"now".to_vec())));
        assert_eq!(pair.ends[0].stream.unmap(MAPPED.addr, 1), None);
        assert_eq!(pair.ends[0].stream.unmap(MAPPED.addr, MAPPED.length), Some(mapping));
    }
}

#[test]
fn small_writes_go_together_while_messages_are_under_way_and_at_once_on_an_idle_stream() {
    for variant in [Variant::Immediate, Variant::Sends] {
        let mut pair = plain(variant);
        pair.settle();
        let all: Vec<u8> = (0..200 * 64).map(|at| byte(0, at)).collect();
        for (n, bytes) in (1..).zip(all.chunks(64)) {
            assert_eq!(pair.ends[0].write(bytes), Ok(64));
            assert_eq!(pair.ends[0].messages_under_way(), n.min(4), "after {n} writes");
        }
        assert!(pair.deliver(0) && (variant == Variant::Immediate || pair.deliver(0)));
        while pair.ends[0].complete() {}
        assert_eq!(pair.ends[0].messages_under_way(), 4, "a completion has sent the other 196");
        pair.settle();
        assert_eq!(pair.ends[1].read(20_000), Ok(Some(all)));
        assert_eq!(pair.ends[0].write(b"next"), Ok(4));
        assert_eq!(pair.ends[0].messages_under_way(), 1);
        // TCP_NODELAY.
        pair.ends[0].stream.no_delay = true;
        for n in 2..50 {
            assert_eq!(pair.ends[0].write(b"more"), Ok(4));
            assert_eq!(pair.ends[0].messages_under_way(), n);
        }
    }
}

#[test]
fn writes_with_more_to_come_leave_with_the_last_or_when_pushed_and_at_most_16_kib_wait() {
    for variant in [Variant::Immediate, Variant::Sends] {
        let mut pair = plain(variant);
        pair.settle();
        let all: Vec<u8> = (0..50_000).map(|at| byte(0, at)).collect();
        // TCP_NODELAY changes nothing (tcp(7)).
        pair.ends[0].stream.no_delay = true;
        for bytes in all[..3000].chunks(1000) {
            assert_eq!(pair.ends[0].write_of(bytes, true), Ok(1000));
            pair.settle();
            assert!(pair.ends[0].stream.awaits_more() && !pair.ends[0].stream.is_flushed());
        }
        assert_eq!(pair.ends[1].read(1), Ok(None));
        assert_eq!(pair.ends[0].write(&all[3000..9000]), Ok(6000));
        assert_eq!((pair.ends[0].messages_under_way(), pair.ends[0].stream.awaits_more()), (1, false));
        pair.settle();
        assert_eq!(pair.ends[1].read(50_000).as_ref().map(Option::as_deref), Ok(Some(&all[..9000])));

        // The 17th leaves with the 16 that it finds no room beside.
        for (n, bytes) in (1_usize..).zip(all[..17_000].chunks(1000)) {
            assert_eq!(pair.ends[0].write_of(bytes, true), Ok(1000));
            assert_eq!(pair.ends[0].messages_under_way(), usize::from(n == 17), "after {n} writes");
        }
        assert_eq!(pair.ends[0].write_of(&all[17_000..17_100], true), Ok(100));
        pair.settle();
        assert_eq!(pair.ends[1].read(50_000).as_ref().map(Option::as_deref), Ok(Some(&all[..17_000])));
        let end = &mut pair.ends[0];
        end.stream.push(&mut end.port);
        pair.settle();
        assert_eq!(pair.ends[1].read(50_000).as_ref().map(Option::as_deref), Ok(Some(&all[17_000..17_100])));
    }
}

#[test]
fn the_end_of_a_stream_does_not_wait_for_more() {
    let mut pair = plain(Variant::Immediate);
    pair.settle();
    assert_eq!(pair.ends[0].write_of(b"the last", true), Ok(8));
    pair.ends[0].stream.shutdown(How::Write);
    let end = &mut pair.ends[0];
    end.stream.progress(&mut end.port);
    pair.settle();
    assert_eq!(pair.ends[1].read(100), Ok(Some(b"the last".to_vec())));
    assert_eq!(pair.ends[1].read(100), Ok(Some(vec![])));
}

#[test]
fn small_writes_that_no_credit_lets_leave_are_taken_up_to_16_kib_and_arrive_before_the_end() {
    let settings = Settings { receive_queue: 16, ..Settings::default() };
    let mut pair = Pair::new([settings; 2], Variant::Immediate);
    pair.settle();
    let mut written = 0;
    while pair.ends[0].write(&[7; 1000]) == Ok(1000) {
        written += 1000;
        pair.settle();
    }
    assert_eq!(written, 16 * 1000 + 16_000);
    assert!(!pair.ends[0].stream.readiness().writable);
    pair.ends[0].stream.shutdown(How::Write);
    pair.settle();
    assert!(!pair.ends[0].stream.is_flushed());
    let mut read = 0;
    while let Some(bytes) = pair.ends[1].read(5000).expect("no error").filter(|bytes| !bytes.is_empty()) {
        read += bytes.len();
        pair.settle();
    }
    assert_eq!((read, pair.ends[1].read(1)), (written, Ok(Some(vec![]))));
    assert!(pair.ends[0].stream.is_flushed());
}

#[test]
fn either_half_ends_alone() {
    let mut pair = plain(Variant::Immediate);
    pair.ends[0].stream.shutdown(How::Write);
    let end = &mut pair.ends[0];
    end.stream.progress(&mut end.port);
    pair.settle();
    assert_eq!(pair.ends[1].read(1), Ok(Some(vec![])));
    assert_eq!(pair.ends[1].write(b"still"), Ok(5));
    pair.settle();
    assert_eq!(pair.ends[0].read(9), Ok(Some(b"still".to_vec())));
    assert_eq!(pair.ends[0].write(b"x"), Err(Errno::EPIPE));
    let ready = pair.ends[1].stream.readiness();
    assert!(ready.readable && ready.writable && ready.read_hup && !ready.hup);
    pair.ends[1].stream.shutdown(How::Both);
    let end = &mut pair.ends[1];
    end.stream.progress(&mut end.port);
    pair.settle();
    assert_eq!(pair.ends[0].read(1), Ok(Some(vec![])));
    assert!(pair.ends[0].stream.readiness().hup);
    assert!(pair.ends[1].stream.readiness().hup);
}

#[test]
fn a_connection_that_breaks_says_so_once_after_all_that_came() {
    let mut pair = plain(Variant::Immediate);
    assert_eq!(pair.ends[0].write(b"last"), Ok(4));
    pair.settle();
    pair.ends[1].stream.on_disconnected();
    let ready = pair.ends[1].stream.readiness();
    assert!(ready.readable && ready.writable && !ready.hup && !ready.error, "{ready:?}");
    assert_eq!(pair.ends[1].read(2), Ok(Some(b"la".to_vec())));
    assert_eq!(pair.ends[1].read(9), Ok(Some(b"st".to_vec())));
    assert_eq!(pair.ends[1].read(9), Err(Errno::ECONNRESET));
    assert_eq!(pair.ends[1].read(9), Ok(Some(vec![])));
    assert_eq!(pair.ends[1].write(b"x"), Err(Errno::EPIPE));
}

#[test]
fn a_keep_alive_tells_nothing_and_ends_the_stream_where_the_peer_is_gone() {
    let mut pair = plain(Variant::Immediate);
    pair.settle();
    let end = &mut pair.ends[0];
    end.stream.keep_alive(&mut end.port);
    assert!(!end.stream.is_flushed());
    pair.settle();
    assert!(pair.ends[0].stream.is_flushed());
    assert_eq!((pair.ends[1].read(1), pair.ends[0].read(1)), (Ok(None), Ok(None)));
    let end = &mut pair.ends[0];
    end.stream.keep_alive(&mut end.port);
    end.stream.on_sent(Mark { control: true, bytes: 0 }, Status::RetryExceeded);
    assert_eq!(end.read(1), Err(Errno::ETIMEDOUT));
}

#[test]
fn a_peer_that_says_more_than_it_may_is_reset() {
    let half = Settings::default().receive_buffer / 2;
    // More bytes than were offered, more credits than there are receives, no such mapping, no such
    // message.
    for word in [2 * half + 1, 4 << 29 | 0xffff, 6 << 29 | 2, 1 << 29, 7 << 29 | 9] {
        let mut pair = plain(Variant::Immediate);
        pair.settle();
        pair.ends[0].receive_word(word);
        assert_eq!(pair.ends[0].read(1), Err(Errno::ECONNRESET), "{word:#x}");
        assert!(pair.ends[0].stream.is_over());
    }
}

proptest! {
    #[test]
    fn whatever_a_peer_says_nothing_beyond_the_ring_counts_as_received(
        words in proptest::collection::vec((0_u32..8, any::<u32>()), 0..200),
        lists in proptest::collection::vec(any::<u8>(), 80),
    ) {
        let mut pair = plain(Variant::Immediate);
        pair.settle();
        let end = &mut pair.ends[0];
        for (kind, word) in words {
            end.port.lists.copy_from_slice(&lists);
            end.receive_word((kind << 29) | (word % 5000));
            prop_assert!(end.stream.readable_bytes() <= Settings::default().receive_buffer.into());
            let _ = end.read(word as usize % 3000);
            let _ = end.write(&[7; 100]);
        }
    }
}

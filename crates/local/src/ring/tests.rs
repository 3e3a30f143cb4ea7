use std::sync::Arc;
use std::sync::atomic::Ordering;

use proptest::prelude::*;

use super::layout::*;
use super::*;

type Memory = Arc<[Word]>;

fn memory(lines: usize) -> Memory {
    (0..(HEAD + lines) * LINE).map(|_| Word::new(0)).collect()
}

fn ring(lines: usize) -> (Writer<Memory>, Reader<Memory>, Memory) {
    let memory = memory(lines);
    (Writer::new(memory.clone()).unwrap(), Reader::new(memory.clone()).unwrap(), memory)
}

fn read(reader: &mut Reader<Memory>) -> Option<Vec<u8>> {
    let mut bytes = vec![0; 4096];
    let len = reader.pop(&mut bytes).unwrap()?;
    bytes.truncate(len);
    Some(bytes)
}

#[test]
fn what_is_too_small_is_no_ring() {
    for words in [0, 1, HEAD * LINE, (HEAD + MIN) * LINE - 1] {
        let memory: Memory = (0..words).map(|_| Word::new(0)).collect();
        assert!(Writer::new(memory.clone()).is_none() && Reader::new(memory).is_none(), "{words} words");
    }
    assert_eq!(memory_len(4096 - HEAD * LINE_BYTES), 4096);
    assert_eq!(memory_len(4096), 8192);
}

#[test]
fn a_full_ring_takes_nothing_until_something_was_read() {
    let (mut writer, mut reader, _) = ring(8);
    let mut written = 0;
    while writer.push(&[&[written; 56]]).is_ok() {
        written += 1;
    }
    assert_eq!(written, 7, "one line stays free");
    assert_eq!(writer.push(&[&[0]]), Err(PushError::Full));
    for n in 0..written {
        assert_eq!(read(&mut reader), Some(vec![n; 56]));
    }
    assert!(reader.is_empty());
    assert_eq!(writer.push(&[&[1; 200]]), Ok(()));
    assert_eq!(writer.push(&[&[1; 4 * 64 - 7]]), Err(PushError::TooLong));
}

#[test]
fn a_writer_begins_again_where_the_reader_has_read_all_and_only_there() {
    const LINES: usize = 512;
    let (mut writer, mut reader, memory) = ring(LINES);
    let mut send = |n: u32, reader: &mut Reader<Memory>| {
        writer.begin_again();
        writer.push(&[&[n as u8; 300]]).unwrap();
        assert_eq!(read(reader), Some(vec![n as u8; 300]));
    };
    // A reader that reads all and says so finds all in the front.
    for n in 0..1000 {
        send(n, &mut reader);
        assert!(reader.is_empty());
    }
    assert_eq!(touched(&memory, 140..LINES), 0);
    // One that does not say so is not overtaken: the writer goes on after what may not be read yet.
    for n in 0..40 {
        send(n, &mut reader);
    }
    assert!(touched(&memory, 140..LINES) > 0);
    // What is not read stays.
    for n in 0..10 {
        writer.begin_again();
        writer.push(&[&[n; 300]]).unwrap();
    }
    assert!((0..10).all(|n| read(&mut reader) == Some(vec![n; 300])));
    assert!(reader.is_empty());
}

/// How many of these lines were written to.
fn touched(memory: &Memory, lines: std::ops::Range<usize>) -> usize {
    lines.filter(|line| memory[(HEAD + line) * LINE].load(Ordering::Relaxed) != 0).count()
}

#[test]
fn short_records_keep_to_the_front_of_a_ring_whose_reader_keeps_up() {
    const LINES: usize = 8 * 1024;
    let (mut writer, mut reader, memory) = ring(LINES);
    let unread = 100;
    for n in 0..100_000 {
        writer.push_words([n, n], &[n as u8; 64]).unwrap();
        if n >= unread {
            let record = read(&mut reader).unwrap();
            assert_eq!(record[..8], (n - unread).to_le_bytes());
        }
    }
    assert!(touched(&memory, 0..LINES) < 1100);
}

#[test]
fn short_records_have_all_of_the_ring_where_the_reader_lags() {
    const LINES: usize = 8 * 1024;
    let (mut writer, mut reader, memory) = ring(LINES);
    // Rounds of more records than the front of the ring takes: all wait for no reader, but for the
    // first few rounds.
    let round = 3_000;
    for n in 0..20 {
        let sent = (0..round).take_while(|at| writer.push_words([*at, n], &[1; 64]).is_ok()).count();
        assert!(sent == round as usize || n < 4, "{sent} in round {n}");
        assert!((0..sent).all(|at| read(&mut reader).unwrap()[..8] == (at as u64).to_le_bytes()));
        assert!(reader.is_empty());
    }
    assert!(touched(&memory, 0..LINES) > 2 * round as usize);
}

#[test]
fn who_says_again_that_it_sleeps_is_woken_and_who_stays_awake_is_not() {
    let (mut writer, mut reader, _) = ring(8);
    for wake_target in [WakeTarget::AppThread, WakeTarget::Engine] {
        assert!(reader.sleep(wake_target) && reader.sleep(wake_target));
        writer.push(&[b"one"]).unwrap();
        assert_eq!(
            (writer.sleeper(), writer.must_wake(), writer.must_wake()),
            (Some(wake_target), Some(wake_target), None)
        );
        assert!(!reader.sleep(wake_target), "there is something to read");
        assert_eq!(read(&mut reader), Some(b"one".to_vec()));
        assert!(reader.sleep(wake_target));
        reader.stay_awake();
        assert_eq!((writer.sleeper(), writer.must_wake()), (None, None));
    }
    // What is said stands where a record came and was taken before it was said again.
    assert!(reader.sleep(WakeTarget::Engine));
    writer.push(&[b"two"]).unwrap();
    assert_eq!(read(&mut reader), Some(b"two".to_vec()));
    assert!(reader.sleep(WakeTarget::Engine));
    assert_eq!(writer.must_wake(), Some(WakeTarget::Engine));
}

#[test]
fn a_record_of_words_and_bytes_is_read_as_one_of_bytes() {
    let (mut writer, mut reader, _) = ring(12);
    let bytes: Vec<u8> = (0..=255).collect();
    for len in (0..=256).chain([0, 1, 64]) {
        let head = [0x0706_0504_0302_0100, u64::MAX - len as u64];
        assert_eq!(writer.push_words(head, &bytes[..len]), Ok(()));
        let all = [&head[0].to_le_bytes(), &head[1].to_le_bytes(), &bytes[..len]].concat();
        assert_eq!(read(&mut reader), Some(all), "{len} bytes");
        assert!(reader.is_empty(), "its lines are the writer's again");
    }
    assert_eq!(writer.push_words([0; 2], &[0; 400]), Err(PushError::TooLong));
}

#[test]
fn lines_that_are_taken_for_the_next_record_are_not_the_readers() {
    for (lines, len) in (4..20).flat_map(|lines| (0..60).map(move |len| (lines, len))) {
        let (mut writer, mut reader, _) = ring(lines);
        let mut told = 0;
        for round in 0..6 {
            let first = told;
            while writer.push_words([told], &vec![round; len]).is_ok() {
                told += 1;
            }
            assert!(told > first, "{lines} lines take a record of {len} bytes when all is read");
            for one in first..told {
                let all = [&one.to_le_bytes()[..], &vec![round; len]].concat();
                assert_eq!(read(&mut reader), Some(all), "{lines} lines, {len} bytes, round {round}");
            }
            assert!(reader.is_empty());
        }
    }
}

/// Writes a record of a head and a body.
fn push_with(writer: &mut Writer<Memory>, head: &[u8], body: &[u8]) -> Result<(), PushError> {
    let fill = |words: &[Word]| {
        let mut filler = words::Filler::<Memory>::new(words);
        filler.add(body);
        filler.finish();
        Ok::<(), ()>(())
    };
    writer.push_with(head, body.len(), fill).map(|filled| assert_eq!(filled, Ok(())))
}

/// The head and the body of the next record, taken from where they lie.
fn read_with(reader: &mut Reader<Memory>, head: usize) -> Option<(Vec<u8>, Vec<u8>)> {
    let found = reader.peek().unwrap()?;
    let mut front = vec![0; head];
    reader.copy_out(&found, &mut front);
    let mut body = vec![0; found.len() - BODY];
    words::copy_out::<Memory>(&reader.words(&found)[BODY / 8..], &mut body);
    reader.leave(found);
    Some((front, body))
}

#[test]
fn a_body_begins_with_a_line_behind_the_head() {
    let (mut writer, mut reader, memory) = ring(8);
    let filled = writer.push_with(b"head", 100, |words| {
        assert_eq!(words.len(), 2 * LINE, "whole lines");
        assert!(std::ptr::eq(&raw const words[0], &raw const memory[(HEAD + 1) * LINE]));
        words[0].store(u64::from_le_bytes(*b"a body's"), Ordering::Relaxed);
        words[12].store(u64::from_le_bytes(*b"last...."), Ordering::Relaxed);
        Ok::<(), ()>(())
    });
    assert_eq!(filled, Ok(Ok(())));
    let bytes = read(&mut reader).unwrap();
    assert_eq!(bytes.len(), BODY + 100);
    assert_eq!(
        (&bytes[..4], &bytes[BODY..BODY + 8], &bytes[BODY + 96..]),
        (&b"head"[..], &b"a body's"[..], &b"last"[..])
    );
    // The head may fill all before the body, and there may be no body.
    for (head, body) in [(&[1; BODY][..], &[2; 64][..]), (&[3; BODY], &[]), (&[], &[4]), (&[], &[])] {
        assert_eq!(push_with(&mut writer, head, body), Ok(()));
        assert_eq!(read_with(&mut reader, head.len()), Some((head.to_vec(), body.to_vec())));
    }
    assert_eq!(push_with(&mut writer, &[1; BODY + 1], &[]), Err(PushError::TooLong));
    assert!(reader.is_empty());
}

#[test]
fn a_body_that_is_not_filled_leaves_the_ring_as_it_was() {
    for before in 0..16 {
        let (mut writer, mut reader, _) = ring(8);
        // Where the ring's end is too near the rest of it is left out.
        for n in 0..before {
            writer.push(&[&[n; 8]]).unwrap();
            assert!(read(&mut reader) == Some(vec![n; 8]) && reader.is_empty());
        }
        for _ in 0..20 {
            let filled = writer.push_with(b"head", 130, |words| {
                words.iter().for_each(|word| word.store(u64::MAX, Ordering::Relaxed));
                Err("no")
            });
            assert_eq!(filled, Ok(Err("no")));
            assert!(matches!(reader.peek(), Ok(None)) && reader.is_empty(), "behind {before}");
        }
        writer.push(&[b"next"]).unwrap();
        assert!(read(&mut reader) == Some(b"next".to_vec()) && reader.is_empty(), "behind {before}");
        assert_eq!(push_with(&mut writer, b"head", &[7; 130]), Ok(()));
        assert_eq!(read_with(&mut reader, 4), Some((b"head".to_vec(), vec![7; 130])));
        assert_eq!(read(&mut reader), None);
    }
}

#[test]
fn a_full_ring_takes_a_body_when_the_reader_has_left_a_record() {
    // Records of four lines, of which three fit: one line stays free.
    const LEN: usize = 3 * LINE_BYTES;
    let (mut writer, mut reader, _) = ring(16);
    for n in 0..3 {
        assert_eq!(push_with(&mut writer, &[n], &[n; LEN]), Ok(()));
    }
    for n in 0..20 {
        let found = reader.peek().unwrap().unwrap();
        let full = writer.push_with(&[77], LEN, |_| -> Result<(), ()> { panic!("there is no room") });
        assert_eq!(full, Err(PushError::Full), "it is only looked at");
        let mut bytes = [0; BODY + LEN];
        reader.copy_out(&found, &mut bytes);
        assert!(bytes[0] == n && bytes[BODY..] == [n; LEN], "record {n}");
        reader.leave(found);
        assert_eq!(push_with(&mut writer, &[n + 3], &[n + 3; LEN]), Ok(()));
    }
    let longest = writer.longest();
    assert_eq!(push_with(&mut writer, &[], &vec![0; longest - BODY]), Err(PushError::Full));
    assert_eq!(push_with(&mut writer, &[], &vec![0; longest - BODY + 1]), Err(PushError::TooLong));
    assert_eq!(writer.push_with(&[], usize::MAX, |_| Err(())), Err(PushError::TooLong));
}

#[test]
fn a_record_that_is_not_left_is_found_again_and_stays_the_readers() {
    let (mut writer, mut reader, _) = ring(16);
    let body: Vec<u8> = (0..200).collect();
    for round in 0..50u8 {
        assert_eq!(push_with(&mut writer, &[round], &body), Ok(()));
        // Whatever the writer has to write now, and whatever is asked meanwhile.
        while writer.push(&[&[0xee; 60]]).is_ok() {}
        for _ in 0..3 {
            let found = reader.peek().unwrap().unwrap();
            assert_eq!(found.len(), BODY + 200);
            assert!(!reader.is_empty() && !reader.sleep(WakeTarget::Engine));
            assert_eq!(writer.push(&[&[0xdd; 60]]), Err(PushError::Full));
            let mut bytes = [0; BODY + 200];
            reader.copy_out(&found, &mut bytes);
            assert!(bytes[0] == round && bytes[BODY..] == body, "round {round}");
        }
        assert_eq!(read_with(&mut reader, 1), Some((vec![round], body.clone())));
        assert_eq!(writer.push(&[&[0xcc; 60]]), Ok(()), "its lines are the writer's again");
        while let Some(bytes) = read(&mut reader) {
            assert!(bytes == [0xee; 60] || bytes == [0xcc; 60]);
        }
        assert!(reader.is_empty());
    }
}

#[test]
fn the_reader_is_woken_once_for_each_time_it_sleeps() {
    let (mut writer, mut reader, memory) = ring(8);
    writer.push(&[b"a"]).unwrap();
    assert_eq!(writer.must_wake(), None, "nobody sleeps");
    assert!(!reader.sleep(WakeTarget::Engine), "there is something to read");
    assert_eq!(writer.must_wake(), None);
    assert!(read(&mut reader).is_some());
    for wake_target in [WakeTarget::Engine, WakeTarget::AppThread] {
        assert!(reader.sleep(wake_target));
        writer.push(&[b"b"]).unwrap();
        assert_eq!((writer.must_wake(), writer.must_wake()), (Some(wake_target), None));
        assert!(read(&mut reader).is_some());
    }
    // The last word counts, and one that is none wakes the thread that is always there.
    assert!(reader.sleep(WakeTarget::AppThread) && reader.sleep(WakeTarget::Engine));
    memory[ASLEEP].store(77, Ordering::Relaxed);
    assert_eq!(writer.must_wake(), Some(WakeTarget::Engine));
}

#[test]
fn what_no_writer_writes_is_found() {
    let headers = [
        ("longer than the ring", header(8 * 64, 0)),
        ("longer than the buffer", header(300, 0)),
        ("of another round", header(1, 8)),
        ("left out at the front", header(SKIP, 0)),
    ];
    for (what, header) in headers {
        let (_, mut reader, memory) = ring(8);
        memory[HEAD * LINE].store(header, Ordering::Relaxed);
        assert_eq!(reader.pop(&mut [0; 256]), Err(Broken), "{what}");
    }
}

#[test]
fn a_reader_that_is_done_with_what_was_not_written_is_found() {
    let (mut writer, _, memory) = ring(8);
    while writer.push(&[&[0; 56]]).is_ok() {}
    memory[DONE].store(100, Ordering::Relaxed);
    assert_eq!(writer.push(&[b"a"]), Err(PushError::Broken));
    let (mut writer, mut reader, memory) = ring(8);
    for _ in 0..6 {
        writer.push(&[&[0; 56]]).unwrap();
        read(&mut reader);
    }
    assert!(reader.is_empty());
    while writer.push(&[&[0; 56]]).is_ok() {}
    memory[DONE].store(1, Ordering::Relaxed);
    assert_eq!(writer.push(&[b"a"]), Err(PushError::Broken), "less than before");
}

#[test]
fn bytes_of_an_old_record_are_not_taken_for_a_new_one() {
    // Every word of each record looks like the header of a record at that place.
    let (mut writer, mut reader, _) = ring(8);
    for round in 0..100u64 {
        let fake: Vec<u8> = (0..19).flat_map(|n| header(8, round * 3 + n).to_le_bytes()).collect();
        writer.push(&[&fake]).unwrap();
        assert_eq!(read(&mut reader), Some(fake));
        assert!(reader.is_empty());
    }
}

#[test]
fn two_threads_pass_many_records() {
    let (mut writer, mut reader, _) = ring(64);
    const COUNT: u64 = 200_000;
    let sender = std::thread::spawn(move || {
        let filling = [7u8; 512];
        for n in 0..COUNT {
            let head = n.to_le_bytes();
            while writer.push(&[&head, &filling[..(n % 500) as usize]]).is_err() {
                std::thread::yield_now();
            }
        }
    });
    let mut bytes = [0; 1024];
    for n in 0..COUNT {
        let len = loop {
            match reader.pop(&mut bytes).unwrap() {
                Some(len) => break len,
                None if reader.is_empty() => std::thread::yield_now(),
                None => {}
            }
        };
        assert_eq!(len as u64, 8 + n % 500);
        assert_eq!(bytes[..8], n.to_le_bytes());
        assert!(bytes[8..len].iter().all(|byte| *byte == 7));
    }
    sender.join().unwrap();
}

proptest! {
    #[test]
    fn what_goes_in_comes_out(
        lines in MIN..40,
        records in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..600), 0usize..600, any::<bool>()), 0..200),
    ) {
        let (mut writer, mut reader, _) = ring(lines);
        let mut inside = std::collections::VecDeque::new();
        for (bytes, cut, drain) in records {
            let (a, b) = bytes.split_at(cut.min(bytes.len()));
            match writer.push(&[a, b]) {
                Ok(()) => inside.push_back(bytes),
                Err(PushError::TooLong) => prop_assert!(bytes.len() > writer.longest()),
                Err(error) => {
                    prop_assert_eq!(error, PushError::Full);
                    prop_assert!(!inside.is_empty(), "an empty ring takes every record that is short enough");
                }
            }
            if drain || inside.len() > 5 {
                while let Some(bytes) = inside.pop_front() {
                    prop_assert_eq!(read(&mut reader), Some(bytes));
                }
                prop_assert!(reader.is_empty());
            }
        }
        for bytes in inside {
            prop_assert_eq!(read(&mut reader), Some(bytes));
        }
        prop_assert_eq!(read(&mut reader), None);
    }

    #[test]
    fn records_with_a_body_come_out_whole_among_others(
        lines in MIN..40,
        records in prop::collection::vec(
            (prop::collection::vec(any::<u8>(), 0..900), 0..=BODY, 0u8..4, any::<bool>()),
            0..200,
        ),
    ) {
        let (mut writer, mut reader, _) = ring(lines);
        let mut inside = std::collections::VecDeque::new();
        for (bytes, cut, kind, drain) in records {
            let (head, body) = bytes.split_at(cut.min(bytes.len()));
            if kind == 1 {
                // One that is not filled is no record.
                let filled = writer.push_with(head, body.len(), |_| Err(()));
                prop_assert!(filled != Ok(Ok(())));
                continue;
            }
            let (len, pushed) = match kind {
                0 => (bytes.len(), writer.push(&[&bytes])),
                _ => (BODY + body.len(), push_with(&mut writer, head, body)),
            };
            match pushed {
                Ok(()) => inside.push_back((kind > 0, head.to_vec(), body.to_vec())),
                Err(PushError::TooLong) => prop_assert!(len > writer.longest()),
                Err(error) => {
                    prop_assert_eq!(error, PushError::Full);
                    prop_assert!(!inside.is_empty(), "an empty ring takes every record that is short enough");
                }
            }
            while drain || inside.len() > 5 {
                let Some((in_place, head, body)) = inside.pop_front() else { break };
                if in_place {
                    prop_assert_eq!(read_with(&mut reader, head.len()), Some((head, body)));
                } else {
                    prop_assert_eq!(read(&mut reader), Some([head, body].concat()));
                }
            }
            if inside.is_empty() {
                // Where the rest of the ring was left out for a record that was not filled, it sees
                // that when it looks for one.
                prop_assert_eq!(read(&mut reader), None);
                prop_assert!(reader.is_empty());
            }
        }
    }

    #[test]
    fn a_reader_takes_any_memory(words in prop::collection::vec(any::<u64>(), (HEAD + MIN) * LINE..400), position: bool) {
        let memory: Memory = words.iter().map(|word| Word::new(*word)).collect();
        if position {
            // Often enough a plausible header.
            for line in 0..capacity(memory.len()).unwrap() {
                memory[(HEAD + line) * LINE].store(header(words[line] as u32 % 300, line as u64), Ordering::Relaxed);
            }
        }
        let mut reader = Reader::new(memory).unwrap();
        for _ in 0..100 {
            if reader.pop(&mut [0; 256]) == Err(Broken) {
                break;
            }
        }
    }
}

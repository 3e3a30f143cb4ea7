use std::sync::Arc;
use std::sync::atomic::Ordering;

use proptest::prelude::*;

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
    for words in [0, 1, HEAD * LINE, (HEAD + FEWEST) * LINE - 1] {
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
fn the_reader_is_woken_once_for_each_time_it_sleeps() {
    let (mut writer, mut reader, memory) = ring(8);
    writer.push(&[b"a"]).unwrap();
    assert_eq!(writer.must_wake(), None, "nobody sleeps");
    assert!(!reader.sleep(Whom::Engine), "there is something to read");
    assert_eq!(writer.must_wake(), None);
    assert!(read(&mut reader).is_some());
    for whom in [Whom::Engine, Whom::Visitor] {
        assert!(reader.sleep(whom));
        writer.push(&[b"b"]).unwrap();
        assert_eq!((writer.must_wake(), writer.must_wake()), (Some(whom), None));
        assert!(read(&mut reader).is_some());
    }
    // The last word counts, and one that is none wakes who is always there.
    assert!(reader.sleep(Whom::Visitor) && reader.sleep(Whom::Engine));
    memory[ASLEEP].store(77, Ordering::Relaxed);
    assert_eq!(writer.must_wake(), Some(Whom::Engine));
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
        lines in FEWEST..40,
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
    fn a_reader_takes_any_memory(words in prop::collection::vec(any::<u64>(), (HEAD + FEWEST) * LINE..400), position: bool) {
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

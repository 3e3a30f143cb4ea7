//! Every order of a writer and a reader that goes to sleep, on loom's models of the atomics:
//! `RUSTFLAGS="--cfg loom" cargo test --release -p verbena-local --lib --target-dir target/loom
//! wake_up`

use loom::model::Builder;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;

use super::layout::{HEAD, LINE, MIN};
use super::{Reader, WakeTarget, Word, Writer};

/// loom's words, shared.
#[derive(Clone)]
struct Memory(Arc<Vec<Word>>);

impl std::ops::Deref for Memory {
    type Target = [Word];
    fn deref(&self) -> &[Word] {
        &self.0
    }
}

impl super::layout::Memory for Memory {}

fn memory() -> Memory {
    Memory(Arc::new((0..(HEAD + MIN) * LINE).map(|_| Word::new(0)).collect()))
}

fn explore(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

#[test]
fn a_reader_that_sleeps_is_woken_or_finds_the_record() {
    explore(|| {
        let memory = memory();
        let rung = Arc::new(AtomicBool::new(false));
        let (mut writer, mut reader) = (Writer::new(memory.clone()).unwrap(), Reader::new(memory).unwrap());
        let theirs = rung.clone();
        let sender = thread::spawn(move || {
            writer.push(&[b"message"]).unwrap();
            if writer.must_wake().is_some() {
                theirs.store(true, Ordering::Release);
            }
        });
        let sleeps = reader.sleep(WakeTarget::Engine);
        sender.join().unwrap();
        assert!(!sleeps || rung.load(Ordering::Acquire), "it sleeps, and nobody wakes it");
        let mut bytes = [0; 16];
        assert_eq!(reader.pop(&mut bytes), Ok(Some(7)));
        assert_eq!(&bytes[..7], b"message");
    });
}

#[test]
fn a_reader_that_sleeps_again_is_woken_or_finds_the_record() {
    explore(|| {
        let memory = memory();
        let rung = Arc::new(AtomicBool::new(false));
        let (mut writer, mut reader) = (Writer::new(memory.clone()).unwrap(), Reader::new(memory).unwrap());
        assert!(reader.sleep(WakeTarget::Engine));
        let theirs = rung.clone();
        let sender = thread::spawn(move || {
            writer.push(&[b"message"]).unwrap();
            // What is owed is paid later.
            if writer.sleeper().is_some() && writer.must_wake().is_some() {
                theirs.store(true, Ordering::Release);
            }
        });
        let sleeps = reader.sleep(WakeTarget::Engine);
        sender.join().unwrap();
        assert!(!sleeps || rung.load(Ordering::Acquire), "it sleeps, and nobody wakes it");
    });
}

#[test]
fn records_arrive_whole_through_a_ring_that_comes_round() {
    explore(|| {
        let memory = memory();
        let (mut writer, mut reader) = (Writer::new(memory.clone()).unwrap(), Reader::new(memory).unwrap());
        // The third record is written where the first one was.
        for n in [1u8, 2] {
            writer.push(&[&[n; 60]]).unwrap_or_default();
        }
        let sender = thread::spawn(move || writer.push(&[&[3; 60]]).is_ok());
        let mut bytes = [0; 64];
        let mut read = Vec::new();
        while let Some(len) = reader.pop(&mut bytes).unwrap() {
            assert!(len == 60 && bytes[..60].iter().all(|byte| *byte == bytes[0]));
            read.push(bytes[0]);
        }
        reader.is_empty();
        let sent = sender.join().unwrap();
        while let Some(len) = reader.pop(&mut bytes).unwrap() {
            assert!(len == 60 && bytes[..60].iter().all(|byte| *byte == bytes[0]));
            read.push(bytes[0]);
        }
        assert_eq!(read, if sent { vec![1, 3] } else { vec![1] });
    });
}

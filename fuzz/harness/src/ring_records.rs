//! A ring whose other end keeps to no rule: any words anywhere, before, between and in the middle
//! of the calls of the end that does. What comes out goes to a node, as the host hands it on.
//!
//! Nothing panics; no record is longer than its buffer; while no end breaks a rule, what goes in
//! comes out.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::atomic::Ordering;

use local::ring::{PushError, Reader, Word, Writer};

use crate::Input;
use crate::names::Scene;

/// Most steps of one input.
const STEPS: u32 = 60;
/// Words of a line, and lines in front of the records.
const LINE: usize = 8;
const HEAD: usize = 2;

/// Memory that changes each time it is looked at, as far as the script goes.
struct Shared {
    words: Vec<Word>,
    /// Words to be, oldest first.
    script: RefCell<VecDeque<(usize, u64)>>,
    /// Looks until the next one of them.
    pause: Cell<u32>,
    /// A word was written that the other end would not write.
    foul: Cell<bool>,
}

#[derive(Clone)]
struct Memory(Rc<Shared>);

impl Deref for Memory {
    type Target = [Word];

    fn deref(&self) -> &[Word] {
        match self.0.pause.get() {
            0 => {
                if let Some((at, word)) = self.0.script.borrow_mut().pop_front() {
                    self.0.words[at].store(word, Ordering::Relaxed);
                }
            }
            left => self.0.pause.set(left - 1),
        }
        &self.0.words
    }
}

impl local::ring::Memory for Memory {}

/// What was written.
#[derive(Debug)]
enum Inside {
    Record(Vec<u8>),
    /// The record's head, and its body.
    Piece(Vec<u8>, Vec<u8>),
}

impl Inside {
    fn len(&self) -> usize {
        match self {
            Self::Record(bytes) => bytes.len(),
            Self::Piece(_, body) => local::ring::BODY + body.len(),
        }
    }

    /// That is what comes out.
    fn is(&self, bytes: &[u8]) {
        assert_eq!(bytes.len(), self.len());
        match self {
            Self::Record(record) => assert_eq!(bytes, record),
            Self::Piece(head, body) => {
                assert_eq!((&bytes[..head.len()], &bytes[local::ring::BODY..]), (&head[..], &body[..]));
            }
        }
    }
}

/// Whether a ring in which there is no record takes one of so many bytes, when the reader has seen
/// that there is none.
fn has_room(writer: &mut Writer<Memory>, reader: &mut Reader<Memory>, len: usize) -> bool {
    let is_empty = matches!(reader.peek(), Ok(None)) && reader.is_empty();
    is_empty && writer.push_with(&[], len.saturating_sub(local::ring::BODY), |_| Err(())) == Ok(Err(()))
}

/// Both ends of a ring, and what lies between them.
struct Ends {
    memory: Memory,
    writer: Writer<Memory>,
    reader: Reader<Memory>,
    /// Where records are read to.
    buffer: Vec<u8>,
    /// What was written and not read, oldest first.
    inside: VecDeque<Inside>,
    /// What takes the records.
    scene: Option<Scene>,
}

impl Ends {
    fn new(input: &mut Input<'_>) -> Self {
        let lines = 4 + input.index(40);
        let shared = Shared {
            words: (0..(HEAD + lines) * LINE).map(|_| Word::new(0)).collect(),
            script: RefCell::default(),
            pause: Cell::new(0),
            foul: Cell::new(false),
        };
        let memory = Memory(Rc::new(shared));
        let (Some(writer), Some(reader)) = (Writer::new(memory.clone()), Reader::new(memory.clone())) else {
            unreachable!("four lines are a ring")
        };
        let scene = input.any::<bool>().then(Scene::new);
        let buffer = vec![0; 64 + input.index(2000)];
        Self { memory, writer, reader, buffer, inside: VecDeque::new(), scene }
    }

    /// No word was written that the other end would not write.
    fn is_fair(&self) -> bool {
        !self.memory.0.foul.get()
    }

    /// A record was not written. `len`: of what bytes, as a record.
    fn not_written(&mut self, why: PushError, len: usize, is_too_long: bool) {
        match why {
            PushError::TooLong => assert!(is_too_long),
            PushError::Full if !self.is_fair() || !self.inside.is_empty() => {}
            PushError::Full => assert!(has_room(&mut self.writer, &mut self.reader, len)),
            PushError::Broken => assert!(!self.is_fair(), "nobody broke it"),
        }
    }

    fn push(&mut self, input: &mut Input<'_>) {
        let record = match &mut self.scene {
            Some(scene) if input.any() => scene.record_of(input),
            _ => input.bytes(600).to_vec(),
        };
        let (a, b) = record.split_at(input.index(record.len() + 1));
        match self.writer.push(&[a, b]) {
            Ok(()) => self.inside.push_back(Inside::Record(record)),
            Err(why) => self.not_written(why, record.len(), record.len() > self.writer.longest()),
        }
    }

    /// Writes a fragment, whose bytes are filled in where they go, or are not to be had.
    fn push_fragment(&mut self, input: &mut Input<'_>) {
        let (head, len) = match &mut self.scene {
            Some(scene) if input.any() => scene.fragment_head(input),
            _ => (input.bytes(local::ring::BODY + 1).to_vec(), input.index(600)),
        };
        let (byte, fails) = (input.u8(), input.one_in(4));
        let filled = self.writer.push_with(&head, len, |words| {
            assert_eq!(words.len(), (8 + local::ring::BODY + len).div_ceil(64) * LINE - LINE);
            words.iter().for_each(|word| word.store(u64::from_ne_bytes([byte; 8]), Ordering::Relaxed));
            if fails { Err(()) } else { Ok(()) }
        });
        match filled {
            Ok(Ok(())) => self.inside.push_back(Inside::Piece(head, vec![byte; len])),
            Ok(Err(())) => assert!(fails),
            Err(why) => {
                let len = local::ring::BODY + len;
                let is_too_long = head.len() > local::ring::BODY || len > self.writer.longest();
                self.not_written(why, len, is_too_long);
            }
        }
    }

    fn pop(&mut self) {
        let popped = self.reader.pop(&mut self.buffer);
        if let Ok(Some(len)) = popped {
            assert!(len <= self.buffer.len());
            if let Some(scene) = &mut self.scene {
                scene.record(&self.buffer[..len]);
            }
        }
        let expected = self.inside.pop_front();
        if self.is_fair() {
            match (popped, expected) {
                (Ok(None), None) => {}
                (Ok(Some(len)), Some(record)) => record.is(&self.buffer[..len]),
                // It says that it is broken from then on.
                (Err(_), Some(record)) if record.len() > self.buffer.len() => self.memory.0.foul.set(true),
                other => panic!("{other:?}"),
            }
        }
    }

    /// Reads any record, from where it lies.
    fn read_in_place(&mut self) {
        let found = match self.reader.peek() {
            Ok(Some(found)) => found,
            Ok(None) => return assert!(!self.is_fair() || self.inside.is_empty()),
            Err(_) => return assert!(!self.is_fair()),
        };
        let words = self.reader.words(&found);
        assert!(words.len() * 8 >= found.len());
        let mut bytes = vec![0; found.len()];
        self.reader.copy_out(&found, &mut bytes);
        if let Some(scene) = &mut self.scene {
            scene.record_in_place(words, &bytes);
        }
        self.reader.leave(found);
        let expected = self.inside.pop_front();
        if self.is_fair() {
            expected.expect("there was one").is(&bytes);
        }
    }
}

/// The fuzzer's bytes.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut ends = Ends::new(&mut input);
    for _ in 0..STEPS {
        if !input.more() {
            break;
        }
        match input.below(10) {
            0 | 1 => ends.push(&mut input),
            2 | 3 => ends.pop(),
            4 => _ = (ends.reader.sleep(local::ring::WakeTarget::Engine), ends.writer.must_wake()),
            5 => _ = ends.reader.is_empty(),
            6 => ends.push_fragment(&mut input),
            7 => ends.read_in_place(),
            _ => foul(&ends.memory, &mut input),
        }
    }
    if let Some(scene) = ends.scene {
        scene.end();
    }
}

/// Words that are written now, or while the reader looks.
fn foul(memory: &Memory, input: &mut Input<'_>) {
    let Shared { words, script, pause, foul } = &*memory.0;
    foul.set(true);
    let lines = words.len() / LINE - HEAD;
    for _ in 0..=input.below(4) {
        let line = input.index(lines);
        let (at, word) = match input.below(6) {
            // A header as of a writer that is so far.
            0 | 1 => {
                let position = line as u64 + lines as u64 * u64::from(input.below(3));
                let len = input.below(4000);
                let len = input.choose(&[len, u32::MAX, u32::MAX - 1, 0, 0x8000_0000]);
                ((HEAD + line) * LINE, u64::from(len) << 32 | u64::from((position as u32) << 1 | 1))
            }
            2 => ((HEAD + line) * LINE, 0),
            // The reader's progress, and whether it sleeps.
            3 => (0, input.choose(&[line as u64, u64::MAX, 0, 1 << 63])),
            4 => (1, input.u64()),
            _ => (input.index(words.len()), input.u64()),
        };
        if input.any() {
            words[at].store(word, Ordering::Relaxed);
        } else {
            script.borrow_mut().push_back((at, word));
        }
    }
    pause.set(input.below(6));
}

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

use ring::{PushError, Reader, Word, Writer};

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

impl ring::Memory for Memory {}

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
            Inside::Record(bytes) => bytes.len(),
            Inside::Piece(_, body) => ring::BODY + body.len(),
        }
    }

    /// That is what comes out.
    fn is(&self, bytes: &[u8]) {
        assert_eq!(bytes.len(), self.len());
        match self {
            Inside::Record(record) => assert_eq!(bytes, record),
            Inside::Piece(head, body) => {
                assert_eq!((&bytes[..head.len()], &bytes[ring::BODY..]), (&head[..], &body[..]));
            }
        }
    }
}

/// Whether a ring in which there is no record takes one of so many bytes, when the reader has seen
/// that there is none.
fn has_room(writer: &mut Writer<Memory>, reader: &mut Reader<Memory>, len: usize) -> bool {
    let is_empty = matches!(reader.peek(), Ok(None)) && reader.is_empty();
    is_empty && writer.push_with(&[], len.saturating_sub(ring::BODY), |_| Err(())) == Ok(Err(()))
}

/// The fuzzer's bytes.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let lines = 4 + input.index(40);
    let shared = Shared {
        words: (0..(HEAD + lines) * LINE).map(|_| Word::new(0)).collect(),
        script: RefCell::default(),
        pause: Cell::new(0),
        foul: Cell::new(false),
    };
    let memory = Memory(Rc::new(shared));
    let (Some(mut writer), Some(mut reader)) = (Writer::new(memory.clone()), Reader::new(memory.clone()))
    else {
        unreachable!("four lines are a ring")
    };
    let mut scene = input.any::<bool>().then(Scene::new);
    let mut inside: VecDeque<Inside> = VecDeque::new();
    let mut buffer = vec![0; 64 + input.index(2000)];
    let is_fair = |memory: &Memory| !memory.0.foul.get();
    for _ in 0..STEPS {
        if !input.more() {
            break;
        }
        match input.below(10) {
            0 | 1 => {
                let record = match &mut scene {
                    Some(scene) if input.any() => scene.record_of(&mut input),
                    _ => input.bytes(600).to_vec(),
                };
                let (a, b) = record.split_at(input.index(record.len() + 1));
                match writer.push(&[a, b]) {
                    Ok(()) => inside.push_back(Inside::Record(record)),
                    Err(PushError::TooLong) => assert!(record.len() > writer.longest()),
                    Err(PushError::Full) if !is_fair(&memory) || !inside.is_empty() => {}
                    Err(PushError::Full) => assert!(has_room(&mut writer, &mut reader, record.len())),
                    Err(PushError::Broken) => assert!(!is_fair(&memory), "nobody broke it"),
                }
            }
            2 | 3 => {
                let popped = reader.pop(&mut buffer);
                if let Ok(Some(len)) = popped {
                    assert!(len <= buffer.len());
                    if let Some(scene) = &mut scene {
                        scene.record(&buffer[..len]);
                    }
                }
                let expected = inside.pop_front();
                if is_fair(&memory) {
                    match (popped, expected) {
                        (Ok(None), None) => {}
                        (Ok(Some(len)), Some(record)) => record.is(&buffer[..len]),
                        // It says that it is broken from then on.
                        (Err(_), Some(record)) if record.len() > buffer.len() => memory.0.foul.set(true),
                        other => panic!("{other:?}"),
                    }
                }
            }
            4 => _ = (reader.sleep(ring::Whom::Engine), writer.must_wake()),
            5 => _ = reader.is_empty(),
            // A piece, whose bytes are filled in where they go, or are not to be had.
            6 => {
                let (head, len) = match &mut scene {
                    Some(scene) if input.any() => scene.piece_head(&mut input),
                    _ => (input.bytes(ring::BODY + 1).to_vec(), input.index(600)),
                };
                let (byte, fails) = (input.u8(), input.one_in(4));
                let filled = writer.push_with(&head, len, |words| {
                    assert_eq!(words.len(), (8 + ring::BODY + len).div_ceil(64) * LINE - LINE);
                    words
                        .iter()
                        .for_each(|word| word.store(u64::from_ne_bytes([byte; 8]), Ordering::Relaxed));
                    if fails { Err(()) } else { Ok(()) }
                });
                match filled {
                    Ok(Ok(())) => inside.push_back(Inside::Piece(head, vec![byte; len])),
                    Ok(Err(())) => assert!(fails),
                    Err(PushError::TooLong) => {
                        assert!(head.len() > ring::BODY || ring::BODY + len > writer.longest());
                    }
                    Err(PushError::Full) if !is_fair(&memory) || !inside.is_empty() => {}
                    Err(PushError::Full) => assert!(has_room(&mut writer, &mut reader, ring::BODY + len)),
                    Err(PushError::Broken) => assert!(!is_fair(&memory), "nobody broke it"),
                }
            }
            // Any record, from where it lies.
            7 => {
                let found = match reader.peek() {
                    Ok(Some(found)) => found,
                    Ok(None) => {
                        assert!(!is_fair(&memory) || inside.is_empty());
                        continue;
                    }
                    Err(_) => {
                        assert!(!is_fair(&memory));
                        continue;
                    }
                };
                let words = reader.words(&found);
                assert!(words.len() * 8 >= found.len());
                let mut bytes = vec![0; found.len()];
                reader.copy_out(&found, &mut bytes);
                if let Some(scene) = &mut scene {
                    scene.record_in_place(words, &bytes);
                }
                reader.leave(found);
                let expected = inside.pop_front();
                if is_fair(&memory) {
                    expected.expect("there was one").is(&bytes);
                }
            }
            _ => foul(&memory, &mut input),
        }
    }
    if let Some(scene) = scene {
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

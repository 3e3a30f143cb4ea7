//! Memory of a host that outlives its processes, and what a loss of power leaves of it.
//!
//! A file is there twice: as programs see it, in caches and in the memory under them, and as it is
//! persistent. A flush makes a range persistent as it is then. Before that any word may become
//! persistent at any time, in any order, since a processor writes its caches back when it likes.
//! Words are eight aligned bytes, which no storage tears; all that is larger is torn here, also
//! inside of a cache line.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nic::Errno;

use crate::Dice;
use crate::env::HostId;

/// Words of a page.
const WORDS: usize = 512;
/// Bytes of a word.
const WORD: usize = 8;

#[derive(Debug)]
#[repr(C, align(4096))]
struct Page([AtomicU64; WORDS]);

/// A file of a host as its programs see it. After a loss of power this is what they had, and no
/// other program sees it.
#[derive(Clone, Debug)]
pub struct Mapped {
    pages: Arc<[Page]>,
    len: usize,
    host: HostId,
}

impl Mapped {
    fn new(host: HostId, len: usize, words: impl Fn(usize) -> u64) -> Self {
        let page = |page| Page(std::array::from_fn(|word| AtomicU64::new(words(page * WORDS + word))));
        Self { pages: (0..len.div_ceil(WORD * WORDS)).map(page).collect(), len, host }
    }
    /// The file's first byte: of whole pages, all of it atomics. They are there as long as the
    /// value and its clones.
    pub fn first(&self) -> *const AtomicU64 {
        self.pages.as_ptr().cast()
    }
    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
    /// The host that has the file.
    pub fn host(&self) -> HostId {
        self.host
    }
    fn word(&self, at: usize) -> Option<&AtomicU64> {
        self.pages.get(at / WORDS)?.0.get(at % WORDS)
    }
    fn words(&self) -> usize {
        self.len.div_ceil(WORD)
    }
    /// The words of which a range of addresses has a part, where all of it is inside.
    fn range(&self, addr: u64, len: u64) -> Option<std::ops::Range<usize>> {
        let at = usize::try_from(addr.checked_sub(self.first().expose_provenance() as u64)?).ok()?;
        let end = at.checked_add(usize::try_from(len).ok()?).filter(|end| *end <= self.len)?;
        Some(at / WORD..end.div_ceil(WORD))
    }
}

#[derive(Debug)]
struct File {
    seen: Mapped,
    persistent: Vec<u64>,
}

impl File {
    /// Makes these words persistent as they are.
    fn persist(&mut self, words: impl Iterator<Item = usize>) {
        for at in words {
            if let (Some(seen), Some(persistent)) = (self.seen.word(at), self.persistent.get_mut(at)) {
                *persistent = seen.load(Ordering::Relaxed);
            }
        }
    }
}

/// The files of a host.
#[derive(Debug)]
pub(crate) struct Storage {
    files: BTreeMap<String, File>,
    dice: Dice,
    /// Flushes until one fails.
    fails: Option<u64>,
}

impl Storage {
    pub(crate) fn new(dice: Dice) -> Self {
        Self { files: BTreeMap::new(), dice, fails: None }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// The file of this name, made of zeros where there is none; else as it is, whatever `len`
    /// says.
    pub(crate) fn open(&mut self, host: HostId, name: &str, len: usize) -> Mapped {
        let file = self.files.entry(name.to_owned()).or_insert_with(|| File {
            seen: Mapped::new(host, len, |_| 0),
            persistent: vec![0; len.div_ceil(WORD)],
        });
        file.seen.clone()
    }

    /// What a loss of power surely leaves of a file.
    pub(crate) fn persistent(&self, name: &str) -> Option<Vec<u8>> {
        let file = self.files.get(name)?;
        let mut bytes: Vec<u8> = file.persistent.iter().flat_map(|word| word.to_ne_bytes()).collect();
        bytes.truncate(file.seen.len);
        Some(bytes)
    }

    fn file(&mut self, addr: u64, len: u64) -> Option<(&mut File, std::ops::Range<usize>)> {
        self.files.values_mut().find_map(|file| {
            let range = file.seen.range(addr, len)?;
            Some((file, range))
        })
    }

    pub(crate) fn keeps(&mut self, addr: u64, len: u64) -> bool {
        self.file(addr, len).is_some()
    }

    pub(crate) fn persist(&mut self, addr: u64, len: u64) -> Result<(), Errno> {
        self.fails = self.fails.map(|left| left.saturating_sub(1));
        if self.fails == Some(0) {
            self.fails = None;
            return Err(Errno::EIO);
        }
        let (file, words) = self.file(addr, len).ok_or(Errno::ENOMEM)?;
        file.persist(words);
        Ok(())
    }

    /// The `nth` flush from now on fails.
    pub(crate) fn fail(&mut self, nth: u64) {
        self.fails = Some(nth);
    }

    /// The processor writes some lines back, without being asked: of each file up to a page,
    /// somewhere.
    pub(crate) fn write_back(&mut self) {
        let Self { files, dice, .. } = self;
        for file in files.values_mut() {
            let first = dice.below(file.seen.words() as u64) as usize;
            let some: Vec<usize> = (first..first + WORDS).filter(|_| dice.chance(0.25)).collect();
            file.persist(some.into_iter());
        }
    }

    /// The power fails: of the words that were not flushed some are left, from none to all. What
    /// there is then is seen from now on.
    pub(crate) fn power_fail(&mut self) {
        let Self { files, dice, .. } = self;
        for file in files.values_mut() {
            let left = dice.below(5) as f64 / 4.0;
            let changed = |at: &usize| {
                file.seen.word(*at).map(|word| word.load(Ordering::Relaxed))
                    != file.persistent.get(*at).copied()
            };
            let some: Vec<usize> =
                (0..file.seen.words()).filter(changed).filter(|_| dice.chance(left)).collect();
            file.persist(some.into_iter());
            let words = &file.persistent;
            file.seen = Mapped::new(file.seen.host, file.seen.len, |at| words.get(at).copied().unwrap_or(0));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn storage(seed: u64) -> (Storage, Mapped) {
        let mut storage = Storage::new(Dice::new(seed));
        let seen = storage.open(HostId(0), "log", 100);
        (storage, seen)
    }

    fn addr(seen: &Mapped) -> u64 {
        seen.first().expose_provenance() as u64
    }

    fn set(seen: &Mapped, at: usize, value: u64) {
        seen.word(at).unwrap().store(value, Ordering::Relaxed);
    }

    fn all(seen: &Mapped) -> Vec<u64> {
        (0..13).map(|at| seen.word(at).unwrap().load(Ordering::Relaxed)).collect()
    }

    #[test]
    fn what_was_flushed_is_left_and_of_the_rest_any_words_in_any_order() {
        let mut seen_after = std::collections::BTreeSet::new();
        for seed in 0..400 {
            let (mut storage, seen) = storage(seed);
            (0..13).for_each(|at| set(&seen, at, 7));
            storage.persist(addr(&seen) + 9, 20).unwrap();
            (0..4).for_each(|at| set(&seen, at, 8));
            storage.power_fail();
            let left = all(&storage.open(HostId(0), "log", 0));
            assert!(left.iter().all(|word| [0, 7, 8].contains(word)), "no word is torn");
            assert!(left[1..4].iter().all(|word| [7, 8].contains(word)), "{left:?}");
            assert!([0, 8].contains(&left[0]) && left[4..].iter().all(|word| [0, 7].contains(word)));
            assert_eq!(all(&seen)[0], 8, "who had it mapped is dead, and changes nothing");
            seen_after.insert(left);
        }
        assert!(seen_after.len() > 100, "{}", seen_after.len());
        assert!(
            seen_after.iter().any(|left| left[0] == 0 && left[12] == 7),
            "the later one, not the earlier"
        );
    }

    #[test]
    fn lines_may_be_written_back_before_they_are_flushed() {
        let mut old_value_left = false;
        for seed in 0..100 {
            let (mut storage, seen) = storage(seed);
            set(&seen, 3, 1);
            storage.write_back();
            set(&seen, 3, 2);
            storage.power_fail();
            old_value_left |= all(&storage.open(HostId(0), "log", 100))[3] == 1;
        }
        assert!(old_value_left);
    }

    #[test]
    fn a_killed_process_loses_nothing_and_a_failing_flush_is_said_once() {
        let (mut storage, seen) = storage(1);
        set(&seen, 0, 5);
        assert_eq!(all(&storage.open(HostId(0), "log", 100))[0], 5);
        assert_eq!(storage.persistent("log").unwrap(), [0; 100]);
        storage.fail(2);
        let flushes: Vec<_> = (0..3).map(|_| storage.persist(addr(&seen), 8)).collect();
        assert_eq!(flushes, [Ok(()), Err(Errno::EIO), Ok(())]);
        assert_eq!(storage.persistent("log").unwrap()[..8], 5_u64.to_ne_bytes());
        assert_eq!(storage.persist(addr(&seen), 101), Err(Errno::ENOMEM));
        assert!(storage.keeps(addr(&seen) + 92, 8) && !storage.keeps(addr(&seen) + 93, 8));
    }
}

//! Whatever is split, joined, frozen, sliced, cloned, thawed and dropped: no two handles can touch
//! a byte that one of them may write.

use proptest::collection::vec;
use proptest::prelude::*;

use super::support::domain;
use crate::error::UnsplitError;
use crate::mem::{Pool, RegBuf, RegBytes};

const SIZE: usize = 32;
const COUNT: usize = 2;

/// Which handle, and two numbers.
#[derive(Clone, Debug)]
enum Step {
    Get,
    SetLen(usize, usize),
    SplitTo(usize, usize),
    Unsplit(usize, usize),
    Freeze(usize),
    Slice(usize, usize, usize),
    Clone(usize),
    Thaw(usize),
    DropBuf(usize),
    DropBytes(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let n = || 0..SIZE + 2;
    prop_oneof![
        2 => Just(Step::Get),
        3 => (n(), n()).prop_map(|(a, b)| Step::SetLen(a, b)),
        3 => (n(), n()).prop_map(|(a, b)| Step::SplitTo(a, b)),
        3 => (n(), n()).prop_map(|(a, b)| Step::Unsplit(a, b)),
        2 => n().prop_map(Step::Freeze),
        2 => (n(), n(), n()).prop_map(|(a, b, c)| Step::Slice(a, b, c)),
        1 => n().prop_map(Step::Clone),
        3 => n().prop_map(Step::Thaw),
        1 => n().prop_map(Step::DropBuf),
        2 => n().prop_map(Step::DropBytes),
    ]
}

#[derive(Default)]
struct Handles {
    /// With what each was filled.
    bufs: Vec<(RegBuf, Vec<u8>)>,
    bytes: Vec<(RegBytes, Vec<u8>)>,
    next: u8,
}

impl Handles {
    /// New content, all of it, so that a byte of another would show.
    fn keep(&mut self, mut buf: RegBuf) {
        self.next = self.next.wrapping_add(1);
        buf.fill(self.next);
        let bytes = buf.to_vec();
        self.bufs.push((buf, bytes));
    }

    fn take_buf(&mut self, n: usize) -> Option<RegBuf> {
        let n = n.checked_rem(self.bufs.len())?;
        Some(self.bufs.swap_remove(n).0)
    }

    fn take_bytes(&mut self, n: usize) -> Option<(RegBytes, Vec<u8>)> {
        let n = n.checked_rem(self.bytes.len())?;
        Some(self.bytes.swap_remove(n))
    }

    fn run(&mut self, pool: &Pool, step: &Step) -> Option<()> {
        match *step {
            Step::Get => self.keep(pool.get().ok()?),
            Step::SetLen(n, len) => {
                let mut buf = self.take_buf(n)?;
                assert_eq!(buf.set_len(len).is_ok(), len <= buf.capacity());
                self.keep(buf);
            }
            Step::SplitTo(n, at) => {
                let mut buf = self.take_buf(n)?;
                let (len, cap) = (buf.len(), buf.capacity());
                if let Ok(first) = buf.split_to(at) {
                    assert_eq!((first.len() + buf.len(), first.capacity() + buf.capacity()), (len, cap));
                    self.keep(first);
                }
                self.keep(buf);
            }
            Step::Unsplit(a, b) => {
                let first = self.take_buf(a)?;
                let Some(next) = self.take_buf(b) else {
                    self.keep(first);
                    return None;
                };
                match first.unsplit(next) {
                    Ok(whole) => self.keep(whole),
                    Err(UnsplitError(first, next)) => {
                        self.keep(first);
                        self.keep(next);
                    }
                }
            }
            Step::Freeze(n) => {
                let n = n.checked_rem(self.bufs.len())?;
                let (buf, content) = self.bufs.swap_remove(n);
                self.bytes.push((buf.freeze(), content));
            }
            Step::Slice(n, from, to) => {
                let (bytes, content) = &self.bytes[n.checked_rem(self.bytes.len())?];
                let slice = bytes.slice(from..to);
                assert_eq!(slice.is_ok(), content.get(from..to).is_some());
                let content = content.get(from..to)?.to_vec();
                self.bytes.push((slice.ok()?, content));
            }
            Step::Clone(n) => {
                let again = self.bytes[n.checked_rem(self.bytes.len())?].clone();
                self.bytes.push(again);
            }
            Step::Thaw(n) => {
                let (bytes, content) = self.take_bytes(n)?;
                match bytes.try_into_mut() {
                    Ok(buf) => {
                        assert_eq!(&buf[..], content);
                        self.keep(buf);
                    }
                    Err(bytes) => self.bytes.push((bytes, content)),
                }
            }
            Step::DropBuf(n) => drop(self.take_buf(n)?),
            Step::DropBytes(n) => drop(self.take_bytes(n)?),
        }
        Some(())
    }

    fn check(&self) {
        let range = |at: *const u8, len: usize| (at.addr(), at.addr() + len);
        let apart =
            |a: (usize, usize), b: (usize, usize)| a.1 <= b.0 || b.1 <= a.0 || a.0 == a.1 || b.0 == b.1;
        let bufs: Vec<_> = self.bufs.iter().map(|(b, _)| range(b.as_ptr(), b.capacity())).collect();
        let bytes = self.bytes.iter().map(|(b, _)| range(b.as_ptr(), b.len()));
        for (n, one) in bufs.iter().enumerate() {
            assert!(
                bufs[n + 1..].iter().chain(&bytes.clone().collect::<Vec<_>>()).all(|two| apart(*one, *two))
            );
        }
        assert!(self.bufs.iter().all(|(buf, content)| buf[..] == content[..]));
        assert!(self.bytes.iter().all(|(bytes, content)| bytes[..] == content[..]));
    }
}

#[test]
fn handles_never_overlap_where_one_may_write() {
    let pd = domain();
    let config = ProptestConfig {
        cases: if cfg!(miri) { 2 } else { 256 },
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    proptest!(config, |(steps in vec(step(), 1..120))| {
        let pool = Pool::new(&pd, SIZE, COUNT).unwrap();
        let mut handles = Handles::default();
        for step in &steps {
            handles.run(&pool, step);
            handles.check();
        }
        drop(handles);
        let all: Vec<_> = (0..COUNT).map(|_| pool.get().unwrap()).collect();
        prop_assert!(all.iter().all(|buf| buf.capacity() == SIZE));
    });
}

//! Random bytes: drawn from the kernel many at a time, as most callers that want some want four.

/// So many random bytes are drawn at once.
const DRAWN: usize = 256;

/// Bytes of the kernel's that were not given out yet.
#[derive(Default)]
pub(crate) struct Randomness {
    drawn: Vec<u8>,
}

impl Randomness {
    /// Each byte is given out once, and none is kept after that.
    pub(crate) fn fill(&mut self, bytes: &mut [u8]) {
        if bytes.len() > DRAWN {
            return draw(bytes);
        }
        if self.drawn.len() < bytes.len() {
            self.drawn.resize(DRAWN, 0);
            draw(&mut self.drawn);
        }
        let rest = self.drawn.len() - bytes.len();
        bytes.copy_from_slice(&self.drawn[rest..]);
        self.drawn[rest..].fill(0);
        self.drawn.truncate(rest);
    }
}

fn draw(bytes: &mut [u8]) {
    // It fails only where the kernel has neither getrandom nor /dev/urandom: nothing secure can be
    // done then, and nothing else may be.
    while getrandom::fill(bytes).is_err() {
        std::thread::yield_now();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_bytes_are_given_out_twice_or_kept() {
        let mut random = Randomness::default();
        let mut seen = BTreeSet::new();
        for len in [8, 16, 250, 300, 9].into_iter().cycle().take(1_000) {
            let mut bytes = vec![0; len];
            random.fill(&mut bytes);
            assert!(bytes.as_chunks::<8>().0.iter().all(|eight| seen.insert(*eight)), "{len}");
        }
    }
}

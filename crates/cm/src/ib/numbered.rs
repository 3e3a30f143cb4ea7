//! Tables by numbers that this connection manager has given out itself: no peer chooses what stands
//! in them, so a hash without a secret does.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A table by such numbers.
pub(super) type Numbered<K, V> = HashMap<K, V, BuildHasherDefault<Spread>>;

/// Spreads a number over all bits: a table looks at the highest and at the lowest.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Spread(u64);

/// 2^64 divided by the golden ratio (Knuth, The Art of Computer Programming 3, §6.4).
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(byte.into()));
    }
    fn write_u32(&mut self, number: u32) {
        self.write_u64(number.into());
    }
    fn write_u64(&mut self, number: u64) {
        let spread = u128::from(self.0 ^ number) * u128::from(GOLDEN);
        // What differs in the highest bits of the number stands in the upper half.
        self.0 = spread as u64 ^ (spread >> 64) as u64;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::hash::{BuildHasher, BuildHasherDefault};

    use wire::CommId;

    use super::*;

    #[test]
    fn numbers_in_a_row_and_numbers_that_differ_in_high_bits_only_get_places_of_their_own() {
        let hash = |id| BuildHasherDefault::<Spread>::default().hash_one(CommId(id));
        for shift in [0, 8, 20] {
            let hashes: Vec<u64> = (0..1024).map(|n| hash(n << shift)).collect();
            let of = |f: fn(u64) -> u64| hashes.iter().map(|&h| f(h)).collect::<BTreeSet<u64>>().len();
            // Of 1,024 that chance throws into 1,024 places 647 get one.
            assert!(of(|h| h & 1023) > 500, "{shift}: {}", of(|h| h & 1023));
            assert_eq!(of(|h| h >> 57), 128, "{shift}");
        }
    }
}

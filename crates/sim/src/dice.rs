//! Seeded randomness for the network, for nodes and for workloads.

use std::time::Duration;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// A generator whose every result follows from its seed.
///
/// ```
/// let (mut a, mut b) = (sim::Dice::new(1), sim::Dice::new(1));
/// assert_eq!(a.below(1000), b.below(1000));
/// ```
#[derive(Clone, Debug)]
pub struct Dice(ChaCha8Rng);

impl Dice {
    /// From a seed.
    pub fn new(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed))
    }
    /// A generator independent of this one and of those with other labels; this one is not moved.
    #[must_use]
    pub fn fork(&self, label: u64) -> Self {
        let mut rng = self.0.clone();
        rng.set_stream(self.0.get_stream().wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(label + 1));
        rng.set_word_pos(0);
        Self(rng)
    }
    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }
    /// A number below `n`; 0 for an `n` of 0.
    pub fn below(&mut self, n: u64) -> u64 {
        // The bias of a 64-bit product is far below what any run could notice.
        ((u128::from(self.0.next_u64()) * u128::from(n)) >> 64) as u64
    }
    /// A number in `low..=high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below((high.saturating_sub(low)).saturating_add(1))
    }
    /// True with probability `p`, 0.0 to 1.0.
    pub fn chance(&mut self, p: f64) -> bool {
        // 53 bits are exact in a float.
        ((self.0.next_u64() >> 11) as f64) < p * (1u64 << 53) as f64
    }
    /// A duration up to `most`.
    pub fn duration(&mut self, most: Duration) -> Duration {
        Duration::from_nanos(self.below(crate::clock::nanos(most).saturating_add(1)))
    }
    /// One of `items`, which are not empty.
    ///
    /// # Panics
    ///
    /// Where there is none to pick.
    pub fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len() as u64) as usize]
    }
    /// Fills `bytes`.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        self.0.fill_bytes(bytes);
    }
}

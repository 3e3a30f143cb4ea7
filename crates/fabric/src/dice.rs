//! Which packets drop rules lose: SplitMix64 over a seed (Steele, Lea, Flood: Fast Splittable
//! Pseudorandom Number Generators, OOPSLA 2014).

/// Dice whose throws follow from their seed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Whether a packet through a port with this rule is lost. No rule throws no dice.
    pub(crate) fn is_below(&mut self, ppm: u32) -> bool {
        if ppm == 0 {
            return false;
        }
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) % 1_000_000 < u64::from(ppm)
    }
}

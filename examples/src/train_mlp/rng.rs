//! Random numbers that depend on the seed alone: ChaCha20, and what is drawn from it.

use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// The keystream of ChaCha20 (RFC 8439 section 2.3) read as little-endian 32-bit words.
///
/// Key: the seed's 8 little-endian bytes, then 24 zeros. Nonce 0, block counter from 0. Nothing
/// but the word stream comes from a crate: each distribution is written out below, so neither
/// the platform nor a crate's version can change a draw.
pub struct Rng {
    words: ChaCha20Rng,
}

impl Rng {
    /// The stream of a seed, from its first word.
    pub fn new(seed: u64) -> Self {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        Rng {
            words: ChaCha20Rng::from_seed(key),
        }
    }

    /// The next word of the stream.
    pub fn word(&mut self) -> u32 {
        self.words.next_u32()
    }

    /// Uniform in [0, 1): the upper 24 bits of a word, over 2²⁴. Exact, as f32 has 24 bits.
    pub fn unit(&mut self) -> f32 {
        (self.word() >> 8) as f32 / (1 << 24) as f32
    }

    /// Uniform in [−bound, bound): (2u − 1)·bound with u from [`unit`](Rng::unit), in f64, where
    /// only the product rounds, then one rounding to f32.
    pub fn symmetric(&mut self, bound: f64) -> f32 {
        ((2.0 * f64::from(self.unit()) - 1.0) * bound) as f32
    }

    /// Uniform in 0..len: the first word below the largest multiple of `len` that 2³² holds,
    /// modulo `len`. `len` is taken as 1 when it is 0.
    pub fn below(&mut self, len: u32) -> u32 {
        let len = len.max(1);
        let end = (1u64 << 32) - (1u64 << 32) % u64::from(len);
        loop {
            let word = self.word();
            if u64::from(word) < end {
                return word % len;
            }
        }
    }

    /// A uniform permutation in place (Fisher–Yates): for i from the last index down to 1, swaps
    /// i with `below(i + 1)`.
    pub fn shuffle(&mut self, items: &mut [u32]) {
        for i in (1..items.len()).rev() {
            let j = self.below(i as u32 + 1);
            items.swap(i, j as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Rng;

    /// Words `16·block ..` of a seed's stream as the bytes that RFC 8439 prints.
    fn block(seed: u64, block: usize) -> String {
        let mut rng = Rng::new(seed);
        for _ in 0..16 * block {
            rng.word();
        }
        let bytes = (0..16).flat_map(|_| rng.word().to_le_bytes());
        bytes.map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn the_stream_is_that_of_rfc_8439_appendix_a1() {
        // Test vectors 1, 2 and 4: key 0 at counters 0 and 1, key 00 ff 00… at counter 2.
        assert_eq!(
            block(0, 0),
            "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7\
             da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
        );
        assert_eq!(
            block(0, 1),
            "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed\
             29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f"
        );
        assert_eq!(
            block(0xff00, 2),
            "72d54dfbf12ec44b362692df94137f328fea8da73990265ec1bbbea1ae9af0ca\
             13b25aa26cb4a648cb9b9d1be65b2c0924a66c54d545ec1b7374f4872e99f096"
        );
    }

    #[test]
    fn uniforms_are_exact_and_in_range() {
        let mut rng = Rng::new(0);
        // The first word of seed 0 is 0xade0b876.
        assert_eq!(
            rng.unit().to_bits(),
            (0xade0b8 as f32 / 16_777_216.0).to_bits()
        );
        for _ in 0..10_000 {
            let unit = rng.unit();
            assert!((0.0..1.0).contains(&unit), "{unit}");
            let value = rng.symmetric(0.25);
            assert!((-0.25..0.25).contains(&value), "{value}");
        }
    }

    #[test]
    fn below_reaches_every_value_and_no_other() {
        let mut rng = Rng::new(7);
        let mut seen = [0; 10];
        for _ in 0..1000 {
            seen[rng.below(10) as usize] += 1;
        }
        assert!(seen.iter().all(|&count| count > 50), "{seen:?}");
        assert_eq!(rng.below(1), 0);
    }

    #[test]
    fn below_rejects_the_incomplete_last_multiple() {
        // With len = 2³¹ + 1 a word at or above it is rejected, and seed 0's first two words are
        // 0xade0b876 and 0x903df1a0; the third, 0xe56a5d40, too; the fourth is 0x28bd8653.
        assert_eq!(Rng::new(0).below((1 << 31) + 1), 0x28bd_8653);
    }

    #[test]
    fn a_shuffle_is_a_permutation_fixed_by_the_seed() {
        let shuffled = |seed| {
            let mut items: Vec<u32> = (0..8).collect();
            Rng::new(seed).shuffle(&mut items);
            items
        };
        let mut sorted = shuffled(3);
        assert_eq!(shuffled(3), sorted);
        assert_ne!(shuffled(4), sorted);
        sorted.sort_unstable();
        assert_eq!(sorted, (0..8).collect::<Vec<_>>());
    }
}

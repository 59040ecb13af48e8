//! Random numbers with an explicit, addressable state.

/// A counter-based generator (Philox4x32-10): the same seed, stream and counter give the same numbers on every machine, and
/// any position of the sequence can be reached directly. Its state is three numbers.
///
/// A weight is initialised from the stream of its own name, so initial weights do not depend on the topology.
///
/// # Source
/// Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011, section 3.3.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rng {
    seed: u64,
    stream: u64,
    counter: u64,
}

impl Rng {
    /// The generator of stream `stream` under `seed`, at its first number.
    pub fn new(seed: u64, stream: u64) -> Self {
        Self { seed, stream, counter: 0 }
    }

    /// The stream of a name (FNV-1a of its bytes).
    pub fn named(seed: u64, name: &str) -> Self {
        let mix = |h: u64, b: u8| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3);
        Self::new(seed, name.bytes().fold(0xcbf2_9ce4_8422_2325, mix))
    }

    /// Moves to block `counter` of four numbers.
    pub fn seek(&mut self, counter: u64) {
        self.counter = counter;
    }

    /// The next four uniform 32-bit numbers.
    pub fn next_block(&mut self) -> [u32; 4] {
        let (c, s) = (self.counter, self.stream);
        let mut x = [c as u32, (c >> 32) as u32, s as u32, (s >> 32) as u32];
        let (mut k0, mut k1) = (self.seed as u32, (self.seed >> 32) as u32);
        for _ in 0..10 {
            let a = u64::from(x[0]) * 0xD251_1F53;
            let b = u64::from(x[2]) * 0xCD9E_8D57;
            x = [(b >> 32) as u32 ^ x[1] ^ k0, b as u32, (a >> 32) as u32 ^ x[3] ^ k1, a as u32];
            k0 = k0.wrapping_add(0x9E37_79B9);
            k1 = k1.wrapping_add(0xBB67_AE85);
        }
        self.counter += 1;
        x
    }

    /// A uniform number in `[0, 1)` with 53 random bits.
    pub fn uniform(&mut self) -> f64 {
        let x = self.next_block();
        ((u64::from(x[0]) << 21) ^ u64::from(x[1] >> 11)) as f64 / (1u64 << 53) as f64
    }

    /// Fills `out` with normal numbers of mean 0 and deviation `std` (Box and Muller, two per pair).
    pub fn fill_normal(&mut self, out: &mut [f32], std: f32) {
        let unit = |x: u32| (f64::from(x) + 0.5) / 4_294_967_296.0;
        for four in out.chunks_mut(4) {
            let x = self.next_block();
            let mut values = [0f32; 4];
            for pair in 0..2 {
                let radius = (-2.0 * unit(x[2 * pair]).ln()).sqrt() * f64::from(std);
                let angle = std::f64::consts::TAU * unit(x[2 * pair + 1]);
                values[2 * pair] = (radius * angle.cos()) as f32;
                values[2 * pair + 1] = (radius * angle.sin()) as f32;
            }
            four.copy_from_slice(&values[..four.len()]);
        }
    }

    /// The numbers that [`Rng::fill_normal`] would produce from element `start` on, if it started at the stream's first
    /// number.
    pub fn fill_normal_from(&mut self, start: usize, out: &mut [f32], std: f32) {
        self.seek((start / 4) as u64);
        let before = start % 4;
        let (head, rest) = out.split_at_mut(((4 - before) % 4).min(out.len()));
        if !head.is_empty() {
            let mut four = [0f32; 4];
            self.fill_normal(&mut four, std);
            head.copy_from_slice(&four[before..][..head.len()]);
        }
        self.fill_normal(rest, std);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_blocks_are_those_of_the_paper() {
        // Known answers of the reference implementation (Random123, kat_vectors).
        let mut zero = Rng { seed: 0, stream: 0, counter: 0 };
        assert_eq!(zero.next_block(), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        let mut pi = Rng { seed: 0x299f_31d0_a409_3822, stream: 0x0370_7344_1319_8a2e, counter: 0 };
        pi.seek(0x85a3_08d3_243f_6a88);
        assert_eq!(pi.next_block(), [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]);
    }

    #[test]
    fn normal_numbers_can_be_drawn_from_any_place() {
        let mut whole = vec![0f32; 23];
        Rng::named(3, "w").fill_normal(&mut whole, 0.5);
        for start in 0..whole.len() {
            for len in 0..=whole.len() - start {
                let mut part = vec![0f32; len];
                Rng::named(3, "w").fill_normal_from(start, &mut part, 0.5);
                assert_eq!(part, whole[start..start + len], "{len} from {start}");
            }
        }
    }

    #[test]
    fn normal_numbers_have_their_moments() {
        let mut values = vec![0f32; 40_001];
        Rng::named(1234, "decoder.layers.0.mlp.linear_fc1.weight").fill_normal(&mut values, 0.02);
        let n = values.len() as f64;
        let mean = values.iter().map(|&v| f64::from(v)).sum::<f64>() / n;
        let variance = values.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>() / n;
        assert!(mean.abs() < 4e-4, "{mean}");
        assert!((variance.sqrt() / 0.02 - 1.0).abs() < 0.02, "{variance}");
        let mut again = vec![0f32; 8];
        Rng::named(1234, "decoder.layers.0.mlp.linear_fc1.weight").fill_normal(&mut again, 0.02);
        assert_eq!(again, values[..8]);
    }
}

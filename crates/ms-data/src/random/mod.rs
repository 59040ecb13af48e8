//! Random number generators that upstream uses: numpy's legacy `RandomState` and its `default_rng`, Python's `random` and
//! torch's CPU `randperm`.
//!
//! All but `default_rng` are the Mersenne Twister MT19937 (Matsumoto and Nishimura, 1998); sample orders must match bit for
//! bit.

mod pcg64;

pub use pcg64::{Choice, DefaultRng};

const N: usize = 624;
const M: usize = 397;

/// `numpy.random.RandomState(seed)`, as far as shuffling needs it.
///
/// ```
/// let mut rng = ms_data::random::RandomState::new(1234);
/// let mut order = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9];
/// rng.shuffle(&mut order);
/// assert_eq!(order, [7, 2, 9, 1, 0, 8, 4, 5, 6, 3]); // numpy 1.26
/// ```
pub struct RandomState {
    state: [u32; N],
    next: usize,
}

impl RandomState {
    /// Seeds as `RandomState(seed)` and `torch.Generator().manual_seed(seed)` do with a 32-bit seed.
    pub fn new(seed: u32) -> Self {
        let mut state = [0; N];
        state[0] = seed;
        for i in 1..N {
            let previous = state[i - 1];
            state[i] = 1_812_433_253u32.wrapping_mul(previous ^ (previous >> 30)).wrapping_add(i as u32);
        }
        Self { state, next: N }
    }

    /// The next 32 random bits.
    pub fn next_u32(&mut self) -> u32 {
        if self.next == N {
            self.regenerate();
        }
        let mut y = self.state[self.next];
        self.next += 1;
        y ^= y >> 11;
        y ^= (y << 7) & 0x9d2c_5680;
        y ^= (y << 15) & 0xefc6_0000;
        y ^ (y >> 18)
    }

    fn regenerate(&mut self) {
        let state = &mut self.state;
        let twisted = |upper: u32, lower: u32| {
            let y = (upper & 0x8000_0000) | (lower & 0x7fff_ffff);
            (y >> 1) ^ (0x9908_b0df & (y & 1).wrapping_neg())
        };
        for i in 0..N - M {
            state[i] = state[i + M] ^ twisted(state[i], state[i + 1]);
        }
        for i in N - M..N - 1 {
            state[i] = state[i + M - N] ^ twisted(state[i], state[i + 1]);
        }
        state[N - 1] = state[M - 1] ^ twisted(state[N - 1], state[0]);
        self.next = 0;
    }

    /// A number from 0 to `most` inclusive, by masking and rejection as numpy's legacy generator does it.
    fn bounded(&mut self, most: u64) -> u64 {
        if most == 0 {
            return 0;
        }
        let mask = u64::MAX >> most.leading_zeros();
        loop {
            let draw = if most <= u64::from(u32::MAX) {
                u64::from(self.next_u32())
            } else {
                let high = u64::from(self.next_u32());
                (high << 32) | u64::from(self.next_u32())
            };
            if draw & mask <= most {
                return draw & mask;
            }
        }
    }

    /// `rng.shuffle(items)` for a one-dimensional array.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            let j = self.bounded(i as u64) as usize;
            items.swap(i, j);
        }
    }
}

/// Python's `random.Random(seed)`, as far as shuffling needs it.
///
/// ```
/// let mut rng = ms_data::random::PythonRandom::new(1234);
/// let mut order = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11];
/// rng.shuffle(&mut order);
/// assert_eq!(order, [2, 3, 8, 4, 11, 6, 5, 9, 10, 0, 1, 7]); // Python 3.11
/// ```
pub struct PythonRandom(RandomState);

impl PythonRandom {
    /// Seeds as `random.seed(seed)` does.
    pub fn new(seed: u64) -> Self {
        // The seed's 32-bit digits are mixed into the state (init_by_array of the reference implementation).
        let key = [seed as u32, (seed >> 32) as u32];
        let key = if key[1] == 0 { &key[..1] } else { &key[..] };
        let mut rng = RandomState::new(19_650_218);
        let state = &mut rng.state;
        let (mut i, mut j) = (1, 0);
        for _ in 0..N {
            let mixed = (state[i - 1] ^ (state[i - 1] >> 30)).wrapping_mul(1_664_525);
            state[i] = (state[i] ^ mixed).wrapping_add(key[j]).wrapping_add(j as u32);
            i += 1;
            j = (j + 1) % key.len();
            if i == N {
                state[0] = state[N - 1];
                i = 1;
            }
        }
        for _ in 0..N - 1 {
            let mixed = (state[i - 1] ^ (state[i - 1] >> 30)).wrapping_mul(1_566_083_941);
            state[i] = (state[i] ^ mixed).wrapping_sub(i as u32);
            i += 1;
            if i == N {
                state[0] = state[N - 1];
                i = 1;
            }
        }
        state[0] = 0x8000_0000;
        Self(rng)
    }

    /// `random.shuffle(items)`, for fewer than 2^32 items.
    ///
    /// # Panics
    /// For more items.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        assert!(u32::try_from(items.len()).is_ok(), "a shuffle of {} items", items.len());
        for i in (1..items.len()).rev() {
            let count = i as u32 + 1;
            let shift = count.leading_zeros();
            let j = loop {
                let draw = self.0.next_u32() >> shift;
                if draw < count {
                    break draw;
                }
            };
            items.swap(i, j as usize);
        }
    }
}

/// `torch.randperm(n, generator=g)` with `g.manual_seed(seed)`, for `n` below 2^32/20; only the low 32 bits of the seed count.
///
/// ```
/// assert_eq!(ms_data::random::torch_randperm(10, 0), [4, 1, 7, 5, 3, 9, 0, 8, 6, 2]);
/// ```
///
/// # Panics
/// If `n` is 2^32/20 or more: torch draws differently from there on.
pub fn torch_randperm(n: usize, seed: u64) -> Vec<u32> {
    assert!((n as u64) < u64::from(u32::MAX) / 20, "randperm of {n}");
    let mut rng = RandomState::new(seed as u32);
    let mut order: Vec<u32> = (0..n as u32).collect();
    for i in 0..n.saturating_sub(1) {
        let z = rng.next_u32() as usize % (n - i);
        order.swap(i, i + z);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shuffles_follow_each_other_as_pythons_do() {
        // Python 3.11: random.seed(1234); shuffles of 12 and 5; random.seed(2**40 + 7); a shuffle of 10.
        let mut rng = PythonRandom::new(1234);
        rng.shuffle(&mut [0; 12]);
        let mut five = [0, 1, 2, 3, 4];
        rng.shuffle(&mut five);
        assert_eq!(five, [2, 1, 3, 4, 0]);
        let mut ten = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9];
        PythonRandom::new((1 << 40) + 7).shuffle(&mut ten);
        assert_eq!(ten, [0, 5, 2, 3, 6, 1, 8, 4, 7, 9]);
    }
}

//! The random numbers upstream draws: numpy's legacy `RandomState` and torch's CPU `randperm`.
//!
//! Both are the Mersenne Twister MT19937 (Matsumoto and Nishimura, 1998); orders of samples must match bit for bit.

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
            for i in 0..N {
                let y = (self.state[i] & 0x8000_0000) | (self.state[(i + 1) % N] & 0x7fff_ffff);
                let twist = if y & 1 == 1 { 0x9908_b0df } else { 0 };
                self.state[i] = self.state[(i + M) % N] ^ (y >> 1) ^ twist;
            }
            self.next = 0;
        }
        let mut y = self.state[self.next];
        self.next += 1;
        y ^= y >> 11;
        y ^= (y << 7) & 0x9d2c_5680;
        y ^= (y << 15) & 0xefc6_0000;
        y ^ (y >> 18)
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

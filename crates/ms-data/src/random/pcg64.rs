//! numpy's `default_rng(seed)`: a PCG64 generator seeded by a `SeedSequence`, as far as sampling of sources needs it.
//!
//! Source: O'Neill, "PCG: A Family of Simple Fast Space-Efficient Statistically Good Algorithms" (2014), variant XSL-RR
//! 128/64; the seed is spread as numpy's `SeedSequence` does (O'Neill, "Developing a `seed_seq` Alternative", 2015).

/// Words of a seed sequence's pool.
const POOL: usize = 4;
const MULTIPLIER: u128 = 0x2360_ed05_1fc6_5da4_4385_df64_9fcc_f645;

/// `numpy.random.default_rng(seed)`.
///
/// ```
/// let mut rng = ms_data::random::DefaultRng::new(1234);
/// assert_eq!(rng.next_f64(), 0.976_699_766_698_142_2); // numpy 2.4
/// ```
#[derive(Clone, Debug)]
pub struct DefaultRng {
    state: u128,
    increment: u128,
}

impl DefaultRng {
    /// Seeds as `default_rng(seed)` does.
    pub fn new(seed: u64) -> Self {
        let words = seed_words(&[seed as u32, (seed >> 32) as u32]);
        let wide = |at: usize| {
            let half = |at: usize| u128::from(words[at]) | u128::from(words[at + 1]) << 32;
            half(at) << 64 | half(at + 2)
        };
        let mut rng = Self { state: 0, increment: wide(4) << 1 | 1 };
        rng.step();
        rng.state = rng.state.wrapping_add(wide(0));
        rng.step();
        rng
    }

    fn step(&mut self) {
        self.state = self.state.wrapping_mul(MULTIPLIER).wrapping_add(self.increment);
    }

    /// The next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.step();
        let folded = (self.state >> 64) as u64 ^ self.state as u64;
        folded.rotate_right((self.state >> 122) as u32)
    }

    /// The generator as what draws numbers of 32 bits sees it.
    pub(crate) fn halves(self) -> Halves {
        Halves { rng: self, rest: None }
    }

    /// A number from 0 to below 1: `rng.random()`.
    pub fn next_f64(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Numbers of 32 bits, two of each draw: the low half first.
pub(crate) struct Halves {
    rng: DefaultRng,
    rest: Option<u32>,
}

impl Halves {
    fn next_u32(&mut self) -> u32 {
        self.rest.take().unwrap_or_else(|| {
            let both = self.rng.next_u64();
            self.rest = Some((both >> 32) as u32);
            both as u32
        })
    }

    /// A number below `bound` (above 0), as `rng.integers(bound, dtype=int32)` draws it. Source: Lemire, "Fast Random Integer
    /// Generation in an Interval" (2019).
    pub(crate) fn below(&mut self, bound: u32) -> u32 {
        let unfair = bound.wrapping_neg() % bound;
        loop {
            let product = u64::from(self.next_u32()) * u64::from(bound);
            if product as u32 >= unfair {
                return (product >> 32) as u32;
            }
        }
    }
}

/// Mixes the seed's words into a pool and draws eight words from it.
fn seed_words(seed: &[u32; 2]) -> [u32; 8] {
    let mut factor = 0x43b0_d7e5u32;
    let mut hashed = |value: u32| {
        let value = value ^ factor;
        factor = factor.wrapping_mul(0x931e_8875);
        let value = value.wrapping_mul(factor);
        value ^ value >> 16
    };
    let mut pool = [0; POOL];
    for (i, word) in pool.iter_mut().enumerate() {
        *word = hashed(seed.get(i).copied().unwrap_or(0));
    }
    for from in 0..POOL {
        for to in (0..POOL).filter(|&to| to != from) {
            let mixed =
                pool[to].wrapping_mul(0xca01_f9dd).wrapping_sub(hashed(pool[from]).wrapping_mul(0x4973_f715));
            pool[to] = mixed ^ mixed >> 16;
        }
    }
    let mut factor = 0x8b51_f9ddu32;
    std::array::from_fn(|i| {
        let value = pool[i % POOL] ^ factor;
        factor = factor.wrapping_mul(0x58f3_8ded);
        let value = value.wrapping_mul(factor);
        value ^ value >> 16
    })
}

/// `rng.choice(len(p), size=…, p=p)`, one draw after the other: numpy gives the same draws in pieces of any size.
///
/// ```
/// use ms_data::random::Choice;
/// let drawn: Vec<usize> = Choice::new(1234, &[0.2, 0.5, 0.3])?.take(12).collect();
/// assert_eq!(drawn, [2, 1, 2, 1, 1, 0, 1, 1, 2, 1, 1, 1]); // numpy 2.4
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Debug)]
pub struct Choice {
    rng: DefaultRng,
    /// Running sums of the probabilities, divided by the last one.
    ends: Vec<f64>,
}

impl Choice {
    /// Draws numbers below the number of `probabilities`.
    ///
    /// # Errors
    /// What is wrong with the probabilities: negative, not finite, or their sum is not 1.
    pub fn new(seed: u64, probabilities: &[f64]) -> Result<Self, String> {
        if let Some(odd) = probabilities.iter().find(|p| !(p.is_finite() && **p >= 0.0)) {
            return Err(format!("a probability of {odd}"));
        }
        let mut sum = 0.0;
        let mut ends: Vec<f64> = probabilities
            .iter()
            .map(|p| {
                sum += p;
                sum
            })
            .collect();
        // numpy's tolerance is the square root of the smallest step.
        if (sum - 1.0).abs() > f64::EPSILON.sqrt() {
            return Err(format!("the probabilities add up to {sum}, not to 1"));
        }
        ends.iter_mut().for_each(|end| *end /= sum);
        Ok(Self { rng: DefaultRng::new(seed), ends })
    }
}

impl Iterator for Choice {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let draw = self.rng.next_f64();
        Some(self.ends.partition_point(|&end| end <= draw))
    }
}

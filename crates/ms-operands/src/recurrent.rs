//! Sizes of recurrent layers.

/// Sizes of Mamba-2's scan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StateSpace {
    /// Heads `N`.
    pub heads: usize,
    /// Channels of a head `P`.
    pub head_dim: usize,
    /// Groups `G` that share `B` and `C`.
    pub groups: usize,
    /// State per channel `S`.
    pub state: usize,
    /// Least and largest step after softplus.
    pub step_limit: (f64, f64),
}

/// Sizes of a gated delta rule scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaRule {
    /// Key heads `G`.
    pub key_heads: usize,
    /// Value heads `N`, a multiple of the key heads; head `n` uses key head `n·G/N`.
    pub value_heads: usize,
    /// Size of a key `K`.
    pub key_dim: usize,
    /// Size of a value `V`.
    pub value_dim: usize,
}

/// Which elements of a key are rotated as a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TurnedPairs {
    /// Elements `2j` and `2j + 1`.
    Neighbours,
    /// Elements `j` and `j + S/2`.
    Halves,
}

/// Sizes of Mamba-3's scan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mamba3Shape {
    /// Heads `N`.
    pub heads: usize,
    /// Channels of a head `P`.
    pub head_dim: usize,
    /// State per channel `S`.
    pub state: usize,
    /// Inputs and outputs of a head `R`.
    pub ranks: usize,
    /// Rotated pairs `A`; the other elements are unchanged.
    pub angles: usize,
    /// Which elements are a pair.
    pub pairs: TurnedPairs,
    /// Least rate of decay.
    pub rate_floor: f64,
}

impl Mamba3Shape {
    /// Numbers that a head keeps of the preceding token: its angles `[A]`, keys `[R,S]`, input `[P]`.
    pub fn last(&self) -> usize {
        self.angles + self.ranks * self.state + self.head_dim
    }
}

/// One value per operand of Mamba-3's scan: its elements, or its gradient. All f32.
#[derive(Clone, Copy, Debug)]
pub struct Mamba3Operands<T> {
    /// Input `[T,N·P]`.
    pub x: T,
    /// Gate before SiLU `[T,N·P]`.
    pub z: T,
    /// Keys before bias and rotation, of all heads, `[T,R·S]`.
    pub b: T,
    /// Queries before bias and rotation, of all heads, `[T,R·S]`.
    pub c: T,
    /// Step before bias and softplus `[T,N]`.
    pub dt: T,
    /// Rate of decay before softplus `[T,N]`.
    pub rate: T,
    /// Weight of the end of the step before sigmoid `[T,N]`; its beginning has the rest.
    pub trap: T,
    /// Angular speed in half turns before tanh, of all heads, `[T,A]`.
    pub angle: T,
    /// Bias of the step `[N]`.
    pub dt_bias: T,
    /// Bias of the keys `[N,R,S]`.
    pub b_bias: T,
    /// Bias of the queries `[N,R,S]`.
    pub c_bias: T,
    /// Skip `[N]`.
    pub d: T,
    /// Factor of a rank's input relative to the head's `[N,R,P]`; empty: ones.
    pub rank_x: T,
    /// Factor of a rank's gate relative to the head's `[N,R,P]`; empty: ones.
    pub rank_z: T,
    /// Factor of a rank's output in the head's `[N,R,P]`; empty: ones.
    pub rank_o: T,
}

impl<T> Mamba3Operands<T> {
    /// The operands in the order of their declaration.
    pub fn of(all: [T; 15]) -> Self {
        let [x, z, b, c, dt, rate, trap, angle, dt_bias, b_bias, c_bias, d, rank_x, rank_z, rank_o] = all;
        Self { x, z, b, c, dt, rate, trap, angle, dt_bias, b_bias, c_bias, d, rank_x, rank_z, rank_o }
    }

    /// The inverse of [`Mamba3Operands::of`].
    pub fn each(self) -> [T; 15] {
        let Self { x, z, b, c, dt, rate, trap, angle, dt_bias, b_bias, c_bias, d, rank_x, rank_z, rank_o } =
            self;
        [x, z, b, c, dt, rate, trap, angle, dt_bias, b_bias, c_bias, d, rank_x, rank_z, rank_o]
    }
}

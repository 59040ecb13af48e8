//! Accumulation and logging of losses.

use crate::Result;
use ms_core::{Device, Tensor};
use ms_dist::{ParallelCtx, ReduceOp};

/// A loss summed up in two ways over micro-batches.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LossSums {
    /// Sum of micro-batch means.
    pub(crate) means: f64,
    /// Micro-batches.
    pub(crate) micro_batches: f64,
    /// Sum over tokens.
    pub(crate) nll: f64,
    /// Tokens that count.
    pub(crate) tokens: f64,
}

impl LossSums {
    /// Adds a micro-batch, or the `share` of one that this rank has: of `nll[T]` the tokens that `mask[T]` counts. The whole
    /// micro-batch has `counted` such tokens. Returns the sum over these tokens.
    pub(crate) fn add(&mut self, nll: &Tensor, mask: &[f32], counted: f64, share: f64) -> Result<f64> {
        let (mut sum, mut tokens) = (0.0, 0.0);
        for (&n, &m) in nll.ready()?.to_reals()?.iter().zip(mask).filter(|(_, m)| **m != 0.0) {
            sum += n * f64::from(m);
            tokens += f64::from(m);
        }
        self.nll += sum;
        self.tokens += tokens;
        self.means += if counted > 0.0 { sum / counted } else { 0.0 };
        self.micro_batches += share;
        Ok(sum)
    }

    /// The loss as logged: the mean over tokens, or that over micro-batches.
    pub(crate) fn value(&self, token_mean: bool) -> f64 {
        if token_mean { self.nll / self.tokens.max(1.0) } else { self.means / self.micro_batches.max(1.0) }
    }
}

/// The losses of an iteration.
#[derive(Clone, Debug, Default)]
pub(crate) struct Losses {
    /// Loss of the next token.
    pub(crate) main: LossSums,
    /// Loss of each multi-token prediction module.
    pub(crate) ahead: Vec<LossSums>,
    /// For each micro-batch, the sum over the tokens of this rank, if it has the end of the model.
    pub(crate) of_micro_batches: Vec<f64>,
}

impl Losses {
    /// The sums over all ranks that see different tokens. Stages without the end of the model have none of their own and
    /// get those of the last.
    pub(crate) fn over_ranks(&self, device: &Device, ctx: &ParallelCtx) -> Result<Self> {
        let all = std::iter::once(&self.main).chain(&self.ahead);
        let mine: Vec<f64> = all.flat_map(|s| [s.means, s.micro_batches, s.nll, s.tokens]).collect();
        let mine = Tensor::from_slice(device.arena(), [mine.len()], &mine)?;
        let sum = ctx.dp_cp.all_reduce("loss", mine, ReduceOp::Sum)?.wait()?;
        let sum = ctx.pp.all_reduce("loss", sum, ReduceOp::Sum)?.wait()?;
        let mut sums = sum.ready()?.as_slice::<f64>()?.chunks_exact(4).map(|s| LossSums {
            means: s[0],
            micro_batches: s[1],
            nll: s[2],
            tokens: s[3],
        });
        let main = sums.next().unwrap_or_default();
        Ok(Self { main, ahead: sums.collect(), of_micro_batches: Vec::new() })
    }
}

//! Bytes that a rank sends, in closed form: from the sizes of a model and of a grid by hand, independent of the code that
//! runs or rehearses. All formulas of the repository's tests are here, except those of older tests (`bits.rs`, `memory.rs`)
//! and that of a layer of experts with an even load, which the plan itself uses (`ms_spec::ExpertExchange`).
//!
//! A collective of `n` ranks sends what the best algorithm must: Thakur, Rabenseifner, Gropp, "Optimization of collective
//! communication operations in MPICH", IJHPCA 19 (2005), section 4.
//!
//! `T` tokens of a rank, `H` hidden, `N` query heads, `G` key/value heads, `D` head size, `e` bytes of an element.

mod dense;
mod experts;
mod latent;

pub(crate) use dense::Dense;
pub(crate) use experts::Loads;
pub(crate) use latent::Matrices;

/// Of an all-gather of `share` bytes of each rank: to all others.
pub(crate) fn gathered(share: usize, n: usize) -> usize {
    share * (n - 1)
}

/// Of an all-to-all or a reduce-scatter of `whole` bytes on each rank: all but its own part.
pub(crate) fn shared_out(whole: usize, n: usize) -> usize {
    assert!(whole.is_multiple_of(n), "{whole} bytes in {n} parts");
    whole / n * (n - 1)
}

/// For an all-reduce of `whole` bytes: a reduce-scatter, then an all-gather.
pub(crate) fn summed(whole: usize, n: usize) -> usize {
    2 * whole * (n - 1) / n
}

/// Heads as attention, or a recurrent mixer, has them on a rank before it exchanges them for tokens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Heads {
    /// `N`, of queries, or of values of a mixer.
    pub(crate) heads: usize,
    /// `G`, of keys and values, or the groups of a mixer.
    pub(crate) groups: usize,
}

impl Heads {
    /// Key/value heads that `n` ranks have together: one each, if a rank's query heads are of one group shared with other
    /// ranks; one for every query head, if they are of several such groups.
    pub(crate) fn copies(self, n: usize) -> usize {
        let (each, of_group) = (self.heads / n, self.heads / self.groups);
        match () {
            () if self.groups.is_multiple_of(n) => self.groups,
            () if of_group.is_multiple_of(each) => n,
            () => self.heads,
        }
    }

    /// Of a layer's attention whose heads `n` ranks exchange for tokens: an all-to-all of queries, keys and values, one of what
    /// attention gives, and both again of gradients.
    ///
    /// # Source
    /// DeepSpeed-Ulysses, arXiv:2309.14509, section 3.1.
    pub(crate) fn ulysses(self, tokens: usize, d: usize, n: usize, e: usize) -> usize {
        let columns = self.heads + 2 * self.copies(n) + self.heads;
        2 * shared_out(tokens * columns * d * e, n)
    }

    /// Of a layer's attention around a ring of `ring` groups of `n` ranks that exchange heads before: a block of keys and values
    /// goes on `ring - 1` times forward and as often backward, and as many gradients, unrounded, go back.
    ///
    /// # Source
    /// Ring attention, arXiv:2310.01889, section 3; hybrid: USP, arXiv:2405.07719, section 3.
    pub(crate) fn ring(self, tokens: usize, d: usize, (n, ring): (usize, usize), e: usize) -> usize {
        let block = tokens * n * 2 * (self.copies(n) / n) * d;
        (ring - 1) * block * (e + e + e.max(4))
    }
}

/// Of a recurrent mixer whose `n` context-parallel ranks see all tokens of some heads: an all-to-all of its inputs, of `input`
/// columns, one of its `output` columns, and both again of gradients; unrounded, as scans have them. The gates of what comes out
/// stay with their tokens, while upstream's go, too.
///
/// # Source
/// Megatron-LM (2025), `megatron/core/ssm/mamba_context_parallel.py`: `pre_conv_ssm`, `post_conv_ssm`.
fn scanned(tokens: usize, (input, output): (usize, usize), n: usize, e: usize) -> usize {
    2 * (shared_out(tokens * input * e.max(4), n) + shared_out(tokens * output * e.max(4), n))
}

/// Of a Mamba2 layer: `x`, `B` and `C` by group and `dt` by head go, `y` comes back.
pub(crate) fn mamba2(
    tokens: usize,
    of: Heads,
    (head_dim, state): (usize, usize),
    n: usize,
    e: usize,
) -> usize {
    let inner = of.heads * head_dim;
    scanned(tokens, (inner + 2 * of.copies(n) * state + of.heads, inner), n, e)
}

/// Of a Gated DeltaNet layer: queries and keys by key head, values, decays and strengths by value head go, values come back.
pub(crate) fn gated_delta(
    tokens: usize,
    of: Heads,
    (key, value): (usize, usize),
    n: usize,
    e: usize,
) -> usize {
    let values = of.heads * value;
    scanned(tokens, (2 * of.copies(n) * key + values + 2 * of.heads, values), n, e)
}

/// How the layers of a model lie on stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Chunks {
    /// So many chunks a stage, one after the other through all stages, as often.
    InTurn(usize),
    /// Down the stages and up again.
    BothWays,
}

impl Chunks {
    /// How often a stage passes on the stream of a micro-batch, or the gradient of one. In turn, every chunk but the last
    /// passes on a stream, and every chunk but the first a gradient. Both ways, the last stage hands its stream to itself,
    /// and the first has the beginning and the end.
    ///
    /// # Source
    /// Narayanan et al., arXiv:2104.04473, section 2.2.2: `v` chunks send `v` times as much. `DualPipeV`: DeepSeek,
    /// `dualpipe/dualpipev.py`; MindSpeed, `--schedules-method dualpipev`.
    pub(crate) fn messages(self, stage: usize, stages: usize) -> usize {
        let (first, last) = (usize::from(stage == 0), usize::from(stage + 1 == stages));
        match self {
            Self::InTurn(v) => (v - last) + (v - first),
            Self::BothWays => 2 * (2 - first - last),
        }
    }
}

/// The sums of a loss: four numbers of eight bytes.
pub(crate) const LOSSES: usize = 32;

/// A flat buffer that `n` data-parallel ranks reduce: parameters of `sizes` elements from the last to the first, each from a
/// multiple of 64 on, in buckets whose ends are multiples of 128 and of `n`. Of each bucket its first element and its end, and of
/// each parameter where it begins.
///
/// # Source
/// Megatron-LM `core_r0.8.0`, `megatron/core/distributed/param_and_grad_buffer.py`, `ParamAndGradBuffer.__init__`.
pub(crate) struct Buffer {
    pub(crate) buckets: Vec<(usize, usize)>,
    pub(crate) starts: Vec<usize>,
    n: usize,
}

impl Buffer {
    /// `alone`: the parameters with a bucket of their own; `limit`: elements at which a bucket ends.
    pub(crate) fn new(sizes: &[usize], alone: &[usize], n: usize, limit: Option<usize>) -> Self {
        let up = |at: usize| (at..).find(|end| end % n == 0 && end % 128 == 0).unwrap();
        let (mut buckets, mut starts, mut at, mut first) = (Vec::new(), vec![0; sizes.len()], 0usize, 0usize);
        for (i, size) in sizes.iter().enumerate().rev() {
            at = at.next_multiple_of(64);
            if alone.contains(&i) && at > first {
                buckets.push((first, up(at)));
                (first, at) = (up(at), up(at));
            }
            starts[i] = at;
            at += size;
            if alone.contains(&i) || limit.is_some_and(|limit| at - first >= limit) {
                buckets.push((first, up(at)));
                (first, at) = (up(at), up(at));
            }
        }
        if at > first {
            buckets.push((first, up(at)));
        }
        Self { buckets, starts, n }
    }

    /// Elements, with what fills up buckets.
    pub(crate) fn elements(&self) -> usize {
        self.buckets.iter().map(|(start, end)| end - start).sum()
    }

    /// For an iteration of data parallelism with sharded optimizer state: gradients are reduce-scattered, new weights
    /// all-gathered.
    ///
    /// # Source
    /// Rajbhandari et al., arXiv:1910.02054, section 7.1.
    pub(crate) fn sent(&self, gradient: usize, weight: usize) -> (usize, usize) {
        let n = self.n;
        (shared_out(self.elements() * gradient, n), gathered(self.elements() / n * weight, n))
    }

    /// Elements of parameter `i`, of `size`, that `rank` owns.
    pub(crate) fn owned(&self, i: usize, size: usize, rank: usize) -> usize {
        let of = |&(start, end): &(usize, usize)| {
            let part = (end - start) / self.n;
            let (from, to) = (start + rank * part, start + (rank + 1) * part);
            (self.starts[i] + size).min(to).saturating_sub(self.starts[i].max(from))
        };
        self.buckets.iter().map(of).sum()
    }
}

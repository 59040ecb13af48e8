//! What a run needs of the machine's memory, before it starts.

use crate::data::{DataConfig, DataKind};
use anyhow::{Result, bail};
use ms_cli::{available_memory, say_bytes};
use ms_core::DType;
use ms_data::indexed::IndexedDataset;
use ms_nn::Recompute;
use ms_trainer::TrainConfig;
use serde_json::{Value, json};

/// Bytes that a run needs, by what for; those of ranks are of all of them, since ranks are threads of one process.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Needs {
    weights: u64,
    gradients: u64,
    optimizer: u64,
    activations: u64,
    data: u64,
}

impl Needs {
    /// Estimates them: weights, gradients and optimizer from the parameters, activations as [`ms_spec::activations`] does,
    /// micro-batches read ahead and the order of samples.
    pub(crate) fn of(config: &TrainConfig, data: Option<&DataConfig>, world: usize) -> Self {
        let c = config;
        let specs = ms_spec::params(&c.model);
        let parameters = specs.iter().fold(0u64, |sum, s| sum.saturating_add(s.shape.numel() as u64));
        let (world, width) = (world as u64, c.dtype.size() as u64);
        let tokens = c.batch.micro.saturating_mul(c.longest_row);
        let layers = c.model.layers;
        let recomputed = |index: usize| match c.recompute {
            Recompute::None => false,
            Recompute::Block(n) => index < n.min(layers),
            Recompute::Uniform(_) => index < layers,
        };
        let (kept, of_loss) = ms_spec::activations(&c.model, tokens, recomputed);
        let master = if c.dtype == DType::F32 { 0 } else { 4 };
        // Tokens, labels, positions and mask of a micro-batch, and those read ahead.
        let micro = (tokens as u64).saturating_mul(16);
        let ahead = data.map_or(1, |d| d.ahead as u64 + 1);
        let all = |per_rank: u64| per_rank.saturating_mul(world);
        Self {
            weights: all(parameters.saturating_mul(width)),
            gradients: all(parameters.saturating_mul(4)),
            // Shared by the ranks.
            optimizer: parameters.saturating_mul(8 + master),
            activations: all(kept.saturating_mul(width).saturating_add(of_loss.saturating_mul(4))),
            data: all(micro.saturating_mul(ahead)).saturating_add(order_bytes(config, data)),
        }
    }

    pub(crate) fn total(&self) -> u64 {
        let parts = [self.weights, self.gradients, self.optimizer, self.activations, self.data];
        parts.into_iter().fold(0, u64::saturating_add)
    }

    /// As `--dry-run` shows them.
    pub(crate) fn to_json(self) -> Value {
        json!({
            "weights": self.weights, "gradients": self.gradients, "optimizer": self.optimizer,
            "activations": self.activations, "data": self.data, "total": self.total(),
            "available": available_memory(),
        })
    }

    /// What to lower: the flags of the largest part.
    fn advice(&self) -> &'static str {
        let parts = [
            (
                self.activations,
                "--micro-batch-size, --seq-length, or recompute layers (--recompute-granularity full)",
            ),
            (self.data, "--train-iters, --train-samples, --eval-iters or --seq-length"),
            (
                self.weights.saturating_add(self.gradients).saturating_add(self.optimizer),
                "the size of the model or --nproc-per-node, or pass --bf16",
            ),
        ];
        parts.iter().max_by_key(|part| part.0).map_or("", |part| part.1)
    }
}

/// Bytes of the order of samples that are built in memory: for every sample two places and a number, for every document
/// of every epoch a number.
fn order_bytes(config: &TrainConfig, data: Option<&DataConfig>) -> u64 {
    let Some(DataConfig { kind: DataKind::Gpt { paths, options, .. }, .. }) = data else {
        return 0;
    };
    let samples = crate::data::wanted(config).into_iter().fold(0, u64::saturating_add);
    let Ok(prefixes) = paths.prefixes() else { return 0 };
    let sets: Vec<IndexedDataset> = prefixes.iter().filter_map(|p| IndexedDataset::open(p).ok()).collect();
    let (documents, tokens) =
        sets.iter().fold((0u64, 0u64), |sum, set| (sum.0 + set.len() as u64, sum.1 + set.tokens()));
    let epochs = samples.saturating_mul(options.row_tokens as u64) / tokens.max(1) + 1;
    samples.saturating_mul(16).saturating_add(epochs.saturating_mul(documents).saturating_mul(4))
}

/// Checks that the machine, or the control group of this process, has what the run needs.
///
/// # Errors
/// If it has not: needed, available, and what to lower.
pub(crate) fn check(needs: &Needs) -> Result<()> {
    let (needed, Some(available)) = (needs.total(), available_memory()) else { return Ok(()) };
    if needed > available {
        bail!(
            "memory: this run needs about {}, {} are available\nhint: lower {}",
            say_bytes(needed),
            say_bytes(available),
            needs.advice()
        );
    }
    Ok(())
}

//! That sums over data-parallel ranks run beside the backward pass where they are asked to: seen in the order of what ranks
//! exchange.

#![allow(clippy::unwrap_used)] // helpers of a test may fail like the test itself

use ms_core::{DType, Device, Grid, GridRules, GridSizes, Tensor};
use ms_dist::{Communicator, ContextParallel, ParallelCtx, Pending, ReduceOp};
use ms_nn::Recompute;
use ms_spec::{ModelConfig, Stages};
use ms_trainer::parity::{Shape, Trial, batches};
use ms_trainer::{Replay, TrainConfig};
use std::sync::{Arc, Mutex};

/// Writes down what is begun.
struct Noted {
    inner: Arc<dyn Communicator>,
    log: Arc<Mutex<Vec<(usize, &'static str)>>>,
    world_rank: usize,
}

impl Noted {
    fn note(&self, name: &'static str) {
        self.log.lock().unwrap().push((self.world_rank, name));
    }
}

impl Communicator for Noted {
    fn rank(&self) -> usize {
        self.inner.rank()
    }
    fn size(&self) -> usize {
        self.inner.size()
    }
    fn all_reduce(&self, name: &'static str, t: Tensor, op: ReduceOp) -> ms_dist::Result<Pending> {
        self.note(name);
        self.inner.all_reduce(name, t, op)
    }
    fn all_gather(&self, name: &'static str, t: Tensor) -> ms_dist::Result<Pending> {
        self.inner.all_gather(name, t)
    }
    fn reduce_scatter(&self, name: &'static str, t: Tensor) -> ms_dist::Result<Pending> {
        self.note(name);
        self.inner.reduce_scatter(name, t)
    }
    fn broadcast(&self, name: &'static str, t: Tensor, root: usize) -> ms_dist::Result<Pending> {
        self.inner.broadcast(name, t, root)
    }
    fn all_to_all(&self, name: &'static str, t: Tensor) -> ms_dist::Result<Pending> {
        self.inner.all_to_all(name, t)
    }
    fn all_to_all_rows(&self, name: &'static str, t: Tensor, rows: &[usize]) -> ms_dist::Result<Pending> {
        self.inner.all_to_all_rows(name, t, rows)
    }
    fn send(&self, name: &'static str, t: Tensor, to: usize, tag: u64) -> ms_dist::Result<()> {
        self.inner.send(name, t, to, tag)
    }
    fn recv(&self, name: &'static str, from: usize, tag: u64) -> ms_dist::Result<Pending> {
        self.note(name);
        self.inner.recv(name, from, tag)
    }
    fn barrier(&self) -> ms_dist::Result<()> {
        self.inner.barrier()
    }
    fn sent_bytes(&self) -> u64 {
        self.inner.sent_bytes()
    }
}

fn model() -> ModelConfig {
    ModelConfig {
        layers: 4,
        hidden: 16,
        ffn: 24,
        heads: 4,
        groups: 2,
        head_dim: 4,
        vocab: 32,
        padded_vocab: 32,
        max_positions: 64,
        ..ModelConfig::default()
    }
}

/// Names of what rank 0 began, in order, in one forward and backward of two data-parallel ranks of two tensor-parallel ones.
fn begun(overlap: bool) -> Vec<&'static str> {
    let mut config = TrainConfig::steps(model(), DType::F32, 16, 1);
    (config.bucket_size, config.overlap_grad_reduce) = (Some(300), overlap);
    begun_by(config, &GridSizes { tp: 2, ..GridSizes::default() })
}

/// Names of what rank 0 of four began inside tensor and data parallelism, and waited for in the pipeline.
fn begun_by(config: TrainConfig, sizes: &GridSizes) -> Vec<&'static str> {
    let steps = batches(&config.model, Shape { rows: 1, length: 16, micro: 4, packed: false }, 1);
    let grid = Grid::new(4, sizes, GridRules::V2).unwrap();
    let context = ContextParallel::Gather;
    let trial = Trial { config, grid, sequence_parallel: false, context, lr: 1e-3 };
    let log = Arc::new(Mutex::new(Vec::new()));
    let watched = |mut ctx: ParallelCtx| {
        let world_rank = ctx.rank;
        for group in [&mut ctx.tp, &mut ctx.dp_cp, &mut ctx.pp] {
            *group = Arc::new(Noted { inner: group.clone(), log: log.clone(), world_rank });
        }
        ctx
    };
    trial.run(&|| Device::cpu(1), &steps, Some(&watched)).unwrap();
    let all = log.lock().unwrap();
    all.iter().filter(|(rank, _)| *rank == 0).map(|(_, name)| *name).collect()
}

/// How many of the sums inside tensor parallelism that a backward pass needs come after the first sum of gradients. The losses
/// are summed once the passes are over.
fn beside(begun: &[&str]) -> usize {
    let passes = begun.iter().take_while(|n| **n != "loss");
    passes.skip_while(|n| **n != "gradients").filter(|n| **n == "enter_tp").count()
}

#[test]
fn buckets_are_on_their_way_while_earlier_layers_go_back() {
    let (plain, overlapped) = (begun(false), begun(true));
    let count = |log: &[&str]| log.iter().filter(|n| **n == "gradients").count();
    assert_eq!(count(&plain), count(&overlapped), "the same buckets");
    assert!(count(&plain) > 8, "{plain:?}");
    assert_eq!(beside(&plain), 0, "without overlap the backward pass is over: {plain:?}");
    assert!(beside(&overlapped) >= 4, "{overlapped:?}");
}

/// What rank 0 begins next whenever it has asked for gradients of what it handed on, with layers that run again.
fn behind_gradients(replay: Replay) -> Vec<&'static str> {
    let stages = Stages { pp: 2, layers_per_chunk: Some(1), ..Stages::default() };
    let recompute = Recompute::Block(1);
    let config = TrainConfig { recompute, replay, stages, ..TrainConfig::steps(model(), DType::F32, 16, 1) };
    let log = begun_by(config, &GridSizes { tp: 2, pp: 2, ..GridSizes::default() });
    log.windows(2).filter(|pair| pair[0] == "gradients of a border").map(|pair| pair[1]).collect()
}

#[test]
fn layers_run_again_while_their_gradient_is_on_its_way() {
    // A layer that runs again leaves tensor parallelism first; a backward pass enters it.
    let (late, early) = (behind_gradients(Replay::WithGradient), behind_gradients(Replay::InAdvance));
    assert!(!late.is_empty() && late.len() == early.len());
    assert!(late.iter().all(|next| *next == "leave_tp"), "{late:?}");
    assert!(early.iter().all(|next| *next == "enter_tp"), "{early:?}");
}

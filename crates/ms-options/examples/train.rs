//! A training run from flags, those of `ms-train`: resolve them, and every rank trains.
//!
//! ```text
//! cargo run -p ms-options --example train -- --num-layers 1 --hidden-size 16 --ffn-hidden-size 32 --num-attention-heads 2 \
//!     --swiglu --position-embedding-type rope --max-position-embeddings 16 --seq-length 16 --tokenizer-type NullTokenizer \
//!     --vocab-size 5000 --mock-data --nproc-per-node 2 --micro-batch-size 2 --train-iters 3 --lr 1e-2
//! ```

use ms_cli::megatron::{Line, Program, parse};
use ms_options::training::{Options, Purpose, resolve};
use ms_trainer::{Hooks, Observer, Outcome};
use std::io::Write;

struct Lines;

impl Observer for Lines {
    fn line(&self, text: &str) {
        let _ = writeln!(std::io::stdout(), "{text}"); // a closed pipe does not end the run
    }

    fn progress(&self, _iteration: u64, _of: u64, _loss: f64) {}
}

/// How the run of these flags ended, by rank.
pub(crate) fn run(flags: impl Iterator<Item = String>) -> anyhow::Result<Vec<Outcome>> {
    let line = Box::leak(Box::new(Line::new::<Options>(Program::Train, "train", "Trains a model.")));
    let args = parse(line, flags)?;
    args.check()?;
    let options: Options = args.read()?;
    let (run, choice) = (resolve(&options, Purpose::Train, None)?, options.compute.arithmetic()?);
    let hooks = Hooks { stop: Default::default(), recorder: None, observer: &Lines, job: String::new() };
    ms_dist::threads::run(run.world, |fabric| run.train(run.context(&fabric)?, choice, &hooks))
        .map_err(|(rank, failure)| anyhow::anyhow!("rank {rank}: {failure:?}"))
}

#[allow(dead_code)] // unused where a test includes this file
fn main() -> anyhow::Result<()> {
    run(std::env::args().skip(1)).map(drop)
}

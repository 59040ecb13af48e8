//! A training run from flags: [`resolve`] makes one configuration from flags, checkpoint, tokenizer and data, with which
//! every rank trains ([`Resolved::train`]).

use anyhow::{Context, Result};
use ms_cli::Usage;
use ms_cli::megatron::Args;
use ms_cpu::Choice;
use ms_data::sampler::DataParallelRank;
use ms_dist::{Fabric, ParallelCtx};
use ms_trainer::{Hooks, Outcome};
use tracing::subscriber::NoSubscriber;

use crate::plan::layouts;
use crate::resolve::data::{Data, TokenShares};
use crate::resolve::stage_layers::StageLayerOptions;

pub use crate::resolve::options::Options;
pub use crate::resolve::topology::{MOST_PLANNED, Topology};
pub use crate::resolve::world::{MOST_RANKS, World};
pub use crate::resolve::{Purpose, Resolved};

/// Refuses combinations of flags with which upstream fails, although none of them has an effect by itself.
///
/// # Errors
/// An error that names both flags.
pub fn check(args: &Args) -> Result<(), Usage> {
    crate::resolve::companions::check(args)
}

impl Options {
    /// The options with the parallel sizes that the checkpoint names, if `--use-mp-args-from-checkpoint-args` is given.
    /// `args`, from which the options were read, get the same sizes.
    ///
    /// # Errors
    /// Without a checkpoint, or if it cannot be opened.
    pub fn with_sizes_of_checkpoint(self, args: &mut Args) -> Result<Self> {
        crate::resolve::inherited::settle_sizes(args, &self.inherited, &self.source)?;
        Ok(args.read()?)
    }
}

/// Resolves the flags of a training run, and reports which of them have no effect. A plan needs no data and no number of
/// iterations, and has as many ranks as a launcher has `launched`, if the flags do not say how many.
///
/// # Errors
/// If a flag is missing or wrong, or the checkpoint, the tokenizer or a data set cannot be read.
pub fn resolve(o: &Options, purpose: Purpose, launched: Option<usize>) -> Result<Resolved> {
    let mut run = crate::resolve::resolve(o, purpose, launched)?;
    crate::resolve::companions::say_defaults(o);
    if purpose.chooses_swaps() {
        crate::plan::smart_swap::choose(&mut run, &o.recompute, o.update.swap_parts)?;
    }
    crate::resolve::companions::say(o, &run);
    Ok(run)
}

/// After so many layouts that are refused as the line itself is, what is wrong is taken to be no matter of layouts.
const ALIKE: usize = 4;

/// What layouts are found for: the run as its flags say it, or, where its ranks cannot be spread so, in any other way.
///
/// # Errors
/// What refuses the flags as they are, if there is no other way.
pub fn outline(o: &Options, launched: Option<usize>) -> Result<Resolved> {
    let refused = match resolve(o, Purpose::Outline, launched) {
        Ok(run) => return Ok(run),
        Err(refused) => refused,
    };
    tracing::subscriber::with_default(NoSubscriber::new(), || {
        let world = crate::resolve::world::ranks(o, true, launched)?.ranks;
        let mut alike = 0;
        for (sizes, dp) in layouts::sizes(world) {
            let samples = o.batches.micro()?.saturating_mul(dp);
            if o.batches.global.is_some_and(|global| !global.is_multiple_of(samples)) {
                continue;
            }
            let mut line = o.clone();
            line.parallelism.set_sizes(&sizes);
            line.stage_layers = StageLayerOptions::none();
            match crate::resolve::resolve(&line, Purpose::Outline, Some(world)) {
                Ok(run) => return Ok(run),
                Err(other) => alike += usize::from(other.to_string() == refused.to_string()),
            }
            if alike == ALIKE {
                break;
            }
        }
        Err(refused)
    })
}

impl Resolved {
    /// The place in the run of the rank that `fabric` belongs to.
    ///
    /// # Errors
    /// If the fabric has another number of ranks than the run.
    pub fn context(&self, fabric: &dyn Fabric) -> Result<ParallelCtx> {
        let t = &self.topology;
        Ok(ParallelCtx::new(t.grid.clone(), t.parallel, fabric)?)
    }

    /// Trains as the rank at `ctx` until the run ends, with the instruction set and summation order of `choice`, which are
    /// the same on all ranks.
    ///
    /// # Errors
    /// If data, checkpoint or another rank fails.
    pub fn train(&self, ctx: ParallelCtx, choice: Choice, hooks: &Hooks<'_>) -> Result<Outcome> {
        let source = self.data.as_ref().context("a run has data")?;
        let device = crate::compute::device_for(self.config.dtype, self.threads_per_rank, choice)?;
        // The first rank writes the index files of the data that are missing; the others read them.
        if ctx.rank > 0 {
            ctx.world.barrier()?;
        }
        let rank = DataParallelRank { rank: ctx.dp.rank(), size: ctx.dp.size() };
        let (cp, parallel) = (ctx.cp.size(), &self.topology.parallel);
        let shares = TokenShares {
            pieces: if cp > 1 { parallel.context.pieces(cp) } else { 1 },
            cp,
            tp: if parallel.sequence_parallel { ctx.tp.size() } else { 1 },
        };
        let data = Data::open(source, &self.config, rank, shares)?;
        if ctx.rank == 0 {
            ctx.world.barrier()?;
        }
        Ok(ms_trainer::run(&self.config, device, ctx, &data, hooks)?)
    }
}

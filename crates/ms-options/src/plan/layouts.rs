//! `--dry-run --fit SIZE`: layouts of the given ranks whose ranks each need at most that much memory, best first.

use crate::plan::{self, communication, rehearse};
use crate::resolve::options::Options;
use crate::resolve::stage_layers::StageLayerOptions;
use crate::resolve::topology::{WorldSize, check_schedule, nearly_even};
use crate::resolve::{self, Purpose, Resolved, Spread, flops_per_sample};
use anyhow::{Result, bail};
use ms_cli::megatron::Upstream;
use ms_cli::{Usage, refuse};
use ms_core::{Axis, GridSizes};
use ms_spec::{ModelConfig, PlacedParam, Placement, Recompute};
use ms_trainer::{PipelineOrder, TrainConfig};
use serde_json::{Value, json};
use std::fmt;
use tracing::subscriber::NoSubscriber;

/// Floating-point operations that a rank does in the time in which it sends a byte, for the order of the list: 300 TFLOP/s
/// and 100 GB/s, as for accelerators of 2024.
const FLOPS_PER_BYTE: f64 = 3000.0;

/// Rows of a product on an accelerator with which it takes twice the time of its operations: tiles of few rows are mostly empty,
/// and weights have to be read for any number of them.
const ROWS_OF_HALF_SPEED: f64 = 512.0;

/// Layouts that are shown.
const SHOWN: usize = 8;

/// Layouts that are rehearsed for it, and those that need least by formula, where none of the best can be shown.
const TRIED: usize = 12;
const LEAST: usize = 4;

/// One way to spread the run.
struct Candidate {
    sizes: GridSizes,
    /// Whether the line has another size than 1, which a layout of 1 has to take back.
    ep_given: bool,
    sequence_parallel: bool,
    chunks: usize,
    layer_list: Option<Vec<usize>>,
    recompute: Recompute,
    dp: usize,
    /// The global batch size, where it is not given and would be another one of these ranks.
    global: Option<usize>,
    /// Layers of the model, where the line counts empty slots among them, which no layout has.
    layers: Option<usize>,
    /// Bytes of the rank that needs most, by formula, and its stage.
    bytes: usize,
    stage: usize,
    /// The same from a rehearsal, in blocks of memory as an arena allocates them.
    peak: Option<usize>,
    bubble: f64,
    /// Tokens of a micro-batch on a rank, the rows of its products.
    rows: usize,
    /// Operations of a rank in an iteration.
    flops: f64,
    /// Bytes sent in an iteration by a rank of the stage that sends most: from a rehearsal, or by formula.
    sent: u64,
    /// By formula.
    estimated: u64,
}

/// Bytes of `64GiB`, `80GB`, `512MiB` or a plain number.
///
/// # Errors
/// With what was expected and found.
pub(crate) fn bytes(flag: &str, text: &str) -> Result<usize> {
    let units = [
        ("TiB", 1u64 << 40),
        ("GiB", 1 << 30),
        ("MiB", 1 << 20),
        ("KiB", 1 << 10),
        ("TB", 1_000_000_000_000),
        ("GB", 1_000_000_000),
        ("MB", 1_000_000),
        ("KB", 1000),
        ("", 1),
    ];
    let (number, unit) = units
        .iter()
        .find_map(|(name, unit)| Some((text.trim().strip_suffix(name)?.trim(), *unit as f64)))
        .unwrap_or((text, 1.0));
    match number.parse::<f64>() {
        Ok(n) if n > 0.0 && (n * unit).is_finite() => Ok((n * unit) as usize),
        _ => Err(Usage(format!(
            "{flag}: expected a size in bytes, KiB, MiB, GiB, TiB, KB, MB, GB or TB such as 64GiB, found {text:?}"
        ))
        .into()),
    }
}

/// Layouts of a run's ranks whose ranks each need at most so much memory.
pub struct Layouts {
    ranks: usize,
    /// The requested size as text, and in bytes.
    asked: String,
    limit: usize,
    /// All layouts, those that fit by formula, and those of these that were rehearsed.
    total: usize,
    fit: usize,
    tried: usize,
    /// What is shown, best first.
    best: Vec<Candidate>,
    /// Given flags that no layout has.
    set_aside: Vec<String>,
}

impl Layouts {
    /// Finds those of the ranks of `r` that need at most `asked` (64GiB, say).
    ///
    /// # Errors
    /// An invalid size, or no layout that fits, with the smallest one.
    pub fn find(o: &Options, r: &Resolved, asked: &str) -> Result<Self> {
        let limit = bytes("--fit", asked)?;
        check(r)?;
        let set_aside = set_aside(o, r);
        if !set_aside.is_empty() {
            tracing::warn!(
                "--fit chooses how stages, experts and sequences are split; ignored: {}",
                set_aside.join(", ")
            );
        }
        let mut all = layouts(r, o);
        all.sort_by(|a, b| a.cost().total_cmp(&b.cost()));
        let least = all.iter().map(|l| l.bytes).min();
        let total = all.len();
        let none = |why: String| {
            Usage(format!(
                "--fit: no layout of {} ranks needs at most {asked} a rank; {why}\nhint: more ranks, a smaller \
                 --micro-batch-size or a shorter --seq-length",
                r.world
            ))
        };
        all.retain(|l| l.bytes <= limit);
        let fit = all.len();
        if fit == 0 {
            return Err(match least {
                Some(n) => none(format!("the smallest of {total} layouts needs {}", binary(n as u64))),
                None => Usage(format!("--fit: no layout of {} ranks is left{}", r.world, why_none(o, r))),
            }
            .into());
        }
        let (best, tried) = tried(all, r, o, limit);
        if best.is_empty() {
            return Err(none(format!(
                "{fit} of {total} layouts do by formula, and none of the {tried} of them that were tried out"
            ))
            .into());
        }
        Ok(Self { ranks: r.world, asked: asked.to_owned(), limit, total, fit, tried, best, set_aside })
    }

    /// As `--json` shows them.
    pub fn to_json(&self) -> Value {
        let best: Vec<Value> = self.best.iter().map(Candidate::to_json).collect();
        json!({
            "limit_bytes": self.limit, "layouts": self.total, "fit": self.fit, "tried": self.tried, "best": best,
            "set_aside": self.set_aside,
        })
    }
}

impl fmt::Display for Layouts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ranks, asked, total, fit, tried, .. } = self;
        write!(
            f,
            "{fit} of {total} layouts of {ranks} ranks need at most {asked} a rank by formula; of {tried} that were tried out, \
             best first:"
        )?;
        for l in &self.best {
            write!(
                f,
                "\n{:>10}  bubble {:>4.1} %  sent {:>10}  {}{}",
                binary(l.peak.unwrap_or(l.bytes) as u64),
                100.0 * l.bubble,
                binary(l.sent),
                l.flags(),
                if l.peak.is_none() { "  (by formula: it cannot be tried out)" } else { "" }
            )?;
        }
        Ok(())
    }
}

/// Of layouts that need at most `limit` by formula, best first: those that still do in a rehearsal, best first, and how many
/// were rehearsed.
fn tried(all: Vec<Candidate>, r: &Resolved, o: &Options, limit: usize) -> (Vec<Candidate>, usize) {
    let (mut shown, mut rest, mut tried) = (Vec::new(), Vec::new(), 0);
    for mut layout in all {
        if shown.len() == SHOWN || tried == TRIED {
            rest.push(layout);
            continue;
        }
        tried += 1;
        if layout.try_out(r, o, limit) {
            shown.push(layout);
        }
    }
    if shown.is_empty() {
        rest.sort_by_key(|l| l.bytes);
        for mut layout in rest.into_iter().take(LEAST) {
            tried += 1;
            if layout.try_out(r, o, limit) {
                shown.push(layout);
            }
        }
    }
    shown.sort_by(|a, b| a.cost().total_cmp(&b.cost()));
    (shown, tried)
}

/// Most micro-batches of an iteration for which pipelines are simulated.
const MICRO_BATCHES: usize = 1 << 16;

fn check(r: &Resolved) -> Result<()> {
    let micro_batches = r.config.batch.global / r.config.batch.micro.max(1);
    if micro_batches > MICRO_BATCHES {
        refuse!(
            "--fit: expected at most {MICRO_BATCHES} micro-batches an iteration, found {micro_batches}: lower \
             --global-batch-size"
        );
    }
    Ok(())
}

/// Given flags that shape a layout and that no proposed layout has: what they ask for is proposed in another form, or not at all.
fn set_aside(o: &Options, r: &Resolved) -> Vec<String> {
    let s = &o.parallelism;
    let context = s.context.given().filter(|c| !is_kept(c)).map(|c| format!("--context-parallel-algo {c}"));
    let recompute =
        (r.config.memory.recompute != Recompute::None).then(|| "--recompute-granularity full".to_owned());
    let flags = [
        s.layer_list.written,
        o.model_flags.written("noop_layers"),
        s.layers_per_chunk.written,
        s.chunks.written,
        s.group.written,
        s.order.written.filter(|_| r.config.pipeline.order == PipelineOrder::DualPipeV),
        s.extend_ep.written,
        s.extended.written,
        s.etp.written,
        s.window.written,
        s.ulysses.written,
    ];
    let flags = flags.into_iter().flatten().chain(o.stage_layers.given()).map(str::to_owned);
    flags.chain(context).chain(recompute).collect()
}

/// Whether a proposed layout has this `--context-parallel-algo`.
fn is_kept(context: &str) -> bool {
    matches!(context, "megatron_cp_algo" | "ulysses_cp_algo")
}

/// `--context-parallel-algo` where it is not given.
fn default_context(upstream: Upstream) -> &'static str {
    match upstream {
        Upstream::V2_0_0 => "ulysses_cp_algo",
        Upstream::Head => "megatron_cp_algo",
    }
}

/// Bytes in the units that `--fit` takes: `1.5 GiB`.
pub(crate) fn binary(bytes: u64) -> String {
    let units = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    match units.into_iter().find(|(_, shift)| bytes >> shift > 0) {
        Some((name, shift)) => format!("{:.1} {name}", bytes as f64 / (1u64 << shift) as f64),
        None => format!("{bytes} bytes"),
    }
}

impl Candidate {
    /// The flags that ask for it.
    fn flags(&self) -> String {
        let s = &self.sizes;
        let mut flags = format!(
            "--tensor-model-parallel-size {} --pipeline-model-parallel-size {} --context-parallel-size {}",
            s.tp, s.pp, s.cp
        );
        if s.ep > 1 || self.ep_given {
            flags += &format!(" --expert-model-parallel-size {}", s.ep);
        }
        if self.sequence_parallel {
            flags += " --sequence-parallel";
        }
        if self.chunks > 1 {
            flags += &format!(" --num-virtual-stages-per-pipeline-rank {}", self.chunks);
        }
        if let Some(list) = &self.layer_list {
            let list: Vec<String> = list.iter().map(ToString::to_string).collect();
            flags += &format!(" --num-layer-list {}", list.join(","));
        }
        if self.recompute != Recompute::None {
            flags += " --recompute-granularity full --recompute-method uniform --recompute-num-layers 1";
        }
        if let Some(layers) = self.layers {
            flags += &format!(" --num-layers {layers}");
        }
        if let Some(global) = self.global {
            flags += &format!(" --global-batch-size {global}");
        }
        flags + " --use-distributed-optimizer"
    }

    /// Estimated length of an iteration, in lengths of its computation alone.
    fn cost(&self) -> f64 {
        let again = if self.recompute == Recompute::None { 1.0 } else { 4.0 / 3.0 };
        let again = again * (1.0 + ROWS_OF_HALF_SPEED / self.rows as f64);
        let exchanges = self.sent as f64 * FLOPS_PER_BYTE / self.flops.max(1.0);
        (again + exchanges) / (1.0 - self.bubble).max(1e-3)
    }

    /// Rehearses a rank of every stage, or one for each size of snapshots, and replaces the estimates of memory and bytes sent by
    /// the results. Returns whether no rank needs more than `limit` bytes; a layout that cannot be rehearsed keeps its estimates.
    fn try_out(&mut self, r: &Resolved, o: &Options, limit: usize) -> bool {
        let Ok(run) = spread(r, o, self.sizes, self.chunks, self.recompute) else { return false };
        let micro_batches = run.config.batch.global / (run.config.batch.micro * self.dp);
        // The stage that likely needs most, and only if it fits the others.
        let others: Vec<usize> = (0..self.sizes.pp).filter(|&stage| stage != self.stage).collect();
        let (mut peak, mut sent) = (0usize, 0u64);
        for stages in [vec![self.stage], others] {
            for found in rehearse::stages(&run, micro_batches, &stages) {
                let Some(found) = found else { return true };
                let most = found.most();
                (peak, sent) = (peak.max(most.0), sent.max(most.1));
            }
            if peak > limit {
                return false;
            }
        }
        (self.peak, self.sent) = (Some(peak), sent);
        true
    }

    fn to_json(&self) -> Value {
        let s = &self.sizes;
        json!({
            "tp": s.tp, "pp": s.pp, "cp": s.cp, "ep": s.ep, "dp": self.dp, "sequence_parallel": self.sequence_parallel,
            "chunks": self.chunks, "recompute": self.recompute != Recompute::None, "bytes_per_rank": self.bytes,
            "peak_block_bytes": self.peak, "bubble": self.bubble, "sent_bytes": self.sent,
            "estimated_sent_bytes": self.estimated, "tried_out": self.peak.is_some(), "cost": self.cost(), "flags": self.flags(),
        })
    }
}

fn divisors(n: usize) -> impl Iterator<Item = usize> {
    (1..=n).filter(move |d| n.is_multiple_of(*d))
}

/// Every way to share `world` ranks among tensor, pipeline and context parallelism, and the replicas that are left.
pub(crate) fn sizes(world: usize) -> impl Iterator<Item = (GridSizes, usize)> {
    let of_stage = move |tp: usize| divisors(world / tp).map(move |pp| (tp, pp));
    let stages = divisors(world).flat_map(of_stage);
    stages.flat_map(move |(tp, pp)| {
        let rest = world / tp / pp;
        divisors(rest).map(move |cp| (GridSizes { tp, cp, pp, ..GridSizes::default() }, rest / cp))
    })
}

/// Every layout of the run's ranks that its model and batch allow.
fn layouts(r: &Resolved, o: &Options) -> Vec<Candidate> {
    let experts = r.config.model.moe.as_ref().map_or(1, |m| m.experts);
    let mut all = Vec::new();
    for (sizes, dp) in sizes(r.world) {
        if sizes.pp > r.config.model.layers
            || !r.config.batch.global.is_multiple_of(r.config.batch.micro * dp)
        {
            continue;
        }
        for ep in divisors(dp * sizes.cp).filter(|&ep| ep <= experts) {
            for chunks in [1, 2] {
                for recompute in [Recompute::None, Recompute::Uniform(1)] {
                    all.extend(layout(r, o, GridSizes { ep, ..sizes }, chunks, recompute));
                }
            }
        }
    }
    all
}

/// What refuses the first of the layouts, each behind a colon.
fn why_none(o: &Options, r: &Resolved) -> String {
    let refusals = sizes(r.world)
        .filter_map(|(sizes, _)| spread(r, o, sizes, 1, Recompute::None).err())
        .map(|refusal| format!(": {refusal}"));
    refusals.take(1).collect()
}

/// The options of the run with the flags of a layout, and without those that no layout has.
fn with_flags(o: &Options, r: &Resolved, sizes: &GridSizes, chunks: usize, recompute: Recompute) -> Options {
    let (mut line, layers) = (o.clone(), r.config.model.layers);
    line.parallelism.set_sizes(sizes);
    line.parallelism.distributed_optimizer = true;
    line.parallelism.sequence_parallel = sizes.tp > 1;
    if r.config.pipeline.order == PipelineOrder::DualPipeV {
        line.parallelism.order.value = None;
    }
    if o.parallelism.context.given().is_some_and(|context| !is_kept(context)) {
        line.parallelism.context.value = default_context(o.upstream).to_owned();
    }
    line.parallelism.chunks.value = (chunks > 1).then_some(chunks);
    let list = || nearly_even(layers, sizes.pp).iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    line.parallelism.layer_list.value = (!layers.is_multiple_of(sizes.pp)).then(list);
    line.stage_layers = StageLayerOptions::none();
    line.model_flags.slots.noop = None;
    if recompute != Recompute::None {
        line.recompute.set_uniform();
    } else if r.config.memory.recompute != Recompute::None {
        line.recompute.clear();
    }
    line
}

/// The run spread so, if a command line that asks for it is resolved: what reads no file is checked as for any run.
fn spread(
    r: &Resolved,
    o: &Options,
    sizes: GridSizes,
    chunks: usize,
    recompute: Recompute,
) -> Result<Resolved> {
    let c = &r.config;
    if chunks > 1 && (sizes.pp == 1 || !c.model.layers.is_multiple_of(chunks * sizes.pp)) {
        bail!("{} layers are not {chunks} chunks for each of {} stages", c.model.layers, sizes.pp);
    }
    let line = with_flags(o, r, &sizes, chunks, recompute);
    let padded_vocab = resolve::model::padded_vocab(o, &c.model, sizes.tp);
    let model = ModelConfig { padded_vocab, ..c.model.clone() };
    let dp = r.world / (sizes.tp * sizes.pp * sizes.cp);
    // What is said of flags is said of those that were given.
    let resolved = tracing::subscriber::with_default(NoSubscriber::new(), || -> Result<_> {
        let world = WorldSize { ranks: r.world, said: format!("--nproc-per-node {}", r.world) };
        let topology = resolve::spread(&line, Purpose::Outline, &world, &model)?;
        let Spread { longest_row, tp_overlap, memory, pipeline, optimizer, data_parallel } =
            resolve::of_ranks(&line, (&model, &topology), r.data.as_ref(), &c.batch)?;
        let config = TrainConfig {
            model,
            longest_row,
            tp_overlap,
            memory,
            pipeline,
            optimizer,
            data_parallel,
            ..c.clone()
        };
        config.batch.validate(dp)?;
        // Of one size of batches, the list's own simulation says so.
        if config.batch.rampup.is_some() {
            check_schedule(&config, dp)?;
        }
        Ok((config, topology))
    });
    let (config, topology) = resolved?;
    Ok(Resolved { config, topology, data: None, ..r.clone() })
}

/// The layout with what formulas say of it, if the run can be spread so.
fn layout(
    r: &Resolved,
    o: &Options,
    sizes: GridSizes,
    chunks: usize,
    recompute: Recompute,
) -> Option<Candidate> {
    let run = spread(r, o, sizes, chunks, recompute).ok()?;
    let c = &run.config;
    let placement = Placement::new(&c.model, &c.pipeline.stages).ok()?;
    let dp = run.topology.grid.size(Axis::Dp);
    let micro_batches = c.batch.global / (c.batch.micro * dp);
    let (schedule, report) = plan::pipeline(&run, &placement, micro_batches).ok()?;
    let held: Vec<Vec<PlacedParam>> = (0..sizes.pp).map(|s| placement.params(&c.model, s)).collect();
    let (mut worst, mut sent) = ((0usize, 0usize), 0u64);
    for (stage, own) in held.iter().enumerate() {
        let bytes = plan::stage_bytes(&run, &placement, own, stage, &schedule).ok()?;
        worst = worst.max((bytes, stage));
        let of_stage = communication::of_stage(&run, &placement, &held, stage, micro_batches).ok()?;
        sent = sent.max(of_stage.as_object()?.values().filter_map(Value::as_u64).sum());
    }
    // Empty slots, which upstream counts, compute nothing.
    let computing = ModelConfig { empty_slots: 0, ..c.model.clone() };
    Some(Candidate {
        sizes,
        ep_given: o.parallelism.ep > 1,
        sequence_parallel: run.topology.parallel.sequence_parallel,
        chunks,
        layer_list: c.pipeline.stages.layer_list.clone(),
        recompute,
        dp,
        global: o.batches.global.is_none().then_some(c.batch.global),
        layers: o.model_flags.written("noop_layers").map(|_| c.model.layers),
        bytes: worst.0,
        stage: worst.1,
        peak: None,
        bubble: report.bubble_fraction,
        rows: (c.batch.micro * c.seq_length).div_ceil(sizes.cp),
        flops: flops_per_sample(o.upstream, &computing, c.seq_length) * c.batch.global as f64
            / r.world as f64,
        sent,
        estimated: sent,
    })
}

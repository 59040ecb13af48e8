//! `--dry-run --fit SIZE`: layouts of the given ranks whose ranks each need at most so much memory, best first.

use crate::options::Options;
use crate::plan;
use crate::resolve::Resolved;
use crate::topology::{self, Topology};
use anyhow::Result;
use ms_cli::Usage;
use ms_cli::megatron::{Args, Upstream};
use ms_core::{Axis, Grid, GridRules, GridSizes};
use ms_dist::ContextParallel;
use ms_spec::{Mixer, ModelConfig, PlacedParam, Placement, Recompute, Stages};
use ms_trainer::TrainConfig;
use serde_json::{Value, json};
use std::io::Write;

/// Floating-point operations that a rank does in the time in which it sends a byte, for the order of the list: 300 TFLOP/s
/// beside 100 GB/s, as accelerators of 2024 have them.
const FLOPS_PER_BYTE: f64 = 3000.0;

/// Layouts that are shown.
const SHOWN: usize = 10;

/// One way to spread the run.
struct Layout {
    sizes: GridSizes,
    sequence_parallel: bool,
    chunks: usize,
    layer_list: Option<Vec<usize>>,
    recompute: Recompute,
    dp: usize,
    /// Of the rank that needs most, in bytes.
    bytes: usize,
    bubble: f64,
    /// Sent by a rank of the first stage in an iteration.
    sent: f64,
    /// Estimated length of an iteration, in lengths of its computation alone.
    cost: f64,
}

/// Bytes of `64GiB`, `80GB`, `512MiB` or a plain number.
///
/// # Errors
/// With what was expected and found.
fn bytes(text: &str) -> Result<usize> {
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
        _ => Err(Usage(format!("--fit: expected a size such as 64GiB, found {text:?}")).into()),
    }
}

/// Prints the layouts that fit.
///
/// # Errors
/// A size that is none, or no layout that fits, with the smallest that there is.
pub(crate) fn print(args: &Args, o: &Options, r: &Resolved, limit: &str) -> Result<()> {
    let limit = bytes(limit)?;
    check(o, r)?;
    let mut all = layouts(r, rules(o.upstream));
    all.sort_by(|a, b| a.cost.total_cmp(&b.cost));
    let least = all.iter().map(|l| l.bytes).min();
    let (fit, total) = (all.iter().filter(|l| l.bytes <= limit).count(), all.len());
    let shown: Vec<&Layout> = all.iter().filter(|l| l.bytes <= limit).take(SHOWN).collect();
    if shown.is_empty() {
        let least = least.map_or("there is no layout at all".to_owned(), |n| {
            format!("the smallest of {total} layouts needs {:.1} GiB", gib(n))
        });
        return Err(Usage(format!(
            "--fit: no layout of {} ranks needs at most {:.1} GiB a rank; {least}\nhint: more ranks, a smaller \
             --micro-batch-size or a shorter --seq-length",
            r.world,
            gib(limit)
        ))
        .into());
    }
    let mut out = std::io::stdout().lock();
    if args.json() {
        let found: Vec<Value> = shown.iter().map(|l| l.to_json()).collect();
        writeln!(out, "{}", json!({"limit_bytes": limit, "layouts": total, "fit": fit, "best": found}))?;
        return Ok(());
    }
    writeln!(
        out,
        "{fit} of {total} layouts of {} ranks need at most {:.1} GiB a rank; best first:",
        r.world,
        gib(limit)
    )?;
    for l in shown {
        writeln!(
            out,
            "{:>8.1} GiB  bubble {:>4.1} %  sent {:>7.2} GB  {}",
            gib(l.bytes),
            100.0 * l.bubble,
            l.sent / 1e9,
            l.flags()
        )?;
    }
    Ok(())
}

/// Most micro-batches of an iteration for which pipelines are simulated.
const MICRO_BATCHES: usize = 1 << 16;

fn check(o: &Options, r: &Resolved) -> Result<()> {
    let s = &o.spread;
    // Flags that shape a layout in ways that are not proposed.
    let others = [
        s.layer_list.written,
        o.model_flags.written("noop_layers"),
        s.layers_per_chunk.written,
        s.chunks.written,
        s.order.written,
        s.stages_first.written,
        s.extend_ep.written,
        s.etp.written,
        s.window.written,
        s.ulysses.written,
    ];
    if let Some(flag) = others.into_iter().flatten().next() {
        return Err(Usage(format!("--fit: proposes this itself or not at all; leave out {flag}")).into());
    }
    let known = |c: &str| matches!(c, "megatron_cp_algo" | "ulysses_cp_algo");
    if let Some(other) = s.context.given().filter(|c| !known(c)) {
        return Err(Usage(format!(
            "--fit: expected --context-parallel-algo megatron_cp_algo or ulysses_cp_algo, found {other}"
        ))
        .into());
    }
    let micro_batches = r.config.batch.global / r.config.batch.micro.max(1);
    if micro_batches > MICRO_BATCHES {
        return Err(Usage(format!(
            "--fit: expected at most {MICRO_BATCHES} micro-batches an iteration, found {micro_batches}: lower \
             --global-batch-size"
        ))
        .into());
    }
    Ok(())
}

fn rules(upstream: Upstream) -> GridRules {
    match upstream {
        Upstream::V2_0_0 => GridRules::V2,
        Upstream::Head => GridRules::Head,
    }
}

fn gib(bytes: usize) -> f64 {
    bytes as f64 / (1u64 << 30) as f64
}

impl Layout {
    /// The flags that ask for it.
    fn flags(&self) -> String {
        let s = &self.sizes;
        let mut flags = format!(
            "--tensor-model-parallel-size {} --pipeline-model-parallel-size {} --context-parallel-size {}",
            s.tp, s.pp, s.cp
        );
        if s.ep > 1 {
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
        flags + " --use-distributed-optimizer"
    }

    fn to_json(&self) -> Value {
        let s = &self.sizes;
        json!({
            "tp": s.tp, "pp": s.pp, "cp": s.cp, "ep": s.ep, "dp": self.dp, "sequence_parallel": self.sequence_parallel,
            "chunks": self.chunks, "recompute": self.recompute != Recompute::None, "bytes_per_rank": self.bytes,
            "bubble": self.bubble, "sent_bytes": self.sent, "cost": self.cost, "flags": self.flags(),
        })
    }
}

fn divisors(n: usize) -> impl Iterator<Item = usize> {
    (1..=n).filter(move |d| n.is_multiple_of(*d))
}

/// Every layout of the run's ranks that its model and batch allow.
fn layouts(r: &Resolved, rules: GridRules) -> Vec<Layout> {
    // Layers that borrow from earlier ones are not run again.
    let c = &r.config.model;
    let borrows = c.has(Mixer::SharedKv) || (0..c.layers).any(|l| c.layer(l).borrows_index);
    let ways = if borrows { &[Recompute::None][..] } else { &[Recompute::None, Recompute::Uniform(1)] };
    let experts = r.config.model.moe.as_ref().map_or(1, |m| m.experts);
    let mut all = Vec::new();
    for tp in divisors(r.world) {
        for pp in divisors(r.world / tp).filter(|&pp| pp <= r.config.model.layers) {
            for cp in divisors(r.world / tp / pp) {
                let dp = r.world / tp / pp / cp;
                if !r.config.batch.global.is_multiple_of(r.config.batch.micro * dp) {
                    continue;
                }
                for ep in divisors(dp * cp).filter(|&ep| ep <= experts) {
                    for chunks in [1, 2] {
                        for &recompute in ways {
                            let sizes = GridSizes { tp, cp, pp, ep, ..GridSizes::default() };
                            all.extend(layout(r, rules, sizes, chunks, recompute));
                        }
                    }
                }
            }
        }
    }
    all
}

/// The layout, if the run can be spread so.
fn layout(
    r: &Resolved,
    rules: GridRules,
    mut sizes: GridSizes,
    chunks: usize,
    recompute: Recompute,
) -> Option<Layout> {
    let c = &r.config;
    let context = match r.topology.context {
        ContextParallel::Ulysses => ContextParallel::Ulysses,
        _ => ContextParallel::Ring { window: 1 },
    };
    sizes.ulysses = context.ulysses(sizes.cp);
    if chunks > 1 && (sizes.pp == 1 || !c.model.layers.is_multiple_of(chunks * sizes.pp)) {
        return None;
    }
    let layers_per_chunk = (chunks > 1).then(|| c.model.layers / (chunks * sizes.pp));
    // Layers that do not divide: the first stages have one more.
    let (each, more) = (c.model.layers / sizes.pp, c.model.layers % sizes.pp);
    let layer_list = (more > 0).then(|| (0..sizes.pp).map(|s| each + usize::from(s < more)).collect());
    let stages = Stages { pp: sizes.pp, layers_per_chunk, layer_list, ..Stages::default() };
    let grid = Grid::new(r.world, &sizes, rules).ok()?;
    let sequence_parallel = sizes.tp > 1;
    // Rows of the vocabulary that do not divide are filled up.
    let padded_vocab = c.model.padded_vocab.next_multiple_of(sizes.tp);
    let model = ModelConfig { padded_vocab, ..c.model.clone() };
    let dispatcher = r.topology.dispatcher;
    let tokens = (sequence_parallel, dispatcher);
    topology::check(&model, &grid, &stages, &context, tokens, c.seq_length, c.batch.micro).ok()?;
    let order = r.config.order;
    let layer_list = stages.layer_list.clone();
    let config = TrainConfig { model, stages: stages.clone(), order, recompute, ..c.clone() };
    let dp = grid.size(Axis::Dp);
    let topology = Topology {
        ring_cache: r.topology.ring_cache,
        dispatcher,
        overlap_experts: r.topology.overlap_experts,
        listed: grid.clone(),
        grid,
        stages,
        order,
        sequence_parallel,
        context,
        distributed_optimizer: true,
    };
    let run = Resolved { config, topology, data: None, ..r.clone() };
    let placement = Placement::new(&run.config.model, &run.config.stages).ok()?;
    let micro_batches = c.batch.global / (c.batch.micro * dp);
    let (schedule, report) = plan::pipeline(&run, &placement, micro_batches).ok()?;
    let held: Vec<Vec<PlacedParam>> = (0..sizes.pp).map(|s| placement.params(&run.config.model, s)).collect();
    let bytes =
        (0..sizes.pp).map(|stage| plan::stage_bytes(&run, &placement, &held[stage], stage, &schedule));
    let bytes = bytes.collect::<Result<Vec<_>>>().ok()?.into_iter().max()?;
    let sent = plan::communication(&run, &held, micro_batches, c.seq_length * c.batch.micro).ok()?;
    let sent: f64 = sent.as_object()?.values().filter_map(Value::as_f64).sum();
    let again = if recompute == Recompute::None { 1.0 } else { 4.0 / 3.0 };
    let flops = c.flops_per_sample * c.batch.global as f64 / r.world as f64;
    let cost = (again + sent * FLOPS_PER_BYTE / flops.max(1.0)) / (1.0 - report.bubble_fraction).max(1e-3);
    Some(Layout {
        sizes,
        sequence_parallel,
        chunks,
        layer_list,
        recompute,
        dp,
        bytes,
        bubble: report.bubble_fraction,
        sent,
        cost,
    })
}

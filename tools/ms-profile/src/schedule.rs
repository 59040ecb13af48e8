//! `ms-profile schedule`: draws a pipeline schedule.

use crate::cli;
use anyhow::{Result, anyhow};
use ms_cli::{Usage, refuse};
use ms_dist::schedule::{Action, Report, Schedule};
use ms_spec::{ModelConfig, Placement, Stages};
use ms_trainer::PipelineOrder;
use serde_json::json;
use std::fmt::Write as _;
use std::io::Write as _;

/// Passes of micro-batches through chunks that are drawn at most.
const MOST: usize = 1 << 18;

/// Prints the schedule.
///
/// # Errors
/// If there is no schedule for these numbers.
pub(crate) fn run(args: &cli::Schedule, as_json: bool) -> Result<()> {
    let (schedule, report) = make(args)?;
    let kept = args.recompute_in_bubble.then(|| kept_whole(&schedule));
    let mut out = std::io::stdout().lock();
    if as_json {
        let found = json!({
            "stages": schedule.stages.len(),
            "micro_batches": schedule.micro_batches,
            "bubble_fraction": report.bubble_fraction,
            "makespan": report.makespan,
            "max_in_flight": report.max_in_flight,
            "orders": (0..schedule.stages.len()).map(|s| schedule.text(s)).collect::<Vec<_>>(),
            "spans": report.spans,
        });
        let mut found = found;
        if let Some(kept) = kept {
            found["max_kept_whole"] = json!(kept);
        }
        writeln!(out, "{found}")?;
        return Ok(());
    }
    let columns = std::env::var(ms_cli::env_vars::COLUMNS).ok().and_then(|c| c.parse().ok());
    let width = args.width.map(|w| w as usize).or(columns).unwrap_or(120).max(20);
    out.write_all(draw(&schedule, &report, (width, args.num_layer_list.is_some())).as_bytes())?;
    if let Some(kept) = kept {
        let kept: Vec<String> = kept.iter().map(ToString::to_string).collect();
        writeln!(out, "                 {} of them whole, of the others the input", kept.join(" "))?;
    }
    Ok(())
}

/// By stage, the largest number of forward passes with more than their input saved at once, if those beyond the number of
/// chunks of the pipeline are recomputed in the bubble.
fn kept_whole(schedule: &Schedule) -> Vec<usize> {
    let last = schedule.chain.len() - 1;
    let of_stage = |stage: usize| {
        let beyond =
            schedule.recomputed_in_bubble(stage, |chunk| schedule.chain.position(stage, chunk) == last);
        let (mut now, mut most) = (0usize, 0);
        for action in schedule.stages[stage].iter().filter(|a| !beyond.contains(&a.pass())) {
            match action {
                Action::Forward { .. } => now += 1,
                Action::Backward { .. } | Action::BackwardWeight { .. } => now -= 1,
                Action::BackwardInput { .. } => {}
            }
            most = most.max(now);
        }
        most
    };
    (0..schedule.stages.len()).map(of_stage).collect()
}

/// Chunks of a stage.
///
/// # Errors
/// If the layers do not divide into them.
fn chunks(args: &cli::Schedule) -> Result<usize> {
    if let Some(list) = &args.num_layer_list {
        let (pp, found) = (args.pipeline_model_parallel_size as usize, list.len());
        if !found.is_multiple_of(pp) || list.iter().all(|&layers| layers == 0) {
            refuse!(
                "--num-layer-list: expected layers of {pp} stages, or of as many chunks of each, found {found} numbers"
            );
        }
        return Ok(found / pp);
    }
    let (Some(layers), Some(each)) = (args.num_layers, args.num_layers_per_virtual_pipeline_stage) else {
        return Ok(args.num_virtual_stages_per_pipeline_rank as usize);
    };
    let all = args.pipeline_model_parallel_size.saturating_mul(each);
    if all == 0 || !layers.is_multiple_of(all) {
        refuse!(
            "--num-layers-per-virtual-pipeline-stage: expected a number of which {} stages have equal shares of {layers} layers, found \
             {each}",
            args.pipeline_model_parallel_size
        );
    }
    Ok((layers / all) as usize)
}

fn make(args: &cli::Schedule) -> Result<(Schedule, Report)> {
    let pp = args.pipeline_model_parallel_size as usize;
    let dual_pipe = args.schedules_method.as_deref() == Some("dualpipev");
    let asked = chunks(args)?;
    let chunks = if dual_pipe { 2 } else { asked };
    if let (Some(method), 2..) = (&args.schedules_method, asked) {
        let flag = match args.num_layers_per_virtual_pipeline_stage {
            Some(_) => "--num-layers-per-virtual-pipeline-stage",
            None => "--num-virtual-stages-per-pipeline-rank",
        };
        return Err(
            Usage(format!("{flag}: {method} has its own number of chunks; leave the flag out")).into()
        );
    }
    if args.recompute_in_bubble && (asked == 1 || args.schedules_method.is_some()) {
        refuse!("--recompute-in-bubble: expected chunks that take turns, as in upstream");
    }
    let actions = pp.saturating_mul(chunks).saturating_mul(args.micro_batches as usize);
    if actions > MOST {
        refuse!("--micro-batches: expected at most {MOST} passes through chunks in all, found {actions}");
    }
    let stages = Stages {
        pp,
        layers_per_chunk: (chunks > 1 && !dual_pipe).then_some(1),
        dual_pipe,
        ..Stages::default()
    };
    // What the layers are made of does not matter for their order.
    let model = ModelConfig { layers: pp * chunks, ..ModelConfig::default() };
    let placement = Placement::new(&model, &stages)?;
    let group = args.microbatch_group_size_per_vp_stage.map(|n| n as usize);
    let order = match args.schedules_method.as_deref() {
        Some("zero-bubble") => PipelineOrder::ZeroBubble { group },
        Some("dualpipev") => PipelineOrder::DualPipeV,
        _ => PipelineOrder::Plain { group, forwards_first: args.upstream == "v2.0.0" },
    };
    if args.moe_fb_overlap && chunks == 1 && pp > 1 {
        refuse!("--moe-fb-overlap: expected chunks that take turns, or dualpipev, as in upstream");
    }
    let schedule = order
        .schedule(&placement.order(), args.micro_batches as usize, args.moe_fb_overlap)
        .map_err(|e| Usage(format!("--micro-batches {}: {e}", args.micro_batches)))?;
    // The first chunks of all stages come first in the list, then the second ones.
    let layers = |stage: usize, chunk: usize| {
        let listed = args.num_layer_list.as_ref();
        listed.and_then(|list| list.get(chunk * pp + stage)).map_or(1.0, |&layers| f64::from(layers))
    };
    let report =
        schedule.simulate_lengths(layers).map_err(|e| anyhow!("the schedule cannot be executed: {e}"))?;
    Ok((schedule, report))
}

/// A digit of base 36 for a micro-batch.
fn digit(micro: usize) -> char {
    char::from_digit((micro % 36) as u32, 36).unwrap_or('?')
}

fn letter(action: Action) -> char {
    let upper = match action {
        Action::Forward { .. } => 'F',
        Action::Backward { .. } => 'B',
        Action::BackwardInput { .. } => 'I',
        Action::BackwardWeight { .. } => 'W',
    };
    if action.pass().chunk == 0 { upper } else { upper.to_ascii_lowercase() }
}

/// The rows of all stages, folded into lines of at most `width` columns, and the sums.
fn draw(schedule: &Schedule, report: &Report, (width, listed): (usize, bool)) -> String {
    let columns = report.makespan.ceil() as usize;
    let rows: Vec<[Vec<char>; 2]> = schedule
        .stages
        .iter()
        .zip(&report.spans)
        .map(|(actions, spans)| {
            let mut row = [vec![' '; columns], vec!['.'; columns]];
            for (i, (&action, &(begin, end))) in actions.iter().zip(spans).enumerate() {
                // Of passes that go together the first has its third.
                let share = |k: usize| (spans.get(k) == Some(&(begin, end))).then_some((end - begin) / 3.0);
                let (begin, end) = match (i.checked_sub(1).and_then(share), share(i + 1)) {
                    (Some(third), _) => (begin + third, end),
                    (None, Some(third)) => (begin, begin + third),
                    (None, None) => (begin, end),
                };
                for column in begin.round() as usize..(end.round() as usize).min(columns) {
                    row[0][column] = digit(action.pass().micro);
                    row[1][column] = letter(action);
                }
            }
            row
        })
        .collect();
    let label = format!("stage {} ", schedule.stages.len().saturating_sub(1)).len();
    let part = width.saturating_sub(label).max(10);
    let mut text = String::new();
    for start in (0..columns.max(1)).step_by(part) {
        let end = (start + part).min(columns);
        for (stage, [numbers, letters]) in rows.iter().enumerate() {
            for (name, row) in [(format!("stage {stage}"), numbers), (String::new(), letters)] {
                let row: String = row[start..end].iter().collect();
                let _ = writeln!(text, "{name:<label$}{}", row.trim_end());
            }
        }
        text.push('\n');
    }
    let _ =
        writeln!(text, "bubble           {:.1} % of the time of all stages", 100.0 * report.bubble_fraction);
    let of = if listed { "layer" } else { "chunk" };
    let _ = writeln!(text, "length           {} forwards of a {of}", report.makespan);
    let live: Vec<String> = report.max_in_flight.iter().map(ToString::to_string).collect();
    let _ = writeln!(text, "live activations {} passes of a chunk at most, by stage", live.join(" "));
    text
}

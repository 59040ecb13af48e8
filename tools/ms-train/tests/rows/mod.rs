//! Random runs of the parity matrix, drawn as it draws them, as flags of `ms-train`.

mod flags;

use crate::random_topologies::{Draw, MODELS, Run, sizes};
use flags::{MISSING, WAYS, flags};
use ms_core::Rng;
use ms_spec::{Feed, Layer, ModelConfig};
use serde_json::{Map, Value};
use std::collections::BTreeSet;

/// Rows of a global batch: as many micro-batches as any of these schedules needs, on two, three or four ranks.
pub(crate) const GLOBAL: usize = 24;
/// Tokens of a row, which any of these ranks can share.
pub(crate) const LENGTH: usize = 24;
/// Tokens that every drawn model knows.
pub(crate) const TOKENS: i32 = 10;

/// Random draws of each kind of model and number of ranks; those with flags not seen before are run.
const DRAWINGS: usize = 400;

/// `count` runs of all kinds of models in turn and of two, three and four ranks in turn, with their flags, each the drawing that
/// brings most flags which no run before it has, among those that `taken` says the program takes.
pub(crate) fn rows(seed: u64, count: usize, taken: impl Fn(usize, &str) -> bool) -> Vec<(usize, String)> {
    let mut draw = Draw(Rng::named(seed, "rows under MPI"));
    let (mut found, mut seen): (Vec<(usize, String)>, BTreeSet<String>) = (Vec::new(), BTreeSet::new());
    while found.len() < count {
        let (kind, ranks) = (MODELS[found.len() % MODELS.len()], 2 + found.len() % 3);
        let of_ranks: Vec<[usize; 5]> =
            sizes().into_iter().filter(|s| s[..4].iter().product::<usize>() == ranks).collect();
        let drawings = (0..DRAWINGS).filter_map(|variant| {
            let sizes = draw.of(&of_ranks);
            Run::draw(kind, sizes, (seed, DRAWINGS * found.len() + variant + 1)).as_ref().and_then(flags)
        });
        let new = |line: &str| named(line).filter(|name| !seen.contains(*name)).count();
        let mut drawings: Vec<String> = drawings.collect();
        drawings.sort_by_key(|line| std::cmp::Reverse(new(line)));
        let line = drawings.into_iter().find(|line| taken(ranks, line));
        let line = line.unwrap_or_else(|| panic!("no drawing of {kind:?} on {ranks} ranks is taken"));
        seen.extend(named(&line).map(str::to_owned));
        found.push((ranks, line));
    }
    let missing: Vec<_> = WAYS.iter().filter(|way| !seen.contains(**way)).collect();
    println!("flags of no run: {missing:?}");
    // A few runs do not have all of them.
    let few = found.len() <= MODELS.len();
    assert!(few || missing.len() <= MISSING, "{} of {} ways: {missing:?}", missing.len(), WAYS.len());
    found
}

/// The flags of a line.
fn named(line: &str) -> impl Iterator<Item = &str> {
    line.split_whitespace().filter(|word| word.starts_with("--"))
}

/// The model as flags can express it: latent attention rotates adjacent elements, attention with delta nets has gates, these
/// and their states have convolutions of four, with Mamba2 a layer is a mixer or an MLP, sinks come only with a checkpoint,
/// and uniform layers need no list.
fn plain(c: &ModelConfig) -> ModelConfig {
    let mut c = c.clone();
    c.rope.interleaved |= c.mla().is_some();
    c.scores.sinks = false;
    if let Some(delta) = &mut c.gated_delta {
        (delta.conv, c.scores.output_gate) = (4, true);
    }
    if let Some(states) = &mut c.mamba2 {
        states.residual_f32 = true;
        c.pattern.iter_mut().for_each(|layer| layer.feed = Feed::None);
    }
    if c.pattern.iter().all(|layer| *layer == Layer::default()) {
        c.pattern.clear();
    }
    c
}

/// The model in flags of v2.0.0 or, `head`, of newer versions; `None` where no flags say all of it.
fn model(c: &ModelConfig, head: bool) -> Option<String> {
    // Upstream's flags of training: name, programs, versions, number of values, type, name of the value.
    let flags: Vec<Vec<&str>> = include_str!("../../../../crates/ms-cli/src/megatron/flags.tsv")
        .lines()
        .map(|line| line.split('\t').collect())
        .filter(|columns: &Vec<&str>| columns.len() > 5 && columns[1].split(',').any(|p| p == "train"))
        .collect();
    let mut line = Vec::new();
    let mut said = Map::new();
    for (dest, value) in ms_spec::megatron::to_args(c).into_iter().filter(|(_, value)| !value.is_null()) {
        // Another name of the number of modules, whose flag asks for more; what the pattern of a hybrid says.
        if ["num_nextn_predict_layers", "is_hybrid_model"].contains(&dest.as_str()) {
            continue;
        }
        let sets = |columns: &[&str]| {
            columns[5] == dest
                && match &value {
                    Value::Bool(on) => columns[3] == "0" && columns[4] == on.to_string(),
                    _ => columns[3] != "0",
                }
        };
        // Runs of a version take flags of the other, too, where theirs has none.
        let of_version =
            |columns: &&Vec<&str>| ["both", if head { "head" } else { "v2.0.0" }].contains(&columns[2]);
        let fits = || flags.iter().filter(|columns| sets(columns));
        let Some(columns) = fits().find(of_version).or_else(|| fits().next()) else { continue };
        line.push(columns[0].to_owned());
        match &value {
            Value::Bool(_) => {}
            Value::String(text) => line.push(text.clone()),
            Value::Array(items) => line.extend(items.iter().map(Value::to_string)),
            other => line.push(other.to_string()),
        }
        said.insert(dest, value);
    }
    let read = ms_spec::megatron::from_args(&said).ok()?;
    let same = ModelConfig { family: c.family, ..read } == *c;
    same.then(|| line.join(" "))
}

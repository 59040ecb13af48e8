//! Adapter folders of Hugging Face's peft: `adapter_config.json` and `adapter_model.safetensors`.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;

use ms_core::{Region, Shape};
use ms_spec::{ModelConfig, ParamSpec, hf as spec_hf, params};
use serde_json::{Map, Value, json};

use super::hf;
use super::names::{Named, Names};
use crate::adapter::{Adapters, Part};
use crate::checkpoint::{Checkpoint, Form};
use crate::name::{Matrix, Name};
use crate::stored::{Global, Piece};
use crate::{Error, Result};

pub(crate) const CONFIG: &str = "adapter_config.json";
const WEIGHTS: [&str; 2] = ["adapter_model.safetensors", "adapter_model.bin"];
const PREFIX: &str = "base_model.model.";

/// Whether a folder holds an adapter.
pub fn is_adapter(path: &Path) -> bool {
    path.join(CONFIG).is_file()
}

/// Opens an adapter of the model that `config` describes.
///
/// # Errors
/// Damaged files; an adapter of another kind or of modules that the model does not have.
pub fn open(path: &Path, config: &ModelConfig) -> Result<Checkpoint> {
    let settings = hf::read_json(&path.join(CONFIG))?;
    let kind = settings["peft_type"].as_str().unwrap_or("LORA");
    let plain = kind == "LORA"
        && !settings["use_dora"].as_bool().unwrap_or(false)
        && !settings["use_rslora"].as_bool().unwrap_or(false)
        && !settings["fan_in_fan_out"].as_bool().unwrap_or(false);
    if !plain {
        return Err(Error::malformed(
            &path.join(CONFIG),
            format!("an adapter of kind {kind}: only plain LoRA is read"),
        ));
    }
    // A rank or scale of their own for some modules: one for all of them would merge wrong weights.
    for field in ["rank_pattern", "alpha_pattern"] {
        let pattern = &settings[field];
        if !pattern.is_null() && pattern.as_object().is_none_or(|p| !p.is_empty()) {
            return Err(Error::malformed(
                &path.join(CONFIG),
                format!("{field} is not empty: only adapters with one rank and one lora_alpha are read"),
            ));
        }
    }
    let Some(weights) = WEIGHTS.iter().map(|n| path.join(n)).find(|p| p.is_file()) else {
        return Err(Error::folder(path, format!("no {}", WEIGHTS[0])));
    };
    let (file, stored) = hf::read_file(&weights, 0)?;
    if let Some(codes) = stored.iter().find(|s| s.quantised.is_some()) {
        return Err(Error::malformed(
            &weights,
            format!("tensor {}: adapters of codes are not supported", codes.name),
        ));
    }
    let by_name: BTreeMap<&str, usize> =
        stored.iter().enumerate().map(|(i, s)| (s.name.as_str(), i)).collect();
    let mut globals = BTreeMap::new();
    let mut adapters = Adapters::new();
    let mut used = BTreeSet::new();
    let names = Names::new(config);
    let find = |module: &str, matrix: Matrix| {
        let matrix = matrix.word();
        let spellings = [
            format!("{PREFIX}{module}.{matrix}.weight"),
            format!("{PREFIX}{module}.{matrix}.default.weight"),
        ];
        spellings.iter().find_map(|n| by_name.get(n.as_str()).copied())
    };
    for spec in params(config).iter().filter(|s| matches!(s.shape.len(), 2 | 3)) {
        let Ok(mut all) = names.of(spec) else { continue };
        all.retain(|named| is_rows(&named.lens.region));
        let projections = projections_of(&all);
        let apart = projections.len() > 1;
        for (number, rows) in projections.into_iter().enumerate() {
            // One module, or one for each expert of a stack.
            let own = || all.iter().filter(|n| !n.copy && same_rows(&n.lens.region, &rows));
            let found: Vec<_> = own()
                .filter_map(|named| {
                    let module = named.module.as_deref().filter(|_| named.lens.shape.len() == 2)?;
                    Some((named, find(module, Matrix::A)?, find(module, Matrix::B)?))
                })
                .collect();
            let Some(&(_, a, _)) = found.first() else { continue };
            if let Some(lacking) = own().find(|named| found.iter().all(|(n, ..)| n.name != named.name)) {
                let module = lacking.module.as_deref().unwrap_or(&lacking.name);
                return Err(Error::malformed(
                    &weights,
                    format!("no adapter of {module}: expected one of every expert or of none"),
                ));
            }
            let rank = stored[a].shape.first().copied().unwrap_or(0);
            let columns = spec.shape[spec.shape.len() - 1];
            let count: usize = rows.ranges.iter().map(ExactSizeIterator::len).sum();
            let want = [[rank, columns], [count, rank]];
            let names = Matrix::BOTH.map(|m| Name::low_rank(m, &spec.slot, apart.then_some(number)));
            for (n, name) in names.iter().enumerate() {
                let shape = Shape::new(&[&spec.shape[..spec.shape.len() - 2], &want[n][..]].concat());
                let mut pieces = Vec::new();
                for (named, a, b) in &found {
                    let i = [*a, *b][n];
                    let s = &stored[i];
                    if s.shape != want[n] || named.lens.transposed || rank == 0 {
                        let (name, want, got) = (s.name.clone(), want[n].to_vec(), s.shape.clone());
                        return Err(Error::Shape { path: weights.clone(), name, want, got });
                    }
                    let region = of_expert(&shape, named.lens.region.lead.clone(), None);
                    // In a stack, the stride from one expert to the next is never used.
                    let view = s.strides.clone().map(|s| [&vec![0; shape.len() - 2][..], &s[..]].concat());
                    pieces.push(Piece { stored: i, region, flat: None, view });
                    used.insert(i);
                }
                let dtype = stored[pieces[0].stored].dtype;
                globals.insert(name.clone(), Global { shape, dtype, pieces });
            }
            let [a, b] = names;
            adapters.entry(spec.slot).or_default().push(Part { a, b, rows });
        }
    }
    if let Some((_, left)) = stored.iter().enumerate().find(|(i, _)| !used.contains(i)) {
        let left = &left.name;
        return Err(Error::malformed(&weights, format!("tensor {left}: the model has no such module")));
    }
    let mut args = Map::new();
    for (name, key) in [("lora_r", "r"), ("lora_alpha", "lora_alpha")] {
        args.insert(name.to_owned(), settings[key].clone());
    }
    Ok(Checkpoint {
        root: path.to_owned(),
        form: Form::Peft,
        config: config.clone(),
        config_json: None,
        files: vec![file],
        stored,
        globals,
        iteration: 0,
        args,
        state: Value::Null,
        via: None,
        adapters,
        copies: Vec::new(),
        torn: None,
        merge: None,
    })
}

/// A tensor of an adapter folder: its name, the global it comes from, and which part of it.
pub(crate) struct PeftTensor {
    pub(crate) name: String,
    pub(crate) global: Name,
    pub(crate) region: Region,
    /// Dimensions in the file: two, also of one expert of a stack.
    pub(crate) shape: Vec<usize>,
}

/// The tensors that an adapter has in Hugging Face's names, and the modules they belong to.
///
/// If a parameter is several projections there, `A` is written once for each and the rows of `B` are divided. Each stacked
/// expert has its own adapter, as in MindSpeed-LLM's `convert_mg2hf.py` (2026), `set_model_layer_mlp_lora`.
///
/// # Errors
/// An adapter of a part of the model without a Hugging Face name, or of experts that are one tensor there.
pub(crate) fn tensors(source: &Checkpoint) -> Result<(Vec<PeftTensor>, Vec<String>)> {
    let config = source.config();
    let names = Names::new(config);
    let (mut all, mut modules) = (Vec::new(), Vec::new());
    for spec in params(config) {
        let Some(parts) = source.adapters.get(&spec.slot) else { continue };
        let projections = projections(config, &spec)?;
        if parts.iter().any(|p| !p.rows.is_whole() && !projections.contains(&p.rows)) {
            return Err(Error::Cut(format!("an adapter of {} covers rows of no projection", spec.name)));
        }
        for named in names.of(&spec)?.into_iter().filter(|n| !n.copy) {
            let plain = named.lens.shape.len() == 2 && !named.lens.transposed && is_rows(&named.lens.region);
            let module = named.module.filter(|_| plain);
            let module = module.ok_or_else(|| {
                Error::Cut(format!("the adapter of {} has no form in a peft folder", spec.name))
            })?;
            let Region { ranges, lead, .. } = &named.lens.region;
            let same = parts.iter().find(|p| same_rows(&p.rows, &named.lens.region));
            let whole = parts.iter().find(|p| p.rows.is_whole());
            // A projection may have no adapter where others of the same parameter have one.
            let Some(part) = same.or(whole) else { continue };
            let (a, b) = (source.global(&part.a)?.shape, source.global(&part.b)?.shape);
            let b_rows = same.is_none().then(|| ranges.clone());
            for (matrix, global, region) in [
                (Matrix::A, &part.a, of_expert(&a, lead.clone(), None)),
                (Matrix::B, &part.b, of_expert(&b, lead.clone(), b_rows)),
            ] {
                let shape = region.local_shape();
                let shape = shape[shape.len() - 2..].to_vec();
                let name = format!("{PREFIX}{module}.{}.weight", matrix.word());
                all.push(PeftTensor { name, global: global.clone(), region, shape });
            }
            // What peft finds the module by: the last word of its name.
            let word = module.rsplit('.').next().unwrap_or(&module).to_owned();
            if !modules.contains(&word) {
                modules.push(word);
            }
        }
    }
    all.sort_by(|x, y| x.name.cmp(&y.name));
    modules.sort();
    Ok((all, modules))
}

/// `rows` of a matrix of an adapter, all of them where nothing is said; of a stack, of one expert.
fn of_expert(shape: &Shape, expert: Option<Range<usize>>, rows: Option<Vec<Range<usize>>>) -> Region {
    let dim = shape.len() - 2;
    let rows = rows.unwrap_or_else(|| std::iter::once(0..shape[dim]).collect());
    Region { lead: expert.filter(|_| dim > 0), ..Region::along(shape, dim, rows) }
}

/// Whether it is rows of a matrix that a region picks, not columns.
fn is_rows(region: &Region) -> bool {
    region.dim + 2 == region.shape.len()
}

/// Whether two regions are of the same rows, of whatever expert.
fn same_rows(a: &Region, b: &Region) -> bool {
    (a.dim, &a.ranges) == (b.dim, &b.ranges)
}

/// The rows of a parameter that each of its Hugging Face projections has, in their order; all of them if it is one. Of stacked
/// experts, rows of every expert.
///
/// # Errors
/// [`Error::NoName`].
pub(crate) fn projections(config: &ModelConfig, spec: &ParamSpec) -> Result<Vec<Region>> {
    Ok(projections_of(&Names::new(config).of(spec)?))
}

fn projections_of(names: &[Named]) -> Vec<Region> {
    let mut all: Vec<Region> = Vec::new();
    for named in names.iter().filter(|n| !n.copy) {
        let region = &named.lens.region;
        if !all.iter().any(|seen| same_rows(seen, region)) {
            all.push(Region { lead: None, ..region.clone() });
        }
    }
    all
}

/// The settings file of an adapter.
pub(crate) fn settings(config: &ModelConfig, rank: usize, alpha: f64, modules: &[String]) -> Value {
    let base = spec_hf::write_config(config, spec_hf::Dialect::V4).ok();
    let alpha = if alpha.fract() == 0.0 { json!(alpha as i64) } else { json!(alpha) };
    json!({
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": alpha, "lora_dropout": 0.0,
        "bias": "none", "fan_in_fan_out": false, "inference_mode": true, "init_lora_weights": true,
        "modules_to_save": null, "target_modules": modules, "base_model_name_or_path": null,
        "base_model_class": base.and_then(|b| b["architectures"][0].as_str().map(str::to_owned))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_of_ranks_and_scales_are_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let message = |more: Value| {
            let mut json = json!({"peft_type": "LORA", "r": 4, "lora_alpha": 8});
            json.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            std::fs::write(dir.path().join(CONFIG), json.to_string()).unwrap();
            open(dir.path(), &ModelConfig::default()).err().unwrap().to_string()
        };
        assert!(message(json!({"alpha_pattern": {"q_proj": 16}})).contains("alpha_pattern is not empty"));
        assert!(message(json!({"rank_pattern": {"q_proj": 16}})).contains("rank_pattern is not empty"));
        let plain = message(json!({"alpha_pattern": {}, "rank_pattern": null}));
        assert!(plain.contains("no adapter_model.safetensors"), "{plain}");
    }
}

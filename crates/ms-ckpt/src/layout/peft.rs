//! Adapter folders of Hugging Face's peft: `adapter_config.json` and `adapter_model.safetensors`.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;

use ms_core::{Region, Shape};
use ms_spec::{ModelConfig, ParamSpec, hf as spec_hf, params};
use serde_json::{Value, json};

use super::hf;
use super::names::{Named, Names};
use crate::adapter::{Adapters, MOST_RANK, Part};
use crate::checkpoint::{Checkpoint, Form};
use crate::name::{Matrix, Name};
use crate::stored::{Global, Piece, Stored};
use crate::{Error, Result};

pub(crate) const CONFIG: &str = "adapter_config.json";
const WEIGHTS: [&str; 2] = ["adapter_model.safetensors", "adapter_model.bin"];
const PREFIX: &str = "base_model.model.";

/// Whether a folder holds an adapter.
pub fn is_adapter(path: &Path) -> bool {
    path.join(CONFIG).is_file()
}

/// Settings of peft's `LoraConfig` (0.5 to 0.21) that change nothing of `W + alpha / r * B A`: about training, which modules the
/// tensors belong to, and where the base model came from.
const HARMLESS: [&str; 25] = [
    "auto_mapping",
    "base_model_class",
    "base_model_name_or_path",
    "corda_config",
    "ensure_weight_tying",
    "eva_config",
    "exclude_modules",
    "inference_mode",
    "layers_pattern",
    "layers_to_transform",
    "loftq_config",
    "lora_alpha",
    "lora_dropout",
    "lora_ga_config",
    "megatron_config",
    "megatron_core",
    "merge_weights",
    "peft_version",
    "qalora_group_size",
    "r",
    "revision",
    "runtime_config",
    "target_modules",
    "task_type",
    "velora_config",
];

/// Initial weights that leave the base weights as they are. PiSSA, OLoRA, CorDA, LoftQ and LoRA-GA change them.
const INITIAL: [&str; 4] = ["gaussian", "eva", "orthogonal", "mica"];

/// Opens an adapter of the model that `config` describes.
///
/// # Errors
/// Damaged files; an adapter that does not merge as plain LoRA, or of modules that the model does not have.
pub fn open(path: &Path, config: &ModelConfig) -> Result<Checkpoint> {
    let settings = read_settings(&path.join(CONFIG))?;
    let Some(weights) = WEIGHTS.iter().map(|n| path.join(n)).find(|p| p.is_file()) else {
        return Err(Error::folder(path, format!("no {}", WEIGHTS[0])));
    };
    let (file, stored) = hf::read_file(&weights, 0)?;
    if let Some(codes) = stored.iter().find(|s| s.quantised.is_some()) {
        return Err(Error::malformed(
            &weights,
            format!("tensor {}: quantised adapters are not supported", codes.name),
        ));
    }
    let tensors = Tensors::new(&weights, &stored, settings["r"].as_u64());
    let (mut globals, mut adapters) = (BTreeMap::new(), Adapters::new());
    let names = Names::new(config);
    for spec in params(config).iter().filter(|s| matches!(s.shape.len(), 2 | 3)) {
        let Ok(mut all) = names.of(spec) else { continue };
        all.retain(|named| is_rows(&named.lens.region));
        let projections = projections_of(&all);
        let apart = projections.len() > 1;
        for (number, rows) in projections.into_iter().enumerate() {
            // One module, or one for each expert of a stack.
            let own: Vec<&Named> =
                all.iter().filter(|n| !n.copy && same_rows(&n.lens.region, &rows)).collect();
            let pairs = tensors.pairs(&own)?;
            if pairs.is_empty() {
                continue;
            }
            let [a, b] = Matrix::BOTH.map(|m| Name::low_rank(m, &spec.slot, apart.then_some(number)));
            let [of_a, of_b] = tensors.globals(spec, &rows, &pairs)?;
            globals.insert(a.clone(), of_a);
            globals.insert(b.clone(), of_b);
            adapters.entry(spec.slot).or_default().push(Part { a, b, rows });
        }
    }
    let used: BTreeSet<usize> = globals.values().flat_map(|g| &g.pieces).map(|p| p.stored).collect();
    if let Some((_, left)) = stored.iter().enumerate().find(|(i, _)| !used.contains(i)) {
        let left = &left.name;
        return Err(Error::malformed(&weights, format!("tensor {left}: the model has no such module")));
    }
    let args = [("lora_r", "r"), ("lora_alpha", "lora_alpha")];
    Ok(Checkpoint {
        files: vec![file],
        stored,
        globals,
        args: args.map(|(name, key)| (name.to_owned(), settings[key].clone())).into_iter().collect(),
        adapters,
        ..Checkpoint::empty(path, Form::Peft, config.clone())
    })
}

/// The settings of an adapter that merges as plain LoRA. A setting that is not known to be harmless is refused by its name.
fn read_settings(file: &Path) -> Result<Value> {
    let settings = hf::read_json(file)?;
    let Some(fields) = settings.as_object() else {
        return Err(Error::malformed(file, "expected an object"));
    };
    for (name, value) in fields {
        let plain = match name.as_str() {
            "peft_type" => value.is_null() || value == "LORA",
            "bias" => value.is_null() || value == "none",
            "init_lora_weights" => match value.as_str() {
                Some(word) => INITIAL.iter().any(|known| word.eq_ignore_ascii_case(known)),
                None => value.is_null() || value.is_boolean(),
            },
            name => HARMLESS.contains(&name) || is_off(value),
        };
        if !plain {
            let what = match value {
                Value::Array(_) | Value::Object(_) => "not empty".to_owned(),
                value => value.to_string(),
            };
            return Err(Error::malformed(
                file,
                format!(
                    "{name} is {what}: only plain LoRA is supported, W + lora_alpha / r * B A with one rank and scale"
                ),
            ));
        }
    }
    if settings["r"].is_null() || settings["r"].as_u64().is_some_and(|r| r > 0) {
        return Ok(settings);
    }
    Err(Error::malformed(file, format!("r: expected a whole number above 0, found {}", settings["r"])))
}

/// Whether the value of a setting says that it is not used.
fn is_off(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}

/// A module's name, and which of the stored tensors are its A and B.
struct Pair<'a> {
    named: &'a Named,
    stored: [usize; 2],
}

/// The tensors of an adapter's file.
struct Tensors<'a> {
    weights: &'a Path,
    stored: &'a [Stored],
    by_name: BTreeMap<&'a str, usize>,
    /// The rank that the settings give.
    rank: Option<u64>,
}

impl<'a> Tensors<'a> {
    fn new(weights: &'a Path, stored: &'a [Stored], rank: Option<u64>) -> Self {
        let by_name = stored.iter().enumerate().map(|(i, s)| (s.name.as_str(), i)).collect();
        Self { weights, stored, by_name, rank }
    }

    /// Which tensor is a matrix of a module.
    fn find(&self, module: &str, matrix: Matrix) -> Option<usize> {
        let matrix = matrix.word();
        let spellings = [
            format!("{PREFIX}{module}.{matrix}.weight"),
            format!("{PREFIX}{module}.{matrix}.default.weight"),
        ];
        spellings.iter().find_map(|n| self.by_name.get(n.as_str()).copied())
    }

    /// The adapters of modules that are one parameter together: of all, or of none.
    fn pairs<'n>(&self, own: &[&'n Named]) -> Result<Vec<Pair<'n>>> {
        let pair = |named: &'n Named| {
            let module = named.module.as_deref().filter(|_| named.lens.shape.len() == 2)?;
            let stored = [self.find(module, Matrix::A)?, self.find(module, Matrix::B)?];
            Some(Pair { named, stored })
        };
        let pairs: Vec<Pair> = own.iter().filter_map(|named| pair(named)).collect();
        let lacking = own.iter().find(|named| pairs.iter().all(|pair| pair.named.name != named.name));
        match lacking.filter(|_| !pairs.is_empty()) {
            None => Ok(pairs),
            Some(lacking) => {
                let module = lacking.module.as_deref().unwrap_or(&lacking.name);
                let what = format!("no adapter of {module}: expected one of every expert or of none");
                Err(Error::malformed(self.weights, what))
            }
        }
    }

    /// The A and the B of `rows` of a parameter, put together of the adapters of its modules.
    fn globals(&self, spec: &ParamSpec, rows: &Region, pairs: &[Pair]) -> Result<[Global; 2]> {
        let (lead, columns) = (&spec.shape[..spec.shape.len() - 2], spec.shape[spec.shape.len() - 1]);
        let count: usize = rows.ranges.iter().map(ExactSizeIterator::len).sum();
        let first = &self.stored[pairs[0].stored[0]];
        let rank = first.shape.first().copied().unwrap_or(0);
        if self.rank.is_some_and(|r| r != rank as u64) {
            let r = self.rank.unwrap_or_default();
            let what = format!("tensor {} has rank {rank}, but {CONFIG} says r {r}", first.name);
            return Err(Error::malformed(self.weights, what));
        }
        if !(1..=MOST_RANK).contains(&rank) {
            let what = format!("tensor {}: expected a rank of 1 to {MOST_RANK}, found {rank}", first.name);
            return Err(Error::malformed(self.weights, what));
        }
        let global = |n: usize, want: [usize; 2]| {
            let shape = Shape::new(&[lead, &want].concat());
            let mut pieces = Vec::new();
            for Pair { named, stored } in pairs {
                let s = &self.stored[stored[n]];
                if s.shape != want || named.lens.transposed {
                    let (name, want, got) = (s.name.clone(), want.to_vec(), s.shape.clone());
                    return Err(Error::Shape { path: self.weights.to_owned(), name, want, got });
                }
                let region = of_expert(&shape, named.lens.region.lead.clone(), None);
                // Of a stack, the stride from one expert to the next is never used.
                let view = s.strides.clone().map(|s| [&vec![0; lead.len()][..], &s[..]].concat());
                pieces.push(Piece { stored: stored[n], region, flat: None, view });
            }
            Ok(Global { shape, dtype: self.stored[pieces[0].stored].dtype, pieces })
        };
        Ok([global(0, [rank, columns])?, global(1, [count, rank])?])
    }
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
    fn what_does_not_merge_as_plain_lora_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let message = |more: Value| {
            let mut json = json!({"peft_type": "LORA", "r": 4, "lora_alpha": 8});
            json.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            std::fs::write(dir.path().join(CONFIG), json.to_string()).unwrap();
            open(dir.path(), &ModelConfig::default()).err().unwrap().to_string()
        };
        for (field, value, what) in [
            ("alpha_pattern", json!({"q_proj": 16}), "not empty"),
            ("rank_pattern", json!({"q_proj": 16}), "not empty"),
            ("peft_type", json!("ADALORA"), "\"ADALORA\""),
            ("use_dora", json!(true), "true"),
            ("use_rslora", json!(true), "true"),
            ("fan_in_fan_out", json!(true), "true"),
            ("use_qalora", json!(true), "true"),
            ("bias", json!("lora_only"), "\"lora_only\""),
            ("lora_bias", json!(true), "true"),
            ("init_lora_weights", json!("pissa_niter_16"), "\"pissa_niter_16\""),
            ("init_lora_weights", json!("olora"), "\"olora\""),
            ("init_lora_weights", json!("loftq"), "\"loftq\""),
            ("alora_invocation_tokens", json!([1, 2]), "not empty"),
            ("kasa_config", json!({"beta": 0.1}), "not empty"),
            ("layer_replication", json!([[0, 4], [2, 5]]), "not empty"),
            ("modules_to_save", json!(["lm_head"]), "not empty"),
            ("trainable_token_indices", json!([7]), "not empty"),
            ("a_setting_of_tomorrow", json!(1.5), "1.5"),
        ] {
            let refused = message(json!({ field: value }));
            assert!(refused.contains(&format!("{field} is {what}: only plain LoRA")), "{refused}");
        }
        assert!(message(json!({"r": 1.5})).contains("r: expected a whole number above 0, found 1.5"));
        let plain = message(json!({
            "alpha_pattern": {}, "rank_pattern": null, "bias": "none", "init_lora_weights": "gaussian", "lora_dropout": 0.1,
            "use_dora": false, "use_qalora": false, "qalora_group_size": 16, "alora_invocation_tokens": null,
            "megatron_core": "megatron.core", "loftq_config": {}, "modules_to_save": [], "peft_version": "0.21.2",
            "task_type": "CAUSAL_LM", "target_modules": ["o_proj"], "inference_mode": true, "layers_to_transform": [1],
            "auto_mapping": {"base_model_class": "X"}, "revision": "main", "runtime_config": {"ephemeral_gpu_offload": false}
        }));
        assert!(plain.contains("no adapter_model.safetensors"), "{plain}");
    }

    #[test]
    fn a_rank_beyond_all_bounds_is_refused() {
        let tensor = |shape: [usize; 2]| Stored::zeros("a".to_owned(), ms_core::DType::F32, shape.to_vec());
        let config = ModelConfig { heads: 2, groups: 1, head_dim: 8, ..ModelConfig::tiny() };
        let specs = params(&config);
        let spec = specs.iter().find(|spec| spec.name.ends_with("linear_proj.weight")).unwrap();
        let named = Names::new(&config).of(spec).unwrap();
        let [rows, columns] = spec.shape[..] else { panic!("{}", spec.shape) };
        let globals = |rank: usize| {
            let stored = [tensor([rank, columns]), tensor([rows, rank])];
            let tensors = Tensors::new(Path::new("a.bin"), &stored, None);
            let pairs = [Pair { named: &named[0], stored: [0, 1] }];
            tensors.globals(spec, &Region::whole(&spec.shape), &pairs).map(drop).map_err(|e| e.to_string())
        };
        assert_eq!(globals(3), Ok(()));
        for rank in [0, 1 << 20] {
            let refused = globals(rank).unwrap_err();
            assert!(refused.contains(&format!("expected a rank of 1 to 65536, found {rank}")), "{refused}");
        }
    }
}

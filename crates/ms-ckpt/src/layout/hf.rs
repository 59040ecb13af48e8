//! Hugging Face folders: `config.json` and safetensors, one file or several with an index; `pytorch_model*.bin` is read too.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use ms_core::DType;
use ms_spec::{ModelConfig, ParamSpec, Part, Role, Slot, hf, params};
use serde_json::Value;

use super::names::{Named, Names};
use super::number::number_in;
use crate::checkpoint::{Checkpoint, Form};
use crate::name::Name;
use crate::stored::{Codes, Global, Piece, Stored};
use crate::torch::{Node, TensorView, TorchFile};
use crate::{Error, Mapped, Result, fp8, safetensors};

/// Name of the file that says which tensor is in which file.
pub const INDEX: &str = "model.safetensors.index.json";
/// Name of the file when there is only one.
pub const SINGLE: &str = "model.safetensors";
const CONFIG: &str = "config.json";

/// PyTorch's files, which are read only.
const BIN_INDEX: &str = "pytorch_model.bin.index.json";

pub(crate) fn is_folder(path: &Path) -> bool {
    path.join(CONFIG).is_file() && !files_of(path).is_ok_and(|files| files.is_empty())
}

/// Safetensors files of a folder, in the order of names.
fn weight_files(path: &Path) -> Vec<String> {
    named(path, ".safetensors", "model")
}

/// Files with an ending, in the order of names; those with the usual beginning, if there are some.
fn named(path: &Path, ending: &str, usual: &str) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(path) else { return Vec::new() };
    let names = entries.filter_map(|e| e.ok()?.file_name().into_string().ok());
    let mut files: Vec<String> = names.filter(|n| n.ends_with(ending) && !n.starts_with('.')).collect();
    files.sort();
    if files.iter().any(|f| f.starts_with(usual)) {
        files.retain(|f| f.starts_with(usual));
    }
    files
}

pub(crate) fn read_json(path: &Path) -> Result<Value> {
    let text = std::fs::read_to_string(path).map_err(Error::io(path, "read"))?;
    hf::parse_json(&text).map_err(Error::spec(path))
}

/// The files that hold tensors: those of the index, or all of them. Safetensors before PyTorch's.
pub(crate) fn files_of(path: &Path) -> Result<Vec<String>> {
    let Some(index) = [INDEX, BIN_INDEX].iter().map(|n| path.join(n)).find(|p| p.is_file()) else {
        let (files, bins) = (weight_files(path), named(path, ".bin", "pytorch_model"));
        let usual = |files: &[String], start: &str| files.first().is_some_and(|f| f.starts_with(start));
        // If the weights are in PyTorch's files, safetensors with other names may be anything.
        let bin = !usual(&files, "model") && (files.is_empty() || usual(&bins, "pytorch_model"));
        return Ok(if bin { bins } else { files });
    };
    let json = read_json(&index)?;
    let map = json["weight_map"].as_object().ok_or_else(|| Error::malformed(&index, "no weight_map"))?;
    let mut files = Vec::new();
    for (tensor, file) in map {
        // A name with a path in it could point anywhere.
        let plain = file.as_str().filter(|f| !f.contains(['/', '\\']) && *f != "..");
        let file = plain
            .ok_or_else(|| Error::malformed(&index, format!("tensor {tensor}: {file} is not a file name")))?;
        files.push(file.to_owned());
    }
    files.sort();
    files.dedup();
    Ok(files)
}

/// What lies in a weight file.
pub(super) fn read_file(path: &Path, file: usize) -> Result<(Mapped, Vec<Stored>)> {
    let mut stored = Vec::new();
    if path.extension().is_some_and(|e| e == "safetensors") {
        let mapped = Mapped::open(path)?;
        for t in safetensors::read_header(&mapped)?.tensors {
            // Codes stand for bfloat16; the caller finds their scales.
            let codes = (t.dtype == fp8::CODES).then(|| Arc::new(Codes::Unscaled));
            let dtype =
                safetensors::dtype(&t.dtype).or(codes.is_some().then_some(DType::Bf16)).ok_or_else(|| {
                    Error::malformed(path, format!("tensor {}: dtype {} is not supported", t.name, t.dtype))
                })?;
            let view = TensorView { dtype, shape: t.shape, start: t.start, strides: None };
            stored.push(Stored { quantised: codes, ..Stored::of(t.name, file, view) });
        }
        return Ok((mapped, stored));
    }
    let torch = TorchFile::open(path)?;
    let Node::Dict(entries) = torch.root() else {
        return Err(Error::malformed(path, "the saved object is not a dictionary of tensors"));
    };
    for (name, node) in entries {
        let Node::Tensor(tensor) = node else { continue };
        stored.push(Stored::of(name, file, torch.view(name, tensor)?));
    }
    Ok((torch.into_file(), stored))
}

pub(crate) fn open(path: &Path) -> Result<Checkpoint> {
    let config_path = path.join(CONFIG);
    let config_json = read_json(&config_path)?;
    let mut config = hf::read_config(&config_json).map_err(Error::spec(&config_path))?;
    let mut files = Vec::new();
    let mut stored: Vec<Stored> = Vec::new();
    let mut by_name = BTreeMap::new();
    for name in files_of(path)? {
        let (file, tensors) = read_file(&path.join(name), files.len())?;
        for t in tensors {
            if by_name.insert(t.name.clone(), stored.len()).is_some() {
                return Err(Error::malformed(
                    file.path(),
                    format!("tensor {} is in another file too", t.name),
                ));
            }
            stored.push(t);
        }
        files.push(file);
    }
    for (i, t) in stored.iter().enumerate() {
        if let Some(usual) = config.family.usual(&t.name) {
            by_name.entry(usual).or_insert(i);
        }
    }
    super::mxfp4_factors::pair(&files, &mut stored, &mut by_name)?;
    super::fp8_scales::pair(path, &config_json, &files, &mut stored, &mut by_name)?;
    drop_surplus_rows(&config, &by_name, &mut stored);
    super::tied::settle(path, &mut config, &files, &stored, &mut by_name)?;
    take_rows(path, &mut config, &by_name, &stored)?;
    take_predictions(&mut config, &by_name);
    config.reward = is_reward(&config, &by_name)?;
    let globals = assemble(path, &config, &files, &mut stored, &by_name)?;
    report_unused(path, &config, &stored, &by_name, &globals);
    Ok(Checkpoint {
        config_json: Some(config_json),
        files,
        stored,
        globals,
        ..Checkpoint::empty(path, Form::Hf, config)
    })
}

/// Where a class gives the embedding more rows than the vocabulary has, and the output layer as many: rows that stand for no
/// token are left out.
fn drop_surplus_rows(config: &ModelConfig, by_name: &BTreeMap<String, usize>, stored: &mut [Stored]) {
    let place = |slot: &str| by_name.get(config.family.pattern(slot)?).copied();
    let (Some(embedding), Some(head), false) = (place("embed.surplus"), place("head"), config.tied) else {
        return;
    };
    let fits = stored[head].shape.first() == Some(&config.vocab);
    if let (true, Some(rows)) = (fits, stored[embedding].shape.first_mut()) {
        *rows = config.vocab.min(*rows);
    }
}

/// Takes sizes from the embedding: a model resized after training may have more rows than the configuration says.
fn take_rows(
    path: &Path,
    config: &mut ModelConfig,
    by_name: &BTreeMap<String, usize>,
    stored: &[Stored],
) -> Result<()> {
    let embedding = params(config).swap_remove(0);
    let name = Names::new(config).of(&embedding)?.swap_remove(0).name;
    let Some(found) = by_name.get(&name).map(|&i| &stored[i]) else { return Ok(()) };
    let Some(&rows) = found.shape.first() else { return Ok(()) };
    config.padded_vocab = rows.max(config.vocab);
    if rows < config.vocab {
        let (want, got) = (vec![config.vocab, config.hidden], found.shape.clone());
        return Err(Error::Shape { path: path.to_owned(), name, want, got });
    }
    Ok(())
}

/// Whether a folder holds a reward model, whatever the class in the configuration is called: a score stands in the place
/// of the output layer.
fn is_reward(config: &ModelConfig, by_name: &BTreeMap<String, usize>) -> Result<bool> {
    if !by_name.contains_key("score.weight") {
        return Ok(false);
    }
    let head = params(config).into_iter().find(|s| s.slot.is(Part::Output, Role::Own));
    let head = head.map(|spec| Names::new(config).of(&spec)).transpose()?;
    Ok(!head.is_some_and(|names| names.iter().any(|n| by_name.contains_key(&n.name))))
}

/// Prediction layers are there or not, whatever the configuration says: transformers writes their number but not them, and
/// a class whose one module has a name without a number (Qwen3-Next's) has no field for it.
fn take_predictions(config: &mut ModelConfig, by_name: &BTreeMap<String, usize>) {
    let scheme = config.family;
    let mark = scheme.pattern("mtp.eh_proj").or_else(|| scheme.pattern("mtp.norm")).unwrap_or("");
    if !mark.is_empty() && !mark.contains('{') {
        config.mtp = usize::from(by_name.contains_key(mark));
    } else if mark.contains("{K}") {
        let there = |k: &usize| by_name.contains_key(&mark.replace("{K}", &k.to_string()));
        config.mtp = (0..config.mtp).take_while(there).count();
    } else if config.mtp > 0 {
        // They stand after the last layer, under numbers that go on.
        let before = mark.split_once("{L}").map_or("", |(before, _)| before);
        let number = |name: &String| number_in(name, before).filter(|_| !before.is_empty());
        let layers = by_name.keys().filter_map(number).max().map_or(0, |last| last.saturating_add(1));
        config.mtp = config.mtp.min(layers.saturating_sub(config.layers));
    }
}

fn assemble(
    path: &Path,
    config: &ModelConfig,
    files: &[Mapped],
    stored: &mut Vec<Stored>,
    by_name: &BTreeMap<String, usize>,
) -> Result<BTreeMap<Name, Global>> {
    let names = Names::new(config);
    let mut globals = BTreeMap::new();
    for spec in params(config) {
        let mut pieces = Vec::new();
        let mut dtype = None;
        let (all, copies): (Vec<Named>, Vec<Named>) = names.of(&spec)?.into_iter().partition(|n| !n.copy);
        let (all, absent): (Vec<Named>, Vec<Named>) = all.into_iter().partition(|n| !n.absent);
        for named in all {
            // A tensor may only be there under the name of one of its copies.
            let found = std::iter::once(&named.name).chain(copies.iter().map(|c| &c.name));
            let found = found.filter_map(|n| by_name.get(n)).next();
            let &i =
                found.ok_or_else(|| Error::Missing { path: path.to_owned(), name: named.name.clone() })?;
            if stored[i].shape != named.lens.shape {
                return Err(Error::Shape {
                    path: files[stored[i].file].path().to_owned(),
                    name: named.name,
                    want: named.lens.shape,
                    got: stored[i].shape.clone(),
                });
            }
            dtype = Some(dtype.map_or(stored[i].dtype, |other| common(other, stored[i].dtype)));
            let turned = |codes: &Codes| matches!(codes, Codes::Factored(_));
            if stored[i].quantised.as_deref().is_some_and(|codes| turned(codes) != named.lens.transposed) {
                let what = format!("tensor {}: codes of a turned matrix are not supported", named.name);
                return Err(Error::malformed(files[stored[i].file].path(), what));
            }
            let view = named.lens.view(stored[i].strides.as_deref());
            let view = view.map_err(|what| Error::malformed(files[stored[i].file].path(), what))?;
            pieces.push(Piece { stored: i, region: named.lens.region, flat: None, view });
        }
        // A reward model lacks some.
        let Some(dtype) = dtype else { continue };
        for Named { name, lens, .. } in absent {
            pieces.push(Piece { stored: stored.len(), region: lens.region, flat: None, view: None });
            stored.push(Stored::zeros(name, dtype, lens.shape));
        }
        globals.insert(Name::weight(&spec.slot), Global { shape: spec.shape, dtype, pieces });
    }
    Ok(globals)
}

/// The type in which parts of two types stand in one tensor: that which has all numbers of both.
fn common(a: DType, b: DType) -> DType {
    match (a.is_float() && b.is_float(), a == b) {
        (true, false) if [a, b].contains(&DType::F64) => DType::F64,
        (true, false) => DType::F32,
        _ => a,
    }
}

/// Says which tensors of the folder are not part of the model.
fn report_unused(
    path: &Path,
    config: &ModelConfig,
    stored: &[Stored],
    by_name: &BTreeMap<String, usize>,
    globals: &BTreeMap<Name, Global>,
) {
    let used: BTreeSet<usize> = globals.values().flat_map(|g| g.pieces.iter().map(|p| p.stored)).collect();
    let again: BTreeSet<String> = tensors(config).map_or_else(
        |_| BTreeSet::new(),
        |all| all.into_iter().filter(|t| t.named.copy).map(|t| t.named.name).collect(),
    );
    // A tensor that is spelt otherwise has two names in the list.
    let left: BTreeSet<&str> = by_name
        .iter()
        .filter(|&(name, i)| {
            let known = again.contains(name) || is_tied_head(config, name) || is_buffer(name, &stored[*i]);
            !used.contains(i) && !known
        })
        .map(|(_, &i)| stored[i].name.as_str())
        .collect();
    warn_of_foreign(path, &left);
}

/// Says which tensors are not part of the model, a few of them by name.
pub(in crate::layout) fn warn_of_foreign(path: &Path, left: &BTreeSet<&str>) {
    const NAMED: usize = 8;
    if left.is_empty() {
        return;
    }
    let mut names: Vec<&str> = left.iter().copied().take(NAMED).collect();
    let more = (left.len() > NAMED).then(|| format!("and {} more", left.len() - NAMED));
    names.extend(more.as_deref());
    tracing::warn!(
        "{}: left out, since they are not part of the model: {}",
        path.display(),
        names.join(", ")
    );
}

/// Whether a tensor is the output layer of a model that has the embedding in its place: some folders store it all the same.
pub(crate) fn is_tied_head(config: &ModelConfig, name: &str) -> bool {
    let head = config.family.pattern("head").filter(|_| config.tied);
    head.is_some_and(|head| name == head || config.family.usual(name).as_deref() == Some(head))
}

/// Whether a tensor is a buffer that classes store with the weights and recreate: rotary frequencies, and a causal mask with
/// its fill value.
fn is_buffer(name: &str, stored: &Stored) -> bool {
    let mut words = name.rsplit('.');
    match (words.next(), words.next(), &stored.shape[..]) {
        (Some("inv_freq"), Some(_), [_]) => true,
        (Some("bias"), Some("attn" | "attention"), [1, 1, rows, columns]) => rows == columns,
        (Some("masked_bias"), Some("attn" | "attention"), shape) => shape.iter().product::<usize>() == 1,
        _ => false,
    }
}

/// The usual name of a tensor of a folder.
pub(crate) fn usual(config: &ModelConfig, name: &str) -> String {
    config.family.usual(name).unwrap_or_else(|| name.to_owned())
}

/// A tensor of a Hugging Face folder.
pub(crate) struct HfTensor {
    pub(crate) named: Named,
    pub(crate) spec: ParamSpec,
}

/// Names and parts of every tensor of a Hugging Face folder, in `transformers`' order.
/// Vocabulary tensors have `padded_vocab` rows.
///
/// # Errors
/// [`Error::NoName`] if the family's class lacks something that the model has.
pub(crate) fn tensors(config: &ModelConfig) -> Result<Vec<HfTensor>> {
    Ok(all(config)?.into_iter().filter(|t| !t.named.absent).collect())
}

/// What the class has no tensor for because it is zero there.
///
/// # Errors
/// As [`tensors`].
pub(crate) fn absent(config: &ModelConfig) -> Result<Vec<HfTensor>> {
    Ok(all(config)?.into_iter().filter(|t| t.named.absent).collect())
}

fn all(config: &ModelConfig) -> Result<Vec<HfTensor>> {
    let mut specs = params(config);
    // transformers registers qkv before o, and the norms of a layer after its MLP.
    let rank = |Slot { part, role, half, .. }: Slot| match (part, role) {
        (Part::Dense, _) if half.is_some() => 6,
        (Part::Attention, _) if half.is_some() => 2,
        (Part::Layer, _) if half.is_some() => 0,
        (Part::Attention, Role::LinearQkv) => 0,
        (Part::Attention, Role::LinearProj) => 1,
        (part, _) if part.path().starts_with(Part::Attention.path()) => 2,
        (Part::StateSpace, _) => 3,
        (Part::Dense, Role::LinearFc1) => 4,
        (Part::Dense, Role::LinearFc2) => 5,
        (part, _) if part.of_network() => 6,
        (Part::Layer, Role::InputLayernorm) => 7,
        (Part::Layer, Role::PreMlpLayernorm) => 8,
        (Part::Layer, Role::PostAttnNorm | Role::PostMlpLayernorm) => 9,
        _ => 0,
    };
    specs.sort_by_key(|s| (s.slot.place, rank(s.slot)));
    let names = Names::new(config);
    // Weights and biases of one projection stand together: q.weight q.bias k.weight k.bias …
    let mut all = Vec::new();
    let mut i = 0;
    while i < specs.len() {
        let pair = specs
            .get(i + 1)
            .filter(|next| next.slot.bias && Slot { bias: false, ..next.slot } == specs[i].slot);
        let weights = names.of(&specs[i])?;
        let mut biases = pair.map_or_else(|| Ok(Vec::new()), |p| names.of(p))?.into_iter();
        let step = if pair.is_some() { 2 } else { 1 };
        for weight in weights {
            all.push(HfTensor { named: weight, spec: specs[i].clone() });
            if let Some(bias) = biases.next() {
                all.push(HfTensor { named: bias, spec: specs[i + 1].clone() });
            }
        }
        i += step;
    }
    // What is there a second time belongs to the prediction layers.
    all.sort_by_key(|t| t.named.copy);
    Ok(all)
}

/// The size limit of a file, exceeded only by a tensor that is larger itself: 5 GB, as in `save_pretrained`.
pub const SHARD_BYTES: u64 = 5_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_tensors_is_that_of_transformers() {
        let json = serde_json::json!({
            "model_type": "qwen2", "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1,
            "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 10
        });
        let config = hf::read_config(&json).unwrap();
        let names: Vec<String> = tensors(&config).unwrap().into_iter().map(|t| t.named.name).collect();
        let l = |rest: &str| format!("model.layers.0.{rest}");
        assert_eq!(
            names,
            [
                "model.embed_tokens.weight".to_owned(),
                l("self_attn.q_proj.weight"),
                l("self_attn.q_proj.bias"),
                l("self_attn.k_proj.weight"),
                l("self_attn.k_proj.bias"),
                l("self_attn.v_proj.weight"),
                l("self_attn.v_proj.bias"),
                l("self_attn.o_proj.weight"),
                l("mlp.gate_proj.weight"),
                l("mlp.up_proj.weight"),
                l("mlp.down_proj.weight"),
                l("input_layernorm.weight"),
                l("post_attention_layernorm.weight"),
                "model.norm.weight".to_owned(),
                "lm_head.weight".to_owned(),
            ]
        );
    }
}

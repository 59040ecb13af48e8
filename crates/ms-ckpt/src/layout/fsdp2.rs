//! Distributed checkpoints with Hugging Face names, as `torch.distributed.checkpoint` writes a sharded `transformers` model
//! and its optimizer.
//!
//! ```text
//! model.NAME                                  [out, in] as in a Hugging Face folder, rows over the ranks
//! optimizer.state.NAME.{exp_avg,exp_avg_sq}   the moments
//! ```
//!
//! Weights in float32 are the optimizer's own.
//!
//! # Source
//! PyTorch 2.15, `torch/distributed/checkpoint/state_dict.py`; MindSpeed-LLM (2026),
//! `mindspeed_llm/fsdp2/checkpoint/checkpoint_manager.py`.

use std::collections::BTreeMap;
use std::ops::Range;

use ms_core::DType;
use ms_spec::{ModelConfig, ParamSpec, params};
use serde_json::{Value, json};

use super::names::Names;
use super::torch_dist::opened::Opened;
use crate::dcp::{self, Metadata};
use crate::name::{Name, State};
use crate::stored::{Global, Piece, Stored};
use crate::{Error, Result};

/// What stands before a weight's name in the key.
const PREFIXES: [&str; 2] = ["model.", ""];

/// The key of the embedding, if keys are Hugging Face's names.
pub(super) fn embedding_key(metadata: &Metadata, config: &ModelConfig) -> Option<String> {
    if metadata.tensors.contains_key("embedding.word_embeddings.weight") {
        return None;
    }
    let name = Names::new(config).of(params(config).first()?).ok()?.swap_remove(0).name;
    let keys = PREFIXES.map(|prefix| format!("{prefix}{name}"));
    keys.into_iter().find(|key| metadata.tensors.contains_key(key))
}

impl Opened<'_> {
    /// Every parameter, and its moments where they are there.
    ///
    /// # Errors
    /// A tensor that is missing or has another shape than the model needs.
    pub(super) fn named_as_hugging_face(&mut self) -> Result<BTreeMap<Name, Global>> {
        let mut globals = BTreeMap::new();
        for spec in params(self.config) {
            let weight = |name: &str| PREFIXES.map(|prefix| format!("{prefix}{name}")).to_vec();
            let found = self.of_projections(&spec, &weight)?;
            match found {
                Some(global) => drop(globals.insert(Name::weight(&spec.slot), global)),
                None if self.config.reward && crate::checkpoint::is_idle(&spec.slot) => continue,
                None => {
                    return Err(Error::Missing { path: self.folder.to_owned(), name: spec.name });
                }
            }
            for state in State::ADAM {
                let moment = |name: &str| vec![format!("optimizer.state.{name}.{}", state.word())];
                if let Some(global) = self.of_projections(&spec, &moment)? {
                    globals.insert(Name::state(state, &spec.slot), global);
                }
            }
        }
        Ok(globals)
    }

    /// The optimizer's state other than its moments: the number of steps. Null if there is none.
    ///
    /// # Errors
    /// A damaged chunk.
    pub(super) fn optimizer_steps(&mut self) -> Result<Value> {
        let metadata = self.metadata;
        let names = Names::new(self.config);
        let named = params(self.config).into_iter().filter_map(|spec| names.of(&spec).ok()).flatten();
        let mut steps = named.map(|named| format!("optimizer.state.{}.step", named.name));
        let found = steps.find_map(|key| metadata.tensors.get_key_value(&key));
        let Some((key, tensor)) = found.filter(|(_, t)| t.chunks.len() == 1 && t.dtype == Some(DType::F32))
        else {
            return Ok(Value::Null);
        };
        let stored = self.chunk(key, tensor, 0)?;
        let Stored { file, start, .. } = self.stored[stored];
        let bytes = self.files[file].bytes().get(start..start + 4).and_then(|b| b.try_into().ok());
        let steps = bytes.map(f32::from_le_bytes).filter(|s| s.is_finite() && *s >= 0.0);
        Ok(steps
            .map_or(Value::Null, |n| json!({"optimizer": {"optimizer": {"param_groups": [{"step": n}]}}})))
    }

    /// A parameter from the keys of its projections; `None` if one of them is missing.
    fn of_projections(
        &mut self,
        spec: &ParamSpec,
        keys_of: &dyn Fn(&str) -> Vec<String>,
    ) -> Result<Option<Global>> {
        let metadata = self.metadata;
        let (mut pieces, mut dtype, mut zeros) = (Vec::new(), None, Vec::new());
        for named in Names::new(self.config).of(spec)?.into_iter().filter(|n| !n.copy) {
            if named.absent {
                zeros.push(named);
                continue;
            }
            let mut keys = keys_of(&named.name).into_iter();
            let found = keys.find_map(|key| metadata.tensors.get_key_value(&key));
            let Some((key, tensor)) = found else { return Ok(None) };
            let described = self.folder.join(dcp::METADATA);
            let wrong = |what: &str| Error::malformed(&described, format!("tensor {key}: {what}"));
            if tensor.size != named.lens.shape {
                let (want, got) = (named.lens.shape.clone(), tensor.size.clone());
                return Err(Error::Shape { path: described, name: key.clone(), want, got });
            }
            dtype = dtype.or(tensor.dtype);
            let inner: usize = tensor.size.iter().skip(1).product();
            for (number, chunk) in tensor.chunks.iter().enumerate() {
                let numel: usize = chunk.sizes.iter().product();
                if numel == 0 {
                    continue;
                }
                let rows = chunk.offsets.iter().skip(1).all(|&o| o == 0)
                    && chunk.sizes.iter().skip(1).eq(tensor.size.iter().skip(1));
                if !rows {
                    return Err(wrong("a chunk that is not a range of rows"));
                }
                let whole = chunk.sizes == tensor.size;
                let i = self.chunk(key, tensor, number)?;
                let strides = self.stored[i].strides.clone();
                let start = chunk.offsets.first().map_or(0, |o| o * inner);
                let (flat, view): (Option<Range<usize>>, _) = match whole {
                    true => (None, named.lens.view(strides.as_deref()).map_err(wrong)?),
                    false if strides.is_some() || named.lens.transposed => {
                        return Err(wrong("a chunk with gaps, or of a matrix that is turned"));
                    }
                    false => (Some(start..start + numel), None),
                };
                pieces.push(Piece { stored: i, region: named.lens.region.clone(), flat, view });
            }
        }
        if let Some(dtype) = dtype {
            for named in zeros {
                let region = named.lens.region;
                pieces.push(Piece { stored: self.stored.len(), region, flat: None, view: None });
                self.stored.push(Stored::zeros(named.name, dtype, named.lens.shape));
            }
        }
        let have: usize = pieces
            .iter()
            .map(|p| p.flat.as_ref().map_or_else(|| p.region.local_shape().numel(), ExactSizeIterator::len))
            .sum();
        match dtype {
            Some(dtype) if have == spec.shape.numel() => {
                Ok(Some(Global { shape: spec.shape, dtype, pieces }))
            }
            None => Ok(None),
            Some(_) => {
                let what = format!("{}: {have} of {} elements are there", spec.name, spec.shape.numel());
                Err(Error::folder(self.folder, what))
            }
        }
    }
}

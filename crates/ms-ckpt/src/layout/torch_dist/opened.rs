//! Finding the parameters of a distributed checkpoint in its chunks.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;

use ms_core::{DType, Region, Shape};
use ms_spec::{ModelConfig, ParamSpec, Part, Place, params};

use super::key_mapping::{KeyMapping, forms};
use crate::dcp::{self, Chunk, Metadata, Tensor};
use crate::layout::hf::warn_of_foreign;
use crate::layout::number::number_in;
use crate::layout::rank_file::EXTRA_STATE;
use crate::name::{Name, State};
use crate::optim::BUFFERS;
use crate::stored::{Global, Piece, Stored};
use crate::{Error, Mapped, Result};

/// A limit, since layer numbers come from the file: no model has more layers.
pub(in crate::layout) const MOST_LAYERS: usize = 1 << 14;

/// A folder whose parameters are being found.
pub(in crate::layout) struct Opened<'a> {
    pub(in crate::layout) folder: &'a Path,
    pub(in crate::layout) metadata: &'a Metadata,
    pub(in crate::layout) config: &'a ModelConfig,
    pub(in crate::layout) files: Vec<Mapped>,
    pub(in crate::layout) by_name: BTreeMap<String, usize>,
    pub(in crate::layout) stored: Vec<Stored>,
    /// Stored tensors by key and number of the chunk.
    pub(in crate::layout) chunks: BTreeMap<(String, usize), usize>,
    pub(in crate::layout) used: BTreeSet<String>,
}

impl Opened<'_> {
    pub(in crate::layout) fn globals(&mut self) -> Result<BTreeMap<Name, Global>> {
        let mut globals = BTreeMap::new();
        let slots = self.slots()?;
        for spec in params(self.config) {
            let slot = match spec.slot.place {
                Place::Layer(l) => slots[l],
                _ => 0,
            };
            let forms = forms(&spec, slot, self.config);
            let global = self.global(&spec, "", &forms)?;
            if global.is_none() && self.config.reward && crate::checkpoint::is_idle(&spec.slot) {
                continue;
            }
            let global = global.ok_or_else(|| Error::Missing {
                path: self.folder.to_owned(),
                name: forms[0].first().map_or_else(|| spec.name.clone(), |l| l.key.clone()),
            })?;
            globals.insert(Name::weight(&spec.slot), global);
            for state in State::ADAM {
                // Master weights have two names: of the space of the model, and of gathered buffers.
                let own = state.word();
                let names = if state == State::Master { &[own, BUFFERS[0]][..] } else { &[own][..] };
                for name in names {
                    let found = self.global(&spec, &format!("optimizer.state.{name}."), &forms)?;
                    if let Some(global) = found {
                        globals.insert(Name::state(state, &spec.slot), global);
                        break;
                    }
                }
            }
        }
        Ok(globals)
    }

    /// The number that each layer has in the keys: slots without a layer have no tensors.
    pub(in crate::layout) fn slots(&self) -> Result<Vec<usize>> {
        let mut found: BTreeSet<usize> = BTreeSet::new();
        for (key, tensor) in &self.metadata.tensors {
            let Some(rest) = key.strip_prefix("decoder.layers.") else { continue };
            match number_in(key, "decoder.layers.") {
                Some(layer) => {
                    found.insert(layer);
                }
                None if !rest.contains("_extra_state") => {
                    for chunk in &tensor.chunks {
                        if found.len() > MOST_LAYERS {
                            break;
                        }
                        let first = chunk.offsets.first().copied().unwrap_or(0);
                        let count = chunk.sizes.first().copied().unwrap_or(0);
                        found.extend(first..first.saturating_add(count.min(MOST_LAYERS)));
                    }
                }
                None => {}
            }
            if found.len() > MOST_LAYERS {
                break;
            }
        }
        if found.len() == self.config.layers {
            Ok(found.into_iter().collect())
        } else {
            Err(Error::folder(
                self.folder,
                format!("{} layers are there, the model has {}", found.len(), self.config.layers),
            ))
        }
    }

    /// A global tensor, from the first of the forms whose keys are there.
    pub(in crate::layout) fn global(
        &mut self,
        spec: &ParamSpec,
        prefix: &str,
        forms: &[Vec<KeyMapping>],
    ) -> Result<Option<Global>> {
        let metadata = self.metadata;
        let find = |key: &str| -> Option<(String, &Tensor)> {
            let name = format!("{prefix}{key}");
            if let Some(tensor) = metadata.tensors.get(&name) {
                return Some((name, tensor));
            }
            // Dense parameters and experts may have optimizers of their own.
            let chained = (0..2).map(|i| format!("chained_{i}.{name}")).filter(|_| !prefix.is_empty());
            chained.into_iter().find_map(|name| metadata.tensors.get(&name).map(|t| (name, t)))
        };
        let found = forms.iter().find_map(|form| {
            let tensors: Option<Vec<_>> =
                form.iter().map(|mapping| Some((mapping, find(&mapping.key)?))).collect();
            tensors.filter(|t| !t.is_empty())
        });
        let Some(found) = found else { return Ok(None) };
        let mut dtype = None;
        let mut pieces = Vec::new();
        for (mapping, (key, tensor)) in found {
            let of = tensor.dtype.ok_or_else(|| {
                let what = format!("tensor {key}: dtype {} is not supported", tensor.dtype_name);
                Error::malformed(&self.folder.join(dcp::METADATA), what)
            })?;
            dtype.get_or_insert(of);
            self.used.insert(key.clone());
            self.pieces(spec, mapping, &key, tensor, &mut pieces)?;
        }
        let have: usize = pieces.iter().map(Piece::elements).sum();
        if have != spec.shape.numel() {
            let what =
                format!("tensor {prefix}{}: {have} of {} elements are there", spec.name, spec.shape.numel());
            return Err(Error::folder(self.folder, what));
        }
        let dtype: DType = dtype.expect("a form has a key at least");
        Ok(Some(Global { shape: spec.shape, dtype, pieces }))
    }

    /// The number of a file of the folder.
    pub(in crate::layout) fn file(&mut self, name: &str) -> Result<usize> {
        if let Some(&file) = self.by_name.get(name) {
            return Ok(file);
        }
        self.files.push(Mapped::open(&self.folder.join(name))?);
        self.by_name.insert(name.to_owned(), self.files.len() - 1);
        Ok(self.files.len() - 1)
    }

    /// The stored tensor of a chunk.
    pub(in crate::layout) fn chunk(&mut self, key: &str, tensor: &Tensor, number: usize) -> Result<usize> {
        if let Some(&i) = self.chunks.get(&(key.to_owned(), number)) {
            return Ok(i);
        }
        let chunk = &tensor.chunks[number];
        let file = self.file(&chunk.file)?;
        let view = dcp::chunk_view(&self.files[file], key, tensor, chunk)?;
        self.stored.push(Stored::of(key, file, view));
        self.chunks.insert((key.to_owned(), number), self.stored.len() - 1);
        self.used.insert(key.to_owned());
        Ok(self.stored.len() - 1)
    }

    /// Adds what the chunks of a key hold of a parameter.
    pub(in crate::layout) fn pieces(
        &mut self,
        spec: &ParamSpec,
        mapping: &KeyMapping,
        key: &str,
        tensor: &Tensor,
        out: &mut Vec<Piece>,
    ) -> Result<()> {
        // The parameter's dimensions as the key has them, without layers.
        let experts = usize::from(spec.slot.part == Part::Experts);
        let mut body = spec.shape.to_vec();
        if let Some(rows) = &mapping.rows {
            body[experts] = rows.len();
        }
        if mapping.expert.is_some() {
            body.remove(0);
        }
        let mut want = body.clone();
        if mapping.layer.is_some() {
            want.insert(0, tensor.size.first().copied().unwrap_or(0));
        }
        let flattened = tensor.size != want;
        if flattened && !fragments(&tensor.size, &want) {
            let path = self.folder.join(dcp::METADATA);
            return Err(Error::Shape { path, name: key.to_owned(), want, got: tensor.size.clone() });
        }
        for (number, chunk) in tensor.chunks.iter().enumerate() {
            if flattened && chunk.sizes[..want.len()].iter().any(|&n| n != 1) {
                let what = format!("tensor {key}: a chunk of several fragments");
                return Err(Error::malformed(&self.folder.join(dcp::METADATA), what));
            }
            let Some((boxed, flat, skip)) = place(mapping, &tensor.size, &want, chunk) else { continue };
            if boxed.iter().any(Range::is_empty) || flat.as_ref().is_some_and(Range::is_empty) {
                continue;
            }
            let i = self.chunk(key, tensor, number)?;
            // The box in the parameter: one expert of the stack, rows of a half.
            let mut boxed = boxed;
            if let Some(expert) = mapping.expert {
                boxed.insert(0, expert..expert + 1);
            }
            if let Some(rows) = &mapping.rows {
                let own = &mut boxed[experts];
                *own = own.start + rows.start..own.end + rows.start;
            }
            let wrong = |what: &str| {
                Error::malformed(&self.folder.join(dcp::METADATA), format!("tensor {key}: {what}"))
            };
            if let Some(flat) = flat {
                let region = region_of(&spec.shape, &boxed)
                    .ok_or_else(|| wrong("a fragment that is cut along more than one dimension"))?;
                if self.stored[i].strides.is_some() {
                    return Err(wrong("a flattened fragment with gaps"));
                }
                out.push(Piece { stored: i, region, flat: Some(flat), view: None });
                continue;
            }
            let i = self.within(i, mapping, skip);
            let strides = self.stored[i].strides.clone().map(|strides| {
                let own = strides[usize::from(mapping.layer.is_some())..].to_vec();
                if mapping.expert.is_some() { [vec![0], own].concat() } else { own }
            });
            match (region_of(&spec.shape, &boxed), strides) {
                (Some(region), view) => out.push(Piece { stored: i, region, flat: None, view }),
                (None, Some(_)) => {
                    return Err(wrong("a chunk with gaps that is cut along several dimensions"));
                }
                // A box that no region describes: run by run.
                (None, None) => self.runs(spec, &boxed, i, out),
            }
        }
        Ok(())
    }

    /// A stored tensor that begins at one layer of a chunk that has several.
    pub(in crate::layout) fn within(&mut self, i: usize, mapping: &KeyMapping, skip: usize) -> usize {
        if mapping.layer.is_none() || skip == 0 {
            return i;
        }
        let s = &self.stored[i];
        let step = s.strides.as_ref().map_or_else(|| s.shape[1..].iter().product(), |strides| strides[0]);
        let start = s.start + skip * step * s.dtype.size();
        self.stored.push(Stored { start, ..s.clone() });
        self.stored.len() - 1
    }

    pub(in crate::layout) fn runs(
        &mut self,
        spec: &ParamSpec,
        boxed: &[Range<usize>],
        i: usize,
        out: &mut Vec<Piece>,
    ) {
        let shape = &spec.shape;
        let last = boxed.len() - 1;
        let rows: usize = boxed[..last].iter().map(Range::len).product();
        let whole = Region::whole(shape);
        let base = self.stored[i].clone();
        for row in 0..rows {
            let (mut rest, mut element, mut step) = (row, boxed[last].start, shape[last]);
            for d in (0..last).rev() {
                element += (boxed[d].start + rest % boxed[d].len()) * step;
                rest /= boxed[d].len();
                step *= shape[d];
            }
            let n = boxed[last].len();
            let start = base.start + row * n * base.dtype.size();
            self.stored.push(Stored { start, shape: vec![n], ..base.clone() });
            let flat = Some(element..element + n);
            out.push(Piece { stored: self.stored.len() - 1, region: whole.clone(), flat, view: None });
        }
    }

    pub(in crate::layout) fn report_unused(&self) {
        let left = self.metadata.tensors.keys().filter(|k| !self.used.contains(*k));
        let beside = |k: &str| {
            let module = k.split('/').next().unwrap_or(k);
            let step = module.strip_prefix("optimizer.state.").is_some_and(|rest| rest.ends_with(".step"));
            module == "rng_state" || module.ends_with(EXTRA_STATE) || step
        };
        let left: BTreeSet<&str> = left.map(String::as_str).filter(|k| !beside(k)).collect();
        warn_of_foreign(self.folder, &left);
    }
}

/// Whether a key's size is that of flattened fragments: their number along each dimension, then their elements.
fn fragments(size: &[usize], want: &[usize]) -> bool {
    let Some((&elements, counts)) = size.split_last() else { return false };
    counts.len() == want.len()
        && counts.iter().zip(want).all(|(&n, &d)| n > 0 && d % n == 0)
        && counts.iter().zip(want).map(|(&n, &d)| d / n).product::<usize>() == elements
}

type Placement = (Vec<Range<usize>>, Option<Range<usize>>, usize);

/// The box of a chunk in the key's tensor without layers; elements of it that are stored, if flattened; and how many
/// layers of the chunk stand before the one that is meant. `None`: the chunk has nothing of that layer.
fn place(mapping: &KeyMapping, size: &[usize], want: &[usize], chunk: &Chunk) -> Option<Placement> {
    let flattened = size != want;
    let along = |d: usize| match flattened {
        false => chunk.offsets[d]..chunk.offsets[d] + chunk.sizes[d],
        // The number of a fragment; the last dimension counts elements within.
        true => {
            let fragment = want[d] / size[d];
            chunk.offsets[d] * fragment..(chunk.offsets[d] + 1) * fragment
        }
    };
    let boxed: Vec<Range<usize>> = (0..want.len()).map(along).collect();
    let flat = flattened.then(|| {
        let (o, n) = (chunk.offsets[want.len()], chunk.sizes[want.len()]);
        o..o + n
    });
    let Some(layer) = mapping.layer else { return Some((boxed, flat, 0)) };
    let layers = &boxed[0];
    layers.contains(&layer).then(|| (boxed[1..].to_vec(), flat, layer - layers.start))
}

/// The region of a box, if it is one: cut along one dimension, and perhaps the first.
fn region_of(shape: &Shape, boxed: &[Range<usize>]) -> Option<Region> {
    if boxed.len() != shape.len() {
        return None;
    }
    let mut cut: Vec<usize> = (0..shape.len()).filter(|&d| boxed[d] != (0..shape[d])).collect();
    let dim = cut.pop().unwrap_or(0);
    let Some(range) = boxed.get(dim) else { return Some(Region::whole(shape)) };
    let region = Region::along(shape, dim, std::iter::once(range.clone()));
    match cut[..] {
        [] => Some(region),
        [0] => Some(Region { lead: Some(boxed[0].clone()), ..region }),
        _ => None,
    }
}

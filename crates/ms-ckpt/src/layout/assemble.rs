//! Assembling the model's parameters from the tensors of rank files.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::path::Path;

use ms_core::{DType, Region};
use ms_spec::{Feed, ModelConfig, ParamSpec, Part, Place, Placement, Slot, params};

use super::file_grid::FileGrid;
use super::optimizer::States;
use super::rank_tensors::rank_tensors;
use super::ranks::{LAYERS, Opened, RankFile};
use super::spelling::{Local, Spelling, words};
use crate::adapter::{self, Adapters};
use crate::checkpoint::{HEAD, is_idle};
use crate::lens::Lens;
use crate::name::{Name, State, TensorKind};
use crate::optim::OptimizerParam;
use crate::stored::{Global, Piece, Stored};
use crate::{Error, Result};

impl Opened {
    /// Finds every parameter's pieces.
    pub(super) fn assemble(
        &self,
        folder: &Path,
        config: &ModelConfig,
        file_grid: &FileGrid,
        placement: &Placement,
        spelling: Spelling,
    ) -> Result<Assembled> {
        file_grid.check(config)?;
        let only_adapters = !self.ranks.iter().any(|r| r.has(&words()));
        let mut all = Assembled::default();
        let specs = params(config);
        let layered = specs.iter().filter(|s| matches!(s.slot.place, Place::Layer(_)));
        let inside: BTreeSet<&str> = layered.filter_map(|s| in_layer(&s.name)).map(|(_, own)| own).collect();
        for file in &self.ranks {
            let mut used: BTreeSet<usize> = BTreeSet::new();
            let mut trained: Vec<Trained> = Vec::new();
            for local in rank_tensors(config, file_grid, placement, spelling, file.rank)? {
                let names = std::iter::once(local.name.clone()).chain(local.also.clone());
                let found = names.filter_map(|n| file.tensors.get(&(local.chunk, n))).next();
                if !local.copy {
                    self.adapter(file, &local, &mut used, &mut all)?;
                }
                let &i = match found {
                    Some(i) => i,
                    None if local.copy || only_adapters => continue,
                    None if config.reward && is_idle(&local.spec.slot) => continue,
                    None => {
                        let path = file.path.clone();
                        return Err(Error::Missing { path, name: local.name });
                    }
                };
                used.insert(i);
                let view = self.weight(file, &local, i)?;
                if local.spec.trained() {
                    trained.push(Trained::new(i, &self.stored[i], &local, file_grid));
                }
                all.add(local, i, self.stored[i].dtype, view);
            }
            if let Some(beside) = &file.states {
                trained.retain(|_| all.adapters.is_empty());
                self.states(file, beside, trained, &mut all)?;
            }
            let ignored = |name: &str| ignored(config, name) || is_stray(config, &inside, name);
            let extra = file.tensors.iter().find(|(key, i)| !used.contains(i) && !ignored(&key.1));
            if let Some(((_, name), _)) = extra {
                let what = format!("tensor {name}: the model has no such parameter");
                return Err(Error::malformed(&file.path, what));
            }
        }
        all.check_complete(folder, config, only_adapters)?;
        all.leave_out_torn(folder);
        Ok(all)
    }

    /// How the weight `local` is read from the stored tensor `i`.
    fn weight(&self, file: &RankFile, local: &Local, i: usize) -> Result<Option<Vec<usize>>> {
        let stored = &self.stored[i];
        if stored.shape != local.lens.shape {
            return Err(Error::Shape {
                path: file.path.clone(),
                name: local.name.clone(),
                want: local.lens.shape.clone(),
                got: stored.shape.clone(),
            });
        }
        view(&local.lens, stored, file, &local.name)
    }

    /// Adds the optimizer state of a rank. Like weights, it is taken from the first rank that has it.
    fn states(
        &self,
        file: &RankFile,
        beside: &States,
        mut trained: Vec<Trained>,
        all: &mut Assembled,
    ) -> Result<()> {
        if trained.is_empty() {
            tracing::warn!("{}: the optimizer state of adapters is not read", file.path.display());
            return Ok(());
        }
        // The order of the file is the order in which the model registers its parameters.
        trained.sort_by_key(|t| t.stored);
        let held: Vec<OptimizerParam> = trained.iter().map(|t| t.held.clone()).collect();
        let shapes: Vec<Vec<usize>> = trained.iter().map(|t| self.stored[t.stored].shape.clone()).collect();
        let found = beside.place(&held, &shapes, &self.args, file.numbers.p)?;
        for (t, state) in trained.into_iter().zip(found).filter(|(t, _)| !t.copy) {
            for (which, stored) in State::ADAM.into_iter().zip(state) {
                let Some(stored) = stored else { continue };
                let name = Name::state(which, &t.slot);
                let view = view(&t.lens, &stored, file, &name)?;
                let region = t.lens.region.clone();
                let global = Global::among(&mut all.globals, &name, region.shape, stored.dtype);
                if global.pieces.iter().any(|p| p.region.first() == region.first()) {
                    continue;
                }
                let at = self.stored.len() + all.states.len();
                global.pieces.push(Piece { stored: at, region, flat: None, view });
                all.states.push(Stored { name: name.to_string(), ..stored });
            }
        }
        Ok(())
    }

    /// Finds the adapter of a tensor.
    fn adapter(
        &self,
        file: &RankFile,
        local: &Local,
        used: &mut BTreeSet<usize>,
        all: &mut Assembled,
    ) -> Result<()> {
        let [a, b] = adapter::local_names(&local.name, local.module.as_deref());
        let [a, b] = [a, b].map(|n| file.tensors.get(&(local.chunk, n)).copied());
        let (Some(a), Some(b)) = (a, b) else { return Ok(()) };
        let n = local.spec.shape.len();
        let grouped = local.lens.transposed;
        let (a_shape, experts) = (&self.stored[a].shape, local.lens.region.local_shape()[0]);
        // Grouped experts keep `[experts, in, r]`, under any shape.
        let columns = if n == 3 { local.lens.region.local_shape()[2] } else { 1 };
        let rank = if grouped {
            a_shape.iter().product::<usize>() / (experts * columns).max(1)
        } else {
            a_shape.first().copied().unwrap_or(0)
        };
        if n < 2 || !(1..=adapter::MOST_RANK).contains(&rank) || local.split {
            return Err(Error::malformed(
                &file.path,
                format!("tensor {}: an adapter of this form", local.name),
            ));
        }
        let names = adapter::names(&local.spec.slot);
        let parts = adapter::lenses(&local.spec, &local.lens, rank);
        for ((i, name), (shape, lens)) in [a, b].into_iter().zip(&names).zip(parts) {
            let stored = &self.stored[i];
            let numel = lens.shape.iter().product::<usize>();
            if stored.shape != lens.shape && !(grouped && stored.shape.iter().product::<usize>() == numel) {
                return Err(Error::Shape {
                    path: file.path.clone(),
                    name: stored.name.clone(),
                    want: lens.shape,
                    got: stored.shape.clone(),
                });
            }
            used.insert(i);
            let view = view(&lens, stored, file, name)?;
            let entry = Global::among(&mut all.globals, name, shape, stored.dtype);
            if entry.shape != shape {
                return Err(Error::malformed(
                    &file.path,
                    format!("{name}: ranks have adapters of different sizes"),
                ));
            }
            if all.seen.insert((name.clone(), lens.region.first())) {
                entry.pieces.push(Piece { stored: i, region: lens.region, flat: None, view });
            }
        }
        let rows = Region::along(&local.spec.shape, n - 2, std::iter::once(0..local.spec.shape[n - 2]));
        let [a, b] = names;
        all.adapters.entry(local.spec.slot).or_insert_with(|| vec![adapter::Part { a, b, rows }]);
        Ok(())
    }
}

/// How `lens` sees a stored tensor.
fn view(lens: &Lens, stored: &Stored, file: &RankFile, name: impl Display) -> Result<Option<Vec<usize>>> {
    let view = lens.view(stored.strides.as_deref());
    view.map_err(|what| Error::malformed(&file.path, format!("{name}: {what}")))
}

/// What the files of all ranks make up together.
#[derive(Default)]
pub(super) struct Assembled {
    pub(super) globals: BTreeMap<Name, Global>,
    pub(super) adapters: Adapters,
    /// Parts that are there once more.
    pub(super) copies: Vec<(Name, Piece)>,
    /// Optimizer tensors, numbered after the stored ones.
    pub(super) states: Vec<Stored>,
    /// A state that only some ranks have.
    pub(super) torn: Option<Name>,
    /// Where a piece begins in its tensor: equal copies on other ranks are left out.
    seen: BTreeSet<(Name, usize)>,
}

impl Assembled {
    /// Adds the weight `local`, stored as tensor `i`.
    fn add(&mut self, local: Local, i: usize, dtype: DType, view: Option<Vec<usize>>) {
        let name = Name::weight(&local.spec.slot);
        let piece = Piece { stored: i, region: local.lens.region, flat: None, view };
        // The head's copy of the embedding may come before the embedding: it is compared, never read.
        if local.copy || !self.seen.insert((name.clone(), piece.region.first())) {
            self.copies.push((name, piece));
        } else {
            Global::among(&mut self.globals, &name, local.spec.shape, dtype).pieces.push(piece);
        }
    }

    /// Checks that weights and adapters are whole.
    fn check_complete(&self, folder: &Path, config: &ModelConfig, only_adapters: bool) -> Result<()> {
        let low_rank = self.globals.iter().filter(|(name, _)| matches!(name.kind(), TensorKind::LowRank(..)));
        let mut wanted: Vec<(Name, usize)> =
            low_rank.map(|(name, g)| (name.clone(), g.shape.numel())).collect();
        if !only_adapters {
            let lacks = |s: &ParamSpec| {
                config.reward && is_idle(&s.slot) && !self.globals.contains_key(s.name.as_str())
            };
            let all = params(config).into_iter().filter(|s| !lacks(s));
            wanted.extend(all.map(|s| (Name::weight(&s.slot), s.shape.numel())));
        }
        if only_adapters && self.adapters.is_empty() {
            return Err(Error::folder(folder, "neither weights of the model nor adapters"));
        }
        for (name, numel) in wanted {
            if self.globals.get(&name).map_or(0, Global::covered) != numel {
                return Err(Error::Missing { path: folder.to_owned(), name: name.to_string() });
            }
        }
        Ok(())
    }

    /// Where a rank's file is missing there is a part of a state; who wants the whole finds none.
    fn leave_out_torn(&mut self, folder: &Path) {
        let whole = |name: &Name, g: &Global| {
            !matches!(name.kind(), TensorKind::State(..)) || g.covered() == g.shape.numel()
        };
        self.torn = self.globals.iter().find(|(name, g)| !whole(name, g)).map(|(name, _)| name.clone());
        if let Some(name) = &self.torn {
            let at = folder.display();
            tracing::warn!("{at}: only some ranks have {name}: state that is not whole is left out");
        }
        self.globals.retain(|name, g| whole(name, g));
    }
}

/// A parameter that the optimizer of a rank has.
struct Trained {
    /// The weight among the stored tensors.
    stored: usize,
    slot: Slot,
    lens: Lens,
    /// The weight is another rank's too, and its state is read there.
    copy: bool,
    held: OptimizerParam,
}

impl Trained {
    fn new(i: usize, stored: &Stored, local: &Local, file_grid: &FileGrid) -> Self {
        let held = local.optimizer_param(file_grid, stored.dtype);
        Self { stored: i, slot: local.spec.slot, lens: local.lens.clone(), copy: local.copy, held }
    }
}

/// Tensors that a file may hold although the model has no such parameter.
fn ignored(config: &ModelConfig, name: &str) -> bool {
    let (words, head) = (Slot::WORDS.name(), HEAD.name());
    let (place, part, role) = (Place::Head, Part::Last, config.last_norm());
    let last = Slot { place, part, half: None, role, bias: false }.name();
    // Head's converter of Mamba2 writes both ends into every stage.
    let stray = config.has_feed(Feed::None) && [&words, &last, &head].iter().any(|end| *end == name);
    // v2.0.0's modules have a table of their own; others have it once more.
    let again = |k: usize| name == format!("mtp_layers.{k}.{words}");
    stray || name == head && config.tied || config.mtp > 0 && (name == words || (0..config.mtp).any(again))
}

/// The layer number in a tensor's name, and the rest of the name.
fn in_layer(name: &str) -> Option<(&str, &str)> {
    name.strip_prefix(LAYERS)?.split_once('.')
}

/// Whether a tensor is one of a layer of an earlier stage, which head's converter of Mamba2 leaves under negative numbers.
fn is_stray(config: &ModelConfig, inside: &BTreeSet<&str>, name: &str) -> bool {
    let negative = |number: &str| number.strip_prefix('-').is_some_and(|n| n.parse::<usize>().is_ok());
    config.has_feed(Feed::None) && in_layer(name).is_some_and(|(n, own)| negative(n) && inside.contains(own))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_under_a_negative_number_is_stray_if_it_is_of_the_model() {
        let sample = ms_testing::golden_model("mamba2").unwrap();
        let config = crate::open(&sample).unwrap().config().clone();
        let inside = BTreeSet::from(["mixer.norm.weight"]);
        let stray = |name: &str| is_stray(&config, &inside, name);
        assert!(stray("decoder.layers.-2.mixer.norm.weight"));
        for other in ["decoder.layers.-x.mixer.norm.weight", "decoder.layers.-2.adapter.weight"] {
            assert!(!stray(other), "{other}");
        }
    }
}

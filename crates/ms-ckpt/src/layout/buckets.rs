//! Optimizer state of a distributed checkpoint that is stored as the ranks of the run held it: gradient buckets under keys of
//! their own (`dp_reshardable`), or gathered by one rank into an object (`dp_zero_gather_scatter`).
//!
//! ```text
//! [chained_C.]optimizer.distributed.dp_group_idx_G.gbuf_idx_B.dtype_(…).bucket_idx_K.{param,exp_avg,exp_avg_sq}
//! [chained_C.]optimizer.distributed.dp_group_idx_G.param_state/shard_0_1      what distrib_optim.pt holds
//! [chained_C.]optimizer.distributed.dp_group_idx_G.optimizer/shard_0_1        parameter groups
//! [chained_C.]optimizer.distributed.dp_group_idx_G.grad_scaler/shard_0_1      the scale of the loss, where it has one
//! ```
//!
//! Neither says which parameter lies where: that follows from the grid of ranks in `args` and from the order in which the
//! model's modules register their parameters. Whether assumed modules are the run's is checked with the master weights:
//! rounded, they must equal the weights.
//!
//! # Source
//! Megatron-Core 0.16.1, `megatron/core/optimizer/distrib_optimizer.py`, `sharded_param_state_dp_reshardable` and
//! `sharded_param_state_dp_zero`; groups of ranks in `megatron/core/optimizer/__init__.py`.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;

use ms_core::{Axis, DType, GridSizes, Region};
use ms_spec::{ModelConfig, Stages};
use serde_json::{Map, Value, json};

use super::file_grid::FileGrid;
use super::optimizer::{buffer_order, flat_buffers};
use super::rank_tensors::rank_tensors;
use super::spelling::{Experts, Local, Spelling, Version};
use super::torch_dist::opened::Opened;
use crate::checkpoint::Checkpoint;
use crate::dcp;
use crate::name::{Name, State};
use crate::optim::{
    BUFFERS, OptimizerParam, SCALER, bucket_size, flat_places, grad_scaler, inner, optimizers,
};
use crate::stored::{Global, Piece, Stored};
use crate::torch::{Node, TensorRef, TensorView};
use crate::{Error, Result};

/// What all keys of this kind have in common.
const COMMON: &str = "optimizer.distributed.dp_group_idx_";

/// The modules that a run may have had, whose names are also the order of their parameters.
pub(super) fn modules(config: &ModelConfig) -> Vec<Spelling> {
    let experts = [Experts::Sequential, Experts::Grouped];
    let experts = experts.into_iter().take(if config.moe.is_some() { 2 } else { 1 });
    let versions = [(Version::Head, false), (Version::Head, true), (Version::V2_0_0, false)];
    let of = |experts| {
        versions.map(|(version, transformer_engine)| Spelling {
            version,
            experts,
            transformer_engine,
            ..Spelling::default()
        })
    };
    experts.flat_map(of).collect()
}

/// One of the three tensors of a buffer: stored tensors in one row, and where each begins.
type Row = Vec<(usize, usize)>;

/// The flat tensors of the parameters of one type in one chunk of a rank.
struct Flat {
    numel: usize,
    rows: [Row; 3],
}

/// Globals of the optimizer state, by name.
pub(super) type States = BTreeMap<Name, Global>;

impl Opened<'_> {
    /// Whether there is state of this kind.
    pub(super) fn has_buckets(&self) -> bool {
        let keys = self.metadata.tensors.keys().chain(self.metadata.objects.keys());
        keys.into_iter().any(|k| k.contains(COMMON))
    }

    /// What such a checkpoint stores in addition to the buckets: parameter groups, and the loss scale if it has one; of
    /// several, the first counts, as for chained optimizers in one file.
    pub(super) fn beside_buckets(&mut self, state: &mut Value) -> Result<()> {
        let (metadata, mut groups) = (self.metadata, Vec::new());
        for chained in ["", "chained_0.", "chained_1."] {
            let object = |part: &str| {
                let key = format!("{chained}{COMMON}0.{part}/shard_0_1");
                metadata.objects.get(&key).map(|place| (key, place))
            };
            let (optimizer, scaler) = (object("optimizer"), object(SCALER));
            if let Some((key, place)) = optimizer {
                let file = self.file(&place.file)?;
                let archive = dcp::chunk_archive(&self.files[file], &key, place)?;
                for one in optimizers(archive.root()) {
                    if let Some(Node::List(list)) = inner(one).get("param_groups") {
                        groups.extend(list.iter().map(Node::to_json));
                    } else if let Some(Value::Array(list)) = inner(one).get("param_groups").map(Node::to_json)
                    {
                        groups.extend(list);
                    }
                }
            }
            if let Some((key, place)) = scaler
                && state["optimizer"][SCALER].is_null()
            {
                let file = self.file(&place.file)?;
                let archive = dcp::chunk_archive(&self.files[file], &key, place)?;
                let bytes = &self.files[file].bytes()[place.at..place.at + place.length];
                if let Some(one) = optimizers(archive.root()).first() {
                    state["optimizer"][SCALER] = grad_scaler(&archive, bytes, one)?;
                }
            }
        }
        if !groups.is_empty() {
            state["optimizer"]["optimizer"] = json!({"param_groups": groups});
        }
        Ok(())
    }

    /// The optimizer state of every parameter, if ranks had these modules.
    ///
    /// # Errors
    /// Another grid of ranks, other buffers or lengths than the model has.
    pub(super) fn by_rank(
        &mut self,
        args: &Map<String, Value>,
        weights: &BTreeMap<Name, Global>,
        modules: Spelling,
    ) -> Result<States> {
        let slots = self.slots()?;
        let file_grid = self.file_grid(args, &slots)?;
        let placement = file_grid.placement(self.config)?;
        let mut states = States::new();
        for rank in file_grid.ranks() {
            let locals = rank_tensors(self.config, &file_grid, &placement, modules, rank)?;
            let type_of = |l: &Local| weights.get(l.spec.name.as_str()).map_or(DType::Bf16, |g| g.dtype);
            let all: Vec<(Local, OptimizerParam)> = locals
                .into_iter()
                .filter(|l| l.spec.trained())
                .map(|l| {
                    let held = l.optimizer_param(&file_grid, type_of(&l));
                    (l, held)
                })
                .collect();
            let chained = all.iter().any(|(_, h)| h.expert);
            for experts in [false, true] {
                let mine: Vec<&(Local, OptimizerParam)> =
                    all.iter().filter(|(_, h)| h.expert == experts).collect();
                if mine.is_empty() {
                    continue;
                }
                let prefix = match (chained, experts) {
                    (false, _) => COMMON.to_owned(),
                    (true, false) => format!("chained_0.{COMMON}"),
                    (true, true) => format!("chained_1.{COMMON}"),
                };
                let group = group_of(&file_grid, rank, experts);
                let flats = self.flats(&format!("{prefix}{group}."))?;
                let held = all.iter().map(|(_, held)| held.numel).sum();
                self.share_out(&mine, flats, (args, held), file_grid.numbers(rank).p, &mut states)?;
            }
        }
        if let Some((name, _)) = states.iter().find(|(_, g)| {
            g.pieces
                .iter()
                .map(|p| {
                    p.flat.as_ref().map_or_else(|| p.region.local_shape().numel(), ExactSizeIterator::len)
                })
                .sum::<usize>()
                != g.shape.numel()
        }) {
            return Err(Error::Missing { path: self.folder.to_owned(), name: name.to_string() });
        }
        Ok(states)
    }

    /// The grid of ranks and its stages, as the run's arguments have them.
    fn file_grid(&self, args: &Map<String, Value>, slots: &[usize]) -> Result<FileGrid> {
        let size = |name: &str| args.get(name).and_then(Value::as_u64).map(|n| n as usize);
        let many = |name: &str| size(name).unwrap_or(1).max(1);
        let (tp, pp, ep) = (
            many("tensor_model_parallel_size"),
            many("pipeline_model_parallel_size"),
            many("expert_model_parallel_size"),
        );
        // Every rank has keys: their number bounds that of ranks, which come from a file.
        let keys = self.metadata.tensors.len() + self.metadata.objects.len();
        if tp.saturating_mul(pp).saturating_mul(ep) > keys {
            let what = format!("args say {tp} x {pp} x {ep} ranks, and there are {keys} keys");
            return Err(Error::folder(self.folder, what));
        }
        let total = size("num_layers").unwrap_or(0).max(slots.last().map_or(0, |l| l + 1));
        if total > slots.len() + super::torch_dist::opened::MOST_LAYERS {
            return Err(Error::folder(self.folder, format!("args say {total} layers")));
        }
        let noop = (0..total).filter(|slot| !slots.contains(slot)).collect();
        let chunks = many("virtual_pipeline_model_parallel_size");
        let dual_pipe = args.get("schedules_method").and_then(Value::as_str) == Some("dualpipev");
        let layers_per_chunk = size("num_layers_per_virtual_pipeline_stage")
            .or((chunks > 1).then(|| total / pp / chunks))
            .filter(|&n| n > 0 && n < total / pp && !dual_pipe);
        let layer_list = args.get("num_layer_list").and_then(Value::as_str);
        let layer_list = layer_list.and_then(|t| t.split(',').map(|n| n.trim().parse().ok()).collect());
        let extended = args.get("moe_tp_extend_ep").and_then(Value::as_bool) == Some(true) && tp > 1;
        let sizes = GridSizes { tp, ep, ..GridSizes::default() };
        let sizes = match (extended, size("expert_tensor_parallel_size")) {
            (true, _) => GridSizes { ep: ep * tp, etp: Some(1), ..sizes },
            (_, Some(1)) => GridSizes { etp: Some(1), ..sizes },
            _ => sizes,
        };
        let stages = Stages { pp, layers_per_chunk, layer_list, noop, dual_pipe };
        let file_grid = FileGrid::new(&sizes, stages, extended)?;
        file_grid.check(self.config)?;
        Ok(file_grid)
    }

    /// The flat tensors of a group of ranks, in the order of buffers.
    fn flats(&mut self, prefix: &str) -> Result<Vec<Flat>> {
        let gathered = format!("{prefix}param_state/shard_0_1");
        if let Some(place) = self.metadata.objects.get(&gathered) {
            return self.gathered(&gathered, place);
        }
        // Buffer and bucket, by their numbers.
        let mut found: BTreeMap<(usize, usize), [Option<&str>; 3]> = BTreeMap::new();
        let metadata = self.metadata;
        for key in metadata.tensors.keys() {
            let Some(rest) = key.strip_prefix(prefix).and_then(|r| r.strip_prefix("gbuf_idx_")) else {
                continue;
            };
            let parts = (|| {
                let (buffer, rest) = rest.split_once(".dtype_")?;
                let (_, rest) = rest.rsplit_once(".bucket_idx_")?;
                let (bucket, part) = rest.split_once('.')?;
                let which = BUFFERS.iter().position(|b| *b == part)?;
                Some((buffer.parse().ok()?, bucket.parse().ok()?, which))
            })();
            if let Some((buffer, bucket, which)) = parts {
                found.entry((buffer, bucket)).or_default()[which] = Some(key);
            }
        }
        let mut flats: BTreeMap<usize, Flat> = BTreeMap::new();
        for ((buffer, _), keys) in found {
            let flat = flats.entry(buffer).or_insert_with(|| Flat { numel: 0, rows: Default::default() });
            let mut length = None;
            for (row, key) in flat.rows.iter_mut().zip(keys) {
                let missing = || Error::Missing {
                    path: self.folder.to_owned(),
                    name: format!("{prefix}gbuf_idx_{buffer}"),
                };
                let key = key.ok_or_else(missing)?;
                let tensor = &metadata.tensors[key];
                let wrong = |what: String| {
                    Error::malformed(&self.folder.join(dcp::METADATA), format!("tensor {key}: {what}"))
                };
                // One row, or one for each data-parallel rank (`fully_sharded_bucket_space`).
                let (rows, columns) = match tensor.size[..] {
                    [n] => (1, n),
                    [rows, n] => (rows, n),
                    _ => return Err(wrong(format!("a bucket of shape {:?}", tensor.size))),
                };
                let numel = rows.checked_mul(columns).filter(|&n| *length.get_or_insert(n) == n);
                let numel = numel.ok_or_else(|| wrong(format!("a bucket of shape {:?}", tensor.size)))?;
                if tensor.dtype != Some(DType::F32) {
                    return Err(wrong(format!("expected f32, got {}", tensor.dtype_name)));
                }
                let mut have = 0;
                for (number, chunk) in tensor.chunks.iter().enumerate() {
                    let line = if tensor.size.len() == 2 { chunk.offsets[0] } else { 0 };
                    let n: usize = chunk.sizes.iter().product();
                    let one_line = chunk.sizes.len() < 2 || chunk.sizes[0] <= 1 || chunk.sizes[1] == columns;
                    let i = self.chunk(key, tensor, number)?;
                    if self.stored[i].strides.is_some() || !one_line {
                        return Err(wrong("a bucket with gaps".to_owned()));
                    }
                    let last = chunk.offsets.last().copied().unwrap_or(0);
                    // What is too far to be counted is without elements, and one of those that are missing below.
                    let at = line.saturating_mul(columns).saturating_add(last);
                    row.push((flat.numel.saturating_add(at), i));
                    have += n;
                }
                if have != numel {
                    return Err(wrong(format!("{have} of {numel} elements are there")));
                }
                row.sort_unstable();
            }
            flat.numel += length.unwrap_or(0);
        }
        Ok(flats.into_values().collect())
    }

    /// The flat tensors of an object that one rank gathered.
    fn gathered(&mut self, key: &str, place: &dcp::Chunk) -> Result<Vec<Flat>> {
        let file = self.file(&place.file)?;
        let mapped = &self.files[file];
        let archive = dcp::chunk_archive(mapped, key, place)?;
        let mut flats = Vec::new();
        for one in optimizers(archive.root()) {
            let view = |name: &str, tensor: &TensorRef| {
                let view = archive.view(name, tensor)?;
                Ok(TensorView { start: view.start + place.at, ..view })
            };
            for buffer in flat_buffers(mapped.path(), one, &view)?.unwrap_or_default() {
                let rows = buffer.starts.map(|start| {
                    let shape = vec![buffer.numel];
                    let view = TensorView { dtype: DType::F32, shape, start, strides: None };
                    self.stored.push(Stored::of(key, file, view));
                    vec![(0, self.stored.len() - 1)]
                });
                flats.push(Flat { numel: buffer.numel, rows });
            }
        }
        self.used.insert(key.to_owned());
        Ok(flats)
    }

    /// Gives each parameter of a rank, which has `held` elements in all, its part of the rank's buffers.
    fn share_out(
        &mut self,
        mine: &[&(Local, OptimizerParam)],
        flats: Vec<Flat>,
        (args, held): (&Map<String, Value>, usize),
        stage: usize,
        states: &mut States,
    ) -> Result<()> {
        let wanted = buffer_order(mine.iter().map(|(_, held)| held));
        if wanted.len() != flats.len() {
            let (want, got) = (wanted.len(), flats.len());
            return Err(Error::folder(self.folder, format!("{got} gradient buffers, expected {want}")));
        }
        for ((chunk, dtype), flat) in wanted.into_iter().zip(flats) {
            let inside: Vec<&&(Local, OptimizerParam)> =
                mine.iter().filter(|(_, h)| (h.chunk, h.dtype) == (chunk, dtype)).collect();
            let list: Vec<&OptimizerParam> = inside.iter().map(|(_, held)| held).collect();
            // As the run's arguments have it; without them, in one bucket. Releases before 0.14 keep the padding.
            let ways = [bucket_size(args, (stage, chunk), held), None].map(|size| flat_places(&list, size));
            let exact = ways.iter().find(|(_, n)| *n == flat.numel);
            let found =
                exact.or_else(|| ways.iter().find(|(_, n)| *n < flat.numel && flat.numel - *n < 1 << 16));
            let Some((places, _)) = found else {
                let (want, got) = (ways[0].1, flat.numel);
                let what = format!("a gradient buffer has {got} elements, expected {want}");
                return Err(Error::folder(self.folder, what));
            };
            for ((local, held), &at) in inside.into_iter().zip(places) {
                if !local.copy {
                    self.cut_out(local, at..at + held.numel, &flat.rows, states)?;
                }
            }
        }
        Ok(())
    }

    /// The state of one parameter: elements `range` of a rank's buffer.
    fn cut_out(
        &mut self,
        local: &Local,
        range: Range<usize>,
        rows: &[Row; 3],
        states: &mut States,
    ) -> Result<()> {
        for (state, row) in State::ADAM.into_iter().zip(rows) {
            let name = Name::state(state, &local.spec.slot);
            let global = Global::among(states, &name, local.spec.shape, DType::F32);
            // The first rank that has the part; its own pieces are added below in one go.
            if global.pieces.iter().any(|p| p.region.first() == local.lens.region.first()) {
                continue;
            }
            for &(start, i) in row {
                let n: usize = self.stored[i].shape.iter().product();
                let (from, to) = (range.start.max(start), range.end.min(start + n));
                if from >= to {
                    continue;
                }
                let whole = to - from == range.len();
                let at = self.stored[i].start + (from - start) * DType::F32.size();
                let shape = if whole { local.lens.shape.clone() } else { vec![to - from] };
                let view = if whole { local.lens.view(None) } else { Ok(None) };
                let view = view.map_err(|what| Error::folder(self.folder, format!("{name}: {what}")))?;
                if !whole && local.lens.transposed {
                    let what =
                        format!("{name}: a transposed matrix that data-parallel ranks share is not read");
                    return Err(Error::folder(self.folder, what));
                }
                self.stored.push(Stored {
                    shape,
                    start: at,
                    name: name.to_string(),
                    ..self.stored[i].clone()
                });
                let flat = (!whole).then(|| from - range.start..to - range.start);
                let region = local.lens.region.clone();
                global.pieces.push(Piece { stored: self.stored.len() - 1, region, flat, view });
            }
        }
        Ok(())
    }
}

/// Takes the first of the ways that fits, and says so if none does: then these are weights alone.
///
/// # Errors
/// What reading weights returns.
pub(super) fn settle(checkpoint: &mut Checkpoint, folder: &Path, ways: Vec<Result<States>>) -> Result<()> {
    let mut refused = None;
    for way in ways {
        match way {
            Ok(states) => {
                let names: BTreeSet<Name> = states.keys().cloned().collect();
                checkpoint.globals.extend(states);
                if masters_are_the_weights(checkpoint)? {
                    return Ok(());
                }
                checkpoint.globals.retain(|name, _| !names.contains(name));
                let why = "its master weights are not the weights in any known order of parameters";
                refused.get_or_insert(why.to_owned());
            }
            Err(error) => drop(refused.get_or_insert(error.to_string())),
        }
    }
    if let Some(why) = refused {
        tracing::warn!("{}: the optimizer state is not read: {why}", folder.display());
    }
    Ok(())
}

/// Whether the optimizer's master weights, rounded, equal the weights: checked for the first elements of each.
fn masters_are_the_weights(checkpoint: &Checkpoint) -> Result<bool> {
    const LOOKED_AT: usize = 256;
    for spec in ms_spec::params(&checkpoint.config).iter().filter(|s| s.trained()) {
        let range = 0..spec.shape.numel().min(LOOKED_AT);
        let whole = Region::whole(&spec.shape);
        let read = |name: &str| -> Result<Vec<f32>> {
            let mut bytes = vec![0u8; range.len() * DType::F32.size()];
            checkpoint.read_named(name, &whole, Some(range.clone()), DType::F32, &mut bytes)?;
            let floats = bytes.chunks_exact(4);
            Ok(floats.map(|b| f32::from_le_bytes(b.try_into().expect("exact chunk"))).collect())
        };
        let name = Name::state(State::Master, &spec.slot);
        if !checkpoint.has(&name) {
            return Ok(false);
        }
        let (masters, weights) = (read(&name)?, read(&spec.name)?);
        // A unit in the last place of bf16, the narrowest type of weights, and what is too small for it.
        let near = |(m, w): (&f32, &f32)| (m - w).abs() <= w.abs().max(1e-30) / 128.0;
        if !masters.iter().zip(&weights).all(near) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The number of a rank's group of data-parallel ranks.
fn group_of(file_grid: &FileGrid, rank: usize, experts: bool) -> usize {
    let topology = if experts { file_grid.grid().expert() } else { file_grid.grid().dense() };
    let along = |at: usize, axis| at * topology.size(axis) + topology.coord(rank, axis);
    [Axis::Pp, Axis::Ep, Axis::Tp].into_iter().fold(0, along)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ms_spec::Role;

    /// The versions of upstream register latent attention's parameters in different orders.
    #[test]
    fn the_modules_of_both_versions_are_tried() {
        let config = ms_spec::hf::read_config(&json!({
            "model_type": "deepseek_v2", "num_hidden_layers": 1, "hidden_size": 16, "intermediate_size": 16,
            "num_attention_heads": 2, "vocab_size": 32, "q_lora_rank": 8, "kv_lora_rank": 8, "qk_nope_head_dim": 4,
            "qk_rope_head_dim": 4, "v_head_dim": 4, "n_routed_experts": 2, "num_experts_per_tok": 1,
            "first_k_dense_replace": 1, "moe_intermediate_size": 8,
        }))
        .unwrap();
        let file_grid = FileGrid::new(&GridSizes::default(), Stages::default(), false).unwrap();
        let placement = file_grid.placement(&config).unwrap();
        let of_latents = [Role::QLayernorm, Role::LinearQUpProj, Role::KvLayernorm, Role::LinearKvUpProj];
        let order = |modules| {
            let locals = rank_tensors(&config, &file_grid, &placement, modules, 0).unwrap();
            let roles = locals.into_iter().map(|l| l.spec.slot.role);
            roles.filter(|role| of_latents.contains(role)).collect::<Vec<_>>()
        };
        let orders: Vec<_> = modules(&config).into_iter().map(order).collect();
        let [query, up, latent, both] = of_latents;
        assert!(orders.contains(&vec![query, up, latent, both]), "{orders:?}");
        assert!(orders.contains(&vec![query, latent, up, both]), "{orders:?}");
    }
}

//! Optimizer state in rank files: the flat buffers of a distributed optimizer, or the tensors of an ordinary one.

use std::collections::BTreeMap;
use std::path::Path;

use ms_core::DType;
use serde_json::{Map, Value};

use crate::optim::{BUFFERS, OptimizerParam, bucket_size, flat_places, inner, optimizers};
use crate::stored::Stored;
use crate::torch::{Node, TensorRef, TensorView, TorchFile};
use crate::{Error, Result};

/// The state stored next to a rank's weights.
#[derive(Debug)]
pub(super) struct States {
    path: std::path::PathBuf,
    file: usize,
    /// One entry for each optimizer of a chain: dense parameters, experts.
    optimizers: Vec<Optimizer>,
}

#[derive(Debug)]
enum Optimizer {
    /// No parameters of its kind on this rank.
    Absent,
    /// Flat buffers in the order of chunks and types.
    Flat(Vec<Buffer>),
    /// Tensors by group.
    Each(Vec<Group>),
}

/// The flat buffers of the parameters of one type in one chunk.
#[derive(Debug)]
pub(super) struct Buffer {
    /// Type of the weights, where the key says it.
    pub(super) types: String,
    pub(super) numel: usize,
    /// First bytes of the three.
    pub(super) starts: [usize; 3],
}

/// Finds a tensor's bytes in a file.
type View<'a> = &'a dyn Fn(&str, &TensorRef) -> Result<TensorView>;

/// The flat buffers of one optimizer, in the order of chunks and types; `None` if it has no parameters of its kind.
///
/// # Errors
/// Buffers that are not whole, or not float32 in one dimension.
pub(super) fn flat_buffers(path: &Path, optimizer: &Node, view: View<'_>) -> Result<Option<Vec<Buffer>>> {
    let Node::Dict(entries) = optimizer else { return Ok(None) };
    if optimizer.get("buckets_coalesced").map(Node::to_json) != Some(Value::Bool(true)) {
        return Err(Error::malformed(path, "optimizer state by buckets: only whole buffers are read"));
    }
    let mut buffers: Vec<(usize, Buffer)> = Vec::new();
    for (key, node) in entries {
        let (Ok(number), Node::Dict(by_types)) = (key.parse::<usize>(), node) else { continue };
        for (types, node) in by_types {
            let name = |part: &str| format!("buffer {number} {types} {part}");
            let mut starts = [0; 3];
            let mut numel = None;
            for (start, part) in starts.iter_mut().zip(BUFFERS) {
                let (n, at) = row(path, &name(part), node.get(part), view)?;
                if *numel.get_or_insert(n) != n {
                    return Err(Error::malformed(path, format!("{}: {n} elements", name(part))));
                }
                *start = at;
            }
            let numel = numel.unwrap_or(0);
            buffers.push((number, Buffer { types: types.clone(), numel, starts }));
        }
    }
    buffers.sort_by_key(|b| b.0);
    Ok(Some(buffers.into_iter().map(|b| b.1).collect()))
}

#[derive(Debug)]
struct Group {
    decay: bool,
    /// For vocabulary matrices, with their own learning rate.
    decoupled: bool,
    /// The moments of each parameter.
    moments: Vec<[Option<Stored>; 2]>,
    /// The master weights of those whose weights are not float32.
    masters: Vec<Option<Stored>>,
}

impl Group {
    /// The states of its parameters, whose weights have these types.
    fn states(&self, mut types: impl Iterator<Item = DType>) -> Vec<[Option<Stored>; 3]> {
        let mut masters = self.masters.iter();
        let whole = self.masters.len() == self.moments.len();
        let states = self.moments.iter().map(|[mean, square]| {
            let narrow = types.next().is_none_or(|dtype| dtype != dtype.wide());
            let master = if whole || narrow { masters.next().cloned().flatten() } else { None };
            [master, mean.clone(), square.clone()]
        });
        states.collect()
    }
}

/// A tensor that is stored in one row as float32: its length and first byte.
fn row(path: &Path, name: &str, node: Option<&Node>, view: View<'_>) -> Result<(usize, usize)> {
    let wrong = |what: &str| Error::malformed(path, format!("{name}: {what}"));
    let Some(Node::Tensor(tensor)) = node else { return Err(wrong("no tensor")) };
    let view = view(name, tensor)?;
    match (view.dtype, view.strides, &view.shape[..]) {
        (DType::F32, None, &[n]) => Ok((n, view.start)),
        (dtype, _, shape) => Err(wrong(&format!("expected f32 in one dimension, got {dtype} {shape:?}"))),
    }
}

impl States {
    /// Reads the index of a distributed optimizer's file, which is file number `file`.
    pub(super) fn flat(torch: &TorchFile, path: &Path, file: usize) -> Result<Self> {
        let mut all = Vec::new();
        for optimizer in optimizers(torch.root()) {
            let buffers = flat_buffers(torch.file().path(), optimizer, &|name, t| torch.view(name, t))?;
            all.push(buffers.map_or(Optimizer::Absent, Optimizer::Flat));
        }
        Ok(Self { path: path.to_owned(), file, optimizers: all })
    }

    /// Finds the tensors of an optimizer that is not distributed, in the file of the weights; `None` if it has none.
    pub(super) fn each(torch: &TorchFile, path: &Path, file: usize) -> Result<Option<Self>> {
        let Some(node) = torch.root().get("optimizer") else { return Ok(None) };
        let mut all = Vec::new();
        for optimizer in optimizers(node) {
            let Some(Node::Dict(states)) = inner(optimizer).get("state") else {
                all.push(Optimizer::Absent);
                continue;
            };
            let states: BTreeMap<&str, &Node> = states.iter().map(|(id, node)| (id.as_str(), node)).collect();
            let stored = |name: String, node: Option<&Node>| -> Result<Option<Stored>> {
                let Some(Node::Tensor(tensor)) = node else { return Ok(None) };
                let view = torch.view(&name, tensor)?;
                Ok(Some(Stored::of(name, file, view)))
            };
            let mut groups = Vec::new();
            for (g, group) in inner(optimizer).get("param_groups").map_or(&[][..], items).iter().enumerate() {
                let number = |name: &str| group.get(name).and_then(|n| n.to_json().as_f64());
                let ids = group.get("params").map(Node::to_json);
                let ids: Vec<u64> = match ids {
                    Some(Value::Array(ids)) => ids.iter().filter_map(Value::as_u64).collect(),
                    _ => {
                        return Err(Error::malformed(
                            path,
                            format!("parameter group {g} without parameters"),
                        ));
                    }
                };
                let masters = optimizer.get("fp32_from_fp16_params").map_or(&[][..], items);
                let masters = masters.get(g).map_or(&[][..], items);
                let moments = ids.iter().map(|id| {
                    let own = states.get(id.to_string().as_str());
                    let one = |part: &str| {
                        stored(format!("optimizer/{g}/{id}/{part}"), own.and_then(|n| n.get(part)))
                    };
                    Ok([one("exp_avg")?, one("exp_avg_sq")?])
                });
                let moments = moments.collect::<Result<_>>()?;
                let master =
                    |(k, node)| stored(format!("optimizer/{g}/fp32_from_fp16_params/{k}"), Some(node));
                let masters = masters.iter().enumerate().map(master).collect::<Result<_>>()?;
                let decay = number("wd_mult").unwrap_or(1.0) != 0.0;
                let decoupled = group.get("is_decoupled_lr").map(Node::to_json) == Some(Value::Bool(true));
                groups.push(Group { decay, decoupled, moments, masters });
            }
            all.push(Optimizer::Each(groups));
        }
        let some = all.iter().any(|o| !matches!(o, Optimizer::Absent));
        Ok(some.then(|| Self { path: path.to_owned(), file, optimizers: all }))
    }

    /// The three state tensors of each parameter of the rank, in the order of `held`; those of parameters whose weights
    /// are float32 may lack the first.
    ///
    /// # Errors
    /// Other parameters than the rank has.
    pub(super) fn place(
        &self,
        held: &[OptimizerParam],
        shapes: &[Vec<usize>],
        args: &Map<String, Value>,
        stage: usize,
    ) -> Result<Vec<[Option<Stored>; 3]>> {
        let mut out = vec![[None, None, None]; held.len()];
        // With one optimizer experts are among the others.
        let chained = self.optimizers.len() > 1;
        for (number, optimizer) in self.optimizers.iter().enumerate() {
            let mine: Vec<usize> =
                (0..held.len()).filter(|&i| !chained || held[i].expert == (number > 0)).collect();
            match optimizer {
                Optimizer::Absent => {}
                Optimizer::Flat(buffers) => self.take(buffers, &mine, held, shapes, args, stage, &mut out)?,
                Optimizer::Each(groups) => {
                    let apart = groups.iter().any(|g| g.decoupled);
                    let of = |held: &OptimizerParam| (held.decay, apart && held.words);
                    for key in [(true, false), (false, false), (true, true), (false, true)] {
                        let wanted = mine.iter().copied().filter(|&i| of(&held[i]) == key);
                        let found = groups.iter().filter(|g| (g.decay, g.decoupled) == key);
                        let wanted: Vec<usize> = wanted.collect();
                        let mut types = wanted.iter().map(|&i| held[i].dtype);
                        let found: Vec<_> = found.flat_map(|g| g.states(&mut types)).collect();
                        let fits = wanted.len() == found.len()
                            && wanted
                                .iter()
                                .zip(&found)
                                .all(|(&i, f)| f.iter().flatten().all(|s| s.shape == shapes[i]));
                        if !fits {
                            let (want, got) = (wanted.len(), found.len());
                            let what = format!(
                                "the optimizer has {got} parameters of other shapes, expected {want}"
                            );
                            return Err(Error::malformed(&self.path, what));
                        }
                        for (i, state) in wanted.into_iter().zip(found) {
                            out[i] = state;
                        }
                    }
                }
            }
        }
        Ok(out)
    }

    #[allow(clippy::too_many_arguments)] // what place() was given, and where it goes
    fn take(
        &self,
        buffers: &[Buffer],
        mine: &[usize],
        held: &[OptimizerParam],
        shapes: &[Vec<usize>],
        args: &Map<String, Value>,
        stage: usize,
        out: &mut [[Option<Stored>; 3]],
    ) -> Result<()> {
        let wanted = buffer_order(mine.iter().map(|&i| &held[i]));
        if wanted.len() != buffers.len() {
            let (want, got) = (wanted.len(), buffers.len());
            return Err(Error::malformed(&self.path, format!("{got} gradient buffers, expected {want}")));
        }
        for ((chunk, dtype), buffer) in wanted.into_iter().zip(buffers) {
            let inside: Vec<usize> =
                mine.iter().copied().filter(|&i| (held[i].chunk, held[i].dtype) == (chunk, dtype)).collect();
            let list: Vec<&OptimizerParam> = inside.iter().map(|&i| &held[i]).collect();
            // As the run's arguments have it; without them, in one bucket.
            let all = held.iter().map(|h| h.numel).sum();
            let ways = [bucket_size(args, (stage, chunk), all), None];
            let found = ways.iter().map(|&size| flat_places(&list, size)).find(|(_, n)| *n == buffer.numel);
            let Some((places, _)) = found else {
                let want = flat_places(&list, ways[0]).1;
                let (types, got) = (&buffer.types, buffer.numel);
                let what = format!("the buffer of chunk {chunk} {types} has {got} elements, expected {want}");
                return Err(Error::malformed(&self.path, what));
            };
            for (i, at) in inside.into_iter().zip(places) {
                for (slot, (start, part)) in out[i].iter_mut().zip(buffer.starts.iter().zip(BUFFERS)) {
                    let (dtype, shape, start) = (DType::F32, shapes[i].clone(), start + at * 4);
                    let view = TensorView { dtype, shape, start, strides: None };
                    *slot = Some(Stored::of(part, self.file, view));
                }
            }
        }
        Ok(())
    }
}

/// The buffers of an optimizer: chunk by chunk, types in the order in which parameters have them.
pub(crate) fn buffer_order<'a>(held: impl Iterator<Item = &'a OptimizerParam>) -> Vec<(usize, DType)> {
    let mut order: Vec<(usize, DType)> = Vec::new();
    for h in held {
        if !order.contains(&(h.chunk, h.dtype)) {
            order.push((h.chunk, h.dtype));
        }
    }
    order.sort_by_key(|o| o.0);
    order
}

fn items(node: &Node) -> &[Node] {
    match node {
        Node::List(items) => items,
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn master_weights_are_those_of_the_weights_that_are_rounded() {
        let stored = |name: &str| Some(Stored::zeros(name.to_owned(), DType::F32, vec![1]));
        let masters = |names: &[&str], types: [DType; 3]| -> Vec<Option<String>> {
            let group = Group {
                decay: true,
                decoupled: false,
                moments: ["x", "y", "z"].map(|name| [stored(name), stored(name)]).to_vec(),
                masters: names.iter().map(|name| stored(name)).collect(),
            };
            let states = group.states(types.into_iter()).into_iter();
            states.map(|[master, ..]| master.map(|stored| stored.name)).collect()
        };
        let [a, b, c] = ["a", "b", "c"].map(|name| Some(name.to_owned()));
        let mixed = [DType::F32, DType::Bf16, DType::Bf16];
        assert_eq!(masters(&["a", "b"], mixed), [None, a.clone(), b.clone()]);
        assert_eq!(masters(&["a", "b", "c"], mixed), [a, b, c]);
        assert_eq!(masters(&[], [DType::F32; 3]), [None, None, None]);
    }
}

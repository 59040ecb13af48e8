//! Upcycling: experts initialised as copies of a dense model's MLPs.
//!
//! Source: Megatron-LM `core_v0.12.1`, `megatron/core/transformer/moe/upcycling_utils.py`, and
//! `megatron/training/training.py`, `setup_model_and_optimizer`: every expert is the MLP of its layer, routers are drawn at
//! random, everything else is the dense model's.

use ms_ckpt::{Checkpoint, Result};
use ms_core::{ParamId, ParamStore, Region, Shape};
use ms_spec::{ParamSpec, Part, Slot};

/// Reads the dense model `source` into `store`, a model with experts: of each weight comes what it is, and which part of it the
/// store has.
///
/// # Errors
/// If it lacks a weight, or has it in another shape than an expert's.
pub(crate) fn read_weights(
    source: &Checkpoint,
    store: &mut ParamStore,
    weights: Vec<(ParamId, &ParamSpec, Region)>,
) -> Result<()> {
    let taken = weights.into_iter().filter(|(_, spec, _)| !is_drawn(spec));
    let (experts, others): (Vec<_>, Vec<_>) = taken.partition(|w| w.1.slot.part == Part::Experts);
    source.load_into(store, &others)?;
    let dtype = store.dtype();
    for (id, spec, region) in experts {
        let (network, copies) = of_one(&region);
        let name = Slot { part: Part::Dense, ..spec.slot }.name();
        let mut bytes = vec![0; network.local_shape().numel() * dtype.size()];
        if bytes.is_empty() || copies == 0 {
            continue;
        }
        source.read_named(&name, &network, None, dtype, &mut bytes)?;
        let mut weight = store.get_mut(id)?;
        weight.bytes_mut().chunks_exact_mut(bytes.len()).for_each(|expert| expert.copy_from_slice(&bytes));
    }
    Ok(())
}

/// Whether a dense model has nothing in the place of a weight.
pub(crate) fn is_drawn(spec: &ParamSpec) -> bool {
    spec.slot.part == Part::Router
}

/// A rank's part of one MLP, if it has `region` of the stacked MLPs `[E,…]`, and how many it has.
fn of_one(region: &Region) -> (Region, usize) {
    let shape = Shape::new(&region.shape[1..]);
    match region.dim {
        0 => (Region::whole(&shape), region.ranges.iter().map(ExactSizeIterator::len).sum()),
        dim => {
            let network = Region::along(&shape, dim - 1, region.ranges.iter().cloned());
            (network, region.lead.as_ref().map_or(region.shape[0], ExactSizeIterator::len))
        }
    }
}

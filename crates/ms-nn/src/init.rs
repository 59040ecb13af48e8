//! Initial weights.

use crate::Result;
use ms_core::{Grid, ParamId, ParamStore, Rng};
use ms_spec::{Init, ParamSpec};

/// Fills `store` with the initial weights of rank `rank`'s part of `specs`.
///
/// A weight is drawn whole from the stream of its own name under `seed` and then cut, so the initial model is the
/// same on every topology. (Megatron draws per rank from torch's generator: other numbers of the same
/// distribution.)
///
/// # Errors
/// If a weight does not divide among the ranks or `store` is in use.
pub fn init_params(
    store: &mut ParamStore,
    specs: &[ParamSpec],
    seed: u64,
    rank: usize,
    grid: &Grid,
) -> Result<()> {
    for (i, spec) in specs.iter().enumerate() {
        let mut whole = vec![0f32; spec.shape.numel()];
        match spec.init {
            Init::Normal { std } => Rng::named(seed, &spec.name).fill_normal(&mut whole, std as f32),
            Init::Ones => whole.fill(1.0),
            Init::Zeros => {}
            Init::Uniform { bound } => fill(&mut whole, seed, spec, |u| (2.0 * u - 1.0) * bound),
            Init::LogOfUniform { low, high } => {
                fill(&mut whole, seed, spec, |u| (low + (high - low) * u).ln());
            }
            Init::RoundRobin { of } => {
                let columns = spec.shape.last().copied().unwrap_or(1).max(1);
                let number = |i: usize| ((i / columns + i % columns) % of.max(1)) as f32;
                whole.iter_mut().enumerate().for_each(|(i, w)| *w = number(i));
            }
            Init::InverseSoftplus { low, high } => fill(&mut whole, seed, spec, |u| {
                let x = (low.ln() + (high.ln() - low.ln()) * u).exp().max(1e-4);
                x + (-(-x).exp_m1()).ln() // softplus of this is x
            }),
        }
        let region = ms_spec::local(spec, grid, rank)?;
        let local: Vec<f64> = region
            .runs()
            .flat_map(|(start, len)| whole[start..start + len].iter().map(|&w| w.into()))
            .collect();
        store.get_mut(ParamId(i as u32))?.set_reals(&local)?;
    }
    Ok(())
}

/// Fills `whole` with `value` of uniform numbers in `[0, 1)` from the parameter's own stream.
fn fill(whole: &mut [f32], seed: u64, spec: &ParamSpec, value: impl Fn(f64) -> f64) {
    let mut rng = Rng::named(seed, &spec.name);
    whole.iter_mut().for_each(|w| *w = value(rng.uniform()) as f32);
}

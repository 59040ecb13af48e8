//! Initial weights.

use crate::Result;
use ms_core::{Grid, ParamId, ParamStore, Rng};
use ms_spec::{Init, ParamSpec};

/// Elements that are drawn at a time.
const PIECE: usize = 1 << 14;

/// Fills `store` with the initial weights of rank `rank`'s part of those `specs` that are `wanted`.
///
/// A weight's values are drawn from a random stream of its own, chosen by `seed` and its name, and indexed by the position of
/// each element in the whole weight. So the initial model is the same on every topology, and a rank draws only its own
/// elements. (Megatron draws per rank from torch's generator: other numbers of the same distribution, but for the modules
/// that `docs/reference/differences.md` lists.)
///
/// They are always drawn in f32, whatever the type of the weights: a model in f64 starts with the same values as one in f32,
/// so that the two can be compared from the first step on.
///
/// # Errors
/// If a weight does not divide among the ranks or `store` is in use.
pub fn init_params(
    store: &mut ParamStore,
    specs: &[ParamSpec],
    seed: u64,
    (rank, grid): (usize, &Grid),
    wanted: impl Fn(&ParamSpec) -> bool,
) -> Result<()> {
    let (mut drawn, mut reals) = (vec![0f32; PIECE], vec![0f64; PIECE]);
    for (i, spec) in specs.iter().enumerate().filter(|(_, spec)| wanted(spec)) {
        let region = ms_spec::local(spec, grid, rank)?;
        let (mut own, mut at) = (store.get_mut(ParamId(i as u32))?, 0);
        for (start, len) in region.runs() {
            for first in (0..len).step_by(PIECE) {
                let n = PIECE.min(len - first);
                draw(&mut drawn[..n], spec, seed, start + first);
                reals.iter_mut().zip(&drawn[..n]).for_each(|(to, &w)| *to = w.into());
                own.part(at, [n])?.set_reals(&reals[..n])?;
                at += n;
            }
        }
    }
    Ok(())
}

/// Elements of a weight from its element `start` on.
fn draw(out: &mut [f32], spec: &ParamSpec, seed: u64, start: usize) {
    let mut rng = Rng::named(seed, &spec.name);
    let mut uniform = |out: &mut [f32], value: &dyn Fn(f64) -> f64| {
        // A block of the stream for each.
        rng.seek(start as u64);
        out.iter_mut().for_each(|w| *w = value(rng.uniform()) as f32);
    };
    match spec.init {
        Init::Normal { std } => rng.fill_normal_from(start, out, std as f32),
        Init::Ones => out.fill(1.0),
        Init::Zeros => out.fill(0.0),
        Init::Uniform { bound } => uniform(out, &|u| (2.0 * u - 1.0) * bound),
        Init::LogOfUniform { low, high } => uniform(out, &|u| (low + (high - low) * u).ln()),
        Init::RoundRobin { of } => {
            let columns = spec.shape.last().copied().unwrap_or(1).max(1);
            let number = |i: usize| ((i / columns + i % columns) % of.max(1)) as f32;
            out.iter_mut().zip(start..).for_each(|(w, i)| *w = number(i));
        }
        Init::InverseSoftplus { low, high } => uniform(out, &|u| {
            let x = (low.ln() + (high.ln() - low.ln()) * u).exp().max(1e-4);
            x + (-(-x).exp_m1()).ln() // softplus of this is x
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ms_core::{Arena, DType, GridRules, GridSizes, ParamLayout};
    use ms_spec::ModelConfig;
    use std::sync::Arc;

    /// The weights that `rank` of `grid` begins with.
    fn drawn(specs: &[ParamSpec], rank: usize, grid: &Grid) -> Vec<Vec<f64>> {
        let shapes = specs.iter().map(|s| ms_spec::local(s, grid, rank).unwrap().local_shape());
        let layout = Arc::new(ParamLayout::sequential(shapes));
        let mut store = ParamStore::zeros(&Arena::default(), DType::F32, layout.clone());
        init_params(&mut store, specs, 9, (rank, grid), |_| true).unwrap();
        layout.ids().map(|id| store.get(id).to_reals().unwrap()).collect()
    }

    fn config(name: &str) -> ModelConfig {
        let path = ms_testing::golden_model(name).unwrap().join("config.json");
        let json = ms_spec::hf::parse_json(&std::fs::read_to_string(path).unwrap()).unwrap();
        ms_spec::hf::read_config(&json).unwrap()
    }

    #[test]
    fn what_a_rank_draws_is_the_cut_of_the_whole() {
        // All kinds of initial numbers, cut along rows, columns and experts; layers of Mamba-2 in six parts.
        let sizes = GridSizes { tp: 2, ep: 2, etp: Some(1), ..GridSizes::default() };
        let grid = Grid::new(2, &sizes, GridRules::Head).unwrap();
        let mut cuts = 0;
        for name in ["deepseek_v4", "mixtral", "mamba2", "mamba3", "qwen3_next"] {
            let specs = ms_spec::params(&config(name));
            let whole = drawn(&specs, 0, &Grid::single());
            for (spec, values) in specs.iter().zip(&whole).filter(|s| matches!(s.0.init, Init::Normal { .. }))
            {
                let Init::Normal { std } = spec.init else { continue };
                let mut at_once = vec![0f32; values.len()];
                Rng::named(9, &spec.name).fill_normal(&mut at_once, std as f32);
                assert!(
                    at_once.iter().zip(values).all(|(a, b)| f64::from(*a) == *b),
                    "{name}: {}",
                    spec.name
                );
            }
            for rank in 0..2 {
                let parts = drawn(&specs, rank, &grid);
                for ((spec, whole), part) in specs.iter().zip(&whole).zip(&parts) {
                    let region = ms_spec::local(spec, &grid, rank).unwrap();
                    let cut: Vec<f64> =
                        region.runs().flat_map(|(start, len)| whole[start..start + len].to_vec()).collect();
                    assert_eq!(cut, *part, "{name}: {} on rank {rank}", spec.name);
                    cuts += usize::from(part.len() < whole.len());
                }
            }
        }
        assert!(cuts > 100, "{cuts}");
    }
}

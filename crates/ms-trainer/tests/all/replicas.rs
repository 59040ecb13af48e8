//! Weights that data-parallel replicas should have in common are compared bit by bit.

use crate::parity::small_experts;
use ms_core::{DType, Grid, GridRules, GridSizes, ParamId};
use ms_dist::{ParallelCtx, ParallelOptions, threads};
use ms_trainer::{Engine, TrainConfig};

/// What two ranks say of their weights where rank 1 has changed the last bit of parameter `spoilt`.
fn compared(sizes: GridSizes, spoilt: Option<&str>) -> Vec<Result<(), String>> {
    let grid = Grid::new(2, &sizes, GridRules::V2).unwrap();
    let config = TrainConfig::steps(small_experts(), DType::F64, 16, 1);
    let of_rank = |fabric: threads::ThreadFabric| -> ms_trainer::Result<_> {
        let ctx = ParallelCtx::new(grid.clone(), ParallelOptions::default(), &fabric)?;
        let mut engine = Engine::new(&config, ms_reference::device(), ctx)?;
        let place = engine.model.specs().iter().position(|s| Some(s.name.as_str()) == spoilt);
        if let (Some(i), 1) = (place, engine.ctx.rank) {
            let mut weight = engine.store.get_mut(ParamId(i as u32))?;
            let last = weight.as_mut_slice::<f64>()?.last_mut().unwrap();
            *last = f64::from_bits(last.to_bits() ^ 1);
        }
        Ok(engine.check_replicas(3).map_err(|e| e.to_string()))
    };
    threads::run(2, of_rank).map_err(|(rank, e)| format!("rank {rank}: {e}")).unwrap()
}

#[test]
fn one_bit_of_one_rank_is_found_and_named() {
    let dp = GridSizes::default();
    assert!(compared(dp, None).iter().all(Result::is_ok));
    for name in ["decoder.layers.0.mlp.linear_fc1.weight", "embedding.word_embeddings.weight"] {
        for said in compared(dp, Some(name)) {
            let message = said.unwrap_err();
            let start = "after iteration 3, rank";
            assert!(message.starts_with(start) && message.contains(&format!("{name} is not")), "{message}");
        }
    }
    // Ranks that hold other experts have nothing to compare of these.
    let ep = GridSizes { ep: 2, ..dp };
    assert!(compared(ep, None).iter().all(Result::is_ok));
    let shared = "decoder.layers.1.self_attention.linear_qkv.weight";
    assert!(compared(ep, Some(shared)).iter().all(Result::is_err));
}

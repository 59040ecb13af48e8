//! Learning rates of the word embedding and the output layer.

use ms_core::{DType, Grid, GridRules, GridSizes, ParamId};
use ms_dist::{ParallelCtx, ParallelOptions, threads};
use ms_spec::ModelConfig;
use ms_trainer::parity::{Shape, batches};
use ms_trainer::{Checks, Engine, OptimizerConfig, PipelineConfig, Rates, TrainConfig, UpdateRule};
use std::collections::BTreeMap;

fn model(tied: bool) -> ModelConfig {
    ModelConfig { tied, init_std: 0.02, ..ModelConfig::tiny() }
}

/// How far a step of plain gradient descent moves the weights that rank 0 of two stages and the last one hold, in f64.
fn moved(tied: bool, rates: Rates) -> BTreeMap<String, Vec<f64>> {
    let sizes = GridSizes { pp: 2, ..GridSizes::default() };
    let grid = Grid::new(2, &sizes, GridRules::V2).unwrap();
    let config = TrainConfig {
        optimizer: OptimizerConfig {
            update: UpdateRule::Sgd { momentum: 0.0 },
            ..OptimizerConfig::default()
        },
        pipeline: PipelineConfig {
            stages: ms_spec::Stages { pp: 2, ..ms_spec::Stages::default() },
            ..PipelineConfig::default()
        },
        checks: Checks::NONE,
        ..TrainConfig::steps(model(tied), DType::F64, 16, 1)
    };
    let step = batches(&config.model, Shape { rows: 1, length: 16, micro: 3, packed: false }, 1).remove(0);
    let of_rank = |fabric: threads::ThreadFabric| -> ms_trainer::Result<_> {
        let ctx = ParallelCtx::new(grid.clone(), ParallelOptions::default(), &fabric)?;
        let mut engine = Engine::new(&config, ms_reference::device(), ctx)?;
        let weights = |engine: &Engine| -> Vec<(String, Vec<f64>)> {
            let specs = engine.model.specs().iter().enumerate();
            specs
                .map(|(i, s)| (s.name.clone(), engine.store.get(ParamId(i as u32)).to_reals().unwrap()))
                .collect()
        };
        let before = weights(&engine);
        engine.step(1, &step, rates)?;
        let each = before.into_iter().zip(weights(&engine));
        Ok(each
            .map(|((name, a), (_, b))| (name, a.iter().zip(b).map(|(a, b)| b - a).collect()))
            .collect::<Vec<_>>())
    };
    threads::run(2, of_rank)
        .map_err(|(rank, e)| format!("rank {rank}: {e}"))
        .unwrap()
        .into_iter()
        .flatten()
        .collect()
}

#[test]
fn the_tables_of_words_follow_their_own_rate_and_nothing_else_does() {
    let rates = |decoupled_lr| Rates { lr: 0.01, decoupled_lr, weight_decay: 0.0 };
    for tied in [false, true] {
        let plain = moved(tied, rates(None));
        assert_eq!(plain, moved(tied, rates(Some(0.01))), "one rate for all");
        let decoupled = moved(tied, rates(Some(0.03)));
        let mut own = Vec::new();
        for (name, by) in &decoupled {
            let words = matches!(name.as_str(), "embedding.word_embeddings.weight" | "output_layer.weight");
            let factor = if words { 3.0 } else { 1.0 };
            let largest = plain[name].iter().fold(0f64, |m, x| m.max(x.abs()));
            assert!(largest > 0.0, "{name} moves");
            for (by, plain) in by.iter().zip(&plain[name]) {
                assert!((by - factor * plain).abs() <= 1e-12 * largest.max(1.0), "{name}: {by} {plain}");
            }
            own.extend(words.then_some(name.as_str()));
        }
        let both = ["embedding.word_embeddings.weight", "output_layer.weight"];
        assert_eq!(own, both[..if tied { 1 } else { 2 }]);
    }
}

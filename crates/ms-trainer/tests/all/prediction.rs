//! Multi-token prediction compared with a float64 run of the same weights in PyTorch.

use ms_core::{DType, Device, ParamId};
use ms_cpu::CpuBackend;
use ms_data::MicroBatch;
use ms_dist::ParallelCtx;
use ms_kernels::Isa;
use ms_nn::Recompute;
use ms_spec::{Family, ModelConfig};
use ms_testing::{Golden, read_golden, workspace_root};
use ms_trainer::{Engine, StepReport, TrainConfig};
use std::collections::BTreeMap;

fn golden() -> BTreeMap<String, Golden> {
    read_golden(&workspace_root().join("tests/golden/prediction/prediction.safetensors")).0
}

/// One step on the golden batch with the golden weights.
fn step(golden: &BTreeMap<String, Golden>, change: impl FnOnce(&mut TrainConfig)) -> StepReport {
    let ints = |name: &str| -> Vec<i32> { golden[name].i64().iter().map(|&v| v as i32).collect() };
    let batch = MicroBatch {
        ahead: Vec::new(),
        tokens: ints("tokens"),
        labels: ints("labels"),
        loss_mask: golden["mask"].f32(),
        position_ids: (0..18).map(|t| t % 9).collect(),
        cu_seqlens: vec![0, 9, 18],
        row_ends: vec![9, 18],
        samples: Vec::new(),
    };
    step_on(golden, &batch, change)
}

/// One step on `batch` with the golden weights.
fn step_on(
    golden: &BTreeMap<String, Golden>,
    batch: &MicroBatch,
    change: impl FnOnce(&mut TrainConfig),
) -> StepReport {
    let model = ModelConfig {
        family: Family::LLAMA,
        layers: 2,
        hidden: 16,
        ffn: 24,
        heads: 2,
        groups: 1,
        head_dim: 8,
        vocab: 40,
        padded_vocab: 40,
        max_positions: 9,
        norm_eps: 1e-5,
        mtp: 2,
        ..ModelConfig::default()
    };
    let mut config = TrainConfig::steps(model, DType::F32, 9, 2);
    config.loss.mtp_scale = 0.3;
    change(&mut config);
    let device =
        Device::new(CpuBackend::new(1, Isa::from_env().unwrap().unwrap_or_else(Isa::detect)).unwrap());
    let mut engine = Engine::new(&config, device, ParallelCtx::single()).unwrap();
    let names: Vec<String> = engine.model.specs().iter().map(|s| s.name.clone()).collect();
    for (i, name) in names.iter().enumerate() {
        let mut weight = engine.store.get_mut(ParamId(i as u32)).unwrap();
        weight.as_mut_slice::<f32>().unwrap().copy_from_slice(&golden[name].f32());
    }
    engine.adopt_weights().unwrap();
    engine.step(1, std::slice::from_ref(batch), (0.0, 0.0)).unwrap()
}

#[test]
fn losses_of_all_depths_and_the_gradient_are_pytorchs() {
    let golden = golden();
    for recompute in [Recompute::None, Recompute::Uniform(1)] {
        let report = step(&golden, |config| config.memory.recompute = recompute);
        let losses = &golden["losses"].values;
        let close = |found: f64, expected: f64| (found - expected).abs() <= 2e-6 * expected.abs();
        assert!(close(report.loss, losses[0]), "{} {}", report.loss, losses[0]);
        assert_eq!(report.ahead.len(), 2);
        for (found, expected) in report.ahead.iter().zip(&losses[1..]) {
            assert!(close(*found, *expected), "{found} {expected}");
        }
        let norm = golden["grad_norm"].values[0];
        assert!(close(report.grad_norm, norm), "{} {norm}", report.grad_norm);
    }
}

#[test]
fn the_factor_changes_the_gradient_and_not_the_losses() {
    let golden = golden();
    let with = step(&golden, |_| ());
    let without = step(&golden, |config| config.loss.mtp_scale = 0.0);
    assert_eq!((with.loss, &with.ahead), (without.loss, &without.ahead));
    assert!((with.grad_norm - without.grad_norm).abs() > 1e-3);
}

/// Rows that extend beyond what is trained, one mask, one loss, states before embeddings: MindSpeed-LLM 2.0.0's form.
#[test]
fn windows_of_longer_rows_have_the_loss_and_the_gradient_of_pytorch() {
    let golden = golden();
    let ints = |name: &str| -> Vec<i32> { golden[name].i64().iter().map(|&v| v as i32).collect() };
    let whole = MicroBatch {
        ahead: Vec::new(),
        tokens: ints("windows.tokens"),
        labels: ints("windows.labels"),
        loss_mask: golden["windows.mask"].f32(),
        position_ids: ints("windows.positions"),
        cu_seqlens: vec![0, 5, 10, 11, 22],
        row_ends: vec![11, 22],
        samples: Vec::new(),
    };
    for recompute in [Recompute::None, Recompute::Uniform(1)] {
        let report = step_on(&golden, &whole.windows(2), |config| {
            (config.memory.recompute, config.model.mtp_hidden_first) = (recompute, true);
        });
        let near = |found: f64, name: &str| {
            let expected = golden[name].values[0];
            assert!((found - expected).abs() <= 2e-6 * expected.abs(), "{name}: {found} {expected}");
        };
        near(report.loss, "windows.loss");
        near(report.grad_norm, "windows.grad_norm");
        assert!(report.ahead.is_empty(), "there is one loss");
    }
}

//! Generation on a delayed device: every family's cache is filled and read without an early host read.

#![allow(clippy::unwrap_used)] // tests

use ms_core::{DType, Device};
use ms_cpu::CpuBackend;
use ms_generate::{Limits, LoadedModel, Sampling, generate};
use ms_kernels::Isa;

const LIMITS: Limits = Limits { max_new_tokens: 4, stop_tokens: Vec::new() };

#[test]
fn every_family_generates_the_same_on_a_device_that_delays_everything() {
    for family in ms_testing::golden_models() {
        for dtype in [DType::F32, DType::Bf16] {
            let dir = ms_testing::golden_model(&family).unwrap();
            let generated = |device: Device| {
                let model = LoadedModel::open(&dir, dtype, device, Some(32)).unwrap();
                let vocab = model.config().vocab as u32;
                let prompt = |n: u32| (0..n).map(|i| (i * 31 + n * 17 + 3) % vocab).collect::<Vec<u32>>();
                let prompts: Vec<Vec<u32>> = [5, 1, 3].map(prompt).to_vec();
                let found = generate(&model, &prompts, Sampling::GREEDY, &LIMITS, |_, _| true);
                (
                    found.map(|all| {
                        all.into_iter().map(|g| (g.tokens, g.log_probability)).collect::<Vec<_>>()
                    }),
                    model,
                )
            };
            let cpu = || CpuBackend::new(2, Isa::detect()).unwrap();
            let (late, model) = generated(Device::delayed(cpu(), None));
            assert_eq!(model.device.early(), [], "{family} {dtype}: looked at too early");
            assert!(model.device.waits() > 0, "{family} {dtype}: it delays");
            assert_eq!(late.unwrap(), generated(Device::new(cpu())).0.unwrap(), "{family} {dtype}");
        }
    }
}

//! Prefill and decoding of one sequence, by CPU and wall time.
//!
//! `cargo bench -p ms-generate --bench infer [-- --threads=N] [--dtype=bf16|f32] [--quantization=int8] [--sequences=N]
//! [--layers=N ...]`: a Llama of random weights, by default of 0.65 G parameters, reads 512 tokens and then generates 32. In
//! addition to the rates, the output gives the share of the bandwidth limit: the bytes that a token must read, of weights and
//! of the keys and values before it, divided by its time, relative to a read-only loop in the same process; and the same of
//! the weights alone. With `--by-line`, input lines are commands, `prefill` or `decode`, each answered by a line of seconds,
//! so that another program can alternate with it (`docs/benchmarks/compare_torch.py`).

#![allow(clippy::print_stdout, missing_docs)] // a benchmark reports on stdout

use ms_core::{DType, Device, ParamId, ParamLayout, ParamStore, Tensor};
use ms_cpu::{Choice, CpuBackend};
use ms_dist::ParallelCtx;
use ms_generate::{LoadedModel, Quantization, Session};
use ms_kernels::{Cpu, machine};
use ms_nn::Gpt;
use ms_spec::{Family, ModelConfig, ParamSpec};
use std::sync::Arc;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let value =
        |name: &str| args.iter().find_map(|a| a.strip_prefix(&format!("--{name}=")).map(str::to_owned));
    let number = |name: &str, or: usize| value(name).map_or(or, |n| n.parse().expect("a number"));
    let threads = number("threads", 1);
    let (prompt, new) = (number("prompt", 512), number("new", 32));
    let (hidden, heads) = (number("hidden", 1536), number("heads", 12));
    let config = ModelConfig {
        family: Family::LLAMA,
        layers: number("layers", 20),
        hidden,
        ffn: number("ffn", 4608),
        heads,
        groups: number("groups", 4),
        head_dim: hidden / heads,
        vocab: 32000,
        padded_vocab: 32000,
        max_positions: prompt + new,
        norm_eps: 1e-5,
        ..ModelConfig::default()
    };
    let dtype = if value("dtype").as_deref() == Some("f32") { DType::F32 } else { DType::Bf16 };
    let choice = Choice::of_process(None, None).expect("MS_ISA names an instruction set of this machine");
    let device = Device::new(CpuBackend::with(threads, choice).expect("threads can be had"));
    let quantization = value("quantization").map(|name| name.parse().expect("a quantization"));
    let loaded = random(&config, dtype, quantization, device);
    let sequences = number("sequences", 1);
    let ids: Vec<u32> = (0..prompt as u32).map(|t| t * 7919 % 32000).collect();
    let bytes: usize = loaded.store.layout().ids().skip(1).map(|id| loaded.store.get(id).bytes().len()).sum();

    let mut session = Session::new(&loaded, 1, prompt + new);
    let mut prefill = || {
        // Another first token: nothing of the sequence before is reused.
        let mut ids = ids.clone();
        session.start(&[(0, &[1])]).expect("the model is sound");
        ids[0] = 2;
        timed(|| {
            session.start(&[(0, &ids)]).expect("the model is sound");
        })
    };
    if args.iter().any(|a| a == "--by-line") {
        prefill();
        println!("{{\"isa\": \"{}\", \"arithmetic\": \"{}\"}}", choice.isa, choice.arithmetic);
        for line in std::io::stdin().lines() {
            let (cpu, wall) = match line.expect("a line").trim() {
                "prefill" => prefill(),
                "decode" => decode(&loaded, &ids, new, sequences),
                other => panic!("an order is prefill or decode, not {other:?}"),
            };
            println!("{}", serde_json::json!({"cpu": cpu, "wall": wall}));
        }
        return;
    }
    prefill();
    let cpu = Cpu::with_arithmetic(threads, choice.isa, choice.arithmetic).expect("threads can be had");
    let peaks = machine::measure(&cpu, false);
    let median = |mut rounds: Vec<(f64, f64)>| {
        rounds.sort_by(|a, b| a.0.total_cmp(&b.0));
        rounds[rounds.len() / 2]
    };
    let (read, read_wall) = median((0..5).map(|_| prefill()).collect());
    let (made, made_wall) = median((0..5).map(|_| decode(&loaded, &ids, new, sequences)).collect());
    let per_thread = |seconds: f64| seconds / threads as f64;
    let layout = loaded.store.layout();
    let multiplied: usize = layout.ids().skip(1).map(|id| layout.shape(id).numel()).sum();
    let gflop = 2.0 * multiplied as f64 * prompt as f64 / 1e9;
    let peak = if dtype == DType::Bf16 { peaks.bf16_gflops } else { peaks.f32_gflops };
    // The token in the middle has so many before it, and itself.
    let before = loaded.model.cache_bytes(dtype, sequences, prompt + new.div_ceil(2));
    let rate = |bytes: f64| bytes * new as f64 / per_thread(made) / 1e9;
    let (of_weights, of_all) = (rate(bytes as f64), rate((bytes as u64 + before) as f64));
    println!(
        "{} {}, {}{}, {threads} threads, {sequences} sequences, {:.2} GB of weights: prefill {:.1} tokens/s by CPU time, {:.1} by the clock, {:.1} % of the peak (attention not counted); decode {:.2} and {:.2} tokens/s, {:.1} % of reading at {:.1} GB/s (weights alone {:.1} %)",
        choice.isa,
        choice.arithmetic,
        dtype.name(),
        if quantization.is_some() { " int8" } else { "" },
        bytes as f64 / 1e9,
        prompt as f64 / per_thread(read),
        prompt as f64 / read_wall,
        gflop / per_thread(read) / peak * 100.0,
        (sequences * new) as f64 / per_thread(made),
        (sequences * new) as f64 / made_wall,
        of_all / peaks.read_gbps * 100.0,
        peaks.read_gbps,
        of_weights / peaks.read_gbps * 100.0,
    );
}

/// Processor and wall seconds.
fn timed(work: impl FnOnce()) -> (f64, f64) {
    let (wall, cpu) = (std::time::Instant::now(), machine::process_cpu_seconds());
    work();
    (machine::process_cpu_seconds() - cpu, wall.elapsed().as_secs_f64())
}

/// Seconds of `new` tokens after the prompt, of each of `sequences` sequences that have it.
fn decode(loaded: &LoadedModel, ids: &[u32], new: usize, sequences: usize) -> (f64, f64) {
    let mut session = Session::new(loaded, sequences, ids.len() + new);
    let prompts: Vec<(usize, &[u32])> = (0..sequences).map(|slot| (slot, ids)).collect();
    session.start(&prompts).expect("the model is sound");
    timed(|| {
        let mut token = 5;
        for _ in 0..new {
            let step: Vec<(usize, u32)> = (0..sequences).map(|slot| (slot, token)).collect();
            let logits = session.next(&step).expect("the model is sound");
            let best = logits[0].iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).expect("a vocabulary");
            token = best.0 as u32;
        }
    })
}

/// A model with small random weights, and ones for the norms.
fn random(
    config: &ModelConfig,
    dtype: DType,
    quantization: Option<Quantization>,
    device: Device,
) -> LoadedModel {
    let model = Gpt::new(config, &device, config.max_positions).expect("the model is sound");
    let quantized = |spec: &ParamSpec| quantization.is_some_and(|q| q.takes(config, spec));
    let layout = ParamLayout::with_room(model.specs().iter().map(|s| (s.shape, !quantized(s))));
    let mut store = ParamStore::zeros(device.arena(), dtype, Arc::new(layout));
    let mut state = 1u64;
    for (i, spec) in model.specs().iter().enumerate() {
        let mut apart = quantized(spec).then(|| Tensor::zeros(device.arena(), dtype, spec.shape));
        let mut view = match &mut apart {
            Some(whole) => whole.view_mut(0, spec.shape).expect("a fresh tensor is unique"),
            None => store.get_mut(ParamId(i as u32)).expect("nothing else uses the weights"),
        };
        let matrix = spec.shape.len() > 1;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            if matrix { ((state >> 40) as f32 / (1u64 << 24) as f32 - 0.5) * 0.07 } else { 1.0 }
        };
        if dtype == DType::F32 {
            view.as_mut_slice::<f32>().expect("of this type").fill_with(next);
        } else {
            view.as_mut_slice::<half::bf16>()
                .expect("of this type")
                .fill_with(|| half::bf16::from_f32(next()));
        }
        if let Some(whole) = apart {
            let bytes = device.quantize(&whole).expect("of a type with kernels");
            store.set_quantized(ParamId(i as u32), bytes).expect("the shape is the weight's");
        }
    }
    LoadedModel { device, model, store, ctx: ParallelCtx::single(), stops: Vec::new() }
}

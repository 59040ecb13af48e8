//! Memory-bound kernels, as a share of the memory bandwidth.
//!
//! `cargo bench -p ms-kernels --bench fused -- [--json] [--threads N] [--quick] [NAME]`
//!
//! Results are checked against plain loops in f64 before they are timed.
#![allow(clippy::print_stdout)] // its output

#[allow(dead_code)] // each benchmark uses its part of it
mod harness;

use bytemuck::{cast_slice, cast_slice_mut};
use half::bf16;
use harness::{Bench, Peak, on_huge_pages, random};
use ms_kernels::activation::{self, Activation};
use ms_kernels::cross_entropy::Row;
use ms_kernels::matmul::{Dims, Form, Mat, Out, add_f64, matmul};
use ms_kernels::memory::Block;
use ms_kernels::rope::Rotary;
use ms_kernels::{Element, adamw, cross_entropy, int8, reduce, rms_norm, rope, swiglu};

const TOKENS: usize = 8192;

fn main() {
    let mut bench = Bench::from_args();
    norms::<bf16>(&mut bench);
    norms::<f32>(&mut bench);
    gates::<bf16>(&mut bench);
    gates::<f32>(&mut bench);
    rotation(&mut bench);
    loss(&mut bench);
    optimizer(&mut bench);
    vector_product(&mut bench);
    prompt_product(&mut bench);
    router(&mut bench);
}

/// Logits of a router in f64: the work is counted twice, as half as many numbers fit a register.
fn router(bench: &mut Bench) {
    let dims = Dims { m: 512, n: 64, k: 1024 };
    let wide = |n: usize, seed| -> Vec<f64> { random::<f32>(n, seed).into_iter().map(f64::from).collect() };
    let (x, w) = (wide(dims.m * dims.k, 1), wide(dims.n * dims.k, 2));
    let (cpu, mut y) = (bench.cpu.clone(), vec![0f64; dims.m * dims.n]);
    if bench.wants("router f64") {
        bench.case("router f64", Peak::F32, 4e-9 * (dims.m * dims.n * dims.k) as f64, || {
            add_f64(&cpu, Form::Nt, dims, &x, &w, &mut y).expect("sizes fit");
        });
    }
}

fn view<E: Element>(block: &Block) -> &[E] {
    cast_slice(block.bytes())
}

fn view_mut<E: Element>(block: &mut Block) -> &mut [E] {
    cast_slice_mut(block.bytes_mut())
}

fn gigabytes(bytes: usize) -> f64 {
    bytes as f64 / 1e9
}

fn close(what: &str, got: f32, want: f64) {
    assert!((f64::from(got) - want).abs() <= 1e-2 * want.abs() + 1e-3, "{what}: {got} for {want}");
}

/// The name of a kernel with operands of type `E`.
fn named<E: Element>(kernel: &str) -> String {
    let [op, rest] = kernel.split_once(' ').map_or([kernel, ""], |(op, rest)| [op, rest]);
    if size_of::<E>() == 4 { format!("{op} f32 {rest}") } else { kernel.to_owned() }
}

fn norms<E: Element>(bench: &mut Bench) {
    const H: usize = 1024;
    let size = size_of::<E>();
    let x = on_huge_pages(&random::<E>(TOKENS * H, 1));
    let dy = on_huge_pages(&random::<E>(TOKENS * H, 2));
    let mut y = Block::new(TOKENS * H * size);
    let mut sum = Block::new(TOKENS * H * size);
    let w = random::<E>(H, 3);
    let (mut rstd, mut dw) = (vec![0f32; TOKENS], vec![0f32; H]);
    let options = rms_norm::Options { eps: 1e-5, unit_offset: false };
    let cpu = bench.cpu.clone();
    let (x, dy): (&[E], &[E]) = (view(&x), view(&dy));
    rms_norm::forward(&cpu, view_mut(&mut y), &mut rstd, x, &w, &options).expect("sizes fit");
    let square: f64 = x[..H].iter().map(|v| f64::from(v.to_f32()).powi(2)).sum::<f64>() / H as f64;
    let want = f64::from(x[5].to_f32()) / (square + 1e-5).sqrt() * f64::from(w[5].to_f32());
    close("rms_norm", view::<E>(&y)[5].to_f32(), want);
    let elements = TOKENS * H;
    let name = named::<E>("rms_norm forward");
    if bench.wants(&name) {
        bench.case(&name, Peak::Copy, gigabytes(2 * size * elements), || {
            rms_norm::forward(&cpu, view_mut(&mut y), &mut rstd, x, &w, &options).expect("sizes fit");
        });
    }
    let name = named::<E>("rms_norm forward_add");
    if bench.wants(&name) {
        bench.case(&name, Peak::Copy, gigabytes(4 * size * elements), || {
            let (y, sum) = (view_mut(&mut y), view_mut(&mut sum));
            rms_norm::forward_add(&cpu, y, sum, &mut rstd, x, dy, &w, &options).expect("sizes fit");
        });
    }
    let name = named::<E>("rms_norm backward");
    if bench.wants(&name) {
        bench.case(&name, Peak::Copy, gigabytes(3 * size * elements), || {
            let dx = view_mut(&mut y);
            rms_norm::backward(&cpu, dx, &mut dw, dy, x, &w, &rstd, None, &options).expect("sizes fit");
        });
    }
}

fn gates<E: Element>(bench: &mut Bench) {
    const F: usize = 2816;
    let size = size_of::<E>();
    let tokens = TOKENS / 2;
    let x = on_huge_pages(&random::<E>(2 * tokens * F, 1));
    let dy = on_huge_pages(&random::<E>(tokens * F, 2));
    let (mut y, mut dx) = (Block::new(tokens * F * size), Block::new(2 * tokens * F * size));
    let cpu = bench.cpu.clone();
    let (x, dy): (&[E], &[E]) = (view(&x), view(&dy));
    swiglu::forward(&cpu, view_mut(&mut y), x, tokens, F).expect("sizes fit");
    let (g, u) = (f64::from(x[7].to_f32()), f64::from(x[F + 7].to_f32()));
    close("swiglu", view::<E>(&y)[7].to_f32(), g / (1.0 + (-g).exp()) * u);
    let name = named::<E>("swiglu forward");
    if bench.wants(&name) {
        bench.case(&name, Peak::Copy, gigabytes(3 * size * tokens * F), || {
            swiglu::forward(&cpu, view_mut(&mut y), x, tokens, F).expect("sizes fit");
        });
    }
    for (op, kind) in [("geglu", Activation::GeluTanh), ("geglu_erf", Activation::GeluErf)] {
        let name = named::<E>(&format!("{op} forward"));
        if bench.wants(&name) {
            bench.case(&name, Peak::Copy, gigabytes(3 * size * tokens * F), || {
                activation::glu(&cpu, view_mut::<E>(&mut y), x, F, kind).expect("sizes fit");
            });
        }
        let name = named::<E>(&format!("{op} backward"));
        if bench.wants(&name) {
            bench.case(&name, Peak::Copy, gigabytes(5 * size * tokens * F), || {
                activation::glu_backward(&cpu, view_mut::<E>(&mut dx), dy, x, F, kind).expect("sizes fit");
            });
        }
    }
    let name = named::<E>("swiglu backward");
    if bench.wants(&name) {
        bench.case(&name, Peak::Copy, gigabytes(5 * size * tokens * F), || {
            swiglu::backward(&cpu, view_mut(&mut dx), dy, x, tokens, F).expect("sizes fit");
        });
    }
}

fn rotation(bench: &mut Bench) {
    if !bench.wants("rope") {
        return;
    }
    let (heads, dim) = (16, 64);
    let mut x = on_huge_pages(&random::<bf16>(TOKENS * heads * dim, 1));
    let frequencies: Vec<f32> = (0..dim / 2).map(|i| 1e4f32.powf(-(i as f32) / 32.0)).collect();
    let (cos, sin) = rope::tables(&frequencies, 1024, 1.0);
    let rotary = Rotary { cos: &cos, sin: &sin, dim, interleaved: false };
    let positions: Vec<i32> = (0..TOKENS as i32).map(|t| t % 1024).collect();
    let cpu = bench.cpu.clone();
    let at = 3 * heads * dim;
    let (a, b) = (view::<bf16>(&x)[at].to_f64(), view::<bf16>(&x)[at + dim / 2].to_f64());
    let mut run = || {
        rope::apply(&cpu, view_mut::<bf16>(&mut x), TOKENS, heads, dim, &positions, &rotary, false)
            .expect("sizes fit");
    };
    run();
    bench.case("rope in place", Peak::ReadWrite, gigabytes(4 * TOKENS * heads * dim), run);
    let mut again = on_huge_pages(&random::<bf16>(TOKENS * heads * dim, 1));
    rope::apply(&bench.cpu, view_mut::<bf16>(&mut again), TOKENS, heads, dim, &positions, &rotary, false)
        .expect("sizes fit");
    close("rope", view::<bf16>(&again)[at].to_f32(), a * 3f64.cos() - b * 3f64.sin());
}

fn loss(bench: &mut Bench) {
    if !bench.wants("cross_entropy") {
        return;
    }
    let (tokens, vocab) = (256, 32_000);
    let source = random::<bf16>(tokens * vocab, 1);
    let mut logits = on_huge_pages(&source);
    let targets: Vec<i32> = (0..tokens as i32).map(|t| t * 37 % 32_000).collect();
    let weights = vec![1.0 / tokens as f32; tokens];
    let mut rows = vec![Row::default(); tokens];
    let cpu = bench.cpu.clone();
    cross_entropy::statistics(&cpu, &mut rows, view::<bf16>(&logits), &targets, vocab, 0).expect("sizes fit");
    let sum: f64 = source[..vocab].iter().map(|v| v.to_f64().exp()).sum();
    close("cross_entropy", cross_entropy::nll(&rows[0]), sum.ln() - source[0].to_f64());
    if bench.wants("cross_entropy both passes") {
        bench.case("cross_entropy both passes", Peak::Copy, gigabytes(6 * tokens * vocab), || {
            let logits = view_mut::<bf16>(&mut logits);
            cross_entropy::statistics(&cpu, &mut rows, logits, &targets, vocab, 0).expect("sizes fit");
            cross_entropy::gradient(&cpu, logits, &rows, &targets, &weights, vocab, 0).expect("sizes fit");
        });
    }
    if bench.wants("cross_entropy at once") {
        bench.case("cross_entropy at once", Peak::Copy, gigabytes(6 * tokens * vocab), || {
            let logits = view_mut::<bf16>(&mut logits);
            cross_entropy::whole(&cpu, &mut rows, logits, &targets, &weights, vocab).expect("sizes fit");
        });
    }
    if bench.wants("cross_entropy f32 at once") {
        let mut logits = on_huge_pages(&random::<f32>(tokens * vocab, 1));
        bench.case("cross_entropy f32 at once", Peak::Copy, gigabytes(12 * tokens * vocab), || {
            let logits = view_mut::<f32>(&mut logits);
            cross_entropy::whole(&cpu, &mut rows, logits, &targets, &weights, vocab).expect("sizes fit");
        });
    }
}

fn optimizer(bench: &mut Bench) {
    let n = 8 << 20;
    let g = on_huge_pages(&random::<f32>(n, 1));
    let (mut p, mut m, mut v) = (on_huge_pages(&random::<f32>(n, 2)), Block::new(4 * n), Block::new(4 * n));
    let mut model = Block::new(2 * n);
    let hyper = adamw::Hyper { lr: 1e-3, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1, step: 1 };
    let cpu = bench.cpu.clone();
    let g: &[f32] = view(&g);
    let first = f64::from(view::<f32>(&p)[0]);
    let mut run = |p: &mut Block| {
        let (p, m, v) = (view_mut(p), view_mut(&mut m), view_mut(&mut v));
        adamw::step(&cpu, p, m, v, g, 1.0, Some(view_mut(&mut model)), &hyper).expect("sizes fit");
    };
    run(&mut p);
    // The first step moves a weight by the learning rate against its gradient's sign.
    close("adamw", view::<f32>(&p)[0], first * (1.0 - 1e-4) - 1e-3 * f64::from(g[0].signum()));
    if bench.wants("adamw with bf16 copy") {
        bench.case("adamw with bf16 copy", Peak::ReadWrite, gigabytes(30 * n), || run(&mut p));
    }
    if bench.wants("adamw f32") {
        bench.case("adamw f32", Peak::ReadWrite, gigabytes(28 * n), || {
            let (p, m, v) = (view_mut(&mut p), view_mut(&mut m), view_mut(&mut v));
            adamw::step(&cpu, p, m, v, g, 1.0, None, &hyper).expect("sizes fit");
        });
    }
    if bench.wants("sum_squares") {
        let cpu = bench.cpu.clone();
        let want: f64 = g.iter().map(|v| f64::from(*v) * f64::from(*v)).sum();
        assert!((reduce::sum_squares(&cpu, g).value() / want - 1.0).abs() < 1e-6, "sum of squares");
        bench.case("sum_squares", Peak::Read, gigabytes(4 * n), || {
            std::hint::black_box(reduce::sum_squares(&cpu, g));
        });
    }
}

/// A decoding step's product: one row against a weight that is read once.
fn vector_product(bench: &mut Bench) {
    // Of the last one rows are short, as a small model's are.
    for (rows, n, k) in [
        (1, 16_384, 4096),
        (2, 16_384, 4096),
        (4, 16_384, 4096),
        (5, 16_384, 4096),
        (8, 16_384, 4096),
        (1, 32_000, 1536),
    ] {
        let name = format!("matmul m={rows} n={n} k={k}");
        if !bench.wants(&name) {
            continue;
        }
        let w = on_huge_pages(&random::<bf16>(n * k, 1));
        let x = random::<bf16>(rows * k, 2);
        let mut y = vec![0f32; rows * n];
        let cpu = bench.cpu.clone();
        let w: &[bf16] = view(&w);
        let mut run = || {
            let (a, b) = (Mat { data: &x[..], stride: k }, Mat { data: w, stride: k });
            let out = Out::SetF32 { data: &mut y, stride: n };
            matmul(&cpu, Form::Nt, Dims { m: rows, n, k }, a, b, out).expect("sizes fit");
        };
        run();
        bench.case(&name, Peak::Read, gigabytes(2 * n * k), run);
        let want: f64 = (0..k).map(|p| x[p].to_f64() * w[3 * k + p].to_f64()).sum();
        close(&name, y[3], want);
        byte_product(bench, w, &x, n, k);
    }
}

/// A prompt's product with a weight of eight bits, as a share of the rate of f32: whole numbers may be faster.
fn prompt_product(bench: &mut Bench) {
    let (m, n, k) = (512, 4096, 2048);
    if bench.wants("prompt int8") {
        byte_product(bench, &random::<bf16>(n * k, 1), &random::<bf16>(m * k, 2), n, k);
    }
}

/// A product with a weight of eight bits.
fn byte_product(bench: &mut Bench, w: &[bf16], x: &[bf16], n: usize, k: usize) {
    let cpu = bench.cpu.clone();
    let mut bytes = Block::new(n * int8::row_bytes(k));
    int8::quantize(&cpu, bytes.bytes_mut(), w, n, k).expect("sizes fit");
    let (m, size) = (x.len() / k, bytes.len());
    let mut y = vec![bf16::ZERO; m * n];
    let mut run = || {
        int8::linear(&cpu, &mut y, x, bytes.bytes(), None, Dims { m, n, k }).expect("sizes fit");
    };
    run();
    if m > int8::MAX_ROWS {
        bench.case(&format!("prompt int8 m={m} n={n} k={k}"), Peak::F32, 2e-9 * (m * n * k) as f64, run);
    } else {
        bench.case(&format!("matmul m={m} n={n} k={k} int8"), Peak::Read, gigabytes(size), run);
    }
    let want: f64 = (0..k).map(|p| x[p].to_f64() * w[3 * k + p].to_f64()).sum();
    let spread = (k as f64).sqrt();
    assert!((y[3].to_f64() - want).abs() < 0.05 * spread, "int8: {} for {want}", y[3]);
}

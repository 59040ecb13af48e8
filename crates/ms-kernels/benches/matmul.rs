//! Matrix products at the shapes of small language models, as a share of the multiply-add peak.
//!
//! `cargo bench -p ms-kernels --bench matmul -- [--json] [--threads N] [--arithmetic pair|tile32|bfdot] [--quick] [bf16|f32]
//! [nt|nn|tn]`
#![allow(clippy::print_stdout)] // its output

#[allow(dead_code)] // each benchmark uses its part of it
mod harness;

use bytemuck::{cast_slice, cast_slice_mut};
use half::bf16;
use harness::{Bench, Peak, on_huge_pages, random};
use ms_kernels::matmul::{Dims, Form, Mat, Out, matmul};
use ms_kernels::memory::Block;
use ms_kernels::{Cpu, Element};

/// (M, N, K): tokens, outputs, inputs.
const SHAPES: [(usize, usize, usize); 8] = [
    (512, 384, 384),
    (512, 2048, 768),
    (2048, 1152, 384),
    (2048, 384, 1024),
    (2048, 2048, 384),
    (2048, 768, 2048),
    (2048, 4096, 1024),
    (4096, 1024, 4096),
];

fn main() {
    let mut bench = Bench::from_args();
    cases::<bf16>(&mut bench);
    cases::<f32>(&mut bench);
}

fn cases<E: Element>(bench: &mut Bench) {
    for (form, name) in [(Form::Nt, "nt"), (Form::Nn, "nn"), (Form::Tn, "tn")] {
        for (tokens, outputs, inputs) in SHAPES {
            // The three products of one linear layer.
            let (m, n, k) = match form {
                Form::Nt => (tokens, outputs, inputs),
                Form::Nn => (tokens, inputs, outputs),
                Form::Tn => (outputs, inputs, tokens),
            };
            let name = format!("{} {name} m={m} n={n} k={k}", E::NAME);
            if bench.wants(&name) {
                case::<E>(bench, &name, form, Dims { m, n, k });
            }
        }
        bench.median(&format!("{} {name}", E::NAME));
    }
}

fn case<E: Element>(bench: &mut Bench, name: &str, form: Form, dims: Dims) {
    let Dims { m, n, k } = dims;
    let (a, b) = (on_huge_pages(&random::<E>(m * k, 1)), on_huge_pages(&random::<E>(n * k, 2)));
    let a = Mat { data: cast_slice::<u8, E>(a.bytes()), stride: if form == Form::Tn { m } else { k } };
    let b = Mat { data: cast_slice::<u8, E>(b.bytes()), stride: if form == Form::Nt { k } else { n } };
    let cpu = bench.cpu.clone();
    let mut sum = Block::new(if form == Form::Tn { m * n * size_of::<f32>() } else { 0 });
    let mut y = Block::new(if form == Form::Tn { 0 } else { m * n * size_of::<E>() });
    let (sum, y): (&mut [f32], &mut [E]) = (cast_slice_mut(sum.bytes_mut()), cast_slice_mut(y.bytes_mut()));
    let run = |cpu: &Cpu, sum: &mut [f32], y: &mut [E]| {
        let out = match form {
            Form::Tn => Out::AddF32 { data: sum, stride: n },
            _ => Out::Set { data: y, stride: n, bias: None },
        };
        matmul(cpu, form, dims, a, b, out).expect("sizes fit");
    };
    run(&cpu, sum, y);
    for (i, j) in [(0, 0), (m / 2, n / 3), (m - 1, n - 1)] {
        let want: f64 = (0..k)
            .map(|p| {
                let a = if form == Form::Tn { a.data[p * m + i] } else { a.data[i * k + p] };
                let b = if form == Form::Nt { b.data[j * k + p] } else { b.data[p * n + j] };
                f64::from(a.to_f32()) * f64::from(b.to_f32())
            })
            .sum();
        let got = if form == Form::Tn { sum[i * n + j] } else { y[i * n + j].to_f32() };
        let bound = want.abs() * 0.01 + 1e-3;
        assert!((f64::from(got) - want).abs() < bound, "{name} at ({i}, {j}): {got} for {want}");
    }
    let peak = if E::NAME == "bf16" { Peak::Bf16 } else { Peak::F32 };
    bench.case(name, peak, 2.0 * (m * n * k) as f64 / 1e9, || run(&cpu, sum, y));
}

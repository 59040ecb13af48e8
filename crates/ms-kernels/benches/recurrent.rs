//! Recurrent mixers over 2048 tokens, as a share of the f32 multiply-add peak.
//!
//! Work is that of the chunked form with 64 rows per chunk: products with the states, and triangles of scores counted as half
//! squares; what heads share counts once. States recomputed by the backward pass count, as do the outputs before Mamba-3's
//! gate.
//!
//! `cargo bench -p ms-kernels --bench recurrent -- [--json] [--threads N] [--quick] [mamba2|delta|mamba3] [forward|backward]`
#![allow(clippy::print_stdout)] // its output

#[allow(dead_code)] // each benchmark uses its part of it
mod harness;

use harness::{Bench, Peak, random};
use ms_kernels::attention::Segment;
use ms_kernels::{delta_rule, mamba3, state_space};

const TOKENS: usize = 2048;
/// Rows of a chunk that the work is counted for.
const ROWS: f64 = 64.0;

fn main() {
    let mut bench = Bench::from_args();
    for documents in [1, 8] {
        mamba2(&mut bench, documents, [24, 64, 1, 128]);
    }
    mamba2(&mut bench, 1, [16, 64, 8, 64]);
    delta(&mut bench, 1, [8, 16, 128, 128]);
    delta(&mut bench, 1, [8, 8, 64, 64]);
    mamba3(&mut bench, 1, [16, 64, 128, 1]);
    mamba3(&mut bench, 1, [16, 64, 128, 4]);
    bench.median("recurrent mixers");
}

fn documents(n: usize) -> Vec<Segment> {
    // None begins where a chunk would if the one before it is whole, but for a single one.
    let cut = |d: usize| if d == 0 || d == n { d * TOKENS / n } else { d * TOKENS / n + d };
    (0..n).map(|d| Segment::of(cut(d), cut(d + 1) - cut(d))).collect()
}

/// GFLOP of both directions: `heads` heads, `shared` of which have scores of their own, with `s` by `p` states and `rows`
/// rows per token.
fn work(heads: usize, shared: usize, s: usize, p: usize, rows: usize) -> (f64, f64) {
    let (heads, shared, s, p) = (heads as f64, shared as f64, s as f64, p as f64);
    let (state, values, scores) = (2.0 * s * p * heads, ROWS * p * heads, ROWS * s * shared);
    let of = |gflop: f64| gflop * (TOKENS * rows) as f64 / 1e9;
    (of(2.0 * state + values + scores), of(5.0 * state + 2.0 * values + 3.0 * scores))
}

fn uniform(len: usize, seed: u64, low: f32, high: f32) -> Vec<f32> {
    random::<f32>(len, seed)
        .into_iter()
        .map(|v| low + (high - low) * (v / 6.0 + 0.5).clamp(0.0, 1.0))
        .collect()
}

fn mamba2(bench: &mut Bench, parts: usize, [heads, head_dim, groups, state]: [usize; 4]) {
    let shape = state_space::Shape { heads, head_dim, groups, state, step_limit: (0.0, f64::INFINITY) };
    let what = format!("mamba2 t={TOKENS} docs={parts} n={heads} p={head_dim} g={groups} s={state}");
    let (inner, bc, n) = (TOKENS * heads * head_dim, TOKENS * groups * state, TOKENS * heads);
    let segments = documents(parts);
    let (x, b, c, dy) = (random(inner, 1), random(bc, 2), random(bc, 3), random::<f32>(inner, 4));
    let (dt, a_log) = (uniform(n, 5, -6.0, -2.0), uniform(heads, 6, 0.0, 2.5));
    let (d, dt_bias) = (vec![1f32; heads], vec![0f32; heads]);
    let scan = state_space::Scan {
        x: &x,
        b: &b,
        c: &c,
        dt: &dt,
        a_log: &a_log,
        d: &d,
        dt_bias: &dt_bias,
        segments: &segments,
        shape,
    };
    let (forward, backward) = work(heads, groups, state, head_dim, 1);
    let cpu = bench.cpu.clone();
    let mut y = vec![0f32; inner];
    let name = format!("forward {what}");
    if bench.wants(&name) {
        bench.case(&name, Peak::F32, forward, || {
            state_space::forward(&cpu, &mut y, &mut [], &scan).expect("sizes fit");
        });
    }
    let name = format!("backward {what}");
    if bench.wants(&name) {
        let mut g: Vec<Vec<f32>> =
            [inner, bc, bc, n, heads, heads, heads].into_iter().map(|n| vec![0f32; n]).collect();
        bench.case(&name, Peak::F32, backward, || {
            let [x, b, c, dt, a_log, d, dt_bias] = &mut g[..] else { unreachable!() };
            let grads = state_space::Gradients { x, b, c, dt, a_log, d, dt_bias };
            state_space::backward(&cpu, grads, &dy, &scan).expect("sizes fit");
        });
    }
}

fn delta(bench: &mut Bench, parts: usize, [key_heads, value_heads, key_dim, value_dim]: [usize; 4]) {
    let shape = delta_rule::Shape { key_heads, value_heads, key_dim, value_dim };
    let what =
        format!("delta t={TOKENS} docs={parts} n={value_heads} g={key_heads} k={key_dim} v={value_dim}");
    let (keys, values, n) =
        (TOKENS * key_heads * key_dim, TOKENS * value_heads * value_dim, TOKENS * value_heads);
    let segments = documents(parts);
    let (q, k, v, dy) = (random(keys, 1), random(keys, 2), random(values, 3), random::<f32>(values, 4));
    let (g, beta) = (uniform(n, 5, -0.3, 0.0), uniform(n, 6, 0.0, 1.0));
    let scan = delta_rule::Scan { q: &q, k: &k, v: &v, g: &g, beta: &beta, segments: &segments, shape };
    let (mut forward, mut backward) = work(value_heads, key_heads, key_dim, value_dim, 1);
    // What is written: keys against the state and each other, and the triangular system.
    let of = |gflop: usize| (TOKENS * gflop) as f64 / 1e9;
    let (state, system) = (of(2 * key_dim * value_dim * value_heads), of(64 * value_dim * value_heads));
    let scores = of(64 * key_dim * key_heads);
    forward += state + system + scores;
    backward += 3.0 * state + 3.0 * system + 3.0 * scores;
    let cpu = bench.cpu.clone();
    let mut y = vec![0f32; values];
    let name = format!("forward {what}");
    if bench.wants(&name) {
        bench.case(&name, Peak::F32, forward, || {
            delta_rule::forward(&cpu, &mut y, &mut [], &scan).expect("sizes fit");
        });
    }
    let name = format!("backward {what}");
    if bench.wants(&name) {
        let mut grads: Vec<Vec<f32>> =
            [keys, keys, values, n, n].into_iter().map(|n| vec![0f32; n]).collect();
        bench.case(&name, Peak::F32, backward, || {
            let [q, k, v, g, beta] = &mut grads[..] else { unreachable!() };
            let to = delta_rule::Gradients { q, k, v, g, beta };
            delta_rule::backward(&cpu, to, &dy, &scan).expect("sizes fit");
        });
    }
}

fn mamba3(bench: &mut Bench, parts: usize, [heads, head_dim, state, ranks]: [usize; 4]) {
    let angles = state / 4;
    let pairs = mamba3::Pairs::Neighbours;
    let shape = mamba3::Shape { heads, head_dim, state, ranks, angles, pairs, rate_floor: 1e-4 };
    let what = format!("mamba3 t={TOKENS} docs={parts} n={heads} p={head_dim} s={state} r={ranks}");
    let segments = documents(parts);
    let (inner, bc, one, bias) =
        (TOKENS * heads * head_dim, TOKENS * ranks * state, TOKENS * heads, heads * ranks * state);
    let by_rank = if ranks == 1 { 0 } else { heads * ranks * head_dim };
    let lengths = [
        inner,
        inner,
        bc,
        bc,
        one,
        one,
        one,
        TOKENS * angles,
        heads,
        bias,
        bias,
        heads,
        by_rank,
        by_rank,
        by_rank,
    ];
    let mut all: Vec<Vec<f32>> = lengths.iter().zip(1..).map(|(&n, seed)| random(n, seed)).collect();
    all[4] = uniform(one, 5, -6.0, -2.0);
    let operands: [&[f32]; 15] = std::array::from_fn(|i| &all[i][..]);
    let scan = mamba3::Scan { operands: mamba3::Operands::of(operands), segments: &segments, shape };
    let dy = random::<f32>(inner, 20);
    let (forward, backward) = work(heads, heads, state, head_dim, ranks);
    let again = ((2 * state + 64) * head_dim * heads * TOKENS * ranks) as f64 / 1e9;
    let cpu = bench.cpu.clone();
    let mut y = vec![0f32; inner];
    let name = format!("forward {what}");
    if bench.wants(&name) {
        bench.case(&name, Peak::F32, forward, || {
            mamba3::forward(&cpu, &mut y, &mut [], &mut [], &scan).expect("sizes fit");
        });
    }
    let name = format!("backward {what}");
    if bench.wants(&name) {
        let mut grads: Vec<Vec<f32>> = lengths.iter().map(|&n| vec![0f32; n]).collect();
        bench.case(&name, Peak::F32, backward + again, || {
            let mut rest = grads.iter_mut();
            let to: [&mut [f32]; 15] = std::array::from_fn(|_| &mut rest.next().expect("fifteen")[..]);
            mamba3::backward(&cpu, mamba3::Operands::of(to), &dy, &scan).expect("sizes fit");
        });
    }
}

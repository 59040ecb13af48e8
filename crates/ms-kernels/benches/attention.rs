//! Attention over packed rows, as a share of the multiply-add peak; only unmasked query-key pairs count as work.
//!
//! `cargo bench -p ms-kernels --bench attention -- [--json] [--threads N] [--quick] [forward|backward|decode|picked]`
#![allow(clippy::print_stdout)] // its output

#[allow(dead_code)] // each benchmark uses its part of it
mod harness;

use bytemuck::{cast_slice, cast_slice_mut};
use half::bf16;
use harness::{Bench, Peak, on_huge_pages, random};
use ms_kernels::attention::{Heads, Options, QkvRows, Segment, backward, forward};
use ms_kernels::memory::Block;
use ms_kernels::qkv::Packed;
use ms_kernels::selected;

fn main() {
    let mut bench = Bench::from_args();
    // (sequence, sequences, groups, query heads per group, head size)
    for (seq, batch, groups, per_group, dim) in [
        (512, 4, 6, 1, 64),
        (1024, 2, 12, 1, 64),
        (1024, 2, 4, 3, 64),
        (4096, 1, 4, 1, 64),
        (1024, 1, 4, 2, 128),
        (1024, 2, 8, 1, 16),
    ] {
        training(&mut bench, seq, batch, groups, per_group, dim);
    }
    bench.median("training shapes");
    // (keys, groups, query heads per group, head size)
    for (keys, groups, per_group, dim) in [
        (256, 8, 2, 64),
        (512, 8, 2, 64),
        (4096, 8, 2, 64),
        (4096, 4, 3, 128),
        (32768, 8, 2, 64),
        (32768, 4, 3, 128),
        (32768, 8, 4, 128),
    ] {
        decode(&mut bench, keys, groups, per_group, dim);
    }
    bench.median("decoding");
    picked(&mut bench);
}

/// Each query reads keys that an indexer has picked, here evenly spread ones.
fn picked(bench: &mut Bench) {
    let shape = Packed { tokens: 512, groups: 1, heads_per_group: 4, head_dim: 128 };
    let (tokens, places, heads) = (shape.tokens, 256, shape.heads());
    let qkv = random::<bf16>(tokens * shape.width(), 1);
    let dout = random::<bf16>(tokens * heads * shape.head_dim, 2);
    let (mut out, mut dqkv) = (vec![bf16::ZERO; dout.len()], vec![bf16::ZERO; qkv.len()]);
    let (mut lse, mut pairs) = (vec![0f32; heads * tokens], 0);
    let mut picks = vec![selected::NONE; tokens * places];
    for (t, row) in picks.chunks_exact_mut(places).enumerate() {
        let seen = places.min(t + 1);
        pairs += seen * heads;
        (0..seen).for_each(|i| row[i] = (i * (t + 1) / seen) as i32);
    }
    let gflop = 4e-9 * (pairs * shape.head_dim) as f64;
    let (cpu, scale) = (bench.cpu.clone(), options(shape.head_dim).scale);
    let run = |out: &mut [bf16], lse: &mut [f32]| {
        let (q, k, v) =
            (Heads::queries(&qkv, &shape), Heads::keys(&qkv, &shape), Heads::values(&qkv, &shape));
        let sizes = (shape.groups, shape.heads_per_group, shape.head_dim);
        selected::forward(&cpu, out, lse, q, k, v, sizes, &picks, places, tokens, scale).expect("sizes fit");
    };
    run(&mut out, &mut lse);
    if bench.wants("picked forward") {
        bench.case("picked forward", Peak::F32, gflop, || run(&mut out, &mut lse));
    }
    if bench.wants("picked backward") {
        let cpu = bench.cpu.clone();
        bench.case("picked backward", Peak::F32, 2.5 * gflop, || {
            let rows = QkvRows::Packed((&mut dqkv[..], &qkv[..]));
            selected::backward(&cpu, rows, &dout, &out, &lse, &shape, (&picks, places), scale)
                .expect("sizes fit");
        });
    }
}

fn options(dim: usize) -> Options {
    Options { scale: 1.0 / (dim as f32).sqrt(), window: None, softcap: None, causal: true, alibi: None }
}

fn training(
    bench: &mut Bench,
    seq: usize,
    batch: usize,
    groups: usize,
    heads_per_group: usize,
    head_dim: usize,
) {
    let shape = Packed { tokens: seq * batch, groups, heads_per_group, head_dim };
    let heads = shape.heads();
    let what = format!("s={seq} b={batch} n={heads} g={groups} d={head_dim}");
    let (forward_name, backward_name) = (format!("forward {what}"), format!("backward {what}"));
    if !bench.wants(&forward_name) && !bench.wants(&backward_name) {
        return;
    }
    let segments: Vec<Segment> = (0..batch).map(|b| Segment::of(b * seq, seq)).collect();
    let qkv = on_huge_pages(&random::<bf16>(shape.tokens * shape.width(), 1));
    let dout = on_huge_pages(&random::<bf16>(shape.tokens * heads * head_dim, 2));
    let (qkv, dout): (&[bf16], &[bf16]) = (cast_slice(qkv.bytes()), cast_slice(dout.bytes()));
    let mut out = Block::new(size_of_val(dout));
    let out: &mut [bf16] = cast_slice_mut(out.bytes_mut());
    let mut dqkv = Block::new(size_of_val(qkv));
    let dqkv: &mut [bf16] = cast_slice_mut(dqkv.bytes_mut());
    let mut lse = vec![0f32; heads * shape.tokens];
    let (cpu, options) = (bench.cpu.clone(), options(head_dim));
    let run = |out: &mut [bf16], lse: &mut [f32]| {
        let (q, k, v) = (Heads::queries(qkv, &shape), Heads::keys(qkv, &shape), Heads::values(qkv, &shape));
        forward(&cpu, out, Some(lse), q, k, v, groups, heads_per_group, head_dim, &segments, &options, None)
            .expect("sizes fit");
    };
    run(out, &mut lse);
    check(qkv, out, &shape, seq);
    let pairs = (batch * heads * seq * (seq + 1) / 2) as f64;
    let gflop = 4.0 * pairs * head_dim as f64 / 1e9;
    if bench.wants(&forward_name) {
        bench.case(&forward_name, Peak::Bf16, gflop, || run(out, &mut lse));
    }
    if bench.wants(&backward_name) {
        let cpu = bench.cpu.clone();
        bench.case(&backward_name, Peak::Bf16, 2.5 * gflop, || {
            let rows = QkvRows::Packed((&mut *dqkv, qkv));
            backward(&cpu, rows, dout, out, &lse, &shape, &segments, &options, None).expect("sizes fit");
        });
    }
}

/// Compares the last head of some queries with the formula; weights were rounded to bf16.
fn check(qkv: &[bf16], out: &[bf16], shape: &Packed, seq: usize) {
    let (heads, dim) = (shape.heads(), shape.head_dim);
    let (q, k, v) = (Heads::queries(qkv, shape), Heads::keys(qkv, shape), Heads::values(qkv, shape));
    let row = |h: &Heads<'_, bf16>, t: usize, head: usize| -> Vec<f64> {
        let at = h.offset + t * h.token_stride + (shape.groups - 1) * h.group_stride + head * h.head_stride;
        h.data[at..at + dim].iter().map(|v| v.to_f64()).collect()
    };
    for i in [0, 1, seq / 2, seq - 1] {
        let query = row(&q, i, shape.heads_per_group - 1);
        let score = |j: usize| -> f64 {
            query.iter().zip(row(&k, j, 0)).map(|(a, b)| a * b).sum::<f64>() / (dim as f64).sqrt()
        };
        let weights: Vec<f64> = (0..=i).map(|j| score(j).exp()).collect();
        let sum: f64 = weights.iter().sum();
        for d in 0..dim {
            let want: f64 = (0..=i).map(|j| weights[j] / sum * row(&v, j, 0)[d]).sum();
            let got = out[(i * heads + heads - 1) * dim + d].to_f64();
            assert!(
                (got - want).abs() < 0.01 * want.abs() + 4e-3,
                "query {i}, element {d}: {got} for {want}"
            );
        }
    }
}

/// One query per sequence against a cache that is read once: bound by memory.
fn decode(bench: &mut Bench, keys: usize, groups: usize, heads_per_group: usize, dim: usize) {
    let name = format!("decode keys={keys} n={} g={groups} d={dim}", groups * heads_per_group);
    if !bench.wants(&name) {
        return;
    }
    let cache = on_huge_pages(&random::<bf16>(2 * keys * groups * dim, 1));
    let (k, v) = cast_slice::<u8, bf16>(cache.bytes()).split_at(keys * groups * dim);
    let query = random::<bf16>(groups * heads_per_group * dim, 2);
    let mut out = vec![bf16::ZERO; query.len()];
    let heads =
        |data| Heads { data, offset: 0, token_stride: groups * dim, group_stride: dim, head_stride: 0 };
    let q = Heads {
        data: &query[..],
        offset: 0,
        token_stride: query.len(),
        group_stride: heads_per_group * dim,
        head_stride: dim,
    };
    let (cpu, options) = (bench.cpu.clone(), options(dim));
    let segment = [Segment { q_start: 0, q_len: 1, k_start: 0, k_len: keys, ahead: 0 }];
    bench.case(&name, Peak::Read, cache.len() as f64 / 1e9, || {
        forward(
            &cpu,
            &mut out,
            None,
            q,
            heads(k),
            heads(v),
            groups,
            heads_per_group,
            dim,
            &segment,
            &options,
            None,
        )
        .expect("sizes fit");
    });
}

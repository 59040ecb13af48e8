//! The CPU backend compared with the reference device, operation by operation: one table of cases, run in f32 and bf16 on the
//! kernels and in f64 here, on the same (rounded) operands.

#![allow(clippy::unwrap_used)] // helpers of a test may fail like the test itself

mod bench;
mod dense;
mod experts;
mod grouped_products;
mod heads;
mod recurrent;

use bench::{Bench, Case};
use ms_core::DType;
use std::collections::BTreeSet;

fn cases() -> Vec<Case> {
    [dense::CASES, heads::CASES, experts::CASES, recurrent::CASES].concat()
}

/// How far an output in `dtype` may be from that in f64, relative to the largest element of the output.
fn bound(dtype: DType) -> f64 {
    match dtype {
        DType::Bf16 => 2e-2, // eight bits, and outputs of a forward pass that a backward pass reads again
        DType::F64 => 1e-13,
        _ => 2e-5,
    }
}

fn judge(dtype: DType) {
    judge_those(dtype, cases());
}

fn judge_those(dtype: DType, cases: Vec<Case>) {
    let (fast, reference) = (ms_cpu::device(2).unwrap(), ms_reference::device());
    let mut wrong = Vec::new();
    for (name, case) in cases {
        for draw in 0..3 {
            let got = case(&mut Bench::new(&fast, dtype, dtype, draw));
            let want = case(&mut Bench::new(&reference, DType::F64, dtype, draw)).unwrap();
            let got = got.unwrap_or_else(|e| panic!("{name} in {dtype}: {e}"));
            assert_eq!(got.len(), want.len(), "{name}");
            for (i, (g, w)) in got.iter().zip(&want).enumerate() {
                assert_eq!(g.shape(), w.shape(), "{name}, output {i}");
                if !g.dtype().is_float() {
                    assert_eq!(g.bytes(), w.bytes(), "{name}, output {i}");
                    continue;
                }
                let (g, w) = (g.to_reals().unwrap(), w.to_reals().unwrap());
                let size = w.iter().filter(|w| w.is_finite()).fold(1e-3f64, |m, w| m.max(w.abs()));
                let apart = |(g, w): (&f64, &f64)| if g == w { 0.0 } else { (g - w).abs() / size };
                let worst = g.iter().zip(&w).map(apart).fold(0.0, f64::max);
                if worst.is_nan() || worst > bound(dtype) {
                    wrong.push(format!("{name}, output {i}, draw {draw}: {worst:.1e} of {size:.1e} apart"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{dtype}:\n{}", wrong.join("\n"));
}

#[test]
fn in_f32_every_operation_is_the_reference() {
    judge(DType::F32);
}

#[test]
fn in_bf16_every_operation_is_the_reference() {
    judge(DType::Bf16);
}

/// What a router computes in f64 (`--moe-router-dtype fp64`) with weights and activations of fewer bits.
#[test]
fn in_f64_routers_and_their_products_are_the_reference() {
    let of_routers = |case: &Case| case.0.starts_with("linear") || case.0.starts_with("route ");
    let some: Vec<Case> = cases().into_iter().filter(of_routers).collect();
    let named: Vec<&str> = some.iter().map(|case| case.0).collect();
    assert!(named.join(" ").contains("linear_dx"), "{named:?}");
    judge_those(DType::F64, some);
}

/// What the seam declares, by its source: a method that nobody judges is noticed.
#[test]
fn every_method_of_the_seam_has_a_case() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../ms-core/src/backend");
    let mut declared = BTreeSet::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        let traits = text.split("pub trait ").skip(1).filter(|t| !t.starts_with("Backend:"));
        for line in traits.flat_map(str::lines) {
            let of = |how| line.strip_prefix(how);
            if let Some(rest) = of("    deferred fn ").or_else(|| of("    blocking fn ")) {
                declared.insert(rest.split(['(', '<']).next().unwrap().to_owned());
            }
        }
    }
    let judged: BTreeSet<String> = cases().iter().flat_map(|c| c.0.split(' ')).map(str::to_owned).collect();
    let missing: Vec<_> = declared.difference(&judged).collect();
    assert!(declared.len() > 60, "only {} methods were found", declared.len());
    assert!(missing.is_empty(), "no case judges {missing:?}");
}

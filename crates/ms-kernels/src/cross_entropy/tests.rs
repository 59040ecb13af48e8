//! Every instance against the reference, the goldens and each other.

use half::bf16;
use ms_testing::{assert_close, golden, read_golden};
use proptest::prelude::*;

use super::{Row, gradient, nll, reference, statistics, whole};
use crate::trial::{assert_same_gradient, cpus, finite_differences, random, same_everywhere, wide, wide64};
use crate::{Cpu, Element, Error, Isa};

#[test]
fn pytorch_goldens_are_met_whole_and_on_shards() {
    let path = golden("ops/vocab_parallel_ce.safetensors");
    let (g, _) = read_golden(&path);
    let vocab = g["logits"].shape[2];
    let targets: Vec<i32> = g["target"].i64().iter().map(|&t| t as i32).collect();
    let tokens = targets.len();
    let logits = g["logits"].f32();
    let weights = g["dloss"].f32();
    for cpu in cpus(&[1, 2]) {
        for shards in [1usize, 2, 4] {
            let width = vocab / shards;
            let part = |rank: usize| -> Vec<f32> {
                logits.chunks_exact(vocab).flat_map(|row| row[rank * width..][..width].to_vec()).collect()
            };
            let mut total: Option<Vec<Row>> = None;
            for rank in 0..shards {
                let mut rows = vec![Row::default(); tokens];
                statistics(&cpu, &mut rows, &part(rank), &targets, width, rank * width).unwrap();
                if shards > 1 {
                    let name = |field: &str| format!("tp{shards}.rank{rank}.{field}");
                    let local_max: Vec<f32> = rows.iter().map(|r| r.max).collect();
                    assert_close("local max", &local_max, &g[&name("local_max")].values, 1e-6, 1e-6);
                }
                total = Some(match total {
                    None => rows,
                    Some(total) => total.iter().zip(&rows).map(|(a, b)| a.merge(b)).collect(),
                });
            }
            let rows = total.unwrap();
            let losses: Vec<f32> = rows.iter().map(nll).collect();
            assert_close("loss", &losses, &g["loss"].values, 1e-5, 1e-6);
            let max: Vec<f32> = rows.iter().map(|r| r.max).collect();
            assert_close("max", &max, &g["logits_max"].values, 1e-6, 1e-6);
            let sum: Vec<f32> = rows.iter().map(|r| r.sum_exp).collect();
            assert_close("sum", &sum, &g["sum_exp"].values, 1e-5, 1e-6);
            for rank in 0..shards {
                let mut d = part(rank);
                gradient(&cpu, &mut d, &rows, &targets, &weights, width, rank * width).unwrap();
                let want: Vec<f64> = g["dlogits"]
                    .values
                    .chunks_exact(vocab)
                    .flat_map(|row| row[rank * width..][..width].to_vec())
                    .collect();
                assert_close("dlogits", &d, &want, 1e-4, 1e-6);
            }
        }
    }
}

fn formula_is_met<E: Element>(tokens: usize, vocab: usize) {
    let logits: Vec<E> =
        random::<E>(tokens * vocab, 1).iter().map(|v| E::from_f32(v.to_f32() * 9.0)).collect();
    let first_id = 100;
    let targets: Vec<i32> = (0..tokens).map(|t| (first_id + (t * 13) % vocab) as i32).collect();
    let weights: Vec<f32> = (0..tokens).map(|t| if t % 3 == 1 { 0.0 } else { 0.5 }).collect();
    let what = format!("{} {tokens}x{vocab}", E::NAME);
    let (rows, d) = same_everywhere(&what, |cpu| {
        let mut rows = vec![Row::default(); tokens];
        statistics(cpu, &mut rows, &logits, &targets, vocab, first_id).unwrap();
        let mut d = logits.clone();
        gradient(cpu, &mut d, &rows, &targets, &weights, vocab, first_id).unwrap();
        (rows, d)
    });
    let rtol = if E::NAME == "f32" { 1e-5 } else { 8e-3 };
    for t in 0..tokens {
        let row = t * vocab..(t + 1) * vocab;
        let (loss, want) = reference::loss(&wide64(&logits[row.clone()]), targets[t] as usize - first_id);
        assert_close(&what, &[nll(&rows[t])], &[loss], 1e-5, 1e-5);
        let want: Vec<f64> = want.iter().map(|v| v * f64::from(weights[t])).collect();
        assert_close(&what, &wide(&d[row.clone()]), &want, rtol, 1e-7);
        if weights[t] == 0.0 {
            assert!(d[row].iter().all(|v| v.to_f32().to_bits() == 0), "{what}: weight 0 gives +0");
        }
    }
}

#[test]
fn every_instance_meets_the_formula() {
    formula_is_met::<f32>(7, 1000);
    formula_is_met::<bf16>(40, 3001);
}

#[test]
fn the_formula_s_gradient_is_its_finite_difference() {
    let x: Vec<f64> = wide64(&random::<f32>(9, 1)).iter().map(|v| v * 3.0).collect();
    let slope = finite_differences(&x, |x| reference::loss(x, 4).0);
    assert_same_gradient("logits", &reference::loss(&x, 4).1, &slope, 1e-8);
}

#[test]
fn a_target_that_is_nowhere_counts_as_none() {
    let logits = [1.0f32, 2.0, 3.0];
    let mut rows = [Row::default()];
    for target in [-100, -1, 3, i32::MAX] {
        statistics(&Cpu::single(), &mut rows, &logits, &[target], 3, 0).unwrap();
        assert_eq!((rows[0].max, rows[0].target), (3.0, 0.0));
        let mut d = logits;
        gradient(&Cpu::single(), &mut d, &rows, &[target], &[1.0], 3, 0).unwrap();
        assert!((d.iter().sum::<f32>() - 1.0).abs() < 1e-6, "plain softmax: {d:?}");
    }
}

#[test]
fn large_logits_do_not_overflow() {
    let logits = [3e38f32, -3e38, 3e38];
    let mut rows = [Row::default()];
    statistics(&Cpu::single(), &mut rows, &logits, &[0], 3, 0).unwrap();
    assert_eq!(rows[0], Row { max: 3e38, sum_exp: 2.0, target: 3e38 });
    let empty = Row { max: f32::NEG_INFINITY, sum_exp: 0.0, target: 0.0 };
    assert_eq!(rows[0].merge(&empty), rows[0], "a shard without columns has no effect");
}

#[test]
fn both_passes_at_once_have_the_bits_of_one_after_the_other() {
    fn check<E: Element>(vocab: usize) {
        let targets = [0, -100, 7, vocab as i32 - 1, 3];
        let weights = [1.0, 0.25, 0.0, -2.0, 0.125];
        for isa in Isa::all_available() {
            for threads in [1, 2] {
                let cpu = Cpu::new(threads, isa).unwrap();
                let mut want = random::<E>(5 * vocab, 9);
                want[vocab + 2] = E::from_f32(f32::NEG_INFINITY);
                let mut got = want.clone();
                let (mut rows, mut at_once) = ([Row::default(); 5], [Row::default(); 5]);
                statistics(&cpu, &mut rows, &want, &targets, vocab, 0).unwrap();
                gradient(&cpu, &mut want, &rows, &targets, &weights, vocab, 0).unwrap();
                whole(&cpu, &mut at_once, &mut got, &targets, &weights, vocab).unwrap();
                let bytes = |rows: &[Row]| bytemuck::cast_slice::<Row, u32>(rows).to_vec();
                assert_eq!(bytes(&at_once), bytes(&rows), "{isa} {vocab}");
                let (got, want): (&[u8], &[u8]) = (bytemuck::cast_slice(&got), bytemuck::cast_slice(&want));
                assert_eq!(got, want, "{isa} {vocab}");
            }
        }
    }
    for vocab in [8, 16, 63, 64, 65, 500, 3001] {
        check::<f32>(vocab);
        check::<bf16>(vocab);
    }
}

#[test]
fn operands_that_do_not_fit_are_errors() {
    let cpu = Cpu::single();
    let mut rows = [Row::default(); 2];
    let error = statistics(&cpu, &mut rows, &[0f32; 5], &[0, 0], 3, 0).unwrap_err();
    assert_eq!(error, Error::Shape { op: "cross_entropy::statistics", name: "logits", want: 6, got: 5 });
    assert!(gradient(&cpu, &mut [0f32; 6], &rows, &[0, 0], &[1.0], 3, 0).is_err());
    assert_eq!(statistics::<f32>(&cpu, &mut [], &[], &[], 3, 0), Ok(()));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]
    #[test]
    fn any_size_meets_the_formula(tokens in 0usize..6, vocab in 1usize..200) {
        formula_is_met::<f32>(tokens, vocab);
    }
}

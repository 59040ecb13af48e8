//! Products fused with communication through the safe layer: a linear layer sharded over two ranks, by columns and by rows.

use crate::{scenarios, toolkit};
use ascend_rs::ops::joint;
use ascend_rs::{Array, Comm, Device, Error, Stream};
use half::bf16;
use ms_core::DType;

scenarios! {
    a_layer_cut_over_ranks_is_the_whole_one
}

/// Whole numbers, which every sum here keeps exact.
fn values(n: usize, seed: usize) -> Vec<bf16> {
    (0..n).map(|i| bf16::from_f32((((i * 7 + seed * 5) % 3) as f64 - 1.0) as f32)).collect()
}

fn product(a: &[f64], b: &[f64], m: usize, k: usize, n: usize) -> Vec<f64> {
    (0..m * n).map(|i| (0..k).map(|p| a[i / n * k + p] * b[p * n + i % n]).sum()).collect()
}

fn wide(v: &[bf16]) -> Vec<f64> {
    v.iter().map(|v| v.to_f64()).collect()
}

/// Tokens cut over the ranks, `x · first` with columns of `first` on each rank, then times rows of `second`.
fn a_layer_cut_over_ranks_is_the_whole_one() {
    const RANKS: usize = 2;
    let (tokens, h, f) = (4, 256, 512);
    let (x, first, second) = (values(tokens * h, 1), values(h * f, 2), values(f * h, 3));
    let toolkit = toolkit();
    let unbound = {
        let device = Device::bind(&toolkit, 0).unwrap();
        Comm::all_in_process(&device, &[0, 1]).unwrap()
    };
    let hidden = product(&wide(&x), &wide(&first), tokens, h, f);
    let hidden: Vec<f64> = hidden.iter().map(|v| bf16::from_f32(*v as f32).to_f64()).collect();
    std::thread::scope(|scope| {
        for (rank, comm) in unbound.into_iter().enumerate() {
            let (toolkit, x, first, second, hidden) = (&toolkit, &x, &first, &second, &hidden);
            scope.spawn(move || {
                let device = Device::bind(toolkit, rank as i32).unwrap();
                let comm = comm.bind(&device).unwrap();
                assert!(!comm.name().is_empty());
                assert!(joint::available(toolkit).iter().all(|(_, there)| *there));
                let s = Stream::new(&device).unwrap();
                let (rows, part) = (tokens / RANKS, f / RANKS);
                let mine = Array::of(&s, &[rows, h], &x[rank * rows * h..(rank + 1) * rows * h]).unwrap();
                let columns: Vec<bf16> =
                    (0..h * part).map(|i| first[i / part * f + rank * part + i % part]).collect();
                let columns = Array::of(&s, &[h, part], &columns).unwrap();
                let up = Array::new(&s, DType::Bf16, &[tokens, part]).unwrap();
                let all = Array::new(&s, DType::Bf16, &[tokens, h]).unwrap();
                joint::AllGatherMatmul {
                    x1: mine.view().unwrap(),
                    x2: columns.view().unwrap(),
                    group: &comm,
                    options: joint::GatherOptions::default(),
                    output: up.view().unwrap(),
                    gather: all.view().unwrap(),
                }
                .run(&s)
                .unwrap();
                let want: Vec<f64> =
                    (0..tokens * part).map(|i| hidden[i / part * f + rank * part + i % part]).collect();
                assert_eq!(wide(&up.to_vec::<bf16>().unwrap()), want);
                assert_eq!(all.to_vec::<bf16>().unwrap(), *x);

                let down =
                    Array::of(&s, &[part, h], &second[rank * part * h..(rank + 1) * part * h]).unwrap();
                let (cut, sum) = (
                    Array::new(&s, DType::Bf16, &[rows, h]).unwrap(),
                    Array::new(&s, DType::Bf16, &[tokens, h]).unwrap(),
                );
                joint::MatmulReduceScatter {
                    x1: up.view().unwrap(),
                    x2: down.view().unwrap(),
                    group: &comm,
                    options: joint::SumOptions::default(),
                    output: cut.view().unwrap(),
                }
                .run(&s)
                .unwrap();
                let all_reduce = |options| {
                    joint::MatmulAllReduce {
                        x1: up.view().unwrap(),
                        x2: down.view().unwrap(),
                        group: &comm,
                        options,
                        output: sum.view().unwrap(),
                    }
                    .run(&s)
                };
                all_reduce(joint::SumOptions::default()).unwrap();
                // Each rank's part is rounded before the sum.
                let mut want = vec![0.0; tokens * h];
                for r in 0..RANKS {
                    let up: Vec<f64> =
                        (0..tokens * part).map(|i| hidden[i / part * f + r * part + i % part]).collect();
                    let rows = wide(&second[r * part * h..(r + 1) * part * h]);
                    let piece = product(&up, &rows, tokens, part, h);
                    want.iter_mut().zip(piece).for_each(|(w, p)| *w += bf16::from_f32(p as f32).to_f64());
                }
                let want: Vec<f64> = want.iter().map(|v| bf16::from_f32(*v as f32).to_f64()).collect();
                assert_eq!(wide(&sum.to_vec::<bf16>().unwrap()), want);
                assert_eq!(
                    wide(&cut.to_vec::<bf16>().unwrap()),
                    want[rank * rows * h..(rank + 1) * rows * h]
                );

                let largest = joint::SumOptions { reduce_op: c"max", ..Default::default() };
                let e = all_reduce(largest).unwrap_err();
                assert!(matches!(&e, Error::Call(_)) && e.to_string().contains("reduceOp"), "{e}");
            });
        }
    });
}

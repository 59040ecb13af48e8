//! Layers with and without overlapped communication: the same bits, in another order of work.

use super::*;
use crate::Pieces;
use crate::{CommCall, CommHook, ParallelOptions, threads};
use ms_core::{
    DType, GradBuffer, GradSink, Grid, GridRules, GridSizes, ParamId, ParamLayout, ParamStore, Rng, TensorMut,
};
use std::sync::{Arc, Mutex};

const TP: usize = 2;
/// Width of the input, outputs of both layers on a rank, tokens.
const K: usize = 12;
const N: [usize; 2] = [10, 6];
const T: usize = 96;

fn drawn(device: &Device, name: &str, shape: &[usize], dtype: DType) -> Tensor {
    let mut values = vec![0f32; shape.iter().product()];
    Rng::named(7, name).fill_normal(&mut values, 1.0);
    let values: Vec<f64> = values.iter().map(|&v| f64::from(v)).collect();
    Tensor::from_reals(device.arena(), dtype, shape, &values).unwrap()
}

/// What ranks started and waited for, and the weight gradients that were computed, in order.
type Log = Arc<Mutex<Vec<String>>>;

struct LogHook(Log);

impl CommHook for LogHook {
    fn exchange(
        &self,
        of: CommCall<'_>,
        begin: &mut dyn FnMut() -> crate::Result<Pending>,
    ) -> crate::Result<Pending> {
        self.0.lock().unwrap().push(format!("begin {}", of.name));
        let (log, name, pending) = (self.0.clone(), of.name, begin()?);
        Ok(Pending::new(move || {
            log.lock().unwrap().push(format!("wait {name}"));
            pending.wait()
        }))
    }
}

/// Gradients that note when they are added to.
struct Sink(GradBuffer, Log);

impl GradSink for Sink {
    fn add(
        &mut self,
        p: ParamId,
        work: &mut dyn FnMut(TensorMut<'_>) -> ms_core::Result<()>,
    ) -> ms_core::Result<()> {
        self.1.lock().unwrap().push(format!("weight {}", p.0));
        self.0.add(p, work)
    }
}

/// Layers of a rank: two column-parallel ones, with a bias each, and one row-parallel one.
enum Form {
    /// As operations of their own between those of entering and leaving.
    Apart,
    Together(LinearOverlap),
}

/// Bytes of outputs, of the input's gradient and of all weights' gradients on rank 0, and what it did.
fn run(form: &Form, sequence_parallel: bool, dtype: DType) -> (Vec<Vec<u8>>, Vec<String>) {
    let sizes = GridSizes { tp: TP, ..GridSizes::default() };
    let grid = Grid::new(TP, &sizes, GridRules::V2).unwrap();
    let rank = |fabric: threads::ThreadFabric| -> crate::Result<_> {
        let log: Log = Arc::default();
        let hook: Arc<dyn CommHook> = Arc::new(LogHook(log.clone()));
        let ctx = ParallelCtx::new(
            grid.clone(),
            ParallelOptions { sequence_parallel, ..ParallelOptions::default() },
            &fabric,
        )?;
        let mut ctx = ctx.with_hook(&hook);
        if let Form::Together(overlap) = form {
            ctx.linears = *overlap;
        }
        let device = ms_cpu::device(1)?;
        let shapes = [&[N[0], K][..], &[N[0]], &[N[1], K], &[N[1]], &[K, N[0]]];
        let layout = Arc::new(ParamLayout::sequential(shapes.map(Shape::new)));
        let mut store = ParamStore::zeros(device.arena(), dtype, layout.clone());
        for (i, shape) in shapes.iter().enumerate() {
            let w = drawn(&device, &format!("w{i} of {}", ctx.rank), shape, dtype);
            store.get_mut(ParamId(i as u32))?.bytes_mut().copy_from_slice(w.bytes());
        }
        let own = if sequence_parallel { T / TP } else { T };
        let x = drawn(&device, "x", &[T, K], dtype).rows(ctx.rank * (T - own), own)?;
        let mut g = Graph::train(&device);
        let x = g.input(x);
        let w: Vec<Var> = (0..5).map(|i| g.param(&store, ParamId(i))).collect();
        let (a, b, y) = match form {
            Form::Apart => {
                let x = ctx.enter_tp(&mut g, &x)?;
                let a = ops::linear(&mut g, &x, &w[0], Some(&w[1]))?;
                let b = ops::linear(&mut g, &x, &w[2], Some(&w[3]))?;
                let y = ops::linear(&mut g, &a, &w[4], None)?;
                (a, b, ctx.leave_tp(&mut g, &y)?)
            }
            Form::Together(_) => {
                let layers = [(w[0].clone(), Some(w[1].clone())), (w[2].clone(), Some(w[3].clone()))];
                let made = ctx.column_parallel(&mut g, &x, &layers)?;
                let y = ctx.row_parallel(&mut g, &made[0], &w[4], None)?;
                (made[0].clone(), made[1].clone(), y)
            }
        };
        let roots = [(&y, "dy"), (&b, "db")];
        let roots = roots.map(|(v, name)| (v, drawn(&device, name, &v.value().shape(), dtype))).into();
        let mut sink = Sink(GradBuffer::zeros(device.arena(), dtype, layout), log.clone());
        log.lock().unwrap().push("backward".to_owned());
        let outputs = [&a, &b, &y].map(|v| v.value().bytes().to_vec());
        let dx = g.backward_from(roots, &[&x], &mut sink, None)?.remove(0).unwrap();
        let all = outputs.into_iter().chain([dx.bytes().to_vec(), sink.0.values().bytes().to_vec()]);
        let log = log.lock().unwrap().clone();
        Ok((all.collect(), log))
    };
    threads::run(TP, rank).map_err(|(rank, e)| format!("rank {rank}: {e}")).unwrap().swap_remove(0)
}

/// What rank 0 does in its backward pass, without the gradients of biases.
fn backward(overlap: LinearOverlap, sequence_parallel: bool) -> Vec<String> {
    let (_, log) = run(&Form::Together(overlap), sequence_parallel, DType::F32);
    let of_bias = |step: &String| step == "weight 1" || step == "weight 3";
    log.into_iter().skip_while(|step| step != "backward").skip(1).filter(|step| !of_bias(step)).collect()
}

#[test]
fn neither_overlap_nor_pieces_change_a_bit() {
    for sequence_parallel in [false, true] {
        for dtype in [DType::F32, DType::Bf16] {
            let (want, _) = run(&Form::Apart, sequence_parallel, dtype);
            for weight_gradients in [false, true] {
                for pieces in [1, 2, 4, 8, 3].map(Pieces::Number).into_iter().chain([Pieces::Finest]) {
                    let overlap = LinearOverlap { weight_gradients, pieces, overlap_gathers: false };
                    let (got, _) = run(&Form::Together(overlap), sequence_parallel, dtype);
                    assert!(got == want, "{overlap:?}, sequence parallel {sequence_parallel}, {dtype:?}");
                }
            }
        }
    }
}

#[test]
fn weight_gradients_are_formed_while_that_of_the_input_is_on_its_way() {
    let on = LinearOverlap::default();
    let off = LinearOverlap { weight_gradients: false, ..on };
    let column = ["begin enter_tp", "weight 0", "weight 2", "wait enter_tp"];
    assert_eq!(backward(on, false), [&["weight 4"][..], &column].concat());
    assert_eq!(backward(off, false), ["weight 4", "begin enter_tp", "wait enter_tp", "weight 0", "weight 2"]);
    // The input is gathered while its gradient is computed, which is then sent.
    let row = ["begin leave_tp", "wait leave_tp", "weight 4"];
    assert_eq!(
        backward(on, true),
        [
            &row[..],
            &["begin gathered again", "begin enter_tp", "wait gathered again"],
            &["weight 0", "weight 2", "wait enter_tp"]
        ]
        .concat()
    );
    let again = ["begin gathered again", "wait gathered again"];
    assert_eq!(
        backward(off, true),
        [&row[..], &again, &["begin enter_tp", "wait enter_tp", "weight 0", "weight 2"]].concat()
    );
}

#[test]
fn a_piece_is_on_its_way_while_another_is_computed() {
    let pieces = LinearOverlap { pieces: Pieces::Number(2), ..LinearOverlap::default() };
    let forward = |sequence_parallel| {
        let (_, log) = run(&Form::Together(pieces), sequence_parallel, DType::F32);
        log.into_iter().take_while(|step| step != "backward").collect::<Vec<_>>()
    };
    let ahead = |name: &str| ["begin", "begin", "wait", "wait"].map(|what| format!("{what} {name}"));
    assert_eq!(forward(false), ahead("leave_tp"));
    assert_eq!(forward(true), [ahead("enter_tp"), ahead("leave_tp")].concat());
    // So is the gradient of a layer's output, which is gathered.
    assert_eq!(backward(pieces, true)[..4], ahead("leave_tp"));
}

#[test]
fn rows_that_do_not_divide_stay_whole() {
    assert_eq!([96, 100, 64, 0].map(|rows| Pieces::Number(8).of(rows, 2)), [8, 1, 1, 1]);
    assert_eq!([96, 100, 64, 20, 18, 98, 0].map(|rows| Pieces::Finest.of(rows, 1)), [8, 4, 4, 2, 2, 2, 1]);
    assert_eq!([100, 98].map(|rows| Pieces::Finest.of(rows, 2)), [2, 1]);
}

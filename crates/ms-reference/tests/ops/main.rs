//! The gradients of every operation of a graph: on the reference device compared with fourth-order finite differences of the
//! operation, and on the CPU, in every form that this machine can run, with those of the reference.

#![allow(clippy::unwrap_used)] // helpers of a test may fail like the test itself

mod dense;
mod experts;
mod heads;
mod recurrent;

use ms_core::{DType, Device, GradBuffer, Graph, ParamId, ParamLayout, ParamStore};
use ms_core::{Result, Rng, Shape, Tensor, Var, ops};
use ms_cpu::CpuBackend;
use std::collections::BTreeSet;
use std::sync::Arc;

/// What a case makes of its input and its weights.
struct Made {
    /// Of which the loss is a sum with fixed weights.
    y: Var,
    /// A loss whose gradient enters in addition to that of `y`.
    beside: f64,
}

impl From<Var> for Made {
    fn from(y: Var) -> Self {
        Self { y, beside: 0.0 }
    }
}

type Run = dyn Fn(&mut Graph, &[Var], &Var) -> Result<Made>;

/// An operation, or several that go together, of one input and some weights.
struct Case {
    /// Functions of `ms_core::ops` whose gradients are looked at, separated by spaces.
    ops: &'static str,
    x: &'static [usize],
    /// Shapes of weights, deviations and means of their numbers.
    weights: Vec<(&'static [usize], f32, f32)>,
    run: Box<Run>,
}

fn case<M: Into<Made>>(
    ops: &'static str,
    x: &'static [usize],
    weights: &[(&'static [usize], f32, f32)],
    run: impl Fn(&mut Graph, &[Var], &Var) -> Result<M> + 'static,
) -> Case {
    let run = move |g: &mut Graph, weights: &[Var], x: &Var| Ok(run(g, weights, x)?.into());
    Case { ops, x, weights: weights.to_vec(), run: Box::new(run) }
}

fn cases() -> Vec<Case> {
    [dense::cases(), heads::cases(), experts::cases(), recurrent::cases()].into_iter().flatten().collect()
}

/// Functions that hand nothing back to a graph: choices, logits to look at, and a part of `attention`.
const WITHOUT_GRADIENT: [&str; 5] = ["drop_margin", "join_sinks", "logits", "routing_margin", "sinkhorn"];

/// Numbers that f32 holds.
fn drawn(name: &str, shape: &[usize], (std, mean): (f32, f32)) -> Vec<f64> {
    let mut values = vec![0f32; shape.iter().product()];
    Rng::named(7, name).fill_normal(&mut values, std);
    values.iter().map(|v| f64::from(v + mean)).collect()
}

/// A case with its operands on a device: the input first, then the weights.
struct Trial<'a> {
    case: &'a Case,
    device: &'a Device,
    dtype: DType,
    shapes: Vec<Shape>,
    values: Vec<Vec<f64>>,
}

impl<'a> Trial<'a> {
    fn new(case: &'a Case, number: usize, device: &'a Device, dtype: DType) -> Self {
        let all = std::iter::once((case.x, 1.0, 0.0)).chain(case.weights.iter().copied());
        let of = |(i, (shape, std, mean)): (usize, (&[usize], f32, f32))| {
            (Shape::new(shape), drawn(&format!("{}.{number}.{i}", case.ops), shape, (std, mean)))
        };
        let (shapes, values) = all.enumerate().map(of).unzip();
        Self { case, device, dtype, shapes, values }
    }

    fn layout(&self) -> Arc<ParamLayout> {
        Arc::new(ParamLayout::sequential(self.shapes[1..].iter().copied()))
    }

    fn made(&self, g: &mut Graph) -> (Var, Made) {
        let mut store = ParamStore::zeros(self.device.arena(), self.dtype, self.layout());
        for (i, values) in self.values[1..].iter().enumerate() {
            store.get_mut(ParamId(i as u32)).unwrap().set_reals(values).unwrap();
        }
        let weights: Vec<Var> =
            (0..self.values.len() - 1).map(|i| g.param(&store, ParamId(i as u32))).collect();
        let x = Tensor::from_reals(self.device.arena(), self.dtype, self.shapes[0], &self.values[0]).unwrap();
        let x = g.input(x);
        let made = (self.case.run)(g, &weights, &x).unwrap_or_else(|e| panic!("{}: {e}", self.case.ops));
        (x, made)
    }

    /// What each element of the output weighs in the loss.
    fn dy(&self, y: &Tensor) -> Vec<f64> {
        drawn(&format!("{}.dy", self.case.ops), &[y.numel()], (1.0, 0.0))
    }

    fn loss(&self) -> f64 {
        let made = self.made(&mut Graph::inference(self.device)).1;
        let y = made.y.value();
        y.to_reals().unwrap().iter().zip(self.dy(y)).map(|(y, w)| y * w).sum::<f64>() + made.beside
    }

    /// The output, and the gradients with respect to the input and each weight.
    fn gradients(&self) -> (Vec<f64>, Vec<Vec<f64>>) {
        let mut g = Graph::train(self.device);
        let (x, made) = self.made(&mut g);
        let y = made.y.value().clone();
        let dy = Tensor::from_reals(self.device.arena(), y.dtype(), y.shape(), &self.dy(&y)).unwrap();
        let mut grads = GradBuffer::zeros(self.device.arena(), self.dtype.wide(), self.layout());
        let dx = g.backward(&made.y, dy, &[&x], &mut grads).unwrap().remove(0);
        let none = || vec![0.0; self.values[0].len()];
        let mut all = vec![dx.map_or_else(none, |dx| dx.to_reals().unwrap())];
        all.extend(self.layout().ids().map(|id| grads.get(id).to_reals().unwrap()));
        (y.to_reals().unwrap(), all)
    }

    /// The loss with operand `i` moved by `by` along `way`.
    fn moved(&mut self, i: usize, way: &[f64], by: f64) -> f64 {
        let before = self.values[i].clone();
        self.values[i].iter_mut().zip(way).for_each(|(v, w)| *v += by * w);
        let loss = self.loss();
        self.values[i] = before;
        loss
    }
}

fn norm(values: &[f64]) -> f64 {
    values.iter().map(|v| v * v).sum::<f64>().sqrt()
}

/// Of a step along a direction; kinks and other picks are further away.
const STEP: f64 = 1e-4;

#[test]
fn gradients_are_differences_in_f64() {
    let device = ms_reference::device();
    let mut wrong = Vec::new();
    for (number, case) in cases().iter().enumerate() {
        let mut trial = Trial::new(case, number, &device, DType::F64);
        let (_, gradients) = trial.gradients();
        assert!(gradients.iter().any(|g| norm(g) > 1e-2), "{}: there is no gradient", case.ops);
        for (i, gradient) in gradients.iter().enumerate() {
            for direction in 0..3 {
                let way = drawn(&format!("{}.way.{direction}", case.ops), &trial.shapes[i], (1.0, 0.0));
                let [back2, back, on, on2] = [-2.0, -1.0, 1.0, 2.0].map(|n| trial.moved(i, &way, n * STEP));
                let slope = (8.0 * (on - back) - (on2 - back2)) / (12.0 * STEP);
                let want: f64 = way.iter().zip(gradient).map(|(w, g)| w * g).sum();
                // Differences carry the rounding of the loss divided by the step.
                let bound = 1e-6 * want.abs().max(0.01 * norm(&way) * norm(gradient)) + 1e-10;
                if slope.is_nan() || (slope - want).abs() > bound {
                    wrong.push(format!("{}, operand {i}: {want:.9e}, differences say {slope:.9e}", case.ops));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn gradients_of_the_cpu_are_those_of_the_reference() {
    let reference = ms_reference::device();
    let on = |isa, threads| Device::new(CpuBackend::new(threads, isa).unwrap());
    let isas = ms_kernels::Isa::all_available().into_iter();
    let devices: Vec<Device> = isas.flat_map(|isa| [on(isa, 1), on(isa, 3)]).collect();
    let mut wrong = Vec::new();
    for (number, case) in cases().iter().enumerate() {
        let (y, gradients) = Trial::new(case, number, &reference, DType::F64).gradients();
        let largest = gradients.iter().map(|g| norm(g)).fold(0.0, f64::max);
        for device in &devices {
            let (own_y, own) = Trial::new(case, number, device, DType::F32).gradients();
            let all = own.iter().zip(&gradients).chain([(&own_y, &y)]).enumerate();
            for (i, (got, want)) in all {
                let apart: Vec<f64> = got.iter().zip(want).map(|(g, w)| g - w).collect();
                let relative = norm(&apart) / norm(want).max(1e-3 * largest);
                if got.len() != want.len() || relative.is_nan() || relative > 1e-5 {
                    let name = device.name();
                    wrong.push(format!("{}, operand {i} on {name}: {relative:.1e} apart", case.ops));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A cast rounds, so that differences see steps: what comes back is known.
#[test]
fn a_cast_weight_gets_its_gradient_unrounded() {
    for device in [ms_reference::device(), ms_cpu::device(1).unwrap()] {
        let layout = Arc::new(ParamLayout::sequential([Shape::new(&[2, 2])]));
        let mut store = ParamStore::zeros(device.arena(), DType::Bf16, layout.clone());
        store.get_mut(ParamId(0)).unwrap().set_reals(&[1.0; 4]).unwrap();
        let mut g = Graph::train(&device);
        let wide = if device.name() == ms_reference::device().name() { DType::F64 } else { DType::F32 };
        let x = g.input(Tensor::from_reals(device.arena(), wide, [1, 2], &[1.253_906_25, 2.0]).unwrap());
        let w = g.param(&store, ParamId(0));
        let w = ops::cast(&mut g, &w, wide).unwrap();
        let y = ops::linear(&mut g, &x, &w, None).unwrap();
        let dy = Tensor::from_reals(device.arena(), wide, [1, 2], &[1.0, 3.0]).unwrap();
        let mut grads = GradBuffer::zeros(device.arena(), wide, layout);
        g.backward(&y, dy, &[&x], &mut grads).unwrap();
        assert_eq!(grads.get(ParamId(0)).to_reals().unwrap(), [1.253_906_25, 2.0, 3.761_718_75, 6.0]);
    }
}

/// What `ms_core::ops` hands out, by its source: a function without a case is noticed.
#[test]
fn every_operation_has_a_case() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../ms-core/src/ops/mod.rs");
    let text = std::fs::read_to_string(&path).unwrap();
    let uses = text.split("pub use ").skip(1).map(|rest| rest.split(';').next().unwrap());
    let names = uses.flat_map(|list| {
        let (module, names) = list.split_once("::").unwrap();
        let names = match names {
            // All functions of a family.
            "*" => {
                let family = std::fs::read_to_string(path.with_file_name(format!("{module}.rs"))).unwrap();
                let found =
                    family.split("\npub fn ").skip(1).map(|rest| rest.split(['(', '<']).next().unwrap());
                found.collect::<Vec<_>>().join(",")
            }
            names => names.trim_matches(['{', '}']).to_owned(),
        };
        let names = names.split(',').map(str::trim).filter(|name| name.starts_with(char::is_lowercase));
        names.map(str::to_owned).collect::<Vec<_>>()
    });
    let declared: BTreeSet<String> = names.collect();
    assert!(declared.len() > 40, "only {} operations were found", declared.len());
    let mut known: BTreeSet<String> =
        cases().iter().flat_map(|c| c.ops.split(' ')).map(str::to_owned).collect();
    known.insert("cast".to_owned());
    known.extend(WITHOUT_GRADIENT.map(str::to_owned));
    let missing: Vec<_> = declared.difference(&known).collect();
    assert!(missing.is_empty(), "no case looks at {missing:?}");
    let strange: Vec<_> = known.difference(&declared).collect();
    assert!(strange.is_empty(), "cases of what is no operation: {strange:?}");
}

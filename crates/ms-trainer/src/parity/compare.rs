//! Comparison of two runs of one model: every gradient of the first step, and every number of all steps.

use super::{Found, ParityError};
use crate::StepReport;
use ms_core::DType;

/// How far two runs of one model may be apart, relative to the value.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Gradient of a parameter after the first step, of its norm.
    pub gradient: f64,
    /// Loss, auxiliary losses and predictions of every step.
    pub loss: f64,
    /// Norm of the gradient of every step.
    pub norm: f64,
    /// Values closer to zero are compared as if they were this far from it: what rounding of larger ones leaves.
    pub floor: f64,
    /// The same of the norms of parameters' gradients, as a part of the norm of the whole gradient.
    pub gradient_floor: f64,
    /// What routers do is compared at every step, not the first alone: rounding moves their weights.
    pub routers_of_all_steps: bool,
}

impl Bounds {
    /// The tolerance that rounding to `dtype` requires. In f32, a norm accumulates the rounding of all elements.
    pub fn of(dtype: DType) -> Self {
        let of_f64 = Self {
            gradient: 1e-10,
            loss: 1e-10,
            norm: 1e-10,
            floor: 1e-3,
            gradient_floor: 1e-4,
            routers_of_all_steps: true,
        };
        match dtype {
            DType::F64 => of_f64,
            _ => Self {
                gradient: 3e-4,
                loss: 2e-5,
                norm: 6e-4,
                floor: 1.0,
                routers_of_all_steps: false,
                ..of_f64
            },
        }
    }
}

/// Values of two runs that are compared, and how.
struct Pair<'a> {
    what: Compared<'a>,
    want: Vec<f64>,
    got: Vec<f64>,
    /// What they may be apart, relative to the larger of their size and the floor.
    bound: f64,
    floor: f64,
}

/// What is compared.
#[derive(Clone, Copy)]
enum Compared<'a> {
    /// The gradient of a parameter, by its norm.
    Gradient(&'a str),
    /// A number of a step, from 1, or one of a layer or module each.
    Number(usize, &'static str),
}

impl Pair<'_> {
    /// The largest relative difference, with magnitudes below `floor` replaced by it. A missing value is infinitely far.
    fn relative(&self, floor: f64) -> f64 {
        if self.want.len() != self.got.len() {
            return f64::INFINITY;
        }
        let of = |difference: f64, size: f64| match difference {
            0.0 => 0.0,
            d if d.is_nan() => f64::INFINITY,
            d => d / size.max(floor),
        };
        let pairs = self.want.iter().zip(&self.got);
        match self.what {
            Compared::Gradient(_) => {
                let difference = pairs.map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt();
                of(difference, norm(&self.want))
            }
            Compared::Number(..) => pairs.map(|(a, b)| of((a - b).abs(), a.abs())).fold(0.0, f64::max),
        }
    }

    fn close(&self) -> bool {
        self.relative(self.floor) <= self.bound
    }

    /// Why they are not close.
    fn apart(self) -> ParityError {
        match self.what {
            Compared::Gradient(name) => {
                let relative = self.relative(self.floor);
                ParityError::Gradient { name: name.to_owned(), relative, bound: self.bound }
            }
            Compared::Number(step, what) => ParityError::Step { step, what, want: self.want, got: self.got },
        }
    }
}

fn norm(g: &[f64]) -> f64 {
    g.iter().map(|x| x * x).sum::<f64>().sqrt()
}

/// The gradients of the first step, as a forward pass comes to their parameters.
fn gradients<'a>(
    want: &'a Found,
    got: &'a Found,
    bounds: Bounds,
) -> impl DoubleEndedIterator<Item = Pair<'a>> {
    let total = want.gradients.values().map(|g| norm(g).powi(2)).sum::<f64>().sqrt();
    let floor = bounds.gradient_floor * total;
    want.order.iter().map(move |name| Pair {
        what: Compared::Gradient(name),
        want: want.gradients[name].clone(),
        got: got.gradients[name].clone(),
        bound: bounds.gradient,
        floor,
    })
}

/// The numbers of all steps.
fn numbers<'a>(want: &'a Found, got: &'a Found, bounds: Bounds) -> impl Iterator<Item = Pair<'a>> {
    let loads = |r: &StepReport| {
        let tokens = r.experts.iter().flat_map(|e| e.tokens.values().flatten().map(|&n| n as f64)).collect();
        (tokens, r.experts.iter().flat_map(|e| e.auxiliary.each()).collect())
    };
    want.reports.iter().zip(&got.reports).enumerate().flat_map(move |(i, (w, g))| {
        let pair = |what: &'static str, want: Vec<f64>, got: Vec<f64>, bound: f64| Pair {
            what: Compared::Number(i + 1, what),
            want,
            got,
            bound,
            floor: bounds.floor,
        };
        let mut all = vec![
            pair("loss", vec![w.loss], vec![g.loss], bounds.loss),
            pair("norm of the gradient", vec![w.grad_norm], vec![g.grad_norm], bounds.norm),
            pair("counted tokens", vec![w.tokens as f64], vec![g.tokens as f64], 0.0),
            pair("losses of predictions", w.ahead.clone(), g.ahead.clone(), bounds.loss),
            pair("loss of indexers", Vec::from_iter(w.indexer), Vec::from_iter(g.indexer), bounds.loss),
        ];
        if i == 0 || bounds.routers_of_all_steps {
            let ((want_tokens, want_balance), (tokens, balance)) = (loads(w), loads(g));
            all.push(pair("tokens of the experts", want_tokens, tokens, 0.0));
            all.push(pair("auxiliary loss", want_balance, balance, bounds.loss));
        }
        all
    })
}

/// The parameter whose gradient differs most, with the difference relative to its norm and, for small ones, to that of the whole.
pub fn worst(want: &Found, got: &Found) -> (String, f64) {
    let each =
        gradients(want, got, Bounds::of(DType::F64)).map(|pair| (pair.relative(pair.floor), pair.what));
    match each.max_by(|a, b| a.0.total_cmp(&b.0)) {
        Some((relative, Compared::Gradient(name))) => (name.to_owned(), relative),
        _ => (String::from("none"), 0.0),
    }
}

/// Compares two runs: every gradient of the first step, and over all steps every loss, norm and load of experts.
///
/// # Errors
/// The first difference; gradients in the order in which a backward pass computes them, so that consequences of an error
/// follow it.
pub fn compare(want: &Found, got: &Found, bounds: Bounds) -> Result<(), ParityError> {
    let mut all = gradients(want, got, bounds).rev().chain(numbers(want, got, bounds));
    all.find(|pair| !pair.close()).map_or(Ok(()), |pair| Err(pair.apart()))
}

//! Recomputation: run now without recording, run again with recording when the backward pass needs it.

use crate::shard_state::{InputStates, OutputState, ShardStates};
use crate::{BackwardCx, Device, Digit, Grads, Graph, Op, Result, Saved, Tensor, Var};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A part of a model that can be run twice, as a function of its inputs.
pub type Recomputed = Arc<dyn Fn(&mut Graph, &[Var]) -> Result<Vec<Var>> + Send + Sync>;

/// The part, its inputs, and its second run once that has begun.
struct Region {
    xs: Vec<(Saved, ShardStates)>,
    /// The declared sharding states of its outputs.
    declared: Vec<ShardStates>,
    f: Recomputed,
    again: Mutex<Option<Again>>,
}

/// A second run: the graph, its inputs and its outputs.
struct Again {
    g: Graph,
    xs: Vec<Var>,
    ys: Vec<Var>,
}

impl Region {
    /// The second run, which may already have been done.
    fn run(&self, device: &Device) -> Result<MutexGuard<'_, Option<Again>>> {
        let mut again = self.again.lock().unwrap_or_else(PoisonError::into_inner);
        if again.is_none() {
            let mut g = Graph::train(device);
            let mut xs = Vec::with_capacity(self.xs.len());
            for (x, shard_states) in &self.xs {
                xs.push(g.input(x.get(device)?).with_shard_states(*shard_states));
            }
            let ys = (self.f)(&mut g, &xs)?;
            for (y, declared) in ys.iter().zip(&self.declared) {
                y.shard_states().assert_declared(*declared, "what runs again");
            }
            *again = Some(Again { g, xs, ys });
        }
        Ok(again)
    }
}

struct Recompute(Arc<Region>);

impl Op for Recompute {
    fn name(&self) -> &'static str {
        "recompute"
    }

    fn shard_state(&self, _: Digit, _: InputStates<'_>) -> OutputState {
        // The states are declared for the outputs; the second run, which is recorded, is tracked and compared with them.
        Ok(None)
    }

    fn prepare(&self, device: &Device) -> Result<()> {
        self.0.run(device).map(drop)
    }

    fn backward(self: Box<Self>, cx: &mut BackwardCx<'_>, dys: Grads) -> Result<Grads> {
        let again = self.0.run(cx.device)?.take();
        let Again { g, xs, ys } = again.expect("it has just been run");
        drop(self);
        let roots = ys.iter().zip(dys).filter_map(|(y, dy)| Some((y, dy?))).collect();
        cx.backward_inner(g, roots, &xs.iter().collect::<Vec<_>>())?;
        Ok(vec![None; xs.len()])
    }
}

/// `f(x)`, saving only `x`; the backward pass runs `f` again to recompute what it needs. The output can be forgotten, too:
/// the second run then happens as soon as it is needed, and only once. `holds` declares the sharding states of the output,
/// which debug builds compare with the second run.
///
/// # Errors
/// As `f`.
pub fn recompute(
    g: &mut Graph,
    x: &Var,
    shard_states: ShardStates,
    f: impl Fn(&mut Graph, &Var) -> Result<Var> + Send + Sync + 'static,
) -> Result<Var> {
    let f: Recomputed = Arc::new(move |g, xs| Ok(vec![f(g, &xs[0])?]));
    let first = f.clone();
    let mut made = recompute_behind(g, &[x], &[shard_states], |g, xs| first(g, xs), f)?;
    Ok(made.remove(0))
}

/// [`recompute`] for a part with any number of inputs and outputs. The first run is `first`, which gives the same results as
/// `f` and may let other work be done in between. Gradients with respect to an input are added to those that it already has,
/// so that sums have the same order as without recomputation. `holds` declares the sharding states of each output.
///
/// # Errors
/// As `first`.
///
/// # Panics
/// If there are more outputs than entries in `holds`.
pub fn recompute_behind(
    g: &mut Graph,
    xs: &[&Var],
    shard_states: &[ShardStates],
    first: impl FnOnce(&mut Graph, &[Var]) -> Result<Vec<Var>>,
    f: Recomputed,
) -> Result<Vec<Var>> {
    let given: Vec<Var> = xs.iter().map(|&x| x.clone()).collect();
    if !g.records() {
        return first(g, &given);
    }
    let ys = first(&mut Graph::inference(g.device()), &given)?;
    let ys: Vec<Tensor> = ys.into_iter().map(|y| y.value().clone()).collect();
    let declared = shard_states[..ys.len()].to_vec();
    let xs_kept = xs.iter().map(|x| (x.saved(), x.shard_states())).collect();
    let region = Arc::new(Region { xs: xs_kept, declared, f, again: Mutex::new(None) });
    // The operation keeps the region until its own turn, which comes after that of all users of its outputs.
    let of_op = Arc::downgrade(&region);
    let ys = g.apply_region(ys, xs, || Box::new(Recompute(region)));
    let formed_again = |(k, y): (usize, Var)| {
        let region = of_op.clone();
        y.with_shard_states(shard_states[k]).recomputed_by(move |device| {
            let region = region.upgrade().expect("a value is needed before its operation's turn");
            let again = region.run(device)?;
            Ok(again.as_ref().expect("it has just been run").ys[k].value().clone())
        })
    };
    Ok(ys.into_iter().enumerate().map(formed_again).collect())
}

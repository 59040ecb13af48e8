//! Recomputation: run now without recording, run again, recorded, when a backward pass needs it.

use super::only;
use crate::hold::{Held, Hold, Holds};
use crate::{BackwardCx, Device, Graph, Op, Result, Saved, Tensor, Var};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A part of a model that can be run twice.
pub type Recomputed = Arc<dyn Fn(&mut Graph, &Var) -> Result<Var> + Send + Sync>;

/// The part, its input, and its second run once that has begun: the graph, its input and its output.
struct Region {
    x: Saved,
    hold: Option<Hold>,
    f: Recomputed,
    again: Mutex<Option<(Graph, Var, Var)>>,
}

impl Region {
    /// The second run, which may have been done before.
    fn run(&self, device: &Device) -> Result<MutexGuard<'_, Option<(Graph, Var, Var)>>> {
        let mut again = self.again.lock().unwrap_or_else(PoisonError::into_inner);
        if again.is_none() {
            let mut g = Graph::train(device);
            let x = g.input(self.x.get(device)?).held(self.hold);
            let y = (self.f)(&mut g, &x)?;
            *again = Some((g, x, y));
        }
        Ok(again)
    }
}

struct Recompute(Arc<Region>);

impl Op for Recompute {
    fn name(&self) -> &'static str {
        "recompute"
    }

    fn hold(&self, _: Holds<'_>) -> Held {
        // The second run, which is recorded, follows it.
        Ok(None)
    }

    fn prepare(&self, device: &Device) -> Result<()> {
        self.0.run(device).map(drop)
    }

    fn backward(
        self: Box<Self>,
        cx: &mut BackwardCx<'_>,
        dys: Vec<Option<Tensor>>,
    ) -> Result<Vec<Option<Tensor>>> {
        let again = self.0.run(cx.device)?.take();
        let (g, x, y) = again.expect("it has just been run");
        drop(self);
        cx.backward_inner(g, &y, only(dys), &[&x])?;
        Ok(vec![None])
    }
}

/// `f(x)`, of which only `x` is kept; the backward pass runs `f` again to rebuild what it needs. The output can be
/// forgotten, too: the second run then comes as soon as it is needed, and is the only one.
///
/// # Errors
/// As `f`.
pub fn recompute(g: &mut Graph, x: &Var, f: Recomputed) -> Result<Var> {
    let first = f.clone();
    recompute_behind(g, x, |g, x| first(g, x), f)
}

/// [`recompute`], whose first run is that of `first`, which gives what `f` gives and may let other work be done in between.
///
/// # Errors
/// As `first`.
pub fn recompute_behind(
    g: &mut Graph,
    x: &Var,
    first: impl FnOnce(&mut Graph, &Var) -> Result<Var>,
    f: Recomputed,
) -> Result<Var> {
    if !g.records() {
        return first(g, x);
    }
    let y = first(&mut Graph::inference(g.device()), x)?.value().clone();
    let region = Arc::new(Region { x: x.saved(), hold: x.hold(), f, again: Mutex::new(None) });
    // The operation keeps the region until its own turn, which comes behind that of all who take its output.
    let of_op = Arc::downgrade(&region);
    let y = g.apply_region(y, x, || Box::new(Recompute(region)));
    Ok(y.rebuilt_by(move |device| {
        let region = of_op.upgrade().expect("a value is needed before its operation's turn");
        let again = region.run(device)?;
        let (_, _, y) = again.as_ref().expect("it has just been run");
        Ok(y.value().clone())
    }))
}

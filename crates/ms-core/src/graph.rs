//! Autograd: a tape of fused operations.
//!
//! A graph is one forward pass. [`Graph::train`] records, [`Graph::inference`] does not. The backward pass consumes the
//! graph, so saved activations are freed as soon as they have been used. Parameter gradients never become tensors of the
//! graph: an operation accumulates them, unrounded, into the [`GradSink`].

mod later;
mod walk;

pub use later::Later;
pub use walk::{BackwardCx, Walk};

use crate::gradients::GradSink;
use crate::hold::{self, Held, Hold, Holds, States};
use crate::saved::Saved;
use crate::{DType, Device, Digit, Digits, Host, ParamId, ParamStore, Result, Shape, Tensor};
use std::sync::Arc;

/// A value in a graph: the tensor and, when gradients flow through it, where it came from.
#[derive(Clone, Debug)]
pub struct Var {
    value: Tensor,
    source: Option<Source>,
    saved: Saved,
    holds: States,
}

impl Var {
    fn new(value: Tensor, source: Option<Source>) -> Self {
        let holds = States::all(source.is_none().then_some(Hold::Constant));
        Self { saved: Saved::new(value.clone()), value, source, holds }
    }

    /// Its sharding states, as tracked in debug builds.
    pub fn holds(&self) -> States {
        self.holds
    }

    /// The same value with known sharding states, for example an input of the graph.
    #[must_use]
    pub fn held(self, holds: States) -> Self {
        Self { holds, ..self }
    }

    /// The same value, whose state along some digits changes from `before` to `behind` by a local operation without
    /// communication, such as taking its own shard or padding it with zeros.
    ///
    /// # Panics
    /// In debug builds, if the state was not `before`; the message says `what` was done.
    #[must_use]
    pub fn turned(self, what: &str, along: Digits, before: Hold, behind: Hold) -> Self {
        if !cfg!(debug_assertions) {
            return self;
        }
        for digit in along.each() {
            let hold = self.holds.along(digit);
            let fits = hold.is_none_or(|hold| [before, Hold::Constant].contains(&hold));
            assert!(fits, "{what}: along {digit} ranks hold {hold:?}, not {before:?}");
        }
        let holds = self.holds.with(along, behind);
        self.held(holds)
    }

    /// Checks that a backward pass may start at this value with the same gradient on every rank: it must be replicated or a
    /// partial sum.
    ///
    /// # Panics
    /// In debug builds, if it is anything else.
    pub fn assert_root(&self, what: &str) {
        for digit in Digit::all().filter(|_| cfg!(debug_assertions)) {
            let hold = self.holds.along(digit);
            let fits = matches!(hold, None | Some(Hold::Constant | Hold::Invariant | Hold::Partial));
            assert!(
                fits,
                "{what}: along {digit} ranks hold {hold:?}, and each begins its backward pass there"
            );
        }
    }

    /// The value.
    pub fn value(&self) -> &Tensor {
        &self.value
    }

    /// The handle to the value, for an operation that saves it.
    pub fn saved(&self) -> Saved {
        self.saved.keep()
    }

    /// The same value, which `recipe` can recompute, to the same bits, from other saved values.
    #[must_use]
    pub fn rebuilt_by(self, recipe: impl FnOnce(&Device) -> Result<Tensor> + Send + 'static) -> Self {
        if self.source.is_some() {
            self.saved.set_recipe(Box::new(recipe));
        }
        self
    }

    /// The same value without its gradient. Both share one handle, so recomputing or swapping it applies to both.
    #[must_use]
    pub fn detached(&self) -> Self {
        Self { source: None, holds: self.holds.without_gradient(), ..self.clone() }
    }

    /// [`Var::rebuilt_by`] of a value without a gradient that operations keep all the same, for gradients of weights.
    #[must_use]
    pub fn constant_rebuilt_by(
        self,
        recipe: impl FnOnce(&Device) -> Result<Tensor> + Send + 'static,
    ) -> Self {
        self.saved.set_recipe(Box::new(recipe));
        self
    }

    /// Swaps the value to the host if an operation saves it. To be called when all operations that use it have run.
    ///
    /// # Errors
    /// If the host cannot store it.
    pub fn send(&self, host: &Host) -> Result<()> {
        self.saved.send(host)
    }

    /// Has the value recomputed in the backward pass instead of being kept, if there is a way to: to be called when all
    /// operations that take it have run.
    pub fn forget(&self) {
        self.saved.forget();
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// Output number, counted over the whole tape.
    Output(u32),
    Param(ParamId),
}

/// A gradient for each of several values; `None` where none flows.
pub type Grads = Vec<Option<Tensor>>;

/// A fused operation that was recorded: it holds what its backward needs.
pub trait Op: Send {
    /// Name for traces and messages.
    fn name(&self) -> &'static str;

    /// The sharding state of the outputs along a digit, given those of the inputs.
    ///
    /// # Errors
    /// If the operation is not defined on these states; the default rule is [`hold::together`].
    fn hold(&self, _along: Digit, inputs: Holds<'_>) -> Held {
        hold::together(inputs)
    }

    /// Does the part of backward that needs no gradient: recomputation.
    ///
    /// # Errors
    /// Those of the recomputation.
    fn prepare(&self, _device: &Device) -> Result<()> {
        Ok(())
    }

    /// Whether its backward begins with a wait for communication that was started before, so that other work may be done
    /// until then.
    fn waits(&self) -> bool {
        false
    }

    /// Whether its backward starts an exchange with other ranks and then does the work that was held back
    /// ([`BackwardCx::work_meanwhile`]).
    fn exchanges(&self) -> bool {
        false
    }

    /// Whether its backward is little work compared with a product, so that work can be held back across it until the next
    /// exchange.
    fn light(&self) -> bool {
        false
    }

    /// Gradients with respect to the inputs, in the order in which they were given to [`Graph::apply`]; `None` where no
    /// gradient flows. `dys` holds one gradient per output, `None` where nothing used that output. Gradients with respect to
    /// parameters go to [`BackwardCx::accumulate`] instead and are `None` here.
    ///
    /// # Errors
    /// If a kernel refuses its operands or a communicator fails.
    fn backward(self: Box<Self>, cx: &mut BackwardCx<'_>, dys: Grads) -> Result<Grads>;
}

/// Element type and shape of a tensor, without memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Like {
    dtype: DType,
    shape: Shape,
}

impl From<&Tensor> for Like {
    fn from(t: &Tensor) -> Self {
        Self { dtype: t.dtype(), shape: t.shape() }
    }
}

struct Node {
    op: Box<dyn Op>,
    first_output: u32,
    outputs: u32,
    inputs: Vec<Option<Source>>,
}

/// One forward pass.
pub struct Graph {
    device: Device,
    nodes: Vec<Node>,
    outputs: u32,
    record: bool,
    /// Names of weights, and their sharding states where known.
    weights: Arc<[(String, States)]>,
    /// Inputs and outputs of operations since [`Graph::note_kept`].
    noted: Option<Noted>,
}

/// Handles to inputs and outputs of operations.
#[derive(Default)]
struct Noted {
    /// Values that existed before, and how often they had been saved then.
    before: Vec<(Saved, usize)>,
    since: Vec<Saved>,
}

impl Noted {
    /// Whether the noted operations save the value.
    fn keep(&self, saved: &Saved) -> bool {
        let before = self.before.iter().find(|(there, _)| there.same_as(saved)).map_or(0, |(_, n)| *n);
        saved.kept() > before
    }
}

impl Graph {
    /// A graph that records for a backward pass.
    pub fn train(device: &Device) -> Self {
        Self::new(device, true)
    }

    /// A graph that records nothing: evaluation, generation, recomputation's first run.
    pub fn inference(device: &Device) -> Self {
        Self::new(device, false)
    }

    fn new(device: &Device, record: bool) -> Self {
        let (device, weights) = (device.clone(), Arc::default());
        Self { device, nodes: Vec::new(), outputs: 0, record, weights, noted: None }
    }

    /// The device that computes.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Whether a backward pass can follow.
    pub fn records(&self) -> bool {
        self.record
    }

    /// Number of recorded operations.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether nothing was recorded.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    fn new_outputs(&mut self, n: u32) -> u32 {
        let first = self.outputs;
        self.outputs += n;
        first
    }

    /// A value whose gradient can be requested, such as an activation from an earlier pipeline stage.
    pub fn input(&mut self, value: Tensor) -> Var {
        let source = self.record.then(|| Source::Output(self.new_outputs(1)));
        Var::new(value, source)
    }

    /// A value without gradient.
    pub fn constant(&self, value: Tensor) -> Var {
        Var::new(value, None)
    }

    /// A weight. float16 weights are computed with in f32; what is saved is the weight, not the copy.
    pub fn param(&mut self, store: &ParamStore, id: ParamId) -> Var {
        let stored = store.get(id);
        let holds = store.holds().get(id.0 as usize).map_or_else(States::default, |(_, holds)| *holds);
        self.weights = store.holds().clone();
        let weight = Var::new(stored.widened(), self.record.then_some(Source::Param(id))).held(holds);
        if stored.dtype() == weight.value.dtype() {
            return weight;
        }
        let weight = weight.rebuilt_by(move |_| Ok(stored.widened()));
        weight.forget();
        weight
    }

    /// Starts noting the inputs and outputs of operations, for [`Graph::kept_since`]. Earlier operations may have saved
    /// `inputs` too.
    pub fn note_kept(&mut self, inputs: &[&Var]) {
        let before = || inputs.iter().map(|var| (var.saved.clone(), var.saved.kept())).collect();
        self.noted = self.record.then(|| Noted { before: before(), since: Vec::new() });
    }

    /// Whether inputs and outputs of operations are being noted.
    pub fn notes_kept(&self) -> bool {
        self.noted.is_some()
    }

    /// What operations have saved of their inputs and outputs since [`Graph::note_kept`], except weights. Small additional
    /// values, such as row statistics, are not included.
    pub fn kept_since(&mut self) -> Vec<Saved> {
        let mut noted = self.noted.take().unwrap_or_default();
        let since = std::mem::take(&mut noted.since);
        since.into_iter().filter(|saved| noted.keep(saved)).collect()
    }

    /// Runs now the recomputation that the backward pass would run.
    ///
    /// # Errors
    /// Those of the recomputation.
    pub fn prepare_backward(&self) -> Result<()> {
        self.nodes.iter().rev().try_for_each(|node| node.op.prepare(&self.device))
    }

    /// Records an operation with one output.
    pub fn apply(&mut self, out: Tensor, inputs: &[&Var], op: impl FnOnce() -> Box<dyn Op>) -> Var {
        let [out] = self.apply_n([out], inputs, op);
        out
    }

    /// Records an operation with several outputs. `op` is called only if a backward will need it.
    pub fn apply_n<const N: usize>(
        &mut self,
        outs: [Tensor; N],
        inputs: &[&Var],
        op: impl FnOnce() -> Box<dyn Op>,
    ) -> [Var; N] {
        self.apply_keeping(outs, inputs, |_| op())
    }

    /// [`Graph::apply_n`], for an operation that saves some of its outputs.
    pub fn apply_keeping<const N: usize>(
        &mut self,
        outs: [Tensor; N],
        inputs: &[&Var],
        op: impl FnOnce(&[Var; N]) -> Box<dyn Op>,
    ) -> [Var; N] {
        let wanted = self.wants(inputs);
        self.push(outs, inputs, wanted, op)
    }

    /// [`Graph::apply_n`], for any number of outputs.
    pub fn apply_each(
        &mut self,
        outs: Vec<Tensor>,
        inputs: &[&Var],
        op: impl FnOnce() -> Box<dyn Op>,
    ) -> Vec<Var> {
        let wanted = self.wants(inputs);
        self.push_each(outs, inputs, wanted, op)
    }

    /// Like [`Graph::apply_each`], for a region whose parameters are not among its inputs: recorded even when these carry no
    /// gradient.
    pub fn apply_region(
        &mut self,
        outs: Vec<Tensor>,
        inputs: &[&Var],
        op: impl FnOnce() -> Box<dyn Op>,
    ) -> Vec<Var> {
        self.push_each(outs, inputs, self.record, op)
    }

    fn push_each(
        &mut self,
        outs: Vec<Tensor>,
        inputs: &[&Var],
        wanted: bool,
        op: impl FnOnce() -> Box<dyn Op>,
    ) -> Vec<Var> {
        let mut vars = Vec::with_capacity(outs.len());
        let first = if wanted { self.new_outputs(outs.len() as u32) } else { 0 };
        for (value, output) in outs.into_iter().zip(first..) {
            vars.push(Var::new(value, wanted.then_some(Source::Output(output))));
        }
        if wanted {
            let holds = self.add_node(op(), first, &vars, inputs);
            vars.iter_mut().for_each(|var| var.holds = holds);
        }
        vars
    }

    /// Records an operation that returns its input unchanged: both are one value, with one handle.
    pub fn apply_through(&mut self, x: &Var, op: impl FnOnce() -> Box<dyn Op>) -> Var {
        self.apply_through_beside(x, &[], op)
    }

    /// [`Graph::apply_through`], where gradients also flow to other values `beside` it: further inputs of the operation.
    pub fn apply_through_beside(
        &mut self,
        x: &Var,
        beside: &[&Var],
        op: impl FnOnce() -> Box<dyn Op>,
    ) -> Var {
        let inputs: Vec<&Var> = std::iter::once(x).chain(beside.iter().copied()).collect();
        Var { saved: x.saved.clone(), ..self.apply(x.value.clone(), &inputs, op) }
    }

    /// Whether a gradient can flow through an operation on `inputs`.
    fn wants(&self, inputs: &[&Var]) -> bool {
        self.record && inputs.iter().any(|v| v.source.is_some())
    }

    fn push<const N: usize>(
        &mut self,
        outs: [Tensor; N],
        inputs: &[&Var],
        wanted: bool,
        op: impl FnOnce(&[Var; N]) -> Box<dyn Op>,
    ) -> [Var; N] {
        if !wanted {
            return outs.map(|value| Var::new(value, None));
        }
        let first_output = self.new_outputs(N as u32);
        let mut next = first_output;
        let outs = outs.map(|value| {
            next += 1;
            Var::new(value, Some(Source::Output(next - 1)))
        });
        let holds = self.add_node(op(&outs), first_output, &outs, inputs);
        outs.map(|out| out.held(holds))
    }

    /// Records an operation, and returns the sharding states of its outputs.
    ///
    /// # Panics
    /// In debug builds, if the operation is not defined on the states of its inputs.
    fn add_node(&mut self, op: Box<dyn Op>, first_output: u32, outs: &[Var], inputs: &[&Var]) -> States {
        let mut holds = States::default();
        if cfg!(debug_assertions) {
            let of: Vec<States> = inputs.iter().map(|v| v.holds).collect();
            holds = States::of(&of, |along, inputs| op.hold(along, inputs))
                .unwrap_or_else(|digit| panic!("{}", self.clash(op.name(), digit, inputs)));
        }
        let sources = inputs.iter().map(|v| v.source).collect();
        self.nodes.push(Node { op, first_output, outputs: outs.len() as u32, inputs: sources });
        if let Some(noted) = &mut self.noted {
            let values = inputs.iter().copied().chain(outs);
            let values = values.filter(|v| matches!(v.source, Some(Source::Output(_))));
            noted.since.extend(values.map(|v| v.saved.clone()));
        }
        holds
    }

    /// The message about a clash along a digit.
    fn clash(&self, op: &str, digit: Digit, inputs: &[&Var]) -> String {
        let hold = |v: &&Var| {
            let hold = v.holds.along(digit).map_or("unknown".to_owned(), |hold| format!("{hold:?}"));
            let Some(Source::Param(ParamId(id))) = v.source else { return hold };
            match self.weights.get(id as usize) {
                Some((name, _)) => format!("{hold} ({name})"),
                None => format!("{hold} (parameter {id})"),
            }
        };
        let holds: Vec<String> = inputs.iter().map(hold).collect();
        format!("{op}: along {digit} ranks hold {}", holds.join(", "))
    }

    /// Propagates `dy`, the gradient of the loss with respect to `root`, back to the parameters (into `sink`) and returns the
    /// gradients of the inputs `wrt`.
    ///
    /// # Errors
    /// As the operations' backwards.
    pub fn backward(self, root: &Var, dy: Tensor, wrt: &[&Var], sink: &mut dyn GradSink) -> Result<Grads> {
        self.run(vec![(root, dy)], wrt, sink, None)
    }

    /// [`Graph::backward`] from several roots at once, such as all outputs of a pipeline stage. With `later`, large weight
    /// gradients are deferred to it instead of being computed, followed by a note when a parameter's gradient is complete.
    ///
    /// # Errors
    /// As the operations' backwards.
    pub fn backward_from(
        self,
        roots: Vec<(&Var, Tensor)>,
        wrt: &[&Var],
        sink: &mut dyn GradSink,
        later: Option<&mut Later>,
    ) -> Result<Grads> {
        self.run(roots, wrt, sink, later)
    }

    /// [`Graph::backward_from`] in steps: nothing has been computed yet.
    ///
    /// # Errors
    /// If a gradient has not the shape of its root.
    pub fn walk_back(self, roots: Vec<(&Var, Tensor)>, wrt: &[&Var]) -> Result<Walk> {
        Walk::begin(self, roots, wrt)
    }

    fn run(
        self,
        roots: Vec<(&Var, Tensor)>,
        wrt: &[&Var],
        sink: &mut dyn GradSink,
        later: Option<&mut Later>,
    ) -> Result<Grads> {
        self.walk_back(roots, wrt)?.finish(sink, later)
    }
}

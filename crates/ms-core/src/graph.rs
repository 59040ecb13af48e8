//! Autograd: a tape of fused operations.
//!
//! A graph is one forward pass. [`Graph::train`] records, [`Graph::inference`] does not. The backward pass consumes the
//! graph, so saved activations are freed as soon as they have been used. Parameter gradients never become tensors of the
//! graph: an operation accumulates them, unrounded, into the [`GradSink`].

mod backward_pass;
mod weight_grad_store;

pub use backward_pass::{BackwardCx, BackwardPass};
pub use weight_grad_store::WeightGradStore;

use crate::gradients::GradSink;
use crate::saved::Saved;
use crate::shard_state::{self, InputStates, OutputState, ShardState, ShardStates};
use crate::{DType, Device, Digit, Digits, Host, ParamId, ParamStore, Result, Shape, Tensor};
use std::sync::Arc;

/// A value in a graph: the tensor and, when gradients flow through it, where it came from.
#[derive(Clone, Debug)]
pub struct Var {
    value: Tensor,
    source: Option<Source>,
    saved: Saved,
    shard_states: ShardStates,
}

impl Var {
    fn new(value: Tensor, source: Option<Source>) -> Self {
        let shard_states = ShardStates::all(source.is_none().then_some(ShardState::Constant));
        Self { saved: Saved::new(value.clone()), value, source, shard_states }
    }

    /// Its sharding states, as tracked in debug builds.
    pub fn shard_states(&self) -> ShardStates {
        self.shard_states
    }

    /// The same value with known sharding states, for example an input of the graph.
    #[must_use]
    pub fn with_shard_states(self, shard_states: ShardStates) -> Self {
        Self { shard_states, ..self }
    }

    /// The same value, whose state along some digits changes from `before` to `after` by a local operation without
    /// communication, such as taking its own shard or padding it with zeros.
    ///
    /// # Panics
    /// In debug builds, if the state was not `before`; the message says `what` was done.
    #[must_use]
    pub fn resharded(self, what: &str, along: Digits, before: ShardState, after: ShardState) -> Self {
        if !cfg!(debug_assertions) {
            return self;
        }
        for digit in along.each() {
            let state = self.shard_states.along(digit);
            let fits = state.is_none_or(|state| [before, ShardState::Constant].contains(&state));
            assert!(fits, "{what}: along {digit} ranks hold {state:?}, not {before:?}");
        }
        let shard_states = self.shard_states.with(along, after);
        self.with_shard_states(shard_states)
    }

    /// Checks that a backward pass may start at this value with the same gradient on every rank: it must be replicated or a
    /// partial sum.
    ///
    /// # Panics
    /// In debug builds, if it is anything else.
    pub fn assert_root(&self, what: &str) {
        for digit in Digit::all().filter(|_| cfg!(debug_assertions)) {
            let state = self.shard_states.along(digit);
            let fits = matches!(
                state,
                None | Some(ShardState::Constant | ShardState::Invariant | ShardState::Partial)
            );
            assert!(
                fits,
                "{what}: along {digit} ranks hold {state:?}, and each begins its backward pass there"
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
    pub fn recomputed_by(self, recipe: impl FnOnce(&Device) -> Result<Tensor> + Send + 'static) -> Self {
        if self.source.is_some() {
            self.saved.set_recipe(Box::new(recipe));
        }
        self
    }

    /// The same value without its gradient. Both share one handle, so recomputing or swapping it applies to both.
    #[must_use]
    pub fn detached(&self) -> Self {
        Self { source: None, shard_states: self.shard_states.without_gradient(), ..self.clone() }
    }

    /// [`Var::recomputed_by`] of a value without a gradient that operations keep all the same, for gradients of weights.
    #[must_use]
    pub fn constant_recomputed_by(
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
    /// If the operation is not defined on these states; the default rule is [`shard_state::nonlinear`].
    fn shard_state(&self, _along: Digit, inputs: InputStates<'_>) -> OutputState {
        shard_state::nonlinear(inputs)
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
    /// ([`BackwardCx::run_held_back`]).
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
pub struct TensorSpec {
    dtype: DType,
    shape: Shape,
}

impl From<&Tensor> for TensorSpec {
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
    weights: Arc<[(String, ShardStates)]>,
    /// Inputs and outputs of operations since [`Graph::record_saved`].
    recorder: Option<SaveRecorder>,
}

/// Handles to inputs and outputs of operations.
#[derive(Default)]
struct SaveRecorder {
    /// Values that existed before, and how often they had been saved then.
    before: Vec<(Saved, usize)>,
    since: Vec<Saved>,
}

impl SaveRecorder {
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
        Self { device, nodes: Vec::new(), outputs: 0, record, weights, recorder: None }
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
        let shard_states = store
            .shard_states()
            .get(id.0 as usize)
            .map_or_else(ShardStates::default, |(_, shard_states)| *shard_states);
        self.weights = store.shard_states().clone();
        let weight = Var::new(stored.widened(), self.record.then_some(Source::Param(id)))
            .with_shard_states(shard_states);
        if stored.dtype() == weight.value.dtype() {
            return weight;
        }
        let weight = weight.recomputed_by(move |_| Ok(stored.widened()));
        weight.forget();
        weight
    }

    /// Starts noting the inputs and outputs of operations, for [`Graph::saved_since`]. Earlier operations may have saved
    /// `inputs` too.
    pub fn record_saved(&mut self, inputs: &[&Var]) {
        let before = || inputs.iter().map(|var| (var.saved.clone(), var.saved.kept())).collect();
        self.recorder = self.record.then(|| SaveRecorder { before: before(), since: Vec::new() });
    }

    /// Whether inputs and outputs of operations are being noted.
    pub fn records_saved(&self) -> bool {
        self.recorder.is_some()
    }

    /// What operations have saved of their inputs and outputs since [`Graph::record_saved`], except weights. Small additional
    /// values, such as row statistics, are not included.
    pub fn saved_since(&mut self) -> Vec<Saved> {
        let mut recorder = self.recorder.take().unwrap_or_default();
        let since = std::mem::take(&mut recorder.since);
        since.into_iter().filter(|saved| recorder.keep(saved)).collect()
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
            let shard_states = self.add_node(op(), first, &vars, inputs);
            vars.iter_mut().for_each(|var| var.shard_states = shard_states);
        }
        vars
    }

    /// Records an operation that returns its input unchanged: both are one value, with one handle.
    pub fn apply_through(&mut self, x: &Var, op: impl FnOnce() -> Box<dyn Op>) -> Var {
        self.apply_through_with(x, &[], op)
    }

    /// [`Graph::apply_through`], where gradients also flow to other values `extra` it: further inputs of the operation.
    pub fn apply_through_with(&mut self, x: &Var, extra: &[&Var], op: impl FnOnce() -> Box<dyn Op>) -> Var {
        let inputs: Vec<&Var> = std::iter::once(x).chain(extra.iter().copied()).collect();
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
        let shard_states = self.add_node(op(&outs), first_output, &outs, inputs);
        outs.map(|out| out.with_shard_states(shard_states))
    }

    /// Records an operation, and returns the sharding states of its outputs.
    ///
    /// # Panics
    /// In debug builds, if the operation is not defined on the states of its inputs.
    fn add_node(&mut self, op: Box<dyn Op>, first_output: u32, outs: &[Var], inputs: &[&Var]) -> ShardStates {
        let mut shard_states = ShardStates::default();
        if cfg!(debug_assertions) {
            let of: Vec<ShardStates> = inputs.iter().map(|v| v.shard_states).collect();
            shard_states = ShardStates::of(&of, |along, inputs| op.shard_state(along, inputs))
                .unwrap_or_else(|digit| panic!("{}", self.conflict(op.name(), digit, inputs)));
        }
        let sources = inputs.iter().map(|v| v.source).collect();
        self.nodes.push(Node { op, first_output, outputs: outs.len() as u32, inputs: sources });
        if let Some(recorder) = &mut self.recorder {
            let values = inputs.iter().copied().chain(outs);
            let values = values.filter(|v| matches!(v.source, Some(Source::Output(_))));
            recorder.since.extend(values.map(|v| v.saved.clone()));
        }
        shard_states
    }

    /// The message about a conflict along a digit.
    fn conflict(&self, op: &str, digit: Digit, inputs: &[&Var]) -> String {
        let state = |v: &&Var| {
            let state =
                v.shard_states.along(digit).map_or("unknown".to_owned(), |state| format!("{state:?}"));
            let Some(Source::Param(ParamId(id))) = v.source else { return state };
            match self.weights.get(id as usize) {
                Some((name, _)) => format!("{state} ({name})"),
                None => format!("{state} (parameter {id})"),
            }
        };
        let shard_states: Vec<String> = inputs.iter().map(state).collect();
        format!("{op}: along {digit} ranks hold {}", shard_states.join(", "))
    }

    /// Propagates `dy`, the gradient of the loss with respect to `root`, back to the parameters (into `sink`) and returns the
    /// gradients of the inputs `wrt`.
    ///
    /// # Errors
    /// As the operations' backwards.
    pub fn backward(self, root: &Var, dy: Tensor, wrt: &[&Var], sink: &mut dyn GradSink) -> Result<Grads> {
        self.run(vec![(root, dy)], wrt, sink, None)
    }

    /// [`Graph::backward`] from several roots at once, such as all outputs of a pipeline stage. With `deferred`, large weight
    /// gradients are deferred to it instead of being computed, followed by a note when a parameter's gradient is complete.
    ///
    /// # Errors
    /// As the operations' backwards.
    pub fn backward_from(
        self,
        roots: Vec<(&Var, Tensor)>,
        wrt: &[&Var],
        sink: &mut dyn GradSink,
        deferred: Option<&mut WeightGradStore>,
    ) -> Result<Grads> {
        self.run(roots, wrt, sink, deferred)
    }

    /// [`Graph::backward_from`] in steps: nothing has been computed yet.
    ///
    /// # Errors
    /// If a gradient has not the shape of its root.
    pub fn begin_backward(self, roots: Vec<(&Var, Tensor)>, wrt: &[&Var]) -> Result<BackwardPass> {
        BackwardPass::begin(self, roots, wrt)
    }

    fn run(
        self,
        roots: Vec<(&Var, Tensor)>,
        wrt: &[&Var],
        sink: &mut dyn GradSink,
        deferred: Option<&mut WeightGradStore>,
    ) -> Result<Grads> {
        self.begin_backward(roots, wrt)?.finish(sink, deferred)
    }
}

//! A backward pass that can stop where it would wait for other ranks, so that another pass can run meanwhile, and the context
//! that its operations use.

use super::weight_grad_store::once;
use super::{GradSink, Grads, Graph, Node, Source, TensorSpec, Var, WeightGradStore};
use crate::{Device, Error, ParamId, Result, Tensor, TensorMut};
use std::collections::BTreeMap;

/// A backward pass in progress: the remaining operations, and the gradients that have reached them. In however many steps it
/// is run, it does the same work in the same order.
pub struct BackwardPass {
    device: Device,
    /// The next one is the last.
    nodes: Vec<Node>,
    grads: Grads,
    uses: Uses,
    wrt: Vec<Option<u32>>,
    /// Weight gradients that are computed once the next exchange has started.
    held_back: WeightGradStore,
    /// An inner pass that runs before the next operation, and the inputs of the operation that it belongs to.
    inner: Option<(Box<BackwardPass>, Vec<Option<Source>>)>,
    /// Whether it stopped before an operation that waits for other ranks.
    stopped: bool,
}

impl BackwardPass {
    pub(super) fn begin(graph: Graph, roots: Vec<(&Var, Tensor)>, wrt: &[&Var]) -> Result<Self> {
        let Graph { device, nodes, outputs, .. } = graph;
        let mut grads: Grads = vec![None; outputs as usize];
        for (root, dy) in roots {
            if dy.shape() != root.value.shape() {
                let (want, got) = (root.value.shape(), dy.shape());
                return Err(Error::Shape { op: "backward", name: "dy", want, got });
            }
            // The gradient has arrived: the value itself is no longer needed.
            root.saved.settle();
            if let Some(Source::Output(o)) = root.source {
                add_gradient(&device, &mut grads[o as usize], dy)?;
            }
        }
        let of_input = |v: &&Var| match v.source {
            Some(Source::Output(o)) => Some(o),
            _ => None,
        };
        let (uses, wrt) = (Uses::of(&nodes), wrt.iter().map(of_input).collect());
        Ok(Self {
            device,
            nodes,
            grads,
            uses,
            wrt,
            held_back: WeightGradStore::default(),
            inner: None,
            stopped: false,
        })
    }

    /// Continues up to the next operation that waits for other ranks ([`super::Op::waits`]), with which the next call begins,
    /// or to the end.
    ///
    /// # Errors
    /// As the operations' backwards.
    pub fn resume(
        &mut self,
        sink: &mut dyn GradSink,
        mut deferred: Option<&mut WeightGradStore>,
    ) -> Result<()> {
        loop {
            if let Some((inner, _)) = &mut self.inner {
                inner.resume(sink, deferred.as_deref_mut())?;
                if !inner.is_over() {
                    return Ok(());
                }
            }
            if let Some((inner, inputs)) = self.inner.take() {
                self.pass_on(&inputs, inner.gradients())?;
                self.uses.end(&inputs, (deferred.as_deref_mut(), &mut self.held_back), sink)?;
            }
            let Some(node) = self.nodes.pop() else { return Ok(()) };
            let range = node.first_output as usize..(node.first_output + node.outputs) as usize;
            let reached = self.grads[range].iter().any(Option::is_some);
            if reached && node.op.waits() && !std::mem::take(&mut self.stopped) {
                self.nodes.push(node);
                self.stopped = true;
                return Ok(());
            }
            self.pass(node, reached, sink, deferred.as_deref_mut())?;
        }
    }

    fn is_over(&self) -> bool {
        self.nodes.is_empty() && self.inner.is_none()
    }

    /// The gradients with respect to the requested inputs, as far as they are known.
    fn gradients(&self) -> Grads {
        self.wrt.iter().map(|o| o.and_then(|o| self.grads[o as usize].clone())).collect()
    }

    /// Takes over the gradients that have reached `inputs` of an outer pass, to add to them in the order of one pass over
    /// everything.
    fn resume_from(&mut self, inputs: &[Option<Source>], outer: &mut [Option<Tensor>]) -> Result<()> {
        for (source, wrt) in inputs.iter().zip(&self.wrt) {
            let (Some(Source::Output(from)), Some(to)) = (source, wrt) else { continue };
            let of_root = std::mem::replace(&mut self.grads[*to as usize], outer[*from as usize].take());
            if let Some(dy) = of_root {
                add_gradient(&self.device, &mut self.grads[*to as usize], dy)?;
            }
        }
        Ok(())
    }

    /// Adds gradients to those of their values.
    fn pass_on(&mut self, inputs: &[Option<Source>], dxs: Grads) -> Result<()> {
        for (source, dx) in inputs.iter().zip(dxs) {
            if let (Some(Source::Output(o)), Some(dx)) = (source, dx) {
                add_gradient(&self.device, &mut self.grads[*o as usize], dx)?;
            }
        }
        Ok(())
    }

    /// Continues to the end; returns the gradients with respect to the requested inputs.
    ///
    /// # Errors
    /// As the operations' backwards.
    pub fn finish(
        mut self,
        sink: &mut dyn GradSink,
        mut deferred: Option<&mut WeightGradStore>,
    ) -> Result<Grads> {
        while !self.is_over() {
            self.resume(sink, deferred.as_deref_mut())?;
        }
        Ok(self.gradients())
    }

    /// Runs the backward of one operation, if a gradient has `reached` it.
    fn pass(
        &mut self,
        node: Node,
        reached: bool,
        sink: &mut dyn GradSink,
        mut deferred: Option<&mut WeightGradStore>,
    ) -> Result<()> {
        let Node { op, first_output, outputs, inputs } = node;
        let exchanges = op.exchanges();
        if !reached {
            self.run_after_exchange(exchanges, sink)?;
            return self.uses.end(&inputs, (deferred, &mut self.held_back), sink);
        }
        let range = first_output as usize..(first_output + outputs) as usize;
        let dys: Vec<_> = self.grads[range].iter_mut().map(Option::take).collect();
        let param = |s: &Option<Source>| match s {
            Some(Source::Param(p)) => Some(*p),
            _ => None,
        };
        let holds_back = self.exchange_comes();
        let mut cx = BackwardCx {
            device: &self.device,
            sink: &mut *sink,
            params: inputs.iter().map(param).collect(),
            computed: inputs.iter().map(|s| matches!(s, Some(Source::Output(_)))).collect(),
            deferred: deferred.as_deref_mut(),
            held_back: &mut self.held_back,
            holds_back,
            inner: None,
        };
        let dxs = op.backward(&mut cx, dys)?;
        if let Some(mut inner) = cx.inner {
            inner.resume_from(&inputs, &mut self.grads)?;
            self.inner = Some((Box::new(inner), inputs));
            return Ok(());
        }
        self.pass_on(&inputs, dxs)?;
        self.run_after_exchange(exchanges, sink)?;
        self.uses.end(&inputs, (deferred, &mut self.held_back), sink)
    }

    /// Whether an exchange follows with only light work before it.
    fn exchange_comes(&self) -> bool {
        let mut next = self.nodes.iter().rev().map(|node| &node.op);
        next.find(|op| op.exchanges() || !op.light()).is_some_and(|op| op.exchanges())
    }

    /// Does the held-back work when an exchange was passed that no gradient reached. Work is held back only if an exchange
    /// follows.
    fn run_after_exchange(&mut self, exchanged: bool, sink: &mut dyn GradSink) -> Result<()> {
        if exchanged { std::mem::take(&mut self.held_back).run(&self.device, sink) } else { Ok(()) }
    }
}

/// The context of an operation's backward.
pub struct BackwardCx<'a> {
    /// The device the graph ran on.
    pub device: &'a Device,
    sink: &'a mut dyn GradSink,
    params: Vec<Option<ParamId>>,
    /// Whether the input was computed by an operation of this graph.
    computed: Vec<bool>,
    deferred: Option<&'a mut WeightGradStore>,
    /// Weight gradients that are held back until an exchange has started.
    held_back: &'a mut WeightGradStore,
    /// Whether such an exchange follows.
    holds_back: bool,
    /// An inner pass to run after the operation.
    inner: Option<BackwardPass>,
}

impl BackwardCx<'_> {
    /// Adds the gradient of input `k`, a parameter, to its main gradient: now, during the next exchange, or later if the
    /// schedule separates input gradients from weight gradients. Does nothing if the input is not a trained parameter.
    ///
    /// # Errors
    /// As `work`.
    pub fn accumulate(
        &mut self,
        k: usize,
        work: impl FnOnce(&Device, TensorMut<'_>) -> Result<()> + Send + 'static,
    ) -> Result<()> {
        let Some(param) = self.params[k] else { return Ok(()) };
        if let Some(deferred) = self.deferred.as_deref_mut().filter(|deferred| deferred.takes(param)) {
            deferred.defer(param, work);
            return Ok(());
        }
        if self.holds_back {
            self.held_back.defer(param, work);
            return Ok(());
        }
        self.work_before(param)?;
        let (device, mut work) = (self.device, Some(work));
        self.sink.add(param, &mut |grad| once(&mut work)(device, grad))
    }

    /// The gradient of weight `k`, of the shape and type of `weight`: for a parameter as
    /// [`BackwardCx::accumulate`], for a weight that was itself computed from others as a tensor to return.
    ///
    /// # Errors
    /// As `work`.
    pub fn weight_gradient(
        &mut self,
        k: usize,
        weight: impl Into<TensorSpec>,
        work: impl FnOnce(&Device, TensorMut<'_>) -> Result<()> + Send + 'static,
    ) -> Result<Option<Tensor>> {
        if !self.computed[k] {
            return self.accumulate(k, work).map(|()| None);
        }
        let TensorSpec { dtype, shape } = weight.into();
        let mut sum = Tensor::zeros(self.device.arena(), dtype.wide(), shape);
        work(self.device, sum.whole_mut()?)?;
        self.device.cast(&sum, dtype).map(Some)
    }

    /// Like [`BackwardCx::accumulate`], at once, for small gradients that a fused kernel computes together with the input's,
    /// which `work` returns. It gets `None` for a frozen or non-parameter input.
    ///
    /// # Errors
    /// As `work`; if the gradient buffer is in use elsewhere.
    pub fn with_gradient<T>(
        &mut self,
        k: usize,
        work: impl FnOnce(Option<TensorMut<'_>>) -> Result<T>,
    ) -> Result<T> {
        let (mut work, mut made) = (Some(work), None);
        if let Some(param) = self.params[k] {
            self.work_before(param)?;
            self.sink.add(param, &mut |grad| {
                made = Some(once(&mut work)(Some(grad))?);
                Ok(())
            })?;
        }
        made.map_or_else(|| once(&mut work)(None), Ok)
    }

    /// Sums have one order: the held-back part of a parameter's gradient is added before anything more.
    fn work_before(&mut self, param: ParamId) -> Result<()> {
        if self.held_back.has(param) { self.run_held_back() } else { Ok(()) }
    }

    /// Does the held-back work, because an exchange has started that takes time.
    ///
    /// # Errors
    /// As the kernels that do it.
    pub fn run_held_back(&mut self) -> Result<()> {
        std::mem::take(self.held_back).run(self.device, self.sink)
    }

    /// Runs the backward of an inner graph next, before any other operation's; recomputation needs it. Its gradients with
    /// respect to `wrt` are those of the operation's inputs, in their order, replacing what the operation returns; they are
    /// added to the gradients that these inputs already have.
    ///
    /// # Errors
    /// If a gradient has not the shape of its root.
    pub fn backward_inner(&mut self, graph: Graph, roots: Vec<(&Var, Tensor)>, wrt: &[&Var]) -> Result<()> {
        self.inner = Some(graph.begin_backward(roots, wrt)?);
        Ok(())
    }
}

/// How many operations of a tape still have a parameter among their inputs.
struct Uses(BTreeMap<ParamId, usize>);

impl Uses {
    fn of(nodes: &[Node]) -> Self {
        let mut uses = BTreeMap::new();
        for source in nodes.iter().flat_map(|n| &n.inputs) {
            if let Some(Source::Param(p)) = source {
                *uses.entry(*p).or_insert(0) += 1;
            }
        }
        Self(uses)
    }

    /// An operation with these inputs is done. If gradients are deferred or held back, so is the note that they are complete.
    fn end(
        &mut self,
        inputs: &[Option<Source>],
        (mut deferred, held_back): (Option<&mut WeightGradStore>, &mut WeightGradStore),
        sink: &mut dyn GradSink,
    ) -> Result<()> {
        for source in inputs {
            let Some(Source::Param(p)) = source else { continue };
            let left = self.0.entry(*p).or_insert(1);
            *left -= 1;
            match &mut deferred {
                _ if *left > 0 => {}
                Some(deferred) if deferred.takes(*p) => deferred.close(*p),
                _ if held_back.has(*p) => held_back.close(*p),
                _ => sink.finished(*p)?,
            }
        }
        Ok(())
    }
}

fn add_gradient(device: &Device, slot: &mut Option<Tensor>, dx: Tensor) -> Result<()> {
    match slot {
        None => *slot = Some(dx),
        Some(sum) if sum.is_unique() => device.add_assign(sum, &dx)?,
        Some(sum) => *sum = device.add(sum, &dx)?,
    }
    Ok(())
}

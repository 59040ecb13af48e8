//! A device that delays everything: it computes as another does, and the host sees no result before it has waited for it.
//!
//! Memory of tensors bears the number of the work that wrote it. Waiting ([`Tensor::ready`], [`Backend::synchronize`]) makes
//! visible what was written so far; until then the host sees bytes of ones, which as numbers are none, and the place in the
//! sources that looked is noted. Copies between tensors of one device are its own work, and the host's writes reach it in
//! order, as on a device with a queue.

use crate::clock::Clock;
use crate::{
    ActBackend, Activation, AdamW, Arena, AttentionBackend, AttentionDropout, AttentionOptions, Backend,
    Columns, CompressedBackend, DType, DeltaRule, Device, Divergence, EmbedBackend, ExactSum, ExpertLoad,
    HeadLayout, HyperConnectionsBackend, IndexerInputs, LayoutBackend, LossBackend, Mamba3Shape,
    MatmulBackend, Mixing, MoeBackend, Noise, Norm, NormBackend, OptimBackend, Pooling, QkNorm, QkvRows,
    RecurrentBackend, Result, Rotary, Router, Routes, Segment, Sgd, Sight, StateSpace, Tensor, TensorMut,
    VocabShare, Window,
};
use std::sync::Arc;

/// A device around another that delays everything it does.
#[derive(Debug)]
struct Delayed<B> {
    inner: B,
}

impl Device {
    /// A device that computes as `inner` and delays everything; of the waits that have something to wait for it leaves out the
    /// `deaf`-th, counted from 1, if there is one. What the host sees too early is in [`Device::early`].
    pub fn delayed(inner: impl Backend + 'static, deaf: Option<u64>) -> Self {
        inner.arena().delay(Clock::new(deaf));
        Self::new(Delayed { inner })
    }

    /// Places in the sources that looked at values of a delaying device before they were there, and how often.
    pub fn early(&self) -> Vec<(String, usize)> {
        self.arena().clock().map(Clock::early).unwrap_or_default()
    }

    /// How often a delaying device was waited for while it had work.
    pub fn waits(&self) -> u64 {
        self.arena().clock().map_or(0, Clock::waits)
    }
}

impl<B: Backend> Delayed<B> {
    fn clock(&self) -> &Clock {
        self.inner.arena().clock().expect("a delayed device has a clock")
    }

    /// What the device does some time after it was asked to.
    fn later<T>(&self, work: impl FnOnce(&B) -> T) -> T {
        let _at_work = self.clock().begin();
        work(&self.inner)
    }

    /// What the host is told at once.
    fn answer<T>(&self, work: impl FnOnce(&B) -> T) -> T {
        let answer = self.later(work);
        self.clock().answer();
        answer
    }
}

impl<B: Backend> Backend for Delayed<B> {
    fn name(&self) -> String {
        format!("delayed {}", self.inner.name())
    }

    fn arithmetic(&self) -> String {
        self.inner.arithmetic()
    }

    fn arena(&self) -> &Arena {
        self.inner.arena()
    }

    fn table_dtype(&self) -> DType {
        self.inner.table_dtype()
    }

    fn routes(
        &self,
        name: &'static str,
        sizes: [usize; 3],
        make: &mut dyn FnMut() -> Result<Routes>,
    ) -> Result<Arc<Routes>> {
        self.inner.routes(name, sizes, make)
    }

    fn synchronize(&self) -> Result<()> {
        self.clock().wait();
        self.inner.synchronize()
    }
}

/// Functions that hand their arguments on: results are tensors, but for those that `answer` with a number.
macro_rules! hand_on {
    ($($family:ident {
        $($how:ident fn $name:ident(&self, $($arg:ident: $type:ty),* $(,)?) -> $out:ty;)*
    })*) => {
        $(impl<B: Backend> $family for Delayed<B> {
            $(fn $name(&self, $($arg: $type),*) -> $out {
                self.$how(|inner| inner.$name($($arg),*))
            })*
        })*
    };
}

hand_on! {
    MatmulBackend {
        later fn linear(&self, x: &Tensor, w: &Tensor, bias: Option<&Tensor>) -> Result<Tensor>;
        later fn quantize(&self, w: &Tensor) -> Result<Tensor>;
        later fn linear_dx(&self, dy: &Tensor, w: &Tensor) -> Result<Tensor>;
        later fn linear_dw(&self, dw: TensorMut<'_>, dy: &Tensor, x: &Tensor) -> Result<()>;
        later fn linear_db(&self, db: TensorMut<'_>, dy: &Tensor) -> Result<()>;
    }
    NormBackend {
        later fn rms_norm(&self, x: &Tensor, w: &Tensor, norm: &Norm) -> Result<(Tensor, Tensor)>;
        later fn add_rms_norm(
            &self, x: &Tensor, residual: &Tensor, w: &Tensor, norm: &Norm,
        ) -> Result<(Tensor, Tensor, Tensor)>;
        later fn layer_norm(
            &self, x: &Tensor, w: &Tensor, b: Option<&Tensor>, eps: f64,
        ) -> Result<(Tensor, Tensor)>;
        later fn layer_norm_backward(
            &self, dy: &Tensor, x: &Tensor, w: &Tensor, stats: &Tensor,
        ) -> Result<(Tensor, Tensor)>;
        later fn rms_norm_backward(
            &self, dw: Option<TensorMut<'_>>, dy: &Tensor, x: &Tensor, w: &Tensor, rstd: &Tensor,
            dresidual: Option<&Tensor>, norm: &Norm,
        ) -> Result<Tensor>;
    }
    ActBackend {
        later fn swiglu(&self, x: &Tensor) -> Result<Tensor>;
        later fn swiglu_backward(&self, dy: &Tensor, x: &Tensor) -> Result<Tensor>;
        later fn activation(&self, x: &Tensor, kind: Activation, gated: bool) -> Result<Tensor>;
        later fn activation_backward(
            &self, dy: &Tensor, x: &Tensor, kind: Activation, gated: bool,
        ) -> Result<Tensor>;
        later fn gate(&self, x: &Tensor, gate: &Tensor, kind: Activation) -> Result<Tensor>;
        later fn gate_backward(
            &self, dy: &Tensor, x: &Tensor, gate: &Tensor, kind: Activation,
        ) -> Result<(Tensor, Tensor)>;
        later fn softcap(&self, x: &mut Tensor, cap: f64) -> Result<()>;
        later fn softcap_backward(&self, d: &mut Tensor, y: &Tensor, cap: f64) -> Result<()>;
        later fn add(&self, a: &Tensor, b: &Tensor) -> Result<Tensor>;
        later fn multiply(&self, a: &Tensor, b: &Tensor) -> Result<Tensor>;
        later fn add_assign(&self, a: &mut Tensor, b: &Tensor) -> Result<()>;
        later fn cast(&self, x: &Tensor, dtype: DType) -> Result<Tensor>;
    }
    LayoutBackend {
        later fn columns(&self, x: &Tensor, runs: &[Columns]) -> Result<Tensor>;
        later fn columns_backward(&self, dy: &Tensor, width: usize, runs: &[Columns]) -> Result<Tensor>;
        later fn concat(&self, parts: &[&Tensor]) -> Result<Tensor>;
        later fn noise(&self, x: &Tensor, keys: &[u64], site: u64, noise: Noise) -> Result<Tensor>;
        later fn add_bias(&self, x: &Tensor, b: &Tensor) -> Result<Tensor>;
        later fn scale_rows(&self, x: &Tensor, s: &Tensor) -> Result<Tensor>;
        later fn row_dot(&self, a: &Tensor, b: &Tensor) -> Result<Tensor>;
        later fn scale_columns(&self, x: &Tensor, s: &Tensor) -> Result<Tensor>;
        later fn scale_columns_backward(&self, ds: TensorMut<'_>, dy: &Tensor, x: &Tensor) -> Result<()>;
        later fn unit_rows(&self, x: &Tensor) -> Result<Tensor>;
        later fn unit_rows_backward(&self, dx: TensorMut<'_>, dy: &Tensor, x: &Tensor) -> Result<()>;
    }
    EmbedBackend {
        later fn embedding(&self, table: &Tensor, ids: &Tensor, share: VocabShare) -> Result<Tensor>;
        later fn embedding_backward(
            &self, dtable: TensorMut<'_>, dy: &Tensor, ids: &Tensor, share: VocabShare,
        ) -> Result<()>;
    }
    LossBackend {
        later fn cross_entropy_statistics(&self, logits: &Tensor, targets: &Tensor, first: usize) -> Result<Tensor>;
        later fn cross_entropy_merge(&self, statistics: &Tensor, shares: usize) -> Result<Tensor>;
        later fn cross_entropy_whole(&self, logits: &mut Tensor, targets: &Tensor, weights: &Tensor) -> Result<Tensor>;
        later fn cross_entropy_nll(&self, statistics: &Tensor, targets: &Tensor) -> Result<Tensor>;
        later fn cross_entropy_gradient(
            &self, logits: &mut Tensor, statistics: &Tensor, targets: &Tensor, weights: &Tensor,
            first: usize,
        ) -> Result<()>;
    }
    OptimBackend {
        later fn adamw(
            &self, master: TensorMut<'_>, m: TensorMut<'_>, v: TensorMut<'_>, g: &Tensor, grad_scale: f64,
            step: &AdamW,
        ) -> Result<()>;
        later fn sgd(
            &self, master: TensorMut<'_>, momentum: TensorMut<'_>, g: &Tensor, grad_scale: f64, step: &Sgd,
        ) -> Result<()>;
        answer fn sum_squares(&self, x: &Tensor) -> Result<ExactSum>;
        later fn fill_zero(&self, x: &mut Tensor) -> Result<()>;
        later fn scale(&self, x: &mut Tensor, factor: f64) -> Result<()>;
        later fn accumulate(&self, sum: TensorMut<'_>, x: &Tensor, factor: f64) -> Result<()>;
        answer fn has_non_finite(&self, x: &Tensor) -> Result<bool>;
    }
    AttentionBackend {
        later fn prepare_qkv(
            &self, qkv: &Tensor, heads: HeadLayout, norm: Option<&QkNorm<'_>>, rotary: &Rotary,
            positions: &Tensor,
        ) -> Result<(Tensor, Tensor)>;
        later fn prepare_qkv_backward(
            &self, dprepared: Tensor, qkv: &Tensor, rstd: &Tensor, heads: HeadLayout,
            norm: Option<&QkNorm<'_>>, dnorm: Option<(&mut Tensor, &mut Tensor)>, rotary: &Rotary,
            positions: &Tensor,
        ) -> Result<Tensor>;
        later fn attention(
            &self, rows: QkvRows<&Tensor>, heads: HeadLayout, segments: &[Segment],
            options: &AttentionOptions, dropout: Option<&AttentionDropout>,
        ) -> Result<(Tensor, Tensor)>;
        later fn attention_backward(
            &self, dout: &Tensor, rows: QkvRows<&Tensor>, out: &Tensor, lse: &Tensor, heads: HeadLayout,
            segments: &[Segment], options: &AttentionOptions, dropout: Option<&AttentionDropout>,
        ) -> Result<QkvRows<Tensor>>;
        later fn attention_merge(
            &self, out: &mut Tensor, lse: &mut Tensor, part: &Tensor, part_lse: &Tensor,
        ) -> Result<()>;
        later fn attention_sinks(&self, out: &mut Tensor, lse: &mut Tensor, sinks: &Tensor) -> Result<()>;
        later fn attention_sinks_backward(
            &self, dsinks: TensorMut<'_>, dout: &Tensor, out: &Tensor, lse: &Tensor, sinks: &Tensor,
        ) -> Result<()>;
        later fn attention_cached(
            &self, qkv: &Tensor, keys: &Tensor, values: &Tensor, heads: HeadLayout, segments: &[Segment],
            options: &AttentionOptions,
        ) -> Result<(Tensor, Tensor)>;
        later fn attention_picked(
            &self, rows: QkvRows<&Tensor>, heads: HeadLayout, picks: &Tensor, options: &AttentionOptions,
        ) -> Result<(Tensor, Tensor)>;
        later fn attention_picked_backward(
            &self, dout: &Tensor, rows: QkvRows<&Tensor>, out: &Tensor, lse: &Tensor, heads: HeadLayout,
            picks: &Tensor, options: &AttentionOptions,
        ) -> Result<QkvRows<Tensor>>;
        later fn attention_picked_cached(
            &self, qkv: &Tensor, cached: (&Tensor, &Tensor), heads: HeadLayout, picks: &Tensor,
            options: &AttentionOptions,
        ) -> Result<(Tensor, Tensor)>;
        later fn cache_append(
            &self, keys: &mut Tensor, values: &mut Tensor, qkv: &Tensor, heads: HeadLayout,
            places: &[usize],
        ) -> Result<()>;
    }
    CompressedBackend {
        later fn rotate_last(
            &self, x: &Tensor, head_dim: usize, rotary: &Rotary, positions: &Tensor, inverse: bool,
        ) -> Result<Tensor>;
        later fn pool_windows(
            &self, kv: &Tensor, gate: &Tensor, ape: &Tensor, windows: &[Window], shape: &Pooling,
        ) -> Result<Tensor>;
        later fn pool_windows_backward(
            &self, dape: TensorMut<'_>, dout: &Tensor, kv: &Tensor, gate: &Tensor, ape: &Tensor,
            windows: &[Window], shape: &Pooling,
        ) -> Result<(Tensor, Tensor)>;
        later fn pick_seen(&self, inputs: &IndexerInputs<'_>, sights: &[Sight], places: usize) -> Result<Tensor>;
        later fn attention_weights(
            &self, q: &Tensor, k: &Tensor, heads: HeadLayout, picks: &Tensor, scale: f64,
        ) -> Result<Tensor>;
        later fn indexer_loss(
            &self, inputs: &IndexerInputs<'_>, picks: &Tensor, attention: &Tensor, divergence: Divergence,
            factor: f64,
        ) -> Result<(Tensor, [Tensor; 3])>;
        later fn attention_shared(
            &self, q: &Tensor, near: &Tensor, far: &Tensor, picks: &Tensor, scale: f64,
        ) -> Result<(Tensor, Tensor)>;
        later fn attention_shared_backward(
            &self, dout: &Tensor, q: &Tensor, near: &Tensor, far: &Tensor, out: &Tensor, lse: &Tensor,
            picks: &Tensor, scale: f64,
        ) -> Result<[Tensor; 3]>;
    }
    MoeBackend {
        later fn route(&self, logits: &Tensor, bias: Option<&Tensor>, router: &Router) -> Result<(Tensor, Tensor)>;
        later fn weigh(&self, experts: &Tensor, logits: &Tensor, router: &Router) -> Result<Tensor>;
        later fn route_backward(
            &self, dweights: &Tensor, experts: &Tensor, logits: &Tensor, router: &Router,
        ) -> Result<Tensor>;
        answer fn balance(
            &self, dlogits: Option<&mut Tensor>, logits: &Tensor, load: &ExpertLoad, router: &Router,
            grad_scale: f64,
        ) -> Result<f64>;
        later fn dispatch(&self, x: &Tensor, routes: &Routes) -> Result<Tensor>;
        later fn dispatch_backward(&self, dy: &Tensor, routes: &Routes) -> Result<Tensor>;
        later fn combine(&self, x: &Tensor, weights: &Tensor, routes: &Routes) -> Result<Tensor>;
        later fn combine_backward(
            &self, dy: &Tensor, x: &Tensor, weights: &Tensor, routes: &Routes,
        ) -> Result<(Tensor, Tensor)>;
        later fn expert_linear(
            &self, x: &Tensor, w: &Tensor, bias: Option<&Tensor>, routes: &Routes,
        ) -> Result<Tensor>;
        later fn expert_linear_dx(&self, dy: &Tensor, w: &Tensor, routes: &Routes) -> Result<Tensor>;
        later fn expert_linear_dw(&self, dw: TensorMut<'_>, dy: &Tensor, x: &Tensor, routes: &Routes) -> Result<()>;
        later fn expert_linear_db(&self, db: TensorMut<'_>, dy: &Tensor, routes: &Routes) -> Result<()>;
    }
    RecurrentBackend {
        later fn convolution(
            &self, x: &Tensor, w: &Tensor, b: Option<&Tensor>, history: Option<&mut Tensor>,
            segments: &[Segment],
        ) -> Result<Tensor>;
        later fn convolution_backward(
            &self, dy: &Tensor, x: &Tensor, w: &Tensor, b: Option<&Tensor>, segments: &[Segment],
        ) -> Result<[Tensor; 3]>;
        later fn state_space(
            &self, inputs: [&Tensor; 4], weights: [&Tensor; 3], states: Option<&mut Tensor>,
            segments: &[Segment], shape: &StateSpace,
        ) -> Result<Tensor>;
        later fn state_space_backward(
            &self, dy: &Tensor, inputs: [&Tensor; 4], weights: [&Tensor; 3], segments: &[Segment],
            shape: &StateSpace,
        ) -> Result<([Tensor; 4], [Tensor; 3])>;
        later fn mamba3(
            &self, operands: [&Tensor; 15], memory: Option<[&mut Tensor; 2]>, segments: &[Segment],
            shape: &Mamba3Shape,
        ) -> Result<Tensor>;
        later fn mamba3_backward(
            &self, dy: &Tensor, operands: [&Tensor; 15], segments: &[Segment], shape: &Mamba3Shape,
        ) -> Result<[Tensor; 15]>;
        later fn delta_rule(
            &self, inputs: [&Tensor; 5], states: Option<&mut Tensor>, segments: &[Segment],
            shape: &DeltaRule,
        ) -> Result<Tensor>;
        later fn delta_rule_backward(
            &self, dy: &Tensor, inputs: [&Tensor; 5], segments: &[Segment], shape: &DeltaRule,
        ) -> Result<[Tensor; 5]>;
        later fn decay(&self, a: &Tensor, a_log: &Tensor, dt_bias: &Tensor) -> Result<Tensor>;
        later fn decay_backward(
            &self, dy: &Tensor, a: &Tensor, a_log: &Tensor, dt_bias: &Tensor,
        ) -> Result<[Tensor; 3]>;
    }
    HyperConnectionsBackend {
        later fn stream_weights(
            &self, mixes: &Tensor, base: &Tensor, scale: &Tensor, mixing: &Mixing,
        ) -> Result<Tensor>;
        later fn stream_weights_backward(
            &self, dw: &Tensor, mixes: &Tensor, base: &Tensor, scale: &Tensor, mixing: &Mixing,
        ) -> Result<(Tensor, Tensor)>;
        later fn collapse(&self, x: &Tensor, w: &Tensor, mixing: &Mixing) -> Result<Tensor>;
        later fn collapse_backward(
            &self, dy: &Tensor, x: &Tensor, w: &Tensor, mixing: &Mixing,
        ) -> Result<(Tensor, Tensor)>;
        later fn expand(&self, x: &Tensor, y: &Tensor, w: &Tensor, mixing: &Mixing) -> Result<Tensor>;
        later fn expand_backward(
            &self, dout: &Tensor, x: &Tensor, y: &Tensor, w: &Tensor, mixing: &Mixing,
        ) -> Result<[Tensor; 3]>;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CpuBackend;

    fn device(deaf: Option<u64>) -> Device {
        Device::delayed(CpuBackend::portable(), deaf)
    }

    fn values(device: &Device, values: &[f32]) -> Tensor {
        Tensor::from_slice(device.arena(), [values.len()], values).unwrap()
    }

    #[test]
    fn a_result_is_seen_once_it_was_waited_for() {
        let device = device(None);
        let a = values(&device, &[1.0, 2.0]);
        let sum = device.add(&a, &a).unwrap();
        assert!(sum.as_slice::<f32>().unwrap().iter().all(|v| v.is_nan()));
        let [(place, 1)] = &device.early()[..] else { panic!("{:?}", device.early()) };
        assert!(place.contains("delayed.rs:"), "{place}");
        // Operations see what others have written.
        let twice = device.add(&sum, &sum).unwrap();
        assert_eq!(twice.ready().unwrap().as_slice::<f32>().unwrap(), [4.0, 8.0]);
        assert_eq!(sum.as_slice::<f32>().unwrap(), [2.0, 4.0]);
        assert_eq!((device.early().len(), device.waits()), (1, 1));
    }

    #[test]
    fn the_host_does_not_write_where_the_device_has_yet_to() {
        let device = device(None);
        let a = values(&device, &[1.0, 2.0]);
        let mut sum = device.add(&a, &a).unwrap();
        sum.as_mut_slice::<f32>().unwrap()[0] = 7.0;
        assert!(sum.ready().unwrap().as_slice::<f32>().unwrap()[1].is_nan(), "what the device wrote is lost");
        assert_eq!(device.early().len(), 1);
        sum.as_mut_slice::<f32>().unwrap().fill(7.0);
        device.scale(&mut sum, 2.0).unwrap();
        sum.whole_mut().unwrap().as_mut_slice::<f32>().unwrap()[0] = 1.0;
        assert_eq!(device.early().len(), 2);
    }

    #[test]
    fn copies_are_the_devices_work_and_numbers_are_answers() {
        let device = device(None);
        let a = values(&device, &[1.0, 2.0, 3.0, 4.0]).reshape([2, 2]).unwrap();
        let mut copy = a.copied().unwrap();
        copy.put_rows(&a, [(0, 1)]).unwrap();
        assert!(copy.as_slice::<f32>().unwrap()[0].is_nan());
        assert_eq!(device.early().len(), 1);
        // What comes to another place is a look.
        let mut here = Tensor::zeros(&Arena::default(), DType::F32, [4]);
        here.put(0, &copy).unwrap();
        assert_eq!((device.early().len(), here.as_slice::<f32>().unwrap()[0].is_nan()), (2, true));
        assert_eq!(device.sum_squares(&copy).unwrap().value(), 50.0);
        assert_eq!(copy.as_slice::<f32>().unwrap(), [3.0, 4.0, 3.0, 4.0]);
        assert_eq!(device.early().len(), 2);
    }

    #[test]
    fn a_wait_can_be_left_out() {
        let device = device(Some(2));
        let mut a = values(&device, &[1.0]);
        for (wait, early) in [(1, 0), (2, 1), (3, 1)] {
            a = device.add(&a, &a).unwrap();
            a.ready().unwrap().as_slice::<f32>().unwrap();
            assert_eq!((device.waits(), device.early().len()), (wait, early));
        }
    }
}

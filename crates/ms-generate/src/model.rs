//! A checkpoint ready to compute.

use crate::memory_estimate::{MemoryEstimate, MemoryRequest};
use crate::{Error, Quantization, Result};
use ms_core::{DType, Device, ParamId, ParamLayout, ParamStore, Region, Tensor};
use ms_dist::ParallelCtx;
use ms_nn::{Batch, Gpt};
use ms_spec::{ModelConfig, ParamSpec};
use ms_text::Tokenizer;
use std::path::Path;
use std::sync::Arc;

/// A model with its weights on a device.
pub struct LoadedModel {
    /// Where it computes.
    pub device: Device,
    /// The structure.
    pub model: Gpt,
    /// The weights.
    pub store: ParamStore,
    /// The place among the ranks: one rank.
    pub ctx: ParallelCtx,
    /// Tokens that end a text by the folder's `generation_config.json`.
    pub stops: Vec<u32>,
}

impl LoadedModel {
    /// Reads a checkpoint of any format that `ms-ckpt` knows, for sequences of up to `max_position` tokens
    /// (the model's own limit if absent), with weights converted to `dtype`.
    ///
    /// # Errors
    /// If the checkpoint cannot be read or lacks a weight.
    pub fn open(dir: &Path, dtype: DType, device: Device, max_position: Option<usize>) -> Result<Self> {
        let source = ms_ckpt::open(dir)?;
        Self::load(&source, source.config(), dtype, None, device, max_position, None)
    }

    /// As [`LoadedModel::open`], of an open checkpoint with `config` in place of its own configuration: a model with the same
    /// weights, those of linear layers quantized if requested. The memory that `work` needs is compared with what is
    /// available before weights are read, and positions that it does not come to are left out where its prompts are known.
    ///
    /// # Errors
    /// As [`LoadedModel::open`]; [`Error::Memory`] if there is too little.
    pub fn load(
        source: &ms_ckpt::Checkpoint,
        config: &ModelConfig,
        dtype: DType,
        quantization: Option<Quantization>,
        device: Device,
        max_position: Option<usize>,
        work: Option<MemoryRequest>,
    ) -> Result<Self> {
        let window = max_position.unwrap_or(config.max_positions);
        let asked = work.filter(|work| work.prompt > 0);
        let longest = asked.map_or(window, |work| work.prompt.saturating_add(work.new).min(window));
        let fits = |needs: MemoryEstimate| match work.and_then(|work| work.available) {
            Some(available) if needs.total() > available => Err(Error::Memory { needs, available }),
            _ => Ok(()),
        };
        let quantized = |spec: &ParamSpec| quantization.is_some_and(|q| q.takes(config, spec));
        let needs = MemoryEstimate::before(config, dtype, &quantized, (window, longest));
        fits(needs)?;
        let model = Gpt::up_to(config, &device, window, longest)?;
        if let Some(work) = &work {
            fits(needs.with(&model, dtype, work))?;
        }
        source.check_sums()?;
        let room = model.specs().iter().map(|s| (s.shape, !quantized(s)));
        let mut store = ParamStore::zeros(device.arena(), dtype, Arc::new(ParamLayout::with_room(room)));
        let specs = model.specs().iter().enumerate().filter(|(_, spec)| !quantized(spec));
        let weights: Vec<_> =
            specs.map(|(i, spec)| (ParamId(i as u32), spec, Region::whole(&spec.shape))).collect();
        source.load_into(&mut store, &weights)?;
        for (i, spec) in model.specs().iter().enumerate().filter(|(_, spec)| quantized(spec)) {
            let mut whole = Tensor::uninit(device.arena(), dtype, spec.shape);
            source.read(spec, &Region::whole(&spec.shape), dtype, whole.bytes_mut()?)?;
            store.set_quantized(ParamId(i as u32), device.quantize(&whole)?)?;
        }
        for (i, spec) in model.specs().iter().enumerate() {
            if !spec.trained() && dtype != dtype.wide() {
                let mut wide = Tensor::zeros(device.arena(), dtype.wide(), spec.shape);
                source.read(spec, &Region::whole(&spec.shape), dtype.wide(), wide.bytes_mut()?)?;
                store.set_wide(ParamId(i as u32), wide)?;
            }
        }
        Ok(Self { device, model, store, ctx: ParallelCtx::single(), stops: source.generation_stops()? })
    }

    /// Whether up to eight sequences have the same bits together as alone. Rows of an expert come from all sequences, and
    /// 8-bit weights round few rows differently from many.
    pub fn is_alike_beside_others(&self) -> bool {
        self.config().moe.is_none() && !self.store.has_quantized()
    }

    /// The configuration.
    pub fn config(&self) -> &ModelConfig {
        self.model.config()
    }

    /// The tokens that end a text: the model's own, those of its `generation_config.json` and the tokenizer's, each once, in
    /// ascending order.
    pub fn stop_tokens(&self, tokenizer: &Tokenizer) -> Vec<u32> {
        let mut stop = tokenizer.stop_ids();
        stop.extend(&self.stops);
        stop.extend(self.config().eos.iter().filter_map(|&id| u32::try_from(id).ok()));
        stop.sort_unstable();
        stop.dedup();
        stop
    }

    /// Logits `[T, V]` of whole sequences, in f64 whatever they were computed in, without the padding of the vocabulary.
    /// `cu_seqlens` holds the first token of each sequence and, last, `T`.
    ///
    /// # Errors
    /// If a token is not in the vocabulary, a sequence is too long, or a logit is not finite.
    pub fn logits(&self, tokens: &[i32], cu_seqlens: &[i32]) -> Result<Vec<f64>> {
        self.check_tokens(tokens)?;
        let mut positions = vec![0i32; tokens.len()];
        for pair in cu_seqlens.windows(2) {
            let positions = &mut positions[pair[0] as usize..pair[1] as usize];
            let first = self.model.first_position(positions.len())?;
            for (i, p) in positions.iter_mut().enumerate() {
                *p = (first + i) as i32;
            }
        }
        let batch = Batch::new(self.device.arena(), tokens, &positions, cu_seqlens)?;
        let mut g = ms_core::Graph::inference(&self.device);
        let hidden = self.model.forward(&mut g, &self.store, &self.ctx, &batch)?;
        let logits = self.logits_of(hidden.value())?;
        for (sequence, pair) in cu_seqlens.windows(2).enumerate() {
            for (token, row) in (pair[0] as usize..pair[1] as usize).enumerate() {
                let vocab = self.config().vocab;
                check_finite(&logits[row * vocab..(row + 1) * vocab], sequence, token)?;
            }
        }
        Ok(logits)
    }

    /// Logits `[T, V]` of hidden states `[T, H]`, in f64 whatever they were computed in, without the padding of the vocabulary.
    ///
    /// # Errors
    /// If shapes do not fit.
    pub fn logits_of(&self, hidden: &Tensor) -> Result<Vec<f64>> {
        let logits = self.model.logits(&self.device, &self.store, hidden)?;
        let (padded, vocab) = (self.config().padded_vocab, self.config().vocab);
        let values = logits.ready()?.to_reals()?;
        Ok(values.chunks_exact(padded).flat_map(|row| &row[..vocab]).copied().collect())
    }

    pub(crate) fn check_tokens(&self, tokens: &[i32]) -> Result<()> {
        let vocab = self.config().vocab;
        match tokens.iter().find(|&&t| t < 0 || t as usize >= vocab) {
            Some(&id) => Err(Error::Token { id: i64::from(id), vocab }),
            None => Ok(()),
        }
    }
}

/// Checks the logits after token `token` of sequence `sequence`.
///
/// # Errors
/// [`Error::NotFinite`] if one is infinite or NaN.
pub(crate) fn check_finite(logits: &[f64], sequence: usize, token: usize) -> Result<()> {
    if logits.iter().all(|x| x.is_finite()) { Ok(()) } else { Err(Error::NotFinite { sequence, token }) }
}

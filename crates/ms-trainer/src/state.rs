//! Storage of optimizer state for the elements a rank owns.

use crate::Result;
use crate::halves::{join, split};
use crate::scaled::{Scaled, Stored};
use half::bf16;
use ms_core::{DType, Device, Host, HostTensor, Tensor};
use std::collections::BTreeMap;

/// The form in which an optimizer stores its state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OptimizerForm {
    /// The upper halves of the master weights are the bf16 weights of the model; only the lower halves are stored separately
    /// (`--reuse-fp32-param`).
    pub reuse: bool,
    /// Such weights round ties to even, as a cast does; otherwise away from zero (`--npu-deterministic`).
    pub ties_to_even: bool,
    /// Moments are kept in bf16 and updated in f32 (`--o2-optimizer`).
    pub rounded_moments: bool,
    /// The state is on the host; it is moved to the device in this many parts, one after another (`--swap-optimizer`).
    pub swapped: Option<usize>,
    /// Master weights, first and second moments are kept in narrower types, with scales (`--use-precision-aware-optimizer`).
    pub stored: Option<[Stored; 3]>,
}

impl OptimizerForm {
    /// Bytes of an element's master weight and of its `moments`, on the device, for weights of type `weights`: unrounded
    /// weights are the master weights themselves.
    pub fn bytes(&self, weights: DType, moments: usize) -> (usize, usize) {
        let wide = weights.wide();
        let of_state = |which: usize| self.stored.map(|all| all[which].bytes(wide));
        let master = match self {
            _ if weights == wide => 0,
            Self { stored: Some([kept, ..]), .. } => kept.bytes(wide),
            Self { reuse: true, .. } => 2,
            _ => wide.size(),
        };
        let moment = if self.rounded_moments { DType::Bf16.size() } else { wide.size() };
        let all_moments = (1..=moments).map(|which| of_state(which).unwrap_or(moment)).sum();
        if self.swapped.is_some() { (0, 0) } else { (master, all_moments) }
    }
}

/// A state tensor `[shard]` of wide numbers.
pub(crate) enum State {
    /// On the device, as they are.
    OnDevice(Tensor),
    /// On the device, in bf16.
    Rounded(Tensor),
    /// With the host, as they are or in bf16.
    OnHost(HostTensor),
    /// On the device, in a narrow type with scales.
    Scaled(Scaled),
    /// In the model's weights, which are not rounded or are the upper halves.
    InWeights(InWeights),
}

/// Master weights that stand in the model's weights.
#[derive(Default)]
pub(crate) struct InWeights {
    /// What rounding leaves of them, where it does.
    lower: Option<LowerHalves>,
    /// Those that change outside the update rule, by their first element.
    whole: BTreeMap<usize, Tensor>,
}

/// The lower halves of master weights whose upper halves are bf16 weights.
pub(crate) struct LowerHalves {
    ties_to_even: bool,
    /// `[shard]`, i16.
    halves: Tensor,
    /// For each element, whether a tie was moved to the even neighbour below; empty if there is none.
    lowered: Vec<u64>,
}

impl LowerHalves {
    pub(crate) fn new(device: &Device, numel: usize, ties_to_even: bool) -> Self {
        let halves = Tensor::zeros(device.arena(), DType::I16, [numel]);
        let counted = ties_to_even && !halves.is_meta();
        let lowered = if counted { vec![0; numel.div_ceil(64)] } else { Vec::new() };
        Self { ties_to_even, halves, lowered }
    }

    fn is_lowered(&self, i: usize) -> bool {
        self.lowered.get(i / 64).is_some_and(|word| word >> (i % 64) & 1 == 1)
    }

    /// f32 whatever the compute type: a value is 32 bits, stored as two halves.
    fn join(&self, device: &Device, (at, len): (usize, usize), upper: &Tensor) -> Result<Tensor> {
        let lower = self.halves.slice_flat(at, [len])?;
        if lower.is_meta() {
            return Ok(Tensor::uninit(device.arena(), DType::F32, [len]));
        }
        let (upper, lower) = (upper.ready()?.as_slice::<bf16>()?, lower.ready()?.as_slice::<i16>()?);
        let mut values = Tensor::uninit(device.arena(), DType::F32, [len]);
        let each = upper.iter().zip(lower).enumerate();
        for (value, (i, (upper, lower))) in values.as_mut_slice::<f32>()?.iter_mut().zip(each) {
            *value = join(upper.to_bits(), *lower as u16, self.is_lowered(at + i));
        }
        Ok(values)
    }

    /// Keeps the lower halves of `values`; returns the upper ones.
    fn split(&mut self, at: usize, values: &Tensor) -> Result<Tensor> {
        let mut upper = Tensor::uninit(values.arena(), DType::Bf16, values.shape());
        if self.halves.is_meta() {
            return Ok(upper);
        }
        let (values, to) = (values.ready()?.as_slice::<f32>()?, upper.as_mut_slice::<bf16>()?);
        let lower = &mut self.halves.as_mut_slice::<i16>()?[at..at + values.len()];
        for (i, ((value, to), lower)) in values.iter().zip(to).zip(lower).enumerate() {
            let (high, low, lowered) = split(*value, self.ties_to_even);
            (*to, *lower) = (bf16::from_bits(high), low as i16);
            if let Some(word) = self.lowered.get_mut((at + i) / 64) {
                let bit = 1 << ((at + i) % 64);
                *word = if lowered { *word | bit } else { *word & !bit };
            }
        }
        Ok(upper)
    }

    fn bytes(&self) -> usize {
        bytes(&self.halves) + 8 * self.lowered.len()
    }
}

impl InWeights {
    /// Weights that are not rounded, or with `lower` upper halves.
    pub(crate) fn new(lower: Option<LowerHalves>) -> Self {
        Self { lower, whole: BTreeMap::new() }
    }

    /// Keeps `len` elements of type `dtype` from `at` on as a whole.
    pub(crate) fn keep_whole(&mut self, device: &Device, (at, len): (usize, usize), dtype: DType) {
        self.whole.insert(at, Tensor::zeros(device.arena(), dtype, [len]));
    }

    fn read(&self, device: &Device, (at, len): (usize, usize), upper: &Tensor) -> Result<Tensor> {
        Ok(match &self.lower {
            Some(lower) => lower.join(device, (at, len), upper)?,
            None => upper.copied()?,
        })
    }

    /// Keeps of `values` what the model's weights do not, and returns these.
    fn write(&mut self, at: usize, values: &Tensor) -> Result<Tensor> {
        if let Some(whole) = self.whole.get_mut(&at) {
            *whole = values.copied()?;
        }
        match &mut self.lower {
            Some(lower) => lower.split(at, values),
            None => Ok(values.copied()?),
        }
    }
}

fn bytes(t: &Tensor) -> usize {
    t.numel() * t.dtype().size()
}

/// Values stored in bf16, in the compute type.
fn widened(device: &Device, values: Tensor) -> Result<Tensor> {
    Ok(if values.dtype() == DType::Bf16 { device.cast(&values, values.dtype().wide())? } else { values })
}

impl State {
    /// Zeros with the host.
    pub(crate) fn away(host: &Host, dtype: DType, numel: usize) -> Result<Self> {
        Ok(Self::OnHost(host.zeros(dtype, [numel])?))
    }

    /// Elements `at..at + len`, wide, in memory of their own. `upper` gives the model's weights in their place.
    pub(crate) fn read(
        &self,
        device: &Device,
        (at, len): (usize, usize),
        upper: impl FnOnce() -> Result<Tensor>,
    ) -> Result<Tensor> {
        Ok(match self {
            Self::OnDevice(all) => all.slice_flat(at, [len])?.copied()?,
            Self::Rounded(all) => device.cast(&all.slice_flat(at, [len])?, all.dtype().wide())?,
            Self::OnHost(all) => widened(device, all.read(device.arena(), at, len)?)?,
            Self::Scaled(all) => all.read(device, (at, len))?,
            // What is kept as a whole does not wait for weights in transit.
            Self::InWeights(all) => match all.whole.get(&at) {
                Some(whole) => whole.copied()?,
                None => all.read(device, (at, len), &upper()?)?,
            },
        })
    }

    /// Puts `values` in the place of the elements from `at` on. Where the model's weights hold them, these are returned.
    pub(crate) fn write(&mut self, device: &Device, at: usize, values: &Tensor) -> Result<Option<Tensor>> {
        match self {
            Self::OnDevice(all) => all.put(at, values)?,
            Self::Rounded(all) => all.put(at, &device.cast(values, DType::Bf16)?)?,
            Self::OnHost(all) if all.dtype() == values.dtype() => all.write(at, values)?,
            Self::OnHost(all) => all.write(at, &device.cast(values, all.dtype())?)?,
            Self::Scaled(all) => all.write(at, values)?,
            Self::InWeights(all) => return all.write(at, values).map(Some),
        }
        Ok(None)
    }

    /// [`State::write`] of what a checkpoint holds.
    pub(crate) fn restore(&mut self, device: &Device, at: usize, values: &Tensor) -> Result<Option<Tensor>> {
        match self {
            Self::Scaled(all) => all.restore(at, values).map(|()| None),
            _ => self.write(device, at, values),
        }
    }

    /// Whether a part can only be read and put as one, for it has one scale.
    pub(crate) fn goes_by_parts(&self) -> bool {
        matches!(self, Self::Scaled(_))
    }

    /// Whether elements from `at` on stand in the model's weights and are kept as a whole, too.
    pub(crate) fn is_whole(&self, at: usize) -> bool {
        matches!(self, Self::InWeights(all) if all.whole.contains_key(&at))
    }

    /// Whether the model's weights are the numbers themselves.
    pub(crate) fn is_weights(&self) -> bool {
        matches!(self, Self::InWeights(InWeights { lower: None, .. }))
    }

    /// Bytes on the device.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::OnDevice(all) | Self::Rounded(all) => bytes(all),
            Self::OnHost(_) => 0,
            Self::Scaled(all) => all.tensors().map(bytes).sum(),
            Self::InWeights(all) => {
                all.lower.as_ref().map_or(0, LowerHalves::bytes)
                    + all.whole.values().map(bytes).sum::<usize>()
            }
        }
    }
}

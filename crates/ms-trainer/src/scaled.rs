//! Optimizer state in 16 or 8 bits, with a scale for each part of a parameter that a rank owns.
//!
//! A state is read as `value · scale`, updated in f32 and stored again: the scale is the part's largest magnitude divided by
//! the largest number used of the narrow type. A part is what a rank owns of a parameter, so rounding depends on the
//! sharding, as it does upstream. If all values are zero, upstream's 8-bit form divides by zero; here they stay zero.
//!
//! Source: `TransformerEngine`, `pytorch/optimizers/fused_adam.py`, `FusedAdam._apply_scale`, which Megatron-LM
//! `core_v0.12.1` uses with `--use-precision-aware-optimizer`.

use crate::Result;
use half::f16;
use ms_core::{DType, Device, Tensor};
use std::collections::BTreeMap;

/// The type in which a state tensor is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stored {
    /// As it is computed with.
    #[default]
    Wide,
    /// f16 with scales.
    F16,
    /// 8 bits with 4 exponent and 3 fraction bits (E4M3), with scales.
    F8,
}

impl Stored {
    /// Bytes of an element that is computed with in `wide`; scales are left out.
    pub fn bytes(self, wide: DType) -> usize {
        match self {
            Self::Wide => wide.size(),
            Self::F16 => 2,
            Self::F8 => 1,
        }
    }

    /// The largest number that is used.
    fn most(self) -> f32 {
        match self {
            Self::F8 => 448.0,
            _ => f16::MAX.to_f32() / 2.0,
        }
    }

    /// What values are multiplied with before they are rounded and after they are read, where they are kept by `scale`.
    fn factors(self, scale: f32) -> (f32, f32) {
        let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
        match self {
            // Scales below the reciprocal's range keep nothing.
            _ if !inverse.is_finite() => (0.0, 0.0),
            Self::F8 => (inverse, if inverse > 0.0 { 1.0 / inverse } else { 0.0 }),
            _ => (inverse, scale),
        }
    }
}

/// A state tensor `[shard]` in a narrow type.
pub(crate) struct Scaled {
    stored: Stored,
    /// `[shard]`, f16 or u8.
    values: Tensor,
    /// What kept values are multiplied with when they are read, by the first element of a part.
    scales: BTreeMap<usize, f32>,
    /// Parts that change outside the update rule, unchanged.
    pub(crate) whole: BTreeMap<usize, Tensor>,
}

impl Scaled {
    /// Zeros.
    pub(crate) fn new(device: &Device, stored: Stored, numel: usize) -> Self {
        let dtype = if stored == Stored::F8 { DType::U8 } else { DType::F16 };
        let values = Tensor::zeros(device.arena(), dtype, [numel]);
        Self { stored, values, scales: BTreeMap::new(), whole: BTreeMap::new() }
    }

    /// The part of `len` elements that begins at `at`, in f32: codes and scales hold no more.
    pub(crate) fn read(&self, device: &Device, (at, len): (usize, usize)) -> Result<Tensor> {
        if let Some(whole) = self.whole.get(&at) {
            return Ok(whole.copied()?);
        }
        let mut values = Tensor::uninit(device.arena(), DType::F32, [len]);
        if values.is_meta() {
            return Ok(values);
        }
        let scale = self.scales.get(&at).copied().unwrap_or(0.0);
        let (kept, to) = (self.values.slice_flat(at, [len])?, values.as_mut_slice::<f32>()?);
        let kept = kept.ready()?;
        match self.stored {
            Stored::F8 => {
                let each = to.iter_mut().zip(kept.as_slice::<u8>()?);
                each.for_each(|(to, &code)| *to = from_e4m3(code) * scale);
            }
            _ => {
                let each = to.iter_mut().zip(kept.as_slice::<f16>()?);
                each.for_each(|(to, value)| *to = value.to_f32() * scale);
            }
        }
        Ok(values)
    }

    /// Keeps `values` as the part that begins at `at`.
    pub(crate) fn write(&mut self, at: usize, values: &Tensor) -> Result<()> {
        self.keep(at, values, |scale, _| scale)
    }

    /// Keeps `values`, which were read from a state of this form: by the scale that they were kept by, if there is one among
    /// those that the largest of them leaves.
    pub(crate) fn restore(&mut self, at: usize, values: &Tensor) -> Result<()> {
        let stored = self.stored;
        self.keep(at, values, |scale, values| {
            let exact = |scale: &f32| {
                let (inverse, factor) = stored.factors(*scale);
                values.iter().all(|&v| rounded(stored, v * inverse) * factor == v)
            };
            [scale, scale.next_up(), scale.next_down()].into_iter().find(exact).unwrap_or(scale)
        })
    }

    fn keep(&mut self, at: usize, values: &Tensor, choose: impl Fn(f32, &[f32]) -> f32) -> Result<()> {
        if let Some(whole) = self.whole.get_mut(&at) {
            *whole = values.copied()?;
            return Ok(());
        }
        if self.values.is_meta() {
            return Ok(());
        }
        let values = values.ready()?.as_slice::<f32>()?;
        // NaN counts as the largest number.
        let largest =
            values.iter().map(|v| v.abs()).fold(0.0, |a: f32, b| if b > a || b.is_nan() { b } else { a });
        let (inverse, factor) = self.stored.factors(choose(largest / self.stored.most(), values));
        self.scales.insert(at, if largest.is_nan() { f32::NAN } else { factor });
        let range = at..at + values.len();
        match self.stored {
            Stored::F8 => {
                let to = &mut self.values.as_mut_slice::<u8>()?[range];
                to.iter_mut().zip(values).for_each(|(to, v)| *to = to_e4m3(v * inverse));
            }
            _ => {
                let to = &mut self.values.as_mut_slice::<f16>()?[range];
                to.iter_mut().zip(values).for_each(|(to, v)| *to = f16::from_f32(v * inverse));
            }
        }
        Ok(())
    }

    pub(crate) fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        std::iter::once(&self.values).chain(self.whole.values())
    }
}

/// `value` as the narrow type has it.
fn rounded(stored: Stored, value: f32) -> f32 {
    match stored {
        Stored::Wide => value,
        Stored::F16 => f16::from_f32(value).to_f32(),
        Stored::F8 => from_e4m3(to_e4m3(value)),
    }
}

/// The nearest E4M3 number, to even at ties; what is larger than the largest becomes that one.
fn to_e4m3(value: f32) -> u8 {
    let bits = value.to_bits();
    let (sign, magnitude) = ((bits >> 24) as u8 & 0x80, f32::from_bits(bits & 0x7fff_ffff));
    let code = match magnitude {
        m if m.is_nan() => 0x7f,
        m if m >= 448.0 => 0x7e,
        // Below 2^-6 there are multiples of 2^-9.
        m if m < 1.0 / 64.0 => (m * 512.0).round_ties_even() as u8,
        m => {
            let bits = m.to_bits();
            let kept = (bits + 0x7_ffff + (bits >> 20 & 1)) >> 20;
            (kept - ((127 - 7) << 3)).min(0x7e) as u8
        }
    };
    sign | code
}

/// The number of an E4M3 code.
fn from_e4m3(code: u8) -> f32 {
    let (exponent, fraction) = (code >> 3 & 0xf, f32::from(code & 7));
    let magnitude = match (exponent, code & 7) {
        (15, 7) => f32::NAN,
        (0, _) => fraction / 512.0,
        _ => (1.0 + fraction / 8.0) * f32::from_bits((u32::from(exponent) + 127 - 7) << 23),
    };
    if code & 0x80 == 0 { magnitude } else { -magnitude }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ms_core::AdamW;
    use ms_testing::Golden;

    fn golden() -> BTreeMap<String, Golden> {
        ms_testing::read_golden(&ms_testing::golden("ops/scaled_state.safetensors")).0
    }

    fn device() -> Device {
        ms_cpu::device(1).unwrap()
    }

    fn tensor(device: &Device, values: &[f32]) -> Tensor {
        Tensor::from_slice(device.arena(), [values.len()], values).unwrap()
    }

    #[test]
    fn codes_of_eight_bits_are_torchs() {
        let golden = golden();
        for (code, want) in (0..=255u8).zip(golden["e4m3.codes"].f32()) {
            let got = from_e4m3(code);
            assert!(got == want || got.is_nan() && want == 1e9, "{code:#x}: {got}, expected {want}");
            assert!(got.is_nan() || to_e4m3(got) == code, "{code:#x}");
        }
        let plain = golden["e4m3.plain"].f32();
        for (value, want) in plain.iter().zip(golden["e4m3.rounded"].i64()) {
            assert_eq!(i64::from(to_e4m3(*value)), want, "{value}");
        }
        assert_eq!([to_e4m3(1e9), to_e4m3(-1e9), to_e4m3(460.0)], [0x7e, 0xfe, 0x7e], "what is too large");
        assert_eq!(to_e4m3(f32::NAN) & 0x7f, 0x7f);
    }

    #[test]
    fn kept_values_and_scales_are_torchs_and_are_kept_again_as_they_were() {
        let (golden, device) = (golden(), device());
        let values = golden["values"].f32();
        for (name, stored) in [("f16", Stored::F16), ("f8", Stored::F8)] {
            let mut state = Scaled::new(&device, stored, values.len() + 8);
            state.write(8, &tensor(&device, &values)).unwrap();
            let read = state.read(&device, (8, values.len())).unwrap();
            assert_eq!(read.as_slice::<f32>().unwrap(), golden[&format!("{name}.read")].f32(), "{name}");
            let own = state.values.slice_flat(8, [values.len()]).unwrap();
            let kept: Vec<i64> = match stored {
                Stored::F8 => own.as_slice::<u8>().unwrap().iter().map(|&v| v.into()).collect(),
                _ => own.as_slice::<f16>().unwrap().iter().map(|v| (v.to_bits() as i16).into()).collect(),
            };
            drop(own);
            assert_eq!(kept, golden[&format!("{name}.kept")].i64(), "{name}");
            // Scales of many lengths of a fraction come back from what they gave.
            for i in 0..500 {
                let factor = 1.0 + i as f32 / 500.0;
                let other: Vec<f32> = values.iter().map(|v| v * factor).collect();
                state.write(8, &tensor(&device, &other)).unwrap();
                let before = state.read(&device, (8, values.len())).unwrap();
                let mut again = Scaled::new(&device, stored, values.len() + 8);
                again.restore(8, &before).unwrap();
                let after = again.read(&device, (8, values.len())).unwrap();
                assert_eq!(before.as_slice::<f32>().unwrap(), after.as_slice::<f32>().unwrap(), "{name} {i}");
                assert_eq!(state.scales, again.scales, "{name} {i}");
            }
            let zeros = tensor(&device, &[0.0; 5]);
            state.write(0, &zeros).unwrap();
            assert_eq!(state.read(&device, (0, 5)).unwrap().as_slice::<f32>().unwrap(), [0.0; 5]);
        }
    }

    #[test]
    fn steps_with_narrow_state_are_torchs() {
        let (golden, device) = (golden(), device());
        let numbers = golden["numbers"].values.clone();
        let [lr, beta1, beta2, eps, weight_decay] = numbers[..] else { panic!("five numbers") };
        let (grads, start) = (golden["grads"].f32(), golden["start"].f32());
        let len = start.len();
        for (name, kinds) in [
            ("half", [Stored::F16; 3]),
            ("byte", [Stored::Wide, Stored::F8, Stored::F8]),
            ("mixed", [Stored::F16, Stored::F8, Stored::F16]),
        ] {
            let mut states: Vec<_> = kinds.iter().map(|&kind| Scaled::new(&device, kind, len)).collect();
            let mut wide = [start.clone(), vec![0.0; len], vec![0.0; len]].map(|v| tensor(&device, &v));
            let put = |state: &mut Scaled, values: &mut Tensor| {
                if state.stored != Stored::Wide {
                    state.write(0, values).unwrap();
                    *values = state.read(&device, (0, len)).unwrap();
                }
            };
            put(&mut states[0], &mut wide[0]);
            for step in 1..=6 {
                let grad = tensor(&device, &grads[(step - 1) * len..][..len]);
                let rule = AdamW { lr, beta1, beta2, eps, weight_decay, step: step as u64 };
                let [p, m, v] = &mut wide;
                let windows = (p.whole_mut().unwrap(), m.whole_mut().unwrap(), v.whole_mut().unwrap());
                device.adamw(windows.0, windows.1, windows.2, &grad, 1.0, &rule).unwrap();
                let weights = golden[&format!("{name}.{step}.weights")].f32();
                for (got, want) in p.as_slice::<f32>().unwrap().iter().zip(weights) {
                    let got = half::bf16::from_f32(*got).to_f32();
                    assert!(
                        (got - want).abs() <= want.abs() / 128.0,
                        "{name} {step}: {got}, expected {want}"
                    );
                }
                states.iter_mut().zip(&mut wide).for_each(|(state, values)| put(state, values));
                // The next step begins where torch's does.
                for ((what, values), kind) in
                    ["master", "exp_avg", "exp_avg_sq"].into_iter().zip(&mut wide).zip(kinds)
                {
                    let want = golden[&format!("{name}.{step}.{what}")].f32();
                    let got = values.as_slice::<f32>().unwrap();
                    let most = want.iter().fold(0.0f32, |a, b| a.max(b.abs()));
                    // An ulp of f32 can decide where a tie of the narrow type goes: then it is one step apart.
                    let step_of = |w: f32| match kind {
                        Stored::Wide => w.abs() * 1e-5 + lr as f32 * 1e-6,
                        Stored::F16 => (w.abs() / 1024.0).max(most * 2e-12),
                        Stored::F8 => (w.abs() / 7.0).max(most / 448.0 / 500.0),
                    };
                    let apart =
                        got.iter().zip(&want).filter(|(g, w)| (*g - *w).abs() > w.abs() * 1e-4).count();
                    let worst = got.iter().zip(&want).find(|(g, w)| (*g - *w).abs() > step_of(**w));
                    assert!(
                        worst.is_none() && apart <= len / 50,
                        "{name} {step} {what}: {worst:?}, {apart} apart"
                    );
                    *values = tensor(&device, &want);
                }
            }
        }
    }
}

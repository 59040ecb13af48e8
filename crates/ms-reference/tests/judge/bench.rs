//! What a case runs on: a device, and operands that are the same numbers on every device.

use ms_core::{DType, Device, Result, Rng, Segment, Tensor};

/// The methods of the seam that a case judges, separated by spaces, and what it runs; its results are compared.
pub(crate) type Case = (&'static str, fn(&mut Bench<'_>) -> Result<Vec<Tensor>>);

/// A device, the element type of its operands, and the type whose rounding their values have.
pub(crate) struct Bench<'a> {
    pub(crate) device: &'a Device,
    pub(crate) dtype: DType,
    rounding: DType,
    rng: Rng,
    /// Number of the draw, for cases that vary by it.
    pub(crate) draw: u64,
}

impl<'a> Bench<'a> {
    pub(crate) fn new(device: &'a Device, dtype: DType, rounding: DType, draw: u64) -> Self {
        Self { device, dtype, rounding, rng: Rng::named(draw, "operands"), draw }
    }

    fn normal(&mut self, shape: &[usize], dtype: DType, rounding: DType) -> Tensor {
        let mut values = vec![0f32; shape.iter().product()];
        self.rng.fill_normal(&mut values, 1.0);
        let rounded = values.into_iter().map(|v| match rounding {
            DType::Bf16 => half::bf16::from_f32(v).to_f64(),
            _ => v.into(),
        });
        Tensor::from_reals(self.device.arena(), dtype, shape, &rounded.collect::<Vec<_>>()).unwrap()
    }

    /// Drawn numbers of the operands' type.
    pub(crate) fn x(&mut self, shape: &[usize]) -> Tensor {
        self.normal(shape, self.dtype, self.rounding)
    }

    /// Drawn numbers of the type of statistics.
    pub(crate) fn wide(&mut self, shape: &[usize]) -> Tensor {
        self.normal(shape, self.dtype.wide(), DType::F32)
    }

    /// Zeros of the type of statistics, for what is added to.
    pub(crate) fn zeros(&self, shape: &[usize]) -> Tensor {
        Tensor::zeros(self.device.arena(), self.dtype.wide(), shape)
    }

    /// These numbers, of the type of statistics.
    pub(crate) fn given(&self, shape: &[usize], values: &[f64]) -> Tensor {
        Tensor::from_reals(self.device.arena(), self.dtype.wide(), shape, values).unwrap()
    }

    pub(crate) fn ids(&self, shape: &[usize], values: &[i32]) -> Tensor {
        Tensor::from_slice(self.device.arena(), shape, values).unwrap()
    }

    /// A number below `n`.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        ((self.rng.uniform() * n as f64) as usize).min(n - 1)
    }

    /// One of the list.
    pub(crate) fn of<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }

    /// Ids below `n`.
    pub(crate) fn draw_ids(&mut self, count: usize, n: usize) -> Tensor {
        let ids: Vec<i32> = (0..count).map(|_| self.below(n) as i32).collect();
        self.ids(&[count], &ids)
    }

    /// Documents that cover `tokens` tokens.
    pub(crate) fn documents(&mut self, tokens: usize) -> Vec<Segment> {
        let cut = 1 + self.below(tokens - 1);
        vec![Segment::of(0, cut), Segment::of(cut, tokens - cut)]
    }
}

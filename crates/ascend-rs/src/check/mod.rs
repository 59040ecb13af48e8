//! Every operator of [`crate::ops`] compared with its formula in f64, on small shapes: what `ms-profile npu-doctor` runs on a
//! device, and the tests run over element types and odd shapes.
//!
//! Formulas are plain loops over values in f64; gradients are those of the forward formula by central differences. Inputs are
//! rounded to the element type first, so that what is measured is the operator's own error.

mod attention;
mod dense;
mod experts;
mod inference;
mod losses;
mod scores;
mod versions;

use crate::operator::View;
use crate::{Array, Result, Stream, Toolkit};
use half::{bf16, f16};
use ms_core::DType;

/// How an operator did.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Its largest error, in units of `tolerance · (1 + |value|)`: above 1 it is wrong.
    pub error: f64,
    /// Where that was, with what was found and what the formula gives.
    pub worst: String,
}

/// A check of one operator, or of one with its gradient.
#[derive(Clone, Copy)]
pub struct Check {
    /// The operators that it runs, by their C names.
    pub operators: &'static [&'static str],
    /// Element types that it is run with.
    pub dtypes: &'static [DType],
    run: fn(&mut Bench<'_>) -> Result<()>,
}

impl std::fmt::Debug for Check {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} in {:?}", self.operators, self.dtypes)
    }
}

/// Rows and columns that a check derives its shapes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Rows, tokens, sequence.
    pub rows: usize,
    /// Columns, features.
    pub columns: usize,
}

/// All floating-point types of the operators.
const FLOATS: &[DType] = &[DType::F32, DType::F16, DType::Bf16];

/// Every check.
pub fn all() -> Vec<Check> {
    [dense::CHECKS, losses::CHECKS, attention::CHECKS, experts::CHECKS, versions::CHECKS, inference::CHECKS]
        .concat()
}

impl Check {
    const fn of(
        operators: &'static [&'static str],
        dtypes: &'static [DType],
        run: fn(&mut Bench<'_>) -> Result<()>,
    ) -> Self {
        Self { operators, dtypes, run }
    }

    /// Whether the toolkit has all its operators; if not, one that it lacks.
    pub fn missing(&self, toolkit: &Toolkit) -> Option<&'static str> {
        let available = crate::ops::available(toolkit);
        let lacks = |name: &&&str| available.iter().any(|(n, there)| n == *name && !there);
        self.operators.iter().find(lacks).copied()
    }

    /// Runs it.
    ///
    /// # Errors
    /// If an operator refuses or the device fails.
    pub fn run(&self, stream: &Stream, dtype: DType, size: Size) -> Result<Outcome> {
        self.run_on(stream, dtype, size, false)
    }

    /// Runs it on operands that are every second element of their buffers.
    ///
    /// # Errors
    /// As [`Check::run`]; also if an operator's page wants elements that follow one another.
    pub fn run_with_gaps(&self, stream: &Stream, dtype: DType, size: Size) -> Result<Outcome> {
        self.run_on(stream, dtype, size, true)
    }

    fn run_on(&self, stream: &Stream, dtype: DType, size: Size, gaps: bool) -> Result<Outcome> {
        let seed = 1 + size.rows as u64 * 1000 + size.columns as u64;
        let outcome = Outcome { error: 0.0, worst: String::new() };
        let mut bench = Bench { stream, dtype, size, seed, gaps, outcome };
        (self.run)(&mut bench)?;
        Ok(bench.outcome)
    }
}

/// What a check works with.
struct Bench<'a> {
    stream: &'a Stream,
    dtype: DType,
    size: Size,
    seed: u64,
    /// Between the elements of operands there are others.
    gaps: bool,
    outcome: Outcome,
}

/// Values on the host, rounded to an element type, and the same on the device.
struct Given {
    v: Vec<f64>,
    a: Array,
    /// The shape of the operand, if it is every second element of the array.
    gaps: Option<Vec<usize>>,
}

impl Given {
    fn shape(&self) -> &[usize] {
        self.gaps.as_deref().unwrap_or(self.a.shape())
    }

    fn view(&self) -> Result<View<'_>> {
        let Some(shape) = &self.gaps else { return self.a.view() };
        let mut strides = vec![2i64; shape.len()];
        for i in (0..shape.len().saturating_sub(1)).rev() {
            strides[i] = strides[i + 1] * shape[i + 1] as i64;
        }
        View::strided(self.a.buffer(), self.a.dtype(), shape, &strides, 1)
    }
}

fn encode(values: &[f64], dtype: DType) -> Vec<u8> {
    if matches!(dtype, DType::U8 | DType::Bool) {
        // Masks have millions of elements.
        return values.iter().map(|v| *v as u8).collect();
    }
    let one = |v: &f64| -> Vec<u8> {
        match dtype {
            DType::F64 => v.to_le_bytes().to_vec(),
            DType::F32 => (*v as f32).to_le_bytes().to_vec(),
            DType::F16 => f16::from_f32(*v as f32).to_le_bytes().to_vec(),
            DType::Bf16 => bf16::from_f32(*v as f32).to_le_bytes().to_vec(),
            DType::I64 => (*v as i64).to_le_bytes().to_vec(),
            DType::I32 => (*v as i32).to_le_bytes().to_vec(),
            DType::I16 => (*v as i16).to_le_bytes().to_vec(),
            DType::I8 => vec![*v as i8 as u8],
            DType::U8 | DType::Bool => vec![*v as u8],
        }
    };
    values.iter().flat_map(one).collect()
}

fn decode(bytes: &[u8], dtype: DType) -> Vec<f64> {
    fn word<const N: usize>(bytes: &[u8]) -> [u8; N] {
        let mut out = [0; N];
        out.copy_from_slice(bytes);
        out
    }
    let one = |b: &[u8]| -> f64 {
        match dtype {
            DType::F64 => f64::from_le_bytes(word(b)),
            DType::F32 => f64::from(f32::from_le_bytes(word(b))),
            DType::F16 => f16::from_le_bytes(word(b)).to_f64(),
            DType::Bf16 => bf16::from_le_bytes(word(b)).to_f64(),
            DType::I64 => i64::from_le_bytes(word(b)) as f64,
            DType::I32 => f64::from(i32::from_le_bytes(word(b))),
            DType::I16 => f64::from(i16::from_le_bytes(word(b))),
            DType::I8 => f64::from(b[0] as i8),
            DType::U8 | DType::Bool => f64::from(b[0]),
        }
    };
    bytes.chunks_exact(dtype.size()).map(one).collect()
}

/// What a result may differ by, relative to 1 and its size: a few units in the last place of its type.
fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 1e-12,
        DType::F32 => 5e-5,
        DType::F16 => 4e-3,
        DType::Bf16 => 3e-2,
        _ => 0.0,
    }
}

impl Bench<'_> {
    /// `n` values between -1 and 1, other ones with every call.
    fn noise(&mut self, n: usize) -> Vec<f64> {
        let mut next = || {
            self.seed =
                self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.seed >> 11) as f64 / (1u64 << 52) as f64 - 1.0
        };
        (0..n).map(|_| next()).collect()
    }

    fn give_as(&self, dtype: DType, shape: &[usize], values: &[f64]) -> Result<Given> {
        let bytes = encode(values, dtype);
        let v = decode(&bytes, dtype);
        // A mask of millions of elements says nothing more with gaps.
        if !self.gaps || values.len() > 100_000 || shape.is_empty() {
            let a = Array::new(self.stream, dtype, shape)?;
            a.buffer().write(self.stream, 0, &bytes)?;
            return Ok(Given { v, a, gaps: None });
        }
        let a = Array::new(self.stream, dtype, &[2 * values.len()])?;
        let spread: Vec<f64> = values.iter().flat_map(|v| [77.0, *v]).collect();
        a.buffer().write(self.stream, 0, &encode(&spread, dtype))?;
        Ok(Given { v, a, gaps: Some(shape.to_vec()) })
    }

    /// Values in the type of the check.
    fn give(&self, shape: &[usize], values: &[f64]) -> Result<Given> {
        self.give_as(self.dtype, shape, values)
    }

    /// Noise in the type of the check.
    fn random(&mut self, shape: &[usize]) -> Result<Given> {
        let values = self.noise(shape.iter().product());
        self.give(shape, &values)
    }

    fn empty_as(&self, dtype: DType, shape: &[usize]) -> Result<Array> {
        Array::new(self.stream, dtype, shape)
    }

    fn empty(&self, shape: &[usize]) -> Result<Array> {
        self.empty_as(self.dtype, shape)
    }

    /// The values of a result.
    fn read(&self, a: &Array) -> Result<Vec<f64>> {
        let mut bytes = vec![0u8; a.buffer().len()];
        a.buffer().read(0, &mut bytes)?;
        Ok(decode(&bytes, a.dtype()))
    }

    /// Compares a result with the formula's values.
    fn near(&mut self, what: &str, got: &Array, want: &[f64]) -> Result<()> {
        self.near_within(what, got, want, tolerance(got.dtype()))
    }

    fn near_within(&mut self, what: &str, got: &Array, want: &[f64], tolerance: f64) -> Result<()> {
        let mut values = self.read(got)?;
        if self.gaps && values.len() == 2 * want.len() {
            // An operand that the operator wrote to.
            values = values.into_iter().skip(1).step_by(2).collect();
        }
        assert_eq!(values.len(), want.len(), "{what}: the check's formula gives another number of values");
        for (i, (g, w)) in values.iter().zip(want).enumerate() {
            let same = g == w || (g.is_nan() && w.is_nan());
            let error = if same { 0.0 } else { (g - w).abs() / (tolerance * (1.0 + w.abs())) };
            // A NaN or infinity where none belongs, and a wrong integer, is wrong by more than any number.
            let error = if error.is_finite() { error } else { f64::MAX };
            if error > self.outcome.error || self.outcome.worst.is_empty() {
                let dtype = got.dtype();
                self.outcome = Outcome {
                    error,
                    worst: format!("{what} [{i}] in {dtype}: found {g}, the formula gives {w}"),
                };
            }
        }
        Ok(())
    }
}

/// Where parts of these lengths end, one after the other.
fn ends(lengths: &[usize]) -> Vec<usize> {
    let mut at = 0;
    let end = |n: &usize| {
        at += n;
        at
    };
    lengths.iter().map(end).collect()
}

/// The gradient of `Σ dy · f(x)` by `x`, by central differences.
fn gradient(f: impl Fn(&[f64]) -> Vec<f64>, x: &[f64], dy: &[f64]) -> Vec<f64> {
    let step = 1e-5;
    let mut at = x.to_vec();
    let sum = |y: Vec<f64>| -> f64 { y.iter().zip(dy).map(|(y, d)| y * d).sum() };
    (0..x.len())
        .map(|i| {
            at[i] = x[i] + step;
            let up = sum(f(&at));
            at[i] = x[i] - step;
            let down = sum(f(&at));
            at[i] = x[i];
            (up - down) / (2.0 * step)
        })
        .collect()
}

//! Counting of non-finite values while tensors are copied.

use ms_core::DType;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a conversion found among the values that it wrote.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NonFiniteReport {
    /// Values that are infinite or NaN.
    pub not_finite: u64,
    /// The first tensor found with such a value, by its parameter's name.
    pub first: Option<String>,
}

/// Counts from several threads.
#[derive(Debug, Default)]
pub(crate) struct Counter {
    count: AtomicU64,
    first: Mutex<Option<String>>,
}

impl Counter {
    /// Looks at whole elements of `dtype`, little-endian, of the parameter `name`.
    pub(crate) fn look(&self, name: &str, dtype: DType, bytes: &[u8]) {
        let found = count(dtype, bytes);
        if found > 0 {
            self.count.fetch_add(found, Ordering::Relaxed);
            let mut first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
            first.get_or_insert_with(|| name.to_owned());
        }
    }

    pub(crate) fn report(self) -> NonFiniteReport {
        let first = self.first.into_inner().unwrap_or_else(PoisonError::into_inner);
        NonFiniteReport { not_finite: self.count.into_inner(), first }
    }
}

/// Elements whose exponent has all bits set: infinities and NaN. Integer types have none.
fn count(dtype: DType, bytes: &[u8]) -> u64 {
    let halves = |exponent: u16| {
        let set = |b: &[u8]| u64::from(u16::from_le_bytes([b[0], b[1]]) & exponent == exponent);
        bytes.chunks_exact(2).map(set).sum()
    };
    match dtype {
        DType::F16 => halves(0x7c00),
        DType::Bf16 => halves(0x7f80),
        DType::F32 => {
            let exponent = 0x7f80_0000_u32;
            let set =
                |b: &[u8]| u64::from(u32::from_le_bytes([b[0], b[1], b[2], b[3]]) & exponent == exponent);
            bytes.chunks_exact(4).map(set).sum()
        }
        DType::F64 => {
            let finite = |b: &[u8]| f64::from_le_bytes(b.try_into().expect("eight bytes")).is_finite();
            bytes.chunks_exact(8).filter(|b| !finite(b)).count() as u64
        }
        DType::I64 | DType::I32 | DType::I16 | DType::I8 | DType::U8 | DType::Bool => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::{bf16, f16};

    #[test]
    fn infinities_and_what_is_no_number_are_counted_in_every_type() {
        let values = [1.0f32, f32::NAN, -0.0, f32::INFINITY, f32::NEG_INFINITY, 3e38, -f32::NAN, 1e-45];
        let wide: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let double: Vec<u8> = values.iter().flat_map(|&v| f64::from(v).to_le_bytes()).collect();
        let brain: Vec<u8> = values.iter().flat_map(|&v| bf16::from_f32(v).to_le_bytes()).collect();
        let half: Vec<u8> = values.iter().flat_map(|&v| f16::from_f32(v).to_le_bytes()).collect();
        assert_eq!((count(DType::F32, &wide), count(DType::F64, &double)), (4, 4));
        assert_eq!(count(DType::Bf16, &brain), 4);
        assert_eq!(count(DType::F16, &half), 5, "3e38 is infinite as f16");
        assert_eq!(count(DType::I32, &wide), 0);
    }

    #[test]
    fn the_first_name_is_kept() {
        let counter = Counter::default();
        counter.look("a", DType::F32, &1f32.to_le_bytes());
        counter.look("b", DType::F32, &f32::NAN.to_le_bytes());
        counter.look("c", DType::F32, &f32::NAN.to_le_bytes());
        assert_eq!(counter.report(), NonFiniteReport { not_finite: 2, first: Some("b".into()) });
    }
}

//! NF4: 4-bit weights as bitsandbytes stores them: codes in blocks of 64, their scales as codes in blocks of 256.
//!
//! ```text
//! X.weight                                u8  [(n+1)/2, 1]    two codes per byte, the first in the high half
//! X.weight.absmax                         u8  [blocks]        code of (largest magnitude - offset)
//! X.weight.nested_absmax                  f32 [blocks / 256]  scale of those codes
//! X.weight.quant_map, .nested_quant_map   f32 [16], [256]     what codes stand for
//! X.weight.quant_state.bitsandbytes__nf4  u8                  JSON: sizes, types, offset
//! ```
//!
//! # Source
//! Dettmers et al., arXiv:2305.14314; layout and order of operations of bitsandbytes 0.50.

use ms_core::DType;
use serde_json::Value;

use crate::cast::cast;

/// Elements that share a scale.
pub(crate) const BLOCK: usize = 64;
/// Scales that share a scale.
const NESTED: usize = 256;

/// What the 16 codes stand for: quantiles of the normal distribution.
#[allow(clippy::excessive_precision)] // as published
pub(crate) const TABLE: [f32; 16] = [
    -1.0,
    -0.696_192_800_998_687_7,
    -0.525_073_051_452_636_7,
    -0.394_917_488_098_144_53,
    -0.284_441_381_692_886_35,
    -0.184_773_430_228_233_34,
    -0.091_050_036_251_544_95,
    0.0,
    0.079_580_299_556_255_34,
    0.160_930_201_411_247_25,
    0.246_112_301_945_686_34,
    0.337_915_241_718_292_24,
    0.440_709_829_330_444_34,
    0.562_617_003_917_694_1,
    0.722_956_836_223_602_3,
    1.0,
];

/// What the 256 codes of a scale stand for: the midpoints of ever finer grids, both signs, 0 and 1, in order.
pub(crate) fn dynamic_map() -> Vec<f32> {
    let mut map = vec![0.0, 1.0];
    for i in 0..7i32 {
        let points = (1usize << i) + 1;
        let step = (1.0f32 - 0.1) / (points - 1) as f32;
        // From both ends towards the middle, with one rounding per point, as in torch.linspace.
        let point = |end: f32, step: f32, k: usize| (f64::from(end) + f64::from(step) * k as f64) as f32;
        let grid =
            |k: usize| if k < points / 2 { point(0.1, step, k) } else { point(1.0, -step, points - 1 - k) };
        let scale = 10f64.powi(i - 6) as f32;
        for k in 0..points - 1 {
            let middle = (grid(k) + grid(k + 1)) / 2.0;
            map.extend([scale * middle, -(scale * middle)]);
        }
    }
    map.sort_by(f32::total_cmp);
    map
}

/// Where the parts of a quantised tensor lie.
#[derive(Clone, Debug)]
pub(crate) struct Quantised {
    /// First byte of the codes of scales.
    pub(crate) absmax: usize,
    pub(crate) nested: Vec<f32>,
    pub(crate) table: Vec<f32>,
    pub(crate) map: Vec<f32>,
    pub(crate) offset: f32,
}

impl Quantised {
    /// Elements `first..first + n` of the tensor whose codes begin at byte `start`, as `dtype`.
    pub(crate) fn read(
        &self,
        bytes: &[u8],
        start: usize,
        first: usize,
        n: usize,
        dtype: DType,
        out: &mut Vec<u8>,
    ) {
        let mut wide = Vec::with_capacity(4 * n);
        for i in first..first + n {
            let byte = bytes[start + i / 2];
            let code = if i % 2 == 0 { byte >> 4 } else { byte & 15 };
            let block = i / BLOCK;
            let scale = bytes[self.absmax + block];
            let scale = self.map[usize::from(scale)] * self.nested[block / NESTED] + self.offset;
            wide.extend_from_slice(&(self.table[usize::from(code)] * scale).to_le_bytes());
        }
        cast(&wide, DType::F32, dtype, out);
    }
}

/// The metadata in the JSON of a quantised tensor: type, dimensions, offset.
///
/// # Errors
/// A description of what this module cannot read.
pub(crate) fn state(text: &[u8]) -> Result<(DType, Vec<usize>, f32), String> {
    let json: Value = serde_json::from_slice(text).map_err(|e| format!("quantisation state: {e}"))?;
    let size = |key: &str| json[key].as_u64();
    if json["quant_type"] != "nf4" || size("blocksize") != Some(64) || size("nested_blocksize") != Some(256) {
        return Err(format!("quantisation state {json}: expected nf4 with blocks of 64 and 256"));
    }
    let dtype = match json["dtype"].as_str() {
        Some("bfloat16") => DType::Bf16,
        Some("float16") => DType::F16,
        Some("float32") => DType::F32,
        _ => return Err(format!("quantisation state: dtype {} is not supported", json["dtype"])),
    };
    let shape: Option<Vec<usize>> =
        json["shape"].as_array().and_then(|s| s.iter().map(|n| Some(n.as_u64()? as usize)).collect());
    let shape = shape.filter(|s| s.iter().try_fold(1usize, |n, &d| n.checked_mul(d)).is_some());
    let offset = json["nested_offset"].as_f64();
    match (shape, offset) {
        (Some(shape), Some(offset)) => Ok((dtype, shape, offset as f32)),
        _ => Err("quantisation state: shape or offset is missing".to_owned()),
    }
}

/// The scales of a tensor, found in a first pass over its elements.
#[derive(Debug, Default)]
pub(crate) struct Scales {
    absmax: Vec<f32>,
    seen: usize,
}

impl Scales {
    /// Looks at the next elements.
    pub(crate) fn take(&mut self, values: impl Iterator<Item = f32>) {
        for x in values {
            if self.seen.is_multiple_of(BLOCK) {
                self.absmax.push(0.0);
            }
            let last = self.absmax.last_mut().expect("just pushed, or an element came before");
            *last = last.max(x.abs());
            self.seen += 1;
        }
    }

    /// Quantises the scales themselves.
    pub(crate) fn finish(self, dtype: DType, shape: &[usize]) -> Nf4Encoding {
        let map = dynamic_map();
        let offset = torch_sum(&self.absmax) / self.absmax.len().max(1) as f32;
        let (mut codes, mut nested) = (Vec::new(), Vec::new());
        for block in self.absmax.chunks(NESTED) {
            let residual: Vec<f32> = block.iter().map(|a| a - offset).collect();
            let scale = residual.iter().fold(0f32, |m, x| m.max(x.abs()));
            nested.push(scale);
            let over = if scale == 0.0 { 1.0 } else { scale };
            codes.extend(residual.iter().map(|x| nearest(&map, x / over)));
        }
        let name = match dtype {
            DType::Bf16 => "bfloat16",
            DType::F16 => "float16",
            _ => "float32",
        };
        let sizes: Vec<String> = shape.iter().map(ToString::to_string).collect();
        let state = format!(
            "{{\"quant_type\": \"nf4\", \"blocksize\": 64, \"dtype\": \"{name}\", \"shape\": [{}], \
             \"nested_blocksize\": 256, \"nested_dtype\": \"float32\", \"nested_offset\": {}}}",
            sizes.join(", "),
            python_float(f64::from(offset))
        );
        Nf4Encoding {
            inverse: self.absmax.iter().map(|a| if *a == 0.0 { 0.0 } else { 1.0 / a }).collect(),
            codes,
            nested,
            map,
            state,
        }
    }
}

/// Everything of a quantised tensor but its codes.
#[derive(Debug)]
pub(crate) struct Nf4Encoding {
    inverse: Vec<f32>,
    /// `absmax`.
    pub(crate) codes: Vec<u8>,
    /// `nested_absmax`.
    pub(crate) nested: Vec<f32>,
    /// `nested_quant_map`.
    pub(crate) map: Vec<f32>,
    /// `quant_state`.
    pub(crate) state: String,
}

impl Nf4Encoding {
    /// The code of element `i`.
    pub(crate) fn code(&self, i: usize, x: f32) -> u8 {
        let y = x * self.inverse[i / BLOCK];
        // Midpoints that lie below: the table is in order.
        TABLE.windows(2).filter(|w| (w[0] + w[1]) / 2.0 < y).count() as u8
    }
}

fn nearest(map: &[f32], x: f32) -> u8 {
    let above = map.partition_point(|m| *m < x).min(map.len() - 1);
    let below = above.saturating_sub(1);
    (if (x - map[below]).abs() <= (map[above] - x).abs() { below } else { above }) as u8
}

/// The sum of a row of floats in the order in which torch's vector code for 16 lanes forms it: the mean of the scales
/// is part of the format, to the last bit.
///
/// # Source
/// PyTorch, `aten/src/ATen/native/cpu/SumKernel.cpp`, `vectorized_inner_sum` and `row_sum`: four rows of vectors side
/// by side, summed in levels of at least 16 steps.
fn torch_sum(values: &[f32]) -> f32 {
    const LANES: usize = 16;
    const ROWS: usize = 4;
    const LEVELS: usize = 4;
    type V = [f32; LANES];
    let vectors = values.len() / LANES;
    let load = |i: usize| -> V { values[i * LANES..][..LANES].try_into().expect("whole vectors") };
    let add = |a: &mut V, b: &V| a.iter_mut().zip(b).for_each(|(a, b)| *a += b);
    let steps = vectors / ROWS;
    let power = (usize::BITS - steps.max(1).saturating_sub(1).leading_zeros()) as usize / LEVELS;
    let power = power.max(4);
    let (step, mut acc) = (1usize << power, [[[0f32; LANES]; ROWS]; LEVELS]);
    let mut i = 0;
    while i + step <= steps {
        for _ in 0..step {
            for (k, sum) in acc[0].iter_mut().enumerate() {
                add(sum, &load(i * ROWS + k));
            }
            i += 1;
        }
        for level in 1..LEVELS {
            for k in 0..ROWS {
                let lower = std::mem::replace(&mut acc[level - 1][k], [0.0; LANES]);
                add(&mut acc[level][k], &lower);
            }
            if i & ((step - 1) << (level * power)) != 0 {
                break;
            }
        }
    }
    for i in i..steps {
        for (k, sum) in acc[0].iter_mut().enumerate() {
            add(sum, &load(i * ROWS + k));
        }
    }
    for level in 1..LEVELS {
        for k in 0..ROWS {
            let upper = acc[level][k];
            add(&mut acc[0][k], &upper);
        }
    }
    let mut total = acc[0][0];
    for i in steps * ROWS..vectors {
        add(&mut total, &load(i));
    }
    for row in &acc[0][1..] {
        add(&mut total, row);
    }
    let tail = values[vectors * LANES..].iter().fold(0.0, |s, x| s + x);
    total.iter().fold(tail, |s, x| s + x)
}

/// A float as Python writes it.
fn python_float(x: f64) -> String {
    let text =
        if x != 0.0 && (x.abs() < 1e-4 || x.abs() >= 1e16) { format!("{x:e}") } else { format!("{x:?}") };
    match text.split_once('e') {
        Some((digits, power)) => {
            let (sign, digits_of) = power.strip_prefix('-').map_or(('+', power), |p| ('-', p));
            format!("{digits}e{sign}{digits_of:0>2}")
        }
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_stand_for_the_nearest_value_of_their_block() {
        let values: Vec<f32> = (0..128).map(|i| ((i * 37 % 101) as f32 - 50.0) / 64.0).collect();
        let mut scales = Scales::default();
        scales.take(values.iter().copied());
        let w = scales.finish(DType::F32, &[2, 64]);
        let packed: Vec<u8> = values
            .chunks(2)
            .enumerate()
            .map(|(i, p)| w.code(2 * i, p[0]) << 4 | w.code(2 * i + 1, p[1]))
            .collect();
        let mut bytes = packed.clone();
        bytes.extend_from_slice(&w.codes);
        let (dtype, shape, offset) = state(w.state.as_bytes()).unwrap();
        assert_eq!((dtype, shape), (DType::F32, vec![2, 64]));
        let q =
            Quantised { absmax: packed.len(), nested: w.nested, table: TABLE.to_vec(), map: w.map, offset };
        let mut out = Vec::new();
        q.read(&bytes, 0, 3, 100, DType::F32, &mut out);
        for (x, b) in values[3..103].iter().zip(out.chunks_exact(4)) {
            let y = f32::from_le_bytes(b.try_into().unwrap());
            assert!((x - y).abs() <= 0.16 * 0.79, "{x} {y}"); // half the widest gap of the table
        }
    }

    /// Values: bitsandbytes 0.50.2, `tests/golden/ops/nf4.safetensors`.
    #[test]
    fn every_bit_is_that_of_bitsandbytes() {
        let (golden, metadata) = ms_testing::read_golden(&ms_testing::golden("ops/nf4.safetensors"));
        let floats = |name: &str| golden[name].f32();
        let bytes = |name: &str| -> Vec<u8> { golden[name].values.iter().map(|&v| v as u8).collect() };
        assert_eq!(TABLE.to_vec(), floats("code"));
        assert_eq!(dynamic_map(), floats("dq_nested_code"));
        let packed = |values: &[f32], w: &Nf4Encoding| -> Vec<u8> {
            let code = |i: usize| w.code(i, values[i]);
            (0..values.len() / 2).map(|i| code(2 * i) << 4 | code(2 * i + 1)).collect()
        };
        let scales = |values: &[f32]| {
            let mut scales = Scales::default();
            scales.take(values.iter().copied());
            scales
        };
        // Blocks' scales as they are, which no checkpoint has: codes and largest magnitudes.
        let values = floats("weight");
        let plain = scales(&values);
        assert_eq!(plain.absmax, floats("absmax"));
        assert_eq!(packed(&values, &plain.finish(DType::F32, &[40, 512])), bytes("packed"));
        // Scales as codes.
        let values = floats("weight_bf16");
        let w = scales(&values).finish(DType::Bf16, &[40, 512]);
        assert_eq!(packed(&values, &w), bytes("dq_packed"));
        assert_eq!(w.codes, bytes("dq_absmax_u8"));
        assert_eq!(w.nested, floats("dq_nested_absmax"));
        assert_eq!(w.state.as_bytes(), bytes("quant_state_json_bytes"));
        assert_eq!(metadata["quant_state"], serde_json::to_string(&w.state).unwrap());
        // Back, from theirs.
        let (dtype, shape, offset) = state(&bytes("quant_state_json_bytes")).unwrap();
        assert_eq!((dtype, &shape), (DType::Bf16, &golden["weight_bf16"].shape));
        assert_eq!([offset].to_vec(), floats("dq_offset"));
        let file = [bytes("dq_packed"), bytes("dq_absmax_u8")].concat();
        let (nested, table, map) = (floats("dq_nested_absmax"), floats("code"), floats("dq_nested_code"));
        let q = Quantised { absmax: bytes("dq_packed").len(), nested, table, map, offset };
        let mut out = Vec::new();
        q.read(&file, 0, 0, values.len(), dtype, &mut out);
        let want: Vec<u8> = golden["dq_dequant_bf16"].bf16().iter().flat_map(|v| v.to_le_bytes()).collect();
        assert!(out == want);
    }

    #[test]
    fn sums_over_many_levels_are_close_to_exact_ones() {
        let values: Vec<f32> = (0..40_000).map(|i| 1.0 + (i % 7) as f32 / 8.0).collect();
        let exact: f64 = values.iter().map(|x| f64::from(*x)).sum();
        assert!((f64::from(torch_sum(&values)) - exact).abs() < 1e-5 * exact);
        assert_eq!(torch_sum(&[1.0, 2.0, 3.5]), 6.5);
    }

    #[test]
    fn floats_are_written_as_python_writes_them() {
        assert_eq!(python_float(0.0427), "0.0427");
        assert_eq!(python_float(3.0), "3.0");
        assert_eq!(python_float(0.000_012_5), "1.25e-05");
    }
}

//! Tensors as the operator library describes them, and their values.

use crate::handles::Handled;
use crate::memory;
use half::{bf16, f16};
use std::cell::Cell;
use std::sync::Mutex;

/// Element types that the emulator's kernels know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dtype {
    F32,
    F16,
    Bf16,
    F64,
    I8,
    U8,
    I16,
    U16,
    I32,
    U32,
    I64,
    U64,
    Bool,
    C32,
    C64,
    C128,
    /// A number of the interface's list that kernels do not calculate with.
    Other(i32),
}

/// The numbers of `aclDataType`.
const CODES: [(i32, Dtype); 16] = [
    (0, Dtype::F32),
    (1, Dtype::F16),
    (2, Dtype::I8),
    (3, Dtype::I32),
    (4, Dtype::U8),
    (6, Dtype::I16),
    (7, Dtype::U16),
    (8, Dtype::U32),
    (9, Dtype::I64),
    (10, Dtype::U64),
    (11, Dtype::F64),
    (12, Dtype::Bool),
    (16, Dtype::C64),
    (17, Dtype::C128),
    (27, Dtype::Bf16),
    (33, Dtype::C32),
];

impl Dtype {
    /// From the number of `aclDataType`.
    pub fn from_acl(code: i32) -> Dtype {
        CODES.iter().find(|row| row.0 == code).map_or(Dtype::Other(code), |row| row.1)
    }
    /// The number of `aclDataType`.
    pub fn code(self) -> i32 {
        let Dtype::Other(code) = self else {
            return CODES.iter().find(|row| row.1 == self).expect("every type but others has a number").0;
        };
        code
    }
    /// Bytes of an element.
    pub fn size(self) -> usize {
        match self {
            Dtype::I8 | Dtype::U8 | Dtype::Bool | Dtype::Other(_) => 1,
            Dtype::F16 | Dtype::Bf16 | Dtype::I16 | Dtype::U16 => 2,
            Dtype::F32 | Dtype::I32 | Dtype::U32 | Dtype::C32 => 4,
            Dtype::F64 | Dtype::I64 | Dtype::U64 | Dtype::C64 => 8,
            Dtype::C128 => 16,
        }
    }
    /// Of a float kind.
    pub fn is_float(self) -> bool {
        matches!(self, Dtype::F32 | Dtype::F16 | Dtype::Bf16 | Dtype::F64)
    }
    /// Of a complex kind.
    pub fn is_complex(self) -> bool {
        matches!(self, Dtype::C32 | Dtype::C64 | Dtype::C128)
    }
    /// Of an integer kind or bool.
    pub fn is_int(self) -> bool {
        !self.is_float() && !self.is_complex() && !matches!(self, Dtype::Other(_))
    }
}

/// Strides of elements that follow one another.
pub fn contiguous(dims: &[i64]) -> Vec<i64> {
    let mut strides = vec![1; dims.len()];
    for i in (0..dims.len().saturating_sub(1)).rev() {
        strides[i] = strides[i + 1] * dims[i + 1];
    }
    strides
}

/// Where a tensor's elements are.
#[derive(Clone, Debug, PartialEq)]
pub struct View {
    /// Dimensions.
    pub dims: Vec<i64>,
    /// Distances in elements.
    pub strides: Vec<i64>,
    /// First element, in elements from `base`.
    pub offset: i64,
    /// Element type.
    pub dtype: Dtype,
    /// Number of `aclFormat`.
    pub format: i32,
    /// Dimensions of the storage.
    pub storage: Vec<i64>,
    /// Device address of the storage.
    pub base: usize,
}

impl View {
    /// Number of elements.
    pub fn numel(&self) -> usize {
        self.dims.iter().product::<i64>().max(0) as usize
    }
    /// Elements of the storage.
    pub fn storage_len(&self) -> usize {
        self.storage.iter().product::<i64>().max(0) as usize
    }
    /// Whether the elements follow one another.
    pub fn is_contiguous(&self) -> bool {
        let mut expected = 1;
        for (d, s) in self.dims.iter().zip(&self.strides).rev() {
            if *d != 1 && *s != expected {
                return false;
            }
            expected *= d;
        }
        true
    }
    /// Lowest and highest element, in elements from `base`.
    pub fn span(&self) -> (i64, i64) {
        let (mut low, mut high) = (self.offset, self.offset);
        for (d, s) in self.dims.iter().zip(&self.strides) {
            let reach = (d - 1).max(0) * s;
            low += reach.min(0);
            high += reach.max(0);
        }
        (low, high)
    }
    /// First byte and number of bytes that a view touches.
    pub fn bytes(&self) -> (usize, usize) {
        if self.numel() == 0 {
            return (self.base, 0);
        }
        let (low, high) = self.span();
        let size = self.dtype.size() as i64;
        ((self.base as i64 + low * size) as usize, ((high - low + 1) * size) as usize)
    }
    /// Element offsets in row-major order of `dims`.
    pub fn offsets(&self) -> Vec<i64> {
        let n = self.numel();
        let mut out = Vec::with_capacity(n);
        if n == 0 {
            return out;
        }
        let rank = self.dims.len();
        let mut index = vec![0i64; rank];
        let mut at = self.offset;
        loop {
            if rank == 0 {
                out.push(at);
                return out;
            }
            let last = rank - 1;
            for i in 0..self.dims[last] {
                out.push(at + i * self.strides[last]);
            }
            let mut d = last;
            loop {
                if d == 0 {
                    return out;
                }
                d -= 1;
                index[d] += 1;
                at += self.strides[d];
                if index[d] < self.dims[d] {
                    break;
                }
                at -= index[d] * self.strides[d];
                index[d] = 0;
            }
        }
    }
    /// Addresses of all elements.
    pub fn addresses(&self) -> Vec<usize> {
        let size = self.dtype.size() as i64;
        self.offsets().into_iter().map(|o| (self.base as i64 + o * size) as usize).collect()
    }
    /// The view broadcast to `dims` (trailing dimensions match or are 1).
    ///
    /// # Errors
    /// A sentence if it does not fit.
    pub fn broadcast(&self, dims: &[i64]) -> Result<View, String> {
        if self.dims.len() > dims.len() {
            return Err(format!("{:?} does not broadcast to {dims:?}", self.dims));
        }
        let lead = dims.len() - self.dims.len();
        let mut strides = vec![0; dims.len()];
        for (i, (d, s)) in self.dims.iter().zip(&self.strides).enumerate() {
            if *d == dims[lead + i] {
                strides[lead + i] = *s;
            } else if *d != 1 {
                return Err(format!("{:?} does not broadcast to {dims:?}", self.dims));
            }
        }
        Ok(View { dims: dims.to_vec(), strides, ..self.clone() })
    }
    /// Values, widened, in row-major order.
    ///
    /// # Errors
    /// 507015 when the memory is not alive.
    pub fn load(&self, who: &str) -> Result<Values, i32> {
        let (start, len) = self.bytes();
        let at = memory::alive(start, len, who)?;
        let (low, _) = if self.numel() == 0 { (0, 0) } else { self.span() };
        let offsets = if self.is_contiguous() { None } else { Some(self.offsets()) };
        let n = self.numel();
        macro_rules! read {
            ($t:ty, $f:expr) => {{
                let f = $f;
                let first = at as *const $t;
                match &offsets {
                    // SAFETY: `alive` found all `len` bytes from `start` in one live allocation, and the offsets are of
                    // this view, whose span gave `start` and `len`. Addresses may be unaligned for the type.
                    None => (0..n).map(|i| f(unsafe { first.add(i).read_unaligned() })).collect(),
                    // SAFETY: as above.
                    Some(o) => o.iter().map(|o| f(unsafe { first.offset((o - low) as isize).read_unaligned() })).collect(),
                }
            }};
        }
        Ok(match self.dtype {
            Dtype::F32 => Values::F(read!(f32, f64::from)),
            Dtype::F16 => Values::F(read!(u16, |v| f64::from(f16::from_bits(v)))),
            Dtype::Bf16 => Values::F(read!(u16, |v| f64::from(bf16::from_bits(v)))),
            Dtype::F64 => Values::F(read!(f64, |v: f64| v)),
            Dtype::I8 => Values::I(read!(i8, i64::from)),
            Dtype::U8 => Values::I(read!(u8, i64::from)),
            Dtype::Bool => Values::I(read!(u8, |v| i64::from(v != 0))),
            Dtype::I16 => Values::I(read!(i16, i64::from)),
            Dtype::U16 => Values::I(read!(u16, i64::from)),
            Dtype::I32 => Values::I(read!(i32, i64::from)),
            Dtype::U32 => Values::I(read!(u32, i64::from)),
            Dtype::I64 => Values::I(read!(i64, |v: i64| v)),
            Dtype::U64 => Values::I(read!(u64, |v| v as i64)),
            Dtype::C32 => Values::C(read!([u16; 2], |v: [u16; 2]| {
                (f64::from(f16::from_bits(v[0])), f64::from(f16::from_bits(v[1])))
            })),
            Dtype::C64 => Values::C(read!([f32; 2], |v: [f32; 2]| (f64::from(v[0]), f64::from(v[1])))),
            Dtype::C128 => Values::C(read!([f64; 2], |v: [f64; 2]| (v[0], v[1]))),
            Dtype::Other(_) => Values::I(read!(u8, i64::from)),
        })
    }
    /// Writes values, rounded to the element type.
    ///
    /// # Errors
    /// 507015 when the memory is not alive or the number of values differs.
    pub fn store(&self, values: &Values, who: &str) -> Result<(), i32> {
        let n = self.numel();
        if values.len() != n {
            crate::report::fail(507_015, &format!("{who}: {} values for {:?}", values.len(), self.dims));
            return Err(507_015);
        }
        let (start, len) = self.bytes();
        let at = memory::alive(start, len, who)?;
        let (low, _) = if n == 0 { (0, 0) } else { self.span() };
        let offsets = if self.is_contiguous() { None } else { Some(self.offsets()) };
        macro_rules! write {
            ($t:ty, $get:expr) => {{
                let get = $get;
                let first = at as *mut $t;
                for i in 0..n {
                    let o = offsets.as_ref().map_or(i as i64, |o| o[i] - low);
                    // SAFETY: as in `load`; the stream's order makes this task the only writer.
                    unsafe { first.offset(o as isize).write_unaligned(get(i)) };
                }
            }};
        }
        match self.dtype {
            Dtype::F32 => write!(f32, |i| values.real(i) as f32),
            Dtype::F16 => write!(u16, |i| f16::from_f32(values.real(i) as f32).to_bits()),
            Dtype::Bf16 => write!(u16, |i| bf16::from_f32(values.real(i) as f32).to_bits()),
            Dtype::F64 => write!(f64, |i| values.real(i)),
            Dtype::I8 => write!(i8, |i| values.whole(i) as i8),
            Dtype::U8 | Dtype::Other(_) => write!(u8, |i| values.whole(i) as u8),
            Dtype::Bool => write!(u8, |i| u8::from(values.b(i))),
            Dtype::I16 => write!(i16, |i| values.whole(i) as i16),
            Dtype::U16 => write!(u16, |i| values.whole(i) as u16),
            Dtype::I32 => write!(i32, |i| values.whole(i) as i32),
            Dtype::U32 => write!(u32, |i| values.whole(i) as u32),
            Dtype::I64 => write!(i64, |i| values.whole(i)),
            Dtype::U64 => write!(u64, |i| values.whole(i) as u64),
            Dtype::C32 => write!([u16; 2], |i| {
                let (a, b) = values.c(i);
                [f16::from_f32(a as f32).to_bits(), f16::from_f32(b as f32).to_bits()]
            }),
            Dtype::C64 => write!([f32; 2], |i| {
                let (a, b) = values.c(i);
                [a as f32, b as f32]
            }),
            Dtype::C128 => write!([f64; 2], |i| {
                let (a, b) = values.c(i);
                [a, b]
            }),
        }
        Ok(())
    }
}

thread_local! {
    /// Whether an imaginary part was dropped on this thread.
    static LOST: Cell<bool> = const { Cell::new(false) };
}

/// Whether a kernel has dropped an imaginary part on this thread since this was last asked.
pub fn lost() -> bool {
    LOST.replace(false)
}

/// Values widened to the widest type of their kind.
#[derive(Clone, Debug, PartialEq)]
pub enum Values {
    /// Floats.
    F(Vec<f64>),
    /// Integers and bools.
    I(Vec<i64>),
    /// Complex numbers.
    C(Vec<(f64, f64)>),
}

impl Values {
    /// How many.
    pub fn len(&self) -> usize {
        match self {
            Values::F(v) => v.len(),
            Values::I(v) => v.len(),
            Values::C(v) => v.len(),
        }
    }
    /// None at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// As a float; the real part of a complex number, as a cast takes it.
    fn real(&self, i: usize) -> f64 {
        match self {
            Values::F(v) => v[i],
            Values::I(v) => v[i] as f64,
            Values::C(v) => v[i].0,
        }
    }
    /// As an integer: truncated, 0 for NaN; of the real part of a complex number, as a cast takes it.
    fn whole(&self, i: usize) -> i64 {
        match self {
            Values::F(v) => v[i] as i64,
            Values::I(v) => v[i],
            Values::C(v) => v[i].0 as i64,
        }
    }
    /// As a float. A kernel that asks a complex number for this has no answer for complex numbers: see [`lost`].
    pub fn f(&self, i: usize) -> f64 {
        self.note();
        self.real(i)
    }
    /// As an integer: truncated, 0 for NaN. Of complex numbers as [`Values::f`].
    pub fn i(&self, i: usize) -> i64 {
        self.note();
        self.whole(i)
    }
    fn note(&self) {
        if matches!(self, Values::C(_)) {
            LOST.set(true);
        }
    }
    /// As a truth value.
    pub fn b(&self, i: usize) -> bool {
        match self {
            Values::F(v) => v[i] != 0.0,
            Values::I(v) => v[i] != 0,
            Values::C(v) => v[i] != (0.0, 0.0),
        }
    }
    /// As a complex number.
    pub fn c(&self, i: usize) -> (f64, f64) {
        match self {
            Values::C(v) => v[i],
            other => (other.f(i), 0.0),
        }
    }
    /// All as floats.
    pub fn floats(self) -> Vec<f64> {
        match self {
            Values::F(v) => v,
            other => (0..other.len()).map(|i| other.f(i)).collect(),
        }
    }
    /// All as integers.
    pub fn ints(self) -> Vec<i64> {
        match self {
            Values::I(v) => v,
            other => (0..other.len()).map(|i| other.i(i)).collect(),
        }
    }
    /// One picked element after another.
    pub fn pick(&self, at: impl Iterator<Item = usize>) -> Values {
        match self {
            Values::F(v) => Values::F(at.map(|i| v[i]).collect()),
            Values::I(v) => Values::I(at.map(|i| v[i]).collect()),
            Values::C(v) => Values::C(at.map(|i| v[i]).collect()),
        }
    }
    /// Sets one element from another list.
    pub fn put(&mut self, at: usize, from: &Values, i: usize) {
        match self {
            Values::F(v) => v[at] = from.f(i),
            Values::I(v) => v[at] = from.i(i),
            Values::C(v) => v[at] = from.c(i),
        }
    }
}

/// `aclTensor`.
#[derive(Debug)]
pub struct Tensor(pub Mutex<View>);
impl Handled for Tensor {
    const NAME: &'static str = "aclTensor";
}
/// `aclScalar`: one value with its type.
#[derive(Clone, Debug)]
pub struct Scalar {
    /// Type.
    pub dtype: Dtype,
    /// One value.
    pub value: Values,
}
impl Handled for Scalar {
    const NAME: &'static str = "aclScalar";
}
/// `aclIntArray`.
#[derive(Debug)]
pub struct IntArray(pub Vec<i64>);
impl Handled for IntArray {
    const NAME: &'static str = "aclIntArray";
}
/// `aclFloatArray`.
#[derive(Debug)]
pub struct FloatArray(pub Vec<f32>);
impl Handled for FloatArray {
    const NAME: &'static str = "aclFloatArray";
}
/// `aclBoolArray`.
#[derive(Debug)]
pub struct BoolArray(pub Vec<bool>);
impl Handled for BoolArray {
    const NAME: &'static str = "aclBoolArray";
}
/// `aclTensorList`: handles of its elements, which it owns.
#[derive(Debug)]
pub struct TensorList(pub Vec<usize>);
impl Handled for TensorList {
    const NAME: &'static str = "aclTensorList";
}
/// `aclScalarList`: handles of its elements, which it owns.
#[derive(Debug)]
pub struct ScalarList(pub Vec<usize>);
impl Handled for ScalarList {
    const NAME: &'static str = "aclScalarList";
}

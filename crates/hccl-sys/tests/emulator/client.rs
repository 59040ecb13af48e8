//! A small client: memory, tensors, and the two phases of an operator.

use half::{bf16, f16};
use hccl_sys::types::{aclIntArray, aclOpExecutor, aclTensor, aclTensorList, aclrtStream};
use hccl_sys::{Cann, Search, SecondPhase};
use std::ffi::{CStr, c_void};
use std::ptr::null_mut;
use std::sync::OnceLock;

/// Element types of the tests, as `aclDataType`.
pub const F32: i32 = 0;
pub const F16: i32 = 1;
pub const BF16: i32 = 27;
pub const I64: i32 = 9;
pub const I32: i32 = 3;
pub const BOOL: i32 = 12;

pub fn cann() -> &'static Cann {
    static CANN: OnceLock<Cann> = OnceLock::new();
    CANN.get_or_init(|| {
        Cann::open(&Search::from_variables(|n| std::env::var(n).ok())).unwrap_or_else(|e| panic!("{e}"))
    })
}

/// Calls an entry of a table; long lists of arguments stand behind a colon, in rows.
macro_rules! call {
    ($table:ident.$name:ident: $($arg:expr),*) => { $crate::client::call!($table.$name($($arg),*)) };
    ($table:ident.$name:ident($($arg:expr),* $(,)?)) => {{
        let f = $crate::client::cann().$table.$name.expect(stringify!($name));
        // SAFETY: the declared types are the published ones; arguments are alive during the call.
        unsafe { f($($arg),*) }
    }};
}
pub(crate) use call;

/// Both phases on a stream; gives the code of the first that fails.
macro_rules! op {
    ($stream:expr, $table:ident.$name:ident: $($arg:expr),*) => {
        $crate::client::op!($stream, $table.$name($($arg),*))
    };
    ($stream:expr, $table:ident.$name:ident($($arg:expr),* $(,)?)) => {{
        let (first, second) = $crate::client::cann().$table.$name.expect(stringify!($name));
        let (mut size, mut executor) = (0u64, std::ptr::null_mut());
        // SAFETY: as for `call`.
        let code = unsafe { first($($arg,)* &raw mut size, &raw mut executor) };
        if code != 0 { code } else { $crate::client::second_phase(second, size, executor, $stream) }
    }};
}
pub(crate) use op;

pub fn ok(code: i32) {
    assert_eq!(code, 0, "{}", message());
}

pub fn message() -> String {
    let text = call!(acl.aclGetRecentErrMsg());
    if text.is_null() {
        return String::new();
    }
    // SAFETY: a C string of the library, alive until the next call on this thread.
    unsafe { CStr::from_ptr(text.cast()) }.to_string_lossy().into_owned()
}

pub fn start(device: i32) {
    let code = call!(acl.aclInit(std::ptr::null()));
    assert!(code == 0 || code == 100_002);
    ok(call!(rt.aclrtSetDevice(device)));
}

pub fn stream() -> aclrtStream {
    let mut s = null_mut();
    ok(call!(rt.aclrtCreateStream(&raw mut s)));
    s
}

pub fn sync(s: aclrtStream) {
    ok(call!(rt.aclrtSynchronizeStream(s)));
}

pub fn alloc(bytes: usize) -> *mut c_void {
    let mut at = null_mut();
    ok(call!(rt.aclrtMalloc(&raw mut at, bytes, 0)));
    at
}

pub fn second_phase(
    second: SecondPhase,
    size: u64,
    executor: *mut aclOpExecutor,
    stream: aclrtStream,
) -> i32 {
    // A workspace that stays: these programs end soon.
    let workspace = if size > 0 { alloc(size as usize) } else { null_mut() };
    // SAFETY: device memory of the size asked for, and the executor of the first phase.
    unsafe { second(workspace, size, executor, stream) }
}

pub fn encode(values: &[f64], dtype: i32) -> Vec<u8> {
    let each = |v: &f64| match dtype {
        F32 => (*v as f32).to_le_bytes().to_vec(),
        F16 => f16::from_f32(*v as f32).to_le_bytes().to_vec(),
        BF16 => bf16::from_f32(*v as f32).to_le_bytes().to_vec(),
        I64 => (*v as i64).to_le_bytes().to_vec(),
        I32 => (*v as i32).to_le_bytes().to_vec(),
        _ => vec![*v as u8],
    };
    values.iter().flat_map(each).collect()
}

pub fn decode(bytes: &[u8], dtype: i32) -> Vec<f64> {
    match dtype {
        F32 => bytes.chunks(4).map(|b| f64::from(f32::from_le_bytes(b.try_into().unwrap()))).collect(),
        F16 => bytes.chunks(2).map(|b| f16::from_le_bytes(b.try_into().unwrap()).to_f64()).collect(),
        BF16 => bytes.chunks(2).map(|b| bf16::from_le_bytes(b.try_into().unwrap()).to_f64()).collect(),
        I64 => bytes.chunks(8).map(|b| i64::from_le_bytes(b.try_into().unwrap()) as f64).collect(),
        I32 => bytes.chunks(4).map(|b| f64::from(i32::from_le_bytes(b.try_into().unwrap()))).collect(),
        _ => bytes.iter().map(|b| f64::from(*b)).collect(),
    }
}

/// Device memory with a shape.
#[derive(Clone)]
pub struct Array {
    pub at: *mut c_void,
    pub dims: Vec<i64>,
    pub dtype: i32,
}

// SAFETY: an address of the device, which the host never follows.
unsafe impl Sync for Array {}

impl Array {
    pub fn new(dims: &[i64], dtype: i32) -> Array {
        let n = dims.iter().product::<i64>().max(1) as usize;
        let width = encode(&[0.0], dtype).len();
        Array { at: alloc(n * width), dims: dims.to_vec(), dtype }
    }
    pub fn of(dims: &[i64], dtype: i32, values: &[f64]) -> Array {
        let a = Array::new(dims, dtype);
        let bytes = encode(values, dtype);
        ok(call!(rt.aclrtMemcpy(a.at, bytes.len(), bytes.as_ptr().cast(), bytes.len(), 1)));
        a
    }
    /// An operand without elements, for what is only reserved.
    pub fn none() -> Array {
        Array { at: null_mut(), dims: vec![0], dtype: F32 }
    }
    /// Values as the element type holds them.
    pub fn rounded(values: &[f64], dtype: i32) -> Vec<f64> {
        decode(&encode(values, dtype), dtype)
    }
    pub fn bytes(&self) -> usize {
        self.dims.iter().product::<i64>() as usize * encode(&[0.0], self.dtype).len()
    }
    /// Values after the stream is done.
    pub fn read(&self, s: aclrtStream) -> Vec<f64> {
        sync(s);
        self.read_now()
    }
    pub fn read_now(&self) -> Vec<f64> {
        let mut bytes = vec![0u8; self.bytes()];
        ok(call!(rt.aclrtMemcpy(bytes.as_mut_ptr().cast(), bytes.len(), self.at, bytes.len(), 2)));
        decode(&bytes, self.dtype)
    }
    pub fn tensor(&self) -> *mut aclTensor {
        let mut strides = vec![1i64; self.dims.len()];
        for i in (0..self.dims.len().saturating_sub(1)).rev() {
            strides[i] = strides[i + 1] * self.dims[i + 1];
        }
        self.view(&self.dims, &strides)
    }
    pub fn view(&self, dims: &[i64], strides: &[i64]) -> *mut aclTensor {
        let n = [self.dims.iter().product::<i64>()];
        let made = call!(meta.aclCreateTensor:
            dims.as_ptr(), dims.len() as u64, self.dtype, strides.as_ptr(), 0, 2, n.as_ptr(), 1, self.at);
        assert!(!made.is_null());
        made.cast()
    }
}

pub fn ints(values: &[i64]) -> *mut aclIntArray {
    call!(meta.aclCreateIntArray(values.as_ptr(), values.len() as u64)).cast()
}

pub fn list(tensors: &[*mut aclTensor]) -> *mut aclTensorList {
    let tensors: Vec<*const aclTensor> = tensors.iter().map(|t| t.cast_const()).collect();
    call!(meta.aclCreateTensorList(tensors.as_ptr().cast_mut(), tensors.len() as u64)).cast()
}

/// A call of training's attention: what the tests vary of it. Without dropout, bias and prefix, with a window of 65536 tokens.
#[derive(Clone, Copy)]
pub struct Attention<'a> {
    /// Queries, keys, values.
    pub qkv: [*mut aclTensor; 3],
    pub mask: *mut aclTensor,
    pub layout: &'a CStr,
    pub heads: i64,
    pub scale: f64,
    pub mode: i64,
    /// Largest scores and sums of exponentials.
    pub statistics: [*mut aclTensor; 2],
    pub out: *mut aclTensor,
}

impl Attention<'_> {
    pub fn forward(&self, s: aclrtStream) -> i32 {
        let ([q, k, v], [max, sum], none) = (self.qkv, self.statistics, null_mut());
        let layout = self.layout.as_ptr().cast_mut();
        let (mask, heads, scale, mode) = (self.mask, self.heads, self.scale, self.mode);
        let empty = Array::none().tensor();
        op!(s, attention.aclnnFlashAttentionScore:
            q, k, v, none, none, none, mask, null_mut(), scale, 1.0, 65536, 65536, heads, layout, 0, mode,
            max, sum, empty, self.out)
    }

    /// Of sequences one after the other, which end at `ends`.
    pub fn of_rows(&self, s: aclrtStream, ends: &[i64]) -> i32 {
        let ([q, k, v], [max, sum], none) = (self.qkv, self.statistics, null_mut());
        let layout = self.layout.as_ptr().cast_mut();
        let (mask, heads, scale, mode) = (self.mask, self.heads, self.scale, self.mode);
        let empty = Array::none().tensor();
        op!(s, attention.aclnnFlashAttentionVarLenScore:
            q, k, v, none, none, none, mask, null_mut(), ints(ends), ints(ends), scale, 1.0, 65536, 65536,
            heads, layout, 0, mode, max, sum, empty, self.out)
    }

    /// From the gradient of the output to those of queries, keys and values.
    pub fn gradient(&self, s: aclrtStream, dy: *mut aclTensor, [dq, dk, dv]: [*mut aclTensor; 3]) -> i32 {
        let ([q, k, v], [max, sum], none) = (self.qkv, self.statistics, null_mut());
        let layout = self.layout.as_ptr().cast_mut();
        let (mask, heads, scale, mode) = (self.mask, self.heads, self.scale, self.mode);
        let empty = Array::none().tensor();
        op!(s, attention.aclnnFlashAttentionScoreGrad:
            q, k, v, dy, none, none, none, mask, max, sum, none, self.out, null_mut(), scale, 1.0, 65536,
            65536, heads, layout, 0, mode, dq, dk, dv, empty)
    }
}

/// A product of groups of rows with a matrix each; `how` is `splitItem`, `groupType`, `groupListType` and `actType`.
pub fn grouped_matmul(
    s: aclrtStream,
    [x, weight, out]: [*mut aclTensorList; 3],
    groups: *mut aclTensor,
    how: [i64; 4],
) -> i32 {
    let ([split, kind, counts, act], no) = (how, null_mut());
    op!(s, experts.aclnnGroupedMatmulV4:
        x, weight, no, no, no, no, no, no, groups, no, no, no, split, kind, counts, act, out, no, no)
}

/// Numbers that look random and are the same in every run.
pub fn noise(n: usize, seed: u64) -> Vec<f64> {
    let mut z = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..n)
        .map(|_| {
            z ^= z << 13;
            z ^= z >> 7;
            z ^= z << 17;
            (z >> 11) as f64 / (1u64 << 53) as f64 * 2.0 - 1.0
        })
        .collect()
}

/// Equal within a few units of the type's last place, the worst element named.
#[track_caller]
pub fn near(what: &str, got: &[f64], want: &[f64], dtype: i32) {
    let unit = match dtype {
        F32 => 2e-5,
        F16 => 4e-3,
        BF16 => 3e-2,
        _ => 0.0,
    };
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        assert!(
            (g - w).abs() <= unit * (1.0 + w.abs()),
            "{what}: element {i} is {g}, the formula gives {w} (type {dtype})"
        );
    }
}

//! Calling an operator: tensor descriptions, the plan of the first phase, and its single run.

use crate::comm::Comm;
use crate::memory::Buffer;
use crate::toolkit::acl;
use crate::{Error, Result, Stream};
use hccl_sys::SecondPhase;
use hccl_sys::types::{aclBoolArray, aclIntArray, aclOpExecutor, aclScalar, aclTensor, aclTensorList};
use ms_core::DType;
use std::ffi::{CStr, c_char};
use std::fmt::Write as _;
use std::ptr::null_mut;

/// `aclDataType` of an element type.
pub const fn acl_type(dtype: DType) -> i32 {
    match dtype {
        DType::F32 => 0,
        DType::F16 => 1,
        DType::I8 => 2,
        DType::I32 => 3,
        DType::U8 => 4,
        DType::I16 => 6,
        DType::I64 => 9,
        DType::F64 => 11,
        DType::Bool => 12,
        DType::Bf16 => 27,
    }
}

/// Elements of a buffer seen as a tensor; dims, strides and offset in elements.
#[derive(Clone, Debug)]
pub struct View<'a> {
    buffer: &'a Buffer,
    dtype: DType,
    dims: Vec<i64>,
    strides: Vec<i64>,
    offset: i64,
}

impl<'a> View<'a> {
    /// The first elements of `buffer` under a shape, contiguous.
    ///
    /// # Errors
    /// [`Error::Range`] if the buffer is too small.
    pub fn new(buffer: &'a Buffer, dtype: DType, shape: &[usize]) -> Result<View<'a>> {
        let mut strides = vec![1i64; shape.len()];
        for i in (0..shape.len().saturating_sub(1)).rev() {
            let next = i64::try_from(shape[i + 1]).ok().and_then(|n| n.checked_mul(strides[i + 1]));
            strides[i] = next.ok_or_else(|| too_large(buffer))?;
        }
        View::strided(buffer, dtype, shape, &strides, 0)
    }

    /// Elements at `offset + Σ index · stride`.
    ///
    /// # Errors
    /// [`Error::Range`] if one of them lies outside the buffer.
    pub fn strided(
        buffer: &'a Buffer,
        dtype: DType,
        shape: &[usize],
        strides: &[i64],
        offset: i64,
    ) -> Result<View<'a>> {
        let dims = shape.iter().map(|n| i64::try_from(*n)).collect::<std::result::Result<Vec<_>, _>>();
        let dims = dims.map_err(|_| too_large(buffer))?;
        // The lowest and the highest element; no product or sum of 64-bit numbers gets past 128 bits unnoticed.
        let (mut low, mut high) = (i128::from(offset), i128::from(offset));
        for (n, stride) in dims.iter().zip(strides) {
            let far = i128::from((n - 1).max(0)).saturating_mul(i128::from(*stride));
            low = low.saturating_add(far.min(0));
            high = high.saturating_add(far.max(0));
        }
        let need = high.saturating_add(1).saturating_mul(dtype.size() as i128);
        let empty = shape.contains(&0);
        if shape.len() != strides.len() || (!empty && (low < 0 || need > buffer.len() as i128)) {
            let need = usize::try_from(need.max(0)).unwrap_or(usize::MAX);
            return Err(Error::Range { what: "view", need, have: buffer.len() });
        }
        Ok(View { buffer, dtype, dims, strides: strides.to_vec(), offset })
    }

    /// The same elements with the last two dimensions exchanged: how a transposed operand of a product is described.
    ///
    /// # Panics
    /// If there are fewer than two dimensions.
    #[must_use]
    pub fn transposed(mut self) -> View<'a> {
        let n = self.dims.len();
        assert!(n >= 2, "a transposed view of {n} dimensions");
        self.dims.swap(n - 2, n - 1);
        self.strides.swap(n - 2, n - 1);
        self
    }
}

/// What is said of a shape that no buffer holds.
fn too_large(buffer: &Buffer) -> Error {
    Error::Range { what: "view", need: usize::MAX, have: buffer.len() }
}

/// A number with the element type that it is handed over in.
#[derive(Clone, Copy, Debug)]
pub enum Number {
    /// A 32-bit float.
    F32(f32),
    /// A 64-bit integer.
    I64(i64),
}

/// An operator's operands as the library wants them; everything made for a call ends with it.
#[derive(Debug)]
pub struct Call<'a> {
    stream: &'a Stream,
    name: &'static str,
    handles: Vec<Handle>,
    touched: Vec<&'a Buffer>,
    operands: String,
    /// The operand that is being made, where it has a name.
    naming: &'static str,
    /// Of attention: the mode that a mask belongs to, and whether one was given.
    sparse_mode: Option<i64>,
    masked: Option<bool>,
}

#[derive(Debug)]
enum Handle {
    Tensor(*mut aclTensor),
    Scalar(*mut aclScalar),
    Ints(*mut aclIntArray),
    Bools(*mut aclBoolArray),
    /// Owns its elements.
    List(*mut aclTensorList),
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        let toolkit = &self.stream.0.context.toolkit;
        for handle in self.handles.drain(..) {
            // Handles of this call, each destroyed once; there is nothing to do about a refusal.
            let _ = match handle {
                Handle::Tensor(h) => acl!(toolkit, meta.aclDestroyTensor(h)),
                Handle::Scalar(h) => acl!(toolkit, meta.aclDestroyScalar(h)),
                Handle::Ints(h) => acl!(toolkit, meta.aclDestroyIntArray(h)),
                Handle::Bools(h) => acl!(toolkit, meta.aclDestroyBoolArray(h)),
                Handle::List(h) => acl!(toolkit, meta.aclDestroyTensorList(h)),
            };
        }
    }
}

/// Calls a function of the metadata table that makes an object; null is an error.
macro_rules! make {
    ($call:expr, $name:ident($($arg:expr),* $(,)?)) => {{
        let toolkit = &$call.stream.0.context.toolkit;
        match toolkit.cann().meta.$name {
            Some(f) => {
                // SAFETY: the published types; arrays live during the call, which copies them.
                let made = unsafe { f($($arg),*) };
                if made.is_null() {
                    // 561101: what the operator library says when it cannot make an object.
                    Err(toolkit.check(stringify!($name), 561_101, || $call.operands.clone()).err().unwrap_or(
                        Error::Missing { symbol: stringify!($name) },
                    ))
                } else {
                    Ok(made.cast())
                }
            }
            None => Err(Error::Missing { symbol: stringify!($name) }),
        }
    }};
}

impl<'a> Call<'a> {
    /// An empty call of operator `name` on a stream.
    pub fn new(stream: &'a Stream, name: &'static str) -> Call<'a> {
        Call {
            stream,
            name,
            handles: Vec::new(),
            touched: Vec::new(),
            operands: String::new(),
            naming: "",
            sparse_mode: None,
            masked: None,
        }
    }

    /// Makes what the call needs of a named operand; errors name it with its shape. [`Call::plan`] checks what it is told here
    /// of attention's `sparse_mode` and `atten_mask`.
    ///
    /// # Errors
    /// If the library cannot make the object.
    pub fn operand<A: Argument<'a>>(&mut self, name: &'static str, operand: A) -> Result<A::Raw> {
        match name {
            "sparse_mode" => self.sparse_mode = operand.number(),
            "atten_mask" => self.masked = Some(operand.is_there()),
            _ => {}
        }
        self.naming = name;
        let made = operand.pass(self);
        self.naming = "";
        made
    }

    /// Modes of attention that mean a mask: training's operators pass over them without one and attend to everything.
    fn check_mask(&self) -> Result<()> {
        match (self.sparse_mode, self.masked) {
            (Some(mode @ 1..=8), Some(false)) => Err(Error::Mask { symbol: self.name, mode }),
            _ => Ok(()),
        }
    }

    fn describe(&mut self, text: std::fmt::Arguments<'_>) {
        if !self.operands.is_empty() {
            self.operands.push_str(", ");
        }
        if !self.naming.is_empty() {
            self.operands.push_str(self.naming);
            self.operands.push(' ');
        }
        // Writing to a string cannot fail.
        let _ = self.operands.write_fmt(text);
    }

    fn raw_tensor(&mut self, view: &View<'a>) -> Result<*mut aclTensor> {
        self.describe(format_args!("{}{:?}", view.dtype, view.dims));
        self.touched.push(view.buffer);
        let storage = [(view.buffer.len() / view.dtype.size()) as i64];
        make!(
            self,
            aclCreateTensor(
                view.dims.as_ptr(),
                view.dims.len() as u64,
                acl_type(view.dtype),
                view.strides.as_ptr(),
                view.offset,
                hccl_sys::consts::ACL_FORMAT_ND,
                storage.as_ptr(),
                1,
                view.buffer.address(),
            )
        )
    }

    /// The first phase: checks and plans. `first` is called with the operator's first phase and where to put the size of
    /// the workspace and the executor.
    ///
    /// # Errors
    /// [`Error::Missing`] if no library has both phases; [`Error::Call`] with the shapes if it refuses; [`Error::Mask`]
    /// before it could pass over a mode of attention without its mask.
    pub fn plan<F>(
        self,
        functions: Option<(F, SecondPhase)>,
        first: impl FnOnce(F, *mut u64, *mut *mut aclOpExecutor) -> i32,
    ) -> Result<Plan<'a>> {
        let Some((f, second)) = functions else { return Err(Error::Missing { symbol: self.name }) };
        self.check_mask()?;
        let (mut workspace_bytes, mut executor) = (0, null_mut());
        let code = first(f, &raw mut workspace_bytes, &raw mut executor);
        self.stream.0.context.toolkit.check(self.name, code, || self.operands.clone())?;
        Ok(Plan { call: self, second, executor, workspace_bytes })
    }
}

/// A planned operator, which can run once.
#[derive(Debug)]
#[must_use = "a plan does nothing before it runs"]
pub struct Plan<'a> {
    call: Call<'a>,
    second: SecondPhase,
    executor: *mut aclOpExecutor,
    /// Bytes of workspace that it needs.
    pub workspace_bytes: u64,
}

impl Plan<'_> {
    /// The second phase: enters the operator into the stream, with workspace from the stream's arena. Every buffer is
    /// ordered after its last use on another stream.
    ///
    /// # Errors
    /// [`Error::Call`] with the shapes; what the device finds comes at a later synchronisation.
    pub fn run(mut self) -> Result<()> {
        let stream = &self.call.stream.0;
        let context = &stream.context;
        let mut arena = stream.workspace.borrow_mut();
        let bytes = self.workspace_bytes as usize;
        if arena.as_ref().is_none_or(|b| b.bytes < bytes) && bytes > 0 {
            if let Some(old) = arena.take() {
                context.put(old, Some(stream.clone()));
            }
            *arena = Some(context.take(bytes, stream)?);
        }
        for buffer in &self.call.touched {
            buffer.enter(self.call.stream)?;
        }
        let workspace = arena.as_ref().filter(|_| bytes > 0).map_or(null_mut(), |b| b.at);
        // Consumed even if the run fails.
        let executor = std::mem::replace(&mut self.executor, null_mut());
        // SAFETY: the executor of this operator's first phase, not run before; device memory of the requested size, or null
        // for none; a live stream of this thread's context.
        let code = unsafe { (self.second)(workspace, self.workspace_bytes, executor, stream.raw) };
        context.toolkit.check(self.call.name, code, || self.call.operands.clone())
    }
}

impl Drop for Plan<'_> {
    fn drop(&mut self) {
        if self.executor.is_null() {
            return;
        }
        // A plan that does not run would leak; a repeatable one may be destroyed.
        let toolkit = &self.call.stream.0.context.toolkit;
        if acl!(toolkit, meta.aclSetAclOpExecutorRepeatable(self.executor)).is_ok() {
            // There is nothing to do about a refusal.
            let _ = acl!(toolkit, meta.aclDestroyAclOpExecutor(self.executor));
        }
    }
}

/// What can be handed to an operator, and how the C interface wants it.
pub trait Argument<'a> {
    /// The type of the C parameter.
    type Raw;
    /// Makes what the call needs and remembers it there.
    ///
    /// # Errors
    /// If the library cannot make the object.
    fn pass(self, call: &mut Call<'a>) -> Result<Self::Raw>;

    /// Its value, if it is an integer.
    fn number(&self) -> Option<i64> {
        None
    }

    /// Whether it is not left out.
    fn is_there(&self) -> bool {
        true
    }
}

macro_rules! as_they_are {
    ($($t:ty)*) => {$(
        impl<'a> Argument<'a> for $t {
            type Raw = $t;
            fn pass(self, _call: &mut Call<'a>) -> Result<$t> {
                Ok(self)
            }
        }
    )*};
}
as_they_are! { bool i8 i32 u64 f32 f64 }

impl<'a> Argument<'a> for i64 {
    type Raw = i64;
    fn pass(self, _call: &mut Call<'a>) -> Result<i64> {
        Ok(self)
    }
    fn number(&self) -> Option<i64> {
        Some(*self)
    }
}

impl<'a> Argument<'a> for DType {
    type Raw = i32;
    fn pass(self, _call: &mut Call<'a>) -> Result<i32> {
        Ok(acl_type(self))
    }
}

impl<'a> Argument<'a> for View<'a> {
    type Raw = *mut aclTensor;
    fn pass(self, call: &mut Call<'a>) -> Result<*mut aclTensor> {
        let made = call.raw_tensor(&self)?;
        call.handles.push(Handle::Tensor(made));
        Ok(made)
    }
}

impl<'a> Argument<'a> for Option<View<'a>> {
    type Raw = *mut aclTensor;
    fn pass(self, call: &mut Call<'a>) -> Result<*mut aclTensor> {
        self.map_or(Ok(null_mut()), |view| view.pass(call))
    }
    fn is_there(&self) -> bool {
        self.is_some()
    }
}

impl<'a> Argument<'a> for Vec<View<'a>> {
    type Raw = *mut aclTensorList;
    fn pass(self, call: &mut Call<'a>) -> Result<*mut aclTensorList> {
        let before = call.handles.len();
        for view in &self {
            let made = call.raw_tensor(view)?;
            call.handles.push(Handle::Tensor(made));
        }
        let mut raw: Vec<*const aclTensor> = call.handles[before..]
            .iter()
            .filter_map(|h| match h {
                Handle::Tensor(t) => Some(t.cast_const()),
                _ => None,
            })
            .collect();
        let list = make!(call, aclCreateTensorList(raw.as_mut_ptr(), raw.len() as u64))?;
        // The list destroys its elements.
        call.handles.truncate(before);
        call.handles.push(Handle::List(list));
        Ok(list)
    }
}

impl<'a> Argument<'a> for Option<Vec<View<'a>>> {
    type Raw = *mut aclTensorList;
    fn pass(self, call: &mut Call<'a>) -> Result<*mut aclTensorList> {
        self.map_or(Ok(null_mut()), |views| views.pass(call))
    }
}

impl<'a> Argument<'a> for Number {
    type Raw = *mut aclScalar;
    fn pass(self, call: &mut Call<'a>) -> Result<*mut aclScalar> {
        call.describe(format_args!("{self:?}"));
        let made = match self {
            Number::F32(mut v) => make!(call, aclCreateScalar((&raw mut v).cast(), acl_type(DType::F32))),
            Number::I64(mut v) => make!(call, aclCreateScalar((&raw mut v).cast(), acl_type(DType::I64))),
        }?;
        call.handles.push(Handle::Scalar(made));
        Ok(made)
    }
}

impl<'a> Argument<'a> for &[i64] {
    type Raw = *mut aclIntArray;
    fn pass(self, call: &mut Call<'a>) -> Result<*mut aclIntArray> {
        call.describe(format_args!("{self:?}"));
        let made = make!(call, aclCreateIntArray(self.as_ptr(), self.len() as u64))?;
        call.handles.push(Handle::Ints(made));
        Ok(made)
    }
}

impl<'a> Argument<'a> for Option<&[i64]> {
    type Raw = *mut aclIntArray;
    fn pass(self, call: &mut Call<'a>) -> Result<*mut aclIntArray> {
        self.map_or(Ok(null_mut()), |values| values.pass(call))
    }
}

impl<'a> Argument<'a> for &[bool] {
    type Raw = *mut aclBoolArray;
    fn pass(self, call: &mut Call<'a>) -> Result<*mut aclBoolArray> {
        let made = make!(call, aclCreateBoolArray(self.as_ptr(), self.len() as u64))?;
        call.handles.push(Handle::Bools(made));
        Ok(made)
    }
}

impl<'a> Argument<'a> for &'static CStr {
    type Raw = *mut c_char;
    fn pass(self, _call: &mut Call<'a>) -> Result<*mut c_char> {
        // Never written: the interface leaves the `const` out.
        Ok(self.as_ptr().cast_mut())
    }
}

impl<'a> Argument<'a> for &'a Comm {
    type Raw = *mut c_char;
    fn pass(self, _call: &mut Call<'a>) -> Result<*mut c_char> {
        // Never written, and alive until the call has run.
        Ok(self.name().as_ptr().cast_mut())
    }
}

//! Tensors, scalars, arrays, lists, executors.

use super::{answer, give, take};
use crate::handles::{self, Handled};
use crate::nn::tensor::{
    BoolArray, Dtype, FloatArray, IntArray, Scalar, ScalarList, Tensor, TensorList, Values, View, contiguous,
};
use crate::nn::{self};
use crate::report::{self, fail};
use std::sync::{Mutex, PoisonError};

fn dims(at: usize, n: u64) -> Vec<i64> {
    (0..n as usize).map(|i| take::<i64>(at, i)).collect()
}

/// A tensor as the interface describes it.
struct Described {
    dims: (usize, u64),
    dtype: i32,
    strides: usize,
    offset: i64,
    format: i32,
    storage: (usize, u64),
    data: usize,
}

impl Described {
    fn view(self) -> Option<View> {
        if [self.dims, self.storage].iter().any(|(at, rank)| *at == 0 && *rank > 0) {
            fail(161_001, "aclCreateTensor: dimensions are null");
            return None;
        }
        let shape = dims(self.dims.0, self.dims.1);
        let strides = if self.strides == 0 { contiguous(&shape) } else { dims(self.strides, self.dims.1) };
        if shape.iter().any(|d| *d < 0) {
            fail(161_002, &format!("aclCreateTensor: negative dimension in {shape:?}"));
            return None;
        }
        Some(View {
            dims: shape,
            strides,
            offset: self.offset,
            dtype: Dtype::from_acl(self.dtype),
            format: self.format,
            storage: dims(self.storage.0, self.storage.1),
            base: self.data,
        })
    }
}

pub(crate) fn aclCreateTensor(
    view_dims: usize,
    rank: u64,
    dtype: i32,
    strides: usize,
    offset: i64,
    format: i32,
    storage: usize,
    storage_rank: u64,
    data: usize,
) -> usize {
    let (dims, storage) = ((view_dims, rank), (storage, storage_rank));
    let described = Described { dims, dtype, strides, offset, format, storage, data };
    described.view().map_or(0, |v| handles::make(Tensor(Mutex::new(v)), "aclCreateTensor"))
}

pub(crate) fn aclInitTensor(
    tensor: usize,
    view_dims: usize,
    rank: u64,
    dtype: i32,
    strides: usize,
    offset: i64,
    format: i32,
    storage: usize,
    storage_rank: u64,
    data: usize,
) -> i32 {
    answer(|| {
        let held = handles::get::<Tensor>(tensor, "aclInitTensor", &report::NN_HANDLE, 161_002)?;
        let (dims, storage) = ((view_dims, rank), (storage, storage_rank));
        let described = Described { dims, dtype, strides, offset, format, storage, data };
        let v = described.view().ok_or(161_002)?;
        *held.0.lock().unwrap_or_else(PoisonError::into_inner) = v;
        Ok(())
    })
}

fn destroy<T: Handled>(handle: usize, call: &str) -> i32 {
    if handle == 0 {
        return 0;
    }
    answer(|| handles::destroy::<T>(handle, call, &report::NN_HANDLE, 161_002).map(drop))
}

pub(crate) fn aclDestroyTensor(handle: usize) -> i32 {
    destroy::<Tensor>(handle, "aclDestroyTensor")
}

pub(crate) fn aclDestroyScalar(handle: usize) -> i32 {
    destroy::<Scalar>(handle, "aclDestroyScalar")
}

pub(crate) fn aclDestroyIntArray(handle: usize) -> i32 {
    destroy::<IntArray>(handle, "aclDestroyIntArray")
}

pub(crate) fn aclDestroyFloatArray(handle: usize) -> i32 {
    destroy::<FloatArray>(handle, "aclDestroyFloatArray")
}

pub(crate) fn aclDestroyBoolArray(handle: usize) -> i32 {
    destroy::<BoolArray>(handle, "aclDestroyBoolArray")
}

/// Destroys a list and its elements.
fn destroy_list<L: Handled, E: Handled>(handle: usize, call: &str, elements: fn(&L) -> &[usize]) -> i32 {
    if handle == 0 {
        return 0;
    }
    answer(|| {
        let list = handles::destroy::<L>(handle, call, &report::NN_HANDLE, 161_002)?;
        let one = |h: &usize| handles::destroy::<E>(*h, call, &report::NN_HANDLE, 161_002).map(drop);
        elements(&list).iter().try_for_each(one)
    })
}

pub(crate) fn aclDestroyTensorList(handle: usize) -> i32 {
    destroy_list::<TensorList, Tensor>(handle, "aclDestroyTensorList", |list| &list.0)
}

pub(crate) fn aclDestroyScalarList(handle: usize) -> i32 {
    destroy_list::<ScalarList, Scalar>(handle, "aclDestroyScalarList", |list| &list.0)
}

pub(crate) fn aclCreateScalar(value: usize, dtype: i32) -> usize {
    if value == 0 {
        fail(161_001, "aclCreateScalar: the value is null");
        return 0;
    }
    let dtype = Dtype::from_acl(dtype);
    let value = match dtype {
        Dtype::F32 => Values::F(vec![f64::from(take::<f32>(value, 0))]),
        Dtype::F64 => Values::F(vec![take::<f64>(value, 0)]),
        Dtype::F16 => Values::F(vec![f64::from(half::f16::from_bits(take::<u16>(value, 0)))]),
        Dtype::Bf16 => Values::F(vec![f64::from(half::bf16::from_bits(take::<u16>(value, 0)))]),
        Dtype::I8 => Values::I(vec![i64::from(take::<i8>(value, 0))]),
        Dtype::U8 | Dtype::Other(_) => Values::I(vec![i64::from(take::<u8>(value, 0))]),
        Dtype::Bool => Values::I(vec![i64::from(take::<u8>(value, 0) != 0)]),
        Dtype::I16 => Values::I(vec![i64::from(take::<i16>(value, 0))]),
        Dtype::U16 => Values::I(vec![i64::from(take::<u16>(value, 0))]),
        Dtype::I32 => Values::I(vec![i64::from(take::<i32>(value, 0))]),
        Dtype::U32 => Values::I(vec![i64::from(take::<u32>(value, 0))]),
        Dtype::I64 | Dtype::U64 => Values::I(vec![take::<i64>(value, 0)]),
        Dtype::C32 => {
            let v = take::<[u16; 2]>(value, 0).map(|b| f64::from(half::f16::from_bits(b)));
            Values::C(vec![(v[0], v[1])])
        }
        Dtype::C64 => {
            let v = take::<[f32; 2]>(value, 0);
            Values::C(vec![(f64::from(v[0]), f64::from(v[1]))])
        }
        Dtype::C128 => {
            let v = take::<[f64; 2]>(value, 0);
            Values::C(vec![(v[0], v[1])])
        }
    };
    handles::make(Scalar { dtype, value }, "aclCreateScalar")
}

pub(crate) fn aclCreateIntArray(value: usize, size: u64) -> usize {
    handles::make(IntArray(dims(value, size)), "aclCreateIntArray")
}

pub(crate) fn aclCreateFloatArray(value: usize, size: u64) -> usize {
    handles::make(FloatArray((0..size as usize).map(|i| take(value, i)).collect()), "aclCreateFloatArray")
}

pub(crate) fn aclCreateBoolArray(value: usize, size: u64) -> usize {
    let bools = (0..size as usize).map(|i| take::<u8>(value, i) != 0).collect();
    handles::make(BoolArray(bools), "aclCreateBoolArray")
}

pub(crate) fn aclCreateTensorList(value: usize, size: u64) -> usize {
    handles::make(TensorList((0..size as usize).map(|i| take(value, i)).collect()), "aclCreateTensorList")
}

pub(crate) fn aclCreateScalarList(value: usize, size: u64) -> usize {
    handles::make(ScalarList((0..size as usize).map(|i| take(value, i)).collect()), "aclCreateScalarList")
}

fn held(tensor: usize, call: &str) -> Result<View, i32> {
    let found = handles::get::<Tensor>(tensor, call, &report::NN_HANDLE, 161_002)?;
    let view = found.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
    Ok(view)
}

pub(crate) fn aclSetRawTensorAddr(tensor: usize, address: usize) -> i32 {
    answer(|| {
        let found = handles::get::<Tensor>(tensor, "aclSetRawTensorAddr", &report::NN_HANDLE, 161_002)?;
        found.0.lock().unwrap_or_else(PoisonError::into_inner).base = address;
        Ok(())
    })
}

pub(crate) fn aclGetRawTensorAddr(tensor: usize, address: usize) -> i32 {
    answer(|| give(address, held(tensor, "aclGetRawTensorAddr")?.base, "aclGetRawTensorAddr"))
}

/// An array as C++'s `new int64_t[n]` gives it; the caller deletes it.
fn give_array(values: &[i64], at: usize, count: usize, call: &str) -> Result<(), i32> {
    // SAFETY: a fresh block of the right size, written in full.
    let block = unsafe {
        let block = libc::malloc(8 * values.len().max(1)).cast::<i64>();
        std::ptr::copy_nonoverlapping(values.as_ptr(), block, values.len());
        block
    };
    give(at, block as usize, call)?;
    give(count, values.len() as u64, call)
}

pub(crate) fn aclGetViewShape(tensor: usize, at: usize, count: usize) -> i32 {
    answer(|| give_array(&held(tensor, "aclGetViewShape")?.dims, at, count, "aclGetViewShape"))
}

pub(crate) fn aclGetStorageShape(tensor: usize, at: usize, count: usize) -> i32 {
    answer(|| give_array(&held(tensor, "aclGetStorageShape")?.storage, at, count, "aclGetStorageShape"))
}

pub(crate) fn aclGetViewStrides(tensor: usize, at: usize, count: usize) -> i32 {
    answer(|| give_array(&held(tensor, "aclGetViewStrides")?.strides, at, count, "aclGetViewStrides"))
}

pub(crate) fn aclGetViewOffset(tensor: usize, at: usize) -> i32 {
    answer(|| give(at, held(tensor, "aclGetViewOffset")?.offset, "aclGetViewOffset"))
}

pub(crate) fn aclGetFormat(tensor: usize, at: usize) -> i32 {
    answer(|| give(at, held(tensor, "aclGetFormat")?.format, "aclGetFormat"))
}

pub(crate) fn aclGetDataType(tensor: usize, at: usize) -> i32 {
    answer(|| give(at, held(tensor, "aclGetDataType")?.dtype.code(), "aclGetDataType"))
}

/// Writes how many elements a list or array has.
fn give_len<T: Handled + 'static>(handle: usize, size: usize, call: &str, len: fn(&T) -> usize) -> i32 {
    answer(|| {
        let found = handles::get::<T>(handle, call, &report::NN_HANDLE, 161_002)?;
        give(size, len(&found) as u64, call)
    })
}

pub(crate) fn aclGetTensorListSize(handle: usize, size: usize) -> i32 {
    give_len::<TensorList>(handle, size, "aclGetTensorListSize", |list| list.0.len())
}

pub(crate) fn aclGetScalarListSize(handle: usize, size: usize) -> i32 {
    give_len::<ScalarList>(handle, size, "aclGetScalarListSize", |list| list.0.len())
}

pub(crate) fn aclGetIntArraySize(handle: usize, size: usize) -> i32 {
    give_len::<IntArray>(handle, size, "aclGetIntArraySize", |list| list.0.len())
}

pub(crate) fn aclGetBoolArraySize(handle: usize, size: usize) -> i32 {
    give_len::<BoolArray>(handle, size, "aclGetBoolArraySize", |list| list.0.len())
}

pub(crate) fn aclGetFloatArraySize(handle: usize, size: usize) -> i32 {
    give_len::<FloatArray>(handle, size, "aclGetFloatArraySize", |list| list.0.len())
}

pub(crate) fn aclSetAclOpExecutorRepeatable(executor: usize) -> i32 {
    answer(|| nn::set_repeatable(executor))
}

pub(crate) fn aclDestroyAclOpExecutor(executor: usize) -> i32 {
    destroy::<nn::Executor>(executor, "aclDestroyAclOpExecutor")
}

pub(crate) fn aclSetInputTensorAddr(executor: usize, index: u64, _tensor: usize, address: usize) -> i32 {
    answer(|| nn::set_address(executor, Some(false), index as usize, address, "aclSetInputTensorAddr"))
}

pub(crate) fn aclSetOutputTensorAddr(executor: usize, index: u64, _tensor: usize, address: usize) -> i32 {
    answer(|| nn::set_address(executor, Some(true), index as usize, address, "aclSetOutputTensorAddr"))
}

pub(crate) fn aclSetTensorAddr(executor: usize, index: u64, _tensor: usize, address: usize) -> i32 {
    answer(|| nn::set_address(executor, None, index as usize, address, "aclSetTensorAddr"))
}

fn set_list(executor: usize, relative: u64, tensors: usize, address: usize, call: &str) -> i32 {
    answer(|| {
        let list = handles::get::<TensorList>(tensors, call, &report::NN_HANDLE, 161_002)?;
        let Some(tensor) = list.0.get(relative as usize) else {
            return Err(fail(161_002, &format!("{call}: the list has no tensor {relative}")));
        };
        nn::set_address_of(executor, *tensor, address, call)
    })
}

pub(crate) fn aclSetDynamicInputTensorAddr(
    executor: usize,
    _index: u64,
    relative: u64,
    tensors: usize,
    address: usize,
) -> i32 {
    set_list(executor, relative, tensors, address, "aclSetDynamicInputTensorAddr")
}

pub(crate) fn aclSetDynamicOutputTensorAddr(
    executor: usize,
    _index: u64,
    relative: u64,
    tensors: usize,
    address: usize,
) -> i32 {
    set_list(executor, relative, tensors, address, "aclSetDynamicOutputTensorAddr")
}

pub(crate) fn aclSetDynamicTensorAddr(
    executor: usize,
    _index: u64,
    relative: u64,
    tensors: usize,
    address: usize,
) -> i32 {
    set_list(executor, relative, tensors, address, "aclSetDynamicTensorAddr")
}

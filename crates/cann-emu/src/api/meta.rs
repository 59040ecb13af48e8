//! Tensors, scalars, arrays, lists, executors.

use super::{give, take};
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

calls! {
    aclCreateTensor(
        view_dims: usize, rank: u64, dtype: i32, strides: usize, offset: i64, format: i32, storage: usize,
        storage_rank: u64, data: usize
    ) -> usize = {
        let (dims, storage) = ((view_dims, rank), (storage, storage_rank));
        let described = Described { dims, dtype, strides, offset, format, storage, data };
        described.view().map_or(0, |v| handles::make(Tensor(Mutex::new(v)), CALL))
    };

    aclInitTensor(
        tensor: usize, view_dims: usize, rank: u64, dtype: i32, strides: usize, offset: i64, format: i32,
        storage: usize, storage_rank: u64, data: usize
    ) = {
        let held = handles::get::<Tensor>(tensor, CALL, &report::NN_HANDLE, 161_002)?;
        let (dims, storage) = ((view_dims, rank), (storage, storage_rank));
        let described = Described { dims, dtype, strides, offset, format, storage, data };
        let v = described.view().ok_or(161_002)?;
        *held.0.lock().unwrap_or_else(PoisonError::into_inner) = v;
        Ok(())
    };
}

fn destroy<T: Handled>(handle: usize, call: &str) -> Result<(), i32> {
    if handle == 0 {
        return Ok(());
    }
    handles::destroy::<T>(handle, call, &report::NN_HANDLE, 161_002).map(drop)
}

calls! {
    aclDestroyTensor(handle: usize) = destroy::<Tensor>(handle, CALL);
    aclDestroyScalar(handle: usize) = destroy::<Scalar>(handle, CALL);
    aclDestroyIntArray(handle: usize) = destroy::<IntArray>(handle, CALL);
    aclDestroyFloatArray(handle: usize) = destroy::<FloatArray>(handle, CALL);
    aclDestroyBoolArray(handle: usize) = destroy::<BoolArray>(handle, CALL);
}

/// Destroys a list and its elements.
fn destroy_list<L: Handled, E: Handled>(
    handle: usize,
    call: &str,
    elements: fn(&L) -> &[usize],
) -> Result<(), i32> {
    if handle == 0 {
        return Ok(());
    }
    let list = handles::destroy::<L>(handle, call, &report::NN_HANDLE, 161_002)?;
    let one = |h: &usize| handles::destroy::<E>(*h, call, &report::NN_HANDLE, 161_002).map(drop);
    elements(&list).iter().try_for_each(one)
}

calls! {
    aclDestroyTensorList(handle: usize) = destroy_list::<TensorList, Tensor>(handle, CALL, |list| &list.0);
    aclDestroyScalarList(handle: usize) = destroy_list::<ScalarList, Scalar>(handle, CALL, |list| &list.0);

    aclCreateScalar(value: usize, dtype: i32) -> usize = {
        if value == 0 {
            fail(161_001, &format!("{CALL}: the value is null"));
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
        handles::make(Scalar { dtype, value }, CALL)
    };

    aclCreateIntArray(value: usize, size: u64) -> usize = handles::make(IntArray(dims(value, size)), CALL);

    aclCreateFloatArray(value: usize, size: u64) -> usize =
        handles::make(FloatArray((0..size as usize).map(|i| take(value, i)).collect()), CALL);

    aclCreateBoolArray(value: usize, size: u64) -> usize = {
        let bools = (0..size as usize).map(|i| take::<u8>(value, i) != 0).collect();
        handles::make(BoolArray(bools), CALL)
    };

    aclCreateTensorList(value: usize, size: u64) -> usize =
        handles::make(TensorList((0..size as usize).map(|i| take(value, i)).collect()), CALL);

    aclCreateScalarList(value: usize, size: u64) -> usize =
        handles::make(ScalarList((0..size as usize).map(|i| take(value, i)).collect()), CALL);
}

fn held(tensor: usize, call: &str) -> Result<View, i32> {
    let found = handles::get::<Tensor>(tensor, call, &report::NN_HANDLE, 161_002)?;
    let view = found.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
    Ok(view)
}

calls! {
    aclSetRawTensorAddr(tensor: usize, address: usize) = {
        let found = handles::get::<Tensor>(tensor, CALL, &report::NN_HANDLE, 161_002)?;
        found.0.lock().unwrap_or_else(PoisonError::into_inner).base = address;
        Ok(())
    };

    aclGetRawTensorAddr(tensor: usize, address: usize) = give(address, held(tensor, CALL)?.base, CALL);
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

calls! {
    aclGetViewShape(tensor: usize, at: usize, count: usize) =
        give_array(&held(tensor, CALL)?.dims, at, count, CALL);

    aclGetStorageShape(tensor: usize, at: usize, count: usize) =
        give_array(&held(tensor, CALL)?.storage, at, count, CALL);

    aclGetViewStrides(tensor: usize, at: usize, count: usize) =
        give_array(&held(tensor, CALL)?.strides, at, count, CALL);

    aclGetViewOffset(tensor: usize, at: usize) = give(at, held(tensor, CALL)?.offset, CALL);
    aclGetFormat(tensor: usize, at: usize) = give(at, held(tensor, CALL)?.format, CALL);
    aclGetDataType(tensor: usize, at: usize) = give(at, held(tensor, CALL)?.dtype.code(), CALL);
}

/// Writes how many elements a list or array has.
fn give_len<T: Handled + 'static>(
    handle: usize,
    size: usize,
    call: &str,
    len: fn(&T) -> usize,
) -> Result<(), i32> {
    let found = handles::get::<T>(handle, call, &report::NN_HANDLE, 161_002)?;
    give(size, len(&found) as u64, call)
}

calls! {
    aclGetTensorListSize(handle: usize, size: usize) =
        give_len::<TensorList>(handle, size, CALL, |list| list.0.len());

    aclGetScalarListSize(handle: usize, size: usize) =
        give_len::<ScalarList>(handle, size, CALL, |list| list.0.len());

    aclGetIntArraySize(handle: usize, size: usize) =
        give_len::<IntArray>(handle, size, CALL, |list| list.0.len());

    aclGetBoolArraySize(handle: usize, size: usize) =
        give_len::<BoolArray>(handle, size, CALL, |list| list.0.len());

    aclGetFloatArraySize(handle: usize, size: usize) =
        give_len::<FloatArray>(handle, size, CALL, |list| list.0.len());

    aclSetAclOpExecutorRepeatable(executor: usize) = nn::set_repeatable(executor);
    aclDestroyAclOpExecutor(executor: usize) = destroy::<nn::Executor>(executor, CALL);

    aclSetInputTensorAddr(executor: usize, index: u64, _tensor: usize, address: usize) =
        nn::set_address(executor, Some(false), index as usize, address, CALL);

    aclSetOutputTensorAddr(executor: usize, index: u64, _tensor: usize, address: usize) =
        nn::set_address(executor, Some(true), index as usize, address, CALL);

    aclSetTensorAddr(executor: usize, index: u64, _tensor: usize, address: usize) =
        nn::set_address(executor, None, index as usize, address, CALL);
}

fn set_list(executor: usize, relative: u64, tensors: usize, address: usize, call: &str) -> Result<(), i32> {
    let list = handles::get::<TensorList>(tensors, call, &report::NN_HANDLE, 161_002)?;
    let Some(tensor) = list.0.get(relative as usize) else {
        return Err(fail(161_002, &format!("{call}: the list has no tensor {relative}")));
    };
    nn::set_address_of(executor, *tensor, address, call)
}

calls! {
    aclSetDynamicInputTensorAddr(
        executor: usize, _index: u64, relative: u64, tensors: usize, address: usize
    ) =
        set_list(executor, relative, tensors, address, CALL);

    aclSetDynamicOutputTensorAddr(
        executor: usize, _index: u64, relative: u64, tensors: usize, address: usize
    ) =
        set_list(executor, relative, tensors, address, CALL);

    aclSetDynamicTensorAddr(executor: usize, _index: u64, relative: u64, tensors: usize, address: usize) =
        set_list(executor, relative, tensors, address, CALL);
}

//! The older way to run an operator: by type name, with described inputs, outputs and attributes.

use super::stream::resolve;
use super::{answer, give, take, text};
use crate::handles::{self, Handled};
use crate::nn::tensor::{Dtype, View, contiguous};
use crate::report::{self, fail};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// `aclTensorDesc`.
#[derive(Clone, Debug)]
pub struct Description {
    pub(crate) dtype: Dtype,
    pub(crate) dims: Vec<i64>,
    pub(crate) format: i32,
    pub(crate) name: String,
    pub(crate) on_host: bool,
}

/// A description behind its handle.
#[derive(Debug)]
pub struct TensorDesc(Mutex<Description>);
impl Handled for TensorDesc {
    const NAME: &'static str = "aclTensorDesc";
}

/// `aclDataBuffer`.
#[derive(Debug)]
pub struct DataBuffer {
    pub(crate) at: usize,
    pub(crate) size: usize,
}
impl Handled for DataBuffer {
    const NAME: &'static str = "aclDataBuffer";
}

/// An attribute's value.
#[derive(Clone, Debug)]
pub enum Attribute {
    Int(i64),
    Float(f32),
    Text(String),
    Ints(Vec<i64>),
    Floats(Vec<f32>),
}

/// `aclopAttr`.
#[derive(Debug, Default)]
pub struct Attributes(Mutex<HashMap<String, Attribute>>);
impl Handled for Attributes {
    const NAME: &'static str = "aclopAttr";
}

pub(crate) fn aclCreateTensorDesc(dtype: i32, rank: i32, dims: usize, format: i32) -> usize {
    let dims = (0..rank.max(0) as usize).map(|i| take::<i64>(dims, i)).collect();
    let made =
        Description { dtype: Dtype::from_acl(dtype), dims, format, name: String::new(), on_host: false };
    handles::make(TensorDesc(Mutex::new(made)), "aclCreateTensorDesc")
}

pub(crate) fn aclDestroyTensorDesc(handle: usize) {
    if handle != 0 {
        // The code has nowhere to go: the function answers nothing.
        let _ = handles::destroy::<TensorDesc>(handle, "aclDestroyTensorDesc", &report::NN_HANDLE, 0);
    }
}

fn described<R>(handle: usize, call: &str, f: impl FnOnce(&mut Description) -> R) -> Result<R, i32> {
    let found = handles::get::<TensorDesc>(handle, call, &report::NN_HANDLE, 100_000)?;
    let mut held = found.0.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(f(&mut held))
}

pub(crate) fn aclSetTensorDescName(handle: usize, name: usize) {
    // As above.
    let _ = described(handle, "aclSetTensorDescName", |d| d.name = text(name));
}

pub(crate) fn aclSetTensorFormat(handle: usize, format: i32) -> i32 {
    answer(|| described(handle, "aclSetTensorFormat", |d| d.format = format))
}

pub(crate) fn aclSetTensorShape(handle: usize, _rank: i32, _dims: usize) -> i32 {
    answer(|| described(handle, "aclSetTensorShape", |_| ()))
}

pub(crate) fn aclSetTensorPlaceMent(handle: usize, kind: i32) -> i32 {
    answer(|| described(handle, "aclSetTensorPlaceMent", |d| d.on_host = kind != 0))
}

pub(crate) fn aclGetTensorDescFormat(handle: usize) -> i32 {
    described(handle, "aclGetTensorDescFormat", |d| d.format).unwrap_or(-1)
}

pub(crate) fn aclGetTensorDescType(handle: usize) -> i32 {
    described(handle, "aclGetTensorDescType", |d| d.dtype.code()).unwrap_or(-1)
}

pub(crate) fn aclGetTensorDescNumDims(handle: usize) -> u64 {
    described(handle, "aclGetTensorDescNumDims", |d| d.dims.len() as u64).unwrap_or(0)
}

pub(crate) fn aclGetTensorDescDimV2(handle: usize, index: u64, size: usize) -> i32 {
    answer(|| {
        let found = described(handle, "aclGetTensorDescDimV2", |d| d.dims.get(index as usize).copied())?;
        match found {
            Some(d) => give(size, d, "aclGetTensorDescDimV2"),
            None => Err(fail(100_000, &format!("aclGetTensorDescDimV2: no dimension {index}"))),
        }
    })
}

pub(crate) fn aclCreateDataBuffer(at: usize, size: u64) -> usize {
    handles::make(DataBuffer { at, size: size as usize }, "aclCreateDataBuffer")
}

pub(crate) fn aclDestroyDataBuffer(handle: usize) -> i32 {
    answer(|| {
        handles::destroy::<DataBuffer>(handle, "aclDestroyDataBuffer", &report::NN_HANDLE, 100_000).map(drop)
    })
}

pub(crate) fn aclGetDataBufferAddr(handle: usize) -> usize {
    handles::get::<DataBuffer>(handle, "aclGetDataBufferAddr", &report::NN_HANDLE, 0).map_or(0, |b| b.at)
}

pub(crate) fn aclGetDataBufferSizeV2(handle: usize) -> u64 {
    handles::get::<DataBuffer>(handle, "aclGetDataBufferSizeV2", &report::NN_HANDLE, 0)
        .map_or(0, |b| b.size as u64)
}

pub(crate) fn aclopCreateAttr() -> usize {
    handles::make(Attributes::default(), "aclopCreateAttr")
}

pub(crate) fn aclopDestroyAttr(handle: usize) {
    if handle != 0 {
        // As in `aclDestroyTensorDesc`.
        let _ = handles::destroy::<Attributes>(handle, "aclopDestroyAttr", &report::NN_HANDLE, 0);
    }
}

fn set(handle: usize, name: usize, value: Attribute, call: &str) -> i32 {
    answer(|| {
        let found = handles::get::<Attributes>(handle, call, &report::NN_HANDLE, 100_000)?;
        found.0.lock().unwrap_or_else(PoisonError::into_inner).insert(text(name), value);
        Ok(())
    })
}

pub(crate) fn aclopSetAttrBool(handle: usize, name: usize, value: u8) -> i32 {
    set(handle, name, Attribute::Int(i64::from(value)), "aclopSetAttrBool")
}

pub(crate) fn aclopSetAttrInt(handle: usize, name: usize, value: i64) -> i32 {
    set(handle, name, Attribute::Int(value), "aclopSetAttrInt")
}

pub(crate) fn aclopSetAttrDataType(handle: usize, name: usize, value: i32) -> i32 {
    set(handle, name, Attribute::Int(i64::from(value)), "aclopSetAttrDataType")
}

pub(crate) fn aclopSetAttrFloat(handle: usize, name: usize, value: f32) -> i32 {
    set(handle, name, Attribute::Float(value), "aclopSetAttrFloat")
}

pub(crate) fn aclopSetAttrString(handle: usize, name: usize, value: usize) -> i32 {
    set(handle, name, Attribute::Text(text(value)), "aclopSetAttrString")
}

pub(crate) fn aclopSetAttrListInt(handle: usize, name: usize, n: i32, values: usize) -> i32 {
    let list = (0..n.max(0) as usize).map(|i| take(values, i)).collect();
    set(handle, name, Attribute::Ints(list), "aclopSetAttrListInt")
}

pub(crate) fn aclopSetAttrListBool(handle: usize, name: usize, n: i32, values: usize) -> i32 {
    let list = (0..n.max(0) as usize).map(|i| i64::from(take::<u8>(values, i))).collect();
    set(handle, name, Attribute::Ints(list), "aclopSetAttrListBool")
}

pub(crate) fn aclopSetAttrListFloat(handle: usize, name: usize, n: i32, values: usize) -> i32 {
    let list = (0..n.max(0) as usize).map(|i| take(values, i)).collect();
    set(handle, name, Attribute::Floats(list), "aclopSetAttrListFloat")
}

pub(crate) fn aclopSetAttrListListInt(
    handle: usize,
    name: usize,
    lists: i32,
    counts: usize,
    values: usize,
) -> i32 {
    let mut flat = Vec::new();
    for i in 0..lists.max(0) as usize {
        let at: usize = take(values, i);
        flat.extend((0..take::<i32>(counts, i).max(0) as usize).map(|j| take::<i64>(at, j)));
    }
    set(handle, name, Attribute::Ints(flat), "aclopSetAttrListListInt")
}

fn list<T: Handled>(at: usize, n: i32, call: &str) -> Result<Vec<std::sync::Arc<T>>, i32> {
    (0..n.max(0) as usize)
        .map(|i| handles::get::<T>(take(at, i), call, &report::NN_HANDLE, 100_000))
        .collect()
}

pub(crate) fn aclopCompileAndExecute(
    op: usize,
    inputs: i32,
    input_desc: usize,
    input_data: usize,
    outputs: i32,
    output_desc: usize,
    output_data: usize,
    attributes: usize,
    _engine: i32,
    _compile: i32,
    _path: usize,
    stream: usize,
) -> i32 {
    let call = "aclopCompileAndExecute";
    answer(|| {
        let stream = resolve(stream, call)?;
        let name = text(op);
        let side = |descriptions: usize, buffers: usize, n: i32| -> Result<Vec<View>, i32> {
            let descriptions = list::<TensorDesc>(descriptions, n, call)?;
            let buffers = list::<DataBuffer>(buffers, n, call)?;
            Ok(descriptions.iter().zip(&buffers).map(|(d, b)| operand(d, b)).collect())
        };
        let inputs = side(input_desc, input_data, inputs)?;
        let outputs = side(output_desc, output_data, outputs)?;
        let attributes = if attributes == 0 {
            HashMap::new()
        } else {
            let found = handles::get::<Attributes>(attributes, call, &report::NN_HANDLE, 100_000)?;
            found.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
        };
        crate::nn::by_type::launch(&name, inputs, outputs, &attributes, &stream)
    })
}

/// Where the values of an operand lie: its storage has the described shape.
fn operand(description: &TensorDesc, buffer: &DataBuffer) -> View {
    let d = description.0.lock().unwrap_or_else(PoisonError::into_inner);
    View {
        dims: d.dims.clone(),
        strides: contiguous(&d.dims),
        offset: 0,
        dtype: d.dtype,
        format: d.format,
        storage: d.dims.clone(),
        base: buffer.at,
    }
}

pub(crate) fn aclopCompileAndExecuteV2(
    op: usize,
    inputs: i32,
    input_desc: usize,
    input_data: usize,
    outputs: i32,
    output_desc: usize,
    output_data: usize,
    attributes: usize,
    engine: i32,
    compile: i32,
    path: usize,
    stream: usize,
) -> i32 {
    aclopCompileAndExecute(
        op,
        inputs,
        input_desc,
        input_data,
        outputs,
        output_desc,
        output_data,
        attributes,
        engine,
        compile,
        path,
        stream,
    )
}

/// Options of the compiler of operators by type name, as set; compiling at run time is off unless it is asked for.
static OPTIONS: Mutex<Option<HashMap<i32, String>>> = Mutex::new(None);

fn option(which: i32) -> String {
    let held = OPTIONS.lock().unwrap_or_else(PoisonError::into_inner);
    held.as_ref().and_then(|o| o.get(&which).cloned()).unwrap_or_else(|| "disable".to_owned())
}

pub(crate) fn aclSetCompileopt(which: i32, value: usize) -> i32 {
    OPTIONS.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_default().insert(which, text(value));
    0
}

pub(crate) fn aclGetCompileoptSize(which: i32) -> u64 {
    option(which).len() as u64 + 1
}

pub(crate) fn aclGetCompileopt(which: i32, value: usize, size: u64) -> i32 {
    super::give_text(value, size as usize, &option(which));
    0
}

/// No stream is ever captured: status 0, no model.
pub(crate) fn aclmdlRICaptureGetInfo(stream: usize, status: usize, model: usize) -> i32 {
    answer(|| {
        resolve(stream, "aclmdlRICaptureGetInfo")?;
        give(status, 0i32, "aclmdlRICaptureGetInfo")?;
        if model == 0 { Ok(()) } else { give(model, 0usize, "aclmdlRICaptureGetInfo") }
    })
}

/// The mode of this thread is exchanged for the given one; nothing depends on it.
pub(crate) fn aclmdlRICaptureThreadExchangeMode(_mode: usize) -> i32 {
    0
}

//! The older way to run an operator: by type name, with described inputs, outputs and attributes.

use super::stream::resolve;
use super::{give, take, text};
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

calls! {
    aclCreateTensorDesc(dtype: i32, rank: i32, dims: usize, format: i32) -> usize = {
        let dims = (0..rank.max(0) as usize).map(|i| take::<i64>(dims, i)).collect();
        let made =
            Description { dtype: Dtype::from_acl(dtype), dims, format, name: String::new(), on_host: false };
        handles::make(TensorDesc(Mutex::new(made)), CALL)
    };

    aclDestroyTensorDesc(handle: usize) -> () = {
        if handle != 0 {
            // The code has nowhere to go: the function answers nothing.
            let _ = handles::destroy::<TensorDesc>(handle, CALL, &report::NN_HANDLE, 0);
        }
    };
}

fn described<R>(handle: usize, call: &str, f: impl FnOnce(&mut Description) -> R) -> Result<R, i32> {
    let found = handles::get::<TensorDesc>(handle, call, &report::NN_HANDLE, 100_000)?;
    let mut held = found.0.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(f(&mut held))
}

calls! {
    aclSetTensorDescName(handle: usize, name: usize) -> () = {
        // As above.
        let _ = described(handle, CALL, |d| d.name = text(name));
    };

    aclSetTensorFormat(handle: usize, format: i32) = described(handle, CALL, |d| d.format = format);
    aclSetTensorShape(handle: usize, _rank: i32, _dims: usize) = described(handle, CALL, |_| ());
    aclSetTensorPlaceMent(handle: usize, kind: i32) = described(handle, CALL, |d| d.on_host = kind != 0);
    aclGetTensorDescFormat(handle: usize) -> i32 = described(handle, CALL, |d| d.format).unwrap_or(-1);

    aclGetTensorDescType(handle: usize) -> i32 =
        described(handle, CALL, |d| d.dtype.code()).unwrap_or(-1);

    aclGetTensorDescNumDims(handle: usize) -> u64 =
        described(handle, CALL, |d| d.dims.len() as u64).unwrap_or(0);

    aclGetTensorDescDimV2(handle: usize, index: u64, size: usize) = {
        let found = described(handle, CALL, |d| d.dims.get(index as usize).copied())?;
        match found {
            Some(d) => give(size, d, CALL),
            None => Err(fail(100_000, &format!("{CALL}: no dimension {index}"))),
        }
    };

    aclCreateDataBuffer(at: usize, size: u64) -> usize =
        handles::make(DataBuffer { at, size: size as usize }, CALL);

    aclDestroyDataBuffer(handle: usize) =
        handles::destroy::<DataBuffer>(handle, CALL, &report::NN_HANDLE, 100_000).map(drop);

    aclGetDataBufferAddr(handle: usize) -> usize =
        handles::get::<DataBuffer>(handle, CALL, &report::NN_HANDLE, 0).map_or(0, |b| b.at);

    aclGetDataBufferSizeV2(handle: usize) -> u64 =
        handles::get::<DataBuffer>(handle, CALL, &report::NN_HANDLE, 0).map_or(0, |b| b.size as u64);

    aclopCreateAttr() -> usize = handles::make(Attributes::default(), CALL);

    aclopDestroyAttr(handle: usize) -> () = {
        if handle != 0 {
            // As in `aclDestroyTensorDesc`.
            let _ = handles::destroy::<Attributes>(handle, CALL, &report::NN_HANDLE, 0);
        }
    };
}

fn set(handle: usize, name: usize, value: Attribute, call: &str) -> Result<(), i32> {
    let found = handles::get::<Attributes>(handle, call, &report::NN_HANDLE, 100_000)?;
    found.0.lock().unwrap_or_else(PoisonError::into_inner).insert(text(name), value);
    Ok(())
}

calls! {
    aclopSetAttrBool(handle: usize, name: usize, value: u8) =
        set(handle, name, Attribute::Int(i64::from(value)), CALL);

    aclopSetAttrInt(handle: usize, name: usize, value: i64) = set(handle, name, Attribute::Int(value), CALL);

    aclopSetAttrDataType(handle: usize, name: usize, value: i32) =
        set(handle, name, Attribute::Int(i64::from(value)), CALL);

    aclopSetAttrFloat(handle: usize, name: usize, value: f32) =
        set(handle, name, Attribute::Float(value), CALL);

    aclopSetAttrString(handle: usize, name: usize, value: usize) =
        set(handle, name, Attribute::Text(text(value)), CALL);

    aclopSetAttrListInt(handle: usize, name: usize, n: i32, values: usize) = {
        let list = (0..n.max(0) as usize).map(|i| take(values, i)).collect();
        set(handle, name, Attribute::Ints(list), CALL)
    };

    aclopSetAttrListBool(handle: usize, name: usize, n: i32, values: usize) = {
        let list = (0..n.max(0) as usize).map(|i| i64::from(take::<u8>(values, i))).collect();
        set(handle, name, Attribute::Ints(list), CALL)
    };

    aclopSetAttrListFloat(handle: usize, name: usize, n: i32, values: usize) = {
        let list = (0..n.max(0) as usize).map(|i| take(values, i)).collect();
        set(handle, name, Attribute::Floats(list), CALL)
    };

    aclopSetAttrListListInt(handle: usize, name: usize, lists: i32, counts: usize, values: usize) = {
        let mut flat = Vec::new();
        for i in 0..lists.max(0) as usize {
            let at: usize = take(values, i);
            flat.extend((0..take::<i32>(counts, i).max(0) as usize).map(|j| take::<i64>(at, j)));
        }
        set(handle, name, Attribute::Ints(flat), CALL)
    };
}

fn list<T: Handled>(at: usize, n: i32, call: &str) -> Result<Vec<std::sync::Arc<T>>, i32> {
    (0..n.max(0) as usize)
        .map(|i| handles::get::<T>(take(at, i), call, &report::NN_HANDLE, 100_000))
        .collect()
}

calls! {
    aclopCompileAndExecute(
        op: usize, inputs: i32, input_desc: usize, input_data: usize, outputs: i32, output_desc: usize,
        output_data: usize, attributes: usize, _engine: i32, _compile: i32, _path: usize, stream: usize
    ) = {
        let stream = resolve(stream, CALL)?;
        let name = text(op);
        let side = |descriptions: usize, buffers: usize, n: i32| -> Result<Vec<View>, i32> {
            let descriptions = list::<TensorDesc>(descriptions, n, CALL)?;
            let buffers = list::<DataBuffer>(buffers, n, CALL)?;
            Ok(descriptions.iter().zip(&buffers).map(|(d, b)| operand(d, b)).collect())
        };
        let inputs = side(input_desc, input_data, inputs)?;
        let outputs = side(output_desc, output_data, outputs)?;
        let attributes = if attributes == 0 {
            HashMap::new()
        } else {
            let found = handles::get::<Attributes>(attributes, CALL, &report::NN_HANDLE, 100_000)?;
            found.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
        };
        crate::nn::by_type::launch(&name, inputs, outputs, &attributes, &stream)
    };
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

calls! {
    aclopCompileAndExecuteV2(
        op: usize, inputs: i32, input_desc: usize, input_data: usize, outputs: i32, output_desc: usize,
        output_data: usize, attributes: usize, engine: i32, compile: i32, path: usize, stream: usize
    ) -> i32 =
        aclopCompileAndExecute(
            op, inputs, input_desc, input_data, outputs, output_desc, output_data, attributes, engine,
            compile, path, stream
        );
}

/// Options of the compiler of operators by type name, as set; compiling at run time is off unless it is asked for.
static OPTIONS: Mutex<Option<HashMap<i32, String>>> = Mutex::new(None);

fn option(which: i32) -> String {
    let held = OPTIONS.lock().unwrap_or_else(PoisonError::into_inner);
    held.as_ref().and_then(|o| o.get(&which).cloned()).unwrap_or_else(|| "disable".to_owned())
}

calls! {
    aclSetCompileopt(which: i32, value: usize) = {
        let mut held = OPTIONS.lock().unwrap_or_else(PoisonError::into_inner);
        held.get_or_insert_default().insert(which, text(value));
        Ok(())
    };

    aclGetCompileoptSize(which: i32) -> u64 = option(which).len() as u64 + 1;

    aclGetCompileopt(which: i32, value: usize, size: u64) = {
        super::give_text(value, size as usize, &option(which));
        Ok(())
    };

    /// No stream is ever captured: status 0, no model.
    aclmdlRICaptureGetInfo(stream: usize, status: usize, model: usize) = {
        resolve(stream, CALL)?;
        give(status, 0i32, CALL)?;
        if model == 0 { Ok(()) } else { give(model, 0usize, CALL) }
    };

    /// The mode of this thread is exchanged for the given one; nothing depends on it.
    aclmdlRICaptureThreadExchangeMode(_mode: usize) = Ok(());
}

//! Operators: the two phases, and the state between them.

pub mod by_type;
pub mod bytes;
pub mod contract;
pub mod exec;
#[cfg(test)]
mod formulas;
pub mod kernels;
pub mod tensor;

use crate::abi::{Arg, Kind, OpDecl};
use crate::handles::{self, Handled};
use crate::knobs::noise;
use crate::memory;
use crate::race::Access;
use crate::report::{self, Site, fail, result, violation};
use crate::sched::{self, Work};
use contract::Role;
use exec::{Call, Value};
use std::sync::{Arc, Mutex, PoisonError};
use tensor::{BoolArray, FloatArray, IntArray, Scalar, ScalarList, Tensor, TensorList, View};

/// What a first phase has planned.
#[derive(Debug)]
pub struct Executor {
    call: Arc<Call>,
    tensors: Mutex<Vec<Slot>>,
    workspace: u64,
    state: Mutex<State>,
    thread: std::thread::ThreadId,
    made: Site,
}
impl Handled for Executor {
    const NAME: &'static str = "aclOpExecutor";
}

#[derive(Debug, Default)]
struct State {
    repeatable: bool,
    /// New addresses by the position of the tensor, for repeated runs.
    moved: Vec<(usize, usize)>,
}

/// A tensor argument: its handle, parameter, and place within a list.
#[derive(Clone, Debug)]
struct Slot {
    handle: usize,
    param: usize,
    element: usize,
    role: Role,
}

fn view_of(handle: usize, call: &str) -> Result<(Arc<Tensor>, View), i32> {
    let tensor = handles::get::<Tensor>(handle, call, &report::NN_HANDLE, 161_002)?;
    let view = tensor.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
    Ok((tensor, view))
}

/// A tensor that is not there.
fn absent() -> View {
    View {
        dims: vec![0],
        strides: vec![1],
        offset: 0,
        dtype: tensor::Dtype::Bool,
        format: 2,
        storage: vec![0],
        base: 0,
    }
}

/// Storage inside its allocation, view inside its storage, address aligned.
fn check_view(view: &View, name: &str, device: u32, call: &str) -> Result<(), i32> {
    if view.numel() == 0 {
        return Ok(());
    }
    if view.base == 0 {
        return Err(fail(161_001, &format!("{call}: {name} has {:?} elements and no address", view.dims)));
    }
    let (low, high) = view.span();
    let storage = view.storage_len() as i64;
    if low < 0 || (storage > 0 && high >= storage) {
        let message = format!(
            "{call}: {name}, elements {low} to {high} of a storage of {storage} ({:?})",
            view.storage
        );
        return result(violation(&report::NN_VIEW, 161_002, &message));
    }
    if !view.base.is_multiple_of(32) {
        let message = format!("{call}: {name} at {:#x}", view.base);
        violation(&report::MEM_ALIGN, 0, &message);
    }
    match memory::device_of(view.base) {
        Some(found) if found == device => {}
        Some(found) => {
            let message = format!("{call}: {name} lies on device {found}, the current one is {device}");
            return result(violation(&report::MEM_NOT_DEVICE, 161_002, &message));
        }
        None => {
            let message = format!("{call}: {name} at {:#x}, a host address", view.base);
            return result(violation(&report::MEM_NOT_DEVICE, 161_002, &message));
        }
    }
    let bytes = storage.max(high + 1) as usize * view.dtype.size();
    if memory::find(view.base, bytes).is_none() {
        let (start, len) = view.bytes();
        let rule =
            if memory::find(start, len).is_some() { &report::NN_VIEW } else { &report::MEM_NOT_DEVICE };
        let message = format!(
            "{call}: {name}, a storage of {bytes} bytes at {:#x}, {}",
            view.base,
            memory::describe(view.base)
        );
        return result(violation(rule, 161_002, &message));
    }
    Ok(())
}

/// The first phase of any operator.
pub fn phase1(decl: &'static OpDecl, args: &[Arg], size: *mut u64, executor: *mut usize) -> i32 {
    let outs = [Arg::P(size as usize), Arg::P(executor as usize)];
    report::trace(&format!("{}GetWorkspaceSize", decl.name), &[args, &outs].concat());
    plan(decl, args, size, executor).err().unwrap_or(0)
}

/// What a handle of an array or a list stands for.
fn of_handle<T: handles::Handled + 'static>(handle: usize, name: &str) -> Result<Arc<T>, i32> {
    handles::get::<T>(handle, name, &report::NN_HANDLE, 161_002)
}

/// A tensor with its view, as element of a list or by itself.
type Viewed = (Arc<Tensor>, View);

/// The value of an argument by its kind; `tensor` takes a tensor's handle and its number within a list.
fn value_of(
    kind: Kind,
    arg: Arg,
    name: &str,
    tensor: &mut dyn FnMut(usize, usize) -> Result<Viewed, i32>,
) -> Result<Value, i32> {
    // Null stands for what is left out.
    let handle = match arg {
        Arg::P(handle) => Some(handle).filter(|h| *h != 0),
        _ => None,
    };
    let scalar = |handle: usize| Ok::<_, i32>(of_handle::<Scalar>(handle, name)?.as_ref().clone());
    Ok(match kind {
        Kind::T | Kind::To => Value::Tensor(handle.map(|h| tensor(h, 0)).transpose()?),
        Kind::TL | Kind::TLo => {
            let one = |(element, handle): (usize, &usize)| match *handle {
                // An entry left out, as in the list of indices for a whole dimension.
                0 => Ok((Arc::new(Tensor(Mutex::new(absent()))), absent())),
                handle => tensor(handle, element),
            };
            let list = handle.map(|h| of_handle::<TensorList>(h, name)).transpose()?;
            Value::List(list.map(|list| list.0.iter().enumerate().map(one).collect()).transpose()?)
        }
        Kind::S => Value::Scalar(handle.map(scalar).transpose()?),
        Kind::SL => {
            let list = handle.map(|h| of_handle::<ScalarList>(h, name)).transpose()?;
            Value::Scalars(list.map(|list| list.0.iter().map(|h| scalar(*h)).collect()).transpose()?)
        }
        Kind::IA => {
            Value::Ints(handle.map(|h| Ok::<_, i32>(of_handle::<IntArray>(h, name)?.0.clone())).transpose()?)
        }
        Kind::FA => Value::Floats(
            handle.map(|h| Ok::<_, i32>(of_handle::<FloatArray>(h, name)?.0.clone())).transpose()?,
        ),
        Kind::BA => Value::Bools(
            handle.map(|h| Ok::<_, i32>(of_handle::<BoolArray>(h, name)?.0.clone())).transpose()?,
        ),
        Kind::Str => Value::Text(handle.map(|at| {
            // SAFETY: not null; the interface asks for a C string.
            let text = unsafe { std::ffi::CStr::from_ptr(at as *const libc::c_char) };
            text.to_string_lossy().into_owned()
        })),
        Kind::P | Kind::Number => Value::Number(arg),
    })
}

/// A size that depends on the operands and the seed: none, small, or large and no multiple of 512.
fn workspace_of(call: &Call) -> u64 {
    let elements: usize = call.tensors().iter().map(|(_, v)| v.numel()).sum();
    let draw = noise(elements as u64 ^ call.decl.name.len() as u64);
    match draw % 4 {
        0 => 0,
        1 => 32 + draw % 480,
        2 => 1000 + (draw >> 8) % 5000,
        _ => (elements as u64 / 2).min(1 << 20) + 777,
    }
}

fn plan(decl: &'static OpDecl, args: &[Arg], size: *mut u64, executor: *mut usize) -> Result<(), i32> {
    let name = decl.name;
    if size.is_null() || executor.is_null() {
        return Err(fail(161_001, &format!("{name}: workspaceSize and executor must not be null")));
    }
    let Some((device, _)) = crate::api::current() else {
        return Err(fail(361_001, &format!("{name}: no device is set on this thread (107002)")));
    };
    if let Some(code) = report::poisoned() {
        return Err(fail(code, &format!("{name}: the device has failed before")));
    }
    if let Some(code) = report::fault("phase1", name.trim_start_matches("aclnn")) {
        return Err(fail(code.parse().unwrap_or(561_003), &format!("{name}: injected")));
    }
    let Some(operator) = kernels::find(name) else {
        if std::env::var_os("CANN_EMU_VERBOSE").is_some() {
            report::absent(name);
        }
        return Err(fail(
            561_003,
            &format!(
                "{name}: {}: no kernel found (the emulator has none for this operator)",
                report::NN_NO_KERNEL.id
            ),
        ));
    };
    let (mut values, mut slots) = (Vec::with_capacity(args.len()), Vec::new());
    for (index, (param, arg)) in decl.params.iter().zip(args).enumerate() {
        let role = operator.contract.role(param);
        let mut tensor = |handle: usize, element: usize| {
            let (tensor, view) = view_of(handle, name)?;
            check_view(&view, param.name, device, name)?;
            slots.push(Slot { handle, param: index, element, role });
            Ok((tensor, view))
        };
        values.push(value_of(param.kind, *arg, name, &mut tensor)?);
    }
    let call = Call::new(decl, values, device);
    let complex = call.tensors().into_iter().find(|(_, v)| v.dtype.is_complex());
    if let Some((param, view)) = complex.filter(|_| !kernels::complex::able(name.trim_start_matches("aclnn")))
    {
        let rule = &report::NN_COMPLEX;
        let text = format!("{name}: {}: {}; {param} is {:?}", rule.id, rule.text, view.dtype);
        return Err(fail(161_002, &text));
    }
    if let Err((code, text)) = operator.contract.check(&call) {
        let page = kernels::page(name.trim_start_matches("aclnn"));
        return Err(fail(code, &format!("{name}: {text} (page {page})")));
    }
    check_overlap(&call, &slots, name)?;
    let workspace = workspace_of(&call);
    let planned = Executor {
        call: Arc::new(call),
        tensors: Mutex::new(slots),
        workspace,
        state: Mutex::default(),
        thread: std::thread::current().id(),
        made: Site::here(name),
    };
    let handle = handles::make(planned, name);
    // SAFETY: both were checked for null; the interface asks for valid pointers.
    unsafe {
        *size = workspace;
        *executor = handle;
    }
    Ok(())
}

fn check_overlap(call: &Call, slots: &[Slot], name: &str) -> Result<(), i32> {
    for out in slots.iter().filter(|s| s.role == Role::Out) {
        let Some(a) = call.tensor_at(out.param, out.element) else { continue };
        for other in slots.iter().filter(|s| (s.param, s.element) != (out.param, out.element)) {
            let Some(b) = call.tensor_at(other.param, other.element) else { continue };
            let ((sa, la), (sb, lb)) = (a.bytes(), b.bytes());
            let apart = sa + la <= sb || sb + lb <= sa || la == 0 || lb == 0;
            if !apart && a.is_contiguous() && b.is_contiguous() && (sa, la) != (sb, lb) {
                let message =
                    format!("{name}: {la} bytes at {sa:#x} and {lb} bytes at {sb:#x} overlap in part");
                result(violation(&report::NN_OVERLAP, 161_002, &message))?;
            }
        }
    }
    Ok(())
}

fn access(view: &View, write: bool) -> Access {
    let (start, len) = view.bytes();
    let gaps = !view.is_contiguous();
    Access { start, len, write, view: gaps.then(|| Arc::new(view.clone())) }
}

/// The second phase of any operator.
pub fn phase2(name: &'static str, workspace: usize, size: u64, executor: usize, stream: usize) -> i32 {
    report::trace(name, &[Arg::P(workspace), Arg::U(size), Arg::P(executor), Arg::P(stream)]);
    launch(name, workspace, size, executor, stream).err().unwrap_or(0)
}

fn launch(
    name: &'static str,
    workspace: usize,
    size: u64,
    executor: usize,
    stream: usize,
) -> Result<(), i32> {
    if executor == 0 {
        return Err(fail(161_001, &format!("{name}: the executor must not be null")));
    }
    let rule = if handles::peek::<Executor>(executor).is_none() {
        &report::NN_EXECUTOR_TWICE
    } else {
        &report::NN_HANDLE
    };
    let planned = handles::get::<Executor>(executor, name, rule, 561_103)?;
    let repeatable = planned.state.lock().unwrap_or_else(PoisonError::into_inner).repeatable;
    if planned.call.decl.name != name {
        let message = format!("{name} was given the executor of {}", planned.made);
        result(violation(&report::NN_EXECUTOR_OTHER, 161_002, &message))?;
    }
    if !repeatable {
        handles::destroy::<Executor>(executor, name, rule, 561_103)?;
    }
    if planned.thread != std::thread::current().id() {
        violation(&report::NN_THREAD, 0, &format!("{name}: the first phase ran on another thread"));
    }
    if planned.workspace > 0 && workspace == 0 {
        return Err(fail(
            161_001,
            &format!("{name}: {} bytes of workspace needed, found null", planned.workspace),
        ));
    }
    let Some((device, _)) = crate::api::current() else {
        return Err(fail(361_001, &format!("{name}: no device is set on this thread (107002)")));
    };
    let stream = crate::api::stream::resolve(stream, name)?;
    if planned.workspace > 0 {
        let found = memory::find(workspace, planned.workspace as usize);
        if size < planned.workspace || found.is_none() || memory::device_of(workspace) != Some(device) {
            let message = format!(
                "{name}: {} bytes needed, {size} given at {workspace:#x}, {}",
                planned.workspace,
                memory::describe(workspace)
            );
            result(violation(&report::NN_WORKSPACE, 161_002, &message))?;
        }
    }
    let mut call = (*planned.call).clone();
    for (position, address) in &planned.state.lock().unwrap_or_else(PoisonError::into_inner).moved {
        if let Some(slot) = planned.tensors.lock().unwrap_or_else(PoisonError::into_inner).get(*position) {
            call.relocate(slot.param, slot.element, *address);
        }
    }
    if let Some(operator) = kernels::find(name) {
        call.hold_groups(operator.contract.groups())?;
    }
    let mut accesses = Vec::new();
    for slot in planned.tensors.lock().unwrap_or_else(PoisonError::into_inner).iter() {
        if let Some(view) = call.tensor_at(slot.param, slot.element) {
            if slot.role != Role::Out {
                accesses.push(access(view, false));
            }
            if slot.role != Role::In {
                accesses.push(access(view, true));
            }
        }
    }
    if planned.workspace > 0 {
        accesses.push(Access { start: workspace, len: planned.workspace as usize, write: true, view: None });
    }
    let scratch = (workspace, planned.workspace as usize);
    let late = report::fault("async", &format!("op:{}", name.trim_start_matches("aclnn")));
    let run = Box::new(move || {
        if let Some(code) = late {
            let code = code.parse().unwrap_or(507_015);
            report::poison(code);
            return Err(code);
        }
        if scratch.1 > 0 {
            let at = memory::alive(scratch.0, scratch.1, name)?;
            // SAFETY: `alive` found the bytes in one live allocation. Another user at the same time is a race of the program's
            // own, reported when it was submitted; the bytes are plain.
            unsafe { std::ptr::write_bytes(at as *mut u8, 0xa5, scratch.1) };
        }
        exec::run(&call)
    });
    sched::submit(stream.id, &accesses, name, Work::Run(run))?;
    Ok(())
}

/// Keeps an executor after its second phase.
pub fn set_repeatable(executor: usize) -> Result<(), i32> {
    let planned =
        handles::get::<Executor>(executor, "aclSetAclOpExecutorRepeatable", &report::NN_HANDLE, 161_002)?;
    planned.state.lock().unwrap_or_else(PoisonError::into_inner).repeatable = true;
    Ok(())
}

/// Gives a tensor of a repeatable executor a new address: `index` counts the operator's tensors of that role.
pub fn set_address(
    executor: usize,
    outputs: Option<bool>,
    index: usize,
    address: usize,
    call: &str,
) -> Result<(), i32> {
    let of_role = |s: &Slot| match outputs {
        None => true,
        Some(true) => s.role != Role::In,
        Some(false) => s.role != Role::Out,
    };
    move_tensor(executor, address, call, &format!("the operator has no tensor {index}"), |slots| {
        slots.iter().enumerate().filter(|(_, s)| of_role(s)).map(|(position, _)| position).nth(index)
    })
}

/// As [`set_address`], by the tensor's handle.
pub fn set_address_of(executor: usize, tensor: usize, address: usize, call: &str) -> Result<(), i32> {
    move_tensor(executor, address, call, "the tensor is none of the executor's", |slots| {
        slots.iter().position(|s| s.handle == tensor)
    })
}

/// Gives the tensor that is found a new address; `missing` is what is said if there is none.
fn move_tensor(
    executor: usize,
    address: usize,
    call: &str,
    missing: &str,
    find: impl FnOnce(&[Slot]) -> Option<usize>,
) -> Result<(), i32> {
    let planned = handles::get::<Executor>(executor, call, &report::NN_HANDLE, 161_002)?;
    let position = find(&planned.tensors.lock().unwrap_or_else(PoisonError::into_inner));
    let Some(position) = position else { return Err(fail(161_002, &format!("{call}: {missing}"))) };
    planned.state.lock().unwrap_or_else(PoisonError::into_inner).moved.push((position, address));
    Ok(())
}

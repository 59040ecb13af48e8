//! A call of an operator as its kernel sees it: arguments by the names of the published prototype.

use super::tensor::{Dtype, Scalar, Tensor, Values, View};
use crate::abi::{Arg, OpDecl};
use crate::hccl::{self, Comm};
use crate::knobs::{Numerics, knobs, noise};
use crate::report;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};

/// What a kernel gives back: nothing, or a sentence.
pub type Outcome = Result<(), Fault>;

/// Why a kernel could not go on.
#[derive(Debug)]
pub enum Fault {
    /// A device error that was reported already.
    Code(i32),
    /// A sentence.
    Text(String),
}
impl From<i32> for Fault {
    fn from(code: i32) -> Fault {
        Fault::Code(code)
    }
}
impl From<String> for Fault {
    fn from(text: String) -> Fault {
        Fault::Text(text)
    }
}
impl From<&str> for Fault {
    fn from(text: &str) -> Fault {
        Fault::Text(text.to_owned())
    }
}

/// An argument with its contents.
#[derive(Clone, Debug)]
pub enum Value {
    Tensor(Option<(Arc<Tensor>, View)>),
    List(Option<Vec<(Arc<Tensor>, View)>>),
    Scalar(Option<Scalar>),
    Scalars(Option<Vec<Scalar>>),
    Ints(Option<Vec<i64>>),
    Floats(Option<Vec<f32>>),
    Bools(Option<Vec<bool>>),
    Text(Option<String>),
    Number(Arg),
}

/// A call.
#[derive(Clone, Debug)]
pub struct Call {
    /// The operator.
    pub decl: &'static OpDecl,
    values: Vec<Value>,
    /// A number of its own, for everything that is random.
    pub serial: u64,
    /// Whether sums are to have one order.
    pub fixed: bool,
    /// The device of its first phase.
    pub device: u32,
    /// Communicators by the parameters that name them, once the call runs.
    groups: Vec<(&'static str, Arc<Comm>)>,
}

static SERIAL: AtomicU64 = AtomicU64::new(1);

impl Call {
    pub(super) fn new(decl: &'static OpDecl, values: Vec<Value>, device: u32) -> Call {
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let fixed = crate::api::error::is_deterministic();
        Call { decl, values, serial, fixed, device, groups: Vec::new() }
    }
    /// Takes hold of the communicators that these parameters name.
    ///
    /// # Errors
    /// 161002 if one has been destroyed since the first phase.
    pub(super) fn hold_groups<'a>(&mut self, names: impl Iterator<Item = &'a str>) -> Result<(), i32> {
        for name in names {
            let Some(param) = self.decl.params.iter().find(|p| p.name == name) else { continue };
            let Some(Value::Text(Some(text))) = self.value(name) else { continue };
            let Some(comm) = hccl::named(text, self.device) else {
                let said = format!("{}: {name}: the communicator {text:?} is gone", self.decl.name);
                return Err(report::fail(161_002, &said));
            };
            self.groups.push((param.name, comm));
        }
        Ok(())
    }
    /// The communicator that a parameter names.
    pub fn group(&self, name: &str) -> Result<&Comm, Fault> {
        let found = self.groups.iter().find(|(n, _)| *n == name);
        found.map(|(_, comm)| &**comm).ok_or_else(|| Fault::Text(format!("{name} names no communicator")))
    }
    /// The parameter of a name, if the operator has it.
    pub fn value(&self, name: &str) -> Option<&Value> {
        self.decl.params.iter().position(|p| p.name == name).map(|i| &self.values[i])
    }
    fn named(&self, names: &str) -> Result<&Value, Fault> {
        names
            .split('|')
            .find_map(|n| self.value(n))
            .ok_or_else(|| Fault::Text(format!("{} has no parameter {names}", self.decl.name)))
    }
    /// Every tensor with its parameter's name.
    pub fn tensors(&self) -> Vec<(&'static str, &View)> {
        let mut out = Vec::new();
        for (param, value) in self.decl.params.iter().zip(&self.values) {
            match value {
                Value::Tensor(Some((_, v))) => out.push((param.name, v)),
                Value::List(Some(list)) => out.extend(list.iter().map(|(_, v)| (param.name, v))),
                _ => {}
            }
        }
        out
    }
    pub(super) fn tensor_at(&self, param: usize, element: usize) -> Option<&View> {
        match &self.values[param] {
            Value::Tensor(Some((_, v))) => Some(v),
            Value::List(Some(list)) => list.get(element).map(|(_, v)| v),
            _ => None,
        }
    }
    pub(super) fn relocate(&mut self, param: usize, element: usize, address: usize) {
        match &mut self.values[param] {
            Value::Tensor(Some((_, v))) => v.base = address,
            Value::List(Some(list)) => {
                if let Some((_, v)) = list.get_mut(element) {
                    v.base = address;
                }
            }
            _ => {}
        }
    }
    /// A tensor that may be absent; `names` may hold alternatives separated by `|`.
    pub fn opt(&self, names: &str) -> Result<Option<&View>, Fault> {
        match self.named(names)? {
            Value::Tensor(t) => Ok(t.as_ref().map(|(_, v)| v)),
            other => Err(Fault::Text(format!("{names} is {other:?}, no tensor"))),
        }
    }
    /// A tensor.
    pub fn t(&self, names: &str) -> Result<&View, Fault> {
        self.opt(names)?.ok_or_else(|| Fault::Text(format!("{}: {names} is null", self.decl.name)))
    }
    /// A tensor's values.
    pub fn load(&self, names: &str) -> Result<Values, Fault> {
        Ok(self.t(names)?.load(self.decl.name)?)
    }
    /// A tensor's values as floats.
    pub fn f(&self, names: &str) -> Result<Vec<f64>, Fault> {
        Ok(self.load(names)?.floats())
    }
    /// A tensor's values as floats, if it is there and not empty.
    pub fn opt_f(&self, names: &str) -> Result<Option<Vec<f64>>, Fault> {
        match self.opt(names)? {
            Some(v) if v.numel() > 0 => Ok(Some(v.load(self.decl.name)?.floats())),
            _ => Ok(None),
        }
    }
    /// Values broadcast to a shape.
    pub fn spread(&self, view: &View, dims: &[i64]) -> Result<Values, Fault> {
        Ok(view.broadcast(dims)?.load(self.decl.name)?)
    }
    /// The list of a name; empty when absent.
    pub fn list(&self, names: &str) -> Result<Vec<&View>, Fault> {
        match self.named(names)? {
            Value::List(list) => Ok(list.iter().flatten().map(|(_, v)| v).collect()),
            other => Err(Fault::Text(format!("{names} is {other:?}, no list"))),
        }
    }
    /// A scalar that may be absent.
    pub fn opt_scalar(&self, names: &str) -> Result<Option<&Scalar>, Fault> {
        match self.named(names)? {
            Value::Scalar(s) => Ok(s.as_ref()),
            other => Err(Fault::Text(format!("{names} is {other:?}, no scalar"))),
        }
    }
    /// A scalar.
    pub fn scalar(&self, names: &str) -> Result<&Scalar, Fault> {
        self.opt_scalar(names)?.ok_or_else(|| Fault::Text(format!("{names} is null")))
    }
    /// The scalars of a list; none when absent.
    pub fn scalars(&self, names: &str) -> Result<&[Scalar], Fault> {
        match self.named(names)? {
            Value::Scalars(s) => Ok(s.as_deref().unwrap_or_default()),
            other => Err(Fault::Text(format!("{names} is {other:?}, no scalar list"))),
        }
    }
    /// An integer parameter.
    pub fn int(&self, names: &str) -> Result<i64, Fault> {
        match self.named(names)? {
            Value::Number(Arg::I(v)) => Ok(*v),
            Value::Number(Arg::U(v)) => Ok(*v as i64),
            Value::Number(Arg::B(v)) => Ok(i64::from(*v)),
            other => Err(Fault::Text(format!("{names} is {other:?}, no integer"))),
        }
    }
    /// A float parameter.
    pub fn num(&self, names: &str) -> Result<f64, Fault> {
        match self.named(names)? {
            Value::Number(Arg::F(v)) => Ok(*v),
            other => Err(Fault::Text(format!("{names} is {other:?}, no float"))),
        }
    }
    /// A bool parameter.
    pub fn flag(&self, names: &str) -> Result<bool, Fault> {
        Ok(self.int(names)? != 0)
    }
    /// An int array; empty when absent.
    pub fn ints(&self, names: &str) -> Result<Vec<i64>, Fault> {
        Ok(self.opt_ints(names)?.unwrap_or_default())
    }
    /// An int array that may be absent.
    pub fn opt_ints(&self, names: &str) -> Result<Option<Vec<i64>>, Fault> {
        match self.named(names)? {
            Value::Ints(v) => Ok(v.clone()),
            other => Err(Fault::Text(format!("{names} is {other:?}, no int array"))),
        }
    }
    /// A bool array; empty when absent.
    pub fn bools(&self, names: &str) -> Result<Vec<bool>, Fault> {
        match self.named(names)? {
            Value::Bools(v) => Ok(v.clone().unwrap_or_default()),
            other => Err(Fault::Text(format!("{names} is {other:?}, no bool array"))),
        }
    }
    /// A string; empty when absent.
    pub fn text(&self, names: &str) -> Result<&str, Fault> {
        match self.named(names)? {
            Value::Text(v) => Ok(v.as_deref().unwrap_or("")),
            other => Err(Fault::Text(format!("{names} is {other:?}, no string"))),
        }
    }
    /// Writes an output.
    pub fn put(&self, names: &str, values: &Values) -> Outcome {
        self.put_view(self.t(names)?, values)
    }
    /// Writes an output that the caller may leave out.
    pub fn put_opt(&self, names: &str, values: &Values) -> Outcome {
        match self.opt(names)? {
            Some(view) if view.numel() > 0 => self.put_view(view, values),
            _ => Ok(()),
        }
    }
    /// Writes a tensor.
    pub fn put_view(&self, view: &View, values: &Values) -> Outcome {
        if knobs().numerics == Numerics::Perturb
            && view.dtype.is_float()
            && let Values::F(v) = values
        {
            let unit = match view.dtype {
                Dtype::F32 => 2f64.powi(-23),
                Dtype::F16 => 2f64.powi(-10),
                Dtype::Bf16 => 2f64.powi(-7),
                _ => 0.0,
            };
            let perturbed = v.iter().enumerate().map(|(i, x)| {
                // A unit in the last place of numbers of this size.
                let last = unit * x.abs().log2().floor().exp2();
                x + last * ((noise(self.serial ^ (i as u64) << 20) % 3) as f64 - 1.0)
            });
            return Ok(view.store(&Values::F(perturbed.collect()), self.decl.name)?);
        }
        Ok(view.store(values, self.decl.name)?)
    }
    /// Writes fewer values than the tensor was made for, and gives it their shape.
    pub fn put_shaped(&self, names: &str, dims: &[i64], values: &Values) -> Outcome {
        let Value::Tensor(Some((tensor, view))) = self.named(names)? else { return Ok(()) };
        let mut strides = vec![1i64; dims.len()];
        for d in (0..dims.len().saturating_sub(1)).rev() {
            strides[d] = strides[d + 1] * dims[d + 1].max(1);
        }
        let shaped = View { dims: dims.to_vec(), strides, ..view.clone() };
        shaped.store(values, self.decl.name)?;
        let mut held = tensor.0.lock().unwrap_or_else(PoisonError::into_inner);
        held.dims.clone_from(&shaped.dims);
        held.strides.clone_from(&shaped.strides);
        Ok(())
    }
    /// A sum as the device forms it: in f32, in an order that is the same for all only when determinism is asked for.
    pub fn sum(&self, terms: impl Iterator<Item = f64>) -> f64 {
        if knobs().numerics == Numerics::Oracle {
            return terms.sum();
        }
        let terms: Vec<f32> = terms.map(|t| t as f32).collect();
        let n = terms.len();
        let start = if self.fixed || n < 2 { 0 } else { (noise(self.serial) % n as u64) as usize };
        // Pairwise within blocks, as any parallel reduction does: eight running sums, added at the end.
        let mut lanes = [0f32; 8];
        for (i, k) in (start..n).chain(0..start).enumerate() {
            lanes[i % 8] += terms[k];
        }
        f64::from(
            ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7])),
        )
    }
    /// The order in which `n` parts of sums in global memory are added: their own when determinism is asked for, else one
    /// drawn for the call.
    pub fn order(&self, n: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..n).collect();
        if !self.fixed {
            for i in (1..n).rev() {
                let draw = noise(self.serial.wrapping_mul(0x1_0001).wrapping_add(i as u64));
                order.swap(i, (draw % (i as u64 + 1)) as usize);
            }
        }
        order
    }
    /// `sum + term` as a device adds atomically: in f32.
    pub fn added(sum: f64, term: f64) -> f64 {
        match knobs().numerics {
            Numerics::Oracle => sum + term,
            _ => f64::from(sum as f32 + term as f32),
        }
    }
}

/// Runs the kernel of a call.
pub fn run(call: &Call) -> Result<(), i32> {
    let Some(operator) = super::kernels::find(call.decl.name) else { return Err(561_003) };
    super::tensor::lost();
    let mut outcome = (operator.kernel)(call);
    if outcome.is_ok() && super::tensor::lost() {
        outcome = Err(Fault::from("it has no kernel for complex numbers in the emulator"));
    }
    match outcome {
        Ok(()) => Ok(()),
        Err(Fault::Code(code)) => Err(code),
        Err(Fault::Text(text)) => {
            use std::io::Write;
            let message = format!("cann-emu: {}: {text}\n", call.decl.name);
            // The stream carries only a code; the sentence would be lost otherwise.
            let _ = std::io::stderr().write_all(message.as_bytes());
            Err(report::fail(507_015, &message))
        }
    }
}

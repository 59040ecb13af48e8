//! One run of an operator on the emulator: arguments by the names of the prototype, both phases on a stream, and what is
//! wanted of its outputs.

use super::interface::{self, Prototype};
use crate::abi::{Arg, Kind};
use crate::api;
use crate::handles;
use crate::nn::tensor::{Dtype, Tensor, View};
use crate::nn::{phase1, phase2};
use crate::report;
use half::{bf16, f16};
use std::collections::HashMap;
use std::ffi::CString;
use std::sync::PoisonError;

/// A tensor on the device, and the bytes that were put there.
struct Held {
    handle: usize,
    at: usize,
    bytes: Vec<u8>,
}

enum Given {
    Tensor(Held),
    List(usize, Vec<Held>),
    Handle(usize),
    Number(f64),
    Text(CString),
}

/// What an output must hold; without values any will do that a later check looks at.
struct Wanted {
    name: &'static str,
    element: usize,
    dims: Option<Vec<i64>>,
    values: Option<Vec<f64>>,
    slack: f64,
}

type Check = Box<dyn Fn(&HashMap<&'static str, Vec<f64>>)>;

/// A run in the making.
pub(super) struct Run {
    prototype: &'static Prototype,
    /// The element type that the case is run with.
    pub(super) dtype: Dtype,
    spaced: bool,
    given: HashMap<&'static str, Given>,
    wanted: Vec<Wanted>,
    checks: Vec<Check>,
    seed: u64,
    slack: f64,
}

pub(super) fn encode(values: &[f64], dtype: Dtype) -> Vec<u8> {
    let one = |v: &f64| -> Vec<u8> {
        match dtype {
            Dtype::F32 | Dtype::C64 => (*v as f32).to_le_bytes().to_vec(),
            Dtype::F16 | Dtype::C32 => f16::from_f32(*v as f32).to_le_bytes().to_vec(),
            Dtype::Bf16 => bf16::from_f32(*v as f32).to_le_bytes().to_vec(),
            Dtype::F64 | Dtype::C128 => v.to_le_bytes().to_vec(),
            Dtype::I64 => (*v as i64).to_le_bytes().to_vec(),
            Dtype::U64 => (*v as u64).to_le_bytes().to_vec(),
            Dtype::I32 => (*v as i32).to_le_bytes().to_vec(),
            Dtype::I16 => (*v as i16).to_le_bytes().to_vec(),
            Dtype::I8 => vec![*v as i8 as u8],
            _ => vec![*v as u8],
        }
    };
    values.iter().flat_map(one).collect()
}

fn decode(bytes: &[u8], dtype: Dtype) -> Vec<f64> {
    let width = match dtype {
        Dtype::C32 => 2,
        Dtype::C64 => 4,
        Dtype::C128 => 8,
        other => other.size(),
    };
    let one = |b: &[u8]| -> f64 {
        match dtype {
            Dtype::F32 | Dtype::C64 => f64::from(f32::from_le_bytes(b.try_into().unwrap())),
            Dtype::F16 | Dtype::C32 => f16::from_le_bytes(b.try_into().unwrap()).to_f64(),
            Dtype::Bf16 => bf16::from_le_bytes(b.try_into().unwrap()).to_f64(),
            Dtype::F64 | Dtype::C128 => f64::from_le_bytes(b.try_into().unwrap()),
            Dtype::I64 => i64::from_le_bytes(b.try_into().unwrap()) as f64,
            Dtype::U64 => u64::from_le_bytes(b.try_into().unwrap()) as f64,
            Dtype::I32 => f64::from(i32::from_le_bytes(b.try_into().unwrap())),
            Dtype::I16 => f64::from(i16::from_le_bytes(b.try_into().unwrap())),
            Dtype::I8 => f64::from(b[0] as i8),
            _ => f64::from(b[0]),
        }
    };
    bytes.chunks(width).map(one).collect()
}

/// Values as an element type holds them.
pub(super) fn rounded(values: &[f64], dtype: Dtype) -> Vec<f64> {
    decode(&encode(values, dtype), dtype)
}

/// Numbers between `low` and `high`, the same for one seed.
pub(super) fn noise(n: usize, seed: u64, low: f64, high: f64) -> Vec<f64> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x2545_f491_4f6c_dd1d;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1u64 << 53) as f64
    };
    (0..n + 3).map(|_| low + (high - low) * next()).skip(3).collect()
}

pub(super) fn numel(dims: &[i64]) -> usize {
    dims.iter().product::<i64>() as usize
}

fn ok(code: i32, what: &str) {
    assert_eq!(code, 0, "{what}: {}", api::text(api::aclGetRecentErrMsg()));
}

/// Relative and absolute error that an output of a type may have: it is rounded once, and sums are formed in f32.
fn tolerance(dtype: Dtype) -> f64 {
    match dtype {
        Dtype::F16 | Dtype::C32 => 1e-3,
        Dtype::Bf16 => 8e-3,
        Dtype::F32 | Dtype::C64 => 4e-6,
        Dtype::F64 | Dtype::C128 => 1e-6, // formulas are partly differences
        _ => 0.0,
    }
}

impl Run {
    pub(super) fn new(name: &str, dtype: Dtype, spaced: bool) -> Run {
        let prototype = interface::all().get(name).unwrap_or_else(|| panic!("the interface has no {name}"));
        Run {
            prototype,
            dtype,
            spaced,
            given: HashMap::new(),
            wanted: Vec::new(),
            checks: Vec::new(),
            seed: 1,
            slack: 1.0,
        }
    }

    /// The parameter of one of several names separated by `|`.
    fn param(&self, names: &str) -> (&'static str, &'static str) {
        let found = names.split('|').find_map(|n| {
            let at = self.prototype.decl.params.iter().position(|p| p.name == n)?;
            Some((self.prototype.decl.params[at].name, self.prototype.classes[at]))
        });
        found.unwrap_or_else(|| panic!("{} has no parameter {names}", self.prototype.decl.name))
    }

    /// Whether the operator has a parameter.
    pub(super) fn has(&self, name: &str) -> bool {
        self.prototype.decl.params.iter().any(|p| p.name == name)
    }

    /// Names of the first two parameters.
    pub(super) fn first_two(&self) -> (&'static str, &'static str) {
        (self.prototype.decl.params[0].name, self.prototype.decl.params[1].name)
    }

    /// Name of the first parameter.
    pub(super) fn first(&self) -> &'static str {
        self.prototype.decl.params[0].name
    }

    /// Fills every parameter that is a tensor.
    pub(super) fn tensors(&mut self, dims: &[i64]) {
        let kinds = [Kind::T, Kind::To];
        let names: Vec<_> =
            self.prototype.decl.params.iter().filter(|p| kinds.contains(&p.kind)).map(|p| p.name).collect();
        for name in names {
            let held = self.hold(dims, self.dtype, None);
            self.give(name, &kinds, Given::Tensor(held));
        }
    }

    /// What the first phase says when it refuses with a code.
    pub(super) fn refusal(&self, code: i32) -> String {
        let decl = self.prototype.decl;
        let args: Vec<Arg> = (0..decl.params.len()).map(|i| self.argument(i)).collect();
        let (mut size, mut executor) = (0u64, 0usize);
        let found = phase1(decl, &args, &raw mut size, &raw mut executor);
        let said = api::text(api::aclGetRecentErrMsg());
        assert_eq!(found, code, "{said}");
        said
    }

    /// Whether a parameter is a scalar.
    pub(super) fn is_scalar(&self, name: &str) -> bool {
        self.prototype.decl.params.iter().any(|p| p.name == name && p.kind == Kind::S)
    }

    /// Whether a parameter is a list of integers.
    pub(super) fn is_list(&self, name: &str) -> bool {
        self.prototype.decl.params.iter().any(|p| p.name == name && p.kind == Kind::IA)
    }

    /// Numbers between -2 and 2.
    pub(super) fn values(&mut self, n: usize) -> Vec<f64> {
        self.seed += 1;
        noise(n, self.seed, -2.0, 2.0)
    }

    /// Whether a parameter is a tensor.
    pub(super) fn is_tensor(&self, name: &str) -> bool {
        self.prototype.decl.params.iter().any(|p| p.name == name && matches!(p.kind, Kind::T | Kind::To))
    }

    fn give(&mut self, names: &str, kinds: &[Kind], value: Given) -> &mut Run {
        let (name, class) = self.param(names);
        let kind = self.prototype.decl.params.iter().find(|p| p.name == name).unwrap().kind;
        assert!(kinds.contains(&kind), "{name} of {} is {class}", self.prototype.decl.name);
        let twice = self.given.insert(name, value).is_some();
        assert!(!twice, "{name} of {} is given twice", self.prototype.decl.name);
        self
    }

    /// Outputs may be off by `times` the tolerance of their type.
    pub(super) fn loose(&mut self, times: f64) -> &mut Run {
        self.slack = times;
        self
    }

    /// A tensor on the device; spaced ones leave a gap behind every element and begin behind one.
    fn hold(&self, dims: &[i64], dtype: Dtype, values: Option<&[f64]>) -> Held {
        let n = numel(dims);
        let size = dtype.size();
        let spaced = self.spaced && !dims.is_empty() && n > 0;
        let storage: Vec<i64> = if spaced { [dims, &[2]].concat() } else { dims.to_vec() };
        let count = if spaced { 2 * n } else { n };
        let mut bytes = vec![0xff; count * size];
        if let Some(values) = values {
            let flat = encode(values, dtype);
            assert_eq!(
                flat.len(),
                n * size,
                "{:?}: {} values for {dims:?}",
                self.prototype.decl.name,
                values.len()
            );
            for (i, one) in flat.chunks(size).enumerate() {
                let at = if spaced { 2 * i + 1 } else { i };
                bytes[at * size..(at + 1) * size].copy_from_slice(one);
            }
        }
        let mut at = 0usize;
        if count > 0 {
            ok(api::aclrtMalloc(&raw mut at as usize, bytes.len() as u64, 0), "aclrtMalloc");
            let len = bytes.len() as u64;
            ok(api::aclrtMemcpy(at, len, bytes.as_ptr() as usize, len, 1), "aclrtMemcpy");
        }
        let mut strides = vec![if spaced { 2 } else { 1 }; dims.len()];
        for d in (0..dims.len().saturating_sub(1)).rev() {
            strides[d] = strides[d + 1] * dims[d + 1];
        }
        let handle = api::aclCreateTensor(
            dims.as_ptr() as usize,
            dims.len() as u64,
            dtype.code(),
            strides.as_ptr() as usize,
            i64::from(spaced),
            2,
            storage.as_ptr() as usize,
            storage.len() as u64,
            at,
        );
        assert_ne!(handle, 0, "aclCreateTensor");
        Held { handle, at, bytes }
    }

    /// A tensor with values of its own; gives them back as the type holds them.
    ///
    /// Of a complex type, two numbers stand for one.
    pub(super) fn t(&mut self, name: &str, dims: &[i64], dtype: Dtype, values: &[f64]) -> Vec<f64> {
        let held = self.hold(dims, dtype, Some(values));
        self.give(name, &[Kind::T, Kind::To], Given::Tensor(held));
        rounded(values, dtype)
    }

    /// A tensor of the case's type between -2 and 2.
    pub(super) fn x(&mut self, name: &str, dims: &[i64]) -> Vec<f64> {
        self.within(name, dims, -2.0, 2.0)
    }

    /// A tensor of the case's type between two bounds.
    pub(super) fn within(&mut self, name: &str, dims: &[i64], low: f64, high: f64) -> Vec<f64> {
        self.seed += 1;
        let values = noise(numel(dims), self.seed, low, high);
        self.t(name, dims, self.dtype, &values)
    }

    /// A tensor of integers of the case's type or another from `low` to `high`.
    pub(super) fn whole(&mut self, name: &str, dims: &[i64], dtype: Dtype, low: i64, high: i64) -> Vec<f64> {
        self.seed += 1;
        let values = noise(numel(dims), self.seed, low as f64, high as f64 + 1.0);
        self.t(name, dims, dtype, &values.iter().map(|v| v.floor()).collect::<Vec<f64>>())
    }

    /// A tensor of truth values.
    pub(super) fn mask(&mut self, name: &str, dims: &[i64]) -> Vec<bool> {
        self.whole(name, dims, Dtype::Bool, 0, 1).iter().map(|v| *v != 0.0).collect()
    }

    /// A list of tensors of the case's type.
    pub(super) fn list(&mut self, name: &str, all: &[(&[i64], Vec<f64>)]) -> Vec<Vec<f64>> {
        self.list_as(name, self.dtype, all)
    }

    pub(super) fn list_as(&mut self, name: &str, dtype: Dtype, all: &[(&[i64], Vec<f64>)]) -> Vec<Vec<f64>> {
        let held: Vec<Held> = all.iter().map(|(d, v)| self.hold(d, dtype, Some(v))).collect();
        self.listed(name, held);
        all.iter().map(|(_, v)| rounded(v, dtype)).collect()
    }

    fn listed(&mut self, name: &str, held: Vec<Held>) {
        let handles: Vec<usize> = held.iter().map(|h| h.handle).collect();
        let list = api::aclCreateTensorList(handles.as_ptr() as usize, handles.len() as u64);
        self.give(name, &[Kind::TL, Kind::TLo], Given::List(list, held));
    }

    /// Two tensors of different shapes in a list.
    pub(super) fn two(&mut self, name: &str, low: f64, high: f64) -> Vec<Vec<f64>> {
        self.seed += 2;
        let all: [(&[i64], Vec<f64>); 2] =
            [(&[3, 5], noise(15, self.seed, low, high)), (&[7], noise(7, self.seed + 1, low, high))];
        self.list(name, &all)
    }

    /// A scalar in f32.
    pub(super) fn s(&mut self, name: &str, value: f64) -> &mut Run {
        let v = value as f32;
        let handle = api::aclCreateScalar(&raw const v as usize, 0);
        self.give(name, &[Kind::S], Given::Handle(handle))
    }

    /// A scalar in int64.
    pub(super) fn si(&mut self, name: &str, value: i64) -> &mut Run {
        let handle = api::aclCreateScalar(&raw const value as usize, 9);
        self.give(name, &[Kind::S], Given::Handle(handle))
    }

    /// A complex scalar.
    pub(super) fn sc(&mut self, name: &str, re: f64, im: f64) -> &mut Run {
        let v = [re as f32, im as f32];
        let handle = api::aclCreateScalar(v.as_ptr() as usize, 16);
        self.give(name, &[Kind::S], Given::Handle(handle))
    }

    /// A list of scalars in f32.
    pub(super) fn scalars(&mut self, name: &str, values: &[f64]) -> &mut Run {
        let one = |v: &f64| {
            let v = *v as f32;
            api::aclCreateScalar(&raw const v as usize, 0)
        };
        let handles: Vec<usize> = values.iter().map(one).collect();
        let list = api::aclCreateScalarList(handles.as_ptr() as usize, handles.len() as u64);
        self.give(name, &[Kind::SL], Given::Handle(list))
    }

    /// A number.
    pub(super) fn n(&mut self, name: &str, value: f64) -> &mut Run {
        self.give(name, &[Kind::Number], Given::Number(value))
    }

    /// A list of integers.
    pub(super) fn ints(&mut self, name: &str, values: &[i64]) -> &mut Run {
        let handle = api::aclCreateIntArray(values.as_ptr() as usize, values.len() as u64);
        self.give(name, &[Kind::IA], Given::Handle(handle))
    }

    /// A list of truth values.
    pub(super) fn bools(&mut self, name: &str, values: &[bool]) -> &mut Run {
        let handle = api::aclCreateBoolArray(values.as_ptr() as usize, values.len() as u64);
        self.give(name, &[Kind::BA], Given::Handle(handle))
    }

    /// A text.
    pub(super) fn text(&mut self, name: &str, value: &str) -> &mut Run {
        self.give(name, &[Kind::Str], Given::Text(CString::new(value).unwrap()))
    }

    fn want(&mut self, name: &str, element: usize, dims: Option<&[i64]>, values: Option<Vec<f64>>) {
        let (name, _) = self.param(name);
        let (dims, slack) = (dims.map(<[i64]>::to_vec), self.slack);
        self.wanted.push(Wanted { name, element, dims, values, slack });
    }

    /// An output of the case's type.
    pub(super) fn out(&mut self, name: &str, dims: &[i64], want: Vec<f64>) -> &mut Run {
        self.out_as(name, dims, self.dtype, want)
    }

    /// An output of another type.
    pub(super) fn out_as(&mut self, name: &str, dims: &[i64], dtype: Dtype, want: Vec<f64>) -> &mut Run {
        let held = self.hold(dims, dtype, None);
        self.give(name, &[Kind::T, Kind::To], Given::Tensor(held));
        self.want(name, 0, Some(dims), Some(want));
        self
    }

    /// An output whose shape the operator finds: room for `room`, wanted of shape `dims`.
    pub(super) fn found(
        &mut self,
        name: &str,
        room: &[i64],
        dtype: Dtype,
        dims: &[i64],
        want: Vec<f64>,
    ) -> &mut Run {
        let held = self.hold(room, dtype, None);
        self.give(name, &[Kind::T, Kind::To], Given::Tensor(held));
        self.want(name, 0, Some(dims), Some(want));
        self
    }

    /// An output that only `check` looks at.
    pub(super) fn any(&mut self, name: &str, dims: &[i64], dtype: Dtype) -> &mut Run {
        let held = self.hold(dims, dtype, None);
        self.give(name, &[Kind::T, Kind::To], Given::Tensor(held));
        self.want(name, 0, None, None);
        self
    }

    /// Outputs of a list, of the case's type.
    pub(super) fn outs(&mut self, name: &str, all: &[(&[i64], Vec<f64>)]) -> &mut Run {
        let held: Vec<Held> = all.iter().map(|(d, _)| self.hold(d, self.dtype, None)).collect();
        self.listed(name, held);
        for (i, (d, v)) in all.iter().enumerate() {
            self.want(name, i, Some(d), Some(v.clone()));
        }
        self
    }

    /// A tensor that was given is written, too, and must then hold this.
    pub(super) fn becomes(&mut self, name: &str, want: Vec<f64>) -> &mut Run {
        self.want(name, 0, None, Some(want));
        self
    }

    /// Element `i` of a list that was given must then hold this.
    pub(super) fn becomes_at(&mut self, name: &str, i: usize, want: Vec<f64>) -> &mut Run {
        self.want(name, i, None, Some(want));
        self
    }

    /// A tensor that was given may be written; only `check` looks at it.
    pub(super) fn wanted_any(&mut self, name: &str) -> &mut Run {
        self.want(name, 0, None, None);
        self
    }

    /// A property of the outputs, by name.
    pub(super) fn check(&mut self, f: impl Fn(&HashMap<&'static str, Vec<f64>>) + 'static) -> &mut Run {
        self.checks.push(Box::new(f));
        self
    }

    fn argument(&self, i: usize) -> Arg {
        let param = self.prototype.decl.params[i];
        let given = self.given.get(param.name);
        if param.kind == Kind::Number {
            let v = match given {
                None => 0.0,
                Some(Given::Number(v)) => *v,
                Some(_) => panic!("{} is a number", param.name),
            };
            return match self.prototype.classes[i] {
                "f32" => Arg::F(f64::from(v as f32)),
                "f64" => Arg::F(v),
                "bool" => Arg::B(v != 0.0),
                "u8" | "u32" | "u64" => Arg::U(v as u64),
                _ => Arg::I(v as i64),
            };
        }
        Arg::P(match given {
            None => 0,
            Some(Given::Tensor(held)) => held.handle,
            Some(Given::List(list, _)) => *list,
            Some(Given::Handle(handle)) => *handle,
            Some(Given::Text(text)) => text.as_ptr() as usize,
            Some(Given::Number(_)) => panic!("{} is no number", param.name),
        })
    }

    fn held(&self, name: &str, element: usize) -> &Held {
        match &self.given[name] {
            Given::Tensor(held) => held,
            Given::List(_, all) => &all[element],
            _ => panic!("{name} is no tensor"),
        }
    }

    fn bytes(held: &Held) -> Vec<u8> {
        let mut bytes = vec![0u8; held.bytes.len()];
        if !bytes.is_empty() {
            let len = bytes.len() as u64;
            ok(api::aclrtMemcpy(bytes.as_mut_ptr() as usize, len, held.at, len, 2), "aclrtMemcpy");
        }
        bytes
    }

    fn view(held: &Held) -> View {
        let tensor = handles::get::<Tensor>(held.handle, "formulas", &report::NN_HANDLE, 1).unwrap();
        tensor.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn read(held: &Held) -> (View, Vec<f64>) {
        let (bytes, view) = (Run::bytes(held), Run::view(held));
        let size = view.dtype.size();
        let flat: Vec<u8> =
            view.offsets().into_iter().flat_map(|o| bytes[o as usize * size..][..size].to_vec()).collect();
        let values = decode(&flat, view.dtype);
        (view, values)
    }

    /// Runs both phases and compares. False if the operator asks for tensors without gaps and these have some.
    pub(super) fn finish(mut self) -> bool {
        let decl = self.prototype.decl;
        let args: Vec<Arg> = (0..decl.params.len()).map(|i| self.argument(i)).collect();
        let (mut size, mut executor) = (0u64, 0usize);
        let code = phase1(decl, &args, &raw mut size, &raw mut executor);
        if code != 0 {
            let said = api::text(api::aclGetRecentErrMsg());
            assert!(self.spaced && said.contains("must be contiguous"), "{code}: {said}");
            return false;
        }
        let (mut workspace, mut stream) = (0usize, 0usize);
        if size > 0 {
            ok(api::aclrtMalloc(&raw mut workspace as usize, size, 0), "workspace");
        }
        ok(api::aclrtCreateStream(&raw mut stream as usize), "aclrtCreateStream");
        ok(phase2(decl.name, workspace, size, executor, stream), "second phase");
        ok(api::aclrtSynchronizeStream(stream), "aclrtSynchronizeStream");
        let mut results = HashMap::new();
        assert!(!self.wanted.is_empty(), "nothing is wanted");
        for w in &self.wanted {
            let (view, got) = Run::read(self.held(w.name, w.element));
            if let Some(dims) = &w.dims {
                assert_eq!(&view.dims, dims, "shape of {}", w.name);
            }
            if let Some(want) = &w.values {
                assert_eq!(got.len(), want.len(), "elements of {}", w.name);
                let tol = tolerance(view.dtype) * w.slack;
                for (i, (g, v)) in got.iter().zip(want).enumerate() {
                    let near = g == v || (g.is_nan() && v.is_nan()) || (g - v).abs() <= tol * (1.0 + v.abs());
                    assert!(near, "{}[{i}] of {:?}: wanted {v}, found {g}", w.name, view.dims);
                }
            }
            results.insert(w.name, got);
        }
        self.checks.iter().for_each(|check| check(&results));
        for (name, given) in &self.given {
            if self.wanted.iter().any(|w| w.name == *name) {
                continue;
            }
            let all: Vec<&Held> = match given {
                Given::Tensor(held) => vec![held],
                Given::List(_, all) => all.iter().collect(),
                _ => continue,
            };
            for held in all {
                assert_eq!(Run::bytes(held), held.bytes, "{name} was written");
            }
        }
        if workspace != 0 {
            ok(api::aclrtFree(workspace), "aclrtFree");
        }
        for (_, given) in self.given.drain() {
            let all = match given {
                Given::Tensor(held) => vec![held],
                Given::List(_, all) => all,
                _ => continue,
            };
            for held in all.iter().filter(|h| h.at != 0) {
                ok(api::aclrtFree(held.at), "aclrtFree");
            }
        }
        ok(api::aclrtDestroyStream(stream), "aclrtDestroyStream");
        true
    }
}

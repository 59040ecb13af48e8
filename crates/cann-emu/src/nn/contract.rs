//! Contracts: what an operator's page asks of its arguments, as data.
//!
//! A contract is a line of clauses parted by spaces:
//!
//! - `self:FDI`: the element types of a tensor or list. `F` f16, bf16, f32; `D` f64; `I` integers; `B` bool; `C` complex;
//!   `L` int32 and int64; `H` f16 and bf16; `S` f32; `U` uint8 and bool.
//! - `null(a,b)`: these may be null, besides all whose names end in `Optional`.
//! - `out(a,b)`, `inout(a)`: roles that names and constness do not tell.
//! - `same(a,b)`: equal shapes. `type(a,b)`: equal element types.
//! - `bcast(a,b>c)`: `a` and `b` broadcast to the shape of `c`.
//! - `spread(a>b)`: `a` can be broadcast to `b`, which may be larger.
//! - `rank(a,2..6)`: number of dimensions. `contig(a)`: elements follow one another.
//! - `lists(a,b)`: lists of equal length with equal shapes.
//! - `product(a,b>c)`: matrices or stacks of them that can be multiplied, and the shape of their product.
//! - `covered(mode,mask)`: modes 2 to 4 need the mask of 2048 by 2048; of names parted by `|` the one that the operator has.
//! - `whole(mode,mask)`: as `covered`, but without a mask the mode is passed over, as training's attention does.
//! - `joined(a,dim>c)`: the tensors of a list differ in no dimension but the one that `dim` names, where they add up to `c`;
//!   empty tensors of one dimension are passed over.
//! - `layout(q,layout,heads)`: the letters of `layout` are those of a tensor of that many dimensions, which holds `heads` heads
//!   of a number; heads have at most 768 elements and there are at most 256.
//! - `even(a,dim)`: the dimension that `dim` names has an even size.

use super::exec::{Call, Value};
use super::tensor::{Dtype, View};
use crate::abi::{Arg, Kind, Param};

/// What a call does with a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Reads it.
    In,
    /// Writes it.
    Out,
    /// Both.
    InOut,
}

#[derive(Debug)]
enum Clause {
    Types(String, String),
    Null(Vec<String>),
    Out(Vec<String>),
    InOut(Vec<String>),
    Same(Vec<String>),
    Type(Vec<String>),
    Broadcast(Vec<String>, String),
    Rank(String, usize, usize),
    Contiguous(Vec<String>),
    Lists(Vec<String>),
    Even(String, String),
    Covered { mode: String, mask: String, needed: bool },
    Product(String, String, String),
    Spread(String, String),
    Joined(String, String, String),
    Layout(String, String, String),
}

/// A parsed contract.
#[derive(Debug, Default)]
pub struct Contract {
    clauses: Vec<Clause>,
}

fn words(text: &str) -> Vec<String> {
    text.split(',').map(|w| w.trim().to_owned()).collect()
}

impl Contract {
    /// Reads the line of a contract.
    ///
    /// # Panics
    /// On a clause that is none of the above: the tables are part of this crate.
    pub fn parse(text: &str) -> Contract {
        let clauses = text.split_whitespace().map(|clause| {
            if let Some((name, body)) = clause.split_once('(') {
                let body = body.trim_end_matches(')');
                return match name {
                    "null" => Clause::Null(words(body)),
                    "out" => Clause::Out(words(body)),
                    "inout" => Clause::InOut(words(body)),
                    "same" => Clause::Same(words(body)),
                    "type" => Clause::Type(words(body)),
                    "contig" => Clause::Contiguous(words(body)),
                    "lists" => Clause::Lists(words(body)),
                    "covered" | "whole" => {
                        let (mode, mask) = body.split_once(',').expect("covered(mode,mask)");
                        Clause::Covered {
                            mode: mode.to_owned(),
                            mask: mask.to_owned(),
                            needed: name == "covered",
                        }
                    }
                    "even" => {
                        let (a, d) = body.split_once(',').expect("even(a,dim)");
                        Clause::Even(a.to_owned(), d.to_owned())
                    }
                    "bcast" => {
                        let (from, to) = body.split_once('>').expect("bcast(a,b>c)");
                        Clause::Broadcast(words(from), to.to_owned())
                    }
                    "spread" => {
                        let (from, to) = body.split_once('>').expect("spread(a>b)");
                        Clause::Spread(from.to_owned(), to.to_owned())
                    }
                    "joined" => {
                        let (from, to) = body.split_once('>').expect("joined(a,dim>c)");
                        let (a, dim) = from.split_once(',').expect("joined(a,dim>c)");
                        Clause::Joined(a.to_owned(), dim.to_owned(), to.to_owned())
                    }
                    "product" => {
                        let (from, to) = body.split_once('>').expect("product(a,b>c)");
                        let (a, b) = from.split_once(',').expect("product(a,b>c)");
                        Clause::Product(a.to_owned(), b.to_owned(), to.to_owned())
                    }
                    "layout" => {
                        let [q, layout, heads] =
                            <[String; 3]>::try_from(words(body)).expect("layout(q,layout,heads)");
                        Clause::Layout(q, layout, heads)
                    }
                    "rank" => {
                        let (a, range) = body.split_once(',').expect("rank(a,1..6)");
                        let (low, high) = range.split_once("..").unwrap_or((range, range));
                        Clause::Rank(
                            a.to_owned(),
                            low.parse().expect("a number"),
                            high.parse().expect("a number"),
                        )
                    }
                    other => panic!("unknown clause {other}"),
                };
            }
            let (name, types) = clause.split_once(':').expect("name:types");
            Clause::Types(name.to_owned(), types.to_owned())
        });
        Contract { clauses: clauses.collect() }
    }

    /// What a call does with a parameter.
    pub fn role(&self, param: &Param) -> Role {
        for clause in &self.clauses {
            match clause {
                Clause::Out(names) if names.iter().any(|n| n == param.name) => return Role::Out,
                Clause::InOut(names) if names.iter().any(|n| n == param.name) => return Role::InOut,
                _ => {}
            }
        }
        let name = param.name;
        if name.ends_with("Ref") || name.ends_with("RefOptional") || name.ends_with("OptionalRef") {
            return Role::InOut;
        }
        let told = name == "out" || name.ends_with("Out") || name.ends_with("OutOptional");
        if told || matches!(param.kind, Kind::To | Kind::TLo) { Role::Out } else { Role::In }
    }

    fn may_be_null(&self, name: &str) -> bool {
        name.contains("Optional")
            || self
                .clauses
                .iter()
                .any(|c| matches!(c, Clause::Null(names) if names.iter().any(|n| n == name)))
    }

    /// Evaluates the contract.
    ///
    /// # Errors
    /// 161001 for a required argument that is null, else 161002, and the sentence of the first clause that does not hold.
    pub fn check(&self, call: &Call) -> Result<(), (i32, String)> {
        for param in call.decl.params {
            let missing = match call.value(param.name) {
                Some(Value::Tensor(None) | Value::Scalar(None)) => true,
                Some(Value::List(None)) => matches!(param.kind, Kind::TL | Kind::TLo),
                _ => false,
            };
            if missing && !self.may_be_null(param.name) {
                return Err((161_001, format!("{} must not be null", param.name)));
            }
        }
        self.clauses.iter().try_for_each(|clause| check(clause, call)).map_err(|text| (161_002, text))
    }
}

fn views<'a>(call: &'a Call, name: &str) -> Vec<&'a View> {
    match call.value(name) {
        Some(Value::Tensor(Some((_, v)))) => vec![v],
        Some(Value::List(Some(list))) => list.iter().map(|(_, v)| v).collect(),
        _ => Vec::new(),
    }
}

fn allowed(dtype: Dtype, letters: &str) -> bool {
    letters.chars().any(|c| match c {
        'F' => matches!(dtype, Dtype::F16 | Dtype::Bf16 | Dtype::F32),
        'H' => matches!(dtype, Dtype::F16 | Dtype::Bf16),
        'S' => dtype == Dtype::F32,
        'D' => dtype == Dtype::F64,
        'I' => dtype.is_int() && dtype != Dtype::Bool,
        'B' => dtype == Dtype::Bool,
        'C' => dtype.is_complex(),
        'L' => matches!(dtype, Dtype::I32 | Dtype::I64),
        'U' => matches!(dtype, Dtype::U8 | Dtype::Bool),
        _ => false,
    })
}

fn check(clause: &Clause, call: &Call) -> Result<(), String> {
    match clause {
        Clause::Types(name, letters) => {
            for view in views(call, name) {
                if !allowed(view.dtype, letters) {
                    let id = crate::report::NN_TYPE.id;
                    return Err(format!(
                        "{id}: {name}: expected an element type of {letters}, found {:?}",
                        view.dtype
                    ));
                }
            }
        }
        Clause::Same(names) => {
            let shapes: Vec<_> =
                names.iter().filter_map(|n| views(call, n).first().map(|v| (n, v.dims.clone()))).collect();
            for pair in shapes.windows(2) {
                if pair[0].1 != pair[1].1 {
                    return Err(format!(
                        "{} {:?} and {} {:?} must have one shape",
                        pair[0].0, pair[0].1, pair[1].0, pair[1].1
                    ));
                }
            }
        }
        Clause::Type(names) => {
            let types: Vec<_> =
                names.iter().filter_map(|n| views(call, n).first().map(|v| (n, v.dtype))).collect();
            for pair in types.windows(2) {
                if pair[0].1 != pair[1].1 {
                    return Err(format!(
                        "{} {:?} and {} {:?} must have one element type",
                        pair[0].0, pair[0].1, pair[1].0, pair[1].1
                    ));
                }
            }
        }
        Clause::Broadcast(from, to) => {
            let Some(target) = views(call, to).first().map(|v| v.dims.clone()) else { return Ok(()) };
            let mut shape = vec![1; target.len()];
            for name in from {
                for view in views(call, name) {
                    view.broadcast(&target).map_err(|e| format!("{name}: {e} of {to}"))?;
                    let lead = target.len() - view.dims.len();
                    for (i, d) in view.dims.iter().enumerate() {
                        if *d != 1 {
                            shape[lead + i] = *d;
                        }
                    }
                }
            }
            if shape != target {
                return Err(format!("{} broadcast to {shape:?}, {to} is {target:?}", from.join(" and ")));
            }
        }
        Clause::Rank(name, low, high) => {
            for view in views(call, name) {
                if !(*low..=*high).contains(&view.dims.len()) {
                    return Err(format!(
                        "{name}: expected {low} to {high} dimensions, found {:?}",
                        view.dims
                    ));
                }
            }
        }
        Clause::Contiguous(names) => {
            for name in names {
                if views(call, name).iter().any(|v| !v.is_contiguous()) {
                    return Err(format!("{name} must be contiguous"));
                }
            }
        }
        Clause::Lists(names) => {
            let lists: Vec<_> =
                names.iter().map(|n| (n, views(call, n))).filter(|(_, l)| !l.is_empty()).collect();
            for pair in lists.windows(2) {
                if pair[0].1.len() != pair[1].1.len() {
                    return Err(format!(
                        "{} has {} tensors, {} has {}",
                        pair[0].0,
                        pair[0].1.len(),
                        pair[1].0,
                        pair[1].1.len()
                    ));
                }
                for (i, (a, b)) in pair[0].1.iter().zip(&pair[1].1).enumerate() {
                    if a.dims != b.dims {
                        return Err(format!(
                            "tensor {i}: {} {:?}, {} {:?}",
                            pair[0].0, a.dims, pair[1].0, b.dims
                        ));
                    }
                }
            }
        }
        Clause::Even(name, dim) => {
            let dim = match call.value(dim) {
                Some(Value::Number(Arg::I(d))) => *d,
                _ => return Ok(()),
            };
            for view in views(call, name) {
                let rank = view.dims.len() as i64;
                let at = if dim < 0 { dim + rank } else { dim };
                if at < 0 || at >= rank {
                    return Err(format!("{name}: {rank} dimensions have no dimension {dim}"));
                }
                if view.dims[at as usize] % 2 != 0 {
                    return Err(format!("{name}: dimension {dim} must be even, found {:?}", view.dims));
                }
            }
        }
        Clause::Covered { mode, mask, needed } => {
            let Some(Value::Number(Arg::I(mode @ 2..=4))) = call.value(mode) else { return Ok(()) };
            let dims = mask.split('|').flat_map(|n| views(call, n)).next().map(|v| v.dims.clone());
            if !dims.as_deref().map_or(!needed, |d| d.ends_with(&[2048, 2048])) {
                return Err(format!("sparseMode {mode} needs a mask of 2048 x 2048, found {dims:?}"));
            }
        }
        Clause::Joined(list, dim, to) => {
            let (Some(out), Some(Value::Number(Arg::I(dim)))) =
                (views(call, to).first().map(|v| v.dims.clone()), call.value(dim))
            else {
                return Ok(());
            };
            let at = dim.rem_euclid(out.len().max(1) as i64) as usize;
            let mut sum = 0;
            for view in views(call, list).into_iter().filter(|v| v.dims != [0]) {
                let same = |d: usize| d == at || view.dims[d] == out[d];
                if view.dims.len() != out.len() || !(0..out.len()).all(same) {
                    return Err(format!("{list} {:?} in dimension {dim} of {to} {out:?}", view.dims));
                }
                sum += view.dims.get(at).copied().unwrap_or(1);
            }
            if out.get(at).is_some_and(|n| *n != sum) {
                return Err(format!("{list} add up to {sum} in dimension {dim}, {to} is {out:?}"));
            }
        }
        Clause::Layout(query, layout, heads) => {
            let (Some(view), Some(Value::Text(Some(layout))), Some(Value::Number(Arg::I(heads)))) =
                (views(call, query).first().copied(), call.value(layout), call.value(heads))
            else {
                return Ok(());
            };
            check_layout(query, view, layout, *heads)?;
        }
        Clause::Spread(from, to) => {
            let Some(target) = views(call, to).first().map(|v| v.dims.clone()) else { return Ok(()) };
            for view in views(call, from) {
                view.broadcast(&target).map_err(|e| format!("{from}: {e} of {to}"))?;
            }
        }
        Clause::Product(a, b, to) => {
            let first = |name: &str| views(call, name).first().map(|v| v.dims.clone());
            let (Some(x), Some(y), Some(out)) = (first(a), first(b), first(to)) else { return Ok(()) };
            let want = product_shape(&x, &y).ok_or_else(|| format!("{a} {x:?} times {b} {y:?}"))?;
            if want != out {
                return Err(format!("{a} {x:?} times {b} {y:?} is {want:?}, {to} is {out:?}"));
            }
        }
        Clause::Null(_) | Clause::Out(_) | Clause::InOut(_) => {}
    }
    Ok(())
}

/// A layout that a page names, as many dimensions as it has letters, and sizes within the pages' limits.
fn check_layout(query: &str, view: &View, layout: &str, heads: i64) -> Result<(), String> {
    // Of two layouts parted by `_` the second is that of the output.
    let own = layout.split('_').next().unwrap_or(layout);
    let (rank, packed) = match own {
        "BSH" | "SBH" => (3, true),
        "BSND" | "BNSD" | "NBSD" => (4, false),
        "TND" | "NTD" => (3, false),
        _ => return Err(format!("layout {layout}: expected BSH, SBH, BSND, BNSD, NBSD, TND or NTD")),
    };
    let dims = &view.dims;
    if dims.len() != rank {
        return Err(format!("layout {layout}: expected {rank} dimensions of {query}, found {dims:?}"));
    }
    let last = dims[rank - 1];
    let (count, width) = match own.find('N') {
        Some(at) => (dims[at], last),
        None => (heads, if heads > 0 { last / heads } else { 0 }),
    };
    if heads <= 0 || heads > 256 || count != heads || (packed && last % heads != 0) {
        return Err(format!(
            "{query} {dims:?} in layout {layout} with {heads} heads: expected 1 to 256 that divide it"
        ));
    }
    if width > 768 {
        return Err(format!("{query} {dims:?}: heads of {width}, expected at most 768"));
    }
    Ok(())
}

/// The shape of a product, if there is one: vectors as a row before and a column behind, stacks broadcast.
fn product_shape(a: &[i64], b: &[i64]) -> Option<Vec<i64>> {
    let (rows, inner) = match a {
        [] => return None,
        [k] => (None, *k),
        [.., m, k] => (Some(*m), *k),
    };
    let (deep, columns) = match b {
        [] => return None,
        [k] => (*k, None),
        [.., k, n] => (*k, Some(*n)),
    };
    if inner != deep {
        return None;
    }
    let (p, q) = (&a[..a.len().saturating_sub(2)], &b[..b.len().saturating_sub(2)]);
    let n = p.len().max(q.len());
    let at = |s: &[i64], i: usize| if i + s.len() < n { 1 } else { s[i + s.len() - n] };
    let mut out = Vec::new();
    for i in 0..n {
        let (x, y) = (at(p, i), at(q, i));
        if x != y && x != 1 && y != 1 {
            return None;
        }
        out.push(if x == 1 { y } else { x });
    }
    out.extend(rows);
    out.extend(columns);
    Some(out)
}

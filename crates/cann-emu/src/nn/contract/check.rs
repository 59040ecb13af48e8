//! Whether the clauses of a contract hold for a call.

use super::letters::Letters;
use super::{Clause, groups};
use crate::abi::Arg;
use crate::hccl;
use crate::knobs::chip;
use crate::nn::exec::{Call, Value};
use crate::nn::tensor::{Dtype, View};

pub(super) fn views<'a>(call: &'a Call, name: &str) -> Vec<&'a View> {
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
        'b' => dtype == Dtype::Bf16,
        '8' => dtype == Dtype::I8,
        'i' => dtype == Dtype::I32,
        'l' => dtype == Dtype::I64,
        'L' => matches!(dtype, Dtype::I32 | Dtype::I64),
        'u' => dtype == Dtype::U64,
        'U' => matches!(dtype, Dtype::U8 | Dtype::Bool),
        _ => false,
    })
}

/// Whether a number is one of `1|2|4` or within `1..8`.
fn listed(value: i64, list: &str) -> bool {
    let number = |t: &str| t.parse::<i64>().expect("a number");
    list.split('|').any(|one| match one.split_once("..") {
        Some((low, high)) => (number(low)..=number(high)).contains(&value),
        None => value == number(one),
    })
}

/// Whether the elements follow one another once the last two dimensions are exchanged.
fn is_turned(view: &View) -> bool {
    let n = view.dims.len();
    n >= 2 && {
        let mut other = view.clone();
        other.dims.swap(n - 2, n - 1);
        other.strides.swap(n - 2, n - 1);
        other.is_contiguous()
    }
}

/// Whether a clause holds; letters that it meets first are bound.
pub(super) fn check(clause: &Clause, call: &Call, letters: &mut Letters) -> Result<(), String> {
    match clause {
        Clause::Letters(shape) => {
            for view in views(call, &shape.name) {
                shape.check(view, letters, call)?;
            }
        }
        Clause::In(size, list) => match size.value(letters, call) {
            Some(v) if !listed(v, list) => return Err(format!("{size}: expected {list}, found {v}")),
            _ => {}
        },
        Clause::On(kind, size, list) => match size.value(letters, call) {
            Some(v) if chip() == kind && !listed(v, list) => {
                return Err(format!("{size}: expected {list} on {kind}, found {v}"));
            }
            _ => {}
        },
        Clause::Multiple(a, b) => {
            if let (Some(x), Some(y)) = (a.value(letters, call), b.value(letters, call))
                && x.checked_rem(y).map_or(x != 0, |rest| rest != 0)
            {
                return Err(format!("{a}: expected a multiple of {b} {y}, found {x}"));
            }
        }
        Clause::Equal(a, b) => {
            if let (Some(x), Some(y)) = (a.value(letters, call), b.value(letters, call))
                && x != y
            {
                return Err(format!("{a} {x} and {b} {y} must be equal"));
            }
        }
        Clause::Either(a, list) => {
            if let (Some(x), Some(y), Some(z)) =
                (a.value(letters, call), list[0].value(letters, call), list[1].value(letters, call))
                && x != y
                && x != z
            {
                return Err(format!("{a}: expected {} {y} or {} {z}, found {x}", list[0], list[1]));
            }
        }
        Clause::Let(letter, size) => {
            if let Some(v) = size.value(letters, call) {
                letters.set(letter, v);
            }
        }
        Clause::AtMost(a, b) => {
            if let (Some(x), Some(y)) = (a.value(letters, call), b.value(letters, call))
                && x > y
            {
                return Err(format!("{a}: expected at most {b} {y}, found {x}"));
            }
        }
        Clause::Default(letter, number) => letters.set_default(letter, *number),
        Clause::Long(name, list) => {
            let n = views(call, name).len() as i64;
            if n > 0 && !listed(n, list) {
                return Err(format!("{name}: expected {list} tensors, found {n}"));
            }
        }
        Clause::One(name, mode, modes) => {
            let n = views(call, name).len();
            if mode.value(letters, call).is_some_and(|m| listed(m, modes)) && n != 1 {
                return Err(format!("{name}: expected one tensor where {mode} is {modes}, found {n}"));
            }
        }
        Clause::Last(name, list) => {
            for view in views(call, name) {
                if view.dims.last().is_none_or(|d| !listed(*d, list)) {
                    return Err(format!(
                        "{name}: expected a last dimension of {list}, found {:?}",
                        view.dims
                    ));
                }
            }
        }
        Clause::Needs(a, b) => {
            if !views(call, a).is_empty() && views(call, b).is_empty() {
                return Err(format!("{a} is there, {b} is not"));
            }
        }
        Clause::Axes(name, list) => {
            if let Some(Value::Ints(Some(found))) = call.value(name)
                && !found.is_empty()
                && found != list
            {
                return Err(format!("{name}: expected {list:?}, found {found:?}"));
            }
        }
        Clause::Count(name, size) => {
            if let (Some(Value::Ints(Some(list))), Some(n)) = (call.value(name), size.value(letters, call))
                && list.len() as i64 != n
            {
                return Err(format!("{name}: expected {n} integers, found {}", list.len()));
            }
        }
        Clause::Each(name, list) => {
            if let Some(Value::Ints(Some(found))) = call.value(name)
                && let Some(v) = found.iter().find(|v| !listed(**v, list))
            {
                return Err(format!("{name}: expected {list} each, found {v}"));
            }
        }
        Clause::Ends(name, list) => {
            if let Some(Value::Ints(Some(found))) = call.value(list)
                && let Some(view) = views(call, name).into_iter().find(|v| !v.dims.ends_with(found))
            {
                return Err(format!("{name}: expected to end in {list} {found:?}, found {:?}", view.dims));
            }
        }
        Clause::Groups(names) => groups::check(names, call)?,
        Clause::Together(names) => {
            let there: Vec<&String> = names.iter().filter(|n| !views(call, n).is_empty()).collect();
            if !there.is_empty() && there.len() != names.len() {
                return Err(format!("{names:?}: all or none must be there, found {there:?}"));
            }
        }
        Clause::Chips(kinds) => {
            if !kinds.split('|').any(|k| k == chip()) {
                return Err(format!("it runs on {kinds}, not on {}", crate::knobs::knobs().soc));
            }
        }
        Clause::Says(name, list) => {
            if let Some(Value::Text(text)) = call.value(name) {
                let text = text.as_deref().unwrap_or("");
                if !list.split('|').any(|one| one == text) {
                    return Err(format!("{name}: expected {list:?}, found {text:?}"));
                }
            }
        }
        Clause::None(names) => {
            for name in names {
                let there = match call.value(name) {
                    Some(Value::Tensor(t)) => t.is_some(),
                    Some(Value::List(l)) => l.is_some(),
                    Some(Value::Ints(l)) => l.is_some(),
                    _ => false,
                };
                if there {
                    return Err(format!("{name} must be null: this release keeps it for later"));
                }
            }
        }
        Clause::Group { name, letter, of } => {
            let Some(Value::Text(Some(text))) = call.value(name) else {
                return Err(format!("{name}: expected a communicator's name, found null"));
            };
            let comm = hccl::named(text, call.device).ok_or_else(|| {
                format!("{name}: no communicator of device {} has the name {text:?}", call.device)
            })?;
            comm.claim(call.decl.name, *of).map_err(|code| format!("refused with {code}"))?;
            letters.set(letter, i64::from(comm.size));
            letters.set(&format!("{letter}.rank"), i64::from(comm.rank));
        }
        Clause::Turned(names) => {
            for name in names {
                if views(call, name).iter().any(|v| !v.is_contiguous() && !is_turned(v)) {
                    return Err(format!(
                        "{name} must be contiguous, or so once its last dimensions are exchanged"
                    ));
                }
            }
        }
        Clause::Types(name, types) => {
            for view in views(call, name) {
                if !allowed(view.dtype, types) {
                    return Err(format!(
                        "{name}: expected an element type of {types}, found {:?}",
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
        Clause::Null(_) | Clause::Out(_) | Clause::InOut(_) | Clause::Code(_) => {}
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

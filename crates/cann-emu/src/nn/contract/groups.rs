//! Lists of products, one a group: `x` has the rows of each group or all of them, `ends` where each group's rows end, `weight`
//! and `bias` one a group, `y` the products of each group or all of them.

use super::check::views;
use crate::nn::exec::{Call, Value};
use crate::nn::tensor::View;

/// Rows and columns of a matrix, or of rows of more dimensions than one.
fn matrix(name: &str, view: &View) -> Result<(i64, i64), String> {
    match view.dims[..] {
        [ref rows @ .., columns] if !rows.is_empty() => Ok((rows.iter().product(), columns)),
        _ => Err(format!("{name}: expected two dimensions or more, found {:?}", view.dims)),
    }
}

/// The rows of each of `groups` groups of one tensor of `rows`, by where they end.
fn parted(name: &str, call: &Call, rows: i64, groups: usize) -> Result<Vec<i64>, String> {
    let Some(Value::Ints(Some(ends))) = call.value(name) else {
        return Err(format!("{name}: expected {groups} ends of groups of {rows} rows, found null"));
    };
    if ends.len() != groups || ends.last() != Some(&rows) {
        return Err(format!("{name}: expected {groups} ends of groups, the last {rows}, found {ends:?}"));
    }
    let starts = [0].into_iter().chain(ends.iter().copied());
    let parts: Vec<i64> = starts.zip(ends).map(|(start, end)| end - start).collect();
    if parts.iter().any(|rows| *rows < 0) {
        return Err(format!("{name}: expected ends that do not go back, found {ends:?}"));
    }
    Ok(parts)
}

/// Whether the lists go together.
///
/// # Errors
/// The relation that does not hold, and what was found.
pub(super) fn check([x, weight, bias, ends, y]: &[String; 5], call: &Call) -> Result<(), String> {
    let (given, matrices, shifts, made) =
        (views(call, x), views(call, weight), views(call, bias), views(call, y));
    let groups = matrices.len();
    for (name, list, one) in [(x, &given, true), (bias, &shifts, false), (y, &made, true)] {
        let goes = list.len() == groups || (one && list.len() == 1) || (!one && list.is_empty());
        if !goes || groups == 0 {
            return Err(format!("{name} has {} tensors, {weight} has {groups}", list.len()));
        }
    }
    let rows = match given[..] {
        [all] if groups > 1 => parted(ends, call, matrix(x, all)?.0, groups)?,
        _ => given.iter().map(|v| Ok(matrix(x, v)?.0)).collect::<Result<_, String>>()?,
    };
    let mut products = Vec::with_capacity(groups);
    for (i, view) in matrices.iter().enumerate() {
        let (k, n) = matrix(weight, view)?;
        let inner = matrix(x, given[i.min(given.len() - 1)])?.1;
        if inner != k {
            return Err(format!("group {i}: {x} has {inner} columns, {weight} is {:?}", view.dims));
        }
        if let Some(shift) = shifts.get(i)
            && shift.dims != [n]
        {
            return Err(format!("group {i}: {bias}: expected [{n}], found {:?}", shift.dims));
        }
        products.push((rows[i], n));
    }
    if let [all] = made[..]
        && groups > 1
    {
        let (total, n) = (rows.iter().sum::<i64>(), products[0].1);
        if let Some(i) = products.iter().position(|p| p.1 != n) {
            return Err(format!("group {i}: {} columns in one {y}, the first has {n}", products[i].1));
        }
        return fits(y, all, (total, n));
    }
    made.iter().zip(products).try_for_each(|(view, product)| fits(y, view, product))
}

fn fits(name: &str, view: &View, product: (i64, i64)) -> Result<(), String> {
    if matrix(name, view)? == product {
        return Ok(());
    }
    Err(format!("{name}: expected {} rows of {}, found {:?}", product.0, product.1, view.dims))
}

//! What goes from rank to rank within an operator, and how it is put in order; values are rounded to the type of the exchanged
//! tensor.

use super::matmul::product;
use crate::hccl::Comm;
use crate::hccl::wire::{Kind, Reply, Request};
use crate::nn::bytes::{decode, encode, hccl_type};
use crate::nn::exec::{Call, Fault};
use crate::nn::tensor::{Dtype, View};

/// One exchange among the ranks of a communicator. `same` is what all must agree on; `pieces` are bytes for each rank.
pub(super) fn exchange(
    k: &Call,
    comm: &Comm,
    (kind, dtype, fixed): (Kind, Dtype, bool),
    same: &str,
    pieces: Vec<u64>,
    payload: Vec<u8>,
) -> Result<Reply, Fault> {
    let call = format!("{} {same}", k.decl.name);
    let request = Request { call, fixed, pieces, payload, ..Request::of(kind, 0, hccl_type(dtype)?) };
    Ok(comm.exchange(&request, k.decl.name)?)
}

/// The shapes of these tensors, for the ranks to agree on.
pub(super) fn shapes(k: &Call, names: &[&str]) -> Result<String, Fault> {
    names.iter().map(|n| Ok(format!("{n} {:?} ", k.t(n)?.dims))).collect()
}

/// Adds a row to every row.
pub(super) fn add_row(c: &mut [f64], row: Option<Vec<f64>>) {
    if let Some(row) = row {
        c.iter_mut().enumerate().for_each(|(i, v)| *v += row[i % row.len()]);
    }
}

/// a[m,k] · b[k,n] of values at hand.
pub(super) fn times(k: &Call, a: &[f64], b: &View) -> Result<Vec<f64>, Fault> {
    let (inner, n) = (b.dims[0] as usize, b.dims[1] as usize);
    let w = b.load(k.decl.name)?.floats();
    Ok(product(k, a, &w, a.len() / inner.max(1), inner, n, false))
}

/// Σ over the ranks of values in the type `dtype`.
pub(super) fn summed(k: &Call, values: &[f64], dtype: Dtype, same: &str) -> Result<Vec<f64>, Fault> {
    let comm = k.group("group")?;
    let fixed = comm.is_deterministic_by_hccl();
    let reply = exchange(k, comm, (Kind::AllReduce, dtype, fixed), same, vec![], encode(values, dtype))?;
    Ok(decode(&reply.payload, dtype))
}

/// The values of all ranks one after the other.
pub(super) fn gathered(k: &Call, values: &[f64], dtype: Dtype, same: &str) -> Result<Vec<f64>, Fault> {
    let comm = k.group("group")?;
    let reply = exchange(k, comm, (Kind::AllGather, dtype, true), same, vec![], encode(values, dtype))?;
    Ok(decode(&reply.payload, dtype))
}

/// Equal pieces of the values, one for each rank, and what comes of them.
fn in_pieces(
    k: &Call,
    comm: &Comm,
    what: (Kind, Dtype, bool),
    values: &[f64],
    same: &str,
) -> Result<Vec<f64>, Fault> {
    let bytes = encode(values, what.1);
    let piece = bytes.len() as u64 / u64::from(comm.size);
    let reply = exchange(k, comm, what, same, vec![piece; comm.size as usize], bytes)?;
    Ok(decode(&reply.payload, what.1))
}

/// Each rank's rows of the sum over the ranks.
pub(super) fn scattered(
    k: &Call,
    group: &str,
    values: &[f64],
    dtype: Dtype,
    same: &str,
    fixed: bool,
) -> Result<Vec<f64>, Fault> {
    in_pieces(k, k.group(group)?, (Kind::ReduceScatter, dtype, fixed), values, same)
}

/// Equal pieces to all ranks, and theirs one after the other.
pub(super) fn all_to_all(
    k: &Call,
    group: &str,
    values: &[f64],
    dtype: Dtype,
    same: &str,
) -> Result<Vec<f64>, Fault> {
    in_pieces(k, k.group(group)?, (Kind::AllToAll, dtype, true), values, same)
}

/// Dimensions in another order: `at` says which one stands where.
pub(super) fn permuted(values: &[f64], dims: &[usize], at: &[usize]) -> Vec<f64> {
    let stride = |d: usize| dims[d + 1..].iter().product::<usize>();
    let strides: Vec<usize> = at.iter().map(|d| stride(*d)).collect();
    let sizes: Vec<usize> = at.iter().map(|d| dims[*d]).collect();
    let mut out = Vec::with_capacity(values.len());
    for i in 0..values.len() {
        let (mut rest, mut from) = (i, 0);
        for (size, stride) in sizes.iter().zip(&strides).rev() {
            from += rest % size * stride;
            rest /= size;
        }
        out.push(values[from]);
    }
    out
}

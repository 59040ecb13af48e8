//! Operations on rows: products, norms, activations, columns, the loss, and recomputed regions.

use crate::{Case, case};
use ms_core::ops::{self, Head};
use ms_core::{Activation, Columns, DType, Graph, Noise, Norm, Tensor, Var, VocabShare};
use std::sync::Arc;

const NORM: Norm = Norm { eps: 1e-5, unit_offset: false };

/// The weight of each target in the loss; one does not count.
fn targets(g: &Graph, dtype: DType) -> ms_core::Result<(Tensor, Tensor)> {
    let arena = g.device().arena();
    let targets = Tensor::from_slice(arena, [6], &[2i32, 0, -100, 8, 4, 4])?;
    Ok((targets, Tensor::from_reals(arena, dtype.wide(), [6], &[0.5, 0.25, 0.0, 1.0, 0.125, 0.5])?))
}

fn products() -> Vec<Case> {
    vec![
        case("linear", &[5, 6], &[(&[7, 6], 0.5, 0.0), (&[7], 0.5, 0.0)], |g, w, x| {
            ops::linear(g, x, &w[0], Some(&w[1]))
        }),
        case("add_bias", &[5, 6], &[(&[6], 0.5, 0.0)], |g, w, x| {
            let x = ops::activation(g, x, Activation::Silu, false)?;
            ops::add_bias(g, &x, &w[0])
        }),
        case("grouped_linear", &[3, 8], &[(&[6, 4], 0.5, 0.0)], |g, w, x| {
            ops::grouped_linear(g, x, &w[0], 2)
        }),
        // What one of several ranks uses of a weight.
        case("part linear", &[3, 4], &[(&[5, 4], 0.5, 0.0)], |g, w, x| {
            let w = ops::part(g, &w[0], 8, [2, 4])?;
            ops::linear(g, x, &w, None)
        }),
        case("embedding embedding_share add", &[6, 5], &[(&[9, 5], 0.5, 0.0)], |g, w, x| {
            let ids = Tensor::from_slice(g.device().arena(), [6], &[1i32, 8, 3, 1, 0, 7])?;
            let whole = ops::embedding(g, &w[0], &ids)?;
            // The table as rows 5 to 13 of a larger one.
            let more = Tensor::from_slice(g.device().arena(), [6], &[4i32, 5, 13, 14, 9, 5])?;
            let share = ops::embedding_share(g, &w[0], &more, VocabShare { first: 5, whole: 20 })?;
            let sum = ops::add(g, &whole, &share)?;
            ops::add(g, x, &sum)
        }),
    ]
}

fn losses() -> Vec<Case> {
    let tied = case("linear_cross_entropy embedding", &[6, 5], &[(&[9, 5], 0.5, 0.0)], |g, w, x| {
        let ids = Tensor::from_slice(g.device().arena(), [6], &[1i32, 8, 3, 1, 0, 7])?;
        let (targets, weights) = targets(g, x.value().dtype())?;
        let e = ops::embedding(g, &w[0], &ids)?;
        let h = ops::add(g, x, &e)?;
        Ok(ops::linear_cross_entropy(g, &h, &Head::plain(&w[0]), &targets, &weights)?.loss)
    });
    let unit = |formed_later| {
        let weights = [(&[9, 5][..], 0.5, 0.0), (&[9], 0.5, 0.0)];
        case("linear_cross_entropy unit_rows", &[6, 5], &weights, move |g, w, x| {
            let (targets, weights) = targets(g, x.value().dtype())?;
            let rows = ops::unit_rows(g, &w[0])?;
            let (bias, softcap) = (Some(&w[1]), Some(2.0));
            let head = Head { w: &rows, bias, scale: 1.5, softcap, group: None, formed_later };
            Ok(ops::linear_cross_entropy(g, x, &head, &targets, &weights)?.loss)
        })
    };
    vec![tied, unit(false), unit(true)]
}

fn norms() -> Vec<Case> {
    let plain = |norm| {
        case("rms_norm", &[4, 8], &[(&[8], 0.3, 1.0)], move |g, w, x| ops::rms_norm(g, x, &w[0], norm))
    };
    let shift: [(&'static [usize], f32, f32); 2] = [(&[8], 0.3, 1.0), (&[8], 0.3, 0.0)];
    vec![
        plain(NORM),
        plain(Norm { unit_offset: true, ..NORM }),
        case("add_rms_norm", &[4, 8], &[(&[8], 0.3, 1.0), (&[8, 8], 0.4, 0.0)], |g, w, x| {
            let other = ops::linear(g, x, &w[1], None)?;
            let (sum, y) = ops::add_rms_norm(g, x, &other, &w[0], NORM)?;
            ops::add(g, &sum, &y)
        }),
        case("layer_norm", &[4, 8], &shift, |g, w, x| ops::layer_norm(g, x, &w[0], Some(&w[1]), 1e-5)),
        case("layer_norm", &[4, 8], &shift[..1], |g, w, x| ops::layer_norm(g, x, &w[0], None, 1e-5)),
    ]
}

fn activations() -> Vec<Case> {
    let kinds = [
        Activation::Silu,
        Activation::GeluTanh,
        Activation::GeluErf,
        Activation::Relu2,
        Activation::Sigmoid,
        Activation::Clamped { alpha: 1.7, limit: 0.9 },
        Activation::ClampedSilu { limit: 0.9 },
        Activation::Limited { limit: 0.4 },
    ];
    let of = |kind, gated| {
        case("activation", &[3, 10], &[], move |g: &mut Graph, _: &[Var], x: &Var| {
            ops::activation(g, x, kind, gated)
        })
    };
    // Those with a limit limit what they gate, too.
    let alone = |kind: &Activation| {
        !matches!(
            kind,
            Activation::Clamped { .. } | Activation::ClampedSilu { .. } | Activation::Limited { .. }
        )
    };
    let mut all: Vec<Case> = kinds.map(|kind| of(kind, true)).into();
    all.extend(kinds.into_iter().filter(alone).map(|kind| of(kind, false)));
    all.push(case("swiglu", &[3, 10], &[], |g, _, x| ops::swiglu(g, x)));
    // A gate for all columns, and one for the row.
    for weights in [&[6, 6], &[1, 6]] {
        all.push(case("gate", &[4, 6], &[(weights, 0.5, 0.0)], |g, w, x| {
            let by = ops::linear(g, x, &w[0], None)?;
            ops::gate(g, x, &by, Activation::Sigmoid)
        }));
    }
    all
}

fn columns() -> Vec<Case> {
    let keys: Arc<[u64]> = [3, 1 << 40, u64::MAX].into();
    let noisy = |noise| {
        let keys = keys.clone();
        case("noise", &[3, 7], &[], move |g, _, x| {
            let x = ops::activation(g, x, Activation::Silu, false)?;
            ops::noise(g, &x, &keys, 12, noise)
        })
    };
    vec![
        case("scale_columns split columns scale concat reshape", &[3, 7], &[(&[7], 0.5, 1.0)], |g, w, x| {
            let x = ops::scale_columns(g, x, &w[0])?;
            let [a, b] = ops::split(g, &x, [3, 4])?;
            let runs: Arc<[Columns]> = [
                Columns::Copy { start: 1, len: 2 },
                Columns::Zero { len: 1 },
                Columns::Copy { start: 0, len: 2 },
            ]
            .into();
            let again = ops::columns(g, &b, &runs)?;
            let a = ops::scale(g, &a, 0.5)?;
            let joined = ops::concat(g, &[&again, &a, &b])?;
            ops::reshape(g, &joined, [6, 6])
        }),
        noisy(Noise::Dropout { rate: 0.25 }),
        noisy(Noise::Jitter { eps: 0.5 }),
    ]
}

/// Recomputation: with one input, and with two inputs and two outputs, both of which are used.
fn again() -> Vec<Case> {
    vec![
        case("recompute", &[3, 6], &[(&[6, 6], 0.5, 0.0)], |g, w, x| {
            let w = w[0].clone();
            ops::recompute(g, x, x.shard_states(), move |g, x| {
                let y = ops::linear(g, x, &w, None)?;
                ops::activation(g, &y, Activation::GeluErf, false)
            })
        }),
        case("recompute_behind", &[3, 6], &[(&[6, 6], 0.5, 0.0)], |g, w, x| {
            let other = ops::linear(g, x, &w[0], None)?;
            let run = |g: &mut Graph, xs: &[Var]| {
                let y = ops::gate(g, &xs[0], &xs[1], Activation::Sigmoid)?;
                let z = ops::gate(g, &xs[1], &y, Activation::Silu)?;
                Ok(vec![y, z])
            };
            let made = ops::recompute_behind(g, &[x, &other], &[x.shard_states(); 2], run, Arc::new(run))?;
            ops::add(g, &made[0], &made[1])
        }),
    ]
}

pub(crate) fn cases() -> Vec<Case> {
    [products(), losses(), norms(), activations(), columns(), again()].into_iter().flatten().collect()
}

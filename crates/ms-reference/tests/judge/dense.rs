//! Linear layers, norms, activations, columns, embedding, loss, optimizer.

use crate::bench::{Bench, Case};
use ms_core::{Activation, AdamW, Columns, DType, Noise, Norm, Result, Sgd, Tensor, VocabShare};

const KINDS: [Activation; 8] = [
    Activation::Silu,
    Activation::GeluTanh,
    Activation::GeluErf,
    Activation::Relu2,
    Activation::Sigmoid,
    Activation::Clamped { alpha: 1.702, limit: 0.7 },
    Activation::ClampedSilu { limit: 0.7 },
    Activation::Limited { limit: 0.6 },
];

fn norm(b: &mut Bench<'_>) -> Norm {
    Norm { eps: b.of(&[1e-6, 1e-2]), unit_offset: b.below(2) == 1 }
}

fn runs() -> Vec<Columns> {
    vec![
        Columns::Copy { start: 3, len: 4 },
        Columns::Zero { len: 2 },
        Columns::Copy { start: 0, len: 5 },
        Columns::Copy { start: 3, len: 1 },
    ]
}

/// A row of a loss: statistics of two shares of the vocabulary, joined.
fn statistics(b: &mut Bench<'_>) -> Result<(Tensor, Tensor, Tensor)> {
    let (left, right, targets) = (b.x(&[7, 11]), b.x(&[7, 5]), b.ids(&[7], &[0, 10, -1, 11, 15, 3, -1]));
    let d = b.device;
    let parts =
        [d.cross_entropy_statistics(&left, &targets, 0)?, d.cross_entropy_statistics(&right, &targets, 11)?];
    let mut both = b.zeros(&[14, 3]);
    let half = parts[0].bytes().len();
    both.bytes_mut()?[..half].copy_from_slice(parts[0].bytes());
    both.bytes_mut()?[half..].copy_from_slice(parts[1].bytes());
    Ok((d.cross_entropy_merge(&both, 2)?, left, targets))
}

pub(crate) const CASES: &[Case] = &[
    ("linear", |b| {
        let (x, w, bias) = (b.x(&[9, 13]), b.x(&[6, 13]), b.x(&[6]));
        Ok(vec![b.device.linear(&x, &w, Some(&bias))?, b.device.linear(&x, &w, None)?])
    }),
    ("quantize", |b| {
        let (x, few, w, bias) = (b.x(&[11, 70]), b.x(&[3, 70]), b.x(&[9, 70]), b.x(&[9]));
        let bytes = b.device.quantize(&w)?;
        let linear = |x, bias| b.device.linear(x, &bytes, bias);
        Ok(vec![linear(&x, Some(&bias))?, linear(&x, None)?, linear(&few, None)?])
    }),
    ("linear_dx linear_dw linear_db", |b| {
        let (x, w, dy) = (b.x(&[9, 13]), b.x(&[6, 13]), b.x(&[9, 6]));
        let (mut dw, mut db) = (b.zeros(&[6, 13]), b.zeros(&[6]));
        for _ in 0..2 {
            b.device.linear_dw(dw.whole_mut()?, &dy, &x)?;
            b.device.linear_db(db.whole_mut()?, &dy)?;
        }
        Ok(vec![b.device.linear_dx(&dy, &w)?, dw, db])
    }),
    ("rms_norm rms_norm_backward", |b| {
        let (x, w, dy, more, norm) = (b.x(&[5, 12]), b.x(&[12]), b.x(&[5, 12]), b.x(&[5, 12]), norm(b));
        let (y, rstd) = b.device.rms_norm(&x, &w, &norm)?;
        let mut dw = b.zeros(&[12]);
        let dx = b.device.rms_norm_backward(Some(dw.whole_mut()?), &dy, &x, &w, &rstd, Some(&more), &norm)?;
        let frozen = b.device.rms_norm_backward(None, &dy, &x, &w, &rstd, None, &norm)?;
        Ok(vec![y, rstd, dx, dw, frozen])
    }),
    ("add_rms_norm", |b| {
        let (x, r, w, norm) = (b.x(&[5, 12]), b.x(&[5, 12]), b.x(&[12]), norm(b));
        let (sum, y, rstd) = b.device.add_rms_norm(&x, &r, &w, &norm)?;
        Ok(vec![sum, y, rstd])
    }),
    ("layer_norm layer_norm_backward", |b| {
        let (x, w, shift, dy) = (b.x(&[5, 12]), b.x(&[12]), b.x(&[12]), b.x(&[5, 12]));
        let (y, stats) = b.device.layer_norm(&x, &w, Some(&shift), 1e-5)?;
        let (plain, _) = b.device.layer_norm(&x, &w, None, 1e-5)?;
        let (dx, dwb) = b.device.layer_norm_backward(&dy, &x, &w, &stats)?;
        Ok(vec![y, plain, stats, dx, dwb])
    }),
    ("swiglu swiglu_backward", |b| {
        let (x, dy) = (b.x(&[5, 18]), b.x(&[5, 9]));
        Ok(vec![b.device.swiglu(&x)?, b.device.swiglu_backward(&dy, &x)?])
    }),
    ("activation activation_backward", |b| {
        let (x, dy) = (b.x(&[5, 18]), b.x(&[5, 18]));
        let half = b.device.columns(&dy, &[Columns::Copy { start: 0, len: 9 }])?;
        let mut all = Vec::new();
        for kind in KINDS {
            all.push(b.device.activation(&x, kind, false)?);
            all.push(b.device.activation(&x, kind, true)?);
            all.push(b.device.activation_backward(&dy, &x, kind, false)?);
            all.push(b.device.activation_backward(&half, &x, kind, true)?);
        }
        Ok(all)
    }),
    ("gate gate_backward", |b| {
        let (x, dy, wide, one) = (b.x(&[5, 9]), b.x(&[5, 9]), b.x(&[5, 9]), b.x(&[5, 1]));
        let mut all = Vec::new();
        for kind in KINDS {
            for gate in [&wide, &one] {
                let (dx, dgate) = b.device.gate_backward(&dy, &x, gate, kind)?;
                all.extend([b.device.gate(&x, gate, kind)?, dx, dgate]);
            }
        }
        Ok(all)
    }),
    ("softcap softcap_backward", |b| {
        let (mut y, mut d) = (b.x(&[5, 9]), b.x(&[5, 9]));
        b.device.softcap(&mut y, 1.5)?;
        b.device.softcap_backward(&mut d, &y, 1.5)?;
        Ok(vec![y, d])
    }),
    ("add multiply add_assign", |b| {
        let (x, y) = (b.x(&[5, 9]), b.x(&[5, 9]));
        let mut sum = b.device.multiply(&x, &y)?;
        b.device.add_assign(&mut sum, &x)?;
        Ok(vec![b.device.add(&x, &y)?, b.device.multiply(&x, &y)?, sum])
    }),
    ("cast", |b| {
        let x = b.x(&[5, 9]);
        Ok(vec![
            b.device.cast(&x, x.dtype().wide())?,
            b.device.cast(&b.device.cast(&x, DType::Bf16)?, DType::F32)?,
        ])
    }),
    ("columns columns_backward", |b| {
        let (x, dy) = (b.x(&[5, 9]), b.x(&[5, 12]));
        Ok(vec![b.device.columns(&x, &runs())?, b.device.columns_backward(&dy, 9, &runs())?])
    }),
    ("noise", |b| {
        let (x, keys) = (b.x(&[5, 9]), [3, 1 << 40, u64::MAX, 0, 77]);
        let dropout = b.device.noise(&x, &keys, 12, Noise::Dropout { rate: 0.25 })?;
        Ok(vec![dropout, b.device.noise(&x, &keys, 13, Noise::Jitter { eps: 0.5 })?])
    }),
    ("concat", |b| {
        let (x, y) = (b.x(&[5, 3]), b.x(&[5, 4]));
        Ok(vec![b.device.concat(&[&x, &y, &x])?])
    }),
    ("add_bias scale_rows row_dot scale_columns", |b| {
        let (x, y, by, rows) = (b.x(&[5, 9]), b.x(&[5, 9]), b.x(&[9]), b.wide(&[5]));
        let d = b.device;
        Ok(vec![
            d.add_bias(&x, &by)?,
            d.scale_rows(&x, &rows)?,
            d.row_dot(&x, &y)?,
            d.scale_columns(&x, &by)?,
        ])
    }),
    ("scale_columns_backward", |b| {
        let (x, dy, mut ds) = (b.x(&[5, 9]), b.x(&[5, 9]), b.wide(&[9]));
        b.device.scale_columns_backward(ds.whole_mut()?, &dy, &x)?;
        Ok(vec![ds])
    }),
    ("unit_rows unit_rows_backward", |b| {
        let (x, dy, mut dx) = (b.x(&[5, 9]), b.x(&[5, 9]), b.wide(&[5, 9]));
        b.device.unit_rows_backward(dx.whole_mut()?, &dy, &x)?;
        Ok(vec![b.device.unit_rows(&x)?, dx])
    }),
    ("embedding embedding_backward", |b| {
        let (table, ids, dy, mut dtable) = (b.x(&[6, 4]), b.draw_ids(9, 15), b.x(&[9, 4]), b.wide(&[6, 4]));
        let share = VocabShare { first: 5, whole: 15 };
        b.device.embedding_backward(dtable.whole_mut()?, &dy, &ids, share)?;
        Ok(vec![b.device.embedding(&table, &ids, share)?, dtable])
    }),
    ("cross_entropy_statistics cross_entropy_merge cross_entropy_nll cross_entropy_gradient", |b| {
        let (merged, mut logits, targets) = statistics(b)?;
        let weights = b.given(&[7], &[1.0, 0.5, 0.0, 2.0, 0.25, 1.0, 0.0]);
        let nll = b.device.cross_entropy_nll(&merged, &targets)?;
        b.device.cross_entropy_gradient(&mut logits, &merged, &targets, &weights, 0)?;
        Ok(vec![merged, nll, logits])
    }),
    ("cross_entropy_whole", |b| {
        let (mut logits, targets) = (b.x(&[7, 11]), b.ids(&[7], &[0, 10, -1, 9, 1, 3, -1]));
        let weights = b.given(&[7], &[1.0, 0.5, 0.0, 2.0, 0.25, 1.0, 0.0]);
        let statistics = b.device.cross_entropy_whole(&mut logits, &targets, &weights)?;
        Ok(vec![statistics, logits])
    }),
    ("adamw", |b| {
        let (mut p, mut m, mut v, g) = (b.wide(&[40]), b.zeros(&[40]), b.zeros(&[40]), b.wide(&[40]));
        for step in 1..=3 {
            let numbers = AdamW { lr: 1e-2, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1, step };
            b.device.adamw(p.whole_mut()?, m.whole_mut()?, v.whole_mut()?, &g, 0.5, &numbers)?;
        }
        Ok(vec![p, m, v])
    }),
    ("sgd", |b| {
        let (mut p, mut m, g) = (b.wide(&[40]), b.zeros(&[40]), b.wide(&[40]));
        for _ in 0..3 {
            let numbers = Sgd { lr: 1e-2, momentum: 0.9, weight_decay: 0.1 };
            b.device.sgd(p.whole_mut()?, m.whole_mut()?, &g, 0.5, &numbers)?;
        }
        Ok(vec![p, m])
    }),
    ("sum_squares fill_zero scale accumulate", |b| {
        let (x, mut y, mut sum) = (b.wide(&[40]), b.x(&[40]), b.wide(&[40]));
        let squares = b.device.sum_squares(&x)?.value();
        b.device.scale(&mut y, 0.3)?;
        b.device.accumulate(sum.whole_mut()?, &x, -1.5)?;
        let mut none = b.x(&[3]);
        b.device.fill_zero(&mut none)?;
        Ok(vec![b.given(&[1], &[squares]), y, sum, none])
    }),
];

//! Columns: selecting, scaling, concatenating.

use crate::Reference;
use crate::operand::{add_to, expect, reals};
use crate::tape::{Real, dot, gradient};
use ms_core::{Columns, Error, LayoutBackend, Noise, Result, Tensor, TensorMut};

/// The input column of each output column; `None`: a zero.
fn sources(op: &'static str, runs: &[Columns], width: usize) -> Result<Vec<Option<usize>>> {
    let mut all = Vec::new();
    for run in runs {
        match *run {
            Columns::Copy { start, len } if start.saturating_add(len) > width => {
                return Err(Error::Range { what: op, start, end: start.saturating_add(len), len: width });
            }
            Columns::Copy { start, len } => all.extend((start..start + len).map(Some)),
            Columns::Zero { len } => all.resize(all.len() + len, None),
        }
    }
    Ok(all)
}

/// Rows divided by their lengths.
fn unit_rows<R: Real>(x: &[R], width: usize) -> Vec<R> {
    let row = |x: &[R]| {
        let length = dot(x, x).sqrt().max(R::from(1e-12));
        x.iter().map(|&x| x / length).collect::<Vec<_>>()
    };
    x.chunks_exact(width).flat_map(row).collect()
}

impl LayoutBackend for Reference {
    fn columns(&self, x: &Tensor, runs: &[Columns]) -> Result<Tensor> {
        let (t, width) = x.as_matrix();
        let sources = sources("columns", runs, width)?;
        let x = reals(x)?;
        let each = (0..t).flat_map(|t| sources.iter().map(move |s| s.map_or(0.0, |s| x[t * width + s])));
        self.give(&[t, sources.len()], &each.collect::<Vec<_>>())
    }

    fn columns_backward(&self, dy: &Tensor, width: usize, runs: &[Columns]) -> Result<Tensor> {
        let t = dy.as_matrix().0;
        let sources = sources("columns_backward", runs, width)?;
        expect("columns_backward", "dy", dy, &[t, sources.len()])?;
        let mut dx = vec![0.0; t * width];
        for (i, d) in reals(dy)?.iter().enumerate() {
            if let Some(s) = sources[i % sources.len()] {
                dx[i / sources.len() * width + s] += d;
            }
        }
        self.give(&[t, width], &dx)
    }

    fn noise(&self, x: &Tensor, keys: &[u64], site: u64, noise: Noise) -> Result<Tensor> {
        let (t, width) = x.as_matrix();
        expect("noise", "x", x, &[keys.len(), width])?;
        let values = reals(x)?;
        let of = |i: usize| values[i] * noise.at(keys[i / width], site, (i % width) as u64);
        self.give(&[t, width], &(0..t * width).map(of).collect::<Vec<_>>())
    }

    fn concat(&self, parts: &[&Tensor]) -> Result<Tensor> {
        let Some(first) = parts.first() else {
            return Err(Error::Range { what: "parts to put side by side", start: 0, end: 1, len: 0 });
        };
        let t = first.as_matrix().0;
        for part in parts {
            expect("concat", "part", part, &[t, part.as_matrix().1])?;
        }
        let mut y = Vec::new();
        for row in 0..t {
            for part in parts {
                let width = part.as_matrix().1;
                y.extend_from_slice(&reals(part)?[row * width..][..width]);
            }
        }
        self.give(&[t, y.len() / t.max(1)], &y)
    }

    fn add_bias(&self, x: &Tensor, b: &Tensor) -> Result<Tensor> {
        let width = x.as_matrix().1;
        expect("add_bias", "b", b, &[width])?;
        let b = reals(b)?;
        let y: Vec<f64> = reals(x)?.iter().enumerate().map(|(i, x)| x + b[i % width]).collect();
        self.give_as(x, &y)
    }

    fn scale_rows(&self, x: &Tensor, s: &Tensor) -> Result<Tensor> {
        let (t, width) = x.as_matrix();
        expect("scale_rows", "s", s, &[t])?;
        let s = reals(s)?;
        let y: Vec<f64> = reals(x)?.iter().enumerate().map(|(i, x)| x * s[i / width]).collect();
        self.give_as(x, &y)
    }

    fn row_dot(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        let (t, width) = a.as_matrix();
        expect("row_dot", "b", b, &[t, width])?;
        let rows = reals(a)?.chunks_exact(width).zip(reals(b)?.chunks_exact(width));
        self.give(&[t], &rows.map(|(a, b)| dot(a, b)).collect::<Vec<_>>())
    }

    fn scale_columns(&self, x: &Tensor, s: &Tensor) -> Result<Tensor> {
        let width = x.as_matrix().1;
        expect("scale_columns", "s", s, &[width])?;
        let s = reals(s)?;
        let y: Vec<f64> = reals(x)?.iter().enumerate().map(|(i, x)| x * s[i % width]).collect();
        self.give_as(x, &y)
    }

    fn scale_columns_backward(&self, mut ds: TensorMut<'_>, dy: &Tensor, x: &Tensor) -> Result<()> {
        let width = x.as_matrix().1;
        let mut sum = vec![0.0; width];
        for (i, (d, x)) in reals(dy)?.iter().zip(reals(x)?).enumerate() {
            sum[i % width] += d * x;
        }
        add_to("scale_columns_backward", &mut ds, &sum)
    }

    fn unit_rows(&self, x: &Tensor) -> Result<Tensor> {
        self.give_as(x, &unit_rows(reals(x)?, x.as_matrix().1))
    }

    fn unit_rows_backward(&self, mut dx: TensorMut<'_>, dy: &Tensor, x: &Tensor) -> Result<()> {
        let width = x.as_matrix().1;
        let [d] = gradient([reals(x)?], reals(dy)?, |[x]| unit_rows(x, width));
        add_to("unit_rows_backward", &mut dx, &d)
    }
}

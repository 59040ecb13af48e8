//! Mixtures of experts: routing, token permutation, the experts' linear layers.

use crate::Reference;
use crate::matmul::{add_outer, add_rows, times, times_transposed};
use crate::operand::{expect, expect_shape, numbers, optional, reals};
use crate::routing::{balance, choose, weigh};
use crate::tape::{dot, gradient};
use ms_core::{Error, ExpertLoad, MoeBackend, NOWHERE, Result, Router, Routes, Tensor, TensorMut};

/// The experts of each token.
fn picked(experts: &Tensor, count: usize) -> Result<Vec<Vec<usize>>> {
    let each = |e: &i32| {
        let outside = Error::Range { what: "experts", start: *e as usize, end: *e as usize, len: count };
        usize::try_from(*e).ok().filter(|&e| e < count).ok_or(outside)
    };
    numbers(experts)?.chunks_exact(experts.dim(1)).map(|row| row.iter().map(each).collect()).collect()
}

/// Rows of each expert, with its number.
fn by_expert(routes: &Routes) -> impl Iterator<Item = (usize, std::ops::Range<usize>)> {
    (0..routes.starts.len() - 1).map(|e| (e, routes.range(e)))
}

/// Number, row and weight of each copy that an expert takes.
fn taken<'a>(routes: &'a Routes, weights: &'a [f64]) -> impl Iterator<Item = (usize, usize, &'a f64)> {
    let all = routes.rows.iter().zip(weights).enumerate();
    all.filter(|(_, (row, _))| **row != NOWHERE).map(|(copy, (&row, w))| (copy, row as usize, w))
}

/// The part of stacked rows that `rows` are.
fn of(x: &[f64], rows: &std::ops::Range<usize>, width: usize) -> std::ops::Range<usize> {
    debug_assert!(rows.end * width <= x.len());
    rows.start * width..rows.end * width
}

impl MoeBackend for Reference {
    fn route(&self, logits: &Tensor, bias: Option<&Tensor>, router: &Router) -> Result<(Tensor, Tensor)> {
        let (t, count) = logits.as_matrix();
        let bias = optional(bias)?;
        let (mut experts, mut weights) = (Vec::new(), Vec::new());
        for logits in reals(logits)?.chunks_exact(count) {
            let picks = choose(router, logits, bias)?;
            weights.extend(weigh(router, logits, &picks));
            experts.extend(picks.iter().map(|&e| e as i32));
        }
        let shape = [t, router.top_k];
        Ok((Tensor::from_slice(&self.arena, shape, &experts)?, self.give(&shape, &weights)?))
    }

    fn weigh(&self, experts: &Tensor, logits: &Tensor, router: &Router) -> Result<Tensor> {
        let count = logits.as_matrix().1;
        let rows = reals(logits)?.chunks_exact(count).zip(picked(experts, count)?);
        let weights: Vec<f64> = rows.flat_map(|(logits, picks)| weigh(router, logits, &picks)).collect();
        self.give(&experts.shape(), &weights)
    }

    fn route_backward(
        &self,
        dweights: &Tensor,
        experts: &Tensor,
        logits: &Tensor,
        router: &Router,
    ) -> Result<Tensor> {
        let count = logits.as_matrix().1;
        let picked = picked(experts, count)?;
        let [d] = gradient([reals(logits)?], reals(dweights)?, |[logits]| {
            let rows = logits.chunks_exact(count).zip(&picked);
            rows.flat_map(|(logits, picks)| weigh(router, logits, picks)).collect()
        });
        self.give_as(logits, &d)
    }

    fn balance(
        &self,
        dlogits: Option<&mut Tensor>,
        logits: &Tensor,
        load: &ExpertLoad,
        router: &Router,
        grad_scale: f64,
    ) -> Result<f64> {
        let values = reals(logits)?;
        if let Some(to) = dlogits {
            let [d] = gradient([values], &[grad_scale], |[logits]| vec![balance(router, logits, load)]);
            to.as_mut_slice::<f64>()?.iter_mut().zip(&d).for_each(|(t, d)| *t += d);
        }
        Ok(balance(router, values, load))
    }

    fn dispatch(&self, x: &Tensor, routes: &Routes) -> Result<Tensor> {
        let h = x.as_matrix().1;
        let token = |&copy: &u32| copy as usize / routes.top_k;
        let x = reals(x)?;
        let y: Vec<f64> = routes.copies.iter().flat_map(|c| x[token(c) * h..][..h].to_vec()).collect();
        self.give(&[routes.copies.len(), h], &y)
    }

    fn dispatch_backward(&self, dy: &Tensor, routes: &Routes) -> Result<Tensor> {
        let ones = self.give(&[routes.rows.len()], &vec![1.0; routes.rows.len()])?;
        self.combine(dy, &ones, routes)
    }

    fn combine(&self, x: &Tensor, weights: &Tensor, routes: &Routes) -> Result<Tensor> {
        let h = x.as_matrix().1;
        let mut y = vec![0.0; routes.tokens() * h];
        for (copy, row, w) in taken(routes, reals(weights)?) {
            let to = &mut y[copy / routes.top_k * h..][..h];
            to.iter_mut().zip(&reals(x)?[row * h..][..h]).for_each(|(y, x)| *y += w * x);
        }
        self.give(&[routes.tokens(), h], &y)
    }

    fn combine_backward(
        &self,
        dy: &Tensor,
        x: &Tensor,
        weights: &Tensor,
        routes: &Routes,
    ) -> Result<(Tensor, Tensor)> {
        let h = x.as_matrix().1;
        let (mut dx, mut dw) = (vec![0.0; x.numel()], vec![0.0; weights.numel()]);
        for (copy, row, w) in taken(routes, reals(weights)?) {
            let (dy, at) = (&reals(dy)?[copy / routes.top_k * h..][..h], row * h);
            dw[copy] = dot(dy, &reals(x)?[at..at + h]);
            dx[at..at + h].iter_mut().zip(dy).for_each(|(dx, d)| *dx += w * d);
        }
        Ok((self.give_as(x, &dx)?, self.give_as(weights, &dw)?))
    }

    fn expert_linear(
        &self,
        x: &Tensor,
        w: &Tensor,
        bias: Option<&Tensor>,
        routes: &Routes,
    ) -> Result<Tensor> {
        let (n, k) = (w.dim(1), w.dim(2));
        expect("expert_linear", "x", x, &[routes.copies.len(), k])?;
        self.worked(routes.copies.len() * n * k);
        let (x, w, bias) = (reals(x)?, reals(w)?, optional(bias)?);
        let mut y = Vec::with_capacity(routes.copies.len() * n);
        for (e, rows) in by_expert(routes) {
            let mut part = times_transposed(&x[of(x, &rows, k)], &w[e * n * k..][..n * k], k);
            if let Some(bias) = bias {
                let bias = &bias[e * n..][..n];
                part.chunks_exact_mut(n).for_each(|row| row.iter_mut().zip(bias).for_each(|(y, b)| *y += b));
            }
            y.extend(part);
        }
        self.give(&[routes.copies.len(), n], &y)
    }

    fn expert_linear_dx(&self, dy: &Tensor, w: &Tensor, routes: &Routes) -> Result<Tensor> {
        let (n, k) = (w.dim(1), w.dim(2));
        expect("expert_linear_dx", "dy", dy, &[routes.copies.len(), n])?;
        self.worked(routes.copies.len() * n * k);
        let (dy, w) = (reals(dy)?, reals(w)?);
        let each = by_expert(routes)
            .flat_map(|(e, rows)| times(&dy[of(dy, &rows, n)], &w[e * n * k..][..n * k], n, k));
        self.give(&[routes.copies.len(), k], &each.collect::<Vec<_>>())
    }

    fn expert_linear_dw(
        &self,
        mut dw: TensorMut<'_>,
        dy: &Tensor,
        x: &Tensor,
        routes: &Routes,
    ) -> Result<()> {
        let (n, k) = (dy.as_matrix().1, x.as_matrix().1);
        expect_shape("expert_linear_dw", "dw", dw.shape(), &[routes.starts.len() - 1, n, k])?;
        self.worked(routes.copies.len() * n * k);
        let (dy, x, dw) = (reals(dy)?, reals(x)?, dw.as_mut_slice::<f64>()?);
        for (e, rows) in by_expert(routes) {
            add_outer(&mut dw[e * n * k..][..n * k], &dy[of(dy, &rows, n)], &x[of(x, &rows, k)], n, k);
        }
        Ok(())
    }

    fn expert_linear_db(&self, mut db: TensorMut<'_>, dy: &Tensor, routes: &Routes) -> Result<()> {
        let n = dy.as_matrix().1;
        expect_shape("expert_linear_db", "db", db.shape(), &[routes.starts.len() - 1, n])?;
        let (dy, db) = (reals(dy)?, db.as_mut_slice::<f64>()?);
        for (e, rows) in by_expert(routes) {
            add_rows(&mut db[e * n..][..n], &dy[of(dy, &rows, n)]);
        }
        Ok(())
    }
}

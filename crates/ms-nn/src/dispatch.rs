//! Tokens on their way to experts and back.
//!
//! Whichever way they go, rows of one expert stand in the order of the ranks they come from, and of a rank in the order of its
//! tokens: sums over rows have one order.

use crate::feed::Experts;
use crate::layer::Pass;
use ms_core::{Dispatcher, Routes, Tensor, Var, ops};
use ms_dist::{all_rows, exchange_rows, gather_rows, sum_rows};
use std::sync::Arc;

/// Number of rows of each rank, of how many each has for each expert.
fn sums(counts: &[i64], experts: usize) -> Vec<usize> {
    counts.chunks_exact(experts).map(|c| c.iter().sum::<i64>() as usize).collect()
}

/// Rows of each rank's experts `[..]` stand one after the other, `counts[i]` of expert `i % experts`: where each goes.
fn by_expert(counts: &[i64], experts: usize) -> ms_core::Result<Arc<Routes>> {
    let of = |(i, &n): (usize, &i64)| std::iter::repeat_n((i % experts) as i32, n as usize);
    let expert_of: Vec<i32> = counts.iter().enumerate().flat_map(of).collect();
    Ok(Arc::new(Routes::new(&expert_of, 1, experts)?))
}

/// The rows of `ranks` ranks' columns `[ranks·R, W]`, one rank's behind the other's, as whole rows side by side.
fn side_by_side(ranks: usize, rows: usize) -> ms_core::Result<Arc<Routes>> {
    let place = |i: usize| (i % rows * ranks + i / rows) as i32;
    let place_of: Vec<i32> = (0..ranks * rows).map(place).collect();
    Ok(Arc::new(Routes::new(&place_of, 1, ranks * rows)?))
}

impl Experts {
    /// Each token of `x` through its experts, weighted: as [`ms_dist::ParallelCtx::leave_experts`] takes it.
    pub(crate) fn dispatched(
        &self,
        pass: &mut Pass<'_>,
        x: &Var,
        weights: &Var,
        routes: &Arc<Routes>,
    ) -> ms_core::Result<Var> {
        if pass.ctx.dispatcher == Dispatcher::AllGather && pass.ctx.ep.size() > 1 {
            return self.gathered(pass, x, weights, routes);
        }
        let x = pass.ctx.expert_columns(pass.g, x)?;
        let rows = ops::dispatch(pass.g, &x, routes)?;
        let out = self.with_weights(pass, &rows, routes, self.experts, |pass, rows, routes| {
            self.on_their_ranks(pass, rows, routes)
        })?;
        let out = ops::combine(pass.g, &out, weights, routes)?;
        pass.ctx.whole_rows(pass.g, &out)
    }

    /// Tokens, weights and choices of all ranks that share the experts are gathered; each takes the copies of its experts, and
    /// of its own tokens those of choices without weights. What they make of them is added to rows of zeros, which are summed
    /// and shared out.
    fn gathered(
        &self,
        pass: &mut Pass<'_>,
        x: &Var,
        weights: &Var,
        routes: &Arc<Routes>,
    ) -> ms_core::Result<Var> {
        let ep = pass.ctx.ep.clone();
        let (ranks, arena) = (ep.size(), pass.g.device().arena().clone());
        let own = Tensor::from_slice(&arena, [1], &[x.value().as_matrix().0 as i64])?;
        let tokens = ep.all_gather("tokens of each rank", own)?.wait()?;
        let tokens: Arc<[usize]> = tokens.as_slice::<i64>()?.iter().map(|&n| n as usize).collect();
        let mut choices = vec![0i32; routes.rows.len()];
        for e in 0..routes.starts.len() - 1 {
            routes.copies[routes.range(e)].iter().for_each(|&copy| choices[copy as usize] = e as i32);
        }
        let choices = Tensor::from_slice(&arena, [choices.len() / routes.top_k, routes.top_k], &choices)?;
        let choices = all_rows(&*ep, "choices", choices, &tokens)?;
        let x = gather_rows(pass.g, &ep, x, &tokens)?;
        let weights = gather_rows(pass.g, &ep, weights, &tokens)?;
        let here = self.experts / ranks;
        let first = ep.rank() * here;
        let before: usize = tokens[..ep.rank()].iter().sum();
        let mine = before * routes.top_k..(before + tokens[ep.rank()]) * routes.top_k;
        let taken = |(copy, &e): (usize, &i32)| {
            let e = e as usize;
            match e < self.experts {
                true => e.checked_sub(first).filter(|&e| e < here),
                false => mine.contains(&copy).then_some(here + e.wrapping_sub(self.experts)),
            }
        };
        let taken: Vec<Option<usize>> = choices.as_slice::<i32>()?.iter().enumerate().map(taken).collect();
        let unweighted = routes.starts.len() - 1 - self.experts;
        let routes = Arc::new(Routes::taking(&taken, routes.top_k, here + unweighted)?);
        let rows = ops::dispatch(pass.g, &x, &routes)?;
        let out = self.with_weights(pass, &rows, &routes, here, |pass, rows, routes| {
            self.unless_empty(pass, rows, routes)
        })?;
        let sum = ops::combine(pass.g, &out, &weights, &routes)?;
        sum_rows(pass.g, &ep, &sum, &tokens)
    }

    /// Rows sorted by expert, those of the first `experts` through `worked`. Rows of choices without weights come last and
    /// stay what they are.
    fn with_weights(
        &self,
        pass: &mut Pass<'_>,
        rows: &Var,
        routes: &Arc<Routes>,
        experts: usize,
        worked: impl FnOnce(&mut Pass<'_>, &Var, &Arc<Routes>) -> ms_core::Result<Var>,
    ) -> ms_core::Result<Var> {
        let (all, width) = rows.value().as_matrix();
        let end = routes.starts[experts];
        if end == all {
            let first = match routes.starts.len() - 1 == experts {
                true => routes.clone(),
                false => Arc::new(routes.first(experts)),
            };
            return worked(pass, rows, &first);
        }
        // Rows stand one after the other, so parts of the matrix are runs of columns of one long row.
        let long = ops::reshape(pass.g, rows, [1, all * width])?;
        let [head, tail] = ops::split(pass.g, &long, [end * width, (all - end) * width])?;
        let head = ops::reshape(pass.g, &head, [end, width])?;
        let head = worked(pass, &head, &Arc::new(routes.first(experts)))?;
        let head = ops::reshape(pass.g, &head, [1, end * width])?;
        // Where the ranks that share experts sum what they make, one of them has what stays as it is.
        let summed = pass.ctx.dispatcher == Dispatcher::AllGather;
        let tail = ops::scale(pass.g, &tail, if self.first_of_etp || !summed { 1.0 } else { 0.0 })?;
        let long = ops::concat(pass.g, &[&head, &tail])?;
        ops::reshape(pass.g, &long, [all, width])
    }

    /// Rows sorted by expert, each sent to the rank that holds its expert, through it, and back.
    fn on_their_ranks(&self, pass: &mut Pass<'_>, rows: &Var, routes: &Arc<Routes>) -> ms_core::Result<Var> {
        let ep = pass.ctx.ep.clone();
        let joined = pass.ctx.dispatcher != Dispatcher::AllGather && pass.ctx.etp.size() > 1;
        if ep.size() == 1 && !joined {
            return self.unless_empty(pass, rows, routes);
        }
        let here = self.experts / ep.size();
        let counts: Vec<i64> = (0..self.experts).map(|e| routes.range(e).len() as i64).collect();
        let sent = Tensor::from_slice(pass.g.device().arena(), [self.experts], &counts)?;
        let arriving = ep.all_to_all("rows per expert", sent)?.wait()?;
        let (send, receive) = (sums(&counts, here), sums(arriving.as_slice::<i64>()?, here));
        let arrived = exchange_rows(pass.g, &ep, rows, &send, &receive)?;
        let out = match joined {
            true => self.joined(pass, &arrived, &arriving, here)?,
            false => self.sorted(pass, &arrived, arriving.as_slice::<i64>()?, here)?,
        };
        exchange_rows(pass.g, &ep, &out, &receive, &send)
    }

    /// Rows of which `counts[i]` stand one after the other for expert `i % here`, through their experts, in the same order.
    fn sorted(&self, pass: &mut Pass<'_>, rows: &Var, counts: &[i64], here: usize) -> ms_core::Result<Var> {
        let routes = by_expert(counts, here)?;
        let sorted = ops::dispatch(pass.g, rows, &routes)?;
        let out = self.unless_empty(pass, &sorted, &routes)?;
        ops::restore(pass.g, &out, &routes)
    }

    /// The rows or columns that have arrived at each of the ranks that share an expert are gathered, and what experts make of
    /// them is summed and shared out.
    fn joined(
        &self,
        pass: &mut Pass<'_>,
        arrived: &Var,
        arriving: &Tensor,
        here: usize,
    ) -> ms_core::Result<Var> {
        let etp = pass.ctx.etp.clone();
        let (ranks, (rows, width)) = (etp.size(), arrived.value().as_matrix());
        if pass.ctx.dispatcher == Dispatcher::AllToAllSeq {
            if rows == 0 {
                return Ok(arrived.clone());
            }
            let (each, order): (Arc<[usize]>, _) = (vec![rows; ranks].into(), side_by_side(ranks, rows)?);
            let all = gather_rows(pass.g, &etp, arrived, &each)?;
            let all = ops::dispatch(pass.g, &all, &order)?;
            let whole = ops::reshape(pass.g, &all, [rows, ranks * width])?;
            let out = self.sorted(pass, &whole, arriving.as_slice::<i64>()?, here)?;
            let out = ops::reshape(pass.g, &out, [ranks * rows, width])?;
            let out = ops::restore(pass.g, &out, &order)?;
            return sum_rows(pass.g, &etp, &out, &each);
        }
        let counts = etp.all_gather("rows per expert", arriving.clone())?.wait()?;
        let counts = counts.as_slice::<i64>()?;
        let each: Arc<[usize]> = sums(counts, counts.len() / ranks).into();
        let all = gather_rows(pass.g, &etp, arrived, &each)?;
        let out = self.sorted(pass, &all, counts, here)?;
        sum_rows(pass.g, &etp, &out, &each)
    }

    fn unless_empty(&self, pass: &mut Pass<'_>, rows: &Var, routes: &Arc<Routes>) -> ms_core::Result<Var> {
        match rows.value().as_matrix().0 {
            0 => Ok(rows.clone()),
            _ => self.both(pass, rows, routes),
        }
    }
}

//! Dispatch of tokens to experts, and combine.
//!
//! With every dispatcher, the rows of one expert are ordered by source rank, and within a rank by token, so sums over rows
//! have one order.

use crate::feed::Experts;
use crate::pass::Pass;
use ms_core::{DType, Device, Dispatcher, Routes, ShardState, Tensor, Var, ops};
use ms_dist::{AxisGroup, PendingRows, all_rows, begin_all_rows, exchange_rows, gather_rows, sum_rows};
use std::sync::Arc;

/// Number of rows of each rank, of how many each has for each expert.
fn sums(counts: &[i64], experts: usize) -> Vec<usize> {
    counts.chunks_exact(experts).map(|c| c.iter().sum::<i64>() as usize).collect()
}

/// Rows of each rank's experts `[..]` stand one after the other, `counts[i]` of expert `i % experts`: where each goes.
fn by_expert(device: &Device, counts: &[i64], experts: usize) -> ms_core::Result<Arc<Routes>> {
    let all = counts.iter().sum::<i64>() as usize;
    device.routes("by expert", [all, counts.len(), experts], &mut || {
        let of = |(i, &n): (usize, &i64)| std::iter::repeat_n((i % experts) as i32, n as usize);
        let expert_of: Vec<i32> = counts.iter().enumerate().flat_map(of).collect();
        Ok(Routes::new(&expert_of, 1, experts)?)
    })
}

/// The column blocks `[ranks·R, W]` of `ranks` ranks, one after another, joined to whole rows.
fn side_by_side(device: &Device, ranks: usize, rows: usize) -> ms_core::Result<Arc<Routes>> {
    device.routes("side by side", [ranks, rows, 0], &mut || {
        let place = |i: usize| (i % rows * ranks + i / rows) as i32;
        let place_of: Vec<i32> = (0..ranks * rows).map(place).collect();
        Ok(Routes::new(&place_of, 1, ranks * rows)?)
    })
}

/// The experts `[T,K]` that `routes` have for each token.
fn choices_of(routes: &Routes) -> Vec<i32> {
    let mut choices = vec![0i32; routes.rows.len()];
    for e in 0..routes.starts.len() - 1 {
        routes.copies[routes.range(e)].iter().for_each(|&copy| choices[copy as usize] = e as i32);
    }
    choices
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
        let across = pass.ctx.experts_across_dense();
        let group = if across { pass.ctx.tp_ep_group() } else { pass.ctx.ep_group() };
        let gathered = pass.ctx.dispatcher == Dispatcher::AllGather && group.size() > 1;
        let out = if gathered {
            self.gathered(pass, &group, x, weights, routes)?
        } else {
            self.sent(pass, x, weights, routes)?
        };
        pass.dispatched.drain(..).for_each(|rows| rows.forget());
        Ok(out)
    }

    /// A row for each choice is sent to its expert and comes back, or none leaves the rank.
    fn sent(
        &self,
        pass: &mut Pass<'_>,
        x: &Var,
        weights: &Var,
        routes: &Arc<Routes>,
    ) -> ms_core::Result<Var> {
        let x = pass.ctx.expert_columns(pass.g, x)?;
        let rows = self.copied(pass, &x, routes)?;
        let out = self.with_weights(pass, &rows, routes, self.experts, |pass, rows, routes| {
            self.on_their_ranks(pass, rows, routes)
        })?;
        let out = self.weighed(pass, &out, weights, routes)?;
        pass.ctx.whole_rows(pass.g, &out)
    }

    /// A row of `x` for each copy, sorted by expert.
    fn copied(&self, pass: &mut Pass<'_>, x: &Var, routes: &Arc<Routes>) -> ms_core::Result<Var> {
        let rows = ops::dispatch(pass.g, x, routes)?;
        let again = routes.clone();
        Ok(pass.on_the_way(rows, x, move |device, x| device.dispatch(&x, &again)))
    }

    /// The weighted sums of what came back.
    fn weighed(
        &self,
        pass: &mut Pass<'_>,
        rows: &Var,
        weights: &Var,
        routes: &Arc<Routes>,
    ) -> ms_core::Result<Var> {
        let sums = ops::combine(pass.g, rows, weights, routes)?;
        if let Some(host) = pass.host.filter(|_| pass.save_policy.swap_expert_outputs) {
            rows.send(host)?;
        }
        Ok(sums)
    }

    /// Tokens, weights and choices of all `group` of the experts are gathered; each takes the copies for its experts, and,
    /// of its own tokens, those of choices without weights. The experts' outputs are added to rows of zeros, which are
    /// reduce-scattered.
    fn gathered(
        &self,
        pass: &mut Pass<'_>,
        group: &AxisGroup,
        x: &Var,
        weights: &Var,
        routes: &Arc<Routes>,
    ) -> ms_core::Result<Var> {
        let (ep, arena) = (pass.ctx.ep.clone(), pass.g.device().arena().clone());
        let own = Tensor::from_slice(&arena, [1], &[x.value().as_matrix().0 as i64])?;
        let tokens = group.all_gather("tokens of each rank", own)?.wait()?;
        let tokens: Arc<[usize]> = tokens.ready()?.as_slice::<i64>()?.iter().map(|&n| n as usize).collect();
        let shape = [routes.tokens(), routes.top_k];
        let choices = if arena.is_meta() {
            Tensor::uninit(&arena, DType::I32, shape)
        } else {
            Tensor::from_slice(&arena, shape, &choices_of(routes))?
        };
        let choices = begin_all_rows(&***group, "choices", choices, &tokens)?;
        // After the weights, so that in a backward pass the tokens are returned right after their experts.
        let weights = gather_rows(pass.g, group, weights, &tokens)?;
        let x = self.joined_rows(pass, group, x, &tokens)?;
        let choices = choices.wait()?;
        let here = self.experts / ep.size();
        let first = ep.rank() * here;
        let before: usize = tokens[..group.rank()].iter().sum();
        let mine = before * routes.top_k..(before + tokens[group.rank()]) * routes.top_k;
        let taken = |(copy, &e): (usize, &i32)| {
            let e = e as usize;
            if e < self.experts {
                e.checked_sub(first).filter(|&e| e < here)
            } else {
                mine.contains(&copy).then_some(here + e.wrapping_sub(self.experts))
            }
        };
        let (count, top_k) = (here + routes.starts.len() - 1 - self.experts, routes.top_k);
        let routes = pass.g.device().routes("gathered", [choices.numel(), top_k, count], &mut || {
            // Where nothing has a value, ranks choose alike.
            let alike = choices.is_meta().then(|| choices_of(routes).repeat(group.size()));
            let choices = alike.as_deref().map_or_else(|| choices.ready()?.as_slice::<i32>(), Ok)?;
            let taken: Vec<Option<usize>> = choices.iter().enumerate().map(taken).collect();
            Ok(Routes::taking(&taken, top_k, count)?)
        })?;
        let rows = self.copied(pass, &x, &routes)?;
        let own = pass.ctx.ep_group().over;
        let rows =
            rows.resharded("copies of a rank's experts", own, ShardState::Replicated, ShardState::Routed);
        let out = self
            .with_weights(pass, &rows, &routes, here, |pass, rows, routes| self.both(pass, rows, routes))?;
        let sum = self.weighed(pass, &out, &weights, &routes)?;
        sum_rows(pass.g, group, &sum, &tokens)
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
            let first = if routes.starts.len() - 1 == experts {
                routes.clone()
            } else {
                Arc::new(routes.first(experts))
            };
            return worked(pass, rows, &first);
        }
        // Rows stand one after the other, so parts of the matrix are runs of columns of one long row.
        let long = ops::reshape(pass.g, rows, [1, all * width])?;
        let [head, tail] = ops::split(pass.g, &long, [end * width, (all - end) * width])?;
        let head = ops::reshape(pass.g, &head, [end, width])?;
        let head = pass.on_the_way(head, rows, move |_, rows| rows.rows(0, end));
        let head = worked(pass, &head, &Arc::new(routes.first(experts)))?;
        let head = ops::reshape(pass.g, &head, [1, end * width])?;
        // Where the ranks that share experts sum what they make, one of them has what stays as it is.
        let summed = pass.ctx.dispatcher == Dispatcher::AllGather && !pass.ctx.experts_across_dense();
        let tail = ops::scale(pass.g, &tail, if self.first_of_etp || !summed { 1.0 } else { 0.0 })?;
        let tail = match pass.ctx.dispatcher {
            Dispatcher::AllGather => {
                let group = pass.ctx.etp_group().over;
                tail.resharded("rows of one rank", group, ShardState::Replicated, ShardState::Partial)
            }
            Dispatcher::AllToAll | Dispatcher::AllToAllSeq => tail,
        };
        let long = ops::concat(pass.g, &[&head, &tail])?;
        ops::reshape(pass.g, &long, [all, width])
    }

    /// Rows sorted by expert, each sent to the rank that holds its expert, through it, and back.
    fn on_their_ranks(&self, pass: &mut Pass<'_>, rows: &Var, routes: &Arc<Routes>) -> ms_core::Result<Var> {
        let ep = pass.ctx.ep_group();
        let joined = pass.ctx.dispatcher != Dispatcher::AllGather && pass.ctx.etp.size() > 1;
        if ep.size() == 1 && !joined {
            return self.both(pass, rows, routes);
        }
        let here = self.experts / ep.size();
        let counts: Vec<i64> = (0..self.experts).map(|e| routes.range(e).len() as i64).collect();
        let sent = Tensor::from_slice(pass.g.device().arena(), [self.experts], &counts)?;
        let arriving = ep.all_to_all("rows per expert", sent)?.wait()?;
        let (send, receive) = (sums(&counts, here), sums(arriving.ready()?.as_slice::<i64>()?, here));
        let in_flight = pass.ctx.overlap_experts && ep.size() > 1;
        let mut arrived = if in_flight {
            let rows = PendingRows::begin_exchange(pass.g, &ep, rows, &send, &receive)?;
            self.run_shared_experts(pass)?;
            pass.resume_overlapped()?;
            rows.finish(pass.g)?
        } else {
            exchange_rows(pass.g, &ep, rows, &send, &receive)?
        };
        if ep.size() > 1 {
            let (comm, send, receive) = (ep.comm.clone(), send.clone(), receive.clone());
            arrived = pass.on_the_way(arrived, rows, move |_, rows| {
                Ok(comm.exchange_known_rows("exchange_rows", rows, &send, &receive)?.wait()?)
            });
        }
        let out = if joined {
            self.joined(pass, &arrived, &arriving, here)?
        } else {
            self.sorted(pass, &arrived, arriving.ready()?.as_slice::<i64>()?, here)?
        };
        if !in_flight {
            return exchange_rows(pass.g, &ep, &out, &receive, &send);
        }
        let rows = PendingRows::begin_exchange(pass.g, &ep, &out, &receive, &send)?;
        pass.resume_overlapped()?;
        rows.finish(pass.g)
    }

    /// Runs rows through their experts, keeping their order; `counts[i]` consecutive rows are for expert `i % here`.
    fn sorted(&self, pass: &mut Pass<'_>, rows: &Var, counts: &[i64], here: usize) -> ms_core::Result<Var> {
        let routes = by_expert(pass.g.device(), counts, here)?;
        let sorted = self.copied(pass, rows, &routes)?;
        let out = self.both(pass, &sorted, &routes)?;
        ops::restore(pass.g, &out, &routes)
    }

    /// The rows or columns that have arrived at each of the ranks that share an expert are gathered, and the experts' outputs
    /// are reduce-scattered.
    fn joined(
        &self,
        pass: &mut Pass<'_>,
        arrived: &Var,
        arriving: &Tensor,
        here: usize,
    ) -> ms_core::Result<Var> {
        let etp = pass.ctx.etp_group();
        let (ranks, (rows, width)) = (etp.size(), arrived.value().as_matrix());
        if pass.ctx.dispatcher == Dispatcher::AllToAllSeq {
            let (each, order): (Arc<[usize]>, _) =
                (vec![rows; ranks].into(), side_by_side(pass.g.device(), ranks, rows)?);
            let all = self.joined_rows(pass, &etp, arrived, &each)?;
            let all = self.copied(pass, &all, &order)?;
            let shape = [rows, ranks * width];
            let whole = ops::reshape(pass.g, &all, shape)?;
            let whole = pass.on_the_way(whole, &all, move |_, all| all.reshape(shape));
            let out = self.sorted(pass, &whole, arriving.ready()?.as_slice::<i64>()?, here)?;
            let out = ops::reshape(pass.g, &out, [ranks * rows, width])?;
            let out = ops::restore(pass.g, &out, &order)?;
            let columns = sum_rows(pass.g, &etp, &out, &each)?;
            return Ok(columns.resharded(
                "columns of all tokens",
                etp.over,
                ShardState::Tokens,
                ShardState::Sharded,
            ));
        }
        let counts = etp.all_gather("rows per expert", arriving.clone())?.wait()?;
        let counts = counts.ready()?.as_slice::<i64>()?;
        let each: Arc<[usize]> = sums(counts, counts.len() / ranks).into();
        let all = self.joined_rows(pass, &etp, arrived, &each)?;
        let out = self.sorted(pass, &all, counts, here)?;
        sum_rows(pass.g, &etp, &out, &each)
    }

    /// The rows of all ranks of the group, `each[r]` of rank `r`.
    fn joined_rows(
        &self,
        pass: &mut Pass<'_>,
        ranks: &AxisGroup,
        x: &Var,
        each: &Arc<[usize]>,
    ) -> ms_core::Result<Var> {
        if each.iter().all(|&n| n == 0) {
            return gather_rows(pass.g, ranks, x, each);
        }
        let all = if pass.ctx.overlap_experts {
            let rows = PendingRows::begin_gather(pass.g, ranks, x, each)?;
            self.run_shared_experts(pass)?;
            rows.finish(pass.g)?
        } else {
            gather_rows(pass.g, ranks, x, each)?
        };
        let (comm, each) = (ranks.comm.clone(), each.clone());
        Ok(pass.on_the_way(all, x, move |_, x| all_rows(&*comm, "gather_rows", x, &each)))
    }
}

//! Mixture of experts: gating, permuting tokens by expert and back.

use super::Row;
use crate::nn::exec::{Call, Fault, Outcome};
use crate::nn::tensor::Values;

/// For each of the flattened indices its place in the stable order by expert.
fn places(flat: &[i64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..flat.len()).collect();
    order.sort_by_key(|i| flat[*i]);
    let mut place = vec![0; flat.len()];
    for (p, i) in order.into_iter().enumerate() {
        place[i] = p;
    }
    place
}

fn width(k: &Call, name: &str) -> Result<usize, Fault> {
    Ok(*k.t(name)?.dims.last().unwrap_or(&1) as usize)
}

fn not_padded(k: &Call) -> Outcome {
    if k.flag("paddedMode")? { Err(Fault::from("paddedMode must be false")) } else { Ok(()) }
}

/// Copies of the rows of `tokens` by expert, as many as `out` has, and the place of each: the source of row i is the i-th of the
/// stable order, divided by k.
fn sort_rows(k: &Call, tokens: &str, flat: &[i64], out: &str, place_out: &str) -> Outcome {
    let x = k.load(tokens)?;
    let h = width(k, tokens)?;
    let topk = flat.len() / (x.len() / h).max(1);
    let place = places(flat);
    let out = k.t(out)?;
    let mut source = vec![0; flat.len()];
    for (i, p) in place.iter().enumerate() {
        source[*p] = i / topk;
    }
    let rows = source.iter().take(out.numel() / h);
    k.put_view(out, &x.pick(rows.flat_map(|s| s * h..(s + 1) * h)))?;
    k.put(place_out, &Values::I(place.into_iter().map(|p| p as i64).collect()))
}

fn permute(k: &Call) -> Outcome {
    not_padded(k)?;
    sort_rows(k, "tokens", &k.load("indices")?.ints(), "permuteTokensOut", "sortedIndicesOut")
}

fn permute_grad(k: &Call) -> Outcome {
    not_padded(k)?;
    let g = k.f("permutedOutputGrad")?;
    let place = k.load("sortedIndices")?.ints();
    let h = width(k, "permutedOutputGrad")?;
    let topk = k.int("numTopk")? as usize;
    let mut out = vec![0.0; k.t("out")?.numel()];
    for i in k.order(place.len()) {
        let at = place[i] as usize * h;
        if at + h <= g.len() {
            for c in 0..h {
                let held = &mut out[i / topk * h + c];
                *held = Call::added(*held, g[at + c]);
            }
        }
    }
    k.put("out", &Values::F(out))
}

fn unpermute(k: &Call) -> Outcome {
    not_padded(k)?;
    let x = k.f("permutedTokens")?;
    let place = k.load("sortedIndices")?.ints();
    let probs = k.opt_f("probsOptional")?;
    let h = width(k, "permutedTokens")?;
    let out = k.t("out")?;
    let topk = place.len() / (out.numel() / h).max(1);
    let mut v = vec![0.0; out.numel()];
    for (i, p) in place.iter().enumerate() {
        let at = *p as usize * h;
        if at + h <= x.len() {
            let w = probs.as_ref().map_or(1.0, |w| w[i]);
            for c in 0..h {
                v[i / topk * h + c] += w * x[at + c];
            }
        }
    }
    k.put("out", &Values::F(v))
}

fn unpermute_grad(k: &Call) -> Outcome {
    not_padded(k)?;
    let (x, g) = (k.f("permutedTokens")?, k.f("unpermutedTokensGrad")?);
    let place = k.load("sortedIndices")?.ints();
    let probs = k.opt_f("probsOptional")?;
    let h = width(k, "permutedTokens")?;
    let topk = place.len() / (g.len() / h).max(1);
    let (mut dx, mut dp) = (vec![0.0; x.len()], vec![0.0; place.len()]);
    for (i, p) in place.iter().enumerate() {
        let at = *p as usize * h;
        if at + h <= x.len() {
            let w = probs.as_ref().map_or(1.0, |w| w[i]);
            for c in 0..h {
                dx[at + c] = w * g[i / topk * h + c];
                dp[i] += x[at + c] * g[i / topk * h + c];
            }
        }
    }
    k.put("permutedTokensGradOut", &Values::F(dx))?;
    if probs.is_some() { k.put_opt("probsGradOut", &Values::F(dp)) } else { Ok(()) }
}

fn gating(k: &Call) -> Outcome {
    let x = k.f("x")?;
    let e = width(k, "x")?;
    let topk = k.int("k")? as usize;
    let rows = x.len() / e;
    let finished = k.opt("finishedOptional")?.map(|v| v.load(k.decl.name)).transpose()?;
    let (mut y, mut at, mut number) = (Vec::new(), Vec::new(), Vec::new());
    let mut all = Vec::new();
    for (r, row) in x.chunks(e).enumerate() {
        let m = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let ex: Vec<f64> = row.iter().map(|v| (v - m).exp()).collect();
        let s = k.sum(ex.iter().copied());
        let p: Vec<f64> = ex.iter().map(|v| v / s).collect();
        let mut order: Vec<usize> = (0..e).collect();
        order.sort_by(|a, b| p[*b].total_cmp(&p[*a]));
        let done = finished.as_ref().is_some_and(|f| f.b(r));
        for (j, i) in order.iter().take(topk).enumerate() {
            y.push(p[*i]);
            at.push(if done { e as i64 } else { *i as i64 });
            number.push((j * rows + r) as i64);
        }
        all.extend(p);
    }
    if k.int("renorm").unwrap_or(0) == 1 {
        for row in y.chunks_mut(topk) {
            let s: f64 = row.iter().sum();
            row.iter_mut().for_each(|v| *v /= s);
        }
    }
    k.put("yOut", &Values::F(y))?;
    k.put("expertIdxOut", &Values::I(at))?;
    if k.value("rowIdxOut").is_some() {
        return k.put("rowIdxOut", &Values::I(number));
    }
    if k.flag("outputSoftmaxResultFlag")? {
        k.put_opt("softmaxResultOutOptional", &Values::F(all))
    } else {
        Ok(())
    }
}

/// Rows by expert with room for `expertCapacityOptional` each: what does not fit is dropped (row -1), what is left over is zero.
fn init_with_capacity(k: &Call) -> Outcome {
    let flat = k.load("expertIdx")?.ints();
    let x = k.f("x")?;
    let h = width(k, "x")?;
    let topk = flat.len() / (x.len() / h).max(1);
    let (experts, room) = (k.int("expertNumOptional")? as usize, k.int("expertCapacityOptional")? as usize);
    if experts == 0 || room == 0 {
        return Err(Fault::from("with dropPadMode 1 there must be experts and room for each"));
    }
    let (mut rows, mut taken) = (vec![-1i64; flat.len()], vec![0usize; experts]);
    let mut out = vec![0.0; experts * room * h];
    for (i, e) in flat.iter().enumerate() {
        let e = *e as usize;
        if taken[e] < room {
            let at = e * room + taken[e];
            rows[i] = at as i64;
            out[at * h..(at + 1) * h].copy_from_slice(&x[i / topk * h..(i / topk + 1) * h]);
        }
        taken[e] += 1;
    }
    k.put("expandedXOut", &Values::F(out))?;
    k.put("expandedRowIdxOut", &Values::I(rows))?;
    if k.flag("expertTokensBeforeCapacityFlagOptional")? {
        let before = taken.into_iter().map(|n| n as i64).collect();
        k.put_opt("expertTokensBeforeCapacityOutOptional", &Values::I(before))?;
    }
    Ok(())
}

/// Rows by expert, without capacity.
fn init_routing(k: &Call) -> Outcome {
    if k.int("dropPadModeOptional")? != 0 {
        return init_with_capacity(k);
    }
    let flat = k.load("expertIdx")?.ints();
    sort_rows(k, "x", &flat, "expandedXOut", "expandedRowIdxOut")?;
    let how = k.int("expertTokensCountOrCumsumFlagOptional")?;
    if how > 0 {
        let mut counts = vec![0i64; k.int("expertNumOptional")? as usize];
        flat.iter().for_each(|e| counts[*e as usize] += 1);
        if how == 1 {
            for i in 1..counts.len() {
                counts[i] += counts[i - 1];
            }
        }
        k.put_opt("expertTokensCountOrCumsumOutOptional", &Values::I(counts))?;
    }
    Ok(())
}

/// out[i] = x1[i] + x2[i] + Σⱼ scales[i,j]·(expanded[row[i + j·n]] + bias[expert])
fn finalize_routing(k: &Call) -> Outcome {
    let x = k.f("expandedX")?;
    let h = width(k, "expandedX")?;
    let row = k.load("expandedRowIdx")?.ints();
    let out = k.t("out")?;
    let n = out.numel() / h;
    let topk = row.len() / n.max(1);
    let mode = k.int("dropPadMode")?;
    let (x1, x2) = (k.opt_f("x1Optional")?, k.opt_f("x2Optional")?);
    let (bias, scales) = (k.opt_f("biasOptional")?, k.opt_f("scalesOptional")?);
    let expert = k.opt("expertIdxOptional")?.map(|v| v.load(k.decl.name)).transpose()?.map(Values::ints);
    let mut v = vec![0.0; n * h];
    for i in 0..n {
        for j in 0..topk {
            let from = if mode < 2 { row[j * n + i] } else { row[i * topk + j] };
            let w = scales.as_ref().map_or(1.0, |s| s[i * topk + j]);
            for c in 0..h {
                let b = match (&bias, &expert) {
                    (Some(b), Some(e)) => b[e[i * topk + j] as usize * h + c],
                    _ => 0.0,
                };
                let at = from as usize * h + c;
                // A copy that was dropped has row -1, and adds nothing.
                v[i * h + c] += if from < 0 { 0.0 } else { w * (x.get(at).copied().unwrap_or(0.0) + b) };
            }
        }
        for c in 0..h {
            v[i * h + c] +=
                x1.as_ref().map_or(0.0, |x| x[i * h + c]) + x2.as_ref().map_or(0.0, |x| x[i * h + c]);
        }
    }
    k.put("out", &Values::F(v))
}

pub(super) static OPS: &[Row] = &[
    (
        "MoeTokenPermute",
        "tokens:F indices:L sortedIndicesOut:i type(tokens,permuteTokensOut) \
         contig(permuteTokensOut,sortedIndicesOut) code(561002) in(paddedMode,0) rank(tokens,2..8) \
         rank(indices,1..2) tokens[n,.h] indices[n,.k] sortedIndicesOut[n*k.n] rank(permuteTokensOut,2..8)",
        permute,
    ),
    (
        "MoeTokenPermuteGrad",
        "permutedOutputGrad:F sortedIndices:i type(permutedOutputGrad,out) code(561002) in(paddedMode,0) \
         in(numTopk,1..512) out[n,h] permutedOutputGrad[_,h] sortedIndices[n*numTopk]",
        permute_grad,
    ),
    (
        "MoeTokenUnpermute",
        "permutedTokens:F sortedIndices:i probsOptional:F type(permutedTokens,out) contig(out) code(561002) \
         in(paddedMode,0) out[n,h] permutedTokens[_,h] probsOptional[n,k] default(k,1) in(k,1..512) \
         sortedIndices[n*k]",
        unpermute,
    ),
    (
        "MoeTokenUnpermuteGrad",
        "permutedTokens:F sortedIndices:i probsOptional:F \
         type(permutedTokens,unpermutedTokensGrad,permutedTokensGradOut) null(probsGradOut) \
         contig(permutedTokensGradOut,probsGradOut) code(561002) in(paddedMode,0) unpermutedTokensGrad[n,h] \
         permutedTokens[t,h] permutedTokensGradOut[t,h] probsOptional[n,k] default(k,1) in(k,1..512) \
         sortedIndices[n*k] probsGradOut[n,k]",
        unpermute_grad,
    ),
    (
        "MoeGatingTopKSoftmax",
        "x:F finishedOptional:B expertIdxOut:i rowIdxOut:i type(x,yOut) contig(yOut,expertIdxOut,rowIdxOut) \
         rank(x,2..3) code(561002) in(k,1..1024) x[.r,e] atmost(k,e) finishedOptional[.r] yOut[.r,k] \
         expertIdxOut[.r,k] rowIdxOut[.r,k]",
        gating,
    ),
    (
        "MoeGatingTopKSoftmaxV2",
        "x:F finishedOptional:B expertIdxOut:i softmaxResultOutOptional:S type(x,yOut) rank(x,2..3) \
         code(561002) in(k,1..1024) in(renorm,0|1) x[.r,e] atmost(k,e) finishedOptional[.r] yOut[.r,k] \
         expertIdxOut[.r,k] softmaxResultOutOptional[.r,e]",
        gating,
    ),
    (
        "MoeInitRoutingV2",
        "x:F expertIdx:i expandedRowIdxOut:i expertTokensCountOrCumsumOutOptional:i \
         expertTokensBeforeCapacityOutOptional:i type(x,expandedXOut) \
         contig(expandedXOut,expandedRowIdxOut) code(561103) in(dropPadModeOptional,0|1) \
         in(expertTokensCountOrCumsumFlagOptional,0|1|2) in(activeNumOptional,0..9223372036854775807) \
         in(expertCapacityOptional,0..9223372036854775807) in(expertNumOptional,0..9223372036854775807) \
         x[n,h] expertIdx[n,k] expandedRowIdxOut[n*k] rank(expandedXOut,2..3)",
        init_routing,
    ),
    (
        "MoeFinalizeRoutingV2",
        "expandedX:F expandedRowIdx:i scalesOptional:F expertIdxOptional:i \
         type(expandedX,x1Optional,x2Optional,biasOptional,out) contig(out) code(561103) \
         in(dropPadMode,0..3) rank(expandedX,2..3) out[n,h] x1Optional[n,h] x2Optional[n,h] \
         scalesOptional[n,k] default(k,1) expertIdxOptional[n,k] expandedRowIdx[n*k] biasOptional[_,h] \
         needs(x2Optional,x1Optional) needs(biasOptional,expertIdxOptional)",
        finalize_routing,
    ),
];

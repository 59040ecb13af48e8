//! Tokens to experts on other ranks and back: `MoeDistributeDispatch` and `MoeDistributeCombine`, `ascend-abi.md`, section 8.8.
//!
//! Ranks that hold a shared expert come first; every other rank holds as many experts as the others. What a rank is sent stands
//! by its experts, then by the rank it comes from, then in the order of the tokens there. Outputs that only the combination reads
//! have the emulator's own contents.

use super::Row;
use super::exchange::exchange;
use super::norm::rms;
use super::quantised::in_steps;
use crate::hccl::wire::{Kind, Reply};
use crate::nn::bytes::{decode, encode};
use crate::nn::exec::{Call, Fault, Outcome};
use crate::nn::tensor::{Dtype, Values, View};
use crate::report::{self, violation};

/// Where experts live.
struct Places {
    ranks: usize,
    /// Ranks of shared experts, and how many hold the same one.
    shared: usize,
    copies: usize,
    /// Experts of each of the other ranks.
    each: usize,
}

/// A row on its way: its token, and which of the token's experts it is for; a shared expert has no number.
#[derive(Clone, Copy)]
struct Way {
    token: usize,
    choice: Option<usize>,
}

impl Places {
    fn new(k: &Call, ranks: usize) -> Result<Places, Fault> {
        let (shared, n) = (k.int("sharedExpertRankNum")? as usize, k.int("sharedExpertNum")? as usize);
        let each = k.int("moeExpertNum")? as usize / (ranks - shared).max(1);
        Ok(Places { ranks, shared, copies: if shared > 0 { shared / n.max(1) } else { 0 }, each })
    }
    fn experts_of(&self, rank: usize) -> usize {
        if rank < self.shared { 1 } else { self.each }
    }
    /// For each rank and expert there the rows that rank `me` sends.
    fn ways(&self, me: usize, ids: &[i64], top: usize, active: &[bool]) -> Vec<Vec<Vec<Way>>> {
        let mut out: Vec<Vec<Vec<Way>>> =
            (0..self.ranks).map(|r| vec![Vec::new(); self.experts_of(r)]).collect();
        for token in 0..ids.len() / top.max(1) {
            if active[token * top..(token + 1) * top].iter().any(|a| *a) {
                for at in (0..self.shared).filter(|r| r % self.copies == me % self.copies) {
                    out[at][0].push(Way { token, choice: None });
                }
            }
            for choice in (0..top).filter(|c| active[token * top + c]) {
                let id = ids[token * top + choice] as usize;
                if id >= self.each * (self.ranks - self.shared) {
                    continue;
                }
                out[self.shared + id / self.each][id % self.each].push(Way { token, choice: Some(choice) });
            }
        }
        out
    }
}

/// Which of the tokens' choices take part.
fn active(k: &Call, tokens: usize, top: usize) -> Result<Vec<bool>, Fault> {
    let name = "xActiveMask|xActiveMaskOptional";
    let Some(mask) = k.opt(name)?.filter(|m| m.numel() > 0) else { return Ok(vec![true; tokens * top]) };
    let values = mask.load(k.decl.name)?;
    let by_token = values.len() == tokens;
    Ok((0..tokens * top).map(|i| values.b(if by_token { i / top } else { i })).collect())
}

/// Experts that are no rank's: they give nothing, the token itself, or a constant part of it.
struct Special {
    experts: i64,
    zero: i64,
    copy: i64,
    constant: i64,
}

impl Special {
    fn new(k: &Call) -> Result<Special, Fault> {
        let of = |name: &str| if k.value(name).is_some() { k.int(name) } else { Ok(0) };
        let (zero, copy, constant) = (of("zeroExpertNum")?, of("copyExpertNum")?, of("constExpertNum")?);
        Ok(Special { experts: k.int("moeExpertNum")?, zero, copy, constant })
    }
    /// Which of the experts that copy an id names, or which of those of constants.
    fn copies(&self, id: i64) -> bool {
        (0..self.copy).contains(&(id - self.experts - self.zero))
    }
    fn constant(&self, id: i64) -> Option<usize> {
        let at = id - self.experts - self.zero - self.copy;
        usize::try_from(at).ok()
    }
}

fn ids(k: &Call) -> Result<Vec<i64>, Fault> {
    let ids = k.load("expertIds")?.ints();
    let special = Special::new(k)?;
    let all = special.experts + special.zero + special.copy + special.constant;
    match ids.iter().find(|id| !(0..all).contains(*id)) {
        Some(id) => Err(Fault::from(format!("expertIds: expert {id} of {all}"))),
        None => Ok(ids),
    }
}

/// What the experts that are no rank's add to the tokens.
fn add_special(k: &Call, ids: &[i64], weights: &[f64], active: &[bool], out: &mut [f64]) -> Outcome {
    let special = Special::new(k)?;
    let tokens = k.t("expertIds")?.dims[0] as usize;
    let (h, top) = (out.len() / tokens.max(1), ids.len() / tokens.max(1));
    for (i, id) in
        ids.iter().enumerate().filter(|(i, id)| active[*i] && **id >= special.experts + special.zero)
    {
        let x = k.f("oriXOptional")?;
        let token = i / top;
        let row = &x[token * h..(token + 1) * h];
        let add: Vec<f64> = match special.constant(*id) {
            Some(c) if !special.copies(*id) => {
                let of = |name: &str| Ok::<_, Fault>(k.f(name)?[c * h..(c + 1) * h].to_vec());
                let (a, b, v) = (
                    of("constExpertAlpha1Optional")?,
                    of("constExpertAlpha2Optional")?,
                    of("constExpertVOptional")?,
                );
                (0..h).map(|c| a[c] * row[c] + b[c] * v[c]).collect()
            }
            _ => row.to_vec(),
        };
        add.iter().enumerate().for_each(|(c, v)| out[token * h + c] += weights[i] * v);
    }
    Ok(())
}

/// What all ranks say alike.
fn same(k: &Call) -> Result<String, Fault> {
    let names = ["moeExpertNum", "sharedExpertNum", "sharedExpertRankNum", "globalBs"];
    names.iter().map(|n| Ok(format!("{n} {} ", k.int(n)?))).collect()
}

/// Writes the first elements of a tensor and fills the rest.
fn put_start(k: &Call, view: &View, mut values: Vec<f64>, rest: f64) -> Outcome {
    if values.len() > view.numel() {
        let said =
            format!("{} values for {:?}: more tokens came than there is room for", values.len(), view.dims);
        return Err(Fault::from(said));
    }
    values.resize(view.numel(), rest);
    match view.dtype.is_float() {
        true => k.put_view(view, &Values::F(values)),
        false => k.put_view(view, &Values::I(values.into_iter().map(|v| v as i64).collect())),
    }
}

/// A row in eight bits and what one step stands for.
fn quantised(row: &[f64]) -> (Vec<f64>, f64) {
    let (row, step) = in_steps(row);
    (row.into_iter().map(|v| v as f64).collect(), step)
}

fn dispatch(k: &Call) -> Outcome {
    let comm = k.group("groupEp")?;
    let (ranks, me) = (comm.size as usize, comm.rank as usize);
    let places = Places::new(k, ranks)?;
    let x = k.t("x")?;
    let (tokens, h) = (x.dims[0] as usize, x.dims[1] as usize);
    let ids = ids(k)?;
    let top = ids.len() / tokens.max(1);
    let ways = places.ways(me, &ids, top, &active(k, tokens, top)?);
    let eight = k.int("quantMode")? == 2;
    let out = k.t("expandX|expandXOut")?;
    let (pieces, payload) = packed(k, &places, &ways, top)?;
    let reply = exchange(k, comm, (Kind::AllToAll, out.dtype, true), &same(k)?, pieces, payload)?;
    let Came { counts, rows, steps, scale, notes } =
        Came::unpacked(&reply, places.experts_of(me), ranks, h, out.dtype);
    // Room behind the last row is not promised to hold anything.
    put_start(k, out, rows, if out.dtype.is_float() { f64::NAN } else { -1.0 })?;
    let there = |name: &str| Ok::<_, Fault>(k.opt(name)?.filter(|v| v.numel() > 0));
    if let Some(v) = there("dynamicScales|dynamicScalesOut")?.filter(|_| eight) {
        put_start(k, v, steps, f64::NAN)?;
    }
    if let Some(v) = there("expandScales|expandScalesOut")? {
        put_start(k, v, scale, f64::NAN)?;
    }
    let totals: Vec<f64> = counts.iter().map(|c| c.iter().sum::<usize>() as f64).collect();
    let numbers = match k.int("expertTokenNumsType")? {
        0 => (1..=totals.len()).map(|n| totals[..n].iter().sum()).collect(),
        _ => totals,
    };
    put_start(k, k.t("expertTokenNums|expertTokenNumsOut")?, numbers, 0.0)?;
    let flat = counts.concat().into_iter().map(|n| n as f64).collect();
    put_start(k, k.t("epRecvCounts|epRecvCountsOut")?, flat, 0.0)?;
    if k.value("expandIdx").is_some() {
        return put_start(k, k.t("expandIdx")?, ordinals(&ways, tokens, top), -1.0);
    }
    put_start(k, k.t("assistInfoForCombineOut")?, notes, -1.0)
}

/// What goes to each rank: its bytes, one after the other, and how many they are. First how many rows there are for each expert,
/// then the rows, each with its step, weight, token and choice.
fn packed(
    k: &Call,
    places: &Places,
    ways: &[Vec<Vec<Way>>],
    top: usize,
) -> Result<(Vec<u64>, Vec<u8>), Fault> {
    let (values, h) = (k.f("x")?, k.t("x")?.dims[1] as usize);
    let smooth = k.opt_f("scales|scalesOptional")?;
    let weights = k.opt_f("expertScales|expertScalesOptional")?;
    let eight = k.int("quantMode")? == 2;
    let dtype = k.t("expandX|expandXOut")?.dtype;
    let (mut pieces, mut payload) = (Vec::new(), Vec::new());
    for (rank, experts) in ways.iter().enumerate() {
        let start = payload.len();
        payload.extend(encode(&experts.iter().map(|e| e.len() as f64).collect::<Vec<_>>(), Dtype::I32));
        for (e, rows) in experts.iter().enumerate() {
            let line = match rank < places.shared {
                true => rank / places.copies.max(1),
                false if places.shared > 0 => {
                    places.shared / places.copies + (rank - places.shared) * places.each + e
                }
                false => rank * places.each + e,
            };
            for way in rows {
                let mut row = values[way.token * h..(way.token + 1) * h].to_vec();
                if let Some(s) = &smooth {
                    row.iter_mut().zip(&s[line * h..]).for_each(|(v, s)| *v *= s);
                }
                let (row, step) = if eight { quantised(&row) } else { (row, 1.0) };
                payload.extend(encode(&row, dtype));
                let weight = match (&weights, way.choice) {
                    (Some(w), Some(c)) => w[way.token * top + c],
                    _ => 1.0,
                };
                payload.extend(encode(&[step, weight], Dtype::F32));
                let choice = way.choice.map_or(-1.0, |c| c as f64);
                payload.extend(encode(&[way.token as f64, choice], Dtype::I32));
            }
        }
        pieces.push((payload.len() - start) as u64);
    }
    Ok((pieces, payload))
}

/// What has come from the ranks, by expert and then by rank.
#[derive(Default)]
struct Came {
    /// Rows for each expert here from each rank.
    counts: Vec<Vec<usize>>,
    rows: Vec<f64>,
    steps: Vec<f64>,
    scale: Vec<f64>,
    /// For each row 128 numbers, of which three say the rank, the token and the choice that it comes from.
    notes: Vec<f64>,
}

impl Came {
    fn unpacked(reply: &Reply, experts: usize, ranks: usize, h: usize, dtype: Dtype) -> Came {
        let size = h * dtype.size();
        let mut came = Came { counts: vec![vec![0; ranks]; experts], ..Came::default() };
        let (mut at, mut lists) = (0, Vec::new());
        for (rank, len) in reply.pieces.iter().enumerate() {
            let piece = &reply.payload[at..at + *len as usize];
            at += *len as usize;
            let (head, rows) = piece.split_at(4 * experts);
            for (e, n) in decode(head, Dtype::I32).into_iter().enumerate() {
                came.counts[e][rank] = n as usize;
            }
            lists.push(rows.chunks(size + 16));
        }
        for expert in &came.counts {
            for (rank, n) in expert.iter().enumerate() {
                for row in lists[rank].by_ref().take(*n) {
                    came.rows.extend(decode(&row[..size], dtype));
                    let numbers = decode(&row[size..size + 8], Dtype::F32);
                    came.steps.push(numbers[0]);
                    came.scale.push(numbers[1]);
                    let mut note = vec![0.0; 128];
                    note[0] = rank as f64;
                    note[1..3].copy_from_slice(&decode(&row[size + 8..], Dtype::I32));
                    came.notes.extend(note);
                }
            }
        }
        came
    }
}

/// For each token's choice its number among the rows that go from here to that expert.
fn ordinals(ways: &[Vec<Vec<Way>>], tokens: usize, top: usize) -> Vec<f64> {
    let mut out = vec![-1.0; tokens * top];
    for rows in ways.iter().flatten() {
        for (n, way) in rows.iter().enumerate() {
            if let Some(c) = way.choice {
                out[way.token * top + c] = n as f64;
            }
        }
    }
    out
}

/// Whether what the dispatch gave has come unchanged.
fn is_pair(
    k: &Call,
    places: &Places,
    ways: &[Vec<Vec<Way>>],
    counts: &[usize],
    top: usize,
) -> Result<(), Fault> {
    let tokens = k.t("expertIds")?.dims[0] as usize;
    let wrong = if k.value("expandIdx").is_some() {
        k.f("expandIdx")? != ordinals(ways, tokens, top)
    } else {
        let notes = k.f("assistInfoForCombine")?;
        let from = counts.iter().enumerate().flat_map(|(i, n)| vec![(i % places.ranks) as f64; *n]);
        from.enumerate().any(|(row, rank)| notes.get(row * 128) != Some(&rank))
    };
    if wrong {
        let said =
            format!("{}: expandIdx or assistInfoForCombine is not what the dispatch gave", k.decl.name);
        match violation(&report::NN_PAIR, 507_015, &said) {
            0 => {}
            code => return Err(Fault::Code(code)),
        }
    }
    Ok(())
}

/// What comes back to the tokens of this rank, by its weights.
fn combined(k: &Call) -> Result<Vec<f64>, Fault> {
    let comm = k.group("groupEp")?;
    let (ranks, me) = (comm.size as usize, comm.rank as usize);
    let places = Places::new(k, ranks)?;
    let rows = k.t("expandX")?;
    let h = rows.dims[1] as usize;
    let ids = ids(k)?;
    let tokens = k.t("expertIds")?.dims[0] as usize;
    let top = ids.len() / tokens.max(1);
    let active = active(k, tokens, top)?;
    let ways = places.ways(me, &ids, top, &active);
    let counts: Vec<usize> = k.load("epSendCounts")?.ints().into_iter().map(|n| n as usize).collect();
    let counts = &counts[..(places.experts_of(me) * ranks).min(counts.len())];
    is_pair(k, &places, &ways, counts, top)?;
    let values = k.f("expandX")?;
    let mut back = vec![Vec::new(); ranks];
    let eight = k.int("commQuantMode")? == 2;
    let mut at = 0;
    for (i, n) in counts.iter().enumerate() {
        for _ in 0..*n {
            let row =
                values.get(at * h..(at + 1) * h).ok_or("epSendCounts say more rows than expandX has")?;
            at += 1;
            let row = match eight {
                true => {
                    let (row, step) = quantised(row);
                    row.into_iter().map(|v| v * step).collect()
                }
                false => row.to_vec(),
            };
            back[i % ranks].extend(encode(&row, rows.dtype));
        }
    }
    let pieces = back.iter().map(|b| b.len() as u64).collect();
    let reply = exchange(k, comm, (Kind::AllToAll, rows.dtype, true), &same(k)?, pieces, back.concat())?;
    let weights = k.f("expertScales")?;
    let mut out = vec![0.0; tokens * h];
    let came = decode(&reply.payload, rows.dtype);
    let mut at = 0;
    for (rank, experts) in ways.iter().enumerate() {
        let wanted = experts.iter().map(Vec::len).sum::<usize>();
        let sent = reply.pieces.get(rank).map_or(0, |b| *b as usize / (h * rows.dtype.size()).max(1));
        if wanted != sent {
            return Err(Fault::from(format!("rank {rank} gives {sent} rows back of {wanted}")));
        }
        for way in experts.iter().flatten() {
            let w = way.choice.map_or(1.0, |c| weights[way.token * top + c]);
            for c in 0..h {
                out[way.token * h + c] += w * came[at * h + c];
            }
            at += 1;
        }
    }
    if k.value("sharedExpertXOptional").is_some()
        && let Some(extra) = k.opt_f("sharedExpertXOptional")?
    {
        out.iter_mut().zip(&extra).for_each(|(o, e)| *o += e);
    }
    add_special(k, &ids, &weights, &active, &mut out)?;
    Ok(out)
}

fn combine(k: &Call) -> Outcome {
    k.put("x|xOut", &Values::F(combined(k)?))
}

/// x = what comes back + residual, and its norm by root mean square with what each row was multiplied with.
fn combine_add_norm(k: &Call) -> Outcome {
    let (residual, gamma, dtype) = (k.f("residualX")?, k.f("gamma")?, k.t("xOut")?.dtype);
    let x: Vec<f64> = combined(k)?.iter().zip(&residual).map(|(a, b)| a + b).collect();
    let x = decode(&encode(&x, dtype), dtype);
    let (y, rstd) = rms(k, &x, &gamma, k.num("normEps")?, 0.0);
    k.put("xOut", &Values::F(x))?;
    k.put("yOut", &Values::F(y))?;
    k.put("rstdOut", &Values::F(rstd))
}

/// What the versions from the second on take in both directions.
macro_rules! sizes {
    () => {
        "in(expertShardType,0) in(tpWorldSize,0|1) in(tpRankId,0) in(moeExpertNum,1..1024) \
         on(A2,epWorldSize,2..8|16|32|64|128|192|256|384) on(A3,epWorldSize,2..768) on(A2,H,1..10240) \
         multiple(H,32) on(A3,H,1024..8192) on(A2,BS,1..512) on(A3,BS,1..512) in(K,1..16) \
         on(A2,sharedExpertRankNum,0) in(sharedExpertNum,0..4) in(sharedExpertRankNum,0..767) \
         multiple(sharedExpertRankNum,sharedExpertNum) let(M,epWorldSize-sharedExpertRankNum) in(M,1..768) \
         multiple(moeExpertNum,M) says(commAlg,|fullmesh|hierarchy) code(161002) route(groupEp>R) \
         equal(R,epWorldSize) equal(R.rank,epRankId)"
    };
}
/// Experts that are no product: zeros, copies and constants.
macro_rules! counts_of_more_experts {
    () => {
        "in(zeroExpertNum,0..2147483646) in(copyExpertNum,0..2147483646) in(constExpertNum,0..2147483646)"
    };
}
/// As the versions from the third on take them.
macro_rules! more_experts {
    () => {
        clauses!("none(elasticInfoOptional) on(A2,constExpertNum,0)", counts_of_more_experts!())
    };
}
/// The tokens before they went to experts.
macro_rules! original {
    () => {
        "type(expandX,oriXOptional) oriXOptional[BS,H]"
    };
}
/// What a dispatch asks, and what its later versions add.
macro_rules! there {
    ($($more:expr),*) => {
        clauses!(
            "x:H expertIds:i scalesOptional:S xActiveMaskOptional:B expertScalesOptional:S \
             assistInfoForCombineOut:i expertTokenNumsOut:l epRecvCountsOut:i dynamicScalesOut:S \
             expandScalesOut:S null(dynamicScalesOut,tpRecvCountsOut,expandScalesOut,groupTp,commAlg) \
             code(561002) x[BS,H] expertIds[BS,K] expertScalesOptional[BS,K] expandXOut[A,H] \
             assistInfoForCombineOut[A*128] dynamicScalesOut[A] expandScalesOut[A] in(quantMode,0|2) \
             in(expertTokenNumsType,0|1)",
            sizes!()
            $(, $more)*
        )
    };
}
/// What a combination asks, and what its later versions add.
macro_rules! back {
    ($($more:expr),*) => {
        clauses!(
            "expandX:H expertIds:i assistInfoForCombine:i epSendCounts:i expertScales:S xActiveMaskOptional:B \
             expandScalesOptional:S type(expandX,sharedExpertXOptional,xOut) \
             none(activationScaleOptional,weightScaleOptional,groupListOptional) null(groupTp,commAlg) \
             code(561002) expandX[A,H] xOut[BS,H] expertIds[BS,K] expertScales[BS,K] \
             assistInfoForCombine[A*128] expandScalesOptional[A] in(commQuantMode,0|2) in(outDtype,0) \
             in(groupListType,0)",
            sizes!()
            $(, $more)*
        )
    };
}
/// The combinations that add a residual and norm what comes of it: on A3 only.
macro_rules! normed {
    ($($more:expr),*) => {
        clauses!(
            "expandX:b residualX:b gamma:b sharedExpertXOptional:b xOut:b yOut:b rstdOut:S expertIds:i \
             assistInfoForCombine:i epSendCounts:i expertScales:S xActiveMaskOptional:B \
             none(tpSendCountsOptional,activationScaleOptional,weightScaleOptional,groupListOptional) \
             none(expandScalesOptional) null(groupTp,commAlg) code(561003) chips(A3) code(561002) \
             expandX[A,H] expertIds[BS,K] expertScales[BS,K] assistInfoForCombine[A*128] residualX[BS,1,H] \
             gamma[H] xOut[BS,1,H] yOut[BS,1,H] rstdOut[BS,1,1] in(commQuantMode,0) in(outDtype,0) \
             in(groupListType,0) in(expertShardType,0) in(tpWorldSize,0|1) in(tpRankId,0) \
             in(sharedExpertNum,0) in(sharedExpertRankNum,0) in(moeExpertNum,1..1024) \
             in(epWorldSize,2..768) multiple(moeExpertNum,epWorldSize) in(H,1024..8192) multiple(H,32) \
             in(BS,1..512) in(K,1..16) says(commAlg,) code(161002) route(groupEp>R) equal(R,epWorldSize) \
             equal(R.rank,epRankId)"
            $(, $more)*
        )
    };
}

pub(super) static OPS: &[Row] = &[
    (
        "MoeDistributeDispatch",
        "x:H expertIds:i scales:S expertScales:S expandIdx:i expertTokenNums:l epRecvCounts:i \
         dynamicScales:S expandScales:S \
         null(scales,expertScales,dynamicScales,tpRecvCounts,expandScales,groupTp) none(xActiveMask) \
         code(561002) x[BS,H] expertIds[BS,K] expertScales[BS,K] expandX[A,H] expandIdx[BS*K] \
         dynamicScales[A] expandScales[A] in(quantMode,0|2) in(expertTokenNumsType,0|1) \
         in(expertShardType,0) in(tpWorldSize,0|1) in(moeExpertNum,1..512) \
         in(epWorldSize,8|16|32|64|128|144|256|288) on(A2,epWorldSize,16|32|64) on(A2,H,1..7168) \
         multiple(H,32) on(A3,H,7168) on(A2,BS,1..256) on(A3,BS,1..512) on(A2,K,1..16) on(A3,K,1..8) \
         on(A2,sharedExpertRankNum,0) in(sharedExpertNum,0|1) in(sharedExpertRankNum,0..287) \
         multiple(sharedExpertRankNum,sharedExpertNum) let(M,epWorldSize-sharedExpertRankNum) in(M,1..288) \
         multiple(moeExpertNum,M) on(A2,moeExpertNum/M,1..24) code(161002) route(groupEp>R) \
         equal(R,epWorldSize) equal(R.rank,epRankId)",
        dispatch,
    ),
    (
        "MoeDistributeCombine",
        "expandX:H expertIds:i expandIdx:i epSendCounts:i expertScales:S expandScales:S type(expandX,x) \
         null(tpSendCounts,expandScales,groupTp) none(xActiveMask,activationScale,weightScale,groupList) \
         out(x) code(561002) expandX[A,H] x[BS,H] expertIds[BS,K] expertScales[BS,K] expandIdx[BS*K] \
         expandScales[A] in(commQuantMode,0|2) in(outDtype,0) in(groupList_type,0) in(expertShardType,0) \
         in(tpWorldSize,0|1) in(moeExpertNum,1..512) in(epWorldSize,8|16|32|64|128|144|256|288) \
         on(A2,epWorldSize,16|32|64) on(A2,H,1..7168) multiple(H,32) on(A3,H,7168) on(A2,BS,1..256) \
         on(A3,BS,1..512) on(A2,K,1..16) on(A3,K,1..8) on(A2,sharedExpertRankNum,0) in(sharedExpertNum,0|1) \
         in(sharedExpertRankNum,0..287) multiple(sharedExpertRankNum,sharedExpertNum) \
         let(M,epWorldSize-sharedExpertRankNum) in(M,1..288) multiple(moeExpertNum,M) code(161002) \
         route(groupEp>R) equal(R,epWorldSize) equal(R.rank,epRankId)",
        combine,
    ),
    ("MoeDistributeDispatchV2", there!(), dispatch),
    ("MoeDistributeCombineV2", back!(), combine),
    ("MoeDistributeDispatchV3", there!(more_experts!()), dispatch),
    ("MoeDistributeCombineV3", back!(more_experts!(), original!()), combine),
    ("MoeDistributeDispatchV4", there!(more_experts!()), dispatch),
    ("MoeDistributeCombineV4", back!(more_experts!(), original!()), combine),
    ("MoeDistributeCombineAddRmsNorm", normed!(), combine_add_norm),
    (
        "MoeDistributeCombineAddRmsNormV2",
        normed!("none(elasticInfoOptional)", counts_of_more_experts!(), original!()),
        combine_add_norm,
    ),
];

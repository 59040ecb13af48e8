//! Attention for inference: prefill and decode over contiguous, listed and paged caches, and the writing of these.
//! `ascend-abi.md`, section 8.7. Quantised operands, shared prefixes and padding on the left are refused.

use super::Row;
use super::attention::Layout;
use crate::nn::exec::{Call, Fault, Outcome};
use crate::nn::tensor::{Values, View};

/// An operand that a version may lack and a caller leave out.
fn maybe<'a>(k: &'a Call, names: &str) -> Result<Option<&'a View>, Fault> {
    match names.split('|').find(|n| k.value(n).is_some()) {
        Some(name) => Ok(k.opt(name)?.filter(|v| v.numel() > 0)),
        None => Ok(None),
    }
}

fn lengths(k: &Call, names: &str) -> Result<Vec<i64>, Fault> {
    match names.split('|').find(|n| k.value(n).is_some()) {
        Some(name) => k.ints(name),
        None => Ok(Vec::new()),
    }
}

fn refuse(k: &Call, names: &[&str]) -> Outcome {
    for name in names {
        if maybe(k, name)?.is_some() {
            return Err(Fault::from(format!("{name} is not in the emulator")));
        }
    }
    Ok(())
}

/// Keys or values: one tensor, one a sequence, or blocks of a table.
enum Cache {
    Whole(Vec<f64>, Layout),
    Each(Vec<(Vec<f64>, Layout)>),
    Paged {
        data: Vec<f64>,
        table: Vec<i64>,
        per: usize,
        block: usize,
        heads: usize,
        width: usize,
        inner: bool,
    },
}

impl Cache {
    fn read(k: &Call, name: &str, layout: &str, heads: usize) -> Result<Cache, Fault> {
        // One tensor in the oldest form, lists later.
        let views = k.list(name).or_else(|_| Ok::<_, Fault>(vec![k.t(name)?]))?;
        let load = |v: &View| -> Result<Vec<f64>, Fault> { Ok(v.load(k.decl.name)?.floats()) };
        if let Some(table) = maybe(k, "blockTable|blockTableOptional|blocktable")? {
            let d: Vec<usize> = views[0].dims.iter().map(|d| *d as usize).collect();
            let (block, inner) = match d.len() {
                3 => (d[1], false),
                4 => (d[2], true),
                _ => return Err(Fault::from(format!("a paged cache of {d:?}"))),
            };
            if block as i64 != k.int("blockSize")? {
                return Err(Fault::from(format!(
                    "blocks of {block} rows, blockSize {}",
                    k.int("blockSize")?
                )));
            }
            let width = if inner { d[3] } else { d[2] / heads };
            let per = *table.dims.last().unwrap_or(&1) as usize;
            let table = table.load(k.decl.name)?.ints();
            return Ok(Cache::Paged { data: load(views[0])?, table, per, block, heads, width, inner });
        }
        let of = |v: &View| -> Result<(Vec<f64>, Layout), Fault> {
            Ok((load(v)?, Layout::of(v, layout, Some(heads), None)?))
        };
        if views.len() == 1 {
            let (data, layout) = of(views[0])?;
            return Ok(Cache::Whole(data, layout));
        }
        Ok(Cache::Each(views.into_iter().map(of).collect::<Result<_, _>>()?))
    }

    fn width(&self) -> usize {
        match self {
            Cache::Whole(_, l) => l.width,
            Cache::Each(list) => list.first().map_or(0, |(_, l)| l.width),
            Cache::Paged { width, .. } => *width,
        }
    }

    /// Rows of a sequence that are there, if no length is given.
    fn rows(&self, b: usize) -> Option<usize> {
        match self {
            Cache::Whole(_, l) => Some(l.seq),
            Cache::Each(list) => list.get(b).map(|(_, l)| l.seq),
            Cache::Paged { .. } => None,
        }
    }

    /// Row `s` of head `n` of sequence `b`.
    fn row(&self, b: usize, n: usize, s: usize) -> Result<&[f64], Fault> {
        let (data, at, width) = match self {
            Cache::Whole(data, l) => (data, l.at(b, n, s), l.width),
            Cache::Each(list) => {
                let (data, l) = &list[b];
                (data, l.at(0, n, s), l.width)
            }
            Cache::Paged { data, table, per, block, heads, width, inner } => {
                let page = table[b * per + s / block].max(0) as usize;
                let within = s % block;
                let row = if *inner {
                    (page * heads + n) * block + within
                } else {
                    (page * block + within) * heads + n
                };
                (data, row * width, *width)
            }
        };
        data.get(at..at + width)
            .ok_or_else(|| Fault::from(format!("row {s} of sequence {b} is outside the cache")))
    }
}

struct Masked<'a> {
    mask: Option<(&'a View, Vec<i64>)>,
    mode: i64,
    before: i64,
    after: i64,
    decode: bool,
}

impl Masked<'_> {
    /// Whether key `j` of `sk` is dropped for query `i` of `sq`.
    fn drops(&self, b: usize, n: usize, i: usize, j: usize, sq: usize, sk: usize) -> bool {
        let (row, col) = (i as i64, j as i64);
        let diagonal = row + sk as i64 - sq as i64;
        match self.mode {
            2 if !self.decode => return col > row,
            3 if !self.decode => return col > diagonal,
            4 if !self.decode => return col - diagonal > self.after || diagonal - col > self.before,
            0 if !self.decode && (col - row > self.after || row - col > self.before) => return true,
            2..=4 => return false,
            _ => {}
        }
        let Some((view, mask)) = &self.mask else { return false };
        let d: Vec<usize> = view.dims.iter().map(|d| *d as usize).collect();
        let r = d.len();
        let pick = |size: usize, at: usize| if size == 1 { 0 } else { at };
        let at = match r {
            4 => ((pick(d[0], b) * d[1] + pick(d[1], n)) * d[2] + pick(d[2], i)) * d[3] + j,
            3 => (pick(d[0], b) * d[1] + pick(d[1], i)) * d[2] + j,
            // Of a decode step: a row a sequence.
            2 if self.decode => pick(d[0], b) * d[1] + j,
            _ => i * d[r - 1] + j,
        };
        mask.get(at).is_some_and(|m| *m != 0)
    }
}

/// The layout of the output, where the name tells one of its own.
fn out_layout(name: &str) -> (&str, &str) {
    name.split_once('_').unwrap_or((name, name))
}

/// Sequences: batch, first query and count, first key, count of keys, query rows that the tensor has.
fn spans(k: &Call, q: &Layout, keys: &Cache, layout: &str, paged: bool) -> Result<Vec<[usize; 5]>, Fault> {
    let ql = lengths(k, "actualSeqLengthsOptional|actualSeqLengths")?;
    let mut kl = lengths(k, "actualSeqLengthsKvOptional|actualSeqLengthsKv")?;
    let decode_only =
        k.value("actualSeqLengthsKvOptional").is_none() && k.value("actualSeqLengthsKv").is_none();
    if decode_only {
        // Of a decode step the only lengths are those of the keys.
        kl.clone_from(&ql);
    }
    if paged && kl.is_empty() {
        return Err(Fault::from("a block table needs lengths of keys"));
    }
    let mut out = Vec::new();
    if matches!(layout, "TND" | "NTD") {
        let (mut q0, mut k0) = (0, 0);
        for (b, end) in ql.iter().enumerate() {
            let end = *end as usize;
            let stop = kl.get(b).copied().unwrap_or(end as i64) as usize;
            out.push(if paged { [b, q0, end - q0, 0, stop] } else { [0, q0, end - q0, k0, stop - k0] });
            (q0, k0) = (end, stop);
        }
        return Ok(out);
    }
    let at = |list: &[i64], b: usize, other: usize| match list {
        [] => other,
        [one] => *one as usize,
        more => more[b] as usize,
    };
    for b in 0..q.batch {
        let count = if decode_only { q.seq } else { at(&ql, b, q.seq) };
        out.push([b, 0, count, 0, at(&kl, b, keys.rows(b).unwrap_or(0))]);
    }
    Ok(out)
}

/// Operands that are quantised, shared prefixes, and padding on the left.
const REFUSED: [&str; 10] = [
    "deqScale1|deqScale1Optional|dequantScale1",
    "quantScale1|quantScale1Optional",
    "deqScale2|deqScale2Optional|dequantScale2",
    "quantScale2|quantScale2Optional",
    "antiquantScale|antiquantScaleOptional",
    "keyAntiquantScaleOptional",
    "valueAntiquantScaleOptional",
    "keySharedPrefixOptional",
    "queryPaddingSize|queryPaddingSizeOptional",
    "kvPaddingSize|kvPaddingSizeOptional",
];

/// Whether a layout packs sequences of any lengths into one tensor of one batch.
fn packs(layout: &str) -> bool {
    matches!(layout, "TND" | "NTD")
}

/// What the scores are made of.
struct Inputs<'a> {
    queries: (Vec<f64>, Layout),
    keys: Cache,
    /// Rotated parts of queries and keys, which are stored apart.
    rope: Option<((Vec<f64>, Layout), Cache)>,
    bias: Option<(Vec<i64>, Vec<f64>)>,
    masked: Masked<'a>,
    scale: f64,
    packed: bool,
}

impl<'a> Inputs<'a> {
    fn read(k: &'a Call, layout: &str, heads: usize, groups: usize) -> Result<Inputs<'a>, Fault> {
        let name = k.decl.name;
        let q = Layout::of(k.t("query")?, layout, Some(heads), None)?;
        if q.heads != heads || !heads.is_multiple_of(groups) {
            return Err(Fault::from(format!("{} query heads, numHeads {heads}, {groups} of keys", q.heads)));
        }
        let keys = Cache::read(k, "key", layout, groups)?;
        let of = |v: &View, heads: usize| -> Result<(Vec<f64>, Layout), Fault> {
            Ok((v.load(name)?.floats(), Layout::of(v, layout, Some(heads), None)?))
        };
        let rope = match (maybe(k, "queryRopeOptional")?, maybe(k, "keyRopeOptional")?) {
            (Some(_), Some(v)) if matches!(keys, Cache::Paged { .. }) => {
                return Err(Fault::from(format!("keyRope {:?} in pages", v.dims)));
            }
            (Some(query), Some(key)) => {
                let (values, layout) = of(key, groups)?;
                Some((of(query, heads)?, Cache::Whole(values, layout)))
            }
            (None, None) => None,
            _ => return Err(Fault::from("queryRope and keyRope come together")),
        };
        let bias = maybe(k, "pseShift|pseShiftOptional")?
            .map(|v| Ok::<_, Fault>((v.dims.clone(), v.load(name)?.floats())))
            .transpose()?;
        let mask = maybe(k, "attenMask|attenMaskOptional")?;
        let masked = Masked {
            mask: mask.map(|v| Ok::<_, Fault>((v, v.load(name)?.ints()))).transpose()?,
            mode: k.int("sparseMode").unwrap_or(1),
            before: k.int("preTokens").unwrap_or(i64::MAX),
            after: k.int("nextTokens").unwrap_or(i64::MAX),
            decode: q.seq == 1 && !packs(layout) && !name.contains("Prompt"),
        };
        let (scale, packed) = (k.num("scaleValue")?, packs(layout));
        Ok(Inputs { queries: (k.f("query")?, q), keys, rope, bias, masked, scale, packed })
    }

    /// The batch that a sequence has in its tensor.
    fn batch(&self, b: usize) -> usize {
        if self.packed { 0 } else { b }
    }

    /// Scores of query `i` of a sequence for its keys; none where the key is dropped. `n` is the query's head, `g` that of keys.
    fn scores(
        &self,
        k: &Call,
        [b, q0, sq, k0, sk]: [usize; 5],
        (n, g): (usize, usize),
        i: usize,
    ) -> Result<Vec<Option<f64>>, Fault> {
        let own = self.batch(b);
        let row_of = |(v, l): &'_ (Vec<f64>, Layout)| v[l.at(own, n, q0 + i)..][..l.width].to_vec();
        let (query, turned) = (row_of(&self.queries), self.rope.as_ref().map(|(q, c)| (row_of(q), c)));
        let dot = |a: &[f64], b: &[f64]| k.sum(a.iter().zip(b).map(|(a, b)| a * b));
        let one = |j: usize| -> Result<Option<f64>, Fault> {
            if self.masked.drops(b, n, i, j, sq, sk) {
                return Ok(None);
            }
            let mut sum = dot(&query, self.keys.row(b, g, k0 + j)?);
            if let Some((query, keys)) = &turned {
                sum += dot(query, keys.row(b, g, k0 + j)?);
            }
            let shift = self.bias.as_ref().map_or(0.0, |(d, v)| {
                let pick = |size: i64, at: usize| if size == 1 { 0 } else { at };
                let at = (pick(d[0], b) * d[1] as usize + n) * d[2] as usize + pick(d[2], i);
                v[at * d[3] as usize + j]
            });
            Ok(Some(self.scale * sum + shift))
        };
        (0..sk).map(one).collect()
    }
}

fn attention(k: &Call) -> Outcome {
    refuse(k, &REFUSED)?;
    let (layout, shown) = out_layout(k.text("inputLayout")?);
    let heads = k.int("numHeads")? as usize;
    let groups = match k.int("numKeyValueHeads")? {
        0 => heads,
        n => n as usize,
    };
    let inputs = Inputs::read(k, layout, heads, groups)?;
    let values = Cache::read(k, "value", layout, groups)?;
    let sink =
        maybe(k, "learnableSinkOptional")?.map(|v| v.load(k.decl.name)).transpose()?.map(Values::floats);
    let (lq, out) = (&inputs.queries.1, k.t("attentionOut")?);
    let lo = Layout::of(out, shown, Some(heads), None)?;
    let mut result = vec![0.0; out.numel()];
    let mut lse = vec![f64::INFINITY; lq.batch * heads * lq.seq];
    let paged = matches!(inputs.keys, Cache::Paged { .. });
    for span in spans(k, lq, &inputs.keys, layout, paged)? {
        let [b, q0, sq, k0, _] = span;
        for n in 0..heads {
            let g = n / (heads / groups);
            for i in 0..sq {
                let scores = inputs.scores(k, span, (n, g), i)?;
                let mut m = scores.iter().flatten().copied().fold(f64::NEG_INFINITY, f64::max);
                if m == f64::NEG_INFINITY {
                    continue;
                }
                if let Some(s) = &sink {
                    m = m.max(s[n]);
                }
                let e: Vec<f64> = scores.iter().map(|s| s.map_or(0.0, |s| (s - m).exp())).collect();
                let sum = k.sum(e.iter().copied()) + sink.as_ref().map_or(0.0, |s| (s[n] - m).exp());
                let at = if inputs.packed { (q0 + i) * heads + n } else { (b * heads + n) * lq.seq + i };
                lse[at] = m + sum.ln();
                let to = lo.at(inputs.batch(b), n, q0 + i);
                for (j, e) in e.iter().enumerate().filter(|(_, e)| **e != 0.0) {
                    let v = values.row(b, g, k0 + j)?;
                    for (o, v) in result[to..to + values.width()].iter_mut().zip(v) {
                        *o += e / sum * v;
                    }
                }
            }
        }
    }
    if k.value("softmaxLse").is_some() && k.flag("softmaxLseFlag")? {
        k.put("softmaxLse", &Values::F(lse))?;
    }
    k.put("attentionOut", &Values::F(result))
}

/// Rows of new keys or values to their slots: slot = block · rows of a block + row; negative ones are left out.
fn scatter(k: &Call, from: &str, to: &str) -> Outcome {
    let (rows, cache) = (k.t(from)?, k.t(to)?);
    let slots = k.load("slotMapping")?.ints();
    let width = rows.numel() / (rows.dims[0].max(1) as usize);
    let values = rows.load(k.decl.name)?;
    let mut all = cache.load(k.decl.name)?;
    let places = (cache.dims[0] * cache.dims[1]) as usize;
    if cache.numel() != places * width {
        return Err(Fault::from(format!("{from} {:?} into {to} {:?}", rows.dims, cache.dims)));
    }
    for (row, slot) in slots.iter().enumerate().filter(|(_, s)| **s >= 0) {
        if *slot as usize >= places {
            return Err(Fault::from(format!("slot {slot} of {places}")));
        }
        for e in 0..width {
            all.put(*slot as usize * width + e, &values, row * width + e);
        }
    }
    k.put(to, &all)
}

fn plain(k: &Call) -> Outcome {
    refuse(k, &["compressLensOptional", "compressSeqOffsetOptional", "seqLensOptional"])?;
    match k.text("cacheModeOptional|cacheMode")? {
        "" | "Norm" => Ok(()),
        other => Err(Fault::from(format!("cacheMode {other} is not in the emulator"))),
    }
}

fn scatter_both(k: &Call) -> Outcome {
    plain(k)?;
    scatter(k, "key", "keyCacheRef")?;
    scatter(k, "value", "valueCacheRef")
}

fn scatter_keys(k: &Call) -> Outcome {
    plain(k)?;
    scatter(k, "key", "keyCacheRef")
}

/// Two partial attentions into one: `out = Σ outᵢ · sumᵢ·exp(maxᵢ − max) / Σ sumᵢ·exp(maxᵢ − max)`.
fn ring_update(k: &Call) -> Outcome {
    let (prev, cur) = (k.f("prevAttnOut")?, k.f("curAttnOut")?);
    let (pm, ps) = (k.f("prevSoftmaxMax")?, k.f("prevSoftmaxSum")?);
    let (cm, cs) = (k.f("curSoftmaxMax")?, k.f("curSoftmaxSum")?);
    let (d, s) = (&k.t("prevAttnOut")?.dims, &k.t("prevSoftmaxMax")?.dims);
    let layout = k.text("inputLayoutOptional")?;
    let other = if k.value("inputSoftmaxLayoutOptional").is_some() {
        k.text("inputSoftmaxLayoutOptional")?
    } else {
        ""
    };
    if !matches!((layout, d.len()), ("SBH", 3) | ("TND", 3)) || !matches!(other, "" | "TND" | "same_as_input")
    {
        return Err(Fault::from(format!("layout {layout} {other} of {d:?} is not in the emulator")));
    }
    let heads = if layout == "SBH" { s[1] } else { s[1].max(d[1]) } as usize;
    // Every statistic stands eight times.
    let width = prev.len() / (s.iter().product::<i64>() as usize / 8).max(1);
    // Statistics of row i of the output.
    let place = |row: usize| {
        if layout == "TND" {
            return row * 8;
        }
        let (batch, long) = (s[0] as usize, s[2] as usize);
        let (at, n) = (row / heads, row % heads);
        (((at % batch) * heads + n) * long + at / batch) * 8
    };
    let (mut out, mut max, mut sum) = (vec![0.0; prev.len()], pm.clone(), ps.clone());
    for row in 0..prev.len() / width.max(1) {
        let at = place(row);
        let m = pm[at].max(cm[at]);
        let (a, b) = (ps[at] * (pm[at] - m).exp(), cs[at] * (cm[at] - m).exp());
        max[at..at + 8].fill(m);
        sum[at..at + 8].fill(a + b);
        for c in row * width..(row + 1) * width {
            out[c] = (prev[c] * a + cur[c] * b) / (a + b);
        }
    }
    k.put("softmaxMaxOut", &Values::F(max))?;
    k.put("softmaxSumOut", &Values::F(sum))?;
    k.put("attnOutOut", &Values::F(out))
}

const RING: &str = "prevAttnOut:F curAttnOut:F prevSoftmaxMax:S prevSoftmaxSum:S curSoftmaxMax:S curSoftmaxSum:S \
     same(prevAttnOut,curAttnOut,attnOutOut) \
     same(prevSoftmaxMax,prevSoftmaxSum,curSoftmaxMax,curSoftmaxSum,softmaxMaxOut,softmaxSumOut)";
const FIA: &str = "query:F key:F value:F type(query,key,value) out(attentionOut,softmaxLse) \
     covered(sparseMode,attenMask|attenMaskOptional) \
     null(pseShift,attenMask,actualSeqLengths,actualSeqLengthsKv,deqScale1,quantScale1,deqScale2) \
     null(quantScale2,quantOffset2,antiquantScale,antiquantOffset,blockTable,queryPaddingSize) \
     null(kvPaddingSize,softmaxLse)";
const IFA: &str = "query:F key:F value:F type(query,key,value) out(attentionOut) \
     null(pseShift,attenMask,actualSeqLengths,dequantScale1,quantScale1,dequantScale2,quantScale2) \
     null(quantOffset2,antiquantScale,antiquantOffset,blocktable,kvPaddingSize)";

pub(super) static OPS: &[Row] = &[
    ("FusedInferAttentionScore", FIA, attention),
    ("FusedInferAttentionScoreV2", FIA, attention),
    ("FusedInferAttentionScoreV3", FIA, attention),
    ("FusedInferAttentionScoreV4", FIA, attention),
    ("PromptFlashAttention", FIA, attention),
    ("PromptFlashAttentionV2", FIA, attention),
    ("PromptFlashAttentionV3", FIA, attention),
    ("IncreFlashAttention", IFA, attention),
    ("IncreFlashAttentionV2", IFA, attention),
    ("IncreFlashAttentionV3", IFA, attention),
    ("IncreFlashAttentionV4", IFA, attention),
    (
        "ScatterPaKvCache",
        "key:FI value:FI slotMapping:L type(key,keyCacheRef) type(value,valueCacheRef)",
        scatter_both,
    ),
    ("ScatterPaCache", "key:FI slotMapping:L type(key,keyCacheRef) null(cacheMode)", scatter_keys),
    ("RingAttentionUpdate", RING, ring_update),
    ("RingAttentionUpdateV2", RING, ring_update),
];

//! Attention for training, its backward, rotary embeddings.

use super::Row;
use crate::nn::exec::{Call, Fault, Outcome};
use crate::nn::tensor::{Values, View, contiguous};

/// Where head `n`, position `s` of sequence `b` lies in a packed tensor: a row of `d` values.
pub(super) struct Layout {
    pub(super) batch: usize,
    pub(super) seq: usize,
    pub(super) heads: usize,
    pub(super) width: usize,
    kind: char,
}

impl Layout {
    /// `heads` counts query heads; `width`, where known, is the size of a head.
    pub(super) fn of(
        view: &View,
        layout: &str,
        heads: Option<usize>,
        width: Option<usize>,
    ) -> Result<Layout, Fault> {
        let d: Vec<usize> = view.dims.iter().map(|d| *d as usize).collect();
        let rank = d.len();
        let split = |h: usize| -> (usize, usize) {
            let w = width.unwrap_or_else(|| h / heads.unwrap_or(1).max(1));
            (h / w.max(1), w)
        };
        let made = |batch, seq, heads, width, kind| Layout { batch, seq, heads, width, kind };
        Ok(match (layout, rank) {
            ("BSH", 3) => made(d[0], d[1], split(d[2]).0, split(d[2]).1, 'b'),
            ("SBH", 3) => made(d[1], d[0], split(d[2]).0, split(d[2]).1, 's'),
            ("BSND", 4) => made(d[0], d[1], d[2], d[3], 'b'),
            ("BNSD", 4) => made(d[0], d[2], d[1], d[3], 'n'),
            ("NBSD", 4) => made(d[1], d[2], d[0], d[3], 'h'),
            ("TND", 3) => made(1, d[0], d[1], d[2], 'b'),
            ("NTD", 3) => made(1, d[1], d[0], d[2], 'n'),
            _ => return Err(Fault::from(format!("layout {layout} of {:?}", view.dims))),
        })
    }
    pub(super) fn at(&self, b: usize, n: usize, s: usize) -> usize {
        let row = match self.kind {
            'b' => (b * self.seq + s) * self.heads + n,
            's' => (s * self.batch + b) * self.heads + n,
            'h' => (n * self.batch + b) * self.seq + s,
            _ => (b * self.heads + n) * self.seq + s,
        };
        row * self.width
    }
}

/// Sequences to attend within: batch, first query and length, first key and length.
type Span = (usize, usize, usize, usize, usize);

struct Problem {
    q: Vec<f64>,
    k: Vec<f64>,
    v: Vec<f64>,
    lq: Layout,
    lk: Layout,
    lv: Layout,
    spans: Vec<Span>,
    scale: f64,
    keep: f64,
    drop: Option<Vec<i64>>,
    bias: Option<Bias>,
    mask: Option<(View, Vec<i64>)>,
    mode: i64,
    before: i64,
    after: i64,
    prefix: Vec<i64>,
    sink: Option<Vec<f64>>,
    /// Parts of queries and keys of their own, which the scores add.
    rope: Option<Rope>,
}

struct Rope {
    q: Vec<f64>,
    k: Vec<f64>,
    lq: Layout,
    lk: Layout,
}

/// Position biases: values read from memory, or distances times the slope of a head.
enum Bias {
    Read { view: View, values: Vec<f64>, outside: bool },
    Slopes { values: Vec<f64>, root: bool, shift: i64 },
}

/// A tensor that only some versions have, if it is there and not empty.
fn some<'a>(call: &'a Call, names: &str) -> Result<Option<&'a View>, Fault> {
    match names.split('|').find(|n| call.value(n).is_some()) {
        Some(name) => Ok(call.opt(name)?.filter(|v| v.numel() > 0)),
        None => Ok(None),
    }
}

impl Problem {
    fn read(call: &Call) -> Result<Problem, Fault> {
        let (q, k, v) = (call.t("query")?, call.t("key|keyIn")?, call.t("value")?);
        let layout = call.text("inputLayout")?.to_owned();
        let heads = call.int("headNum")? as usize;
        let lq = Layout::of(q, &layout, Some(heads), None)?;
        let lk = Layout::of(k, &layout, None, Some(lq.width))?;
        let groups = lk.heads;
        let lv = Layout::of(v, &layout, Some(groups), None)?;
        if lq.heads != heads || lq.heads % groups.max(1) != 0 {
            return Err(Fault::from(format!(
                "{} query heads, headNum {heads}, {groups} key heads",
                lq.heads
            )));
        }
        let spans = if layout == "TND" {
            let (a, b) = (call.ints("actualSeqQLenOptional")?, call.ints("actualSeqKvLenOptional")?);
            let mut out = Vec::new();
            let (mut qa, mut ka) = (0, 0);
            for (x, y) in a.iter().zip(&b) {
                out.push((0, qa, *x as usize - qa, ka, *y as usize - ka));
                (qa, ka) = (*x as usize, *y as usize);
            }
            out
        } else {
            (0..lq.batch).map(|b| (b, 0, lq.seq, 0, lk.seq)).collect()
        };
        let kind = call.int("pseType").unwrap_or(1);
        let pse = call.opt("realShiftOptional|pseShiftOptional")?.filter(|v| v.numel() > 0);
        let name = call.decl.name;
        for refused in ["dScaleQOptional", "dScaleKOptional", "dScaleVOptional", "dScaleDyOptional"] {
            if some(call, refused)?.is_some() {
                return Err(Fault::from(format!("{refused} is not in the emulator")));
            }
        }
        let start = |names: &str| call.ints(names).ok().and_then(|v| v.first().copied()).unwrap_or(0);
        let bias = match pse {
            None => None,
            Some(v) if kind > 1 => Some(Bias::Slopes {
                values: v.load(name)?.floats(),
                root: kind == 3,
                shift: start("qStartIdxOptional") - start("kvStartIdxOptional"),
            }),
            Some(v) => {
                Some(Bias::Read { view: v.clone(), values: v.load(name)?.floats(), outside: kind == 0 })
            }
        };
        let (turn, key_turn) =
            (some(call, "queryRope|queryRopeOptional")?, some(call, "keyRope|keyRopeOptional|keyInRope")?);
        let rope = match (turn, key_turn) {
            (Some(a), Some(b)) => Some(Rope {
                q: a.load(name)?.floats(),
                k: b.load(name)?.floats(),
                lq: Layout::of(a, &layout, Some(heads), None)?,
                lk: Layout::of(b, &layout, Some(groups), None)?,
            }),
            (None, None) => None,
            _ => return Err(Fault::from("queryRope and keyRope come together")),
        };
        let mask = call.opt("attenMaskOptional")?.filter(|v| v.numel() > 0);
        let drop = call.opt("dropMaskOptional")?.filter(|v| v.numel() > 0);
        let sink = match call.opt("sinkOptional|sinkInOptional") {
            Ok(Some(view)) if view.numel() > 0 => Some(view.load(name)?.floats()),
            _ => None,
        };
        Ok(Problem {
            q: q.load(name)?.floats(),
            k: k.load(name)?.floats(),
            v: v.load(name)?.floats(),
            lq,
            lk,
            lv,
            spans,
            scale: call.num("scaleValue")?,
            keep: call.num("keepProb")?,
            drop: drop.map(|v| v.load(name)).transpose()?.map(Values::ints),
            bias,
            mask: mask.map(|v| Ok::<_, Fault>((v.clone(), v.load(name)?.ints()))).transpose()?,
            mode: call.int("sparseMode")?,
            before: call.int("preTokens")?,
            after: call.int("nextTokens")?,
            prefix: call.ints("prefixOptional")?,
            sink,
            rope,
        })
    }

    /// Whether the key at `j` is dropped for the query at `i`, both within their sequence. Without a mask nothing is: the
    /// mode is ignored then.
    fn dropped(&self, b: usize, n: usize, span: &Span, i: usize, j: usize) -> bool {
        let Some((view, mask)) = &self.mask else { return false };
        let (sq, sk) = (span.2 as i64, span.4 as i64);
        let (row, col) = (i as i64, j as i64);
        let diagonal = row + sk - sq;
        match self.mode {
            2 => col > row,
            3 => col > diagonal,
            4 => col - diagonal > self.after || diagonal - col > self.before,
            5 | 6 => col > diagonal && col >= self.prefix.get(b).copied().unwrap_or(0),
            _ => {
                let d = &view.dims;
                let r = d.len();
                let (rows, cols) = (d[r - 2] as usize, d[r - 1] as usize);
                let mut at = i.min(rows - 1) * cols + j.min(cols - 1);
                if r == 4 {
                    let nb = if d[1] == 1 { 0 } else { n };
                    let bb = if d[0] == 1 { 0 } else { b };
                    at += (bb * d[1] as usize + nb) * rows * cols;
                }
                mask[at] != 0
            }
        }
    }

    /// What the score of a query and a key is moved by, and whether that is outside of the scale.
    fn bias_at(&self, b: usize, n: usize, i: usize, j: usize) -> (f64, bool) {
        match &self.bias {
            None => (0.0, false),
            Some(Bias::Slopes { values, root, shift }) => {
                let heads = self.lq.heads;
                let slope = values[if values.len() == heads { n } else { b * heads + n }];
                let far = ((i as i64 - j as i64 + shift) as f64).abs();
                (-slope * if *root { far.sqrt() } else { far }, true)
            }
            Some(Bias::Read { view, values, outside }) => {
                let d: Vec<usize> = view.dims.iter().map(|d| *d as usize).collect();
                let r = d.len();
                let pick = |size: usize, at: usize| if size == 1 { 0 } else { at };
                let mut at = pick(d[r - 2], i.min(d[r - 2] - 1)) * d[r - 1] + pick(d[r - 1], j);
                if r == 4 {
                    at += (pick(d[0], b) * d[1] + pick(d[1], n)) * d[2] * d[3];
                }
                (values[at], *outside)
            }
        }
    }

    /// Scores of one query; `None` where the key is dropped.
    fn scores(&self, call: &Call, span: &Span, n: usize, i: usize) -> Vec<Option<f64>> {
        let (b, q0, _, k0, sk) = *span;
        let group = n / (self.lq.heads / self.lk.heads);
        let width = self.lq.width;
        let q = &self.q[self.lq.at(b, n, q0 + i)..][..width];
        (0..sk)
            .map(|j| {
                if self.dropped(b, n, span, i, j) {
                    return None;
                }
                let k = &self.k[self.lk.at(b, group, k0 + j)..][..width];
                let mut dot = call.sum(q.iter().zip(k).map(|(a, b)| a * b));
                if let Some(r) = &self.rope {
                    let (q, k) = (&r.q[r.lq.at(b, n, q0 + i)..], &r.k[r.lk.at(b, group, k0 + j)..]);
                    dot += call.sum(q[..r.lq.width].iter().zip(k).map(|(a, b)| a * b));
                }
                let (bias, outside) = self.bias_at(b, n, i, j);
                Some(if outside { self.scale * dot + bias } else { self.scale * (dot + bias) })
            })
            .collect()
    }

    /// 1/keep where the dropout mask has a one, else 0.
    fn kept(&self, b: usize, n: usize, i: usize, j: usize) -> f64 {
        match &self.drop {
            Some(bits) if self.keep < 1.0 => {
                let at = ((b * self.lq.heads + n) * self.lq.seq + i) * self.lk.seq + j;
                let byte = bits.get(at / 8).copied().unwrap_or(0);
                if byte >> (at % 8) & 1 == 1 { 1.0 / self.keep } else { 0.0 }
            }
            _ => 1.0,
        }
    }

    /// Where the eight copies of a row's statistics stand.
    fn statistics(&self, b: usize, n: usize, s: usize, packed: bool) -> usize {
        if packed { (s * self.lq.heads + n) * 8 } else { ((b * self.lq.heads + n) * self.lq.seq + s) * 8 }
    }
}

fn forward(call: &Call) -> Outcome {
    let p = Problem::read(call)?;
    let out = call.t("attentionOutOut")?;
    let packed = call.text("inputLayout")? == "TND";
    let rows = p.lq.batch * p.lq.heads * p.lq.seq;
    let mut o = vec![0f64; rows * p.lv.width];
    let (mut maxima, mut sums) = (vec![0f64; rows * 8], vec![0f64; rows * 8]);
    let lo =
        Layout { batch: p.lq.batch, seq: p.lq.seq, heads: p.lq.heads, width: p.lv.width, kind: p.lq.kind };
    for span in &p.spans {
        let (b, q0, sq, k0, _) = *span;
        for n in 0..p.lq.heads {
            let group = n / (p.lq.heads / p.lk.heads);
            for i in 0..sq {
                let scores = p.scores(call, span, n, i);
                let mut m = scores.iter().flatten().copied().fold(f64::NEG_INFINITY, f64::max);
                if let Some(sink) = &p.sink {
                    m = m.max(sink[n]);
                }
                let at = p.statistics(b, n, q0 + i, packed);
                if m == f64::NEG_INFINITY {
                    maxima[at..at + 8].fill(f64::from(f32::MIN));
                    continue;
                }
                let m = f64::from(m as f32);
                let e: Vec<f64> = scores.iter().map(|s| s.map_or(0.0, |s| (s - m).exp())).collect();
                let mut sum = call.sum(e.iter().copied());
                if let Some(sink) = &p.sink {
                    sum += (sink[n] - m).exp();
                }
                maxima[at..at + 8].fill(m);
                sums[at..at + 8].fill(sum);
                let row = &mut o[lo.at(b, n, q0 + i)..][..p.lv.width];
                for (j, e) in e.iter().enumerate() {
                    let w = e / sum * p.kept(b, n, i, j);
                    if w != 0.0 {
                        let v = &p.v[p.lv.at(b, group, k0 + j)..][..p.lv.width];
                        row.iter_mut().zip(v).for_each(|(o, v)| *o += w * v);
                    }
                }
            }
        }
    }
    call.put_opt("softmaxMaxOut", &Values::F(maxima))?;
    call.put_opt("softmaxSumOut", &Values::F(sums))?;
    call.put_view(out, &Values::F(o))
}

fn backward(call: &Call) -> Outcome {
    let p = Problem::read(call)?;
    let packed = call.text("inputLayout")? == "TND";
    let (dy, o) = (call.f("dy")?, call.f("attentionInOptional")?);
    let (maxima, sums) = (call.f("softmaxMaxOptional")?, call.f("softmaxSumOptional")?);
    let lo =
        Layout { batch: p.lq.batch, seq: p.lq.seq, heads: p.lq.heads, width: p.lv.width, kind: p.lq.kind };
    let (mut dq, mut dk, mut dv) = (vec![0.0; p.q.len()], vec![0.0; p.k.len()], vec![0.0; p.v.len()]);
    let mut dsink = vec![0.0; p.lq.heads];
    let size = |f: fn(&Rope) -> usize| vec![0.0; p.rope.as_ref().map_or(0, f)];
    let (mut dqr, mut dkr) = (size(|r| r.q.len()), size(|r| r.k.len()));
    for span in &p.spans {
        let (b, q0, sq, k0, sk) = *span;
        for n in 0..p.lq.heads {
            let group = n / (p.lq.heads / p.lk.heads);
            for i in call.order(sq) {
                let at = p.statistics(b, n, q0 + i, packed);
                let (m, sum) = (maxima[at], sums[at]);
                if sum == 0.0 {
                    continue;
                }
                let g = &dy[lo.at(b, n, q0 + i)..][..p.lv.width];
                let row = &o[lo.at(b, n, q0 + i)..][..p.lv.width];
                let d = call.sum(g.iter().zip(row).map(|(g, o)| g * o));
                let scores = p.scores(call, span, n, i);
                if let Some(sink) = &p.sink {
                    dsink[n] -= (sink[n] - m).exp() / sum * d;
                }
                for (j, s) in scores.iter().enumerate().take(sk) {
                    let Some(s) = s else { continue };
                    let prob = (s - m).exp() / sum;
                    let kept = p.kept(b, n, i, j);
                    let va = p.lv.at(b, group, k0 + j);
                    let mut dp = 0.0;
                    for c in 0..p.lv.width {
                        dp += g[c] * p.v[va + c];
                        dv[va + c] = Call::added(dv[va + c], prob * kept * g[c]);
                    }
                    let ds = prob * (dp * kept - d) * p.scale;
                    let (qa, ka) = (p.lq.at(b, n, q0 + i), p.lk.at(b, group, k0 + j));
                    for c in 0..p.lq.width {
                        dq[qa + c] += ds * p.k[ka + c];
                        dk[ka + c] = Call::added(dk[ka + c], ds * p.q[qa + c]);
                    }
                    if let Some(r) = &p.rope {
                        let (qa, ka) = (r.lq.at(b, n, q0 + i), r.lk.at(b, group, k0 + j));
                        for c in 0..r.lq.width {
                            dqr[qa + c] += ds * r.k[ka + c];
                            dkr[ka + c] += ds * r.q[qa + c];
                        }
                    }
                }
            }
        }
    }
    call.put("dqOut", &Values::F(dq))?;
    call.put("dkOut", &Values::F(dk))?;
    call.put("dvOut", &Values::F(dv))?;
    if p.rope.is_some() {
        call.put("dqRopeOut", &Values::F(dqr))?;
        call.put("dkRopeOut", &Values::F(dkr))?;
    }
    if call.value("dsinkOut").is_some() {
        call.put_opt("dsinkOut", &Values::F(dsink))?;
    }
    Ok(())
}

/// The partner of element `i` of a head in a rotation, and its sign: y = x·cos + sign·x[partner]·sin.
fn partner(i: usize, width: usize, interleaved: bool) -> (usize, f64) {
    if interleaved {
        if i.is_multiple_of(2) { (i + 1, -1.0) } else { (i - 1, 1.0) }
    } else if i < width / 2 {
        (i + width / 2, -1.0)
    } else {
        (i - width / 2, 1.0)
    }
}

fn rotate(x: &[f64], cos: &[f64], sin: &[f64], width: usize, interleaved: bool) -> Vec<f64> {
    (0..x.len())
        .map(|i| {
            let (p, sign) = partner(i % width, width, interleaved);
            x[i] * cos[i] + sign * x[i / width * width + p] * sin[i]
        })
        .collect()
}

fn mode(call: &Call) -> Result<bool, Fault> {
    match call.int("mode")? {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(Fault::from(format!("rotary mode {other} is not in the emulator"))),
    }
}

fn rotary(call: &Call) -> Outcome {
    let x = call.t("x")?;
    if let Ok(Some(_)) = call.opt("rotate") {
        return Err(Fault::from("a rotation matrix is not in the emulator"));
    }
    let width = *x.dims.last().unwrap_or(&1) as usize;
    let (cos, sin) =
        (call.spread(call.t("cos")?, &x.dims)?.floats(), call.spread(call.t("sin")?, &x.dims)?.floats());
    call.put("out", &Values::F(rotate(&call.f("x")?, &cos, &sin, width, mode(call)?)))
}

fn rotary_grad(call: &Call) -> Outcome {
    let dy = call.t("dy")?;
    let width = *dy.dims.last().unwrap_or(&1) as usize;
    let interleaved = mode(call)?;
    let g = call.f("dy")?;
    let (cos, sin) =
        (call.spread(call.t("cos")?, &dy.dims)?.floats(), call.spread(call.t("sin")?, &dy.dims)?.floats());
    let mut dx: Vec<f64> = g.iter().zip(&cos).map(|(g, c)| g * c).collect();
    for i in 0..g.len() {
        let (p, sign) = partner(i % width, width, interleaved);
        dx[i / width * width + p] += sign * g[i] * sin[i];
    }
    call.put("dxOut", &Values::F(dx))?;
    if let Some(x) = call.opt_f("xOptional")? {
        let turned = rotate(&x, &vec![0.0; x.len()], &vec![1.0; x.len()], width, interleaved);
        for (name, other) in [("dcosOut", &x), ("dsinOut", &turned)] {
            let Some(out) = call.opt(name)?.filter(|v| v.numel() > 0) else { continue };
            let plain = View { offset: 0, strides: contiguous(&out.dims), ..out.clone() };
            let places = plain.broadcast(&dy.dims)?.offsets();
            let mut sum = vec![0.0; out.numel()];
            for (i, at) in places.iter().enumerate() {
                sum[*at as usize] += g[i] * other[i];
            }
            call.put_view(out, &Values::F(sum))?;
        }
    }
    Ok(())
}

fn apply_rotary(call: &Call) -> Outcome {
    let interleaved = call.text("rotaryMode").is_ok_and(|m| m == "interleave");
    for name in ["queryRef", "keyRef"] {
        let x = call.t(name)?;
        let width = *x.dims.last().unwrap_or(&1) as usize;
        let (cos, sin) =
            (call.spread(call.t("cos")?, &x.dims)?.floats(), call.spread(call.t("sin")?, &x.dims)?.floats());
        call.put(name, &Values::F(rotate(&call.f(name)?, &cos, &sin, width, interleaved)))?;
    }
    Ok(())
}

/// What the pages of training's attention ask; layouts of padded sequences, or of sequences one after the other.
macro_rules! fwd {
    ($layouts:literal $modes:literal) => {
        concat!(
            "says(inputLayout,",
            $layouts,
            ") in(sparseMode,",
            $modes,
            ") whole(sparseMode,attenMaskOptional) ",
            "layout(query,inputLayout,headNum) query:F key:F value:F type(query,key,value,attentionOutOut) \
             softmaxMaxOut:S ",
            "softmaxSumOut:S attenMaskOptional:U null(softmaxOutOut,queryRope,keyRope,softmaxOutLayout)"
        )
    };
}
macro_rules! bwd {
    ($layouts:literal $modes:literal) => {
        concat!(
            "says(inputLayout,",
            $layouts,
            ") in(sparseMode,",
            $modes,
            ") whole(sparseMode,attenMaskOptional) ",
            "layout(query,inputLayout,headNum) query:F keyIn:F value:F dy:F type(query,keyIn,value,dy) \
             same(query,dqOut) ",
            "same(keyIn,dkOut) same(value,dvOut) attenMaskOptional:U \
             null(dpseOut,dsinkOut,queryRope,keyInRope,dqRopeOut,dkRopeOut,",
            "softmaxInLayout)"
        )
    };
}
const FWD: &str = fwd!("BSH|SBH|BSND|BNSD" "0..6");
const FWD_ROWS: &str = fwd!("TND" "0..4|6|7|8");
const BWD: &str = bwd!("BSH|SBH|BSND|BNSD" "0..6");
const BWD_ROWS: &str = bwd!("TND" "0..4|6|7|8");

pub(super) static OPS: &[Row] = &[
    ("FlashAttentionScore", FWD, forward),
    ("FlashAttentionScoreV2", FWD, forward),
    ("FlashAttentionScoreV3", FWD, forward),
    ("FlashAttentionScoreV4", fwd!("BSH|SBH|BSND|BNSD|TND" "0..8"), forward),
    ("FlashAttentionVarLenScore", FWD_ROWS, forward),
    ("FlashAttentionVarLenScoreV2", FWD_ROWS, forward),
    ("FlashAttentionVarLenScoreV3", FWD_ROWS, forward),
    ("FlashAttentionVarLenScoreV4", FWD_ROWS, forward),
    ("FlashAttentionVarLenScoreV5", FWD_ROWS, forward),
    ("FlashAttentionScoreGrad", BWD, backward),
    ("FlashAttentionScoreGradV2", BWD, backward),
    ("FlashAttentionScoreGradV3", BWD, backward),
    (
        "FlashAttentionScoreGradV4",
        "says(inputLayout,BSH|SBH|BSND|BNSD|TND) in(sparseMode,0..8) layout(query,inputLayout,headNum) \
         query:F keyIn:F null(dpseOut,dsinkOut,dqRopeOut,dkRopeOut,softmaxInLayout)",
        backward,
    ),
    ("FlashAttentionUnpaddingScoreGrad", BWD_ROWS, backward),
    ("FlashAttentionUnpaddingScoreGradV2", BWD_ROWS, backward),
    ("FlashAttentionUnpaddingScoreGradV3", BWD_ROWS, backward),
    ("FlashAttentionUnpaddingScoreGradV4", BWD_ROWS, backward),
    ("FlashAttentionUnpaddingScoreGradV5", BWD_ROWS, backward),
    (
        "RotaryPositionEmbedding",
        "x:F type(x,cos,sin,out) same(x,out) same(cos,sin) contig(out) rank(x,3..4) spread(cos>x) x[.r,D] \
         cos[.c,D] multiple(D,2) in(D,2..895) in(mode,0..3) on(A2,mode,0|1) on(A3,mode,0|1)",
        rotary,
    ),
    (
        "RotaryPositionEmbeddingV2",
        "x:F type(x,cos,sin,out) same(x,out) same(cos,sin) contig(out) null(rotate) rank(x,3..4) \
         spread(cos>x) in(mode,0..3)",
        rotary,
    ),
    (
        "RotaryPositionEmbeddingGrad",
        "dy:F type(dy,cos,sin,dxOut) same(dy,dxOut) same(cos,sin) null(dcosOut,dsinOut) contig(dxOut) \
         rank(dy,3..4) spread(cos>dy) dy[.r,D] cos[.c,D] multiple(D,2) in(D,2..895) in(mode,0..3) \
         on(A2,mode,0|1) on(A3,mode,0|1)",
        rotary_grad,
    ),
    (
        "ApplyRotaryPosEmb",
        "queryRef:F type(queryRef,keyRef,cos,sin) rank(queryRef,3..4) queryRef[.r,_,D] keyRef[.r,_,D] \
         cos[.r,1,D] sin[.r,1,D] in(D,64|128) in(layout,1|4)",
        apply_rotary,
    ),
    (
        "ApplyRotaryPosEmbV2",
        "queryRef:F type(queryRef,keyRef,cos,sin) same(cos,sin) rank(queryRef,3..4) rank(keyRef,3..4) \
         in(layout,1..4) says(rotaryMode,half|interleave|quarter)",
        apply_rotary,
    ),
];

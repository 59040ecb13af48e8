//! Processing of one head over a document, chunk by chunk.

use super::{Pairs, Scan, body, chunk_sizes};
use crate::Isa;
use crate::attention::Segment;
use crate::isa::instances;
use crate::matmul::kernel::Kernel;
use crate::recurrence::Step;
use crate::recurrence::chunk::{Rows, Sizes, Work, lines, rows_times, take, transpose};
use crate::recurrence::product::{Band, View, product, triangle};
use body::Numbers;
use std::ops::Range;

instances! {
    fn numbers(to: &mut Numbers, raw: &[f32], rates: &[f32], traps: &[f32], floor: f32) = body::numbers;
    fn speeds(to: &mut [f32], angle: &[f32]) = body::speeds;
    fn turn(
        angles: &mut [f32], to: (&mut [f32], &mut [f32], &mut [f32]), speeds: &[f32], steps: &[f32],
    ) = body::turn;
    fn sines(to: (&mut [f32], &mut [f32]), angles: &[f32]) = body::sines;
    fn turned(
        to: &mut [f32], raw: &[f32], bias: &[f32], turns: (&[f32], &[f32]), sizes: (usize, usize, bool),
    ) = body::turned;
    fn by_rank(v: &mut [f32], p: usize, x: &[f32], stride: usize, factors: &[f32]) = body::by_rank;
    fn gated(
        y: &mut [f32], out: &[f32], v: &[f32], z: &[f32], rank_z: &[f32], rank_o: &[f32], d: f32,
    ) = body::gated;
}
/// What all heads share of a document.
pub(super) struct Document {
    /// `π tanh(angle)`, `[T,A]`.
    pub(super) speeds: Vec<f32>,
}

impl Document {
    pub(super) fn new(isa: Isa, scan: &Scan<'_>, segment: &Segment) -> Self {
        let a = scan.shape.angles;
        let raw = &scan.operands.angle[segment.q_start * a..(segment.q_start + segment.q_len) * a];
        let mut of = vec![0f32; raw.len()];
        speeds(isa, &mut of, raw);
        Self { speeds: of }
    }
}

/// What a head knows of a document.
pub(super) struct Head {
    pub(super) n: usize,
    /// First token.
    pub(super) start: usize,
    pub(super) numbers: Numbers,
    /// Factors by rank `[R,P]` of inputs, gates and outputs.
    pub(super) factors: [Vec<f32>; 3],
}

impl Head {
    pub(super) fn new(isa: Isa, scan: &Scan<'_>, segment: &Segment, n: usize) -> Self {
        let (o, heads) = (&scan.operands, scan.shape.heads);
        let tokens = segment.q_start..segment.q_start + segment.q_len;
        let of = |all: &[f32], add: f32| -> Vec<f32> {
            tokens.clone().map(|t| all[t * heads + n] + add).collect()
        };
        let mut found = Numbers::default();
        let (raw, rates, traps) = (of(o.dt, o.dt_bias[n]), of(o.rate, 0.0), of(o.trap, 0.0));
        numbers(isa, &mut found, &raw, &rates, &traps, scan.shape.rate_floor as f32);
        let factors = [o.rank_x, o.rank_z, o.rank_o].map(|of| scan.factors(of, n));
        Self { n, start: segment.q_start, numbers: found, factors }
    }

    /// What tokens of the document do to the state.
    fn steps(&self, tokens: Range<usize>) -> impl Iterator<Item = Step> {
        let Numbers { step, decay, end, .. } = &self.numbers;
        tokens.map(move |t| Step { decay: decay[t], unit: step[t] * end[t], extra: step[t] * (1.0 - end[t]) })
    }
}

/// What a head is in front of a chunk.
pub(super) struct State<'a> {
    /// `[S,P]`; inside a chunk with what its first token writes again of the token before it.
    pub(super) h: &'a mut [f32],
    /// Whether there is nothing in it.
    pub(super) fresh: bool,
    pub(super) angles: Vec<f32>,
    /// Turned keys `[R,S]` of the token in front of the chunk, and its channels `[P]`.
    pub(super) last_keys: Vec<f32>,
    last_x: Vec<f32>,
}

impl<'a> State<'a> {
    /// Elements of scratch.
    pub(super) fn len(sizes: &Sizes) -> usize {
        lines(sizes.s * sizes.p)
    }

    /// Before a document, or after the part of it that `last` and `h`, the state `[P,S]`, stand for.
    pub(super) fn new(isa: Isa, scan: &Scan<'_>, rest: &mut &'a mut [f32], last: &[f32], h: &[f32]) -> Self {
        let (Sizes { s, p, ranks }, a) = (chunk_sizes(&scan.shape), scan.shape.angles);
        let fresh = last.is_empty();
        let part =
            |from: usize, len: usize| if fresh { vec![0.0; len] } else { last[from..][..len].to_vec() };
        let state = Self {
            h: take(rest, s * p),
            fresh,
            angles: part(0, a),
            last_keys: part(a, ranks * s),
            last_x: part(a + ranks * s, p),
        };
        if !fresh {
            transpose(isa, state.h, h, s);
        }
        state
    }

    /// What [`State::new`] needs to go on.
    pub(super) fn keep(&self, isa: Isa, last: &mut [f32], h: &mut [f32], p: usize) {
        let parts = [&self.angles, &self.last_keys, &self.last_x];
        last.iter_mut().zip(parts.into_iter().flatten()).for_each(|(to, from)| *to = *from);
        transpose(isa, h, self.h, p);
    }
}

/// The rows of one head in one chunk.
pub(super) struct Walk<'a> {
    isa: Isa,
    pub(super) sizes: Sizes,
    pub(super) work: Work<'a>,
    pub(super) n: usize,
    pub(super) q: &'a mut [f32],
    pub(super) k: &'a mut [f32],
    pub(super) v: &'a mut [f32],
    pub(super) scores: &'a mut [f32],
    pub(super) out: &'a mut [f32],
    /// Values `[R,P]` of the token in front of the chunk.
    pub(super) last_values: Vec<f32>,
    /// Angles after each token, their cosines and sines, `[T,A]` each.
    kept: Vec<f32>,
    pub(super) cos: Vec<f32>,
    pub(super) sin: Vec<f32>,
}

impl<'a> Walk<'a> {
    /// Elements of scratch.
    pub(super) fn len(sizes: &Sizes) -> usize {
        let n = sizes.rows();
        Work::len(sizes) + 2 * lines(n * sizes.s) + 2 * lines(n * sizes.p) + lines(n * n)
    }

    pub(super) fn new(isa: Isa, scan: &Scan<'_>, rest: &mut &'a mut [f32]) -> Self {
        let sizes = chunk_sizes(&scan.shape);
        let (most, Sizes { s, p, ranks }) = (sizes.rows(), sizes);
        let numbers = || vec![0.0; sizes.tokens() * scan.shape.angles];
        Self {
            isa,
            sizes,
            work: Work::new(isa, sizes, rest),
            n: 0,
            q: take(rest, most * s),
            k: take(rest, most * s),
            v: take(rest, most * p),
            scores: take(rest, most * most),
            out: take(rest, most * p),
            last_values: vec![0.0; ranks * p],
            kept: numbers(),
            cos: numbers(),
            sin: numbers(),
        }
    }

    /// Tokens of each chunk of a document.
    pub(super) fn chunks(&self, segment: &Segment) -> impl Iterator<Item = Range<usize>> + use<> {
        let (most, len) = (self.sizes.tokens(), segment.q_len);
        (0..len).step_by(most).map(move |t| t..len.min(t + most))
    }

    /// Forms the keys and values of a chunk, and adds to the state what its first token writes again.
    pub(super) fn enter<K: Kernel<Packed = f32>>(
        &mut self,
        scan: &Scan<'_>,
        document: &Document,
        head: &Head,
        state: &mut State<'_>,
        tokens: Range<usize>,
    ) {
        let (isa, a) = (self.isa, scan.shape.angles);
        let Sizes { s, p, ranks } = self.sizes;
        let (step, end) = (&head.numbers.step, &head.numbers.end);
        if !state.fresh {
            by_rank(isa, &mut self.last_values, p, &state.last_x, p, &head.factors[0]);
            let again = [step[tokens.start] * (1.0 - end[tokens.start])].repeat(ranks);
            let written = &mut self.out[..ranks * p];
            rows_times(isa, written, p, (&self.last_values, p), &again);
            let keys = View::of(&state.last_keys, s).t();
            product::<K>((state.h, p), true, keys, View::of(written, p), [s, p, ranks], Band::All);
        }
        self.n = tokens.len() * ranks;
        let (of_angles, speeds) = (tokens.len() * a, &document.speeds[tokens.start * a..tokens.end * a]);
        let [kept, cos, sin] = [&mut self.kept, &mut self.cos, &mut self.sin].map(|v| &mut v[..of_angles]);
        turn(isa, &mut state.angles, (kept, cos, sin), speeds, &step[tokens.clone()]);
        state.last_x.copy_from_slice(scan.channels(scan.operands.x, head.start + tokens.end - 1, head.n));
        self.keys(scan, head, tokens);
    }

    /// Recomputes the rows of a chunk from the angles after its tokens.
    pub(super) fn again<K: Kernel<Packed = f32>>(
        &mut self,
        scan: &Scan<'_>,
        head: &Head,
        tokens: Range<usize>,
        angles: &[f32],
    ) {
        self.n = tokens.len() * self.sizes.ranks;
        sines(self.isa, (&mut self.cos[..angles.len()], &mut self.sin[..angles.len()]), angles);
        self.keys(scan, head, tokens.clone());
        self.queries::<K>(scan, head, tokens);
    }

    /// Angles after the tokens of the chunk.
    pub(super) fn kept(&self, a: usize) -> &[f32] {
        &self.kept[..self.n / self.sizes.ranks * a]
    }

    /// Forms the keys and values of a chunk whose cosines and sines are there.
    fn keys(&mut self, scan: &Scan<'_>, head: &Head, tokens: Range<usize>) {
        let (isa, o, heads, p) = (self.isa, &scan.operands, scan.shape.heads, self.sizes.p);
        self.turned(scan, head, &tokens, false);
        let x = &o.x[((head.start + tokens.start) * heads + head.n) * p..];
        by_rank(isa, &mut self.v[..self.n * p], p, x, heads * p, &head.factors[0]);
        self.work.begin(head.steps(tokens));
    }

    /// Forms the queries of a chunk whose keys are there, and the scores.
    pub(super) fn queries<K: Kernel<Packed = f32>>(
        &mut self,
        scan: &Scan<'_>,
        head: &Head,
        tokens: Range<usize>,
    ) {
        let Sizes { s, ranks, .. } = self.sizes;
        self.turned(scan, head, &tokens, true);
        let (q, k) = (View::of(self.q, s), View::of(self.k, s));
        triangle::<K>((self.scores, self.sizes.rows()), q, k, [self.n, s], ranks);
    }

    /// Turns the queries or the keys of some tokens.
    fn turned(&mut self, scan: &Scan<'_>, head: &Head, tokens: &Range<usize>, queries: bool) {
        let (o, Sizes { s, ranks, .. }) = (&scan.operands, self.sizes);
        let (to, raw, bias) =
            if queries { (&mut *self.q, o.c, o.c_bias) } else { (&mut *self.k, o.b, o.b_bias) };
        let raw = &raw[(head.start + tokens.start) * ranks * s..][..self.n * s];
        let sizes = (s, scan.shape.angles, scan.shape.pairs == Pairs::Halves);
        turned(self.isa, &mut to[..self.n * s], raw, scan.bias(bias, head.n), (&self.cos, &self.sin), sizes);
    }

    /// Outputs of the chunk's rows.
    pub(super) fn outputs<K: Kernel<Packed = f32>>(&mut self, state: &State<'_>) {
        let Sizes { s, p, .. } = self.sizes;
        let (q, k) = (View::of(self.q, s), View::of(self.k, s));
        let rows = Rows { q, k, scores: self.scores, v: &self.v[..self.n * p] };
        self.work.outputs::<K>(&mut self.out[..self.n * p], &rows, (!state.fresh).then_some(&*state.h));
    }

    /// The output of token `t`, the `i`-th of the chunk.
    pub(super) fn gated(&self, scan: &Scan<'_>, head: &Head, y: &mut [f32], t: usize, i: usize) {
        let width = self.sizes.ranks * self.sizes.p;
        let (out, v) = (&self.out[i * width..][..width], &self.v[i * width..][..width]);
        let [_, z, o] = &head.factors;
        gated(self.isa, y, out, v, scan.channels(scan.operands.z, t, head.n), z, o, scan.operands.d[head.n]);
    }

    /// Goes to the end of the chunk.
    pub(super) fn leave<K: Kernel<Packed = f32>>(&mut self, state: &mut State<'_>) {
        let Sizes { s, p, ranks } = self.sizes;
        let (q, k) = (View::of(self.q, s), View::of(self.k, s));
        let rows = Rows { q, k, scores: self.scores, v: &self.v[..self.n * p] };
        self.work.carry::<K>(state.h, &rows, state.fresh);
        state.fresh = false;
        state.last_keys.copy_from_slice(&self.k[(self.n - ranks) * s..self.n * s]);
    }
}

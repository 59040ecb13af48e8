//! The way back through a scan.

use super::{
    Cpu, Disjoint, NAMES, Operands, PI, Result, Scan, Shape, Walk, add_products, along_columns, along_rows,
    expect_len, sigmoid, tanh,
};

/// Tokens whose states exist at once.
const CHUNK: usize = 64;

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Where a head puts the gradients of one token.
struct To<'a> {
    x: &'a mut [f32],
    z: &'a mut [f32],
    b: &'a mut [f32],
    c: &'a mut [f32],
    angle: &'a mut [f32],
    dt: &'a mut f32,
    rate: &'a mut f32,
    trap: &'a mut f32,
}

/// Sums over a head's tokens: gradients of its weights.
struct Sums<'a> {
    dt_bias: &'a mut f32,
    d: &'a mut f32,
    b_bias: &'a mut [f32],
    c_bias: &'a mut [f32],
    /// Inputs, gates and outputs by rank.
    ranks: [&'a mut [f32]; 3],
}

impl<'a> Sums<'a> {
    fn size(shape: &Shape) -> usize {
        2 + 2 * shape.ranks * shape.state + 3 * shape.ranks * shape.head_dim
    }

    fn of(shape: &Shape, all: &'a mut [f32]) -> Self {
        let (bias, by_rank) = (shape.ranks * shape.state, shape.ranks * shape.head_dim);
        let (single, rest) = all.split_at_mut(2);
        let (dt_bias, d) = single.split_at_mut(1);
        let (b_bias, rest) = rest.split_at_mut(bias);
        let (c_bias, rest) = rest.split_at_mut(bias);
        let (x, rest) = rest.split_at_mut(by_rank);
        let (z, o) = rest.split_at_mut(by_rank);
        Self { dt_bias: &mut dt_bias[0], d: &mut d[0], b_bias, c_bias, ranks: [x, z, o] }
    }
}

/// What a token's successors say: gradients by the state behind it, its keys, its values and its angles.
struct Back {
    h: Vec<f32>,
    keys: Vec<f32>,
    values: Vec<f32>,
    angles: Vec<f32>,
    queries: Vec<f32>,
    out: Vec<f32>,
    d_out: Vec<f32>,
    left: Vec<f32>,
    right: Vec<f32>,
}

impl Back {
    fn new(shape: &Shape) -> Self {
        let Shape { head_dim: p, state: s, ranks: r, angles, .. } = *shape;
        let zeros = |n| vec![0f32; n];
        Self {
            h: zeros(p * s),
            keys: zeros(r * s),
            values: zeros(r * p),
            angles: zeros(angles),
            queries: zeros(r * s),
            out: zeros(r * p),
            d_out: zeros(r * p),
            left: zeros(2 * r * p),
            right: zeros(2 * r * s),
        }
    }

    /// Goes back over token `t` of head `n`, which led from `before` to `after`.
    fn step(
        &mut self,
        cpu: &Cpu,
        scan: &Scan<'_>,
        (t, n): (usize, usize),
        (before, after): (&Walk, &Walk),
        dy: &[f32],
        to: &mut To<'_>,
        sums: &mut Sums<'_>,
    ) {
        let (isa, o) = (cpu.isa(), &scan.operands);
        let Shape { head_dim: p, state: s, ranks: r, .. } = scan.shape;
        let step = scan.step(t, n);
        let z = scan.channels(o.z, t, n);
        along_rows(isa, &mut self.out, &after.h, &after.queries, s);
        to.x.fill(0.0);
        to.z.fill(0.0);
        for i in 0..r * p {
            let (fx, fz, fo) =
                (scan.factor(o.rank_x, n, i), scan.factor(o.rank_z, n, i), scan.factor(o.rank_o, n, i));
            let v = after.x[i % p] * fx;
            let out = self.out[i] + o.d[n] * v;
            let gate = z[i % p] * fz;
            let sigmoid = sigmoid(gate);
            let dy = dy[i % p];
            let d_out = dy * gate * sigmoid * fo;
            let d_gate = dy * out * fo * sigmoid * (1.0 + gate * (1.0 - sigmoid));
            to.z[i % p] += d_gate * fz;
            sums.ranks[1][i] += d_gate * z[i % p];
            sums.ranks[2][i] += dy * out * gate * sigmoid;
            *sums.d += d_out * v;
            self.values[i] += o.d[n] * d_out;
            self.d_out[i] = d_out;
        }
        add_products(isa, &mut self.h, 1.0, &self.d_out, &after.queries, s);
        along_columns(isa, &mut self.queries, &after.h, &self.d_out, s);
        let d_decay = dot(&self.h, &before.h);
        along_rows(isa, &mut self.left, &self.h, &after.right, s);
        along_columns(isa, &mut self.right, &self.h, &after.left, s);
        self.h.iter_mut().for_each(|v| *v *= step.decay);
        self.keys.iter_mut().zip(&self.right[r * s..]).for_each(|(k, d)| *k += d);
        let (begin, end) = step.weights();
        let (mut d_begin, mut d_end) = (0.0, 0.0);
        for i in 0..r * p {
            let factor = scan.factor(o.rank_x, n, i);
            d_begin += self.left[i] * before.x[i % p] * factor;
            d_end += self.left[r * p + i] * after.x[i % p] * factor;
            let d = self.values[i] + end * self.left[r * p + i];
            to.x[i % p] += d * factor;
            sums.ranks[0][i] += d * after.x[i % p];
            self.values[i] = begin * self.left[i];
        }
        self.turn_back(scan, after, to, sums);
        self.keys.copy_from_slice(&self.right[..r * s]);
        // begin = a Δ (1−λ), end = Δ λ, a = exp(−rate Δ), θ = … + π Δ tanh(angle)
        let d_decay = d_decay + d_begin * step.step * (1.0 - step.end);
        let mut d_step =
            d_begin * step.decay * (1.0 - step.end) + d_end * step.end - d_decay * step.decay * step.rate;
        for (j, (to, d)) in to.angle.iter_mut().zip(&self.angles).enumerate() {
            let speed = tanh(o.angle[t * scan.shape.angles + j]);
            d_step += d * PI * speed;
            *to = d * PI * step.step * (1.0 - speed * speed);
        }
        let d_trap = (d_end - d_begin * step.decay) * step.step;
        *to.dt = d_step * step.step_slope;
        *to.rate = -d_decay * step.decay * step.step * step.rate_slope;
        *to.trap = d_trap * step.end * (1.0 - step.end);
        *sums.dt_bias += *to.dt;
    }

    /// From turned keys and queries to what they were before, and to the angles.
    fn turn_back(&mut self, scan: &Scan<'_>, after: &Walk, to: &mut To<'_>, sums: &mut Sums<'_>) {
        let s = scan.shape.state;
        let keys = (&mut self.keys, &after.keys, &mut *to.b, &mut *sums.b_bias);
        let queries = (&mut self.queries, &after.queries, &mut *to.c, &mut *sums.c_bias);
        for (d, turned, to, bias) in [keys, queries] {
            for (d, turned) in d.chunks_exact_mut(s).zip(turned.chunks_exact(s)) {
                for (j, &(cos, sin)) in after.turns.iter().enumerate() {
                    let (first, second) = scan.shape.pair(j);
                    let (a, b) = (d[first], d[second]);
                    self.angles[j] += b * turned[first] - a * turned[second];
                    (d[first], d[second]) = (a * cos + b * sin, b * cos - a * sin);
                }
            }
            to.copy_from_slice(d);
            bias.iter_mut().zip(&*d).for_each(|(bias, d)| *bias += d);
        }
    }
}

/// Gradients of [`super::forward`] from nothing remembered. Those of tokens are written, those of weights added to.
///
/// States are recomputed 64 tokens at a time. What all heads share sums over the heads in order.
///
/// # Errors
/// As [`super::forward`].
pub fn backward(cpu: &Cpu, grads: Operands<&mut [f32]>, dy: &[f32], scan: &Scan<'_>) -> Result<()> {
    const OP: &str = "trapezoid::backward";
    let tokens = scan.check(OP)?;
    let Shape { heads, head_dim: p, state: s, ranks: r, angles, .. } = scan.shape;
    expect_len(OP, "dy", scan.operands.x.len(), dy.len())?;
    let grads = grads.each();
    for ((name, want), got) in NAMES.into_iter().zip(scan.lengths(tokens)).zip(&grads) {
        expect_len(OP, name, want, got.len())?;
    }
    let [x, z, b, c, dt, rate, trap, angle, dt_bias, b_bias, c_bias, d, rank_x, rank_z, rank_o] = grads;
    let (units, size) = (scan.segments.len() * heads, Sums::size(&scan.shape));
    let shared = 2 * r * s + angles; // keys, queries and angles of a token
    let mut by_head = vec![0f32; heads * tokens * shared];
    let mut weights = vec![0f32; units * size];
    {
        let [x, z, dt, rate, trap, parts, weights] =
            [&mut *x, z, dt, rate, trap, &mut by_head, &mut weights].map(Disjoint::new);
        cpu.for_each_unit(units, |u| {
            let (segment, n) = (&scan.segments[u / heads], u % heads);
            let (start, len) = (segment.q_start, segment.q_len);
            // SAFETY: a unit takes its own sums.
            let mut sums = Sums::of(&scan.shape, unsafe { weights.part(u * size, size) });
            let mut walk = Walk::new(&scan.shape, &[], &[]);
            let mut fronts = Vec::with_capacity(len.div_ceil(CHUNK));
            for local in 0..len {
                if local % CHUNK == 0 {
                    fronts.push(walk.clone());
                }
                walk.take(cpu.isa(), scan, start + local, n);
            }
            let mut back = Back::new(&scan.shape);
            let mut inside = Vec::with_capacity(CHUNK + 1);
            for (chunk, front) in fronts.into_iter().enumerate().rev() {
                let range = chunk * CHUNK..len.min((chunk + 1) * CHUNK);
                inside.clear();
                inside.push(front);
                for local in range.clone() {
                    let mut next = inside[inside.len() - 1].clone();
                    next.take(cpu.isa(), scan, start + local, n);
                    inside.push(next);
                }
                for (i, local) in range.enumerate().rev() {
                    let t = start + local;
                    let at = t * heads + n;
                    // SAFETY: a unit takes one head of its document's tokens.
                    let mut to = unsafe {
                        let (b, rest) = parts.part((n * tokens + t) * shared, shared).split_at_mut(r * s);
                        let (c, angle) = rest.split_at_mut(r * s);
                        To {
                            x: x.part(at * p, p),
                            z: z.part(at * p, p),
                            b,
                            c,
                            angle,
                            dt: &mut dt.part(at, 1)[0],
                            rate: &mut rate.part(at, 1)[0],
                            trap: &mut trap.part(at, 1)[0],
                        }
                    };
                    let walks = (&inside[i], &inside[i + 1]);
                    back.step(cpu, scan, (t, n), walks, &dy[at * p..][..p], &mut to, &mut sums);
                }
            }
        });
    }
    let add = |to: &mut [f32], from: &[f32]| to.iter_mut().zip(from).for_each(|(to, from)| *to += from);
    for (u, all) in weights.chunks_exact_mut(size).enumerate() {
        let (n, sums) = (u % heads, Sums::of(&scan.shape, all));
        dt_bias[n] += *sums.dt_bias;
        d[n] += *sums.d;
        add(&mut b_bias[n * r * s..][..r * s], sums.b_bias);
        add(&mut c_bias[n * r * s..][..r * s], sums.c_bias);
        if !rank_x.is_empty() {
            for (to, from) in [&mut *rank_x, &mut *rank_z, &mut *rank_o].into_iter().zip(sums.ranks) {
                add(&mut to[n * r * p..][..r * p], from);
            }
        }
    }
    for (to, from, width) in [(b, 0, r * s), (c, r * s, r * s), (angle, 2 * r * s, angles)] {
        cpu.for_each_row(tokens, 64, (to, width), (&mut [] as &mut [u8], 0), |t, to, _| {
            to.fill(0.0);
            for n in 0..heads {
                add(to, &by_head[(n * tokens + t) * shared + from..][..width]);
            }
        });
    }
    Ok(())
}

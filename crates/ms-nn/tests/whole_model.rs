//! A whole model in one test: the decoder as its definition reads, over plain vectors in f64 with a hand-written backward
//! pass and none of the toolchain's operations, compared with [`Gpt`]: the loss, and the gradient of every parameter, by
//! name.

#![allow(clippy::unwrap_used)] // tests

use ms_core::{DType, Device, GradBuffer, Graph, ParamLayout, ParamStore, Rng, Tensor};
use ms_dist::ParallelCtx;
use ms_nn::{Batch, Gpt};
use ms_spec::{Feed, Init, Layer, ModelConfig, Moe, Rope, Router, Score, params};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Documents, of whose tokens each predicts the next, and what the loss of each of their tokens is weighted by.
const DOCUMENTS: [&[i32]; 2] = [&[3, 10, 2, 10, 28, 4, 3], &[3, 16, 10, 7]];
const FACTORS: [f64; 6] = [0.125, 0.03125, 0.0625, 0.25, 0.09375, 0.125];

/// Values of weights, or their gradients, by the weights' names.
type Table = BTreeMap<String, Vec<f64>>;
/// The way back through a function: takes the gradient with respect to its values to that by its input, and adds those of
/// weights to a table.
type Back<'a> = Box<dyn FnOnce(&[f64], &mut Table) -> Vec<f64> + 'a>;
/// The values of a function, and the way back.
type Made<'a> = (Vec<f64>, Back<'a>);

fn made<'a>(y: Vec<f64>, back: impl FnOnce(&[f64], &mut Table) -> Vec<f64> + 'a) -> Made<'a> {
    (y, Box::new(back))
}

/// `f(x)`.
fn then<'a>((x, before): Made<'a>, f: impl FnOnce(&[f64]) -> Made<'a>) -> Made<'a> {
    let (y, back) = f(&x);
    made(y, move |dy, grads| before(&back(dy, grads), grads))
}

/// `x + f(x)`.
fn residual<'a>((x, before): Made<'a>, f: impl FnOnce(&[f64]) -> Made<'a>) -> Made<'a> {
    let (y, back) = f(&x);
    made(each(&x, &y, |a, b| a + b), move |d, grads| before(&each(&back(d, grads), d, |a, b| a + b), grads))
}

/// Rows that are made one by one, one after the other.
fn rows<'a>(all: impl Iterator<Item = Made<'a>>) -> Made<'a> {
    let (y, backs): (Vec<Vec<f64>>, Vec<Back<'a>>) = all.unzip();
    let n = y[0].len();
    made(y.concat(), move |dy, grads| dy.chunks_exact(n).zip(backs).flat_map(|(d, b)| b(d, grads)).collect())
}

fn each(a: &[f64], b: &[f64], f: impl Fn(f64, f64) -> f64) -> Vec<f64> {
    a.iter().zip(b).map(|(&a, &b)| f(a, b)).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// `to += factor · x`.
fn add(to: &mut [f64], factor: f64, x: &[f64]) {
    to.iter_mut().zip(x).for_each(|(to, x)| *to += factor * x);
}

/// A weight, or one of several that are stacked: the values from `start` on of a tensor of `whole`.
struct Weight<'a> {
    name: String,
    values: &'a [f64],
    start: usize,
    whole: usize,
}

impl<'a> Weight<'a> {
    fn new(weights: &'a Table, module: &str, (i, count): (usize, usize)) -> Self {
        let name = format!("{module}.weight");
        let all = weights.get(&name).unwrap_or_else(|| panic!("there is no {name}"));
        let len = all.len() / count;
        Self { name, values: &all[i * len..][..len], start: i * len, whole: all.len() }
    }

    fn gradient<'g>(&self, grads: &'g mut Table) -> &'g mut [f64] {
        let all = grads.entry(self.name.clone()).or_insert_with(|| vec![0.0; self.whole]);
        &mut all[self.start..][..self.values.len()]
    }
}

/// `y[o] = Σ_i w[o,i] · x[i]`.
fn linear<'a>(w: Weight<'a>, x: &[f64]) -> Made<'a> {
    let (x, width) = (x.to_vec(), x.len());
    let y = w.values.chunks_exact(width).map(|w| dot(w, &x)).collect();
    made(y, move |dy, grads| {
        let (mut dx, dw) = (vec![0.0; width], w.gradient(grads));
        for (o, &dy) in dy.iter().enumerate() {
            add(&mut dx, dy, &w.values[o * width..][..width]);
            add(&mut dw[o * width..][..width], dy, &x);
        }
        dx
    })
}

/// `y[i] = w[i] · n[i]`, `n = x / sqrt(mean(x²) + eps)`.
fn rms_norm<'a>(w: Weight<'a>, eps: f64, x: &[f64]) -> Made<'a> {
    let factor = 1.0 / (dot(x, x) / x.len() as f64 + eps).sqrt();
    let n: Vec<f64> = x.iter().map(|x| factor * x).collect();
    made(each(w.values, &n, |w, n| w * n), move |dy, grads| {
        add(w.gradient(grads), 1.0, &each(dy, &n, |dy, n| dy * n));
        let dn = each(dy, w.values, |dy, w| dy * w);
        let mean = dot(&dn, &n) / n.len() as f64;
        each(&dn, &n, |dn, n| factor * (dn - n * mean))
    })
}

/// `silu(gate) · up` of `[gate, up]`, with `silu(g) = g · s(g)`, `s(g) = 1 / (1 + exp(-g))`.
fn swiglu<'a>(x: &[f64]) -> Made<'a> {
    let (gate, up) = (x[..x.len() / 2].to_vec(), x[x.len() / 2..].to_vec());
    let s = |g: f64| 1.0 / (1.0 + (-g).exp());
    made(each(&gate, &up, |g, up| g * s(g) * up), move |dy, _| {
        let by_gate = each(&gate, &up, |g, up| up * s(g) * (1.0 + g * (1.0 - s(g))));
        [each(&by_gate, dy, |slope, dy| slope * dy), each(&gate, dy, |g, dy| g * s(g) * dy)].concat()
    })
}

fn network<'a>(fc1: Weight<'a>, fc2: Weight<'a>, x: &[f64]) -> Made<'a> {
    then(then(linear(fc1, x), swiglu), |x| linear(fc2, x))
}

fn softmax<'a>(x: &[f64]) -> Made<'a> {
    let most = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = x.iter().map(|x| (x - most).exp()).sum();
    let p: Vec<f64> = x.iter().map(|x| (x - most).exp() / sum).collect();
    made(p.clone(), move |dp, _| each(&p, dp, |p_i, dp_i| p_i * (dp_i - dot(&p, dp))))
}

/// What the heads of a document's tokens see, which is the tokens up to their own. A row `x[t]` has for each group its `n`
/// query heads, its key and its value. Queries and keys are rotated: each pair of elements `i` and `i + D/2` by
/// `t · base^(-2i/D)`.
fn attention<'a>(c: &ModelConfig, x: &[f64]) -> Made<'a> {
    let (heads, groups, d, base) = (c.heads, c.groups, c.head_dim, c.rope.base);
    let (n, scale) = (heads / groups, (d as f64).powf(-0.5));
    let turned = move |mut x: Vec<f64>, way: f64| {
        for (at, head) in x.chunks_exact_mut(d).enumerate().filter(|(at, _)| at % (n + 2) <= n) {
            for i in 0..d / 2 {
                let (t, frequency) = (at / (n + 2) / groups, base.powf(-2.0 * i as f64 / d as f64));
                let (sin, cos) = (way * t as f64 * frequency).sin_cos();
                let (a, b) = (head[i], head[i + d / 2]);
                (head[i], head[i + d / 2]) = (a * cos - b * sin, b * cos + a * sin);
            }
        }
        x
    };
    // Where vector `i` of the group of head `h` begins: its query is `h % n`, its key `n` and its value `n + 1`.
    let at = move |t: usize, h: usize, i: usize| ((t * groups + h / n) * (n + 2) + i) * d;
    let x = turned(x.to_vec(), 1.0);
    let (mut y, mut seen) = (vec![0.0; x.len() / (n + 2) * n], Vec::new());
    for (row, y) in y.chunks_exact_mut(d).enumerate() {
        let (t, h) = (row / heads, row % heads);
        let score = |s: usize| scale * dot(&x[at(t, h, h % n)..][..d], &x[at(s, h, n)..][..d]);
        let (p, back) = softmax(&(0..=t).map(score).collect::<Vec<f64>>());
        (0..=t).for_each(|s| add(y, p[s], &x[at(s, h, n + 1)..][..d]));
        seen.push((p, back));
    }
    made(y, move |dy, grads| {
        let mut dx = vec![0.0; x.len()];
        for (row, (dy, (p, back))) in dy.chunks_exact(d).zip(seen).enumerate() {
            let (t, h) = (row / heads, row % heads);
            let dp: Vec<f64> = (0..=t).map(|s| dot(dy, &x[at(s, h, n + 1)..][..d])).collect();
            for (s, dscore) in back(&dp, grads).into_iter().enumerate() {
                add(&mut dx[at(t, h, h % n)..][..d], scale * dscore, &x[at(s, h, n)..][..d]);
                add(&mut dx[at(s, h, n)..][..d], scale * dscore, &x[at(t, h, h % n)..][..d]);
                add(&mut dx[at(s, h, n + 1)..][..d], p[s], dy);
            }
        }
        turned(dx, -1.0)
    })
}

/// `Σ_e scale · p_e / sum · network_e(x)` over the best `K` experts, with `p` the softmax of the router's logits, and `sum` that
/// of the best `p` where weights are normalised, else 1.
fn experts<'a>(c: &ModelConfig, weights: &'a Table, mlp: &str, x: &[f64]) -> Made<'a> {
    let moe = c.moe.as_ref().unwrap();
    let (k, scale, normalised) = (moe.top_k, moe.router.scale, moe.router.renormalise);
    let (p, router) = then(linear(Weight::new(weights, &format!("{mlp}.router"), (0, 1)), x), softmax);
    let mut best: Vec<usize> = (0..p.len()).collect();
    best.sort_by(|a, b| p[*b].total_cmp(&p[*a]));
    assert!(p[best[k - 1]] - p[best[k]] > 1e-3, "a rounding could decide which experts are best");
    best.truncate(k);
    let sum: f64 = if normalised { best.iter().map(|&e| p[e]).sum() } else { 1.0 };
    let (mut y, mut outputs) = (vec![0.0; x.len()], Vec::new());
    for &e in &best {
        let of = |fc: &str| Weight::new(weights, &format!("{mlp}.experts.{fc}"), (e, p.len()));
        let (output, back) = network(of("linear_fc1"), of("linear_fc2"), x);
        add(&mut y, scale * p[e] / sum, &output);
        outputs.push((output, back));
    }
    made(y, move |dy, grads| {
        let (mut dx, mut dp) = (vec![0.0; dy.len()], vec![0.0; p.len()]);
        for (&e, (output, back)) in best.iter().zip(outputs) {
            dp[e] = scale / sum * dot(dy, &output);
            let share: Vec<f64> = dy.iter().map(|dy| scale * p[e] / sum * dy).collect();
            add(&mut dx, 1.0, &back(&share, grads));
        }
        let of_sum = if normalised { dot(&p, &dp) / sum } else { 0.0 };
        best.iter().for_each(|&e| dp[e] -= of_sum);
        add(&mut dx, 1.0, &router(&dp, grads));
        dx
    })
}

/// The loss of the decoder for one document, `Σ_t FACTORS[t] · -ln softmax(logits[t])[ids[t + 1]]`; adds its gradient.
fn decoder(c: &ModelConfig, weights: &Table, ids: &[i32], grads: &mut Table) -> f64 {
    let of = |module: &str| Weight::new(weights, module, (0, 1));
    let mut x = rows(ids.iter().map(|&id| {
        let word = Weight::new(weights, "embedding.word_embeddings", (id as usize, c.padded_vocab));
        made(word.values.to_vec(), move |dx, grads| {
            add(word.gradient(grads), 1.0, dx);
            Vec::new()
        })
    }));
    for number in 0..c.layers {
        let layer = format!("decoder.layers.{number}");
        let of = |module: &str| of(&format!("{layer}.{module}"));
        let project = |x: &[f64]| linear(of("self_attention.linear_qkv"), x);
        let project = |x: &[f64]| then(rms_norm(of("input_layernorm"), c.norm_eps, x), project);
        let join = |x: &[f64]| linear(of("self_attention.linear_proj"), x);
        let attend = |x: &[f64]| then(rows(x.chunks_exact(c.hidden).map(project)), |qkv| attention(c, qkv));
        x = residual(x, |x| then(attend(x), |x| rows(x.chunks_exact(c.heads * c.head_dim).map(join))));
        let feed = |x: &[f64]| match c.layer(number).feed {
            Feed::Moe => experts(c, weights, &format!("{layer}.mlp"), x),
            _ => network(of("mlp.linear_fc1"), of("mlp.linear_fc2"), x),
        };
        let feed = |x: &[f64]| then(rms_norm(of("pre_mlp_layernorm"), c.norm_eps, x), feed);
        x = residual(x, |x| rows(x.chunks_exact(c.hidden).map(feed)));
    }
    let output = |x: &[f64]| linear(of(if c.tied { "embedding.word_embeddings" } else { "output_layer" }), x);
    let output = |x: &[f64]| then(rms_norm(of("decoder.final_layernorm"), c.norm_eps, x), output);
    let (logits, back) = then(x, |x| rows(x.chunks_exact(c.hidden).map(output)));
    let (mut loss, mut dlogits) = (0.0, vec![0.0; logits.len()]);
    let both = logits.chunks_exact(c.padded_vocab).zip(dlogits.chunks_exact_mut(c.padded_vocab));
    for ((logits, dlogits), (next, factor)) in both.zip(ids[1..].iter().zip(FACTORS)) {
        let (mut p, next) = (softmax(logits).0, *next as usize);
        loss -= factor * p[next].ln();
        p[next] -= 1.0;
        add(dlogits, factor, &p);
    }
    back(&dlogits, grads);
    loss
}

/// The loss and its gradient by the toolchain's model on `device`, in `dtype`.
fn gpt(c: &ModelConfig, weights: &Table, device: &Device, dtype: DType) -> (f64, Table) {
    let model = Gpt::new(c, device, c.max_positions).unwrap();
    let layout = Arc::new(ParamLayout::sequential(model.specs().iter().map(|s| s.shape)));
    let (arena, ctx, ids) = (device.arena(), ParallelCtx::single(), DOCUMENTS.concat());
    let mut store = ParamStore::zeros(arena, dtype, layout.clone());
    let mut grads = GradBuffer::zeros(arena, dtype, layout.clone());
    for (id, spec) in layout.ids().zip(model.specs()) {
        store.get_mut(id).unwrap().set_reals(&weights[&spec.name]).unwrap();
    }
    let positions = DOCUMENTS.map(|ids| (0..ids.len() as i32).collect::<Vec<_>>()).concat();
    let batch = Batch::new(arena, &ids, &positions, &[0, 7, 11]).unwrap(); // where documents begin and end
    let targets = DOCUMENTS.map(|ids| [&ids[1..], &[-1]].concat()).concat();
    let targets = Tensor::from_slice(arena, [ids.len()], &targets).unwrap();
    let factors = DOCUMENTS.map(|ids| [&FACTORS[..ids.len() - 1], &[0.0]].concat()).concat();
    let factors = Tensor::from_reals(arena, dtype, [ids.len()], &factors).unwrap();
    let mut g = Graph::train(device);
    let hidden = model.forward(&mut g, &store, &ctx, &batch).unwrap();
    let loss = model.loss(&mut g, &store, &ctx, &hidden, &targets, &factors).unwrap().loss;
    g.backward(&loss, Tensor::from_reals(arena, dtype, [1], &[1.0]).unwrap(), &[], &mut grads).unwrap();
    let named = layout.ids().zip(model.specs());
    let grads = named.map(|(id, spec)| (spec.name.clone(), grads.get(id).to_reals().unwrap())).collect();
    (loss.value().to_reals().unwrap()[0], grads)
}

fn check(tied: bool, router: Router) {
    // Numbers that f32 holds as they are, where a model keeps them, or angles made of them, in f32.
    let (norm_eps, rope) = (1.0 / 64.0, Rope::plain(16.0));
    let pattern = [Feed::Dense, Feed::Moe].map(|feed| Layer { feed, ..Layer::default() }).to_vec();
    let moe = Some(Moe { experts: 5, top_k: 2, ffn: 8, router, shared: None, zero_experts: 0 });
    let c = ModelConfig { heads: 6, vocab: 29, norm_eps, rope, pattern, moe, tied, ..ModelConfig::tiny() };
    let (mut weights, mut grads) = (Table::new(), Table::new());
    for spec in params(&c) {
        let mut values = vec![0f32; spec.shape.numel()];
        Rng::named(3, &spec.name).fill_normal(&mut values, 0.3);
        let middle = if spec.init == Init::Ones { 1f32 } else { 0.0 };
        weights.insert(spec.name, values.into_iter().map(|v| f64::from(middle + v)).collect());
    }
    let loss: f64 = DOCUMENTS.iter().map(|ids| decoder(&c, &weights, ids, &mut grads)).sum();
    let length = |values: &[f64]| dot(values, values).sqrt();
    // What a gradient goes through rounds fewer than a thousand times.
    let single = (ms_cpu::device(1).unwrap(), DType::F32, 1e3 * f64::from(f32::EPSILON));
    for (device, dtype, bound) in [(ms_reference::device(), DType::F64, 1e3 * f64::EPSILON), single] {
        let (got, found) = gpt(&c, &weights, &device, dtype);
        assert!((got - loss).abs() <= bound * loss, "{dtype}: the loss is {got}, by definition {loss}");
        assert!(found.keys().eq(grads.keys()), "{:?}, by definition {:?}", found.keys(), grads.keys());
        for (name, want) in &grads {
            let relative = length(&each(&found[name], want, |got, want| got - want)) / length(want);
            assert!(relative <= bound, "{dtype}: the gradient of {name} is {relative:.1e} off");
        }
    }
}

#[test]
fn every_gradient_is_that_of_the_definition() {
    check(true, Router { renormalise: true, ..Router::plain(Score::Softmax) });
    check(false, Router { scale: 2.5, ..Router::plain(Score::Softmax) });
}

//! What the children do: operators against their formulas; and what scenarios share.

use crate::client::{
    Array, Attention, BF16, BOOL, F16, F32, I32, I64, call, grouped_matmul, list, near, noise, ok, op, start,
    stream,
};
use hccl_sys::types::{HcclComm, aclTensor, aclrtStream};
use std::ptr::null_mut;

pub type Scenario = fn();

macro_rules! scenarios {
    ($($name:ident)*) => {
        pub fn find(name: &str) -> Option<$crate::scenarios::Scenario> {
            $(if name == stringify!($name) { return Some($name); })*
            None
        }
    };
}
pub(crate) use scenarios;
scenarios! {
    copies_go_there_and_back matmul_equals_the_formula rms_norm_and_its_gradient_equal_the_formula
    swiglu_and_its_gradient_equal_the_formula rotary_embedding_equals_the_formula
    softmax_and_cross_entropy_equal_the_formula attention_equals_the_formula_in_all_layouts adamw_equals_the_formula
    grouped_matmul_equals_single_products tokens_are_permuted_by_expert_and_come_back
}

const FLOATS: [i32; 3] = [F32, F16, BF16];

/// Odd shapes: one row, one column, primes.
const SHAPES: [(i64, i64); 4] = [(1, 2), (3, 10), (7, 34), (13, 6)];

pub fn scalar(v: f32) -> *mut hccl_sys::types::aclScalar {
    let mut v = v;
    call!(meta.aclCreateScalar((&raw mut v).cast(), F32)).cast()
}

fn copies_go_there_and_back() {
    start(0);
    let v = noise(1000, 1);
    let a = Array::of(&[1000], F32, &v);
    near("copy", &a.read_now(), &Array::rounded(&v, F32), F32);
    let fresh = Array::new(&[5], F32);
    assert!(fresh.read_now().iter().all(|v| v.is_nan()), "new memory holds 0xFF");
}

fn matmul_equals_the_formula() {
    start(0);
    let s = stream();
    for dtype in FLOATS {
        for (m, n) in SHAPES {
            let k = m + n;
            let (x, y) = (
                Array::rounded(&noise((m * k) as usize, 2), dtype),
                Array::rounded(&noise((k * n) as usize, 3), dtype),
            );
            // The second operand lies transposed in memory and is seen through strides.
            let turned: Vec<f64> = (0..n * k).map(|i| y[(i % k * n + i / k) as usize]).collect();
            let (a, b, c) = (
                Array::of(&[m, k], dtype, &x),
                Array::of(&[n, k], dtype, &turned),
                Array::new(&[m, n], dtype),
            );
            ok(op!(s, products.aclnnMm(a.tensor(), b.view(&[k, n], &[1, k]), c.tensor(), 0)));
            let want: Vec<f64> = (0..m * n)
                .map(|i| (0..k).map(|p| x[(i / n * k + p) as usize] * y[(p * n + i % n) as usize]).sum())
                .collect();
            near("mm", &c.read(s), &want, dtype);
        }
    }
}

fn rms_norm_and_its_gradient_equal_the_formula() {
    start(0);
    let s = stream();
    for dtype in FLOATS {
        for (rows, h) in SHAPES {
            let (r, w) = (rows as usize, h as usize);
            let x = Array::rounded(&noise(r * w, 4), dtype);
            let g = Array::rounded(&noise(w, 5), dtype);
            let dy = Array::rounded(&noise(r * w, 6), dtype);
            let (ax, ag, ad) = (
                Array::of(&[rows, h], dtype, &x),
                Array::of(&[h], dtype, &g),
                Array::of(&[rows, h], dtype, &dy),
            );
            let (y, rstd) = (Array::new(&[rows, h], dtype), Array::new(&[rows, 1], F32));
            let (dx, dg) = (Array::new(&[rows, h], dtype), Array::new(&[h], F32));
            ok(op!(s, nn.aclnnRmsNorm(ax.tensor(), ag.tensor(), 1e-5, y.tensor(), rstd.tensor())));
            ok(op!(s, nn.aclnnRmsNormGrad:
                ad.tensor(), ax.tensor(), rstd.tensor(), ag.tensor(), dx.tensor(), dg.tensor()));
            let (mut wy, mut wr, mut wx, mut wg) = (vec![], vec![], vec![], vec![0.0; w]);
            for i in 0..r {
                let row = &x[i * w..(i + 1) * w];
                let q = 1.0 / (row.iter().map(|v| v * v).sum::<f64>() / w as f64 + 1e-5).sqrt();
                let dot: f64 = (0..w).map(|c| dy[i * w + c] * g[c] * row[c]).sum();
                for c in 0..w {
                    wy.push(row[c] * q * g[c]);
                    wx.push(q * (dy[i * w + c] * g[c] - row[c] * dot * q * q / w as f64));
                    wg[c] += dy[i * w + c] * row[c] * q;
                }
                wr.push(q);
            }
            near("rms y", &y.read(s), &wy, dtype);
            near("rms rstd", &rstd.read(s), &wr, F32);
            near("rms dx", &dx.read(s), &wx, dtype);
            near("rms dgamma", &dg.read(s), &wg, F32);
        }
    }
}

fn swiglu_and_its_gradient_equal_the_formula() {
    start(0);
    let s = stream();
    for dtype in FLOATS {
        for (rows, h) in SHAPES {
            let (r, w) = (rows as usize, h as usize);
            let half = w / 2;
            let x = Array::rounded(&noise(r * w, 7), dtype);
            let dy = Array::rounded(&noise(r * half, 8), dtype);
            let (ax, ad) = (Array::of(&[rows, h], dtype, &x), Array::of(&[rows, h / 2], dtype, &dy));
            let (y, dx) = (Array::new(&[rows, h / 2], dtype), Array::new(&[rows, h], dtype));
            ok(op!(s, nn.aclnnSwiGlu(ax.tensor(), -1, y.tensor())));
            ok(op!(s, nn.aclnnSwiGluGrad(ad.tensor(), ax.tensor(), -1, dx.tensor())));
            let (mut wy, mut wx) = (vec![], vec![0.0; r * w]);
            for i in 0..r {
                for c in 0..half {
                    let (a, b, g) = (x[i * w + c], x[i * w + half + c], dy[i * half + c]);
                    let t = 1.0 / (1.0 + (-a).exp());
                    wy.push(a * t * b);
                    wx[i * w + c] = g * b * t * (1.0 + a * (1.0 - t));
                    wx[i * w + half + c] = g * a * t;
                }
            }
            near("swiglu y", &y.read(s), &wy, dtype);
            near("swiglu dx", &dx.read(s), &wx, dtype);
        }
    }
}

fn rotary_embedding_equals_the_formula() {
    start(0);
    let s = stream();
    for dtype in FLOATS {
        let (b, t, n, d) = (2i64, 3i64, 2i64, 64i64);
        let count = (b * t * n * d) as usize;
        let (q, k) = (Array::rounded(&noise(count, 9), dtype), Array::rounded(&noise(count, 10), dtype));
        let (c, i) = (
            Array::rounded(&noise((t * d) as usize, 11), dtype),
            Array::rounded(&noise((t * d) as usize, 12), dtype),
        );
        let dims = [b, t, n, d];
        let (aq, ak) = (Array::of(&dims, dtype, &q), Array::of(&dims, dtype, &k));
        // The page wants them for every sequence.
        let each = |v: &[f64]| Array::of(&[b, t, 1, d], dtype, &v.repeat(b as usize));
        let (ac, ai) = (each(&c), each(&i));
        ok(op!(s, attention.aclnnApplyRotaryPosEmb(aq.tensor(), ak.tensor(), ac.tensor(), ai.tensor(), 1)));
        for (x, a) in [(&q, &aq), (&k, &ak)] {
            let want: Vec<f64> = (0..count)
                .map(|at| {
                    let (e, pos) = (at % 64, at / (64 * n as usize) % t as usize);
                    let turned = if e < 32 { -x[at + 32] } else { x[at - 32] };
                    x[at] * c[pos * 64 + e] + turned * i[pos * 64 + e]
                })
                .collect();
            near("rotary", &a.read(s), &want, dtype);
        }
    }
}

fn softmax_and_cross_entropy_equal_the_formula() {
    start(0);
    let s = stream();
    for dtype in FLOATS {
        let (rows, v) = (5usize, 11usize);
        let x = Array::rounded(&noise(rows * v, 13), dtype);
        let target: Vec<f64> = (0..rows).map(|i| ((i * 7 + 3) % v) as f64).collect();
        let dims = [rows as i64, v as i64];
        let (ax, at) = (Array::of(&dims, dtype, &x), Array::of(&[rows as i64], I64, &target));
        let (y, loss, log) = (Array::new(&dims, dtype), Array::new(&[1], dtype), Array::new(&dims, dtype));
        ok(op!(s, nn.aclnnSoftmax(ax.tensor(), -1, y.tensor())));
        let mean = c"mean".as_ptr().cast_mut();
        let none: *mut aclTensor = null_mut();
        let empty = Array::none();
        ok(op!(s, nn.aclnnCrossEntropyLoss:
            ax.tensor(), at.tensor(), none, mean, -100, 0.0, 0.0, false, loss.tensor(), log.tensor(),
            empty.tensor(), empty.tensor()));
        let (mut wy, mut wl, mut total) = (vec![], vec![], 0.0);
        for r in 0..rows {
            let row = &x[r * v..(r + 1) * v];
            let sum: f64 = row.iter().map(|v| v.exp()).sum();
            wy.extend(row.iter().map(|v| v.exp() / sum));
            wl.extend(row.iter().map(|v| v - sum.ln()));
            total -= row[target[r] as usize] - sum.ln();
        }
        near("softmax", &y.read(s), &wy, dtype);
        near("log probabilities", &log.read(s), &wl, dtype);
        near("loss", &loss.read(s), &[total / rows as f64], dtype);
    }
}

/// Places of (b, n, s) in a layout.
fn place(layout: &str, (b, n, s): (usize, usize, usize), (bs, ns, ss): (usize, usize, usize)) -> usize {
    match layout {
        "BSH" | "BSND" => (b * ss + s) * ns + n,
        "SBH" => (s * bs + b) * ns + n,
        _ => (b * ns + n) * ss + s,
    }
}

fn attention_equals_the_formula_in_all_layouts() {
    start(0);
    let s = stream();
    let (b, n, t, d) = (2usize, 3usize, 5usize, 8usize);
    let mask: Vec<f64> = (0..2048 * 2048).map(|i| f64::from(u8::from(i % 2048 > i / 2048))).collect();
    let mask = Array::of(&[2048, 2048], BOOL, &mask);
    for (layout, text) in [("BSH", c"BSH"), ("SBH", c"SBH"), ("BSND", c"BSND"), ("BNSD", c"BNSD")] {
        for causal in [true, false] {
            let dims: Vec<i64> = match layout {
                "BSH" => vec![b, t, n * d],
                "SBH" => vec![t, b, n * d],
                "BSND" => vec![b, t, n, d],
                _ => vec![b, n, t, d],
            }
            .into_iter()
            .map(|d| d as i64)
            .collect();
            let v: Vec<Vec<f64>> =
                (0..4).map(|i| Array::rounded(&noise(b * n * t * d, 20 + i), F32)).collect();
            let a: Vec<Array> = v.iter().map(|v| Array::of(&dims, F32, v)).collect();
            let stat = [b as i64, n as i64, t as i64, 8];
            let (out, max, sum) = (Array::new(&dims, F32), Array::new(&stat, F32), Array::new(&stat, F32));
            let g: Vec<Array> = (0..3).map(|_| Array::new(&dims, F32)).collect();
            let scale = 0.3;
            let call = Attention {
                qkv: [&a[0], &a[1], &a[2]].map(Array::tensor),
                mask: if causal { mask.tensor() } else { null_mut() },
                layout: text,
                heads: n as i64,
                scale,
                mode: if causal { 2 } else { 0 },
                statistics: [max.tensor(), sum.tensor()],
                out: out.tensor(),
            };
            ok(call.forward(s));
            ok(call.gradient(s, a[3].tensor(), [&g[0], &g[1], &g[2]].map(Array::tensor)));
            let at = |bi: usize, ni: usize, si: usize| place(layout, (bi, ni, si), (b, n, t)) * d;
            let mut wo = vec![0.0; b * n * t * d];
            let mut wg = vec![vec![0.0; b * n * t * d]; 3];
            for bi in 0..b {
                for ni in 0..n {
                    for i in 0..t {
                        let keys = if causal { i + 1 } else { t };
                        let q = at(bi, ni, i);
                        let e: Vec<f64> = (0..keys)
                            .map(|j| {
                                (scale * (0..d).map(|c| v[0][q + c] * v[1][at(bi, ni, j) + c]).sum::<f64>())
                                    .exp()
                            })
                            .collect();
                        let z: f64 = e.iter().sum();
                        for j in 0..keys {
                            for c in 0..d {
                                wo[q + c] += e[j] / z * v[2][at(bi, ni, j) + c];
                            }
                        }
                        let inner: f64 = (0..d).map(|c| wo[q + c] * v[3][q + c]).sum();
                        for j in 0..keys {
                            let k = at(bi, ni, j);
                            let p = e[j] / z;
                            let dp: f64 = (0..d).map(|c| v[3][q + c] * v[2][k + c]).sum();
                            let ds = p * (dp - inner) * scale;
                            for c in 0..d {
                                wg[0][q + c] += ds * v[1][k + c];
                                wg[1][k + c] += ds * v[0][q + c];
                                wg[2][k + c] += p * v[3][q + c];
                            }
                        }
                    }
                }
            }
            near(layout, &out.read(s), &wo, F32);
            for (g, w) in g.iter().zip(&wg) {
                near(layout, &g.read(s), w, F32);
            }
        }
    }
}

fn adamw_equals_the_formula() {
    start(0);
    let s = stream();
    let (x, g) = (noise(9, 30), noise(9, 31));
    let (ax, ag) = (Array::of(&[9], F32, &x), Array::of(&[9], F32, &g));
    let (m, v) = (Array::of(&[9], F32, &[0.0; 9]), Array::of(&[9], F32, &[0.0; 9]));
    // The tensor counts the steps that have been taken: the first step is number 0.
    let step = Array::of(&[1], F32, &[0.0]);
    let none: *mut aclTensor = null_mut();
    ok(op!(s, nn.aclnnApplyAdamWV2:
        ax.tensor(), m.tensor(), v.tensor(), none, ag.tensor(), step.tensor(), 0.1, 0.9, 0.99, 0.01, 1e-8,
        false, false));
    // With zero moments the first step has the length of the rate, against the gradient.
    let want: Vec<f64> =
        x.iter().zip(&g).map(|(x, g)| x * (1.0 - 0.1 * 0.01) - 0.1 * g / (g.abs() + 1e-8)).collect();
    near("adamw", &ax.read(s), &want, F32);
    near("first moment", &m.read(s), &g.iter().map(|g| 0.1 * g).collect::<Vec<_>>(), F32);
}

fn grouped_matmul_equals_single_products() {
    start(0);
    let s = stream();
    let (rows, k, n) = (6i64, 3i64, 4i64);
    let (x, w) = (noise(18, 40), noise(36, 41));
    let (ax, aw, y) =
        (Array::of(&[rows, k], F32, &x), Array::of(&[3, k, n], F32, &w), Array::new(&[rows, n], F32));
    let groups = Array::of(&[3], I64, &[1.0, 1.0, 6.0]);
    let lists = [&ax, &aw, &y].map(|a| list(&[a.tensor()]));
    ok(grouped_matmul(s, lists, groups.tensor(), [3, 0, 0, 0]));
    let want: Vec<f64> = (0..24)
        .map(|i| {
            let (r, c) = (i / 4, i % 4);
            let e = if r == 0 { 0 } else { 2 };
            (0..3).map(|p| x[r * 3 + p] * w[e * 12 + p * 4 + c]).sum()
        })
        .collect();
    near("grouped", &y.read(s), &want, F32);
}

fn tokens_are_permuted_by_expert_and_come_back() {
    start(0);
    let s = stream();
    let (tokens, expert) = (noise(12, 50), [2.0, 0.0, 1.0, 2.0, 0.0, 1.0]);
    let (a, i) = (Array::of(&[3, 4], F32, &tokens), Array::of(&[3, 2], I64, &expert));
    let (p, order, back) = (Array::new(&[6, 4], F32), Array::new(&[6], I32), Array::new(&[3, 4], F32));
    ok(op!(s, experts.aclnnMoeTokenPermute(a.tensor(), i.tensor(), 0, false, p.tensor(), order.tensor())));
    // Copies of tokens by expert, in the order of the tokens within each: experts 0, 0, 1, 1, 2, 2.
    let rows = [0, 2, 1, 2, 0, 1];
    let want: Vec<f64> = rows.iter().flat_map(|r| tokens[r * 4..r * 4 + 4].to_vec()).collect();
    near("permuted", &p.read(s), &want, F32);
    assert_eq!(order.read(s), [4.0, 0.0, 2.0, 5.0, 1.0, 3.0]);
    let weights = Array::of(&[3, 2], F32, &[1.0; 6]);
    ok(op!(s, experts.aclnnMoeTokenUnpermute:
        p.tensor(), order.tensor(), weights.tensor(), false, null_mut(), back.tensor()));
    near("back", &back.read(s), &tokens.iter().map(|v| 2.0 * v).collect::<Vec<_>>(), F32);
}

pub fn add(s: aclrtStream, a: &Array, b: &Array, out: &Array) -> i32 {
    op!(s, math.aclnnAdd(a.tensor(), b.tensor(), scalar(1.0), out.tensor()))
}

pub fn three() -> (Array, Array, Array) {
    (
        Array::of(&[4], F32, &[1.0, 2.0, 3.0, 4.0]),
        Array::of(&[4], F32, &[10.0, 20.0, 30.0, 40.0]),
        Array::new(&[4], F32),
    )
}

/// One thread per rank, each with its device, stream and communicator.
pub fn ranks(n: usize, f: impl Fn(usize, HcclComm, aclrtStream) + Sync) {
    start(0);
    let mut devices: Vec<i32> = (0..n as i32).collect();
    let mut comms: Vec<HcclComm> = vec![null_mut(); n];
    assert_eq!(call!(hccl.HcclCommInitAll(n as u32, devices.as_mut_ptr(), comms.as_mut_ptr())), 0);
    let handles: Vec<usize> = comms.iter().map(|c| *c as usize).collect();
    std::thread::scope(|scope| {
        for (r, comm) in handles.into_iter().enumerate() {
            let f = &f;
            scope.spawn(move || {
                ok(call!(rt.aclrtSetDevice(r as i32)));
                f(r, comm as HcclComm, stream());
            });
        }
    });
}

//! Tokens to experts on other ranks and back: the dispatch by where the rows must be, the combination by the sum it must give.

use super::ranks::{Rank, whole, with_ranks};
use super::run::{Run, noise, rounded};
use crate::nn::tensor::Dtype;
use std::collections::HashMap;
use std::sync::Mutex;

pub(super) const NAMES: &[&str] = &[
    "MoeDistributeDispatch",
    "MoeDistributeCombine",
    "MoeDistributeDispatchV2",
    "MoeDistributeCombineV2",
    "MoeDistributeDispatchV3",
    "MoeDistributeCombineV3",
    "MoeDistributeDispatchV4",
    "MoeDistributeCombineV4",
    "MoeDistributeCombineAddRmsNorm",
    "MoeDistributeCombineAddRmsNormV2",
];

/// How the experts lie and what is asked for.
#[derive(Clone, Copy)]
struct Setting {
    ranks: usize,
    experts: usize,
    /// Ranks of one shared expert, before the others.
    shared: usize,
    h: usize,
    top: usize,
    /// Rows go in eight bits.
    eight: bool,
    /// Only the first token of two takes part.
    masked: bool,
    version: usize,
    /// Three experts more that give nothing, the token, and a constant part of it; each token chooses one of them last.
    special: bool,
    /// What comes back is added to a residual and normed.
    normed: bool,
}

type Held = HashMap<&'static str, Vec<f64>>;

impl Setting {
    fn each(&self) -> usize {
        self.experts / (self.ranks - self.shared)
    }
    fn x(&self, rank: usize) -> Vec<f64> {
        whole(2 * self.h, 700 + rank, -3, 3)
    }
    fn tokens(&self) -> usize {
        if self.masked { 1 } else { 2 }
    }
    /// `top` experts of each token, all different.
    fn ids(&self, rank: usize) -> Vec<usize> {
        let one = |i: usize| match self.special && i % self.top == self.top - 1 {
            true => self.experts + (rank + i / self.top) % 3,
            false => (rank + 3 * (i / self.top) + i % self.top) % self.experts,
        };
        (0..2 * self.top).map(one).collect()
    }
    fn weights(&self, rank: usize, dtype: Dtype) -> Vec<f64> {
        rounded(&noise(2 * self.top, 800 + rank as u64, 0.1, 1.0), dtype)
    }
    /// The rows that must be on a rank: from which rank, token, and for which expert.
    fn rows(&self, me: usize) -> Vec<(usize, usize, Option<usize>)> {
        let mut out = Vec::new();
        if me < self.shared {
            for from in (0..self.ranks).filter(|r| r % self.shared == me) {
                out.extend((0..self.tokens()).map(|t| (from, t, None)));
            }
            return out;
        }
        for e in (me - self.shared) * self.each()..(me - self.shared + 1) * self.each() {
            for from in 0..self.ranks {
                let ids = self.ids(from);
                for t in 0..self.tokens() {
                    if ids[t * self.top..(t + 1) * self.top].contains(&e) {
                        out.push((from, t, Some(e)));
                    }
                }
            }
        }
        out
    }
    fn common(&self, r: &mut Run, w: &Rank, version: &str) {
        r.text("groupEp", &w.groups[0]).n("epWorldSize", w.ranks as f64).n("epRankId", w.me as f64);
        r.n("moeExpertNum", self.experts as f64).n("globalBs", 0.0).text("groupTp", "");
        r.n("sharedExpertRankNum", self.shared as f64)
            .n("sharedExpertNum", f64::from(u8::from(self.shared > 0)));
        if self.special {
            r.n("zeroExpertNum", 1.0).n("copyExpertNum", 1.0).n("constExpertNum", 1.0);
        }
        let ids: Vec<f64> = self.ids(w.me).iter().map(|i| *i as f64).collect();
        r.t("expertIds", &[2, self.top as i64], Dtype::I32, &ids);
        if self.masked {
            r.t(&format!("xActiveMask{version}"), &[2], Dtype::Bool, &[1.0, 0.0]);
        }
    }
    fn room(&self) -> i64 {
        (2 * self.ranks * self.each().min(self.top).max(1)) as i64
    }

    fn there(&self, w: &Rank, dtype: Dtype) -> Held {
        let mut r = Run::new(NAMES[2 * self.version - 2], dtype, false);
        let (optional, out) = if self.version > 1 { ("Optional", "Out") } else { ("", "") };
        self.common(&mut r, w, optional);
        let x = self.x(w.me);
        r.t("x", &[2, self.h as i64], dtype, &x);
        let (a, h) = (self.room(), self.h as i64);
        r.n("quantMode", if self.eight { 2.0 } else { 0.0 }).n("expertTokenNumsType", 1.0);
        let row = if self.eight { Dtype::I8 } else { dtype };
        r.any(&format!("expandX{out}"), &[a, h], row);
        if self.eight {
            r.any(&format!("dynamicScales{out}"), &[a], Dtype::F32);
        }
        let own = if w.me < self.shared { 1 } else { self.each() } as i64;
        r.any(&format!("expertTokenNums{out}"), &[own], Dtype::I64);
        r.any(&format!("epRecvCounts{out}"), &[own * self.ranks as i64], Dtype::I32);
        if self.version > 1 {
            r.any("assistInfoForCombineOut", &[a * 128], Dtype::I32);
        } else {
            r.any("expandIdx", &[2 * self.top as i64], Dtype::I32);
        }
        let kept = std::sync::Arc::new(Mutex::new(Held::new()));
        let slot = std::sync::Arc::clone(&kept);
        r.check(move |all| {
            slot.lock().unwrap().extend(all.iter().map(|(k, v)| (k.trim_end_matches("Out"), v.clone())))
        });
        assert!(r.finish());
        kept.lock().unwrap().clone()
    }

    /// The rows of a dispatch are those that must be here, in eight bits within half a step.
    fn check(&self, w: &Rank, held: &Held) -> Vec<(usize, usize, Option<usize>)> {
        let rows = self.rows(w.me);
        for (i, (from, token, _)) in rows.iter().enumerate() {
            let all = self.x(*from);
            let want = &all[token * self.h..][..self.h];
            let step = if self.eight { held["dynamicScales"][i] } else { 1.0 };
            for (c, v) in want.iter().enumerate() {
                let got = held["expandX"][i * self.h + c] * step;
                let slack = if self.eight { 0.51 * step } else { 0.0 };
                assert!(
                    (got - v).abs() <= slack,
                    "row {i} from rank {from}, token {token}: {got}, wanted {v}"
                );
            }
        }
        let total: f64 = held["expertTokenNums"].iter().sum();
        assert_eq!(total as usize, rows.len(), "rows by their experts' numbers");
        let from_all: f64 = held["epRecvCounts"].iter().sum();
        assert_eq!(from_all as usize, rows.len(), "rows by the ranks' numbers");
        rows
    }

    /// Expert e multiplies by e + 1, the shared one by 10; what comes back is their weighted sum.
    fn back(&self, w: &Rank, dtype: Dtype, held: &Held, rows: &[(usize, usize, Option<usize>)]) {
        let name = match (self.normed, self.version) {
            (false, version) => NAMES[2 * version - 1],
            (true, version) => NAMES[6 + version],
        };
        let mut r = Run::new(name, dtype, false);
        self.common(&mut r, w, if self.version > 1 { "Optional" } else { "" });
        let (a, h) = (self.room(), self.h as i64);
        let mut values = vec![0.0; (a * h) as usize];
        for (i, (from, token, expert)) in rows.iter().enumerate() {
            let factor = expert.map_or(10.0, |e| e as f64 + 1.0);
            let row =
                self.x(*from)[token * self.h..][..self.h].iter().map(|v| factor * v).collect::<Vec<_>>();
            values[i * self.h..(i + 1) * self.h].copy_from_slice(&row);
        }
        r.t("expandX", &[a, h], dtype, &values);
        let counts = &held["epRecvCounts"];
        r.t("epSendCounts", &[counts.len() as i64], Dtype::I32, counts);
        if self.version > 1 {
            r.t("assistInfoForCombine", &[a * 128], Dtype::I32, &held["assistInfoForCombine"]);
        } else {
            r.t("expandIdx", &[2 * self.top as i64], Dtype::I32, &held["expandIdx"]);
        }
        let weights = self.weights(w.me, Dtype::F32);
        r.t("expertScales", &[2, self.top as i64], Dtype::F32, &weights);
        let (x, ids) = (self.x(w.me), self.ids(w.me));
        let mut want = vec![0.0; 2 * self.h];
        for token in 0..self.tokens() {
            let mut factor: f64 = if self.shared > 0 { 10.0 } else { 0.0 };
            let mut more = 0.0;
            for k in 0..self.top {
                let (w, id) = (weights[token * self.top + k], ids[token * self.top + k]);
                // The constant expert takes twice the token and three times its own values, which are 2.
                (factor, more) = match id.checked_sub(self.experts) {
                    None => (factor + w * (id as f64 + 1.0), more),
                    Some(0) => (factor, more),
                    Some(1) => (factor + w, more),
                    Some(_) => (factor + 2.0 * w, more + 6.0 * w),
                };
            }
            (0..self.h).for_each(|c| want[token * self.h + c] = factor * x[token * self.h + c] + more);
        }
        if self.special {
            r.t("oriXOptional", &[2, h], dtype, &x);
            for (name, v) in [("Alpha1", 2.0), ("Alpha2", 3.0), ("V", 2.0)] {
                r.t(&format!("constExpert{name}Optional"), &[1, h], dtype, &vec![v; self.h]);
            }
        }
        r.loose(2.0);
        if self.normed {
            self.norm(&mut r, w, dtype, &want);
        } else {
            r.out(if self.version > 1 { "xOut" } else { "x" }, &[2, h], want);
        }
        assert!(r.finish());
    }

    /// The sum with a residual, rounded as it is written, and its norm by root mean square.
    fn norm(&self, r: &mut Run, w: &Rank, dtype: Dtype, want: &[f64]) {
        let h = self.h as i64;
        let residual = r.t("residualX", &[2, 1, h], dtype, &whole(2 * self.h, 900 + w.me, -3, 3));
        let gamma = r.t("gamma", &[h], dtype, &whole(self.h, 950, 1, 4));
        r.n("normEps", 1e-6);
        let x: Vec<f64> = want.iter().zip(&residual).map(|(a, b)| a + b).collect();
        let scale =
            |row: &[f64]| 1.0 / (row.iter().map(|v| v * v).sum::<f64>() / self.h as f64 + 1e-6).sqrt();
        let scales: Vec<f64> = x.chunks(self.h).map(scale).collect();
        let y = (0..x.len()).map(|i| x[i] * scales[i / self.h] * gamma[i % self.h]).collect();
        // The norm is that of a sum in bf16.
        r.out("xOut", &[2, 1, h], x).out("yOut", &[2, 1, h], y);
        r.loose(500.0).out_as("rstdOut", &[2, 1, 1], Dtype::F32, scales);
    }
}

/// Runs the settings of a kind of chip; the number of runs.
pub(super) fn run(a3: bool, wrong: &mut Vec<String>) -> usize {
    let plain = Setting {
        ranks: 4,
        experts: 8,
        shared: 0,
        h: 64,
        top: 3,
        eight: false,
        masked: false,
        version: 2,
        special: false,
        normed: false,
    };
    let wide = Setting { h: 1024, ..plain };
    let settings = if a3 {
        vec![
            Setting { ranks: 8, experts: 16, h: 7168, version: 1, ..plain },
            Setting { ranks: 8, experts: 12, shared: 2, h: 7168, version: 1, ..plain },
            Setting { ranks: 2, ..wide },
            Setting { ranks: 6, experts: 8, shared: 2, ..wide },
            Setting { masked: true, ..wide },
            Setting { eight: true, ..wide },
            Setting { version: 3, special: true, ..wide },
            Setting { version: 4, special: true, ranks: 2, ..wide },
            Setting { normed: true, ranks: 2, ..wide },
            Setting { normed: true, version: 3, special: true, ..wide },
        ]
    } else {
        vec![
            plain,
            Setting { version: 4, ..plain },
            Setting { eight: true, ..plain },
            Setting { ranks: 2, masked: true, ..plain },
        ]
    };
    let mut runs = 0;
    for setting in settings {
        // A norm behind the combination is in bf16 only.
        let dtypes: &[Dtype] = if setting.normed { &[Dtype::Bf16] } else { &[Dtype::F16, Dtype::Bf16] };
        for dtype in dtypes.iter().copied() {
            runs += 2;
            let one = |w: Rank| {
                let held = setting.there(&w, dtype);
                let rows = setting.check(&w, &held);
                setting.back(&w, dtype, &held, &rows);
            };
            if let Err(said) = with_ranks(setting.ranks, false, one) {
                wrong.push(format!("tokens to experts in {dtype:?} on {} ranks: {said}", setting.ranks));
            }
        }
    }
    runs
}

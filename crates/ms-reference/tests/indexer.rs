//! The loss of an indexer as PyTorch computes it by upstream's formulas, on both devices.

#![allow(clippy::unwrap_used)] // helpers of a test may fail like the test itself

use ms_core::{DType, Device, Divergence, HeadLayout, IndexerInputs, Result, Sight, Tensor};
use ms_testing::Golden;
use std::collections::BTreeMap;

struct Case<'a> {
    device: &'a Device,
    dtype: DType,
    golden: &'a BTreeMap<String, Golden>,
    /// How far numbers may be apart.
    bound: f64,
}

impl Case<'_> {
    fn given(&self, name: &str) -> Tensor {
        let golden = &self.golden[name];
        let rows: usize = golden.shape[0];
        let shape = [rows, golden.values.len() / rows];
        Tensor::from_reals(self.device.arena(), self.dtype, shape, &golden.values).unwrap()
    }

    fn close(&self, what: &str, got: &Tensor, want: &[f64]) {
        let got = got.to_reals().unwrap();
        assert_eq!(got.len(), want.len(), "{what}");
        for (i, (g, w)) in got.iter().zip(want).enumerate() {
            assert!(
                (g - w).abs() <= self.bound * (1.0 + w.abs()),
                "{what}, {}: element {i}: {g} for {w}",
                self.dtype
            );
        }
    }

    /// One kind of keys; the `heads` of attention have one each or share one.
    fn check(&self, kind: &str, heads: usize, forms: &[(&str, Divergence, bool)]) -> Result<()> {
        let [q, k, iq, ik, iw] = ["q", "k", "iq", "ik", "iw"].map(|n| self.given(&format!("{kind}.{n}")));
        let inputs = IndexerInputs { q: &iq, k: &ik, w: &iw };
        let ((queries, _), (keys, width)) = (q.as_matrix(), k.as_matrix());
        let dim = q.as_matrix().1 / heads;
        let groups = width / dim;
        let layout = HeadLayout { groups, heads_per_group: heads / groups, head_dim: dim };
        // Tokens of an entry.
        let ratio = queries / keys;
        let seen = |t: usize| (t + 1) / ratio;
        let sights: Vec<Sight> = (0..queries).map(|t| Sight { start: 0, seen: seen(t), all: keys }).collect();
        let picked = &self.golden[&format!("{kind}.picks")];
        let picks = self.device.pick_seen(&inputs, &sights, picked.shape[1])?;
        let rows: Vec<f64> = picks.as_slice::<i32>()?.iter().map(|&p| f64::from(p)).collect();
        assert_eq!(rows, picked.values, "{kind}: picks");
        let all = self.device.pick_seen(&inputs, &sights, keys)?;
        for (form, divergence, of_all) in forms {
            let keys_that_count = if *of_all { &all } else { &picks };
            let weights = self.device.attention_weights(&q, &k, layout, keys_that_count, 0.4)?;
            let want = &self.golden[&format!("{kind}.target{}", if *of_all { "_all" } else { "" })];
            self.close(&format!("{kind}, {form}: weights"), &weights, &want.values);
            let factor = 1.0 / queries as f64;
            let (loss, gradients) =
                self.device.indexer_loss(&inputs, keys_that_count, &weights, *divergence, factor)?;
            let want = |name: &str| &self.golden[&format!("{kind}.{form}.{name}")].values;
            let mean = Tensor::from_reals(loss.arena(), self.dtype, [1], &[loss.to_reals()?[0] * factor])?;
            self.close(&format!("{kind}, {form}: loss"), &mean, want("loss"));
            for (name, gradient) in ["dq", "dk", "dw"].into_iter().zip(&gradients) {
                assert!(want(name).iter().any(|d| d.abs() > 1e-2), "{kind}, {form}: {name} is there");
                self.close(&format!("{kind}, {form}: {name}"), gradient, want(name));
            }
        }
        Ok(())
    }
}

#[test]
fn losses_and_gradients_are_those_of_upstreams_formulas() {
    let golden = &ms_testing::read_golden(&ms_testing::golden("ops/indexer.safetensors")).0;
    let devices =
        [(ms_reference::device(), DType::F64, 1e-12), (ms_cpu::device(2).unwrap(), DType::F32, 2e-6)];
    for (device, dtype, bound) in &devices {
        let case = Case { device, dtype: *dtype, golden, bound: *bound };
        let forms = [
            ("mindspeed", Divergence::PICKED, false),
            ("megatron_sparse", Divergence::MEGATRON, false),
            ("megatron_dense", Divergence::MEGATRON, true),
        ];
        case.check("tokens", 4, &forms).unwrap();
        case.check("entries", 4, &[("mindspeed", Divergence::POOLED, false)]).unwrap();
    }
}

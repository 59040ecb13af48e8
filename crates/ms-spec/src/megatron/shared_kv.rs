//! Megatron arguments of layers that attend to keys and values of other layers.

use serde_json::json;

use crate::QkNorm;
use crate::field::Field;
use crate::sizes::{Layer, Mixer};

/// In groups of this many layers, the last uses the keys and values of the one before it (upstream's
/// `HunyuanLargeAttention`).
pub(super) const SHARED: Field = Field::rule(
    |f, c| {
        let Some(share) = f.size("cla_share_factor")?.filter(|&n| n > 1) else { return Ok(()) };
        c.pattern = borrowers(c.layers, share);
        if c.qk_norm == QkNorm::PerHead {
            c.qk_norm = QkNorm::PerHeadAfterRope;
        }
        Ok(())
    },
    |c, w| {
        let first = (0..c.layers).find(|&l| c.layer(l).mixer == Mixer::SharedKv);
        let Some(share) = first.map(|l| l + 1) else { return };
        let mixers = |pattern: &[Layer]| pattern.iter().map(|layer| layer.mixer).collect::<Vec<_>>();
        if mixers(&borrowers(c.layers, share)) == mixers(&c.pattern) {
            w.set("cla_share_factor", json!(share));
            w.set("share_kvstates", json!(true));
        }
    },
);

fn borrowers(layers: usize, share: usize) -> Vec<Layer> {
    let mixer = |l: usize| if (l + 1).is_multiple_of(share) { Mixer::SharedKv } else { Mixer::Attention };
    (0..layers).map(|l| Layer { mixer: mixer(l), ..Layer::default() }).collect()
}

#[cfg(test)]
mod tests {
    use super::super::{from_args, to_args};
    use super::*;
    use crate::{ModelConfig, RopeScaling};

    #[test]
    fn the_last_of_so_many_layers_takes_keys_and_values_as_upstream_counts_them() {
        let own = |share: usize| {
            let args = json!({
                "num_layers": 6, "hidden_size": 8, "num_attention_heads": 2, "ffn_hidden_size": 8, "vocab_size": 10,
                "cla_share_factor": share, "share_kvstates": true, "spec": ["m.hunyuan_spec", "layer_spec"],
            });
            let c = from_args(args.as_object().unwrap()).unwrap();
            assert_eq!((c.rope.base, &c.rope.scaling), (10_000.0, &RopeScaling::Ntk { alpha: 1000.0 }));
            let again = from_args(&to_args(&c)).unwrap();
            assert_eq!(again.pattern, c.pattern);
            (0..6).map(|l| c.layer(l).mixer == Mixer::Attention).collect::<Vec<_>>()
        };
        assert_eq!(own(2), [true, false, true, false, true, false]);
        assert_eq!(own(3), [true, true, false, true, true, false]);
        assert_eq!(own(1), [true; 6]);
        // Two layers that borrow of one, as Hugging Face has them with 3, are beyond that flag.
        let mut c = ModelConfig { layers: 3, ..ModelConfig::default() };
        c.pattern = vec![Layer::default(); 3];
        (c.pattern[1].mixer, c.pattern[2].mixer) = (Mixer::SharedKv, Mixer::SharedKv);
        assert!(!to_args(&c).contains_key("cla_share_factor"));
    }
}

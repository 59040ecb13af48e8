//! The arguments of layers with other mixers than attention of their own.

use serde_json::{Value, json};

use super::hybrid;
use crate::field::Field;
use crate::sizes::{Feed, GatedDelta, Layer, Mamba2, Mixer, Position};
use crate::{ModelConfig, QkNorm};

pub(super) const MIXERS: &[Field] = &[
    SHARED,
    DELTA,
    Field::size("linear_num_key_heads", |c| Some(&mut delta(c)?.key_heads)).needed(),
    Field::size("linear_num_value_heads", |c| Some(&mut delta(c)?.value_heads)).needed(),
    Field::size("linear_key_head_dim", |c| Some(&mut delta(c)?.key_dim)).needed(),
    Field::size("linear_value_head_dim", |c| Some(&mut delta(c)?.value_dim)).needed(),
    Field::size("linear_conv_kernel_dim", |c| Some(&mut delta(c)?.conv)),
    STATES,
    Field::size("mamba_head_dim", |c| Some(&mut states(c)?.head_dim)),
    Field::size("mamba_num_groups", |c| Some(&mut states(c)?.groups)),
    Field::size("mamba_state_dim", |c| Some(&mut states(c)?.state)),
    Field::size("mamba_d_conv", |c| Some(&mut states(c)?.conv)),
    Field::size("mamba_chunk_size", |c| Some(&mut states(c)?.chunk)),
    INNER,
    LETTERS,
];

/// Of so many layers the last takes the keys and values of the one before it (upstream's `HunyuanLargeAttention`).
const SHARED: Field = Field::rule(
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

/// Gated delta nets, and attention in the last layer of every so many.
const DELTA: Field = Field::rule(
    |f, c| {
        let Some(interval) = f.size("full_attention_interval")?.filter(|&n| n > 0) else { return Ok(()) };
        c.gated_delta = Some(GatedDelta { key_heads: 0, value_heads: 0, key_dim: 0, value_dim: 0, conv: 4 });
        c.scores.output_gate = true;
        let layer = |l: usize| Layer {
            mixer: if (l + 1).is_multiple_of(interval) { Mixer::Attention } else { Mixer::GatedDelta },
            ..Layer::default()
        };
        c.pattern = (0..c.layers).map(layer).collect();
        Ok(())
    },
    |c, w| {
        if c.gated_delta.is_some() {
            let first = (0..c.layers).find(|&l| c.layer(l).mixer == Mixer::Attention);
            w.set("full_attention_interval", json!(first.unwrap_or(c.layers) + 1));
        }
    },
);

fn delta(c: &mut ModelConfig) -> Option<&mut GatedDelta> {
    c.gated_delta.as_mut()
}

/// Whether there are Mamba2 layers, with sizes as Megatron assumes them.
const STATES: Field = Field::reading(|f, c| {
    let spec = f.get("spec").map(Value::to_string).unwrap_or_default();
    if f.text("hybrid_override_pattern")?.is_some() || spec.contains("mamba") {
        c.mamba2 = Some(Mamba2 {
            heads: 0,
            head_dim: 64,
            groups: 8,
            state: 128,
            conv: 4,
            chunk: 256,
            bias: false,
            conv_bias: true,
            dt_limit: (0.0, None),
            dt_init: (0.001, 0.1),
            residual_f32: true,
            norm_eps: Mamba2::megatron_norm_eps(),
        });
    }
    Ok(())
});

fn states(c: &mut ModelConfig) -> Option<&mut Mamba2> {
    c.mamba2.as_mut()
}

/// The inner width, which is told, or so many times the stream's.
const INNER: Field = Field::rule(
    |f, c| {
        let hidden = c.hidden;
        if let Some(m) = states(c) {
            let usual = hidden.saturating_mul(f.size("mamba_expand")?.unwrap_or(2));
            m.heads = f.size("mamba_d_ssm")?.unwrap_or(usual) / m.head_dim.max(1);
        }
        Ok(())
    },
    |c, w| {
        if let Some(m) = &c.mamba2 {
            w.set("mamba_d_ssm", json!(m.inner()));
        }
    },
);

/// A letter for each layer of a model with states.
const LETTERS: Field = Field::rule(
    |f, c| {
        if c.mamba2.is_none() {
            return Ok(());
        }
        let layer = |letter| match letter {
            'M' => Ok(Layer { mixer: Mixer::Mamba2, feed: Feed::None, ..Layer::default() }),
            '*' => Ok(Layer { feed: Feed::None, ..Layer::default() }),
            '-' => Ok(Layer { mixer: Mixer::None, ..Layer::default() }),
            other => Err(f.unsupported(format!("hybrid pattern: expected M, * or -, got {other}"))),
        };
        c.pattern = hybrid::letters(f, c.layers)?.chars().map(layer).collect::<crate::Result<_>>()?;
        if !c.has(Mixer::Attention) {
            c.position = Position::None;
            (c.heads, c.groups, c.head_dim) = (0, 0, 0);
        }
        Ok(())
    },
    |c, w| {
        if c.mamba2.is_none() {
            return;
        }
        let letter = |l| match c.layer(l).mixer {
            Mixer::Mamba2 => 'M',
            Mixer::None => '-',
            _ => '*',
        };
        w.set("hybrid_override_pattern", json!((0..c.layers).map(letter).collect::<String>()));
        w.set("is_hybrid_model", json!(true));
    },
);

#[cfg(test)]
mod tests {
    use super::super::{from_args, to_args};
    use super::*;
    use crate::RopeScaling;

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

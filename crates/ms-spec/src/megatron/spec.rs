//! Layer specifications named by `--spec`: MindSpeed-LLM modules whose layers have properties that no flag sets.

use serde_json::{Value, json};

use crate::field::Field;
use crate::fields::Fields;
use crate::sizes::{Attention, Block};
use crate::{ModelConfig, QkNorm};

/// The folder of upstream's modules.
const FOLDER: &str = "mindspeed_llm.tasks.models.spec";

/// Upstream's modules, of MindSpeed-LLM 2.0.0 and master; those that are not looked for below say what flags say, too.
const MODULES: [&str; 16] = [
    "bailing_spec",
    "deepseek4_spec",
    "deepseek_spec",
    "gemma2_spec",
    "grok_spec",
    HUNYUAN,
    LONGCAT,
    "mamba_spec",
    "minicpm_spec",
    MINIMAX,
    "mtp_spec",
    "phi35_moe_spec",
    "plm_spec",
    "qwen2_moe_spec",
    "qwen3_next_spec",
    "qwen3_spec",
];
pub(super) const HUNYUAN: &str = "hunyuan_spec";
const LONGCAT: &str = "longcat_spec";
const MINIMAX: &str = "minimax_spec";

/// Whether the module named by `spec` (the value of `--spec`) is supported: upstream's own, and Megatron's Mamba.
pub fn knows_layers(spec: &Value) -> bool {
    let module = match spec {
        Value::Array(words) => words.first().and_then(Value::as_str),
        other => other.as_str(),
    };
    let last = module.and_then(|module| module.rsplit('.').next());
    last.is_some_and(|last| MODULES.contains(&last) || last == "mamba_layer_specs")
}

/// Whether `--spec` names this module.
pub(super) fn names(f: &Fields<'_>, module: &str) -> bool {
    f.get("spec").is_some_and(|spec| spec.to_string().contains(module))
}

/// What layers of such modules have. Behind all that describes layers.
///
/// # Source
/// MindSpeed-LLM (2026), `mindspeed_llm/tasks/models/spec/longcat_spec.py`: two attentions and two MLPs in addition to the
/// experts; `minimax_spec.py` with `tasks/models/transformer/minimax_attention.py`: norms over whole projections.
pub(super) const SPEC: Field = Field::rule(
    |f, c| {
        if names(f, LONGCAT) {
            c.block = Block::Shortcut;
        }
        if names(f, MINIMAX) && c.qk_norm == QkNorm::PerHead {
            c.qk_norm = QkNorm::WholeProjection;
        }
        Ok(())
    },
    |c, w| {
        if let Some(module) = of(c) {
            w.set("spec", json!([format!("{FOLDER}.{module}"), "layer_spec"]));
        }
    },
);

/// The module whose layers the model has.
fn of(c: &ModelConfig) -> Option<&'static str> {
    match c.block {
        Block::Shortcut => Some(LONGCAT),
        Block::Pre if c.attention == Attention::Grouped && c.qk_norm == QkNorm::WholeProjection => {
            Some(MINIMAX)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::megatron::{from_args, to_args};

    fn of(flags: &Value) -> ModelConfig {
        let mut args = json!({
            "num_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "padded_vocab_size": 32, "swiglu": true,
            "max_position_embeddings": 32, "add_bias_linear": false, "normalization": "RMSNorm", "qk_layernorm": true,
            "position_embedding_type": "rope", "num_experts": 4, "moe_ffn_hidden_size": 16, "moe_router_topk": 2
        });
        args.as_object_mut().unwrap().extend(flags.as_object().unwrap().clone());
        from_args(args.as_object().unwrap()).unwrap()
    }

    #[test]
    fn layers_that_no_flag_describes_are_those_of_their_module() {
        let plain = of(&json!({}));
        assert_eq!((plain.block, plain.qk_norm), (Block::Pre, QkNorm::PerHead));
        let module = |name: &str| json!({"spec": [format!("{FOLDER}.{name}"), "layer_spec"]});
        let shortcut = of(&module(LONGCAT));
        assert_eq!(shortcut.block, Block::Shortcut);
        let said = ModelConfig { mtp: 1, ..shortcut.clone() }.validate().unwrap_err().to_string();
        assert!(said.contains("a model of shortcut blocks has no prediction layers"), "{said}");
        // Two attentions, two MLPs and the experts: more than one of each.
        let count = |c: &ModelConfig| crate::params(c).iter().map(|p| p.shape.numel()).sum::<usize>();
        assert!(count(&shortcut) > count(&plain));
        let whole = of(&module(MINIMAX));
        assert_eq!(whole.qk_norm, QkNorm::WholeProjection);
        assert_eq!(of(&module("qwen3_spec")), plain);
        // And they are written so.
        for model in [shortcut, whole] {
            assert_eq!(from_args(&to_args(&model)).unwrap(), model);
        }
    }

    #[test]
    fn modules_of_ones_own_are_not_known() {
        for (spec, known) in [
            (json!(["mindspeed_llm.tasks.models.spec.deepseek_spec", "layer_spec"]), true),
            (json!(["megatron.core.models.mamba.mamba_layer_specs", "mamba_stack_spec"]), true),
            (json!(["my.own.module", "layer_spec"]), false),
            (json!([]), false),
        ] {
            assert_eq!(knows_layers(&spec), known, "{spec}");
        }
    }
}

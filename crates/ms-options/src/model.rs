//! The model of a checkpoint with flags in place of what it says.

use anyhow::{Result, bail};
use ms_cli::Usage;
use ms_cli::megatron::{Args, flags};
use ms_spec::{ModelConfig, params};
use serde_json::{Map, Value};

/// Groups of the flag table that describe a model.
const MODEL_GROUPS: [&str; 2] = ["Model", "Model families"];

/// How many prediction modules are trained is chosen among those that a model has.
const PREDICTION: [&str; 2] = ["mtp_num_layers", "num_nextn_predict_layers"];

/// Sizes of the vocabulary: [`vocabulary`] reads them.
const VOCABULARY: [&str; 3] = ["vocab_size", "padded_vocab_size", "make_vocab_size_divisible_by"];

/// Flags of the model's groups that say how it is trained.
const OF_TRAINING: [&str; 2] = ["hidden_dropout", "attention_dropout"];

/// Flags that name one number of the model. What else there is of a group must not stand before the one that is given.
pub const SAME_NUMBER: [&[&str]; 14] = [
    &["rotary_base", "rope_theta"],
    &["rope_scaling_beta_fast", "beta_fast"],
    &["rope_scaling_beta_slow", "beta_slow"],
    &["qk_pos_emb_head_dim", "qk_rope_head_dim"],
    &["qk_head_dim", "qk_nope_head_dim"],
    &["rotary_percent", "partial_rotary_factor"],
    &["scale_emb", "embedding_multiplier_scale", "input_embeds_norm"],
    &["dim_model_base", "output_multiplier_scale"],
    &["moe_ffn_hidden_size", "moe_intermediate_size"],
    &["moe_router_num_groups", "n_group"],
    &["moe_router_group_topk", "topk_group"],
    &["moe_router_topk_scaling_factor", "routed_scaling_factor"],
    &["moe_shared_expert_intermediate_size", "n_shared_experts"],
    &["mamba_d_ssm", "mamba_expand"],
];

/// A flag that describes the model: Megatron's name, how it was written, its value.
#[derive(Clone, Debug)]
pub struct Given {
    dest: String,
    flag: String,
    value: Value,
}

impl Given {
    fn new(dest: &str, written: Option<&str>, value: &Value) -> Self {
        // Head's names of flags that it is about to give up.
        let dest = dest.strip_prefix("deprecated_").unwrap_or(dest);
        let flag = written.map_or_else(|| format!("--{}", dest.replace('_', "-")), str::to_owned);
        Self { dest: dest.to_owned(), flag, value: value.clone() }
    }

    /// As it is written, with its value.
    fn written(&self) -> String {
        let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        match &self.value {
            Value::Bool(_) => self.flag.clone(),
            Value::Array(list) => {
                format!("{} {}", self.flag, list.iter().map(text).collect::<Vec<_>>().join(" "))
            }
            value => format!("{} {}", self.flag, text(value)),
        }
    }
}

/// The given flags that describe a model.
fn described(args: &Args) -> Vec<Given> {
    let upstream = args.upstream();
    let of_model = |dest: &str| {
        flags(args.program(), upstream)
            .any(|flag| MODEL_GROUPS.contains(&flag.group) && flag.dest(upstream) == dest)
            && ![&PREDICTION[..], &VOCABULARY, &OF_TRAINING].concat().contains(&dest)
    };
    // The number of layers counts the empty slots.
    let slots = |dest: &str| dest == "noop_layers" && args.given().contains_key("num_layers");
    let given = args.given().iter().filter(|(dest, _)| of_model(dest) || slots(dest));
    given.map(|(dest, value)| Given::new(dest, args.written(dest), value)).collect()
}

/// The model of a checkpoint, `config`, with the given flags in place of what it says, unless `--use-checkpoint-args` says
/// that it wins.
///
/// # Errors
/// A flag whose change Megatron's arguments cannot describe, or that contradicts a weight of the checkpoint.
pub fn beside(args: &Args, config: &ModelConfig) -> Result<ModelConfig> {
    if args.flag("use_checkpoint_args") {
        return Ok(config.clone());
    }
    let given = described(args);
    vocabulary(args, config)?;
    if given.is_empty() { Ok(config.clone()) } else { changed(config, &given) }
}

/// Refuses sizes of the vocabulary that do not hold the model's tokens, or more than its embedding does. Rows behind the last
/// token have no effect, so how many there are is the checkpoint's to say.
fn vocabulary(args: &Args, config: &ModelConfig) -> Result<()> {
    let rows = config.padded_vocab;
    let given = |dest: &str| args.given().contains_key(dest);
    if given("vocab_size")
        && let Some(tokens) = args.size("vocab_size")?
    {
        let own = config.vocab;
        if tokens < own || tokens > rows {
            bail!(Usage(format!(
                "--vocab-size {tokens}: the model of --load has {own} tokens, and its embedding {rows} rows"
            )));
        }
    }
    if given("padded_vocab_size")
        && let Some(padded) = args.size("padded_vocab_size")?
        && padded < config.vocab
    {
        let tokens = config.vocab;
        bail!(Usage(format!("--padded-vocab-size {padded}: the model of --load has {tokens} tokens")));
    }
    Ok(())
}

/// `config` with flags in place of what it says.
///
/// # Errors
/// As [`beside`].
pub fn changed(config: &ModelConfig, given: &[Given]) -> Result<ModelConfig> {
    let all = apply(config, given)?;
    let Some(weight) = contradiction(config, &all) else { return Ok(all) };
    // The flag that by itself does not fit is the one to name.
    for flag in given {
        if let Ok(other) = apply(config, std::slice::from_ref(flag))
            && let Some(weight) = contradiction(config, &other)
        {
            bail!(Usage(format!("{}: {weight}", flag.written())));
        }
    }
    bail!(Usage(format!("{}: {weight}", names(given))))
}

fn names(given: &[Given]) -> String {
    given.iter().map(Given::written).collect::<Vec<_>>().join(", ")
}

/// Name and shape of every weight.
fn shapes(c: &ModelConfig) -> Vec<(String, ms_core::Shape)> {
    params(c).into_iter().map(|p| (p.name, p.shape)).collect()
}

/// The first weight of which a checkpoint of one model and another model differ.
fn contradiction(there: &ModelConfig, wanted: &ModelConfig) -> Option<String> {
    let (there, wanted) = (shapes(there), shapes(wanted));
    let find =
        |list: &[(String, ms_core::Shape)], name: &str| list.iter().find(|(n, _)| n == name).map(|(_, s)| *s);
    for (name, shape) in &wanted {
        match find(&there, name) {
            None => {
                return Some(format!(
                    "the model then has a weight {name} {shape}, which --load does not have"
                ));
            }
            Some(other) if other != *shape => {
                return Some(format!("the weight {name} is then {shape}, that of --load is {other}"));
            }
            Some(_) => {}
        }
    }
    let gone = there.iter().find(|(name, _)| find(&wanted, name).is_none());
    gone.map(|(name, shape)| format!("the model then has no weight {name}, which --load has {shape}"))
}

/// The configuration with arguments in place of what it says: where the arguments of the checkpoint's model and those with
/// the given ones describe different models, the difference is carried over. What Megatron's arguments cannot say of the
/// model stays as it is.
fn apply(config: &ModelConfig, given: &[Given]) -> Result<ModelConfig> {
    let said = ms_spec::megatron::to_args(config);
    let equal = |a: &Value, b: &Value| a == b || a.as_f64().is_some_and(|a| b.as_f64() == Some(a));
    if given.iter().all(|g| said.get(&g.dest).is_some_and(|own| equal(own, &g.value))) {
        return Ok(config.clone());
    }
    let read = |map: &Map<String, Value>| -> std::result::Result<ModelConfig, ms_spec::Error> {
        let c = config;
        let whole = ms_spec::megatron::from_args(map)?;
        Ok(ModelConfig { family: c.family, bos: c.bos, eos: c.eos.clone(), dtype: c.dtype, ..whole })
    };
    let refused = |what: &str| {
        let names = names(given);
        Usage(format!(
            "{names}: flags cannot describe the {what}model of --load, so they cannot change it; leave it out"
        ))
    };
    let plain = serde_json::to_value(read(&said).map_err(|_| refused(""))?)?;
    let mut with = said;
    for group in SAME_NUMBER.iter().filter(|group| given.iter().any(|g| group.contains(&g.dest.as_str()))) {
        with.retain(|dest, _| !group.contains(&dest.as_str()));
    }
    with.extend(given.iter().map(|g| (g.dest.clone(), g.value.clone())));
    let other = serde_json::to_value(read(&with).map_err(|e| Usage(format!("{}: {e}", names(given))))?)?;
    let mut target = serde_json::to_value(config)?;
    carry(&plain, &other, &mut target).map_err(|field| refused(&format!("{field} of the ")))?;
    let changed: ModelConfig = serde_json::from_value(target)?;
    Ok(changed.validate().map_err(|e| Usage(format!("{}: {e}", names(given))))?)
}

/// Where `other` differs from `plain`, `target` gets `other`'s value, if it had `plain`'s; else the field's name comes back.
fn carry(plain: &Value, other: &Value, target: &mut Value) -> std::result::Result<(), String> {
    let (Value::Object(a), Value::Object(b), Value::Object(t)) = (plain, other, &mut *target) else {
        if plain == other {
            return Ok(());
        }
        if plain == target {
            *target = other.clone();
            return Ok(());
        }
        return Err(String::new());
    };
    for (key, value) in b {
        let (before, held) =
            (a.get(key).unwrap_or(&Value::Null), t.entry(key.clone()).or_insert(Value::Null));
        carry(before, value, held).map_err(|inner| match inner.as_str() {
            "" => key.clone(),
            inner => format!("{key}.{inner}"),
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test stops at an unsound input
    use super::*;
    use serde_json::json;

    fn sample(name: &str) -> ModelConfig {
        let path = ms_testing::golden_model(name).unwrap().join("config.json");
        ms_spec::hf::read_config(&ms_spec::hf::parse_json(&std::fs::read_to_string(path).unwrap()).unwrap())
            .unwrap()
    }

    fn given(pairs: &Value) -> Vec<Given> {
        pairs.as_object().unwrap().iter().map(|(dest, value)| Given::new(dest, None, value)).collect()
    }

    #[test]
    fn flags_win_and_the_rest_stays() {
        let config = sample("minicpm");
        let other = changed(&config, &given(&json!({"rotary_base": 50000, "sliding_window": 9}))).unwrap();
        assert_eq!((other.rope.base, other.sliding_window), (50000.0, Some(9)));
        assert_eq!((&other.scales, other.family, &other.eos), (&config.scales, config.family, &config.eos));
    }

    #[test]
    fn what_flags_cannot_say_of_a_model_stays_and_the_rest_changes() {
        // Norms of outputs alone and over whole projections: no flag says so.
        let config = sample("olmo2");
        let other =
            changed(&config, &given(&json!({"norm_epsilon": 0.5, "hidden_size": config.hidden}))).unwrap();
        assert_eq!(other, ModelConfig { norm_eps: 0.5, ..config.clone() });
        let refused = changed(&config, &given(&json!({"post_norm": true}))).unwrap_err().to_string();
        assert!(
            refused.starts_with("--post-norm: flags cannot describe the block of the model"),
            "{refused}"
        );
    }

    #[test]
    fn what_contradicts_a_weight_is_named_with_it() {
        let config = sample("aquila");
        for (flags, says) in [
            (json!({"num_layers": 7}), "--num-layers 7: the model then has a weight decoder.layers.3."),
            (json!({"num_layers": 1}), "--num-layers 1: the model then has no weight decoder.layers.1."),
            (
                json!({"ffn_hidden_size": 64}),
                "--ffn-hidden-size 64: the weight decoder.layers.0.mlp.linear_fc1.weight is then",
            ),
            (
                json!({"qk_layernorm": true, "norm_epsilon": 1e-6}),
                "--qk-layernorm: the model then has a weight",
            ),
        ] {
            let said = changed(&config, &given(&flags)).unwrap_err().to_string();
            assert!(said.starts_with(says), "{said}");
        }
    }

    #[test]
    fn every_sample_changes_by_a_flag_and_by_nothing_else() {
        for name in ms_testing::golden_models() {
            let config = sample(&name);
            let said = ms_spec::megatron::to_args(&config);
            let own = ["num_layers", "hidden_size", "norm_epsilon", "num_attention_heads", "rotary_base"];
            let own = own.map(|dest| Given::new(dest, None, &said[dest]));
            assert_eq!(changed(&config, &own).unwrap(), config, "{name}");
            let other = changed(&config, &given(&json!({"norm_epsilon": 0.25})));
            // No argument of Megatron describes these mixers.
            if config.mamba3.is_some() {
                let said = other.unwrap_err().to_string();
                assert!(said.starts_with("--norm-epsilon 0.25: flags cannot describe the model"), "{said}");
                continue;
            }
            let mut want = ModelConfig { norm_eps: 0.25, ..config };
            if let Some(m) =
                want.mamba2.as_mut().filter(|m| m.norm_eps != ms_spec::Mamba2::megatron_norm_eps())
            {
                // Of a pure Mamba2 it is one epsilon.
                m.norm_eps = other.as_ref().unwrap().mamba2.as_ref().unwrap().norm_eps;
            }
            assert_eq!(other.unwrap(), want, "{name}");
        }
    }

    #[test]
    fn empty_slots_are_no_layers() {
        let config = sample("aquila");
        let slots = given(&json!({"num_layers": 5, "noop_layers": "0,4"}));
        assert_eq!(changed(&config, &slots).unwrap(), config);
    }

    #[test]
    fn every_name_of_a_number_changes_it() {
        for (name, flags) in [
            ("qwen3_moe", json!({"moe_intermediate_size": 9999})),
            ("qwen3_moe", json!({"moe_ffn_hidden_size": 9999})),
            ("deepseek_v2", json!({"routed_scaling_factor": 7.5})),
            ("deepseek_v2", json!({"deprecated_routed_scaling_factor": 7.5})),
            ("deepseek_v2", json!({"topk_group": 1})),
            ("deepseek_v2", json!({"n_shared_experts": 5})),
            ("minicpm", json!({"embedding_multiplier_scale": 3.0})),
            ("minicpm", json!({"output_multiplier_scale": 3.0})),
            ("gemma", json!({"scale_emb": 3.0})),
            ("aquila", json!({"rope_theta": 5e5})),
            ("deepseek_v2", json!({"qk_head_dim": 9})),
        ] {
            if ms_testing::golden_model(name).is_none() {
                continue; // beside the project
            }
            let config = sample(name);
            // Another model, or a contradiction that is named.
            match changed(&config, &given(&flags)) {
                Ok(other) => assert_ne!(other, config, "{name} {flags}"),
                Err(e) => assert!(e.to_string().starts_with("--"), "{name} {flags}: {e}"),
            }
        }
    }
}

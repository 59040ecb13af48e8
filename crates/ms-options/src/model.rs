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

/// Sizes of the vocabulary: rows behind the last token have no effect, so any that hold the checkpoint's are right.
const VOCABULARY: [&str; 3] = ["vocab_size", "padded_vocab_size", "make_vocab_size_divisible_by"];

/// The given flags that describe a model.
fn described(args: &Args) -> Map<String, Value> {
    let upstream = args.upstream();
    let of_model = |dest: &str| {
        flags(args.program(), upstream)
            .any(|flag| MODEL_GROUPS.contains(&flag.group) && flag.dest(upstream) == dest)
            && !PREDICTION.contains(&dest)
            && !VOCABULARY.contains(&dest)
    };
    let given = args.given().iter().filter(|(dest, _)| of_model(dest));
    given.map(|(dest, value)| (dest.clone(), value.clone())).collect()
}

/// The model of a checkpoint, `config`, with the given flags in place of what it says, unless `--use-checkpoint-args` says
/// that it wins.
///
/// # Errors
/// A flag whose change Megatron's arguments cannot describe, or that contradicts a weight of the checkpoint.
pub fn beside(args: &Args, config: &ModelConfig) -> Result<ModelConfig> {
    let rows = config.padded_vocab;
    if args.given().contains_key("vocab_size")
        && let Some(tokens) = args.size("vocab_size")?
        && tokens > rows
    {
        bail!(Usage(format!("--vocab-size {tokens}: the embedding of --load has {rows} rows")));
    }
    let given = described(args);
    if given.is_empty() || args.flag("use_checkpoint_args") {
        return Ok(config.clone());
    }
    changed(config, &given)
}

/// `config` with arguments of Megatron in place of what it says.
///
/// # Errors
/// As [`beside`].
pub fn changed(config: &ModelConfig, given: &Map<String, Value>) -> Result<ModelConfig> {
    let all = apply(config, given)?;
    if shapes(&all) == shapes(config) {
        return Ok(all);
    }
    // The flag that by itself does not fit is the one to name.
    for (dest, value) in given {
        let alone = Map::from_iter([(dest.clone(), value.clone())]);
        if let Ok(other) = apply(config, &alone)
            && let Some(weight) = contradiction(config, &other)
        {
            bail!(Usage(format!("{}: {weight}", written(dest, value))));
        }
    }
    let weight = contradiction(config, &all).unwrap_or_default();
    let names: Vec<String> = given.iter().map(|(dest, value)| written(dest, value)).collect();
    bail!(Usage(format!("{}: {weight}", names.join(", "))))
}

/// A flag as it is written, with its value.
fn written(dest: &str, value: &Value) -> String {
    let flag = format!("--{}", dest.replace('_', "-"));
    match value {
        Value::Bool(_) => flag,
        Value::String(text) => format!("{flag} {text}"),
        other => format!("{flag} {other}"),
    }
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
fn apply(config: &ModelConfig, given: &Map<String, Value>) -> Result<ModelConfig> {
    let said = ms_spec::megatron::to_args(config);
    let equal = |a: &Value, b: &Value| a == b || a.as_f64().is_some_and(|a| b.as_f64() == Some(a));
    if given.iter().all(|(dest, value)| said.get(dest).is_some_and(|own| equal(own, value))) {
        return Ok(config.clone());
    }
    let read = |map: &Map<String, Value>| -> Result<Value> {
        let whole = ms_spec::megatron::from_args(map).map_err(|e| Usage(e.to_string()))?;
        let c = config;
        let whole = ModelConfig { family: c.family, bos: c.bos, eos: c.eos.clone(), dtype: c.dtype, ..whole };
        Ok(serde_json::to_value(whole)?)
    };
    let plain = read(&said)?;
    let mut with = said;
    with.extend(given.clone());
    let other = read(&with)?;
    let mut target = serde_json::to_value(config)?;
    if let Err(field) = carry(&plain, &other, &mut target) {
        let names: Vec<String> = given.iter().map(|(dest, value)| written(dest, value)).collect();
        bail!(Usage(format!(
            "{}: flags cannot describe the {field} of the model of --load, so they cannot change it; leave it out",
            names.join(", ")
        )));
    }
    let changed: ModelConfig = serde_json::from_value(target)?;
    Ok(changed.validate().map_err(|e| Usage(e.to_string()))?)
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

    fn given(pairs: &Value) -> Map<String, Value> {
        pairs.as_object().unwrap().clone()
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
        assert!(refused.starts_with("--post-norm: flags cannot describe the block"), "{refused}");
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
    fn every_sample_stays_itself_under_its_own_arguments() {
        for name in ms_testing::golden_models() {
            let config = sample(&name);
            let said = ms_spec::megatron::to_args(&config);
            let alone = |dest: &str| Map::from_iter([(dest.to_owned(), said[dest].clone())]);
            for dest in ["num_layers", "hidden_size", "norm_epsilon", "num_attention_heads", "rotary_base"] {
                assert_eq!(changed(&config, &alone(dest)).unwrap(), config, "{name} {dest}");
            }
        }
    }
}

//! Flags of models that describe nothing of the model at hand: it is the same whatever they say.

use crate::model::{Given, ModelFlags, changed};
use ms_spec::ModelConfig;
use serde_json::{Map, Number, Value};

/// Arguments of routers that training reads beside the model.
const OF_TRAINING: [&str; 2] = ["moe_router_load_balancing_type", "moe_input_jitter_eps"];

/// Values of the same kind that say something else; `None`: nothing is said.
fn others(value: &Value) -> Vec<Option<Value>> {
    let mut all = vec![None];
    match value {
        Value::Number(number) => {
            if let Some(n) = number.as_u64() {
                all.extend([n + 1, 2 * n, 1, n.saturating_sub(1)].map(|n| Some(n.into())));
            } else if let Some(x) = number.as_f64() {
                let floats = [2.0 * x, x + 0.5, 0.5 * x].map(|x| Number::from_f64(x).map(Value::Number));
                all.extend(floats.into_iter().filter(Option::is_some));
            }
        }
        Value::Bool(on) => all.push(Some((!on).into())),
        Value::String(_) => all.extend(["1", "no such word"].map(|word| Some(word.into()))),
        Value::Array(items) => {
            all.push(Some(items.iter().chain(items).cloned().collect()));
            let each = items.iter().map(|item| others(item).pop().flatten().unwrap_or(Value::Null));
            all.push(Some(each.collect()));
        }
        Value::Null | Value::Object(_) => {}
    }
    all
}

/// Whether `make` makes `model` of every other value than `value`; what it refuses is not the same.
fn same(model: &ModelConfig, value: &Value, make: impl Fn(Option<Value>) -> Option<ModelConfig>) -> bool {
    let mut others = others(value).into_iter().filter(|other| other.as_ref() != Some(value));
    others.all(|other| make(other).as_ref() == Some(model))
}

impl ModelFlags {
    /// Says which of the given flags describe nothing of `model`, which was made of the arguments `args`; of those in `said`
    /// something else was said.
    pub fn say_idle(&self, model: &ModelConfig, args: &Map<String, Value>, said: &[&str]) {
        let make = |dest: &str, value: Option<Value>| {
            let mut args = args.clone();
            match value {
                Some(value) => args.insert(dest.to_owned(), value),
                None => args.remove(dest),
            };
            ms_spec::megatron::from_args(&args).ok()
        };
        // What else was set of the model is the same in all.
        let Ok(plain) = ms_spec::megatron::from_args(args) else { return };
        let idle = |given: &&Given| {
            let value = args.get(&given.dest);
            value.is_some_and(|value| same(&plain, value, |other| make(&given.dest, other)))
        };
        self.say(model, said, idle);
    }

    /// [`ModelFlags::say_idle`] of flags beside a checkpoint's `config`, that make `model` of it.
    pub(crate) fn say_idle_beside(&self, config: &ModelConfig, model: &ModelConfig) {
        let idle = |given: &&Given| {
            let make = |value: Option<Value>| {
                let value = value?;
                let with = |g: &Given| match g.dest == given.dest {
                    true => Given { value: value.clone(), ..g.clone() },
                    false => g.clone(),
                };
                changed(config, &self.given().iter().map(with).collect::<Vec<_>>()).ok()
            };
            // Left out it may be what the checkpoint says anyway.
            let mut others = others(&given.value).into_iter().flatten().filter(|other| *other != given.value);
            others.all(|other| make(Some(other)).as_ref() == Some(model))
        };
        self.say(model, &[], idle);
    }

    fn say(&self, model: &ModelConfig, said: &[&str], idle: impl Fn(&&Given) -> bool) {
        let read = |dest: &str| said.contains(&dest) || (model.moe.is_some() && OF_TRAINING.contains(&dest));
        for given in self.given().iter().filter(|given| !read(&given.dest)).filter(idle) {
            tracing::warn!("{} changes nothing: the model is the same whatever it says", given.flag);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test stops at an unsound input
    use super::same;
    use serde_json::{Map, Value, json};

    #[test]
    fn what_is_read_of_a_model_is_told_from_what_is_not() {
        let args = json!({
            "num_layers": 2, "hidden_size": 16, "ffn_hidden_size": 64, "num_attention_heads": 2, "kv_channels": 8,
            "padded_vocab_size": 32, "max_position_embeddings": 32, "num_query_groups": 2, "swiglu": true,
            "moe_layer_freq": [1, 0], "index_topk_pattern": "FS", "mamba_state_dim": 16, "rotary_base": 10_000,
            "short_factor": "1,2", "position_embedding_type": "rope", "norm_epsilon": 1e-5, "noop_layers": "1"
        });
        let args: &Map<String, Value> = args.as_object().unwrap();
        let plain = ms_spec::megatron::from_args(args).unwrap();
        let idle = |dest: &str| {
            same(&plain, &args[dest], |value| {
                let mut args = args.clone();
                args.remove(dest);
                args.extend(value.map(|value| (dest.to_owned(), value)));
                ms_spec::megatron::from_args(&args).ok()
            })
        };
        let found: Vec<&str> = args.keys().map(String::as_str).filter(|dest| idle(dest)).collect();
        assert_eq!(
            found,
            ["index_topk_pattern", "mamba_state_dim", "moe_layer_freq", "num_query_groups", "short_factor"]
        );
    }
}

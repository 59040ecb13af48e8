//! Idle flags: model flags that do not affect the model at hand, which is the same whatever they say.

use crate::given::{Given, same_number};
use crate::model::{ModelFlags, apply};
use crate::versions;
use ms_spec::ModelConfig;
use ms_spec::megatron::ROUTER_KIND;
use serde_json::{Map, Number, Value};
use std::collections::BTreeMap;

/// Arguments that are read outside the model: of routers, if there are experts.
const OF_TRAINING: [&str; 2] = [ROUTER_KIND, "moe_input_jitter_eps"];
/// Names a module, most of which repeat what flags say, and a way to compute frequencies, which only distinguishes rotary
/// shares.
const SAY_LITTLE: [&str; 2] = ["spec", "longrope_freqs_type"];

/// What to report instead of what was given, by Megatron's names; `None`: nothing.
type Overrides<'a> = BTreeMap<&'a str, Option<Value>>;

/// Other values that a flag could have; `None`: it is not given.
fn others(value: &Value, choices: &[&str]) -> Vec<Option<Value>> {
    let mut all = vec![None];
    match value {
        Value::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(n), _) => {
                let beside =
                    [n.saturating_sub(1), n.saturating_add(1), n.saturating_add(2), n.saturating_mul(2)];
                all.extend([0, 1, 2, 3].into_iter().chain(beside).map(|n| Some(n.into())));
            }
            (None, Some(x)) => {
                let floats = [2.0 * x, x + 0.5, 0.5 * x, 1.0].into_iter().filter_map(Number::from_f64);
                all.extend(floats.map(|x| Some(Value::Number(x))));
            }
            (None, None) => {}
        },
        Value::Bool(on) => all.push(Some((!on).into())),
        Value::String(_) => {
            let words = choices.iter().chain(&["0", "1", "2", "1,2", "no such word"]);
            all.extend(words.map(|&word| Some(word.into())));
        }
        Value::Array(items) => {
            all.push(Some(items.iter().chain(items).cloned().collect()));
            let each = items.iter().map(|item| others(item, choices).pop().flatten().unwrap_or(Value::Null));
            all.push(Some(each.collect()));
        }
        Value::Null | Value::Object(_) => {}
    }
    all.retain(|other| other.as_ref() != Some(value));
    all
}

impl ModelFlags {
    /// Reports which of the given flags describe no part of `model`, which was built from the arguments `args`. Flags in
    /// `said`, about which something else was reported, are left out.
    pub fn say_idle(&self, model: &ModelConfig, args: &Map<String, Value>, said: &[&str]) {
        let read = |dest: &str| said.contains(&dest) || !args.contains_key(dest);
        self.say(model, read, |instead| {
            let mut args = args.clone();
            for (dest, value) in instead {
                match value.as_ref().or_else(|| self.default_of(dest)) {
                    Some(value) => args.insert((*dest).to_owned(), value.clone()),
                    None => args.remove(*dest),
                };
            }
            ms_spec::megatron::from_args_of(model.family, &args).ok()
        });
    }

    /// [`ModelFlags::say_idle`] for flags on top of a checkpoint's `config`, which make `model`; those that are `left_out`
    /// have been reported.
    pub(crate) fn say_idle_beside(&self, config: &ModelConfig, model: &ModelConfig, left_out: &[Given]) {
        self.say(
            model,
            |dest| left_out.iter().any(|out| out.dest == dest),
            |instead| {
                let others = self.given().iter().filter_map(|given| match instead.get(&*given.dest) {
                    None => Some(given.clone()),
                    Some(None) => None,
                    Some(Some(value)) => Some(Given { value: value.clone(), ..given.clone() }),
                });
                let (others, _) = versions::given(self.upstream, &others.collect::<Vec<_>>(), config);
                apply(config, &others).ok()
            },
        );
    }

    fn say(
        &self,
        model: &ModelConfig,
        read: impl Fn(&str) -> bool,
        make: impl Fn(&Overrides<'_>) -> Option<ModelConfig>,
    ) {
        let of_training =
            |dest: &str| SAY_LITTLE.contains(&dest) || (model.moe.is_some() && OF_TRAINING.contains(&dest));
        let asked: Vec<&Given> =
            self.given().iter().filter(|given| !read(&given.dest) && !of_training(&given.dest)).collect();
        for given in idle(&asked, |given| self.choices_of(&given.dest), make) {
            tracing::warn!("{} has no effect: the model is the same with any value of it", given.flag);
        }
    }
}

/// Those of `asked` with which `make` makes the same model whatever their values, also without the others, and without any
/// that sets the same value: of two flags that say the same, neither is idle.
fn idle<'a>(
    asked: &[&'a Given],
    choices: impl Fn(&Given) -> Vec<&'static str>,
    make: impl Fn(&Overrides<'_>) -> Option<ModelConfig>,
) -> Vec<&'a Given> {
    let still = |given: &Given, without: &[&Given]| {
        let away = without.iter().filter(|other| other.dest != given.dest);
        let mut instead: Overrides<'_> = away.map(|other| (&*other.dest, None)).collect();
        let Some(plain) = make(&instead) else { return false };
        others(&given.value, &choices(given)).into_iter().all(|other| {
            instead.insert(&given.dest, other);
            make(&instead).as_ref() == Some(&plain)
        })
    };
    let alone: Vec<&Given> = asked.iter().copied().filter(|given| still(given, &[])).collect();
    let names_the_same = |one: &Given, other: &Given| {
        same_number().any(|group| group.contains(&&*one.dest) && group.contains(&&*other.dest))
    };
    let idle = |given: &&'a Given| {
        let others = asked.iter().copied().filter(|other| names_the_same(given, other));
        still(given, &alone.iter().copied().chain(others).collect::<Vec<_>>())
    };
    alone.iter().copied().filter(idle).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test stops at an unsound input
    use super::idle;
    use crate::given::Given;
    use serde_json::{Value, json};

    /// The idle ones of some arguments.
    fn of(args: &Value) -> Vec<String> {
        let args = args.as_object().unwrap();
        let given: Vec<Given> = args.iter().map(|(dest, value)| Given::new(dest, None, value)).collect();
        let asked: Vec<&Given> = given.iter().collect();
        let choices = |given: &Given| match &*given.dest {
            "moe_router_score_function" => vec!["softmax", "sigmoid", "sqrtsoftplus"],
            _ => Vec::new(),
        };
        let found = idle(&asked, choices, |instead| {
            let mut args = args.clone();
            for (dest, value) in instead {
                match value {
                    Some(value) => args.insert((*dest).to_owned(), value.clone()),
                    None => args.remove(*dest),
                };
            }
            ms_spec::megatron::from_args(&args).ok()
        });
        let mut found: Vec<String> = found.into_iter().map(|given| given.dest.clone()).collect();
        found.sort();
        found
    }

    #[test]
    fn what_is_read_of_a_model_is_told_from_what_is_not() {
        let dense = json!({
            "num_layers": 2, "hidden_size": 16, "ffn_hidden_size": 64, "num_attention_heads": 2, "kv_channels": 8,
            "padded_vocab_size": 32, "max_position_embeddings": 32, "num_query_groups": 2, "swiglu": true,
            "moe_layer_freq": [1, 0], "index_topk_pattern": "FS", "mamba_state_dim": 16, "rotary_base": 10_000,
            "short_factor": "1,2", "position_embedding_type": "rope", "norm_epsilon": 1e-5
        });
        let idle =
            ["index_topk_pattern", "mamba_state_dim", "moe_layer_freq", "num_query_groups", "short_factor"];
        assert_eq!(of(&dense), idle);
    }

    #[test]
    fn values_that_mean_what_silence_means_are_read_all_the_same() {
        // As upstream's scripts have them: layers that are all of experts, a score that the type of router implies, positions
        // and types of routers that are said twice.
        let experts = json!({
            "num_layers": 4, "hidden_size": 16, "ffn_hidden_size": 64, "num_attention_heads": 2, "padded_vocab_size": 32,
            "max_position_embeddings": 32, "num_experts": 4, "moe_router_topk": 2, "first_k_dense_replace": -1,
            "moe_layer_freq": 1, "moe_router_load_balancing_type": "noaux_tc", "moe_router_score_function": "sigmoid",
            "position_embedding_type": "rope", "use_rotary_position_embeddings": true
        });
        assert_eq!(of(&experts), [""; 0]);
        let twice = json!({
            "num_layers": 4, "hidden_size": 16, "ffn_hidden_size": 64, "num_attention_heads": 2, "padded_vocab_size": 32,
            "max_position_embeddings": 32, "num_experts": 4, "router_gating_in_fp32": true, "moe_router_dtype": "fp32"
        });
        assert_eq!(of(&twice), [""; 0]);
    }
}

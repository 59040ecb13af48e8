//! The model of a checkpoint, with flags overriding what it says.

use crate::flags;
use crate::given::{Given, Known, plain, same_number};
use crate::versions;
use anyhow::Result;
use ms_cli::megatron::{Entry, Given as Asked, Options, Reader, Upstream};
use ms_cli::{Usage, refuse};
use ms_spec::{Mixer, ModelConfig, Position, params};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};

options! {
    /// Sizes of the vocabulary.
    struct Vocabulary in "Model" {
        tokens: Asked<Option<usize>> = "--vocab-size", "vocabulary size of the tokenizer, before padding", range = "[1,268435456]";
        rows: Asked<Option<usize>> = "--padded-vocab-size", "rows of the embedding table, instead of padding --vocab-size", range = "[1,268435456]";
    }
}

options! {
    /// What counts the layers beside their number.
    pub(crate) struct Slots in "Parallelism" {
        pub(crate) noop: Option<String> = "--noop-layers", "positions of empty layers among the layers, such as 0,7", group = "Pipeline";
    }
}

/// The flags that describe a model.
#[derive(Clone, Debug)]
pub struct ModelFlags {
    /// Megatron's names with values, given ones and defaults.
    values: Map<String, Value>,
    /// Those that were given, in their order.
    given: Vec<Given>,
    /// The flags behind Megatron's names.
    known: BTreeMap<String, Known>,
    /// How any flag of the line was written.
    written: BTreeMap<String, &'static str>,
    vocabulary: Vocabulary,
    pub(crate) slots: Slots,
    pub(crate) upstream: Upstream,
}

impl Options for ModelFlags {
    fn entries() -> Vec<Entry> {
        [flags::model(), Vocabulary::entries(), Slots::entries()].concat()
    }

    fn read(from: &Reader<'_>) -> std::result::Result<Self, Usage> {
        let mut values = Map::new();
        let (mut names, mut known) = (BTreeSet::new(), BTreeMap::new());
        let upstream = from.upstream();
        for entry in flags::model() {
            let (dest, value) = from.named::<Option<Value>>(entry.flag)?;
            names.insert(dest);
            if let Some(flag) = from.args().line().find(entry.flag, upstream) {
                let (default, choices) = (flag.default(upstream).clone(), flag.choices(upstream));
                known.insert(plain(dest).to_owned(), Known { flag: entry.flag, default, choices });
            }
            values.extend(value.map(|value| (plain(dest).to_owned(), value)));
        }
        if let Some(spec) = values.get("spec").filter(|spec| !ms_spec::megatron::knows_layers(spec)) {
            refuse!(
                "--spec: expected a module of mindspeed_llm.tasks.models.spec or megatron.core.models.mamba, found {spec}: layers of \
                 one's own are Python, which this program does not run"
            );
        }
        let args = from.args();
        let written: BTreeMap<String, &'static str> =
            args.written_flags().map(|(dest, flag)| (plain(&dest).to_owned(), flag)).collect();
        // The number of layers counts the empty slots.
        let slots = |dest: &str| dest == "noop_layers" && written.contains_key("num_layers");
        let given = args.record().iter().filter(|(dest, _)| names.contains(dest.as_str()) || slots(dest));
        let given =
            given.map(|(dest, value)| Given::new(dest, written.get(plain(dest)).copied(), value)).collect();
        Ok(Self {
            values,
            given,
            known,
            written,
            vocabulary: Options::read(from)?,
            slots: Options::read(from)?,
            upstream,
        })
    }
}

impl ModelFlags {
    /// The flags that describe the model, as they were given.
    pub(crate) fn given(&self) -> &[Given] {
        &self.given
    }

    /// How the flag with Megatron's name `dest` was written, if it was given.
    pub fn written(&self, dest: &str) -> Option<&'static str> {
        self.written.get(dest).copied()
    }

    /// The flag with Megatron's name `dest`, given or not.
    pub fn flag_of(&self, dest: &str) -> Option<&'static str> {
        self.known.get(dest).map(|known| known.flag)
    }

    /// Its value when it is not given, if it has one.
    pub(crate) fn default_of(&self, dest: &str) -> Option<&Value> {
        self.known.get(dest).map(|known| &known.default).filter(|value| !value.is_null())
    }

    /// The words that it can be; empty: any.
    pub(crate) fn choices_of(&self, dest: &str) -> Vec<&'static str> {
        self.known.get(dest).map_or_else(Vec::new, |known| known.choices.clone())
    }

    /// The number that a flag with Megatron's name `dest` was given.
    pub fn number(&self, dest: &str) -> Option<u64> {
        self.values.get(dest).filter(|_| self.written.contains_key(dest)).and_then(Value::as_u64)
    }

    /// The word of a flag with Megatron's name `dest`, given or by default.
    pub fn word(&self, dest: &str) -> Option<&str> {
        self.values.get(dest).and_then(Value::as_str)
    }

    /// The share of a flag with Megatron's name `dest`, given or by default.
    pub fn share(&self, dest: &str) -> Option<f64> {
        self.values.get(dest).and_then(Value::as_f64)
    }

    /// Whether flags describe the model whole, as upstream's do, and not single numbers of a checkpoint's.
    pub fn describe_all(&self) -> bool {
        ["num_layers", "hidden_size"].iter().any(|dest| self.written.contains_key(*dest))
    }

    /// Megatron's arguments as the flags say them, given or by default.
    pub fn values(&self) -> Map<String, Value> {
        let mut values = self.values.clone();
        let has = |dest: &str| self.written.contains_key(dest);
        for group in same_number().filter(|group| group.iter().any(|dest| has(dest))) {
            values.retain(|dest, _| !group.contains(&dest.as_str()) || has(dest));
        }
        if let Some(noop) = self.noop_layers() {
            values.insert("noop_layers".into(), noop.into());
        }
        values
    }

    /// `--noop-layers` as it was given.
    pub fn noop_layers(&self) -> Option<&str> {
        self.slots.noop.as_deref()
    }

    /// `--vocab-size`, if it was given.
    pub fn tokens(&self) -> Option<usize> {
        self.vocabulary.tokens.given().copied().flatten()
    }

    /// `--padded-vocab-size`, if it was given.
    pub fn rows(&self) -> Option<usize> {
        self.vocabulary.rows.given().copied().flatten()
    }

    /// The model of a checkpoint, `config`, with the given flags in place of what it says, unless it is to win. Its tokenizer has
    /// `ends` tokens beyond `--vocab-size`.
    ///
    /// # Errors
    /// A flag whose change Megatron's arguments cannot describe, or that contradicts a weight of the checkpoint.
    pub fn beside(&self, config: &ModelConfig, checkpoint_wins: bool, ends: usize) -> Result<ModelConfig> {
        if checkpoint_wins {
            return Ok(config.clone());
        }
        self.check_vocabulary(config, ends)?;
        let (given, left_out) = versions::given(self.upstream, &self.given, config);
        versions::say_left_out(&self.given, &left_out);
        let model = if given.is_empty() { config.clone() } else { changed(config, &given)? };
        self.say_idle_beside(config, &model, &left_out);
        self.check_positions(&model)?;
        Ok(model)
    }

    /// Refuses positions that were asked for and that `model`, which the flags made, does not have.
    ///
    /// # Errors
    /// If there are such, with what stands against them.
    pub fn check_positions(&self, model: &ModelConfig) -> Result<()> {
        let asked = self.written("position_embedding_type").and(self.values.get("position_embedding_type"));
        let (kind, wanted) = match asked.and_then(Value::as_str) {
            Some(kind @ "learned_absolute") => (kind, Position::Learned),
            Some(kind @ "alibi") => (kind, Position::Alibi),
            _ => return Ok(()),
        };
        if model.position == wanted {
            return Ok(());
        }
        let against = match self.written("use_rotary_position_embeddings") {
            Some(flag) => format!("cannot be combined with {flag}"),
            None if !model.has(Mixer::Attention) => "a model without attention has no positions".into(),
            None => format!("the model has others ({:?})", model.position),
        };
        refuse!("--position-embedding-type {kind}: {against}")
    }

    /// Refuses a flag that makes a weight which a checkpoint, of the model `there`, does not have so; `wanted` is the model that
    /// all flags describe. How many rows the vocabulary has is no matter.
    ///
    /// # Errors
    /// With the flag, the weight and both shapes.
    pub fn check_loaded(&self, there: &ModelConfig, wanted: &ModelConfig) -> Result<()> {
        let rows = |c: &ModelConfig| ModelConfig {
            vocab: there.vocab,
            padded_vocab: there.padded_vocab,
            ..c.clone()
        };
        if lacking(there, &rows(wanted)).is_none() {
            return Ok(());
        }
        for flag in &self.given {
            if let Ok(other) = apply(there, std::slice::from_ref(flag))
                && let Some(weight) = lacking(there, &rows(&other))
            {
                refuse!("{}: {weight}", flag.written());
            }
        }
        Ok(()) // who loads it says what is wrong
    }

    /// Refuses sizes of the vocabulary that do not hold the model's tokens, or more of them than its embedding has rows. How many
    /// rows stand behind the last token is up to a run.
    fn check_vocabulary(&self, config: &ModelConfig, ends: usize) -> Result<()> {
        let (own, rows) = (config.vocab, config.padded_vocab);
        if let Some(tokens) = self.tokens().filter(|&n| !(own..=rows).contains(&n.saturating_add(ends))) {
            refuse!(
                "--vocab-size {tokens}: the model of --load has {own} tokens, and its embedding {rows} rows"
            );
        }
        if let Some(padded) = self.rows().filter(|&padded| padded < own) {
            refuse!("--padded-vocab-size {padded}: the model of --load has {own} tokens");
        }
        Ok(())
    }
}

/// `config` with flags in place of what it says.
///
/// # Errors
/// As [`ModelFlags::beside`].
fn changed(config: &ModelConfig, given: &[Given]) -> Result<ModelConfig> {
    let all = apply(config, given)?;
    let Some(weight) = contradiction(config, &all) else { return Ok(all) };
    // The flag that by itself does not fit is the one to name.
    for flag in given {
        if let Ok(other) = apply(config, std::slice::from_ref(flag))
            && let Some(weight) = contradiction(config, &other)
        {
            refuse!("{}: {weight}", flag.written());
        }
    }
    refuse!("{}: {weight}", names(given))
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
    lacking(there, wanted).or_else(|| {
        let wanted: BTreeMap<_, _> = shapes(wanted).into_iter().collect();
        let gone = shapes(there).into_iter().find(|(name, _)| !wanted.contains_key(name));
        gone.map(|(name, shape)| format!("the model then has no weight {name}, which --load has {shape}"))
    })
}

/// The first weight of a model that a checkpoint of another does not have, or not so.
fn lacking(there: &ModelConfig, wanted: &ModelConfig) -> Option<String> {
    let there: BTreeMap<_, _> = shapes(there).into_iter().collect();
    shapes(wanted).into_iter().find_map(|(name, shape)| match there.get(&name) {
        None => Some(format!("the model then has a weight {name} {shape}, which --load does not have")),
        Some(other) if *other != shape => {
            Some(format!("the weight {name} is then {shape}, that of --load is {other}"))
        }
        Some(_) => None,
    })
}

/// The configuration with arguments in place of what it says: where the arguments of the checkpoint's model and those with
/// the given ones describe different models, the difference is carried over. What Megatron's arguments cannot say of the
/// model stays as it is.
pub(crate) fn apply(config: &ModelConfig, given: &[Given]) -> Result<ModelConfig> {
    let said = ms_spec::megatron::to_args(config);
    let equal = |a: &Value, b: &Value| a == b || a.as_f64().is_some_and(|a| b.as_f64() == Some(a));
    if given.iter().all(|g| said.get(&g.dest).is_some_and(|own| equal(own, &g.value))) {
        return Ok(config.clone());
    }
    let read = |map: &Map<String, Value>| -> std::result::Result<ModelConfig, ms_spec::Error> {
        let c = config;
        let whole = ms_spec::megatron::from_args_of(c.family, map)?;
        Ok(ModelConfig {
            bos: c.bos,
            eos: c.eos.clone(),
            dtype: c.dtype,
            empty_slots: c.empty_slots,
            ..whole
        })
    };
    let refused = |what: &str| {
        let names = names(given);
        Usage(format!(
            "{names}: flags cannot describe the {what}model of --load, so they cannot change it; leave it out"
        ))
    };
    let plain = serde_json::to_value(read(&said).map_err(|_| refused(""))?)?;
    let mut with = said;
    for group in same_number().filter(|group| given.iter().any(|g| group.contains(&g.dest.as_str()))) {
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
    fn every_flag_of_models_is_looked_at_when_arguments_are_read() {
        let facts =
            ms_cli::megatron::Line::new::<ModelFlags>(ms_cli::megatron::Program::Infer, "ms-infer", "");
        let line: &'static _ = Box::leak(Box::new(facts));
        // What samples say of themselves, and each kind of argument once more.
        let mut asked = BTreeSet::new();
        let mut look = |args: &Map<String, Value>| asked.extend(ms_spec::megatron::asked_args(args));
        for name in ms_testing::golden_models() {
            look(&ms_spec::megatron::to_args(&sample(&name)));
        }
        let plain = ms_spec::megatron::to_args(&sample("aquila"));
        let kinds = [
            json!({"swiglu": false, "geglu": false, "add_bias_linear": true, "bias_gelu_fusion": false}),
            json!({"hybrid_override_pattern": "M*-M", "mamba_d_ssm": 64}),
            json!({"spec": ["mamba"], "hybrid_attention_ratio": 0.5}),
            json!({"rope_scaling_type": "llama3", "rope_scaling_factor": 8.0}),
            json!({"rope_scaling_type": "longrope", "rope_scaling_factor": 8.0}),
            json!({"rope_scaling_type": "yarn", "rope_scaling_factor": 8.0}),
            json!({"num_experts": 4, "moe_router_topk": 2, "n_group": 2, "topk_group": 1}),
            json!({"num_experts": 4, "moe_router_load_balancing_type": "group_limited_greedy"}),
        ];
        for kind in kinds {
            let mut args = plain.clone();
            args.extend(kind.as_object().unwrap().clone());
            look(&args);
        }
        let unread: Vec<&str> = flags::model()
            .into_iter()
            .filter(|entry| {
                let flag =
                    line.flags(ms_cli::megatron::Upstream::V2_0_0).find(|f| f.flag == entry.flag).unwrap();
                !asked.contains(flag.dest(ms_cli::megatron::Upstream::V2_0_0))
            })
            .map(|entry| entry.flag)
            .collect();
        assert_eq!(unread, [""; 0]);
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
    fn norms_of_latents_stretched_positions_and_a_delta_nets_convolution_are_what_flags_say() {
        let one = |name: &str, flags: Value| apply(&sample(name), &given(&flags)).unwrap();
        let plain = one("deepseek_v2", json!({"qk_layernorm": false}));
        let norms = |c: &ModelConfig| params(c).iter().filter(|p| p.name.contains("kv_layernorm")).count();
        assert_eq!((norms(&plain), norms(&sample("deepseek_v2"))), (0, plain.layers));
        let narrow = one("qwen3_next", json!({"mamba_d_conv": 3}));
        assert_eq!(narrow.gated_delta.map(|d| d.conv), Some(3));
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
                json!({"position_embedding_type": "learned_absolute"}),
                "--position-embedding-type learned_absolute: the model then has a weight embedding.position_embeddings",
            ),
            (json!({"geglu": true, "squared_relu": true}), "--geglu, --squared-relu: "),
            (
                json!({"squared_relu": true}),
                "--squared-relu: the weight decoder.layers.0.mlp.linear_fc1.weight is then",
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
                // A pure Mamba2 has a single epsilon.
                m.norm_eps = other.as_ref().unwrap().mamba2.as_ref().unwrap().norm_eps;
            }
            assert_eq!(other.unwrap(), want, "{name}");
        }
    }

    #[test]
    fn a_choice_wins_over_the_checkpoints() {
        use ms_spec::{Activation, RopeScaling};
        let (gated, plain) = (sample("aquila"), sample("gpt2"));
        let one = |config: &ModelConfig, flags: Value| changed(config, &given(&flags)).unwrap();
        assert_eq!(one(&gated, json!({"geglu": true})).activation, Activation::GegluErf);
        assert_eq!(one(&sample("gemma"), json!({"swiglu": true})).activation, Activation::Swiglu);
        assert_eq!(plain.activation, Activation::GeluTanh);
        assert_eq!(one(&plain, json!({"bias_gelu_fusion": false})).activation, Activation::GeluErf);
        let factor = json!({"rotary_seq_len_interpolation_factor": 2.0});
        assert_eq!(one(&gated, factor.clone()).rope.scaling, RopeScaling::Linear { factor: 2.0 });
        let stretched = sample("llama3_gqa");
        let twice = one(&stretched, factor).rope;
        assert_eq!((&twice.scaling, twice.divided), (&stretched.rope.scaling, 2.0));
    }

    #[test]
    fn a_router_is_what_flags_say_of_it() {
        use ms_spec::{ModelConfig, RouterDtype, Score};
        let one = |name: &str, flags: Value| changed(&sample(name), &given(&flags)).unwrap();
        let router = |c: &ModelConfig| c.moe.clone().unwrap().router;
        // The same kind by its name, and another, that knows no groups.
        assert_eq!(
            one("deepseek_v2", json!({"moe_router_load_balancing_type": "group_limited_greedy"})),
            sample("deepseek_v2")
        );
        assert!(router(&sample("deepseek_v2")).groups.is_some());
        let other = one("deepseek_v2", json!({"moe_router_load_balancing_type": "softmax_topk"}));
        assert_eq!(router(&other).groups, None);
        let other = one("mixtral", json!({"moe_router_load_balancing_type": "sinkhorn"}));
        assert_eq!(router(&other).score, Score::Softmax);
        assert_eq!(router(&sample("mixtral")).dtype, RouterDtype::Model);
        let wide = |flags: Value| router(&one("mixtral", flags)).dtype;
        assert_eq!(wide(json!({"router_gating_in_fp32": true})), RouterDtype::F32);
        assert_eq!(
            wide(json!({"router_gating_in_fp32": true, "moe_router_dtype": "fp64"})),
            RouterDtype::F64
        );
        let other = one("phimoe", json!({"moe_input_jitter_eps": 0.25}));
        assert_eq!(router(&other).score, Score::SparseMixer { jitter: 0.25 });
        let spec = json!({"spec": ["m.hunyuan_spec", "layer_spec"]});
        assert_eq!(one("hunyuan_large", spec.clone()).rope, one("llama2_mha", spec).rope);
        let refused = |name: &str, flags: Value, says: &str| {
            let said = changed(&sample(name), &given(&flags)).unwrap_err().to_string();
            assert!(said.starts_with(says), "{said}");
        };
        refused(
            "mixtral",
            json!({"moe_router_load_balancing_type": "noaux_tc"}),
            "--moe-router-load-balancing-type noaux_tc: the model then has a weight decoder.layers.0.mlp.router.expert_bias",
        );
        refused("mixtral", json!({"spec": ["m.mamba_spec"]}), "--spec m.mamba_spec: ");
    }

    #[test]
    fn positions_that_a_model_does_not_have_are_refused() {
        let line =
            ms_cli::megatron::Line::new::<ModelFlags>(ms_cli::megatron::Program::Infer, "ms-infer", "");
        let line: &'static ms_cli::megatron::Line = Box::leak(Box::new(line));
        let refused = |model: &str, flags: &[&str]| {
            let args = ms_cli::megatron::parse(line, flags.iter().map(|&f| f.to_owned())).unwrap();
            args.read::<ModelFlags>().unwrap().beside(&sample(model), false, 0).unwrap_err().to_string()
        };
        let said = refused("mamba2", &["--position-embedding-type", "learned_absolute"]);
        assert!(
            said.contains("--position-embedding-type learned_absolute: a model without attention"),
            "{said}"
        );
        let both = ["--position-embedding-type", "learned_absolute", "--use-rotary-position-embeddings"];
        let said = refused("aquila", &both);
        assert!(said.contains("cannot be combined with --use-rotary-position-embeddings"), "{said}");
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
            let config = sample(name);
            // Another model, or a contradiction that is named.
            match changed(&config, &given(&flags)) {
                Ok(other) => assert_ne!(other, config, "{name} {flags}"),
                Err(e) => assert!(e.to_string().starts_with("--"), "{name} {flags}: {e}"),
            }
        }
    }
}

//! A Hugging Face class: its names, its defaults for missing fields, and its fields.

use serde_json::{Map, Value, json};

use super::SOURCE;
use super::common::ALL;
use super::latent::NORM_EPS;
use crate::field::Dialect;
use crate::field::{Field, Writer};
use crate::fields::Fields;
use crate::sizes::{Attention, Mla, Position};
use crate::{Error, Family, ModelConfig, Result};

/// One class. All that is known of its `config.json`; `ms-ckpt` knows the names of its tensors.
pub(crate) struct Class {
    pub(crate) family: Family,
    /// Names in `model_type`; the first is written.
    pub(super) types: &'static [&'static str],
    /// The class that `architectures` names.
    pub(super) name: &'static str,
    /// Makes of a plain Llama what a file of sizes alone describes; the sizes are still to be read.
    pub(super) assume: fn(&mut ModelConfig),
    /// What its file says, in the order in which it is read.
    pub(super) fields: &'static [&'static [Field]],
    /// A description of what the class cannot express of its family's models.
    pub(super) lacks: fn(&ModelConfig) -> Option<&'static str>,
}

/// A class: family, names in `model_type`, name, what it assumes, fields, and what it lacks, if anything.
macro_rules! class {
    ($family:expr, $types:expr, $name:expr, $assume:expr, $fields:expr $(,)?) => {
        $crate::hf::class::class!($family, $types, $name, $assume, $fields, |_| None)
    };
    ($family:expr, $types:expr, $name:expr, $assume:expr, $fields:expr, $lacks:expr $(,)?) => {
        $crate::hf::class::Class {
            family: $family,
            types: &$types,
            name: $name,
            assume: $assume,
            fields: $fields,
            lacks: $lacks,
        }
    };
}
pub(super) use class;

impl Class {
    /// `model_type` of its models.
    pub(crate) fn model_type(&self) -> &'static str {
        self.types[0]
    }

    /// What a file of sizes alone describes; the sizes are 0.
    pub(super) fn silent(&self) -> ModelConfig {
        let mut c = ModelConfig { family: self.family, ..ModelConfig::default() };
        (self.assume)(&mut c);
        c
    }

    /// The model that a file describes.
    pub(super) fn read(&self, f: &Fields<'_>) -> Result<ModelConfig> {
        let mut c = self.silent();
        for field in [ALL].iter().chain(self.fields).copied().flatten() {
            field.read(f, &mut c)?;
        }
        c.validate()
    }

    /// The file of a model.
    pub(super) fn write(&self, config: &ModelConfig, dialect: Dialect) -> Result<Value> {
        if let Some(what) = (self.lacks)(config) {
            let what = format!("{what} have no form in the configuration of {}", self.name);
            return Err(Error::Unsupported { source_name: SOURCE, what });
        }
        let mut w = Writer::new(dialect);
        if config.reward {
            w.set("architectures", json!([self.name.replace("ForCausalLM", "ForSequenceClassification")]));
            w.set("id2label", json!({"0": "LABEL_0"}));
            w.set("label2id", json!({"LABEL_0": 0}));
        } else {
            w.set("architectures", json!([self.name]));
        }
        w.set("model_type", json!(self.types[0]));
        let (mut c, mut silent) = (config.clone(), self.silent());
        for field in self.fields.iter().chain(&[ALL]).copied().flatten() {
            field.write(&mut c, &mut silent, &mut w);
        }
        Ok(Value::Object(w.out))
    }

    /// Whether the file that is written describes this very model.
    pub(crate) fn says(&self, config: &ModelConfig) -> bool {
        self.leaves_out(config).is_some_and(|parts| parts.is_empty())
    }

    /// Parts of the model that its file would not bring back; `None` if there is no such file. Numbers that pass through
    /// a root may be rounded.
    pub(super) fn leaves_out(&self, config: &ModelConfig) -> Option<Vec<String>> {
        let config = self.essence(config);
        let Ok(Value::Object(file)) = self.write(&config, Dialect::V5) else { return None };
        let back = self.read(&Fields { source: SOURCE, map: &file, asked: None }).ok()?;
        let [back, config] = [&back, &config].map(|c| serde_json::to_value(c).unwrap_or_default());
        Some(differing(config.as_object()?, back.as_object()?))
    }

    /// The model without properties that the class does not have: padding, the kind of output, an unused rotation, and the
    /// epsilon of latents, which Megatron's arguments do not distinguish.
    fn essence(&self, config: &ModelConfig) -> ModelConfig {
        let rope = match config.position {
            Position::Rope => config.rope.clone(),
            _ => self.silent().rope,
        };
        let attention = match &config.attention {
            Attention::Latent(mla) => Attention::Latent(Mla { norm_eps: Some(NORM_EPS), ..*mla }),
            other => other.clone(),
        };
        let (family, padded_vocab) = (self.family, config.vocab);
        ModelConfig { family, padded_vocab, reward: false, rope, attention, ..config.clone() }
    }
}

/// Names of what is other in the second: of an object that both have, of its parts.
fn differing(one: &Map<String, Value>, other: &Map<String, Value>) -> Vec<String> {
    let mut names = Vec::new();
    for (name, a) in one {
        match (a, other.get(name)) {
            (_, Some(b)) if same(a, b) => {}
            (Value::Object(a), Some(Value::Object(b))) => {
                names.extend(differing(a, b).into_iter().map(|inner| format!("{name}.{inner}")));
            }
            _ => names.push(name.clone()),
        }
    }
    names
}

/// Equal except for rounding.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => match (a.as_f64(), b.as_f64()) {
            (Some(a), Some(b)) => (a - b).abs() <= 1e-12 * a.abs().max(b.abs()),
            _ => a == b,
        },
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(key, a)| b.get(key).is_some_and(|b| same(a, b)))
        }
        _ => a == b,
    }
}

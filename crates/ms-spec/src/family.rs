//! Model families: their names and properties beyond their classes.

use std::fmt;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::hf::tensors::{LLAMA_TENSORS, Respelling, Tensors};

/// Family of a model: decides Hugging Face's spelling of its configuration and tensors, not its mathematics. Each stands in a row
/// of a file of `hf::classes`, with its classes.
#[derive(Clone, Copy)]
pub struct Family {
    name: &'static str,
    tensors: &'static Tensors,
    respelled: Option<&'static Respelling>,
}

impl Family {
    /// Llama 1 to 3 and models that share its classes.
    pub const LLAMA: Self = Self::new("Llama", &LLAMA_TENSORS);
    /// Only described by Megatron's arguments: no Hugging Face class is known.
    pub const MEGATRON: Self = Self::new("Megatron", &LLAMA_TENSORS);

    pub(crate) const fn new(name: &'static str, tensors: &'static Tensors) -> Self {
        Self { name, tensors, respelled: None }
    }

    pub(crate) const fn respelled(self, respelled: &'static Respelling) -> Self {
        Self { respelled: Some(respelled), ..self }
    }

    /// The pattern of a tensor's name, by what the tensor is; `None` where a family has no such tensor.
    pub fn pattern(self, key: &str) -> Option<&'static str> {
        self.tensors.pattern(key)
    }

    /// Whether the family's class has this tensor without a bias, though its configuration gives biases to others of its part:
    /// there the model's are zero.
    pub fn without_bias(self, key: &str) -> bool {
        self.tensors.without_bias(key)
    }

    /// The usual name of a tensor that a program spells differently.
    pub fn usual(self, name: &str) -> Option<String> {
        let respelled = self.respelled.and_then(|other| other.usual(name));
        respelled.or_else(|| self.in_base_module(name))
    }

    /// The usual name of a tensor of a model that was saved without its output layer, as GPT-2 and Bloom are published: it lacks
    /// the module that the others are parts of.
    ///
    /// # Source
    /// transformers 5.24, `rename_source_key` in `core_model_loading.py`, `base_model_prefix`.
    fn in_base_module(self, name: &str) -> Option<String> {
        let (base, _) = self.pattern("embed")?.split_once('.')?;
        let part = name.split_once('.').map_or(name, |(part, _)| part);
        self.tensors.has_module(&format!("{base}.{part}.")).then(|| format!("{base}.{name}"))
    }

    /// What files of ours call it: `deepseek_v3`.
    fn word(self) -> String {
        let mut word = String::new();
        for (i, c) in self.name.chars().enumerate() {
            if i > 0 && c.is_uppercase() {
                word.push('_');
            }
            word.push(c.to_ascii_lowercase());
        }
        word
    }
}

impl fmt::Debug for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name)
    }
}

impl PartialEq for Family {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Family {}

impl Serialize for Family {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.word())
    }
}

impl<'de> Deserialize<'de> for Family {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let word = String::deserialize(deserializer)?;
        let found = Self::all().chain([Self::MEGATRON]).find(|family| family.word() == word);
        found.ok_or_else(|| D::Error::custom(format!("unknown family `{word}`")))
    }
}

//! The identity of a checkpoint tensor, and the name printed from it.
//!
//! Names are printed where tensors are listed: a layout prints the names it expects and looks them up among a file's own
//! names, and [`Names`] does so for files that use canonical names. From there on, code asks what a tensor is, never what its
//! name looks like.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::fmt;
use std::ops::Deref;

use ms_spec::{ModelConfig, ParamSpec, Slot, params};
use serde::{Serialize, Serializer};

/// A tensor of an optimizer's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// The weight itself, unrounded.
    Master,
    /// AdamW's mean of gradients.
    ExpAvg,
    /// AdamW's mean of their squares.
    ExpAvgSq,
    /// The momentum of plain gradient descent.
    Momentum,
}

impl State {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Master, Self::ExpAvg, Self::ExpAvgSq, Self::Momentum];
    /// The states of AdamW.
    pub const ADAM: [Self; 3] = [Self::Master, Self::ExpAvg, Self::ExpAvgSq];

    /// Its word in names.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Master => "fp32_param",
            Self::ExpAvg => "exp_avg",
            Self::ExpAvgSq => "exp_avg_sq",
            Self::Momentum => "momentum_buffer",
        }
    }

    /// The prefix before the weight's name.
    pub fn prefix(self) -> String {
        format!("optimizer.state.{}.", self.word())
    }
}

/// One of the two matrices whose product is added to a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Matrix {
    /// `[r, in]`.
    A,
    /// `[out, r]`.
    B,
}

impl Matrix {
    /// Both, in their order.
    pub const BOTH: [Self; 2] = [Self::A, Self::B];

    /// Its word in peft's names.
    pub const fn word(self) -> &'static str {
        match self {
            Self::A => "lora_A",
            Self::B => "lora_B",
        }
    }

    /// Its name in Megatron's files, relative to a module's weight.
    pub(crate) fn weight_name(self, module: &str) -> String {
        format!("{module}.{}.default.weight", self.word())
    }
}

/// What a tensor of a checkpoint is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TensorKind {
    /// A weight of the model.
    Weight(Slot),
    /// A tensor of an optimizer's state of a weight.
    State(State, Slot),
    /// A low-rank part of a weight: of all its rows, or of those of one projection among several.
    LowRank(Matrix, Slot, Option<usize>),
    /// What a program stores in addition to a model.
    Other,
}

/// The name of a tensor of a checkpoint, with what the tensor is. Names are ordered and compared as texts.
#[derive(Clone, Debug)]
pub struct Name {
    text: String,
    kind: TensorKind,
}

impl Name {
    /// The name of a weight.
    pub fn weight(slot: &Slot) -> Self {
        Self { text: slot.name(), kind: TensorKind::Weight(*slot) }
    }

    /// The name of an optimizer state of a weight: `optimizer.state.exp_avg.X`.
    pub fn state(state: State, slot: &Slot) -> Self {
        let text = format!("{}{}", state.prefix(), slot.name());
        Self { text, kind: TensorKind::State(state, *slot) }
    }

    /// The name of a low-rank matrix of a weight `X.weight`: `X.lora_A.default.weight`, or `X.0.lora_A.weight` for one
    /// projection's rows.
    pub fn low_rank(matrix: Matrix, slot: &Slot, projection: Option<usize>) -> Self {
        let module = slot.module_name();
        let text = match projection {
            None => matrix.weight_name(&module),
            Some(number) => format!("{module}.{number}.{}.weight", matrix.word()),
        };
        Self { text, kind: TensorKind::LowRank(matrix, *slot, projection) }
    }

    /// What the tensor is.
    pub const fn kind(&self) -> TensorKind {
        self.kind
    }
}

impl Deref for Name {
    type Target = str;

    fn deref(&self) -> &str {
        &self.text
    }
}

impl Borrow<str> for Name {
    fn borrow(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text)
    }
}

impl PartialEq for Name {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Name {}

impl PartialOrd for Name {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Name {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.text.cmp(&other.text)
    }
}

impl Serialize for Name {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

/// The names that a checkpoint of a model can have: of its weights, and of what optimizers keep of them.
pub(crate) struct Names(HashMap<String, TensorKind>);

impl Names {
    pub(crate) fn of(config: &ModelConfig) -> Self {
        let of = |spec: ParamSpec| {
            let states = State::ALL.map(|state| Name::state(state, &spec.slot));
            states.into_iter().chain([Name::weight(&spec.slot)]).map(|name| (name.text, name.kind))
        };
        Self(params(config).into_iter().flat_map(of).collect())
    }

    /// What a tensor of this name is.
    pub(crate) fn find(&self, text: String) -> Name {
        let kind = self.0.get(&text).copied().unwrap_or(TensorKind::Other);
        Name { text, kind }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ms_spec::{Part, Place, Role};
    use std::collections::BTreeSet;

    #[test]
    fn names_are_printed_from_what_tensors_are_and_found_again() {
        let config = ModelConfig::tiny();
        let (names, specs) = (Names::of(&config), params(&config));
        let mut all = BTreeSet::new();
        for spec in &specs {
            let mut own = vec![Name::weight(&spec.slot)];
            assert_eq!(*own[0], spec.name);
            own.extend(State::ALL.map(|state| Name::state(state, &spec.slot)));
            for name in own {
                assert_eq!(names.find(name.to_string()).kind(), name.kind(), "{name}");
                let (TensorKind::Weight(slot) | TensorKind::State(_, slot)) = name.kind() else {
                    panic!("{name}")
                };
                assert_eq!(slot, spec.slot, "{name}");
                assert!(all.insert(name));
            }
        }
        assert_eq!(all.len(), 5 * specs.len());
        // What looks like a state, but of no weight of the model, is nothing of its.
        for other in ["optimizer.state.exp_avg.x", "optimizer.state.step", "exp_avg/output_layer.weight"] {
            assert_eq!(names.find(other.to_owned()).kind(), TensorKind::Other, "{other}");
        }
    }

    #[test]
    fn low_rank_parts_stand_beside_the_module() {
        let place = Place::Layer(3);
        let slot = Slot { place, part: Part::Attention, half: None, role: Role::LinearQkv, bias: false };
        let stem = "decoder.layers.3.self_attention.linear_qkv";
        let [a, b] = Matrix::BOTH.map(|m| Name::low_rank(m, &slot, None));
        assert_eq!(*a, *format!("{stem}.lora_A.default.weight"));
        assert_eq!(*b, *format!("{stem}.lora_B.default.weight"));
        assert_eq!(*Name::low_rank(Matrix::B, &slot, Some(2)), *format!("{stem}.2.lora_B.weight"));
    }
}

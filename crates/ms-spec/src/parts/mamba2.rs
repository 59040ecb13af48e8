//! Mamba2.

use ms_core::{Axis, Partition};
use serde_json::{Value, json};

use crate::error::divides;
use crate::field::Field;
use crate::fields::Fields;
use crate::params::{Init, SumGrad, Table};
use crate::part_flag::PartFlag;
use crate::parts::recurrent::{A, Recurrence, Recurrent, conv_init, dt};
use crate::saved_bytes::{Activations, SavedBytes};
use crate::sharding_rule::{AxisRule, ShardingRule, UNCONCERNED};
use crate::sizes::{Feed, Layer, Mamba2, Mixer, Position};
use crate::{ArgNames, Error, ModelConfig, Part, Result, Role};

pub(crate) static KIND: Recurrence = Recurrence {
    mixer: Mixer::Mamba2,
    what: "state-space mixer",
    norm: Some(Role::Norm),
    rule: RULE,
    arguments: ARGUMENTS,
    args: &[INNER_WIDTH, &["mamba_head_dim"]],
    flags: FLAGS,
    same_number: &[&["mamba_d_ssm", "mamba_expand"]],
    // Megatron builds it as its model of letters: megatron/core/models/mamba/mamba_model.py and megatron/core/ssm/mamba_block.py
    // of Megatron-core 0.16.
    last_norm: Role::FinalNorm,
    stacked: false,
    of: |c| c.mamba2.as_ref().map(|sizes| sizes as _),
};

#[rustfmt::skip] // a flag a line
const FLAGS: &[PartFlag] = &[
    PartFlag::new("--hybrid-attention-ratio", "[0,1]", "hybrid models: share of attention layers"),
    PartFlag::new("--hybrid-mlp-ratio", "[0,1]", "hybrid models: share of feed-forward layers"),
    PartFlag::new("--hybrid-override-pattern", "", "hybrid models: a letter per layer, M state space, * attention, - feed-forward"),
    PartFlag::new("--mamba-chunk-size", "[1,268435456]", "state-space layers: tokens per chunk"),
    PartFlag::new("--mamba-d-conv", "[1,16384]", "state-space layers: width of the convolution"),
    PartFlag::new("--mamba-d-ssm", "[1,16777216]", "state-space layers: inner width"),
    PartFlag::new("--mamba-expand", "[1,16384]", "state-space layers: inner width / hidden size"),
    PartFlag::new("--mamba-head-dim", "[1,16777216]", "state-space layers: head size"),
    PartFlag::new("--mamba-num-groups", "[1,16384]", "state-space layers: number of groups"),
    PartFlag::new("--mamba-state-dim", "[1,16777216]", "state-space layers: size of the state"),
];

/// What the inner width is made of.
const INNER_WIDTH: &[&str] = &["mamba_d_ssm", "mamba_expand", "hidden_size"];

/// What Megatron's arguments say of it.
const ARGUMENTS: &[Field] = &[
    STATES,
    Field::size("mamba_head_dim", |c| Some(&mut c.mamba2.as_mut()?.head_dim)),
    Field::size("mamba_num_groups", |c| Some(&mut c.mamba2.as_mut()?.groups)),
    Field::size("mamba_state_dim", |c| Some(&mut c.mamba2.as_mut()?.state)),
    Field::size("mamba_d_conv", |c| Some(&mut c.mamba2.as_mut()?.conv)),
    Field::size("mamba_chunk_size", |c| Some(&mut c.mamba2.as_mut()?.chunk)),
    INNER,
    LETTERS,
];

/// The sizes that Megatron and `transformers` assume where nothing is said; heads follow from the width.
pub(crate) const USUAL: Mamba2 = Mamba2 {
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
    norm_eps: 0.0,
};

/// Whether there are Mamba2 layers, with sizes as Megatron assumes them.
const STATES: Field = Field::reading(|f, c| {
    let spec = f.get("spec").map(Value::to_string).unwrap_or_default();
    if f.text("hybrid_override_pattern")?.is_some() || spec.contains("mamba") {
        c.mamba2 = Some(Mamba2 { norm_eps: Mamba2::megatron_norm_eps(), ..USUAL });
    }
    Ok(())
});

/// The inner width, which is given, or a multiple of the stream's.
const INNER: Field = Field::rule(
    |f, c| {
        let hidden = c.hidden;
        if let Some(m) = c.mamba2.as_mut() {
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
            other => Err(Error::of(PATTERN, format!("hybrid pattern: expected M, * or -, got {other}"))),
        };
        c.pattern = letters(f, c.layers)?.chars().map(layer).collect::<crate::Result<_>>()?;
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

/// What an error of the pattern is about.
const PATTERN: ArgNames = &[&["hybrid_override_pattern"]];

/// Which layers mix tokens by state space (`M`), by attention (`*`), or not at all (`-`): a letter per layer, from a pattern
/// or from the shares of attention and feed-forward layers.
///
/// Attention layers are spread evenly between stretches of the others; feed-forward layers are spread evenly over what is
/// left, the last stretch first.
///
/// # Errors
/// Invalid shares, a pattern of another length, or one whose counts contradict the shares.
///
/// # Source
/// Megatron-LM `core_r0.8.0`, `megatron/core/ssm/mamba_hybrid_layer_allocation.py`.
fn letters(f: &Fields<'_>, layers: usize) -> Result<String> {
    let share = |field| Ok::<_, Error>(f.float(field)?.unwrap_or(0.0));
    let (attention, mlp) = (share("hybrid_attention_ratio")?, share("hybrid_mlp_ratio")?);
    if !(attention >= 0.0 && mlp >= 0.0 && attention + mlp <= 1.0) {
        return Err(f.unsupported(format!(
            "hybrid ratios: expected shares that make at most 1, got {attention} of attention and {mlp} of feed-forward"
        )));
    }
    let spread = spread(layers, attention, mlp);
    let Some(pattern) = f.text("hybrid_override_pattern")? else { return Ok(spread) };
    if pattern.chars().count() != layers {
        let found = pattern.chars().count();
        return Err(Error::of(PATTERN, format!("hybrid pattern: expected {layers} letters, got {found}")));
    }
    let counts = |letters: &str| ['M', '*', '-'].map(|kind| letters.matches(kind).count());
    if attention + mlp > 0.0 && counts(pattern) != counts(&spread) {
        let what =
            format!("hybrid pattern: {pattern} has other numbers of layers than the ratios make: {spread}");
        return Err(Error::of(PATTERN, what));
    }
    Ok(pattern.to_owned())
}

fn spread(layers: usize, attention: f64, mlp: f64) -> String {
    let count = |share: f64| (layers as f64 * share).round_ties_even() as usize;
    let attention = count(attention).min(layers);
    let mut letters = vec!['M'; layers];
    let mut place = |stretch: f64, kind: char| {
        let mut left = stretch;
        for letter in letters.iter_mut().filter(|l| **l == 'M') {
            if left < 0.5 {
                *letter = kind;
                left += stretch;
            } else {
                left -= 1.0;
            }
        }
    };
    let others = layers - attention;
    place(others as f64 / (attention + 1) as f64, '*');
    let mlp = count(mlp);
    if mlp > 0 {
        place((others as f64 - mlp as f64) / mlp as f64, '-');
    }
    letters.into_iter().collect()
}

/// How ranks share it.
const RULE: ShardingRule = ShardingRule {
    part: "Mamba2",
    tp: AxisRule::Shared("groups of heads, which must divide, as Megatron's MambaMixer asks, too"),
    cp: AxisRule::Shared("heads for tokens; a group's keys are copied where groups do not divide"),
    ep: UNCONCERNED,
    has: |c| c.mamba2.is_some(),
    divides: |c, axis| match (axis, &c.mamba2) {
        (Axis::Tp, Some(m)) => vec![("state-space groups", m.groups)],
        (Axis::Cp, Some(m)) => vec![("state-space heads of a rank", m.heads)],
        _ => Vec::new(),
    },
};

impl Recurrent for Mamba2 {
    fn sizes(&self) -> Vec<usize> {
        vec![self.heads, self.head_dim, self.groups, self.state, self.conv, self.chunk]
    }

    fn check(&self) -> Result<()> {
        let args: ArgNames = &[&["mamba_num_groups"], INNER_WIDTH, &["mamba_head_dim"]];
        divides(args, "state-space heads", self.heads, "groups", self.groups)
    }

    fn params(&self, t: &mut Table<'_>, c: &ModelConfig) {
        let sections = self.sections();
        let [inner, _, bc, _, heads] = sections;
        let cut = |sizes| Partition::Sections { axis: Axis::Tp, dim: 0, sizes };
        let convolved = [inner, bc, bc, 0, 0];
        t.of(Part::StateSpace);
        t.vector(Role::DtBias, heads, Table::rows(1), dt(self.dt_init), SumGrad::No);
        t.vector(Role::ALog, heads, Table::rows(1), A, SumGrad::No);
        t.vector(Role::D, heads, Table::rows(1), Init::Ones, SumGrad::No);
        let rows = sections.iter().sum();
        t.matrix(Role::InProj, [rows, c.hidden], cut(sections), t.std());
        if self.bias {
            t.vector(Role::InProj.bias(), rows, cut(sections), Init::Zeros, SumGrad::No);
        }
        let rows = convolved.iter().sum();
        t.push(Role::Conv1d, &[rows, 1, self.conv], cut(convolved), conv_init(self.conv), SumGrad::No);
        if self.conv_bias {
            t.vector(Role::Conv1d.bias(), rows, cut(convolved), conv_init(self.conv), SumGrad::No);
        }
        t.vector(Role::Norm, inner, Table::rows(1), Init::Ones, SumGrad::No);
        t.matrix(Role::OutProj, [c.hidden, inner], Table::columns(), t.out_std());
        if self.bias {
            t.whole_bias(Role::OutProj, c.hidden);
        }
    }

    /// What goes into the convolution and comes out of it, steps, gates, outputs and gated outputs unrounded; normed, and
    /// scaled.
    fn kept(&self, a: &Activations, _: &ModelConfig) -> SavedBytes {
        let [inner, _, bc, _, heads] =
            Self { heads: self.heads / a.tp, groups: self.groups / a.tp, ..*self }.sections();
        let convolved = inner + 2 * bc;
        let biases = usize::from(self.conv_bias) * convolved;
        let (wide, weights) = a.wide(convolved * self.conv + biases + 3 * heads);
        let rows = (3 * inner + 2 * convolved + heads) * wide + 2 * inner * a.element_bytes;
        // The norm of each group has a weight of ones.
        let ones = inner * a.tp / self.groups * wide;
        (a.tokens * rows + weights + ones, a.tokens * (self.groups / a.tp) * wide)
    }

    /// For a layer twice as wide as the stream, whatever its actual width.
    fn flops(&self, c: &ModelConfig) -> Option<f64> {
        let (h, state) = (c.hidden as f64, self.state as f64);
        let inner = 2.0 * h;
        let heads = (2 * c.hidden / self.head_dim.max(1)) as f64;
        let projections =
            2.0 * h * (2.0 * inner + 2.0 * self.groups as f64 * state + heads) + 2.0 * inner * h;
        Some(3.0 * (projections + 7.0 * inner * state))
    }

    fn shrink(&self, small: &mut ModelConfig, ranks: usize) {
        let heads = ranks * (self.heads / self.groups.max(1)).clamp(1, 2);
        let (head_dim, state) = (self.head_dim.min(8), self.state.min(8));
        small.mamba2 = Some(Self { heads, groups: ranks, head_dim, state, ..*self });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Map;

    fn of(layers: usize, args: &Value) -> Result<String> {
        let map: Map<String, Value> = args.as_object().unwrap().clone();
        letters(&Fields { source: "arguments", map: &map, asked: None }, layers)
    }

    #[test]
    fn shares_are_spread_as_megatron_spreads_them() {
        let cases = [
            (56, 0.08, 0.5, "M-M-M--M-M*-M-M-M-M--M*-M-M-M-M-M*--M-M-M-M-M*-M--M-M-M-"),
            (10, 0.0, 0.0, "MMMMMMMMMM"),
            (8, 0.25, 0.25, "MM*-M*M-"),
            (12, 0.1, 0.0, "MMMMMM*MMMMM"),
            (7, 0.5, 0.5, "-**-**-"),
            (24, 0.125, 0.3, "MM-MM*-MM-MM*-MM-M*M-MM-"),
            (4, 1.0, 0.0, "****"),
            (5, 0.3, 0.7, "-*-*-"),
            (8, 0.0, 0.5, "M-M-M-M-"),
        ];
        for (layers, attention, mlp, want) in cases {
            let args = json!({"hybrid_attention_ratio": attention, "hybrid_mlp_ratio": mlp});
            assert_eq!(of(layers, &args).unwrap(), want, "{layers} {attention} {mlp}");
        }
    }

    #[test]
    fn a_pattern_wins_and_must_fit_the_layers_and_the_shares() {
        let args = |attention: f64, pattern: &str| json!({"hybrid_attention_ratio": attention, "hybrid_override_pattern": pattern});
        assert_eq!(of(4, &args(0.0, "M*-M")).unwrap(), "M*-M");
        assert_eq!(of(4, &args(0.25, "*MMM")).unwrap(), "*MMM");
        for (layers, args) in [(3, args(0.0, "M*-M")), (4, args(0.25, "M*-M")), (4, args(-0.1, "MMMM"))] {
            assert!(of(layers, &args).is_err(), "{args}");
        }
    }
}

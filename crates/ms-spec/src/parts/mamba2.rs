//! Mamba2.

use ms_core::{Axis, Partition};
use serde_json::{Value, json};

use crate::error::divides;
use crate::field::Field;
use crate::kept::{Activations, Kept};
use crate::megatron::hybrid::{PATTERN, letters};
use crate::params::{Init, SumGrad, Table};
use crate::parts::recurrent::{A, Recurrence, Recurrent, conv_init, dt};
use crate::rule::{How, Rule, UNCONCERNED};
use crate::sizes::{Feed, Layer, Mamba2, Mixer, Position};
use crate::{Error, Made, ModelConfig, Part, Result, Role};

pub(crate) static KIND: Recurrence = Recurrence {
    mixer: Mixer::Mamba2,
    what: "state-space mixer",
    norm: Some(Role::Norm),
    rule: RULE,
    arguments: ARGUMENTS,
    made: &[INNER_WIDTH, &["mamba_head_dim"]],
    of: |c| c.mamba2.as_ref().map(|sizes| sizes as _),
};

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

/// Whether there are Mamba2 layers, with sizes as Megatron assumes them.
const STATES: Field = Field::reading(|f, c| {
    let spec = f.get("spec").map(Value::to_string).unwrap_or_default();
    if f.text("hybrid_override_pattern")?.is_some() || spec.contains("mamba") {
        c.mamba2 = Some(Mamba2 {
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
            norm_eps: Mamba2::megatron_norm_eps(),
        });
    }
    Ok(())
});

/// The inner width, which is told, or so many times the stream's.
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

/// How ranks share it.
const RULE: Rule = Rule {
    part: "Mamba2",
    tp: How::Shared("groups of heads, which must divide, as Megatron's MambaMixer asks, too"),
    cp: How::Shared("heads for tokens; a group's keys are copied where groups do not divide"),
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
        let made: Made = &[&["mamba_num_groups"], INNER_WIDTH, &["mamba_head_dim"]];
        divides(made, "state-space heads", self.heads, "groups", self.groups)
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
            t.vector(Role::Conv1d.bias(), rows, cut(convolved), Init::Zeros, SumGrad::No);
        }
        t.vector(Role::Norm, inner, Table::rows(1), Init::Ones, SumGrad::No);
        t.matrix(Role::OutProj, [c.hidden, inner], Table::columns(), t.out_std());
        if self.bias {
            t.whole_bias(Role::OutProj, c.hidden);
        }
    }

    /// What goes into the convolution and comes out of it, steps, gates, outputs and gated outputs unrounded; normed, and
    /// scaled.
    fn kept(&self, a: &Activations, _: &ModelConfig) -> Kept {
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

    /// Of a layer that is twice as wide as the stream, whatever width it has.
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

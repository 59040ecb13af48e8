//! Parameters of recurrent mixers.

use ms_core::{Axis, Partition};

use super::build::Table;
use super::{Init, SumGrad};
use crate::{ModelConfig, Norm};

/// Bound of the initial weights of a depthwise convolution of width `conv`, as torch has it.
fn conv_init(conv: usize) -> Init {
    Init::Uniform { bound: (1.0 / conv as f64).sqrt() }
}

const A: Init = Init::LogOfUniform { low: 1.0, high: 16.0 };

pub(super) fn mamba2(t: &mut Table<'_>, c: &ModelConfig) {
    let m = c.mamba2.as_ref().expect("validate: a state-space layer needs its sizes");
    let sections = m.sections();
    let [inner, _, bc, _, heads] = sections;
    let cut = |sizes| Partition::Sections { axis: Axis::Tp, dim: 0, sizes };
    let convolved = [inner, bc, bc, 0, 0];
    t.norm("norm", c.hidden);
    t.vector("mixer.dt_bias", heads, Table::rows(1), dt(m.dt_init), SumGrad::No);
    t.vector("mixer.A_log", heads, Table::rows(1), A, SumGrad::No);
    t.vector("mixer.D", heads, Table::rows(1), Init::Ones, SumGrad::No);
    let rows = sections.iter().sum();
    t.matrix("mixer.in_proj.weight", [rows, c.hidden], cut(sections), t.std());
    if m.bias {
        t.vector("mixer.in_proj.bias", rows, cut(sections), Init::Zeros, SumGrad::No);
    }
    let rows = convolved.iter().sum();
    t.push("mixer.conv1d.weight", &[rows, 1, m.conv], cut(convolved), conv_init(m.conv), SumGrad::No);
    if m.conv_bias {
        t.vector("mixer.conv1d.bias", rows, cut(convolved), Init::Zeros, SumGrad::No);
    }
    t.vector("mixer.norm.weight", inner, Table::rows(1), Init::Ones, SumGrad::No);
    t.matrix("mixer.out_proj.weight", [c.hidden, inner], Table::columns(), t.out_std());
    if m.bias {
        t.whole_bias("mixer.out_proj.bias", c.hidden);
    }
}

pub(super) fn mamba3(t: &mut Table<'_>, c: &ModelConfig) {
    let m = c.mamba3.as_ref().expect("validate: a trapezoidal layer needs its sizes");
    let (by_head, ranks) = (Table::rows(1), m.ranks.unwrap_or(1));
    // What heads share every rank holds, and sees by its heads.
    let (shared, sum) = (Partition::Replicated, SumGrad::OverTp);
    for kind in ["B", "C"] {
        let bias = [m.heads, ranks, m.state];
        t.push(&format!("mixer.{kind}_bias"), &bias, by_head, Init::Ones, SumGrad::No);
        t.vector(&format!("mixer.{kind}_norm.weight"), m.state, shared, Init::Ones, sum);
    }
    t.vector("mixer.D", m.heads, by_head, Init::Ones, SumGrad::No);
    if m.ranks.is_some() {
        for name in ["mixer.mimo_o", "mixer.mimo_x", "mixer.mimo_z"] {
            t.push(name, &[m.heads, ranks, m.head_dim], by_head, Init::Ones, SumGrad::No);
        }
    }
    t.vector("mixer.dt_bias", m.heads, by_head, dt(m.dt_init), SumGrad::No);
    t.push("mixer.in_proj.weight", &[m.sections().iter().sum(), c.hidden], shared, t.std(), sum);
    t.matrix("mixer.out_proj.weight", [c.hidden, m.inner()], Table::columns(), t.std());
}

fn dt((low, high): (f64, f64)) -> Init {
    Init::InverseSoftplus { low, high }
}

pub(super) fn gated_delta(t: &mut Table<'_>, c: &ModelConfig) {
    let g = c.gated_delta.as_ref().expect("validate: a gated delta layer needs its sizes");
    let (half, values) = (g.qk_rows() / 2, g.value_rows());
    let name = |rest: &str| format!("self_attention.{rest}");
    t.vector(&name("dt_bias"), g.value_heads, Table::rows(1), Init::Ones, SumGrad::No);
    t.vector(&name("A_log"), g.value_heads, Table::rows(1), A, SumGrad::No);
    let cut = Partition::Sections { axis: Axis::Tp, dim: 0, sizes: [half, half, values, 0, 0] };
    let rows = g.qk_rows() + values;
    t.push(&name("conv1d.weight"), &[rows, 1, g.conv], cut, conv_init(g.conv), SumGrad::No);
    // Rows come by key head: its query, its key, its values, their gates.
    t.matrix(&name("in_proj_qkvz.weight"), [g.qk_rows() + 2 * values, c.hidden], Table::rows(1), t.std());
    t.matrix(&name("in_proj_ba.weight"), [2 * g.value_heads, c.hidden], Table::rows(1), t.std());
    t.norm_of(Norm::Rms, &name("norm"), g.value_dim, SumGrad::OverTp);
    t.matrix(&name("out_proj.weight"), [c.hidden, values], Table::columns(), t.out_std());
}

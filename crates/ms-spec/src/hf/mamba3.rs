//! Mamba3's `config.json`.
//!
//! Upstream's class has the sizes of a layer fixed: of the fields its block would take, it passes on `hidden_size` and
//! `is_mimo` alone. The others are read where they are given, under the names that its block or its configuration has
//! for them.

use serde_json::json;

use super::Fields;
use super::write::Writer;
use crate::parts::{Feed, Layer, Mamba3, Mixer, Position};
use crate::{Error, ModelConfig, Result};

/// Share of a key that is turned, as two classes of numbers say it.
fn angles(state: usize, fraction: f64) -> usize {
    (state as f64 * fraction) as usize / 2
}

pub(super) fn read(f: &Fields<'_>, c: &mut ModelConfig) -> Result<()> {
    let state = f.size_of(&["state_size", "d_state"])?.unwrap_or(128);
    let expand = f.size("expand")?.unwrap_or(2);
    let head_dim = f.size_of(&["head_dim", "headdim"])?.unwrap_or(64);
    let inner = expand.saturating_mul(c.hidden);
    if head_dim == 0 || !inner.is_multiple_of(head_dim) {
        return Err(Error::Inconsistent(format!(
            "{expand} times {} does not divide into heads of {head_dim}",
            c.hidden
        )));
    }
    if f.flag("is_outproj_norm")?.unwrap_or(false) {
        return Err(f.unsupported("a norm before the output projection of Mamba3 is not supported"));
    }
    if f.size("ngroups")?.is_some_and(|groups| groups != 1) {
        return Err(f.unsupported("several groups of keys in Mamba3 are not supported; supported: 1"));
    }
    let fraction = f.float("rope_fraction")?.unwrap_or(0.5);
    if ![0.5, 1.0].contains(&fraction) {
        return Err(f.unsupported(format!("rope_fraction {fraction} is not supported; supported: 0.5, 1")));
    }
    let ranks = match f.flag("is_mimo")?.unwrap_or(false) {
        true => Some(f.size("mimo_rank")?.unwrap_or(4)),
        false => None,
    };
    let quarters = if fraction == 1.0 { 2 } else { 4 };
    if ranks.is_some() && !state.is_multiple_of(quarters) {
        let what =
            format!("a state of {state} does not divide by {quarters}, which turned halves of keys need");
        return Err(Error::Inconsistent(what));
    }
    let number = |field, default| Ok::<_, Error>(f.float(field)?.unwrap_or(default));
    c.mamba3 = Some(Mamba3 {
        heads: inner / head_dim,
        head_dim,
        state,
        ranks,
        angles: angles(state, fraction),
        rate_floor: number("A_floor", 1e-4)?,
        dt_init: (number("time_step_min", 0.001)?, number("time_step_max", 0.1)?),
    });
    c.init_std = number("initializer_range", 0.1)?;
    c.position = Position::None;
    (c.heads, c.groups, c.head_dim) = (0, 0, 0);
    let layer = Layer { mixer: Mixer::Mamba3, feed: Feed::None, ..Layer::default() };
    c.pattern = vec![layer; c.layers];
    Ok(())
}

pub(super) fn write(w: &mut Writer, c: &ModelConfig) {
    let Some(m) = &c.mamba3 else { return };
    let fraction = [0.5, 1.0].into_iter().find(|&x| angles(m.state, x) == m.angles).unwrap_or(0.5);
    w.set("expand", json!(m.inner() / c.hidden.max(1)));
    w.set("head_dim", json!(m.head_dim));
    w.set("state_size", json!(m.state));
    w.set("is_mimo", json!(m.ranks.is_some()));
    if let Some(ranks) = m.ranks {
        w.set("mimo_rank", json!(ranks));
    }
    w.set("rope_fraction", json!(fraction));
    w.set("A_floor", json!(m.rate_floor));
    w.set("time_step_min", json!(m.dt_init.0));
    w.set("time_step_max", json!(m.dt_init.1));
}

//! How ranks share the parts of a model, and where they cannot.
//!
//! One table says for each part what tensor, context and expert parallelism do with it. The checks below refuse what it
//! refuses, and `docs/reference/parity.md` is made of it.

use ms_core::Axis;

use crate::parts::{Attention, Feed, Mixer};
use crate::{Error, ModelConfig, QkNorm, Result};

/// What an axis of parallelism does with a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// Ranks share it so.
    Shared(&'static str),
    /// Context-parallel ranks share it so where each gathers what it needs of the others' tokens; otherwise it is refused.
    Gathered {
        /// How they share it.
        how: &'static str,
        /// Why not otherwise.
        otherwise: &'static str,
    },
    /// The axis has nothing to do with it.
    Unconcerned,
    /// It is refused, for this reason.
    Refused(&'static str),
}

/// A part of models and how ranks share it.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// The part.
    pub part: &'static str,
    /// Tensor parallelism.
    pub tp: How,
    /// Context parallelism.
    pub cp: How,
    /// Expert parallelism.
    pub ep: How,
    has: fn(&ModelConfig) -> bool,
    /// What of a model must divide among the ranks along an axis, where the part is shared.
    divides: fn(&ModelConfig, Axis) -> Vec<(&'static str, usize)>,
}

impl Rule {
    /// What `axis` does with the part; data and pipeline parallelism leave parts whole.
    pub fn along(&self, axis: Axis) -> How {
        match axis {
            Axis::Tp => self.tp,
            Axis::Cp => self.cp,
            Axis::Ep => self.ep,
            Axis::Dp | Axis::Pp => How::Unconcerned,
        }
    }
}

const UNCONCERNED: How = How::Unconcerned;

/// Why rings and exchanges of heads do not serve attention that picks or pools its keys.
const ONLY_GATHERED: &str = "a query picks among all keys before it, and windows reach over ranks: keys are gathered (kvallgather_cp_algo), not passed around, nor are heads exchanged for them";

fn nothing(_: &ModelConfig, _: Axis) -> Vec<(&'static str, usize)> {
    Vec::new()
}

fn is_grouped(c: &ModelConfig) -> bool {
    c.has(Mixer::Attention) && matches!(c.attention, Attention::Grouped)
}

fn is_latent(c: &ModelConfig) -> bool {
    c.has(Mixer::Attention) && matches!(c.attention, Attention::Latent(_))
}

/// Query heads, and where key/value heads do not divide the rows that ranks project in their stead.
fn heads(c: &ModelConfig, axis: Axis) -> Vec<(&'static str, usize)> {
    if axis != Axis::Tp {
        return Vec::new();
    }
    let mut sizes = vec![("query heads", c.heads)];
    sizes.extend(c.windowed.iter().map(|w| ("query heads of windowed layers", w.heads)));
    sizes
}

/// The parts of all models.
pub const RULES: [Rule; 19] = [
    Rule {
        part: "grouped attention (rotary, ALiBi, windows, sinks, softcap, gates)",
        tp: How::Shared(
            "heads; where key/value heads do not divide, ranks hand each other what their heads need",
        ),
        cp: How::Shared("ring, Ulysses, hybrid, gathered"),
        ep: UNCONCERNED,
        has: is_grouped,
        divides: heads,
    },
    Rule {
        part: "norms over whole projections",
        tp: How::Shared("heads; statistics are summed"),
        cp: How::Shared("tokens"),
        ep: UNCONCERNED,
        has: |c| c.qk_norm == QkNorm::WholeProjection,
        divides: nothing,
    },
    Rule {
        part: "latent attention",
        tp: How::Shared("heads; latents are made on shares of the tokens"),
        cp: How::Shared("as grouped attention"),
        ep: UNCONCERNED,
        has: is_latent,
        divides: heads,
    },
    Rule {
        part: "sparse attention",
        tp: How::Shared("every rank scores all keys"),
        cp: How::Gathered {
            how: "gathered: latents and the indexer's keys; queries pick among the keys of whole documents",
            otherwise: ONLY_GATHERED,
        },
        ep: UNCONCERNED,
        has: |c| c.indexer.is_some(),
        divides: nothing,
    },
    Rule {
        part: "attention to pooled entries",
        tp: How::Shared("heads and groups of outputs"),
        cp: How::Gathered {
            how: "gathered: rows of tokens; every rank pools the windows of whole documents",
            otherwise: ONLY_GATHERED,
        },
        ep: UNCONCERNED,
        has: |c| c.compressed().is_some(),
        divides: |c, axis| match (axis, c.compressed()) {
            (Axis::Tp, Some(a)) => vec![("groups of outputs", a.out_groups)],
            _ => Vec::new(),
        },
    },
    Rule {
        part: "Mamba2",
        tp: How::Shared("groups of heads"),
        cp: How::Shared("heads for tokens; a group's keys are copied where groups do not divide"),
        ep: UNCONCERNED,
        has: |c| c.mamba2.is_some(),
        divides: |c, axis| match (axis, &c.mamba2) {
            (Axis::Tp, Some(m)) => vec![("state-space groups", m.groups)],
            (Axis::Cp, Some(m)) => vec![("state-space heads of a rank", m.heads)],
            _ => Vec::new(),
        },
    },
    Rule {
        part: "gated delta net",
        tp: How::Shared("key heads with the value heads that use them"),
        cp: How::Shared("value heads for tokens; their keys are copied where key heads do not divide"),
        ep: UNCONCERNED,
        has: |c| c.gated_delta.is_some(),
        divides: |c, axis| match (axis, &c.gated_delta) {
            (Axis::Tp, Some(g)) => vec![("key heads of the gated delta net", g.key_heads)],
            (Axis::Cp, Some(g)) => vec![("value heads of a rank's gated delta net", g.value_heads)],
            _ => Vec::new(),
        },
    },
    Rule {
        part: "a trapezoidal mixer (Mamba3)",
        tp: How::Shared("heads; every rank makes the keys, queries and angles that all share"),
        cp: How::Shared("heads for tokens, with copies of what they share"),
        ep: UNCONCERNED,
        has: |c| c.mamba3.is_some(),
        divides: |c, axis| match (axis, &c.mamba3) {
            (Axis::Tp, Some(m)) => vec![("trapezoidal heads", m.heads)],
            (Axis::Cp, Some(m)) => vec![("trapezoidal heads of a rank", m.heads)],
            _ => Vec::new(),
        },
    },
    Rule {
        part: "dense networks",
        tp: How::Shared("columns, then rows"),
        cp: How::Shared("tokens"),
        ep: UNCONCERNED,
        has: |c| c.has_feed(Feed::Dense),
        divides: |c, axis| if axis == Axis::Tp { vec![("ffn size", c.ffn)] } else { Vec::new() },
    },
    Rule {
        part: "experts",
        tp: How::Shared("as dense networks, or whole experts on tensor-parallel ranks"),
        cp: How::Shared("tokens"),
        ep: How::Shared("experts"),
        has: |c| c.moe.is_some(),
        divides: |c, axis| match (axis, &c.moe) {
            (Axis::Ep, Some(moe)) => vec![("experts", moe.experts)],
            _ => Vec::new(),
        },
    },
    Rule {
        part: "routers and their losses",
        tp: How::Shared("every rank routes the tokens of its experts' inputs"),
        cp: How::Shared("tokens; the load is counted over all ranks"),
        ep: How::Shared("tokens"),
        has: |c| c.moe.is_some(),
        divides: nothing,
    },
    Rule {
        part: "shared experts",
        tp: How::Shared("as dense networks"),
        cp: How::Shared("tokens"),
        ep: UNCONCERNED,
        has: |c| c.moe.as_ref().is_some_and(|moe| moe.shared.is_some()),
        divides: |c, axis| match (axis, c.moe.as_ref().and_then(|moe| moe.shared)) {
            (Axis::Tp, Some(shared)) => vec![("shared expert ffn size", shared.ffn)],
            _ => Vec::new(),
        },
    },
    Rule {
        part: "experts without weights",
        tp: How::Shared("one of the ranks that share an expert adds the tokens"),
        cp: How::Shared("tokens"),
        ep: How::Shared("tokens stay on their rank"),
        has: |c| c.moe.as_ref().is_some_and(|moe| moe.zero_experts > 0),
        divides: nothing,
    },
    Rule {
        part: "hyper-connections",
        tp: How::Shared("shares of the tokens"),
        cp: How::Shared("tokens"),
        ep: UNCONCERNED,
        has: |c| c.hyper.is_some(),
        divides: nothing,
    },
    Rule {
        part: "prediction modules",
        tp: How::Shared("as layers; the joint projection by columns"),
        cp: How::Shared("rows are shifted whole, then cut"),
        ep: How::Shared("as layers"),
        has: |c| c.mtp > 0,
        divides: |c, axis| match axis {
            Axis::Tp => {
                vec![("hidden size, which the joint projection of a prediction module makes,", c.hidden)]
            }
            _ => Vec::new(),
        },
    },
    Rule {
        part: "norms",
        tp: How::Shared("shares of the tokens with sequence parallelism"),
        cp: How::Shared("tokens"),
        ep: UNCONCERNED,
        has: |_| true,
        divides: nothing,
    },
    Rule {
        part: "embedding, output layer and loss",
        tp: How::Shared("rows of the vocabulary"),
        cp: How::Shared("tokens"),
        ep: UNCONCERNED,
        has: |_| true,
        divides: |c, axis| match axis {
            Axis::Tp => vec![("padded vocabulary", c.padded_vocab)],
            _ => Vec::new(),
        },
    },
    Rule {
        part: "dropout of the stream",
        tp: How::Shared("drawn by token and column"),
        cp: How::Shared("drawn by token and column"),
        ep: UNCONCERNED,
        has: |_| true,
        divides: nothing,
    },
    Rule {
        part: "dropout of attention's weights",
        tp: How::Shared("drawn by query, head and distance"),
        cp: How::Shared("drawn by query, head and distance"),
        ep: UNCONCERNED,
        has: |c| c.indexer.is_none() && c.compressed().is_none(),
        divides: nothing,
    },
];

/// The rules of the parts that a model has.
pub fn rules(config: &ModelConfig) -> impl Iterator<Item = &'static Rule> + '_ {
    RULES.iter().filter(|rule| (rule.has)(config))
}

/// Checks that `ranks` along `axis` can share every part, of which a rank has already one of `cut` pieces; `gathered`: they
/// gather what they need of each other's tokens.
fn check(config: &ModelConfig, axis: Axis, ranks: usize, cut: usize, gathered: bool) -> Result<()> {
    for rule in rules(config) {
        let refused = match rule.along(axis) {
            How::Refused(reason) => Some(reason),
            How::Gathered { otherwise, .. } if !gathered => Some(otherwise),
            _ => None,
        };
        if let (Some(reason), true) = (refused, ranks > 1) {
            return Err(Error::Rule { part: rule.part, axis, ranks, reason });
        }
        for (what, size) in (rule.divides)(config, axis) {
            let size = size / cut.max(1);
            if ranks == 0 || !size.is_multiple_of(ranks) {
                return Err(Error::Cut { what, size, axis, ranks });
            }
        }
    }
    Ok(())
}

/// Checks that a model can be cut by `tp` ranks: heads stay whole and everything divides.
///
/// # Errors
/// [`Error::Cut`] naming what does not divide, [`Error::Rule`] with the part that cannot be cut, and why.
pub fn check_cut(config: &ModelConfig, tp: usize) -> Result<()> {
    let c = config;
    check(c, Axis::Tp, tp, 1, false)?;
    if !c.has(Mixer::Attention) || c.compressed().is_some() {
        return Ok(());
    }
    // Where key/value heads do not divide, ranks hand each other keys and values; each projects as much of them.
    let kinds = [(c.heads, c.groups)].into_iter().chain(c.windowed.iter().map(|w| (w.heads, w.groups)));
    for (heads, groups) in kinds.filter(|(_, groups)| !groups.is_multiple_of(tp)) {
        let (what, size) = match c.scores.output_gate {
            true => ("rows of the projection of keys", groups * c.head_dim),
            false => ("rows of the packed projection", (heads + 2 * groups) * c.head_dim),
        };
        if !size.is_multiple_of(tp) {
            return Err(Error::Cut { what, size, axis: Axis::Tp, ranks: tp });
        }
    }
    Ok(())
}

/// Checks that key/value heads stay whole on `tp` ranks, which Megatron-core 0.8 and 0.12 ask for.
///
/// # Errors
/// [`Error::Cut`] with the heads that do not divide.
pub fn check_whole_heads(config: &ModelConfig, tp: usize) -> Result<()> {
    let c = config;
    let grouped = c.has(Mixer::Attention) && c.compressed().is_none();
    let windowed = c.windowed.iter().map(|w| ("key/value heads of windowed layers", w.groups));
    for (what, size) in [("key/value heads", c.groups)].into_iter().chain(windowed) {
        if grouped && (tp == 0 || !size.is_multiple_of(tp)) {
            return Err(Error::Cut { what, size, axis: Axis::Tp, ranks: tp });
        }
    }
    Ok(())
}

/// Checks that experts can be shared out to `ep` ranks and each cut by `etp`.
///
/// # Errors
/// [`Error::Cut`] naming what does not divide.
pub fn check_expert_cut(config: &ModelConfig, ep: usize, etp: usize) -> Result<()> {
    let Some(moe) = &config.moe else {
        return match ep {
            1 => Ok(()),
            _ => Err(Error::Cut { what: "experts", size: 0, axis: Axis::Ep, ranks: ep }),
        };
    };
    check(config, Axis::Ep, ep, 1, false)?;
    match etp == 0 || !moe.ffn.is_multiple_of(etp) {
        true => Err(Error::Cut { what: "expert ffn size", size: moe.ffn, axis: Axis::Tp, ranks: etp }),
        false => Ok(()),
    }
}

/// Checks that context-parallel ranks can share the sequences of a model; `gathered`: each gathers the keys of all.
///
/// # Errors
/// [`Error::Rule`] with the part that sees whole sequences in a way that this version cannot share, and why; [`Error::Cut`]
/// where heads of mixers with a state do not divide.
pub fn check_context(config: &ModelConfig, tp: usize, cp: usize, gathered: bool) -> Result<()> {
    if cp == 1 { Ok(()) } else { check(config, Axis::Cp, cp, tp, gathered) }
}

/// The rules as a table of Markdown.
pub fn table() -> String {
    let cell = |how: How| match how {
        How::Shared(how) => how.to_owned(),
        How::Gathered { how, otherwise } => format!("{how}; otherwise refused: {otherwise}"),
        How::Unconcerned => "-".to_owned(),
        How::Refused(reason) => format!("refused: {reason}"),
    };
    let row = |r: &Rule| format!("| {} | {} | {} | {} |\n", r.part, cell(r.tp), cell(r.cp), cell(r.ep));
    let rows: String = RULES.iter().map(row).collect();
    format!("| part | tensor parallel | context parallel | expert parallel |\n|---|---|---|---|\n{rows}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parts::{GatedDelta, Indexer, Layer};

    fn model() -> ModelConfig {
        ModelConfig {
            layers: 2,
            hidden: 16,
            ffn: 32,
            heads: 4,
            groups: 2,
            head_dim: 4,
            vocab: 64,
            padded_vocab: 64,
            ..ModelConfig::default()
        }
    }

    #[test]
    fn what_the_table_refuses_is_refused_with_its_reason() {
        let scorer = Indexer { heads: 2, head_dim: 4, top_k: 2, interleaved: false };
        let sparse = ModelConfig { indexer: Some(scorer), ..model() };
        let said = check_context(&sparse, 1, 2, false).unwrap_err().to_string();
        assert_eq!(said, format!("sparse attention cannot be shared by cp 2: {ONLY_GATHERED}"));
        assert!(said.contains("kvallgather_cp_algo"));
        check_context(&sparse, 1, 2, true).unwrap();
        check_context(&sparse, 1, 1, false).unwrap();
        check_cut(&sparse, 2).unwrap();
        for (config, tp) in [(model(), 3), (ModelConfig { heads: 3, groups: 3, ..model() }, 2)] {
            assert!(matches!(check_cut(&config, tp), Err(Error::Cut { axis: Axis::Tp, .. })));
        }
    }

    #[test]
    fn heads_of_mixers_with_a_state_divide_among_both_axes() {
        let mixer = Layer { mixer: Mixer::GatedDelta, ..Layer::default() };
        let sizes = GatedDelta { key_heads: 4, value_heads: 8, key_dim: 4, value_dim: 4, conv: 3 };
        let config =
            ModelConfig { gated_delta: Some(sizes), pattern: vec![mixer, Layer::default()], ..model() };
        check_context(&config, 2, 2, false).unwrap();
        // Two key heads and four value heads on each tensor-parallel rank.
        check_context(&config, 2, 4, true).unwrap();
        let said = check_context(&config, 2, 8, true).unwrap_err().to_string();
        assert!(said.contains("value heads of a rank's gated delta net"), "{said}");
        assert_eq!(rules(&config).filter(|rule| rule.part == "gated delta net").count(), 1);
        assert_eq!(rules(&model()).filter(|rule| rule.part == "gated delta net").count(), 0);
    }

    #[test]
    fn the_table_names_every_part_once() {
        let mut parts: Vec<&str> = RULES.iter().map(|rule| rule.part).collect();
        parts.sort_unstable();
        parts.dedup();
        assert_eq!(parts.len(), RULES.len());
        assert_eq!(table().lines().count(), RULES.len() + 2);
    }
}

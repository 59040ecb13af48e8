//! The table of sharding rules: how ranks share the parts of a model, and where they cannot.
//!
//! For each part, the table says what tensor, context and expert parallelism do with it. The checks below refuse what it
//! refuses, and `docs/reference/parity.md` is generated from it.

use ms_core::Axis;

use crate::parts::{PARTS, RECURRENCES, dense, ends, experts, grouped, prediction};
use crate::sharding_rule::{AxisRule, ShardingRule, UNCONCERNED, nothing};
use crate::{Error, Mixer, ModelConfig, Result};

/// How ranks share attention of any kind.
static OF_ATTENTION: [ShardingRule; 2] = [grouped::RULE, grouped::WHOLE_PROJECTIONS];

/// How they share other parts than mixers.
static OF_OTHERS: [ShardingRule; 10] = [
    dense::RULE,
    experts::RULE,
    experts::ROUTERS,
    experts::SHARED,
    experts::WITHOUT_WEIGHTS,
    prediction::RULE,
    ShardingRule {
        part: "norms",
        tp: AxisRule::Shared("shares of the tokens with sequence parallelism"),
        cp: AxisRule::Shared("tokens"),
        ep: UNCONCERNED,
        has: |_| true,
        divides: nothing,
    },
    ends::RULE,
    ShardingRule {
        part: "dropout of the stream",
        tp: AxisRule::Shared("drawn by token and column"),
        cp: AxisRule::Shared("drawn by token and column"),
        ep: UNCONCERNED,
        has: |_| true,
        divides: nothing,
    },
    ShardingRule {
        part: "dropout of attention's weights",
        tp: AxisRule::Shared("drawn by query, head and distance"),
        cp: AxisRule::Shared("drawn by query, head and distance"),
        ep: UNCONCERNED,
        has: ModelConfig::drops_weights,
        divides: nothing,
    },
];

/// The parts of all models; each part's file says how ranks share it.
fn all() -> impl Iterator<Item = &'static ShardingRule> {
    let parts = PARTS.into_iter().map(|part| &part.rule);
    OF_ATTENTION.iter().chain(parts).chain(RECURRENCES.into_iter().map(|kind| &kind.rule)).chain(&OF_OTHERS)
}

/// The rules of the parts that a model has.
pub fn rules(config: &ModelConfig) -> impl Iterator<Item = &'static ShardingRule> + '_ {
    all().filter(|rule| (rule.has)(config))
}

/// Checks that `ranks` along `axis` can share every part, of which a rank already holds one of `cut` shards; `whole`: each
/// sees whole documents.
fn check(config: &ModelConfig, axis: Axis, ranks: usize, cut: usize, whole: bool) -> Result<()> {
    for rule in rules(config) {
        let refused = match rule.along(axis) {
            AxisRule::Refused(reason) => Some(reason),
            AxisRule::WholeDocuments { otherwise, .. } if !whole => Some(otherwise),
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

/// Checks that `tp` ranks can shard a model: heads stay whole and everything divides.
///
/// # Errors
/// [`Error::Cut`] naming what does not divide, [`Error::Rule`] with the part that cannot be sharded, and why.
pub fn check_cut(config: &ModelConfig, tp: usize) -> Result<()> {
    let c = config;
    check(c, Axis::Tp, tp, 1, false)?;
    if !c.has(Mixer::Attention) || !c.keys_by_head() {
        return Ok(());
    }
    // Where key/value heads do not divide, ranks hand each other keys and values; each projects as much of them.
    let kinds = [(c.heads, c.groups)].into_iter().chain(c.windowed.iter().map(|w| (w.heads, w.groups)));
    for (heads, groups) in kinds.filter(|(_, groups)| !groups.is_multiple_of(tp)) {
        let (what, size) = if c.scores.output_gate {
            ("rows of the projection of keys (upstream wants whole key/value heads)", groups * c.head_dim)
        } else {
            (
                "rows of queries, keys and values (upstream wants whole key/value heads)",
                (heads + 2 * groups) * c.head_dim,
            )
        };
        if !size.is_multiple_of(tp) {
            return Err(Error::Cut { what, size, axis: Axis::Tp, ranks: tp });
        }
    }
    Ok(())
}

/// Checks that key/value heads stay whole on `tp` ranks, which Megatron-core 0.8 and 0.12 require.
///
/// # Errors
/// [`Error::Cut`] with the heads that do not divide.
pub fn check_whole_heads(config: &ModelConfig, tp: usize) -> Result<()> {
    let c = config;
    let grouped = c.has(Mixer::Attention) && c.keys_by_head();
    let windowed = c.windowed.iter().map(|w| ("key/value heads of windowed layers", w.groups));
    for (what, size) in [("key/value heads", c.groups)].into_iter().chain(windowed) {
        if grouped && (tp == 0 || !size.is_multiple_of(tp)) {
            return Err(Error::Cut { what, size, axis: Axis::Tp, ranks: tp });
        }
    }
    Ok(())
}

/// Checks that experts can be distributed over `ep` ranks and each sharded by `etp`.
///
/// # Errors
/// [`Error::Cut`] naming what does not divide, [`Error::Rule`] if there are no experts.
pub fn check_expert_cut(config: &ModelConfig, ep: usize, etp: usize) -> Result<()> {
    let Some(moe) = &config.moe else {
        let (part, reason) = ("a model without experts", "there is nothing to distribute");
        return match ep {
            1 => Ok(()),
            _ => Err(Error::Rule { part, axis: Axis::Ep, ranks: ep, reason }),
        };
    };
    check(config, Axis::Ep, ep, 1, false)?;
    if etp == 0 || !moe.ffn.is_multiple_of(etp) {
        Err(Error::Cut { what: "expert ffn size", size: moe.ffn, axis: Axis::Tp, ranks: etp })
    } else {
        Ok(())
    }
}

/// Checks that context-parallel ranks can share the sequences of a model; `whole`: each sees whole documents, since keys of
/// all are gathered or heads exchanged for tokens.
///
/// # Errors
/// [`Error::Rule`] with the part that sees whole sequences in a way that this version cannot share, and why; [`Error::Cut`]
/// where heads of mixers with a state do not divide.
pub fn check_context(config: &ModelConfig, tp: usize, cp: usize, whole: bool) -> Result<()> {
    if cp == 1 { Ok(()) } else { check(config, Axis::Cp, cp, tp, whole) }
}

/// The rules as a table of Markdown.
pub fn table() -> String {
    let cell = |how: AxisRule| match how {
        AxisRule::Shared(how) => how.to_owned(),
        AxisRule::WholeDocuments { how, otherwise } => format!("{how}; otherwise refused: {otherwise}"),
        AxisRule::Unconcerned => "-".to_owned(),
        AxisRule::Refused(reason) => format!("refused: {reason}"),
    };
    let row =
        |r: &ShardingRule| format!("| {} | {} | {} | {} |\n", r.part, cell(r.tp), cell(r.cp), cell(r.ep));
    let rows: String = all().map(row).collect();
    format!("| part | tensor parallel | context parallel | expert parallel |\n|---|---|---|---|\n{rows}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sharding_rule::NO_RING;
    use crate::sizes::{GatedDelta, Indexer, Layer};

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
        assert_eq!(said, format!("sparse attention cannot be shared by cp 2: {NO_RING}"));
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
        let mut parts: Vec<&str> = all().map(|rule| rule.part).collect();
        parts.sort_unstable();
        parts.dedup();
        assert_eq!(parts.len(), all().count());
        assert_eq!(table().lines().count(), parts.len() + 2);
    }
}

//! Validation: whether the sizes of a model are consistent.

use crate::error::{divides, lacks, needs};
use crate::parts::{PARTS, RECURRENCES};
use crate::sizes::{
    Activation, Attention, Block, Feed, GroupScore, Layer, Mixer, Norm, Position, QkNorm, Scales, Score,
    Scores,
};
use crate::{ArgNames, Error, ModelConfig, Result};

/// A limit far above any model, so that no product of two sizes can overflow.
const MOST: usize = 1 << 28;

/// The same for what is listed one by one.
pub(crate) const MOST_PARTS: usize = 1 << 14;

/// The same for the elements of one parameter: sizes that are each in range may make up more than there are addresses.
const MOST_ELEMENTS: usize = 1 << 42;

fn within(args: ArgNames, name: &str, size: usize, most: usize) -> Result<()> {
    if (1..=most).contains(&size) {
        Ok(())
    } else {
        Err(Error::of(args, format!("{name}: expected 1 to {most}, got {size}")))
    }
}

/// What heads are made of, and groups of experts.
const HEADS: ArgNames = &[&["num_attention_heads"], &["num_query_groups"]];
const GROUPS: ArgNames = &[&["num_experts"], &["moe_router_num_groups", "n_group"]];

/// Heads without a size of their own that do not share the hidden size.
pub(crate) fn heads_of_hidden(hidden: usize, heads: usize) -> Error {
    let args: ArgNames = &[&["hidden_size"], &["num_attention_heads"]];
    Error::of(args, format!("hidden size {hidden} is not divisible by {heads} heads"))
}

impl ModelConfig {
    /// A description of the first part that a plain dense decoder does not have; `None` for a plain one: pre-norm, rotary,
    /// gated by SiLU, RMSNorm, grouped attention, one kind of layer.
    pub fn beyond_plain(&self) -> Option<&'static str> {
        let first = [
            (self.activation != Activation::Swiglu, "another activation than swiglu"),
            (self.norm != Norm::Rms, "another norm than RMSNorm"),
            (self.bias.head, "a bias in the output layer"),
            (
                !matches!(self.qk_norm, QkNorm::None | QkNorm::PerHead),
                "norms of queries and keys in another place",
            ),
            (self.position != Position::Rope, "positions that are not rotary"),
            (self.rope.depends_on_length(), "rotary frequencies that depend on the length"),
        ];
        let parts = PARTS.into_iter().map(|part| ((part.there)(self), part.words));
        let others = [
            (self.scores != Scores::default(), "a score scale, softcap, sinks or an output gate"),
            (self.windowed.is_some() || !self.pattern.is_empty(), "layers of several kinds"),
            (self.moe.is_some(), "a mixture of experts"),
            (self.block != Block::Pre, "post-norms or shortcut blocks"),
            (self.embedding_norm, "a norm after the embedding"),
            (self.unit_head_rows, "a normalised output layer"),
            (self.scales != Scales::default(), "scale factors"),
            (self.logit_softcap.is_some(), "a softcap on the logits"),
            (self.mtp > 0, "multi-token prediction"),
            (self.reward, "a reward head"),
        ];
        first.into_iter().chain(parts).chain(others).find(|p| p.0).map(|p| p.1)
    }

    /// Checks that open groups hold as many experts as a token takes. A model without is converted, but not computed.
    ///
    /// # Errors
    /// [`Error::Inconsistent`] naming the numbers.
    pub fn check_open_experts(&self) -> Result<()> {
        let Some((m, g)) = self.moe.as_ref().and_then(|m| Some((m, m.router.groups.as_ref()?))) else {
            return Ok(());
        };
        let (of_group, open) = ((m.experts + m.zero_experts) / g.groups.max(1), g.keep);
        if m.top_k <= open * of_group {
            return Ok(());
        }
        Err(Error::of(
            &[
                &["moe_router_topk"],
                &["moe_router_num_groups", "n_group"],
                &["moe_router_group_topk", "topk_group"],
            ],
            format!(
                "expected at most {} experts per token, as {open} open groups of {of_group} have, found {}",
                open * of_group,
                m.top_k
            ),
        ))
    }

    /// Checks that the sizes fit together.
    ///
    /// # Errors
    /// [`Error::Inconsistent`] naming the sizes.
    pub fn validate(mut self) -> Result<Self> {
        if self.pattern.iter().all(|l| *l == Layer::default()) {
            self.pattern.clear(); // one spelling, so that equal models are equal values
        }
        let (hidden, heads) = (self.hidden, self.heads);
        if self.head_dim == 0 && heads > 0 && !hidden.is_multiple_of(heads) {
            return Err(heads_of_hidden(hidden, heads));
        }
        for (name, size) in self.sizes() {
            let most = match name {
                "layers" | "experts" => MOST_PARTS,
                "streams" => 64,
                "rounds of streams" => 1000,
                _ => MOST,
            };
            within(&[], name, size, most)?;
        }
        let states = || RECURRENCES.into_iter().filter_map(|kind| Some((kind, (kind.of)(&self)?)));
        for (kind, sizes) in states() {
            let what = format!("size of the {}", kind.what);
            sizes.sizes().into_iter().try_for_each(|size| within(kind.args, &what, size, MOST))?;
        }
        for (name, size, most) in [
            ("positions", self.max_positions, MOST),
            ("ffn size", self.ffn, MOST), // also where no layer has it: FLOPs are counted by it
            ("prediction layers", self.mtp, MOST_PARTS),
            ("empty slots", self.empty_slots, MOST_PARTS),
        ] {
            if size > most {
                return Err(Error::inconsistent(format!("{name}: expected at most {most}, got {size}")));
            }
        }
        if self.has(Mixer::Attention) {
            divides(HEADS, "query heads", self.heads, "key/value heads", self.groups)?;
        }
        if let Some(w) = &self.windowed {
            divides(&[], "query heads of windowed layers", w.heads, "key/value heads", w.groups)?;
            if self.sliding_window.is_none() {
                return Err(Error::inconsistent(
                    "layers differ by a sliding window, which the model does not have",
                ));
            }
        }
        let limits = self.pattern.iter().flat_map(|l| [l.limits.experts, l.limits.dense]).flatten();
        for limit in limits {
            if limit.is_nan() || limit <= 0.0 || self.activation != Activation::Swiglu {
                return Err(Error::inconsistent(format!(
                    "limit {limit} of an activation: expected more than 0, and SwiGLU"
                )));
            }
        }
        let (padded, vocab) = (self.padded_vocab, self.vocab);
        if padded < vocab {
            return Err(Error::inconsistent(format!(
                "padded vocabulary {padded} is smaller than the vocabulary {vocab}"
            )));
        }
        if padded > MOST {
            return Err(Error::inconsistent(format!(
                "padded vocabulary: expected at most {MOST}, got {padded}"
            )));
        }
        if !self.pattern.is_empty() && self.pattern.len() != self.layers {
            let (n, l) = (self.pattern.len(), self.layers);
            return Err(Error::inconsistent(format!("{n} layers are described, the model has {l}")));
        }
        let attends = |&l: &usize| matches!(self.layer(l).mixer, Mixer::Attention | Mixer::SharedKv);
        if let Some(first) = (0..self.layers).find(attends)
            && self.layer(first).mixer == Mixer::SharedKv
        {
            return Err(Error::of(
                &[&["cla_share_factor"], &["noop_layers"]],
                format!("layer {first} uses the keys and values of a layer before it, found none"),
            ));
        }
        if self.reward && self.mtp > 0 {
            return Err(Error::inconsistent("a reward model has no prediction layers"));
        }
        if self.block == Block::Shortcut && self.mtp > 0 {
            // Upstream leaves out the modules that LongCat's files have: its `modeling_longcat_flash.py` passes over `model.mtp`.
            return Err(Error::inconsistent("a model of shortcut blocks has no prediction layers"));
        }
        needs(!self.has_feed(Feed::Moe) || self.moe.is_some(), "experts")?;
        needs(self.block != Block::Shortcut || self.moe.is_some(), "experts")?;
        for kind in RECURRENCES.iter().filter(|kind| self.has(kind.mixer)) {
            (kind.of)(&self).ok_or_else(|| Error::of(kind.args, lacks(&format!("a {}", kind.what))))?;
        }
        if let Some(m) = &self.moe {
            let (k, e) = (m.top_k, m.experts + m.zero_experts);
            if k > e {
                return Err(Error::of(
                    &[&["moe_router_topk"], &["num_experts"]],
                    format!("{k} experts per token of {e}"),
                ));
            }
            if matches!(m.router.score, Score::SparseMixer { .. }) && k != 2 {
                return Err(Error::of(
                    &[&["moe_router_topk"]],
                    format!("sparsemixer_topk chooses 2 experts per token, found {k}"),
                ));
            }
            if let Some(g) = &m.router.groups {
                divides(GROUPS, "experts", m.experts, "groups", g.groups)?;
                let args: ArgNames = &[&["num_zero_experts"], &["moe_router_num_groups", "n_group"]];
                divides(args, "experts without weights", m.zero_experts, "groups", g.groups)?;
                if g.keep == 0 || g.keep > g.groups {
                    let (keep, groups) = (g.keep, g.groups);
                    return Err(Error::of(
                        &[&["moe_router_group_topk", "topk_group"]],
                        format!("{keep} open groups of {groups} groups of experts"),
                    ));
                }
                let all = e / g.groups.max(1);
                if let GroupScore::Best(count) = g.by
                    && (count == 0 || (count > 2 && count > all))
                {
                    return Err(Error::of(
                        &[&["moe_router_topk"], &["moe_router_group_topk", "topk_group"]],
                        format!(
                            "groups of {all} experts are judged by their best: expected 1 to {all} of them, found {count}"
                        ),
                    ));
                }
                if g.by == GroupScore::Alike {
                    let args: ArgNames = &[&["moe_router_topk"], &["moe_router_num_groups", "n_group"]];
                    divides(args, "experts per token", m.top_k, "groups that give as many each", g.groups)?;
                }
            }
        }
        if self.attention != Attention::Grouped && self.position != Position::Rope {
            let what = "attention by latents or to pooled entries: expected rotary positions";
            return Err(Error::of(&[&["position_embedding_type"]], what));
        }
        PARTS.iter().try_for_each(|part| (part.check)(&self))?;
        let attends = |l: &Layer| matches!(l.mixer, Mixer::Attention | Mixer::None);
        if self.block == Block::Post && !self.pattern.iter().all(attends) {
            let what = "layers without norms before their sublayers: expected attention";
            return Err(Error::inconsistent(what));
        }
        states().try_for_each(|(_, sizes)| sizes.check())?;
        let windowed = self.windowed.as_ref().map(|w| w.rope.rotated(self.head_dim));
        let rotates = self.position == Position::Rope && self.has(Mixer::Attention);
        for rotated in [self.rotated()].into_iter().chain(windowed) {
            let most = self.most_rotated();
            if rotates && (rotated == 0 || !rotated.is_multiple_of(2) || rotated > most) {
                return Err(Error::of(
                    &[&["rotary_percent", "kv_channels"]],
                    format!("{rotated} rotated elements per head: expected an even number up to {most}"),
                ));
            }
        }
        for spec in crate::params(&self) {
            let elements = spec.shape.iter().try_fold(1usize, |n, &dim| n.checked_mul(dim));
            if elements.is_none_or(|n| n > MOST_ELEMENTS) {
                let (name, shape) = (&spec.name, &spec.shape);
                let what = format!(
                    "{name} of shape {shape:?}: expected at most {MOST_ELEMENTS} elements of a parameter"
                );
                return Err(Error::inconsistent(what));
            }
        }
        Ok(self)
    }

    fn sizes(&self) -> Vec<(&'static str, usize)> {
        let mut sizes =
            vec![("layers", self.layers), ("hidden size", self.hidden), ("vocabulary", self.vocab)];
        if self.has_feed(Feed::Dense) {
            sizes.push(("ffn size", self.ffn));
        }
        if self.has(Mixer::Attention) {
            sizes.extend([
                ("heads", self.heads),
                ("key/value heads", self.groups),
                ("head size", self.head_dim),
            ]);
        }
        if let Some(w) = &self.windowed {
            sizes.extend([("heads of windowed layers", w.heads), ("their key/value heads", w.groups)]);
        }
        PARTS.iter().for_each(|part| sizes.extend((part.sizes)(self)));
        if let Some(m) = &self.moe {
            sizes.extend([
                ("experts", m.experts),
                ("experts", m.zero_experts.max(1)),
                ("experts per token", m.top_k),
                ("expert ffn size", m.ffn),
            ]);
            sizes.push(("shared expert ffn size", m.shared.map_or(1, |s| s.ffn)));
            if let Some(g) = &m.router.groups {
                sizes.extend([("expert groups", g.groups), ("expert groups that stay", g.keep)]);
            }
        }
        sizes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{GroupLimit, Moe, Router};

    #[test]
    fn sizes_in_range_that_make_up_more_elements_than_can_be_counted_are_refused() {
        let sound = ModelConfig { heads: 2, groups: 1, head_dim: 8, ..ModelConfig::tiny() };
        let refused = |config: ModelConfig| config.validate().unwrap_err().to_string();
        let wide = refused(ModelConfig { heads: MOST, groups: MOST, head_dim: MOST, ..sound.clone() });
        assert!(
            wide.contains("linear_proj.weight of shape [16, 72057594037927936]: expected at most"),
            "{wide}"
        );
        let long = refused(ModelConfig { hidden: MOST, ffn: MOST, ..sound.clone() });
        assert!(long.contains("expected at most 4398046511104 elements of a parameter"), "{long}");
        assert!(ModelConfig { hidden: 1 << 20, ffn: 1 << 20, ..sound }.validate().is_ok());
    }

    #[test]
    fn what_may_be_zero_is_limited_too() {
        let sound = ModelConfig { heads: 2, groups: 1, head_dim: 8, ..ModelConfig::tiny() };
        let refused = |config: ModelConfig| config.validate().unwrap_err().to_string();
        for (name, config) in [
            ("prediction layers", ModelConfig { mtp: 1 << 63, ..sound.clone() }),
            ("empty slots", ModelConfig { empty_slots: 1 << 40, ..sound.clone() }),
            ("positions", ModelConfig { max_positions: usize::MAX, ..sound.clone() }),
        ] {
            let said = refused(config);
            assert!(said.contains(&format!("{name}: expected at most")), "{said}");
        }
        // A width that no layer has.
        let router = Router::plain(Score::Softmax);
        let moe = Moe { experts: 4, top_k: 2, ffn: 8, router, shared: None, zero_experts: 0 };
        let experts = Layer { feed: Feed::Moe, ..Layer::default() };
        let pattern = vec![experts; sound.layers];
        let said = refused(ModelConfig { ffn: usize::MAX, moe: Some(moe), pattern, ..sound });
        assert!(said.contains("ffn size: expected at most"), "{said}");
    }

    #[test]
    fn routers_choose_from_all_experts_and_layers_borrow_of_one_before() {
        let refused = |config: ModelConfig| config.validate().err().map(|e| e.to_string());
        let tiny = || ModelConfig { heads: 2, groups: 1, head_dim: 8, ..ModelConfig::tiny() };
        let routed = |zero_experts, groups: Option<usize>, score, top_k| {
            let limit = groups.map(|groups| GroupLimit { groups, keep: 1, by: GroupScore::Best(1) });
            let router = Router { groups: limit, ..Router::plain(score) };
            let moe = Moe { experts: 4, top_k, ffn: 8, router, shared: None, zero_experts };
            refused(ModelConfig { moe: Some(moe), ..tiny() })
        };
        assert_eq!(routed(2, Some(2), Score::Softmax, 2), None);
        let uneven = routed(1, Some(2), Score::Softmax, 2).expect("refused");
        assert!(uneven.contains("1 experts without weights are not divisible by 2 groups"), "{uneven}");
        let sparse = |top_k| routed(0, None, Score::SparseMixer { jitter: 0.01 }, top_k);
        assert_eq!(sparse(2), None);
        let three = sparse(3).expect("refused");
        assert!(three.contains("sparsemixer_topk chooses 2 experts per token, found 3"), "{three}");
        let mixers = |mixers: &[Mixer]| {
            let pattern: Vec<_> = mixers.iter().map(|&mixer| Layer { mixer, ..Layer::default() }).collect();
            refused(ModelConfig { layers: pattern.len(), pattern, ..tiny() })
        };
        assert_eq!(mixers(&[Mixer::Attention, Mixer::SharedKv]), None);
        let first = mixers(&[Mixer::SharedKv, Mixer::Attention]).expect("refused");
        assert!(first.contains("layer 0 uses the keys and values of a layer before it"), "{first}");
    }

    #[test]
    fn a_padded_vocabulary_is_neither_smaller_than_the_vocabulary_nor_too_large() {
        let with = |vocab: usize, padded_vocab: usize| {
            let (layers, hidden, ffn, heads, groups, head_dim) = (1, 8, 8, 2, 2, 4);
            let sizes =
                ModelConfig { layers, hidden, ffn, heads, groups, head_dim, ..ModelConfig::default() };
            ModelConfig { vocab, padded_vocab, ..sizes }.validate().err().map(|e| e.to_string())
        };
        assert_eq!(with(100, 128), None);
        let smaller = with(100, 99).expect("refused");
        assert!(smaller.contains("padded vocabulary 99 is smaller than the vocabulary 100"), "{smaller}");
        let large = with(MOST - 1, MOST + 64).expect("refused");
        assert!(large.contains("padded vocabulary: expected at most 268435456, got 268435520"), "{large}");
    }
}

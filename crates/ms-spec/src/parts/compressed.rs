//! Attention to a window of tokens and to pooled entries of distant ones (DeepSeek-V4). Some of upstream's flags for it have
//! other meanings in latent attention.
//!
//! # Source
//! MindSpeed-LLM (2026), `mindspeed_llm/tasks/models/transformer/deepseek4/csa.py`: which ratio is which kind of layer, and
//! which rotary flags apply.

use ms_core::{Axis, Partition};
use serde_json::json;

use crate::attention_kind::{AttentionKind, Picks};
use crate::description::Description;
use crate::error::{divides, needs};
use crate::field::Field;
use crate::params::{Init, SumGrad, Table};
use crate::part_flag::PartFlag;
use crate::parts::grouped;
use crate::save_policy::LayerSavePolicy;
use crate::saved_bytes::{Activations, MixerBytes, SavedBytes};
use crate::sharding_rule::{AxisRule, NO_RING, ShardingRule, UNCONCERNED};
use crate::sizes::{Attention, Compressed, Layer, Pooled, Scores};
use crate::{Error, ModelConfig, Part, QkNorm, Result, Role, Rope, RopeScaling};

pub(crate) static PART: Description = Description {
    words: "attention to pooled entries",
    there: |c| c.compressed().is_some(),
    rule: RULE,
    arguments: ARGUMENTS,
    flags: FLAGS,
    runs: ("--kv-compress", &[]),
    wrapper: None,
    same_number: &[&["rope_scaling_beta_fast", "beta_fast"], &["rope_scaling_beta_slow", "beta_slow"]],
    sizes,
    check,
    shrink: |c, small, ranks| {
        if let Some(a) = c.compressed() {
            // One or two groups of outputs to a rank, as the model has several or one, of two heads each.
            let out_groups = ranks * a.out_groups.clamp(1, 2);
            (small.heads, small.groups) = (2 * out_groups, c.groups);
            let (q_rank, out_rank) = (a.q_rank.min(16), a.out_rank.min(8));
            small.attention = Attention::Compressed(Compressed { q_rank, out_groups, out_rank, ..a.clone() });
        }
        // So few tokens that short rows have windows, and more than an indexer picks.
        for pooled in small.pattern.iter_mut().filter_map(|layer| layer.pooled.as_mut()) {
            pooled.ratio = pooled.ratio.min(if pooled.picked { 2 } else { 3 });
        }
    },
};

fn sizes(c: &ModelConfig) -> Vec<(&'static str, usize)> {
    let Some(a) = c.compressed() else { return Vec::new() };
    let index = c.indexer.map_or(1, |i| i.heads.saturating_mul(i.head_dim));
    let widths = [c.heads.saturating_mul(c.head_dim), a.out_groups.saturating_mul(a.out_rank), index];
    let widths = widths.map(|n| ("width of attention to entries", n));
    let sizes = [a.q_rank, a.out_groups, a.out_rank].map(|n| ("size of attention to entries", n));
    let ratio = |l: &Layer| l.pooled.map(|p| ("tokens of a pooled entry", p.ratio));
    widths.into_iter().chain(sizes).chain(c.pattern.iter().filter_map(ratio)).collect()
}

fn check(c: &ModelConfig) -> Result<()> {
    let any = |of: fn(Pooled) -> bool| c.pattern.iter().filter_map(|l| l.pooled).any(of);
    if let Some(a) = c.compressed() {
        divides(&[], "query heads", c.heads, "groups of outputs", a.out_groups)?;
        if c.groups != 1 || c.sliding_window.is_none() {
            let what = "attention to pooled entries: expected one key head and a sliding window";
            return Err(Error::inconsistent(what));
        }
    }
    needs(!any(|_| true) || c.compressed().is_some(), "attention to pooled entries")?;
    needs(!any(|p| p.picked) || c.indexer.is_some(), "an indexer")
}

#[rustfmt::skip] // a flag a line
const FLAGS: &[PartFlag] = &[
    PartFlag::new("--beta-fast", "(0,)", "YaRN in layers with pooled entries: number of rotations above which a frequency is not scaled"),
    PartFlag::new("--beta-slow", "(0,)", "YaRN in layers with pooled entries: number of rotations below which a frequency is fully scaled"),
    PartFlag::new("--compress-ratios", "[0,268435456]", "tokens per pooled entry of each layer; 0: sliding window only, 4: an indexer selects entries"),
    PartFlag::new("--compress-rope-theta", "(0,)", "base of the rotary frequencies in layers with pooled entries"),
    PartFlag::new("--kv-compress", "", "attention to a sliding window and pooled entries (DeepSeek-V4)"),
    PartFlag::new("--n-hash-layers", "[0,16384]", "number of first layers that choose experts by a table of tokens instead of a router"),
    PartFlag::new("--o-groups", "[1,16384]", "with --kv-compress: number of groups of heads with output projections of their own"),
    PartFlag::new("--o-lora-rank", "[1,16777216]", "with --kv-compress: width of the output projection of each group of heads"),
    PartFlag::new("--original-seq-len", "[0,268435456]", "YaRN in layers with pooled entries: original context length"),
    PartFlag::new("--rope-factor", "(0,)", "YaRN in layers with pooled entries: scaling factor"),
    PartFlag::new("--sliding-window-size", "[1,268435456]", "with --kv-compress: number of recent keys that a query sees besides pooled entries"),
];

/// What Megatron's arguments say of it.
const ARGUMENTS: &[Field] = &[
    START,
    Field::size("qk_head_dim", |c| pooled(c).is_some().then_some(&mut c.head_dim))
        .or(&["qk_head_dim", "kv_lora_rank"])
        .needed(),
    Field::alias("kv_lora_rank", |c| c.compressed().map(|_| c.head_dim)),
    ROTATED,
    Field::float("rope_theta", |c| pooled(c).is_some().then_some(&mut c.rope.base)),
    Field::float("compress_rope_theta", |c| Some(&mut pooled(c)?.rope.base)),
    FAR,
    Field::size("q_lora_rank", |c| Some(&mut pooled(c)?.q_rank)).needed(),
    Field::size("o_groups", |c| Some(&mut pooled(c)?.out_groups)),
    Field::size("o_lora_rank", |c| Some(&mut pooled(c)?.out_rank)),
    Field::size("sliding_window_size", |c| {
        pooled(c)?;
        c.sliding_window.as_mut()
    }),
    LAYERS,
];

/// Sizes as upstream assumes them.
const START: Field = Field::rule(
    |f, c| {
        if !f.on("kv_compress")? {
            return Ok(());
        }
        c.rope = Rope { interleaved: true, ..Rope::plain(10_000.0) };
        let rope = Rope { base: 40_000.0, ..c.rope.clone() };
        c.attention = Attention::Compressed(Compressed { q_rank: 0, out_groups: 8, out_rank: 1024, rope });
        (c.groups, c.qk_norm) = (1, QkNorm::None);
        c.scores = Scores { sinks: true, ..c.scores };
        c.sliding_window = Some(128);
        Ok(())
    },
    |c, w| {
        if c.compressed().is_some() {
            w.set("kv_compress", json!(true));
        }
    },
);

/// How much of a head is rotated, near and far.
const ROTATED: Field = Field::rule(
    |f, c| {
        let head_dim = c.head_dim;
        let Some(a) = pooled(c) else { return Ok(()) };
        let rotated = f.need_of(&["qk_pos_emb_head_dim", "qk_rope_head_dim"])?;
        let share = rotated as f64 / head_dim.max(1) as f64;
        let too_few = ((head_dim as f64 * share) as usize) < rotated;
        a.rope.fraction = if too_few { share.next_up() } else { share };
        c.rope.fraction = if too_few { share.next_up() } else { share };
        Ok(())
    },
    |c, w| {
        if c.compressed().is_some() {
            w.set("qk_pos_emb_head_dim", json!(c.rope.rotated(c.head_dim)));
        }
    },
);

/// The scaling of rotations of pooled entries.
const FAR: Field = Field::rule(
    |f, c| {
        let Some(a) = pooled(c) else { return Ok(()) };
        a.rope.scaling = match f.size("original_seq_len")?.unwrap_or(65_536) {
            0 => RopeScaling::None,
            original => RopeScaling::Yarn {
                factor: f.float("rope_factor")?.unwrap_or(4.0),
                beta_fast: f.float("beta_fast")?.unwrap_or(32.0),
                beta_slow: f.float("beta_slow")?.unwrap_or(1.0),
                original,
                mscale: None,
                attention_factor: Some(1.0),
                truncate: true,
            },
        };
        Ok(())
    },
    |c, w| match c.compressed().map(|a| &a.rope.scaling) {
        None => {}
        Some(&RopeScaling::Yarn { factor, beta_fast, beta_slow, original, .. }) => {
            w.set("rope_factor", json!(factor));
            w.set("beta_fast", json!(beta_fast));
            w.set("beta_slow", json!(beta_slow));
            w.set("original_seq_len", json!(original));
        }
        Some(_) => w.set("original_seq_len", json!(0)),
    },
);

/// Which layers pool how much, and which choose experts by the token.
const LAYERS: Field = Field::rule(
    |f, c| {
        if pooled(c).is_none() {
            return Ok(());
        }
        let ratios = f.sizes("compress_ratios")?.unwrap_or_default();
        let hashed = f.size("n_hash_layers")?.unwrap_or(0);
        let layer = |l: usize| {
            let pooled = match ratios.get(l).copied().unwrap_or(0) {
                0 | 1 => None,
                ratio => Some(Pooled { ratio, picked: ratio == 4 }),
            };
            Layer { pooled, hashed: l < hashed, ..Layer::default() }
        };
        c.pattern = (0..c.layers).map(layer).collect();
        Ok(())
    },
    |c, w| {
        if c.compressed().is_none() {
            return;
        }
        let layers = || (0..c.layers).map(|l| c.layer(l));
        let ratios = layers().map(|l| l.pooled.map_or(0, |p| p.ratio));
        w.set("compress_ratios", ratios.chain((0..c.mtp).map(|_| 0)).collect());
        w.set("n_hash_layers", json!(layers().take_while(|l| l.hashed).count()));
    },
);

fn pooled(c: &mut ModelConfig) -> Option<&mut Compressed> {
    match &mut c.attention {
        Attention::Compressed(compressed) => Some(compressed),
        _ => None,
    }
}

/// How ranks share it.
const RULE: ShardingRule = ShardingRule {
    part: "attention to pooled entries",
    tp: AxisRule::Shared("heads and groups of outputs"),
    cp: AxisRule::WholeDocuments {
        how: "gathered: rows of tokens; every rank pools the windows of whole documents. Ulysses: heads of queries for tokens, the rest gathered",
        otherwise: NO_RING,
    },
    ep: UNCONCERNED,
    has: |c| c.compressed().is_some(),
    divides: |c, axis| match (axis, c.compressed()) {
        (Axis::Tp, Some(a)) => vec![("groups of outputs", a.out_groups)],
        _ => Vec::new(),
    },
};

impl ModelConfig {
    /// Attention to pooled entries, if the model has it.
    pub fn compressed(&self) -> Option<&Compressed> {
        match &self.attention {
            Attention::Compressed(compressed) => Some(compressed),
            _ => None,
        }
    }
}

impl AttentionKind for Compressed {
    fn params(&self, t: &mut Table<'_>, c: &ModelConfig, index: usize) {
        params(t, c, index, self);
    }

    /// As upstream counts it.
    fn flops(&self, c: &ModelConfig, keys: f64) -> f64 {
        grouped::flops(c, keys)
    }

    fn kept(&self, a: &Activations, c: &ModelConfig, number: usize, _: LayerSavePolicy) -> MixerBytes {
        let (before, statistics) = a.compressed(c, self, number);
        MixerBytes { before, statistics, ..MixerBytes::default() }
    }

    fn rope(&self, layer: &Layer) -> Option<&Rope> {
        layer.pooled.map(|_| &self.rope)
    }

    fn queries_of(&self) -> Option<usize> {
        Some(self.q_rank)
    }

    fn picks(&self) -> Option<Picks> {
        Some(Picks::Entries)
    }

    fn sees_all(&self) -> bool {
        false
    }

    fn keys_by_head(&self) -> bool {
        false
    }

    fn projects_once(&self) -> bool {
        false
    }

    fn normed(&self, _: &ModelConfig) -> bool {
        true
    }

    fn keeps_gathered_input(&self) -> bool {
        true
    }

    fn keeps_input(&self, _: LayerSavePolicy) -> bool {
        false
    }

    fn rotary_word(&self) -> &'static str {
        "deepseek4"
    }

    fn has_window(&self) -> bool {
        true
    }

    fn without_dense(&self) -> bool {
        true
    }
}

/// Its weights, under `module`. Each rank's heads see the whole row of a token, and all entries.
fn params(t: &mut Table<'_>, c: &ModelConfig, index: usize, a: &Compressed) {
    let (h, d, heads, whole) = (c.hidden, c.head_dim, c.heads, Partition::Replicated);
    t.of(Part::Attention);
    let (init, sum) = (t.std(), SumGrad::OverTp);
    t.vector(Role::AttnSink, heads, Table::rows(1), Init::Zeros, SumGrad::No);
    t.xavier(Role::LinearQ, [a.q_rank, h], sum);
    t.norm_of(c.norm, Role::QLayernorm, a.q_rank, sum);
    t.matrix(Role::LinearQUpProj, [heads * d, a.q_rank], Table::rows(1), init);
    t.xavier(Role::LinearKv, [d, h], sum);
    t.norm_of(c.norm, Role::KvLayernorm, d, sum);
    let blocks = [a.out_groups * a.out_rank, heads / a.out_groups * d];
    t.matrix(Role::LinearODownProj, blocks, Table::rows(1), init);
    t.matrix(Role::LinearOUpProj, [h, blocks[0]], Table::columns(), t.out_std());
    let Some(pooled) = c.layer(index).pooled else { return };
    let series = if pooled.picked { 2 } else { 1 };
    let compressor = |t: &mut Table<'_>, part: Part, dim: usize, sum: SumGrad| {
        t.of(part);
        t.push(Role::Ape, &[pooled.ratio, series * dim], whole, init, sum);
        t.norm_of(c.norm, Role::Norm, dim, sum);
        t.xavier(Role::Wgate, [series * dim, h], sum);
        t.xavier(Role::Wkv, [series * dim, h], sum);
    };
    compressor(t, Part::Compressor, d, sum);
    let Some(i) = c.indexer.filter(|_| pooled.picked) else { return };
    // Every rank sees all tokens, and what all heads make of entries.
    let alike = SumGrad::No;
    compressor(t, Part::EntryIndexerCompressor, i.head_dim, alike);
    t.of(Part::EntryIndexer);
    t.xavier(Role::WqB, [i.heads * i.head_dim, a.q_rank], alike);
    t.xavier(Role::WeightsProj, [i.heads, h], alike);
}

impl Activations {
    /// The query latent before and after its norm, queries before their norm and rotated, rows of keys, entries with what
    /// they are pooled from, outputs before and after the inverse rotation, and those of each group; the rows that a token
    /// sees. Ranks that share documents hold all entries, and other ranks' rows as far as the layer is told to save them.
    fn compressed(&self, c: &ModelConfig, a: &Compressed, number: usize) -> SavedBytes {
        let (tokens, element, dim) = (self.tokens, self.element_bytes, c.head_dim);
        let heads = c.heads / self.tp;
        let (wide, ones) = (element.max(4), dim * element);
        let outputs = a.out_groups / self.tp * a.out_rank;
        let mut rows = tokens * (2 * a.q_rank + 4 * heads * dim + 2 * dim + outputs) * element + ones;
        let mut norms = tokens * (1 + heads + 1) * wide;
        let (of_row, ranks) = (self.row.clamp(1, tokens.max(1)), self.context_ranks());
        let whole = of_row * ranks;
        let mut seen = c.sliding_window.unwrap_or(whole).min(whole);
        rows += self.gathered(number) * dim;
        if let Some(pooled) = c.layer(number).pooled {
            for (kept, statistics) in
                [self.entries(number, pooled, dim), self.entry_indexer(c, number, pooled)]
            {
                rows += kept;
                norms += statistics;
            }
            let all = whole / pooled.ratio;
            seen += match c.indexer.as_ref().filter(|_| pooled.picked) {
                Some(indexer) if indexer.top_k < all => indexer.top_k,
                _ => all,
            };
        }
        // The softmax's sums; sinks as they are computed with.
        let statistics = tokens * heads * wide + self.wide(heads).1;
        // Ranks that exchange heads of queries for tokens have what all queries see.
        (rows, norms + statistics + tokens * self.ulysses_and_ring.0 * seen * 4)
    }

    /// Bytes of a column of other ranks' tokens that a layer keeps.
    fn gathered(&self, number: usize) -> usize {
        let others = (self.context_ranks() - 1) * self.tokens * self.element_bytes;
        if self.keeps_gathered(number) { others } else { 0 }
    }

    /// Entries of all tokens.
    fn number_of_entries(&self, ratio: usize) -> usize {
        let of_row = self.row.clamp(1, self.tokens.max(1));
        self.tokens / of_row * (of_row * self.context_ranks() / ratio)
    }

    /// What entries of `dim` elements are made of: rows and gates, of every entry its sums and its rotated row, and where it
    /// stands; of their norm a number each.
    fn entries(&self, number: usize, pooled: Pooled, dim: usize) -> SavedBytes {
        let (entries, element) = (self.number_of_entries(pooled.ratio), self.element_bytes);
        let series = if pooled.picked { 2 } else { 1 };
        let (wide, added) = self.wide(pooled.ratio * series * dim);
        let rows = 2 * series * dim * (self.tokens * element + self.gathered(number));
        (rows + entries * (2 * dim * element + 4) + added, entries * wide)
    }

    /// What an indexer of pooled entries keeps while it is trained: what its entries are made of, and the gradients with
    /// respect to queries, entries and weights of heads.
    fn entry_indexer(&self, c: &ModelConfig, number: usize, pooled: Pooled) -> SavedBytes {
        let Some(i) = c.indexer.as_ref().filter(|_| self.trains_indexer && pooled.picked) else {
            return (0, 0);
        };
        let (tokens, element) = (self.tokens, self.element_bytes);
        let (rows, statistics) = self.entries(number, pooled, i.head_dim);
        let wide = element.max(4);
        let entries = self.number_of_entries(pooled.ratio);
        let gradients = (tokens * i.heads + entries) * i.head_dim * element + tokens * i.heads * wide;
        (rows, statistics + gradients)
    }
}

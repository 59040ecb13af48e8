//! Multi-head latent attention.

use ms_core::{HeadLayout, Partition};
use serde_json::{Value, json};

use crate::attention_kind::{AttentionKind, Picks, Section};
use crate::description::Description;
use crate::field::Field;
use crate::params::{Init, SumGrad, Table};
use crate::part_flag::PartFlag;
use crate::parts::attention;
use crate::save_policy::LayerSavePolicy;
use crate::saved_bytes::{Activations, MixerBytes};
use crate::sharding_rule::{AxisRule, ShardingRule, UNCONCERNED, query_heads};
use crate::sizes::{Attention, Mixer, Mla};
use crate::{Error, ModelConfig, QkNorm, Role, RopeScaling};

pub(crate) static PART: Description = Description {
    words: "multi-head latent attention",
    there: |c| c.mla().is_some(),
    rule: RULE,
    arguments: ARGUMENTS,
    flags: FLAGS,
    runs: ("--multi-latent-attention", RUNS),
    wrapper: None,
    same_number: &[&["qk_pos_emb_head_dim", "qk_rope_head_dim"], &["qk_head_dim", "qk_nope_head_dim"]],
    sizes: |c| {
        let sizes = |m: &Mla| [m.kv_rank, m.nope, m.rope, m.value, m.q_rank.unwrap_or(1)];
        c.mla().map(sizes).into_iter().flatten().map(|n| ("size of latent attention", n)).collect()
    },
    check: |c| match (&c.windowed, c.mla()) {
        (Some(_), Some(_)) => {
            Err(Error::inconsistent("layers of latent attention do not differ by a window"))
        }
        _ => Ok(()),
    },
    shrink: |c, small, _| {
        if let Some(mla) = c.mla() {
            small.groups = small.heads;
            small.attention = Attention::Latent(Mla { q_rank: mla.q_rank.map(|_| 16), kv_rank: 16, ..*mla });
        }
    },
};

#[rustfmt::skip] // a flag a line
const FLAGS: &[PartFlag] = &[
    PartFlag::new("--enable-mla-scale-kv-lora", "", "latent attention: scale the key/value latent"),
    PartFlag::new("--enable-mla-scale-q-lora", "", "latent attention: scale the query latent"),
    PartFlag::new("--kv-lora-rank", "[1,16777216]", "latent attention: width of the key/value latent"),
    PartFlag::new("--multi-head-latent-attention", "", "multi-head latent attention (MLA)"),
    PartFlag::new("--multi-latent-attention", "", "multi-head latent attention (MLA)"),
    PartFlag::new("--q-lora-rank", "[1,16777216]", "latent attention: width of the query latent"),
    PartFlag::new("--qk-head-dim", "[1,16777216]", "latent attention: part of a query/key head that is not rotated"),
    PartFlag::new("--qk-nope-head-dim", "[1,16777216]", "latent attention: part of a query/key head that is not rotated"),
    PartFlag::new("--qk-pos-emb-head-dim", "[1,16777216]", "latent attention: rotated part of a query/key head"),
    PartFlag::new("--qk-rope-head-dim", "[1,16777216]", "latent attention: rotated part of a query/key head"),
    PartFlag::new("--v-head-dim", "[1,16777216]", "latent attention: size of a value head"),
];

/// Flags of a run that have no meaning with other attention.
const RUNS: &[&str] =
    &["--mla-swap-core-attn-out", "--mla-up-proj-tp-overlap", "--mla-zero-memory", "--recompute-mla-up-proj"];

/// What Megatron's arguments say of it.
const ARGUMENTS: &[Field] = &[
    START,
    Field::maybe_size("q_lora_rank", |c| Some(&mut latent(c)?.q_rank)),
    Field::size("kv_lora_rank", |c| Some(&mut latent(c)?.kv_rank)).needed(),
    Field::size("qk_nope_head_dim", |c| Some(&mut latent(c)?.nope))
        .or(&["qk_nope_head_dim", "qk_head_dim"])
        .needed(),
    Field::alias("qk_head_dim", |c| Some(c.mla()?.nope)),
    Field::size("qk_rope_head_dim", |c| Some(&mut latent(c)?.rope))
        .or(&["qk_rope_head_dim", "qk_pos_emb_head_dim"])
        .needed(),
    Field::alias("qk_pos_emb_head_dim", |c| Some(c.mla()?.rope)),
    Field::size("v_head_dim", |c| Some(&mut latent(c)?.value)).needed(),
    Field::flag_as(
        "enable_mla_scale_q_lora",
        |c| (c.mla()?.q_scale != 1.0).then_some(true),
        |c, on| {
            let hidden = c.hidden;
            if let Some(m) = latent(c).filter(|_| on) {
                m.q_scale = root_share(hidden, m.q_rank);
            }
        },
    ),
    Field::flag_as(
        "enable_mla_scale_kv_lora",
        |c| (c.mla()?.kv_scale != 1.0).then_some(true),
        |c, on| {
            let hidden = c.hidden;
            if let Some(m) = latent(c).filter(|_| on) {
                m.kv_scale = root_share(hidden, Some(m.kv_rank));
            }
        },
    ),
    Field::reading(|f, c| {
        let normed = c.qk_norm != QkNorm::None;
        let Some(m) = latent(c) else { return Ok(()) };
        m.normed = normed; // --qk-layernorm names the norms of the latents
        let Mla { nope, rope, .. } = *m;
        c.qk_norm = QkNorm::None;
        (c.groups, c.head_dim) = (c.heads, nope.saturating_add(rope));
        c.rope.fraction = 1.0;
        // Upstream rotates neighbouring pairs in latent attention, except in MiniCPM3, which alone has scale_depth.
        c.rope.interleaved = f.float("scale_depth")?.is_none();
        Ok(())
    }),
];

/// Whether there is latent attention, under the names of both versions, which also cover attention to pooled entries.
const START: Field = Field::rule(
    |f, c| {
        if (f.on("multi_head_latent_attention")? || f.on("multi_latent_attention")?)
            && !f.on("kv_compress")?
        {
            let (nope, rope, value) = (0, 0, 0);
            c.attention = Attention::Latent(Mla {
                q_rank: None,
                kv_rank: 0,
                nope,
                rope,
                value,
                q_scale: 1.0,
                kv_scale: 1.0,
                normed: true,
                norm_eps: None,
            });
        }
        Ok(())
    },
    |c, w| {
        w.set("multi_head_latent_attention", json!(c.mla().is_some()));
        if c.attention != Attention::Grouped {
            w.set("multi_latent_attention", json!(true));
        }
        // What has no latent attention says so.
        for name in ["qk_rope_head_dim", "qk_nope_head_dim", "q_lora_rank", "kv_lora_rank", "v_head_dim"] {
            w.set(name, Value::Null);
        }
    },
);

fn latent(c: &mut ModelConfig) -> Option<&mut Mla> {
    match &mut c.attention {
        Attention::Latent(mla) => Some(mla),
        _ => None,
    }
}

/// The root of how many times wider the stream is than the latent.
fn root_share(hidden: usize, rank: Option<usize>) -> f64 {
    rank.filter(|&r| r > 0).map_or(1.0, |r| (hidden as f64 / r as f64).sqrt())
}

/// How ranks share it.
const RULE: ShardingRule = ShardingRule {
    part: "latent attention",
    tp: AxisRule::Shared("heads; latents are made on shares of the tokens"),
    cp: AxisRule::Shared("as grouped attention"),
    ep: UNCONCERNED,
    has: |c| c.has(Mixer::Attention) && matches!(c.attention, Attention::Latent(_)),
    divides: query_heads,
};

/// Its weights but the output projection, under `module`.
fn params(t: &mut Table<'_>, c: &ModelConfig, m: &Mla) {
    let queries = c.heads * (m.nope + m.rope);
    let rows = m.q_rank.unwrap_or(queries) + m.kv_rank + m.rope;
    // Every rank holds all of it; without a query latent each only uses its own heads' rows.
    let sum = if m.q_rank.is_some() { SumGrad::OverTpWithSequenceParallel } else { SumGrad::OverTp };
    t.xavier(Role::LinearQkv, [rows, c.hidden], sum);
    if c.bias.qkv {
        t.vector(Role::LinearQkv.bias(), rows, Partition::Replicated, Init::Zeros, sum);
    }
    if let Some(rank) = m.q_rank.filter(|_| m.normed) {
        t.norm_of(c.norm, Role::QLayernorm, rank, sum);
    }
    if m.normed {
        t.norm_of(c.norm, Role::KvLayernorm, m.kv_rank, sum);
    }
    if let Some(rank) = m.q_rank {
        t.matrix(Role::LinearQUpProj, [queries, rank], Table::rows(1), t.std());
    }
    let rows = c.heads * (m.nope + m.value);
    t.matrix(Role::LinearKvUpProj, [rows, m.kv_rank], Table::rows(1), t.std());
}

/// FLOPs of a token, whose query sees `keys` keys, forward and backward: its own projections and the norms of its latents.
fn flops(c: &ModelConfig, m: &Mla, keys: f64) -> f64 {
    let (queries, values) = (c.heads * (m.nope + m.rope), c.heads * m.value);
    let query = m.q_rank.map_or(c.hidden * queries, |rank| rank * (c.hidden + queries + 1));
    let latent = m.kv_rank * (c.hidden + c.heads * m.nope + values + 1) + c.hidden * m.rope;
    6.0 * ((query + latent + values * c.hidden) as f64 + keys * (queries + values) as f64)
}

impl ModelConfig {
    /// Latent attention, if the model has it.
    pub fn mla(&self) -> Option<&Mla> {
        match &self.attention {
            Attention::Latent(mla) => Some(mla),
            _ => None,
        }
    }
}

impl AttentionKind for Mla {
    fn params(&self, t: &mut Table<'_>, c: &ModelConfig, index: usize) {
        attention::params(t, c, index, |t| params(t, c, self));
    }

    fn flops(&self, c: &ModelConfig, keys: f64) -> f64 {
        flops(c, self, keys)
    }

    fn kept(
        &self,
        a: &Activations,
        c: &ModelConfig,
        number: usize,
        save_policy: LayerSavePolicy,
    ) -> MixerBytes {
        a.latent(c, self, number, save_policy)
    }

    /// Queries, keys and values of one width.
    fn heads(&self, c: &ModelConfig, number: usize) -> HeadLayout {
        let head_dim = (self.nope + self.rope).max(self.value);
        HeadLayout { groups: c.heads_of(number).0, heads_per_group: 1, head_dim }
    }

    fn channels(&self, c: &ModelConfig) -> usize {
        c.hidden / c.heads
    }

    fn value_dim(&self, _: &ModelConfig) -> usize {
        self.value
    }

    fn rotated(&self) -> Option<usize> {
        Some(self.rope)
    }

    /// # Source
    /// DeepSeek-V2 and V3 reference code, `softmax_scale * mscale * mscale`.
    fn scale(&self, c: &ModelConfig, plain: f64) -> f64 {
        match &c.rope.scaling {
            RopeScaling::Yarn { factor, mscale: Some((_, all)), .. } if *factor > 1.0 => {
                plain * (0.1 * all * factor.ln() + 1.0).powi(2)
            }
            _ => plain,
        }
    }

    fn queries_of(&self) -> Option<usize> {
        self.q_rank
    }

    /// Ranks make latents of their share of the tokens and gather them.
    fn entering(&self, c: &ModelConfig) -> usize {
        self.q_rank.map_or(c.hidden, |q| q + self.kv_rank + self.rope)
    }

    fn picks(&self) -> Option<Picks> {
        Some(Picks::Tokens)
    }

    fn normed(&self, _: &ModelConfig) -> bool {
        self.normed
    }

    fn keeps_input(&self, save_policy: LayerSavePolicy) -> bool {
        !save_policy.recompute_attention
    }

    fn leaving(&self, save_policy: LayerSavePolicy, mixed: &MixerBytes) -> usize {
        if save_policy.swap_heads { mixed.after } else { 0 }
    }

    fn sections(&self, c: &ModelConfig) -> Vec<Section> {
        let queries = self.q_rank.unwrap_or(c.heads * (self.nope + self.rope));
        let (slot, module) = match self.q_rank {
            Some(_) => ("q_a", "linear_q_down_proj"),
            None => ("q", "linear_q_proj"),
        };
        let all = queries + self.kv_rank + self.rope;
        vec![
            Section { rows: 0..queries, slot, module },
            Section { rows: queries..all, slot: "kv_a", module: "linear_kv_down_proj" },
        ]
    }

    fn head_parts(&self, role: Role) -> Option<[(&'static str, usize); 2]> {
        match role {
            Role::LinearQUpProj => Some([("linear_qk_nope", self.nope), ("linear_qk_rope", self.rope)]),
            Role::LinearKvUpProj => Some([("linear_kv_nope", self.nope), ("linear_v", self.value)]),
            _ => None,
        }
    }

    fn old_word(&self, role: Role) -> Option<&'static str> {
        match role {
            Role::LinearQUpProj => Some("linear_qb"),
            Role::LinearKvUpProj => Some("linear_kvb"),
            Role::KvLayernorm => Some(Role::KLayernorm.word()),
            _ => None,
        }
    }

    fn rotates_by_itself(&self) -> bool {
        true
    }
}

impl Activations {
    /// Latents before and after their norms; queries, keys and values padded to one width; outputs, and their value columns
    /// unless these are recomputed; the keys that queries have picked.
    fn latent(&self, c: &ModelConfig, mla: &Mla, number: usize, save_policy: LayerSavePolicy) -> MixerBytes {
        if save_policy.recompute_attention {
            return MixerBytes::default();
        }
        let (element, wide, heads) = (self.element_bytes, self.element_bytes.max(4), c.heads_of(number).0);
        let latents = mla.q_rank.unwrap_or(0) + mla.kv_rank;
        let taken_again = save_policy.swap_heads;
        let dim = (mla.nope + mla.rope).max(mla.value);
        let values = if taken_again { 0 } else { self.inside(heads * mla.value) };
        let (outputs, joined) =
            if save_policy.recompute_core_attention { (0, 0) } else { (self.inside(heads * dim), values) };
        let attended = outputs + joined;
        let after = self.latent_tokens(mla) * latents * element;
        let norms = self.latent_tokens(mla) * (1 + usize::from(mla.q_rank.is_some())) * wide;
        // Without norms, latents are saved once.
        let (entered, norms) = if mla.normed { (after, norms) } else { (0, 0) };
        let picks = self.picks(c, number, save_policy.recompute_core_attention);
        let (indexer, trained) = self.indexer(c, number);
        let norms = norms + trained;
        let (ulysses, ring) = self.ulysses_and_ring;
        if let Some(picks) = picks.filter(|_| ulysses == 1 && ring > 1) {
            // Queries alone; of keys and values what other ranks gather.
            let mine = self.tokens * (mla.kv_rank + mla.rope) * element;
            let others = if self.keeps_gathered(number) { (self.context_ranks() - 1) * mine } else { 0 };
            let queries = self.latent_tokens(mla) * mla.q_rank.unwrap_or(0) * element;
            let made = self.inside(if save_policy.recompute_operands { 0 } else { heads * dim });
            let statistics = norms + picks + self.tokens * heads / self.tp * wide;
            let before = entered + queries + mine + others + made + indexer;
            return MixerBytes { before, after: attended, statistics, core: (0, 0), joined };
        }
        // What else they are recomputed from: the key's shared part, and queries that are not computed from a latent.
        let own = if mla.q_rank.is_none() { self.inside(heads * (mla.nope + mla.rope)) } else { 0 };
        let shared = if save_policy.recompute_norms { self.stream() } else { self.tokens };
        let made = if save_policy.recompute_operands {
            own + shared * mla.rope * element
        } else {
            self.inside(3 * heads * dim)
        };
        let core = self.softmax(c, number, dim, save_policy);
        let statistics = norms + picks.unwrap_or(0) + core;
        let turned = if save_policy.recompute_operands { 0 } else { made };
        MixerBytes {
            before: entered + after + made + indexer,
            after: attended,
            statistics,
            core: (turned, outputs),
            joined,
        }
    }

    /// Tokens that a rank makes latents of: its own, or where queries have none those of all ranks.
    fn latent_tokens(&self, mla: &Mla) -> usize {
        if mla.q_rank.is_some() { self.stream() } else { self.tokens }
    }
}

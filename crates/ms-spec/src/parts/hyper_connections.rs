//! Hyper-connections: a residual with several streams.

use ms_core::Partition;
use serde_json::json;

use crate::description::{Description, Site, SublayerWrapper};
use crate::field::Field;
use crate::params::{Init, SumGrad, Table};
use crate::part_flag::PartFlag;
use crate::saved_bytes::Activations;
use crate::sharding_rule::{AxisRule, ShardingRule, UNCONCERNED, nothing};
use crate::sizes::{Block, HyperConnections};
use crate::{Error, ModelConfig, Part, Role};

pub(crate) static PART: Description = Description {
    words: "hyper-connections",
    there: |c| c.hyper.is_some(),
    rule: RULE,
    arguments: ARGUMENTS,
    flags: FLAGS,
    runs: ("--enable-mhc", &[]),
    wrapper: Some(SublayerWrapper {
        params,
        kept: |a, c, site| a.streams(c, site == Site::End),
        rows: |c| c.hyper.as_ref().map_or(1, |h| h.streams),
    }),
    same_number: &[],
    sizes: |c| {
        let sizes = |h: &HyperConnections| [("streams", h.streams), ("rounds of streams", h.rounds)];
        c.hyper.as_ref().map(sizes).into_iter().flatten().collect()
    },
    check: |c| match (&c.hyper, c.block) {
        (None, _) | (_, Block::Pre) => Ok(()),
        _ => {
            let what = "hyper-connections: expected layers of two sublayers without norms of their outputs";
            Err(Error::inconsistent(what))
        }
    },
    shrink: |_, _, _| {},
};

#[rustfmt::skip] // a flag a line
const FLAGS: &[PartFlag] = &[
    PartFlag::new("--enable-mhc", "", "hyper-connections: several residual streams instead of one"),
    PartFlag::new("--hc-eps", "[0,1]", "hyper-connections: epsilon added to mixing weights and their sums"),
    PartFlag::new("--hc-mult", "[1,16384]", "hyper-connections: number of residual streams"),
    PartFlag::new("--hc-sinkhorn-iters", "[0,10000]", "hyper-connections: Sinkhorn iterations that normalise the mixing weights"),
];

/// What Megatron's arguments say of it.
const ARGUMENTS: &[Field] = &[
    HYPER,
    Field::size("hc_mult", |c| Some(&mut c.hyper.as_mut()?.streams)),
    Field::size("hc_sinkhorn_iters", |c| Some(&mut c.hyper.as_mut()?.rounds)),
    Field::float("hc_eps", |c| Some(&mut c.hyper.as_mut()?.eps)),
];

/// Whether there are any; Megatron has them only with attention to pooled entries.
const HYPER: Field = Field::rule(
    |f, c| {
        if c.compressed().is_some() && f.on("enable_mhc")? {
            c.hyper = Some(HyperConnections { streams: 4, rounds: 20, eps: 1e-6 });
        }
        Ok(())
    },
    |c, w| {
        if c.hyper.is_some() {
            w.set("enable_mhc", json!(true));
        }
    },
);

/// How ranks share them.
const RULE: ShardingRule = ShardingRule {
    part: "hyper-connections",
    tp: AxisRule::Shared("shares of the tokens"),
    cp: AxisRule::Shared("tokens"),
    ep: UNCONCERNED,
    has: |c| c.hyper.is_some(),
    divides: nothing,
};

/// The weights that mix the streams of hyper-connections before and after a sublayer, or at the end.
fn params(t: &mut Table<'_>, c: &ModelConfig, site: Site) {
    let Some(h) = &c.hyper else { return };
    let end = site == Site::End;
    t.of(match site {
        Site::Mixer => Part::MixerStreams,
        Site::Network => Part::FeedStreams,
        Site::End => Part::LastStreams,
    });
    let (n, by_sequence) = (h.streams, SumGrad::OverTpWithSequenceParallel);
    let (rows, scales) = if end { (n, 1) } else { ((2 + n) * n, 3) };
    let whole = Partition::Replicated;
    t.vector(Role::HcBase, rows, whole, Init::Zeros, by_sequence);
    t.xavier(Role::HcFn, [rows, n * c.hidden], by_sequence);
    // MindSpeed-LLM's head, `deepseek4/mhc.py`: at first the weights are the same for all tokens.
    t.vector(Role::HcScale, scales, whole, Init::Zeros, by_sequence);
}

impl Activations {
    /// Around one sublayer, or at the `end` of the streams: the incoming streams, unrounded and normed, the mixing weights
    /// before and after their activation, and the sublayer's output. Nothing without hyper-connections.
    fn streams(&self, c: &ModelConfig, end: bool) -> usize {
        let Some(h) = &c.hyper else { return 0 };
        let all = h.streams * c.hidden;
        let weights = if end { h.streams } else { (2 + h.streams) * h.streams };
        let scales = if end { 1 } else { 3 };
        let (wide, copies) = self.wide(weights * all + weights + scales);
        let unrounded = if self.element_bytes < wide { all * wide } else { 0 };
        let made = if end { 0 } else { c.hidden * self.element_bytes };
        let row = all * self.element_bytes + unrounded + all * wide + wide + 2 * weights * wide + made;
        // The norm has a weight of ones.
        self.stream() * row + copies + all * wide
    }
}

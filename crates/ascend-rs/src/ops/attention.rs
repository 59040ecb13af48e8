//! Rotary embeddings, and attention for training with its gradients, in all versions.

use super::{ALL_TOKENS, Maybe, Text};
use crate::operator::View;

/// What attention for training is of. Its gradients are to be given the same.
#[derive(Clone, Debug)]
pub struct Attention<'a> {
    /// Queries, in the layout.
    pub query: View<'a>,
    /// Keys, in the layout.
    pub key: View<'a>,
    /// Values, in the layout.
    pub value: View<'a>,
    /// Heads of the queries; those of keys and values follow from the shapes.
    pub head_num: i64,
    /// `BSH`, `SBH`, `BSND` or `BNSD`; `TND` for sequences one after the other.
    pub input_layout: Text,
    /// What the product of a query and a key is multiplied with.
    pub scale_value: f64,
    /// Masks, biases, dropout.
    pub options: AttentionOptions<'a>,
}

/// Where sequences that stand one after the other end: cumulative lengths without a leading zero.
#[derive(Clone, Copy, Debug)]
pub struct SequenceEnds<'a> {
    /// Ends of the queries.
    pub actual_seq_q_len: &'a [i64],
    /// Ends of keys and values.
    pub actual_seq_kv_len: &'a [i64],
}

/// What attention writes, and its gradients read.
#[derive(Clone, Debug)]
pub struct AttentionResults<'a> {
    /// The largest score of each row, in f32, eight times.
    pub softmax_max: View<'a>,
    /// The sum of the exponents above it, in f32, eight times.
    pub softmax_sum: View<'a>,
    /// Reserved: empty, or null.
    pub softmax_out: Maybe<'a>,
    /// In the layout of the queries.
    pub attention_out: View<'a>,
}

/// Gradients of parts of queries and keys of their own.
#[derive(Clone, Debug)]
pub struct RopeGradients<'a> {
    /// Of the queries' part.
    pub dq_rope: Maybe<'a>,
    /// Of the keys' part.
    pub dk_rope: Maybe<'a>,
}

/// Gradients of queries, keys, values and biases.
#[derive(Clone, Debug)]
pub struct AttentionGradients<'a> {
    /// Of the queries.
    pub dq: View<'a>,
    /// Of the keys.
    pub dk: View<'a>,
    /// Of the values.
    pub dv: View<'a>,
    /// Of [`AttentionOptions::pse_shift`].
    pub dpse: Maybe<'a>,
}

options! {
    /// What attention for training may be told besides its operands.
    struct AttentionOptions<'a> {
        /// Biases of scores by position.
        pse_shift: Maybe<'a> = None,
        /// A bit a score, for a `keep_prob` below 1.
        drop_mask: Maybe<'a> = None,
        /// Reserved.
        padding_mask: Maybe<'a> = None,
        /// 1 where a score is dropped.
        atten_mask: Maybe<'a> = None,
        /// Of modes 5 and 6: how many keys every query of a sequence sees.
        prefix: Option<&'a [i64]> = None,
        /// 1 for no dropout.
        keep_prob: f64 = 1.0,
        /// Keys before a query that it sees, in modes 0 and 4.
        pre_tokens: i64 = ALL_TOKENS,
        /// Keys after a query that it sees, in modes 0 and 4.
        next_tokens: i64 = ALL_TOKENS,
        /// 2 corrects rows of which nothing is seen.
        inner_precise: i64 = 0,
        /// What `atten_mask` is: 0 a whole mask or none, 1 a whole mask, 2 causal, 3 causal from the last key on, 4 a band, 5
        /// and 6 prefixes, 7 and 8 bands of cut sequences; 2 to 4, 7 and 8 with one mask of 2048 by 2048.
        sparse_mode: i64 = 0,
    }

    /// What versions from the second on may be told of biases.
    struct BiasOptions<'a> {
        /// Where the first query stands.
        q_start_idx: Option<&'a [i64]> = None,
        /// Where the first key stands.
        kv_start_idx: Option<&'a [i64]> = None,
        /// 0 a bias behind the scale, 1 in front of it, 2 slopes times distances, 3 slopes times their roots.
        pse_type: i64 = 1,
    }

    /// Parts of queries and keys of their own, whose product scores add.
    struct RopeParts<'a> {
        /// Part of the queries.
        query_rope: Maybe<'a> = None,
        /// Part of the keys.
        key_rope: Maybe<'a> = None,
    }

    /// What the fourth version of attention over padded sequences may be told, and its gradients with it.
    struct AttentionExtras<'a> {
        /// Scales of quantised queries.
        d_scale_q: Maybe<'a> = None,
        /// Scales of quantised keys.
        d_scale_k: Maybe<'a> = None,
        /// Scales of quantised values.
        d_scale_v: Maybe<'a> = None,
        /// Ends of the queries of sequences one after the other.
        actual_seq_q_len: Option<&'a [i64]> = None,
        /// Ends of their keys and values.
        actual_seq_kv_len: Option<&'a [i64]> = None,
        /// Element type of the results of quantised operands.
        out_dtype: i64 = 0,
        /// Layout of the statistics.
        softmax_layout: Text = c"",
        /// Seed of dropout.
        seed: i64 = 0,
        /// Offset of dropout.
        offset: i64 = 0,
    }
}

operators! {
    attention {
    /// Rotates pairs of features.
    aclnnRotaryPositionEmbedding(x, cos, sin, mode, out) = struct RotaryPositionEmbedding {
        x: View<'a>,
        cos: View<'a>,
        sin: View<'a>,
        /// 0 halves, 1 neighbours.
        mode: i64,
        out: View<'a>,
    };

    /// Gradients of [`RotaryPositionEmbedding`].
    aclnnRotaryPositionEmbeddingGrad(dy, cos, sin, x, mode, dx, dcos, dsin) = struct RotaryPositionEmbeddingGrad {
        dy: View<'a>,
        cos: View<'a>,
        sin: View<'a>,
        /// For `dcos` and `dsin`, which are not written without it.
        x: Maybe<'a>,
        /// 0 halves, 1 neighbours.
        mode: i64,
        dx: View<'a>,
        dcos: Maybe<'a>,
        dsin: Maybe<'a>,
    };

    /// Rotates halves of queries and keys in place.
    aclnnApplyRotaryPosEmb(query, key, cos, sin, layout) = struct ApplyRotaryPosEmb {
        query: View<'a>,
        key: View<'a>,
        cos: View<'a>,
        sin: View<'a>,
        /// 1 for `BSND`, 4 for `TND`.
        layout: i64,
    };

    /// Attention in a layout as `BSND`; masks hold 1 where a score is dropped, statistics come eight times each.
    aclnnFlashAttentionScore(
        of.query, of.key, of.value, of.options.pse_shift as real_shift, of.options.drop_mask, of.options.padding_mask,
        of.options.atten_mask, of.options.prefix, of.scale_value, of.options.keep_prob, of.options.pre_tokens,
        of.options.next_tokens, of.head_num, of.input_layout, of.options.inner_precise, of.options.sparse_mode,
        results.softmax_max, results.softmax_sum, results.softmax_out, results.attention_out,
    ) = struct FlashAttentionScore {
        of: Attention<'a>,
        results: AttentionResults<'a>,
    };

    /// [`FlashAttentionScore`] with biases from slopes.
    aclnnFlashAttentionScoreV2(
        of.query, of.key, of.value, of.options.pse_shift as real_shift, of.options.drop_mask, of.options.padding_mask,
        of.options.atten_mask, of.options.prefix, bias.q_start_idx, bias.kv_start_idx, of.scale_value, of.options.keep_prob,
        of.options.pre_tokens, of.options.next_tokens, of.head_num, of.input_layout, of.options.inner_precise,
        of.options.sparse_mode, bias.pse_type, results.softmax_max, results.softmax_sum, results.softmax_out,
        results.attention_out,
    ) = struct FlashAttentionScoreV2 {
        of: Attention<'a>,
        bias: BiasOptions<'a>,
        results: AttentionResults<'a>,
    };

    /// [`FlashAttentionScoreV2`] with a sink a head.
    aclnnFlashAttentionScoreV3(
        of.query, of.key, of.value, of.options.pse_shift as real_shift, of.options.drop_mask, of.options.padding_mask,
        of.options.atten_mask, sink, of.options.prefix, bias.q_start_idx, bias.kv_start_idx, of.scale_value,
        of.options.keep_prob, of.options.pre_tokens, of.options.next_tokens, of.head_num, of.input_layout,
        of.options.inner_precise, of.options.sparse_mode, bias.pse_type, results.softmax_max, results.softmax_sum,
        results.softmax_out, results.attention_out,
    ) = struct FlashAttentionScoreV3 {
        of: Attention<'a>,
        sink: Maybe<'a>,
        bias: BiasOptions<'a>,
        results: AttentionResults<'a>,
    };

    /// [`FlashAttentionScoreV3`] with parts of queries and keys of their own, which scores add.
    aclnnFlashAttentionScoreV4(
        of.query, of.key, of.value, of.options.pse_shift as real_shift, of.options.drop_mask, of.options.padding_mask,
        of.options.atten_mask, rope.query_rope, rope.key_rope, extras.d_scale_q, extras.d_scale_k, extras.d_scale_v, sink,
        of.options.prefix, extras.actual_seq_q_len, extras.actual_seq_kv_len, bias.q_start_idx, bias.kv_start_idx,
        of.scale_value, of.options.keep_prob, of.options.pre_tokens, of.options.next_tokens, of.head_num, of.input_layout,
        of.options.inner_precise, of.options.sparse_mode, extras.out_dtype, bias.pse_type,
        extras.softmax_layout as softmax_out_layout, extras.seed, extras.offset, results.softmax_max, results.softmax_sum,
        results.softmax_out, results.attention_out,
    ) = struct FlashAttentionScoreV4 {
        of: Attention<'a>,
        sink: Maybe<'a>,
        bias: BiasOptions<'a>,
        rope: RopeParts<'a>,
        extras: AttentionExtras<'a>,
        results: AttentionResults<'a>,
    };

    /// Gradients of [`FlashAttentionScore`].
    aclnnFlashAttentionScoreGrad(
        of.query, of.key as key_in, of.value, dy, of.options.pse_shift, of.options.drop_mask, of.options.padding_mask,
        of.options.atten_mask, results.softmax_max, results.softmax_sum, results.softmax_out as softmax_in,
        results.attention_out as attention_in, of.options.prefix, of.scale_value, of.options.keep_prob, of.options.pre_tokens,
        of.options.next_tokens, of.head_num, of.input_layout, of.options.inner_precise, of.options.sparse_mode, gradients.dq,
        gradients.dk, gradients.dv, gradients.dpse,
    ) = struct FlashAttentionScoreGrad {
        of: Attention<'a>,
        dy: View<'a>,
        results: AttentionResults<'a>,
        gradients: AttentionGradients<'a>,
    };

    /// Gradients of [`FlashAttentionScoreV2`].
    aclnnFlashAttentionScoreGradV2(
        of.query, of.key as key_in, of.value, dy, of.options.pse_shift, of.options.drop_mask, of.options.padding_mask,
        of.options.atten_mask, results.softmax_max, results.softmax_sum, results.softmax_out as softmax_in,
        results.attention_out as attention_in, of.options.prefix, bias.q_start_idx, bias.kv_start_idx, of.scale_value,
        of.options.keep_prob, of.options.pre_tokens, of.options.next_tokens, of.head_num, of.input_layout,
        of.options.inner_precise, of.options.sparse_mode, bias.pse_type, gradients.dq, gradients.dk, gradients.dv,
        gradients.dpse,
    ) = struct FlashAttentionScoreGradV2 {
        of: Attention<'a>,
        dy: View<'a>,
        bias: BiasOptions<'a>,
        results: AttentionResults<'a>,
        gradients: AttentionGradients<'a>,
    };

    /// Gradients of [`FlashAttentionScoreV3`].
    aclnnFlashAttentionScoreGradV3(
        of.query, of.key as key_in, of.value, dy, of.options.pse_shift, of.options.drop_mask, of.options.padding_mask,
        of.options.atten_mask, results.softmax_max, results.softmax_sum, results.softmax_out as softmax_in,
        results.attention_out as attention_in, sink as sink_in, of.options.prefix, bias.q_start_idx, bias.kv_start_idx,
        of.scale_value, of.options.keep_prob, of.options.pre_tokens, of.options.next_tokens, of.head_num, of.input_layout,
        of.options.inner_precise, of.options.sparse_mode, bias.pse_type, gradients.dq, gradients.dk, gradients.dv,
        gradients.dpse, dsink,
    ) = struct FlashAttentionScoreGradV3 {
        of: Attention<'a>,
        dy: View<'a>,
        sink: Maybe<'a>,
        bias: BiasOptions<'a>,
        results: AttentionResults<'a>,
        gradients: AttentionGradients<'a>,
        dsink: Maybe<'a>,
    };

    /// Gradients of [`FlashAttentionScoreV4`].
    aclnnFlashAttentionScoreGradV4(
        of.query, of.key as key_in, of.value, dy, of.options.pse_shift, of.options.drop_mask, of.options.padding_mask,
        of.options.atten_mask, results.softmax_max, results.softmax_sum, results.softmax_out as softmax_in,
        results.attention_out as attention_in, sink as sink_in, rope.query_rope, rope.key_rope, extras.d_scale_q,
        extras.d_scale_k, extras.d_scale_v, d_scale_dy, d_scale_o, of.options.prefix, extras.actual_seq_q_len,
        extras.actual_seq_kv_len, bias.q_start_idx, bias.kv_start_idx, of.scale_value, of.options.keep_prob,
        of.options.pre_tokens, of.options.next_tokens, of.head_num, of.input_layout,
        extras.softmax_layout as softmax_in_layout, of.options.inner_precise, of.options.sparse_mode, bias.pse_type,
        extras.seed, extras.offset, extras.out_dtype, gradients.dq, gradients.dk, gradients.dv, rope_gradients.dq_rope,
        rope_gradients.dk_rope, gradients.dpse, dsink,
    ) = struct FlashAttentionScoreGradV4 {
        of: Attention<'a>,
        dy: View<'a>,
        sink: Maybe<'a>,
        d_scale_dy: Maybe<'a>,
        d_scale_o: Maybe<'a>,
        bias: BiasOptions<'a>,
        rope: RopeParts<'a>,
        extras: AttentionExtras<'a>,
        results: AttentionResults<'a>,
        gradients: AttentionGradients<'a>,
        dsink: Maybe<'a>,
        rope_gradients: RopeGradients<'a>,
    };

    /// Attention of sequences of different lengths one after the other (`TND`).
    aclnnFlashAttentionVarLenScore(
        of.query, of.key, of.value, of.options.pse_shift as real_shift, of.options.drop_mask, of.options.padding_mask,
        of.options.atten_mask, of.options.prefix, ends.actual_seq_q_len, ends.actual_seq_kv_len, of.scale_value,
        of.options.keep_prob, of.options.pre_tokens, of.options.next_tokens, of.head_num, of.input_layout,
        of.options.inner_precise, of.options.sparse_mode, results.softmax_max, results.softmax_sum, results.softmax_out,
        results.attention_out,
    ) = struct FlashAttentionVarLenScore {
        of: Attention<'a>,
        ends: SequenceEnds<'a>,
        results: AttentionResults<'a>,
    };

    /// [`FlashAttentionVarLenScore`] with biases from slopes.
    aclnnFlashAttentionVarLenScoreV2(
        of.query, of.key, of.value, of.options.pse_shift as real_shift, of.options.drop_mask, of.options.padding_mask,
        of.options.atten_mask, of.options.prefix, ends.actual_seq_q_len, ends.actual_seq_kv_len, bias.q_start_idx,
        bias.kv_start_idx, of.scale_value, of.options.keep_prob, of.options.pre_tokens, of.options.next_tokens, of.head_num,
        of.input_layout, of.options.inner_precise, of.options.sparse_mode, bias.pse_type, results.softmax_max,
        results.softmax_sum, results.softmax_out, results.attention_out,
    ) = struct FlashAttentionVarLenScoreV2 {
        of: Attention<'a>,
        ends: SequenceEnds<'a>,
        bias: BiasOptions<'a>,
        results: AttentionResults<'a>,
    };

    /// [`FlashAttentionVarLenScoreV2`] with parts of queries and keys of their own, which scores add.
    aclnnFlashAttentionVarLenScoreV3(
        of.query, rope.query_rope, of.key, rope.key_rope, of.value, of.options.pse_shift as real_shift, of.options.drop_mask,
        of.options.padding_mask, of.options.atten_mask, of.options.prefix, ends.actual_seq_q_len, ends.actual_seq_kv_len,
        bias.q_start_idx, bias.kv_start_idx, of.scale_value, of.options.keep_prob, of.options.pre_tokens,
        of.options.next_tokens, of.head_num, of.input_layout, of.options.inner_precise, of.options.sparse_mode, bias.pse_type,
        results.softmax_max, results.softmax_sum, results.softmax_out, results.attention_out,
    ) = struct FlashAttentionVarLenScoreV3 {
        of: Attention<'a>,
        ends: SequenceEnds<'a>,
        rope: RopeParts<'a>,
        bias: BiasOptions<'a>,
        results: AttentionResults<'a>,
    };

    /// [`FlashAttentionVarLenScore`] with a layout of the statistics.
    aclnnFlashAttentionVarLenScoreV4(
        of.query, of.key, of.value, of.options.pse_shift as real_shift, of.options.drop_mask, of.options.padding_mask,
        of.options.atten_mask, of.options.prefix, ends.actual_seq_q_len, ends.actual_seq_kv_len, of.scale_value,
        of.options.keep_prob, of.options.pre_tokens, of.options.next_tokens, of.head_num, of.input_layout,
        of.options.inner_precise, of.options.sparse_mode, softmax_layout as softmax_out_layout, results.softmax_max,
        results.softmax_sum, results.softmax_out, results.attention_out,
    ) = struct FlashAttentionVarLenScoreV4 {
        of: Attention<'a>,
        ends: SequenceEnds<'a>,
        softmax_layout: Text,
        results: AttentionResults<'a>,
    };

    /// [`FlashAttentionVarLenScoreV3`] with a sink a head and a layout of the statistics.
    aclnnFlashAttentionVarLenScoreV5(
        of.query, rope.query_rope, of.key, rope.key_rope, of.value, of.options.pse_shift as real_shift, of.options.drop_mask,
        of.options.padding_mask, of.options.atten_mask, sink, of.options.prefix, ends.actual_seq_q_len,
        ends.actual_seq_kv_len, bias.q_start_idx, bias.kv_start_idx, of.scale_value, of.options.keep_prob,
        of.options.pre_tokens, of.options.next_tokens, of.head_num, of.input_layout, of.options.inner_precise,
        of.options.sparse_mode, bias.pse_type, softmax_layout as softmax_out_layout, results.softmax_max, results.softmax_sum,
        results.softmax_out, results.attention_out,
    ) = struct FlashAttentionVarLenScoreV5 {
        of: Attention<'a>,
        sink: Maybe<'a>,
        ends: SequenceEnds<'a>,
        rope: RopeParts<'a>,
        bias: BiasOptions<'a>,
        softmax_layout: Text,
        results: AttentionResults<'a>,
    };

    /// Gradients of [`FlashAttentionVarLenScore`].
    aclnnFlashAttentionUnpaddingScoreGrad(
        of.query, of.key as key_in, of.value, dy, of.options.pse_shift, of.options.drop_mask, of.options.padding_mask,
        of.options.atten_mask, results.softmax_max, results.softmax_sum, results.softmax_out as softmax_in,
        results.attention_out as attention_in, of.options.prefix, ends.actual_seq_q_len, ends.actual_seq_kv_len,
        of.scale_value, of.options.keep_prob, of.options.pre_tokens, of.options.next_tokens, of.head_num, of.input_layout,
        of.options.inner_precise, of.options.sparse_mode, gradients.dq, gradients.dk, gradients.dv, gradients.dpse,
    ) = struct FlashAttentionUnpaddingScoreGrad {
        of: Attention<'a>,
        dy: View<'a>,
        ends: SequenceEnds<'a>,
        results: AttentionResults<'a>,
        gradients: AttentionGradients<'a>,
    };

    /// Gradients of [`FlashAttentionVarLenScoreV2`].
    aclnnFlashAttentionUnpaddingScoreGradV2(
        of.query, of.key as key_in, of.value, dy, of.options.pse_shift, of.options.drop_mask, of.options.padding_mask,
        of.options.atten_mask, results.softmax_max, results.softmax_sum, results.softmax_out as softmax_in,
        results.attention_out as attention_in, of.options.prefix, ends.actual_seq_q_len, ends.actual_seq_kv_len,
        bias.q_start_idx, bias.kv_start_idx, of.scale_value, of.options.keep_prob, of.options.pre_tokens,
        of.options.next_tokens, of.head_num, of.input_layout, of.options.inner_precise, of.options.sparse_mode, bias.pse_type,
        gradients.dq, gradients.dk, gradients.dv, gradients.dpse,
    ) = struct FlashAttentionUnpaddingScoreGradV2 {
        of: Attention<'a>,
        dy: View<'a>,
        ends: SequenceEnds<'a>,
        bias: BiasOptions<'a>,
        results: AttentionResults<'a>,
        gradients: AttentionGradients<'a>,
    };

    /// Gradients of [`FlashAttentionVarLenScoreV3`].
    aclnnFlashAttentionUnpaddingScoreGradV3(
        of.query, rope.query_rope, of.key as key_in, rope.key_rope as key_in_rope, of.value, dy, of.options.pse_shift,
        of.options.drop_mask, of.options.padding_mask, of.options.atten_mask, results.softmax_max, results.softmax_sum,
        results.softmax_out as softmax_in, results.attention_out as attention_in, of.options.prefix, ends.actual_seq_q_len,
        ends.actual_seq_kv_len, bias.q_start_idx, bias.kv_start_idx, of.scale_value, of.options.keep_prob,
        of.options.pre_tokens, of.options.next_tokens, of.head_num, of.input_layout, of.options.inner_precise,
        of.options.sparse_mode, bias.pse_type, gradients.dq, rope_gradients.dq_rope, gradients.dk, rope_gradients.dk_rope,
        gradients.dv, gradients.dpse,
    ) = struct FlashAttentionUnpaddingScoreGradV3 {
        of: Attention<'a>,
        dy: View<'a>,
        ends: SequenceEnds<'a>,
        rope: RopeParts<'a>,
        bias: BiasOptions<'a>,
        results: AttentionResults<'a>,
        gradients: AttentionGradients<'a>,
        rope_gradients: RopeGradients<'a>,
    };

    /// Gradients of [`FlashAttentionVarLenScoreV4`].
    aclnnFlashAttentionUnpaddingScoreGradV4(
        of.query, of.key as key_in, of.value, dy, of.options.pse_shift, of.options.drop_mask, of.options.padding_mask,
        of.options.atten_mask, results.softmax_max, results.softmax_sum, results.softmax_out as softmax_in,
        results.attention_out as attention_in, of.options.prefix, ends.actual_seq_q_len, ends.actual_seq_kv_len,
        of.scale_value, of.options.keep_prob, of.options.pre_tokens, of.options.next_tokens, of.head_num, of.input_layout,
        of.options.inner_precise, of.options.sparse_mode, gradients.dq, gradients.dk, gradients.dv, gradients.dpse,
        softmax_layout as softmax_in_layout,
    ) = struct FlashAttentionUnpaddingScoreGradV4 {
        of: Attention<'a>,
        dy: View<'a>,
        ends: SequenceEnds<'a>,
        softmax_layout: Text,
        results: AttentionResults<'a>,
        gradients: AttentionGradients<'a>,
    };

    /// Gradients of [`FlashAttentionVarLenScoreV5`].
    aclnnFlashAttentionUnpaddingScoreGradV5(
        of.query, rope.query_rope, of.key as key_in, rope.key_rope as key_in_rope, of.value, dy, of.options.pse_shift,
        of.options.drop_mask, of.options.padding_mask, of.options.atten_mask, results.softmax_max, results.softmax_sum,
        results.softmax_out as softmax_in, results.attention_out as attention_in, sink as sink_in, of.options.prefix,
        ends.actual_seq_q_len, ends.actual_seq_kv_len, bias.q_start_idx, bias.kv_start_idx, of.scale_value,
        of.options.keep_prob, of.options.pre_tokens, of.options.next_tokens, of.head_num, of.input_layout,
        of.options.inner_precise, of.options.sparse_mode, bias.pse_type, softmax_layout as softmax_in_layout, gradients.dq,
        rope_gradients.dq_rope, gradients.dk, rope_gradients.dk_rope, gradients.dv, gradients.dpse, dsink,
    ) = struct FlashAttentionUnpaddingScoreGradV5 {
        of: Attention<'a>,
        dy: View<'a>,
        sink: Maybe<'a>,
        ends: SequenceEnds<'a>,
        rope: RopeParts<'a>,
        bias: BiasOptions<'a>,
        softmax_layout: Text,
        results: AttentionResults<'a>,
        gradients: AttentionGradients<'a>,
        dsink: Maybe<'a>,
        rope_gradients: RopeGradients<'a>,
    };
    }
}

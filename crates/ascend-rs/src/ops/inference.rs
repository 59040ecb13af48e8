//! Operators of inference: attention over KV caches, writing them, merging partial attentions, integer products.

use super::{ALL_TOKENS, Maybe, Text};
use crate::operator::View;

/// Heads of attention for inference, and what scores are multiplied with.
#[derive(Clone, Copy, Debug)]
pub struct InferHeads {
    /// Heads of the queries.
    pub num_heads: i64,
    /// Heads of keys and values.
    pub num_key_value_heads: i64,
    /// What the product of a query and a key is multiplied with.
    pub scale_value: f64,
    /// As `BSND`; behind `_` that of the output, where it differs.
    pub input_layout: Text,
}

/// What attention of prompts and steps is of, in all versions, and what it writes.
#[derive(Clone, Debug)]
pub struct FusedAttention<'a> {
    /// Queries, in the layout.
    pub query: View<'a>,
    /// Keys: one tensor, or one for each sequence.
    pub key: Vec<View<'a>>,
    /// Values: one tensor, or one for each sequence.
    pub value: Vec<View<'a>>,
    /// Heads, layout and scale.
    pub heads: InferHeads,
    /// Masks and lengths.
    pub options: PromptOptions<'a>,
    /// The cache, and what is quantised.
    pub fused: FusedInferOptions<'a>,
    /// The result.
    pub attention_out: View<'a>,
    /// Logarithms of the sums of exponents, in f32; without [`FusedInferOptions::softmax_lse_flag`] empty, or null.
    pub softmax_lse: Maybe<'a>,
}

/// A partial attention: rows with what they are to be weighed by.
#[derive(Clone, Debug)]
pub struct PartialAttention<'a> {
    /// The rows.
    pub attn_out: View<'a>,
    /// The largest score of each row, in f32, eight times.
    pub softmax_max: View<'a>,
    /// The sum of the exponents above it, in f32, eight times.
    pub softmax_sum: View<'a>,
}

options! {
    /// Scales of attention whose scores or results are quantised.
    struct InferScales<'a> {
        /// Takes scores out of int32.
        deq_scale1: Maybe<'a> = None,
        /// Quantises probabilities.
        quant_scale1: Maybe<'a> = None,
        /// Takes results out of int32.
        deq_scale2: Maybe<'a> = None,
        /// Quantises results.
        quant_scale2: Maybe<'a> = None,
        /// Added to them.
        quant_offset2: Maybe<'a> = None,
    }

    /// What attention of prompts may be told besides its operands.
    struct PromptOptions<'a> {
        /// Biases of scores by position.
        pse_shift: Maybe<'a> = None,
        /// 1 where a score is dropped.
        atten_mask: Maybe<'a> = None,
        /// Queries of each sequence; cumulative in `TND`.
        actual_seq_lengths: Option<&'a [i64]> = None,
        /// Keys of each sequence; cumulative in `TND` without pages.
        actual_seq_lengths_kv: Option<&'a [i64]> = None,
        /// Keys before a query that it sees, in modes 0 and 4.
        pre_tokens: i64 = ALL_TOKENS,
        /// Keys after a query that it sees, in modes 0 and 4.
        next_tokens: i64 = ALL_TOKENS,
        /// What `atten_mask` is: 0 and 1 a whole mask, 2 causal, 3 causal from the last key on, 4 a band; 2 to 4 with one mask
        /// of 2048 by 2048.
        sparse_mode: i64 = 0,
        /// 1 for speed; 2 and 3 correct rows of which nothing is seen.
        inner_precise: i64 = 0,
    }

    /// What attention over a cache may be told of it.
    struct CacheOptions<'a> {
        /// Scales of a quantised cache.
        antiquant_scale: Maybe<'a> = None,
        /// Offsets of a quantised cache.
        antiquant_offset: Maybe<'a> = None,
        /// The pages of each sequence, in i32.
        block_table: Maybe<'a> = None,
        /// Rows of a page.
        block_size: i64 = 0,
        /// Padding on the left of the keys.
        kv_padding_size: Maybe<'a> = None,
    }

    /// What attention of prompts and steps may be told besides.
    struct FusedInferOptions<'a> {
        /// Of quantised scores and results.
        scales: InferScales<'a> = InferScales::default(),
        /// Of the cache.
        cache: CacheOptions<'a> = CacheOptions::default(),
        /// Padding on the left of the queries.
        query_padding_size: Maybe<'a> = None,
        /// Of a quantised cache: 0 scales by channel, 1 by token.
        antiquant_mode: i64 = 0,
        /// Whether `softmax_lse` is wanted.
        softmax_lse_flag: bool = false,
    }

    /// What versions from the second on may be told: keys and values quantised apart, and prefixes that sequences share.
    struct KeyValueOptions<'a> {
        /// Scales of the keys.
        key_antiquant_scale: Maybe<'a> = None,
        /// Offsets of the keys.
        key_antiquant_offset: Maybe<'a> = None,
        /// 0 scales by channel, 1 by token.
        key_antiquant_mode: i64 = 0,
        /// Scales of the values.
        value_antiquant_scale: Maybe<'a> = None,
        /// Offsets of the values.
        value_antiquant_offset: Maybe<'a> = None,
        /// 0 scales by channel, 1 by token.
        value_antiquant_mode: i64 = 0,
        /// Keys that come before those of every sequence.
        key_shared_prefix: Maybe<'a> = None,
        /// Their values.
        value_shared_prefix: Maybe<'a> = None,
        /// How many of them count.
        actual_shared_prefix_len: Option<&'a [i64]> = None,
    }

    /// What versions from the third on may be told: parts of queries and keys of their own, whose product scores add.
    struct RopeOptions<'a> {
        /// Part of the queries.
        query_rope: Maybe<'a> = None,
        /// Part of the keys.
        key_rope: Maybe<'a> = None,
        /// Scales of a quantised `key_rope`.
        key_rope_antiquant_scale: Maybe<'a> = None,
    }

    /// What the fourth version may be told: quantised queries, and sinks.
    struct QueryOptions<'a> {
        /// Scales of the queries.
        dequant_scale_query: Maybe<'a> = None,
        /// How they are quantised.
        query_quant_mode: i64 = 0,
        /// A score a head that takes a share of the probability.
        learnable_sink: Maybe<'a> = None,
    }

    /// What a single step of attention may be told besides its operands.
    struct StepOptions<'a> {
        /// Biases of scores by position.
        pse_shift: Maybe<'a> = None,
        /// 1 where a score is dropped.
        atten_mask: Maybe<'a> = None,
        /// Keys of each sequence.
        actual_seq_lengths: Option<&'a [i64]> = None,
    }

    /// What writing a paged cache may be told.
    struct ScatterOptions<'a> {
        /// Of a compressed cache: rows of each sequence and head.
        compress_lens: Maybe<'a> = None,
        /// Of a compressed cache: where they begin.
        compress_seq_offset: Maybe<'a> = None,
        /// Of a compressed cache: rows of each sequence.
        seq_lens: Maybe<'a> = None,
        /// `Norm`, or `PA_NZ` for a cache in the format of matrix units.
        cache_mode: Text = c"Norm",
        /// `None`, or how a compressed cache is written.
        scatter_mode: Text = c"None",
        /// Strides of the cache.
        strides: Option<&'a [i64]> = None,
        /// Offsets of the cache.
        offsets: Option<&'a [i64]> = None,
    }
}

operators! {
    attention {
    /// Attention for inference, of prompts and single steps.
    aclnnFusedInferAttentionScore(
        of.query, of.key, of.value, of.options.pse_shift, of.options.atten_mask, of.options.actual_seq_lengths,
        of.options.actual_seq_lengths_kv, of.fused.scales.deq_scale1, of.fused.scales.quant_scale1,
        of.fused.scales.deq_scale2, of.fused.scales.quant_scale2, of.fused.scales.quant_offset2,
        of.fused.cache.antiquant_scale, of.fused.cache.antiquant_offset, of.fused.cache.block_table,
        of.fused.query_padding_size, of.fused.cache.kv_padding_size, of.heads.num_heads, of.heads.scale_value,
        of.options.pre_tokens, of.options.next_tokens, of.heads.input_layout, of.heads.num_key_value_heads,
        of.options.sparse_mode, of.options.inner_precise, of.fused.cache.block_size, of.fused.antiquant_mode,
        of.fused.softmax_lse_flag, of.attention_out, of.softmax_lse,
    ) = struct FusedInferAttentionScore {
        of: FusedAttention<'a>,
    };

    /// [`FusedInferAttentionScore`] with scales of keys and values apart, and shared prefixes.
    aclnnFusedInferAttentionScoreV2(
        of.query, of.key, of.value, of.options.pse_shift, of.options.atten_mask, of.options.actual_seq_lengths,
        of.options.actual_seq_lengths_kv, of.fused.scales.deq_scale1, of.fused.scales.quant_scale1,
        of.fused.scales.deq_scale2, of.fused.scales.quant_scale2, of.fused.scales.quant_offset2,
        of.fused.cache.antiquant_scale, of.fused.cache.antiquant_offset, of.fused.cache.block_table,
        of.fused.query_padding_size, of.fused.cache.kv_padding_size, apart.key_antiquant_scale, apart.key_antiquant_offset,
        apart.value_antiquant_scale, apart.value_antiquant_offset, apart.key_shared_prefix, apart.value_shared_prefix,
        apart.actual_shared_prefix_len, of.heads.num_heads, of.heads.scale_value, of.options.pre_tokens,
        of.options.next_tokens, of.heads.input_layout, of.heads.num_key_value_heads, of.options.sparse_mode,
        of.options.inner_precise, of.fused.cache.block_size, of.fused.antiquant_mode, of.fused.softmax_lse_flag,
        apart.key_antiquant_mode, apart.value_antiquant_mode, of.attention_out, of.softmax_lse,
    ) = struct FusedInferAttentionScoreV2 {
        of: FusedAttention<'a>,
        apart: KeyValueOptions<'a>,
    };

    /// [`FusedInferAttentionScoreV2`] with parts of queries and keys of their own.
    aclnnFusedInferAttentionScoreV3(
        of.query, of.key, of.value, of.options.pse_shift, of.options.atten_mask, of.options.actual_seq_lengths,
        of.options.actual_seq_lengths_kv, of.fused.scales.deq_scale1, of.fused.scales.quant_scale1,
        of.fused.scales.deq_scale2, of.fused.scales.quant_scale2, of.fused.scales.quant_offset2,
        of.fused.cache.antiquant_scale, of.fused.cache.antiquant_offset, of.fused.cache.block_table,
        of.fused.query_padding_size, of.fused.cache.kv_padding_size, apart.key_antiquant_scale, apart.key_antiquant_offset,
        apart.value_antiquant_scale, apart.value_antiquant_offset, apart.key_shared_prefix, apart.value_shared_prefix,
        apart.actual_shared_prefix_len, rope.query_rope, rope.key_rope, rope.key_rope_antiquant_scale, of.heads.num_heads,
        of.heads.scale_value, of.options.pre_tokens, of.options.next_tokens, of.heads.input_layout,
        of.heads.num_key_value_heads, of.options.sparse_mode, of.options.inner_precise, of.fused.cache.block_size,
        of.fused.antiquant_mode, of.fused.softmax_lse_flag, apart.key_antiquant_mode, apart.value_antiquant_mode,
        of.attention_out, of.softmax_lse,
    ) = struct FusedInferAttentionScoreV3 {
        of: FusedAttention<'a>,
        apart: KeyValueOptions<'a>,
        rope: RopeOptions<'a>,
    };

    /// [`FusedInferAttentionScoreV3`] with a sink a head.
    aclnnFusedInferAttentionScoreV4(
        of.query, of.key, of.value, of.options.pse_shift, of.options.atten_mask, of.options.actual_seq_lengths,
        of.options.actual_seq_lengths_kv, of.fused.scales.deq_scale1, of.fused.scales.quant_scale1,
        of.fused.scales.deq_scale2, of.fused.scales.quant_scale2, of.fused.scales.quant_offset2,
        of.fused.cache.antiquant_scale, of.fused.cache.antiquant_offset, of.fused.cache.block_table,
        of.fused.query_padding_size, of.fused.cache.kv_padding_size, apart.key_antiquant_scale, apart.key_antiquant_offset,
        apart.value_antiquant_scale, apart.value_antiquant_offset, apart.key_shared_prefix, apart.value_shared_prefix,
        apart.actual_shared_prefix_len, rope.query_rope, rope.key_rope, rope.key_rope_antiquant_scale,
        queries.dequant_scale_query, queries.learnable_sink, of.heads.num_heads, of.heads.scale_value, of.options.pre_tokens,
        of.options.next_tokens, of.heads.input_layout, of.heads.num_key_value_heads, of.options.sparse_mode,
        of.options.inner_precise, of.fused.cache.block_size, of.fused.antiquant_mode, of.fused.softmax_lse_flag,
        apart.key_antiquant_mode, apart.value_antiquant_mode, queries.query_quant_mode, of.attention_out, of.softmax_lse,
    ) = struct FusedInferAttentionScoreV4 {
        of: FusedAttention<'a>,
        apart: KeyValueOptions<'a>,
        rope: RopeOptions<'a>,
        queries: QueryOptions<'a>,
    };

    /// Attention of prompts.
    aclnnPromptFlashAttentionV3(
        query, key, value, options.pse_shift, options.atten_mask, options.actual_seq_lengths, options.actual_seq_lengths_kv,
        scales.deq_scale1, scales.quant_scale1, scales.deq_scale2, scales.quant_scale2, scales.quant_offset2, heads.num_heads,
        heads.scale_value, options.pre_tokens, options.next_tokens, heads.input_layout, heads.num_key_value_heads,
        options.sparse_mode, options.inner_precise, attention_out,
    ) = struct PromptFlashAttentionV3 {
        query: View<'a>,
        key: View<'a>,
        value: View<'a>,
        heads: InferHeads,
        options: PromptOptions<'a>,
        scales: InferScales<'a>,
        attention_out: View<'a>,
    };

    /// Attention of single steps.
    aclnnIncreFlashAttention(
        query, key, value, options.pse_shift, options.atten_mask, options.actual_seq_lengths, heads.num_heads,
        heads.scale_value, heads.input_layout, heads.num_key_value_heads, attention_out,
    ) = struct IncreFlashAttention {
        query: View<'a>,
        /// One tensor, or one for each sequence.
        key: Vec<View<'a>>,
        value: Vec<View<'a>>,
        heads: InferHeads,
        options: StepOptions<'a>,
        attention_out: View<'a>,
    };

    /// [`IncreFlashAttention`] over pages of a cache.
    aclnnIncreFlashAttentionV4(
        query, key, value, options.pse_shift, options.atten_mask, options.actual_seq_lengths,
        scales.deq_scale1 as dequant_scale1, scales.quant_scale1, scales.deq_scale2 as dequant_scale2, scales.quant_scale2,
        scales.quant_offset2, cache.antiquant_scale, cache.antiquant_offset, cache.block_table, cache.kv_padding_size,
        heads.num_heads, heads.scale_value, heads.input_layout, heads.num_key_value_heads, cache.block_size, inner_precise,
        attention_out,
    ) = struct IncreFlashAttentionV4 {
        query: View<'a>,
        key: Vec<View<'a>>,
        value: Vec<View<'a>>,
        heads: InferHeads,
        options: StepOptions<'a>,
        scales: InferScales<'a>,
        cache: CacheOptions<'a>,
        /// 1 for speed.
        inner_precise: i64,
        attention_out: View<'a>,
    };

    /// New keys and values `[t,n,d]` to their slots of a paged cache `[blocks,rows,n,d]`.
    aclnnScatterPaKvCache(
        key, key_cache, slot_mapping, value, value_cache, options.compress_lens, options.compress_seq_offset,
        options.seq_lens, options.cache_mode, options.scatter_mode, options.strides, options.offsets,
    ) = struct ScatterPaKvCache {
        key: View<'a>,
        key_cache: View<'a>,
        /// The row of the cache for each new row; -1 leaves it out.
        slot_mapping: View<'a>,
        value: View<'a>,
        value_cache: View<'a>,
        options: ScatterOptions<'a>,
    };

    /// Two partial attentions into one, with their statistics.
    aclnnRingAttentionUpdate(
        prev.attn_out as prev_attn_out, prev.softmax_max as prev_softmax_max, prev.softmax_sum as prev_softmax_sum,
        cur.attn_out as cur_attn_out, cur.softmax_max as cur_softmax_max, cur.softmax_sum as cur_softmax_sum, actual_seq_qlen,
        input_layout, out.attn_out, out.softmax_max, out.softmax_sum,
    ) = struct RingAttentionUpdate {
        prev: PartialAttention<'a>,
        cur: PartialAttention<'a>,
        /// Ends of the queries of sequences one after the other, with a leading zero, on the device.
        actual_seq_qlen: Maybe<'a>,
        /// `SBH` or `TND`.
        input_layout: Text,
        out: PartialAttention<'a>,
    };

    /// [`RingAttentionUpdate`] with a layout of the statistics.
    aclnnRingAttentionUpdateV2(
        prev.attn_out as prev_attn_out, prev.softmax_max as prev_softmax_max, prev.softmax_sum as prev_softmax_sum,
        cur.attn_out as cur_attn_out, cur.softmax_max as cur_softmax_max, cur.softmax_sum as cur_softmax_sum, actual_seq_qlen,
        input_layout, input_softmax_layout, out.attn_out, out.softmax_max, out.softmax_sum,
    ) = struct RingAttentionUpdateV2 {
        prev: PartialAttention<'a>,
        cur: PartialAttention<'a>,
        /// Ends of the queries of sequences one after the other, with a leading zero, on the device.
        actual_seq_qlen: Maybe<'a>,
        /// `SBH` or `TND`.
        input_layout: Text,
        input_softmax_layout: Text,
        out: PartialAttention<'a>,
    };
    }

    products {
    /// Product of int8 matrices times a scale a column.
    aclnnQuantMatmulV3(x1, x2, scale, offset, bias, transpose_x1, transpose_x2, out) = struct QuantMatmulV3 {
        x1: View<'a>,
        x2: View<'a>,
        /// As [`quant_param`] packs them.
        scale: View<'a>,
        offset: Maybe<'a>,
        bias: Maybe<'a>,
        transpose_x1: bool,
        transpose_x2: bool,
        out: View<'a>,
    };

    /// [`QuantMatmulV3`] with a scale a row.
    aclnnQuantMatmulV4(x1, x2, scale, offset, pertoken_scale, bias, transpose_x1, transpose_x2, out) =
        struct QuantMatmulV4 {
        x1: View<'a>,
        x2: View<'a>,
        scale: View<'a>,
        offset: Maybe<'a>,
        /// A scale a row.
        pertoken_scale: Maybe<'a>,
        bias: Maybe<'a>,
        transpose_x1: bool,
        transpose_x2: bool,
        out: View<'a>,
    };

    /// `x · ((weight + antiquant_offset) · antiquant_scale) + bias` with an int8 weight.
    aclnnWeightQuantBatchMatmulV2(
        x, weight, antiquant_scale, antiquant_offset, quant_scale, quant_offset, bias, antiquant_group_size, y,
    ) = struct WeightQuantBatchMatmulV2 {
        x: View<'a>,
        weight: View<'a>,
        antiquant_scale: View<'a>,
        antiquant_offset: Maybe<'a>,
        quant_scale: Maybe<'a>,
        quant_offset: Maybe<'a>,
        bias: Maybe<'a>,
        /// Rows of the weight that share a scale; 0 for all.
        antiquant_group_size: i32,
        y: View<'a>,
    };

    /// `round(x · scale + offset)` in int8.
    aclnnAscendQuantV3(x, scale, offset, sqrt_mode, round_mode, dst_type, axis, y) = struct AscendQuantV3 {
        x: View<'a>,
        scale: View<'a>,
        offset: Maybe<'a>,
        /// Multiplies by the scale twice.
        sqrt_mode: bool,
        /// As `round`: half to even.
        round_mode: Text,
        /// Element type of `y`, by [`acl_type`](crate::acl_type).
        dst_type: i32,
        /// The dimension that has a scale an element.
        axis: i32,
        y: View<'a>,
    };

    /// `(x + offset) · scale`.
    aclnnAscendAntiQuant(x, scale, offset, dst_type, sqrt_mode, y) = struct AscendAntiQuant {
        x: View<'a>,
        scale: View<'a>,
        offset: Maybe<'a>,
        /// Element type of `y`, by [`acl_type`](crate::acl_type).
        dst_type: i64,
        /// Multiplies by the scale twice.
        sqrt_mode: bool,
        y: View<'a>,
    };

    /// Rows in int8 with a scale each.
    aclnnDynamicQuant =
        fn dynamic_quant(x: View<'a>, smooth_scales: Option<View<'a>>, y: View<'a>, scale: View<'a>);

    /// Scales in the packed form of [`QuantMatmulV3`].
    aclnnTransQuantParamV2 = fn quant_param(scale: View<'a>, offset: Option<View<'a>>, out: View<'a>);
    }
}

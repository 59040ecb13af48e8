//! Operators of inference: attention over KV caches, writing them, integer products. Arguments have the names of the
//! operators' documentation.

use super::Text;
use crate::operator::{Argument, Call, View};
use crate::{Result, Stream};

operators! {
    transformer {
    /// Attention for inference, of prompts and single steps; a mask holds 1 where a score is dropped.
    aclnnFusedInferAttentionScore = fn infer_attention(query: View<'a>, key: Vec<View<'a>>, value: Vec<View<'a>>, pse_shift: Option<View<'a>>, atten_mask: Option<View<'a>>, actual_seq_lengths: Option<&[i64]>, actual_seq_lengths_kv: Option<&[i64]>, deq_scale1: Option<View<'a>>, quant_scale1: Option<View<'a>>, deq_scale2: Option<View<'a>>, quant_scale2: Option<View<'a>>, quant_offset2: Option<View<'a>>, antiquant_scale: Option<View<'a>>, antiquant_offset: Option<View<'a>>, block_table: Option<View<'a>>, query_padding_size: Option<View<'a>>, kv_padding_size: Option<View<'a>>, num_heads: i64, scale_value: f64, pre_tokens: i64, next_tokens: i64, input_layout: Text, num_key_value_heads: i64, sparse_mode: i64, inner_precise: i64, block_size: i64, antiquant_mode: i64, softmax_lse_flag: bool, attention_out: View<'a>, softmax_lse: Option<View<'a>>);
    /// [`infer_attention`] with scales of keys and values apart, and shared prefixes.
    aclnnFusedInferAttentionScoreV2 = fn infer_attention_v2(query: View<'a>, key: Vec<View<'a>>, value: Vec<View<'a>>, pse_shift: Option<View<'a>>, atten_mask: Option<View<'a>>, actual_seq_lengths: Option<&[i64]>, actual_seq_lengths_kv: Option<&[i64]>, deq_scale1: Option<View<'a>>, quant_scale1: Option<View<'a>>, deq_scale2: Option<View<'a>>, quant_scale2: Option<View<'a>>, quant_offset2: Option<View<'a>>, antiquant_scale: Option<View<'a>>, antiquant_offset: Option<View<'a>>, block_table: Option<View<'a>>, query_padding_size: Option<View<'a>>, kv_padding_size: Option<View<'a>>, key_antiquant_scale: Option<View<'a>>, key_antiquant_offset: Option<View<'a>>, value_antiquant_scale: Option<View<'a>>, value_antiquant_offset: Option<View<'a>>, key_shared_prefix: Option<View<'a>>, value_shared_prefix: Option<View<'a>>, actual_shared_prefix_len: Option<&[i64]>, num_heads: i64, scale_value: f64, pre_tokens: i64, next_tokens: i64, input_layout: Text, num_key_value_heads: i64, sparse_mode: i64, inner_precise: i64, block_size: i64, antiquant_mode: i64, softmax_lse_flag: bool, key_antiquant_mode: i64, value_antiquant_mode: i64, attention_out: View<'a>, softmax_lse: Option<View<'a>>);
    /// [`infer_attention_v2`] with parts of queries and keys of their own.
    aclnnFusedInferAttentionScoreV3 = fn infer_attention_v3(query: View<'a>, key: Vec<View<'a>>, value: Vec<View<'a>>, pse_shift: Option<View<'a>>, atten_mask: Option<View<'a>>, actual_seq_lengths: Option<&[i64]>, actual_seq_lengths_kv: Option<&[i64]>, deq_scale1: Option<View<'a>>, quant_scale1: Option<View<'a>>, deq_scale2: Option<View<'a>>, quant_scale2: Option<View<'a>>, quant_offset2: Option<View<'a>>, antiquant_scale: Option<View<'a>>, antiquant_offset: Option<View<'a>>, block_table: Option<View<'a>>, query_padding_size: Option<View<'a>>, kv_padding_size: Option<View<'a>>, key_antiquant_scale: Option<View<'a>>, key_antiquant_offset: Option<View<'a>>, value_antiquant_scale: Option<View<'a>>, value_antiquant_offset: Option<View<'a>>, key_shared_prefix: Option<View<'a>>, value_shared_prefix: Option<View<'a>>, actual_shared_prefix_len: Option<&[i64]>, query_rope: Option<View<'a>>, key_rope: Option<View<'a>>, key_rope_antiquant_scale: Option<View<'a>>, num_heads: i64, scale_value: f64, pre_tokens: i64, next_tokens: i64, input_layout: Text, num_key_value_heads: i64, sparse_mode: i64, inner_precise: i64, block_size: i64, antiquant_mode: i64, softmax_lse_flag: bool, key_antiquant_mode: i64, value_antiquant_mode: i64, attention_out: View<'a>, softmax_lse: Option<View<'a>>);
    /// [`infer_attention_v3`] with a sink a head.
    aclnnFusedInferAttentionScoreV4 = fn infer_attention_v4(query: View<'a>, key: Vec<View<'a>>, value: Vec<View<'a>>, pse_shift: Option<View<'a>>, atten_mask: Option<View<'a>>, actual_seq_lengths: Option<&[i64]>, actual_seq_lengths_kv: Option<&[i64]>, deq_scale1: Option<View<'a>>, quant_scale1: Option<View<'a>>, deq_scale2: Option<View<'a>>, quant_scale2: Option<View<'a>>, quant_offset2: Option<View<'a>>, antiquant_scale: Option<View<'a>>, antiquant_offset: Option<View<'a>>, block_table: Option<View<'a>>, query_padding_size: Option<View<'a>>, kv_padding_size: Option<View<'a>>, key_antiquant_scale: Option<View<'a>>, key_antiquant_offset: Option<View<'a>>, value_antiquant_scale: Option<View<'a>>, value_antiquant_offset: Option<View<'a>>, key_shared_prefix: Option<View<'a>>, value_shared_prefix: Option<View<'a>>, actual_shared_prefix_len: Option<&[i64]>, query_rope: Option<View<'a>>, key_rope: Option<View<'a>>, key_rope_antiquant_scale: Option<View<'a>>, dequant_scale_query: Option<View<'a>>, learnable_sink: Option<View<'a>>, num_heads: i64, scale_value: f64, pre_tokens: i64, next_tokens: i64, input_layout: Text, num_key_value_heads: i64, sparse_mode: i64, inner_precise: i64, block_size: i64, antiquant_mode: i64, softmax_lse_flag: bool, key_antiquant_mode: i64, value_antiquant_mode: i64, query_quant_mode: i64, attention_out: View<'a>, softmax_lse: Option<View<'a>>);
    /// Attention of prompts.
    aclnnPromptFlashAttentionV3 = fn prompt_attention(query: View<'a>, key: View<'a>, value: View<'a>, pse_shift: Option<View<'a>>, atten_mask: Option<View<'a>>, actual_seq_lengths: Option<&[i64]>, actual_seq_lengths_kv: Option<&[i64]>, deq_scale1: Option<View<'a>>, quant_scale1: Option<View<'a>>, deq_scale2: Option<View<'a>>, quant_scale2: Option<View<'a>>, quant_offset2: Option<View<'a>>, num_heads: i64, scale_value: f64, pre_tokens: i64, next_tokens: i64, input_layout: Text, num_key_value_heads: i64, sparse_mode: i64, inner_precise: i64, attention_out: View<'a>);
    /// Attention of single steps; lengths are those of the keys.
    aclnnIncreFlashAttention = fn step_attention(query: View<'a>, key: Vec<View<'a>>, value: Vec<View<'a>>, pse_shift: Option<View<'a>>, atten_mask: Option<View<'a>>, actual_seq_lengths: Option<&[i64]>, num_heads: i64, scale_value: f64, input_layout: Text, num_key_value_heads: i64, attention_out: View<'a>);
    /// [`step_attention`] over pages of a cache.
    aclnnIncreFlashAttentionV4 = fn step_attention_v4(query: View<'a>, key: Vec<View<'a>>, value: Vec<View<'a>>, pse_shift: Option<View<'a>>, atten_mask: Option<View<'a>>, actual_seq_lengths: Option<&[i64]>, dequant_scale1: Option<View<'a>>, quant_scale1: Option<View<'a>>, dequant_scale2: Option<View<'a>>, quant_scale2: Option<View<'a>>, quant_offset2: Option<View<'a>>, antiquant_scale: Option<View<'a>>, antiquant_offset: Option<View<'a>>, blocktable: Option<View<'a>>, kv_padding_size: Option<View<'a>>, num_heads: i64, scale_value: f64, input_layout: Text, num_key_value_heads: i64, block_size: i64, inner_precise: i64, attention_out: View<'a>);
    /// New keys and values `[t,n,d]` to their slots of a paged cache `[blocks,rows,n,d]`.
    aclnnScatterPaKvCache = fn scatter_cache(key: View<'a>, key_cache_ref: View<'a>, slot_mapping: View<'a>, value: View<'a>, value_cache_ref: View<'a>, compress_lens: Option<View<'a>>, compress_seq_offset: Option<View<'a>>, seq_lens: Option<View<'a>>, cache_mode: Text, scatter_mode: Text, strides: Option<&[i64]>, offsets: Option<&[i64]>);
    /// Two partial attentions into one, with their statistics.
    aclnnRingAttentionUpdate = fn ring_update(prev_attn_out: View<'a>, prev_softmax_max: View<'a>, prev_softmax_sum: View<'a>, cur_attn_out: View<'a>, cur_softmax_max: View<'a>, cur_softmax_sum: View<'a>, actual_seq_qlen: Option<View<'a>>, input_layout: Text, attn_out_out: View<'a>, softmax_max_out: View<'a>, softmax_sum_out: View<'a>);
    /// [`ring_update`] with a layout of the statistics.
    aclnnRingAttentionUpdateV2 = fn ring_update_v2(prev_attn_out: View<'a>, prev_softmax_max: View<'a>, prev_softmax_sum: View<'a>, cur_attn_out: View<'a>, cur_softmax_max: View<'a>, cur_softmax_sum: View<'a>, actual_seq_qlen: Option<View<'a>>, input_layout: Text, input_softmax_layout: Text, attn_out_out: View<'a>, softmax_max_out: View<'a>, softmax_sum_out: View<'a>);
    }
    nn {
    /// Product of int8 matrices times a scale a column.
    aclnnQuantMatmulV3 = fn quant_matmul_v3(x1: View<'a>, x2: View<'a>, scale: View<'a>, offset: Option<View<'a>>, bias: Option<View<'a>>, transpose_x1: bool, transpose_x2: bool, out: View<'a>);
    /// [`quant_matmul_v3`] with a scale a row.
    aclnnQuantMatmulV4 = fn quant_matmul(x1: View<'a>, x2: View<'a>, scale: View<'a>, offset: Option<View<'a>>, pertoken_scale: Option<View<'a>>, bias: Option<View<'a>>, transpose_x1: bool, transpose_x2: bool, out: View<'a>);
    /// `x · ((w + offset) · scale) + bias` with an int8 weight.
    aclnnWeightQuantBatchMatmulV2 = fn weight_quant_matmul(x: View<'a>, weight: View<'a>, antiquant_scale: View<'a>, antiquant_offset: Option<View<'a>>, quant_scale: Option<View<'a>>, quant_offset: Option<View<'a>>, bias: Option<View<'a>>, antiquant_group_size: i32, y: View<'a>);
    /// `round(x · scale + offset)` in int8.
    aclnnAscendQuantV3 = fn quantise(x: View<'a>, scale: View<'a>, offset: Option<View<'a>>, sqrt_mode: bool, round_mode: Text, dst_type: i32, axis: i32, y: View<'a>);
    /// `(x + offset) · scale`.
    aclnnAscendAntiQuant = fn dequantise(x: View<'a>, scale: View<'a>, offset: Option<View<'a>>, dst_type: i64, sqrt_mode: bool, y: View<'a>);
    /// Rows in int8 with a scale each.
    aclnnDynamicQuant = fn dynamic_quant(x: View<'a>, smooth_scales: Option<View<'a>>, y_out: View<'a>, scale_out: View<'a>);
    /// Scales in the packed form of [`quant_matmul_v3`].
    aclnnTransQuantParamV2 = fn quant_param(scale: View<'a>, offset: Option<View<'a>>, out: View<'a>);
    }
}

/// Name, and whether the opened toolkit has both phases, of the operators of this module.
pub(super) fn available(toolkit: &crate::Toolkit) -> Vec<(&'static str, bool)> {
    listed(toolkit)
}

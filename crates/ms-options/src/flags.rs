//! The flags that describe a model: what each means, and the values that it takes.
//!
//! They are read together, by the names under which Megatron stores them ([`ms_spec::megatron::from_args`]); a test shows
//! that each is used. Flags of one model part are in the part's own file ([`ms_spec::megatron::part_flags`]).

use ms_cli::megatron::Entry;
use serde_json::Value;

const fn of(flag: &'static str, range: &'static str, help: &'static str) -> Entry {
    Entry { range, ..Entry::new::<Option<Value>>(flag, help, "Model") }
}

/// What some families alone need.
const fn family(flag: &'static str, range: &'static str, help: &'static str) -> Entry {
    Entry { range, ..Entry::new::<Option<Value>>(flag, help, "Model families") }
}

#[rustfmt::skip] // a flag a line
static MODEL: [Entry; 89] = [
    family("--add-dense-bias", "", "bias in the attention output projection"),
    family("--add-output-layer-bias", "", "bias in the output layer"),
    of("--add-qkv-bias", "", "biases in the query, key and value projections"),
    family("--add-rmsnorm-offset", "", "norms scale by 1 + w instead of w"),
    family("--attn-logit-softcapping", "(0,)", "soft cap of attention scores"),
    family("--cla-share-factor", "[1,16384]", "cross-layer attention: the last of every N layers reuses the keys and values of the layer before it; needs --share-kvstates"),
    family("--dim-model-base", "(0,)", "divide the logits by hidden size / this number"),
    of("--disable-bias-linear", "", "no biases in linear layers"),
    family("--embed-layernorm", "", "LayerNorm after the embedding"),
    family("--embedding-multiplier-scale", "(,)", "multiply embeddings by this factor"),
    of("--ffn-hidden-size", "[1,16777216]", "feed-forward width (default: 4 x hidden size)"),
    family("--fc-type", "", "up_down: feed-forward without a gate; cannot be combined with --swiglu, --geglu or --gelu-tanh"),
    family("--first-k-dense-replace", "[-1,16384]", "number of leading layers with a dense feed-forward instead of experts"),
    family("--geglu", "", "feed-forward gated by GELU; takes precedence over --swiglu"),
    family("--gelu-tanh", "", "feed-forward gated by the tanh approximation of GELU; takes precedence over --swiglu"),
    of("--group-query-attention", "", "grouped-query attention: query heads share key/value heads"),
    of("--hidden-size", "[1,16777216]", "width of the residual stream"),
    family("--high-freq-factor", "(0,)", "llama3 RoPE scaling: upper frequency bound, in wavelengths per original context"),
    family("--input-embeds-norm", "", "multiply embeddings by the square root of the hidden size"),
    family("--interleave-sliding-window", "[1,268435456]", "sliding-window attention in every second layer: number of keys that a query sees there"),
    of("--kv-channels", "[1,16777216]", "size of an attention head (default: hidden size / heads)"),
    family("--long-factor", "", "LongRoPE: divisors of the frequencies for long sequences"),
    family("--long-mscale", "(0,)", "LongRoPE: scale of cosine and sine for long sequences"),
    family("--longrope-freqs-type", "", "LongRoPE: outer rotates whole heads whatever --rotary-percent says, mul rotates that share"),
    family("--low-freq-factor", "(0,)", "llama3 RoPE scaling: lower frequency bound, in wavelengths per original context"),
    of("--max-position-embeddings", "[1,268435456]", "maximum number of positions"),
    family("--moe-ffn-hidden-size", "[1,16777216]", "feed-forward width of an expert"),
    family("--moe-input-jitter-eps", "[0,1)", "training: multiply router inputs by random factors between 1 - eps and 1 + eps; sparsemixer_topk: how close to the best a score must be to count"),
    family("--moe-intermediate-size", "[1,16777216]", "feed-forward width of an expert"),
    family("--moe-layer-freq", "[-1,16384]", "which layers have experts: every N-th, or at head a list of 0 and 1 per layer"),
    family("--moe-router-dtype", "", "type of router logits and scores"),
    family("--moe-router-enable-expert-bias", "", "add a bias per expert to the scores by which experts are chosen"),
    family("--moe-router-group-topk", "[1,16384]", "group-limited routing: number of groups whose experts a token may use"),
    family("--moe-router-load-balancing-type", "", "router and load-balancing loss: aux_loss, seq_aux_loss (per sequence), pai_megatron_aux_loss and softmax_topk (softmax before the choice; softmax_topk without a loss), sinkhorn (balanced choice without a loss), group_limited_greedy, sparsemixer_topk, noaux_tc, none"),
    family("--moe-router-num-groups", "[1,16384]", "group-limited routing: number of groups of experts"),
    family("--moe-router-pre-softmax", "", "softmax over all experts before they are chosen, instead of over the chosen ones"),
    family("--moe-router-score-function", "", "score function of the router"),
    of("--moe-router-topk", "[1,16384]", "experts per token"),
    family("--moe-router-topk-scaling-factor", "(0,)", "scaling factor of the routed experts' outputs"),
    family("--moe-shared-expert-intermediate-size", "[0,16777216]", "feed-forward width of the shared experts"),
    family("--n-group", "[1,16384]", "group-limited routing: number of groups of experts"),
    family("--n-shared-experts", "[0,16384]", "number of shared experts, which process every token"),
    family("--no-bias-gelu-fusion", "", "exact GELU in layers with biases, instead of its tanh approximation"),
    of("--norm-epsilon", "[0,1]", "epsilon of the norms"),
    family("--norm-topk-prob", "", "normalise the weights of the chosen experts to a sum of 1"),
    family("--no-position-embedding", "", "refused with learned positions, as in upstream; --position-embedding-type chooses the kind of positions"),
    of("--normalization", "", "type of norm"),
    of("--num-attention-heads", "[1,16384]", "number of query heads"),
    of("--num-experts", "[0,16384]", "number of experts per layer"),
    of("--num-layers", "[1,16384]", "number of transformer layers"),
    of("--num-query-groups", "[1,16384]", "number of key/value heads, with --group-query-attention"),
    family("--num-zero-experts", "[0,16384]", "number of identity experts, which return tokens unchanged"),
    family("--openai-gelu", "", "tanh approximation of GELU, without a gate"),
    family("--original-max-position-embeddings", "[1,268435456]", "llama3 RoPE scaling: original context length"),
    family("--output-logit-softcapping", "(0,)", "soft cap of the logits"),
    family("--output-multiplier-scale", "(,)", "multiply the logits by this factor"),
    of("--position-embedding-type", "", "type of position embedding"),
    family("--post-norm", "", "norms after the sublayers"),
    of("--qk-layernorm", "", "normalise queries and keys of each head"),
    family("--query-pre-attn-scalar", "(0,)", "divide attention scores by the square root of this number"),
    family("--rope-scaling-beta-fast", "(0,)", "YaRN: number of rotations above which a frequency is not scaled"),
    family("--rope-scaling-beta-slow", "(0,)", "YaRN: number of rotations below which a frequency is fully scaled"),
    family("--rope-scaling-factor", "(0,)", "RoPE scaling factor"),
    family("--rope-scaling-mscale", "[0,)", "YaRN: scale of cosine and sine"),
    family("--rope-scaling-mscale-all-dim", "[0,)", "YaRN: scale over all dimensions"),
    family("--rope-scaling-original-max-position-embeddings", "[1,268435456]", "YaRN: original context length"),
    family("--rope-scaling-type", "", "RoPE scaling method"),
    family("--rope-theta", "(0,)", "base of the rotary frequencies"),
    of("--rotary-base", "(0,)", "base of the rotary frequencies"),
    family("--rotary-interleaved", "", "rotate neighbouring elements instead of the halves of a head"),
    of("--rotary-percent", "(0,1]", "share of each head that is rotated"),
    family("--rotary-seq-len-interpolation-factor", "(0,)", "divide positions by this factor (linear interpolation)"),
    family("--routed-scaling-factor", "(0,)", "scaling factor of the routed experts' outputs"),
    family("--router-gating-in-fp32", "", "compute router logits in float32"),
    family("--scale-depth", "(,)", "multiply sublayer outputs by this number / the square root of the number of layers"),
    family("--scale-emb", "(,)", "multiply embeddings by this factor"),
    family("--shared-expert-gate", "", "gate on the output of the shared experts"),
    family("--shared-expert-gate-output-dimension", "[1,16777216]", "v2.0.0: output width of the gate of --shared-expert-gate: 1 or the hidden size"),
    family("--short-factor", "", "LongRoPE: divisors of the frequencies for short sequences"),
    family("--short-mscale", "(0,)", "LongRoPE: scale of cosine and sine for short sequences"),
    family("--sliding-window", "[1,268435456]", "sliding-window attention: number of keys that a query sees"),
    family("--spec", "", "upstream's layer specification: mamba modules make state-space layers, hunyuan_spec uses Hunyuan's rotary embedding, longcat_spec makes shortcut layers, minimax_spec normalises whole projections; others leave it to the model flags"),
    family("--squared-relu", "", "feed-forward with squared ReLU, without a gate"),
    of("--swiglu", "", "feed-forward gated by SiLU (SwiGLU)"),
    family("--swiglu-limit", "[0,)", "clamp gate and up projections of gated activations to this value"),
    family("--topk-group", "[1,16384]", "group-limited routing: number of groups whose experts a token may use"),
    of("--untie-embeddings-and-output-weights", "", "output layer with its own weights instead of the embedding's"),
    family("--use-glm-rope", "", "rotate neighbouring pairs in half of each head (GLM)"),
    of("--use-rotary-position-embeddings", "", "old spelling of --position-embedding-type rope"),
];

/// All flags that describe a model, by their names.
pub(crate) fn model() -> Vec<Entry> {
    let parts = ms_spec::megatron::part_flags().map(|of| family(of.flag, of.range, of.help));
    let mut all: Vec<Entry> = MODEL.into_iter().chain(parts).collect();
    all.sort_unstable_by_key(|entry| entry.flag);
    all
}

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
static MODEL: [Entry; 97] = [
    family("--add-dense-bias", "", "bias of the attention output projection"),
    family("--add-output-layer-bias", "", "bias of the output layer"),
    of("--add-qkv-bias", "", "biases in the query, key and value projections"),
    family("--add-rmsnorm-offset", "", "scale norms by 1 + w"),
    family("--apply-rope-no-in-complex", "", "the scorer of --enable-dsa-indexer rotates neighbouring elements instead of halves"),
    family("--attn-logit-softcapping", "(0,)", "cap of attention scores"),
    family("--cla-share-factor", "[1,16384]", "of so many layers the last takes the keys and values of the one before it; needs --share-kvstates"),
    family("--dim-model-base", "(0,)", "logits are divided by hidden size over this"),
    of("--disable-bias-linear", "", "no biases in linear layers"),
    family("--embed-layernorm", "", "LayerNorm after the embedding"),
    family("--embedding-multiplier-scale", "(,)", "factor of the embedding"),
    family("--enable-dsa-indexer", "", "sparse attention over picked keys"),
    of("--ffn-hidden-size", "[1,16777216]", "width of the feed-forward layer (default 4 x hidden size)"),
    family("--fc-type", "", "up_down: networks have no gate, as without --swiglu, --geglu and --gelu-tanh, which it goes not with"),
    family("--first-k-dense-replace", "[-1,16384]", "first layers without experts"),
    family("--geglu", "", "feed-forward gated by GELU; wins over --swiglu"),
    family("--gelu-tanh", "", "feed-forward gated by GELU, by its tanh formula; wins over --swiglu"),
    of("--group-query-attention", "", "share key and value heads between query heads"),
    of("--hidden-size", "[1,16777216]", "width of the residual stream"),
    family("--high-freq-factor", "(0,)", "llama3 scaling: upper border, in wavelengths per context"),
    family("--index-head-dim", "[1,16384]", "head size of the indexer"),
    family("--index-n-heads", "[1,16384]", "heads of the indexer"),
    family("--index-skip-topk-offset", "[0,16384]", "first layers that pick keys themselves, with --index-topk-freq"),
    family("--index-topk", "[1,268435456]", "keys that the indexer picks"),
    family("--index-topk-freq", "[0,16384]", "every so many layers one picks keys; those behind it take its picks"),
    family("--index-topk-pattern", "", "C: the layer picks keys, S: it takes the last picks"),
    family("--input-embeds-norm", "", "scale the embedding by the root of the hidden size"),
    family("--interleave-sliding-window", "[1,268435456]", "sliding window in every second layer"),
    of("--kv-channels", "[1,16777216]", "size of a head (default hidden size / heads)"),
    family("--long-factor", "", "longrope divisors of long sequences"),
    family("--long-mscale", "(0,)", "longrope factor of long sequences"),
    family("--longrope-freqs-type", "", "longrope: outer turns whole heads, whatever the share of them, mul that share; the same where it is all"),
    family("--low-freq-factor", "(0,)", "llama3 scaling: lower border, in wavelengths per context"),
    of("--max-position-embeddings", "[1,268435456]", "longest position the model is made for"),
    family("--moe-ffn-hidden-size", "[1,16777216]", "width of an expert"),
    family("--moe-input-jitter-eps", "[0,1)", "a router's inputs are multiplied by factors of 1 - eps to 1 + eps while it is trained; sparsemixer_topk: how near to the best a score weighs"),
    family("--moe-intermediate-size", "[1,16777216]", "width of an expert"),
    family("--moe-layer-freq", "[-1,16384]", "which layers have experts"),
    family("--moe-router-dtype", "", "type of the router's logits and scores"),
    family("--moe-router-enable-expert-bias", "", "a bias per expert takes part in the choice"),
    family("--moe-router-group-topk", "[1,16384]", "groups of experts that stay open"),
    family("--moe-router-load-balancing-type", "", "the router's kind and load-balancing loss: aux_loss, seq_aux_loss (of each sequence), pai_megatron_aux_loss and softmax_topk (softmax before the choice; the second without a loss), sinkhorn (experts are chosen so that tokens spread evenly; no loss), group_limited_greedy, sparsemixer_topk, noaux_tc, none"),
    family("--moe-router-num-groups", "[1,16384]", "groups of experts"),
    family("--moe-router-pre-softmax", "", "softmax before the choice"),
    family("--moe-router-score-function", "", "score of an expert"),
    of("--moe-router-topk", "[1,16384]", "experts per token"),
    family("--moe-router-topk-scaling-factor", "(0,)", "factor of the experts' weights"),
    family("--moe-shared-expert-intermediate-size", "[0,16777216]", "width of the shared expert"),
    family("--n-group", "[1,16384]", "groups of experts"),
    family("--n-shared-experts", "[0,16384]", "experts that every token passes"),
    family("--no-bias-gelu-fusion", "", "GELU with biases by its exact formula instead of by tanh"),
    of("--norm-epsilon", "[0,1]", "added to the mean square"),
    family("--norm-topk-prob", "", "divide the experts' weights by their sum"),
    family("--no-position-embedding", "", "refused beside learned positions, as upstream; --position-embedding-type says what there are"),
    of("--normalization", "", "kind of norm"),
    of("--num-attention-heads", "[1,16384]", "query heads"),
    of("--num-experts", "[0,16384]", "experts of a layer"),
    of("--num-layers", "[1,16384]", "transformer layers"),
    of("--num-query-groups", "[1,16384]", "key/value heads, with --group-query-attention"),
    family("--num-zero-experts", "[0,16384]", "experts that hand tokens on as they are"),
    family("--openai-gelu", "", "GELU by its tanh formula, without a gate"),
    family("--original-max-position-embeddings", "[1,268435456]", "llama3 scaling: context length before stretching"),
    family("--output-logit-softcapping", "(0,)", "cap of the logits"),
    family("--output-multiplier-scale", "(,)", "factor of the logits"),
    of("--position-embedding-type", "", "kind of position information"),
    family("--post-norm", "", "norms on the sublayers' outputs"),
    of("--qk-layernorm", "", "normalise each query and key head"),
    family("--query-pre-attn-scalar", "(0,)", "scores are scaled by its root"),
    family("--rope-scaling-beta-fast", "(0,)", "yarn: rotations above which a frequency is kept"),
    family("--rope-scaling-beta-slow", "(0,)", "yarn: rotations below which a frequency is stretched in full"),
    family("--rope-scaling-factor", "(0,)", "by how much rotary frequencies are stretched"),
    family("--rope-scaling-mscale", "[0,)", "yarn: factor of cosine and sine"),
    family("--rope-scaling-mscale-all-dim", "[0,)", "yarn: factor over all dims"),
    family("--rope-scaling-original-max-position-embeddings", "[1,268435456]", "yarn: context length before stretching"),
    family("--rope-scaling-type", "", "how rotary frequencies are stretched"),
    family("--rope-theta", "(0,)", "base of the rotary frequencies"),
    of("--rotary-base", "(0,)", "base of the rotary frequencies"),
    family("--rotary-interleaved", "", "rotate neighbouring elements instead of halves"),
    of("--rotary-percent", "(0,1]", "share of each head that is rotated"),
    family("--rotary-seq-len-interpolation-factor", "(0,)", "divide positions by this factor"),
    family("--routed-scaling-factor", "(0,)", "factor of the experts' weights"),
    family("--router-gating-in-fp32", "", "form the router's logits in float32"),
    family("--scale-depth", "(,)", "factor of what layers add"),
    family("--scale-emb", "(,)", "factor of the embedding"),
    family("--shared-expert-gate", "", "gate of the shared expert"),
    family("--shared-expert-gate-output-dimension", "[1,16777216]", "v2.0.0: numbers of that gate: 1, or hidden size"),
    family("--short-factor", "", "longrope divisors of short sequences"),
    family("--short-mscale", "(0,)", "longrope factor of short sequences"),
    family("--sliding-window", "[1,268435456]", "keys that a query sees"),
    family("--spec", "", "upstream's module of the layers: one of mamba makes layers with states, hunyuan_spec rotates as Hunyuan does, longcat_spec makes shortcut layers, minimax_spec norms whole projections, others follow the model flags"),
    family("--squared-relu", "", "feed-forward with squared ReLU, without a gate"),
    of("--swiglu", "", "gated SiLU feed-forward"),
    family("--swiglu-limit", "[0,)", "limit of gate and up in gated activations"),
    family("--topk-group", "[1,16384]", "groups of experts that stay open"),
    of("--untie-embeddings-and-output-weights", "", "output layer with weights of its own"),
    family("--use-glm-rope", "", "rotate neighbouring pairs of half a head"),
    of("--use-rotary-position-embeddings", "", "old spelling of --position-embedding-type rope"),
];

/// All flags that describe a model, by their names.
pub(crate) fn model() -> Vec<Entry> {
    let parts = ms_spec::megatron::part_flags().map(|of| family(of.flag, of.range, of.help));
    let mut all: Vec<Entry> = MODEL.into_iter().chain(parts).collect();
    all.sort_unstable_by_key(|entry| entry.flag);
    all
}

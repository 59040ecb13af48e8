//! `--optimization-level`: which flags upstream ignores below its highest level.
//!
//! Upstream assigns every feature a level from 0, what Megatron needs on an NPU, to 2, and applies those up to the requested
//! level, 2 by default. Flags of features above it are read and have no effect. Those that have an effect here are all of
//! level 2; the flags that name a tokenizer are left out, because without it there is nothing to train on.
//!
//! # Source
//! MindSpeed (2026), `mindspeed/features_manager/feature.py`, `is_need_apply`; MindSpeed-LLM (2026),
//! `mindspeed_llm/features_manager/__init__.py`, `create_features_list`, and the features' `__init__` and `register_args`.

/// The level that has every feature.
pub(super) const HIGHEST: u64 = 2;

/// Flags of features of the highest level that a program acts on.
pub(super) const OF_HIGHEST: [&str; 50] = [
    "--attention-mask-type",
    "--coc-fused-kernel",
    "--coc-mode",
    "--coc-parallel-num",
    "--context-parallel-algo",
    "--context-parallel-cache-interval",
    "--context-parallel-kv-cache-policy",
    "--cp-window-size",
    "--enable-mla-scale-kv-lora",
    "--enable-mla-scale-q-lora",
    "--enable-recompute-layers-per-pp-rank",
    "--fix-sub-seq-length",
    "--interleave-sliding-window",
    "--mla-mm-split",
    "--mla-swap-core-attn-out",
    "--mla-up-proj-tp-overlap",
    "--mla-zero-memory",
    "--moe-allgather-overlap-comm",
    "--moe-alltoall-mc2",
    "--moe-alltoall-overlap-comm",
    "--moe-fb-overlap",
    "--moe-tp-extend-ep",
    "--moe-unperm2-mem-optim-swap",
    "--moe-zero-memory",
    "--moe-zero-memory-num-layers",
    "--noop-layers",
    "--npu-deterministic",
    "--num-layer-list",
    "--pipeline-num-transformer-layers",
    "--recompute-activation-function",
    "--recompute-activation-function-num-layers",
    "--recompute-in-advance",
    "--recompute-in-bubble",
    "--recompute-mla-up-proj",
    "--recompute-norm",
    "--recompute-norm-num-layers",
    "--reuse-fp32-param",
    "--schedules-method",
    "--sliding-window",
    "--smart-swap",
    "--swap-attention",
    "--swap-layer-input",
    "--swap-modules",
    "--swap-optimizer",
    "--swap-optimizer-times",
    "--ulysses-degree-in-cp",
    "--use-ascend-coc",
    "--use-ascend-mc2",
    "--use-ulysses-allgather-kv",
    "--virtual-optimizer",
];

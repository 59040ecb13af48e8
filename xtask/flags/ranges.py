"""Ranges of the numeric flags, beside ours.py."""

# Values that a supported number may have: an interval, [ and ] with the bound, ( and ) without it; nothing on a side: any
# finite number. Every supported number is here; the upper bounds keep products of sizes below 2^63.
_PART, _WIDTH, _ROWS, _STEPS = "[1,16384]", "[1,16777216]", "[1,268435456]", "1000000000000"
_RANK = "[1,65536]"
RANGES = {
    "--adam-beta1": "[0,1)", "--adam-beta2": "[0,1)", "--sgd-momentum": "[0,1)", "--keep-last": f"[1,{_STEPS}]", "--adam-eps": "(0,)", "--attention-dropout": "[0,1)",
    "--attn-logit-softcapping": "(0,)", "--beta-fast": "(0,)", "--beta-slow": "(0,)", "--ckpt-step": f"[1,{_STEPS}]",
    "--clip-grad": "[0,)", "--compress-ratios": "[0,268435456]", "--compress-rope-theta": "(0,)", "--cp": _RANK,
    "--ddp-bucket-size": "[1,)", "--dedup-threshold": "(0,1]", "--dim-model-base": "(0,)",
    "--embedding-multiplier-scale": "(,)", "--end-weight-decay": "[0,)", "--ep": _RANK, "--eval-interval": f"[0,{_STEPS}]",
    "--eval-iters": f"[0,{_STEPS}]", "--exit-duration-in-mins": "[0,)", "--exit-interval": f"[0,{_STEPS}]",
    "--expert-tensor-parallel-size": _RANK, "--ffn-hidden-size": _WIDTH, "--first-k-dense-replace": "[-1,16384]",
    "--full-attention-interval": "[0,16384]", "--global-batch-size": "[1,16777216]", "--hc-eps": "[0,1]",
    "--hc-mult": _PART, "--hc-sinkhorn-iters": "[0,10000]", "--hidden-dropout": "[0,1)", "--loss-scale": "[0,)", "--swap-optimizer-times": "[1,1000000]", "--initial-loss-scale": "(0,)", "--min-loss-scale": "(0,)", "--loss-scale-window": "[1,)", "--hysteresis": "[1,1000000]", "--hidden-size": _WIDTH,
    "--high-freq-factor": "(0,)", "--history-turns": "[0,)", "--hybrid-attention-ratio": "[0,1]",
    "--hybrid-mlp-ratio": "[0,1]", "--index-head-dim": _PART, "--index-n-heads": _PART, "--index-topk": _ROWS,
    "--init-method-std": "[0,)", "--interleave-sliding-window": _ROWS, "--kv-channels": _WIDTH, "--kv-lora-rank": _WIDTH,
    "--linear-key-head-dim": "[0,16777216]", "--linear-num-key-heads": "[0,16384]",
    "--linear-num-value-heads": "[0,16384]", "--linear-value-head-dim": "[0,16777216]", "--log-interval": "[1,)",
    "--long-mscale": "(0,)", "--lora-alpha": "[1,16777216]", "--lora-r": "[1,16777216]", "--low-freq-factor": "(0,)",
    "--lr": "[0,)", "--lr-decay-iters": f"[1,{_STEPS}]", "--lr-decay-samples": f"[1,{_STEPS}]",
    "--lr-warmup-fraction": "[0,1)", "--lr-warmup-init": "[0,)", "--lr-warmup-iters": f"[0,{_STEPS}]",
    "--lr-warmup-samples": f"[0,{_STEPS}]", "--lr-wsd-decay-iters": f"[1,{_STEPS}]",
    "--lr-wsd-decay-samples": f"[1,{_STEPS}]", "--make-vocab-size-divisible-by": "[1,16777216]",
    "--mamba-chunk-size": _ROWS, "--mamba-d-conv": _PART, "--mamba-d-ssm": _WIDTH, "--mamba-expand": _PART,
    "--mamba-head-dim": _WIDTH, "--mamba-num-groups": _PART, "--mamba-state-dim": _WIDTH, "--max-eval-samples": "[1,)",
    "--max-new-tokens": "[-1,268435456]", "-n": "[-1,268435456]", "--repetition-penalty": "(0,)", "--min-p": "[0,1]", "--max-position-embeddings": _ROWS, "--max-record-bytes": "[1,1099511627776]", "--max-samples": "[1,)",
    "--micro-batch-size": "[1,16777216]", "--min-lr": "[0,)", "--moe-aux-loss-coeff": "[0,)", "--moe-comm-aux-loss-coeff": "[0,)", "--moe-input-jitter-eps": "[0,1)", "--moe-device-level-aux-loss-coeff": "[0,)", "--moe-z-loss-coeff": "[0,)", "--fix-sub-seq-length": "[-1,268435456]",
    "--moe-expert-capacity-factor": "(,)", "--moe-ffn-hidden-size": _WIDTH, "--moe-intermediate-size": _WIDTH, "--moe-router-bias-update-rate": "[0,)",
    "--moe-router-group-topk": _PART, "--moe-router-num-groups": _PART, "--moe-router-topk": _PART,
    "--moe-router-topk-scaling-factor": "(0,)", "--moe-shared-expert-intermediate-size": "[0,16777216]",
    "--moe-layer-freq": "[-1,16384]", "--mtp-loss-scaling-factor": "[0,)", "--mtp-num-layers": "[0,16384]", "--n-group": _PART,
    "--n-hash-layers": "[0,16384]", "--n-shared-experts": "[0,16384]", "--n-subs": "[1,65536]", "--norm-epsilon": "[0,1]",
    "--nproc-per-node": "[1,65536]", "--num-attention-heads": _PART, "--num-experts": "[0,16384]", "--num-fewshot": "[0,1000]", "--num-layers": _PART,
    "--num-layers-per-virtual-pipeline-stage": _PART, "--num-nextn-predict-layers": "[0,16384]",
    "--num-query-groups": _PART, "--o-groups": _PART, "--o-lora-rank": _WIDTH,
    "--original-max-position-embeddings": _ROWS, "--original-seq-len": "[0,268435456]",
    "--output-logit-softcapping": "(0,)", "--output-multiplier-scale": "(,)", "--pad-to-multiple-of": "[1,16777216]",
    "--padded-vocab-size": _ROWS, "--partial-rotary-factor": "[0,1]", "--pp": _RANK, "--profile-step-end": f"[0,{_STEPS}]",
    "--profile-step-start": f"[0,{_STEPS}]", "--q-lora-rank": _WIDTH, "--qk-head-dim": _WIDTH, "--qk-nope-head-dim": _WIDTH,
    "--qk-pos-emb-head-dim": _WIDTH, "--qk-rope-head-dim": _WIDTH, "--query-pre-attn-scalar": "(0,)",
    "--recompute-num-layers": _PART, "--recompute-activation-function-num-layers": "[0,16384]", "--recompute-norm-num-layers": "[0,16384]", "--rope-factor": "(0,)", "--rope-scaling-beta-fast": "(0,)",
    "--rope-scaling-beta-slow": "(0,)", "--rope-scaling-factor": "(0,)", "--rope-scaling-mscale": "[0,)",
    "--rope-scaling-mscale-all-dim": "[0,)", "--rope-scaling-original-max-position-embeddings": _ROWS,
    "--rope-theta": "(0,)", "--rotary-base": "(0,)", "--rotary-percent": "(0,1]",
    "--rotary-seq-len-interpolation-factor": "(0,)", "--routed-scaling-factor": "(0,)", "--sample": "(0,1]",
    "--save-interval": f"[0,{_STEPS}]", "--scale-depth": "(,)", "--scale-emb": "(,)", "--seed": "[0,4294967295]",
    "--seq-length": _ROWS, "--short-mscale": "(0,)", "--shuffle-memory": "[1,16777216]", "--sliding-window": _ROWS,
    "--sliding-window-size": _ROWS, "--start-weight-decay": "[0,)", "--swiglu-limit": "[0,)",
    "--cp-window-size": _RANK, "--ulysses-degree-in-cp": _RANK, "--num-virtual-stages-per-pipeline-rank": _PART,
    "--microbatch-group-size-per-virtual-pipeline-stage": "[1,16777216]", "--context-parallel-size": _RANK, "--expert-model-parallel-size": _RANK, "--pipeline-model-parallel-size": _RANK,
    "--tensor-model-parallel-size": _RANK, "--target-expert-parallel-size": _RANK, "--target-pipeline-parallel-size": _RANK,
    "--target-tensor-parallel-size": _RANK, "--temperature": "[0,)", "--tensorboard-log-interval": "[1,)",
    "--threads": "[1,1024]", "--top-k": "[0,268435456]", "--top-p": "[0,1]", "--topk-group": _PART, "--tp": _RANK,
    "--train-iters": f"[0,{_STEPS}]", "--train-samples": f"[0,{_STEPS}]", "--true-vocab-size": _ROWS,
    "--v-head-dim": _WIDTH, "--vocab-size": _ROWS, "--vpp": _PART, "--weight-decay": "[0,)", "--workers": "[1,1024]",
}


def range_of(row):
    """The interval of a supported number; an error for one that has none."""
    if row["status"] != "supported" or row["type"] not in ("int", "float", "freq"):
        return ""
    if row["flag"] not in RANGES:
        raise SystemExit(f"ranges.py: {row['flag']} is supported and needs a range")
    return RANGES[row["flag"]]

"""Facts of upstream's flags that its tables lack or have of other programs."""

STORE_TRUE_ANYWAY = {"--kv-head-repeat-before-uly-alltoall"}

# Flags whose facts differ in one program from the trainer's table.
OTHER_ROWS = {
    "--ckpt-format": {"train": {"status": "both"}},
    "--task-data-path": {"eval": {"status": "both"}},
    "--no-chat-template": {"eval": {"status": "both"}},
    "--evaluation-batch-size": {"eval": {"status": "both"}},
    "--alternative-prompt": {"eval": {"status": "both"}},
    "--instruction-template": {"eval": {"status": "both"}},
    "--broadcast": {"eval": {"status": "both"}},
    "--max-eval-samples": {"eval": {"status": "both"}},
    "--origin-postprocess": {"eval": {"status": "both"}},
    "--eval-language": {"eval": {"status": "both"}},
    "--chain-of-thought": {"eval": {"status": "both"}},
    "--greedy": {"eval": {"status": "both"}},
    "--top-p": {"eval": {"default": "0.9"}},
    "--top-k": {"eval": {"default": "0"}},
    "--temperature": {"eval": {"default": "0.5"}},
    "--task": {"eval": {"default": "[]"}},
}

# Flags of programs whose table was only seen through the scripts that use it: name -> arity, type, default, choices.
UNUSED_BY_SCRIPTS = {
    "preprocess": {
        "--streaming": ("0", "true", False, ""),
        "--hf-datasets-params": ("1", "str", None, ""),
        "--datasets": ("+", "str", None, ""),
        "--split-sentences": ("0", "true", False, ""),
        "--keep-newlines": ("0", "true", False, ""),
        "--prompt-type-path": ("1", "str", None, ""),
        "--dataset-additional-keys": ("*", "str", [], ""),
        "--interleave-probs": ("1", "str", None, ""),
        "--mix-strategy": ("1", "str", "concat", "concat,interleave_under,interleave_over"),
        "--dataset-dir": ("1", "str", None, ""),
        "--max-samples": ("1", "int", None, ""),
        "--seed": ("1", "int", 1234, ""),
        "--cache-dir": ("1", "str", "~/tmp", ""),
        "--script-data-dir": ("1", "str", None, ""),
        "--make-vocab-size-divisible-by": ("1", "int", 128, ""),
        "--pad-vocab-size-to": ("1", "int", None, ""),
        "--dataset-impl": ("1", "str", "mmap", "lazy,cached,mmap"),
        "--n-subs": ("1", "int", 1, ""),
        "--merge-group-keys": ("+", "str", None, ""),
        "--pad-to-multiple-of": ("1", "int", 1, "", "head"),
        "--reasoning-effort": ("1", "str", None, "max,high", "head"),
        "--drop-thinking": ("1", "str", "true", "true,false", "head"),
        "--data-obfuscation": ("0", "true", False, "", "head"),
        "--obf-seed-content": ("1", "str", None, "", "head"),
    },
    "convert1": {
        "--loader": ("1", "str", "megatron", ""),
        "--saver": ("1", "str", "megatron", ""),
        "--max-queue-size": ("1", "int", 50, ""),
        "--no-checking": ("0", "false", True, ""),
        "--ckpt-cfg-path": ("1", "str", "configs/checkpoint/model_cfg.json", ""),
        "--true-vocab-size": ("1", "int", None, ""),
        "--vocab-file": ("1", "str", None, ""),
        "--make-vocab-size-divisible-by": ("1", "int", 1, ""),
        "--embed-layernorm": ("0", "true", False, ""),
        "--load-from-legacy": ("0", "true", False, ""),
        "--save-to-legacy": ("0", "true", False, ""),
        "--noop-layers": ("1", "str", None, ""),
        "--moe-tp-extend-ep": ("0", "true", False, ""),
        "--load-checkpoint-loosely": ("0", "true", False, ""),
        "--load-hf-from-config": ("0", "true", False, ""),
        "--megatron-path": ("1", "str", None, ""),
        "--target-data-parallel-size": ("1", "int", 1, ""),
    },
    "convert2": {
        "--schedules-method": ("1", "str", None, "dualpipev"),
        "--transformer-impl": ("1", "str", "local", "local,transformer_engine"),
        "--hidden-size": ("1", "int", 4096, ""),
        "--mamba-state-dim": ("1", "int", 128, ""),
        "--mamba-num-groups": ("1", "int", 8, ""),
        "--mamba-head-dim": ("1", "int", 64, ""),
        "--input-tp-rank": ("1", "int", None, ""),
        "--input-pp-rank": ("1", "int", None, ""),
    },
}

# The csv lists head's choices. Added here: our own, those that only v2.0.0 has, and those of optimizers that head's features add
# (both marked).
MORE_CHOICES = {
    "--ckpt-format": ["safetensors"],
    "--stage": ["pretrain", "simpo@v2.0.0", "orm@v2.0.0", "prm@v2.0.0", "trl_ppo@v2.0.0"],
    "--moe-router-load-balancing-type": ["noaux_tc@v2.0.0"],
    "--schedules-method": ["zero-bubble"],
    "--optimizer": ["muon@head", "dist_muon@head"],
    "--context-parallel-algo": ["adaptive_cp_algo@v2.0.0", "hybrid_adaptive_cp_algo@v2.0.0"],
}

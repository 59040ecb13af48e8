"""What this project does with each upstream flag: supported, accepted without effect, or refused, and why."""

import re

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

ALL = "train,infer,eval"
MODEL, PARALLEL, BATCH, OPTIM, SCHEDULE = "Model", "Parallelism", "Batch", "Optimizer", "Learning rate"
PRECISION, DATA, CKPT, EVALN, LOG = "Precision", "Data", "Checkpoint", "Evaluation", "Logging"
RECOMPUTE, PROFILE, EXIT, GENERATE, TASK, OUTPUT = "Recomputation", "Profiling", "Stopping", "Generation", "Task", "Output"

# flag -> (group, programs in which it has an effect, one line of help)
SUPPORTED = {
    "--num-layers": (MODEL, ALL, "transformer layers"),
    "--hidden-size": (MODEL, ALL, "width of the residual stream"),
    "--ffn-hidden-size": (MODEL, ALL, "width of the feed-forward layer (default 4 x hidden size)"),
    "--num-attention-heads": (MODEL, ALL, "query heads"),
    "--group-query-attention": (MODEL, ALL, "share key and value heads between query heads"),
    "--num-query-groups": (MODEL, ALL, "key/value heads, with --group-query-attention"),
    "--kv-channels": (MODEL, ALL, "size of a head (default hidden size / heads)"),
    "--max-position-embeddings": (MODEL, ALL, "longest position the model is made for"),
    "--position-embedding-type": (MODEL, ALL, "kind of position information"),
    "--use-rotary-position-embeddings": (MODEL, ALL, "old spelling of --position-embedding-type rope"),
    "--rotary-base": (MODEL, ALL, "base of the rotary frequencies"),
    "--rotary-percent": (MODEL, ALL, "share of each head that is rotated"),
    "--rotary-interleaved": (MODEL, ALL, "rotate neighbouring elements instead of halves"),
    "--rotary-seq-len-interpolation-factor": (MODEL, ALL, "divide positions by this factor"),
    "--rope-scaling-type": (MODEL, ALL, "how rotary frequencies are stretched"),
    "--rope-scaling-factor": (MODEL, ALL, "by how much rotary frequencies are stretched"),
    "--low-freq-factor": (MODEL, ALL, "llama3 scaling: lower border, in wavelengths per context"),
    "--high-freq-factor": (MODEL, ALL, "llama3 scaling: upper border, in wavelengths per context"),
    "--original-max-position-embeddings": (MODEL, ALL, "llama3 scaling: context length before stretching"),
    "--rope-scaling-original-max-position-embeddings": (MODEL, ALL, "yarn: context length before stretching"),
    "--rope-scaling-beta-fast": (MODEL, ALL, "yarn: rotations above which a frequency is kept"),
    "--rope-scaling-beta-slow": (MODEL, ALL, "yarn: rotations below which a frequency is stretched in full"),
    "--beta-fast": (MODEL, ALL, "yarn: rotations above which a frequency is kept (head)"),
    "--beta-slow": (MODEL, ALL, "yarn: rotations below which a frequency is stretched in full (head)"),
    "--rope-scaling-mscale": (MODEL, ALL, "yarn: factor of cosine and sine"),
    "--rope-scaling-mscale-all-dim": (MODEL, ALL, "yarn: factor over all dims"),
    "--normalization": (MODEL, ALL, "kind of norm"),
    "--norm-epsilon": (MODEL, ALL, "added to the mean square"),
    "--swiglu": (MODEL, ALL, "gated SiLU feed-forward"),
    "--untie-embeddings-and-output-weights": (MODEL, ALL, "output layer with weights of its own"),
    "--disable-bias-linear": (MODEL, ALL, "no biases in linear layers"),
    "--add-qkv-bias": (MODEL, ALL, "biases in the query, key and value projections"),
    "--qk-layernorm": (MODEL, ALL, "normalise each query and key head"),
    "--vocab-size": (MODEL, ALL, "vocabulary of the tokenizer, before padding"),
    "--padded-vocab-size": (MODEL, ALL, "rows of the embedding, given directly"),
    "--make-vocab-size-divisible-by": (MODEL, ALL, "pad the vocabulary to a multiple of this times tp"),
    "--init-method-std": (MODEL, "train", "standard deviation of initial weights"),
    "--attention-dropout": (MODEL, "train", "dropout of attention weights"),
    "--hidden-dropout": (MODEL, "train", "dropout of the residual stream"),
    "--use-distributed-optimizer": (PARALLEL, "train", "shard optimizer state over data-parallel ranks"),
    "--overlap-grad-reduce": (PARALLEL, "train", "reduce gradient buckets during the backward pass"),
    "--ddp-bucket-size": (PARALLEL, "train", "elements of a gradient bucket"),
    "--micro-batch-size": (BATCH, ALL, "samples of one forward pass"),
    "--global-batch-size": (BATCH, "train", "samples of one iteration (default micro batch x data-parallel size)"),
    "--rampup-batch-size": (BATCH, "train", "start, increment, samples: grow the global batch"),
    "--seq-length": (BATCH, ALL, "tokens of a sample"),
    "--train-iters": (BATCH, "train", "iterations to run"),
    "--train-samples": (BATCH, "train", "samples to run, instead of --train-iters"),
    "--optimizer": (OPTIM, "train", "update rule"),
    "--adam-beta1": (OPTIM, "train", "decay of the first moment"),
    "--adam-beta2": (OPTIM, "train", "decay of the second moment"),
    "--adam-eps": (OPTIM, "train", "added to the root of the second moment"),
    "--weight-decay": (OPTIM, "train", "decoupled weight decay"),
    "--start-weight-decay": (OPTIM, "train", "weight decay at the start"),
    "--end-weight-decay": (OPTIM, "train", "weight decay at the end"),
    "--weight-decay-incr-style": (OPTIM, "train", "how weight decay moves from start to end"),
    "--clip-grad": (OPTIM, "train", "largest gradient norm; 0 turns clipping off"),
    "--calculate-per-token-loss": (OPTIM, "train", "average over tokens instead of micro-batches"),
    "--lr": (SCHEDULE, "train", "largest learning rate"),
    "--min-lr": (SCHEDULE, "train", "smallest learning rate"),
    "--lr-decay-style": (SCHEDULE, "train", "shape of the decay"),
    "--lr-decay-iters": (SCHEDULE, "train", "iterations until --min-lr"),
    "--lr-decay-samples": (SCHEDULE, "train", "samples until --min-lr"),
    "--lr-warmup-iters": (SCHEDULE, "train", "iterations of linear warm-up"),
    "--lr-warmup-samples": (SCHEDULE, "train", "samples of linear warm-up"),
    "--lr-warmup-fraction": (SCHEDULE, "train", "share of the decay spent warming up"),
    "--lr-warmup-init": (SCHEDULE, "train", "learning rate at the start of warm-up"),
    "--lr-wsd-decay-style": (SCHEDULE, "train", "shape of the last part of WSD"),
    "--lr-wsd-decay-iters": (SCHEDULE, "train", "iterations of the last part of WSD"),
    "--lr-wsd-decay-samples": (SCHEDULE, "train", "samples of the last part of WSD"),
    "--override-opt_param-scheduler": (SCHEDULE, "train", "flags win over the schedule in the checkpoint"),
    "--use-checkpoint-opt_param-scheduler": (SCHEDULE, "train", "the schedule in the checkpoint wins over flags"),
    "--bf16": (PRECISION, ALL, "compute in bfloat16, keep master weights in float32"),
    "--seed": (DATA, ALL, "seed of weights, data order and sampling"),
    "--data-path": (DATA, "train", "dataset prefix, weighted list of prefixes, or a .safetensors file of samples"),
    "--train-data-path": (DATA, "train", "dataset of training alone"),
    "--valid-data-path": (DATA, "train", "dataset of validation alone"),
    "--test-data-path": (DATA, "train", "dataset of the test alone"),
    "--split": (DATA, "train", "shares of training, validation and test"),
    "--dataloader-type": (DATA, "train", "order in which samples are taken"),
    "--no-shuffle": (DATA, "train", "take samples in file order"),
    "--is-instruction-dataset": (DATA, "train", "the dataset is a packed instruction set"),
    "--reset-position-ids": (DATA, "train", "positions start again after each document"),
    "--reset-attention-mask": (DATA, "train", "attention stays inside a document"),
    "--eod-mask-loss": (DATA, "train", "no loss on end-of-document tokens"),
    "--variable-seq-lengths": (DATA, "train", "batches are padded to their longest sample only"),
    "--pad-to-multiple-of": (DATA, "train", "padding of variable lengths is a multiple of this"),
    "--no-pad-to-seq-lengths": (DATA, "train", "do not pad samples to --seq-length"),
    "--padded-samples": (DATA, "train", "fill the last global batch with repeated samples"),
    "--tokenizer-type": (DATA, ALL, "kind of tokenizer"),
    "--tokenizer-name-or-path": (DATA, ALL, "folder of the tokenizer"),
    "--tokenizer-model": (DATA, ALL, "tokenizer file"),
    "--prompt-type": (DATA, ALL, "name of the prompt template"),
    "--prompt-type-path": (DATA, ALL, "file of prompt templates"),
    "--stage": (TASK, "train", "what to train: plain or supervised fine-tuning"),
    "--finetune": (TASK, "train", "take weights only: iteration 0, fresh optimizer"),
    "--load": (CKPT, ALL, "folder of the checkpoint to start from"),
    "--save": (CKPT, "train", "folder to write checkpoints to"),
    "--save-interval": (CKPT, "train", "iterations between checkpoints"),
    "--ckpt-format": (CKPT, "train", "format of written checkpoints"),
    "--ckpt-step": (CKPT, ALL, "iteration to load instead of the last"),
    "--no-save-optim": (CKPT, "train", "write weights only"),
    "--no-load-optim": (CKPT, "train", "read weights only"),
    "--exit-on-missing-checkpoint": (CKPT, ALL, "stop if --load holds no checkpoint"),
    "--use-checkpoint-args": (CKPT, ALL, "take the architecture from the checkpoint"),
    "--recompute-granularity": (RECOMPUTE, "train", "what is recomputed"),
    "--recompute-method": (RECOMPUTE, "train", "which layers are recomputed"),
    "--recompute-num-layers": (RECOMPUTE, "train", "how many layers are recomputed"),
    "--eval-interval": (EVALN, "train", "iterations between validations"),
    "--eval-iters": (EVALN, "train", "batches of one validation"),
    "--skip-train": (EVALN, "train", "only validate and test"),
    "--log-interval": (LOG, "train", "iterations between log lines"),
    "--log-throughput": (LOG, "train", "TFLOP/s in the log line"),
    "--log-params-norm": (LOG, "train", "norm of the weights in the log line"),
    "--tensorboard-dir": (LOG, "train", "folder of TensorBoard event files"),
    "--tensorboard-log-interval": (LOG, "train", "iterations between TensorBoard points"),
    "--no-check-for-nan-in-loss-and-grad": (LOG, "train", "go on when a loss or gradient is not a number"),
    "--profile": (PROFILE, "train", "record a trace"),
    "--profile-step-start": (PROFILE, "train", "first iteration of the trace"),
    "--profile-step-end": (PROFILE, "train", "iteration after the trace"),
    "--profile-save-path": (PROFILE, "train", "folder of traces"),
    "--exit-interval": (EXIT, "train", "save and stop at a multiple of this iteration"),
    "--exit-duration-in-mins": (EXIT, "train", "save and stop after this time"),
    "--exit-signal-handler": (EXIT, "train", "save and stop on SIGTERM"),
    "--max-new-tokens": (GENERATE, "infer,eval", "tokens to generate at most"),
    "--temperature": (GENERATE, "infer", "divides the logits"),
    "--top-k": (GENERATE, "infer", "sample among the k likeliest tokens; 0 turns it off"),
    "--top-p": (GENERATE, "infer", "sample among the likeliest tokens of this mass; 0 turns it off"),
    "--history-turns": (GENERATE, "infer", "turns of a chat that are kept"),
    "--hf-chat-template": (GENERATE, "infer,eval", "chat template of the tokenizer"),
    "--task": (TASK, "infer,eval", "what to run"),
    "--task-data-path": (TASK, "eval", "folder of the evaluation set"),
    "--max-eval-samples": (TASK, "eval", "rows of each file to use"),
    "--no-chat-template": (TASK, "eval", "plain prompts even if the tokenizer has a chat template"),
}

NPU = "a choice of NPU kernels"
FUSED = "kernels here are fused already"
CUDA = "belongs to CUDA devices"
COMM = "a choice of the communication library"
LAUNCH = "ranks are started by --nproc-per-node"
ALWAYS = "always so here"
MOE_ONLY = "acts only with --num-experts"
CP_ONLY = "acts only with --context-parallel-size above 1"
PP_ONLY = "acts only with --pipeline-model-parallel-size above 1"
TP_ONLY = "acts only with --tensor-model-parallel-size above 1"
LORA_ONLY = "acts only with --lora-r or --lora-load"
FP16_ONLY = "acts only with --fp16"
NOT_LM = "belongs to models that are not language models"
RAY_ONLY = "acts only in reinforcement learning stages"
DPO_ONLY = "acts only with --stage dpo"
ACCEPTED = [
    (r"--data-cache-path$", "sample indices are rebuilt in memory, in the order upstream gives them"),
    (r"--num-workers$", "one thread reads ahead"),
    (r"--log-(timers|memory|batch-size|validation-ppl)-to-tensorboard|--no-log-learnig-rate", "TensorBoard always gets loss, validation, norm, learning rate, batch size and time"),
    (r"--no-(save|load)-rng$", "nothing random has a state: initial weights and data order follow from --seed"),
    (r"--recompute-activations$", "attention keeps no probabilities, so there is nothing to recompute"),
    (r"--max-tokens-to-oom$", "the cache is sized for the prompt and --max-new-tokens"),
    (r"--evaluation-batch-size$", "scores do not depend on it"),
    (r"--eval-language$", "English wording only"),
    (r"--use-fused-|--use-flash-attn$|--use-fusion-attn|--jit-compile|--no-.*-fusion$|--cross-entropy-(loss-)?fusion|--gemm-gradient-accumulation", FUSED),
    (r"--moe-permute-fusion|--use-triton-|--origin-postprocess|--moe-unperm2-mem-optim-swap|--use-nd-matmul", FUSED),
    (r"--sparse-mode|--shape-order|--pre-tockens|--next-tockens|--alibi-fusion|--attention-mask-on-cpu|--optimization-level|--hccl-|--ai-framework|--npu-datadump|--use-sparse-flash", NPU),
    (r"--no-masked-softmax|--attention-softmax-in-fp32|--attention-backend|--attention-mask-type|--cp-attention-mask-type", "attention accumulates in float32 and is causal"),
    (r"--accumulate-allreduce-grads-in-fp32|--main-grads-dtype|--main-params-dtype|--exp-avg|--use-mcore-models|--transformer-impl|--use-cpu-initialization|--no-persist-layer-norm|--npu-deterministic|--use-deter-comp|--deterministic-mode", ALWAYS),
    (r"--spec$|--mtp-spec$", "layers follow the model flags"),
    (r"--no-position-embedding|--no-rope-fusion|--no-bias-|--no-async-tensor|--no-gradient|--no-barrier|--no-initialization", FUSED),
    (r"--distributed-|--local-rank|--local_rank|--lazy-mpu|--nccl-|--disable-gloo|--use-ring-exchange|--no-data-sharding|--no-shared-storage|--use-tp-pp-dp|--high-freq-comm|--ddp-pad|--ddp-average|--pipeline-model-parallel-comm", COMM),
    (r"--manual-gc|--no-manual-gc|--empty-unused|--onnx-safe|--enable-cuda-graph|--cuda-graph|--external-cuda|--te-|--reuse-fp32-param|--init-model-with-meta|--swap-|--smart-swap|--disable-bf16-reduced", CUDA),
    (r"--wandb|--use-wandb|--one-logger|--no-one-logger|--app-tag|--timing-log|--log-straggler|--straggler|--disable-straggler|--log-progress|--logging-level|--tensorboard-queue|--log-world|--no-log-loss|--run-workload|--record-memory|--memory-snapshot|--moe-per-layer-logging|--check-for-(spiky|large)|--rerun|--error-injection|--use-pytorch-profiler|--config-logger", "logging goes to the log line, metrics file and TensorBoard"),
    (r"--profile-ranks", "all ranks are recorded"),
    (r"--profile-", "the trace always holds this"),
    (r"--log-num-zeros-in-grad", "zero gradients are not counted in this version"),
    (r"--overlap-param-gather|--delay-param-gather|--no-delay-grad|--no-align|--no-scatter-gather|--no-overlap-p2p|--overlap-p2p|--distribute-saved|--tp-comm|--disable-tp-comm|--optimize-send|--use-cp-send|--no-clone-scatter|--enable-overlap|--enable-backward-overlap|--use-ascend-|--use-mc2|--coc-|--variable-comm|--delay-|--defer-|--wgrad-", "the same values without this overlap"),
    (r"--ckpt-(fully|assume)|--auto-detect-ckpt|--no-ckpt-fully|--use-dist-ckpt|--dist-ckpt|--async-save|--use-persistent|--use-legacy-models|--num-dataset|--no-mmap|--dataset-impl|--no-create-attention|--use-one-sent|--tokenizer-not-use-fast|--tokenizer-padding|--tokenizer-kwargs|--no-use-tokenizer-model|--handler-name|--streaming|--cache-dir|--workers|--n-subs|--overwrite-cache", "the reader decides by itself"),
    (r"--moe-|--n-group|--topk-group|--norm-topk|--routed-scaling|--router-|--seq-aux|--first-k-dense|--n-shared|--shared-expert|--expert-interval|--use-global-aux|--topk-softmax|--input-jitter|--fix-router|--expert-tensor|--enable-token-rearrange|--noisy-gate|--num-zero-experts", MOE_ONLY),
    (r"--context-parallel-|--cp-|--ulysses|--use-ulysses|--kv-head-repeat|--adaptive-cp|--megatron-cp|--hierarchical-context|--attention-.*cp", CP_ONLY),
    (r"--sequence-parallel$", TP_ONLY),
    (r"--lora-|--qlora-save|--lu-lora", LORA_ONLY),
    (r"--initial-loss-scale|--min-loss-scale|--loss-scale-window|--hysteresis|--fp16-lm", FP16_ONLY),
    (r"--dpo-|--simpo-|--ref-model|--refer-model|--pref-ftx|--gamma", DPO_ONLY),
    (r"--retro-|--vision-|--dino-|--img-|--bert-|--ict-|--biencoder|--retriever|--swin-|--patch-dim|--num-channels|--num-classes|--classes-fraction|--data-per-class|--iter-per-epoch|--mask-(type|factor|prob)|--indexer-(batch|log)|--block-data|--evidence-data|--titles-data|--embedding-path|--query-in-block|--short-seq-prob|--head-lr-mult|--output-bert|--vocab-extra-ids|--openai-gelu|--encoder-|--decoder-|--mrope|--relative-attention", NOT_LM),
    (r"--ppo-|--kl-coef|--lam$|--clip-ratio|--cliprange|--entropy-coeff|--critic-|--rollout|--n-samples|--advantage|--shuffle-minibatch|--missing-eos|--num-gpus-for|--max-prompt-length|--reward-model|--verifier|--extract-content|--dataset-category|--md5|--do-sample|--inference-tensor|--num-samples-per", RAY_ONLY),
    (r"--mamba-|--hybrid-|--is-hybrid", "acts only in Mamba models"),
    (r"--index-|--indexer-|--hc-|--q-head|--qk-|--kv-lora|--q-lora|--v-head|--mla-|--multi-.*latent-no|--mscale|--rope-factor|--rope-theta|--original-seq|--compress-|--o-groups|--o-lora|--n-hash|--swiglu-limit|--linear-(key|num|value)|--full-attention|--partial-rotary", "acts only with the attention kind it belongs to"),
    (r"--inference-|--use-kv-cache|--add-eos-token|--broadcast|--greedy|--max-length|--flash-decode|--enable-mla-absorb", "generation always keeps a cache"),
    (r"--append-eod|--json-keys|--map-keys|--input$|--output-prefix|--neat-pack|--pack$|--split-sentences|--keep-newlines|--merge-group|--script-data|--hf-datasets|--max-samples|--mix-strategy|--interleave-probs|--dataset-dir|--datasets$|--data-args|--per-split|--dataset-additional|--reward-tokens|--placeholder|--log-interval-pre", "acts in ms-preprocess"),
    (r"--tiktoken|--vocab-file|--merge-file|--pad-vocab-size-to", "acts only with the tokenizer it belongs to"),
    (r"--muon-|--sgd-momentum|--ema-decay|--optimizer-selection", "acts only with its own --optimizer"),
    (r"--hccl|--enable-(hbm|high|worker|elastic|ft)|--calc-ft|--replication|--non-persistent|--persistent-save|--adlr|--enable-optimizer-state|--distributed-optimizer-no|--elastic", "belongs to a cluster's fault tolerance"),
    (r"--fp8-(interval|margin|amax|recipe|param|reuse)|--no-fp8|--first-last-layers|--num-layers-at|--keep-fp8|--no-use-gmm", "acts only with --fp8-format"),
    (r"--heterogeneous|--yaml-cfg", "acts only with its own configuration file"),
    (r"--share-mtp|--recompute-mtp|--mtp-", "acts only with multi-token prediction"),
    (r"--enable-thinking|--drop-thinking|--reasoning-effort|--no-cut-token|--cut-max-seqlen|--full-shuffle|--sample-rate|--return-document", "acts only with templates that know it"),
    (r"--rmsnorm-weight-in|--init-norm-weight|--input-layernorm-in|--fp32-residual", "norms compute in float32"),
    (r"--recompute-|--no-pin-|--output-layer-slice|--loss-(compute|chunk)|--decrease-batch|--virtual-optimizer", "the same values with less memory"),
    (r"--longrope|--long-|--short-factor|--short-mscale|--dynamic-factor|--rotary-scaling", "acts only with its own --rope-scaling-type"),
    (r"--barrier|--suggested|--train-sync|--check-weight-hash|--batch-size-no|--microbatch-group|--iterations-to-skip-no|--test-mode-no|--lr-mult-no|--hf-(cfg|save)|--mg-save|--only-convert|--save-layer|--save-lora|--model-type-hf|--load-checkpoint-loosely|--s3-cache|--virtual-optimizer-no|--bucket", "no such thing here"),
]

LATER = "not in this version"
# pattern -> (reason, neutral values)
REFUSED = [
    (r"--tensor-model-parallel-size$|--model-parallel-size$|--tp-2d|--tp-x|--tp-y|--nd[12]-dim", ("tensor parallelism is " + LATER, "1")),
    (r"--pipeline-model-parallel-(size|split|layout)|--num-layers-per-virtual|--num-virtual-stages|--num-layer-list|--noop-layers|--schedules-method|--pipeline-num-transformer|--decoder-(first|last)|--standalone-embedding|--account-for|--dualpipev|--layerwise-dis|--recompute-in-bubble|--recompute-in-advance|--enable-recompute-layers-per", ("pipeline parallelism is " + LATER, "1")),
    (r"--context-parallel-size", ("context parallelism is " + LATER, "1")),
    (r"--expert-model-parallel-size|--num-experts$|--moe-(fb-overlap|zero-memory$|alltoall-mc2|use-upcycling)", ("mixture of experts is " + LATER, "1,disable")),
    (r"--lora-r$|--lora-load|--lora-target|--qlora$|--lora-fusion", ("LoRA is " + LATER, "")),
    (r"--fp16$", ("float16 is " + LATER + "; use --bf16", "")),
    (r"--fp8-format|--qat-|--quant-", ("low precision is " + LATER, "")),
    (r"--multi-(head-)?latent-attention|--enable-dsa|--enable-mhc|--kv-compress|--share-kvstates|--cla-share", ("this attention kind is " + LATER, "1")),
    (r"--num-nextn|--mtp-num-layers", ("multi-token prediction is " + LATER, "0")),
    (r"--is-pairwise-dataset", ("preference training is " + LATER, "")),
    (r"--sliding-window|--interleave-sliding|--attn-logit|--output-logit|--query-pre-attn|--post-norm|--geglu|--gelu-tanh|--squared-relu|--add-rmsnorm-offset|--apply-layernorm-1p|--embed-layernorm|--input-embeds-norm|--embedding-multiplier|--output-multiplier|--scale-|--dim-model-base|--add-dense-bias|--add-output-layer-bias|--use-glm-rope|--square-alibi|--fill-neg|--apply-residual|--no-post-layer|--apply-query-key|--no-enable-linear|--skip-bias-add|--enable-mla-scale|--use-rope-scaling|--apply-rope", ("models of this kind are " + LATER, "1.0")),
]

_SUPPORT_OTHER = {
    "preprocess": {
        "--input": ("Input", "files or folder to read"),
        "--handler-name": ("Input", "kind of records"),
        "--json-keys": ("Input", "fields to tokenize"),
        "--map-keys": ("Input", "JSON object that renames fields"),
        "--prompt-type": ("Prompt", "name of the prompt template"),
        "--prompt-type-path": ("Prompt", "file of prompt templates"),
        "--tokenizer-type": ("Tokenizer", "kind of tokenizer"),
        "--tokenizer-name-or-path": ("Tokenizer", "folder of the tokenizer"),
        "--append-eod": ("Tokenizer", "end every document with the end token"),
        "--pad-to-multiple-of": ("Packing", "fill documents up to a multiple of this many tokens"),
        "--dataset-additional-keys": ("Input", "further fields of R1 records"),
        "--placeholder-token": ("Input", "stands where a step of a process-reward record is judged"),
        "--reward-tokens": ("Input", "judgements of process-reward records"),
        "--merge-group-keys": ("Input", "merge the datasets of the --input folder whose names hold these words"),
        "--enable-thinking": ("Prompt", "reasoning templates: train thoughts (true), remove them (false), or take them as they come (none)"),
        "--reasoning-effort": ("Prompt", "deepseek4: ask for maximal effort; needs --enable-thinking true"),
        "--drop-thinking": ("Prompt", "deepseek4: leave out thoughts before the last question"),
        "--dataset-dir": ("Input", "LlamaFactory: folder of dataset_info.json, whose sets --input names"),
        "--tokenizer-model": ("Tokenizer", "SentencePiece model, for GPTSentencePieceTokenizer"),
        "--vocab-file": ("Tokenizer", "vocab.json of GPT2BPETokenizer, vocab.txt of BertWordPiece"),
        "--merge-file": ("Tokenizer", "merges.txt of GPT2BPETokenizer"),
        "--seq-length": ("Packing", "tokens of a sample"),
        "--pack": ("Packing", "pack records into samples of --seq-length"),
        "--neat-pack": ("Packing", "keep packed records apart in the attention mask"),
        "--output-prefix": ("Output", "path of the dataset without suffix"),
        "--workers": ("Output", "threads"),
        "--n-subs": ("Output", "parts to cut the work into"),
        "--log-interval": ("Output", "documents between progress lines"),
        "--seed": ("Input", "seed of sampling and shuffling"),
    },
    "convert1": {
        "--load-dir": ("Input", "checkpoint to read"),
        "--save-dir": ("Output", "folder to write"),
        "--load-model-type": ("Input", "hf or mg"),
        "--save-model-type": ("Output", "hf or mg"),
        "--use-mcore-models": ("Output", "mcore layout; without it the legacy layout"),
        "--target-tensor-parallel-size": ("Parallelism", "tensor-parallel size to write"),
        "--target-pipeline-parallel-size": ("Parallelism", "pipeline-parallel size to write"),
        "--num-layers-per-virtual-pipeline-stage": ("Parallelism", "layers of an interleaved chunk"),
        "--num-layer-list": ("Parallelism", "layers of each pipeline stage"),
        "--noop-layers": ("Parallelism", "slots that hold no layer"),
        "--params-dtype": ("Output", "dtype to write"),
        "--make-vocab-size-divisible-by": ("Output", "pad the vocabulary to a multiple of this times tp"),
        "--true-vocab-size": ("Input", "rows of the embedding that are in use"),
        "--add-qkv-bias": ("Model", "the model has query, key and value biases"),
    },
    "convert2": {
        "--load-dir": ("Input", "checkpoint to read"),
        "--save-dir": ("Output", "folder to write"),
        "--load-model-type": ("Input", "hf or mg"),
        "--save-model-type": ("Output", "hf or mg"),
        "--target-tensor-parallel-size": ("Parallelism", "tensor-parallel size to write"),
        "--target-pipeline-parallel-size": ("Parallelism", "pipeline-parallel size to write"),
        "--num-layers-per-virtual-pipeline-stage": ("Parallelism", "layers of an interleaved chunk"),
        "--num-layer-list": ("Parallelism", "layers of each pipeline stage"),
        "--noop-layers": ("Parallelism", "slots that hold no layer"),
        "--hf-cfg-dir": ("Output", "folder whose configuration and tokenizer files are copied"),
        "--transformer-impl": ("Output", "spelling of tensor names"),
        "--num-layers": ("Model", "keep the first layers only"),
    },
}
_CONVERT_REFUSED = [
    (r"--target-expert|--expert-tensor|--moe-|--first-k-dense", ("mixture of experts is " + LATER, "1")),
    (r"--lora-load|--save-lora|--qlora", ("adapters are " + LATER, "")),
    (r"--mla-mm-split|--mtp-num|--mamba|--schedules-method|--orm|--post-norm|--embed-layernorm|--add-dense|--add-output|--input-(tp|pp)", ("models of this kind are " + LATER, "0")),
    (r"--load-from-legacy|--save-to-legacy", ("the legacy layout is " + LATER, "")),
]
_PREPROCESS_REFUSED = [
    (r"--hf-datasets", ("data comes from local files: --input takes files, folders and patterns", "")),
    (r"--split-sentences", ("sentences are cut by NLTK's trained model, which is not part of this program: split them before, and pass a text per record", "")),
    (r"--interleave", ("sets are read one after the other: interleaving them is " + LATER, "")),
    (r"--max-samples", (LATER + ": --sample takes each record with a probability", "")),
    (r"--mix-strategy", ("sets are read one after the other: interleaving them is " + LATER, "concat")),
    (r"--data-obfuscation", ("it needs a proprietary library", "")),
]

_PREPROCESS_ACCEPTED = [
    (r"--streaming", "records are always streamed"),
    (r"--tokenizer-not-use-fast", "the same ids come from the fast engine; a slow tokenizer can differ from it in rare texts"),
    (r"--make-vocab|--pad-vocab", "upstream only prints the padded size"),
    (r"--cache-dir|--overwrite-cache|--script-data", "there is no cache of converted records"),
    (r"--datasets", "acts only with the handler it belongs to, or nowhere"),
    (r"--keep-newlines", "acts only with --split-sentences"),
    (r"--obf-seed", "acts only with --data-obfuscation"),
]

# The csv lists head's choices. Added here: our own, and those that only v2.0.0 has (marked).
MORE_CHOICES = {
    "--ckpt-format": ["safetensors"],
    "--stage": ["pretrain", "simpo@v2.0.0", "orm@v2.0.0", "prm@v2.0.0", "trl_ppo@v2.0.0"],
    "--moe-router-load-balancing-type": ["noaux_tc@v2.0.0"],
    "--context-parallel-algo": ["adaptive_cp_algo@v2.0.0", "hybrid_adaptive_cp_algo@v2.0.0"],
}


def _row(status, group, note, uses="", neutral=""):
    return {"status": status, "group": group, "note": note, "uses": uses, "neutral": neutral}


def decide(row):
    flag, tool = row["flag"], row["tools"]
    if tool in _SUPPORT_OTHER:
        if flag in _SUPPORT_OTHER[tool]:
            group, note = _SUPPORT_OTHER[tool][flag]
            return _row("supported", group, note, tool)
        for pattern, (reason, neutral) in _PREPROCESS_REFUSED if tool == "preprocess" else _CONVERT_REFUSED:
            if re.match(pattern, flag):
                return _row("refused", "Other", reason, neutral=neutral)
        if tool == "preprocess":
            for pattern, reason in _PREPROCESS_ACCEPTED:
                if re.match(pattern, flag):
                    return _row("accepted", "Other", reason)
        return _row("accepted", "Other", "the reader decides by itself")
    if flag in MORE_CHOICES:
        row["choices"] = ",".join([row["choices"], *MORE_CHOICES[flag]])
    if flag in SUPPORTED:
        group, uses, note = SUPPORTED[flag]
        return _row("supported", group, note, uses)
    for pattern, (reason, neutral) in REFUSED:
        if re.match(pattern, flag):
            return _row("refused", "Other", reason, neutral=neutral)
    for pattern, reason in ACCEPTED:
        if re.match(pattern, flag):
            return _row("accepted", "Other", reason)
    return _row("refused", "Other", LATER, neutral="0,0.0,1" if row["arity"] == "1" else "")


# flag, tools, arity, type, dest, default, choices, group, help
_MAIN = "train,infer,eval"
_EVERY = "train,infer,eval,preprocess,convert1,convert2"
OWN = [
    ("--tp", _MAIN, "1", "int", "tensor_model_parallel_size", 1, "", PARALLEL, "short for --tensor-model-parallel-size"),
    ("--pp", _MAIN, "1", "int", "pipeline_model_parallel_size", 1, "", PARALLEL, "short for --pipeline-model-parallel-size"),
    ("--ep", _MAIN, "1", "int", "expert_model_parallel_size", 1, "", PARALLEL, "short for --expert-model-parallel-size"),
    ("--cp", _MAIN, "1", "int", "context_parallel_size", 1, "", PARALLEL, "short for --context-parallel-size"),
    ("--tp", "convert1,convert2", "1", "int", "target_tensor_parallel_size", 1, "", PARALLEL, "short for --target-tensor-parallel-size"),
    ("--pp", "convert1,convert2", "1", "int", "target_pipeline_parallel_size", 1, "", PARALLEL, "short for --target-pipeline-parallel-size"),
    ("--ep", "convert1,convert2", "1", "int", "target_expert_parallel_size", 1, "", PARALLEL, "short for --target-expert-parallel-size"),
    ("--vpp", "convert1,convert2", "1", "int", "num_layers_per_virtual_pipeline_stage", None, "", PARALLEL, "short for --num-layers-per-virtual-pipeline-stage"),
    ("--load", "convert1,convert2", "1", "str", "load_dir", None, "", "Input", "short for --load-dir"),
    ("--save", "convert1,convert2", "1", "str", "save_dir", None, "", "Output", "short for --save-dir"),
    ("--padded-vocab-size", "convert1,convert2", "1", "int", "padded_vocab_size", None, "", "Output", "rows of the embedding to write"),
    ("--dtype", "convert1,convert2", "1", "str", "dtype", None, "fp32,bf16,fp16", "Output", "dtype to write (default: as read)"),
    ("--format", "convert1,convert2", "1", "str", "format", None, "torch,safetensors", "Output", "container of a Megatron checkpoint: .pt files, or this toolchain's safetensors"),
    ("--no-args", "convert1,convert2", "0", "true", "no_args", False, "", "Output", "leave the args out of .pt files, so that torch.load(weights_only=True) reads them"),
    ("--args-as", "convert1,convert2", "1", "str", "args_as", "namespace", "namespace,dict", "Output", "how args are stored in .pt files"),
    ("--style", "preprocess", "1", "str", "style", None, "pretrain,general-instruction,alpaca,sharegpt,openai,pairwise,pairwise-sharegpt,prm,ppo,r1,r1-sharegpt,alpaca-pretrain,stackoverflow-pretrain,llama-factory,hunyuan,belle,moss,moss-multi-turn,leetcode", "Input", "kind of records; short for --handler-name"),
    ("--strict", "preprocess", "0", "true", "strict", False, "", "Input", "refuse what upstream does in silence: records left out, replaced or cut, texts that vanish"),
    ("--documents", "preprocess", "1", "str", "documents", "records", "records,files", "Input", "what a document is: a record as the extension says, or every file as a whole"),
    ("--files-from", "preprocess", "1", "str", "files_from", None, "", "Input", "file with a path per line, - for stdin; instead of --input"),
    ("--input-format", "preprocess", "1", "str", "input_format", None, "json,jsonl,txt,csv,tsv,parquet,arrow,feather,ipc", "Input", "what the files are, whatever their names say"),
    ("--input-split", "preprocess", "1", "str", "input_split", None, "", "Input", "files of this split alone, where folders or names tell splits apart (default train)"),
    ("--sample", "preprocess", "1", "float", "sample", None, "", "Selection", "take each record with this probability, by its place and --seed"),
    ("--filter", "preprocess", "+", "str", "filter", None, "", "Selection", "rules to keep: MEASURE>=X, MEASURE<=X, match:REGEX, not:REGEX"),
    ("--filter-key", "preprocess", "+", "str", "filter_key", None, "", "Selection", "fields that filters look at (default: those that are tokenized, else all texts)"),
    ("--dedup", "preprocess", "1", "str", "dedup", None, "exact,minhash", "Selection", "leave out records that occurred before: the same bytes, or nearly the same phrases"),
    ("--dedup-key", "preprocess", "+", "str", "dedup_key", None, "", "Selection", "fields that duplicates are compared by (default as --filter-key)"),
    ("--dedup-threshold", "preprocess", "1", "float", "dedup_threshold", 0.8, "", "Selection", "minhash: estimated share of common phrases from which on records are duplicates"),
    ("--shuffle", "preprocess", "0", "true", "shuffle", False, "", "Selection", "random order of the records, by --seed"),
    ("--shuffle-memory", "preprocess", "1", "int", "shuffle_memory", 64, "", "Selection", "MB of records that shuffling holds; the rest goes to files beside the output"),
    ("--on-error", "preprocess", "1", "str", "on_error", "stop", "stop,skip", "Selection", "what to do about a record that cannot be used"),
    ("--rejects", "preprocess", "1", "str", "rejects", None, "", "Output", "file for skipped records, one JSON object each (default PREFIX.rejects.jsonl)"),
    ("--stats", "preprocess", "0", "true", "stats", False, "", "Output", "lengths of rows, drawn, and as PREFIX.stats.json and PREFIX.stats.svg"),
    ("--no-manifest", "preprocess", "0", "true", "no_manifest", False, "", "Output", "do not write PREFIX.manifest.json, and do not look at it"),
    ("--resume", "preprocess", "0", "true", "resume", False, "", "Output", "keep every finished input file in PREFIX.parts, and go on from there"),
    ("--force", "preprocess", "0", "true", "force", False, "", "Output", "replace an existing output"),
    ("--force", "convert1,convert2", "0", "true", "force", False, "", "Output", "replace an existing output"),
    ("--nproc-per-node", "train", "1", "int", "nproc_per_node", 1, "", PARALLEL, "ranks to run as threads of this process"),
    ("--threads", _MAIN, "1", "int", "threads", None, "", PARALLEL, "threads of each rank's kernels"),
    ("--device", _MAIN, "1", "str", "device", "cpu", "cpu,npu", PARALLEL, "where to compute"),
    ("--fp64", "train", "0", "true", "fp64", False, "", PRECISION, "float64 (refused: not in this version)"),
    ("--no-sync", "convert1,convert2", "0", "true", "no_sync", False, "", "Output", "do not wait until the bytes are on the disk"),
    ("--hf-cfg-dir", "convert1", "1", "str", "hf_cfg_dir", None, "", "Output", "folder whose configuration and tokenizer files are copied"),
    ("--transformer-impl", "convert1", "1", "str", "transformer_impl", "local", "local,transformer_engine", "Output", "spelling of tensor names"),
    ("--make-vocab-size-divisible-by", "convert2", "1", "int", "make_vocab_size_divisible_by", 1, "", "Output", "pad the vocabulary to a multiple of this times tp"),
    ("--true-vocab-size", "convert2", "1", "int", "true_vocab_size", None, "", "Input", "rows of the embedding that are in use"),
    ("--prompt", "infer", "1", "str", "prompt", None, "", GENERATE, "text to continue; - reads it from stdin"),
    ("--system", "infer", "1", "str", "system", None, "", GENERATE, "system message of a chat"),
    ("--input", "infer", "1", "str", "input", None, "", GENERATE, "logits: safetensors file with input_ids [B,S]"),
    ("--output", "infer", "1", "str", "output", None, "", GENERATE, "logits: safetensors file to write logits [B,S,V] to"),
    ("--dtype", "infer,eval", "1", "str", "dtype", None, "fp32,bf16", PRECISION, "element type to compute in (generate, chat, evaluation: bf16; logits: fp32)"),
    ("--output", "eval", "1", "str", "output", None, "", OUTPUT, "folder for results.json and samples.jsonl"),
    ("--protocol", "eval", "1", "str", "protocol", "mindspeed", "mindspeed,harness", TASK, "whose prompts and scoring: MindSpeed-LLM's or lm-evaluation-harness'"),
    ("--config", _MAIN, "1", "str", "config", None, "", "Configuration", "TOML file of flags; flags on the line win"),
    ("--print-config", "train", "0", "true", "print_config", False, "", "Configuration", "show every value and where it came from"),
    ("--print-args", _EVERY, "0", "true", "print_args", False, "", "Configuration", "print the parsed flags as one JSON object and stop"),
    ("--upstream", _EVERY, "1", "str", "upstream", "v2.0.0", "v2.0.0,head", "Configuration", "whose spelling and behaviour to follow"),
    ("--dry-run", "train,preprocess,convert1,convert2", "0", "true", "dry_run", False, "", "Configuration", "show the plan and touch nothing"),
    ("--metrics-file", "train", "1", "str", "metrics_file", None, "", LOG, "JSON lines, one object per iteration"),
    ("--json", _EVERY, "0", "true", "json", False, "", LOG, "one JSON object on stdout"),
    ("--quiet", _EVERY, "0", "true", "quiet", False, "", LOG, "no progress, warnings and errors only"),
    ("-q", _EVERY, "0", "true", "quiet", False, "", LOG, "short for --quiet"),
    ("--verbose", _EVERY, "0", "true", "verbose", False, "", LOG, "debug messages"),
    ("-v", _EVERY, "0", "true", "verbose", False, "", LOG, "short for --verbose"),
    ("--log-format", _EVERY, "1", "str", "log_format", "text", "text,json", LOG, "form of messages on stderr"),
]

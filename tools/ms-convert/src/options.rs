//! Every option of `ms-convert`: those of both of upstream's converters, and ours.

use ms_cli::megatron::{Given, Upstream, Versions};
use std::path::PathBuf;

options! {
    /// What is read.
    pub(crate) struct Reading in "Input" {
        pub(crate) load: Given<Option<PathBuf>> = "--load-dir", "checkpoint to read";
        pub(crate) load_type: Option<String> = "--load-model-type", "form of the input: a Hugging Face folder, a Megatron checkpoint, or weights and optimizer of a training run (optim)";
        pub(crate) legacy: bool = "--load-from-legacy", "the input has Megatron's legacy layout", versions = Versions::V2;
        pub(crate) true_vocab: Option<usize> = "--true-vocab-size", "number of embedding rows in use", range = "[1,268435456]", own = own("true_vocab_size");
        pub(crate) reward: bool = "--orm", "the model is an outcome reward model: convert its reward head too", versions = Versions::V2;
        pub(crate) lora: Option<PathBuf> = "--lora-load", "adapter to merge: a Megatron checkpoint or a PEFT folder";
        pub(crate) lora_rank: Given<Option<usize>> = "--lora-r", "rank of the adapter, to be checked", range = "[1,16777216]", unset = Unset::Is("the adapter's own");
        pub(crate) lora_alpha: Given<Option<f64>> = "--lora-alpha", "scaling of the adapter, whose product is multiplied by alpha / r", range = "[1,16777216]", unset = Unset::Is("the adapter's own");
        pub(crate) lora_targets: Vec<String> = "--lora-target-modules", "names of the modules that have adapters, to be checked";
        pub(crate) no_optim: bool = "--no-optim", "leave out the optimizer state of a training checkpoint", group = "Output", own = own_or("no_optim", "false");
        pub(crate) layers: Option<usize> = "--num-layers", "number of first layers to convert; the others are left out", group = "Model", range = "[1,16384]", versions = Versions::Head;
        pub(crate) leading_dense: Option<usize> = "--first-k-dense-replace", "number of leading dense layers to convert; the others of them are left out", group = "Model", range = "[0,16384]", versions = Versions::Head;
        pub(crate) mtp: Given<Option<usize>> = "--mtp-num-layers", "number of multi-token prediction (MTP) layers to convert (default: all)", group = "Model", range = "[0,16384]", own = own("mtp_num_layers");
        pub(crate) mtp_of_scripts: Given<Option<usize>> = "--num-nextn-predict-layers", "alias of --mtp-num-layers (DeepSeek-V3 scripts)", group = "Model", range = "[0,16384]", versions = Versions::V2, own = own("num_nextn_predict_layers");
    }
}

options! {
    /// How the output is cut.
    pub(crate) struct Cutting in "Parallelism" {
        pub(crate) tp: Given<usize> = "--target-tensor-parallel-size", "tensor-parallel size of the output", range = "[1,65536]";
        pub(crate) pp: Given<usize> = "--target-pipeline-parallel-size", "pipeline-parallel size of the output", range = "[1,65536]";
        pub(crate) ep: Given<usize> = "--target-expert-parallel-size", "expert-parallel size of the output", range = "[1,65536]";
        pub(crate) etp: Given<Option<usize>> = "--expert-tensor-parallel-size", "tensor-parallel size of experts in the output: 1 (experts are not split) or that of dense layers", range = "[1,65536]", own = own("expert_tensor_parallel_size");
        pub(crate) extend_ep: bool = "--moe-tp-extend-ep", "distribute whole experts over tensor-parallel ranks too, instead of splitting them";
        pub(crate) layers_per_chunk: Given<Option<usize>> = "--num-layers-per-virtual-pipeline-stage", "interleaved schedule: number of layers per chunk (virtual stage)", range = "[1,16384]";
        pub(crate) layer_list: Option<String> = "--num-layer-list", "number of layers of each stage, such as 4,4,3";
        pub(crate) noop: Option<String> = "--noop-layers", "positions of empty layers among the layers, such as 0,7";
        pub(crate) schedule: Option<String> = "--schedules-method", "dualpipev: two chunks per stage, the second in reverse order", own = own_of("schedules_method", "null", "dualpipev");
    }
}

options! {
    /// What is written, and how.
    pub(crate) struct Writing in "Output" {
        pub(crate) save: Given<Option<PathBuf>> = "--save-dir", "folder to write";
        pub(crate) save_type: Option<String> = "--save-model-type", "form of the output: a Hugging Face folder or a Megatron checkpoint", unset = Unset::Is("mg");
        pub(crate) legacy: bool = "--save-to-legacy", "write Megatron's legacy layout", versions = Versions::V2;
        pub(crate) mcore: bool = "--use-mcore-models", "Megatron-core layout, instead of the legacy layout", versions = Versions::V2;
        pub(crate) format: Option<String> = "--format", "file format of a Megatron checkpoint: torch (.pt files), torch_dist (distributed checkpoint) or safetensors (this toolchain's own)", own = own_of("format", "null", "torch,torch_dist,safetensors");
        pub(crate) dtype: Option<String> = "--dtype", "element type to write (default: as read)", own = own_of("dtype", "null", "fp32,bf16,fp16");
        pub(crate) params_dtype: Option<String> = "--params-dtype", "element type to write", versions = Versions::V2;
        pub(crate) divisor: Option<usize> = "--make-vocab-size-divisible-by", "pad the vocabulary to a multiple of this number times the tensor-parallel size", range = "[1,16777216]", own = own_or("make_vocab_size_divisible_by", "1");
        pub(crate) padded_vocab: Option<usize> = "--padded-vocab-size", "number of embedding rows to write", range = "[1,268435456]", own = own("padded_vocab_size");
        pub(crate) implementation: Given<Option<String>> = "--transformer-impl", "whose module names the output has: Megatron's own (local) or Transformer Engine's", own = own_of("transformer_impl", "\"local\"", "local,transformer_engine");
        pub(crate) grouped: bool = "--moe-grouped-gemm", "write the experts of a rank as one tensor per layer (grouped GEMM)";
        pub(crate) split_heads: bool = "--mla-mm-split", "write the up-projections of latent attention as four matrices", own = own_or("mla_mm_split", "false");
        pub(crate) nf4: bool = "--qlora-nf4", "quantise linear layers to 4 bits (NF4)", own = own_or("qlora_nf4", "false");
        pub(crate) no_args: bool = "--no-args", "write no args into .pt files, so that torch.load(weights_only=True) reads them", own = own_or("no_args", "false");
        pub(crate) args_as: String = "--args-as", "how args are stored in .pt files", own = own_of("args_as", "\"namespace\"", "namespace,dict");
        pub(crate) hf_config: Option<PathBuf> = "--hf-cfg-dir", "folder to copy configuration and tokenizer files from", own = own("hf_cfg_dir");
        pub(crate) adapters_alone: bool = "--save-lora-to-hf", "write only the adapters, as a PEFT folder", own = own_or("save_lora_to_hf", "false");
        pub(crate) keep_adapters: bool = "--keep-adapters", "write adapters beside the weights instead of merging them", own = own_or("keep_adapters", "false");
        pub(crate) force: bool = "--force", "replace an existing output", own = own_or("force", "false");
        pub(crate) no_sync: bool = "--no-sync", "do not wait until the data is on disk", own = own_or("no_sync", "false");
        pub(crate) dry_run: bool = "--dry-run", "show the plan and write nothing", group = "Configuration", own = own_or("dry_run", "false");
    }
}

gathered_options! {
    /// A conversion, as the command line describes it.
    pub(crate) struct Options {
        pub(crate) upstream: Upstream,
        pub(crate) reading: Reading,
        pub(crate) cutting: Cutting,
        pub(crate) writing: Writing,
    }
}

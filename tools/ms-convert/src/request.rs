//! What a command line asks for, resolved into one plain struct.

use std::path::PathBuf;

use ms_ckpt::layout::mcore::{Cut, ExpertTp, Experts, Spelling, Version};
use ms_ckpt::layout::torch_dist::Modules;
use ms_ckpt::{ArgsForm, Arithmetic, Sharding};
use ms_cli::Usage;
use ms_cli::megatron::{Args, Upstream};
use ms_core::DType;

/// A form to convert from or into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Hugging Face folder.
    Hf,
    /// Megatron-core files.
    Mcore,
    /// Megatron's legacy files.
    Legacy,
    /// This toolchain's sharded safetensors.
    Sharded,
    /// Megatron's distributed form.
    TorchDist,
}

/// Element type of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutputType {
    /// As stored.
    Same,
    /// This one.
    Fixed(DType),
    /// The one that the Hugging Face configuration names, else as stored.
    OfConfig,
}

/// What is asked of adapters.
#[derive(Clone, Debug)]
pub(crate) struct Lora {
    /// Where they are, when not in the checkpoint itself.
    pub(crate) load: Option<PathBuf>,
    /// Their rank, if given.
    pub(crate) rank: Option<usize>,
    /// What they are scaled with, if given.
    pub(crate) alpha: Option<f64>,
    /// Modules that have them; empty: any.
    pub(crate) targets: Vec<String>,
    /// How they are added.
    pub(crate) arithmetic: Arithmetic,
    /// Write them alone.
    pub(crate) alone: bool,
    /// Write them beside the weights instead of merging them.
    pub(crate) kept: bool,
}

/// A conversion.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// Form of the input.
    pub(crate) from: Form,
    /// Form of the output.
    pub(crate) to: Form,
    /// Folder to read.
    pub(crate) load: PathBuf,
    /// Folder to write.
    pub(crate) save: PathBuf,
    /// How the output is cut.
    pub(crate) cut: Cut,
    /// Element type of the output.
    pub(crate) output_type: OutputType,
    /// Round through the configuration's type first, as `convert_ckpt.py` does.
    pub(crate) through_config_type: bool,
    /// Rows of the vocabulary that are in use, when the input does not say.
    pub(crate) true_vocab: Option<usize>,
    /// The vocabulary is padded to a multiple of this times tp.
    pub(crate) divisor: usize,
    /// Rows to write, given directly.
    pub(crate) padded_vocab: Option<usize>,
    /// Spelling of Megatron names.
    pub(crate) spelling: Spelling,
    /// Modules that a distributed checkpoint is written for.
    pub(crate) modules: Modules,
    /// How args are stored.
    pub(crate) args_form: ArgsForm,
    /// Files of a Hugging Face folder, when no original is followed.
    pub(crate) sharding: Sharding,
    /// Original folder to follow.
    pub(crate) hf_config: Option<PathBuf>,
    /// Keep the first layers only.
    pub(crate) layers: Option<usize>,
    /// Keep so many multi-token prediction layers; `None`: all.
    pub(crate) mtp: Option<usize>,
    /// Keep so many of the leading dense layers; `None`: all.
    pub(crate) leading_dense: Option<usize>,
    /// Whether a source without args has its experts shared out over tensor-parallel ranks.
    pub(crate) extended: Option<bool>,
    /// Adapters to merge or write.
    pub(crate) lora: Lora,
    /// The input must be a reward model (`--orm`).
    pub(crate) reward: bool,
    /// The optimizer state of a training checkpoint goes along.
    pub(crate) optimizer: bool,
    /// Replace an existing output.
    pub(crate) force: bool,
    /// Wait until bytes are on the disk.
    pub(crate) sync: bool,
}

/// A conversion named by FROM and TO.
///
/// # Errors
/// [`Usage`] for unknown forms and missing folders.
pub(crate) fn from_words(from: &str, to: &str, args: &Args) -> Result<Request, Usage> {
    let form = |word: &str| match word {
        "hf" => Ok(Form::Hf),
        "mcore" => Ok(Form::Mcore),
        "legacy" => Ok(Form::Legacy),
        "torch_dist" => Ok(Form::TorchDist),
        other => Err(Usage(format!(
            "unknown form '{other}'\nhint: expected hf, mcore, torch_dist or legacy, as in ms-convert hf mcore"
        ))),
    };
    let (from, mut to) = (form(from)?, form(to)?);
    match args.text("format") {
        Some("safetensors") if to == Form::Mcore => to = Form::Sharded,
        Some("torch_dist") if to == Form::Mcore => to = Form::TorchDist,
        Some(format @ ("torch" | "torch_dist")) if to == Form::Hf => {
            return Err(Usage(format!("--format {format}: a Hugging Face folder is written as safetensors")));
        }
        _ => {}
    }
    let mut request = common(from, to, args)?;
    request.optimizer = !args.flag("no_optim");
    if let Some(name) = args.text("dtype") {
        request.output_type = OutputType::Fixed(dtype(name)?);
    }
    Ok(request)
}

/// A conversion described in upstream's arguments.
///
/// # Errors
/// [`Usage`] for combinations that are not supported.
pub(crate) fn from_upstream(args: &Args) -> Result<Request, Usage> {
    let head = args.upstream() == Upstream::Head;
    let form = |flag: &str, value: Option<&str>| match value {
        Some("hf") => Ok(Form::Hf),
        // Without --use-mcore-models both sides are legacy; with it, two flags name the side that is.
        Some("mg") => {
            let named = if flag.starts_with("--load") { "load_from_legacy" } else { "save_to_legacy" };
            let mcore = head || (args.flag("use_mcore_models") && !args.flag(named));
            Ok(if mcore { Form::Mcore } else { Form::Legacy })
        }
        // Weights and optimizer of a training run, onto another grid of ranks.
        Some("optim") => Ok(Form::Mcore),
        _ => Err(Usage(format!("{flag} is missing\nhint: ms-convert hf mcore --load DIR --save DIR"))),
    };
    let from = form("--load-model-type", args.text("load_model_type"))?;
    let to = form("--save-model-type", args.text("save_model_type"))?;
    let mut request = common(from, to, args)?;
    request.lora.arithmetic = Arithmetic::WeightType;
    request.optimizer = args.text("load_model_type") == Some("optim");
    if request.optimizer && to == Form::Hf {
        return Err(Usage(
            "--load-model-type optim: a Hugging Face folder holds no optimizer state".to_owned(),
        ));
    }
    if head {
        request.sharding = Sharding::PerLayer;
        request.mtp = Some(args.size("mtp_num_layers")?.unwrap_or(0));
        return Ok(request);
    }
    // convert_ckpt.py loads weights in config.json's type and stores them as --params-dtype; towards Hugging Face
    // the original folder is the output folder, its type is kept, and the result is in a folder inside.
    if to == Form::Hf {
        request.hf_config = Some(request.save.clone());
        request.save = request.save.join("mg2hf");
        request.output_type = OutputType::OfConfig;
        request.cut = Cut::default();
    } else {
        request.through_config_type = from == Form::Hf;
        request.output_type = OutputType::Fixed(dtype(args.text("params_dtype").unwrap_or("fp16"))?);
    }
    Ok(request)
}

fn common(from: Form, to: Form, args: &Args) -> Result<Request, Usage> {
    let folder = |dest: &str, flag: &str| {
        args.text(dest).map(PathBuf::from).ok_or_else(|| Usage(format!("{flag} is missing")))
    };
    let positive = |dest: &str, flag: &str| match args.size(dest)? {
        Some(0) => Err(Usage(format!("{flag}: expected at least 1, got 0"))),
        other => Ok(other),
    };
    let expert_tp = match (args.flag("moe_tp_extend_ep"), args.size("expert_tensor_parallel_size")?) {
        (true, None) => ExpertTp::Extend,
        (true, Some(_)) => {
            return Err(Usage(
                "--moe-tp-extend-ep and --expert-tensor-parallel-size exclude each other".to_owned(),
            ));
        }
        (false, Some(1)) => ExpertTp::Whole,
        (false, n) if n.is_none() || n == args.size("target_tensor_parallel_size")? => ExpertTp::Cut,
        (false, n) => {
            let n = n.unwrap_or(0);
            return Err(Usage(format!(
                "--expert-tensor-parallel-size {n}: expected 1 or the tensor-parallel size"
            )));
        }
    };
    let head = args.upstream() == Upstream::Head;
    let args_form = match (args.flag("no_args"), args.text("args_as")) {
        (true, _) => ArgsForm::Absent,
        (_, Some("dict")) => ArgsForm::Dict,
        _ => ArgsForm::Namespace,
    };
    Ok(Request {
        from,
        to,
        load: folder("load_dir", "--load")?,
        save: folder("save_dir", "--save")?,
        cut: Cut {
            tp: positive("target_tensor_parallel_size", "--tp")?.unwrap_or(1),
            pp: positive("target_pipeline_parallel_size", "--pp")?.unwrap_or(1),
            ep: positive("target_expert_parallel_size", "--ep")?.unwrap_or(1),
            expert_tp,
            dual_pipe: args.text("schedules_method") == Some("dualpipev"),
            layers_per_chunk: positive("num_layers_per_virtual_pipeline_stage", "--vpp")?,
            layer_list: args.text("num_layer_list").map(|t| numbers("--num-layer-list", t)).transpose()?,
            noop: args
                .text("noop_layers")
                .map(|t| numbers("--noop-layers", t))
                .transpose()?
                .unwrap_or_default(),
        },
        output_type: OutputType::Same,
        through_config_type: false,
        true_vocab: positive("true_vocab_size", "--true-vocab-size")?,
        divisor: positive("make_vocab_size_divisible_by", "--make-vocab-size-divisible-by")?.unwrap_or(1),
        padded_vocab: positive("padded_vocab_size", "--padded-vocab-size")?,
        spelling: Spelling {
            version: if head { Version::Head } else { Version::V2_0_0 },
            transformer_engine: args.text("transformer_impl") == Some("transformer_engine"),
            experts: if args.flag("moe_grouped_gemm") { Experts::Grouped } else { Experts::Sequential },
            mla_split: args.flag("mla_mm_split"),
            legacy: to == Form::Legacy,
            nf4: args.flag("qlora_nf4"),
        },
        modules: match args.given().get("transformer_impl").and_then(serde_json::Value::as_str) {
            Some("local") => Modules::Local,
            _ => Modules::TransformerEngine,
        },
        mtp: given(args, "mtp_num_layers").or(given(args, "num_nextn_predict_layers")).map(|n| n as usize),
        // Upstream takes 0 for not given (convert_hf2mg.py, 2026).
        leading_dense: if head { args.size("first_k_dense_replace")?.filter(|&n| n > 0) } else { None },
        extended: args.flag("moe_tp_extend_ep").then_some(true),
        args_form,
        sharding: Sharding::Bytes(ms_ckpt::layout::hf::SHARD_BYTES),
        hf_config: args.text("hf_cfg_dir").map(PathBuf::from),
        layers: match args.upstream() {
            Upstream::Head => positive("num_layers", "--num-layers")?,
            Upstream::V2_0_0 => None,
        },
        lora: Lora {
            load: args.text("lora_load").map(PathBuf::from),
            rank: given(args, "lora_r").map(|n| n as usize),
            alpha: given(args, "lora_alpha"),
            targets: args.list("lora_target_modules"),
            arithmetic: Arithmetic::Float32,
            alone: args.flag("save_lora_to_hf"),
            kept: args.flag("keep_adapters"),
        },
        reward: args.flag("orm"),
        optimizer: false,
        force: args.flag("force"),
        sync: !args.flag("no_sync"),
    })
}

/// A number that stands on the command line; defaults do not count.
fn given(args: &Args, dest: &str) -> Option<f64> {
    args.given().get(dest).and_then(serde_json::Value::as_f64)
}

fn numbers(flag: &str, text: &str) -> Result<Vec<usize>, Usage> {
    let one = |n: &str| {
        n.trim().parse().map_err(|_| Usage(format!("{flag}: expected numbers with commas, got '{text}'")))
    };
    text.split(',').map(one).collect()
}

fn dtype(name: &str) -> Result<DType, Usage> {
    match name {
        "fp32" => Ok(DType::F32),
        "bf16" => Ok(DType::Bf16),
        "fp16" => Ok(DType::F16),
        other => Err(Usage(format!("--params-dtype: expected fp16 or bf16, got '{other}'"))),
    }
}

//! The request of a command line, resolved into one plain struct.

use std::path::PathBuf;

use crate::options::Options;
use crate::scripts::Script;
use ms_ckpt::layout::mcore::{Experts, FourBit, Spelling, Version};
use ms_ckpt::layout::torch_dist::Modules;
use ms_ckpt::{ArgsForm, Arithmetic, Form, Sharding};
use ms_cli::megatron::Upstream;
use ms_cli::{Usage, refuse};
use ms_core::{DType, GridSizes};
use ms_spec::Stages;

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
    /// Write them in addition to the weights instead of merging them.
    pub(crate) kept: bool,
}

/// Multi-token prediction layers that are kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Predictors {
    pub(crate) count: usize,
    /// The flag that says so.
    pub(crate) flag: &'static str,
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
    /// Ranks of the output.
    pub(crate) sizes: GridSizes,
    /// How stages of the output share the layers.
    pub(crate) stages: Stages,
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
    /// `layers` may count empty slots, which the line need not name.
    pub(crate) counts_slots: bool,
    /// Keep this many multi-token prediction layers; `None`: all.
    pub(crate) mtp: Option<Predictors>,
    /// Keep this many of the leading dense layers; `None`: all.
    pub(crate) leading_dense: Option<usize>,
    /// Whether a source without args has its experts distributed over tensor-parallel ranks.
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

/// The form that a word names.
///
/// # Errors
/// [`Usage`] for other words.
pub(crate) fn form(word: &str) -> Result<Form, Usage> {
    Ok(match word {
        "hf" => Form::Hf,
        "mcore" => Form::Mcore,
        "legacy" => Form::Legacy,
        "torch_dist" => Form::TorchDist,
        other => refuse!(
            "unknown form '{other}'\nhint: expected hf, mcore, torch_dist or legacy, as in ms-convert hf mcore"
        ),
    })
}

/// A conversion named by FROM and TO.
///
/// # Errors
/// [`Usage`] for unknown forms and missing folders.
pub(crate) fn from_words(from: &str, to: &str, o: &Options) -> Result<Request, Usage> {
    let (from, mut to) = (form(from)?, form(to)?);
    match o.writing.format.as_deref() {
        Some("safetensors") if to == Form::Mcore => to = Form::Sharded,
        Some("torch_dist") if to == Form::Mcore => to = Form::TorchDist,
        Some(format @ ("torch" | "torch_dist")) if to == Form::Hf => {
            refuse!("--format {format}: a Hugging Face folder is written as safetensors");
        }
        _ => {}
    }
    let mut request = common(from, to, o)?;
    request.optimizer = !o.reading.no_optim;
    if let Some(name) = &o.writing.dtype {
        request.output_type = OutputType::Fixed(dtype(name)?);
    }
    Ok(request)
}

/// A conversion as one of upstream's scripts for DeepSeek-V3 carries it out.
///
/// # Errors
/// [`Usage`] for missing folders and sizes that do not fit.
pub(crate) fn from_script(script: &Script, o: &Options) -> Result<Request, Usage> {
    let mut request = from_words(script.from, script.to, o)?;
    request.optimizer = false;
    request.layers = script.layers;
    request.counts_slots = request.to == Form::Hf;
    request.leading_dense = script.leading_dense.filter(|&n| n < LEADING_DENSE);
    request.lora.arithmetic = Arithmetic::WeightType;
    request.sharding = Sharding::PerLayerOfExperts;
    if request.spelling.nf4 == FourBit::Shared {
        request.spelling.nf4 = FourBit::All;
    }
    if request.from == Form::Hf {
        // These converters store no arguments, and no prediction layers that were not requested.
        request.args_form = ArgsForm::Absent;
        request.mtp.get_or_insert(Predictors { count: 0, flag: "--mtp-num-layers" });
    }
    Ok(request)
}

/// Leading dense layers of DeepSeek-V3, of which the scripts keep fewer on request.
const LEADING_DENSE: usize = 3;

/// A conversion described in upstream's arguments.
///
/// # Errors
/// [`Usage`] for combinations that are not supported.
pub(crate) fn from_upstream(o: &Options) -> Result<Request, Usage> {
    let head = o.upstream == Upstream::Head;
    let form = |flag: &str, value: Option<&str>, legacy: bool| match value {
        Some("hf") => Ok(Form::Hf),
        // Without --use-mcore-models both sides are legacy; with it, two flags name the side that is.
        Some("mg") => {
            let mcore = head || (o.writing.mcore && !legacy);
            Ok(if mcore { Form::Mcore } else { Form::Legacy })
        }
        // Weights and optimizer of a training run, onto another grid of ranks.
        Some("optim") => Ok(Form::Mcore),
        _ => Err(Usage(format!("{flag} is missing\nhint: ms-convert hf mcore --load DIR --save DIR"))),
    };
    let from = form("--load-model-type", o.reading.load_type.as_deref(), o.reading.legacy)?;
    let optim = o.reading.load_type.as_deref() == Some("optim");
    // Upstream's default in v2.0.0, which is none of its own choices, stands for mg.
    let given = o.writing.save_type.as_deref().filter(|form| *form != "megatron");
    let to = match given {
        // Upstream asks for none: what comes of it is what went in.
        None if optim => Form::Mcore,
        given => form("--save-model-type", given.or(Some("mg")), o.writing.legacy)?,
    };
    let mut request = common(from, to, o)?;
    request.lora.arithmetic = Arithmetic::WeightType;
    request.optimizer = optim;
    if request.optimizer && to == Form::Hf {
        refuse!("--load-model-type optim: a Hugging Face folder holds no optimizer state");
    }
    if head {
        request.sharding = Sharding::PerLayer;
        let written = o.reading.mtp.written.unwrap_or("--mtp-num-layers");
        request.mtp = Some(Predictors { count: o.reading.mtp.value.unwrap_or(0), flag: written });
        return Ok(request);
    }
    // convert_ckpt.py loads weights in config.json's type and stores them as --params-dtype; towards Hugging Face
    // the original folder is the output folder, its type is kept, and the result is in a folder inside.
    if to == Form::Hf {
        request.hf_config = Some(request.save.clone());
        request.save = request.save.join("mg2hf");
        request.output_type = OutputType::OfConfig;
        (request.sizes, request.stages) = (GridSizes::default(), Stages::default());
    } else {
        request.through_config_type = from == Form::Hf;
        request.output_type = OutputType::Fixed(dtype(o.writing.params_dtype.as_deref().unwrap_or("fp16"))?);
    }
    Ok(request)
}

fn common(from: Form, to: Form, o: &Options) -> Result<Request, Usage> {
    let folder =
        |path: &Option<PathBuf>, flag: &str| path.clone().ok_or_else(|| Usage(format!("{flag} is missing")));
    let (c, w) = (&o.cutting, &o.writing);
    let tp = c.tp.value;
    let sizes = GridSizes { tp, ep: c.ep.value, ..GridSizes::default() };
    let sizes = match (c.extend_ep, c.etp.value) {
        (true, None) => GridSizes { ep: sizes.ep.saturating_mul(tp), etp: Some(1), ..sizes },
        (true, Some(_)) => {
            refuse!("--moe-tp-extend-ep and --expert-tensor-parallel-size exclude each other");
        }
        (false, Some(1)) => GridSizes { etp: Some(1), ..sizes },
        (false, n) if n.is_none_or(|n| n == tp) => sizes,
        (false, n) => {
            let n = n.unwrap_or(0);
            refuse!("--expert-tensor-parallel-size {n}: expected 1 or the tensor-parallel size");
        }
    };
    let head = o.upstream == Upstream::Head;
    let args_form = match (w.no_args, w.args_as.as_str()) {
        (true, _) => ArgsForm::Absent,
        (_, "dict") => ArgsForm::Dict,
        _ => ArgsForm::Namespace,
    };
    Ok(Request {
        from,
        to,
        load: folder(&o.reading.load.value, "--load")?,
        save: folder(&w.save.value, "--save")?,
        sizes,
        stages: Stages {
            pp: c.pp.value,
            dual_pipe: c.schedule.as_deref() == Some("dualpipev"),
            layers_per_chunk: c.layers_per_chunk.value,
            layer_list: c.layer_list.as_deref().map(|t| numbers("--num-layer-list", t)).transpose()?,
            noop: c.noop.as_deref().map(|t| numbers("--noop-layers", t)).transpose()?.unwrap_or_default(),
        },
        output_type: OutputType::Same,
        through_config_type: false,
        true_vocab: o.reading.true_vocab,
        divisor: w.divisor.unwrap_or(1),
        padded_vocab: w.padded_vocab,
        spelling: Spelling {
            version: if head { Version::Head } else { Version::V2_0_0 },
            transformer_engine: w.implementation.value.as_deref() == Some("transformer_engine"),
            as_trained: false,
            experts: if w.grouped { Experts::Grouped } else { Experts::Sequential },
            split_heads: w.split_heads,
            legacy: to == Form::Legacy,
            nf4: if w.nf4 { FourBit::Shared } else { FourBit::None },
        },
        modules: match w.implementation.given().and_then(Option::as_deref) {
            Some("local") => Modules::Local,
            _ => Modules::TransformerEngine,
        },
        mtp: [&o.reading.mtp, &o.reading.mtp_of_scripts].iter().find_map(|n| {
            let flag = n.written?;
            Some(Predictors { count: n.value?, flag })
        }),
        // Upstream takes 0 for not given (convert_hf2mg.py, 2026).
        leading_dense: if head { o.reading.leading_dense.filter(|&n| n > 0) } else { None },
        extended: c.extend_ep.then_some(true),
        args_form,
        sharding: Sharding::Bytes(ms_ckpt::layout::hf::SHARD_BYTES),
        hf_config: w.hf_config.clone(),
        layers: o.reading.layers.filter(|_| head),
        counts_slots: false,
        lora: Lora {
            load: o.reading.lora.clone(),
            rank: o.reading.lora_rank.given().copied().flatten(),
            alpha: o.reading.lora_alpha.given().copied().flatten(),
            targets: o.reading.lora_targets.clone(),
            arithmetic: Arithmetic::Float32,
            alone: w.adapters_alone,
            kept: w.keep_adapters,
        },
        reward: o.reading.reward,
        optimizer: false,
        force: w.force,
        sync: !w.no_sync,
    })
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

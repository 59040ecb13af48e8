//! The model of a run: from flags, or from a checkpoint with flags overriding what it says.

use crate::ModelFlags;
use crate::compute::hints;
use crate::resolve::options::Options;
use crate::versions::{YARN_FACTOR, divides_last, say_unread, turn_args, unread_of_router};
use anyhow::{Context, Result};
use ms_ckpt::Form;
use ms_cli::megatron::{Given, Upstream};
use ms_cli::{Usage, refuse};
use ms_spec::ModelConfig;
use ms_spec::megatron::{RENORMALISED, ROUTER_KIND};
use serde_json::{Map, Value};
use std::path::Path;

options! {
    /// What training alone is told of a model.
    pub(crate) struct ModelTrainingOptions in "Model" {
        divisor: usize = "--make-vocab-size-divisible-by", "pad the vocabulary to a multiple of this number times the tensor-parallel size; a resumed run keeps its padding where the ranks can share it", range = "[1,16777216]";
        init_std: Given<f64> = "--init-method-std", "standard deviation of the initial weights", range = "[0,)";
        pub(crate) windows: usize = "--num-nextn-predict-layers", "v2.0.0: number of multi-token prediction (MTP) modules; unlike with --mtp-num-layers samples are longer by as many tokens, hidden states come before embeddings in eh_proj, and modules share one mask and one loss", group = "Model families", range = "[0,16384]";
        windows_scale: f64 = "--mtp-loss-scale", "with --num-nextn-predict-layers: factor of the mean loss of the MTP modules", group = "Model families", range = "[0,)";
        shared_tables: bool = "--share-mtp-embedding-and-output-weight", "MTP modules use the embedding and output layer of the main model; required by --num-nextn-predict-layers", group = "Model families";
        lends: bool = "--share-kvstates", "layers share keys and values; required by --cla-share-factor", group = "Model families";
        pub(crate) prediction: Given<Option<usize>> = "--mtp-num-layers", "number of multi-token prediction (MTP) modules to train", group = "Model families", range = "[0,16384]";
    }
}

impl ModelTrainingOptions {
    /// Prediction modules that are asked for, and the flag that says so.
    pub(crate) fn modules(&self) -> Option<(usize, &'static str)> {
        match self.windows {
            0 => Some((self.prediction.given().copied().flatten()?, "--mtp-num-layers")),
            n => Some((n, "--num-nextn-predict-layers")),
        }
    }

    /// The factor of the mean loss of v2.0.0's modules, if there are some.
    ///
    /// # Errors
    /// For modules with tables of their own.
    pub(crate) fn scale_of_windows(&self) -> Result<Option<f64>> {
        if self.windows > 0 && !self.shared_tables {
            refuse!(
                "--num-nextn-predict-layers: needs --share-mtp-embedding-and-output-weight: modules have no tables of their own"
            );
        }
        Ok((self.windows > 0).then_some(self.windows_scale))
    }
}

/// What an error of the model's arguments is in words of flags.
fn refused(o: &Options, error: &ms_spec::Error) -> Usage {
    let flags = &o.model_flags;
    if let ms_spec::Error::Missing { field, .. } = error
        && let Some(flag) = flags.flag_of(field)
    {
        let whole = ["num_layers", "hidden_size"].into_iter().filter_map(|dest| flags.written(dest));
        let whole = whole.collect::<Vec<_>>().join(" and ");
        return Usage(match o.source.folder() {
            Some(_) => format!(
                "{flag} is missing: with {whole} the flags must describe the whole model; without, it is that of --load"
            ),
            None => format!("{flag} is missing: the model that the other flags describe needs it"),
        });
    }
    match culprit(flags, error).as_str() {
        "" => Usage(error.to_string()),
        flag => Usage(format!("{flag}: {error}")),
    }
}

/// Checks that a token finds as many experts as it takes.
///
/// # Errors
/// With the flags that were given for them, if it does not.
pub(crate) fn check_open_experts(o: &Options, model: &ModelConfig) -> Result<(), Usage> {
    model.check_open_experts().map_err(|error| refused(o, &error))
}

/// The flags that a model's error is about: of several that can make a size the first that was given.
fn culprit(flags: &ModelFlags, error: &ms_spec::Error) -> String {
    let given = |names: Vec<&str>| names.iter().find_map(|name| flags.written(name));
    let made: Vec<_> = error.arg_names().into_iter().filter_map(given).collect();
    made.join(", ")
}

/// Tokens of a plan's vocabulary where neither flags nor a tokenizer say.
const ASSUMED_VOCABULARY: usize = 65536;

/// The folder that the model's shape is read from, if it is not from the flags.
fn loaded(o: &Options) -> Option<&Path> {
    o.source.folder().filter(|_| !o.model_flags.describe_all() || o.source.describes_model())
}

/// Rows of the embedding of `model`, which was made of these options, where `tp` ranks share them.
pub(crate) fn padded_vocab(o: &Options, model: &ModelConfig, tp: usize) -> usize {
    if loaded(o).is_some() || o.model_flags.rows().is_some() {
        model.padded_vocab.next_multiple_of(tp)
    } else {
        rows_of_run(o, resumed_rows(o), model.vocab, tp)
    }
}

/// Rows of the embedding for `vocab` tokens where no flag says how many: those of the run that is `resumed`, if `tp` ranks can
/// share them, else upstream's rule.
fn rows_of_run(o: &Options, resumed: Option<usize>, vocab: usize, tp: usize) -> usize {
    match resumed {
        Some(rows) if rows >= vocab && rows % tp == 0 => rows,
        _ => vocab.next_multiple_of(o.model_training.divisor.saturating_mul(tp)),
    }
}

/// Rows of the embedding of the checkpoint of a training run that is loaded, if there is one. What cannot be opened is said by
/// who loads it.
fn resumed_rows(o: &Options) -> Option<usize> {
    let folder = o.source.folder().filter(|folder| ms_ckpt::present(folder))?;
    let hints = hints(o.parallelism.extend_ep.value);
    let opened = ms_ckpt::open_with(folder, o.source.step(), &hints).ok()?;
    (!matches!(opened.form(), Form::Hf | Form::Peft)).then(|| opened.config().padded_vocab)
}

/// The model: from the flags if they describe one, else from the checkpoint, single flags winning over it.
///
/// A model that is only `planned` has [`ASSUMED_VOCABULARY`] where nothing says how large its vocabulary is.
pub(crate) fn model(o: &Options, tokens: Option<usize>, planned: bool) -> Result<(ModelConfig, String)> {
    match loaded(o) {
        Some(dir) => of_checkpoint(o, dir),
        None => Ok((of_flags(o, tokens, planned)?, "flags".into())),
    }
}

/// The model of the checkpoint in `dir`, with what single flags say, and a description of where it is from.
fn of_checkpoint(o: &Options, dir: &Path) -> Result<(ModelConfig, String)> {
    let hints = hints(o.parallelism.extend_ep.value);
    let checkpoint = ms_ckpt::open_with(dir, None, &hints).with_context(|| {
        "the model's shape is read from --load when neither --num-layers nor --hidden-size is given"
            .to_owned()
    })?;
    let ends = end_of_documents(o);
    let mut config = o.model_flags.beside(checkpoint.config(), o.source.describes_model(), ends)?;
    if o.model_training.init_std.is_given() {
        config.init_std = o.model_training.init_std.value;
    }
    // Ranks that share the vocabulary have equally many rows of it.
    let asked = o.model_flags.rows().filter(|_| !o.source.describes_model());
    let (there, tp) = (config.padded_vocab, o.parallelism.tp);
    let wanted = asked.unwrap_or(there);
    config.padded_vocab = wanted.next_multiple_of(tp);
    if config.padded_vocab != wanted {
        tracing::warn!(
            "the vocabulary is padded to {} rows, that of the checkpoint to {there}, and padding takes part in the loss: a \
             --tensor-model-parallel-size that divides {wanted} keeps it",
            config.padded_vocab
        );
    }
    Ok((config, format!("{} ({})", dir.display(), checkpoint.form().name())))
}

/// The model that flags describe, for a tokenizer of `tokens`.
fn of_flags(o: &Options, tokens: Option<usize>, planned: bool) -> Result<ModelConfig> {
    let flags = &o.model_flags;
    let mut map = flags.values();
    if map.get("cla_share_factor").and_then(Value::as_u64).is_some_and(|n| n > 1) && !o.model_training.lends {
        refuse!(
            "--cla-share-factor: needs --share-kvstates: layers get keys and values of others by it alone"
        );
    }
    let own_factor = if o.upstream == Upstream::Head { left_out_at_head(o, &mut map) } else { None };
    add_arguments(o, &mut map);
    add_vocabulary(o, tokens, planned, &mut map)?;
    let acting = read_by_router(o, &mut map);
    turn_args(o.upstream, &mut map, |dest| flags.written(dest))?;
    say_named_twice(flags, &map);
    let mut config = made(o, &mut map, own_factor)?;
    flags.check_positions(&config)?;
    let dense_first = map.get("first_k_dense_replace").and_then(Value::as_f64);
    let all_dense = |first: &f64| *first >= (config.layers + config.empty_slots) as f64;
    if let Some(first) = dense_first.filter(all_dense).filter(|_| config.moe.is_some()) {
        refuse!(
            "--first-k-dense-replace: expected less than the {} layers, found {first}: no layer has experts",
            config.layers
        );
    }
    let twice = SAID_TWICE.iter().filter(|(wins, _)| flags.written(wins).is_some());
    flags.say_idle(&config, &map, &twice.map(|(_, other)| *other).chain(acting).collect::<Vec<_>>());
    config.init_std = o.model_training.init_std.value;
    check_rows(flags, &config, tokens)?;
    Ok(config)
}

/// Adds the arguments of a model that stand in other groups of options.
fn add_arguments(o: &Options, map: &mut Map<String, Value>) {
    let flags = &o.model_flags;
    let mut put = |dest: &str, value: Option<Value>| {
        map.extend(value.map(|value| (dest.to_owned(), value)));
    };
    put("seq_length", o.batches.seq_length.map(Into::into));
    let windows = Some(o.model_training.windows).filter(|&n| n > 0);
    put("mtp_num_layers", windows.or(o.model_training.prediction.value).map(Into::into));
    put("bf16", Some(o.precision.bf16.into()));
    put("fp16", Some(o.precision.fp16.into()));
    // It distinguishes the head's arguments from v2.0.0's.
    put("topk_softmax_in_fp32", (o.upstream == Upstream::Head).then_some(o.routers.best_two.into()));
    put("moe_router_balanced_groups", o.routers.balanced_groups.then_some(Value::Bool(true)));
    // By default, v2.0.0's groups are those of expert-parallel ranks.
    let grouped = ["n_group", "moe_router_num_groups"].iter().any(|dest| flags.written(dest).is_some());
    let kind = flags.word(ROUTER_KIND);
    let groups_chosen = o.upstream == Upstream::V2_0_0 && flags.written("topk_group").is_some();
    let by_groups = kind == Some("group_limited_greedy")
        || (matches!(kind, Some("none" | "noaux_tc")) && groups_chosen && o.parallelism.ep > 1);
    if by_groups && !grouped {
        put("n_group", Some(o.parallelism.ep.into()));
    }
}

/// Tokens beyond `--vocab-size`: upstream's null tokenizer counts the end of documents as one more.
fn end_of_documents(o: &Options) -> usize {
    usize::from(o.samples.have_no_words() && o.model_flags.rows().is_none())
}

/// Adds the sizes of the vocabulary and of its table, for a tokenizer of `tokens`.
///
/// # Errors
/// If nothing says how large the vocabulary is, unless the run is only `planned`.
fn add_vocabulary(
    o: &Options,
    tokens: Option<usize>,
    planned: bool,
    map: &mut Map<String, Value>,
) -> Result<()> {
    let flags = &o.model_flags;
    if let Some(tokens) = flags.tokens() {
        map.insert("vocab_size".into(), (tokens + end_of_documents(o)).into());
    }
    if let (Some(flag), Some(tokens)) = (flags.tokens().filter(|_| !o.samples.have_no_words()), tokens)
        && flag != tokens
    {
        tracing::warn!(
            "--vocab-size {flag} is not the tokenizer's {tokens}, which upstream takes; --padded-vocab-size says how many rows there are"
        );
    }
    if let Some(rows) = flags.rows() {
        map.insert("padded_vocab_size".into(), rows.into());
        return Ok(());
    }
    if flags.tokens().is_none() {
        const PASS: &str = "pass --tokenizer-name-or-path, --vocab-size or --padded-vocab-size";
        let tokens = match tokens {
            Some(tokens) => tokens,
            None if planned => {
                tracing::warn!(
                    "the size of the vocabulary is unknown, planned with {ASSUMED_VOCABULARY} tokens; {PASS}"
                );
                ASSUMED_VOCABULARY
            }
            None => refuse!("the size of the vocabulary is unknown: {PASS}"),
        };
        map.insert("vocab_size".into(), tokens.into());
    }
    let vocab = map.get("vocab_size").and_then(Value::as_u64).unwrap_or(0) as usize;
    let resumed = resumed_rows(o);
    let rows = rows_of_run(o, resumed, vocab, o.parallelism.tp);
    if let Some(there) = resumed.filter(|&there| there != rows) {
        tracing::warn!(
            "the vocabulary is padded to {rows} rows, that of the checkpoint to {there}, and padding takes part in the loss: \
             --padded-vocab-size says another number"
        );
    }
    map.insert("padded_vocab_size".into(), rows.into());
    Ok(())
}

/// Leaves to the router what upstream reads of its arguments, and says what it does not. Returns one that acts all the same.
fn read_by_router(o: &Options, map: &mut Map<String, Value>) -> Option<&'static str> {
    let (flags, kind) = (&o.model_flags, o.model_flags.word(ROUTER_KIND));
    if o.routers.balanced_groups {
        return None;
    }
    // Weights that are divided by their sum have no scale: the flag acts only where there is one.
    let divides = map.get("norm_topk_prob") == Some(&Value::Bool(true));
    let last = divides_last(o.upstream, kind, divides);
    if last {
        map.insert(RENORMALISED.into(), true.into());
    }
    for dest in unread_of_router(o.upstream, kind, divides) {
        if let (Some(flag), Some(_)) = (flags.written(dest), map.remove(*dest)) {
            say_unread(flag, kind);
        }
    }
    last.then_some("norm_topk_prob")
}

/// Says which flag counts where two name one number and differ.
fn say_named_twice(flags: &ModelFlags, map: &Map<String, Value>) {
    let number = |dest: &str| map.get(dest).and_then(Value::as_f64);
    for (wins, other) in SAID_TWICE {
        if let (Some(a), Some(b)) = (flags.written(wins), flags.written(other))
            && number(wins).is_some()
            && number(wins) != number(other)
            && map.get("kv_compress") != Some(&Value::Bool(true))
        {
            tracing::warn!("{a} and {b} name one number: that of {a} counts");
        }
    }
}

/// The model of these arguments; `own_factor` is what was said of yarn's factor, if upstream forms it of the lengths.
fn made(o: &Options, map: &mut Map<String, Value>, own_factor: Option<Option<Value>>) -> Result<ModelConfig> {
    let of = |map: &Map<String, Value>| ms_spec::megatron::from_args(map).map_err(|e| refused(o, &e));
    let config = of(map)?;
    let Some(factor) = own_factor else { return Ok(config) };
    if config.rotates_by_itself() {
        map.remove(YARN_FACTOR);
        map.extend(factor.map(|factor| (YARN_FACTOR.to_owned(), factor)));
        return Ok(of(map)?);
    }
    if let Some(flag) = o.model_flags.written(YARN_FACTOR) {
        tracing::warn!(
            "{flag} has no effect: upstream's head divides --max-position-embeddings by --rope-scaling-original-max-position-embeddings"
        );
    }
    Ok(config)
}

/// Checks that the table has a row for each of the tokenizer's `tokens`.
fn check_rows(flags: &ModelFlags, config: &ModelConfig, tokens: Option<usize>) -> Result<()> {
    if let Some(tokens) = tokens.filter(|&tokens| tokens > config.padded_vocab) {
        let sized = flags.tokens().is_some() && flags.rows().is_none();
        let flag = if sized { "--vocab-size" } else { "--padded-vocab-size" };
        refuse!("{flag}: expected at least the tokenizer's {tokens} tokens, found {}", config.padded_vocab);
    }
    Ok(())
}

/// Takes out what newer upstreams' classes of a model are not handed or look at beside something else alone, and says so. Returns
/// what was said of yarn's factor, if it is formed of the lengths.
///
/// # Source
/// MindSpeed-LLM (2026), `pretrain_gpt.py`, `model_provider`; `core/models/common/embeddings/rotary_pos_embedding.py`,
/// `apply_yarn_scaling`; `core/transformer/transformer_block.py`, `_transformer_block_build_layers`.
fn left_out_at_head(o: &Options, map: &mut Map<String, Value>) -> Option<Option<Value>> {
    let flags = &o.model_flags;
    let said = |dest: &str, why: &str| {
        if let Some(flag) = flags.written(dest) {
            tracing::warn!("{flag} has no effect: {why}");
        }
    };
    let number = |dest: &str| map.get(dest).and_then(Value::as_f64);
    let few_dense = number("first_k_dense_replace").is_none_or(|n| n == 0.0);
    let yarn = flags.word("rope_scaling_type") == Some("yarn");
    let reach =
        number("max_position_embeddings").zip(number("rope_scaling_original_max_position_embeddings"));
    if few_dense && map.remove("moe_layer_freq").is_some() {
        said(
            "moe_layer_freq",
            "upstream's head looks at it beside --first-k-dense-replace above 0 alone: all layers have experts",
        );
    }
    if !o.samples.is_sft() && map.remove("rotary_seq_len_interpolation_factor").is_some() {
        said("rotary_seq_len_interpolation_factor", "upstream's head hands it to no model that it pretrains");
    }
    let (reach, original) = reach.filter(|_| yarn)?;
    Some(map.insert(YARN_FACTOR.into(), (reach / original).into()))
}

/// Flags that name one number: the first of two counts. Models with pooled entries have numbers of both names.
const SAID_TWICE: [(&str, &str); 3] = [
    ("rotary_base", "rope_theta"),
    ("partial_rotary_factor", "rotary_percent"),
    ("sliding_window", "interleave_sliding_window"),
];

//! Opening what is converted, with the layers that are asked for.

use std::fs;
use std::path::Path;

use crate::request::{Predictors, Request};
use anyhow::Context as _;
use ms_ckpt::layout::mcore::Hints;
use ms_ckpt::{Checkpoint, Form};
use ms_cli::{ResultHint as _, refuse};
use ms_spec::{Feed, ModelConfig, hf};
use serde_json::{Value, json};

/// The configuration that lies beside Megatron's files.
pub(crate) fn beside(request: &Request) -> Option<Value> {
    let path = request.load.join("config.json");
    (request.from != Form::Hf && path.is_file()).then(|| read_json(&path).ok())?
}

/// Models of the requested layers, where the files may hold no more: the original's configuration, and with upstream's converter
/// the files' own arguments, describe all. Upstream leaves prediction layers out where they are not asked for, so that the last
/// model has none.
fn shorter_models(config: Option<&Value>, request: &Request) -> Vec<ModelConfig> {
    let Some(shorter) = config.and_then(|config| shortened(config, request)) else { return Vec::new() };
    let predicts = shorter.get(PREDICTORS).and_then(Value::as_u64).is_some_and(|n| n > 0);
    let mut all = vec![shorter];
    if predicts {
        let mut without = all[0].clone();
        without[PREDICTORS] = json!(0);
        all.push(without);
    }
    all.iter().filter_map(|config| hf::read_config(config).ok()).collect()
}

/// Opens the source with the request's hints, and keeps the requested layers. A request for all layers of the original is not
/// a restriction.
pub(crate) fn open(request: &mut Request) -> anyhow::Result<Checkpoint> {
    let followed =
        request.hf_config.as_ref().map(|dir| dir.join("config.json")).filter(|path| path.is_file());
    let config = match (request.from, followed) {
        (Form::Hf, _) | (_, None) => None,
        (_, Some(path)) => Some(read_json(&path)?),
    };
    let open = |config, model| {
        // Between Megatron's forms the flag is about the output.
        let extend_ep = request.extended.filter(|_| request.to == Form::Hf);
        ms_ckpt::open_with(&request.load, None, &Hints { config, model, extend_ep })
    };
    let (mut opened, mut refused) = (None, None);
    for model in shorter_models(config.clone().or_else(|| beside(request)).as_ref(), request) {
        match open(None, Some(model)) {
            Ok(source) => {
                opened = Some(source);
                break;
            }
            Err(error) => refused = refused.or(Some(error)),
        }
    }
    let mut source = match opened {
        Some(source) => source,
        None => open(config, None).map_err(|error| refused.unwrap_or(error))?,
    };
    let c = source.config();
    let leading = (0..c.layers).take_while(|&l| c.moe.is_some() && c.layer(l).feed == Feed::Dense).count();
    let mut kept: Vec<usize> = (0..c.layers).collect();
    let original = request.from == Form::Hf && request.hf_config.is_none();
    if let Some(n) = request.leading_dense {
        anyhow::ensure!(
            n <= leading,
            "--first-k-dense-replace {n}: the model has {leading} leading dense layers"
        );
        kept.retain(|&l| l < n || l >= leading);
        request.leading_dense = Some(n).filter(|&n| n < leading || !original);
    }
    if let Some(n) = request.layers {
        let have = kept.len();
        let n = if request.counts_slots { n.min(have) } else { n };
        anyhow::ensure!(n <= have, "--num-layers {n}: the checkpoint has {have} layers");
        kept.truncate(n);
        request.layers = Some(n).filter(|&n| n < have || !original);
    }
    let mtp = c.mtp;
    let asked = request.mtp.as_ref().filter(|_| request.from == Form::Hf);
    if let Some(Predictors { flag, count }) = asked
        && *count > mtp
    {
        refuse!("{flag}: {count} multi-token prediction layers were asked for, the checkpoint has {mtp}");
    }
    let mtp = asked.map_or(mtp, |asked| asked.count);
    if kept.len() < c.layers || mtp < c.mtp {
        source = source.with_layers(&kept, mtp)?;
    }
    Ok(source)
}

/// Fields of `config.json` that count the layers; a class has one of them.
pub(crate) const LAYER_COUNTS: [&str; 3] = ["num_hidden_layers", "num_layers", "n_layer"];

/// The field of `config.json` that counts layers of multi-token prediction.
pub(crate) const PREDICTORS: &str = "num_nextn_predict_layers";

/// The configuration of a model with only the requested layers; `None` if it has no more than those.
fn shortened(config: &Value, request: &Request) -> Option<Value> {
    let mut config = config.clone();
    let mut less = false;
    let asked = [
        (LAYER_COUNTS.iter().find(|key| config.get(key).is_some()).copied(), request.layers),
        (Some("first_k_dense_replace"), request.leading_dense),
    ];
    for (key, count) in asked {
        if let (Some(key), Some(count)) = (key, count)
            && config.get(key).and_then(Value::as_u64).is_some_and(|had| had > count as u64)
        {
            config[key] = json!(count);
            less = true;
        }
    }
    less.then_some(config)
}

pub(crate) fn check_form(source: &Checkpoint, request: &Request) -> anyhow::Result<()> {
    let fits = match request.from {
        // Which of the three is found out.
        Form::Mcore | Form::Sharded | Form::TorchDist => {
            matches!(source.form(), Form::Mcore | Form::Sharded | Form::TorchDist)
        }
        form => source.form() == form,
    };
    if fits {
        return Ok(());
    }
    let (found, other) = match source.form() {
        Form::Hf => ("a Hugging Face folder", "hf"),
        Form::Mcore | Form::Sharded => ("a Megatron-core checkpoint", "mcore"),
        Form::TorchDist => ("a distributed checkpoint", "torch_dist"),
        Form::Legacy => ("a legacy Megatron checkpoint", "legacy"),
        Form::Peft => ("an adapter", "mcore"),
    };
    Err(anyhow::anyhow!("{} is {found}", request.load.display()))
        .hint(format!("ms-convert {other} … reads it"))
}

/// Checks that what is called a reward model is one, and says so of one that is not called so.
pub(crate) fn check_reward(source: &Checkpoint, request: &Request) -> anyhow::Result<()> {
    match (request.reward, source.config().reward) {
        (true, false) => {
            let (from, dir) = (source.form(), request.load.display());
            let name = if from == Form::Hf { "score.weight" } else { "rm_head.weight" };
            Err(anyhow::anyhow!("--orm: {dir} is not a reward model: there is no {name}"))
        }
        (false, true) => {
            tracing::info!("{} is a reward model: its head is converted", request.load.display());
            Ok(())
        }
        _ => Ok(()),
    }
}

pub(crate) fn read_json(path: &Path) -> anyhow::Result<Value> {
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    hf::parse_json(&text).with_context(|| path.display().to_string())
}

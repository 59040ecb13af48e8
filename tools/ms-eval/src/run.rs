//! Running a benchmark: prompts, model, answers, score.

use crate::mmlu::{self, Question, Subject};
use crate::report::{Row, Sample};
use anyhow::{Context, Result, bail, ensure};
use ms_cli::Usage;
use ms_cli::megatron::Args;
use ms_core::DType;
use ms_generate::{LoadedModel, Session};
use ms_text::{GenerationPrompt, Tokenizer};
use serde_json::json;
use sha2::{Digest, Sha256};
use std::path::Path;

/// How an answer is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    /// Generate and extract.
    MindSpeed,
    /// Compare the log-likelihood of the four choices.
    Harness,
}

/// Scores MMLU.
///
/// # Errors
/// If a flag is wrong, or the model, tokenizer or data cannot be read.
pub(crate) fn mmlu(args: &Args) -> Result<()> {
    let dir = args
        .list("data_path")
        .into_iter()
        .next_back()
        .or_else(|| args.list("task_data_path").into_iter().next_back());
    let dir =
        dir.ok_or_else(|| Usage("--data-path is required: the folder of SUBJECT_test.csv files".into()))?;
    if args.text("prompt_type").is_some() {
        bail!(Usage(
            "--prompt-type: prompts as a chat of solved examples are not part of this version; leave it out"
                .into()
        ));
    }
    let protocol = match args.text("protocol") {
        Some("harness") => Protocol::Harness,
        _ => Protocol::MindSpeed,
    };
    let shots = match args.size("num_fewshot")? {
        Some(_) if protocol == Protocol::MindSpeed => {
            bail!(Usage("--num-fewshot goes with --protocol harness".into()))
        }
        given => given.unwrap_or(mmlu::SHOTS),
    };
    let mut subjects = mmlu::read(Path::new(&dir))?;
    if let Some(subject) = subjects.iter().find(|s| s.examples.len() < shots) {
        let (name, has) = (&subject.name, subject.examples.len());
        bail!("{dir}: {name}: expected {shots} solved examples, found {has}\nhint: lower --num-fewshot");
    }
    if let Some(most) = args.size("max_eval_samples")? {
        subjects.iter_mut().for_each(|s| s.questions.truncate(most));
    }
    let load =
        args.text("load").ok_or_else(|| Usage("--load is required: the folder of the model".into()))?;
    let tokenizer = tokenizer(args, load)?;
    let template = match tokenizer.chat_template_source() {
        Some(_) if protocol == Protocol::MindSpeed && !args.flag("no_chat_template") => {
            Some(tokenizer.chat_template()?)
        }
        _ => None,
    };
    let encode = |subject: &Subject, question: &Question| -> Result<(String, Vec<u32>)> {
        let text = match protocol {
            Protocol::MindSpeed => mmlu::prompt(subject, question),
            Protocol::Harness => mmlu::harness_prompt(subject, question, shots),
        };
        let ids = match &template {
            Some(t) => {
                let turns = json!([{"role": "user", "content": text}]);
                tokenizer.encode(&t.render(&turns, None, GenerationPrompt::Omit)?)?
            }
            None => tokenizer.encode_with_special(&text)?,
        };
        Ok((text, ids))
    };
    let mut prompts = Vec::new();
    for subject in &subjects {
        for question in &subject.questions {
            prompts.push(encode(subject, question)?);
        }
    }
    let new = if protocol == Protocol::Harness {
        8
    } else {
        args.int("max_new_tokens").unwrap_or(128).max(1) as usize
    };
    let longest = prompts.iter().map(|p| p.1.len()).max().unwrap_or(0) + new;
    let model = model(args, load, longest)?;
    let window = model.config().max_positions;
    let overlong = prompts.iter().filter(|p| p.1.len() + new > window).count() as u64;
    let mut session = Session::new(&model, longest);
    let bar = args.progress().bar(prompts.len() as u64, "mmlu");
    let mut prompts = prompts.into_iter();
    let (mut rows, mut samples) = (Vec::new(), Vec::new());
    for subject in &subjects {
        let mut correct = 0;
        for (number, question) in subject.questions.iter().enumerate() {
            let (text, ids) = prompts.next().context("one prompt per question")?;
            let id = format!("{}/{number}", subject.name);
            let mut log_likelihood = Vec::new();
            let answer = match protocol {
                Protocol::MindSpeed => generate(&mut session, &tokenizer, &model, &ids, new),
                Protocol::Harness => choose(&mut session, &tokenizer, &text, &ids).map(|all| {
                    log_likelihood = all;
                    told(&log_likelihood)
                }),
            };
            let (output, picked) = answer.with_context(|| format!("question {id}"))?;
            let right = picked.as_deref() == Some(question.answer.as_str());
            correct += u64::from(right);
            samples.push(Sample {
                id,
                prompt_sha256: format!("{:x}", HexDigest(Sha256::digest(text.as_bytes()).to_vec())),
                output,
                picked,
                gold: question.answer.clone(),
                right,
                log_likelihood,
            });
            bar.inc(1);
        }
        rows.push(Row { subject: subject.name.clone(), questions: subject.questions.len() as u64, correct });
    }
    bar.finish_and_clear();
    crate::report::write(args, "mmlu", &rows, &samples, overlong)
}

struct HexDigest(Vec<u8>);

impl std::fmt::LowerHex for HexDigest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

fn tokenizer(args: &Args, load: &str) -> Result<Tokenizer> {
    let dir = args.text("tokenizer_name_or_path").unwrap_or(load);
    if !Path::new(dir).join("tokenizer.json").is_file() {
        bail!(Usage(format!(
            "{dir}: no tokenizer.json there\nhint: pass --tokenizer-name-or-path, the folder of the tokenizer"
        )));
    }
    Ok(Tokenizer::load(dir)?)
}

fn model(args: &Args, load: &str, longest: usize) -> Result<LoadedModel> {
    if args.text("device") == Some("npu") {
        bail!(Usage("--device npu: no NPU backend is part of this version; pass --device cpu".into()));
    }
    let dtype = match args.text("dtype") {
        Some("fp32") => DType::F32,
        Some("fp64") => DType::F64,
        _ => DType::Bf16,
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let device = ms_reference::device_for(dtype, args.size("threads")?.unwrap_or(cores).max(1))?;
    let iteration = args.size("ckpt_step")?.map(|n| n as u64);
    let model = LoadedModel::open_iteration(Path::new(load), iteration, dtype, device, Some(longest))
        .with_context(|| format!("--load {load}"))?;
    if longest > model.config().max_positions {
        tracing_warning(longest, model.config().max_positions);
    }
    Ok(model)
}

fn tracing_warning(longest: usize, made_for: usize) {
    tracing::warn!("the longest prompt has {longest} tokens, the model is made for {made_for}");
}

/// Continues greedily and extracts the answer of the text.
fn generate(
    session: &mut Session<'_>,
    tokenizer: &Tokenizer,
    model: &LoadedModel,
    ids: &[u32],
    new: usize,
) -> Result<(String, Option<String>)> {
    let mut logits = session.prefill(ids)?;
    let mut stop = tokenizer.stop_ids();
    stop.extend(model.config().eos.iter().filter_map(|&id| u32::try_from(id).ok()));
    let mut tokens = Vec::new();
    loop {
        let token = ms_generate::argmax(&logits);
        if stop.contains(&token) {
            break;
        }
        tokens.push(token);
        if tokens.len() == new {
            break;
        }
        logits = session.next(token)?;
    }
    let text = tokenizer.decode(&tokens, true)?;
    let picked = mmlu::extract(&text).map(String::from);
    Ok((text, picked))
}

/// Log-likelihoods as text, and the choice with the largest one.
fn told(log_likelihood: &[f64]) -> (String, Option<String>) {
    let mut best = (f64::NEG_INFINITY, "A");
    let mut listing = Vec::new();
    for (&sum, choice) in log_likelihood.iter().zip(CHOICES) {
        listing.push(format!("{choice} {sum:.4}"));
        if sum > best.0 {
            best = (sum, choice);
        }
    }
    (listing.join(", "), Some(best.1.to_owned()))
}

/// What is compared after a prompt.
const CHOICES: [&str; 4] = ["A", "B", "C", "D"];

/// The log-likelihood of every choice after the prompt: the sum over its tokens.
///
/// # Source
/// lm-evaluation-harness 0.4.13, `lm_eval/api/model.py`, `_encode_pair`: the tokens of a choice are those of the whole text
/// beyond as many as the prompt alone has.
fn choose(session: &mut Session<'_>, tokenizer: &Tokenizer, text: &str, ids: &[u32]) -> Result<Vec<f64>> {
    let mut all = Vec::new();
    for choice in CHOICES {
        let whole = tokenizer.encode_with_special(&format!("{text} {choice}"))?;
        let before = ids.len().min(whole.len() - 1).max(1);
        let mut logits = session.prefill(&whole[..before])?;
        let mut sum = 0.0;
        for (i, &token) in whole[before..].iter().enumerate() {
            ensure!(
                (token as usize) < logits.len(),
                "token {token} of the choice {choice} is not in the model's vocabulary of {}; is this the model's own \
                 tokenizer?",
                logits.len()
            );
            sum += ms_generate::log_softmax(&logits, token as usize);
            if before + i + 1 < whole.len() {
                logits = session.next(token)?;
            }
        }
        all.push(sum);
    }
    Ok(all)
}

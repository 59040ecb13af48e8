//! Running a benchmark: questions, model, answers, score.

use crate::options::{Options, TaskOptions};
use crate::question::{Answer, Question};
use crate::report::{Row, Sample};
use crate::task::Task;
use anyhow::{Context, Result, ensure};
use ms_cli::megatron::{Args, Upstream};
use ms_cli::{Usage, refuse};
use ms_core::DType;
use ms_generate::{LoadedModel, MemoryRequest, Session};
use ms_text::{ChatTemplate, GenerationPrompt, Tokenizer};
use serde_json::json;
use sha2::{Digest, Sha256};
use std::path::Path;

/// The questions of `task`, as the flags want them asked.
fn questions(o: &TaskOptions, task: &Task, version: Upstream) -> Result<Vec<Question>> {
    let dir = o.data.last().or(o.folders.last());
    let dir = dir.ok_or_else(|| Usage("--data-path is required: the folder of the benchmark".into()))?;
    let harness = o.protocol == "harness";
    if o.shots.is_some() && !harness {
        refuse!("--num-fewshot needs --protocol harness");
    }
    task.questions(Path::new(dir), harness, o.shots, o.most.unwrap_or(usize::MAX), version)
}

/// A question in tokens.
struct Encoded {
    /// The prompt.
    ids: Vec<u32>,
    /// The continuations that are compared.
    choices: Vec<Vec<u32>>,
}

/// The tokens of a prompt and of each continuation.
///
/// # Source
/// lm-evaluation-harness 0.4.13, `lm_eval/api/model.py`, `_encode_pair`: white space at the end of a prompt belongs to the
/// continuation, whose tokens are those of the whole text beyond as many as the prompt alone has. A token that begins or
/// ends texts stands for a prompt without tokens (`loglikelihood`, `prefix_token_id`).
///
/// # Errors
/// If a text cannot be encoded, or there is no such token.
fn encode(q: &Question, tokenizer: &Tokenizer, template: Option<&ChatTemplate>) -> Result<Encoded> {
    let Answer::Likeliest { choices, .. } = &q.answer else {
        let ids = match template {
            Some(t) => {
                let turns = json!([{"role": "user", "content": q.prompt}]);
                tokenizer.encode(&t.render(&turns, None, GenerationPrompt::Omit)?)?
            }
            None => tokenizer.encode_with_special(&q.prompt)?,
        };
        return Ok(Encoded { ids, choices: Vec::new() });
    };
    let mut ids = tokenizer.encode_with_special(crate::mmlu::strip_end(&q.prompt))?;
    let choices = choices.iter().map(|choice| {
        let mut whole = tokenizer.encode_with_special(&format!("{} {choice}", q.prompt))?;
        Ok(whole.split_off(ids.len().min(whole.len())))
    });
    let choices = choices.collect::<Result<_>>()?;
    if ids.is_empty() {
        let first = tokenizer.bos().or(tokenizer.eos());
        let none = "its prompt has no tokens, and the tokenizer none that begins or ends texts";
        ids.push(first.context(none)?.id);
    }
    Ok(Encoded { choices, ids })
}

/// Scores one benchmark.
///
/// # Errors
/// If a flag is wrong, or the model, tokenizer or data cannot be read.
pub(crate) fn task(args: &Args, o: &Options, task: &Task, output: Option<&Path>) -> Result<()> {
    let questions = questions(&o.asked, task, args.upstream())?;
    let task = task.name;
    let tokenizer = o.tokenizer.load(o.loading.source.model_folder()?)?;
    let template = match tokenizer.chat_template_source() {
        Some(_) if o.asked.protocol != "harness" && !o.asked.no_chat_template => {
            Some(tokenizer.chat_template()?)
        }
        _ => None,
    };
    let compared = questions.iter().all(|q| matches!(q.answer, Answer::Likeliest { .. }));
    if o.asked.no_chat_template && (compared || tokenizer.chat_template_source().is_none()) {
        tracing::warn!("--no-chat-template has no effect: {task}'s prompts are plain in any case");
    }
    let generates = questions.iter().any(|q| matches!(q.answer, Answer::Extracted(_)));
    if !generates && args.written_flags().any(|(_, flag)| flag == "--max-new-tokens") {
        tracing::warn!("--max-new-tokens has no effect: {task} is scored by likelihood");
    }
    let mut encoded = Vec::new();
    for q in &questions {
        let question = encode(q, &tokenizer, template.as_ref());
        encoded.push(question.with_context(|| format!("question {}", q.id))?);
    }
    let new = o.asked.max_new_tokens;
    let length = |(q, e): (&Question, &Encoded)| {
        let after = match &q.answer {
            Answer::Likeliest { .. } => e.choices.iter().map(Vec::len).max().unwrap_or(0).saturating_sub(1),
            Answer::Extracted(_) => new,
            Answer::YesOrNo => 1,
        };
        e.ids.len() + after
    };
    let lengths: Vec<usize> = questions.iter().zip(&encoded).map(length).collect();
    let longest = lengths.iter().copied().max().unwrap_or(1);
    let model = model(o, longest)?;
    let window = model.config().max_positions;
    let overlong = lengths.iter().filter(|&&n| n > window).count() as u64;
    if overlong > 0 {
        let all = lengths.len();
        tracing::warn!(
            "{overlong} of {all} prompts are longer than the {window} tokens that the model is made for, the longest has {longest}"
        );
    }
    let mut session = Session::new(&model, 1, longest);
    let bar = args.progress().bar(questions.len() as u64, task);
    let mut rows: Vec<Row> = Vec::new();
    let mut samples = Vec::new();
    for (q, e) in questions.into_iter().zip(encoded) {
        let sample = ask(&mut session, &tokenizer, &model, &q, &e, new);
        let sample = sample.with_context(|| format!("question {}", q.id)).map_err(|error| {
            // A window that the flag made is the flag's mistake.
            if o.loading.sets_positions() && window < longest {
                Usage(format!("--max-position-embeddings {window}: {}", ms_cli::said(&error))).into()
            } else {
                error
            }
        })?;
        if rows.last().is_none_or(|r| r.subject != q.subject) {
            rows.push(Row::new(q.subject));
        }
        if let Some(row) = rows.last_mut() {
            row.count(&sample);
        }
        samples.push(sample);
        bar.inc(1);
    }
    bar.finish_and_clear();
    crate::report::write(args, o, task, output, &rows, &samples, overlong)
}

/// Lets the model answer one question.
fn ask(
    session: &mut Session<'_>,
    tokenizer: &Tokenizer,
    model: &LoadedModel,
    q: &Question,
    e: &Encoded,
    new: usize,
) -> Result<Sample> {
    let mut sample = Sample::new(q, format!("{:x}", HexDigest(Sha256::digest(q.prompt.as_bytes()).to_vec())));
    match &q.answer {
        Answer::Extracted(extract) => {
            sample.output = generate(session, tokenizer, model, &e.ids, new)?;
            sample.picked = extract(&sample.output).map(String::from);
        }
        Answer::YesOrNo => {
            let logits = begun(session, &e.ids)?;
            let mut all = [0.0; 2];
            for (sum, word) in all.iter_mut().zip(["No", "Yes"]) {
                let token =
                    *tokenizer.encode(word)?.last().context("the tokenizer has no tokens for Yes and No")?;
                *sum = log_likelihood(&logits, token, word)?;
            }
            sample.output = format!("No {:.4}, Yes {:.4}", all[0], all[1]);
            sample.picked = Some(q.labels[usize::from(all[1] >= all[0])].to_owned());
        }
        Answer::Likeliest { choices, normalised } => {
            let window = model.config().max_positions;
            let mut formed = None;
            for (tokens, choice) in e.choices.iter().zip(choices) {
                sample.log_likelihood.push(continuation(
                    session,
                    &e.ids,
                    &mut formed,
                    tokens,
                    choice,
                    window,
                )?);
            }
            sample.picked = Some(q.labels[greatest(sample.log_likelihood.iter().copied())].to_owned());
            if *normalised {
                let per_character =
                    sample.log_likelihood.iter().zip(choices).map(|(sum, c)| sum / c.chars().count() as f64);
                sample.right_norm = Some(greatest(per_character) == q.gold);
            }
            let told: Vec<String> =
                q.labels.iter().zip(&sample.log_likelihood).map(|(l, sum)| format!("{l} {sum:.4}")).collect();
            sample.output = told.join(", ");
        }
    }
    sample.right = sample.picked.as_deref() == Some(q.labels[q.gold]);
    Ok(sample)
}

/// The first one that no other exceeds.
fn greatest(values: impl Iterator<Item = f64>) -> usize {
    let mut best = (0, f64::NEG_INFINITY);
    for (i, value) in values.enumerate() {
        if value > best.1 {
            best = (i, value);
        }
    }
    best.0
}

struct HexDigest(Vec<u8>);

impl std::fmt::LowerHex for HexDigest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

fn model(o: &Options, longest: usize) -> Result<LoadedModel> {
    let work = MemoryRequest { prompt: longest, new: 0, slots: 1, rows: 0, available: None };
    o.loading.load(DType::Bf16, Some(longest), work, |needs| {
        if needs.cache > needs.weights {
            "--num-fewshot or --max-new-tokens"
        } else {
            "the size of the model, or pass --dtype bf16"
        }
    })
}

/// The logits after `ids`, which become the sequence of the session's one slot.
fn begun(session: &mut Session<'_>, ids: &[u32]) -> Result<Vec<f64>> {
    Ok(session.start(&[(0, ids)])?.swap_remove(0))
}

/// The logits after one more token.
fn continued(session: &mut Session<'_>, token: u32) -> Result<Vec<f64>> {
    Ok(session.next(&[(0, token)])?.swap_remove(0))
}

/// Continues greedily.
fn generate(
    session: &mut Session<'_>,
    tokenizer: &Tokenizer,
    model: &LoadedModel,
    ids: &[u32],
    new: usize,
) -> Result<String> {
    let mut logits = begun(session, ids)?;
    let stop = model.stop_tokens(tokenizer);
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
        logits = continued(session, token)?;
    }
    Ok(tokenizer.decode(&tokens, true)?)
}

/// The log-likelihood of `tokens`, those of `choice`, after the prompt: the sum over them. What does not fit the model's
/// window is left out at the beginning of the prompt, as the harness does. `formed` keeps how much that was, and the logits
/// after the prompt, for the question's next choice: all of them are compared by the same.
fn continuation(
    session: &mut Session<'_>,
    prompt: &[u32],
    formed: &mut Option<(usize, Vec<f64>)>,
    tokens: &[u32],
    choice: &str,
    window: usize,
) -> Result<f64> {
    let Some((last, before)) = tokens.split_last() else { return Ok(0.0) };
    let left_out = (prompt.len() + before.len()).saturating_sub(window);
    ensure!(
        left_out < prompt.len(),
        "the choice {choice:?} alone fills the model's window of {window} tokens"
    );
    let known = formed.as_ref().filter(|(of, _)| *of == left_out).map(|(_, logits)| logits.clone());
    let mut logits = match known {
        Some(logits) if before.is_empty() => logits,
        known => {
            let again = begun(session, &prompt[left_out..])?;
            known.unwrap_or(again)
        }
    };
    *formed = Some((left_out, logits.clone()));
    let mut sum = 0.0;
    for &token in before {
        sum += log_likelihood(&logits, token, choice)?;
        logits = continued(session, token)?;
    }
    Ok(sum + log_likelihood(&logits, *last, choice)?)
}

fn log_likelihood(logits: &[f64], token: u32, choice: &str) -> Result<f64> {
    ensure!(
        (token as usize) < logits.len(),
        "token {token} of the choice {choice} is not in the model's vocabulary of {}; is this the model's own tokenizer?",
        logits.len()
    );
    Ok(ms_generate::log_softmax(logits, token as usize))
}

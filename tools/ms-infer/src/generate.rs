//! `ms-infer generate`: continues a prompt and streams the text.

use crate::setup;
use anyhow::{Context, Result, bail};
use ms_cli::Usage;
use ms_cli::megatron::Args;
use ms_core::DType;
use ms_generate::{Generated, LoadedModel, Sampling, generate};
use ms_text::{Detokenizer, Tokenizer};
use serde_json::json;
use std::io::{IsTerminal, Read, Write};
use std::time::Instant;

/// Continues `--prompt`, or what stands on stdin.
///
/// # Errors
/// If there is no prompt, or the model or tokenizer cannot be read.
pub(crate) fn run(args: &Args) -> Result<()> {
    let prompt = match args.text("prompt") {
        Some("-") | None => read_stdin(args.text("prompt").is_some())?,
        Some(text) => text.to_owned(),
    };
    let (model, tokenizer) = (setup::model(args, DType::Bf16, None)?, setup::tokenizer(args)?);
    let ids = tokenizer.encode_with_special(&prompt)?;
    let json = args.flag("json");
    let start = Instant::now();
    let mut first = None;
    let mut out = std::io::stdout().lock();
    if !json {
        write!(out, "{prompt}")?;
        out.flush()?;
    }
    let (done, text) = stream(args, &model, &tokenizer, ids.clone(), setup::sampling(args)?, |piece| {
        first.get_or_insert_with(|| start.elapsed().as_secs_f64());
        if !json {
            write!(out, "{piece}")?;
            out.flush()?;
        }
        Ok(())
    })?;
    let seconds = start.elapsed().as_secs_f64();
    let rate = done.tokens.len() as f64 / seconds.max(1e-9);
    if json {
        let report = json!({
            "prompt": prompt,
            "text": text,
            "prompt_tokens": ids.len(),
            "tokens": done.tokens,
            "finish": done.finish,
            "log_probability": done.log_probability,
            "seconds_to_first_token": first,
            "tokens_per_second": rate,
        });
        writeln!(out, "{report}")?;
    } else {
        writeln!(out)?;
        drop(out);
        if !args.flag("quiet") {
            eprintln_stats(ids.len(), done.tokens.len(), seconds);
        }
    }
    Ok(())
}

fn eprintln_stats(prompt: usize, new: usize, seconds: f64) {
    let rate = new as f64 / seconds.max(1e-9);
    let _ = writeln!(std::io::stderr(), "{prompt} prompt tokens, {new} new, {rate:.1} tokens/s");
}

fn read_stdin(asked: bool) -> Result<String> {
    if std::io::stdin().is_terminal() && !asked {
        bail!(Usage("--prompt is required (or text on stdin)".into()));
    }
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).context("stdin is not UTF-8 text")?;
    if text.is_empty() {
        bail!(Usage("the prompt on stdin is empty".into()));
    }
    Ok(text)
}

/// Generates for one prompt and hands out text as soon as it is whole.
pub(crate) fn stream(
    args: &Args,
    model: &LoadedModel,
    tokenizer: &Tokenizer,
    ids: Vec<u32>,
    rule: Sampling,
    mut show: impl FnMut(&str) -> Result<()>,
) -> Result<(Generated, String)> {
    let limits = setup::limits(args, model, tokenizer);
    let mut pieces = Detokenizer::new(tokenizer, true);
    let (mut text, mut failed) = (String::new(), None);
    let mut done = generate(model, &[ids], rule, &limits, |_, token| {
        if limits.stop_tokens.contains(&token) {
            return true;
        }
        let shown = pieces.push(token).map_err(Into::into).and_then(|piece| match piece {
            Some(piece) => {
                text.push_str(&piece);
                show(&piece)
            }
            None => Ok(()),
        });
        failed = shown.err();
        failed.is_none()
    })?;
    if let Some(e) = failed {
        return Err(e);
    }
    if let Some(rest) = pieces.finish()? {
        text.push_str(&rest);
        show(&rest)?;
    }
    Ok((done.swap_remove(0), text))
}

/// The continuation of `prompt`, without streaming.
pub(crate) fn complete(args: &Args, prompt: &str, rule: Sampling) -> Result<String> {
    let (model, tokenizer) = (setup::model(args, DType::Bf16, None)?, setup::tokenizer(args)?);
    let ids = tokenizer.encode_with_special(prompt)?;
    Ok(stream(args, &model, &tokenizer, ids, rule, |_| Ok(()))?.1)
}

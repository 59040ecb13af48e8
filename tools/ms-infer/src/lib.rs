//! `ms-infer` runs a model: `generate` continues a prompt, `chat` holds a conversation, `logits` writes the logits of
//! ready token ids. Without one of these words it takes the arguments of upstream's `inference.py`.

mod chat;
mod generate;
mod logits;
mod setup;

use anyhow::{Context, Result, bail};
use ms_cli::Usage;
use ms_cli::megatron::{Args, Program, answer, parse_or_exit};
use ms_generate::Sampling;
use std::ffi::OsString;
use std::io::Write;
use std::path::Path;

const ABOUT: &str = "Runs a model: a Hugging Face folder, a Megatron checkpoint or a checkpoint of ms-train.

  ms-infer generate --load qwen3-0.6b --prompt 'Once upon a time' --max-new-tokens 64
  ms-infer chat     --load qwen3-0.6b --hf-chat-template
  ms-infer logits   --load qwen3-0.6b --input ids.safetensors --output logits.safetensors

Without one of these words: the arguments of upstream's inference.py, with --task greedy, do_sample or chat.";

/// The program.
///
/// # Errors
/// If a flag is wrong, or the model, tokenizer or input cannot be read.
pub fn main() -> Result<()> {
    let mut argv: Vec<OsString> = std::env::args_os().skip(1).collect();
    answer(Program::Infer, "ms-infer", ABOUT, &argv)?;
    let command =
        argv.first().and_then(|w| w.to_str()).filter(|w| !w.starts_with('-')).map(ToOwned::to_owned);
    if command.is_some() {
        argv.remove(0);
    }
    let mut args = parse_or_exit(Program::Infer, "ms-infer", ABOUT, &argv)?;
    if let Some(path) = args.text("config").map(ToOwned::to_owned) {
        let text = std::fs::read_to_string(&path).with_context(|| format!("--config {path}"))?;
        args.layer_toml(&text, Path::new(&path))?;
    }
    args.check()?;
    args.start_logging();
    match command.as_deref() {
        Some("generate") => generate::run(&args),
        Some("chat") => chat::run(&args),
        Some("logits") => logits::run(&args),
        Some(other) => bail!(Usage(format!("expected generate, chat or logits, found {other:?}"))),
        None => tasks(&args),
    }
}

/// The tasks of upstream's `inference.py`, in the order given.
fn tasks(args: &Args) -> Result<()> {
    let names = args.list("task");
    if names.is_empty() {
        bail!(Usage("expected generate, chat or logits, or upstream's --task".into()));
    }
    for name in names {
        match name.as_str() {
            "greedy" | "greedy_search" => task(args, "greedy", Sampling::GREEDY)?,
            "do_sample" | "greedy_search_with_sampling" => {
                task(args, "do_sample", setup::sampling(args)?)?;
            }
            "chat" => chat::run(args)?,
            "beam_search" | "beam_search_with_sampling" => {
                bail!("--task {name}: beam search is not part of this version; use greedy or do_sample");
            }
            other => bail!(Usage(format!("--task: expected greedy, do_sample or chat, found {other:?}"))),
        }
    }
    Ok(())
}

/// Upstream's demonstration: a fixed prompt, a banner, the text, the seconds.
fn task(args: &Args, name: &str, rule: Sampling) -> Result<()> {
    let prompts = args.list("prompt");
    let prompt = prompts.first().map_or("how are you?", String::as_str);
    let start = std::time::Instant::now();
    let text = generate::complete(args, prompt, rule)?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "============== {name} ==============\n\nYou:\n{prompt}\n\nModel:\n{text}")?;
    writeln!(out, "\nElapsed: {:.2}s", start.elapsed().as_secs_f64())?;
    Ok(())
}

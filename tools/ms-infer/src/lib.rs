//! `ms-infer` runs a model: `generate` continues a prompt, `chat` holds a conversation, `logits` writes the logits of given
//! token ids. Without one of these commands it takes the arguments of upstream's `inference.py`.

#[macro_use]
#[path = "../../../crates/ms-cli/src/megatron/macros.rs"]
mod macros;

mod chat;
mod commands;
mod generate;
mod logits;
mod options;
mod reads;
mod setup;
mod task;

use anyhow::{Result, bail};
use commands::Command;
use ms_cli::megatron::{Args, ConfigFile, Line, Program, begin};
use ms_cli::refuse;
use ms_generate::Sampling;
use options::Options;
use std::sync::OnceLock;

const ABOUT: &str = "Runs a model: a Hugging Face folder, a Megatron checkpoint or a checkpoint of ms-train.

  ms-infer generate --load qwen3-0.6b --prompt 'Once upon a time' --max-new-tokens 64
  ms-infer chat     --load qwen3-0.6b --hf-chat-template
  ms-infer logits   --load qwen3-0.6b --input ids.safetensors --output logits.safetensors

A text ends at a token that generation_config.json, config.json or the tokenizer names as its end, unless --ignore-eos is given;
nothing else is read from generation_config.json. The random generator is reset to --seed for every prompt and chat turn.

Without one of these words: the arguments of upstream's inference.py, with --task greedy, do_sample or chat, or all three.";

/// The command line.
pub fn line() -> &'static Line {
    static LINE: OnceLock<Line> = OnceLock::new();
    LINE.get_or_init(|| {
        Line::new::<(ConfigFile, Options)>(Program::Infer, "ms-infer", ABOUT).with_help(&[(
            "--dtype",
            "element type to compute in (default: bf16 for generate and chat, fp32 for logits); fp64 uses the slow reference device",
        )])
    })
}

/// The commands, of which a line has one or none.
const COMMANDS: [&str; 3] = ["generate", "chat", "logits"];

/// The program.
///
/// # Errors
/// If a flag is wrong, or the model, tokenizer or input cannot be read.
pub fn main() -> Result<()> {
    let Some((words, args)) = begin(line(), 1, |word| COMMANDS.contains(&word))? else { return Ok(()) };
    let command = words.first().map(String::as_str);
    let o: Options = args.read()?;
    if let (Some(word), false) = (command, o.generation.tasks.is_empty()) {
        refuse!("--task: cannot be combined with the command {word}");
    }
    let reads = |command| reads::check(&args, &o, &[command]);
    match command {
        Some("generate") => reads(Command::Generate).and_then(|()| generate::run(&args, &o)),
        Some("chat") => reads(Command::Chat).and_then(|()| chat::run(&args, &o, chat::Unnamed::Own)),
        Some("logits") => reads(Command::Logits).and_then(|()| logits::run(&args, &o)),
        Some(other) => refuse!("expected generate, chat or logits, found {other:?}"),
        None => tasks(&args, &o),
    }
}

/// The tasks of upstream's `inference.py`, in the order given.
fn tasks(args: &Args, o: &Options) -> Result<()> {
    let mut names = o.generation.tasks.clone();
    if names.is_empty() && args.written_flags().next().is_none() {
        refuse!("expected generate, chat or logits, or the arguments of upstream's inference.py");
    }
    if names.is_empty() {
        // Upstream does all that it knows; beam search is not part of this version.
        tracing::warn!(
            "without --task: greedy, do_sample and chat; upstream's two beam searches are left out"
        );
        names.extend(["greedy", "do_sample", "chat"].map(str::to_owned));
    }
    let commands = names.iter().map(|name| of_task(name)).collect::<Result<Vec<_>>>()?;
    reads::check(args, o, &commands)?;
    for command in commands {
        match command {
            Command::Chat => chat::run(args, o, chat::Unnamed::Plain)?,
            Command::Sample => task::run(o, "do_sample", o.sampling.rule()?)?,
            _ => task::run(o, "greedy", Sampling::GREEDY)?,
        }
    }
    Ok(())
}

/// What a name of upstream's asks for.
fn of_task(name: &str) -> Result<Command> {
    match name {
        "greedy" | "greedy_search" => Ok(Command::Greedy),
        "do_sample" | "greedy_search_with_sampling" => Ok(Command::Sample),
        "chat" => Ok(Command::Chat),
        "beam_search" | "beam_search_with_sampling" => {
            bail!("--task {name}: beam search is not part of this version; use greedy or do_sample")
        }
        other => refuse!("--task: expected greedy, do_sample or chat, found {other:?}"),
    }
}

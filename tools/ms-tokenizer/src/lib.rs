//! The implementation of `ms-tokenizer`.

mod cli;
mod compare;
mod train;

use anyhow::{Context, Result};
use cli::{Cli, Command, Decode, Encode};
use ms_cli::refuse;
use ms_text::Tokenizer;
use serde_json::json;
use std::io::{BufRead, IsTerminal, Read, Write};
use std::path::Path;

/// The command line, for the reference page.
pub fn command() -> clap::Command {
    <cli::Cli as clap::CommandFactory>::command()
}

/// Parses the command line and does what it says.
///
/// # Errors
/// What went wrong; [`ms_cli::Usage`] for a command line that makes no sense.
pub fn run(interrupt: &ms_cli::Interrupt) -> Result<()> {
    let cli: Cli = ms_cli::parse()?;
    cli.common.start_logging();
    match &cli.command {
        Command::Train(args) => train::run(args, &cli.common, interrupt),
        Command::Encode(args) => encode(args, cli.common.json),
        Command::Decode(args) => decode(args, cli.common.json),
        Command::Info(args) => info(&args.tokenizer, cli.common.json),
        Command::Compare(args) => compare::run(args, &cli.common),
    }
}

fn encode(args: &Encode, json: bool) -> Result<()> {
    let tokenizer = Tokenizer::load_kept(&args.folder.tokenizer, ms_cli::tokenizer_cache().as_deref())?;
    let mut input: Box<dyn BufRead> = match args.file.as_deref().filter(|path| *path != Path::new("-")) {
        Some(path) => {
            let file = std::fs::File::open(path).with_context(|| path.display().to_string())?;
            Box::new(std::io::BufReader::new(file))
        }
        None => {
            // A person at a terminal may type; a program that forgot its input would wait forever.
            if args.file.is_none() && std::io::stdin().is_terminal() {
                refuse!("no text: name a file, or pipe text in");
            }
            Box::new(std::io::stdin().lock())
        }
    };
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let mut put = |text: &str| -> Result<()> {
        let ids = if args.special { tokenizer.encode_with_special(text)? } else { tokenizer.encode(text)? };
        if json {
            writeln!(out, "{}", json!({"ids": ids}))?;
        } else {
            let words: Vec<String> = ids.iter().map(u32::to_string).collect();
            writeln!(out, "{}", words.join(" "))?;
        }
        Ok(())
    };
    if args.lines {
        for line in input.lines() {
            put(&line.context("the text")?)?;
        }
    } else {
        let mut text = String::new();
        input.read_to_string(&mut text).context("the text")?;
        put(&text)?;
    }
    Ok(out.flush()?)
}

fn decode(args: &Decode, json: bool) -> Result<()> {
    let tokenizer = Tokenizer::load_kept(&args.folder.tokenizer, ms_cli::tokenizer_cache().as_deref())?;
    let mut ids: Vec<u32> = args.ids.iter().copied().flatten().collect();
    let asked = ids.len() < args.ids.len();
    if asked && args.ids.len() > 1 {
        refuse!("-: expected it alone, or ids without it");
    }
    if ids.is_empty() {
        if !asked && std::io::stdin().is_terminal() {
            refuse!("no ids: name them, or pipe them in");
        }
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).context("the ids")?;
        for word in
            text.split(|c: char| c.is_whitespace() || ",[]".contains(c)).filter(|word| !word.is_empty())
        {
            ids.push(word.parse().with_context(|| format!("{word:?} is not an id"))?);
        }
    }
    if let Some(id) = ids.iter().find(|id| tokenizer.id_to_token(**id).is_none()) {
        anyhow::bail!("id {id} is not in the vocabulary of {}", tokenizer.vocab_size());
    }
    let text = tokenizer.decode(&ids, args.skip_special)?;
    let mut out = std::io::stdout().lock();
    if json {
        writeln!(out, "{}", json!({"text": text}))?;
    } else {
        writeln!(out, "{text}")?;
    }
    Ok(())
}

fn info(dir: &Path, json: bool) -> Result<()> {
    let tokenizer = Tokenizer::load_kept(dir, ms_cli::tokenizer_cache().as_deref())?;
    let token = |token: Option<&ms_text::SpecialToken>| token.map(|t| json!({"text": t.text, "id": t.id}));
    let value = json!({
        "path": dir.display().to_string(),
        "vocab_size": tokenizer.vocab_size(),
        "engine": tokenizer.engine_name()?,
        "bos": token(tokenizer.bos()),
        "eos": token(tokenizer.eos()),
        "pad": token(tokenizer.pad()),
        "unk": token(tokenizer.unk()),
        "chat_template": tokenizer.chat_template_source().is_some(),
        "sha256": tokenizer.content_hash(),
    });
    let mut out = std::io::stdout().lock();
    if json {
        writeln!(out, "{value}")?;
        return Ok(());
    }
    for (key, value) in value.as_object().into_iter().flatten() {
        let text = match value {
            serde_json::Value::Object(token) => {
                format!("{} ({})", token["id"], token["text"].as_str().unwrap_or(""))
            }
            serde_json::Value::String(text) => text.clone(),
            serde_json::Value::Null => "-".into(),
            other => other.to_string(),
        };
        writeln!(out, "{key:14} {text}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    #[test]
    fn the_definition_is_sound() {
        super::Cli::command().debug_assert();
    }
}

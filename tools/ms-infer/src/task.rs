//! `--task greedy` and `do_sample` of upstream's `inference.py`: one prompt, answered.

use crate::options::Options;
use crate::setup::{self, Ask};
use crate::{chat, generate};
use anyhow::Result;
use ms_cli::refuse;
use ms_core::DType;
use ms_generate::{Sampling, Session};
use std::io::Write;

/// Upstream's demonstration: a fixed prompt, a banner, the text, the seconds.
///
/// # Errors
/// If a flag is wrong, or the model, tokenizer or template cannot be read.
pub(crate) fn run(o: &Options, name: &str, rule: Sampling) -> Result<()> {
    let prompts = generate::prompts(o)?;
    let prompt = match &prompts[..] {
        [] => "how are you?",
        [prompt] => prompt,
        several => refuse!("--prompt: {name} answers one, found {}", several.len()),
    };
    let start = std::time::Instant::now();
    let mut tokenizer = setup::tokenizer(o)?;
    let ids = chat::question(o, &mut tokenizer, prompt)?;
    if ids.is_empty() {
        refuse!("--prompt: it has no tokens; a model needs at least one to continue from");
    }
    let model = setup::model(o, DType::Bf16, Ask::Continue(ids.len(), 1))?;
    setup::fits(&model, &ids)?;
    let mut session = Session::new(&model, 1, 1);
    let (_, text) = generate::stream(o, &mut session, &tokenizer, ids, rule, |_| Ok(()))?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "============== {name} ==============\n\nYou:\n{prompt}\n\nModel:\n{text}")?;
    writeln!(out, "\nElapsed: {:.2}s", start.elapsed().as_secs_f64())?;
    Ok(())
}

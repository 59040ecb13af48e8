//! `--task greedy` and `do_sample` of upstream's `inference.py`: one prompt, answered.

use crate::options::Options;
use crate::setup::{self, Ask};
use crate::{chat, generate};
use anyhow::Result;
use ms_core::DType;
use ms_generate::{Sampling, Session};
use std::io::Write;

/// Upstream's demonstration: a fixed prompt, a banner, the text, the seconds.
///
/// # Errors
/// If a flag is wrong, or the model, tokenizer or template cannot be read.
pub(crate) fn run(o: &Options, name: &str, rule: Sampling) -> Result<()> {
    let prompt = o.asked.prompts.first().map_or("how are you?", String::as_str);
    let start = std::time::Instant::now();
    let mut tokenizer = setup::tokenizer(o)?;
    let ids = chat::question(o, &mut tokenizer, prompt)?;
    let model = setup::model(o, DType::Bf16, Ask::Continue(ids.len()))?;
    let mut session = Session::new(&model, 1, 1);
    let (_, text) = generate::stream(o, &mut session, &tokenizer, ids, rule, |_| Ok(()))?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "============== {name} ==============\n\nYou:\n{prompt}\n\nModel:\n{text}")?;
    writeln!(out, "\nElapsed: {:.2}s", start.elapsed().as_secs_f64())?;
    Ok(())
}

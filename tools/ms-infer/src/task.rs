//! `--task greedy`, `do_sample` and both beam searches of upstream's `inference.py`: one prompt, answered.

use crate::options::Options;
use crate::setup::{self, Ask};
use crate::{chat, generate};
use anyhow::Result;
use ms_cli::refuse;
use ms_core::DType;
use ms_generate::{BeamSearch, Sampling, Session, beam_search};
use std::io::Write;

/// How an answer is made.
#[derive(Clone, Copy)]
pub(crate) enum Way {
    /// A token after the other.
    Tokens(Sampling),
    /// By beams.
    Beams(BeamSearch),
}

impl Way {
    /// Upstream's two beams, which are drawn unless `rule` takes the likeliest token.
    pub(crate) fn beams(rule: Sampling) -> Self {
        Self::Beams(BeamSearch { beams: 2, length_penalty: 1.0, drawn: true, rule })
    }
}

/// Upstream's demonstration: a fixed prompt, a banner, the text, the seconds.
///
/// # Errors
/// If a flag is wrong, or the model, tokenizer or template cannot be read.
pub(crate) fn run(o: &Options, name: &str, way: Way) -> Result<()> {
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
    let slots = if let Way::Beams(search) = way { search.beams } else { 1 };
    let model = setup::model(o, DType::Bf16, Ask::Continue(ids.len(), slots))?;
    setup::fits(&model, &ids)?;
    let text = match way {
        Way::Tokens(rule) => {
            let mut session = Session::new(&model, 1, 1);
            generate::stream(o, &mut session, &tokenizer, ids, rule, |_| Ok(()))?.1
        }
        Way::Beams(search) => {
            let limits = setup::limits(o, &model, &tokenizer);
            let found = beam_search(&model, &ids, &search, &limits)?;
            generate::text_of(o, &tokenizer, &found.tokens, &limits.stop_tokens)?
        }
    };
    let mut out = std::io::stdout().lock();
    writeln!(out, "============== {name} ==============\n\nYou:\n{prompt}\n\nModel:\n{text}")?;
    writeln!(out, "\nElapsed: {:.2}s", start.elapsed().as_secs_f64())?;
    Ok(())
}

//! `ms-infer generate`: continues a prompt and streams the text.

use crate::options::Options;
use crate::setup::{self, Ask};
use anyhow::{Context, Result};
use ms_cli::megatron::Args;
use ms_cli::refuse;
use ms_core::DType;
use ms_generate::{Finish, Generated, Sampling, Session, resume};
use ms_text::{Detokenizer, Tokenizer};
use serde_json::json;
use std::io::{IsTerminal, Read, Write};
use std::time::Instant;

/// Continues every `--prompt`, or what stands on stdin.
///
/// # Errors
/// If there is no prompt, a flag is wrong, or the model or tokenizer cannot be read; nothing is printed then.
pub(crate) fn run(args: &Args, o: &Options) -> Result<()> {
    let rule = o.sampling.rule()?;
    let mut prompts = prompts(o)?;
    if prompts.is_empty() {
        prompts.push(read_stdin(false)?);
    }
    o.loading.source.model_folder()?;
    let tokenizer = setup::tokenizer(o)?;
    let ids = prompts.iter().map(|p| tokenizer.encode_with_special(p)).collect::<Result<Vec<_>, _>>()?;
    if ids.iter().any(Vec::is_empty) {
        refuse!("--prompt: it has no tokens; a model needs at least one to continue from");
    }
    let longest = ids.iter().map(Vec::len).max().unwrap_or(0);
    let model = setup::model(o, DType::Bf16, Ask::Continue(longest))?;
    ids.iter().try_for_each(|ids| setup::fits(&model, ids))?;
    let window = model.model.max_position();
    let most = setup::limits(o, &model, &tokenizer).max_new_tokens;
    let mut session = Session::new(&model, 1, longest.saturating_add(most).min(window));
    for (prompt, ids) in prompts.iter().zip(ids) {
        one(args, o, &mut session, &tokenizer, prompt, &ids, rule)?;
    }
    Ok(())
}

/// Continues one prompt.
fn one(
    args: &Args,
    o: &Options,
    session: &mut Session<'_>,
    tokenizer: &Tokenizer,
    prompt: &str,
    ids: &[u32],
    rule: Sampling,
) -> Result<()> {
    let json = args.json();
    let start = Instant::now();
    let mut first = None;
    let mut out = std::io::stdout().lock();
    if !json && !o.asked.no_echo {
        write!(out, "{prompt}")?;
        out.flush()?;
    }
    // Behind an echo the text goes on; alone it is one of its own.
    let shown = if !json && !o.asked.no_echo { ids } else { &[] };
    let (done, text) = stream(o, session, tokenizer, ids.to_vec(), shown, rule, |piece| {
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
        if !args.quiet() {
            let (prompt, new) = (ids.len(), done.tokens.len());
            args.say_aside(&format!("{prompt} prompt tokens, {new} new, {rate:.1} tokens/s"));
        }
    }
    Ok(())
}

/// The prompts that were asked for; `-` is what stands on stdin.
pub(crate) fn prompts(o: &Options) -> Result<Vec<String>> {
    let read = |p: &String| if p == "-" { read_stdin(true) } else { Ok(p.clone()) };
    o.asked.prompts.iter().map(read).collect()
}

fn read_stdin(asked: bool) -> Result<String> {
    if std::io::stdin().is_terminal() && !asked {
        refuse!("--prompt is required (or text on stdin)");
    }
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).context("stdin is not UTF-8 text")?;
    if text.is_empty() {
        refuse!("the prompt on stdin is empty");
    }
    Ok(text)
}

/// Generates for one prompt in the session's first slot and hands out text as soon as it is whole; `behind` are the tokens whose
/// text it stands behind.
pub(crate) fn stream(
    o: &Options,
    session: &mut Session<'_>,
    tokenizer: &Tokenizer,
    ids: Vec<u32>,
    behind: &[u32],
    rule: Sampling,
    mut show: impl FnMut(&str) -> Result<()>,
) -> Result<(Generated, String)> {
    let limits = setup::limits(o, session.model(), tokenizer);
    let mut pieces = Detokenizer::behind(tokenizer, true, behind);
    let mut stops = StopTexts::new(o.asked.stops.clone());
    let mut failed = None;
    let mut done = resume(session, &[ids], rule, &limits, |_, token| {
        if limits.stop_tokens.contains(&token) {
            return true;
        }
        let shown = pieces.push(token).map_err(Into::into).and_then(|piece| match piece {
            Some(piece) => show(stops.push(&piece)),
            None => Ok(()),
        });
        failed = shown.err();
        failed.is_none() && !stops.found
    })?;
    if let Some(e) = failed {
        return Err(e);
    }
    if let Some(rest) = pieces.finish()?.filter(|_| !stops.found) {
        show(stops.push(&rest))?;
    }
    show(stops.rest())?;
    let mut done = done.swap_remove(0);
    if stops.found {
        done.finish = Finish::Stop;
    }
    Ok((done, stops.text))
}

/// A text that grows until one of some texts occurs in it.
struct StopTexts {
    stops: Vec<String>,
    text: String,
    /// Bytes that were handed out.
    shown: usize,
    found: bool,
}

impl StopTexts {
    fn new(stops: Vec<String>) -> Self {
        let stops = stops.into_iter().filter(|stop| !stop.is_empty()).collect();
        Self { stops, text: String::new(), shown: 0, found: false }
    }

    /// Takes more text; what of the whole can be shown now. What may be the beginning of a stop text waits.
    fn push(&mut self, piece: &str) -> &str {
        self.text.push_str(piece);
        let hidden = &self.text[self.shown..];
        if let Some(at) = self.stops.iter().filter_map(|stop| hidden.find(stop.as_str())).min() {
            self.text.truncate(self.shown + at);
            self.found = true;
        }
        let hidden = &self.text[self.shown..];
        let waits = |stop: &String| {
            let begins = |n: &usize| hidden.ends_with(&stop[..*n]);
            (1..stop.len()).filter(|&n| stop.is_char_boundary(n)).filter(begins).max().unwrap_or(0)
        };
        let held = if self.found { 0 } else { self.stops.iter().map(waits).max().unwrap_or(0) };
        let (from, to) = (self.shown, self.text.len() - held);
        self.shown = to;
        &self.text[from..to]
    }

    /// What still waits at the end.
    fn rest(&mut self) -> &str {
        let from = self.shown;
        self.shown = self.text.len();
        &self.text[from..]
    }
}

#[cfg(test)]
mod tests {
    use super::StopTexts;

    #[test]
    fn a_stop_text_ends_a_text_wherever_its_pieces_end() {
        let run = |stops: &[&str], pieces: &[&str]| {
            let mut state = StopTexts::new(stops.iter().map(|&s| s.to_owned()).collect());
            let mut shown = String::new();
            for piece in pieces {
                shown.push_str(state.push(piece));
                if state.found {
                    break;
                }
            }
            shown.push_str(state.rest());
            assert_eq!(shown, state.text);
            (shown, state.found)
        };
        assert_eq!(run(&["END"], &["ab", "cE", "N", "Dx", "y"]), ("abc".into(), true));
        assert_eq!(run(&["END"], &["abE", "N", "d"]), ("abENd".into(), false));
        assert_eq!(run(&["x", "bc"], &["abcx"]), ("a".into(), true));
        assert_eq!(run(&["ä!"], &["aä", "ä", "!"]), ("aä".into(), true));
        assert_eq!(run(&[""], &["a"]), ("a".into(), false));
    }
}

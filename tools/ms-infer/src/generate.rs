//! `ms-infer generate`: continues prompts and streams the text.

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
    let asked = o.generation.at_once.min(ids.len());
    let model = setup::model(o, DType::Bf16, Ask::Continue(longest, asked))?;
    ids.iter().try_for_each(|ids| setup::fits(&model, ids))?;
    let window = model.model.max_position();
    let most = setup::limits(o, &model, &tokenizer).max_new_tokens;
    let alike = model.is_alike_beside_others();
    if asked > 1 && !alike {
        tracing::warn!(
            "--prompts-at-once: experts and weights of eight bits round otherwise beside other prompts; they go one after the other"
        );
    }
    let slots = if alike { asked } else { 1 };
    let mut session = Session::new(&model, slots, longest.saturating_add(most).min(window));
    for (prompts, ids) in prompts.chunks(slots).zip(ids.chunks(slots)) {
        session.forget();
        some(args, o, &mut session, &tokenizer, prompts, ids, rule)?;
    }
    Ok(())
}

/// Continues some prompts side by side. The first one's text is shown as it comes, those of others when all are done.
fn some(
    args: &Args,
    o: &Options,
    session: &mut Session<'_>,
    tokenizer: &Tokenizer,
    prompts: &[String],
    ids: &[Vec<u32>],
    rule: Sampling,
) -> Result<()> {
    let json = args.json();
    let start = Instant::now();
    let mut first = vec![None; ids.len()];
    let echoed = !json && !o.generation.no_echo;
    let echo = |i: usize| if echoed { prompts[i].as_str() } else { "" };
    say(echo(0))?;
    let done = several(o, session, tokenizer, ids, echoed, rule, |i, piece| {
        first[i].get_or_insert_with(|| start.elapsed().as_secs_f64());
        if i > 0 || json { Ok(()) } else { say(piece) }
    })?;
    let seconds = start.elapsed().as_secs_f64();
    for (i, (done, text)) in done.into_iter().enumerate() {
        let rate = done.tokens.len() as f64 / seconds.max(1e-9);
        if json {
            let report = json!({
                "prompt": prompts[i],
                "text": text,
                "prompt_tokens": ids[i].len(),
                "tokens": done.tokens,
                "finish": done.finish,
                "log_probability": done.log_probability,
                "seconds_to_first_token": first[i],
                "tokens_per_second": rate,
            });
            say(&format!("{report}\n"))?;
            continue;
        }
        say(&if i > 0 { format!("{}{text}\n", echo(i)) } else { "\n".to_owned() })?;
        if !args.quiet() {
            let (prompt, new) = (ids[i].len(), done.tokens.len());
            args.say_aside(&format!("{prompt} prompt tokens, {new} new, {rate:.1} tokens/s"));
        }
    }
    Ok(())
}

/// The requested prompts; `-` reads stdin.
pub(crate) fn prompts(o: &Options) -> Result<Vec<String>> {
    let read = |p: &String| if p == "-" { read_stdin(true) } else { Ok(p.clone()) };
    o.generation.prompts.iter().map(read).collect()
}

/// Prints a text at once.
pub(crate) fn say(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    write!(out, "{text}")?;
    Ok(out.flush()?)
}

/// Bytes of a prompt on standard input, which may have no end.
const MOST_BYTES: u64 = 1 << 30;

fn read_stdin(asked: bool) -> Result<String> {
    if std::io::stdin().is_terminal() && !asked {
        refuse!("--prompt is required (or text on stdin)");
    }
    prompt_of(std::io::stdin(), MOST_BYTES)
}

fn prompt_of(input: impl Read, most: u64) -> Result<String> {
    let mut bytes = Vec::new();
    input.take(most + 1).read_to_end(&mut bytes).context("cannot read stdin")?;
    if bytes.len() as u64 > most {
        refuse!("the prompt on stdin is longer than {most} bytes");
    }
    if bytes.is_empty() {
        refuse!("the prompt on stdin is empty");
    }
    String::from_utf8(bytes).context("stdin is not UTF-8 text")
}

/// Generates for one prompt in the session's first slot and hands out text as soon as it is whole.
pub(crate) fn stream(
    o: &Options,
    session: &mut Session<'_>,
    tokenizer: &Tokenizer,
    ids: Vec<u32>,
    rule: Sampling,
    mut show: impl FnMut(&str) -> Result<()>,
) -> Result<(Generated, String)> {
    let mut done = several(o, session, tokenizer, &[ids], false, rule, |_, piece| show(piece))?;
    Ok(done.swap_remove(0))
}

/// As [`stream`], prompt `i` in slot `i`; `echoed`: texts follow their prompts.
fn several(
    o: &Options,
    session: &mut Session<'_>,
    tokenizer: &Tokenizer,
    ids: &[Vec<u32>],
    echoed: bool,
    rule: Sampling,
    mut show: impl FnMut(usize, &str) -> Result<()>,
) -> Result<Vec<(Generated, String)>> {
    let limits = setup::limits(o, session.model(), tokenizer);
    // Behind an echo the text goes on; alone it is one of its own.
    let text = |ids: &Vec<u32>| {
        let pieces = Detokenizer::behind(tokenizer, true, if echoed { &ids[..] } else { &[] });
        (pieces, StopTexts::new(o.generation.stops.clone()))
    };
    let mut texts: Vec<_> = ids.iter().map(text).collect();
    let mut failed = None;
    let done = resume(session, ids, rule, &limits, |i, token| {
        if limits.stop_tokens.contains(&token) {
            return true;
        }
        let (pieces, stops) = &mut texts[i];
        let shown = pieces.push(token).map_err(Into::into).and_then(|piece| match piece {
            Some(piece) => show(i, stops.push(&piece)),
            None => Ok(()),
        });
        failed = failed.take().or(shown.err());
        failed.is_none() && !stops.found
    })?;
    if let Some(e) = failed {
        return Err(e);
    }
    let whole = |(i, (mut done, (pieces, mut stops))): (usize, (Generated, (Detokenizer<'_>, StopTexts)))| {
        if let Some(rest) = pieces.finish()?.filter(|_| !stops.found) {
            show(i, stops.push(&rest))?;
        }
        show(i, stops.rest())?;
        if stops.found {
            done.finish = Finish::Stop;
        }
        Ok((done, stops.text))
    };
    done.into_iter().zip(texts).enumerate().map(whole).collect()
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
    use super::{StopTexts, prompt_of};

    #[test]
    fn a_prompt_that_is_too_long_is_so_wherever_it_is_cut() {
        let prompt = |text: &[u8]| prompt_of(text, 3).map_err(|e| e.to_string());
        assert_eq!(prompt("aé".as_bytes()), Ok("aé".into()));
        for (text, found) in
            [(&b"aa\xc3\xa9"[..], "longer than 3 bytes"), (b"", "empty"), (b"a\xc3", "not UTF-8")]
        {
            let error = prompt(text).unwrap_err();
            assert!(error.contains(found), "{error}");
        }
    }

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

//! `ms-infer chat`: a conversation, one user turn per line.

use crate::generate::say;
use crate::options::Options;
use crate::{generate, setup};
use anyhow::{Context, Result};
use ms_cli::megatron::Args;
use ms_cli::{Usage, refuse};
use ms_core::DType;
use ms_generate::Session;
use ms_text::template::{Message, Role, Template};
use ms_text::{ChatTemplate, Detokenizer, GenerationPrompt, Tokenizer};
use serde_json::{Value, json};
use std::io::{BufRead, IsTerminal, Lines, StdinLock};
use std::path::Path;

/// Tokens that a conversation has room for at first; more is made when it is wanted.
const ROOM: usize = 1024;

/// How turns become a prompt.
enum Form {
    /// The tokenizer's own chat template (`--hf-chat-template`, or neither flag).
    Hf(ChatTemplate),
    /// A prompt template of MindSpeed-LLM (`--prompt-type`).
    Prompt(Template),
    /// Questions and answers as they stand, one after the other.
    Plain,
}

/// Turns that upstream keeps of a conversation without a template: the first ones, and the one that is asked.
///
/// # Source
/// MindSpeed-LLM v2.0.0, `inference/infer_base.py`, `chat_print_and_update_histories`, which pops the newest.
const PLAIN_TURNS: usize = 3;

/// What a line of a conversation asks for.
#[derive(Debug, PartialEq)]
enum Line<'a> {
    Nothing,
    Exit,
    Reset,
    System(&'a str),
    Save(&'a str),
    Turn(&'a str),
}

impl<'a> Line<'a> {
    /// Commands begin with a slash; upstream's words for ending and for a new conversation work too. A turn is the line as it
    /// stands.
    fn read(line: &'a str) -> Result<Self, Usage> {
        let words = line.trim();
        let (word, rest) = words.split_once(char::is_whitespace).unwrap_or((words, ""));
        Ok(match (word, rest.trim()) {
            ("", _) => Self::Nothing,
            ("q" | "quit" | "exit" | "/exit" | "/quit", "") => Self::Exit,
            ("clear" | "new" | "/reset", "") => Self::Reset,
            ("/system", text) => Self::System(text),
            ("/save", "") => refuse!("/save: expected the name of a file"),
            ("/save", file) => Self::Save(file),
            (command, _) if is_command(command) => {
                refuse!("{command}: expected /exit, /reset, /system TEXT or /save FILE");
            }
            _ => Self::Turn(line),
        })
    }
}

/// Whether a word looks like a command and not like a path.
fn is_command(word: &str) -> bool {
    let name = word.strip_prefix('/');
    name.is_some_and(|name| !name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase()))
}

/// Which turns a conversation without a named template has.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Unnamed {
    /// Those of the tokenizer's own chat template.
    Own,
    /// None, as in upstream's `--task chat`.
    Plain,
}

/// What has been said.
#[derive(Default)]
struct Conversation {
    system: Option<Value>,
    /// The turns that prompts still have.
    history: Vec<Value>,
    /// All turns.
    whole: Vec<Value>,
}

impl Conversation {
    fn set_system(&mut self, text: &str) {
        self.system = (!text.is_empty()).then(|| json!({"role": "system", "content": text}));
    }

    fn add(&mut self, role: &str, text: &str) {
        for turns in [&mut self.history, &mut self.whole] {
            turns.push(json!({"role": role, "content": text}));
        }
    }

    fn save(&self, file: &str) -> Result<()> {
        let turns: Vec<&Value> = self.system.iter().chain(&self.whole).collect();
        let text = serde_json::to_vec_pretty(&json!({"messages": turns}))?;
        Ok(ms_files::write_file(Path::new(file), &text)?)
    }

    /// Forgets turns beyond the latest `keep`, or beyond what a conversation without a template has.
    fn forget_surplus(&mut self, form: &Form, keep: usize) {
        let count = self.history.len();
        let surplus = match form {
            Form::Plain if count > 2 * PLAIN_TURNS + 1 => 2 * PLAIN_TURNS..count - 1,
            Form::Plain => 0..0,
            _ => 0..count.saturating_sub(2 * keep + 1).next_multiple_of(2),
        };
        self.history.drain(surplus);
    }

    /// The tokens of the prompt's text, and the prompt. What does not fit the `window` any more is forgotten, the oldest first;
    /// a single turn stays.
    fn prompt(
        &mut self,
        form: &Form,
        tokenizer: &Tokenizer,
        past: Option<&PreviousTurn>,
        window: usize,
    ) -> Result<(Vec<u32>, Vec<u32>)> {
        loop {
            let turns: Vec<Value> = self.system.iter().chain(&self.history).cloned().collect();
            let plain = prompt(form, tokenizer, &turns)?;
            let ids = past.and_then(|past| past.goes_on(tokenizer, &plain)).unwrap_or_else(|| plain.clone());
            if ids.len() <= window || self.history.len() == 1 {
                return Ok((plain, ids));
            }
            self.history.drain(..2);
        }
    }
}

/// Where turns come from: first those of `--prompt`, then the lines of stdin, which may be a terminal.
struct Turns<'a> {
    given: std::vec::IntoIter<String>,
    lines: Lines<StdinLock<'static>>,
    terminal: bool,
    args: &'a Args,
}

impl Turns<'_> {
    /// The next turn; what lines before it ask for is done. `None`: the conversation has ended.
    fn read(&mut self, conversation: &mut Conversation) -> Result<Option<String>> {
        if let Some(turn) = self.given.next() {
            return Ok(Some(turn));
        }
        loop {
            if self.terminal {
                say("\nYou >> ")?;
            }
            let line = self.lines.next().transpose().context("standard input")?;
            let Some(line) = line else { return Ok(None) };
            match Line::read(&line) {
                Ok(Line::Nothing) => {}
                Ok(Line::Exit) => return Ok(None),
                Ok(Line::Reset) => {
                    conversation.history.clear();
                    conversation.whole.clear();
                }
                Ok(Line::System(text)) => conversation.set_system(text),
                Ok(Line::Save(file)) => conversation.save(file)?,
                Ok(Line::Turn(turn)) => return Ok(Some(turn.to_owned())),
                // A slip at a terminal ends nothing.
                Err(e) if self.terminal => self.args.say_aside(&e.to_string()),
                Err(e) => return Err(e.into()),
            }
        }
    }
}

/// Holds a conversation: `--prompt` first, which is never a command and may be all of stdin, then a turn per line of stdin,
/// until `/exit` or the end. `/reset` forgets it, `/system` changes the system message, `/save` writes it down.
///
/// # Errors
/// If the model, tokenizer or template cannot be read.
pub(crate) fn run(args: &Args, o: &Options, unnamed: Unnamed) -> Result<()> {
    let rule = o.sampling.rule()?;
    let given = generate::prompts(o)?.into_iter();
    o.loading.source.model_folder()?;
    let mut tokenizer = setup::tokenizer(o)?;
    let before = tokenizer.vocab_size();
    let form = form(o, &mut tokenizer, unnamed)?;
    let model = setup::model(o, DType::Bf16, setup::Ask::Continue(0, 1))?;
    let (tokens, vocab) = (tokenizer.vocab_size(), model.config().vocab);
    if tokens > before.max(vocab) {
        let added = tokens - before;
        tracing::warn!(
            "--prompt-type adds {added} tokens, for which the model's vocabulary of {vocab} has no place"
        );
    }
    let terminal = std::io::stdin().is_terminal();
    if terminal && !args.quiet() {
        let text = "/exit ends, /reset forgets the conversation, /system TEXT sets the system message, /save FILE writes it";
        args.say_aside(text);
    }
    let mut turns = Turns { given, lines: std::io::stdin().lock().lines(), terminal, args };
    let mut conversation = Conversation::default();
    conversation.set_system(o.chat.system.as_deref().unwrap_or_default());
    let window = model.model.max_position();
    // What a turn has in common with the beginning of the one before is not computed again.
    let mut past: Option<PreviousTurn> = None;
    let mut session = Session::new(&model, 1, ROOM.min(window));
    while let Some(turn) = turns.read(&mut conversation)? {
        // A turn that is too long for the window leaves the conversation as it was.
        let before = conversation.history.clone();
        conversation.add("user", &turn);
        conversation.forget_surplus(&form, o.chat.turns);
        let (plain, ids) = conversation.prompt(&form, &tokenizer, past.as_ref(), window)?;
        if ids.len() > window {
            let tokens = ids.len();
            let error = Usage(format!(
                "this turn has {tokens} tokens with its template, the model's window {window}"
            ));
            if !terminal {
                return Err(error.into());
            }
            args.say_aside(&error.to_string());
            conversation.history = before;
            conversation.whole.pop();
            continue;
        }
        if terminal {
            say("Model >> ")?;
        }
        let show = |piece: &str| if args.json() { Ok(()) } else { say(piece) };
        let before = session.computed();
        let (done, text) = generate::stream(o, &mut session, &tokenizer, ids.clone(), rule, show)?;
        if args.json() {
            let report = json!({
                "user": turn,
                "assistant": text,
                "prompt_tokens": ids.len(),
                "computed_tokens": session.computed() - before,
                "tokens": done.tokens.len(),
                "token_ids": done.tokens,
                "finish": done.finish,
            });
            say(&format!("{report}\n"))?;
        } else {
            say("\n")?;
        }
        let mut reply = done.tokens;
        reply.pop_if(|last| setup::limits(o, &model, &tokenizer).stop_tokens.contains(last));
        // Tokens after a text that ended the answer are not part of it.
        let complete = spelt(&tokenizer, &reply)? == text;
        conversation.add("assistant", &text);
        past = Some(PreviousTurn { plain, ids, reply: Some(reply).filter(|_| complete), text });
    }
    Ok(())
}

/// The turn before.
struct PreviousTurn {
    /// The tokens of its prompt's text.
    plain: Vec<u32>,
    /// The tokens of its prompt: those of earlier replies as they were generated.
    ids: Vec<u32>,
    /// The tokens of the reply, without one that ended it, where they are all of its text.
    reply: Option<Vec<u32>>,
    text: String,
}

impl PreviousTurn {
    /// The tokens of a prompt whose text has the tokens `plain` and goes on from this turn: those before are as they were. So are
    /// the reply's, where its text stands in the prompt as it is; it may be cut into others. `None` if the prompt begins
    /// otherwise.
    fn goes_on(&self, tokenizer: &Tokenizer, plain: &[u32]) -> Option<Vec<u32>> {
        let rest = plain.strip_prefix(&self.plain[..])?;
        let replied = self.reply.as_ref().zip(self.behind_reply(tokenizer, rest));
        Some(match replied {
            Some((reply, rest)) => [&self.ids, &reply[..], rest].concat(),
            None => [&self.ids, rest].concat(),
        })
    }

    /// What follows the text of the reply.
    fn behind_reply<'a>(&self, tokenizer: &Tokenizer, rest: &'a [u32]) -> Option<&'a [u32]> {
        behind(&self.text, tokenizer, rest)
    }
}

/// What follows `text`, which is not empty, in tokens that begin with it; `None` if a token goes beyond its end.
fn behind<'a>(text: &str, tokenizer: &Tokenizer, tokens: &'a [u32]) -> Option<&'a [u32]> {
    // Special tokens are no part of a text, and must show.
    let (mut pieces, mut left) = (Detokenizer::new(tokenizer, false), text);
    let mut rest = tokens.iter();
    // A text that ends in U+FFFD is held back to its end: the most tokens that give it are its own.
    let mut held = None;
    while !left.is_empty() {
        let piece = rest.next().and_then(|&token| pieces.push(token).ok());
        match piece {
            Some(None) if pieces.held().ok()? == left => held = Some(rest.as_slice()),
            Some(None) => {}
            Some(Some(piece)) => match left.strip_prefix(piece.as_str()) {
                Some(after) => left = after,
                None => return held,
            },
            None => return held,
        }
    }
    // A last U+FFFD that was given out before all of its bytes were there.
    while let ([token, after @ ..], true) = (rest.as_slice(), text.ends_with('\u{FFFD}')) {
        if !matches!(pieces.push(*token), Ok(None)) || !pieces.held().ok()?.is_empty() {
            break;
        }
        rest = after.iter();
    }
    (!text.is_empty()).then_some(rest.as_slice())
}

/// The text that a reply of these tokens has.
fn spelt(tokenizer: &Tokenizer, tokens: &[u32]) -> Result<String> {
    let mut pieces = Detokenizer::new(tokenizer, true);
    let all: Vec<Option<String>> = tokens.iter().map(|&t| pieces.push(t)).collect::<Result<_, _>>()?;
    Ok(all.into_iter().chain([pieces.finish()?]).flatten().collect())
}

fn form(o: &Options, tokenizer: &mut Tokenizer, unnamed: Unnamed) -> Result<Form> {
    let name = o.forms.template.as_deref();
    if name.is_some() && o.forms.own_template {
        refuse!("--hf-chat-template and --prompt-type: pass one of them");
    }
    let Some(name) = name else {
        return Ok(match unnamed {
            Unnamed::Plain if !o.forms.own_template => Form::Plain,
            _ => Form::Hf(tokenizer.chat_template()?),
        });
    };
    let template = match &o.forms.templates {
        Some(path) => Template::from_file(name, path)?,
        None => Template::named(name)?,
    };
    template.adjust(tokenizer)?;
    Ok(Form::Prompt(template))
}

/// The tokens of a single question: in the template that is named, else as it stands.
///
/// # Source
/// MindSpeed-LLM v2.0.0, `inference/text_generation/tokenization.py`, `_tokenize_prompts_and_batch`.
pub(crate) fn question(o: &Options, tokenizer: &mut Tokenizer, text: &str) -> Result<Vec<u32>> {
    if o.forms.template.is_none() && !o.forms.own_template {
        return Ok(tokenizer.encode_with_special(text)?);
    }
    let form = form(o, tokenizer, Unnamed::Own)?;
    prompt(&form, tokenizer, &[json!({"role": "user", "content": text})])
}

fn prompt(form: &Form, tokenizer: &Tokenizer, turns: &[Value]) -> Result<Vec<u32>> {
    match form {
        Form::Plain => {
            let text: String = turns.iter().filter_map(|turn| turn["content"].as_str()).collect();
            Ok(tokenizer.encode_with_special(&text)?)
        }
        Form::Hf(template) => {
            let text = template.render(&Value::Array(turns.to_vec()), None, GenerationPrompt::Add)?;
            Ok(tokenizer.encode(&text)?)
        }
        Form::Prompt(template) => {
            let text = |turn: &Value| turn["content"].as_str().unwrap_or_default().to_owned();
            let system = turns.first().filter(|t| t["role"] == "system").map(text);
            let mut messages: Vec<Message> = turns
                .iter()
                .filter(|t| t["role"] != "system")
                .map(|t| {
                    let role = if t["role"] == "user" { Role::User } else { Role::Assistant };
                    Message::new(role, text(t))
                })
                .collect();
            // The answer to come is an empty assistant turn, whose own tokens are left out.
            messages.push(Message::new(Role::Assistant, ""));
            let mut pairs =
                template.encode(tokenizer, &messages, system.as_deref().unwrap_or(""), "", usize::MAX)?;
            let last = pairs.pop();
            let mut ids: Vec<u32> = pairs.into_iter().flat_map(|p| [p.source, p.target].concat()).collect();
            ids.extend(last.into_iter().flat_map(|p| p.source));
            Ok(ids)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Line, behind};
    use ms_text::{Tokenizer, bpe};

    #[test]
    fn a_turn_is_the_line_as_it_stands() {
        for (line, want) in [
            (" two  words ", Line::Turn(" two  words ")),
            ("/a/b is a folder ", Line::Turn("/a/b is a folder ")),
            (" /system  be brief ", Line::System("be brief")),
            (" quit ", Line::Exit),
            ("\t", Line::Nothing),
        ] {
            assert_eq!(Line::read(line).unwrap(), want, "{line:?}");
        }
    }

    #[test]
    fn what_follows_a_text_begins_where_its_last_character_ends() {
        let dir = tempfile::tempdir().unwrap();
        let options = bpe::Options { vocab_size: 300, ..bpe::Options::default() };
        bpe::train(&options, ["words that end <|im_end|>".to_owned()]).unwrap().write(dir.path()).unwrap();
        let tokenizer = Tokenizer::load(dir.path()).unwrap();
        let tokens = |text: &str| tokenizer.encode(text).unwrap();
        let broken: Vec<String> = (1..7).map(|n| "\u{FFFD}".repeat(n)).collect();
        let whole = ["words", "é", "no character: \u{FFFD}", "\u{FFFD} and more"];
        for text in whole.into_iter().chain(broken.iter().map(String::as_str)) {
            for after in ["<|endoftext|>", "\nwords", "\u{10}", ""] {
                let (of_text, rest) = (tokens(text), tokens(after));
                let all = [of_text, rest.clone()].concat();
                assert_eq!(behind(text, &tokenizer, &all), Some(&rest[..]), "{text:?} {after:?}");
            }
        }
        assert_eq!(behind("words", &tokenizer, &tokens("wor")), None);
        assert_eq!(behind("words", &tokenizer, &tokens("other words")), None);
        assert_eq!(behind("\u{FFFD}", &tokenizer, &tokens("wor")), None);
        assert_eq!(behind("", &tokenizer, &tokens("wor")), None);
    }
}

//! `ms-infer chat`: a conversation, one user turn per line.

use crate::{generate, setup};
use anyhow::Result;
use ms_cli::megatron::Args;
use ms_core::DType;
use ms_text::template::{Message, Role, Template};
use ms_text::{ChatTemplate, GenerationPrompt, Tokenizer};
use serde_json::{Value, json};
use std::io::{BufRead, IsTerminal, Write};
use std::path::Path;

/// How turns become a prompt.
enum Form {
    /// The tokenizer's own chat template (`--hf-chat-template`, or neither flag).
    Hf(ChatTemplate),
    /// A prompt template of MindSpeed-LLM (`--prompt-type`).
    Prompt(Template),
}

/// Reads user turns from stdin until `q`, `quit`, `exit` or the end; `clear` and `new` forget the history.
///
/// # Errors
/// If the model, tokenizer or template cannot be read.
pub(crate) fn run(args: &Args) -> Result<()> {
    let model = setup::model(args, DType::Bf16, None)?;
    let mut tokenizer = setup::tokenizer(args)?;
    let form = form(args, &mut tokenizer)?;
    let rule = setup::sampling(args)?;
    let keep = args.size("history_turns")?.unwrap_or(3);
    let system = args.text("system").map(|text| json!({"role": "system", "content": text}));
    let terminal = std::io::stdin().is_terminal();
    let mut history: Vec<Value> = Vec::new();
    let mut lines = std::io::stdin().lock().lines();
    loop {
        if terminal {
            say("\nYou >> ")?;
        }
        let Some(line) = lines.next().transpose()? else { return Ok(()) };
        match line.trim() {
            "" => continue,
            "q" | "quit" | "exit" => return Ok(()),
            "clear" | "new" => {
                history.clear();
                continue;
            }
            turn => history.push(json!({"role": "user", "content": turn})),
        }
        while history.len() > 2 * keep + 1 {
            history.drain(..2);
        }
        let turns: Vec<Value> = system.iter().chain(&history).cloned().collect();
        let ids = prompt(&form, &tokenizer, &turns)?;
        let json_output = args.flag("json");
        if terminal {
            say("Model >> ")?;
        }
        let show = |piece: &str| if json_output { Ok(()) } else { say(piece) };
        let (done, text) = generate::stream(args, &model, &tokenizer, ids, rule, show)?;
        if json_output {
            let report = json!({
                "user": history.last().map(|t| &t["content"]),
                "assistant": text,
                "tokens": done.tokens.len(),
                "finish": done.finish,
            });
            say(&format!("{report}\n"))?;
        } else {
            say("\n")?;
        }
        history.push(json!({"role": "assistant", "content": text}));
    }
}

fn say(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    write!(out, "{text}")?;
    Ok(out.flush()?)
}

fn form(args: &Args, tokenizer: &mut Tokenizer) -> Result<Form> {
    let name = args.text("prompt_type");
    if name.is_some() && args.flag("hf_chat_template") {
        return Err(ms_cli::Usage("--hf-chat-template and --prompt-type: pass one of them".into()).into());
    }
    let Some(name) = name else { return Ok(Form::Hf(tokenizer.chat_template()?)) };
    let template = match args.text("prompt_type_path") {
        Some(path) if Path::new(path).exists() => Template::from_file(name, Path::new(path))?,
        _ => Template::named(name)?,
    };
    template.adjust(tokenizer)?;
    Ok(Form::Prompt(template))
}

fn prompt(form: &Form, tokenizer: &Tokenizer, turns: &[Value]) -> Result<Vec<u32>> {
    match form {
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

//! DeepSeek-V4's own format: a whole conversation becomes one text, which is then cut at the assistant's messages.
//!
//! Rules: MindSpeed-LLM head, `mindspeed_llm/tasks/preprocess/templates.py`, the DeepSeek-V4 template; the format itself is
//! the model's (`encoding_dsv4.py`, published with its weights).

use super::{Effort, Message, Role, Template, Turn};
use crate::python_json::{Members, dumps, rewritten};
use crate::{Error, Result, Tokenizer};
use serde_json::value::RawValue;

const BEGIN: &str = "<｜begin▁of▁sentence｜>";
const END: &str = "<｜end▁of▁sentence｜>";
const USER: &str = "<｜User｜>";
const ASSISTANT: &str = "<｜Assistant｜>";
const THINK: &str = "<think>";
const THOUGHT: &str = "</think>";
/// Marks what belongs to tool calls.
const MARK: &str = "｜DSML｜";

const EFFORT_MAX: &str = "Reasoning Effort: Absolute maximum with no shortcuts permitted.\nYou MUST be very thorough in your thinking and comprehensively decompose the problem to resolve the root cause, rigorously stress-testing your logic against all potential paths, edge cases, and adversarial scenarios.\nExplicitly write out your entire deliberation process, documenting every intermediate step, considered alternative, and rejected hypothesis to ensure absolutely no assumption is left unchecked.\n\n";

/// One element of the conversation in the format's own terms.
enum Part {
    System {
        text: String,
        tools: Vec<String>,
    },
    /// Texts and results of tools that follow each other.
    User(Vec<Block>),
    Assistant {
        reasoning: Option<String>,
        text: String,
        calls: Vec<String>,
    },
}

enum Block {
    Text(String),
    Result { text: String, place: usize },
}

/// Turns of a conversation: each assistant's message, and what came before it since the last one.
pub(super) fn turns(
    template: &Template,
    tokenizer: &Tokenizer,
    messages: &[Message],
    system: &str,
    tools: &str,
) -> Result<Vec<Turn>> {
    let (mut parts, has_tools) = parts(messages, system, tools)?;
    let drops = drops(template, has_tools);
    if drops {
        drop_thoughts(&mut parts);
    }
    let mut turns = Vec::new();
    let mut source = BEGIN.to_owned();
    for index in 0..parts.len() {
        let text = render(template, &parts, index, drops);
        if matches!(parts[index], Part::Assistant { .. }) {
            if source.is_empty() {
                return Err(Error::Tools {
                    reason: "two messages of the assistant follow each other".into(),
                });
            }
            turns.push(Turn { source: tokenizer.encode(&source)?, target: tokenizer.encode(&text)? });
            source.clear();
        } else {
            source.push_str(&text);
        }
    }
    Ok(turns)
}

/// The last assistant's message, and all the rest as its prompt.
pub(super) fn answer(
    template: &Template,
    tokenizer: &Tokenizer,
    messages: &[Message],
    system: &str,
    tools: &str,
) -> Result<Turn> {
    let (mut parts, has_tools) = parts(messages, system, tools)?;
    if drops(template, has_tools) {
        drop_thoughts(&mut parts);
    }
    let last = parts.iter().rposition(|part| matches!(part, Part::Assistant { .. }));
    let (mut prompt, mut response) = (BEGIN.to_owned(), String::new());
    for index in 0..parts.len() {
        // Upstream renders here as if thoughts had been dropped, also where tools keep them.
        let text = render(template, &parts, index, template.drop_thinking);
        if Some(index) == last { response = text } else { prompt.push_str(&text) }
    }
    let encode = |text: &str| if text.is_empty() { Ok(Vec::new()) } else { tokenizer.encode(text) };
    Ok(Turn { source: encode(&prompt)?, target: encode(&response)? })
}

/// Tools need the whole reasoning; without them, thoughts of earlier exchanges go.
fn drops(template: &Template, has_tools: bool) -> bool {
    template.drop_thinking && template.thinking == Some(true) && !has_tools
}

fn parts(messages: &[Message], system: &str, tools: &str) -> Result<(Vec<Part>, bool)> {
    let schemas = schemas(tools).map_err(|reason| Error::Tools { reason })?;
    let has_tools = !schemas.is_empty();
    let mut out: Vec<Part> = Vec::new();
    let mut rest = messages;
    match messages.split_first() {
        Some((first, others)) if first.role == Role::System && (!system.is_empty() || has_tools) => {
            let gap = if system.is_empty() || first.content.is_empty() { "" } else { "\n\n" };
            out.push(Part::System { text: [system, gap, &first.content].concat(), tools: schemas });
            rest = others;
        }
        _ if !system.is_empty() || has_tools => {
            out.push(Part::System { text: system.to_owned(), tools: schemas });
        }
        _ => {}
    }
    // Ids of the calls that results may answer, in call order.
    let mut calls: &[super::ToolCall] = &[];
    for message in rest {
        match message.role {
            Role::System => out.push(Part::System { text: message.content.clone(), tools: Vec::new() }),
            Role::User => push_block(&mut out, Block::Text(message.content.clone())),
            Role::Observation | Role::Function => {
                let named = |call: &super::ToolCall| !call.id.is_empty() && call.id == message.answers;
                let place = calls.iter().rposition(named).unwrap_or(0);
                push_block(&mut out, Block::Result { text: message.content.clone(), place });
            }
            Role::Assistant => {
                let (reasoning, text) = match &message.reasoning {
                    Some(reasoning) => (Some(reasoning.clone()), message.content.as_str()),
                    None => inline_thought(&message.content),
                };
                if !message.calls.is_empty() {
                    calls = &message.calls;
                }
                out.push(Part::Assistant {
                    reasoning,
                    text: text.to_owned(),
                    calls: message.calls.iter().map(call).collect(),
                });
            }
        }
    }
    for part in &mut out {
        if let Part::User(blocks) = part {
            sort_results(blocks);
        }
    }
    Ok((out, has_tools))
}

fn push_block(parts: &mut Vec<Part>, block: Block) {
    if let Some(Part::User(blocks)) = parts.last_mut() {
        blocks.push(block);
    } else {
        parts.push(Part::User(vec![block]));
    }
}

/// Results stand in the order of the calls, in the places where results stood.
fn sort_results(blocks: &mut [Block]) {
    let mut results: Vec<(usize, String)> = blocks
        .iter()
        .filter_map(|block| match block {
            Block::Result { text, place } => Some((*place, text.clone())),
            Block::Text(_) => None,
        })
        .collect();
    results.sort_by_key(|(place, _)| *place);
    let mut sorted = results.into_iter();
    for block in blocks {
        if let Block::Result { text, place } = block {
            (*place, *text) = sorted.next().expect("as many results as there were");
        }
    }
}

/// `<think>…</think>` at the beginning of a text, and what follows.
fn inline_thought(text: &str) -> (Option<String>, &str) {
    let parse = || {
        let inside = text.trim_start().strip_prefix(THINK)?;
        let (thought, rest) = inside.split_once(THOUGHT)?;
        Some((thought.trim().to_owned(), rest.trim_start()))
    };
    parse().map_or((None, text), |(thought, rest)| (Some(thought), rest))
}

/// Function schemas of an OpenAI list of tools, each as JSON.
fn schemas(tools: &str) -> std::result::Result<Vec<String>, String> {
    if tools.trim().is_empty() {
        return Ok(Vec::new());
    }
    let malformed = |e: serde_json::Error| format!("the tools are not JSON: {e}");
    let whole: &RawValue = serde_json::from_str(tools).map_err(malformed)?;
    if !whole.get().starts_with('[') {
        return Ok(Vec::new());
    }
    let list: Vec<&RawValue> = serde_json::from_str(whole.get()).map_err(malformed)?;
    list.iter()
        .enumerate()
        .map(|(i, tool)| {
            let function =
                serde_json::from_str::<Members>(tool.get()).ok().and_then(|tool| tool.get("function"));
            let function = function.ok_or_else(|| {
                format!("tool {i}: expected {{\"type\": \"function\", \"function\": {{…}}}}")
            })?;
            rewritten(function.get()).map_err(malformed)
        })
        .collect()
}

fn call(call: &super::ToolCall) -> String {
    let lines = call.arguments.as_str().and_then(|text| parameters(text).ok());
    // What is not a JSON object goes in whole, under one name.
    let lines = lines.unwrap_or_else(|| match call.arguments.as_str() {
        Some(text) => parameter("arguments", true, text),
        None => parameter("arguments", false, &dumps(&call.arguments, None)),
    });
    format!("<{MARK}invoke name=\"{}\">\n{lines}\n</{MARK}invoke>", call.name)
}

/// A line for every member of a JSON object.
fn parameters(object: &str) -> serde_json::Result<String> {
    let members: Members = serde_json::from_str(object)?;
    let lines = members.0.iter().map(|(name, value)| {
        Ok(match serde_json::from_str::<String>(value.get()) {
            Ok(text) => parameter(name, true, &text),
            Err(_) => parameter(name, false, &rewritten(value.get())?),
        })
    });
    Ok(lines.collect::<serde_json::Result<Vec<_>>>()?.join("\n"))
}

fn parameter(name: &str, is_text: bool, value: &str) -> String {
    format!("<{MARK}parameter name=\"{name}\" string=\"{is_text}\">{value}</{MARK}parameter>")
}

fn last_user(parts: &[Part]) -> Option<usize> {
    parts.iter().rposition(|part| matches!(part, Part::User(_)))
}

fn drop_thoughts(parts: &mut [Part]) {
    let last = last_user(parts).unwrap_or(0);
    for part in &mut parts[..last] {
        if let Part::Assistant { reasoning, .. } = part {
            *reasoning = None;
        }
    }
}

fn render(template: &Template, parts: &[Part], index: usize, drops: bool) -> String {
    let thinks = template.thinking == Some(true);
    let mut out = String::new();
    if index == 0 && thinks && template.effort == Some(Effort::Max) {
        out.push_str(EFFORT_MAX);
    }
    let last = last_user(parts);
    match &parts[index] {
        Part::System { text, tools } => {
            out.push_str(text);
            if !tools.is_empty() {
                out.push_str("\n\n");
                out.push_str(&tools_text(&tools.join("\n")));
            }
        }
        Part::User(blocks) => {
            out.push_str(USER);
            for (i, block) in blocks.iter().enumerate() {
                if i > 0 {
                    out.push_str("\n\n");
                }
                match block {
                    Block::Text(text) => out.push_str(text),
                    Block::Result { text, .. } => {
                        out.push_str(&["<tool_result>", text, "</tool_result>"].concat());
                    }
                }
            }
            if matches!(parts.get(index + 1), None | Some(Part::Assistant { .. })) {
                out.push_str(ASSISTANT);
                let opens = thinks && (!drops || last.is_none_or(|last| index >= last));
                out.push_str(if opens { THINK } else { THOUGHT });
            }
        }
        Part::Assistant { reasoning, text, calls } => {
            if thinks && (!drops || last.is_none_or(|last| index > last)) {
                out.push_str(reasoning.as_deref().unwrap_or_default());
                out.push_str(THOUGHT);
            }
            out.push_str(text);
            if !calls.is_empty() {
                let calls = calls.join("\n");
                out.push_str(&format!("\n\n<{MARK}tool_calls>\n{calls}\n</{MARK}tool_calls>"));
            }
            out.push_str(END);
        }
    }
    out
}

fn tools_text(schemas: &str) -> String {
    format!(
        "## Tools\n\nYou have access to a set of tools to help answer the user's question. You can invoke tools by writing a \"<{MARK}tool_calls>\" block like the following:\n\n<{MARK}tool_calls>\n<{MARK}invoke name=\"$TOOL_NAME\">\n<{MARK}parameter name=\"$PARAMETER_NAME\" string=\"true|false\">$PARAMETER_VALUE</{MARK}parameter>\n...\n</{MARK}invoke>\n<{MARK}invoke name=\"$TOOL_NAME2\">\n...\n</{MARK}invoke>\n</{MARK}tool_calls>\n\nString parameters should be specified as is and set `string=\"true\"`. For all other types (numbers, booleans, arrays, objects), pass the value in JSON format and set `string=\"false\"`.\n\nIf thinking_mode is enabled (triggered by {THINK}), you MUST output your complete reasoning inside {THINK}...{THOUGHT} BEFORE any tool calls or final response.\n\nOtherwise, output directly after {THOUGHT} with tool calls or final response.\n\n### Available Tool Schemas\n\n{schemas}\n\nYou MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::template::ToolCall;
    use serde_json::Value;

    fn text(template: &Template, messages: &[Message], system: &str, tools: &str) -> String {
        let (mut parts, has_tools) = parts(messages, system, tools).unwrap();
        let drops = drops(template, has_tools);
        if drops {
            drop_thoughts(&mut parts);
        }
        (0..parts.len()).map(|index| render(template, &parts, index, drops)).collect()
    }

    fn template(thinking: Option<bool>) -> Template {
        Template { thinking, ..Template::named("deepseek4").unwrap() }
    }

    fn chat() -> Vec<Message> {
        vec![
            Message::new(Role::User, "a"),
            Message::new(Role::Assistant, "<think> one </think>\n\nb"),
            Message::new(Role::User, "c"),
            Message::new(Role::Assistant, "<think>two</think>d"),
        ]
    }

    #[test]
    fn thoughts_before_the_last_question_are_dropped() {
        assert_eq!(
            text(&template(Some(true)), &chat(), "s", ""),
            "s<｜User｜>a<｜Assistant｜></think>b<｜end▁of▁sentence｜><｜User｜>c<｜Assistant｜><think>two</think>d<｜end▁of▁sentence｜>"
        );
        let keeps = Template { drop_thinking: false, ..template(Some(true)) };
        assert_eq!(
            text(&keeps, &chat(), "", ""),
            "<｜User｜>a<｜Assistant｜><think>one</think>b<｜end▁of▁sentence｜><｜User｜>c<｜Assistant｜><think>two</think>d<｜end▁of▁sentence｜>"
        );
    }

    #[test]
    fn without_thinking_no_thought_is_rendered() {
        for thinking in [None, Some(false)] {
            assert_eq!(
                text(&template(thinking), &chat()[..2], "", ""),
                "<｜User｜>a<｜Assistant｜></think>b<｜end▁of▁sentence｜>"
            );
        }
    }

    #[test]
    fn results_are_put_into_the_order_of_the_calls() {
        let call = |id: &str, arguments: Value| ToolCall { id: id.into(), name: "f".into(), arguments };
        let mut asks = Message::new(Role::Assistant, "");
        asks.calls = vec![
            call("x", "{\"n\": 36893488147419103232, \"t\": \"v\"}".into()),
            call("y", "no json".into()),
        ];
        let result = |id: &str| Message { answers: id.into(), ..Message::new(Role::Observation, id) };
        let messages = [
            Message::new(Role::User, "q"),
            asks,
            result("y"),
            result("x"),
            Message::new(Role::Assistant, "z"),
        ];
        assert_eq!(
            text(&template(None), &messages, "", ""),
            "<｜User｜>q<｜Assistant｜></think>\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n\
             <｜DSML｜parameter name=\"n\" string=\"false\">36893488147419103232</｜DSML｜parameter>\n\
             <｜DSML｜parameter name=\"t\" string=\"true\">v</｜DSML｜parameter>\n</｜DSML｜invoke>\n\
             <｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"arguments\" string=\"true\">no json</｜DSML｜parameter>\n\
             </｜DSML｜invoke>\n</｜DSML｜tool_calls><｜end▁of▁sentence｜><｜User｜><tool_result>x</tool_result>\n\n\
             <tool_result>y</tool_result><｜Assistant｜></think>z<｜end▁of▁sentence｜>"
        );
    }

    #[test]
    fn tools_in_another_form_are_refused() {
        let error = parts(&chat(), "", "[{\"name\": \"f\"}]").err().unwrap().to_string();
        assert!(error.contains("tool 0"), "{error}");
    }

    #[test]
    fn maximal_effort_comes_first() {
        let template = Template { effort: Some(Effort::Max), ..template(Some(true)) };
        assert!(text(&template, &chat(), "s", "").starts_with("Reasoning Effort: Absolute maximum"));
    }
}

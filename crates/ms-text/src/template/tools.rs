//! Tool descriptions, which go into the system text, and tool calls.

use crate::python_json::{dumps, str_of};
use serde_json::{Value, json};

/// Describes `tools`, the JSON text of a list of objects with `name`, `description`, `parameters`.
///
/// Anything else, such as OpenAI's `{"type": "function", "function": {..}}`, silently gives no text: so does upstream.
pub(super) fn describe(tools: &str) -> String {
    let Ok(Value::Array(list)) = serde_json::from_str(tools) else { return String::new() };
    if list.is_empty() {
        return String::new();
    }
    let Some(entries) = list.iter().map(entry).collect::<Option<Vec<_>>>() else { return String::new() };
    let text: String = entries.iter().map(|(_, text)| text.as_str()).collect();
    let names: Vec<_> = entries.iter().map(|(name, _)| name.as_str()).collect();
    format!(
        "You have access to the following tools:\n{text}Use the following format if using a tool:\n```\n\
         Action: tool name (one of [{}]).\n\
         Action Input: the input to the tool, in a JSON format representing the kwargs \
         (e.g. ```{{\"input\": \"hello world\", \"num_beams\": 5}}```).\n```\n",
        names.join(", ")
    )
}

/// Name and paragraph of one tool; `None` where upstream's code would raise.
fn entry(tool: &Value) -> Option<(String, String)> {
    let parameters = tool.get("parameters")?;
    let mut arguments = String::new();
    for (name, parameter) in parameters.get("properties")?.as_object()? {
        arguments.push_str(&argument(name, parameter.as_object()?, parameters.get("required"))?);
    }
    let name = str_of(tool.get("name")?);
    let description = tool.get("description").map(str_of).unwrap_or_default();
    let text = format!("> Tool Name: {name}\nTool Description: {description}\nTool Args:\n{arguments}\n");
    Some((name, text))
}

fn argument(
    name: &str,
    parameter: &serde_json::Map<String, Value>,
    required: Option<&Value>,
) -> Option<String> {
    let field = |key: &str| parameter.get(key).map(str_of).unwrap_or_default();
    let required = match required {
        None => false,
        Some(Value::Array(names)) => names.iter().any(|n| n == name),
        Some(_) => return None,
    };
    let choices = match parameter.get("enum") {
        None | Some(Value::Null) => String::new(),
        Some(Value::Array(list)) if list.is_empty() => String::new(),
        Some(Value::Array(list)) => {
            let texts = list.iter().map(Value::as_str).collect::<Option<Vec<_>>>()?;
            format!(", should be one of [{}]", texts.join(", "))
        }
        Some(_) => return None,
    };
    let items = match parameter.get("items") {
        None | Some(Value::Null) => String::new(),
        Some(Value::Object(map)) if map.is_empty() => String::new(),
        Some(Value::Object(map)) => {
            format!(", where each item should be {}", map.get("type").map(str_of).unwrap_or_default())
        }
        Some(_) => return None,
    };
    Some(format!(
        "  - {name} ({}{}): {}{choices}{items}\n",
        field("type"),
        if required { ", required" } else { "" },
        field("description"),
    ))
}

/// Qwen's description: a line of JSON per tool, in OpenAI's form; nothing where there are none.
///
/// Source: MindSpeed-LLM (2026), `mindspeed_llm/tasks/preprocess/formatter.py`, `ToolFormatterForThink`: what it means for
/// `qwen3` and `bailing_mini`.
pub(super) fn qwen(tools: &str) -> Result<String, String> {
    let value: Value = serde_json::from_str(tools).map_err(|e| format!("the tools are not JSON: {e}"))?;
    let list = match value {
        Value::Array(list) if !list.is_empty() => list,
        Value::Array(_) => return Ok(String::new()),
        Value::Object(map) if map.is_empty() => return Ok(String::new()),
        Value::String(text) if text.is_empty() => return Ok(String::new()),
        _ => return Err("the tools are not a list".into()),
    };
    let mut lines = String::new();
    for tool in list {
        let tool =
            if tool["type"] == "function" { tool } else { json!({"type": "function", "function": tool}) };
        lines.push('\n');
        lines.push_str(&dumps(&tool, None));
    }
    Ok(format!(
        "\n\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with function \
         signatures within <tools></tools> XML tags:\n<tools>{lines}\n</tools>\n\nFor each function call, return a json object \
         with function name and arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n{{\"name\": <function-name>, \
         \"arguments\": <args-json-object>}}\n</tool_call>"
    ))
}

/// Calls of a function message as Qwen writes them, behind the thought that stands among them; a text that is not a call is
/// unchanged.
///
/// Source: as for [`qwen`], `FunctionFormatterForThink`.
pub(super) fn qwen_call(text: &str) -> String {
    let thought = text.find("<think>").and_then(|start| {
        let end = text.rfind("</think>").filter(|end| *end >= start + "<think>".len())?;
        Some(&text[start..end + "</think>".len()])
    });
    let calls = thought.map_or_else(|| text.to_owned(), |thought| text.replace(thought, ""));
    let calls = match serde_json::from_str(&calls) {
        Ok(Value::Array(calls)) => calls,
        Ok(call @ Value::Object(_)) => vec![call],
        _ => return text.to_owned(),
    };
    let mut blocks = Vec::with_capacity(calls.len());
    for call in &calls {
        let (Some(name), Some(arguments)) = (call.get("name"), call.get("arguments")) else {
            return text.to_owned();
        };
        let call = dumps(&json!({"name": name, "arguments": arguments}), None);
        blocks.push(format!("<tool_call>\n{call}\n</tool_call>"));
    }
    [thought.unwrap_or(""), &blocks.join("\n")].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn qwens_tools_are_lines_of_json() {
        let text =
            qwen(r#"[{"name": "f", "x": 1}, {"type": "function", "function": {"name": "é"}}]"#).unwrap();
        assert!(text.contains(
            "<tools>\n{\"type\": \"function\", \"function\": {\"name\": \"f\", \"x\": 1}}\n{\"type\": \"function\", \
             \"function\": {\"name\": \"é\"}}\n</tools>"
        ));
        assert!(text.ends_with(
            "<tool_call>\n{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call>"
        ));
        assert!(qwen(r#"{"name": "f"}"#).is_err());
        assert_eq!(["[]", "{}", "\"\""].map(|none| qwen(none).unwrap()), [""; 3]);
        let call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>";
        assert_eq!(qwen_call(r#"{"name": "f", "arguments": {"a":1}}"#), call);
        let text = "<think>\nwhy\n</think>\n\n{\"name\": \"f\", \"arguments\": {\"a\":1}}";
        assert_eq!(qwen_call(text), format!("<think>\nwhy\n</think>{call}"));
        // What is a text stays one.
        let text = r#"[{"name": "f", "arguments": "{\"a\":1}"}]"#;
        assert_eq!(qwen_call(text), call.replace("{\"a\": 1}", r#""{\"a\":1}""#));
        assert_eq!(qwen_call("no call"), "no call");
    }

    #[test]
    fn a_tool_is_described_with_its_arguments() {
        let tools = r#"[{"name": "find", "description": "Finds.", "parameters": {"properties": {
            "what": {"type": "string", "description": "it", "enum": ["a", "b"]},
            "where": {"type": "array", "items": {"type": "string"}}}, "required": ["what"]}}]"#;
        assert_eq!(
            describe(tools),
            "You have access to the following tools:\n> Tool Name: find\nTool Description: Finds.\nTool Args:\n  \
             - what (string, required): it, should be one of [a, b]\n  - where (array): , where each item should be string\n\n\
             Use the following format if using a tool:\n```\nAction: tool name (one of [find]).\nAction Input: the input to \
             the tool, in a JSON format representing the kwargs (e.g. ```{\"input\": \"hello world\", \"num_beams\": 5}```).\n```\n"
        );
    }

    #[test]
    fn other_forms_of_tools_vanish_silently() {
        assert_eq!(describe(r#"[{"type": "function", "function": {"name": "f"}}]"#), "");
        assert_eq!(describe("not json"), "");
        assert_eq!(describe("[]"), "");
    }
}

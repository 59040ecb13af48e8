//! The `Action:` description of tools that goes into the system text.

use crate::python_json::str_of;
use serde_json::Value;

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

#[cfg(test)]
mod tests {
    use super::describe;

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

//! Chat templates of Hugging Face folders.

mod arguments;
mod arithmetic;
mod code;
mod limits;
mod lists;
mod memory;
mod nothing;
mod operators;
mod order;
mod python;
mod source;
mod tags;
mod texts;

use crate::{Error, Result, python_json};
use chrono::format::{Item, Numeric, StrftimeItems};
use chrono::{Local, NaiveDateTime, Timelike};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Environment, ErrorKind, State};
use serde_json::Value as Json;
use std::fmt::Write as _;

/// The folder's own Jinja template, rendered in the environment that `apply_chat_template` gives it: blocks trimmed,
/// `raise_exception`, `strftime_now`, `tojson` in Python's spelling, loop controls, `generation` blocks, and Python's methods
/// of strings, lists and dicts, including `%` after a string literal.
///
/// ```
/// use ms_text::{ChatTemplate, GenerationPrompt};
/// let template = ChatTemplate::new("{% for m in messages %}[{{ m.role }}] {{ m.content.strip() }}\n{% endfor %}{% if add_generation_prompt %}[assistant] {% endif %}")?;
/// let messages = serde_json::json!([{"role": "user", "content": " hi "}]);
/// assert_eq!(template.render(&messages, None, GenerationPrompt::Add)?, "[user] hi\n[assistant] ");
/// # Ok::<(), ms_text::Error>(())
/// ```
pub struct ChatTemplate {
    environment: Environment<'static>,
}

/// Whether the rendered text ends by opening the assistant's turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GenerationPrompt {
    /// It does: the model is to answer.
    Add,
    /// It does not: the conversation is complete, as in training.
    Omit,
}

const NAME: &str = "chat";

impl ChatTemplate {
    /// Compiles a template.
    ///
    /// # Errors
    /// [`Error::Chat`] with line and reason.
    pub fn new(source: &str) -> Result<Self> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.expect("the default delimiters are distinct"));
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        // There are no others, and it is none that it could include.
        environment.set_path_join_callback(|name, _| format!("./{name}").into());
        limits::add(&mut environment);
        let (source, texts) = source::prepared(source).map_err(|reason| Error::Chat { reason })?;
        nothing::add(&mut environment, texts);
        memory::add(&mut environment);
        arithmetic::add(&mut environment);
        order::add(&mut environment);
        texts::add(&mut environment);
        python::add(&mut environment);
        environment.add_filter("tojson", tojson);
        environment.add_function(
            "raise_exception",
            |message: String| -> std::result::Result<String, minijinja::Error> {
                Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
            },
        );
        // transformers asks for the machine's own time.
        let strftime_now = |format: String| strftime(&format, Local::now().naive_local());
        environment.add_function("strftime_now", strftime_now);
        environment.add_template_owned(NAME, source).map_err(|e| chat_error(&e))?;
        Ok(Self { environment })
    }

    /// Gives the template one more variable, such as `bos_token`.
    pub fn set_global(&mut self, name: &str, value: &str) {
        self.environment.add_global(name.to_owned(), Value::from(value));
    }

    /// Gives the template a list of texts as one more variable.
    pub(crate) fn set_global_list(&mut self, name: &str, values: &[String]) {
        let values: Value = values.iter().map(|value| Value::from(value.as_str())).collect();
        self.environment.add_global(name.to_owned(), values);
    }

    /// Renders `messages`, a list of objects with `role` and `content`.
    ///
    /// `tools`, a list of JSON schemas, is passed to the template unchanged.
    ///
    /// # Errors
    /// [`Error::Chat`]: what the template raised, or why it cannot be evaluated; for templates come with models, also that it
    /// takes more steps, or asks for wider fields, than templates of conversations do.
    pub fn render(
        &self,
        messages: &Json,
        tools: Option<&Json>,
        generation: GenerationPrompt,
    ) -> Result<String> {
        self.render_with(messages, tools, generation, &serde_json::Map::new())
    }

    /// [`ChatTemplate::render`] with more variables, such as `enable_thinking`.
    ///
    /// # Errors
    /// As [`ChatTemplate::render`].
    pub fn render_with(
        &self,
        messages: &Json,
        tools: Option<&Json>,
        generation: GenerationPrompt,
        variables: &serde_json::Map<String, Json>,
    ) -> Result<String> {
        let mut context = serde_json::Map::new();
        context.insert("messages".into(), messages.clone());
        context.insert("tools".into(), tools.cloned().unwrap_or(Json::Null));
        context.insert("documents".into(), Json::Null);
        context.insert("add_generation_prompt".into(), Json::Bool(generation == GenerationPrompt::Add));
        context.extend(variables.clone());
        let context: Value = serde_json::from_value(Json::Object(context))
            .map_err(|e| Error::Chat { reason: format!("cannot hand the messages over: {e}") })?;
        self.environment
            .get_template(NAME)
            .and_then(|template| template.render(context))
            .map_err(|e| chat_error(&e))
    }
}

fn chat_error(error: &minijinja::Error) -> Error {
    let reason = match error.kind() {
        ErrorKind::OutOfFuel => format!("the template takes more than {} steps", limits::STEPS),
        _ => error.to_string(),
    };
    Error::Chat { reason }
}

/// Jinja's own filter escapes HTML; Hugging Face replaces it by plain `json.dumps(ensure_ascii=False)`.
#[allow(clippy::needless_pass_by_value)] // the form that the template engine takes
fn tojson(state: &mut State, value: &Value, args: Kwargs) -> std::result::Result<Value, minijinja::Error> {
    let separators = match args.get::<Option<Vec<String>>>("separators")?.as_deref() {
        None => None,
        Some([between, behind]) => Some((between.clone(), behind.clone())),
        Some(other) => {
            let reason = format!("tojson wants two separators, found {}", other.len());
            return Err(minijinja::Error::new(ErrorKind::InvalidOperation, reason));
        }
    };
    let indent = args.get::<Option<usize>>("indent")?.map(|indent| limits::within("tojson", indent));
    let indent = indent.transpose()?;
    let style = python_json::Style {
        indent,
        separators,
        sort_keys: args.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        ensure_ascii: args.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
    };
    args.assert_all_used()?;
    defined(state, value, 0)?;
    let json = serde_json::to_value(value)
        .map_err(|e| minijinja::Error::new(ErrorKind::InvalidOperation, "not a JSON value").with_source(e))?;
    limits::lines_within("tojson", indent.unwrap_or(0), levels(&json, 0))?;
    Ok(Value::from(style.dumps(&json)))
}

/// Checks that nothing in a value is undefined, and counts what it takes to write it.
fn defined(state: &mut State, value: &Value, depth: usize) -> std::result::Result<(), minijinja::Error> {
    let wrong = |what| Err(minijinja::Error::new(ErrorKind::InvalidOperation, what));
    if depth > lists::MOST_DEPTH {
        return wrong("tojson: lists and dicts in each other are too deep or too long to be written");
    }
    // A value of its own, and escapes of six characters.
    memory::count(state, 100 + 8 * value.as_str().map_or(0, str::len))?;
    match value.kind() {
        ValueKind::Undefined => wrong("tojson: expected a value"),
        ValueKind::Map => value.try_iter()?.try_for_each(|key| {
            defined(state, &key, depth + 1)?;
            defined(state, &value.get_item(&key)?, depth + 1)
        }),
        _ if lists::is_list(value) => value.try_iter()?.try_for_each(|item| defined(state, &item, depth + 1)),
        _ => Ok(()),
    }
}

/// The levels that the lines of a value are at, in all, where each item has a line.
fn levels(value: &Json, depth: usize) -> usize {
    let items = match value {
        Json::Array(list) => (list.len(), list.iter().map(|item| levels(item, depth + 1)).sum::<usize>()),
        Json::Object(map) => (map.len(), map.values().map(|item| levels(item, depth + 1)).sum::<usize>()),
        _ => return 0,
    };
    items.0 * (depth + 1) + depth + items.1
}

/// Python's `strftime` of a time without a zone, for templates' `strftime_now`; directives that it does not know stay as they
/// are.
fn strftime(format: &str, time: NaiveDateTime) -> String {
    let mut out = String::new();
    for item in StrftimeItems::new_lenient(format) {
        let mut text = String::new();
        let written = match item {
            // Python's %f has six digits.
            Item::Numeric(Numeric::Nanosecond, _) => {
                write!(text, "{:06}", time.nanosecond() / 1000 % 1_000_000)
            }
            item => write!(text, "{}", time.format_with_items(std::iter::once(item))),
        };
        // A time without a zone has none to write, in Python either.
        if written.is_ok() {
            out.push_str(&text);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn dates_are_written_as_python_writes_them() {
        let at = |format: &str, seconds: i64| {
            strftime(format, chrono::DateTime::from_timestamp(seconds, 0).unwrap().naive_utc())
        };
        assert_eq!(at("%d %b %Y %H:%M:%S %A", 0), "01 Jan 1970 00:00:00 Thursday");
        assert_eq!(at("%Y-%m-%d", 951_782_400), "2000-02-29");
        assert_eq!(at("%d %B %y, 100%%", 1_767_225_599), "31 December 25, 100%");
        assert_eq!(at("%-d. %B, %I %p, day %j, %f", 951_825_600), "29. February, 12 PM, day 060, 000000");
        assert_eq!(at("[%z%Z] %Q", 0), "[] %Q");
    }

    #[test]
    fn tojson_writes_python_json_without_html_escapes_in_key_order() {
        let template = ChatTemplate::new("{{ tools[0] | tojson }}").unwrap();
        let tools = json!([{"name": "<f>", "b": 1.0, "a": [1, 2]}]);
        assert_eq!(
            template.render(&json!([]), Some(&tools), GenerationPrompt::Omit).unwrap(),
            r#"{"name": "<f>", "b": 1.0, "a": [1, 2]}"#
        );
    }

    #[test]
    fn tojson_takes_the_arguments_of_dumps() {
        let source = "{{ {'b': 'é', 'a': [1, 2]} | tojson(separators=(',', ':'), sort_keys=true, ensure_ascii=true) }}";
        let render = |source: &str| {
            ChatTemplate::new(source).unwrap().render(&json!([]), None, GenerationPrompt::Omit)
        };
        assert_eq!(render(source).unwrap(), r#"{"a":[1,2],"b":"\u00e9"}"#);
        let error = render("{{ 1 | tojson(separators=[',']) }}").unwrap_err().to_string();
        assert!(error.contains("two separators, found 1"), "{error}");
        let error = render("{{ messages.x | tojson }}").unwrap_err().to_string();
        assert!(error.contains("tojson: expected a value"), "{error}");
    }

    #[test]
    fn what_a_template_raises_is_the_error() {
        let template = ChatTemplate::new("{{ raise_exception('roles must alternate') }}").unwrap();
        let error = template.render(&json!([]), None, GenerationPrompt::Omit).unwrap_err();
        assert!(error.to_string().contains("roles must alternate"), "{error}");
    }

    #[test]
    fn a_template_does_not_include_itself() {
        for source in ["{% include 'chat' %}", "{% import 'chat' as x %}", "{% extends 'chat' %}"] {
            let render = |template: ChatTemplate| template.render(&json!([]), None, GenerationPrompt::Omit);
            let error = ChatTemplate::new(source).and_then(render).unwrap_err().to_string();
            assert!(error.contains("template not found"), "{error}");
        }
    }

    #[test]
    fn loop_controls_and_python_methods_work() {
        let source = "{%- for m in messages %}{% if m.content.startswith('#') %}{% continue %}{% endif %}{{ m.get('content').upper() }}{% endfor %}";
        let template = ChatTemplate::new(source).unwrap();
        let messages = json!([{"role": "user", "content": "# no"}, {"role": "user", "content": "yes"}]);
        assert_eq!(template.render(&messages, None, GenerationPrompt::Omit).unwrap(), "YES");
    }
}

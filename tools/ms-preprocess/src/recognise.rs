//! Recognising the kind of records from the first one: styles, and where message lists have their fields.

use ms_data::handler::RecordKind;
use ms_data::records::{InputFile, RecordReader};
use serde_json::{Map, Value, json};

pub(crate) type Record = Map<String, Value>;

/// A kind of records, the `--map-keys` that their fields need, and a description of both.
#[derive(Debug, PartialEq)]
pub(crate) struct Recognised {
    pub(crate) kind: RecordKind,
    pub(crate) map_keys: Option<Record>,
    pub(crate) words: String,
}

/// The first record of the inputs, where reading it takes nothing away: not of standard input.
///
/// # Errors
/// If it cannot be read.
pub(crate) fn read_first(inputs: &[InputFile]) -> Option<ms_data::Result<Record>> {
    let files: Vec<InputFile> =
        inputs.iter().filter(|f| f.path.as_os_str() != "-").take(1).cloned().collect();
    Some(RecordReader::new(files).next()?.and_then(|record| record.parse()))
}

/// [`read_first`], if it can be read.
pub(crate) fn first_record(inputs: &[InputFile]) -> Option<Record> {
    read_first(inputs)?.ok()
}

/// What is wrong with the fields that records of `kind` are read from, if one of them is in no record: upstream ends there,
/// and without it all records would be read as if it were empty. Standard input is not looked at.
pub(crate) fn absent_field(
    inputs: &[InputFile],
    kind: RecordKind,
    map_keys: Option<&Record>,
) -> Option<String> {
    if !kind.aligned() || inputs.iter().any(|file| file.path.as_os_str() == "-") {
        return None;
    }
    let first = first_record(inputs)?;
    let given = map_keys.into_iter().flatten().filter(|(key, _)| *key != "tags");
    let mut names: Vec<&str> =
        given.filter_map(|(_, name)| name.as_str().filter(|name| !name.is_empty())).collect();
    let answers = ["output", "chosen"].iter().any(|name| first.contains_key(*name));
    if kind.alpaca() && answers && map_keys.is_none_or(|map| !map.contains_key("prompt")) {
        names.push("instruction");
    }
    for record in RecordReader::new(inputs.to_vec()) {
        if names.is_empty() {
            return None;
        }
        let Ok(record) = record.and_then(|record| record.parse()) else { return None };
        names.retain(|name| !record.contains_key(*name));
    }
    let name = names.first()?;
    let has: Vec<&str> = first.keys().map(String::as_str).collect();
    Some(format!(
        "no record has the field {name}; the first one has {}\nhint: --map-keys names the fields of records that have other names",
        has.join(", ")
    ))
}

/// A list of messages in a record.
struct Messages<'a> {
    list: &'a str,
    role: &'static str,
    content: &'static str,
    /// Names of the speakers that occur.
    speakers: Vec<&'a str>,
}

impl<'a> Messages<'a> {
    fn find(record: &'a Record) -> Option<Self> {
        let (list, messages) = record.iter().find_map(|(name, value)| {
            let list =
                value.as_array().filter(|list| !list.is_empty() && list.iter().all(Value::is_object))?;
            Some((name.as_str(), list))
        })?;
        let has = |name: &str| messages.iter().all(|m| m.get(name).is_some());
        let role = ["role", "from"].into_iter().find(|name| has(name))?;
        let some = |name: &str| messages.iter().any(|m| m.get(name).is_some());
        let content = ["content", "value", "text"].into_iter().find(|name| some(name))?;
        let speakers = messages.iter().filter_map(|m| m[role].as_str()).collect();
        Some(Self { list, role, content, speakers })
    }

    fn is(&self, list: &str, role: &str, content: &str) -> bool {
        (self.list, self.role, self.content) == (list, role, content)
    }

    /// The names among `known` that occur, else the first.
    fn speaker(&self, known: &[&'static str]) -> &'static str {
        known.iter().find(|name| self.speakers.contains(name)).unwrap_or(&known[0])
    }

    fn map_keys(&self) -> Record {
        let modern = self.role == "role";
        let of = |modern_name: &'static str, other: &'static str| {
            if modern { [modern_name, other] } else { [other, modern_name] }
        };
        let tags = json!({
            "role_tag": self.role, "content_tag": self.content,
            "user_tag": self.speaker(&of("user", "human")),
            "assistant_tag": self.speaker(&[of("assistant", "gpt")[0], of("assistant", "gpt")[1], "bot", "model"]),
            "observation_tag": self.speaker(&of("tool", "observation")),
            "function_tag": "function_call", "system_tag": "system",
        });
        Record::from_iter([("messages".to_owned(), self.list.into()), ("tags".to_owned(), tags)])
    }

    fn words(&self) -> String {
        format!("{} of {} and {}", self.list, self.role, self.content)
    }
}

/// The kind of a record, for `--style auto`.
///
/// # Errors
/// What the record has, if that is nothing known.
pub(crate) fn style(record: &Record) -> Result<Recognised, String> {
    let text = |name: &str| record.get(name).is_some_and(Value::is_string);
    let known =
        |kind: RecordKind, words: &str| Ok(Recognised { kind, map_keys: None, words: words.to_owned() });
    if let Some(messages) = Messages::find(record) {
        let pair = record.get("chosen").is_some_and(Value::is_object) && record.contains_key("rejected");
        let words = messages.words();
        let (kind, default) = match (pair, messages.is("messages", "role", "content")) {
            (true, _) => (RecordKind::SharegptPairwise, messages.is("conversations", "from", "value")),
            (false, true) => (RecordKind::OpenAiInstruction, true),
            (false, false) => {
                (RecordKind::SharegptInstruction, messages.is("conversations", "from", "value"))
            }
        };
        let map_keys = (!default).then(|| messages.map_keys());
        return Ok(Recognised { kind, map_keys, words });
    }
    if text("instruction") && text("chosen") && text("rejected") {
        return known(RecordKind::AlpacaPairwise, "instruction, chosen and rejected");
    }
    if text("instruction") && text("output") {
        return known(RecordKind::AlpacaInstruction, "instruction and output");
    }
    if text("text") {
        return known(RecordKind::Pretrain, "text");
    }
    Err(format!(
        "--style auto: the first record has {}, which no style is known by\nhint: name the style, and with --map-keys the fields",
        fields(record)
    ))
}

/// The `--map-keys` of a kind that reads lists of messages, if the first record has its list under names other than the
/// kind's own; with a description.
pub(crate) fn messages(record: &Record, kind: RecordKind) -> Option<(Record, String)> {
    let own = match kind {
        RecordKind::OpenAiInstruction => ("messages", "role", "content"),
        RecordKind::SharegptInstruction | RecordKind::SharegptPairwise | RecordKind::SharegptR1 => {
            ("conversations", "from", "value")
        }
        _ => return None,
    };
    let messages = Messages::find(record)?;
    (!messages.is(own.0, own.1, own.2)).then(|| (messages.map_keys(), messages.words()))
}

/// Names of the fields of a record.
pub(crate) fn fields(record: &Record) -> String {
    let names: Vec<&str> = record.keys().take(12).map(String::as_str).collect();
    if names.is_empty() { "no field".to_owned() } else { format!("the fields {}", names.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(value: &Value) -> Record {
        value.as_object().unwrap().clone()
    }

    #[test]
    fn records_are_known_by_their_fields() {
        let of = |value: Value| style(&record(&value)).unwrap();
        let plain = |kind, found: Recognised| assert_eq!((found.kind, found.map_keys), (kind, None));
        plain(
            RecordKind::OpenAiInstruction,
            of(
                json!({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}),
            ),
        );
        plain(
            RecordKind::SharegptInstruction,
            of(json!({"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]})),
        );
        plain(RecordKind::AlpacaInstruction, of(json!({"instruction": "a", "input": "", "output": "b"})));
        plain(RecordKind::AlpacaPairwise, of(json!({"instruction": "a", "chosen": "b", "rejected": "c"})));
        plain(RecordKind::Pretrain, of(json!({"id": 3, "text": "a"})));
        let other =
            of(json!({"dialogue": [{"role": "user", "content": "a"}, {"role": "bot", "content": "b"}]}));
        let tags = &other.map_keys.unwrap()["tags"];
        assert_eq!((&tags["user_tag"], &tags["assistant_tag"]), (&json!("user"), &json!("bot")));
        let refused = style(&record(&json!({"title": "x", "body": 3}))).unwrap_err();
        assert!(refused.contains("title, body"), "{refused}");
    }

    #[test]
    fn only_lists_under_other_names_are_mapped() {
        let modern = record(&json!({"messages": [{"role": "user", "content": "a"}]}));
        assert_eq!(messages(&modern, RecordKind::OpenAiInstruction), None);
        assert_eq!(messages(&modern, RecordKind::Pretrain), None);
        let (keys, words) = messages(&modern, RecordKind::SharegptInstruction).unwrap();
        assert_eq!((&keys["messages"], words.as_str()), (&json!("messages"), "messages of role and content"));
        assert_eq!(keys["tags"]["observation_tag"], "tool");
    }
}

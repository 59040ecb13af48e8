//! The keys that `--json` prints are those of `docs/reference/json.md`: its commands are run, and each table is compared
//! with the objects that the command before it prints.

#![allow(clippy::unwrap_used)] // tests

mod documented_inputs;
mod programs;

use programs::{programs, text};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};

/// A command of the page, and the keys of the table after it.
#[derive(Default)]
struct Section {
    line: usize,
    commands: String,
    keys: BTreeSet<String>,
    /// Those that are there under a condition.
    sometimes: BTreeSet<String>,
}

fn sections(page: &str) -> Vec<Section> {
    let mut all: Vec<Section> = Vec::new();
    let mut inside = false;
    for (number, line) in page.lines().enumerate() {
        match line {
            "```sh" => {
                inside = true;
                all.push(Section { line: number + 1, ..Section::default() });
            }
            "```" => inside = false,
            _ if inside => all.last_mut().unwrap().commands += &format!("{line}\n"),
            _ => {
                let Some((key, meaning)) = line.strip_prefix("| `").and_then(|rest| rest.split_once("` |"))
                else {
                    continue;
                };
                let section = all.last_mut().unwrap();
                assert!(
                    section.keys.insert(key.to_owned()),
                    "{key} twice in the table below line {}",
                    section.line
                );
                if meaning.trim_start().starts_with("if ") {
                    section.sometimes.insert(key.to_owned());
                }
            }
        }
    }
    all
}

/// Adds the keys of `value`, which is at `place`, under their names in `known`: their own, or that of any name.
fn walk(place: &str, value: &Value, known: &BTreeSet<String>, found: &mut BTreeSet<String>) {
    let under = |name: &str| if place.is_empty() { name.to_owned() } else { format!("{place}.{name}") };
    match value {
        Value::Object(object) => {
            if known.contains(&under("*")) {
                found.insert(under("*"));
                return;
            }
            let any = known.iter().find(|key| {
                let name = key.strip_prefix(&under("")).unwrap_or_default();
                name.starts_with('<') && name.ends_with('>')
            });
            for (name, value) in object {
                let key = match any {
                    Some(any) if !known.contains(&under(name)) => any.clone(),
                    _ => under(name),
                };
                found.insert(key.clone());
                walk(&key, value, known, found);
            }
        }
        Value::Array(list) => {
            for value in list {
                let entry = format!("{place}[]");
                if value.is_array() {
                    found.insert(entry.clone());
                }
                walk(&entry, value, known, found);
            }
        }
        _ => {}
    }
}

/// What differs between a table and what its command prints.
fn differences(section: &Section, folder: &Path) -> Vec<String> {
    documented_inputs::lay_out(&section.commands, folder);
    let path = std::env::join_paths(
        std::iter::once(programs().to_owned())
            .chain(std::env::split_paths(&std::env::var_os("PATH").unwrap())),
    );
    let output = Command::new("sh")
        .args(["-ec", &section.commands])
        .current_dir(folder)
        .env("PATH", path.unwrap())
        .env("MS_NO_PROGRESS", "1")
        .env("MS_TOKENIZER_CACHE", "off")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    if !output.status.success() {
        return vec![format!("{}: {}", output.status, text(&output))];
    }
    let mut found = BTreeSet::new();
    let mut objects = 0;
    for value in serde_json::Deserializer::from_slice(&output.stdout).into_iter::<Value>() {
        match value {
            Ok(value @ Value::Object(_)) => walk("", &value, &section.keys, &mut found),
            other => return vec![format!("no object: {other:?}")],
        }
        objects += 1;
    }
    let missing = section.keys.difference(&found).filter(|key| !section.sometimes.contains(*key));
    let mut wrong: Vec<String> = missing.map(|key| format!("{key} is not printed")).collect();
    wrong.extend(found.difference(&section.keys).map(|key| format!("{key} is not in the table")));
    wrong.extend((objects == 0).then(|| "nothing is printed".to_owned()));
    wrong
}

#[test]
fn the_page_has_the_keys_that_are_printed() {
    let page = ms_testing::workspace_root().join("docs/reference/json.md");
    let sections = sections(&std::fs::read_to_string(page).unwrap());
    let mut wrong = Vec::new();
    for section in &sections {
        assert!(!section.keys.is_empty(), "json.md:{}: a command without a table", section.line);
        let folder = tempfile::tempdir().unwrap();
        let found = differences(section, folder.path());
        wrong.extend(found.iter().map(|what| format!("json.md:{}: {what}", section.line)));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(sections.len() >= 25, "{} sections", sections.len());
}

#[test]
fn what_a_table_lacks_and_what_is_not_printed_is_found() {
    let page = "```sh\necho '{\"a\": {\"x\": [[1], {\"z\": 2}]}, \"b\": 1, \"n\": {\"o\": {\"p\": 1}}}'\n```\n\n\
                | key | value |\n|---|---|\n| `a` | |\n| `a.<name>` | |\n| `a.<name>[]` | |\n| `c` | |\n| `d` | if asked: |\n\
                | `n` | |\n| `n.*` | |\n";
    let [section] = &sections(page)[..] else { panic!("one section") };
    let folder = tempfile::tempdir().unwrap();
    let wrong = differences(section, folder.path());
    assert_eq!(wrong, ["c is not printed", "a.<name>[].z is not in the table", "b is not in the table"]);
}

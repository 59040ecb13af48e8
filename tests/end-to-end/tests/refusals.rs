//! Every string argument of a program, as the name of nothing, of files and folders of another kind, and as an invalid value;
//! every field of the files that describe a model, with invalid values. The refusal says which flag, which file or which
//! field, and mentions no other flag as if it had been given.

#![allow(clippy::unwrap_used)] // tests

mod programs;

use ms_cli::megatron::{Arity, Flag, Upstream, ValueKind};
use programs::{
    cases, misbehaviour, program, spellings, text, tidy, within_patience, without_complaint, workshop,
};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Output;

/// What a flag is given: nothing, a name of nothing, names of a file, a folder, noise, an empty file, and words that are none.
const VALUES: [&str; 8] =
    ["", "no-such-thing", "no/such/thing", "plain.jsonl", "box", "noise.bin", "empty", "{\"a\": [1, null]}"];

/// Lays out the files that [`VALUES`] name, as no call left them.
fn lay_out(folder: &Path) {
    for name in ["no-such-thing", "no", "plain", "box", "noise", "empty"] {
        tidy(folder, name);
    }
    let noise: Vec<u8> = (0..4096u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    std::fs::copy(folder.join("text.jsonl"), folder.join("plain.jsonl")).unwrap();
    std::fs::write(folder.join("noise.bin"), noise).unwrap();
    std::fs::write(folder.join("empty"), b"").unwrap();
    std::fs::create_dir(folder.join("box")).unwrap();
    std::fs::write(folder.join("box/other.txt"), b"other").unwrap();
}

/// A refusal without warnings before it and without its advice: other flags may be part of those.
fn body(name: &str, done: &Output) -> String {
    let said = text(done);
    let from = said.rfind(&format!("{name}: ")).unwrap_or(0);
    said[from..].lines().filter(|line| !line.starts_with("hint: ")).collect::<Vec<_>>().join("\n")
}

/// Flags that a message speaks of.
fn spoken_of(message: &str) -> BTreeSet<String> {
    let words = message.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-' || c == '_'));
    words.filter(|word| word.starts_with("--") && word.len() > 3).map(str::to_owned).collect()
}

/// One call: program, command line, flag, value.
struct Call {
    name: &'static str,
    line: String,
    flag: String,
    value: &'static str,
}

fn calls() -> Vec<Call> {
    let mut calls = Vec::new();
    for case in cases() {
        let mut seen = BTreeSet::new();
        for upstream in [Upstream::V2_0_0, Upstream::Head] {
            let texts = case.flags.flags(upstream).filter(|f| {
                let text =
                    matches!(f.kind, ValueKind::Str | ValueKind::Json | ValueKind::Think | ValueKind::Bool);
                text && f.arity != Arity::Zero && f.acts()
            });
            for flag in texts.filter(|f: &&Flag| seen.insert(f.flag)) {
                for value in VALUES {
                    let line = format!("{} --upstream {}", case.line, upstream.name());
                    calls.push(Call { name: case.name, line, flag: flag.flag.to_owned(), value });
                }
            }
        }
    }
    for (name, line, list) in [
        ("ms-tokenizer", "train --vocab-size 300 --force --output OUT", "--files-from"),
        ("ms-tokenizer", "train --vocab-size 300 --force text.jsonl", "--output"),
        ("ms-tokenizer", "encode text.jsonl", "--tokenizer"),
        ("ms-tokenizer", "compare text.jsonl", "--tokenizer"),
        (
            "ms-pack",
            "pack --input chats.tokens --force --output-prefix OUT",
            "--input --packing --output-prefix",
        ),
        ("ms-pack", "split data_text_document --force --output-prefix OUT", "--split"),
        ("ms-pack", "cat data_text_document", "--tokenizer"),
        (
            "ms-pack",
            "samples --data-path data_text_document --seq-length 16 --train-samples 4",
            "--data-path --split --data-cache-path",
        ),
        ("ms-profile", "schedule --pipeline-model-parallel-size 2 --micro-batches 4", "--schedules-method"),
    ] {
        for flag in list.split(' ') {
            for value in VALUES {
                calls.push(Call { name, line: line.to_owned(), flag: flag.to_owned(), value });
            }
        }
    }
    calls
}

/// What is wrong with how a program took a text, if anything.
fn complaint(folder: &Path, call: &Call) -> Option<String> {
    let Call { name, flag, value, .. } = call;
    let line = call.line.replace("OUT", "out");
    lay_out(folder);
    let mut command = program(name, folder);
    command.args(line.split_whitespace()).arg(format!("{flag}={value}"));
    let done = within_patience(&mut command, folder, "call");
    tidy(folder, "out");
    let wrong = misbehaviour(done.as_ref()).or_else(|| {
        let done = done.as_ref().filter(|done| !done.status.success())?;
        let said = body(name, done);
        let given = spellings(name, flag);
        // A dataset is named by the beginning of its files' names.
        let stem = value.trim_end_matches(".bin");
        let named =
            given.iter().any(|flag| said.contains(flag)) || (!value.is_empty() && said.contains(stem));
        let others: Vec<String> = spoken_of(&said)
            .into_iter()
            .filter(|other| !given.contains(other) && !line.split(' ').any(|word| word == other))
            .collect();
        if !named {
            Some(format!("{:?}: neither the flag nor its value is named: {said}", done.status.code()))
        } else if !others.is_empty() && !said.contains(flag.as_str()) {
            Some(format!("{:?}: it speaks of {others:?}: {said}", done.status.code()))
        } else {
            None
        }
    });
    wrong.map(|wrong| format!("{name} {line} {flag}={value}: {wrong}"))
}

#[test]
fn every_text_of_every_program_is_taken_or_refused_by_its_name() {
    // A folder for each of the two that work: outputs may have any name.
    let folders = [workshop(), workshop()];
    let calls = calls();
    assert!(calls.len() > 500, "{}", calls.len());
    without_complaint(&calls, |worker, call| complaint(folders[worker].path(), call));
}

/// A file of a folder, and a program that reads it.
const DESCRIPTIONS: [(&str, &str, &str); 6] = [
    ("hf/config.json", "ms-infer", "generate --load hf --prompt some -n 2 --threads 1"),
    ("hf/config.json", "ms-convert", "hf mcore --load hf --force --no-sync --save OUT"),
    ("hf/tokenizer_config.json", "ms-tokenizer", "encode --tokenizer hf text.jsonl"),
    ("tok/tokenizer.json", "ms-tokenizer", "encode --tokenizer tok text.jsonl"),
    ("trained/iter_0000002/manifest.json", "ms-convert", "verify trained"),
    (
        "trained/iter_0000002/manifest.json",
        "ms-infer",
        "generate --load trained --tokenizer-name-or-path tok --prompt some -n 2 --threads 1",
    ),
];

/// Values that most fields cannot have.
fn values() -> Vec<Option<Value>> {
    let huge = json!(1e300);
    vec![
        None,
        Some(Value::Null),
        Some(json!("x")),
        Some(json!(-1)),
        Some(json!(0)),
        Some(huge),
        Some(json!([])),
        Some(json!({})),
    ]
}

#[test]
fn every_field_of_a_description_is_taken_or_refused_by_its_name() {
    let mut wrong = Vec::new();
    let mut refused = 0;
    let dir = workshop();
    for (file, name, line) in DESCRIPTIONS {
        let path = dir.path().join(file);
        let sound = std::fs::read(&path).unwrap();
        let object: Map<String, Value> = serde_json::from_slice(&sound).unwrap();
        let calls: Vec<(String, Option<Value>)> =
            object.keys().flat_map(|key| values().into_iter().map(|value| (key.clone(), value))).collect();
        for (key, value) in calls {
            let mut object = object.clone();
            match &value {
                Some(value) => object.insert(key.clone(), value.clone()),
                None => object.remove(&key),
            };
            std::fs::write(&path, Value::Object(object).to_string()).unwrap();
            let mut command = program(name, dir.path());
            let line = line.replace("OUT", "out");
            let done = within_patience(command.args(line.split_whitespace()), dir.path(), "field");
            tidy(dir.path(), "out");
            let complaint = misbehaviour(done.as_ref()).or_else(|| {
                let done = done.as_ref().filter(|done| !done.status.success())?;
                refused += 1;
                let said = body(name, done);
                let base = Path::new(file).file_name().unwrap().to_str().unwrap();
                let folder = format!("--load {}", file.split('/').next().unwrap());
                let names = [key.as_str(), base, &folder];
                (!names.iter().any(|name| said.contains(name)))
                    .then(|| format!("neither field nor file is named: {said}"))
            });
            wrong.extend(complaint.map(|c| format!("{name}: {file}: {key} = {value:?}: {c}")));
        }
        std::fs::write(&path, sound).unwrap();
    }
    assert!(refused > 50, "{refused}");
    assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong.join("\n"));
}

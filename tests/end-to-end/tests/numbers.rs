//! Every numeric argument of a program, at 0, -1, 1, 3, far too large and not a number: no panic, no signal, no hang, and a
//! value outside the table's range is a usage error. Every such error names the flag that was given.

#![allow(clippy::unwrap_used)] // tests

mod programs;

use ms_cli::megatron::{Flag, Line, Upstream, ValueKind};
use programs::{
    cases, misbehaviour, program, spellings, text, tidy, within_patience, without_complaint, workshop,
};
use std::collections::BTreeSet;
use std::path::Path;

const VALUES: [&str; 6] = ["0", "-1", "1", "3", "999999999999999999", "nan"];

/// The numeric flags that a program acts on in a version.
fn numbers(line: &'static Line, upstream: Upstream) -> impl Iterator<Item = &'static Flag> {
    line.flags(upstream)
        .filter(|f| f.acts() && matches!(f.kind, ValueKind::Int | ValueKind::Float | ValueKind::Freq))
}

/// One call: program, command line, what is tried, whether it is out of the table's range.
type Call = (&'static str, String, String, bool);

fn calls() -> Vec<Call> {
    let mut calls = Vec::new();
    for case in cases() {
        let mut seen = BTreeSet::new();
        for upstream in [Upstream::V2_0_0, Upstream::Head] {
            for flag in numbers(case.flags, upstream).filter(|f| seen.insert(f.flag)) {
                for value in VALUES {
                    let number: f64 = value.parse().unwrap();
                    let outside = flag.range().is_none_or(|range| !range.contains(number));
                    let line = format!("{} --upstream {}", case.line, upstream.name());
                    calls.push((case.name, line, format!("{}={value}", flag.flag), outside));
                }
            }
        }
    }
    let own = [
        (
            "ms-pack",
            "pack --input chats.tokens --force --output-prefix OUT",
            "--seq-length --window --pad-to-multiple-of --pad-id",
        ),
        ("ms-pack", "split data_text_document --force --output-prefix OUT", "--parts"),
        ("ms-pack", "cat data_text_document", "--skip --rows"),
        (
            "ms-pack",
            "samples --data-path data_text_document --seq-length 16 --train-samples 4 --first 2",
            "--seq-length --seed --train-samples --valid-samples --test-samples --first",
        ),
        ("ms-tokenizer", "train --force --output OUT text.jsonl", "--vocab-size"),
        ("ms-tokenizer", "train --vocab-size 300 --force --output OUT text.jsonl", "--min-frequency"),
        (
            "ms-pack",
            "samples --total 40 --micro-batch-size 2 --data-parallel-size 2",
            "--total --consumed-samples --micro-batch-size --data-parallel-size --batches",
        ),
        ("ms-profile", "cpu --quick", "--threads"),
        (
            "ms-profile",
            "schedule --pipeline-model-parallel-size 2 --micro-batches 4",
            "--pipeline-model-parallel-size --micro-batches --num-virtual-stages-per-pipeline-rank \
             --microbatch-group-size-per-vp-stage --width",
        ),
    ];
    for (name, line, list) in own {
        for flag in list.split_whitespace() {
            for value in VALUES {
                calls.push((name, line.to_owned(), format!("{flag}={value}"), value == "nan"));
            }
        }
    }
    calls
}

/// Runs one call in `folder`, its output under the name `tag`; what is wrong, if anything.
fn complaint(folder: &Path, tag: usize, (name, line, tried, outside): &Call) -> Option<String> {
    let out = format!("out{tag}");
    let line = line.replace("OUT", &out);
    let mut command = program(name, folder);
    command.args(line.split_whitespace()).arg(tried);
    let done = within_patience(&mut command, folder, &format!("call{tag}"));
    tidy(folder, &out);
    let wrong = misbehaviour(done.as_ref()).or_else(|| {
        let done = done.as_ref()?;
        let flag = tried.split('=').next().unwrap_or(tried);
        let said = text(done);
        let refused = done.status.code() == Some(2);
        // A value within its range may not fit the others or the machine: that too is said of the flag that was given, which
        // may be called by any of its spellings.
        let named = spellings(name, flag).iter().any(|flag| said.contains(flag));
        // A training that fails at its values has been tried, and says where.
        let tried_out = said.contains("iteration 1, rank 0: ");
        ((*outside && !refused) || (!done.status.success() && !named && !tried_out))
            .then(|| format!("exit code {:?}, not a refusal of {flag}: {said}", done.status.code()))
    });
    wrong.map(|wrong| format!("{name} {line} {tried}: {wrong}"))
}

#[test]
fn every_number_of_every_program_is_taken_or_refused_by_its_name() {
    let dir = workshop();
    let calls = calls();
    assert!(calls.len() > 1000, "{}", calls.len());
    without_complaint(&calls, |worker, call| complaint(dir.path(), worker, call));
}

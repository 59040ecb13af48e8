//! Inputs of which nothing, or little, remains.

use crate::cli::Tokenize;
use crate::recognise::{fields, first_record, messages, style};
use anyhow::{Result, bail};
use ms_data::Reason;
use ms_data::handler::{Handler, RecordKind};
use ms_data::preprocess::Report;
use ms_data::records::InputFile;

/// Share of records that may be left out for reasons of their own without a word.
const UNSAID: f64 = 0.1;

/// Stops a run that has made no sequence, and says so of one that has left out many records.
///
/// # Errors
/// If there is no sequence: the main reason, what was found, and what may help.
pub(crate) fn check(report: &Report, rows: u64, handler: &Handler, inputs: &[InputFile]) -> Result<()> {
    let left_out = report.dropped + report.rejected;
    if rows > 0 && report.tokens > 0 {
        if report.records > 0 && left_out as f64 > UNSAID * report.records as f64 {
            let share = 100.0 * left_out as f64 / report.records as f64;
            tracing::warn!(
                "{left_out} of {} records ({share:.0} %) were left out{}",
                report.records,
                why(handler, inputs).0
            );
        }
        return Ok(());
    }
    let names: Vec<String> = inputs.iter().take(3).map(|f| f.path.display().to_string()).collect();
    let more = if inputs.len() > names.len() { ", …" } else { "" };
    let names = format!("{}{more}", names.join(", "));
    if report.records == 0 {
        bail!("{names}: there is no record in it");
    }
    let reasons = [
        (left_out, "could not be used"),
        (report.filtered, "were refused by --filter"),
        (report.unsampled, "were left out by --sample"),
        (report.duplicates, "are duplicates"),
    ];
    let main = reasons.iter().max_by_key(|reason| reason.0).filter(|reason| reason.0 > 0);
    let Some((count, what)) = main else {
        bail!("{names}: no record holds a token of text{}", why(handler, inputs).0);
    };
    let (reason, hint) = if *count == left_out { why(handler, inputs) } else { Default::default() };
    bail!("{names}: nothing is left of {} records: {count} {what}{reason}{hint}", report.records)
}

/// Why the first record is left out and what it holds, and what may help.
fn why(handler: &Handler, inputs: &[InputFile]) -> (String, String) {
    let Some(record) = first_record(inputs) else { return Default::default() };
    let reason = match handler.alignments().why_not(&record, 0) {
        Some(reason) => format!(", the first because {reason}"),
        None => String::new(),
    };
    let hint = match (handler.kind(), messages(&record, handler.kind())) {
        (_, Some((keys, words))) => {
            format!("\nhint: it has {words}: --map-keys '{}'", serde_json::Value::Object(keys))
        }
        (kind, None) if messages(&record, RecordKind::SharegptInstruction).is_some() && kind != RecordKind::OpenAiInstruction => {
            "\nhint: it has messages of role and content: --style openai".to_owned()
        }
        _ => "\nhint: --map-keys names the fields of records that have other names; --style auto looks at the first one"
            .to_owned(),
    };
    (format!("{reason}; it has {}", fields(&record)), hint)
}

/// An error with what may help, where it is that a record lacks a field that its style has, or is too long.
pub(crate) fn explained(error: anyhow::Error, job: &Tokenize) -> anyhow::Error {
    let reason = error.chain().find_map(|cause| match cause.downcast_ref::<ms_data::Error>()? {
        ms_data::Error::Record { reason, .. } => Some(reason),
        _ => None,
    });
    if matches!(reason, Some(Reason::TooLong(_))) {
        return error.context("hint: --max-record-bytes takes longer ones, --on-error skip passes over them");
    }
    let missing = matches!(reason, Some(Reason::Missing { .. }));
    let Some(record) = first_record(&job.inputs).filter(|_| missing) else { return error };
    let kind = job.options.kind;
    let help = match (messages(&record, kind), style(&record)) {
        (Some((keys, words)), _) => format!("{words}: --map-keys '{}'", serde_json::Value::Object(keys)),
        (None, Ok(found)) if found.kind != kind => format!("{}: --style {}", found.words, found.kind.name()),
        _ if kind == RecordKind::Pretrain => {
            format!("{}: --json-keys names those to tokenize", fields(&record))
        }
        _ => format!("{}: --map-keys names those of other names", fields(&record)),
    };
    error.context(format!("hint: the first record has {help}"))
}

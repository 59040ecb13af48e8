//! Truncation of samples that are longer than a row.

use super::IGNORED;
use ms_text::template::shares;
use std::ops::Range;

/// Cuts a conversation to `room` tokens, turn by turn. Turns are found in the labels: a run of ignored positions is a
/// prompt, what follows it is its answer.
///
/// `closing` says that the template trains one end-of-sequence id at the very end (`efficient_eos`); it is kept.
/// `as_upstream` repeats what upstream does to such samples: the last token of each prompt is lost and −100 stands in
/// its place, also in the input ids.
pub fn cut_turns(
    ids: &[i32],
    labels: &[i32],
    room: usize,
    closing: bool,
    as_upstream: bool,
) -> (Vec<i32>, Vec<i32>) {
    if ids.len() <= room || ids.is_empty() {
        return (ids.to_vec(), labels.to_vec());
    }
    let mut total = usize::from(closing);
    let (mut out_ids, mut out_labels) = (Vec::with_capacity(room), Vec::with_capacity(room));
    for (prompt, answer) in turns(labels, closing && as_upstream) {
        if total >= room {
            break;
        }
        let (source, target) = shares(prompt.len(), answer.len(), room - total);
        total += source + target;
        out_ids.extend_from_slice(&ids[prompt.start..prompt.start + source]);
        out_labels.extend(std::iter::repeat_n(IGNORED, source));
        let answer = answer.start..answer.start + target;
        if as_upstream {
            // Upstream takes the answer from the labels, which differ from the input where an efficient end of
            // sequence stands on the first token of the next prompt.
            out_ids.extend_from_slice(&labels[answer.clone()]);
        } else {
            out_ids.extend_from_slice(&ids[answer.clone()]);
        }
        out_labels.extend_from_slice(&labels[answer]);
    }
    if closing {
        let last = ids[ids.len() - 1];
        out_ids.push(last);
        out_labels.push(last);
    }
    (out_ids, out_labels)
}

/// Prompt and answer ranges. With `early`, each prompt ends one position sooner and its answer begins there.
fn turns(labels: &[i32], early: bool) -> Vec<(Range<usize>, Range<usize>)> {
    let mut prompts: Vec<Range<usize>> = Vec::new();
    for (i, &label) in labels.iter().enumerate() {
        if label != IGNORED {
            continue;
        }
        match prompts.last_mut() {
            Some(run) if run.end == i => run.end = i + 1,
            _ => prompts.push(i..i + 1),
        }
    }
    let ends: Vec<usize> = prompts.iter().skip(1).map(|run| run.start).chain([labels.len()]).collect();
    prompts
        .into_iter()
        .zip(ends)
        .map(|(prompt, end)| {
            let split = prompt.end - usize::from(early);
            (prompt.start..split, split..end)
        })
        .collect()
}

/// Cuts a preference pair: prompt, chosen and rejected ids and labels. The prompt is what comes before the first
/// trained position of the chosen answer; the longer answer decides the shares.
#[allow(clippy::type_complexity)] // two (ids, labels) pairs
pub fn cut_pair(
    chosen: &[i32],
    chosen_labels: &[i32],
    rejected: &[i32],
    room: usize,
) -> ((Vec<i32>, Vec<i32>), (Vec<i32>, Vec<i32>)) {
    let start = chosen_labels.iter().position(|&label| label != IGNORED).unwrap_or(chosen.len());
    let start = start.min(rejected.len());
    let (source, target) = shares(start, (chosen.len() - start).max(rejected.len() - start), room);
    let build = |ids: &[i32]| {
        let answer = &ids[start..ids.len().min(start + target)];
        let mut row = ids[..source].to_vec();
        row.extend_from_slice(answer);
        let mut labels = vec![IGNORED; source];
        labels.extend_from_slice(answer);
        (row, labels)
    };
    (build(chosen), build(rejected))
}

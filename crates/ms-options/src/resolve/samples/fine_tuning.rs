//! How the sequences of fine-tuning sets become rows.

use super::Ends;
use crate::resolve::data::{DataKind, sft_options};
use crate::resolve::options::Options;
use anyhow::Result;
use ms_cli::megatron::Upstream;
use ms_cli::refuse;
use ms_data::RowLayout;
use ms_data::indexed::IndexedDataset;
use ms_data::sft::{self, Form, Order, SftOptions};

/// Instructions and their rows; `closing`: the template closes with one end token.
pub(super) fn rows(
    all: &Options,
    paths: Vec<String>,
    seq_length: usize,
    global: usize,
    ids: Option<ms_text::Result<Ends>>,
    closing: bool,
) -> Result<(DataKind, RowLayout)> {
    let o = &all.samples;
    if all.model_training.windows > 0 {
        refuse!(
            "--num-nextn-predict-layers: needs pretraining data: in fine-tuning rows upstream takes what is not counted for words"
        );
    }
    if o.mock {
        refuse!("--mock-data: needs pretraining data, fine-tuning reads --data-path");
    }
    if paths.is_empty() {
        refuse!("--data-path is required");
    }
    let Some(ids) = ids else {
        refuse!("--tokenizer-name-or-path is required for fine-tuning: it names the end and padding tokens");
    };
    let Ends { eod, pad: Some(pad) } = ids? else {
        refuse!("--tokenizer-type NullTokenizer: fine-tuning needs a tokenizer with a padding token");
    };
    let form = match packs(all.upstream, o.reset_positions, o.reset_attention, o.neat_pack)? {
        Some(packs) => packs,
        None if o.cut_at_end => Form::CutAtEnd,
        None => Form::Conversation { closing },
    };
    let layout = if matches!(form, Form::Packed { .. }) {
        RowLayout::Packed
    } else {
        if o.uncut {
            refuse!(
                "--no-cut-token: rows have at most --seq-length tokens; leave it out, or pack the samples"
            );
        }
        let variable = pads_less(all.upstream, o.variable, o.no_pad);
        let multiple = if variable { o.pad_to_multiple.unwrap_or(8).max(1) } else { seq_length };
        RowLayout::Padded { multiple, pad, left: o.padding_side.as_deref() == Some("left") }
    };
    let fill_to = o.fill.then_some(global as u64);
    let order = Order { seed: o.seed as u32, shuffle: !o.no_shuffle, fill_to, full_shuffle: o.full_shuffle };
    let mut options = sft_options(seq_length, form, eod, order);
    // Upstream stores these next to the data, regardless of the folder of the other index files.
    options.index_files = o.cache.is_some();
    if layout == RowLayout::Packed {
        check_packs(&paths, &options, o.uncut)?;
    }
    Ok((DataKind::Sft { paths, split: o.shares()?, options }, layout))
}

/// Says which packs are longer than rows, and lose their ends.
///
/// # Errors
/// If none may be cut.
fn check_packs(paths: &[String], options: &SftOptions, uncut: bool) -> Result<()> {
    let room = options.row_tokens;
    for prefix in sft::input_prefixes(paths, options)? {
        // What cannot be opened is an error of the run.
        let Ok(set) = IndexedDataset::open(&prefix) else { continue };
        let longer = (0..set.len()).map(|i| set.length(i)).filter(|&length| length > room);
        let (count, longest) = longer.fold((0, 0), |(n, longest), length| (n + 1, length.max(longest)));
        if count == 0 {
            continue;
        }
        let found = format!("{count} of {} packs", set.len());
        if uncut {
            refuse!(
                "--no-cut-token: {}: expected packs of at most {room} tokens (--seq-length), found {found} with up to {longest}",
                prefix.display()
            );
        }
        tracing::warn!(
            "{}: {found} are longer than {room} tokens (--seq-length; up to {longest}) and lose their ends",
            prefix.display()
        );
    }
    Ok(())
}

/// How packs are read, if the sequences of a fine-tuning set are such by the flags `positions`, `attention` and `neat`: each
/// version of upstream reads them by one of the first two, and makes nothing of the other's alone.
///
/// # Errors
/// For `--neat-pack` without that flag.
///
/// # Source
/// MindSpeed-LLM 2.0.0 and its head (2026), `mindspeed_llm/tasks/preprocess/decoder_packed_mtf_dataset.py`, `__getitem__`;
/// `mindspeed_llm/tasks/posttrain/sft/sft_trainer.py`, `get_batch`; `mindspeed_llm/training/arguments.py`,
/// `_validate_create_attention_mask_in_dataloader`; `features_manager/megatron_basic/training_basic.py`.
fn packs(upstream: Upstream, positions: bool, attention: bool, neat: bool) -> Result<Option<Form>> {
    const FLAGS: [&str; 2] = ["--reset-position-ids", "--reset-attention-mask"];
    let ([reads, other], packed, other_alone) = match upstream {
        Upstream::V2_0_0 => (FLAGS, positions, attention),
        Upstream::Head => ([FLAGS[1], FLAGS[0]], attention, positions),
    };
    if packed {
        return Ok(Some(Form::Packed { neat, restart: positions }));
    }
    if neat {
        refuse!("--neat-pack: needs {reads}, by which this version of upstream reads packs");
    }
    if other_alone {
        tracing::warn!(
            "{other} has no effect in fine-tuning: this version of upstream reads packs by {reads}"
        );
    }
    Ok(None)
}

/// Whether batches of a fine-tuning set are padded to their longest sample, by `--variable-seq-lengths` and
/// `--no-pad-to-seq-lengths`.
///
/// # Source
/// MindSpeed-LLM 2.0.0 and its head (2026), `mindspeed_llm/legacy/data/data_samplers.py`.
fn pads_less(upstream: Upstream, variable: bool, no_pad: bool) -> bool {
    if upstream == Upstream::Head && variable && !no_pad {
        tracing::warn!(
            "--variable-seq-lengths has no effect: upstream's head pads to --seq-length unless --no-pad-to-seq-lengths is given"
        );
    }
    no_pad || (variable && upstream == Upstream::V2_0_0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand of both versions' `decoder_packed_mtf_dataset.py` and the checks of their arguments.
    #[test]
    fn each_version_of_upstream_reads_packs_by_a_flag_of_its_own() {
        let (old, head) = (Upstream::V2_0_0, Upstream::Head);
        let packed = |neat, restart| Ok(Some(Form::Packed { neat, restart }));
        let needs =
            |flag| Err(format!("--neat-pack: needs {flag}, by which this version of upstream reads packs"));
        let (by_positions, by_attention) = (needs("--reset-position-ids"), needs("--reset-attention-mask"));
        for ((positions, attention, neat), in_old, at_head) in [
            ((false, false, false), Ok(None), Ok(None)),
            ((true, false, false), packed(false, true), Ok(None)),
            ((false, true, false), Ok(None), packed(false, false)),
            ((true, true, false), packed(false, true), packed(false, true)),
            ((false, false, true), by_positions.clone(), by_attention.clone()),
            ((true, false, true), packed(true, true), by_attention),
            ((false, true, true), by_positions, packed(true, false)),
            ((true, true, true), packed(true, true), packed(true, true)),
        ] {
            let got = [old, head]
                .map(|version| packs(version, positions, attention, neat).map_err(|e| e.to_string()));
            assert_eq!(got, [in_old, at_head], "{positions} {attention} {neat}");
        }
    }

    #[test]
    fn each_version_of_upstream_pads_less_by_a_flag_of_its_own() {
        let (old, head) = (Upstream::V2_0_0, Upstream::Head);
        for (variable, no_pad, want) in [
            (false, false, [false; 2]),
            (true, false, [true, false]),
            (false, true, [true; 2]),
            (true, true, [true; 2]),
        ] {
            assert_eq!([old, head].map(|version| pads_less(version, variable, no_pad)), want);
        }
    }
}

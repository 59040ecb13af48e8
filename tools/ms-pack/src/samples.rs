//! `ms-pack samples`: the order of samples that training would use.

use crate::as_usage;
use crate::cli::Samples as SamplesArgs;
use anyhow::Result;
use ms_cli::{Usage, refuse};
use ms_data::gpt::{DataPaths, GptOptions, GptSet, IndexCache, build};
use ms_data::sampler::{DataParallelRank, Sampler, SamplerKind};
use ms_data::{Samples, Split, Upstream};
use ms_text::Tokenizer;
use serde_json::{Map, Value, json};
use std::io::Write;

/// Tokens of a row, as the table of flags bounds them.
const MOST_TOKENS: usize = 1 << 28;

pub(crate) fn run(args: &SamplesArgs, json: bool) -> Result<()> {
    if let (Some(total), Some(micro)) = (args.total, args.micro_batch_size) {
        return ranks(args, total, micro as usize, json);
    }
    let per_split = [&args.train_data_path, &args.valid_data_path, &args.test_data_path];
    let paths = if !args.data_path.is_empty() {
        DataPaths::Split {
            paths: args.data_path.clone(),
            split: Split::parse(&args.split).map_err(|e| Usage(format!("--split: {e}")))?,
        }
    } else if per_split.iter().any(|list| !list.is_empty()) {
        DataPaths::PerSplit(per_split.map(Clone::clone))
    } else if args.mock_data {
        DataPaths::Mock
    } else {
        refuse!("no data\nhint: pass --data-path PREFIX");
    };
    let Some(seq_length) = args.seq_length.filter(|n| (1..=MOST_TOKENS).contains(n)) else {
        refuse!("--seq-length: expected a number from 1 to {MOST_TOKENS}");
    };
    // No id is -1, so nothing is an end of document without a tokenizer.
    let mut options = GptOptions::new(seq_length, args.seed, -1);
    if let Some(dir) = &args.tokenizer_name_or_path {
        let mut tokenizer = Tokenizer::load_kept(dir, ms_cli::tokenizer_cache().as_deref())?;
        tokenizer.pad_with_eos();
        options.eod = tokenizer.eod()? as i32;
        options.pad = Some(tokenizer.pad_id()? as i32);
    }
    options.cache = args.data_cache_path.as_ref().map(|folder| {
        let tokenizer = args.tokenizer_name_or_path.as_deref().map(|dir| dir.to_string_lossy());
        IndexCache::new(folder, &tokenizer.unwrap_or_default())
    });
    options.reset_position_ids = args.reset_position_ids;
    options.reset_attention_mask = args.reset_attention_mask;
    options.eod_mask_loss = args.eod_mask_loss;
    let upstream = if args.upstream == "head" { Upstream::Head } else { Upstream::V2_0_0 };
    let counts = [args.train_samples, args.valid_samples, args.test_samples];
    let flag = match paths {
        DataPaths::Split { .. } => "--data-path",
        DataPaths::PerSplit(_) => "--train-data-path, --valid-data-path, --test-data-path",
        DataPaths::Mock => "--mock-data",
    };
    let asks = |error: &ms_data::Error| {
        let splits = [
            ("train split", "--train-samples"),
            ("valid split", "--valid-samples"),
            ("test split", "--test-samples"),
        ];
        let text = error.to_string();
        splits.into_iter().find(|(words, _)| text.contains(words)).map_or(flag, |(_, samples)| samples)
    };
    let sets = build(&paths, counts, &options, upstream).map_err(|e| {
        let flag = asks(&e);
        as_usage(e).context(flag)
    })?;
    let mut out = std::io::stdout().lock();
    let mut all = Map::new();
    for (name, set) in ["train", "valid", "test"].into_iter().zip(&sets) {
        let value = set.as_ref().map_or(Ok(Value::Null), |set| describe(set, args.first))?;
        if !json {
            writeln!(out, "{name:5} {}", summary(set.as_ref()))?;
        }
        all.insert(name.into(), value);
    }
    if json {
        writeln!(out, "{}", Value::Object(all))?;
    }
    Ok(())
}

/// Which samples each data-parallel rank takes, batch after batch.
fn ranks(args: &SamplesArgs, total: u64, micro: usize, json: bool) -> Result<()> {
    let kind = if args.dataloader_type == "cyclic" { SamplerKind::Cyclic } else { SamplerKind::Single };
    let size = args.data_parallel_size as usize;
    let of_rank = |rank: usize| -> Result<Vec<Vec<u64>>> {
        let rank = DataParallelRank { rank, size };
        let sampler = Sampler::new(kind, total, micro, rank, args.consumed_samples)
            .map_err(|e| as_usage(e).context("--total, --micro-batch-size, --data-parallel-size"))?;
        Ok(sampler.take(args.batches).collect())
    };
    let batches = (0..size).map(of_rank).collect::<Result<Vec<_>>>()?;
    let mut out = std::io::stdout().lock();
    if json {
        writeln!(out, "{}", json!({"batches": batches}))?;
        return Ok(());
    }
    for (rank, batches) in batches.iter().enumerate() {
        writeln!(out, "rank {rank}: {}", json!(batches))?;
    }
    Ok(())
}

fn summary(set: Option<&GptSet>) -> String {
    let Some(set) = set else { return "no data".into() };
    let parts: Vec<String> = set
        .parts()
        .iter()
        .map(|part| {
            let index = part.index();
            format!(
                "{}: {} samples, {} epochs of {} tokens",
                part.data().name().display(),
                index.len(),
                index.epochs,
                index.tokens_per_epoch
            )
        })
        .collect();
    format!("{} samples; {}", set.len(), parts.join("; "))
}

fn describe(set: &GptSet, first: u64) -> Result<Value> {
    let parts: Vec<Value> = set
        .parts()
        .iter()
        .map(|part| {
            let index = part.index();
            json!({
                "prefix": part.data().name().display().to_string(),
                "sequences": [part.sequences().start, part.sequences().end],
                "epochs": index.epochs,
                "tokens_per_epoch": index.tokens_per_epoch,
                "separate_last_epoch": index.separate_last_epoch,
                "document_index": index.documents,
                "sample_index": index.samples,
                "shuffle_index": index.shuffle,
            })
        })
        .collect();
    let blend = match set {
        GptSet::Single(_) => Value::Null,
        GptSet::Blend(blend) => json!({
            "weights": blend.weights,
            "dataset_index": blend.index.dataset,
            "dataset_sample_index": blend.index.sample,
        }),
    };
    let mut samples = Vec::new();
    for i in 0..first.min(set.len()) {
        let sample = set.get(i)?;
        samples.push(json!({
            "tokens": sample.tokens, "labels": sample.labels, "loss_mask": sample.loss_mask,
            "position_ids": sample.position_ids, "segment_ends": sample.segment_ends,
        }));
    }
    Ok(json!({"len": set.len(), "parts": parts, "blend": blend, "samples": samples}))
}

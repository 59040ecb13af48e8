//! Small files that runs and tools leave or are given, of any bytes; the first byte chooses: traces, metrics and progress of
//! a run and what a report says of them, ready samples, index files of datasets, manifests, descriptions of datasets,
//! template files, questions of a benchmark, the index of a Hugging Face folder, `generation_config.json`, `hf_layout.json`,
//! splits and blends.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ms_data::gpt::{DataPaths, GptOptions, IndexCache};
use ms_data::indexed::{IndexedWriter, TokenType};
use ms_data::preprocess::{Manifest, Manifests};
use ms_data::sft::{Form, Order, SftDataset, SftOptions};
use ms_data::{SafetensorsSamples, Samples, Split, Upstream};
use ms_fuzz::{Scratch, golden, read_all, seed_of};
use ms_text::template::{Message, Role, Template};
use ms_text::{Tokenizer, bpe};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::Instant;

struct Workshop {
    scratch: Scratch,
    tokenizer: Tokenizer,
    /// Index files of the pretraining and of the fine-tuning set.
    indices: Vec<PathBuf>,
}

fn dataset(prefix: &Path) {
    let mut writer = IndexedWriter::create(prefix, TokenType::I32).expect("a folder");
    for length in [3, 1, 7, 4, 2] {
        let tokens: Vec<i32> = (1..=length).collect();
        writer.sequence(&tokens).and_then(|()| writer.end_document()).expect("a small file");
    }
    writer.finish().expect("a small file");
}

fn pretraining(scratch: &Scratch) -> Option<[Option<ms_data::gpt::GptSet>; 3]> {
    let paths = vec![scratch.path("data/set").display().to_string()];
    let split = Split::parse("1").expect("a number");
    let cache = Some(IndexCache::new(scratch.path("data"), "tokenizer"));
    let options = GptOptions { cache, ..GptOptions::new(4, 1, 0) };
    ms_data::gpt::build(&DataPaths::Split { paths, split }, [Some(9), None, None], &options, Upstream::Head)
        .ok()
}

fn tuning(scratch: &Scratch) -> Option<[Option<std::sync::Arc<SftDataset>>; 3]> {
    let options = SftOptions {
        row_tokens: 8,
        form: Form::CutAtEnd,
        eos: 0,
        order: Order::shuffled(1),
        negative_ids_as_upstream: false,
        index_files: true,
    };
    SftDataset::open(scratch.path("data/chats"), &Split::parse("1").ok()?, [7, 0, 0], &options).ok()
}

static SHOP: LazyLock<Workshop> = LazyLock::new(|| {
    let scratch = Scratch::new();
    std::fs::create_dir(scratch.path("data")).expect("a folder");
    dataset(&scratch.path("data/set"));
    for key in ["input_ids", "labels"] {
        dataset(&scratch.path(&format!("data/chats_packed_{key}_document")));
    }
    let _ = (pretraining(&scratch), tuning(&scratch));
    let found = std::fs::read_dir(scratch.path("data")).expect("a folder").flatten();
    let mut indices: Vec<PathBuf> =
        found.map(|f| f.path()).filter(|p| p.extension().is_some_and(|e| e == "npy")).collect();
    indices.sort();
    for file in ["config.json", "model.safetensors"] {
        scratch.write(&format!("hf/{file}"), &golden(&format!("models/llama3_gqa/{file}")));
    }
    let options = bpe::Options { vocab_size: 270, ..bpe::Options::default() };
    let trained = bpe::train(&options, ["the cat sat on the mat".repeat(3)]).expect("a text");
    trained.write(scratch.path("tokenizer")).expect("a folder");
    let tokenizer = Tokenizer::load(scratch.path("tokenizer")).expect("it was written");
    Workshop { scratch, tokenizer, indices }
});

const KINDS: u8 = 20;

fn seeds() {
    seed_of(
        0,
        "trace",
        br#"[{"ph":"X","name":"a","cat":"step","pid":0,"tid":1,"ts":1.5,"dur":"2","args":{"flops":3}}]"#,
    );
    seed_of(19, "run", br#"{"device":"cpu","dtype":"bf16","ranks":2,"threads_per_rank":1,"peak_per_thread":{"bf16_gflops":9.5},"model_flops_per_iteration":1e9,"tokens_per_iteration":64}"#);
    seed_of(1, "metrics", b"{\"iteration\": 1, \"lm loss\": 2.5}\n{\"iteration\": 9}\n{\"iter");
    seed_of(2, "progress", b"2026-01-02 03:04:05\tJob ID: 7\t# GPUs: 2\tStarting job\n2026-01-02 03:04:05\tJob ID: 7\t# GPUs: 2\tSaved checkpoint\tIteration: 3\tJob throughput: 1.0 TFLOP/s/GPU\tCumulative throughput: 1.0 TFLOP/s/GPU\tFloating-point operations: 1.00e+10\tTokens (in billions): 0.1\n");
    seed_of(3, "samples", &golden("train/masked/data.safetensors"));
    seed_of(4, "described", br#"{"a":{"file_name":"a.json","columns":{"prompt":"q","response":"r"}},"b":{"file_name":"b.json","formatting":"sharegpt","columns":{"messages":"m"},"tags":{"role_tag":"r","content_tag":"c","user_tag":"u","assistant_tag":"s"}}}"#);
    seed_of(5, "manifest", br#"{"version":1,"program":"p","settings":{},"tokenizer_sha256":"","inputs":[],"report":{"records":1,"bytes":1,"dropped":0,"replaced":0,"tokens":1,"unsampled":0,"filtered":0,"duplicates":0,"rejected":0},"outputs":[{"name":"set.bin","bytes":68,"crc32c":1}]}"#);
    seed_of(6, "template", br#"[{"name":"t","format_user":{"slots":["<u>{{content}}</u>",{"token":"<x>"},["bos_token"]]},"format_system":{"slots":["{{content}}"]},"stop_words":["</u>"],"efficient_eos":true,"template_class":"Llama2Template","thought_words":["<a>","</a>"]}]"#);
    for class in ["ReasoningTemplate", "DeepSeek4Template"] {
        let row = format!(r#"[{{"name":"t","template_class":"{class}","thought_words":["",""]}}]"#);
        seed_of(6, class, row.as_bytes());
    }
    seed_of(7, "questions", b"What?,1,2.50,yes,\"a, b\",C\n\"Two\nlines\",,NA,1e5,-3,A\n");
    seed_of(
        8,
        "index",
        br#"{"metadata":{"total_size":1},"weight_map":{"model.embed_tokens.weight":"model.safetensors"}}"#,
    );
    seed_of(9, "generation", br#"{"eos_token_id":[1,2],"bos_token_id":0,"temperature":NaN}"#);
    seed_of(10, "split", b"969,30,1 0.3 a 0.7 b");
    if let Ok(Some(layout)) = ms_ckpt::HfLayout::find(&SHOP.scratch.path("hf")) {
        seed_of(18, "layout", &serde_json::to_vec(&layout).expect("texts"));
    }
    let tokens = [5, 6, 0, 1, 1, 2, -100, -100, 7, 0];
    seed_of(15, "tokens", &tokens.map(i32::to_le_bytes).concat());
    seed_of(16, "chinese", "id,Question,A,B,C,D,Answer\n0,一,a,b,c,d,C\n1,二,a,\"b\n\",c,d,A\n".as_bytes());
    seed_of(17, "lines", b"{\"passage\":\"p\",\"question\":\"q\",\"answer\":true}\n{\"query\":\"q\",\"choices\":[\"a\",\"b\",\"c\",\"d\"],\"gold\":\"1\"}\n{\"activity_label\":\"a\",\"ctx_a\":\"b [title] c\",\"ctx_b\":\"d\",\"endings\":[\"a\",\"[b] c\",\"d [\",\"\"],\"label\":2}\n");
    for (number, path) in SHOP.indices.iter().enumerate() {
        seed_of(11 + number as u8, "order", &std::fs::read(path).expect("it was written"));
    }
}

fn read_samples(samples: &dyn Samples) {
    for index in 0..samples.len().min(16) {
        let _ = samples.get(index);
    }
}

/// Tokens of any numbers as every column of a fine-tuning set in all its forms, and as a pretraining set.
fn rows_of(scratch: &Scratch, bytes: &[u8]) {
    let tokens =
        bytes.chunks_exact(4).take(64).map(|b| i32::from_le_bytes(b.try_into().expect("four bytes")));
    let tokens: Vec<i32> = tokens.collect();
    let keys =
        ["input_ids", "labels", "attention_mask", "chosen_input_ids", "chosen_labels", "rejected_input_ids"];
    let columns =
        keys.iter().chain(&["rejected_labels"]).map(|key| format!("tokens/set_packed_{key}_document"));
    let _ = std::fs::create_dir(scratch.path("tokens"));
    for column in columns {
        let mut writer = IndexedWriter::create(scratch.path(&column), TokenType::I32).expect("a folder");
        writer.sequence(&tokens).and_then(|()| writer.end_document()).expect("a small file");
        writer.finish().expect("a small file");
    }
    let order = Order { fill_to: Some(1), full_shuffle: true, ..Order::shuffled(1) };
    let packed = |neat, restart| Form::Packed { neat, restart };
    for form in [
        Form::Conversation { closing: true },
        Form::Conversation { closing: false },
        packed(true, true),
        packed(true, false),
        packed(false, true),
        Form::Pairs,
    ] {
        for (row_tokens, negative_ids_as_upstream) in [(3, true), (99, false)] {
            let order = order.clone();
            let options =
                SftOptions { row_tokens, form, eos: 0, order, negative_ids_as_upstream, index_files: false };
            let split = Split::parse("1").expect("a number");
            let sets = SftDataset::open(scratch.path("tokens/set"), &split, [2, 0, 0], &options)
                .expect("sound data");
            sets.iter().flatten().for_each(|set| read_samples(&**set));
        }
    }
    let paths = vec![scratch.path("tokens/set_packed_input_ids_document").display().to_string()];
    let paths = DataPaths::Split { paths, split: Split::parse("1").expect("a number") };
    let options = GptOptions {
        pad: Some(1),
        reset_position_ids: true,
        reset_attention_mask: true,
        eod_mask_loss: true,
        filler: Some(7),
        ..GptOptions::new(4, 1, 0)
    };
    if let Ok(sets) = ms_data::gpt::build(&paths, [Some(3), None, None], &options, Upstream::V2_0_0) {
        sets.iter().flatten().for_each(|set| read_samples(set));
    }
}

/// The questions of a benchmark as both protocols ask them, from these files; the first one's folder is read.
#[cfg(feature = "programs")]
fn asked(task: &str, files: [&str; 2], bytes: &[u8]) {
    use ms_cli::megatron::Upstream::V2_0_0;
    let [folder, _] = files.map(|file| SHOP.scratch.write(file, bytes).with_file_name(""));
    let task = ms_eval::task::Task::of(task).expect("a benchmark");
    for (harness, shots) in [(true, Some(1)), (true, Some(0)), (true, None), (false, None)] {
        let _ = task.questions(&folder, harness, shots, usize::MAX, V2_0_0);
    }
}

/// The report of a trace, in both forms.
#[cfg(feature = "programs")]
fn reported(trace: &Path) {
    for as_json in [false, true] {
        let _ = ms_profile::report::write(&mut std::io::sink(), trace, 9, as_json);
    }
}

#[cfg(not(feature = "programs"))]
fn reported(trace: &Path) {
    let _ = ms_trace::chrome::read(trace);
}

#[cfg(not(feature = "programs"))]
fn asked(_: &str, _: [&str; 2], _: &[u8]) {}

fn one(which: u8, bytes: &[u8]) {
    let Workshop { scratch, tokenizer, indices } = &*SHOP;
    let text = || std::str::from_utf8(bytes).unwrap_or_default();
    match which {
        0 => reported(&scratch.write("run/ASCEND_PROFILER_OUTPUT/trace_view.json", bytes)),
        19 => {
            scratch.write("run/profiler_metadata.json", bytes);
            let trace = br#"[{"ph":"X","name":"iteration","cat":"step","ts":1,"dur":2}]"#;
            reported(&scratch.write("run/ASCEND_PROFILER_OUTPUT/trace_view.json", trace));
        }
        1 => drop(ms_trace::metrics::JsonLines::open(&scratch.write("metrics.jsonl", bytes), 5)),
        2 => {
            scratch.write("progress/progress.txt", bytes);
            let begun =
                ms_trace::progress::Progress::begin(&scratch.path("progress"), "7", 2, Instant::now(), 0.0);
            if let Ok(progress) = begun {
                let done = ms_trace::progress::Done { iteration: 3, flops: 1e9, tokens: 10 };
                let _ = progress.checkpoint(done, false);
            }
        }
        3 => {
            if let Ok(samples) = SafetensorsSamples::open(scratch.write("samples.safetensors", bytes)) {
                read_samples(&samples);
            }
        }
        4 => {
            scratch.write("described/dataset_info.json", bytes);
            drop(ms_data::handler::described_sets(&scratch.path("described"), &["a", "b"]));
        }
        5 => {
            let path = scratch.write("data/set.manifest.json", bytes);
            let wanted = Manifest::new("p".into(), serde_json::Map::new(), String::new());
            let _ = Manifest::standing(&path, &wanted);
            let mut manifests = Manifests::default();
            let _ = manifests.of_output(&scratch.path("data/set.bin"));
            let _ = manifests.check_beside(&scratch.path("data/set.bin"));
        }
        6 => {
            let path = scratch.write("templates.json", bytes);
            let Ok(template) = Template::from_file("t", &path) else { return };
            let roles = [Role::User, Role::Assistant, Role::Observation, Role::Function];
            let messages =
                roles.map(|role| Message::new(role, r#"{"name":"f","arguments":{"a":[1]}} the cat"#));
            for tools in [
                "",
                r#"[{"name":"f","description":"d","parameters":{"properties":{"a":{"type":"string"}}}}]"#,
            ] {
                for cutoff in [5, usize::MAX] {
                    let _ = template.encode(tokenizer, &messages, "Be brief.", tools, cutoff);
                }
                let _ = template.encode_answer(tokenizer, &messages, "", tools);
            }
        }
        7 => asked("mmlu", ["quiz/test/law_test.csv", "quiz/dev/law_dev.csv"], bytes),
        16 => asked("ceval", ["val/law_val.csv", "dev/law_dev.csv"], bytes),
        17 => ["boolq", "hellaswag"].iter().for_each(|task| asked(task, ["lines/dev.jsonl"; 2], bytes)),
        8 | 9 => {
            let name = if which == 8 { "model.safetensors.index.json" } else { "generation_config.json" };
            let path = scratch.write(&format!("hf/{name}"), bytes);
            if let Ok(checkpoint) = ms_ckpt::open(&scratch.path("hf")) {
                read_all(&checkpoint);
            }
            let _ = std::fs::remove_file(path);
        }
        18 => {
            let path = scratch.write("hf/hf_layout.json", bytes);
            let layout = ms_ckpt::HfLayout::find(&scratch.path("hf"));
            let _ = std::fs::remove_file(path);
            let (Ok(Some(layout)), Ok(checkpoint)) = (layout, ms_ckpt::open(&scratch.path("hf"))) else {
                return;
            };
            let plan = ms_ckpt::Plan::hf_like(checkpoint.config(), &layout, &|_| Ok(ms_core::DType::F32));
            if let Ok(Ok(plan)) = plan {
                let _ = (plan.bytes(), plan.to_json());
            }
        }
        10 => {
            let (first, rest) = text().split_once(' ').unwrap_or((text(), ""));
            let Ok(split) = Split::parse(first) else { return };
            for n in [0, 1, 7, 1 << 40] {
                let pretraining = split.pretraining_ranges(n).into_iter().flatten();
                let tuning = split.finetuning_ranges(n).into_iter().flatten();
                assert!(
                    pretraining.chain(tuning).all(|range| range.start <= range.end && range.end <= n),
                    "{n}"
                );
            }
            let paths = rest.split_whitespace().map(str::to_owned).collect();
            let _ = DataPaths::Split { paths, split }.prefixes();
        }
        15 => rows_of(scratch, bytes),
        _ => {
            let Some(path) = indices.get(usize::from(which) - 11) else { return };
            let sound = std::fs::read(path).expect("it was written");
            std::fs::write(path, bytes).expect("a small file");
            let (sets, chats) =
                (pretraining(scratch).expect("sound data"), tuning(scratch).expect("sound data"));
            sets.iter().flatten().for_each(|set| read_samples(set));
            chats.iter().flatten().for_each(|set| read_samples(&**set));
            std::fs::write(path, sound).expect("a small file");
        }
    }
}

fuzz_target!(init: seeds(), |bytes: &[u8]| {
    let Some((&which, bytes)) = bytes.split_first() else { return };
    one(which % KINDS, bytes);
});

//! Inputs of documented commands, under the names that the documents use.

use crate::programs::{program, run};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

/// Flags whose word names an output.
const OUTPUTS: [&str; 6] = ["--save", "--output-prefix", "--output", "-o", ">", "--profile-save-path"];

/// Things in the pantry: a file, a folder, or the files that begin so.
const THINGS: [&str; 39] = [
    "tok",
    "corpus.jsonl",
    "crawl.jsonl",
    "books.jsonl",
    "more.txt",
    "chats.json",
    "chats.jsonl",
    "talks.jsonl",
    "crawl",
    "books.parquet",
    "docs",
    "src",
    "README.md",
    "model",
    "qwen3-0.6b",
    "ckpt",
    "run",
    "dist",
    "adapter",
    "reward",
    "chats.arrow",
    "a.arrow",
    "b.arrow",
    "data/a_text_document",
    "data/b_text_document",
    "data/all",
    "data/corpus_text_document",
    "corpus_text_document",
    "data/chats",
    "mmlu",
    "hellaswag",
    "ids.safetensors",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "tokenizer.model",
    "trace",
    "data/dataset_info.json",
    "ours",
];

/// Copies what `commands` read and do not make into `folder`, where it is not there already.
pub(crate) fn lay_out(commands: &str, folder: &Path) {
    let mut made: BTreeSet<&str> = BTreeSet::new();
    let mut before = "";
    for word in commands.split(|c: char| c.is_whitespace() || c == '\'' || c == '"').filter(|w| !w.is_empty())
    {
        if OUTPUTS.contains(&before) {
            made.insert(word);
        } else {
            let first = word.split(['*', ',']).next().unwrap_or_default().trim_end_matches('/');
            let named = THINGS.iter().filter(|thing| {
                first == **thing
                    || first.strip_prefix(**thing).is_some_and(|rest| rest.starts_with('/'))
                    || (before == "--dataset-dir" && **thing == "data/dataset_info.json")
                    || (word == "." && ["docs", "src"].contains(thing))
            });
            for thing in named.filter(|thing| !made.contains(**thing)) {
                fetch(thing, folder);
            }
        }
        before = word;
    }
}

/// Copies one thing.
fn fetch(thing: &str, folder: &Path) {
    let source = pantry().join(thing);
    let (dir, name) = (source.parent().unwrap(), source.file_name().unwrap().to_string_lossy().into_owned());
    let target = folder.join(thing);
    std::fs::create_dir_all(target.parent().unwrap()).unwrap();
    if target.exists() {
        return;
    }
    let mut found = false;
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let file = path.file_name().unwrap().to_string_lossy().into_owned();
        let prefix = !source.exists() && file.starts_with(&name);
        let whole = file == name || (thing == "data/dataset_info.json" && file.ends_with(".json"));
        if whole || prefix {
            found = true;
            let to = target.parent().unwrap().join(&file);
            if !to.exists() {
                assert!(Command::new("cp").arg("-r").arg(&path).arg(&to).status().unwrap().success());
            }
        }
    }
    assert!(found, "{thing} is in the pantry");
}

/// The folder with everything, made once.
fn pantry() -> &'static Path {
    static MADE: OnceLock<tempfile::TempDir> = OnceLock::new();
    MADE.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        texts(dir.path());
        tables(dir.path());
        vocabularies(dir.path());
        models(dir.path());
        datasets(dir.path());
        quizzes(dir.path());
        dir
    })
    .path()
}

fn words(seed: usize, count: usize) -> String {
    let list = [
        "some", "words", "of", "a", "text", "that", "goes", "on", "and", "ends", "with", "another", "number",
    ];
    (0..count)
        .map(|i| format!("{} ", list[(seed * 31 + i * (seed % 7 + 1)) % list.len()]))
        .collect::<String>()
        + &seed.to_string()
}

fn lines(path: &Path, values: impl Iterator<Item = Value>) {
    std::fs::write(path, values.map(|v| format!("{v}\n")).collect::<String>()).unwrap();
}

fn texts(here: &Path) {
    let root = ms_testing::workspace_root();
    let text = |i: usize| json!({"text": words(i, 40 + i % 90)});
    for name in ["corpus.jsonl", "crawl.jsonl", "books.jsonl"] {
        lines(&here.join(name), (0..1500).map(text));
    }
    std::fs::write(here.join("more.txt"), words(5, 100)).unwrap();
    let chat = |i: usize| json!({"conversations": [{"from": "human", "value": words(i, 9)}, {"from": "gpt", "value": words(i + 1, 12)}]});
    lines(&here.join("chats.jsonl"), (0..300).map(chat));
    std::fs::write(here.join("chats.json"), Value::from_iter((0..300).map(chat)).to_string()).unwrap();
    let talk = |i: usize| json!({"talk": [{"who": "customer", "says": words(i, 9)}, {"who": "agent", "says": words(i + 1, 12)}]});
    lines(&here.join("talks.jsonl"), (0..30).map(talk));
    std::fs::copy(root.join("README.md"), here.join("README.md")).unwrap();
    for folder in ["docs", "src", "data", "crawl"] {
        std::fs::create_dir(here.join(folder)).unwrap();
    }
    std::fs::copy(root.join("ARCHITECTURE.md"), here.join("docs/ARCHITECTURE.md")).unwrap();
    std::fs::copy(root.join("xtask/src/main.rs"), here.join("src/main.rs")).unwrap();
    // Data sets by name, as LLaMA-Factory lists them.
    let columns = json!({"messages": "conversations"});
    let set = |file: &str| json!({"file_name": file, "formatting": "sharegpt", "columns": columns});
    let info = json!({"chats": set("chats.json"), "questions": set("questions.json")});
    std::fs::write(here.join("data/dataset_info.json"), info.to_string()).unwrap();
    for name in ["chats", "questions"] {
        std::fs::copy(here.join("chats.json"), here.join(format!("data/{name}.json"))).unwrap();
    }
}

/// The same texts compressed, and as a table.
fn tables(here: &Path) {
    let texts = std::fs::read(here.join("corpus.jsonl")).unwrap();
    std::fs::write(here.join("crawl/a.jsonl.zst"), zstd::encode_all(&texts[..], 1).unwrap()).unwrap();
    let column: arrow_array::ArrayRef =
        std::sync::Arc::new((0..50).map(|i| Some(words(i, 60))).collect::<arrow_array::StringArray>());
    let batch = arrow_array::RecordBatch::try_from_iter([("text", column)]).unwrap();
    let file = std::fs::File::create(here.join("books.parquet")).unwrap();
    let mut writer = parquet::arrow::ArrowWriter::try_new(file, batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
}

fn vocabularies(here: &Path) {
    run("ms-tokenizer", here, "train --vocab-size 400 --output tok README.md corpus.jsonl");
    let tokenizer: Value =
        serde_json::from_slice(&std::fs::read(here.join("tok/tokenizer.json")).unwrap()).unwrap();
    let model = &tokenizer["model"];
    std::fs::write(here.join("vocab.json"), model["vocab"].to_string()).unwrap();
    let merge = |row: &Value| match row {
        Value::String(text) => format!("{text}\n"),
        row => format!("{} {}\n", row[0].as_str().unwrap(), row[1].as_str().unwrap()),
    };
    let merges: String = model["merges"].as_array().unwrap().iter().map(merge).collect();
    std::fs::write(here.join("merges.txt"), format!("#version: 0.2\n{merges}")).unwrap();
    let letters: String = ('a'..='z').chain('0'..='9').map(|c| format!("{c}\n##{c}\n")).collect();
    std::fs::write(here.join("vocab.txt"), format!("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n{letters}")).unwrap();
    let sample = ms_testing::workspace_root().join("tests/golden/tokenizers/bpe.model");
    std::fs::copy(sample, here.join("tokenizer.model")).unwrap();
}

/// A model of four layers with eight heads in every form, a run with its optimizer, an adapter, a reward model.
fn models(here: &Path) {
    run(
        "ms-preprocess",
        here,
        "--style pretrain --input corpus.jsonl --tokenizer-name-or-path tok --append-eod --output-prefix corpus",
    );
    for ending in ["bin", "idx"] {
        let name = format!("corpus_text_document.{ending}");
        std::fs::copy(here.join(&name), here.join("data").join(&name)).unwrap();
    }
    run(
        "ms-train",
        here,
        "--num-layers 4 --hidden-size 64 --num-attention-heads 8 --ffn-hidden-size 128 --normalization RMSNorm --swiglu \
         --position-embedding-type rope --disable-bias-linear --untie-embeddings-and-output-weights \
         --make-vocab-size-divisible-by 1 --seq-length 64 --max-position-embeddings 2048 --micro-batch-size 1 \
         --global-batch-size 2 --hidden-dropout 0 --attention-dropout 0 --tokenizer-name-or-path tok \
         --data-path corpus_text_document --split 90,10,0 --train-iters 10 --eval-iters 1 --lr 1e-3 --save trained \
         --profile --profile-step-start 5 --profile-step-end 8 --profile-save-path trace",
    );
    run("ms-convert", here, "mcore mcore --load trained --save run --tp 2");
    run("ms-convert", here, "mcore hf --load trained --save model --hf-cfg-dir tok");
    run("ms-convert", here, "hf mcore --load model --save ckpt --tp 2 --pp 2");
    run("ms-convert", here, "mcore mcore --format safetensors --load run --save ours");
    for (from, to) in [("model", "qwen3-0.6b"), ("model", "reward")] {
        assert!(Command::new("cp").arg("-r").args([from, to]).current_dir(here).status().unwrap().success());
    }
    let sample = ms_testing::workspace_root().join("tests/golden/torch_dist/dense");
    assert!(Command::new("cp").arg("-r").arg(sample).arg(here.join("dist")).status().unwrap().success());
    let vector = |rows: usize, columns: usize| (vec![rows, columns], vec![0u8; rows * columns * 4]);
    let mut adapter = Vec::new();
    for layer in 0..4 {
        let name = format!("base_model.model.model.layers.{layer}.self_attn.o_proj");
        adapter.push((format!("{name}.lora_A.weight"), vector(4, 64)));
        adapter.push((format!("{name}.lora_B.weight"), vector(64, 4)));
    }
    std::fs::create_dir(here.join("adapter")).unwrap();
    write_tensors(&here.join("adapter/adapter_model.safetensors"), adapter);
    let config = json!({"peft_type": "LORA", "r": 4, "lora_alpha": 32, "target_modules": ["o_proj"]});
    std::fs::write(here.join("adapter/adapter_config.json"), config.to_string()).unwrap();
    reward(&here.join("reward"));
}

/// Name, shape and bytes of a float32 tensor.
type Tensor = (String, (Vec<usize>, Vec<u8>));

/// Turns a copy of the model into one with a score instead of a vocabulary.
fn reward(dir: &Path) {
    let file = dir.join("model.safetensors");
    let bytes = std::fs::read(&file).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: serde_json::Map<String, Value> = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    let mut tensors = Vec::new();
    for (name, about) in
        header.iter().filter(|(name, _)| !["__metadata__", "lm_head.weight"].contains(&name.as_str()))
    {
        assert_eq!(about["dtype"], "F32", "{name}");
        let number = |v: &Value| v.as_u64().unwrap() as usize;
        let [from, to] = [0, 1].map(|i| 8 + length + number(&about["data_offsets"][i]));
        let shape = about["shape"].as_array().unwrap().iter().map(number).collect();
        tensors.push((name.clone(), (shape, bytes[from..to].to_vec())));
    }
    tensors.push(("score.weight".to_owned(), (vec![1, 64], vec![0; 256])));
    write_tensors(&file, tensors);
    let mut config: Value = serde_json::from_slice(&std::fs::read(dir.join("config.json")).unwrap()).unwrap();
    config["architectures"] = json!(["LlamaForSequenceClassification"]);
    config["num_labels"] = json!(1);
    std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
    let _ = std::fs::remove_file(dir.join("ms-checksums.json"));
}

fn write_tensors(path: &Path, tensors: Vec<Tensor>) {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, (shape, bytes)) in tensors {
        let offsets = [data.len(), data.len() + bytes.len()];
        header.insert(name, json!({"dtype": "F32", "shape": shape, "data_offsets": offsets}));
        data.extend(bytes);
    }
    let header = Value::Object(header).to_string();
    let mut out = (header.len() as u64).to_le_bytes().to_vec();
    out.extend(header.as_bytes());
    out.extend(data);
    std::fs::write(path, out).unwrap();
}

fn datasets(here: &Path) {
    for name in ["a", "b"] {
        let args =
            "--style pretrain --input corpus.jsonl --tokenizer-name-or-path tok --append-eod --output-prefix";
        run("ms-preprocess", here, &format!("{args} data/{name}"));
    }
    run("ms-pack", here, "merge --output-prefix data/all data/a_text_document data/b_text_document");
    for name in ["chats.arrow", "a.arrow", "b.arrow"] {
        let args = "--style sharegpt --prompt-type qwen --input chats.json --tokenizer-name-or-path tok --output-prefix -";
        let stream = program("ms-preprocess", here).args(args.split(' ')).output().unwrap();
        assert!(stream.status.success());
        std::fs::write(here.join(name), stream.stdout).unwrap();
    }
    run("ms-pack", here, "--input chats.arrow --seq-length 4096 --output-prefix data/chats");
}

fn quizzes(here: &Path) {
    for (folder, rows) in [("dev", 5), ("test", 2)] {
        std::fs::create_dir_all(here.join("mmlu").join(folder)).unwrap();
        let row = |i: usize| format!("What is {i}?,{i},1,2,3,A\n");
        let path = here.join(format!("mmlu/{folder}/sums_{folder}.csv"));
        std::fs::write(path, (0..rows).map(row).collect::<String>()).unwrap();
    }
    std::fs::create_dir_all(here.join("hellaswag/val")).unwrap();
    let question = |i: usize| json!({"query": words(i, 9), "choices": ["a", "b", "c", "d"], "gold": i % 4});
    lines(&here.join("hellaswag/val/val.jsonl"), (0..3).map(question));
    let ids: Vec<u8> = (0..8i64).flat_map(i64::to_le_bytes).collect();
    let header = json!({"input_ids": {"dtype": "I64", "shape": [2, 4], "data_offsets": [0, 64]}}).to_string();
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend(ids);
    std::fs::write(here.join("ids.safetensors"), bytes).unwrap();
}

//! The programs, built as the tests are, and a folder with their inputs.

#![allow(dead_code)] // each test file uses its part

use ms_cli::megatron::{Flag, Line, Upstream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

/// Time after which a program counts as hanging: a minute on a machine with other work, or `MS_PATIENCE` seconds.
pub(crate) fn patience() -> Duration {
    let seconds = std::env::var("MS_PATIENCE").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(60))
}

/// The folder of the programs, built as this test was.
pub(crate) fn programs() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let status = Command::new(env!("CARGO"))
            .args(["build", "--workspace", "--bins", "--quiet", "--locked"])
            .current_dir(ms_testing::workspace_root())
            .status()
            .unwrap();
        assert!(status.success(), "the programs build");
        // This test's own executable lies in TARGET/debug/deps.
        std::env::current_exe().unwrap().ancestors().nth(2).unwrap().to_owned()
    })
}

/// Standard output and error of a program.
pub(crate) fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// A program in a folder, without what the surroundings of a test would change.
pub(crate) fn program(name: &str, folder: &Path) -> Command {
    let mut command = Command::new(programs().join(name));
    command
        .current_dir(folder)
        .env("MS_NO_PROGRESS", "1")
        .env("RUST_BACKTRACE", "0")
        .env_remove("MS_ISA")
        .stdin(Stdio::null());
    command
}

/// Runs a program to its end; `None` if it takes longer than [`patience`]. Its output goes to files, which do not fill up.
pub(crate) fn within_patience(command: &mut Command, folder: &Path, tag: &str) -> Option<Output> {
    let paths = ["out", "err"].map(|what| folder.join(format!(".{tag}.{what}")));
    let files = paths.each_ref().map(|path| std::fs::File::create(path).unwrap());
    let [out, err] = files;
    let mut child = command.stdout(out).stderr(err).spawn().unwrap();
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break Some(status);
        }
        if start.elapsed() > patience() {
            child.kill().unwrap();
            child.wait().unwrap();
            break None;
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    let [stdout, stderr] = paths.map(|path| {
        let bytes = std::fs::read(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        bytes
    });
    status.map(|status| Output { status, stdout, stderr })
}

/// What is wrong with how a program ended, if anything: a signal, a panic, a code that means nothing.
pub(crate) fn misbehaviour(output: Option<&Output>) -> Option<String> {
    let Some(output) = output else { return Some(format!("it ran for more than {:?}", patience())) };
    let said = text(output);
    if ["panicked at", "internal error", "memory allocation of"].iter().any(|words| said.contains(words)) {
        return Some(format!("it panicked: {said}"));
    }
    match output.status.code() {
        Some(0..=2) => None,
        Some(code) => Some(format!("exit code {code}: {said}")),
        None => Some(format!("a signal ended it: {said}")),
    }
}

/// Runs a program that must succeed.
pub(crate) fn run(name: &str, folder: &Path, args: &str) {
    let output = program(name, folder).args(args.split_whitespace()).output().unwrap();
    assert!(output.status.success(), "{name} {args}: {}", text(&output));
}

/// Flags of a model of one layer over rows of 16 tokens.
pub(crate) const MODEL: &str = "--num-layers 1 --hidden-size 16 --num-attention-heads 2 --ffn-hidden-size 16 \
     --normalization RMSNorm --swiglu --position-embedding-type rope --disable-bias-linear \
     --untie-embeddings-and-output-weights --make-vocab-size-divisible-by 1 --seq-length 16 --max-position-embeddings 16 \
     --micro-batch-size 1 --global-batch-size 2 --hidden-dropout 0 --attention-dropout 0";

/// A folder with a text, a tokenizer, datasets, token streams, a trained model in two forms and a quiz.
pub(crate) fn workshop() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let here = dir.path();
    let line = |i: usize| format!("{{\"text\": \"some words and number {i}, again and again\"}}\n");
    std::fs::write(here.join("text.jsonl"), (0..200).map(line).collect::<String>()).unwrap();
    let chat = |i: usize| {
        format!(
            "{{\"conversations\": [{{\"from\": \"human\", \"value\": \"question {i}\"}}, {{\"from\": \"gpt\", \"value\": \
             \"answer {i}\"}}]}}\n"
        )
    };
    std::fs::write(here.join("chats.jsonl"), (0..50).map(chat).collect::<String>()).unwrap();
    for (folder, rows) in [("dev", 5), ("test", 2)] {
        std::fs::create_dir_all(here.join("quiz").join(folder)).unwrap();
        let row = |i: usize| format!("What is {i}?,{i},1,2,3,A\n");
        let path = here.join(format!("quiz/{folder}/sums_{folder}.csv"));
        std::fs::write(path, (0..rows).map(row).collect::<String>()).unwrap();
    }
    run("ms-tokenizer", here, "train --vocab-size 280 --output tok text.jsonl");
    run(
        "ms-preprocess",
        here,
        "--style pretrain --input text.jsonl --tokenizer-name-or-path tok --append-eod --output-prefix data",
    );
    let stream = program("ms-preprocess", here)
        .args(
            "--style sharegpt --prompt-type qwen --input chats.jsonl --tokenizer-name-or-path tok".split(' '),
        )
        .args(["--seq-length", "160", "--output-prefix", "-"])
        .output()
        .unwrap();
    assert!(stream.status.success(), "{}", text(&stream));
    std::fs::write(here.join("chats.tokens"), stream.stdout).unwrap();
    run(
        "ms-train",
        here,
        &format!(
            "{MODEL} --tokenizer-name-or-path tok --data-path data_text_document --split 90,10,0 --train-iters 2 \
             --eval-iters 0 --lr 1e-3 --save trained"
        ),
    );
    run("ms-convert", here, "mcore hf --load trained --save hf --hf-cfg-dir tok");
    dir
}

/// A program of the table with a command line that works in the workshop; outputs are called OUT.
pub(crate) struct Case {
    pub(crate) flags: &'static Line,
    pub(crate) name: &'static str,
    pub(crate) line: String,
}

pub(crate) fn cases() -> Vec<Case> {
    let case = |flags: &'static Line, line: &str| Case { flags, name: flags.name, line: line.to_owned() };
    vec![
        case(
            ms_train::line(),
            &format!(
                "{MODEL} --tokenizer-name-or-path tok --data-path data_text_document --split 90,10,0 --train-iters 1 \
                 --eval-iters 0 --lr 1e-3 --log-interval 1 --threads 1"
            ),
        ),
        case(ms_infer::line(), "generate --load hf --prompt some --max-new-tokens 2 --threads 1"),
        case(
            ms_eval::line(),
            "mmlu --load hf --data-path quiz --protocol harness --num-fewshot 1 --threads 1",
        ),
        case(
            ms_preprocess::line(),
            "--style pretrain --input text.jsonl --tokenizer-name-or-path tok --force --output-prefix OUT",
        ),
        case(ms_convert::line(), "hf mcore --load hf --force --no-sync --save OUT"),
    ]
}

/// All spellings of a flag of a program.
pub(crate) fn spellings(name: &str, flag: &str) -> Vec<String> {
    let line = cases().into_iter().find(|case| case.name == name).map(|case| case.flags);
    let all: Vec<&Flag> = line.into_iter().flat_map(|line| line.flags(Upstream::Head)).collect();
    let dest = all.iter().find(|f| f.flag == flag).map(|f| f.dest(Upstream::Head));
    let same = all.iter().filter(|f| Some(f.dest(Upstream::Head)) == dest).map(|f| f.flag.to_owned());
    same.chain([flag.to_owned()]).collect()
}

/// Removes what a call left under names that begin with `out`, so that the next one finds nothing of it.
pub(crate) fn tidy(folder: &Path, out: &str) {
    for entry in std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()) {
        if entry.file_name().unwrap().to_string_lossy().trim_start_matches('.').starts_with(out) {
            let _ = if entry.is_dir() { std::fs::remove_dir_all(entry) } else { std::fs::remove_file(entry) };
        }
    }
}

/// Makes all `calls` on two threads, which are numbered, and lists the complaints if there are any.
pub(crate) fn without_complaint<T: Sync>(calls: &[T], make: impl Fn(usize, &T) -> Option<String> + Sync) {
    let (next, wrong, make) = (&AtomicUsize::new(0), &Mutex::new(Vec::new()), &make);
    std::thread::scope(|scope| {
        for worker in 0..2 {
            scope.spawn(move || {
                while let Some(call) = calls.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let complaint = make(worker, call);
                    wrong.lock().unwrap().extend(complaint);
                }
            });
        }
    });
    let wrong = wrong.lock().unwrap();
    assert!(wrong.is_empty(), "{} of {} calls:\n{}", wrong.len(), calls.len(), wrong.join("\n"));
}

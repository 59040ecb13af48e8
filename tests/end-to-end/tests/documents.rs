//! Every command in README, guides and `--help` is run as written, in a folder that holds only the inputs it names.
//!
//! A block that needs something a test does not have (a network, a cluster, other programs) says so in the document, in the
//! line before it: `<!-- not run: REASON -->`. Numbers of iterations are reduced; nothing else is changed. A block of only
//! cargo commands is the build and the tests themselves, including this one: what it names has to exist.

#![allow(clippy::unwrap_used)] // tests

mod documented_inputs;
mod programs;

use programs::{programs, text};
use std::path::Path;
use std::process::{Command, Stdio};

/// Commands of a document that belong together.
struct Block {
    /// Document and line.
    place: String,
    commands: String,
    /// Why it is not run.
    skipped: Option<String>,
}

/// The blocks of shell commands of a Markdown file.
fn blocks(name: &str, markdown: &str) -> Vec<Block> {
    let mut all: Vec<Block> = Vec::new();
    let (mut inside, mut before) = (None, "");
    for (number, line) in markdown.lines().enumerate() {
        let bare = line.trim();
        match (&inside, bare) {
            (None, "```sh") => {
                let reason = before.strip_prefix("<!-- not run: ").and_then(|rest| rest.strip_suffix(" -->"));
                let place = format!("{name}:{}", number + 1);
                all.push(Block { place, commands: String::new(), skipped: reason.map(str::to_owned) });
                inside = Some(true);
            }
            (None, fence) if fence.starts_with("```") => inside = Some(false),
            (Some(_), "```") => inside = None,
            (Some(true), _) => {
                let block = all.last_mut().unwrap();
                block.commands.push_str(line);
                block.commands.push('\n');
            }
            _ => {}
        }
        if !bare.is_empty() {
            before = bare;
        }
    }
    assert!(inside.is_none(), "{name}: a fence is left open");
    all
}

/// The examples in the help of a program: lines that begin with a command, and those that go on after a backslash.
fn examples(program: &str, help: &str) -> Vec<Block> {
    let mut all: Vec<Block> = Vec::new();
    let mut goes_on = false;
    for line in help.lines() {
        let begins = ["  ms-", "  find ", "  echo "].iter().any(|start| line.starts_with(start));
        if goes_on || begins {
            if !goes_on {
                let place = format!("{program} --help, example {}", all.len() + 1);
                all.push(Block { place, commands: String::new(), skipped: None });
            }
            let block = all.last_mut().unwrap();
            block.commands.push_str(line);
            block.commands.push('\n');
            goes_on = line.ends_with(['\\', '|']);
        }
    }
    all
}

/// Whether a block builds and tests the workspace, and nothing else.
fn is_cargo(commands: &str) -> bool {
    commands.lines().all(|line| line.starts_with("cargo "))
}

/// What commands of cargo name that the workspace does not have: packages, integration tests, tasks of `xtask`.
fn unknown(commands: &str, root: &Path) -> Vec<String> {
    let tasks = std::fs::read_to_string(root.join("xtask/src/main.rs")).unwrap();
    let folder = |package: &str| {
        let places = ["crates", "tests", ""].map(|parent| root.join(parent).join(package));
        places.into_iter().find(|place| place.join("Cargo.toml").is_file())
    };
    let mut missing = Vec::new();
    for line in commands.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let behind =
            |flag: &str| words.windows(2).filter(|two| two[0] == flag).map(|two| two[1]).collect::<Vec<_>>();
        let packages: Vec<_> = behind("-p").into_iter().map(|name| (name, folder(name))).collect();
        missing.extend(
            packages.iter().filter(|(_, folder)| folder.is_none()).map(|(name, _)| format!("-p {name}")),
        );
        missing.extend(
            behind("xtask")
                .iter()
                .filter(|task| !tasks.contains(&format!("{task:?}")))
                .map(|task| format!("xtask {task}")),
        );
        let holds =
            |file: &str| packages.iter().flat_map(|(_, folder)| folder).any(|f| f.join(file).is_file());
        let module = |place: &str, name: &str| {
            ["", "/mod", "/main"].iter().any(|end| holds(&format!("tests/{place}{name}{end}.rs")))
        };
        for test in behind("--test") {
            missing.extend((!module("", test)).then(|| format!("--test {test}")));
            // Its modules that are named.
            let named = words.iter().filter_map(|word| word.strip_suffix("::"));
            let unknown = named.filter(|name| !module(&format!("{test}/"), name));
            missing.extend(unknown.map(|name| format!("{test} {name}::")));
        }
    }
    missing
}

/// The same commands with few iterations, also of the validation that ends a run, which has a hundred if nothing is said.
fn short(commands: &str) -> String {
    let most = |flag: &str| match flag {
        "--train-iters" if commands.contains("--profile") => 8,
        "--train-iters" | "--eval-interval" | "--save-interval" => 2,
        "--lr-warmup-iters" | "--eval-iters" => 1,
        _ => u64::MAX,
    };
    let mut out = String::new();
    let (mut limit, mut flag) = (u64::MAX, "");
    for word in commands.split_inclusive(char::is_whitespace) {
        match word.trim().parse::<u64>() {
            Ok(number) if number > limit => {
                let few = if flag == "--train-iters" && !commands.contains("--eval-iters") {
                    format!("{limit} --eval-iters 1")
                } else {
                    limit.to_string()
                };
                out.push_str(&word.replace(word.trim(), &few));
            }
            _ => out.push_str(word),
        }
        flag = word.trim();
        limit = most(flag);
    }
    out
}

fn run(block: &Block, folder: &Path) -> Result<(), String> {
    documented_inputs::lay_out(&block.commands, folder);
    let path = std::env::join_paths(
        std::iter::once(programs().to_owned())
            .chain(std::env::split_paths(&std::env::var_os("PATH").unwrap())),
    );
    let output = Command::new("sh")
        .args(["-ec", &short(&block.commands)])
        .current_dir(folder)
        .env("PATH", path.unwrap())
        .env("MS_NO_PROGRESS", "1")
        .env("MS_TOKENIZER_CACHE", "off")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    if output.status.success() {
        Ok(())
    } else {
        Err(format!("{}: {}\n{}{}", block.place, output.status, block.commands, text(&output)))
    }
}

#[test]
fn every_command_of_the_documents_runs() {
    let root = ms_testing::workspace_root();
    let mut documents = vec!["README.md".to_owned(), "CONTRIBUTING.md".to_owned()];
    for folder in ["docs/guides", "docs/concepts", "docs/benchmarks", "docs/interoperability"] {
        let files = std::fs::read_dir(root.join(folder)).unwrap();
        let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
        documents.extend(names.filter(|name| name.ends_with(".md")).map(|name| format!("{folder}/{name}")));
    }
    documents.sort();
    let (mut ran, mut skipped, mut failed) = (0, Vec::new(), Vec::new());
    for name in documents {
        // One folder per document: what a block has made, the next one finds.
        let folder = tempfile::tempdir().unwrap();
        for block in blocks(&name, &std::fs::read_to_string(root.join(&name)).unwrap()) {
            match &block.skipped {
                Some(_) if is_cargo(&block.commands) => {
                    let unknown = unknown(&block.commands, &root);
                    failed.extend(
                        (!unknown.is_empty())
                            .then(|| format!("{}: there is no {}", block.place, unknown.join(", "))),
                    );
                }
                Some(reason) => skipped.push(format!("{}: {reason}", block.place)),
                None => {
                    ran += 1;
                    failed.extend(run(&block, folder.path()).err());
                }
            }
        }
    }
    println!("{ran} blocks ran, {} are not run:\n{}", skipped.len(), skipped.join("\n"));
    assert!(failed.is_empty(), "{}", failed.join("\n\n"));
    assert!(ran >= 20, "{ran} blocks");
    assert!(skipped.len() <= 8, "{skipped:#?}");
}

#[test]
fn every_example_of_help_runs() {
    let (mut ran, mut failed) = (0, Vec::new());
    for program in ["tokenizer", "preprocess", "pack", "train", "convert", "infer", "eval", "profile"] {
        let program = format!("ms-{program}");
        let help = Command::new(programs().join(&program)).arg("--help").output().unwrap();
        let found = examples(&program, &String::from_utf8(help.stdout).unwrap());
        assert!(!found.is_empty(), "{program} --help shows examples");
        let folder = tempfile::tempdir().unwrap();
        for block in found {
            ran += 1;
            // An example of a list stands for itself: outputs of others are not in its way.
            let own = folder.path().join(ran.to_string());
            std::fs::create_dir(&own).unwrap();
            failed.extend(run(&block, &own).err());
        }
    }
    println!("{ran} examples ran");
    assert!(failed.is_empty(), "{}", failed.join("\n\n"));
    assert!(ran >= 25, "{ran} examples");
}

#[test]
fn blocks_reasons_and_examples_are_found() {
    let markdown = "a\n```sh\nx\n```\n<!-- not run: no network -->\n```sh\ny\n```\n```json\n{}\n```\n1. z\n   ```sh\n   w \\\n   v\n   ```\n";
    let found = blocks("d", markdown);
    let told: Vec<_> = found.iter().map(|b| (b.commands.as_str(), b.skipped.as_deref())).collect();
    assert_eq!(told, [("x\n", None), ("y\n", Some("no network")), ("   w \\\n   v\n", None)]);
    assert!(is_cargo("cargo a\ncargo b\n") && !is_cargo("cargo a\nsh b\n"));
    let root = ms_testing::workspace_root();
    assert_eq!(
        unknown("cargo xtask tidy\ncargo test -p ms-spec -p end-to-end --test documents\n", &root),
        [] as [&str; 0]
    );
    let none = "cargo xtask tid\ncargo test -p ms-none --test none\ncargo test -p ms-spec --test documents\n\
                cargo test -p ms-trainer --test all families:: familes::\n";
    let all = ["xtask tid", "-p ms-none", "--test none", "--test documents", "all familes::"];
    assert_eq!(unknown(none, &root), all);
    let found = examples("p", "  ms-a b \\\n    c\ntext\n  ms-d\n");
    assert_eq!(
        found.iter().map(|b| b.commands.as_str()).collect::<Vec<_>>(),
        ["  ms-a b \\\n    c\n", "  ms-d\n"]
    );
    assert_eq!(short("a --train-iters 1000 --lr 5\n"), "a --train-iters 2 --eval-iters 1 --lr 5\n");
    assert_eq!(short("a --train-iters 9 --eval-iters 5\n"), "a --train-iters 2 --eval-iters 1\n");
}

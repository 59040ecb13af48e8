//! Paths that documents and comments name: a file or folder of the workspace in backquotes, or the target of a relative link,
//! exists.
//!
//! The changelog and the history name files of their day and are not checked.

use anyhow::{Context, Result};
use std::path::{Path, PathBuf};

/// Where paths in backquotes start that are checked.
const FOLDERS: [&str; 7] = ["crates/", "docs/", "examples/", "fuzz/", "tests/", "tools/", "xtask/"];
/// The same in comments of sources, which also name files of other software.
const OWN_FOLDERS: [&str; 5] = ["crates/", "fuzz/", "tests/golden/", "tools/ms-", "xtask/"];
/// Documents that name files which existed when they were written.
const OF_THEIR_DAY: [&str; 2] = ["CHANGELOG.md", "docs/history.md"];

/// Paths that do not exist, as sentences.
pub(crate) fn check(root: &Path, files: &[PathBuf]) -> Result<Vec<String>> {
    let mut findings = Vec::new();
    for path in files.iter().filter(|path| path.extension().is_some_and(|e| e == "md" || e == "rs")) {
        let name = path.strip_prefix(root).unwrap_or(path).display().to_string();
        if OF_THEIR_DAY.contains(&name.as_str()) {
            continue;
        }
        let text = std::fs::read_to_string(path).with_context(|| name.clone())?;
        let (folder, source) = (path.parent().unwrap_or(root), name.ends_with(".rs"));
        let folders: &[&str] = if source { &OWN_FOLDERS } else { &FOLDERS };
        for (number, line) in text.lines().enumerate() {
            if source && !line.trim_start().starts_with("//") {
                continue;
            }
            let quoted = quoted(line, folders).into_iter().map(|p| (p, root.join(p)));
            let linked = if source { Vec::new() } else { linked(line) };
            let linked = linked.into_iter().map(|p| (p, folder.join(p)));
            let missing = quoted.chain(linked).filter(|(_, place)| !place.exists());
            findings.extend(missing.map(|(p, _)| format!("{name}:{}: there is no {p}", number + 1)));
        }
    }
    Ok(findings)
}

/// Paths of the workspace in backquotes; patterns and placeholders (`NAME`, `*`, `{a,b}`) are not paths.
fn quoted<'a>(line: &'a str, folders: &[&str]) -> Vec<&'a str> {
    let plain = |p: &str| p.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '/' | '.' | '-' | '_'));
    let spans = line.split('`').skip(1).step_by(2);
    spans
        .filter(|p| folders.iter().any(|folder| p.starts_with(folder)) && plain(p) && !p.contains("NAME"))
        .collect()
}

/// Targets of links to other files of the repository, without their anchors.
fn linked(line: &str) -> Vec<&str> {
    let targets = line.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target);
    let files = targets.map(|target| target.split('#').next().unwrap_or(""));
    files.filter(|file| !file.is_empty() && !file.contains("://") && !file.contains(' ')).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_in_backquotes_and_links_are_found() {
        let line = "See `crates/a/src/lib.rs`, `tools/*`, `tests/{a,b}.rs`, `docs/NAME.md`, `cargo test` and [b](c/d.md#e).";
        assert_eq!(quoted(line, &FOLDERS), ["crates/a/src/lib.rs"]);
        assert_eq!(linked(line), ["c/d.md"]);
        assert_eq!(linked("[a](https://example.org/b.md) and [c](#d)"), [""; 0]);
    }

    #[test]
    fn a_path_that_does_not_exist_is_a_finding() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let folder = std::env::temp_dir().join(format!("ms-xtask-paths-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (page, source) = (folder.join("page.md"), folder.join("source.rs"));
        std::fs::write(&page, "`xtask/src/main.rs` and\n`xtask/src/none.rs` and [c](none.md)\n").unwrap();
        let comments =
            "// `xtask/src/none.rs`, of others `tools/none.py`\nlet text = \"`xtask/src/none.rs`\";\n";
        std::fs::write(&source, comments).unwrap();
        let found = check(&root, &[page, source]).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(found[2].ends_with("source.rs:1: there is no xtask/src/none.rs"), "{found:?}");
        assert!(found[0].ends_with(":2: there is no xtask/src/none.rs"), "{found:?}");
        assert!(found[1].ends_with(":2: there is no none.md"), "{found:?}");
    }
}

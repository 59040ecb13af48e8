//! Rules about the text of files.

use anyhow::{Context, Result};
use std::path::{Path, PathBuf};

/// A file with more lines than this hides a second concept.
const MAX_LINES: usize = 600;
/// Columns of a line of comments; code is wrapped sooner, by rustfmt.
const COMMENT_WIDTH: usize = 130;
/// The crate of kernels, as sources name it.
const KERNELS: &str = "ms_kernels";
/// Tables of a C interface, a row a function: nobody reads them from top to bottom either.
const TABLES: &str = "crates/hccl-sys/src/tables/";

/// What is wrong with the sources, as sentences.
pub(crate) fn check(root: &Path, files: &[PathBuf]) -> Result<Vec<String>> {
    let mut findings = Vec::new();
    for path in files {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let name = path.strip_prefix(root).unwrap_or(path).to_string_lossy().into_owned();
        let rust = name.ends_with(".rs");
        // The patterns are assembled here so that this file does not match itself.
        let stubs = ["todo", "unimplemented"].map(|m| format!("{m}!("));
        let ignored = format!("#[{}", "ignore");
        for (i, line) in text.lines().enumerate() {
            let at = format!("{name}:{}", i + 1);
            if rust && stubs.iter().any(|s| line.contains(s.as_str())) {
                findings.push(format!("{at}: a stub"));
            }
            if rust && line.trim_start().starts_with(&ignored) {
                findings.push(format!("{at}: an ignored test"));
            }
            if rust && uses_unsafe(line) && !may_hold_unsafe(&name) {
                findings.push(format!("{at}: unsafe outside the places that ARCHITECTURE.md names"));
            }
            if rust && line.contains(KERNELS) && !may_name_kernels(&name) {
                findings.push(format!("{at}: kernels are named outside the CPU device"));
            }
            if let Some(home) = ["home", "root"].iter().find(|d| names_folder(line, d)) {
                findings.push(format!("{at}: a path of one machine (/{home}/...)"));
            }
        }
        // Written by a program from a table: nobody reads it from top to bottom.
        let generated = text.lines().next().is_some_and(|l| l.contains("do not edit"));
        if rust && !generated && !name.starts_with(TABLES) && text.lines().count() > MAX_LINES {
            findings.push(format!("{name}: {} lines; split it by concept", text.lines().count()));
        }
        if rust {
            let lines: Vec<&str> = text.lines().collect();
            let found = wide_comments(&lines).into_iter().map(|n| (n, "a comment of more than 130 columns"));
            let silent =
                silent_errors(&lines).into_iter().map(|n| (n, "an # Errors section that says nothing"));
            findings.extend(found.chain(silent).map(|(n, what)| format!("{name}:{}: {what}", n + 1)));
        }
        if rust && !text.trim_start().starts_with("//!") && !text.trim_start().starts_with("#!") {
            findings.push(format!("{name}: no module documentation"));
        }
    }
    Ok(findings)
}

/// The text of a line of comments, without its marks; `None` for code.
fn comment(line: &str) -> Option<&str> {
    let text = line.trim_start().strip_prefix("//")?;
    Some(text.strip_prefix(['/', '!']).unwrap_or(text))
}

/// Lines of comments, and of code with one behind it, that are too wide, from 0; rows of tables, examples and addresses cannot
/// be wrapped.
fn wide_comments(lines: &[&str]) -> Vec<usize> {
    let (mut wide, mut example) = (Vec::new(), false);
    for (i, line) in lines.iter().enumerate() {
        let Some(text) = comment(line).map(str::trim_start) else {
            example = false;
            let behind =
                line.rsplit_once(" // ").is_some_and(|(code, _)| code.ends_with([',', ';', '{', '}', ')']));
            if behind && line.chars().count() > COMMENT_WIDTH {
                wide.push(i);
            }
            continue;
        };
        example ^= text.starts_with("```");
        let whole = example || text.starts_with('|') || text.contains("http");
        if !whole && line.chars().count() > COMMENT_WIDTH {
            wide.push(i);
        }
    }
    wide
}

/// Headings of sections on errors, from 0, that do not say when there is one or which.
fn silent_errors(lines: &[&str]) -> Vec<usize> {
    let heading = |i: &usize| comment(lines[*i]).is_some_and(|text| text.trim() == "# Errors");
    let says = |i: &usize| {
        let words = lines[i + 1..].iter().map_while(|line| comment(line).map(str::trim));
        let words: Vec<&str> = words.take_while(|text| !text.is_empty() && !text.starts_with("# ")).collect();
        let text = words.join(" ").to_lowercase();
        let text = text.trim_end_matches('.');
        let empty =
            ["if it fails", "if this fails", "if that fails", "if anything fails", "if something goes wrong"];
        let empty = empty.contains(&text) || matches!(text, "" | "[`error`]" | "an error" | "on failure");
        !(empty || text == "never" || text.starts_with("never in"))
    };
    (0..lines.len()).filter(heading).filter(|i| !says(i)).collect()
}

fn uses_unsafe(line: &str) -> bool {
    let code = line.split("//").next().unwrap_or("");
    ["unsafe {", "unsafe fn", "unsafe impl", "unsafe extern", "allow(unsafe_code)"]
        .iter()
        .any(|p| code.contains(p))
}

fn may_hold_unsafe(name: &str) -> bool {
    name.starts_with("crates/ms-kernels/")
        || name.starts_with("crates/hccl-sys/")
        || name.starts_with("crates/cann-emu/")
        || name.starts_with("crates/ascend-rs/")
        || name == "crates/ms-files/src/mapped.rs"
        || name == "xtask/src/sources.rs"
}

/// Whether a file may name kernels: theirs, those of the CPU device, the one that has their memory, programs, tests and benches.
/// Everybody else speaks to a device.
fn may_name_kernels(name: &str) -> bool {
    let library = name.starts_with("crates/") && name.contains("/src/");
    !library
        || name.starts_with("crates/ms-kernels/")
        || name.starts_with("crates/ms-cpu/src/")
        || name == "crates/ms-core/src/arena.rs"
        || name.ends_with("/tests.rs")
        || name.contains("/tests/")
}

fn names_folder(line: &str, folder: &str) -> bool {
    let pattern = format!("/{folder}/");
    line.match_indices(&pattern).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        before.is_none_or(|c| !c.is_alphanumeric() && !matches!(c, '_' | '.' | '-' | '/' | '$' | '}' | '{'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_are_wrapped_but_tables_examples_and_addresses_are_not() {
        let long = "word ".repeat(30);
        let text = format!(
            "/// {long}\n//! | {long}\n// See https://example.org {long}\n/// ```\n/// {long}\n/// ```\n    // {long}\n{long}"
        );
        assert_eq!(wide_comments(&text.lines().collect::<Vec<_>>()), [0, 6]);
        // Columns are characters, not bytes.
        assert_eq!(wide_comments(&[&format!("// {}", "·".repeat(COMMENT_WIDTH - 3))]), [0; 0]);
        assert_eq!(wide_comments(&[&format!("// {}", "·".repeat(COMMENT_WIDTH - 2))]), [0]);
        // A comment behind code counts with it, a text with slashes does not.
        let (behind, text) = (format!("f(x); // {long}"), format!("let text = \"a // {long}\";"));
        assert_eq!(wide_comments(&[&behind, &text, "f(x); // short"]), [0]);
    }

    #[test]
    fn kernels_are_named_by_the_cpu_device_programs_and_tests_alone() {
        for name in
            ["crates/ms-cpu/src/moe.rs", "crates/ms-core/tests/graph/main.rs", "tools/ms-train/src/lib.rs"]
        {
            assert!(may_name_kernels(name), "{name}");
        }
        for name in
            ["crates/ms-core/src/backend/moe.rs", "crates/ms-nn/src/gpt.rs", "crates/ms-reference/src/lib.rs"]
        {
            assert!(!may_name_kernels(name), "{name}");
        }
    }

    #[test]
    fn sections_on_errors_say_when_or_which() {
        let section = |said: &str| format!("/// # Errors\n{said}\npub fn f() {{}}");
        let silent = |said: &str| !silent_errors(&section(said).lines().collect::<Vec<_>>()).is_empty();
        for said in
            ["/// If it fails.", "/// [`Error`].", "///", "/// Never in a sound program.", "/// On failure."]
        {
            assert!(silent(said), "{said}");
        }
        for said in [
            "/// [`Error::Io`].",
            "/// If a rank fails.",
            "/// If it fails\n/// to open the file.",
            "/// As [`g`].",
        ] {
            assert!(!silent(said), "{said}");
        }
    }
}

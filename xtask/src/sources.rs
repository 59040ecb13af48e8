//! Rules about the text of files.

use anyhow::{Context, Result};
use std::path::{Path, PathBuf};

/// A file with more lines than this hides a second concept.
const MAX_LINES: usize = 700;

/// What is wrong with the sources, as sentences.
pub(crate) fn check(root: &Path, files: &[PathBuf]) -> Result<Vec<String>> {
    let mut findings = Vec::new();
    for path in files {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let name = path.strip_prefix(root).unwrap_or(path).to_string_lossy().into_owned();
        let rust = name.ends_with(".rs");
        // The patterns are put together here so that this file does not find itself.
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
            if let Some(home) = ["home", "root"].iter().find(|d| names_folder(line, d)) {
                findings.push(format!("{at}: a path of one machine (/{home}/...)"));
            }
        }
        // Written by a program from a table: nobody reads it from top to bottom.
        let generated = text.lines().next().is_some_and(|l| l.contains("do not edit"));
        if rust && !generated && text.lines().count() > MAX_LINES {
            findings.push(format!("{name}: {} lines; split it by concept", text.lines().count()));
        }
        if rust && !text.trim_start().starts_with("//!") && !text.trim_start().starts_with("#!") {
            findings.push(format!("{name}: no module documentation"));
        }
    }
    Ok(findings)
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

fn names_folder(line: &str, folder: &str) -> bool {
    let pattern = format!("/{folder}/");
    line.match_indices(&pattern).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        before.is_none_or(|c| !c.is_alphanumeric() && !matches!(c, '_' | '.' | '-' | '/' | '$' | '}' | '{'))
    })
}

//! Generated reference pages: every flag of the programs that take upstream's command lines.

use anyhow::{Context, Result};
use ms_cli::megatron::{Program, Upstream, reference_page};
use std::path::{Path, PathBuf};

/// The pages and what they must hold.
fn pages(root: &Path) -> Vec<(PathBuf, String)> {
    let folder = root.join("docs/reference");
    let programs = [
        ("ms-train", Program::Train),
        ("ms-infer", Program::Infer),
        ("ms-eval", Program::Eval),
        ("ms-preprocess", Program::Preprocess),
    ];
    programs
        .into_iter()
        .map(|(name, program)| {
            (folder.join(format!("{name}.md")), reference_page(program, Upstream::default(), name))
        })
        .collect()
}

/// Writes the pages.
pub(crate) fn write(root: &Path) -> Result<()> {
    for (path, text) in pages(root) {
        std::fs::create_dir_all(path.parent().context("a page lies in a folder")?)?;
        std::fs::write(&path, text).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

/// Pages that are missing or not what would be generated.
pub(crate) fn check(root: &Path) -> Result<Vec<String>> {
    let mut findings = Vec::new();
    for (path, want) in pages(root) {
        let name = path.strip_prefix(root).unwrap_or(&path).display().to_string();
        match std::fs::read_to_string(&path) {
            Ok(got) if got == want => {}
            Ok(_) => findings.push(format!("{name} is out of date: run cargo xtask docs")),
            Err(_) => findings.push(format!("{name} is missing: run cargo xtask docs")),
        }
    }
    Ok(findings)
}

//! Layering: the edges between crates are those of the table in ARCHITECTURE.md, and no others.

use anyhow::{Context, Result};
use cargo_metadata::{DependencyKind, MetadataCommand};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Crates that only programs and `ms-cli` may use.
const PROGRAM_ONLY: [&str; 3] = ["clap", "indicatif", "anyhow"];

/// Whether a library is part of the programs: all of it `ms-cli`, `ms-options` by its errors.
fn of_programs(target: &str, library: &str) -> bool {
    library == "ms-cli" || (library == "ms-options" && target == "anyhow")
}
/// What tests and benches may use besides.
const TEST_ONLY: [&str; 5] = ["ms-testing", "ms-kernels", "ms-cpu", "ms-reference", "cann-emu"];

/// Edges that are not allowed, as sentences.
pub(crate) fn check(root: &Path) -> Result<Vec<String>> {
    let allowed = table(root)?;
    let metadata = MetadataCommand::new().manifest_path(root.join("Cargo.toml")).no_deps().exec()?;
    let mut findings = Vec::new();
    let mut seen = BTreeSet::new();
    for package in &metadata.packages {
        let name = package.name.to_string();
        let folder = package.manifest_path.parent().context("a manifest lies in a folder")?;
        let is_library = folder.parent().is_some_and(|p| p.ends_with("crates"));
        if !is_library {
            continue;
        }
        seen.insert(name.clone());
        let Some(edges) = allowed.get(&name) else {
            findings.push(format!("{name} is not in the table of layers in ARCHITECTURE.md"));
            continue;
        };
        let used: BTreeSet<&str> = package.dependencies.iter().map(|d| d.name.as_str()).collect();
        for edge in edges.iter().filter(|edge| !used.contains(edge.as_str())) {
            findings.push(format!("ARCHITECTURE.md lists an edge from {name} to {edge} that nobody uses"));
        }
        for dependency in &package.dependencies {
            let target = dependency.name.as_str();
            let normal = dependency.kind == DependencyKind::Normal;
            if target.starts_with("ms-") || matches!(target, "hccl-sys" | "ascend-rs" | "cann-emu") {
                let legal = edges.contains(target) || (!normal && TEST_ONLY.contains(&target));
                if !legal {
                    findings
                        .push(format!("{name} uses {target}, an edge that ARCHITECTURE.md does not list"));
                }
            } else if normal && PROGRAM_ONLY.contains(&target) && !of_programs(target, name.as_str()) {
                findings.push(format!("{name} uses {target}, which only the programs' own crates may use"));
            }
        }
    }
    for name in allowed.keys().filter(|n| !seen.contains(*n)) {
        findings.push(format!("ARCHITECTURE.md lists {name}, which does not exist"));
    }
    Ok(findings)
}

/// The table between the markers `<!-- layers -->` and `<!-- /layers -->`.
fn table(root: &Path) -> Result<BTreeMap<String, BTreeSet<String>>> {
    let path = root.join("ARCHITECTURE.md");
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let body = text
        .split_once("<!-- layers -->")
        .and_then(|(_, rest)| rest.split_once("<!-- /layers -->"))
        .context("ARCHITECTURE.md: expected a table between <!-- layers --> and <!-- /layers -->")?
        .0;
    let rows = body.lines().filter(|l| l.starts_with("| ") && !l.starts_with("| crate"));
    Ok(rows
        .map(|row| {
            let cells: Vec<&str> = row.split('|').map(str::trim).collect();
            let edges =
                cells.get(2).copied().unwrap_or("").split_whitespace().map(ToOwned::to_owned).collect();
            (cells[1].to_owned(), edges)
        })
        .collect())
}

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
        let kinds = package.dependencies.iter().map(|d| (&*d.name, d.kind == DependencyKind::Normal));
        findings.extend(judge(&name, edges, &kinds.collect::<Vec<_>>()));
    }
    for name in allowed.keys().filter(|n| !seen.contains(*n)) {
        findings.push(format!("ARCHITECTURE.md lists {name}, which does not exist"));
    }
    Ok(findings)
}

/// What is wrong with the dependencies of a crate: their names, and whether the library itself has them or its tests and
/// benches alone; `edges` are those of its row.
fn judge(name: &str, edges: &BTreeSet<String>, dependencies: &[(&str, bool)]) -> Vec<String> {
    let idle = edges.iter().filter(|edge| !dependencies.contains(&(edge.as_str(), true)));
    let mut findings: Vec<String> = idle
        .map(|edge| format!("ARCHITECTURE.md lists an edge from {name} to {edge} that nobody uses"))
        .collect();
    for &(target, normal) in dependencies {
        if target.starts_with("ms-") || matches!(target, "hccl-sys" | "ascend-rs" | "cann-emu") {
            if !edges.contains(target) && (normal || !TEST_ONLY.contains(&target)) {
                findings.push(format!("{name} uses {target}, an edge that ARCHITECTURE.md does not list"));
            }
        } else if normal && PROGRAM_ONLY.contains(&target) && !of_programs(target, name) {
            findings.push(format!("{name} uses {target}, which only the programs' own crates may use"));
        }
    }
    findings
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edges_are_those_of_the_table() {
        let edges = BTreeSet::from(["ms-core".to_owned(), "ms-cpu".to_owned()]);
        let found = |dependencies: &[(&str, bool)]| judge("ms-a", &edges, dependencies);
        let both = [("ms-core", true), ("ms-cpu", true), ("ms-testing", false), ("serde", true)];
        assert_eq!(found(&both), [""; 0]);
        // A row that tests alone use is idle, whatever tests may use.
        let tests = found(&[("ms-core", true), ("ms-cpu", false)]);
        assert_eq!(tests, ["ARCHITECTURE.md lists an edge from ms-a to ms-cpu that nobody uses"]);
        let more = found(&[&both[..], &[("ms-nn", false), ("ms-testing", true), ("clap", true)]].concat());
        assert_eq!(more.len(), 3, "{more:?}");
        assert!(more[0].contains("ms-nn") && more[1].contains("ms-testing") && more[2].contains("clap"));
    }
}

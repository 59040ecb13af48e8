//! Repository tasks: `cargo xtask tidy` checks the rules that a compiler does not see, `cargo xtask docs` writes the
//! generated reference pages, `cargo xtask counts FOLDER` prints the counts of the table in `docs/history.md`, and
//! `cargo xtask cann-emu` lays out the emulator as a toolkit folder.

mod cann;
mod counts;
mod dependencies;
mod docs;
mod import_cycles;
mod layers;
mod mixers;
mod models;
mod paths;
mod sources;
mod unused;

use anyhow::{Context, Result, anyhow, bail};
use std::io::Write;
use std::path::{Path, PathBuf};

fn main() -> Result<()> {
    // Cargo's variable of this run, not of the build: checkouts may share a target folder.
    let package = std::env::var_os("CARGO_MANIFEST_DIR").context("run it as cargo xtask")?;
    let root = Path::new(&package).join("..").canonicalize()?;
    match std::env::args().nth(1).as_deref() {
        Some("tidy") => tidy(&root),
        Some("docs") => docs::write(&root).and_then(|()| counts::write(&root, &counted(&root)?)),
        Some("counts") => print_counts(std::env::args().nth(2)),
        Some("cann-emu") => cann::lay_out(std::env::args().skip(2)),
        other => bail!("expected tidy, docs, counts or cann-emu, found {}", other.unwrap_or("nothing")),
    }
}

/// Prints the counts of a checkout.
fn print_counts(folder: Option<String>) -> Result<()> {
    let root = PathBuf::from(folder.context("expected the folder of a checkout")?).canonicalize()?;
    let mut out = std::io::stdout().lock();
    for (what, n) in counted(&root)? {
        writeln!(out, "{what}\t{n}")?;
    }
    Ok(())
}

/// Size and structure of the sources, counted alone.
fn counted(root: &Path) -> Result<Vec<(String, usize)>> {
    let files = &tracked_sources(root)?;
    let found = counts::Found {
        circles: import_cycles::check(root, files)?.1,
        unused: unused::check(root, files)?.1,
        touched: mixers::touched(root, files)?,
    };
    counts::all(root, files, &found)
}

/// What every check finds, and what was counted.
fn findings(root: &Path) -> Result<(Vec<String>, Counts)> {
    let files = &tracked_sources(root)?;
    // What nobody uses takes as long as all else.
    let (others, unused) = std::thread::scope(|scope| {
        let unused = scope.spawn(|| unused::check(root, files));
        (others(root, files), unused.join())
    });
    let (mut findings, circles, touched) = others?;
    let (of_unused, unused) =
        unused.map_err(|_| anyhow!("the check for what nobody uses has ended early"))??;
    findings.extend(of_unused);
    let found = counts::Found { circles, unused, touched };
    findings.extend(counts::check(root, &counts::all(root, files, &found)?)?);
    Ok((findings, Counts { files: files.len(), touched: found.touched }))
}
/// What all checks find but those for what nobody uses and for numbers; how many circles of imports there are, and the files that
/// name each kind of mixer.
fn others(root: &Path, files: &[PathBuf]) -> Result<(Vec<String>, usize, Vec<mixers::Touched>)> {
    let mut findings = layers::check(root)?;
    findings.extend(sources::check(root, files)?);
    let (of_circles, circles) = import_cycles::check(root, files)?;
    findings.extend(of_circles);
    findings.extend(dependencies::check(root, files)?);
    findings.extend(docs::check(root)?);
    findings.extend(paths::check(root, files)?);
    let touched = mixers::touched(root, files)?;
    findings.extend(mixers::check(&touched));
    Ok((findings, circles, touched))
}

/// What was counted.
struct Counts {
    /// Files that were checked.
    files: usize,
    /// Files that name each kind of mixer.
    touched: Vec<mixers::Touched>,
}

/// Runs every check and reports all findings at once.
fn tidy(root: &Path) -> Result<()> {
    let (findings, Counts { files, touched }) = findings(root)?;
    let mut err = std::io::stderr().lock();
    for finding in &findings {
        writeln!(err, "tidy: {finding}")?;
    }
    if !findings.is_empty() {
        writeln!(err, "tidy: {} findings", findings.len())?;
        std::process::exit(1);
    }
    for said in mixers::said(&touched) {
        writeln!(err, "tidy: {said}")?;
    }
    writeln!(err, "tidy: {files} files, layers, docs: in order")?;
    Ok(())
}

/// Text files of the workspace that rules apply to, by walking it: no version control is needed.
fn tracked_sources(root: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
            let path = entry?.path();
            let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
            if path.is_dir() {
                if !matches!(name.as_str(), "target" | ".git" | "run" | "golden") {
                    folders.push(path);
                }
            } else if matches!(
                path.extension().and_then(|e| e.to_str()),
                Some("rs" | "md" | "toml" | "sh" | "py")
            ) {
                files.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_repository_is_in_order() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let (findings, counts) =
            findings(&root.canonicalize().expect("the repository is there")).expect("it can be read");
        assert!(findings.is_empty(), "{}", findings.join("\n"));
        assert!(counts.files > 500, "{}", counts.files);
    }
}

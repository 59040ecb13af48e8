//! Dependencies in a `Cargo.toml` that no source of its package names, and those of the workspace's table that no package
//! uses.
//!
//! A dependency of the library or program must be named in `src`, a dev-dependency anywhere in the package, a build
//! dependency in the build script. Dependencies named only by another package's macro are not recognised; there are none.

use anyhow::{Context, Result};
use cargo_metadata::{DependencyKind, MetadataCommand};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

/// A dependency of a package, and the folder or file below it whose sources have to name it.
struct Needed {
    /// `Cargo.toml`, for the message.
    manifest: String,
    name: String,
    sources: PathBuf,
}

/// The idle ones, as sentences.
pub(crate) fn check(root: &Path, files: &[PathBuf]) -> Result<Vec<String>> {
    let metadata = MetadataCommand::new().manifest_path(root.join("Cargo.toml")).no_deps().exec()?;
    let mut needed = Vec::new();
    for package in &metadata.packages {
        let folder = package.manifest_path.parent().context("a manifest stands in a folder")?.as_std_path();
        for dependency in &package.dependencies {
            needed.push(Needed {
                manifest: package.manifest_path.as_std_path().strip_prefix(root)?.display().to_string(),
                name: dependency.rename.clone().unwrap_or_else(|| dependency.name.clone()),
                sources: match dependency.kind {
                    DependencyKind::Build => folder.join("build.rs"),
                    DependencyKind::Development => folder.to_owned(),
                    _ => folder.join("src"),
                },
            });
        }
    }
    let sources = files.iter().filter(|path| path.extension().is_some_and(|e| e == "rs"));
    let read = |path: &PathBuf| {
        Ok((path.clone(), std::fs::read_to_string(path).with_context(|| path.display().to_string())?))
    };
    let sources = sources.map(read).collect::<Result<Vec<_>>>()?;
    let mut findings = idle(&needed, &sources);
    let table = std::fs::read_to_string(root.join("Cargo.toml"))?;
    let taken: BTreeSet<&str> = needed.iter().map(|dependency| &*dependency.name).collect();
    findings.extend(untaken(&table, &taken));
    Ok(findings)
}

/// The dependencies that none of `sources`, paths with texts, names.
fn idle(needed: &[Needed], sources: &[(PathBuf, String)]) -> Vec<String> {
    let by_path: BTreeMap<&Path, &str> = sources.iter().map(|(path, text)| (&**path, &**text)).collect();
    let unnamed = |dependency: &&Needed| {
        let name = dependency.name.replace('-', "_");
        let mut own = sources.iter().filter(|(path, _)| path.starts_with(&dependency.sources));
        // A file, or one that it takes from another package as a module.
        !own.any(|(path, text)| {
            let taken = modules_elsewhere(path, text);
            let mut taken = taken.iter().filter_map(|path| by_path.get(&**path));
            names(text, &name) || taken.any(|text| names(text, &name))
        })
    };
    let said = |Needed { manifest, name, .. }: &Needed| {
        format!("{manifest}: no source that may names the dependency {name}")
    };
    needed.iter().filter(unnamed).map(said).collect()
}

/// The files that a file's `#[path = "…"]` name.
fn modules_elsewhere(file: &Path, text: &str) -> Vec<PathBuf> {
    let paths = text.split("#[path = \"").skip(1).filter_map(|rest| rest.split('"').next());
    let folder = file.parent().unwrap_or(Path::new(""));
    let resolved = |path: &str| {
        folder.join(path).components().fold(PathBuf::new(), |mut whole, part| {
            match part {
                Component::ParentDir => drop(whole.pop()),
                part => whole.push(part),
            }
            whole
        })
    };
    paths.map(resolved).collect()
}

/// Whether code names a crate: as the beginning of a path, or in a declaration.
fn names(text: &str, name: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    text.lines().filter(|line| !line.trim_start().starts_with("// ")).any(|line| {
        line.match_indices(name).any(|(at, _)| {
            let (before, after) = (&line[..at], &line[at + name.len()..]);
            let alone = !before.ends_with(is_word) && !before.ends_with('.') && !after.starts_with(is_word);
            let declared =
                ["use ", "extern crate "].iter().any(|word| before.trim_end_matches("::").ends_with(word));
            alone && (after.trim_start().starts_with("::") || declared)
        })
    })
}

/// The entries of the workspace's table that no package takes.
fn untaken(manifest: &str, taken: &BTreeSet<&str>) -> Vec<String> {
    let lines = manifest.lines().skip_while(|line| *line != "[workspace.dependencies]").skip(1);
    let entries = lines.take_while(|line| !line.starts_with('['));
    let name = |line: &'_ str| line.split_once(" = ").map(|(name, _)| name.trim().to_owned());
    let entries = entries.filter(|line| !line.starts_with('#')).filter_map(name);
    let idle = entries.filter(|name| !taken.contains(&**name));
    idle.map(|name| format!("Cargo.toml: no package takes the dependency {name}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(name: &str, sources: &str, files: &[(&str, &str)]) -> usize {
        let (manifest, name, sources) = ("Cargo.toml".to_owned(), name.to_owned(), PathBuf::from(sources));
        let files: Vec<_> = files.iter().map(|(path, text)| (path.into(), (*text).to_owned())).collect();
        idle(&[Needed { manifest, name, sources }], &files).len()
    }

    #[test]
    fn what_no_source_names_is_found() {
        for text in ["use a_b;", "use a_b::C;", "fn f() { a_b::c() }", "#[derive(a_b::D)]", "/// use a_b::C;"]
        {
            assert_eq!(found("a-b", "x/src", &[("x/src/lib.rs", text)]), 0, "{text}");
        }
        for text in ["", "// a_b::C", "use a_bc::D;", "let a_b = 1;", "x.a_b::<u8>()", "use c::xa_b::D;"] {
            assert_eq!(found("a-b", "x/src", &[("x/src/lib.rs", text)]), 1, "{text}");
        }
    }

    #[test]
    fn what_tests_alone_name_is_a_dependency_of_tests() {
        let files =
            [("x/src/lib.rs", "fn f() {}"), ("x/tests/t.rs", "use a::b;"), ("y/src/lib.rs", "use a::b;")];
        assert_eq!(found("a", "x/src", &files), 1);
        assert_eq!(found("a", "x", &files), 0);
        let taken = [
            ("x/tests/t.rs", "#[path = \"../../y/examples/e.rs\"]\nmod e;"),
            ("y/examples/e.rs", "use a::b;"),
        ];
        assert_eq!((found("a", "x", &taken), found("b", "x", &taken)), (0, 1));
    }

    #[test]
    fn entries_that_no_package_takes_are_found() {
        let manifest = "[workspace.dependencies]\n# text\na = \"1\" # for\nb-c = { version = \"1\" }\n\n[profile.dev]\nd = 1\n";
        let found = untaken(manifest, &BTreeSet::from(["a"]));
        assert_eq!(found, ["Cargo.toml: no package takes the dependency b-c"]);
    }
}

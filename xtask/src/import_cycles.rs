//! Import cycles: files of a crate that import from each other in a cycle.
//!
//! What counts is what a file imports through `crate::` or `super::`, followed through re-exports to the file that defines
//! it. A folder's `mod.rs` referring to its own modules does not count, nor do tests. A cycle that stays is listed in
//! `circles.tsv` with the reason; a new one is a finding, and so is a listed one that is gone or has changed.

use anyhow::{Context, Result};
use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use syn::{Attribute, Item, UseTree, Visibility};

/// Circles that stay: crate, files, reason.
const ALLOWED: &str = include_str!("circles.tsv");

/// A file of a crate, by its module.
type Module = Vec<String>;

/// What a file takes and what it passes on.
#[derive(Debug, Default)]
struct File {
    /// Paths from the crate's root.
    takes: BTreeSet<Vec<String>>,
    /// Names that it re-exports, with the paths they come from.
    hands_on: BTreeMap<String, Vec<String>>,
    /// Modules that it re-exports completely.
    hands_on_all: Vec<Vec<String>>,
    /// Names of what it defines.
    defines: BTreeSet<String>,
}

/// Circles that are not listed, and listed ones that are not there, as sentences; and how many circles there are.
pub(crate) fn check(root: &Path, files: &[PathBuf]) -> Result<(Vec<String>, usize)> {
    let found = found(root, files)?;
    Ok((judge(&found, ALLOWED), found.len()))
}

/// Circles with their crates.
fn found(root: &Path, files: &[PathBuf]) -> Result<BTreeSet<(String, BTreeSet<String>)>> {
    let mut crates: BTreeMap<String, BTreeMap<Module, String>> = BTreeMap::new();
    for path in files {
        let name = path.strip_prefix(root).unwrap_or(path).to_string_lossy().into_owned();
        if let Some((krate, module)) = module(&name) {
            let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
            crates.entry(krate).or_default().insert(module, text);
        }
    }
    let mut found = BTreeSet::new();
    for (krate, texts) in crates {
        let circles = circles(&texts).with_context(|| krate.clone())?;
        found.extend(circles.into_iter().map(|circle| (krate.clone(), circle)));
    }
    Ok(found)
}

fn judge(found: &BTreeSet<(String, BTreeSet<String>)>, allowed: &str) -> Vec<String> {
    let mut findings = Vec::new();
    let mut listed = BTreeSet::new();
    for line in allowed.lines().filter(|line| !line.starts_with('#')) {
        let [krate, files, reason] = line.split('\t').collect::<Vec<_>>()[..] else {
            findings.push(format!("circles.tsv: not a crate, files and a reason: {line}"));
            continue;
        };
        if reason.trim().is_empty() {
            findings.push(format!("circles.tsv: no reason: {line}"));
        }
        let files = files.split_whitespace().map(str::to_owned).collect::<BTreeSet<_>>();
        listed.insert((krate.to_owned(), files));
    }
    let words = |files: &BTreeSet<String>| files.iter().cloned().collect::<Vec<_>>().join(" ");
    for (krate, files) in found.difference(&listed) {
        findings.push(format!("{krate}: files import each other in a circle: {}", words(files)));
    }
    for (krate, files) in listed.difference(found) {
        findings.push(format!("circles.tsv: {krate} has no such circle: {}", words(files)));
    }
    findings
}

/// The crate and the module of a source file; `None` for tests and for what is no library or program.
fn module(name: &str) -> Option<(String, Module)> {
    let (krate, file) = name.strip_suffix(".rs")?.split_once("/src/")?;
    let krate = krate.strip_prefix("crates/").or_else(|| krate.strip_prefix("tools/"))?;
    let mut module: Module = file.split('/').map(str::to_owned).collect();
    if module.iter().any(|part| part == "tests") {
        return None;
    }
    if module.last().is_some_and(|last| matches!(last.as_str(), "mod" | "lib" | "main")) {
        module.pop();
    }
    Some((krate.to_owned(), module))
}

/// The import cycles among files, which are named by their modules; the crate's own file is `lib`.
fn circles(texts: &BTreeMap<Module, String>) -> Result<Vec<BTreeSet<String>>> {
    let mut files = BTreeMap::new();
    for (module, text) in texts {
        let mut file = File::default();
        let parsed = syn::parse_file(text).with_context(|| module.join("/"))?;
        read(&parsed.items, module, texts, &mut file);
        files.insert(module.clone(), file);
    }
    let mut arrows: BTreeMap<&Module, BTreeSet<Module>> = BTreeMap::new();
    for (module, file) in &files {
        let taken = file.takes.iter().filter_map(|path| home(&files, path, 8));
        arrows.insert(module, taken.filter(|from| from != module).collect());
    }
    // Files that reach each other.
    let reached: BTreeMap<&Module, BTreeSet<Module>> =
        files.keys().map(|module| (module, reach(&arrows, module))).collect();
    let mut circles: BTreeSet<BTreeSet<String>> = BTreeSet::new();
    for (module, there) in &reached {
        let back = there.iter().filter(|other| reached[*other].contains(*module));
        let name = |m: &Module| if m.is_empty() { "lib".to_owned() } else { m.join("/") };
        let circle: BTreeSet<String> = back.map(name).collect();
        if circle.len() > 1 {
            circles.insert(circle);
        }
    }
    Ok(circles.into_iter().collect())
}

fn reach(arrows: &BTreeMap<&Module, BTreeSet<Module>>, from: &Module) -> BTreeSet<Module> {
    let (mut seen, mut left) = (BTreeSet::new(), vec![from.clone()]);
    while let Some(module) = left.pop() {
        for next in arrows.get(&module).into_iter().flatten() {
            if seen.insert(next.clone()) {
                left.push(next.clone());
            }
        }
    }
    seen
}

/// The file that defines what a path names.
fn home(files: &BTreeMap<Module, File>, path: &[String], depth: usize) -> Option<Module> {
    let known = (0..=path.len()).rev().find(|&n| files.contains_key(&path[..n]))?;
    let (module, rest) = path.split_at(known);
    let there = || Some(module.to_vec());
    let Some(name) = rest.first().filter(|_| depth > 0) else { return there() };
    let file = &files[module];
    if let Some(from) = file.hands_on.get(name) {
        return home(files, &[from, &rest[1..]].concat(), depth - 1).or_else(there);
    }
    let has = |module: &&Vec<String>| {
        let file = files.get(*module);
        file.is_some_and(|file| file.defines.contains(name) || file.hands_on.contains_key(name))
    };
    match file.hands_on_all.iter().find(has) {
        Some(from) => home(files, &[from, rest].concat(), depth - 1),
        None => there(),
    }
}

/// The name of an item.
fn name(item: &Item) -> Option<String> {
    let ident = match item {
        Item::Const(i) => &i.ident,
        Item::Enum(i) => &i.ident,
        Item::Fn(i) => &i.sig.ident,
        Item::Static(i) => &i.ident,
        Item::Struct(i) => &i.ident,
        Item::Trait(i) => &i.ident,
        Item::Type(i) => &i.ident,
        _ => return None,
    };
    Some(ident.to_string())
}

pub(crate) fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|a| a.path().is_ident("cfg") && a.to_token_stream().to_string().contains("test"))
}

fn read(items: &[Item], module: &Module, texts: &BTreeMap<Module, String>, file: &mut File) {
    for item in items {
        match item {
            Item::Use(u) if !is_test(&u.attrs) => {
                let mut paths = Vec::new();
                flatten(&u.tree, &mut Vec::new(), &mut paths);
                let public = !matches!(u.vis, Visibility::Inherited);
                for (path, name) in paths {
                    let Some((path, held)) = from_root(&path, module, texts) else { continue };
                    if public && name == "*" {
                        file.hands_on_all.push(path);
                    } else if public {
                        file.hands_on.insert(name, path);
                    } else if !held {
                        file.takes.insert(path);
                    }
                }
            }
            Item::Mod(m) if is_test(&m.attrs) => {}
            item => {
                file.defines.extend(name(item));
                spoken(item.to_token_stream(), module, texts, file);
            }
        }
    }
}

/// The paths of a `use` and the names they get.
fn flatten(tree: &UseTree, before: &mut Vec<String>, paths: &mut Vec<(Vec<String>, String)>) {
    let mut add = |before: &[String], last: Option<String>, name: String| {
        paths.push((before.iter().cloned().chain(last).collect(), name));
    };
    match tree {
        UseTree::Path(p) => {
            before.push(p.ident.to_string());
            flatten(&p.tree, before, paths);
            before.pop();
        }
        UseTree::Name(n) if n.ident == "self" => {
            add(before, None, before.last().cloned().unwrap_or_default());
        }
        UseTree::Name(n) => add(before, Some(n.ident.to_string()), n.ident.to_string()),
        UseTree::Rename(r) => add(before, Some(r.ident.to_string()), r.rename.to_string()),
        UseTree::Glob(_) => add(before, None, "*".to_owned()),
        UseTree::Group(g) => g.items.iter().for_each(|tree| flatten(tree, before, paths)),
    }
}

/// A path from the crate's root, and whether it leads to what the module itself holds; `None` for other crates'.
fn from_root(
    path: &[String],
    module: &Module,
    texts: &BTreeMap<Module, String>,
) -> Option<(Vec<String>, bool)> {
    let first = path.first()?.as_str();
    let up = path.iter().take_while(|part| *part == "super").count();
    let (base, rest) = match first {
        "crate" => (Vec::new(), &path[1..]),
        "self" => (module.clone(), &path[1..]),
        "super" => (module[..module.len().checked_sub(up)?].to_vec(), &path[up..]),
        name => {
            let child: Module = module.iter().cloned().chain([name.to_owned()]).collect();
            texts.contains_key(&child).then_some((module.clone(), path))?
        }
    };
    let held = !matches!(first, "crate" | "super");
    Some((base.into_iter().chain(rest.iter().cloned()).collect(), held))
}

/// Paths that stand in code and not in a `use` of the file.
fn spoken(tokens: TokenStream, module: &Module, texts: &BTreeMap<Module, String>, file: &mut File) {
    let all: Vec<TokenTree> = tokens.into_iter().collect();
    let colons = |i: usize| {
        let is = |n: usize| matches!(all.get(n), Some(TokenTree::Punct(p)) if p.as_char() == ':');
        is(i) && is(i + 1)
    };
    let mut i = 0;
    while i < all.len() {
        match &all[i] {
            TokenTree::Group(g) => spoken(g.stream(), module, texts, file),
            TokenTree::Ident(ident) if (ident == "crate" || ident == "super") && colons(i + 1) => {
                let mut path = vec![ident.to_string()];
                while let (true, Some(TokenTree::Ident(next))) = (colons(i + 1), all.get(i + 3)) {
                    path.push(next.to_string());
                    i += 3;
                }
                file.takes.extend(from_root(&path, module, texts).map(|(path, _)| path));
            }
            _ => {}
        }
        i += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<Vec<String>> {
        let texts = files.iter().map(|(name, text)| {
            let (_, module) = module(&format!("crates/a/src/{name}.rs")).unwrap();
            (module, (*text).to_owned())
        });
        let circles = circles(&texts.collect()).unwrap();
        circles.into_iter().map(|circle| circle.into_iter().collect()).collect()
    }

    #[test]
    fn files_that_import_each_other_are_found_through_reexports_and_in_code() {
        let lib = ("lib", "mod a; mod b; pub use b::B;");
        assert_eq!(found(&[lib, ("a", "use crate::B;"), ("b", "fn f() { g(crate::a::A); }")]), [["a", "b"]]);
        assert_eq!(found(&[lib, ("a", "use crate::B;"), ("b", "pub struct B;")]), [[""; 0]; 0]);
        let all = ("lib", "mod a; mod b; pub use b::*;");
        assert_eq!(
            found(&[all, ("a", "use crate::B;"), ("b", "use crate::a::A; pub struct B;")]),
            [["a", "b"]]
        );
        assert_eq!(
            found(&[all, ("a", "use crate::C;"), ("b", "use crate::a::A; pub struct B;")]),
            [[""; 0]; 0]
        );
        let three = [("a", "use super::b::{self, B};"), ("b", "use crate::c::C;"), ("c", "use crate::a::A;")];
        assert_eq!(found(&[&[lib], &three[..]].concat()), [["a", "b", "c"]]);
    }

    #[test]
    fn a_folder_may_speak_of_what_it_holds_and_tests_of_everything() {
        let holds = [("a/mod", "mod b; use b::B; pub struct A;"), ("a/b", "use super::A; pub struct B;")];
        assert_eq!(found(&holds), [[""; 0]; 0]);
        let test = "pub struct B; #[cfg(test)] mod tests { use crate::a::A; }";
        assert_eq!(found(&[("a", "use crate::b::B;"), ("b", test)]), [[""; 0]; 0]);
    }

    #[test]
    fn listed_circles_stay_and_others_are_findings() {
        let circle = |files: &str| ("a".to_owned(), files.split(' ').map(str::to_owned).collect());
        let found = BTreeSet::from([circle("x y"), circle("z w")]);
        let findings = judge(&found, "# comment\na\tx y\tbecause\na\tu v\tbecause\n");
        assert_eq!(findings.len(), 2, "{findings:?}");
        assert!(findings[0].contains("w z") && findings[1].contains("u v"), "{findings:?}");
    }
}

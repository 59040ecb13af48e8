//! Size and structure of the sources, counted: one table in `docs/history.md`, whose last column gives the current numbers.
//!
//! `cargo xtask docs` writes that column, `tidy` checks it: a number that is off by more than three per cent is a finding.
//! `cargo xtask counts FOLDER` prints the numbers of another checkout, which is where the column before it comes from.

use crate::import_cycles::is_test;
use crate::mixers;
use anyhow::{Context, Result};
use quote::ToTokens;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

const PAGE: &str = "docs/history.md";
const BEGIN: &str = "<!-- counts: the last column is written by `cargo xtask docs` -->\n";
const END: &str = "<!-- /counts -->";
/// Numbers may be off by this many per cent.
const OFF: usize = 3;
/// Where a width of numbers may be named: kernels and devices.
const WIDTHS: [&str; 8] = [
    "crates/ms-kernels/",
    "crates/ms-operands/",
    "crates/ms-reference/",
    "crates/ms-cpu/src/",
    // Where the CPU device was at first.
    "crates/ms-core/src/cpu/",
    "crates/ascend-rs/",
    "crates/hccl-sys/",
    "crates/cann-emu/",
];
/// Times that the others may name f32.
const MOST_F32: usize = 67;
/// Rows of families.
const ROWS: &str = "crates/ms-spec/src/hf/";
/// Where `Family` is one of vocabularies.
const NAMESAKE: &str = "crates/ms-text/";
const LINES: &str = "source lines without tests";
const F32: &str = "`DType::F32` outside kernels, devices and the reference";

/// What other checks count on their way.
pub(crate) struct Found {
    /// Circles of imports.
    pub circles: usize,
    /// Public items that nobody uses outside tests.
    pub unused: usize,
    /// Files that name each kind of mixer.
    pub touched: Vec<mixers::Touched>,
}

/// What is counted, and how much of it there is, in the order of the table.
pub(crate) fn all(root: &Path, files: &[PathBuf], found: &Found) -> Result<Vec<(String, usize)>> {
    let mut lines: BTreeMap<String, usize> = BTreeMap::new();
    let (mut families, mut f32s) = ([0, 0], 0);
    let sources = sources(root, files)?;
    let tests: BTreeSet<String> =
        sources.iter().flat_map(|(name, text)| modules_of_tests(name, text)).collect();
    for (name, text) in &sources {
        let Some((of, file)) = name.split_once("/src/") else { continue };
        let of_tests = tests.iter().any(|module| {
            name.strip_prefix(module.as_str()).is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
        });
        if of_tests || file.contains("tests/") {
            continue;
        }
        *lines.entry(of.to_owned()).or_default() += without_tests(text).count();
        if !of.starts_with("xtask") {
            let code = code(text).with_context(|| name.clone())?;
            if !name.starts_with(NAMESAKE) {
                families[usize::from(!name.starts_with(ROWS))] += code.matches("Family ::").count();
            }
            if !WIDTHS.iter().any(|place| name.starts_with(place)) {
                f32s += code.matches("DType :: F32").count();
            }
        }
    }
    let mut all = vec![(LINES.to_owned(), lines.values().sum())];
    all.extend(lines.into_iter().map(|(of, n)| (format!("of `{of}`"), n)));
    all.push(("`Family::` in code, in all".into(), families[0] + families[1]));
    all.push(("`Family::` outside rows of families".into(), families[1]));
    all.push(("circles of imports".into(), found.circles));
    all.push(("public items that nobody uses outside tests".into(), found.unused));
    all.extend(mixers::numbers(root, files, &found.touched)?);
    all.push((F32.into(), f32s));
    Ok(all)
}

/// Names and texts of what crates, tools and `xtask` are made of.
fn sources(root: &Path, files: &[PathBuf]) -> Result<Vec<(String, String)>> {
    let mut sources = Vec::new();
    for path in files.iter().filter(|path| path.extension().is_some_and(|e| e == "rs")) {
        let name = path.strip_prefix(root).unwrap_or(path).to_string_lossy().into_owned();
        let places = ["crates/", "tools/", "xtask/"];
        if name.contains("/src/") && places.iter().any(|place| name.starts_with(place)) {
            let text = std::fs::read_to_string(path).with_context(|| name.clone())?;
            sources.push((name, text));
        }
    }
    Ok(sources)
}

/// Lines of a file without what is compiled for its tests alone. Sources are formatted: an item ends where its indent returns.
fn without_tests(text: &str) -> impl Iterator<Item = &str> {
    let mut item = None;
    text.lines().filter(move |line| {
        let at = line.len() - line.trim_start().len();
        let code = line.trim();
        match item {
            None if code == "#[cfg(test)]" => item = Some(at),
            None => return true,
            Some(indent) if at == indent && !code.starts_with(['#', '/']) && code.ends_with([';', '}']) => {
                item = None;
            }
            Some(_) => {}
        }
        false
    })
}

/// Modules in files of their own that a file has for its tests alone, by their files' names without their endings.
fn modules_of_tests(name: &str, text: &str) -> Vec<String> {
    let (folder, stem) = name.trim_end_matches(".rs").rsplit_once('/').unwrap_or(("", name));
    let folder = match stem {
        "lib" | "main" | "mod" => folder.to_owned(),
        stem => format!("{folder}/{stem}"),
    };
    let lines = text.lines().zip(text.lines().skip(1));
    let names = lines.filter(|(line, _)| *line == "#[cfg(test)]").filter_map(|(_, item)| {
        let item = item.strip_suffix(';')?;
        item.split_once("mod ").map(|(_, module)| format!("{folder}/{module}"))
    });
    names.collect()
}

/// The code of a file without its tests and comments.
fn code(text: &str) -> Result<String> {
    let of = |item: &syn::Item| match item {
        syn::Item::Mod(module) if is_test(&module.attrs) => String::new(),
        item => item.to_token_stream().to_string(),
    };
    Ok(syn::parse_file(text)?.items.iter().map(of).collect::<Vec<_>>().join("\n"))
}

/// Numbers of the table that are not what is counted, and counts that may not grow.
pub(crate) fn check(root: &Path, counted: &[(String, usize)]) -> Result<Vec<String>> {
    let page = std::fs::read_to_string(root.join(PAGE)).context(PAGE)?;
    let f32s = counted.iter().filter(|(what, n)| what == F32 && *n > MOST_F32);
    let grown = f32s.map(|(what, n)| {
        format!("{what}: {n}, at most {MOST_F32}: a width follows from what is at hand (`DType::wide`)")
    });
    Ok(stale(&page, counted).into_iter().chain(grown).collect())
}

fn stale(page: &str, counted: &[(String, usize)]) -> Vec<String> {
    let Some(table) = page.split_once(BEGIN).and_then(|(_, rest)| rest.split_once(END)) else {
        return vec![format!("{PAGE}: no table between {} and {END}", BEGIN.trim_end())];
    };
    let rows: BTreeMap<&str, usize> =
        table.0.lines().filter_map(row).map(|[what, _, now]| (what, number(now))).collect();
    let off = |(what, n): &&(String, usize)| {
        rows.get(what.as_str()).is_none_or(|told| told.abs_diff(*n) * 100 > OFF * n)
    };
    let say = |(what, n): &(String, usize)| match rows.get(what.as_str()) {
        Some(told) => format!("{PAGE}: {what}: {told} is said, {n} are there: run cargo xtask docs"),
        None => format!("{PAGE}: {what}: no row of the table: run cargo xtask docs"),
    };
    counted.iter().filter(off).map(say).collect()
}

/// The cells of a row that counts something.
fn row(line: &str) -> Option<[&str; 3]> {
    let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
    <[&str; 3]>::try_from(cells).ok().filter(|cells| cells[2].starts_with(|c: char| c.is_ascii_digit()))
}

/// A number with spaces between thousands.
fn number(text: &str) -> usize {
    text.chars().filter(char::is_ascii_digit).collect::<String>().parse().unwrap_or(0)
}

fn spaced(n: usize) -> String {
    match n {
        0..10_000 => n.to_string(),
        n => format!("{} {:03}", n / 1000, n % 1000),
    }
}

/// The page with what is counted now; the column before it stays.
pub(crate) fn written(page: &str, counted: &[(String, usize)]) -> Option<String> {
    let (before, rest) = page.split_once(BEGIN)?;
    let (table, after) = rest.split_once(END)?;
    let then: BTreeMap<&str, &str> =
        table.lines().filter_map(row).map(|[what, then, _]| (what, then)).collect();
    let mut text = format!("{before}{BEGIN}| what | at 475906f | now |\n|---|---|---|\n");
    for (what, n) in counted {
        let then = then.get(what.as_str()).unwrap_or(&"-");
        text.push_str(&format!("| {what} | {then} | {} |\n", spaced(*n)));
    }
    Some(text + END + after)
}

/// Writes the column, if a number is stale.
pub(crate) fn write(root: &Path, counted: &[(String, usize)]) -> Result<()> {
    let page = std::fs::read_to_string(root.join(PAGE)).context(PAGE)?;
    if !stale(&page, counted).is_empty()
        && let Some(text) = written(&page, counted)
    {
        std::fs::write(root.join(PAGE), text).context(PAGE)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_is_off_is_found_and_written_anew() {
        let page = format!(
            "a\n{BEGIN}| what | at x | now |\n|---|---|---|\n| lines | 90 000 | 100 000 |\n{END}\nb\n"
        );
        let counted = |n| vec![("lines".to_owned(), n)];
        assert_eq!(stale(&page, &counted(102_000)), [""; 0]);
        assert!(stale(&page, &counted(110_000))[0].contains("100000 is said, 110000 are there"));
        let new = written(&page, &counted(110_000)).unwrap();
        assert!(new.contains("| lines | 90 000 | 110 000 |\n<!-- /counts -->\nb\n"), "{new}");
        assert_eq!(stale(&new, &counted(110_000)), [""; 0]);
        let more = [counted(100_000), vec![("files".into(), 3)]].concat();
        assert!(stale(&page, &more)[0].contains("files: no row"));
        assert!(stale("no table", &more)[0].contains("no table"));
    }

    #[test]
    fn tests_and_comments_are_no_code() {
        let text = "/// `DType::F32`\nfn f() -> DType { DType::F32 }\n#[cfg(test)]\nmod tests { const A: DType = DType::F32; }\n";
        assert_eq!(code(text).unwrap().matches("DType :: F32").count(), 1);
        let of = |text| without_tests(text).collect::<Vec<_>>();
        assert_eq!(of(text), ["/// `DType::F32`", "fn f() -> DType { DType::F32 }"]);
        assert_eq!(of("#[cfg(test)]\nmod tests;\nfn f() {}\n"), ["fn f() {}"], "what follows is counted");
        let method = "impl A {\n    #[cfg(test)]\n    /// For tests.\n    fn f() {\n        g();\n    }\n    fn h() {}\n}\n";
        assert_eq!(of(method), ["impl A {", "    fn h() {}", "}"]);
    }

    #[test]
    fn files_of_tests_alone_are_told_by_who_has_them() {
        let text = "#[cfg(test)]\nmod tests;\nmod code;\n#[cfg(test)]\npub(crate) mod model;\n#[cfg(test)]\nmod inner {\n}\n";
        assert_eq!(
            modules_of_tests("crates/a/src/lib.rs", text),
            ["crates/a/src/tests", "crates/a/src/model"]
        );
        assert_eq!(modules_of_tests("crates/a/src/b.rs", text)[0], "crates/a/src/b/tests");
    }
}

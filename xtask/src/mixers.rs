//! The source files that name each kind of mixer, each optional model part and each family: counted, and limited.
//!
//! A recurrent mixer has everything that follows from its sizes in one file, and the walks over parts use the list of kinds
//! instead of naming them. So few files outside tests name a kind: those of the part, and those of its scan operation. A file
//! names a kind by an identifier, or by a string that is a flag or an argument listed only in the part's own file; rows of
//! families count. Kernels, which are in the operation's own folder, do not count, nor do comments and other strings.
//!
//! Latent attention, attention to pooled entries and hyper-connections are counted by the words of identifiers, without rows
//! of families, and may not be named by more files than now.
//!
//! A family of known parts is a row of one file, and a sample, which is a folder outside the sources. The families of mixers
//! and the default family are mentioned elsewhere, and not counted.

use crate::import_cycles::is_test;
use anyhow::{Context, Result};
use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The list of kinds: `&name::KIND`.
const KINDS: &str = "crates/ms-spec/src/parts/mod.rs";
/// The names of weights, to which a kind adds its own.
const WORDS: &str = "crates/ms-spec/src/slot.rs";
/// A file for each operation of recurrent mixers.
const OPERATIONS: &str = "crates/ms-reference/src/recurrent/";
/// A row for each class of a family: `const NAME: Class`.
const CLASSES: &str = "crates/ms-spec/src/hf/classes/";
/// The family that is assumed where none is named.
const ASSUMED: &str = "LLAMA";
/// Where a family's word is that of another thing: tokenizers, and Megatron's specifications of layers.
const NAMESAKES: [&str; 3] =
    ["crates/ms-text/", "tools/ms-preprocess/", "crates/ms-spec/src/megatron/spec.rs"];
/// Parts that only some models have: their file, the words that name them, and the files that may.
const PARTS: [(&str, &[&str], usize); 3] = [
    ("latent", &["latent", "latents", "mla"], 8),
    ("compressed", &["compressed", "pooled"], 8),
    ("hyper_connections", &["hyper", "streams"], 7),
];
/// Where each part has its file.
const PART_FILES: &str = "crates/ms-spec/src/parts/";
/// Where other arguments of Megatron's stand.
const ARGUMENTS: &str = "crates/ms-spec/src/megatron/";
/// What has compressed files, and streams of tokens.
const FILES: [&str; 5] =
    ["crates/ms-data/", "crates/ms-files/", "crates/ascend-rs/", "tools/ms-pack/", "tools/ms-preprocess/"];
/// Files that may name a mixer, an operation and a family.
const LIMITS: [usize; 3] = [8, 7, 1];
/// Crates below the model: of operations, not of parts.
const BELOW: [&str; 4] = ["crates/ms-operands/", "crates/ms-core/", "crates/ms-cpu/", "crates/ms-reference/"];
/// Rows of families, which name mixers as they like.
const ROWS: &str = "crates/ms-spec/src/hf/";
/// Kernels; crates of tests, fuzzers, tables of C interfaces and this one.
const BESIDE: [&str; 6] =
    ["crates/ms-kernels/", "crates/ms-testing/", "crates/cann-emu/", "crates/hccl-sys/", "fuzz/", "xtask/"];

/// A part or an operation, and the files that name it.
pub(crate) struct Touched {
    what: &'static str,
    name: String,
    /// Words of identifiers, where it is known by these.
    words: &'static [&'static str],
    /// Arguments, and flags as such, that its file alone lists.
    own: BTreeSet<String>,
    files: BTreeSet<String>,
    limit: usize,
}

impl std::fmt::Display for Touched {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let files: Vec<&str> = self.files.iter().map(String::as_str).collect();
        let (Self { what, name, limit, .. }, n) = (self, files.len());
        write!(f, "{what} {name}: {n} files of at most {limit}: {}", files.join(" "))
    }
}

/// What is touched by each kind of mixer and each operation of one, in the sources that are there.
pub(crate) fn touched(root: &Path, files: &[PathBuf]) -> Result<Vec<Touched>> {
    count(&texts(root, files)?, "")
}

/// The sources with their names.
fn texts(root: &Path, files: &[PathBuf]) -> Result<Vec<(String, String)>> {
    let mut texts = Vec::new();
    for path in files.iter().filter(|path| path.extension().is_some_and(|e| e == "rs")) {
        let name = path.strip_prefix(root).unwrap_or(path).to_string_lossy().into_owned();
        texts.push((name, std::fs::read_to_string(path).with_context(|| path.display().to_string())?));
    }
    Ok(texts)
}

/// How many files name each mixer with a state and each part, for the table of counts; mixers by their names where there is no
/// list of kinds.
pub(crate) fn numbers(root: &Path, files: &[PathBuf], touched: &[Touched]) -> Result<Vec<(String, usize)>> {
    const FIRST: &str = "&gated_delta::KIND, &mamba2::KIND, &mamba3::KIND";
    let by_name = match touched.iter().any(|t| t.what == "mixer") {
        true => Vec::new(),
        false => count(&texts(root, files)?, FIRST)?,
    };
    let counted = if by_name.is_empty() { touched } else { &by_name };
    let counted = counted.iter().filter(|t| matches!(t.what, "mixer" | "part"));
    Ok(counted.map(|t| (format!("files that name `{}`", t.name), t.files.len())).collect())
}

/// What was counted, as sentences: one for all families that are within the limit.
pub(crate) fn said(touched: &[Touched]) -> Vec<String> {
    let (families, others): (Vec<_>, Vec<_>) = touched.iter().partition(|t| t.what == "family");
    let mut said: Vec<String> = others.into_iter().map(ToString::to_string).collect();
    let most = families.iter().map(|t| t.files.len()).max().unwrap_or(0);
    let names: Vec<&str> = families.iter().map(|t| t.name.as_str()).collect();
    let n = names.len();
    said.push(format!(
        "{n} rows of families: {most} file of at most {} each: {}",
        LIMITS[2],
        names.join(" ")
    ));
    said
}

/// What is touched by too much, as sentences.
pub(crate) fn check(touched: &[Touched]) -> Vec<String> {
    let mut findings: Vec<String> =
        touched.iter().filter(|t| t.files.len() > t.limit).map(ToString::to_string).collect();
    for (what, place) in
        [("mixer", KINDS), ("part", PART_FILES), ("operation", OPERATIONS), ("family", CLASSES)]
    {
        if touched.iter().filter(|t| t.what == what && !t.files.is_empty()).count() < 3 {
            findings.push(format!("{place}: three of each {what} at least were there"));
        }
    }
    findings
}

/// Where there is no list of kinds, they are those of `without`, written as in the list.
fn count(texts: &[(String, String)], without: &str) -> Result<Vec<Touched>> {
    let list = texts.iter().find(|(name, _)| name == KINDS).map_or(without, |(_, text)| text);
    let kinds = list.split("::KIND").filter_map(|before| before.rsplit_once('&')).map(|(_, kind)| kind);
    let kinds = kinds.filter(|kind| kind.chars().all(|c| c.is_alphanumeric() || c == '_'));
    let operations = texts.iter().filter_map(|(name, _)| name.strip_prefix(OPERATIONS)?.strip_suffix(".rs"));
    let mut all: Vec<Touched> = Vec::new();
    let lists = arguments(texts)?;
    let mut add = |what, name: &str, words, limit| {
        let own = if matches!(what, "mixer" | "part") { own_of(name, &lists) } else { BTreeSet::new() };
        all.push(Touched { what, name: name.to_owned(), words, own, files: BTreeSet::new(), limit });
    };
    kinds.for_each(|kind| add("mixer", kind, &[], LIMITS[0]));
    PARTS.iter().for_each(|&(name, words, limit)| add("part", name, words, limit));
    operations.filter(|&name| name != "mod").for_each(|name| add("operation", name, &[], LIMITS[1]));
    let rows = texts.iter().filter(|(name, _)| name.starts_with(CLASSES)).flat_map(|(_, text)| text.lines());
    let rows =
        rows.filter_map(|line| line.strip_prefix("const ")?.split_once(": Class").map(|(name, _)| name));
    for name in rows.filter(|&name| name != ASSUMED) {
        add("family", name, &[], LIMITS[2]);
    }
    let mixers: Vec<String> = all.iter().filter(|t| t.what == "mixer").map(|t| t.name.clone()).collect();
    all.retain(|t| t.what != "family" || !mixers.contains(&t.name.to_lowercase()));
    for (file, text) in texts {
        let beside = |folder: &&str| file.starts_with(folder);
        let test = file.contains("/tests/") || file.ends_with("/tests.rs") || !file.contains("/src/");
        if test || BESIDE.iter().any(&beside) {
            continue;
        }
        let below = BELOW.iter().any(beside);
        let (names, texts) = words_of(text).with_context(|| file.clone())?;
        let plains: Vec<String> = names.iter().map(|name| plain_of(name)).collect();
        let words: BTreeSet<String> = names.iter().flat_map(|name| words(name)).collect();
        for touched in &mut all {
            let plain = plain_of(&touched.name);
            let named = || plains.iter().any(|name| name.contains(&plain));
            // A row's own word, and that of a variant: others are of tokenizers, or what rows lend each other.
            let type_like =
                |(name, of): (&String, &String)| name.starts_with(char::is_uppercase) && *of == plain;
            let counts = match touched.what {
                "family" => {
                    !NAMESAKES.iter().any(|&place| file.starts_with(place))
                        && names.iter().zip(&plains).any(type_like)
                }
                "operation" => below && named(),
                "part" => {
                    let of_word = touched.words.iter().any(|word| words.contains(*word));
                    let counted = !below && !file.starts_with(ROWS) && !FILES.iter().any(beside);
                    counted && (of_word || !touched.own.is_disjoint(&texts))
                }
                _ => !below && (file == WORDS || named() || !touched.own.is_disjoint(&texts)),
            };
            if counts {
                touched.files.insert(file.clone());
            }
        }
    }
    Ok(all)
}

/// Attributes of a module.
fn attributes(item: &syn::Item) -> Option<&[syn::Attribute]> {
    match item {
        syn::Item::Mod(m) => Some(&m.attrs),
        _ => None,
    }
}

/// An identifier in small letters and without underscores.
fn plain_of(name: &str) -> String {
    name.replace('_', "").to_lowercase()
}

/// The words of an identifier in small letters: parts between underscores, or that begin with a capital.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut before_small = false;
    for c in name.chars() {
        if c == '_' || (c.is_uppercase() && before_small) {
            words.push(String::new());
        }
        before_small = c.is_lowercase() || c.is_numeric();
        words.last_mut().expect("there is one").extend(c.to_lowercase().filter(|&c| c != '_'));
    }
    words
}

/// The identifiers of code and its strings that may be an argument, except in tests; flags as the arguments that they set.
fn words_of(text: &str) -> Result<(BTreeSet<String>, BTreeSet<String>)> {
    let (mut names, mut texts) = (BTreeSet::new(), BTreeSet::new());
    for item in &syn::parse_file(text)?.items {
        if !attributes(item).is_some_and(is_test) {
            spoken(item.to_token_stream(), &mut names, &mut texts);
        }
    }
    Ok((names, texts))
}

/// The arguments that each file of parts and arguments lists, and those of the fields that many classes have.
fn arguments(texts: &[(String, String)]) -> Result<Vec<(&str, BTreeSet<String>)>> {
    let listing = |(name, _): &&(String, String)| {
        let common = name.starts_with(ROWS) && !name.starts_with(CLASSES);
        common || name.starts_with(PART_FILES) || name.starts_with(ARGUMENTS)
    };
    texts.iter().filter(listing).map(|(name, text)| Ok((name.as_str(), words_of(text)?.1))).collect()
}

/// What the file of a part lists and none else.
fn own_of(part: &str, lists: &[(&str, BTreeSet<String>)]) -> BTreeSet<String> {
    let own = format!("{PART_FILES}{part}.rs");
    let (of, others): (Vec<_>, Vec<_>) = lists.iter().partition(|(file, _)| *file == own);
    let others: BTreeSet<&String> = others.into_iter().flat_map(|(_, list)| list).collect();
    of.into_iter().flat_map(|(_, list)| list).filter(|name| !others.contains(name)).cloned().collect()
}

/// The argument that a text is, or that the flag sets which it is.
fn argument(literal: &str) -> Option<String> {
    let text = literal.strip_prefix('"')?.strip_suffix('"')?;
    let name = text.strip_prefix("--").map_or_else(|| text.to_owned(), |flag| flag.replace('-', "_"));
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    (name.contains('_') && name.chars().all(plain)).then_some(name)
}

/// The identifiers of code, and its texts that may be arguments.
fn spoken(tokens: TokenStream, names: &mut BTreeSet<String>, texts: &mut BTreeSet<String>) {
    for token in tokens {
        match token {
            TokenTree::Group(group) => spoken(group.stream(), names, texts),
            TokenTree::Ident(ident) => drop(names.insert(ident.to_string())),
            TokenTree::Literal(literal) => texts.extend(argument(&literal.to_string())),
            TokenTree::Punct(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_name_a_kind_in_code_are_counted() {
        let text = |name: &str, text: &str| (name.to_owned(), text.to_owned());
        let texts = [
            text(KINDS, "pub static ALL: [&Kind; 2] = [&a_b::KIND, &c::KIND];"),
            text("crates/ms-reference/src/recurrent/mod.rs", "mod scan_it;"),
            text("crates/ms-reference/src/recurrent/scan_it.rs", "fn scan() {}"),
            text("crates/ms-core/src/ops.rs", "fn scan_it(a: AB) {}"),
            text(WORDS, "enum Role { A, B }"),
            text("crates/ms-spec/src/parts/a_b.rs", "const A: [&str; 2] = [\"a_size\", \"hidden_size\"];"),
            text("crates/ms-spec/src/megatron/sizes.rs", "const A: &str = \"hidden_size\";"),
            text("crates/ms-options/src/flags.rs", "const A: [&str; 2] = [\"--a-size\", \"--hidden-size\"];"),
            text("tools/ms-train/src/a.rs", "const A: &str = \"--hidden-size\";"),
            text("tools/ms-train/src/b.rs", "fn f(c: Mla) { c.latents_up(); }"),
            text("tools/ms-train/src/c.rs", "fn f(c: ParamLayout, of: latently) {}"),
            text("crates/ms-nn/src/a.rs", "fn f(of: ABSizes) { scan_it(of) }"),
            text("crates/ms-nn/src/b.rs", "/// Like `AB`.\nfn f() -> &'static str { \"a_b\" }"),
            text("crates/ms-nn/src/c.rs", "#[cfg(test)] mod tests { use crate::AB; }"),
            text("crates/ms-nn/tests/d.rs", "use crate::AB;"),
            text("crates/ms-spec/src/hf/classes/a_b.rs", "use crate::AB;\nconst D_1: Class = class!(AB);"),
            text("crates/ms-nn/src/e.rs", "fn d1() -> D1 { \"d_1\" }"),
            text("crates/ms-nn/src/f.rs", "fn d1() -> D1x { \"d_1\" }"),
        ];
        let of = |name: &str| {
            let all = count(&texts, "").unwrap();
            let found = all.into_iter().find(|t| t.name == name).unwrap();
            found.files.into_iter().collect::<Vec<_>>()
        };
        let row = "crates/ms-spec/src/hf/classes/a_b.rs";
        let (flags, part) = ("crates/ms-options/src/flags.rs", "crates/ms-spec/src/parts/a_b.rs");
        assert_eq!(of("a_b"), ["crates/ms-nn/src/a.rs", flags, row, part, KINDS, WORDS]);
        assert_eq!(of("latent"), ["tools/ms-train/src/b.rs"]);
        assert_eq!(of("scan_it"), ["crates/ms-core/src/ops.rs", "crates/ms-reference/src/recurrent/mod.rs"]);
        assert_eq!(of("D_1"), ["crates/ms-nn/src/e.rs", "crates/ms-spec/src/hf/classes/a_b.rs"]);
        let all = said(&count(&texts, "").unwrap());
        assert_eq!(all.last().unwrap(), "1 rows of families: 2 file of at most 1 each: D_1");
        let many = Touched {
            what: "mixer",
            name: "c".into(),
            words: &[],
            own: BTreeSet::new(),
            files: BTreeSet::from(["x".into()]),
            limit: 0,
        };
        let said = check(&[many]);
        assert!(said[0].contains("mixer c: 1 files of at most 0: x"), "{said:?}");
        // A list that was not found is not a short one.
        assert_eq!(said.len(), 5);
    }
}

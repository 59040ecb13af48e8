//! Public items of libraries that nobody uses outside tests: neither their own crate nor any other crate, program, bench,
//! example or fuzzer. For crates that exist for tests, tests of other crates count as users.
//!
//! A compiler does not report them, because an external user might use them. The rule is by name: an item counts as used if
//! its name occurs as an identifier anywhere except in its own definition, in `impl` blocks of the type it names, in
//! re-exports and in tests. An item that shares its name with a used one is therefore never found, and what is found is
//! unused, except for names that only a macro assembles. Items that are public for another reason are listed in `unused.tsv`,
//! with the reason.

use anyhow::{Context, Result, bail};
use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use syn::{Attribute, Ident, ImplItem, Item, UseTree, Visibility};

/// What is public though nobody names it: crate, names, reason.
const ALLOWED: &str = include_str!("unused.tsv");

/// Crates that exist for tests.
const FOR_TESTS: [&str; 2] = ["ms-testing", "cann-emu"];

/// A public item.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Definition {
    krate: String,
    /// The file and what the item is in, for the message.
    at: String,
    kind: &'static str,
    name: String,
}

/// The crates in whose text a name occurs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    krate: String,
    /// The item, empty for what has no name.
    item: String,
    /// The type whose `impl` block it is in.
    of: String,
    test: bool,
    import: bool,
    /// Neither after `.` nor `::` nor within a macro's arguments: no method is called so.
    bare: bool,
}

/// The definitions of libraries and, of every name, where it occurs.
#[derive(Default)]
struct Names {
    definitions: Vec<Definition>,
    occurs: BTreeMap<String, BTreeSet<Place>>,
    /// For every crate, those that depend on it, directly or through others.
    users: BTreeMap<String, BTreeSet<String>>,
}

/// Public items that nobody uses, and exceptions that excuse nothing, as sentences; and how many of the items there are,
/// excused or not.
pub(crate) fn check(root: &Path, files: &[PathBuf]) -> Result<(Vec<String>, usize)> {
    let read = |path: &Path| std::fs::read_to_string(root.join(path)).ok();
    let files = files.iter().map(|path| path.strip_prefix(root).unwrap_or(path).to_owned());
    let names = collect(files, &read, users(root)?)?;
    Ok((judge(&names, ALLOWED)?, judge(&names, "")?.len()))
}

/// The names in the Rust files of a workspace, whose paths begin at its root.
fn collect(
    files: impl Iterator<Item = PathBuf>,
    read: &dyn Fn(&Path) -> Option<String>,
    users: BTreeMap<String, BTreeSet<String>>,
) -> Result<Names> {
    let mut names = Names { users, ..Names::default() };
    let mut folders = BTreeMap::new();
    for file in files.filter(|f| f.extension().is_some_and(|e| e == "rs")) {
        let parts: Vec<&str> = file.iter().filter_map(|p| p.to_str()).collect();
        let depth = match parts.first() {
            Some(&"crates" | &"tools" | &"tests") => 2,
            _ => 1,
        };
        folders.entry(parts[..depth].join("/")).or_insert_with(Vec::new).push(file);
    }
    for (folder, files) in folders {
        let library = folder.starts_with("crates/");
        let krate = folder.rsplit('/').next().unwrap_or(&folder).to_owned();
        for file in files {
            let inside = file.strip_prefix(&folder)?;
            let place = Place {
                krate: krate.clone(),
                item: String::new(),
                of: String::new(),
                test: folder.starts_with("tests/") || inside.starts_with("tests"),
                import: false,
                bare: false,
            };
            let lib = inside == Path::new("src/lib.rs");
            let top = lib || inside == Path::new("src/main.rs");
            // The other files of `src` are reached from there: who names a module says whether it is a test.
            if top || !inside.starts_with("src") {
                names.file(&file, library && lib, &place, read, top)?;
            }
        }
    }
    Ok(names)
}

/// For every crate of the workspace, the crates that depend on it, in any way and through others; and the fuzzers, which are
/// not part of the workspace and may use all.
fn users(root: &Path) -> Result<BTreeMap<String, BTreeSet<String>>> {
    let metadata =
        cargo_metadata::MetadataCommand::new().manifest_path(root.join("Cargo.toml")).no_deps().exec()?;
    let mut users: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for package in &metadata.packages {
        users.entry(package.name.to_string()).or_default().insert("fuzz".to_owned());
        for dependency in &package.dependencies {
            users.entry(dependency.name.clone()).or_default().insert(package.name.to_string());
        }
    }
    loop {
        let mut grown = users.clone();
        for (name, direct) in &users {
            let further: Vec<String> =
                direct.iter().filter_map(|user| users.get(user)).flatten().cloned().collect();
            grown.entry(name.clone()).or_default().extend(further);
        }
        if grown == users {
            return Ok(users);
        }
        users = grown;
    }
}

/// What of `names` is unused and not excused.
fn judge(names: &Names, allowed: &str) -> Result<Vec<String>> {
    let mut excuses = Vec::new();
    for line in allowed.lines().filter(|l| !l.starts_with('#') && !l.is_empty()) {
        let cells: Vec<&str> = line.split('\t').collect();
        let [krate, names, reason] = cells[..] else {
            bail!("unused.tsv: expected three cells, found {line:?}")
        };
        if reason.trim().is_empty() {
            bail!("unused.tsv: {krate} {names} has no reason");
        }
        excuses.extend(names.split(' ').map(|name| (krate, name, false)));
    }
    let mut findings = Vec::new();
    for definition in names.definitions.iter().filter(|d| !names.used(d)) {
        let Definition { krate, at, kind, name } = definition;
        let mut matching = excuses.iter_mut().filter(|(k, n, _)| k == krate && n == name).peekable();
        if matching.peek().is_none() {
            findings.push(format!("{at}: nobody uses the public {kind} {name} but, perhaps, tests"));
        }
        matching.for_each(|(_, _, used)| *used = true);
    }
    let idle = excuses.iter().filter(|(_, _, used)| !used);
    findings.extend(
        idle.map(|(krate, name, _)| format!("unused.tsv excuses {name} of {krate}, which nothing needs")),
    );
    Ok(findings)
}

impl Names {
    /// Whether anybody but its own definition and tests names it.
    fn used(&self, definition: &Definition) -> bool {
        // Blocks of a type import it too.
        let a_type = matches!(definition.kind, "struct" | "enum" | "union" | "type");
        let own = |p: &Place| {
            let itself = p.item == definition.name || p.of == definition.name;
            p.krate == definition.krate && (p.test || itself || (p.import && a_type))
        };
        let no_user = |p: &Place| p.test && !FOR_TESTS.contains(&&*definition.krate);
        let may = |p: &Place| {
            p.krate == definition.krate
                || self.users.get(&definition.krate).is_some_and(|users| users.contains(&p.krate))
        };
        let something_else = |p: &Place| p.bare && definition.kind.starts_with("associated");
        let places = self.occurs.get(&definition.name);
        places.is_some_and(|places| {
            places.iter().any(|p| may(p) && !own(p) && !no_user(p) && !something_else(p))
        })
    }

    /// Takes in a file and, if `follow`, the files of its modules. Public items are listed if `list`.
    fn file(
        &mut self,
        path: &Path,
        list: bool,
        place: &Place,
        read: &dyn Fn(&Path) -> Option<String>,
        follow: bool,
    ) -> Result<()> {
        let text = read(path).with_context(|| path.display().to_string())?;
        let file = syn::parse_file(&text).with_context(|| path.display().to_string())?;
        let folder = path.parent().unwrap_or(Path::new(""));
        let stem = path.file_stem().and_then(|s| s.to_str()).unwrap_or("");
        let modules =
            if matches!(stem, "lib" | "main" | "mod") { folder.to_owned() } else { folder.join(stem) };
        let walk = Walk { path, list, read, follow };
        self.items(&file.items, &walk, place, &modules)
    }

    fn items(&mut self, items: &[Item], walk: &Walk<'_>, place: &Place, modules: &Path) -> Result<()> {
        for item in items {
            let test = place.test || is_test(attributes(item));
            let place = Place { test, ..place.clone() };
            match item {
                Item::Mod(module) => {
                    let name = module.ident.to_string();
                    if let Some((_, items)) = &module.content {
                        self.items(items, walk, &place, &modules.join(&name))?;
                    } else if walk.follow {
                        let file = module_file(walk, &module.attrs, modules, &name)?;
                        self.file(&file, walk.list, &place, walk.read, true)?;
                    }
                }
                Item::Use(import) => {
                    let public = matches!(import.vis, Visibility::Public(_));
                    self.imports(&import.tree, public, &place);
                }
                Item::Impl(block) => {
                    // The last name of a path, before its arguments: `fmt::Wrapper<Inner>` is `Wrapper`.
                    let of = match &*block.self_ty {
                        syn::Type::Path(path) => path.path.segments.last().map(|s| s.ident.to_string()),
                        _ => None,
                    };
                    let place = Place { of: of.unwrap_or_default(), ..place };
                    if let Some((_, path, _)) = &block.trait_ {
                        self.occurrences(path.to_token_stream(), &place);
                    }
                    self.occurrences(block.self_ty.to_token_stream(), &place);
                    self.occurrences(block.generics.to_token_stream(), &place);
                    self.occurrences(block.generics.where_clause.to_token_stream(), &place);
                    for item in &block.items {
                        self.impl_item(item, walk, &place, block.trait_.is_none());
                    }
                }
                Item::Macro(_) => self.occurrences(item.to_token_stream(), &place),
                _ => {
                    let Some((kind, name, vis)) = named(item) else {
                        self.occurrences(item.to_token_stream(), &place);
                        continue;
                    };
                    // What C calls by its name is used by C.
                    if !exported(attributes(item)) {
                        self.define(kind, name, vis, walk, &place);
                    }
                    if let Item::Trait(block) = item {
                        let place = Place { of: name.to_string(), ..place.clone() };
                        for item in &block.items {
                            if let syn::TraitItem::Fn(f) = item {
                                self.define("associated function", &f.sig.ident, vis, walk, &place);
                            }
                        }
                    }
                    let place = Place { item: name.to_string(), ..place };
                    self.occurrences(item.to_token_stream(), &place);
                }
            }
        }
        Ok(())
    }

    fn impl_item(&mut self, item: &ImplItem, walk: &Walk<'_>, place: &Place, inherent: bool) {
        let (kind, name, vis, attributes) = match item {
            ImplItem::Fn(f) => ("associated function", &f.sig.ident, &f.vis, &f.attrs),
            ImplItem::Const(c) => ("associated constant", &c.ident, &c.vis, &c.attrs),
            ImplItem::Type(t) => ("associated type", &t.ident, &t.vis, &t.attrs),
            other => return self.occurrences(other.to_token_stream(), place),
        };
        let place = Place { test: place.test || is_test(attributes), ..place.clone() };
        if inherent {
            self.define(kind, name, vis, walk, &place);
        }
        // A method of a trait is called by whoever calls the trait: what it names, it uses.
        let item_name = if inherent { name.to_string() } else { String::new() };
        self.occurrences(item.to_token_stream(), &Place { item: item_name, ..place });
    }

    fn define(&mut self, kind: &'static str, name: &Ident, vis: &Visibility, walk: &Walk<'_>, place: &Place) {
        if walk.list && !place.test && matches!(vis, Visibility::Public(_)) {
            let at = walk.path.display().to_string();
            let at = if place.of.is_empty() { at } else { format!("{at} ({})", place.of) };
            self.definitions.push(Definition {
                krate: place.krate.clone(),
                at,
                kind,
                name: name.to_string(),
            });
        }
    }

    /// A private import is a use (the compiler reports unused ones); a public one re-exports what it names; one that renames
    /// hides the name from the rest of the file.
    fn imports(&mut self, tree: &UseTree, public: bool, place: &Place) {
        match tree {
            UseTree::Path(path) => self.imports(&path.tree, public, place),
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.imports(tree, public, place)),
            UseTree::Rename(rename) => self.occurs(&rename.ident.to_string(), place),
            UseTree::Name(name) if !public => {
                self.occurs(&name.ident.to_string(), &Place { import: true, ..place.clone() });
            }
            UseTree::Name(_) | UseTree::Glob(_) => {}
        }
    }

    fn occurs(&mut self, name: &str, place: &Place) {
        match self.occurs.get_mut(name) {
            Some(places) if places.contains(place) => {}
            Some(places) => {
                places.insert(place.clone());
            }
            None => {
                self.occurs.insert(name.to_owned(), BTreeSet::from([place.clone()]));
            }
        }
    }

    /// Takes in every identifier of `tokens` but those that are being defined, and what strings name: `"{NAME}"`, and paths
    /// in attributes (`serde(default = "path")`).
    fn occurrences(&mut self, tokens: TokenStream, place: &Place) {
        self.words(tokens, place, false);
    }

    fn words(&mut self, tokens: TokenStream, place: &Place, in_macro: bool) {
        let bare_place = Place { bare: true, ..place.clone() };
        let mut before = [String::new(), String::new()];
        for token in tokens {
            let now = match token {
                TokenTree::Group(group) => {
                    self.words(group.stream(), place, in_macro || before[1] == "!");
                    String::new()
                }
                TokenTree::Ident(name) => {
                    let name = name.to_string();
                    let name = name.strip_prefix("r#").unwrap_or(&name).to_owned();
                    let pointer = before[1] == "const" && before[0] == "*";
                    let defined =
                        ["fn", "struct", "enum", "trait", "const", "type", "static", "mod", "union"];
                    if pointer || !defined.contains(&before[1].as_str()) {
                        let bare = !in_macro && !matches!(before[1].as_str(), "." | ":");
                        self.occurs(&name, if bare { &bare_place } else { place });
                    }
                    name
                }
                TokenTree::Punct(mark) => mark.as_char().to_string(),
                TokenTree::Literal(literal) => {
                    let text = literal.to_string();
                    let doc = before[0] == "doc" && before[1] == "=";
                    if text.contains('"') && !doc {
                        for word in text.split(|c: char| !c.is_alphanumeric() && c != '_') {
                            if named_in(&text, word) {
                                self.occurs(word, place);
                            }
                        }
                    }
                    String::new()
                }
            };
            before = [std::mem::take(&mut before[1]), now];
        }
    }
}

/// Whether a string passes on the item `word`: as what a format prints, or as all it says (a path in an attribute).
fn named_in(text: &str, word: &str) -> bool {
    let inner = text.trim_start_matches(['b', 'r', '#']).trim_end_matches('#').trim_matches('"');
    let path = inner.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | ':'));
    let captured = [format!("{{{word}}}"), format!("{{{word}:")].iter().any(|p| text.contains(p.as_str()));
    !word.is_empty() && (path || captured)
}

/// What stays the same through a file.
struct Walk<'a> {
    path: &'a Path,
    list: bool,
    read: &'a dyn Fn(&Path) -> Option<String>,
    follow: bool,
}

/// Where the module `name` of a file stands whose modules are in `modules`.
fn module_file(walk: &Walk<'_>, attributes: &[Attribute], modules: &Path, name: &str) -> Result<PathBuf> {
    let given = attributes.iter().find(|a| a.path().is_ident("path")).and_then(|a| match &a.meta {
        syn::Meta::NameValue(pair) => {
            Some(pair.value.to_token_stream().to_string().trim_matches('"').to_owned())
        }
        _ => None,
    });
    let folder = walk.path.parent().unwrap_or(Path::new(""));
    let candidates = match given {
        Some(given) => vec![folder.join(given)],
        None => vec![modules.join(format!("{name}.rs")), modules.join(name).join("mod.rs")],
    };
    let found = candidates.into_iter().find(|path| (walk.read)(path).is_some());
    found.with_context(|| format!("{}: no file of the module {name}", walk.path.display()))
}

/// Kind, name and visibility of an item that the rule is about.
fn named(item: &Item) -> Option<(&'static str, &Ident, &Visibility)> {
    Some(match item {
        Item::Fn(i) => ("function", &i.sig.ident, &i.vis),
        Item::Struct(i) => ("struct", &i.ident, &i.vis),
        Item::Enum(i) => ("enum", &i.ident, &i.vis),
        Item::Union(i) => ("union", &i.ident, &i.vis),
        Item::Trait(i) => ("trait", &i.ident, &i.vis),
        Item::Const(i) => ("constant", &i.ident, &i.vis),
        Item::Static(i) => ("static", &i.ident, &i.vis),
        Item::Type(i) => ("type", &i.ident, &i.vis),
        _ => return None,
    })
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Fn(i) => &i.attrs,
        Item::Struct(i) => &i.attrs,
        Item::Enum(i) => &i.attrs,
        Item::Union(i) => &i.attrs,
        Item::Trait(i) => &i.attrs,
        Item::Const(i) => &i.attrs,
        Item::Static(i) => &i.attrs,
        Item::Type(i) => &i.attrs,
        Item::Mod(i) => &i.attrs,
        Item::Impl(i) => &i.attrs,
        Item::Use(i) => &i.attrs,
        Item::Macro(i) => &i.attrs,
        _ => &[],
    }
}

/// `#[test]`, `#[cfg(test)]` and `#[cfg(all(test, …))]`; what exists without tests (`not(test)`) does not count.
fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|a| {
        let text = a.meta.to_token_stream().to_string();
        let words: Vec<&str> = text.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
        text == "test"
            || (words[0] == "cfg"
                && words.contains(&"test")
                && !words.contains(&"not")
                && !words.contains(&"any"))
    })
}

fn exported(attributes: &[Attribute]) -> bool {
    let text: String = attributes.iter().map(|a| a.meta.to_token_stream().to_string()).collect();
    ["no_mangle", "export_name"].iter().any(|word| text.contains(word))
}

#[cfg(test)]
mod tests;

//! The libraries of a tree as files: what they export, against the table of the interface in both directions; and how the loader
//! finds them.

use super::scenarios::scenarios;
use crate::client::cann;
use crate::{run_in, tree};
use cann_emu::tree::{Personality, exports};
use hccl_sys::{Cann, Search};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

scenarios! {
    two_symbols_are_missing
    prefixes_in_their_order a_home_before_the_prefixes a_library_of_another_machine vendors_behind_named_folders
}

/// Names that a library file defines for others, by its dynamic symbol table.
fn defined(library: &Path) -> BTreeSet<String> {
    let bytes = std::fs::read(library).unwrap();
    let number = |at: usize, width: usize| -> u64 {
        bytes[at..at + width].iter().rev().fold(0, |n, b| n << 8 | u64::from(*b))
    };
    assert_eq!(&bytes[..5], b"\x7fELF\x02", "a library of 64 bits");
    let (table, size, count) = (number(0x28, 8) as usize, number(0x3a, 2) as usize, number(0x3c, 2) as usize);
    let sections: Vec<usize> = (0..count).map(|i| table + i * size).collect();
    let dynamic = *sections.iter().find(|s| number(**s + 4, 4) == 11).expect("a dynamic symbol table");
    let texts = number(sections[number(dynamic + 0x28, 4) as usize] + 0x18, 8) as usize;
    let (start, len) = (number(dynamic + 0x18, 8) as usize, number(dynamic + 0x20, 8) as usize);
    let mut out = BTreeSet::new();
    for at in (start..start + len).step_by(24).skip(1) {
        // Section 0 stands for symbols of others.
        if number(at + 6, 2) != 0 {
            let name = &bytes[texts + number(at, 4) as usize..];
            let end = name.iter().position(|b| *b == 0).unwrap();
            out.insert(String::from_utf8(name[..end].to_vec()).unwrap());
        }
    }
    out
}

/// What each library must export by the table of the interface: both phases of operators, in the libraries of the release.
fn by_the_table(personality: Personality) -> Option<BTreeMap<String, BTreeSet<String>>> {
    let text = std::fs::read_to_string(ms_testing::shared("spec/ascend-abi.tsv")?).unwrap();
    let head: Vec<&str> = text.lines().next().unwrap().split('\t').collect();
    let column = |name: &str| head.iter().position(|h| *h == name).unwrap();
    let (old, new) = (column("lib_8.1"), column("lib_9.x"));
    let rows: BTreeSet<&str> = text.lines().filter_map(|l| l.split('\t').next()).collect();
    let mut out: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for line in text.lines().skip(1) {
        let fields: Vec<&str> = line.split('\t').collect();
        let read = format!(",{},{},", fields[column("headers_read")], fields[column("docs_only")]);
        if personality == Personality::V81 && !read.contains(",8.1,") {
            continue;
        }
        let place = match personality {
            Personality::V81 => fields[old],
            Personality::V91 if fields[new] == "same" => fields[old],
            Personality::V91 => fields[new],
        };
        for library in place.split('|').map(|l| l.trim_end_matches('?')).filter(|l| *l != "-") {
            let list = out.entry(library.to_owned()).or_default();
            list.insert(fields[0].to_owned());
            // Second phases are all alike, and but for two stand in no row of their own.
            if let Some(second) = fields[0].strip_suffix("GetWorkspaceSize").filter(|s| !rows.contains(s)) {
                list.insert(second.to_owned());
            }
        }
    }
    Some(out)
}

/// What the libraries have beyond the table: what the vendor's adapter links or looks up, and three operators that 8.1 ships
/// without a header. Neither stands in `hccl-sys`.
fn beyond_the_table(name: &str) -> bool {
    const SHIPPED: [&str; 3] = [
        "aclnnRotaryPositionEmbedding",
        "aclnnRotaryPositionEmbeddingGrad",
        "aclnnForeachNonFiniteCheckAndUnscale",
    ];
    SHIPPED.contains(&name.trim_end_matches("GetWorkspaceSize"))
        || cann_emu::api::adapter::SYMBOLS.iter().any(|(symbol, _)| *symbol == name)
}

#[test]
fn the_files_export_what_the_table_says_and_nothing_else() {
    for personality in [Personality::V81, Personality::V91] {
        let lib = tree(personality).join("lib64");
        // The files hold what the tree's list says.
        for (library, list) in exports(personality) {
            let wanted: BTreeSet<String> = list.iter().map(|s| (*s).to_owned()).collect();
            assert_eq!(defined(&lib.join(library)), wanted, "{library} in {}", personality.name());
        }
        let Some(table) = by_the_table(personality) else { continue };
        let mut differences = Vec::new();
        for (library, wanted) in &table {
            let found = defined(&lib.join(library));
            differences.extend(wanted.difference(&found).map(|s| format!("{library} lacks {s}")));
        }
        let known: BTreeSet<&String> = table.values().flatten().collect();
        for library in exports(personality).keys() {
            let none = BTreeSet::new();
            let wanted = table.get(*library).unwrap_or(&none);
            let more = defined(&lib.join(library)).into_iter().filter(|s| !wanted.contains(s));
            differences
                .extend(more.filter(|s| !beyond_the_table(s)).map(|s| format!("{library} has {s} too")));
        }
        assert!(known.len() > 1500, "{} names", known.len());
        assert!(differences.is_empty(), "{}: {}", personality.name(), differences.join("\n"));
    }
}

/// Every function that ascend-rs calls without an alternative is in 8.1, so that it is there in every release.
#[test]
fn what_a_client_needs_is_in_every_release() {
    let of = |personality| -> BTreeSet<String> { exports(personality).into_values().flatten().collect() };
    let (old, new) = (of(Personality::V81), of(Personality::V91));
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ascend-rs/src");
    let mut called = BTreeSet::new();
    for file in
        ["comm", "device", "error", "fabric/mail", "memory", "operator", "profile", "stream", "toolkit"]
    {
        let text = std::fs::read_to_string(sources.join(file).with_extension("rs")).unwrap();
        for table in ["acl.", "rt.", "meta.", "hccl.", "prof."] {
            for (at, _) in text.match_indices(table) {
                let name: String =
                    text[at + table.len()..].chars().take_while(char::is_ascii_alphanumeric).collect();
                if name.starts_with("acl") || name.starts_with("Hccl") {
                    called.insert(name);
                }
            }
        }
    }
    assert!(called.len() > 60, "{called:?}");
    let newer: Vec<&String> = called.iter().filter(|n| !old.contains(n.as_str())).collect();
    assert_eq!(newer, [] as [&String; 0], "functions that 8.1 lacks");
    let gone: Vec<&String> = called.iter().filter(|n| !new.contains(n.as_str())).collect();
    assert_eq!(gone, [] as [&String; 0], "functions that 9.1 lacks");
}

fn search(home: Option<&Path>, prefixes: &[&Path]) -> Search {
    Search {
        home: home.map(Path::to_path_buf),
        prefixes: prefixes.iter().map(|p| p.to_path_buf()).collect(),
        ..Search::default()
    }
}

fn opened(cann: &Cann, name: &str) -> Option<PathBuf> {
    cann.report.libraries.iter().find(|l| l.name == name).and_then(|l| l.opened.clone())
}

#[test]
fn variables_say_where_to_search() {
    let defaults = Search::from_variables(|_| None);
    // Between them is what this machine has.
    let (first, last) = (defaults.prefixes.first(), defaults.prefixes.last());
    assert_eq!(first, Some(&PathBuf::from("/usr/local/Ascend/cann")));
    assert_eq!(last, Some(&PathBuf::from("/usr/local/Ascend/ascend-toolkit/latest")));
    assert!(defaults.home.is_none() && defaults.custom.is_empty());
    // `ASCEND_TOOLKIT_HOME` stands for the other variable where that is not set.
    let other = Search::from_variables(|n| (n == "ASCEND_TOOLKIT_HOME").then(|| "/there".to_owned()));
    assert_eq!(other.home, Some(PathBuf::from("/there")));
}

/// A library that a process has opened is found by its bare name, so each search has a process of its own.
#[test]
fn searches_go_from_place_to_place() {
    let old = tree(Personality::V81).to_str().unwrap();
    for scenario in ["prefixes_in_their_order", "a_home_before_the_prefixes", "a_library_of_another_machine"]
    {
        let out = run_in(Personality::V91, scenario, &[("CANN_OTHER", old)]);
        assert!(out.status.success(), "{scenario}: {}", String::from_utf8_lossy(&out.stderr));
    }
}

/// The tree of 9.1, and that of 8.1.
fn trees() -> (PathBuf, PathBuf) {
    let of = |name: &str| PathBuf::from(std::env::var_os(name).unwrap());
    (of("ASCEND_HOME_PATH"), of("CANN_OTHER"))
}

/// Without any variable the prefixes are looked at, in their order.
fn prefixes_in_their_order() {
    let (new, old) = trees();
    let folder = tempfile::tempdir().unwrap();
    let empty = folder.path().join("none");
    let cann = Cann::open(&search(None, &[&empty, &new, &old])).unwrap();
    assert_eq!(opened(&cann, "libascendcl.so"), Some(new.join("lib64/libascendcl.so")));
    let entry = cann.report.libraries.iter().find(|l| l.name == "libacl_rt.so").unwrap();
    let tried: Vec<&Path> = entry.tried.iter().map(|(p, _)| p.as_path()).collect();
    assert_eq!(tried, [Path::new("libacl_rt.so"), &empty.join("lib64/libacl_rt.so")]);
}

fn a_home_before_the_prefixes() {
    let (new, old) = trees();
    let cann = Cann::open(&search(Some(&old), &[&new])).unwrap();
    assert_eq!(opened(&cann, "libascendcl.so"), Some(old.join("lib64/libascendcl.so")));
}

/// A library for another machine is passed over with the linker's words, and the next place is looked at.
fn a_library_of_another_machine() {
    let (new, _) = trees();
    let folder = tempfile::tempdir().unwrap();
    let lib = folder.path().join("lib64");
    std::fs::create_dir_all(&lib).unwrap();
    let mut bytes = std::fs::read(new.join("lib64/libnnopbase.so")).unwrap();
    // The machine stands at byte 18 of the header: neither x86-64 nor aarch64.
    bytes[18..20].copy_from_slice(&[8, 0]);
    for name in ["libascendcl.so", "libacl_rt.so"] {
        std::fs::write(lib.join(name), &bytes).unwrap();
    }
    let error =
        Cann::open(&search(Some(folder.path()), &[])).expect_err("no library of this machine").to_string();
    assert!(error.contains(&lib.join("libascendcl.so").display().to_string()), "{error}");
    let cann = Cann::open(&search(Some(folder.path()), &[&new])).unwrap();
    let entry = cann.report.libraries.iter().find(|l| l.name == "libacl_rt.so").unwrap();
    assert_eq!(entry.opened, Some(new.join("lib64/libacl_rt.so")));
    let (path, why) = &entry.tried[0];
    assert!(*path == lib.join("libacl_rt.so") && !why.is_empty(), "{path:?}: {why}");
}

/// A library with one operator that answers a number of its own.
fn own_operator(folder: &Path, code: i32) -> PathBuf {
    let lib = folder.join("op_api/lib");
    std::fs::create_dir_all(&lib).unwrap();
    let source = folder.join("own.c");
    let text = format!(
        "int aclnnAddGetWorkspaceSize(void) {{ return {code}; }}\nint aclnnAdd(void) {{ return 4712; }}\n"
    );
    std::fs::write(&source, text).unwrap();
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let made = Command::new(compiler)
        .args(["-shared", "-fPIC"])
        .arg(&source)
        .arg("-o")
        .arg(lib.join("libcust_opapi.so"))
        .status()
        .unwrap();
    assert!(made.success());
    lib.join("libcust_opapi.so")
}

#[test]
fn operators_of_ones_own_come_before_the_built_in_ones() {
    let folder = tempfile::tempdir().unwrap();
    own_operator(folder.path(), 4711);
    for personality in [Personality::V81, Personality::V91] {
        let own = [("ASCEND_CUSTOM_OPP_PATH", folder.path().to_str().unwrap())];
        let out = run_in(personality, "own_operators_come_first", &own);
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    }
}

/// Vendors' folders by their priority, behind the folders that a variable names.
#[test]
fn vendors_come_by_their_priority_behind_named_folders() {
    let folder = tempfile::tempdir().unwrap();
    let vendors = folder.path().join("opp/vendors");
    for (vendor, code) in [("first", 4711), ("second", 1), ("unlisted", 3)] {
        own_operator(&vendors.join(vendor), code);
    }
    own_operator(&folder.path().join("named"), 2);
    std::fs::write(vendors.join("config.ini"), "load_priority=first, second,absent\n").unwrap();
    let (opp, named) = (folder.path().join("opp"), folder.path().join("named"));
    let opp = ("ASCEND_OPP_PATH", opp.to_str().unwrap());
    for (scenario, settings) in [
        ("vendors_behind_named_folders", vec![opp, ("ASCEND_CUSTOM_OPP_PATH", named.to_str().unwrap())]),
        // Without the named folder the first vendor's operator is the one that answers.
        ("own_operators_come_first", vec![opp]),
    ] {
        let out = run_in(Personality::V91, scenario, &settings);
        assert!(out.status.success(), "{scenario}: {}", String::from_utf8_lossy(&out.stderr));
    }
}

fn vendors_behind_named_folders() {
    let search = Search::from_variables(|n| std::env::var(n).ok());
    let (vendors, named) = (search.opp.clone().unwrap().join("vendors"), search.custom[0].clone());
    let cann = Cann::open(&search).unwrap();
    let found: Vec<PathBuf> = cann
        .report
        .libraries
        .iter()
        .filter(|l| l.name.ends_with("libcust_opapi.so"))
        .filter_map(|l| l.opened.clone())
        .collect();
    let library = |folder: PathBuf| folder.join("op_api/lib/libcust_opapi.so");
    assert_eq!(found, [library(named), library(vendors.join("first")), library(vendors.join("second"))]);
}

/// Runs with both taken away by a fault.
fn two_symbols_are_missing() {
    let cann = cann();
    assert!(cann.math.aclnnAdd.is_none() && cann.rt.aclrtMemcpy2d.is_none());
    assert!(cann.math.aclnnAdds.is_some() && cann.rt.aclrtMemcpy.is_some());
}

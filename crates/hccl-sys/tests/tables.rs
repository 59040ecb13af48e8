//! The declarations against the tables of published facts: names, argument classes, constants.
#![allow(clippy::unwrap_used)] // a test program

use std::collections::BTreeMap;
use std::path::PathBuf;

/// The whole table beside the project where it is, else the excerpt that is kept here.
fn table(name: &str) -> (PathBuf, bool) {
    match ms_testing::shared(&format!("spec/{name}")) {
        Some(path) => (path, true),
        None => (PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/excerpt").join(name), false),
    }
}

fn rows(name: &str) -> (Vec<BTreeMap<String, String>>, bool) {
    let (path, whole) = table(name);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut lines = text.lines();
    let head: Vec<&str> = lines.next().unwrap().split('\t').collect();
    let rows = lines
        .map(|line| head.iter().zip(line.split('\t')).map(|(h, v)| ((*h).to_owned(), v.to_owned())).collect())
        .collect();
    (rows, whole)
}

#[test]
fn every_function_of_the_table_is_declared_with_its_argument_classes() {
    let declared: BTreeMap<&str, _> = hccl_sys::dump().into_iter().map(|d| (d.name, d)).collect();
    let (rows, whole) = rows("ascend-abi.tsv");
    let mut wanted = BTreeMap::new();
    for row in &rows {
        // Of a function that changed, the newest release counts; its row comes last.
        wanted.insert(row["symbol"].clone(), row.clone());
    }
    let mut differences = Vec::new();
    for (name, row) in &wanted {
        let Some(d) = declared.get(name.as_str()) else {
            differences.push(format!("{name} is not declared"));
            continue;
        };
        if d.arguments != row["abi"] {
            differences.push(format!("{name}: declared {}, the table has {}", d.arguments, row["abi"]));
        }
        if d.result != row["ret"] {
            differences.push(format!("{name}: declared to give {}, the table has {}", d.result, row["ret"]));
        }
    }
    if whole {
        assert_eq!(wanted.len(), 2233, "distinct functions of the table");
        differences.extend(
            declared.keys().filter(|n| !wanted.contains_key(**n)).map(|n| format!("{n} is in no table")),
        );
    } else {
        assert!(wanted.len() > 100, "the excerpt is whole");
    }
    assert!(differences.is_empty(), "{} differences:\n{}", differences.len(), differences.join("\n"));
}

#[test]
fn every_constant_of_the_table_has_its_value() {
    let declared: BTreeMap<&str, i128> = hccl_sys::dump_constants().into_iter().collect();
    let (rows, _) = rows("ascend-abi-consts.tsv");
    let mut first = BTreeMap::new();
    for row in rows {
        first.entry(row["constant"].clone()).or_insert(row["value"].clone());
    }
    let differences: Vec<String> = first
        .iter()
        .filter(|(name, value)| {
            let value = value
                .strip_prefix("0x")
                .map_or_else(|| value.parse().ok(), |h| i128::from_str_radix(h, 16).ok());
            declared.get(name.as_str()).copied() != value
        })
        .map(|(name, value)| {
            format!("{name}: declared {:?}, the table has {value}", declared.get(name.as_str()))
        })
        .collect();
    assert!(first.len() > 50 && differences.is_empty(), "{}", differences.join("\n"));
}

#[test]
fn without_a_toolkit_the_error_names_every_path_that_was_tried() {
    let search =
        hccl_sys::Search { home: Some(PathBuf::from("/nowhere/cann")), ..hccl_sys::Search::default() };
    let error = hccl_sys::Cann::open(&search).expect_err("no toolkit is there");
    let text = error.to_string();
    assert!(text.contains("/nowhere/cann/lib64/libascendcl.so"), "{text}");
    assert!(text.contains("/nowhere/cann/lib64/libacl_rt.so"), "{text}");
    assert!(text.contains("hint:"), "{text}");
}

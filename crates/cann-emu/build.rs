//! Names the shared library as the public libraries of the tree look for it, and writes the entry points: a call of one of the
//! macros in `src/abi.rs` for each row of `interface.tsv`.

use std::path::Path;
use std::{env, fs};

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcannemu_core.so");
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=interface.tsv");
    let table =
        fs::read_to_string("interface.tsv").expect("the table of the interface is a part of the crate");
    let entries: Vec<String> = table.lines().skip(1).map(entry).collect();
    let folder = env::var_os("OUT_DIR").expect("Cargo sets it for build scripts");
    fs::write(Path::new(&folder).join("entries.rs"), entries.join("\n")).expect("the folder is writable");
}

/// The macro call for a row.
fn entry(row: &str) -> String {
    let fields: Vec<&str> = row.split('\t').collect();
    let [symbol, _, _, kind, result, arguments] = fields[..] else {
        panic!("not a row of six fields: {row}");
    };
    let arguments = arguments.split_whitespace().enumerate();
    match (kind, result) {
        ("operator", _) => {
            let one = |(i, argument): (usize, &str)| {
                let (name, class) =
                    argument.split_once(':').unwrap_or_else(|| panic!("an argument without a class: {row}"));
                // Classes of pointers are capitalised; a number's class is its type.
                let pointer = class.starts_with(char::is_uppercase);
                let (typed, kind) = if pointer { ("usize", class) } else { (class, "Number") };
                format!("a{i}: {typed} = {name:?} {kind}")
            };
            format!("op!({symbol}({}));", list(arguments.map(one)))
        }
        ("function", result) => {
            let result = if result == "v" { String::new() } else { format!(" -> {}", passed(result)) };
            format!(
                "entry!({symbol}({}){result});",
                list(arguments.map(|(i, class)| format!("a{i}: {}", passed(class))))
            )
        }
        ("absent", "v") => format!("absent!({symbol}() -> ());"),
        ("absent", "i32") => {
            format!("absent!({symbol}() -> i32 = crate::report::unsupported_code({symbol:?}));")
        }
        ("absent", result) => format!("absent!({symbol}() -> {0} = {0}::default());", passed(result)),
        _ => panic!("no such kind: {row}"),
    }
}

/// The Rust type in which a class of the table is passed.
fn passed(class: &str) -> &str {
    if class == "p" { "usize" } else { class }
}

fn list(parts: impl Iterator<Item = String>) -> String {
    parts.collect::<Vec<_>>().join(", ")
}

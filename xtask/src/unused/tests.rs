//! The rule applied to small workspaces in memory.

use super::*;

/// Findings in a workspace of these files, in which `b` depends on `a`, and nothing on `b`.
fn found(files: &[(&str, &str)], allowed: &str) -> Result<Vec<String>> {
    let read =
        |path: &Path| files.iter().find(|(p, _)| Path::new(p) == path).map(|(_, text)| (*text).to_owned());
    let users = BTreeMap::from([("a".to_owned(), BTreeSet::from(["b".to_owned()]))]);
    judge(&collect(files.iter().map(|(path, _)| PathBuf::from(path)), &read, users)?, allowed)
}

/// Names of what is found in the library `a` with this text, together with `others`.
fn unused(text: &str, others: &[(&str, &str)]) -> Vec<String> {
    let files: Vec<_> = [("crates/a/src/lib.rs", text)].into_iter().chain(others.iter().copied()).collect();
    let name = |finding: String| {
        let (_, rest) = finding.split_once("public ").unwrap();
        let (item, _) = rest.split_once(" but").unwrap();
        item.rsplit(' ').next().unwrap().to_owned()
    };
    found(&files, "").unwrap().into_iter().map(name).collect()
}

#[test]
fn items_of_every_kind_are_found() {
    let text = "pub fn f() {} pub struct S; pub enum E { A } pub trait T {} pub const C: u8 = 0; pub type B = u8; \
                pub static X: u8 = 0; pub union U { a: u8 }";
    assert_eq!(unused(text, &[]), ["f", "S", "E", "T", "C", "B", "X", "U"]);
    assert_eq!(unused("fn f() {} pub(crate) struct S; impl S { fn g() {} }", &[]), [""; 0]);
}

#[test]
fn an_item_is_not_its_own_user() {
    let text = "pub fn f(n: u8) -> u8 { f(n) } pub struct S(u8); impl S { pub fn new() -> S { S(0) } } \
                impl Clone for S { fn clone(&self) -> S { S(self.0) } } pub use inner::S;";
    assert_eq!(unused(text, &[]), ["f", "S", "new"]);
}

#[test]
fn the_own_crate_uses_but_its_tests_do_not() {
    let library = "pub fn f() {} pub fn g() {} pub fn h() { f() } #[cfg(test)] mod tests { #[test] fn t() { super::g() } } \
                   #[cfg(test)] mod more; #[cfg(all(test, unix))] fn only() { h() }";
    let others = [
        ("crates/a/src/more.rs", "fn t() { super::h() }"),
        ("crates/a/tests/outside.rs", "fn t() { a::g(); a::h() }"),
    ];
    assert_eq!(unused(library, &others), ["g", "h"]);
    let bench = [others[0], others[1], ("crates/a/benches/speed.rs", "fn main() { a::g(); a::h() }")];
    assert_eq!(unused(library, &bench), [""; 0]);
    // What is there without tests, or in some builds that are none, is no test.
    let text = "pub fn f() {} #[cfg(not(test))] fn g() { f() } pub fn h() {} #[cfg(any(test, feature = \"x\"))] fn i() { h() }";
    assert_eq!(unused(text, &[]), [""; 0]);
}

#[test]
fn only_a_crate_that_depends_on_it_is_a_user() {
    let text = "pub fn f() {}";
    assert_eq!(unused(text, &[("crates/b/src/lib.rs", "fn t() { a::f() }")]), [""; 0]);
    assert_eq!(unused(text, &[("crates/b/benches/t.rs", "fn t() { a::f() }")]), [""; 0]);
    assert_eq!(unused(text, &[("crates/c/src/lib.rs", "fn t() { f() }")]), ["f"]);
}

#[test]
fn tests_of_other_crates_are_no_users_but_of_crates_that_exist_for_tests() {
    let text = "pub fn f() {}";
    for test in ["crates/b/tests/t.rs", "tools/b/tests/t.rs", "tests/b/src/lib.rs"] {
        assert_eq!(unused(text, &[(test, "fn t() { a::f() }")]), ["f"], "{test}");
    }
    let inside = [("crates/b/src/lib.rs", "#[cfg(test)] mod tests { fn t() { a::f() } }")];
    assert_eq!(unused(text, &inside), ["f"]);
    let library = ("crates/ms-testing/src/lib.rs", text);
    let users = BTreeMap::from([("ms-testing".to_owned(), BTreeSet::from(["b".to_owned()]))]);
    let test = ("crates/b/tests/t.rs", "fn t() { f() }");
    let of = |files: &[(&str, &str)]| {
        let read =
            |path: &Path| files.iter().find(|(p, _)| Path::new(p) == path).map(|(_, t)| (*t).to_owned());
        judge(&collect(files.iter().map(|(p, _)| PathBuf::from(p)), &read, users.clone()).unwrap(), "")
            .unwrap()
    };
    assert_eq!((of(&[library]).len(), of(&[library, test]).len()), (1, 0));
}

#[test]
fn modules_are_followed_to_their_files() {
    let files = [
        ("crates/a/src/lib.rs", "mod x; mod y { mod z; } #[path = \"other/w.rs\"] mod w;"),
        ("crates/a/src/x/mod.rs", "mod v;"),
        ("crates/a/src/x/v.rs", "pub fn one() {}"),
        ("crates/a/src/y/z.rs", "pub fn two() {}"),
        ("crates/a/src/other/w.rs", "pub fn three() {}"),
        ("crates/a/src/nobody.rs", "fn f() { one(); two(); three() }"),
    ];
    let findings = found(&files, "").unwrap();
    let at: Vec<&str> = findings.iter().map(|f| f.split(':').next().unwrap()).collect();
    assert_eq!(at, ["crates/a/src/x/v.rs", "crates/a/src/y/z.rs", "crates/a/src/other/w.rs"]);
    let e = found(&[("crates/a/src/lib.rs", "mod gone;")], "").unwrap_err();
    assert_eq!(e.to_string(), "crates/a/src/lib.rs: no file of the module gone");
}

#[test]
fn a_method_is_called_by_a_point_or_a_path() {
    let text = "pub(crate) struct S; impl S { pub fn size(&self) {} pub fn made() {} pub fn third() {} } \
                fn f(size: u8) { let made = size; S.third(); }";
    assert_eq!(unused(text, &[]), ["size", "made"]);
    assert_eq!(unused(&format!("{text} fn g(s: S) {{ s.size(); S::made() }}"), &[]), [""; 0]);
    assert_eq!(
        unused(&format!("{text} each! {{ size, made }}"), &[]),
        [""; 0],
        "a macro may put the call together"
    );
}

#[test]
fn a_method_of_a_trait_is_used_by_who_calls_it_and_not_by_who_has_it() {
    let text = "pub trait T { fn f(&self); fn g(&self) { self.h() } fn h(&self); } impl T for u8 { fn f(&self) {} fn h(&self) {} } \
                fn all(x: &dyn T) {}";
    assert_eq!(unused(text, &[]), ["f", "g"]);
    assert_eq!(unused(&format!("{text} fn i(x: &dyn T) {{ x.f(); T::g(x) }}"), &[]), [""; 0]);
    assert_eq!(unused("trait T { fn f(&self); } fn all(x: &dyn T) {}", &[]), [""; 0]);
}

#[test]
fn imports_use_functions_and_traits_but_not_types() {
    let text =
        "pub fn f() {} pub trait T {} pub struct S; mod inner { use super::{T, f}; use super::S; impl S {} }";
    assert_eq!(unused(text, &[]), ["S"]);
    assert_eq!(unused("mod m { pub fn f() {} } pub use m::f;", &[]), ["f"], "handing on is no use");
    assert_eq!(unused("mod m { pub fn f() {} } pub use m::f as g;", &[]), [""; 0], "used by another name");
}

#[test]
fn strings_that_name_items_use_them_and_comments_do_not() {
    let text =
        "/// See [`LONG`] and `path()`.\npub const LONG: u8 = 1; pub fn path() {} pub const SHOWN: u8 = 2;";
    assert_eq!(unused(text, &[]), ["LONG", "path", "SHOWN"]);
    let uses = "fn f() { print!(\"{SHOWN} and {LONG:>3}\") } #[serde(default = \"crate::path\")] struct S;";
    assert_eq!(unused(&format!("{text} {uses}"), &[]), [""; 0]);
    assert_eq!(
        unused(&format!("{text} fn f() {{ print!(\"a LONG path SHOWN\") }}"), &[]),
        ["LONG", "path", "SHOWN"]
    );
}

#[test]
fn what_c_calls_is_used() {
    let text = "#[unsafe(no_mangle)] pub extern \"C\" fn f() {} #[unsafe(export_name = \"h\")] pub extern \"C\" fn g() {}";
    assert_eq!(unused(text, &[]), [""; 0]);
}

#[test]
fn exceptions_excuse_by_crate_and_name_and_must_be_needed() {
    let files = [("crates/a/src/lib.rs", "pub fn f() {} pub fn g() {}")];
    assert_eq!(found(&files, "# why\na\tf g\tan interface\n").unwrap(), [""; 0]);
    let findings = found(&files, "a\tf h\tan interface\nb\tg\tanother\n").unwrap();
    assert_eq!(findings.len(), 3);
    assert!(
        findings[0].starts_with("crates/a/src/lib.rs: nobody uses the public function g"),
        "{}",
        findings[0]
    );
    assert_eq!(findings[1], "unused.tsv excuses h of a, which nothing needs");
    assert_eq!(findings[2], "unused.tsv excuses g of b, which nothing needs");
    assert!(found(&files, "a\tf\t \n").unwrap_err().to_string().contains("has no reason"));
    assert!(found(&files, "a f\n").unwrap_err().to_string().contains("expected three cells"));
}

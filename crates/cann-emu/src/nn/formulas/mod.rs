//! Compares every operator that has a kernel with an independently written formula in f64, or with closed values and
//! properties, in `lazy` and `threads`, with tensors that follow one another and tensors with gaps.
//!
//! [`every_kernel_has_a_case`] fails for a kernel without a case; those that other tests run stand in `elsewhere.txt`, which
//! the tests there compare with what they run.
#![allow(clippy::print_stderr, clippy::print_stdout)] // a test program
#![allow(clippy::type_complexity)] // tables of rows that hold functions

mod activation;
mod cells;
mod complex;
mod elementwise;
mod image;
mod index;
mod inference;
mod interface;
mod linear;
mod lists;
mod loss;
mod maths;
mod named;
mod norm;
mod pool;
mod quantised_ranks;
mod random;
mod ranks;
mod reduce;
mod routes;
mod run;
mod shape;
mod wrong;

use crate::nn::kernels;
use crate::nn::tensor::Dtype;
use run::Run;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;

/// The types that formulas of real numbers are compared in.
const FLOATS: &[Dtype] = &[Dtype::F32, Dtype::F16, Dtype::Bf16];
/// One wide type.
const F32: &[Dtype] = &[Dtype::F32];
/// Single and double.
const WIDE: &[Dtype] = &[Dtype::F32, Dtype::F64];
/// Integers.
const WHOLE: &[Dtype] = &[Dtype::I32, Dtype::I64];

/// An operator with what it is given and what it must give.
struct Case {
    name: String,
    dtypes: &'static [Dtype],
    fill: Box<dyn Fn(&mut Run)>,
}

/// The cases of a family.
#[derive(Default)]
struct Cases(Vec<Case>);

impl Cases {
    fn add(&mut self, name: &str, dtypes: &'static [Dtype], fill: impl Fn(&mut Run) + 'static) {
        self.0.push(Case { name: name.to_owned(), dtypes, fill: Box::new(fill) });
    }
}

/// Whether the interface has an operator, and the emulator a kernel for it.
fn exists(name: &str) -> bool {
    interface::all().contains_key(name) && kernels::find(&format!("aclnn{name}")).is_some()
}

/// An operator and its form in place, where they exist.
fn forms(name: &str) -> impl Iterator<Item = String> + use<> {
    [name.to_owned(), format!("Inplace{name}")].into_iter().filter(|n| exists(n))
}

const FAMILIES: &[(&str, fn(&mut Cases))] = &[
    ("activation", activation::cases),
    ("cells", cells::cases),
    ("complex", complex::cases),
    ("elementwise", elementwise::cases),
    ("image", image::cases),
    ("index", index::cases),
    ("inference", inference::cases),
    ("linear", linear::cases),
    ("lists", lists::cases),
    ("loss", loss::cases),
    ("named", |_| ()), // operators by type name, which have no prototype
    ("norm", norm::cases),
    ("pool", pool::cases),
    ("random", random::cases),
    ("ranks", |_| ()), // operators of several ranks, which are threads
    ("ranks_of_a3", |_| ()),
    ("reduce", reduce::cases),
    ("shape", shape::cases),
];

/// Operators that tests of other crates run against formulas; `ascend-rs` compares the list with its checks.
const ELSEWHERE: &str = include_str!("elsewhere.txt");

fn family(name: &str) -> Cases {
    let mut cases = Cases::default();
    let (_, add) = FAMILIES.iter().find(|(n, _)| *n == name).unwrap_or_else(|| panic!("no family {name}"));
    add(&mut cases);
    cases
}

#[test]
fn every_kernel_has_a_case() {
    let mut covered: BTreeSet<String> = ELSEWHERE.lines().map(str::to_owned).collect();
    for name in &covered {
        assert!(kernels::find(&format!("aclnn{name}")).is_some(), "{name} of elsewhere.txt has no kernel");
    }
    covered.extend(FAMILIES.iter().flat_map(|(name, _)| family(name).0).map(|c| c.name));
    covered.extend(ranks::names().map(str::to_owned));
    let known: BTreeSet<String> = kernels::all()
        .keys()
        .filter(|n| interface::all().contains_key(*n))
        .map(|n| (*n).to_owned())
        .collect();
    let without: Vec<&String> = known.difference(&covered).collect();
    assert!(without.is_empty(), "{} of {} kernels have no case: {without:?}", without.len(), known.len());
    let strange: Vec<&String> = covered.difference(&known).collect();
    assert!(strange.is_empty(), "cases without a kernel: {strange:?}");
    eprintln!("{} kernels, each with a case", known.len());
}

#[test]
fn every_contract_names_element_types() {
    let without: BTreeSet<&str> =
        kernels::all().iter().filter(|(_, o)| !o.contract.has_types()).map(|(name, _)| *name).collect();
    assert!(without.is_empty(), "contracts without element types: {without:?}");
}

/// A C library reads its settings once in a process, so each family runs in a process of its own.
#[track_caller]
fn passes(name: &str, mode: &str) {
    let out = Command::new(std::env::current_exe().unwrap())
        .args(["nn::formulas::the_child_runs_its_family", "--exact", "--nocapture"])
        .env("CANN_FORMULAS", name)
        .env("CANN_EMU_MODE", mode)
        .env("CANN_EMU_SEED", "5")
        .env("CANN_EMU_HBM_MB", "256")
        .env("HCCL_BUFFSIZE", "4")
        .env("HCCL_EXEC_TIMEOUT", "20")
        .env("CANN_EMU_SOC", if name.ends_with("a3") { "Ascend910_9391" } else { "Ascend910B3" })
        .env("RUST_BACKTRACE", "0")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&out.stdout);
    let text = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success() && said.contains("family done"), "{name} in mode {mode}:\n{said}\n{text}");
}

#[test]
fn the_child_runs_its_family() {
    let Ok(name) = std::env::var("CANN_FORMULAS") else { return };
    assert_eq!(crate::api::aclInit(0), 0);
    assert_eq!(crate::api::aclrtSetDevice(0), 0);
    if name == "complex-refused" {
        complex::refused();
        println!("family done");
        std::process::exit(0);
    }
    let only = std::env::var("CANN_FORMULA").ok();
    let (mut wrong, mut runs, mut gaps) = (Vec::new(), 0, 0);
    std::panic::set_hook(Box::new(|_| ()));
    for case in &family(&name).0 {
        if only.as_ref().is_some_and(|o| *o != case.name) {
            continue;
        }
        for dtype in case.dtypes {
            for spaced in [false, true] {
                let one = || {
                    let mut run = Run::new(&case.name, *dtype, spaced);
                    (case.fill)(&mut run);
                    run.finish()
                };
                runs += 1;
                match catch_unwind(AssertUnwindSafe(one)) {
                    Ok(ran) => gaps += usize::from(ran && spaced),
                    Err(e) => {
                        let text = e.downcast_ref::<String>().cloned();
                        let text = text.or_else(|| e.downcast_ref::<&str>().map(|s| (*s).to_owned()));
                        wrong.push(format!(
                            "{} in {dtype:?}{}: {}",
                            case.name,
                            if spaced { ", with gaps" } else { "" },
                            text.unwrap_or_default()
                        ));
                    }
                }
            }
        }
    }
    if name == "named" {
        runs += named::run(&mut wrong);
    }
    if name.starts_with("ranks") {
        runs += ranks::run(name.ends_with("a3"), &mut wrong);
    }
    println!("{name}: {runs} runs, {gaps} with gaps");
    println!("{}", wrong.join("\n"));
    assert!(wrong.is_empty() && runs > 0);
    println!("family done");
    // Worker threads of the library are not waited for.
    std::process::exit(0);
}

macro_rules! families {
    ($($name:ident)*) => {
        mod lazy { $(#[test] fn $name() { super::passes(stringify!($name), "lazy"); })* }
        mod threads { $(#[test] fn $name() { super::passes(stringify!($name), "threads"); })* }
        #[test]
        fn every_family_is_run() {
            let run = BTreeSet::from([$(stringify!($name)),*]);
            assert_eq!(run, FAMILIES.iter().map(|(n, _)| *n).collect());
        }
    };
}
families! {
    activation cells complex elementwise image index inference linear lists loss named norm pool random ranks ranks_of_a3 reduce shape
}

//! The declarations at work on the emulator: operators against their formulas in f64, and what the emulator must find.
//!
//! A C library has one state in a process and reads its settings once, so each scenario runs in a process of its own: the
//! test starts this program again with the scenario's name.
#![allow(unsafe_code)] // calls through the tables
#![allow(clippy::unwrap_used, clippy::print_stdout, unreachable_pub)] // a test program

mod client;
mod communicators;
mod determinism;
mod fused;
mod images;
mod libraries;
mod mismatches;
mod numerics;
mod ordering;
mod processes;
mod refusals;
mod runtime;
mod scenarios;
mod settings;
mod states;
mod violations;

use cann_emu::tree::{Layout, Personality, core_library, write};
use std::path::Path;
use std::process::{Command, Output};
use std::sync::OnceLock;

/// The toolkit's folder, laid out once.
fn tree(personality: Personality) -> &'static Path {
    static TREES: OnceLock<tempfile::TempDir> = OnceLock::new();
    let folder = TREES.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        for personality in [Personality::V81, Personality::V91] {
            let at = folder.path().join(personality.name());
            let core = core_library().unwrap();
            write(&Layout {
                folder: &at,
                personality,
                core: &core,
                without_symbols: &[],
                without_libraries: &[],
            })
            .unwrap();
        }
        folder
    });
    Box::leak(folder.path().join(personality.name()).into_boxed_path())
}

fn run_in(personality: Personality, scenario: &str, settings: &[(&str, &str)]) -> Output {
    let home = tree(personality);
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["the_child_runs_its_scenario", "--exact", "--nocapture"]);
    command
        .env("CANN_SCENARIO", scenario)
        .env("ASCEND_HOME_PATH", home)
        .env("ASCEND_OPP_PATH", home.join("opp"));
    command.envs(settings.iter().copied());
    command.output().unwrap()
}

#[track_caller]
fn passes(scenario: &str) {
    passes_in(scenario, &["eager", "lazy", "threads"], &[]);
}

/// In these modes, in both personalities, with settings.
#[track_caller]
fn passes_in(scenario: &str, modes: &[&str], settings: &[(&str, &str)]) {
    for mode in modes {
        for personality in [Personality::V81, Personality::V91] {
            let mut all = vec![("CANN_EMU_MODE", *mode), ("CANN_EMU_SEED", "3")];
            all.extend(settings);
            let out = run_in(personality, scenario, &all);
            let text = String::from_utf8_lossy(&out.stderr);
            let said = String::from_utf8_lossy(&out.stdout);
            assert!(
                out.status.success() && said.contains("scenario done"),
                "{scenario} in mode {mode}:\n{said}\n{text}"
            );
        }
    }
}

/// The emulator ends the process and names the rule.
#[track_caller]
fn is_caught(scenario: &str, rule: &str) {
    is_caught_as(scenario, rule, &[]);
}

/// As [`is_caught`]; the message says more.
#[track_caller]
fn is_caught_as(scenario: &str, rule: &str, says: &[&str]) {
    for mode in ["lazy", "threads"] {
        let out = run_in(Personality::V91, scenario, &[("CANN_EMU_MODE", mode), ("HCCL_EXEC_TIMEOUT", "2")]);
        let text = String::from_utf8_lossy(&out.stderr);
        assert!(!out.status.success(), "{scenario} in mode {mode} was not caught");
        for wanted in [rule].iter().chain(says) {
            assert!(text.contains(wanted), "{scenario} in mode {mode}: expected {wanted}, found\n{text}");
        }
    }
}

#[test]
fn the_child_runs_its_scenario() {
    let Ok(name) = std::env::var("CANN_SCENARIO") else {
        // Started as a test of its own: without a scenario there must be none by that name.
        assert!(find("").is_none());
        return;
    };
    find(&name).unwrap_or_else(|| panic!("no scenario {name}"))();
    println!("scenario done");
    // Worker threads of the library are not waited for.
    std::process::exit(0);
}

fn find(name: &str) -> Option<scenarios::Scenario> {
    let parts = [
        scenarios::find,
        violations::find,
        images::find,
        communicators::find,
        states::find,
        numerics::find,
        fused::find,
        libraries::find,
        mismatches::find,
        ordering::find,
        determinism::find,
        processes::find,
        refusals::find,
        runtime::find,
    ];
    parts.iter().find_map(|find| find(name))
}

macro_rules! good {
    ($($name:ident)*) => { mod good { $(#[test] fn $name() { super::passes(stringify!($name)); })* } };
}
good! {
    copies_go_there_and_back
    matmul_equals_the_formula
    rms_norm_and_its_gradient_equal_the_formula
    swiglu_and_its_gradient_equal_the_formula
    rotary_embedding_equals_the_formula
    softmax_and_cross_entropy_equal_the_formula
    attention_equals_the_formula_in_all_layouts
    adamw_equals_the_formula
    grouped_matmul_equals_single_products
    tokens_are_permuted_by_expert_and_come_back
    events_order_two_streams
    a_freed_block_is_reused_on_one_stream
    pinned_copies_wait_for_the_stream
    errors_have_codes_and_texts
    what_is_absent_says_so
    sums_have_the_same_bits_when_determinism_is_asked_for
    a_repeatable_executor_runs_with_new_addresses
    collectives_of_2_3_and_4_ranks
    sends_and_receives_match
    a_convolution_and_its_gradients_equal_the_formula
    batch_norm_equals_the_formula
}

macro_rules! bad {
    ($($name:ident $rule:literal)*) => { mod caught { $(#[test] fn $name() { super::is_caught(stringify!($name), $rule); })* } };
}
bad! {
    a_copy_without_synchronisation "RACE-01"
    two_streams_without_an_event "RACE-01"
    memory_freed_in_flight "MEM-03"
    memory_used_after_free "MEM-02"
    memory_freed_twice "MEM-04"
    a_host_pointer_as_tensor "MEM-02"
    the_host_touches_device_memory "MEM-01"
    a_workspace_on_the_host "NN-04"
    a_workspace_that_is_too_small "NN-04"
    a_workspace_shared_by_two_streams "RACE-01"
    a_view_outside_its_storage "NN-05"
    a_tensor_destroyed_twice "NN-01"
    a_scalar_given_as_tensor "NN-01"
    an_executor_run_twice "NN-02"
    an_executor_of_another_operator "NN-03"
    a_stream_of_another_context "STR-01"
    a_stream_after_its_end "STR-02"
    ranks_that_call_different_collectives "COMM-01"
    two_ranks_that_both_send_first "COMM-03"
}

#[test]
fn a_rank_that_never_comes_is_a_time_out() {
    let out = run_in(Personality::V91, "a_rank_stays_away", &[("HCCL_EXEC_TIMEOUT", "1")]);
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(
        out.status.success() && text.contains("107020"),
        "{text}{}",
        String::from_utf8_lossy(&out.stderr)
    );
}

#[test]
fn injected_faults_are_errors_with_their_codes() {
    for (fault, scenario, code) in [
        ("oom@alloc:2", "report_first_error", "207001"),
        ("async:507015@op:Add:1", "report_first_error", "507015"),
        ("phase1:561003@Add", "report_first_error", "561003"),
        ("lost:507010@aclrtSetDevice", "report_first_error", "507010"),
    ] {
        let out = run_in(Personality::V91, scenario, &[("CANN_EMU_FAULT", fault)]);
        let text = String::from_utf8_lossy(&out.stdout);
        assert!(
            text.contains(&format!("first error {code}")),
            "{fault}: {text}{}",
            String::from_utf8_lossy(&out.stderr)
        );
    }
}

#[test]
fn a_c_program_by_the_public_prototypes_runs() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("foreign");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/emulator/foreign.c");
    for personality in [Personality::V81, Personality::V91] {
        let lib = tree(personality).join("lib64");
        let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
        let out = Command::new(compiler)
            .args(["-std=gnu11", "-Wall", "-Werror"])
            .arg(&source)
            .arg("-o")
            .arg(&program)
            .arg("-L")
            .arg(&lib)
            .args(["-lascendcl", "-lnnopbase"])
            .args(if personality == Personality::V81 {
                &["-lopapi"][..]
            } else {
                &["-lopapi_math", "-lopapi_nn"]
            })
            .args(["-lm", "-Wl,--allow-shlib-undefined", "-Wl,-rpath-link"])
            .arg(&lib)
            .output()
            .unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        let report = folder.path().join(format!("report-{}", personality.name()));
        let run = Command::new(&program)
            .env("LD_LIBRARY_PATH", &lib)
            .env("CANN_EMU_REPORT", &report)
            .env("CANN_EMU_MODE", "threads")
            .output()
            .unwrap();
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
        assert_eq!(String::from_utf8_lossy(&run.stdout), "equal\n");
        assert!(!report.exists(), "{}", std::fs::read_to_string(&report).unwrap_or_default());
    }
}

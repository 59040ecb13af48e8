//! The safe layer on the emulator, which ends the process on any violation.
//!
//! A C library has one state per process and reads its settings once, so each scenario runs in its own process: the test
//! starts this program again with the scenario's name.
#![allow(unsafe_code)] // plans of operators through the raw tables
#![allow(clippy::unwrap_used, clippy::print_stdout, unreachable_pub)] // a test program

mod fabric;
mod fused;
mod joint;
#[cfg(feature = "mpi")]
mod mpi;
mod processes;
mod runtime;

use cann_emu::tree::{Personality, beside_core};
use std::process::{Command, Output};

/// Settings of every scenario unless it has its own.
const SEED: (&str, &str) = ("CANN_EMU_SEED", "3");

fn command(personality: Personality, scenario: &str, settings: &[(&str, &str)]) -> Command {
    let home = beside_core(personality).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["the_child_runs_its_scenario", "--exact", "--nocapture"]);
    command
        .env("ASCEND_RS_SCENARIO", scenario)
        .env("ASCEND_HOME_PATH", &home)
        .env("ASCEND_OPP_PATH", home.join("opp"))
        .env("HCCL_BUFFSIZE", "8")
        .env("CANN_EMU_HBM_MB", "256")
        .env("CANN_EMU_DEVICES", "16")
        .env("RUST_BACKTRACE", "0");
    command.envs([SEED]).envs(settings.iter().copied());
    command
}

/// What a child said on both streams.
fn said(out: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr))
}

#[track_caller]
fn passes_with(scenario: &str, settings: &[(&str, &str)]) {
    // The newest release in both modes, where operators are compared.
    let newest = fused::ALL.iter().any(|(name, _)| *name == scenario);
    let again = newest.then_some(("threads", Personality::V91));
    for (mode, personality) in
        [("lazy", Personality::V91), ("threads", Personality::V81)].into_iter().chain(again)
    {
        let folder = tempfile::tempdir().unwrap();
        let report = folder.path().join("report.jsonl");
        let mut settings = settings.to_vec();
        settings.extend([("CANN_EMU_MODE", mode), ("CANN_EMU_REPORT", report.to_str().unwrap())]);
        // Masks of 2048 x 2048 come and go: the C library is to keep their pages.
        let kept = [
            ("MALLOC_MMAP_MAX_", "0"),
            ("MALLOC_TRIM_THRESHOLD_", "4000000000"),
            ("MALLOC_TOP_PAD_", "268435456"),
        ];
        settings.extend(kept);
        let out = command(personality, scenario, &settings).output().unwrap();
        let text = said(&out);
        assert!(out.status.success() && text.contains("scenario done"), "{scenario} in mode {mode}:\n{text}");
        // What a documented rule forbids ends a program; what nobody promises otherwise is only written down. An executor that
        // never ran (NN-06) is what one scenario is about, a rank that never comes (COMM-02) another: whether its group is told
        // so before the program ends is chance.
        let about: &[&str] = match scenario {
            "a_failing_rank_releases_the_others" => &["NN-06", "COMM-02"],
            _ => &["NN-06"],
        };
        let report = std::fs::read_to_string(&report).unwrap_or_default();
        let expected = |line: &str| about.iter().any(|rule| line.contains(&format!("\"rule\":\"{rule}\"")));
        let sure = report.lines().find(|l| !l.contains("\"severity\":\"cautious\"") && !expected(l));
        assert!(sure.is_none() || scenario.starts_with("ranks_that_disagree"), "{scenario}: {sure:?}");
    }
}

#[test]
fn the_child_runs_its_scenario() {
    let Ok(name) = std::env::var("ASCEND_RS_SCENARIO") else {
        // Started as a test of its own: without a scenario there must be none by that name.
        assert!(find("").is_none());
        return;
    };
    find(&name).unwrap_or_else(|| panic!("no scenario {name}"))();
    println!("scenario done");
    // Worker threads of the library are not waited for.
    std::process::exit(0);
}

fn find(name: &str) -> Option<fn()> {
    let all = [runtime::ALL, fabric::ALL, fused::ALL, joint::ALL];
    let parts: &[(&str, fn())] = &[
        ("one_of_several_processes", processes::one_of_several_processes),
        ("one_of_processes_that_add", processes::one_of_processes_that_add),
        #[cfg(feature = "mpi")]
        ("one_of_ranks_that_mpi_starts", mpi::one_of_ranks_that_mpi_starts),
    ];
    all.iter().chain([&parts]).flat_map(|t| t.iter()).find(|(n, _)| *n == name).map(|(_, f)| *f)
}

/// Makes a test that runs a scenario in both modes, one personality each.
macro_rules! scenarios {
    ($($(#[$doc:meta])* $name:ident)*) => {
        pub const ALL: &[(&str, fn())] = &[$((stringify!($name), $name),)*];
        mod tests { $(#[test] fn $name() { crate::passes_with(stringify!($name), &[]); })* }
    };
}
pub(crate) use scenarios;

/// The toolkit by this process's variables.
pub fn toolkit() -> ascend_rs::Toolkit {
    let search = hccl_sys::Search::from_variables(|n| std::env::var(n).ok());
    ascend_rs::Toolkit::open(&search).unwrap_or_else(|e| panic!("{e}"))
}

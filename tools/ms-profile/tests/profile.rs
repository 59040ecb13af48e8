//! `ms-profile` as a user runs it.

#![allow(clippy::unwrap_used)] // tests

use assert_cmd::Command;
use ms_trace::{Category, Event, chrome};
use serde_json::Value;

fn ms_profile() -> Command {
    Command::cargo_bin("ms-profile").unwrap()
}

#[test]
fn the_machine_is_described_for_every_instruction_set_it_has() {
    let report = |isa: Option<&str>| -> Value {
        let mut command = ms_profile();
        match isa {
            Some(isa) => command.env("MS_ISA", isa),
            None => command.env_remove("MS_ISA"),
        };
        let done = command.args(["cpu", "--quick", "--threads", "1", "--json"]).assert().success();
        serde_json::from_slice(&done.get_output().stdout).unwrap()
    };
    let best = report(None);
    for key in ["f32_gflops", "bf16_gflops", "read_gbps", "copy_gbps"] {
        assert!(best[key].as_f64().unwrap() > 0.0, "{key}: {best}");
    }
    // Every body is listed with what it reached, and gives the bits of its order.
    let bodies = best["bf16_products"].as_array().unwrap();
    let chosen = |body: &&Value| body["isa"] == best["isa"] && body["arithmetic"] == best["arithmetic"];
    assert_eq!(bodies.iter().filter(chosen).count(), 1, "{best}");
    for order in ["pair", "tile32", "bfdot"] {
        assert!(bodies.iter().any(|body| body["arithmetic"] == order), "{order}: {best}");
    }
    for body in bodies {
        assert!(body["gflops"].as_f64().unwrap() > 0.0 && body["exact"] == true, "{body}");
    }
    assert_eq!(report(Some("portable"))["isa"], "portable");
    let refused = ms_profile().env("MS_ISA", "mmx").args(["cpu", "--quick"]).assert().code(1);
    assert!(String::from_utf8_lossy(&refused.get_output().stderr).contains("mmx"));
}

#[test]
fn a_report_sums_up_the_newest_trace_below_a_folder() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("run_ascend_pt/ASCEND_PROFILER_OUTPUT");
    std::fs::create_dir_all(&folder).unwrap();
    let event = |name: &str, category, start_us, duration_us| Event {
        name: name.into(),
        category,
        rank: 0,
        start_us,
        duration_us,
        flops: 5_000_000,
        bytes: 0,
        detail: String::new(),
    };
    let events = [
        event("iteration", Category::Step, 0.0, 1000.0),
        event("linear", Category::Op, 10.0, 600.0),
        event("collective", Category::Communication, 700.0, 100.0),
    ];
    chrome::write(&folder.join("trace_view.json"), &events, "cpu").unwrap();
    let run = serde_json::json!({
        "dtype": "f32", "ranks": 1, "threads_per_rank": 1, "tokens_per_iteration": 50,
        "model_flops_per_iteration": 4e6, "peak_per_thread": {"f32_gflops": 10.0, "bf16_gflops": 20.0},
    });
    std::fs::write(dir.path().join("run_ascend_pt/profiler_metadata.json"), run.to_string()).unwrap();
    let done = ms_profile().args(["report", "--json"]).arg(dir.path()).assert().success();
    let report: Value = serde_json::from_slice(&done.get_output().stdout).unwrap();
    let number = |key: &str| report[key].as_f64().unwrap();
    assert_eq!(
        (number("computing_us"), number("communication_us"), number("free_us")),
        (600.0, 100.0, 300.0)
    );
    assert_eq!(number("tokens_per_second"), 50_000.0);
    assert!((number("mfu") - 0.4).abs() < 1e-9);
    let table = ms_profile().arg("report").arg(dir.path()).assert().success();
    assert!(String::from_utf8_lossy(&table.get_output().stdout).contains("linear"));
}

#[test]
fn a_folder_without_a_trace_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let failed = ms_profile().arg("report").arg(dir.path()).assert().code(1);
    assert!(String::from_utf8_lossy(&failed.get_output().stderr).contains("trace_view.json"));
    ms_profile().arg("cpo").assert().code(2);
}

#[test]
fn without_a_command_the_help_page_keeps_its_form() {
    let shown = |command: &mut Command, code: i32| {
        let done = command.output().unwrap();
        assert_eq!(done.status.code(), Some(code));
        String::from_utf8([done.stdout, done.stderr].concat()).unwrap()
    };
    let bare = shown(&mut ms_profile(), 2);
    assert_eq!(bare, shown(ms_profile().arg("-h"), 0));
    assert!(bare.contains("\nUsage: ") && bare.contains("\n  report "), "{bare}");
    let unknown = shown(ms_profile().arg("--foo"), 2);
    assert_eq!(unknown, "ms-profile: unexpected argument '--foo' found\nhint: see '--help'\n");
}

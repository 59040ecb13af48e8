//! `ms-profile npu-doctor` on the emulator of CANN, as users with a complete, a broken and no installation see it.

#![allow(clippy::unwrap_used)] // tests

use assert_cmd::Command;
use cann_emu::tree::{Layout, Personality, beside_core, core_library, write};
use serde_json::Value;
use std::path::Path;

fn doctor(home: &Path, settings: &[(&str, &str)], args: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::cargo_bin("ms-profile").unwrap();
    for name in ["ASCEND_TOOLKIT_HOME", "ASCEND_CUSTOM_OPP_PATH", "LD_LIBRARY_PATH"] {
        command.env_remove(name);
    }
    command.env("ASCEND_HOME_PATH", home).env("ASCEND_OPP_PATH", home.join("opp"));
    command.env("CANN_EMU_HBM_MB", "256").env("CANN_EMU_DEVICES", "3").env("HCCL_BUFFSIZE", "4");
    // Masks of 2048 x 2048 come and go: the C library is to keep their pages.
    command.env("MALLOC_MMAP_MAX_", "0").env("MALLOC_TRIM_THRESHOLD_", "4000000000");
    command.envs(settings.iter().copied()).arg("npu-doctor").args(args);
    let out = command.output().unwrap();
    let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
    (out.status.code(), text(&out.stdout), text(&out.stderr))
}

/// The findings of a topic with a status: names, what was found, what to do.
fn with(report: &Value, topic: &str, status: &str) -> Vec<(String, String, String)> {
    let text = |f: &Value, key: &str| f[key].as_str().unwrap().to_owned();
    let all = report["findings"].as_array().unwrap().iter();
    all.filter(|f| f["topic"] == topic && f["status"] == status)
        .map(|f| (text(f, "name"), text(f, "found"), text(f, "hint")))
        .collect()
}

#[test]
fn a_whole_installation_has_no_failure_in_both_releases() {
    for (personality, version) in [(Personality::V81, "8.1"), (Personality::V91, "9.1")] {
        let home = beside_core(personality).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("new/folder/npu.json");
        let (code, out, err) = doctor(&home, &[], &["--report", file.to_str().unwrap()]);
        assert_eq!(code, Some(0), "{out}{err}");
        assert!(out.contains("Ascend910B3") && out.contains(&format!("CANN {version}")), "{out}");
        let report: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
        assert_eq!(report["ok"], true);
        assert_eq!(with(&report, "devices", "ok").len(), 3);
        let ping = with(&report, "collectives", "ok");
        assert!(ping[0].1.starts_with("3 devices"), "{ping:?}");
        assert!(with(&report, "operators", "fail").is_empty());
        // Nine checks are of operators newer than 8.1.
        let newer = with(&report, "operators", "note").len();
        assert_eq!(newer, if version == "8.1" { 9 } else { 0 });
        assert!(with(&report, "operators", "ok").len() >= 25);
        assert_eq!(with(&report, "libraries", "ok").len(), 8);
    }
}

#[test]
fn without_cann_it_says_what_was_tried_and_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let (code, out, err) = doctor(folder.path(), &[], &[]);
    assert_eq!(code, Some(1));
    let place = folder.path().join("lib64/libascendcl.so");
    assert!(out.contains(&format!("tried {}", place.display())), "{out}");
    assert!(out.contains("tried /usr/local/Ascend/cann/lib64/libacl_rt.so"), "{out}");
    assert!(out.contains("set_env.sh") && out.contains("which has no lib64"), "{out}");
    assert!(err.contains("1 of 1 checks failed"), "{err}");
    let (code, out, _) = doctor(folder.path(), &[], &["--json"]);
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, report["ok"].as_bool()), (Some(1), Some(false)));
}

const RELEASES: [Personality; 2] = [Personality::V81, Personality::V91];

/// A tree that lacks something.
fn broken(folder: &Path, personality: Personality, without_symbols: &[&str], without_libraries: &[&str]) {
    let core = core_library().unwrap();
    write(&Layout { folder, personality, core: &core, without_symbols, without_libraries }).unwrap();
}

#[test]
fn a_missing_library_is_named_with_the_paths_tried() {
    for personality in RELEASES {
        let folder = tempfile::tempdir().unwrap();
        // 8.1 has one library of operators for three tables.
        let (gone, tables) = match personality {
            Personality::V81 => ("libopapi.so", 3),
            Personality::V91 => ("libopapi_transformer.so", 1),
        };
        broken(folder.path(), personality, &[], &[gone, "libopapi.so", "libmsprofiler.so"]);
        let (code, out, _) = doctor(folder.path(), &[], &["--json"]);
        let report: Value = serde_json::from_str(&out).unwrap();
        assert_eq!(code, Some(1));
        let failed = with(&report, "libraries", "fail");
        assert_eq!(failed.len(), tables, "{failed:?}");
        let failed: Vec<_> = failed.into_iter().filter(|f| f.0 == "operators, attention").collect();
        assert_eq!(failed[0].0, "operators, attention");
        assert!(failed[0].1.contains("libopapi_transformer.so: "), "{failed:?}");
        assert!(failed[0].2.contains("incomplete"), "{failed:?}");
        assert_eq!(with(&report, "libraries", "note")[0].0, "profiler", "not needed to train");
        // What the library has is missing; all else is checked.
        let without = with(&report, "operators", "note");
        assert!(without.iter().any(|(n, ..)| n.starts_with("FlashAttentionScore")), "{without:?}");
        let rest = with(&report, "operators", "ok").iter().any(|(n, ..)| n.starts_with("Mm"));
        assert_eq!(rest, personality == Personality::V91);
    }
}

#[test]
fn a_missing_function_is_named() {
    for personality in RELEASES {
        let folder = tempfile::tempdir().unwrap();
        broken(folder.path(), personality, &["aclrtCreateEventExWithFlag", "aclnnSwiGluGrad"], &[]);
        let (code, out, _) = doctor(folder.path(), &[], &["--json"]);
        let report: Value = serde_json::from_str(&out).unwrap();
        assert_eq!(code, Some(1));
        let failed = with(&report, "functions", "fail");
        assert_eq!(failed[0].0, "aclrtCreateEventExWithFlag", "{failed:?}");
        assert!(failed[0].2.contains("older than 8.1"), "{failed:?}");
        let without = with(&report, "operators", "note");
        assert!(without.iter().any(|(_, f, _)| f.starts_with("aclnnSwiGluGrad is in none")), "{without:?}");
    }
}

#[test]
fn a_lost_device_is_named_with_its_code() {
    for personality in RELEASES {
        let home = beside_core(personality).unwrap();
        let (code, out, _) = doctor(&home, &[("CANN_EMU_FAULT", "lost:507010@aclrtSetDevice")], &["--json"]);
        let report: Value = serde_json::from_str(&out).unwrap();
        assert_eq!(code, Some(1));
        let failed = with(&report, "devices", "fail");
        assert!(failed[0].1.contains("answered 507010 (heartbeat of the device lost)"), "{failed:?}");
        assert!(failed[0].2.contains("npu-smi"), "{failed:?}");
        // A fault in an operator: it is named, the rest is not tried, and nothing hangs.
        let (code, out, _) = doctor(&home, &[("CANN_EMU_FAULT", "async:507015@op:Softmax:1")], &["--json"]);
        let report: Value = serde_json::from_str(&out).unwrap();
        assert_eq!(code, Some(1));
        let failed = with(&report, "operators", "fail");
        assert!(failed[0].0.starts_with("Softmax") && failed[0].1.contains("507015"), "{failed:?}");
        assert!(with(&report, "operators", "skip").len() > 3);
    }
}

#[test]
fn memory_that_runs_out_is_named() {
    for personality in RELEASES {
        let home = beside_core(personality).unwrap();
        let (code, out, _) = doctor(&home, &[("CANN_EMU_HBM_MB", "3")], &["--json"]);
        let report: Value = serde_json::from_str(&out).unwrap();
        assert_eq!(code, Some(1));
        let failed = [with(&report, "operators", "fail"), with(&report, "collectives", "fail")].concat();
        assert!(failed.iter().any(|(_, f, _)| f.contains("207001 (out of memory)")), "{failed:?}");
        assert!(
            failed.iter().any(|(n, f, h)| n == "all-reduce"
                && f.contains("HcclCommInitAll")
                && h.contains("HCCL_BUFFSIZE")),
            "{failed:?}"
        );
        // What fits still runs.
        assert!(!with(&report, "operators", "ok").is_empty());
    }
}

/// Each kind of fault ends with exit code 1, its code and a place, and in time.
#[test]
fn every_injected_fault_is_a_failure_with_its_code() {
    for (fault, code) in [
        ("oom@alloc", "207001"),
        ("phase1:561003@Softmax", "561003"),
        ("async:507015@op:Mm:1", "507015"),
        ("timeout:rank1@HcclAllReduce", "107020"),
    ] {
        let home = beside_core(Personality::V91).unwrap();
        let start = std::time::Instant::now();
        let settings = [("CANN_EMU_FAULT", fault), ("HCCL_EXEC_TIMEOUT", "1"), ("CANN_EMU_MODE", "threads")];
        let (ended, out, err) = doctor(&home, &settings, &["--json"]);
        assert_eq!(ended, Some(1), "{fault}: {out}{err}");
        assert!(out.contains(code), "{fault}: {out}");
        assert!(start.elapsed().as_secs() < 60, "{fault}: {:?}", start.elapsed());
    }
}

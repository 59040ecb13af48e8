//! Found and missing libraries and functions.

use super::findings::{Findings, Status};
use hccl_sys::{Cann, LibraryReport, LoadError, Search};

/// What a library is for, which of several names will do, and whether training needs it.
const GROUPS: [(&str, &[&str], bool); 8] = [
    ("runtime", &["libacl_rt.so", "libascendcl.so"], true),
    ("objects of operators", &["libnnopbase.so"], true),
    ("operators", &["libopapi_math.so", "libopapi.so"], true),
    ("operators, networks", &["libopapi_nn.so", "libopapi.so"], true),
    ("operators, attention", &["libopapi_transformer.so", "libopapi.so"], true),
    ("collectives", &["libhccl.so"], true),
    ("communicators", &["libhcomm.so", "libhccl.so"], true),
    ("profiler", &["libmsprofiler.so"], false),
];

/// Functions besides operators without which nothing runs.
const NEEDED: [&str; 26] = [
    "aclInit",
    "aclFinalize",
    "aclrtGetDeviceCount",
    "aclrtSetDevice",
    "aclrtGetDevice",
    "aclrtResetDevice",
    "aclrtCreateStreamWithConfig",
    "aclrtDestroyStream",
    "aclrtSynchronizeStream",
    "aclrtStreamWaitEvent",
    "aclrtCreateEventExWithFlag",
    "aclrtRecordEvent",
    "aclrtQueryEventStatus",
    "aclrtDestroyEvent",
    "aclrtMalloc",
    "aclrtFree",
    "aclrtMallocHost",
    "aclrtFreeHost",
    "aclrtMemcpy",
    "aclrtMemcpyAsync",
    "aclCreateTensor",
    "aclDestroyTensor",
    "HcclGetRootInfo",
    "HcclCommInitRootInfoConfig",
    "HcclAllReduce",
    "HcclCommDestroy",
];

const SOURCE: &str = "source the toolkit's set_env.sh (/usr/local/Ascend/cann or /usr/local/Ascend/ascend-toolkit), or set ASCEND_HOME_PATH";

fn tried(library: &LibraryReport) -> String {
    let lines: Vec<String> =
        library.tried.iter().map(|(path, why)| format!("tried {}: {why}", path.display())).collect();
    lines.join("\n")
}

/// The libraries of an installation, and which functions it lacks.
pub(crate) fn examine(cann: &Cann, findings: &mut Findings) {
    let report = &cann.report;
    for (purpose, names, needed) in GROUPS {
        let entries = || names.iter().filter_map(|n| report.libraries.iter().find(|l| l.name == *n));
        if let Some(path) = entries().find_map(|l| l.opened.as_ref()) {
            findings.ok("libraries", purpose, &path.display().to_string());
            continue;
        }
        let text: Vec<String> = entries().map(|l| format!("no {}\n{}", l.name, tried(l))).collect();
        let (status, hint) = if needed {
            (Status::Failed, "the installation is incomplete: install the toolkit of one release again")
        } else {
            (Status::Note, "ms-train's --profile of the device needs it")
        };
        findings.add("libraries", purpose, status, &text.join("\n"), hint);
    }
    for library in report.libraries.iter().filter(|l| l.name.contains("libcust_opapi")) {
        match &library.opened {
            Some(path) => findings.ok("libraries", "operators of your own", &path.display().to_string()),
            None => {
                let hint = "unset ASCEND_CUSTOM_OPP_PATH or rebuild that package for this release";
                findings.add("libraries", "operators of your own", Status::Failed, &tried(library), hint);
            }
        }
    }
    let missing = |name: &&&str| report.missing.iter().any(|m| m == **name);
    for name in NEEDED.iter().filter(missing) {
        let found = "in none of the libraries that were opened";
        findings.add(
            "functions",
            name,
            Status::Failed,
            found,
            "the release is older than 8.1, or incomplete",
        );
    }
    let rest = report.missing.len();
    let text = format!("{} found, {rest} of the published interface missing", report.found);
    findings.ok("functions", "interface", &text);
    if rest > 0 {
        let mut names = report.missing.clone();
        names.sort();
        let shown = names.iter().take(8).cloned().collect::<Vec<_>>().join(", ");
        let found = format!("{shown}{}", if rest > 8 { ", …" } else { "" });
        findings.add(
            "functions",
            "missing",
            Status::Note,
            &found,
            "newer or older than this release; fine unless named below",
        );
    }
}

/// There is no installation.
pub(crate) fn nothing(e: &LoadError, search: &Search, findings: &mut Findings) {
    let text: Vec<String> = e
        .report
        .libraries
        .iter()
        .filter(|l| l.name == "libascendcl.so" || l.name == "libacl_rt.so")
        .map(|l| format!("no {}\n{}", l.name, tried(l)))
        .collect();
    let hint = match &search.home {
        Some(home) => {
            format!("ASCEND_HOME_PATH is {}, which has no lib64 with these: {SOURCE}", home.display())
        }
        None => SOURCE.to_owned(),
    };
    findings.add("libraries", "runtime", Status::Failed, &text.join("\n"), &hint);
}

//! `ms-profile npu-doctor`: the first thing to run on a machine with an Ascend NPU.

mod devices;
mod findings;
mod libraries;

use crate::cli::NpuDoctor;
use anyhow::Result;
use ascend_rs::Toolkit;
use findings::{Findings, Status};
use hccl_sys::Search;
use serde_json::json;
use std::io::Write;

/// Variables that say where CANN is and how it behaves.
const VARIABLES: [&str; 11] = [
    "ASCEND_HOME_PATH",
    "ASCEND_TOOLKIT_HOME",
    "ASCEND_OPP_PATH",
    "ASCEND_CUSTOM_OPP_PATH",
    "LD_LIBRARY_PATH",
    "ASCEND_RT_VISIBLE_DEVICES",
    "HCCL_BUFFSIZE",
    "HCCL_CONNECT_TIMEOUT",
    "HCCL_EXEC_TIMEOUT",
    "HCCL_SOCKET_IFNAME",
    "HCCL_IF_IP",
];

/// Examines, prints, and leaves with the first failure as the error.
///
/// # Errors
/// If a check fails or the report cannot be written.
pub(crate) fn run(args: &NpuDoctor, as_json: bool) -> Result<()> {
    let read = |name: &str| std::env::var(name).ok().filter(|v| !v.is_empty());
    let mut findings = Findings::default();
    let search = Search::from_variables(read);
    // Raw libraries first: what is missing must be reported even if nothing can be initialised.
    let toolkit = match hccl_sys::Cann::open(&search) {
        Ok(cann) => {
            libraries::examine(&cann, &mut findings);
            drop(cann);
            Toolkit::open(&search)
        }
        Err(e) => {
            libraries::nothing(&e, &search, &mut findings);
            Err(e.into())
        }
    };
    match toolkit {
        Ok(toolkit) => devices::examine(toolkit, args, &mut findings),
        Err(ascend_rs::Error::Load(_)) => {}
        Err(e) => findings.failed("runtime", "initialise", &e),
    }
    let variables: serde_json::Map<String, serde_json::Value> =
        VARIABLES.iter().map(|n| ((*n).to_owned(), json!(read(n)))).collect();
    let report = json!({
        "program": format!("ms-profile {}", env!("CARGO_PKG_VERSION")),
        "machine": std::env::consts::ARCH,
        "variables": variables,
        "ok": findings.count(Status::Failed) == 0,
        "findings": findings.json(),
    });
    if let Some(path) = &args.report {
        ms_files::write_file(path, format!("{report:#}\n").as_bytes())?;
    }
    let mut out = std::io::stdout().lock();
    if as_json {
        writeln!(out, "{report}")?;
    } else {
        for name in VARIABLES {
            writeln!(out, "{:4}  {name:26} {}", "", read(name).unwrap_or_else(|| "not set".to_owned()))?;
        }
        findings.print(&mut out)?;
    }
    out.flush()?;
    match findings.count(Status::Failed) {
        0 => Ok(()),
        n => anyhow::bail!("{n} of {} checks failed; the lines above say what to do", findings.len()),
    }
}

//! Settings, read once from the environment.

use std::path::PathBuf;
use std::sync::OnceLock;

/// When the work of a stream is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Before the submitting call returns; only to debug.
    Eager,
    /// When a synchronisation, an event or a query forces it.
    Lazy,
    /// At once, by a worker per stream, after small random delays.
    Threads,
}

/// What a violation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnViolation {
    /// Ends the process with a message.
    Abort,
    /// The call answers with an error code.
    Error,
    /// Only the report is written.
    Log,
}

/// How kernels calculate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numerics {
    /// Sums in f32, in an order drawn from the seed.
    Single,
    /// Sums in f64.
    Oracle,
    /// As `Single`, and a unit in the last place of the output's type at random.
    Perturb,
}

/// All settings.
#[derive(Debug)]
pub struct Knobs {
    /// `CANN_EMU_MODE`: eager, lazy (default), threads.
    pub mode: Mode,
    /// `CANN_EMU_SEED`: delays, workspace sizes, order of sums.
    pub seed: u64,
    /// `CANN_EMU_DEVICES`: number of devices, 8 unless said.
    pub devices: u32,
    /// `CANN_EMU_SOC`: the chip's name.
    pub soc: String,
    /// `CANN_EMU_HBM_MB`: memory of a device.
    pub hbm_bytes: u64,
    /// `CANN_EMU_VIOLATION`: abort (default), error, log.
    pub violation: OnViolation,
    /// `CANN_EMU_NUMERICS`: single (default), oracle, perturb.
    pub numerics: Numerics,
    /// `CANN_EMU_REPORT`: JSON lines of violations.
    pub report: Option<PathBuf>,
    /// `CANN_EMU_TRACE`: a line per call.
    pub trace: Option<PathBuf>,
    /// `CANN_EMU_FAULT`: faults to inject, separated by commas.
    pub faults: Vec<String>,
    /// `CANN_EMU_HOSTS`: `one` (default), or `threads`: what is unordered only between threads of the host is a race too.
    pub hosts_apart: bool,
    /// `CANN_EMU_SERVER`: the server that this process pretends to be on; groups then meet over TCP.
    pub server: String,
    /// `CANN_EMU_SESSION`: processes that say the same name share devices.
    pub session: String,
    /// `CANN_EMU_EVENTS`: how many ordinary events exist.
    pub events: usize,
    /// `HCCL_EXEC_TIMEOUT`: seconds a rank waits for the others.
    pub hccl_timeout_s: f64,
    /// `HCCL_BUFFSIZE`: MB of each of a communicator's two buffers.
    pub hccl_buffer_mb: u64,
    /// 9.1 or 8.1, from `version.cfg` in the tree that holds the library, else `CANN_EMU_PERSONALITY`.
    pub release: Release,
}

/// A personality.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Release {
    /// CANN 8.1
    R81,
    /// CANN 9.1
    R91,
}

fn number<T: std::str::FromStr>(name: &str, default: T) -> T {
    std::env::var(name).ok().and_then(|v| v.trim().parse().ok()).unwrap_or(default)
}

/// The settings of this process.
pub fn knobs() -> &'static Knobs {
    static KNOBS: OnceLock<Knobs> = OnceLock::new();
    KNOBS.get_or_init(|| {
        let word = |name: &str| std::env::var(name).unwrap_or_default().to_lowercase();
        Knobs {
            mode: match word("CANN_EMU_MODE").as_str() {
                "eager" => Mode::Eager,
                "threads" => Mode::Threads,
                _ => Mode::Lazy,
            },
            seed: number("CANN_EMU_SEED", 0),
            devices: number("CANN_EMU_DEVICES", 8),
            soc: std::env::var("CANN_EMU_SOC").unwrap_or_else(|_| "Ascend910B3".to_owned()),
            hbm_bytes: number::<u64>("CANN_EMU_HBM_MB", 32_768) << 20,
            violation: match word("CANN_EMU_VIOLATION").as_str() {
                "error" => OnViolation::Error,
                "log" => OnViolation::Log,
                _ => OnViolation::Abort,
            },
            numerics: match word("CANN_EMU_NUMERICS").as_str() {
                "oracle" => Numerics::Oracle,
                "perturb" => Numerics::Perturb,
                _ => Numerics::Single,
            },
            report: std::env::var_os("CANN_EMU_REPORT").map(PathBuf::from),
            trace: std::env::var_os("CANN_EMU_TRACE").map(PathBuf::from),
            faults: faults(&std::env::var("CANN_EMU_FAULT").unwrap_or_default()),
            hosts_apart: word("CANN_EMU_HOSTS") == "threads",
            server: std::env::var("CANN_EMU_SERVER").unwrap_or_default(),
            session: std::env::var("CANN_EMU_SESSION").unwrap_or_default(),
            events: number("CANN_EMU_EVENTS", 65_535),
            hccl_timeout_s: number("HCCL_EXEC_TIMEOUT", 1836.0),
            hccl_buffer_mb: number("HCCL_BUFFSIZE", 200),
            release: release(),
        }
    })
}

/// The kind of the chip, as operators' pages name them: A2, A3, or else the chip's name.
pub fn chip() -> &'static str {
    match knobs().soc.as_str() {
        soc if soc.starts_with("Ascend910_93") => "A3",
        soc if soc.starts_with("Ascend910B") => "A2",
        soc => soc,
    }
}

/// The faults of a list. One that could never hit ends the process: a test that injects it would pass for nothing.
fn faults(list: &str) -> Vec<String> {
    let faults: Vec<String> =
        list.split(',').map(|f| f.trim().to_owned()).filter(|f| !f.is_empty()).collect();
    for fault in &faults {
        let kind = fault.split(['@', ':']).next().unwrap_or_default();
        let hint = match kind {
            "oom" | "async" | "phase1" | "lost" | "timeout" | "kill" if fault.contains('@') => continue,
            "missing-symbol" if fault.split_once(':').is_some_and(|(_, symbol)| !symbol.is_empty()) => {
                continue;
            }
            "missing-symbol" => "expected missing-symbol:NAME",
            _ => {
                "expected oom, async, phase1, lost, timeout or kill, with @ and a place, or missing-symbol:NAME"
            }
        };
        let said = format!("cann-emu: CANN_EMU_FAULT: {fault}: {hint}\n");
        // The process ends in any case.
        let _ = std::io::Write::write_all(&mut std::io::stderr(), said.as_bytes());
        std::process::exit(2);
    }
    faults
}

fn release() -> Release {
    let named = std::env::var("CANN_EMU_PERSONALITY").ok().or_else(|| {
        let home = std::env::var_os("ASCEND_HOME_PATH")?;
        std::fs::read_to_string(PathBuf::from(home).join("version.cfg")).ok()
    });
    if named.is_some_and(|text| text.contains("8.1")) { Release::R81 } else { Release::R91 }
}

/// A small generator: the same numbers for one seed and salt.
pub fn noise(salt: u64) -> u64 {
    let mut z = knobs()
        .seed
        .wrapping_add(salt.wrapping_mul(0x9e37_79b9_7f4a_7c15))
        .wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

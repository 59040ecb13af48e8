//! Fault injection for tests: `MS_PLANTED_FAULT="RANK EXCHANGE TIME DEED"`. When the rank reaches that exchange (by its name
//! in the sources of `ms-dist` and `ms-trainer`) for that time, counted from 1, it does the deed:
//!
//! - `panic`: the rank panics;
//! - `abort`: the process ends at once, as if it were killed;
//! - `skip`: the rank leaves the exchange out and continues;
//! - `double`: the rank continues with twice the received values;
//! - `note`: nothing happens to it: the fault that follows is outside this program, such as a full disk.
//!
//! A warning says when, so that tests can measure how long the others take to end.

use anyhow::Result;
use ms_cli::refuse;
use ms_core::Tensor;
use ms_dist::{CommCall, CommHook, ParallelCtx, Pending};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

const VARIABLE: &str = ms_cli::env_vars::MS_PLANTED_FAULT;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FaultAction {
    Panic,
    Abort,
    Skip,
    Double,
    Note,
}

#[derive(Debug)]
struct Fault {
    rank: usize,
    exchange: String,
    /// Times that are left.
    left: AtomicU64,
    action: FaultAction,
}

impl Fault {
    fn read(text: &str) -> Option<Self> {
        let words: Vec<&str> = text.split_whitespace().collect();
        // Names of exchanges may have several words.
        let [rank, exchange @ .., time, action] = &words[..] else { return None };
        let action = match *action {
            "panic" => FaultAction::Panic,
            "abort" => FaultAction::Abort,
            "skip" => FaultAction::Skip,
            "double" => FaultAction::Double,
            "note" => FaultAction::Note,
            _ => return None,
        };
        let (rank, left) = (rank.parse().ok()?, AtomicU64::new(time.parse().ok()?));
        Some(Self { rank, exchange: exchange.join(" "), left, action })
    }
}

impl CommHook for Fault {
    fn exchange(
        &self,
        of: CommCall<'_>,
        begin: &mut dyn FnMut() -> ms_dist::Result<Pending>,
    ) -> ms_dist::Result<Pending> {
        if of.name != self.exchange || self.left.fetch_sub(1, Ordering::Relaxed) != 1 {
            return begin();
        }
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        tracing::warn!("{VARIABLE}: {:?} at {} ms after 1970", self.action, now.as_millis());
        match (self.action, of.own) {
            (FaultAction::Panic, _) => panic!("planted at {}", self.exchange),
            (FaultAction::Note, _) => begin(),
            (FaultAction::Skip, Some(own)) => Ok(Pending::ready(own)),
            (FaultAction::Double, _) => {
                let got = begin()?.wait()?;
                let twice: Vec<f64> = got.to_reals()?.iter().map(|x| 2.0 * x).collect();
                Ok(Pending::ready(Tensor::from_reals(got.arena(), got.dtype(), got.shape(), &twice)?))
            }
            (FaultAction::Abort | FaultAction::Skip, _) => std::process::abort(),
        }
    }
}

/// Checks what the variable says.
///
/// # Errors
/// If it does not say what it must.
pub(crate) fn check() -> Result<()> {
    plant(ParallelCtx::single()).map(drop)
}

/// The rank's place with the fault in it, if one is planted there.
///
/// # Errors
/// If the variable does not say what it must.
pub(crate) fn plant(ctx: ParallelCtx) -> Result<ParallelCtx> {
    let text = std::env::var(VARIABLE).unwrap_or_default();
    if text.is_empty() {
        return Ok(ctx);
    }
    match Fault::read(&text) {
        Some(fault) if fault.rank == ctx.rank => {
            tracing::warn!("{VARIABLE}: rank {} fails on purpose at {}", fault.rank, fault.exchange);
            let hook: Arc<dyn CommHook> = Arc::new(fault);
            Ok(ctx.with_hook(&hook))
        }
        Some(_) => Ok(ctx),
        None => refuse!("{VARIABLE}: expected RANK EXCHANGE TIME DEED, found {text}"),
    }
}

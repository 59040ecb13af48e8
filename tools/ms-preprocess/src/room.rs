//! What a run takes of memory at least, before it reads a byte.

use crate::cli::Tokenize;
use anyhow::Result;
use ms_cli::{available_memory, too_little_memory};

/// A thread with its records on the way in and its rows on the way out.
const WORKER_BYTES: u64 = 16 << 20;
/// Columns of a row, at most, in 32-bit tokens.
const ROW_TOKEN_BYTES: u64 = 12;

/// Bytes of the threads, and of the rows that are filled up whatever the records hold.
fn needed(job: &Tokenize) -> u64 {
    let packed = job.options.seq_length.filter(|_| job.pack).unwrap_or(0);
    let row = (packed.max(job.options.pad_to_multiple_of) as u64).saturating_mul(ROW_TOKEN_BYTES);
    let worker = WORKER_BYTES.saturating_add(row.saturating_mul(2));
    worker.saturating_mul(job.workers as u64).saturating_add(row)
}

/// Checks that the machine, or the control group of this process, has what the run takes at least.
///
/// # Errors
/// If it has not: needed, available, and what to lower.
pub(crate) fn check(job: &Tokenize) -> Result<()> {
    let (needed, Some(available)) = (needed(job), available_memory()) else { return Ok(()) };
    if needed > available {
        let lower = match job.workers as u64 * WORKER_BYTES > needed / 2 {
            true => "--workers",
            false => "--seq-length or --pad-to-multiple-of",
        };
        return Err(too_little_memory(needed, available, lower));
    }
    Ok(())
}

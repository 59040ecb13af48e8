//! `progress.txt` next to checkpoints: when jobs of a run began and what they had done at each checkpoint, in Megatron's
//! format.

use crate::Result;
use crate::error::at;
use chrono::{DateTime, Local, NaiveDateTime, TimeZone};
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Name of the file.
const NAME: &str = "progress.txt";
/// How times are written, in the machine's own zone.
const TIME: &str = "%Y-%m-%d %H:%M:%S";
/// What a job says first.
const STARTING: &str = "Starting job";
/// What it says of a checkpoint that it has waited for.
const SAVED: &str = "Saved checkpoint";

/// What a run has done when a checkpoint is written.
#[derive(Clone, Copy, Debug)]
pub struct Done {
    /// Iterations.
    pub iteration: u64,
    /// Floating-point operations, over all jobs.
    pub flops: f64,
    /// Tokens.
    pub tokens: u64,
}

/// Where jobs with as many ranks as this one began.
#[derive(Clone, Copy, Debug, PartialEq)]
struct First {
    time: NaiveDateTime,
    flops: f64,
}

/// The file, of one job.
#[derive(Debug)]
pub struct Progress {
    path: PathBuf,
    /// What the machine's queue calls this job; empty without one.
    job: String,
    ranks: usize,
    start: Instant,
    /// Floating-point operations before this job.
    flops: f64,
    first: First,
}

impl Progress {
    /// Records that a job begins, after the records of earlier jobs. `job` is its name in the batch system; empty without
    /// one.
    ///
    /// # Errors
    /// If the file in `dir` cannot be read or written.
    pub fn begin(dir: &Path, job: &str, ranks: usize, start: Instant, flops: f64) -> Result<Self> {
        let path = dir.join(NAME);
        std::fs::create_dir_all(dir).map_err(at(dir))?;
        let now = Local::now();
        let first = match File::open(&path) {
            Ok(file) => first(BufReader::new(file), ranks).map_err(at(&path))?,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => None,
            Err(e) => return Err(at(&path)(e)),
        };
        let this = Self {
            path,
            job: job.to_owned(),
            ranks,
            start,
            flops,
            first: first.unwrap_or(First { time: now.naive_local(), flops }),
        };
        this.say(now, STARTING)?;
        Ok(this)
    }

    /// Records that a checkpoint is complete, or with `beside` that it is about to be written while training continues.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn checkpoint(&self, done: Done, beside: bool) -> Result<()> {
        let now = Local::now();
        // Where clocks were set back since, the cumulative figure is the job's.
        let since = Local
            .from_local_datetime(&self.first.time)
            .earliest()
            .map_or(0.0, |time| (now - time).as_seconds_f64());
        let job = self.start.elapsed().as_secs_f64();
        let per_rank = |flops: f64, seconds: f64| flops / (seconds.max(job) * 1e12 * self.ranks as f64);
        let prefix = if beside { "Saving async checkpoint" } else { SAVED };
        self.say(
            now,
            &format!(
                "{prefix}\tIteration: {}\tJob throughput: {:.1} TFLOP/s/GPU\tCumulative throughput: {:.1} TFLOP/s/GPU\t\
                 Floating-point operations: {}\tTokens (in billions): {:.2}",
                done.iteration,
                per_rank(done.flops - self.flops, job),
                per_rank(done.flops - self.first.flops, since),
                scientific(done.flops),
                done.tokens as f64 / 1e9
            ),
        )
    }

    /// Records that a checkpoint that was written while training continued is complete.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn completed(&self, iteration: u64) -> Result<()> {
        self.say(Local::now(), &format!("Saved async checkpoint\tIteration: {iteration}"))
    }

    fn say(&self, now: DateTime<Local>, text: &str) -> Result<()> {
        let Self { job, ranks, .. } = self;
        let line = format!("{}\tJob ID: {job}\t# GPUs: {ranks}\t{text}\n", now.format(TIME));
        let file = OpenOptions::new().append(true).create(true).open(&self.path);
        file.and_then(|mut file| file.write_all(line.as_bytes())).map_err(at(&self.path))
    }
}

/// A number as Python's `.2e` writes it.
fn scientific(value: f64) -> String {
    let text = format!("{value:.2e}");
    match text.split_once('e') {
        Some((digits, exponent)) => {
            let exponent: i32 = exponent.parse().unwrap_or(0);
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", exponent.abs())
        }
        None => text,
    }
}

/// Where the jobs of the file's end that have as many ranks began; lines that say something else are passed over.
///
/// # Source
/// Megatron-LM `core_v0.12.1`, `megatron/training/training.py`, `get_start_time_from_progress_log`.
fn first(file: impl BufRead, ranks: usize) -> std::io::Result<Option<First>> {
    let (mut found, mut flops) = (None, 0.0);
    for line in file.split(b'\n') {
        let line = line?;
        let line = String::from_utf8_lossy(&line);
        let fields: Vec<&str> = line.trim().split('\t').collect();
        let [time, _, world, what, rest @ ..] = &fields[..] else { continue };
        fn number<T: std::str::FromStr>(field: &str) -> Option<T> {
            field.split_once(": ")?.1.split(' ').next()?.parse().ok()
        }
        let Some(world) = number::<usize>(world) else { continue };
        if *what == SAVED {
            flops = rest.get(3).and_then(|field| number(field)).unwrap_or(flops);
        }
        if world != ranks {
            found = None;
        } else if *what == STARTING && found.is_none() {
            found = NaiveDateTime::parse_from_str(time, TIME).ok().map(|time| First { time, flops });
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOBS: &str = "2026-01-02 03:04:05\tJob ID: 1\t# GPUs: 8\tStarting job\n\
        2026-01-02 04:04:05\tJob ID: 1\t# GPUs: 8\tSaved checkpoint\tIteration: 5\tJob throughput: 1.0 TFLOP/s/GPU\t\
        Cumulative throughput: 1.0 TFLOP/s/GPU\tFloating-point operations: 2.50e+18\tTokens (in billions): 0.01\n\
        no line of ours\n\
        2026-01-03 00:00:00\tJob ID: 2\t# GPUs: 4\tStarting job\n\
        2026-01-03 01:00:00\tJob ID: 2\t# GPUs: 4\tSaving async checkpoint\tIteration: 7\n\
        2026-01-04 00:00:00\tJob ID: 3\t# GPUs: 4\tStarting job\n";

    #[test]
    fn cumulative_figures_begin_with_the_first_job_of_as_many_ranks() {
        let at = |text: &str| NaiveDateTime::parse_from_str(text, TIME).unwrap();
        let found = |ranks| first(JOBS.as_bytes(), ranks).unwrap();
        // The second job had other ranks, and began with what the first had done.
        assert_eq!(found(4), Some(First { time: at("2026-01-03 00:00:00"), flops: 2.5e18 }));
        assert_eq!(found(8), None);
        // What is no text is no line of ours either.
        let torn = [&b"\xFF\n"[..], JOBS.as_bytes()].concat();
        assert_eq!(first(&*torn, 4).unwrap(), found(4));
        assert_eq!(first(&JOBS.as_bytes()[..60], 8).unwrap().map(|f| f.flops), Some(0.0));
    }

    #[test]
    fn numbers_are_pythons() {
        for (value, text) in
            [(0.0, "0.00e+00"), (2.5e18, "2.50e+18"), (1.234e-7, "1.23e-07"), (3e120, "3.00e+120")]
        {
            assert_eq!(scientific(value), text);
        }
    }
}

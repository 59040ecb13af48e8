//! Log messages: `tracing` to stderr, as text or JSON lines.

use std::io::IsTerminal as _;

use ms_trace::Recorder;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::prelude::*;

use crate::env_vars;

/// Form of log messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum LogFormat {
    /// One readable line per message.
    #[default]
    Text,
    /// One JSON object per message.
    Json,
}

/// How much is said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Verbosity {
    /// Errors only: another process of the run says the rest.
    Silent,
    /// Warnings and errors.
    Quiet,
    /// Also what is being done.
    #[default]
    Normal,
    /// Also details for finding out why.
    Verbose,
}

/// Sends log messages to stderr. The filter is `MS_LOG` if set, else `verbosity` decides.
///
/// A second call has no effect: the first subscriber of a process stays.
pub fn start_logging(verbosity: Verbosity, format: LogFormat) {
    start_logging_with(verbosity, format, None);
}

/// Like [`start_logging`]; `recorder`, if given, hears the spans of operations, collectives and steps whatever the
/// filter of messages is.
pub fn start_logging_with(verbosity: Verbosity, format: LogFormat, recorder: Option<Recorder>) {
    // Of libraries of others only errors are said: their progress and their second attempts are not this program's.
    let level = match verbosity {
        Verbosity::Silent => "error",
        Verbosity::Quiet => "error,ms_=warn",
        Verbosity::Normal => "error,ms_=info",
        Verbosity::Verbose => "info,ms_=debug",
    };
    let filter = match std::env::var(env_vars::MS_LOG) {
        Ok(text) if !text.is_empty() => EnvFilter::new(text),
        _ => EnvFilter::new(level),
    };
    let colour = std::io::stderr().is_terminal()
        && !env_vars::dumb_terminal()
        && std::env::var_os(env_vars::NO_COLOR).is_none_or(|v| v.is_empty());
    let messages = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(colour);
    let messages = match format {
        LogFormat::Text => messages.without_time().with_target(verbosity == Verbosity::Verbose).boxed(),
        LogFormat::Json => messages.json().flatten_event(true).boxed(),
    };
    let spans =
        recorder.map(|r| r.with_filter(filter_fn(|m| matches!(m.target(), "ms_op" | "ms_comm" | "ms_step"))));
    // Ignored on purpose: the first subscriber of a process stays.
    let _ = tracing_subscriber::registry().with(messages.with_filter(filter)).with(spans).try_init();
}

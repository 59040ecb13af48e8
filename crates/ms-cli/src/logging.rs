//! Log messages: `tracing` to stderr, as text or JSON lines.

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;

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
    let level = match verbosity {
        Verbosity::Quiet => "warn",
        Verbosity::Normal => "info",
        Verbosity::Verbose => "debug",
    };
    let filter = match std::env::var(env_vars::MS_LOG) {
        Ok(text) if !text.is_empty() => EnvFilter::new(text),
        _ => EnvFilter::new(level),
    };
    let colour =
        std::io::stderr().is_terminal() && std::env::var_os(env_vars::NO_COLOR).is_none_or(|v| v.is_empty());
    let builder =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(colour);
    // Ignored on purpose: the first subscriber of a process stays.
    let _ = match format {
        LogFormat::Text => builder.without_time().with_target(verbosity == Verbosity::Verbose).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
}

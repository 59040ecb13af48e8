//! Options common to every program: verbosity, log format, and the configuration file with flags.

use anyhow::Context as _;
use serde_json::json;
use std::io::Write as _;
use std::path::Path;

use super::args::{Args, Explained, Notice};
use crate::{LogFormat, Progress, Verbosity, start_logging};

options! {
    /// What every program is told of its output.
    pub(super) struct Common in "Logging" {
        print_args: bool = "--print-args", "print the parsed flags as one JSON object and stop", group = "Configuration",
            own = own_or("print_args", "false");
        explain: bool = "--explain", "print what each given flag does, or why it has no effect, and stop; values are not checked",
            group = "Configuration", own = own_or("explain", "false");
        json: bool = "--json", "write one JSON object to stdout", own = own_or("json", "false");
        quiet: bool = "--quiet", "no progress and no messages except warnings and errors", group = "Configuration", own = own_or("quiet", "false");
        verbose: bool = "--verbose", "also log debug messages", own = own_or("verbose", "false");
        log_format: String = "--log-format", "format of log messages on stderr", own = own_of("log_format", "\"text\"", "text,json");
    }
}

options! {
    /// The file of flags behind those on the line.
    pub struct ConfigFile in "Configuration" {
        path: Option<String> = "--config", "TOML file of flags; flags on the command line take precedence", own = own("config");
    }
}

impl ConfigFile {
    /// Puts what the file of `--config` says, where a program has that, behind what the line said.
    pub(super) fn layer(args: &mut Args) -> anyhow::Result<()> {
        if args.line().find("--config", args.upstream()).is_none() {
            return Ok(());
        }
        let Some(path) = args.read::<Self>()?.path else { return Ok(()) };
        let text = std::fs::read_to_string(&path).with_context(|| format!("--config {path}"))?;
        Ok(args.layer_toml(&text, Path::new(&path))?)
    }
}

impl Args {
    /// Whether results are asked for as JSON.
    pub fn json(&self) -> bool {
        self.common().json
    }

    /// Whether nothing is to be said beside results, warnings and errors.
    pub fn quiet(&self) -> bool {
        self.common().quiet
    }

    /// How much the flags ask to be said.
    pub fn verbosity(&self) -> Verbosity {
        let common = self.common();
        match (common.quiet, common.verbose) {
            (true, _) => Verbosity::Quiet,
            (_, true) => Verbosity::Verbose,
            _ => Verbosity::Normal,
        }
    }

    /// The form of messages that `--log-format` asks for.
    pub fn log_format(&self) -> LogFormat {
        if self.common().log_format == "json" { LogFormat::Json } else { LogFormat::Text }
    }

    fn common(&self) -> Common {
        self.read().expect("switches and words are what the parser lets through")
    }

    /// Whether `--print-args` asks for the parsed flags and nothing else.
    pub(super) fn prints(&self) -> bool {
        self.common().print_args
    }

    /// Prints what becomes of each given flag, if `--explain` asks for that and nothing else: a table, or an object with
    /// `--json`. Whether it did.
    ///
    /// # Errors
    /// Those of stdout.
    pub fn explains(&self) -> std::io::Result<bool> {
        let Common { explain, json, .. } = self.common();
        if !explain {
            return Ok(false);
        }
        let mut out = std::io::stdout().lock();
        if json {
            let row =
                |r: &Explained| json!({"flag": r.flag, "value": r.value, "status": r.status, "note": r.note});
            writeln!(out, "{}", json!({"flags": self.explained().iter().map(row).collect::<Vec<_>>()}))?;
            return Ok(true);
        }
        for r in self.explained() {
            let value = r.value.as_str().map_or_else(|| r.value.to_string(), str::to_owned);
            writeln!(out, "{:<10} {:<44} {}", r.status, format!("{} {value}", r.flag), r.note)?;
        }
        Ok(true)
    }

    /// Sends log messages to stderr as the flags ask, then the warnings of parsing.
    pub fn start_logging(&self) {
        start_logging(self.verbosity(), self.log_format());
        self.say_notes();
    }

    /// Says what the parser tolerated and what has no effect.
    pub fn say_notes(&self) {
        for note in self.tolerated() {
            tracing::warn!("{note}");
        }
        for (flags, reason, loud) in by_reason(self.without_effect()) {
            let (have, flags) = (if flags.len() == 1 { "has" } else { "have" }, flags.join(", "));
            if loud {
                tracing::warn!("{flags} {have} no effect here: {reason}");
            } else {
                tracing::debug!("{flags} {have} no effect here: {reason}");
            }
        }
    }

    /// Says `text` on stderr beside what a command is asked for: as it is, or with `--log-format json` as a message.
    pub fn say_aside(&self, text: &str) {
        if self.log_format() == LogFormat::Json {
            tracing::info!("{text}");
        } else {
            // Nothing can be done about a closed stderr.
            let _ = writeln!(std::io::stderr(), "{text}");
        }
    }

    /// Maker of progress bars that the flags allow.
    pub fn progress(&self) -> Progress {
        // Among messages that programs read nothing is drawn.
        Progress::new(self.common().quiet || self.log_format() == LogFormat::Json)
    }
}

/// Notices with the same reason together, in the order of the first flag of each.
fn by_reason(notices: Vec<Notice>) -> Vec<(Vec<&'static str>, String, bool)> {
    let mut all: Vec<(Vec<&'static str>, String, bool)> = Vec::new();
    for Notice { flag, reason, loud } in notices {
        match all.iter_mut().find(|(_, r, l)| *r == reason && *l == loud) {
            Some((flags, ..)) => flags.push(flag),
            None => all.push((vec![flag], reason, loud)),
        }
    }
    all
}

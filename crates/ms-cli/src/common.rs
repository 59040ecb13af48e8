//! Flags of every clap-based program.

use std::ffi::OsString;

use clap::Parser;

use crate::generate::{Artefact, generate};
use crate::{LogFormat, Progress, Usage, Verbosity, start_logging};

/// Flags that every program has; flatten it into the program's own arguments.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Logging")]
pub struct Common {
    /// Write one documented JSON object to stdout instead of text
    #[arg(long, global = true)]
    pub json: bool,
    /// No progress and no messages but warnings and errors
    #[arg(short, long, global = true)]
    pub quiet: bool,
    /// Also say details
    #[arg(short, long, global = true, conflicts_with = "quiet")]
    pub verbose: bool,
    /// Form of messages on stderr
    #[arg(long, global = true, value_enum, default_value_t, value_name = "FORM")]
    pub log_format: LogFormat,
}

impl Common {
    /// How much the flags ask to be said.
    pub fn verbosity(&self) -> Verbosity {
        match (self.quiet, self.verbose) {
            (true, _) => Verbosity::Quiet,
            (_, true) => Verbosity::Verbose,
            _ => Verbosity::Normal,
        }
    }

    /// Sends log messages to stderr as the flags ask.
    pub fn start_logging(&self) {
        start_logging(self.verbosity(), self.log_format);
    }

    /// Maker of progress bars that the flags allow.
    pub fn progress(&self) -> Progress {
        // Among messages that programs read nothing is drawn.
        Progress::new(self.quiet || self.log_format == LogFormat::Json)
    }
}

/// Parses the process's arguments.
///
/// Help, version and `--generate KIND` (man page, completions) are written to stdout and end the process with 0.
///
/// # Errors
/// [`Usage`] for anything clap refuses.
pub fn parse<C: Parser>() -> anyhow::Result<C> {
    let argv: Vec<OsString> = std::env::args_os().collect();
    argv.iter().try_for_each(|arg| utf8(arg).map(|_| ()))?;
    if let Some(artefact) = Artefact::asked_for(&argv)? {
        generate(artefact, &mut C::command(), &mut std::io::stdout().lock())?;
        std::process::exit(0);
    }
    let matches = taking_negatives(C::command()).try_get_matches_from(argv);
    matches.and_then(|matches| C::from_arg_matches(&matches)).map_err(|error| {
        if !error.use_stderr() {
            error.exit();
        }
        usage_of(&error).into()
    })
}

/// The command with values that may begin with a minus: `--rows -1` is a mistake about `--rows`, not an unknown flag.
fn taking_negatives(command: clap::Command) -> clap::Command {
    let taking = |arg: clap::Arg| match arg.get_action().takes_values() {
        true => arg.allow_negative_numbers(true),
        false => arg,
    };
    command.mut_args(taking).mut_subcommands(taking_negatives)
}

/// An argument as text. Manifests, lists and messages name paths as text, so every program takes only such.
///
/// # Errors
/// [`Usage`] with the argument, if it is not UTF-8.
pub(crate) fn utf8(arg: &std::ffi::OsStr) -> Result<&str, Usage> {
    arg.to_str()
        .ok_or_else(|| Usage(format!("argument {arg:?} is not UTF-8\nhint: rename it, or link to it")))
}

/// clap's message in the form of this project: no `error:` in front, advice on `hint:` lines.
fn usage_of(error: &clap::Error) -> Usage {
    let text = error.render().to_string();
    let mut lines = Vec::new();
    for line in text.trim().lines() {
        let line = line.trim();
        if let Some(tip) = line.strip_prefix("tip: ") {
            lines.push(format!("hint: {tip}"));
        } else if let Some(more) = line.strip_prefix("For more information, try ") {
            lines.push(format!("hint: see {}", more.trim_end_matches('.')));
        } else if !line.is_empty() && !line.starts_with("Usage:") {
            lines.push(line.strip_prefix("error: ").unwrap_or(line).to_owned());
        }
    }
    Usage(lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[derive(Parser, Debug)]
    #[command(name = "ms-test")]
    struct Cli {
        #[command(flatten)]
        common: Common,
        #[arg(long)]
        output_prefix: Option<String>,
    }

    #[test]
    fn a_negative_number_is_a_mistake_of_its_flag() {
        #[derive(Parser, Debug)]
        struct Counting {
            #[arg(long)]
            rows: u32,
        }
        let refused = taking_negatives(Counting::command()).try_get_matches_from(["x", "--rows", "-1"]);
        let text = usage_of(&refused.unwrap_err()).0;
        assert!(text.contains("--rows"), "{text}");
    }

    #[test]
    fn clap_messages_take_the_house_form() {
        let error = Cli::try_parse_from(["ms-test", "--output-prefx", "x"]).unwrap_err();
        let text = usage_of(&error).0;
        assert!(text.starts_with("unexpected argument '--output-prefx' found\n"), "{text}");
        assert!(text.contains("hint: a similar argument exists: '--output-prefix'"), "{text}");
    }

    #[test]
    fn the_flags_decide_how_much_is_said() {
        let v = |args: &[&str]| Cli::try_parse_from(args).map(|c| c.common.verbosity());
        assert_eq!(v(&["ms-test"]).unwrap(), Verbosity::Normal);
        assert_eq!(v(&["ms-test", "--quiet"]).unwrap(), Verbosity::Quiet);
        assert_eq!(v(&["ms-test", "-v"]).unwrap(), Verbosity::Verbose);
        assert!(v(&["ms-test", "-v", "-q"]).is_err());
    }

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }
}

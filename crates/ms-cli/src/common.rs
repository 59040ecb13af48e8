//! Flags of every clap-based program.

use std::ffi::OsString;
use std::io::Write as _;

use clap::Parser;
use clap::error::ErrorKind;

use crate::generate::{Artefact, generate};
use crate::{LogFormat, Progress, Usage, Verbosity, start_logging};

/// Flags that every program has; flatten it into the program's own arguments.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Logging")]
pub struct Common {
    /// Write one documented JSON object to stdout instead of text
    #[arg(long, global = true)]
    pub json: bool,
    /// No progress and no messages except warnings and errors
    #[arg(short, long, global = true)]
    pub quiet: bool,
    /// Also log debug messages
    #[arg(short, long, global = true, conflicts_with = "quiet")]
    pub verbose: bool,
    /// Format of log messages on stderr
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
    let mut command = taking_negatives(C::command());
    let words: Vec<&str> = argv.iter().skip(1).filter_map(|arg| arg.to_str()).collect();
    if let ["help", word] = words[..]
        && command.find_subcommand(word).is_none()
    {
        command.build();
        let mut out = std::io::stdout().lock();
        out.write_all(about_word(&command, word)?.as_bytes())?;
        out.flush()?;
        std::process::exit(0);
    }
    let argv = command_in_front(&command, argv);
    let matches = telling(command).try_get_matches_from(argv);
    match matches.and_then(|matches| C::from_arg_matches(&matches)) {
        Ok(parsed) => Ok(parsed),
        Err(error) if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            // Nothing but the name: the page as clap lays it out, and the exit code of wrong usage.
            error.print()?;
            std::process::exit(2);
        }
        Err(error) if error.use_stderr() => Err(usage_of(&error).into()),
        Err(help) => {
            help.print().and_then(|()| std::io::stdout().flush())?;
            std::process::exit(0);
        }
    }
}

/// The arguments with the command in front of flags of [`Common`], which a program with flags of its own takes behind it only.
fn command_in_front(command: &clap::Command, mut argv: Vec<OsString>) -> Vec<OsString> {
    let mut at = 1;
    while let Some(word) = argv.get(at).and_then(|arg| arg.to_str()) {
        match word {
            "--json" | "-q" | "--quiet" | "-v" | "--verbose" => at += 1,
            "--log-format" => at += 2,
            _ if word.starts_with("--log-format=") => at += 1,
            _ if command.find_subcommand(word).is_some() => {
                argv[1..=at].rotate_right(1);
                return argv;
            }
            _ => return argv,
        }
    }
    argv
}

/// The command with values that may begin with a minus: `--rows -1` is a mistake about `--rows`, not an unknown flag. Of a
/// flag that is given twice the last counts, as in the programs that take upstream's command lines.
fn taking_negatives(command: clap::Command) -> clap::Command {
    let taking = |arg: clap::Arg| match arg.get_action() {
        clap::ArgAction::Set if !arg.is_positional() => {
            let id = arg.get_id().clone();
            arg.allow_negative_numbers(true).overrides_with(id)
        }
        action if action.takes_values() => arg.allow_negative_numbers(true),
        _ => arg,
    };
    command.mut_args(taking).mut_subcommands(taking_negatives)
}

/// The command with the words that every program answers at the end of its help.
fn telling(command: clap::Command) -> clap::Command {
    let words = crate::megatron::words(command.get_name());
    let after = command.get_after_long_help().or(command.get_after_help());
    let after = after.map_or(words.clone(), |text| format!("{text}\n\n{words}"));
    command.after_long_help(after)
}

/// The flags of a program and its commands that are about a word: in their name, their meaning or their heading. What
/// `help WORD` prints.
///
/// # Errors
/// [`Usage`] if there is none.
fn about_word(command: &clap::Command, word: &str) -> Result<String, Usage> {
    let wanted = word.trim_start_matches('-').to_lowercase();
    let mut out = format!("{}: flags about {word}\n\n", command.get_name());
    let heading = out.len();
    let commands = std::iter::once(("", command));
    let commands = commands.chain(command.get_subcommands().map(|command| (command.get_name(), command)));
    for (name, command) in commands {
        for arg in command.get_arguments().filter(|arg| !arg.is_hide_set()) {
            let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
            let heading = arg.get_help_heading().unwrap_or_default();
            if [arg.get_id().as_str(), &help, heading]
                .iter()
                .any(|text| text.to_lowercase().replace('_', "-").contains(&wanted))
            {
                let place = if name.is_empty() { String::new() } else { format!("{name} ") };
                out.push_str(&format!("  {place}{arg}\n      {help}\n"));
            }
        }
    }
    if out.len() > heading {
        Ok(out)
    } else {
        Err(Usage(format!("help {word}: no flag is about that\nhint: --help lists all flags")))
    }
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
    let mut usage = false;
    for line in text.trim().lines().map(str::trim_end) {
        // The block goes on up to an empty line.
        usage = line.starts_with("Usage:") || (usage && !line.is_empty());
        if let Some(tip) = line.trim_start().strip_prefix("tip: ") {
            lines.push(format!("hint: {tip}"));
        } else if let Some(more) = line.strip_prefix("For more information, try ") {
            lines.push(format!("hint: see {}", more.trim_end_matches('.')));
        } else if !line.is_empty() && !usage {
            lines.push(line.strip_prefix("error: ").unwrap_or(line).to_owned());
        }
    }
    Usage(lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, FromArgMatches as _};

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
    fn of_a_flag_that_is_given_twice_the_last_counts() {
        let command = taking_negatives(Cli::command());
        let matches =
            command.try_get_matches_from(["x", "--output-prefix", "a", "--output-prefix=b"]).unwrap();
        assert_eq!(Cli::from_arg_matches(&matches).unwrap().output_prefix.as_deref(), Some("b"));
    }

    #[test]
    fn clap_messages_take_the_house_form() {
        let error = Cli::try_parse_from(["ms-test", "--output-prefx", "x"]).unwrap_err();
        let text = usage_of(&error).0;
        assert!(text.starts_with("unexpected argument '--output-prefx' found\n"), "{text}");
        assert!(text.contains("hint: a similar argument exists: '--output-prefix'"), "{text}");
    }

    #[test]
    fn a_message_has_no_part_of_the_usage_and_keeps_its_lists() {
        #[derive(Parser, Debug)]
        #[command(name = "ms-test", subcommand_required = true)]
        enum Commands {
            Copy {
                #[arg(long)]
                to: String,
            },
        }
        let said = |args: &[&str]| usage_of(&Commands::try_parse_from(args).unwrap_err()).0;
        assert_eq!(said(&["ms-test", "--foo"]), "unexpected argument '--foo' found\nhint: see '--help'");
        let lacking = said(&["ms-test", "copy"]);
        assert!(lacking.contains("were not provided:\n  --to <TO>\n"), "{lacking}");
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

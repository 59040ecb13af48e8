//! `--generate KIND`: man pages and shell completions from the definition of a program's arguments.

use std::ffi::OsString;
use std::io::Write;

use clap_complete::Shell;

use crate::{Usage, refuse};

/// What `--generate` writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Artefact {
    /// A man page, section 1.
    Man,
    /// Completions of a shell.
    Complete(Shell),
}

impl Artefact {
    /// The artefact named by `man`, `completions SHELL` or `--generate KIND`, when that comes first after the program's name.
    ///
    /// # Errors
    /// [`Usage`] if SHELL is none of `bash`, `zsh` and `fish`, or KIND none of `man`, `complete-bash`, `complete-zsh`,
    /// `complete-fish`.
    pub fn asked_for(argv: &[OsString]) -> Result<Option<Self>, Usage> {
        let Some(first) = argv.get(1).and_then(|a| a.to_str()) else { return Ok(None) };
        let second = || argv.get(2).and_then(|a| a.to_str()).unwrap_or("");
        match (first, second()) {
            ("man", "") => return Ok(Some(Self::Man)),
            ("completions", "bash") => return Ok(Some(Self::Complete(Shell::Bash))),
            ("completions", "zsh") => return Ok(Some(Self::Complete(Shell::Zsh))),
            ("completions", "fish") => return Ok(Some(Self::Complete(Shell::Fish))),
            ("completions", other) => {
                refuse!("completions: expected bash, zsh or fish, got '{other}'");
            }
            _ => {}
        }
        let kind = match first.strip_prefix("--generate") {
            Some("") => second(),
            Some(rest) if rest.starts_with('=') => &rest[1..],
            _ => return Ok(None),
        };
        match kind {
            "man" => Ok(Some(Self::Man)),
            "complete-bash" => Ok(Some(Self::Complete(Shell::Bash))),
            "complete-zsh" => Ok(Some(Self::Complete(Shell::Zsh))),
            "complete-fish" => Ok(Some(Self::Complete(Shell::Fish))),
            other => Err(Usage(format!(
                "--generate: expected man, complete-bash, complete-zsh or complete-fish, got '{other}'"
            ))),
        }
    }
}

/// Writes an artefact of `command` to `out`.
///
/// # Errors
/// What `out` reports.
pub fn generate(artefact: Artefact, command: &mut clap::Command, out: &mut dyn Write) -> std::io::Result<()> {
    let mut text = Vec::new();
    match artefact {
        Artefact::Man => clap_mangen::Man::new(command.clone()).render(&mut text)?,
        Artefact::Complete(shell) => {
            let name = command.get_name().to_owned();
            clap_complete::generate(shell, command, name, &mut text);
        }
    }
    out.write_all(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn argv(args: &[&str]) -> Vec<OsString> {
        args.iter().map(OsString::from).collect()
    }

    #[test]
    fn the_kind_is_read_in_both_spellings_and_others_are_refused() {
        let bash = Some(Artefact::Complete(Shell::Bash));
        assert_eq!(Artefact::asked_for(&argv(&["t", "--generate", "complete-bash"])), Ok(bash));
        assert_eq!(Artefact::asked_for(&argv(&["t", "--generate=man"])), Ok(Some(Artefact::Man)));
        assert_eq!(Artefact::asked_for(&argv(&["t", "--load", "x"])), Ok(None));
        assert!(Artefact::asked_for(&argv(&["t", "--generate", "pdf"])).is_err());
        assert_eq!(Artefact::asked_for(&argv(&["t", "completions", "bash"])), Ok(bash));
        assert_eq!(Artefact::asked_for(&argv(&["t", "man"])), Ok(Some(Artefact::Man)));
        assert!(Artefact::asked_for(&argv(&["t", "completions", "tcsh"])).is_err());
    }

    #[test]
    fn a_man_page_and_completions_name_the_flags() {
        let mut command = clap::Command::new("ms-x").arg(clap::Arg::new("seq-length").long("seq-length"));
        let mut man = Vec::new();
        generate(Artefact::Man, &mut command, &mut man).unwrap();
        assert!(String::from_utf8(man).unwrap().contains("seq\\-length"));
        let mut fish = Vec::new();
        generate(Artefact::Complete(Shell::Fish), &mut command, &mut fish).unwrap();
        assert!(String::from_utf8(fish).unwrap().contains("seq-length"));
    }
}

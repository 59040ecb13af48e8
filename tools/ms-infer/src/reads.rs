//! Which command reads which flag, and what happens to a flag that none of the commands being run reads.

use crate::commands::{CHAT, Command, DRAWN, GENERATE, LOGITS};
use crate::options::Options;
use anyhow::Result;
use ms_cli::megatron::{Args, Options as _, Origin};
use ms_cli::refuse;

/// The flag that all programs have and not every command of this one reads.
const JSON: (&str, &[&str]) = ("--json", &[GENERATE, CHAT, LOGITS]);

/// The program's flags, as its options list them, and the commands that read each.
fn readers() -> impl Iterator<Item = (&'static str, &'static [&'static str])> {
    Options::entries().into_iter().map(|entry| (entry.flag, entry.by)).chain([JSON])
}

/// Looks at the flags that were given, before anything is read. Those of this toolchain are mistakes on a line where nothing
/// reads them; upstream's stand in scripts, and a configuration file is for several commands.
///
/// # Errors
/// [`ms_cli::Usage`] for a flag of ours on the line that none of `commands` reads.
pub(crate) fn check(args: &Args, o: &Options, commands: &[Command]) -> Result<()> {
    let on_line: Vec<&str> =
        args.all().filter(|(.., from)| *from == Origin::Flag).map(|(dest, ..)| dest).collect();
    let given: Vec<(&str, bool)> =
        args.written_flags().map(|(dest, flag)| (flag, on_line.contains(&dest.as_str()))).collect();
    let find = |flag: &str| given.iter().find(|(given, _)| *given == flag).map(|(_, on_line)| *on_line);
    let asked: Vec<&str> = commands.iter().map(|c| c.name()).collect();
    for (flag, by) in readers() {
        let Some(on_line) = find(flag) else { continue };
        if by.iter().any(|command| asked.contains(command)) {
            continue;
        }
        let (who, names) = (by.join(", "), asked.join(", "));
        let ours = || args.line().flags(args.upstream()).any(|known| known.flag == flag && known.ours);
        if on_line && ours() {
            refuse!("{flag}: {names} does not read it; it belongs to {who}");
        }
        if on_line {
            tracing::warn!("{flag} has no effect in {}: it belongs to {who}", names);
        }
    }
    // The likeliest token is taken: nothing is drawn.
    if o.sampling.takes_the_likeliest() && asked.iter().any(|command| DRAWN.contains(command)) {
        for flag in
            ["--top-k", "--top-p", "--min-p", "--seed"].into_iter().filter(|flag| find(flag).is_some())
        {
            tracing::warn!("{flag} has no effect with --temperature 0: the likeliest token is taken");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::readers;
    use crate::commands::EVERY;

    #[test]
    fn every_flag_names_the_commands_that_read_it() {
        for (flag, by) in readers() {
            assert!(!by.is_empty() && by.iter().all(|command| EVERY.contains(command)), "{flag}: {by:?}");
        }
    }
}

//! Which command reads which flag, and what becomes of a flag that none of those that run reads.

use crate::options::Options;
use anyhow::{Result, bail};
use ms_cli::Usage;
use ms_cli::megatron::{Args, Origin};

/// What runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Command {
    Generate,
    Chat,
    Logits,
    /// `--task greedy` of upstream's `inference.py`.
    Greedy,
    /// `--task do_sample`, likewise.
    Sample,
}

use Command::{Chat, Generate, Greedy, Logits, Sample};

impl Command {
    fn name(self) -> &'static str {
        match self {
            Generate => "generate",
            Chat => "chat",
            Logits => "logits",
            Greedy => "--task greedy",
            Sample => "--task do_sample",
        }
    }
}

const TEXTS: &[Command] = &[Generate, Chat, Greedy, Sample];
const DRAWN: &[Command] = &[Generate, Chat, Sample];

/// Flags that not every command reads.
const TABLE: [(&str, &[Command]); 20] = [
    ("--prompt", TEXTS),
    ("--stop", TEXTS),
    ("--ignore-eos", TEXTS),
    ("--no-echo", &[Generate]),
    ("--json", &[Generate, Chat, Logits]),
    ("--input", &[Logits]),
    ("--output", &[Logits]),
    ("--system", &[Chat]),
    ("--min-p", DRAWN),
    ("--repetition-penalty", DRAWN),
    ("--max-new-tokens", TEXTS),
    ("--history-turns", &[Chat]),
    ("--hf-chat-template", &[Chat]),
    ("--prompt-type", &[Chat]),
    ("--prompt-type-path", &[Chat]),
    ("--temperature", DRAWN),
    ("--top-k", DRAWN),
    ("--top-p", DRAWN),
    ("--seed", DRAWN),
    ("--tokenizer-name-or-path", TEXTS),
];

/// Looks at the flags that were given, before anything is read. Those of this toolchain are mistakes on a line where nothing
/// reads them; upstream's stand in scripts, and a configuration file is for several commands.
///
/// # Errors
/// [`Usage`] for a flag of ours on the line that none of `commands` reads.
pub(crate) fn check(args: &Args, o: &Options, commands: &[Command]) -> Result<()> {
    let on_line: Vec<&str> =
        args.all().filter(|(.., from)| *from == Origin::Flag).map(|(dest, ..)| dest).collect();
    let given: Vec<(&str, bool)> =
        args.written_flags().map(|(dest, flag)| (flag, on_line.contains(&dest.as_str()))).collect();
    let find = |flag: &str| given.iter().find(|(given, _)| *given == flag).map(|(_, on_line)| *on_line);
    let names = || commands.iter().map(|c| c.name()).collect::<Vec<_>>().join(", ");
    for (flag, by) in TABLE {
        let Some(on_line) = find(flag) else { continue };
        if by.iter().any(|command| commands.contains(command)) {
            continue;
        }
        let who = by.iter().map(|c| c.name()).collect::<Vec<_>>().join(", ");
        let ours = || args.line().flags(args.upstream()).any(|known| known.flag == flag && known.ours);
        if on_line && ours() {
            bail!(Usage(format!("{flag}: {} does not read it; it goes with {who}", names())));
        }
        if on_line {
            tracing::warn!("{flag} changes nothing in {}: it goes with {who}", names());
        }
    }
    // The likeliest token is taken: nothing is drawn.
    if o.sampling.takes_the_likeliest() && commands.iter().any(|command| DRAWN.contains(command)) {
        for flag in
            ["--top-k", "--top-p", "--min-p", "--seed"].into_iter().filter(|flag| find(flag).is_some())
        {
            tracing::warn!("{flag} changes nothing beside --temperature 0: the likeliest token is taken");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::TABLE;
    use ms_cli::megatron::Upstream;

    #[test]
    fn every_row_is_a_flag_of_the_program() {
        let line = crate::line();
        for (name, _) in TABLE {
            let versions = [Upstream::V2_0_0, Upstream::Head];
            let known = versions.iter().any(|&v| line.flags(v).any(|flag| flag.flag == name && flag.acts()));
            assert!(known, "{name}");
        }
    }
}

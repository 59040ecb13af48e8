//! Which command reads which flag, and what becomes of a flag that none of those that run reads.

use crate::options::Options;
use anyhow::{Result, bail};
use ms_cli::Usage;
use ms_cli::megatron::Args;

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
    ("--json", &[Generate, Logits]),
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

/// Looks at the flags that were given, before anything is read. Those of this toolchain are mistakes where nothing reads them;
/// upstream's stand in scripts.
///
/// # Errors
/// [`Usage`] for a flag of ours that none of `commands` reads.
pub(crate) fn check(args: &Args, o: &Options, commands: &[Command]) -> Result<()> {
    let given: Vec<&str> = args.written_flags().map(|(_, flag)| flag).collect();
    let names = || commands.iter().map(|c| c.name()).collect::<Vec<_>>().join(", ");
    for (flag, by) in TABLE.iter().filter(|(flag, _)| given.contains(flag)) {
        if by.iter().any(|command| commands.contains(command)) {
            continue;
        }
        let who = by.iter().map(|c| c.name()).collect::<Vec<_>>().join(", ");
        if args.line().flags(args.upstream()).any(|known| known.flag == *flag && known.ours) {
            bail!(Usage(format!("{flag}: {} does not read it; it goes with {who}", names())));
        }
        tracing::warn!("{flag} changes nothing in {}: it goes with {who}", names());
    }
    // The likeliest token is taken: nothing is drawn.
    if o.sampling.takes_the_likeliest() && commands.iter().any(|command| DRAWN.contains(command)) {
        for flag in ["--top-k", "--top-p", "--min-p", "--seed"].iter().filter(|flag| given.contains(flag)) {
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

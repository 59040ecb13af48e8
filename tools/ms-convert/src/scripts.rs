//! Command lines of upstream converters with their own flags: v2.0.0's for DeepSeek-V3.
//!
//! # Source
//! MindSpeed-LLM v2.0.0 and its head (2026-08-21), `convert_ckpt_deepseek3.py` and `convert_ckpt_deepseek3_mcore2hf.py`.

use ms_cli::{Usage, refuse};
use std::ffi::OsString;

/// A command line of one of these scripts.
#[derive(Debug, PartialEq)]
pub(crate) struct Script {
    pub(crate) from: &'static str,
    pub(crate) to: &'static str,
    /// The flags that the other converters have, too.
    pub(crate) left: Vec<OsString>,
    /// How many layers are converted, and how many of the leading dense ones.
    pub(crate) layers: Option<usize>,
    pub(crate) leading_dense: Option<usize>,
}

/// Flags with a value that say what the files say themselves, or have no meaning here.
const KNOWN_FROM_FILES: [&str; 4] = [
    "--source-tensor-parallel-size",
    "--source-pipeline-parallel-size",
    "--source-expert-parallel-size",
    "--ai-framework",
];
/// How many layers there are, empty slots counted.
const LAYERS: &str = "--num-layers";
const LEADING_DENSE: &str = "--first-k-dense-replace";
const NOOP: &str = "--noop-layers";

/// How a source is laid out, which its own arguments say.
const OF_THE_SOURCE: [&str; 2] = [NOOP, "--num-layers-per-virtual-pipeline-stage"];

/// What `argv` asks for, if it is a command line of one of these scripts: without the forms that the other converters need, and
/// with flags that they lack.
///
/// # Errors
/// [`Usage`] for numbers of layers that are none.
pub(crate) fn deepseek3(argv: &[OsString]) -> Result<Option<Script>, Usage> {
    let words: Vec<&str> = argv.iter().map(|word| word.to_str().unwrap_or_default()).collect();
    let has = |flag: &str| words.iter().any(|word| word.split('=').next() == Some(flag));
    if has("--load-model-type") || has("--save-model-type") || !has("--load-dir") {
        return Ok(None);
    }
    let back = words.iter().any(|word| word.starts_with("--source-"));
    if !back && !has(LAYERS) && !has("--num-nextn-predict-layers") && !has("--mtp-num-layers") {
        return Ok(None);
    }
    let dropped = |flag: &str| {
        [LAYERS, LEADING_DENSE].contains(&flag)
            || KNOWN_FROM_FILES.contains(&flag)
            || (back && OF_THE_SOURCE.contains(&flag))
    };
    let (mut left, mut values) = (Vec::new(), 0);
    for (word, arg) in words.iter().zip(argv) {
        let (flag, value) = word.split_once('=').map_or((*word, None), |(flag, value)| (flag, Some(value)));
        if values > 0 && !word.starts_with("--") {
            values -= 1;
            continue;
        }
        values = 0;
        if dropped(flag) {
            values = usize::from(value.is_none());
        } else {
            left.push(arg.clone());
        }
    }
    let value_of = |flag: &str| {
        let at = words.iter().rposition(|word| word.split('=').next() == Some(flag))?;
        Some(words[at].split_once('=').map_or_else(|| words.get(at + 1).copied().unwrap_or(""), |(_, v)| v))
    };
    let count = |flag: &str| match value_of(flag) {
        None => Ok(None),
        Some(text) => match text.parse::<usize>() {
            Ok(n) => Ok(Some(n)),
            Err(_) => refuse!("{flag}: expected a number, found '{text}'"),
        },
    };
    let (layers, leading_dense) = (count(LAYERS)?, count(LEADING_DENSE)?);
    let empty = value_of(NOOP).map_or(0, |list| list.split(',').count());
    let layers = match layers {
        Some(n) if n <= empty => refuse!("{LAYERS} {n}: {empty} of them are empty by {NOOP}"),
        layers => layers.map(|n| n - empty),
    };
    let (from, to) = if back { ("mcore", "hf") } else { ("hf", "mcore") };
    Ok(Some(Script { from, to, left, layers, leading_dense }))
}

#[cfg(test)]
mod tests {
    use super::deepseek3;
    use std::ffi::OsString;

    /// The command line translated for the other converters, and how many layers and dense layers are taken.
    fn of(line: &str) -> Option<(String, Option<usize>, Option<usize>)> {
        let argv: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        let script = deepseek3(&argv).unwrap()?;
        let left: Vec<String> = script.left.into_iter().map(|word| word.into_string().unwrap()).collect();
        let line = format!("{} {} {}", script.from, script.to, left.join(" "));
        Some((line, script.layers, script.leading_dense))
    }

    #[test]
    fn lines_of_the_scripts_are_told_from_those_of_others() {
        let back = "--moe-grouped-gemm --source-tensor-parallel-size 2 --source-pipeline-parallel-size=8 --load-dir a \
                    --save-dir b --num-layers 64 --num-nextn-predict-layers 1 --noop-layers 47,62,63 --ai-framework mindspore";
        let want = "mcore hf --moe-grouped-gemm --load-dir a --save-dir b --num-nextn-predict-layers 1";
        assert_eq!(of(back), Some((want.into(), Some(61), None)));
        let there = "--target-tensor-parallel-size 2 --load-dir a --save-dir b --num-layers 64 --noop-layers=47,62,63 \
                     --first-k-dense-replace 2";
        let want =
            "hf mcore --target-tensor-parallel-size 2 --load-dir a --save-dir b --noop-layers=47,62,63";
        assert_eq!(of(there), Some((want.into(), Some(61), Some(2))));
        for other in [
            "--load-model-type hf --save-model-type mg --load-dir a --save-dir b --num-layers 4",
            "--load-dir a --save-dir b --target-tensor-parallel-size 2",
            "--num-layers 4 --load a --save b",
        ] {
            assert_eq!(of(other), None, "{other}");
        }
    }

    #[test]
    fn numbers_of_layers_that_are_none_are_refused_by_their_flag() {
        for (flags, says) in [
            ("--num-layers x", "--num-layers: expected a number, found 'x'"),
            ("--num-layers 2 --noop-layers 0,1", "--num-layers 2: 2 of them are empty by --noop-layers"),
        ] {
            let line = format!("--load-dir a --save-dir b {flags}");
            let argv: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
            assert_eq!(deepseek3(&argv).unwrap_err().to_string(), says);
        }
    }
}

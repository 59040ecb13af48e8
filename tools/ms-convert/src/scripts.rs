//! Command lines of upstream's converters that have flags of their own: v2.0.0's for DeepSeek-V3.
//!
//! # Source
//! MindSpeed-LLM v2.0.0 and its head (2026-08-21), `convert_ckpt_deepseek3.py` and `convert_ckpt_deepseek3_mcore2hf.py`.

use std::ffi::OsString;

/// Flags with a value that say what the files say themselves, or have no meaning here. (`--num-layers` counts empty slots.)
const KNOWN_FROM_FILES: [&str; 6] = [
    "--source-tensor-parallel-size",
    "--source-pipeline-parallel-size",
    "--source-expert-parallel-size",
    "--num-layers",
    "--first-k-dense-replace",
    "--ai-framework",
];

/// How a source is laid out, which its own arguments say.
const OF_THE_SOURCE: [&str; 2] = ["--noop-layers", "--num-layers-per-virtual-pipeline-stage"];

/// FROM, TO and the flags that are left, if `argv` is a command line of one of these scripts: without the forms that the
/// other converters need, and with flags that they lack.
pub(crate) fn deepseek3(argv: &[OsString]) -> Option<(&'static str, &'static str, Vec<OsString>)> {
    let words: Vec<&str> = argv.iter().map(|word| word.to_str().unwrap_or_default()).collect();
    let has = |flag: &str| words.iter().any(|word| word.split('=').next() == Some(flag));
    if has("--load-model-type") || has("--save-model-type") || !has("--load-dir") {
        return None;
    }
    let back = words.iter().any(|word| word.starts_with("--source-"));
    if !back && !has("--num-layers") && !has("--num-nextn-predict-layers") && !has("--mtp-num-layers") {
        return None;
    }
    let dropped = |flag: &str| KNOWN_FROM_FILES.contains(&flag) || (back && OF_THE_SOURCE.contains(&flag));
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
    // These converters store no arguments.
    let (from, to) = if back { ("mcore", "hf") } else { ("hf", "mcore") };
    if !back {
        left.push("--no-args".into());
    }
    Some((from, to, left))
}

#[cfg(test)]
mod tests {
    use super::deepseek3;
    use std::ffi::OsString;

    fn of(line: &str) -> Option<String> {
        let argv: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        let (from, to, left) = deepseek3(&argv)?;
        let left: Vec<String> = left.into_iter().map(|word| word.into_string().unwrap()).collect();
        Some(format!("{from} {to} {}", left.join(" ")))
    }

    #[test]
    fn lines_of_the_scripts_are_told_from_those_of_others() {
        let back = "--moe-grouped-gemm --source-tensor-parallel-size 2 --source-pipeline-parallel-size=8 --load-dir a \
                    --save-dir b --num-layers 64 --num-nextn-predict-layers 1 --noop-layers 47,62,63 --ai-framework mindspore";
        assert_eq!(
            of(back).as_deref(),
            Some("mcore hf --moe-grouped-gemm --load-dir a --save-dir b --num-nextn-predict-layers 1")
        );
        let there =
            "--target-tensor-parallel-size 2 --load-dir a --save-dir b --num-layers 64 --noop-layers 47";
        assert_eq!(
            of(there).as_deref(),
            Some(
                "hf mcore --target-tensor-parallel-size 2 --load-dir a --save-dir b --noop-layers 47 --no-args"
            )
        );
        for other in [
            "--load-model-type hf --save-model-type mg --load-dir a --save-dir b --num-layers 4",
            "--load-dir a --save-dir b --target-tensor-parallel-size 2",
            "--num-layers 4 --load a --save b",
        ] {
            assert_eq!(of(other), None, "{other}");
        }
    }
}

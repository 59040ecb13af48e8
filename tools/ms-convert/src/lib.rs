//! `ms-convert FROM TO --load DIR --save DIR`: converts checkpoints from one form to another.
//!
//! FROM and TO are `hf` (a Hugging Face folder), `mcore` (Megatron-core files; with `--format safetensors` this toolchain's
//! own sharded form), `torch_dist` (Megatron's distributed form; which of the three a source has is detected) or `legacy`
//! (the nested files of Megatron's legacy models). The optimizer state of a training checkpoint is converted too in the three
//! forms that hold it, unless `--no-optim` is given. Without FROM and TO, the arguments of upstream's `convert_ckpt.py` and,
//! under `--upstream head`, `convert_ckpt_v2.py` work unchanged. `ms-convert inspect DIR` shows the contents of a checkpoint,
//! `ms-convert diff A B` the differences between two, across forms and shardings, and `ms-convert verify DIR` reads
//! everything: exit code 1 if something differs or is damaged. An interrupted conversion resumes where it stopped when it is
//! started again.
//!
//! A Hugging Face folder that is converted to Megatron-core and back is the same byte for byte: the converted checkpoint
//! keeps `config.json`, the tokenizer's files and, in `hf_layout.json`, the names and headers of the original weight files.
//! `--hf-cfg-dir DIR` names an original folder to follow instead. With neither, files are laid out as by `save_pretrained`.

#[macro_use]
#[path = "../../../crates/ms-cli/src/megatron/macros.rs"]
mod macros;

mod adapters;
mod companions;
mod diff_and_verify;
mod inspect;
mod options;
mod request;
mod run;
mod scripts;
mod source;

use std::ffi::OsString;
use std::path::Path;
use std::sync::OnceLock;

use ms_ckpt::layout::mcore::Hints;
use ms_cli::megatron::{Line, Program, answer, parse_or_exit, take_words};
use ms_cli::{ResultHint as _, Usage, refuse};
use options::Options;

const ABOUT: &str =
    "Converts checkpoints between Hugging Face folders and Megatron's forms; shows, compares and verifies them.

Commands:
    ms-convert FROM TO --load DIR --save DIR [--tp N --pp N …]   FROM, TO: hf | mcore | torch_dist | legacy
    ms-convert inspect DIR [--json]
    ms-convert diff DIR DIR [--json]
    ms-convert verify DIR [--json]

Examples:
  ms-convert hf mcore --load model --save ckpt --tp 2 --pp 2
  ms-convert mcore hf --load ckpt --save model
  ms-convert torch_dist hf --load ckpt --save model
  ms-convert mcore mcore --load ckpt --save ckpt8 --tp 8 --dry-run
  ms-convert inspect ckpt --json";

/// The command line.
pub fn line() -> &'static Line {
    static LINE: OnceLock<Line> = OnceLock::new();
    LINE.get_or_init(|| Line::new::<Options>(Program::Convert, "ms-convert", ABOUT))
}

/// Whether a word behind others, or among flags, is a command, a form or a folder of a command.
fn is_own(before: &[OsString], word: &str) -> bool {
    match before.first().map(|first| first.to_string_lossy()).as_deref() {
        None => ["inspect", "diff", "verify"].contains(&word) || request::form(word).is_ok(),
        Some("diff") => before.len() < 3,
        Some("inspect" | "verify") => before.len() < 2,
        Some(_) => before.len() < 2 && request::form(word).is_ok(),
    }
}

/// Runs the program with the arguments after its name.
///
/// # Errors
/// Wrong usage, and whatever stops a conversion.
pub fn main(mut argv: Vec<OsString>) -> anyhow::Result<()> {
    answer(line(), &argv)?;
    let words = take_words(line(), &mut argv, usize::MAX, is_own)?;
    let script = if words.is_empty() { scripts::deepseek3(&argv)? } else { None };
    if let Some(script) = &script {
        argv.clone_from(&script.left);
    }
    let args = parse_or_exit(line(), &argv)?;
    if args.explains()? {
        return Ok(());
    }
    args.check()?;
    args.start_logging();
    let o: Options = args.read()?;
    let hints = Hints { extend_ep: o.cutting.extend_ep.then_some(true), ..Hints::default() };
    let text: Vec<&str> = words.iter().map(|w| w.to_str().unwrap_or_default()).collect();
    match text[..] {
        ["inspect", _] => inspect::run(Path::new(&words[1]), &hints, args.json()),
        ["diff", ..] | ["verify", ..] => {
            let sound = match words.len() {
                3 if text[0] == "diff" => {
                    diff_and_verify::diff(Path::new(&words[1]), Path::new(&words[2]), &hints, args.json())?
                }
                2 if text[0] == "verify" => {
                    diff_and_verify::verify(Path::new(&words[1]), &hints, args.json())?
                }
                _ => {
                    let want = if text[0] == "diff" { "two folders" } else { "one folder" };
                    refuse!("{}: expected {want}", text[0]);
                }
            };
            anyhow::ensure!(
                sound,
                "{}",
                if text[0] == "diff" { "the checkpoints differ" } else { "not sound" }
            );
            Ok(())
        }
        ["inspect", ..] => {
            Err(Usage("inspect: expected one folder".to_owned())).hint("ms-convert inspect DIR")
        }
        [] => {
            let request = match &script {
                Some(script) => request::from_script(script, &o)?,
                None => request::from_upstream(&o)?,
            };
            run::run(&request, &o, &args)
        }
        [from, to] => run::run(&request::from_words(from, to, &o)?, &o, &args),
        _ => Err(Usage(format!("expected FROM and TO, got '{}'", text.join(" "))))
            .hint("ms-convert hf mcore --load DIR --save DIR, or ms-convert inspect DIR"),
    }
}

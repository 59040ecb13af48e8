//! From `anyhow::Result` to an exit code: 0 done, 1 failed, 2 usage, 130 interrupted.

use std::fmt;
use std::process::ExitCode;

use crate::Interrupt;

/// The program was called in a way it does not understand: exit code 2.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Usage(pub String);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// Returns a [`Usage`] error from a function, with a message formatted like [`format!`].
#[macro_export]
macro_rules! refuse {
    ($($text:tt)*) => {
        return Err($crate::Usage(format_args!($($text)*).to_string()).into())
    };
}

/// Adds advice to an error. It is printed on a line of its own, after `hint: `.
pub trait ResultHint<T> {
    /// The same result, with advice in case of an error.
    ///
    /// # Errors
    /// The error of `self`.
    fn hint(self, advice: impl fmt::Display) -> anyhow::Result<T>;
}

impl<T, E: Into<anyhow::Error>> ResultHint<T> for Result<T, E> {
    fn hint(self, advice: impl fmt::Display) -> anyhow::Result<T> {
        self.map_err(|e| e.into().context(format!("hint: {advice}")))
    }
}

/// Runs a program's body and reports its error on stderr as `tool: message: cause`, then `hint:` lines; with `--json` or
/// `--log-format json` as an object.
///
/// A closed pipe downstream is a quiet success. INT, TERM and HUP end the process with 128 plus the signal's number. The body
/// gets an [`Interrupt`], to which it names its outputs.
pub fn run(tool: &str, body: impl FnOnce(&Interrupt) -> anyhow::Result<()>) -> ExitCode {
    let interrupt = Interrupt::listen();
    let done = body(&interrupt);
    // A signal that is just removing files causes errors; its exit code counts.
    interrupt.forget();
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let asked = |words: &[&str]| {
                let argv: Vec<_> = std::env::args_os().collect();
                argv.windows(words.len()).any(|w| w == words)
                    || argv.contains(&std::ffi::OsString::from(words.join("=")))
            };
            let json = asked(&["--log-format", "json"]) || asked(&["--json"]);
            report(tool, &error, json, &mut std::io::stderr().lock())
        }
    }
}

/// Writes the lines of an error to `out`, or with `json` one object as log messages are (`level`, `message`, `hints`), and
/// returns the exit code it stands for.
pub fn report(tool: &str, error: &anyhow::Error, json: bool, out: &mut dyn std::io::Write) -> ExitCode {
    let closed_pipe = error.chain().any(|cause| {
        cause.downcast_ref::<std::io::Error>().is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
    });
    if closed_pipe {
        return ExitCode::SUCCESS;
    }
    // Nothing can be done about a closed stderr.
    let text = format!("{tool}: {}\n", said(error));
    let text = if json { as_json(&text) } else { text };
    let _ = out.write_all(text.as_bytes());
    if error.downcast_ref::<Usage>().is_some() { ExitCode::from(2) } else { ExitCode::FAILURE }
}

/// The lines of an error as one object on a line.
fn as_json(text: &str) -> String {
    let (hints, body): (Vec<&str>, Vec<&str>) = text.lines().partition(|line| line.starts_with("hint: "));
    let hints: Vec<&str> = hints.iter().map(|line| line.trim_start_matches("hint: ")).collect();
    format!("{}\n", serde_json::json!({"level": "ERROR", "message": body.join("\n"), "hints": hints}))
}

/// An error with its causes on one line, none of them right after a message that quotes it, and the hints of all on lines below.
pub fn said(error: &anyhow::Error) -> String {
    let mut messages: Vec<String> = Vec::new();
    let mut hints = String::new();
    for cause in error.chain() {
        let text = cause.to_string();
        let mut body = Vec::new();
        for line in text.lines() {
            if !line.starts_with("hint: ") {
                body.push(line);
            } else if !hints.lines().any(|hint| hint == line) {
                hints.push('\n');
                hints.push_str(line);
            }
        }
        let body = body.join("\n").trim_end().to_owned();
        // A wrapper that already quotes its cause must not say it twice.
        if !body.is_empty() && !messages.last().is_some_and(|m| m.ends_with(&body)) {
            messages.push(body);
        }
    }
    // Files are named where they are written; what has no name is standard output.
    if error.chain().count() == 1 && error.downcast_ref::<std::io::Error>().is_some() {
        messages.insert(0, "standard output".to_owned());
    }
    messages.join(": ") + &hints
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context as _;

    fn code(error: &anyhow::Error) -> (String, String) {
        let mut out = Vec::new();
        let code = report("ms-pack", error, false, &mut out);
        (format!("{code:?}"), String::from_utf8(out).unwrap())
    }

    #[test]
    fn an_error_is_one_line_with_its_causes_and_its_hints_below() {
        let io = std::io::Error::new(std::io::ErrorKind::NotFound, "no such file");
        let error = Err::<(), _>(io).hint("give a folder").context("a.json").unwrap_err();
        let (code, text) = code(&error);
        assert_eq!(text, "ms-pack: a.json: no such file\nhint: give a folder\n");
        assert_eq!(code, format!("{:?}", ExitCode::FAILURE));
    }

    #[test]
    fn a_usage_error_exits_2_even_under_context() {
        let error =
            anyhow::Error::from(Usage("unknown flag --x\nhint: did you mean --y?".into())).context("line 1");
        let (code, text) = code(&error);
        assert_eq!(text, "ms-pack: line 1: unknown flag --x\nhint: did you mean --y?\n");
        assert_eq!(code, format!("{:?}", ExitCode::from(2)));
    }

    #[test]
    fn an_error_among_json_messages_is_one_of_them() {
        let error = anyhow::Error::from(Usage("no \"input\"\nhint: pass --input".into()));
        let mut out = Vec::new();
        report("ms-pack", &error, true, &mut out);
        let line: serde_json::Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(line["message"], "ms-pack: no \"input\"");
        assert_eq!((&line["level"], &line["hints"]), (&"ERROR".into(), &serde_json::json!(["pass --input"])));
    }

    #[test]
    fn a_closed_pipe_is_a_quiet_success() {
        let io = std::io::Error::from(std::io::ErrorKind::BrokenPipe);
        let (code, text) = code(&anyhow::Error::from(io).context("writing"));
        assert_eq!((code, text), (format!("{:?}", ExitCode::SUCCESS), String::new()));
    }

    #[test]
    fn a_message_that_quotes_its_cause_is_not_repeated() {
        let error = anyhow::anyhow!("bad length").context("reading x: bad length");
        assert_eq!(code(&error).1, "ms-pack: reading x: bad length\n");
        let error = anyhow::anyhow!("bad\nhint: a").context("x: bad\nhint: a\nhint: b");
        assert_eq!(said(&error), "x: bad\nhint: a\nhint: b");
    }
}

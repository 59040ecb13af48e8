//! Progress bars: on stderr, only on a terminal.

use std::io::IsTerminal as _;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::env_vars;

/// Makes progress bars, or bars that draw nothing.
#[derive(Debug, Clone, Copy)]
pub struct Progress {
    shown: bool,
}

impl Progress {
    /// Bars are drawn unless `quiet`, `MS_NO_PROGRESS` is set, or stderr is not a terminal or a dumb one.
    pub fn new(quiet: bool) -> Self {
        let shown =
            !quiet && std::env::var_os(env_vars::MS_NO_PROGRESS).is_none() && std::io::stderr().is_terminal();
        let shown = shown && !env_vars::dumb_terminal();
        Self { shown }
    }

    /// A bar over `len` items.
    pub fn bar(&self, len: u64, what: &str) -> ProgressBar {
        self.make(len, what, "{msg:20} {wide_bar} {human_pos}/{human_len} {per_sec} {eta}")
    }

    /// A bar over `len` bytes.
    pub fn bytes(&self, len: u64, what: &str) -> ProgressBar {
        self.make(len, what, "{msg:20} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}")
    }

    /// A spinner for work of unknown length.
    pub fn spinner(&self, what: &str) -> ProgressBar {
        let bar = self.make(0, what, "{spinner} {msg} {elapsed}");
        if self.shown {
            bar.enable_steady_tick(Duration::from_millis(100));
        }
        bar
    }

    fn make(&self, len: u64, what: &str, template: &str) -> ProgressBar {
        if !self.shown {
            return ProgressBar::hidden();
        }
        let bar = ProgressBar::with_draw_target(Some(len), ProgressDrawTarget::stderr_with_hz(10));
        bar.set_style(ProgressStyle::with_template(template).expect("the templates above are well formed"));
        bar.set_message(what.to_owned());
        bar
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quiet_bar_draws_nothing_and_still_counts() {
        let bar = Progress::new(true).bytes(10, "copying");
        bar.inc(4);
        assert!(bar.is_hidden());
        assert_eq!(bar.position(), 4);
    }
}

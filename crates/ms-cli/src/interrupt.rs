//! INT, TERM and HUP: unfinished files are removed before the process ends.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::iterator::Signals;

use crate::leftovers;

/// Called at the first signal with its number; `true`: the program ends by itself, and the next signal ends it at once.
type First = Box<dyn FnOnce(i32) -> bool + Send>;

#[derive(Default)]
struct State {
    outputs: Vec<PathBuf>,
    files: BTreeSet<PathBuf>,
    folders: BTreeSet<PathBuf>,
    first: Option<First>,
}

/// What happens when the process is asked to end, by Ctrl-C (INT), TERM or HUP.
///
/// By default it ends at once, with 128 plus the signal's number as exit code. Outputs have their final names only when they
/// are complete; what this process has written of others under temporary names is removed first.
#[derive(Clone, Default)]
pub struct Interrupt {
    state: Arc<Mutex<State>>,
}

impl fmt::Debug for Interrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Interrupt").field("outputs", &self.lock().outputs).finish_non_exhaustive()
    }
}

impl Interrupt {
    /// Listens from now on, in a thread. A signal that the process was started to ignore, as by `nohup`, stays ignored. XFSZ is
    /// only listened to: what writes beyond `ulimit -f` then gets an error, which it reports, instead of ending the process.
    pub(crate) fn listen() -> Self {
        let this = Self::default();
        let ignored = ignored_signals();
        let wanted = [SIGINT, SIGTERM, SIGHUP, SIGXFSZ].into_iter().filter(|s| ignored & (1 << (s - 1)) == 0);
        // Without a listener a signal still ends the process; only the files stay.
        if let Ok(mut signals) = Signals::new(wanted) {
            let state = this.clone();
            let listener = std::thread::Builder::new().name("signals".into());
            // Each in a thread: what the first one has to say may find a stderr that nobody reads, and the second one counts.
            let handle = move |signal| {
                if signal == SIGXFSZ {
                    return;
                }
                let own = state.clone();
                if std::thread::Builder::new().spawn(move || own.handle(signal)).is_err() {
                    state.handle(signal);
                }
            };
            let _ = listener.spawn(move || signals.forever().for_each(handle));
        }
        this
    }

    /// Names an output that this process writes, as path or prefix of paths: temporary files next to it that belong to this
    /// process are removed at a signal, those of dead processes now.
    pub fn output(&self, output: &Path) {
        leftovers::remove_of_dead(output);
        self.lock().outputs.push(output.to_owned());
    }

    /// Names a file to be removed at a signal. If it is to get its last name, this comes first.
    pub fn file(&self, file: &Path) {
        self.lock().files.insert(file.to_owned());
    }

    /// Takes back [`Interrupt::file`] of what belongs together and is complete: a signal finds all of it or nothing.
    pub fn keep(&self, files: impl IntoIterator<Item = PathBuf>) {
        let mut state = self.lock();
        for file in files {
            state.files.remove(&file);
        }
    }

    /// Names a folder that was made for an output: if it is empty at a signal, it goes.
    pub(crate) fn folder(&self, made: &Path) {
        self.lock().folders.insert(made.to_owned());
    }

    /// Calls `act` with the number of the first signal. If it returns `true`, the program will end by itself soon, and the
    /// next signal ends it at once.
    pub fn first(&self, act: impl FnOnce(i32) -> bool + Send + 'static) {
        self.lock().first = Some(Box::new(act));
    }

    /// Returns only if no signal is ending the process. From then on one ends it at once, and removes nothing: what was named is
    /// complete, gone, or another process's by now.
    pub(crate) fn forget(&self) {
        *self.lock() = State::default();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn handle(&self, signal: i32) {
        let first = self.lock().first.take();
        if first.is_some_and(|act| act(signal)) {
            return;
        }
        let state = self.lock();
        // Twice: what writes them goes on meanwhile, and may be about to name what it has written. It names no more than is known
        // here, for that takes the lock; what it names last comes last.
        for _ in 0..2 {
            for output in &state.outputs {
                leftovers::remove_own(output);
            }
            for file in &state.files {
                let _ = std::fs::remove_file(file);
            }
        }
        // Those inside a folder come after it.
        for folder in state.folders.iter().rev() {
            let _ = std::fs::remove_dir(folder);
        }
        std::process::exit(128 + signal);
    }
}

/// Signals that the process ignores, as a mask of bits from 0; none where the system does not say.
fn ignored_signals() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_signal_comes_between_files_that_are_kept() {
        let interrupt = Interrupt::default();
        let files = ["a", "b"].map(PathBuf::from);
        files.iter().for_each(|file| interrupt.file(file));
        let during = |_: &PathBuf| assert!(interrupt.state.try_lock().is_err(), "a signal is heard");
        interrupt.keep(files.into_iter().inspect(during));
        assert!(interrupt.lock().files.is_empty());
    }
}

//! Steps of collectives that others need while this rank still computes.

use crate::{Error, Result};
use ms_core::Tensor;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;

/// What is to be done; it is told whether the rank itself does it, which then has nothing else to do.
type Work = Box<dyn FnOnce(bool) -> Result<Tensor> + Send>;

enum State {
    Open(Work),
    Taken,
    Done(thread::Result<Result<Tensor>>),
}

/// Work that is done by the thread or by the rank that waits for it, whoever comes first.
pub(crate) struct Step {
    state: Mutex<State>,
    done: Condvar,
}

impl Step {
    /// Does the work unless somebody else has begun it.
    fn run(&self, by_rank: bool) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if !matches!(*state, State::Open(_)) {
            return;
        }
        if let State::Open(work) = std::mem::replace(&mut *state, State::Taken) {
            drop(state);
            let result = catch_unwind(AssertUnwindSafe(|| work(by_rank)));
            *self.state.lock().unwrap_or_else(PoisonError::into_inner) = State::Done(result);
            self.done.notify_all();
        }
    }

    /// What the work gives. Called once.
    pub(crate) fn wait(&self) -> Result<Tensor> {
        self.run(true);
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match std::mem::replace(&mut *state, State::Taken) {
                State::Done(result) => return result.unwrap_or_else(|panic| resume_unwind(panic)),
                _ => state = self.done.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

/// Whether this rank may still send: what it says last is that it has ended, and nobody takes what comes behind.
#[derive(Default)]
pub(crate) struct Gate(Mutex<bool>);

impl Gate {
    /// Nothing passes any more.
    pub(crate) fn close(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
    }

    /// Does `work` unless the gate is closed, which waits for it.
    ///
    /// # Errors
    /// If it is closed.
    pub(crate) fn pass(&self, rank: usize, work: impl FnOnce()) -> Result<()> {
        let closed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if *closed {
            return Err(Error::PeerFailed { rank, reason: "it has ended".to_owned() });
        }
        work();
        Ok(())
    }
}

/// The thread that does steps in the order in which they were begun. It starts with the first step, and ends after the last
/// one if nobody can begin another.
#[derive(Default)]
pub(crate) struct Progress {
    steps: Mutex<Option<Sender<Arc<Step>>>>,
    /// What steps send passes it.
    pub(crate) gate: Arc<Gate>,
}

impl Progress {
    /// Begins `work`.
    pub(crate) fn begin(&self, work: impl FnOnce(bool) -> Result<Tensor> + Send + 'static) -> Arc<Step> {
        let step = Arc::new(Step { state: Mutex::new(State::Open(Box::new(work))), done: Condvar::new() });
        let mut steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        let begun = steps.get_or_insert_with(|| {
            let (steps, begun) = channel::<Arc<Step>>();
            // Without the thread, whoever waits does the work.
            let _ = thread::Builder::new()
                .name("progress".to_owned())
                .spawn(move || begun.into_iter().for_each(|step| step.run(false)));
            steps
        });
        let _ = begun.send(Arc::clone(&step));
        step
    }
}

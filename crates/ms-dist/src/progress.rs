//! Steps of collectives that others need while this rank still computes.

use crate::{Error, Result};
use ms_core::Tensor;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;

/// Who does a step.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum By {
    /// The rank, which has nothing else to do.
    Rank,
    /// The thread.
    Thread,
}

/// What is to be done.
type Work = Box<dyn FnOnce(By) -> Result<Tensor> + Send>;

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
    fn run(&self, by: By) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if !matches!(*state, State::Open(_)) {
            return;
        }
        if let State::Open(work) = std::mem::replace(&mut *state, State::Taken) {
            drop(state);
            let result = catch_unwind(AssertUnwindSafe(|| work(by)));
            *self.state.lock().unwrap_or_else(PoisonError::into_inner) = State::Done(result);
            self.done.notify_all();
        }
    }

    /// What the work gives. Called once.
    pub(crate) fn wait(&self) -> Result<Tensor> {
        self.run(By::Rank);
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
    pub(crate) fn begin(&self, work: impl FnOnce(By) -> Result<Tensor> + Send + 'static) -> Arc<Step> {
        let state = Mutex::new(State::Open(Box::new(work)));
        let step = Arc::new(Step { state, done: Condvar::new() });
        let mut steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        let begun = steps.get_or_insert_with(|| {
            let (steps, begun) = channel::<Arc<Step>>();
            // Without the thread, whoever waits does the work.
            let run = |step: Arc<Step>| step.run(By::Thread);
            let _ = thread::Builder::new()
                .name("progress".to_owned())
                .spawn(move || begun.into_iter().for_each(run));
            steps
        });
        let _ = begun.send(Arc::clone(&step));
        step
    }
}

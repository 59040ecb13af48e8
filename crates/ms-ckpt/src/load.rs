//! Loading the weights of a checkpoint into the memory of a model.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use ms_core::{ParamId, ParamStore, Region};
use ms_spec::ParamSpec;

use crate::{Checkpoint, Error, Result};

/// Threads that read weights at the same time, at most: a few use up what memory gives.
const READERS: usize = 4;

impl Checkpoint {
    /// Reads weights into `store`, in its element type, several at a time: from files in the system's cache this is a plain
    /// copy. Each weight is given with its specification and the region that the store holds. Optimizer state is read by
    /// [`Checkpoint::read_named`], one tensor after another.
    ///
    /// # Errors
    /// If the checkpoint lacks a weight or has it in another shape: the error names the first such weight in `weights`. If a
    /// graph still uses the store's weights.
    pub fn load_into(&self, store: &mut ParamStore, weights: &[(ParamId, &ParamSpec, Region)]) -> Result<()> {
        let dtype = store.dtype();
        let ids: Vec<ParamId> = weights.iter().map(|(id, ..)| *id).collect();
        let parts = weights.iter().zip(store.bytes_of_mut(&ids)?).enumerate();
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(READERS);
        let (next, failed) = (Mutex::new(parts), AtomicBool::new(false));
        // Weights are taken in order, so the first one that fails is tried by somebody.
        let read = || -> Option<(usize, Error)> {
            while !failed.load(Ordering::Relaxed) {
                let taken = next.lock().unwrap_or_else(PoisonError::into_inner).next();
                let (i, ((_, spec, region), bytes)) = taken?;
                if let Err(error) = self.read(spec, region, dtype, bytes) {
                    failed.store(true, Ordering::Relaxed);
                    return Some((i, error));
                }
            }
            None
        };
        let failed = std::thread::scope(|scope| {
            // Where there can be no more threads, one reads alone.
            let other = |_| std::thread::Builder::new().spawn_scoped(scope, read).ok();
            let others: Vec<_> = (1..threads).filter_map(other).collect();
            let own = read();
            let others = others.into_iter().filter_map(|t| t.join().expect("a reader does not panic"));
            own.into_iter().chain(others).min_by_key(|failed| failed.0)
        });
        failed.map_or(Ok(()), |(_, error)| Err(error))
    }
}

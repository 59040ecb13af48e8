//! Loading tensors of a checkpoint into the memory of their users.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use ms_core::{DType, ParamId, ParamStore, Region};
use ms_spec::ParamSpec;

use crate::{Checkpoint, Error, Result};

/// Maximum number of concurrent readers: a few saturate memory bandwidth.
const READERS: usize = 4;

/// A part of a tensor to read and its destination: the arguments of [`Checkpoint::read_named`].
pub struct Wanted<'a> {
    /// Name of the global tensor.
    pub name: String,
    /// The rank's region of it.
    pub region: &'a Region,
    /// Elements of the region; `None`: all.
    pub flat: Option<Range<usize>>,
    /// Type in which they are written to `out`.
    pub dtype: DType,
    /// Destination, exactly as long as their bytes.
    pub out: &'a mut [u8],
}

impl Checkpoint {
    /// Reads all of them, several at a time. If the system has the files cached, this is a plain copy.
    ///
    /// # Errors
    /// If the checkpoint lacks a tensor or has it in another shape; the error names the first such tensor in `all`.
    ///
    /// # Panics
    /// As [`Checkpoint::read_named`].
    pub fn load(&self, all: Vec<Wanted<'_>>) -> Result<()> {
        let most = all.len().clamp(1, READERS);
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(most);
        let (next, failed) = (Mutex::new(all.into_iter().enumerate()), AtomicBool::new(false));
        // Parts are taken in order, so the first one that fails is always tried.
        let read = || -> Option<(usize, Error)> {
            while !failed.load(Ordering::Relaxed) {
                let taken = next.lock().unwrap_or_else(PoisonError::into_inner).next();
                let (i, Wanted { name, region, flat, dtype, out }) = taken?;
                if let Err(error) = self.read_named(&name, region, flat, dtype, out) {
                    failed.store(true, Ordering::Relaxed);
                    return Some((i, error));
                }
            }
            None
        };
        let failed = std::thread::scope(|scope| {
            // If no more threads can be started, this one reads alone.
            let other = |_| std::thread::Builder::new().spawn_scoped(scope, read).ok();
            let others: Vec<_> = (1..threads).filter_map(other).collect();
            let own = read();
            let others = others.into_iter().filter_map(|t| t.join().expect("a reader does not panic"));
            own.into_iter().chain(others).min_by_key(|failed| failed.0)
        });
        failed.map_or(Ok(()), |(_, error)| Err(error))
    }

    /// Reads weights into `store`, in its element type, with [`Checkpoint::load`]. Each weight comes with its specification and
    /// the region that the store holds.
    ///
    /// # Errors
    /// As [`Checkpoint::load`]; if a graph still uses the store's weights.
    pub fn load_into(&self, store: &mut ParamStore, weights: &[(ParamId, &ParamSpec, Region)]) -> Result<()> {
        let dtype = store.dtype();
        let ids: Vec<ParamId> = weights.iter().map(|(id, ..)| *id).collect();
        let mut places = store.several_mut(&ids)?;
        let wanted = weights.iter().zip(&mut places).map(|((_, spec, region), place)| Wanted {
            name: spec.name.clone(),
            region,
            flat: None,
            dtype,
            out: place.bytes_mut(),
        });
        self.load(wanted.collect())
    }
}

//! What operations save for backward: handles to values that are present, swapped to the host, or recomputed.
//!
//! Every [`crate::Var`] has one handle, shared by all operations that save its value. What happens to the value is therefore
//! decided once, after the operations have run, by the code that composed them. Recomputation and swapping act on handles; no
//! operation knows about them.

use crate::host::{Host, HostTensor};
use crate::{Device, Result, Tensor};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Recomputes a value.
pub(crate) type Recipe = Box<dyn FnOnce(&Device) -> Result<Tensor> + Send>;

enum Place {
    Here(Tensor),
    Host(HostTensor),
    /// Dropped; the recipe recomputes it.
    Gone,
}

struct State {
    place: Place,
    recipe: Option<Recipe>,
    /// How many operations save it.
    kept: usize,
}

/// A handle to a value that a backward pass needs; cloning shares it.
#[derive(Clone)]
pub struct Saved(Arc<Mutex<State>>);

impl std::fmt::Debug for Saved {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.lock();
        match &state.place {
            Place::Here(t) => write!(f, "Saved({t:?})"),
            Place::Host(stored) => write!(f, "Saved({stored:?})"),
            Place::Gone => f.write_str("Saved(to be rebuilt)"),
        }
    }
}

impl Saved {
    pub(crate) fn new(value: Tensor) -> Self {
        Self(Arc::new(Mutex::new(State { place: Place::Here(value), recipe: None, kept: 0 })))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is consistent between statements, so a panic elsewhere does not corrupt it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The handle, for an operation that saves the value.
    pub(crate) fn keep(&self) -> Self {
        self.lock().kept += 1;
        self.clone()
    }

    /// How many operations save it.
    pub(crate) fn kept(&self) -> usize {
        self.lock().kept
    }

    /// Whether both are handles to one value.
    pub(crate) fn same_as(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(crate) fn set_recipe(&self, recipe: Recipe) {
        self.lock().recipe = Some(recipe);
    }

    /// Drops a value that can be recomputed. Other references to it remain valid.
    pub(crate) fn forget(&self) {
        let mut state = self.lock();
        if state.recipe.is_some() {
            state.place = Place::Gone;
        }
    }

    /// Drops the recipe of a value that is present, and with it the recipe's inputs.
    pub(crate) fn settle(&self) {
        let mut state = self.lock();
        if matches!(state.place, Place::Here(_)) {
            state.recipe = None;
        }
    }

    /// Swaps a value that an operation saves, and that is present, to the host.
    ///
    /// # Errors
    /// If the host cannot store it.
    pub fn send(&self, host: &Host) -> Result<()> {
        let mut state = self.lock();
        if let (1.., Place::Here(value)) = (state.kept, &state.place) {
            state.place = Place::Host(host.send(value)?);
        }
        Ok(())
    }

    /// The value. It stays present from then on, until the last handle is dropped.
    ///
    /// # Errors
    /// If it must be fetched or recomputed and that fails.
    ///
    /// # Panics
    /// If recomputing it has failed before: the pass it belongs to is then over.
    pub fn get(&self, device: &Device) -> Result<Tensor> {
        let recipe = {
            let mut state = self.lock();
            match &state.place {
                Place::Here(value) => return Ok(value.clone()),
                Place::Host(stored) => {
                    let value = stored.fetch(device.arena())?;
                    state.place = Place::Here(value.clone());
                    return Ok(value);
                }
                Place::Gone => state.recipe.take(),
            }
        };
        // Without the lock: a recipe asks for the values it starts from.
        let value = recipe.expect("what is gone has a recipe")(device)?;
        self.lock().place = Place::Here(value.clone());
        Ok(value)
    }
}

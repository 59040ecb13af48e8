//! The reference device: every operation of the backend traits in f64, written as its definition reads.
//!
//! It is slow and obvious on purpose. The fast backend is compared with it, operation by operation; topologies are compared
//! on it to ten digits; gradients of whole models are compared with finite differences of its losses. One file holds one
//! family of operations. Where the gradient of an operation is not as simple as the operation itself, it is not written down
//! at all: the definition is evaluated on numbers that record how they were computed (`tape`), and the chain rule does the
//! rest.

mod act;
mod attention;
mod columns;
mod embedding;
mod experts;
mod hyper_connections;
mod indexer;
mod loss;
mod matmul;
mod norm;
mod operand;
mod optimizer;
mod picked;
mod pooling;
mod recurrent;
mod rotary;
mod routing;
mod tape;

use ms_core::{Arena, Backend, DType, Device, Result};

/// A device that computes in f64, on the thread that calls it.
#[derive(Default)]
pub struct Reference {
    arena: Arena,
    /// Called with the multiply-adds of every product of a linear layer or of experts, and of attention to packed rows, when
    /// they are computed, and with the elements that an optimizer updates.
    watch: Option<Watch>,
}

/// Called with work, in multiply-adds.
pub type Watch = Box<dyn Fn(usize) + Send + Sync>;

/// A reference device.
pub fn device() -> Device {
    Device::new(Reference::default())
}

/// A reference device that reports work to `watch`: the multiply-adds of every product of linear layers and experts and of
/// attention to packed rows, forward and backward, and the elements that an optimizer updates. It serves as a clock that is
/// the same on every machine.
pub fn watched(watch: Watch) -> Device {
    Device::new(Reference { watch: Some(watch), ..Reference::default() })
}

impl Reference {
    fn worked(&self, multiply_adds: usize) {
        if let Some(watch) = &self.watch {
            watch(multiply_adds);
        }
    }
}

impl Backend for Reference {
    fn name(&self) -> String {
        "reference (f64)".to_owned()
    }

    fn arithmetic(&self) -> String {
        "reference".to_owned()
    }

    fn arena(&self) -> &Arena {
        &self.arena
    }

    fn table_dtype(&self) -> DType {
        DType::F64
    }

    fn synchronize(&self) -> Result<()> {
        Ok(()) // every operation has finished when it returns
    }
}

//! Checkpoints: containers, layouts, and conversion between them.
//!
//! - [`open`] opens a checkpoint of any layout (Hugging Face folder, Megatron-core, this toolchain's own sharded form) as a
//!   [`Checkpoint`]: the global tensors of one model under their canonical names, any part of which can be read for any
//!   topology. Opening maps files and reads headers only.
//! - [`Plan`] says, before any byte is copied, which file of the output holds which elements; [`Plan::run`] copies.
//! - [`sharded`] writes and resumes training checkpoints; [`write_hf`] writes weights that a program holds.
//! - Containers: [`safetensors`], [`torch`] (`.pt`). Both are treated as untrusted: nothing is executed, every length is
//!   checked.
//!
//! ```no_run
//! use std::path::Path;
//! let checkpoint = ms_ckpt::open(Path::new("model"))?;
//! let spec = &ms_spec::params(checkpoint.config())[0];
//! let whole = ms_core::Region::whole(&spec.shape);
//! let mut weights = vec![0; 4 * spec.shape.numel()];
//! checkpoint.read(spec, &whole, ms_core::DType::F32, &mut weights)?;
//! # Ok::<(), ms_ckpt::Error>(())
//! ```

mod adapter;
mod adapter_blocks;
mod cast;
mod checkpoint;
mod checksums;
mod compare;
mod dcp;
mod error;
mod finite;
mod fp8;
mod iterations;
pub mod layout;
mod lens;
mod load;
mod merge;
mod mxfp4;
mod name;
mod nf4;
mod open;
mod optim;
mod plan;
mod runs;
pub mod safetensors;
pub mod sharded;
mod stored;
mod strided;
pub mod torch;
mod transpose;

pub use adapter::{Arithmetic, Merge};
pub use checkpoint::{Checkpoint, Form, Listed};
pub use checksums::NAME as CHECKSUMS;
pub use compare::{Compared, Relation, Verified};
pub use error::{Error, Result};
pub use finite::NonFiniteReport;
pub use iterations::{TRACKER, check_folder, iteration_name, latest_iteration, present};
pub use load::Wanted;
pub use ms_files::Mapped;
pub use name::{Matrix, Name, State, TensorKind};
pub use open::{open, open_iteration, open_with};
pub use plan::{
    AdapterTensors, ArgsForm, DTypeOf, FilePlan, HF_LAYOUT, HfLayout, KeyMismatch, Plan, Run, RunOptions,
    Sharding, Target, write_hf,
};

impl Checkpoint {
    /// Rounds every element to `dtype` before it is converted to the requested type.
    ///
    /// Upstream's first converter loads weights in the type that `config.json` names, whatever the files hold.
    pub fn rounded_through(mut self, dtype: Option<ms_core::DType>) -> Self {
        self.via = dtype;
        self
    }

    /// The model with only some of its layers, in the order given, and the first `mtp` prediction layers.
    ///
    /// # Errors
    /// A layer that the model does not have.
    pub fn with_layers(mut self, layers: &[usize], mtp: usize) -> Result<Self> {
        let config = self.config.clone();
        if let Some(&l) = layers.iter().find(|&&l| l >= config.layers) {
            return Err(Error::Cut(format!("layer {l}: the model has {}", config.layers)));
        }
        let pattern = if config.pattern.is_empty() {
            Vec::new()
        } else {
            layers.iter().map(|&l| config.layer(l)).collect()
        };
        let changed =
            ms_spec::ModelConfig { layers: layers.len(), pattern, mtp: mtp.min(config.mtp), ..config };
        let mut globals = std::collections::BTreeMap::new();
        for spec in ms_spec::params(&changed) {
            let from = match spec.slot.place {
                ms_spec::Place::Layer(l) => {
                    let place = ms_spec::Place::Layer(layers[l]);
                    ms_spec::Slot { place, ..spec.slot }.name()
                }
                _ => spec.name.clone(),
            };
            let global = self.globals.remove(from.as_str());
            let global =
                global.ok_or_else(|| Error::Missing { path: self.root.clone(), name: from.clone() })?;
            globals.insert(Name::weight(&spec.slot), global);
        }
        self.globals = globals;
        self.config = changed.validate().map_err(Error::spec(&self.root))?;
        Ok(self)
    }
}

//! The device that a program computes on, and the model loaded there.

use crate::ModelFlags;
use anyhow::{Result, bail};
use ms_ckpt::layout::mcore::Hints;
use ms_cli::{Usage, refuse};
use ms_core::{DType, Device};
use ms_cpu::{Choice, CpuBackend};
use ms_generate::{LoadedModel, MemoryEstimate, MemoryRequest, Quantization};
use std::path::{Path, PathBuf};

options! {
    /// Where and how values are computed.
    pub struct Compute in "Parallelism" {
        arithmetic: Option<String> = "--arithmetic", "summation order of bf16 matrix products; to repeat the bits of a machine whose fastest order is another (default: the fastest here, kept in the user's cache folder; with MS_ISA that of the instruction set)", group = "Precision", own = own_of("arithmetic", "null", "pair,tile32,bfdot");
        device: String = "--device", "device to compute on", own = own_of("device", "\"cpu\"", "cpu,npu");
        threads: Option<usize> = "--threads", "number of threads to compute with", range = "[1,1024]", own = own("threads");
    }
}

options! {
    /// The checkpoint that a program reads.
    pub struct Source in "Checkpoint" {
        load: Option<PathBuf> = "--load", "folder of the checkpoint";
        pretrained: Option<PathBuf> = "--pretrained-checkpoint", "folder to load the weights from if --load has no checkpoint", group = "Task";
        step: Option<u64> = "--ckpt-step", "iteration to load (default: the latest)", range = "[1,1000000000000]";
        described_by_checkpoint: bool = "--use-checkpoint-args", "take the model architecture from the checkpoint";
    }
}

options! {
    /// What the checkpoint's files may not say of themselves.
    struct CheckpointHints in "Parallelism" {
        extend_ep: bool = "--moe-tp-extend-ep", "whole experts are distributed over tensor-parallel ranks too, in files of a checkpoint without arguments that say it";
    }
}

options! {
    /// How a loaded model's weights are kept.
    struct Weights in "Parallelism" {
        dtype: Option<String> = "--dtype", "element type to compute in; fp64 uses the slow reference device", group = "Precision", own = own_of("dtype", "null", "fp64,fp32,bf16");
        quantization: Option<String> = "--quantization", "int8: keep linear layers (attention, Mamba, feed-forward, output layer) in 8 bits with a scale per row, and quantise their inputs to 8 bits with a scale per 64 elements (default: as --dtype)", own = own_of("quantization", "null", "int8");
    }
}

impl Weights {
    /// The element type of `--dtype`, or `default`.
    fn dtype(&self, default: DType) -> DType {
        match self.dtype.as_deref() {
            Some("fp64") => DType::F64,
            Some("fp32") => DType::F32,
            Some(_) => DType::Bf16,
            None => default,
        }
    }

    /// What `--quantization` asks for beside values of `dtype`.
    ///
    /// # Errors
    /// For a kind that there is not, or beside float64.
    fn quantization(&self, dtype: DType) -> Result<Option<Quantization>> {
        let asked = self.quantization.as_deref().map(str::parse).transpose().map_err(Usage)?;
        if asked.is_some() && dtype == DType::F64 {
            refuse!("--quantization int8: expected --dtype bf16 or fp32, found fp64");
        }
        Ok(asked)
    }
}

impl Compute {
    /// The instruction set, and the order of bf16 sums of `--arithmetic` or, without it, the faster one here.
    ///
    /// # Errors
    /// If the flag or the variable `MS_ISA` names what there is not.
    pub fn arithmetic(&self) -> Result<Choice> {
        let asked = self.arithmetic.as_deref().map(str::parse).transpose()?;
        Ok(Choice::of_process(asked, ms_cli::processor_choice().as_deref())?)
    }

    /// `--threads`, if it was given.
    pub fn threads(&self) -> Option<usize> {
        self.threads
    }

    /// Refuses a device that this version has no backend for.
    ///
    /// # Errors
    /// For `--device npu`.
    pub fn check_device(&self) -> Result<()> {
        if self.device == "npu" {
            refuse!("--device npu: no NPU backend is part of this version; pass --device cpu");
        }
        Ok(())
    }

    /// The device of the flags for values of `dtype`; for f64, the reference.
    ///
    /// # Errors
    /// If a flag names what this version or this machine does not have.
    pub fn device(&self, dtype: DType) -> Result<Device> {
        self.check_device()?;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(device_for(dtype, self.threads().unwrap_or(cores).max(1), self.arithmetic()?)?)
    }
}

/// The device that computes in `dtype`: the reference in f64, the CPU's kernels on `threads` threads, as `choice` says, in all
/// others.
pub(crate) fn device_for(dtype: DType, threads: usize, choice: Choice) -> ms_core::Result<Device> {
    match dtype {
        DType::F64 => Ok(ms_reference::device()),
        _ => Ok(Device::new(CpuBackend::with(threads, choice)?)),
    }
}

/// What `--moe-tp-extend-ep` says of a checkpoint whose files have no arguments.
pub(crate) fn hints(extend_ep: bool) -> Hints {
    Hints { extend_ep: extend_ep.then_some(true), ..Hints::default() }
}

impl Source {
    /// The folder that is read, if there is one: that of `--load`, or that of `--pretrained-checkpoint` where the first has no
    /// checkpoint.
    ///
    /// # Source
    /// Megatron-LM `core_v0.12.1`, `megatron/training/checkpointing.py`, `load_checkpoint`.
    pub fn folder(&self) -> Option<&Path> {
        self.pretrained.as_deref().filter(|_| self.is_pretrained()).or(self.load.as_deref())
    }

    /// Checks that there is something where weights are to come from.
    ///
    /// # Errors
    /// If `--pretrained-checkpoint` is read and is no folder of a checkpoint.
    pub fn check_pretrained(&self) -> Result<()> {
        if let Some(folder) = self.pretrained.as_deref().filter(|_| self.is_pretrained())
            && !ms_ckpt::present(folder)
        {
            bail!(
                "--pretrained-checkpoint {}: expected a folder with a checkpoint, found none",
                folder.display()
            );
        }
        Ok(())
    }

    /// The folder of `--load`.
    pub fn loaded(&self) -> Option<&Path> {
        self.load.as_deref()
    }

    /// Whether weights come from `--pretrained-checkpoint`.
    pub fn is_pretrained(&self) -> bool {
        self.pretrained.is_some() && !self.load.as_deref().is_some_and(ms_ckpt::present)
    }

    /// The folder of the model that a program cannot do without.
    ///
    /// # Errors
    /// If it was not given.
    pub fn model_folder(&self) -> Result<&Path> {
        Ok(self.folder().ok_or_else(|| Usage("--load is required: the folder of the model".into()))?)
    }

    /// The iteration of `--ckpt-step`.
    pub fn step(&self) -> Option<u64> {
        self.step
    }

    /// Whether the checkpoint describes its model against the flags.
    pub fn describes_model(&self) -> bool {
        self.described_by_checkpoint
    }
}

gathered_options! {
    /// What makes a loaded model.
    pub struct Loading {
        /// Where it is computed with.
        pub compute: Compute,
        /// Its checkpoint.
        pub source: Source,
        told: CheckpointHints,
        weights: Weights,
        model: ModelFlags,
    }
}

impl Loading {
    /// The model of `--load` as the flags want it, of the element type of `--dtype` or `default`, on a device, for sequences of
    /// `positions` (its own limit if absent) and `work`, in the memory that is available; `lower` says what to lower where that
    /// does not suffice.
    ///
    /// # Errors
    /// If the checkpoint cannot be read, a flag contradicts it, or it needs more memory than there is.
    pub fn load(
        &self,
        default: DType,
        positions: Option<usize>,
        work: MemoryRequest,
        lower: impl Fn(&MemoryEstimate) -> &'static str,
    ) -> Result<LoadedModel> {
        let load = self.source.model_folder()?;
        let dtype = self.weights.dtype(default);
        let device = self.compute.device(dtype)?;
        let place = |error: ms_generate::Error| {
            anyhow::Error::new(error).context(format!("--load {}", load.display()))
        };
        let source = ms_ckpt::open_with(load, self.source.step(), &hints(self.told.extend_ep));
        let source = source.map_err(|e| place(e.into()))?;
        let config = self.model.beside(source.config(), self.source.describes_model(), 0)?;
        // What exists in addition to the device's threads.
        let work = MemoryRequest { available: ms_cli::available_memory(), ..work };
        let quantization = self.weights.quantization(dtype)?;
        LoadedModel::load(&source, &config, dtype, quantization, device, positions, Some(work)).map_err(
            |error| match error {
                ms_generate::Error::Memory { needs, available } => {
                    ms_cli::too_little_memory(needs.total(), available, lower(&needs))
                }
                other => place(other),
            },
        )
    }

    /// Whether the flags set how many positions the model has.
    pub fn sets_positions(&self) -> bool {
        self.model.written("max_position_embeddings").is_some()
    }
}

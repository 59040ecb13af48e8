//! Where a program computes, and the model loaded there.

use crate::model;
use anyhow::{Result, bail};
use ms_cli::Usage;
use ms_cli::megatron::Args;
use ms_core::{Choice, DType, Device};
use ms_generate::{LoadedModel, Needs, Work};
use std::path::Path;

/// The instruction set, and the order of bf16 sums of `--arithmetic` or, without it, the faster one here.
///
/// # Errors
/// If the flag or the variable `MS_ISA` names what there is not.
pub fn arithmetic(args: &Args) -> Result<Choice> {
    let asked = args.text("arithmetic").map(str::parse).transpose()?;
    Ok(Choice::of_process(asked, ms_cli::processor_choice().as_deref())?)
}

/// The device of `--device`, `--threads` and `--arithmetic` for values of `dtype`; for f64, the reference.
///
/// # Errors
/// If a flag names what this version or this machine does not have.
pub fn device(args: &Args, dtype: DType) -> Result<Device> {
    if args.text("device") == Some("npu") {
        bail!(Usage("--device npu: no NPU backend is part of this version; pass --device cpu".into()));
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    Ok(ms_reference::device_for(dtype, args.size("threads")?.unwrap_or(cores).max(1), arithmetic(args)?)?)
}

/// The model of `load` as the flags want it, on a device, for sequences of `positions` (its own limit if absent) and
/// `work`, in the memory that is available; `lower` says what to lower where that does not suffice.
///
/// # Errors
/// If the checkpoint cannot be read, a flag contradicts it, or it needs more memory than there is.
pub fn load(
    args: &Args,
    load: &Path,
    dtype: DType,
    positions: Option<usize>,
    work: Work,
    lower: impl Fn(&Needs) -> &'static str,
) -> Result<LoadedModel> {
    let device = device(args, dtype)?;
    let quantization = args.text("quantization").map(str::parse).transpose().map_err(Usage)?;
    if quantization.is_some() && dtype == DType::F64 {
        bail!(Usage("--quantization int8: expected --dtype bf16 or fp32, found fp64".into()));
    }
    let place =
        |error: ms_generate::Error| anyhow::Error::new(error).context(format!("--load {}", load.display()));
    let source = match args.size("ckpt_step")? {
        Some(step) => ms_ckpt::open_iteration(load, step as u64),
        None => ms_ckpt::open(load),
    };
    let source = source.map_err(|e| place(e.into()))?;
    let config = model::beside(args, source.config())?;
    // What there is beside the device's threads.
    let work = Work { available: ms_cli::available_memory(), ..work };
    LoadedModel::load(&source, &config, dtype, quantization, device, positions, Some(work)).map_err(|error| {
        match error {
            ms_generate::Error::Memory { needs, available } => {
                ms_cli::too_little_memory(needs.total(), available, lower(&needs))
            }
            other => place(other),
        }
    })
}

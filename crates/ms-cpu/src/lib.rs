//! The CPU device: `ms-core`'s backend traits implemented with `ms-kernels`.
//!
//! Each file implements one family: it checks element types, allocates results and calls the kernel. Kernels check shapes
//! themselves where slice lengths determine them; the other shapes are checked here.

mod act;
mod attention;
mod compressed;
mod hyper_connections;
mod layout;
mod loss;
mod matmul;
mod moe;
mod norm;
mod optim;
mod recurrent;

use ms_core::{Arena, Backend, DType, Device, Error, Result, Scalar, Tensor};
pub use ms_kernels::choice::Choice;
use ms_kernels::{Cpu, CpuError, Isa};

/// A CPU device: an instruction set, a set of threads, an arena.
#[derive(Debug)]
pub struct CpuBackend {
    cpu: Cpu,
    arena: Arena,
}

impl CpuBackend {
    /// A device that computes on `threads` threads with instruction set `isa`, in the summation order that is fastest for it.
    ///
    /// # Errors
    /// If this machine does not have the instruction set or cannot start the threads.
    pub fn new(threads: usize, isa: Isa) -> Result<Self> {
        Self::with(threads, Choice { isa, arithmetic: isa.arithmetic() })
    }

    /// A device that computes on `threads` threads as `choice` says.
    ///
    /// # Errors
    /// As for [`CpuBackend::new`].
    pub fn with(threads: usize, choice: Choice) -> Result<Self> {
        Ok(Self {
            cpu: Cpu::with_arithmetic(threads, choice.isa, choice.arithmetic).map_err(unavailable)?,
            arena: Arena::default(),
        })
    }
}

/// A CPU device of `threads` threads with the latest instruction set of this machine, or the one that the environment variable
/// `MS_ISA` forces; [`Choice::of_process`] measures which one is the fastest.
///
/// # Errors
/// If `MS_ISA` names an instruction set that this machine does not have.
pub fn device(threads: usize) -> Result<Device> {
    let isa = Isa::from_env().map_err(unavailable)?.unwrap_or_else(Isa::detect);
    Ok(Device::new(CpuBackend::new(threads, isa)?))
}

fn unavailable(e: CpuError) -> Error {
    Error::Device(Box::new(e))
}

impl Backend for CpuBackend {
    fn name(&self) -> String {
        format!("cpu ({}, {}, {} threads)", self.cpu.isa(), self.cpu.arithmetic(), self.cpu.threads())
    }

    fn arithmetic(&self) -> String {
        self.cpu.arithmetic().to_string()
    }

    fn arena(&self) -> &Arena {
        &self.arena
    }

    fn synchronize(&self) -> Result<()> {
        Ok(()) // every kernel has finished when it returns
    }
}

impl CpuBackend {
    fn uninit(&self, dtype: DType, shape: &[usize]) -> Tensor {
        Tensor::uninit(&self.arena, dtype, shape)
    }
}

/// Runs `$body` with `$E` standing for the Rust type of `$dtype`, f32 or bf16; the caller returns an error for another.
macro_rules! with_float {
    ($dtype:expr, $op:literal, $E:ident => $body:expr) => {
        match $dtype {
            ms_core::DType::F32 => {
                type $E = f32;
                $body
            }
            ms_core::DType::Bf16 => {
                type $E = half::bf16;
                $body
            }
            dtype => return Err(ms_core::Error::Unsupported { op: $op, dtype }),
        }
    };
}
use with_float;

/// Runs `$body` with `$R` standing for the Rust type of `$dtype`, f32 or f64, the types of router logits; the caller returns
/// an error for another.
macro_rules! with_real {
    ($dtype:expr, $op:literal, $R:ident => $body:expr) => {
        match $dtype {
            ms_core::DType::F32 => {
                type $R = f32;
                $body
            }
            ms_core::DType::F64 => {
                type $R = f64;
                $body
            }
            dtype => return Err(ms_core::Error::Unsupported { op: $op, dtype }),
        }
    };
}
use with_real;

/// Opens a span of the profile: the operation, its floating-point operations, the bytes it must read and write.
/// Nothing is computed while nobody listens.
macro_rules! op_span {
    ($name:literal, $flops:expr, $bytes:expr) => {
        let _span = tracing::trace_span!(target: "ms_op", $name, flops = $flops as u64, bytes = $bytes as u64)
            .entered();
    };
}
use op_span;

/// Bytes of tensors.
fn size(tensors: &[&Tensor]) -> usize {
    tensors.iter().map(|t| t.numel() * t.dtype().size()).sum()
}

/// Checks that `t` is of the element type and shape that `op` needs.
fn expect(op: &'static str, name: &'static str, t: &Tensor, dtype: DType, shape: &[usize]) -> Result<()> {
    if t.dtype() != dtype {
        return Err(Error::DType { op, name, want: dtype, got: t.dtype() });
    }
    t.expect_shape(op, name, shape)
}

/// The ids of an i32 tensor.
fn ids(t: &Tensor) -> Result<&[i32]> {
    t.expect_dtype("token ids", i32::DTYPE)?;
    t.as_slice()
}

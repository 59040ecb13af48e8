//! Numeric kernels over slices: everything a transformer's training step spends its time on.
//!
//! Every kernel takes a [`Cpu`] (instruction set and threads), plain slices of [`Element`]s (f32 or bf16) and sizes; it
//! checks the sizes, returns an [`Error`] if they do not fit, and otherwise cannot fail. Nothing here knows about tensors,
//! graphs or models. Matrix, attention and row kernels use per-thread scratch, which they keep; routing, sparse attention and
//! column kernels allocate small temporaries.
//!
//! **Same bits everywhere.** A result depends neither on the number of threads nor on the instruction set (see [`Isa`] for
//! what two architectures may differ in): every sum has an order fixed by shapes and constants, elementary functions such as
//! exp are our own, denormals are treated as zero. Products of bf16 matrices have three summation orders, one of which is
//! chosen when a [`Cpu`] is made: [`Arithmetic`].
//!
//! Each operation has a folder: `mod.rs` with the public functions and their checks, and `tests`, which compare every
//! instance with a formula in f64. Larger operations also have `body` (the fast code, compiled once per instruction set) and
//! `reference` (the formula as plain f64 loops).
//!
//! ```
//! use ms_kernels::{Cpu, Isa, matmul::{self, Dims, Form, Mat, Out}};
//! let cpu = Cpu::new(2, Isa::detect())?;
//! let (a, b) = ([1.0f32, 2.0, 3.0, 4.0], [1.0f32, 0.0, 1.0, 1.0]);
//! let mut y = [0.0f32; 4];
//! let (a, b) = (Mat { data: &a, stride: 2 }, Mat { data: &b, stride: 2 });
//! let out = Out::Set { data: &mut y, stride: 2, bias: None };
//! matmul::matmul(&cpu, Form::Nt, Dims { m: 2, n: 2, k: 2 }, a, b, out)?;
//! assert_eq!(y, [1.0, 3.0, 3.0, 7.0]); // y = a bᵀ
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

// Needed for intrinsics, disjoint writes from several threads and the floating-point control register.
#![allow(unsafe_code)]

mod cpu;
mod element;
mod error;
mod float;
mod isa;
mod lanes;
mod narrow;
mod prefetch;
mod recurrence;
mod team;
#[cfg(test)]
mod trial;

pub mod activation;
pub mod adamw;
pub mod attention;
pub mod choice;
pub mod columns;
pub mod convolution;
pub mod cross_entropy;
pub mod delta_rule;
pub mod elementwise;
pub mod embedding;
pub mod experts;
pub mod hyper_connections;
pub mod int8;
pub mod layer_norm;
pub mod machine;
pub mod mamba3;
pub mod matmul;
pub mod memory;
pub mod noise;
pub mod pooling;
pub mod qkv;
pub mod reduce;
pub mod rms_norm;
pub mod rope;
pub mod routing;
pub mod selected;
pub mod sgd;
pub mod sinks;
pub mod state_space;
pub mod swiglu;

pub use cpu::Cpu;
pub use element::Element;
pub use error::{CpuError, Error, Result};
pub use isa::{Arithmetic, Isa};

//! Multiplies two bf16 matrices on every instruction set of this machine: the bits are the same.
//!
//! ```sh
//! cargo run --release -p ms-kernels --example multiply
//! ```

use half::bf16;
use ms_kernels::matmul::{Dims, Form, Mat, Out, matmul};
use ms_kernels::{Arithmetic, Cpu, Isa};
use std::error::Error;

/// A product on each of the instruction sets.
type Products = Vec<(Isa, Vec<f32>)>;

/// `a [M,K] b^T [N,K]`, summed in f32 in the order `arithmetic`; `[M,N]` on each of the instruction sets.
pub(crate) fn run(dims: Dims, arithmetic: Arithmetic) -> Result<Products, Box<dyn Error>> {
    let Dims { m, n, k } = dims;
    let values = |len: usize| (0..len).map(|i| bf16::from_f32((i * 37 % 101) as f32 / 64.0 - 0.75)).collect();
    let (a, b): (Vec<bf16>, Vec<bf16>) = (values(m * k), values(n * k));
    let mut products = Vec::new();
    for isa in Isa::all_available() {
        let mut c = vec![0.0; m * n];
        let cpu = Cpu::with_arithmetic(2, isa, arithmetic)?;
        let (a, b) = (Mat { data: &a, stride: k }, Mat { data: &b, stride: k });
        matmul(&cpu, Form::Nt, dims, a, b, Out::SetF32 { data: &mut c, stride: n })?;
        products.push((isa, c));
    }
    Ok(products)
}

#[allow(dead_code, clippy::print_stdout)] // unused where a test includes this file; prints its result
fn main() -> Result<(), Box<dyn Error>> {
    for (isa, c) in run(Dims { m: 7, n: 5, k: 100 }, Arithmetic::Pair)? {
        println!("{isa:?}: {:?}", &c[..5]);
    }
    Ok(())
}

//! Initial values that mixers with a state have in common.

use crate::params::Init;

/// Bound of the initial weights of a depthwise convolution of width `conv`, as torch has it.
pub(crate) fn conv_init(conv: usize) -> Init {
    Init::Uniform { bound: (1.0 / conv as f64).sqrt() }
}

/// Initial logarithms of decays.
pub(crate) const A: Init = Init::LogOfUniform { low: 1.0, high: 16.0 };

/// Initial steps between two numbers, before their softplus.
pub(crate) fn dt((low, high): (f64, f64)) -> Init {
    Init::InverseSoftplus { low, high }
}

//! Entry points, one a symbol of the table; written by `xtask/cann/generate.py`.

mod absent_a;
mod absent_b;
mod opapi_cv;
mod opapi_math;
mod opapi_nn;
mod opapi_transformer;
mod runtime;

//! Entry points, one a symbol of the table; written by `xtask/cann/generate.py`.

#[rustfmt::skip]
mod absent;
#[rustfmt::skip]
mod opapi_cv;
#[rustfmt::skip]
mod opapi_math;
#[rustfmt::skip]
mod opapi_nn;
#[rustfmt::skip]
mod opapi_transformer;
#[rustfmt::skip]
mod runtime;

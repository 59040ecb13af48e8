//! The macro that declares a family of device operations.

/// Declares one family of device operations: the trait, its implementation for the delayed device, and its shape rules for
/// the meta device.
///
/// Each method is written once, as `HOW fn NAME(&self, ARGUMENTS) -> RESULT`, and yields the trait method, its forwarding in
/// `Delayed`, and its implementation for the meta device:
///
/// - `deferred`: the method returns tensors and may be deferred; `blocking`: it returns a host value and waits for the device.
/// - `= |meta| EXPRESSION`: the result on the meta device (`Default::default()` if left out).
/// - `fails "TEXT"`: the text of `# Errors` (if left out: shapes or element types that do not fit).
///
/// ```text
/// seam! {
///     /// Sums.
///     pub trait SumBackend;
///     /// The sum of `a` and `b`.
///     deferred fn sum(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> = |meta| meta.like(a);
/// }
/// ```
macro_rules! seam {
    (
        $(#[$about:meta])*
        pub trait $family:ident;
        $(
            $(#[$doc:meta])*
            $how:ident fn $name:ident(&self, $($arg:ident: $type:ty),* $(,)?) -> $out:ty
                $(= |$meta:ident| $made:expr)? $(, fails $why:literal)?;
        )*
    ) => {
        $(#[$about])*
        pub trait $family {
            $(
                $(#[$doc])*
                #[doc = $crate::backend::seam::errors!($($why)?)]
                fn $name(&self, $($arg: $type),*) -> $out;
            )*
        }

        impl<B: $crate::Backend> $family for $crate::backend::delayed::Delayed<B> {
            $(fn $name(&self, $($arg: $type),*) -> $out {
                self.$how(|inner| inner.$name($($arg),*))
            })*
        }

        #[allow(unused_variables)] // most operands are used for their shape only
        impl $family for $crate::MetaBackend {
            $(fn $name(&self, $($arg: $type),*) -> $out {
                $crate::backend::seam::made!(self $(, $meta, $made)?)
            })*
        }
    };
}

macro_rules! errors {
    () => {
        "\n# Errors\nIf shapes or element types do not fit."
    };
    ($why:literal) => {
        concat!("\n# Errors\n", $why)
    };
}

macro_rules! made {
    ($device:expr) => {
        Ok(Default::default())
    };
    ($device:expr, $meta:ident, $made:expr) => {{
        let $meta = $device;
        Ok($made)
    }};
}
pub(crate) use {errors, made, seam};

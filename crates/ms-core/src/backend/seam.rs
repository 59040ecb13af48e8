//! How a family of the seam is declared.

/// A family: the trait, as it is written; that a device which delays hands each function's arguments on, of which results that
/// are tensors come `later`, and what the host is told is an `answer`; behind each function what a device without values makes
/// of them (nothing, where nothing is said), and what it `fails` of, where that is not shapes or element types alone.
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

        #[allow(unused_variables)] // of most operands the shape alone is looked at
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

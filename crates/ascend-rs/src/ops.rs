//! The operators of a dense and a mixture-of-experts transformer, each with both phases on a stream.
//!
//! Shapes, element types and masks are those of the operators' documentation; what an operator refuses comes back as an error
//! with its own text, and the operands with names and shapes. Outputs are views too: the buffers keep the order of uses,
//! whoever reads or writes.
//!
//! # Functions and structs
//!
//! An operator with few operands, none of which can be taken for its neighbour, is a function: what is read, in the order of
//! its formula, then what is written. All others (every gradient, whatever has two numbers side by side, attention with its 45
//! operands) are structs with the name of the documentation, whose fields have the documentation's names, without its endings
//! for optional, changed and written operands:
//!
//! ```no_run
//! use ascend_rs::ops::{Attention, AttentionOptions, AttentionResults, FlashAttentionScore};
//! # use ascend_rs::{Result, Stream, View};
//! # fn call(stream: &Stream, [query, key, value, mask, max, sum, out]: [View<'_>; 7]) -> Result<()> {
//! FlashAttentionScore {
//!     of: Attention {
//!         query,
//!         key,
//!         value,
//!         head_num: 16,
//!         input_layout: c"BSND",
//!         scale_value: 0.125,
//!         options: AttentionOptions { atten_mask: Some(mask), sparse_mode: 2, ..Default::default() },
//!     },
//!     results: AttentionResults { softmax_max: max, softmax_sum: sum, softmax_out: None, attention_out: out },
//! }
//! .run(stream)
//! # }
//! ```
//!
//! What an operator must be given is a field without a default, so that leaving it out is an error of the compiler. What its
//! page lets be null, or gives a default, stands in a group (`options` above) that has [`Default`]; a lone operand that may be
//! null is a field of type `Option`. Versions of one operator, and an operator and its gradient, share groups (`of` above): what
//! the forward pass was given is handed to the gradient as it is, and a version adds fields to those before it.
//!
//! Other forms were weighed. A constructor for the required operands keeps half the problem (the gradient of attention has 16
//! of them, eight tensors of one shape), a builder finds at run time what is missing, and one struct for all versions would
//! pass over fields that a version does not have.
//!
//! The order of the C function's operands is the list in front of each struct in these tables: paths to fields, with the name
//! of the documentation behind `as` where the field is shared under another. The compiler checks the types of that list, and a
//! test the names, against the published interface.

use crate::operator::View;
use std::ffi::CStr;

/// The name of an operand in C: the end of its path, or what stands behind `as`.
macro_rules! c_name {
    ($($path:ident).+ as $name:ident) => { $name };
    ($name:ident) => { $name };
    ($group:ident . $($rest:ident).+) => { c_name!($($rest).+) };
}

/// [`c_name`] as text.
macro_rules! c_text {
    ($($path:ident).+ as $name:ident) => { stringify!($name) };
    ($name:ident) => { stringify!($name) };
    ($group:ident . $($rest:ident).+) => { c_text!($($rest).+) };
}

/// Operators by the table of `hccl-sys` that holds them: `symbol = fn name(operands in C's order);` or
/// `symbol(paths in C's order) = struct Name { fields };`.
macro_rules! operators {
    ($($table:ident {
        $($(#[$doc:meta])* $symbol:ident $(($($order:tt)*))? = $kind:tt $name:ident $operands:tt;)*
    })*) => {
        $($(operators! { @$kind $table $symbol [$($($order)*)?] $(#[$doc])* $name $operands })*)*

        /// Name, and whether the opened toolkit has both phases, of the operators of this file.
        pub(super) fn listed(toolkit: &crate::Toolkit) -> Vec<(&'static str, bool)> {
            vec![$($((stringify!($symbol), toolkit.cann().$table.$symbol.is_some()),)*)*]
        }

        /// The operators of this file that are structs, with the names of their operands in the order in which they are handed
        /// over.
        #[cfg(test)]
        pub(super) fn orders() -> Vec<(&'static str, Vec<&'static str>)> {
            vec![$($($((stringify!($symbol), operators!(@names $($order)*)),)?)*)*]
        }
    };
    (@fn $table:ident $symbol:ident [] $(#[$doc:meta])* $name:ident ($($arg:ident: $t:ty),* $(,)?)) => {
        $(#[$doc])*
        ///
        /// # Errors
        /// [`crate::Error::Missing`] if the toolkit lacks it, [`crate::Error::Call`] if it refuses its operands.
        pub fn $name<'a>(stream: &'a crate::Stream, $($arg: $t),*) -> crate::Result<()> {
            let mut call = crate::Call::new(stream, stringify!($symbol));
            $(let $arg = call.operand(stringify!($arg), $arg)?;)*
            let functions = stream.0.context.toolkit.cann().$table.$symbol;
            // SAFETY: the published types, as the table declares them; handles live until `call` ends, texts forever.
            call.plan(functions, |first, size, executor| unsafe { first($($arg,)* size, executor) })?.run()
        }
    };
    (@struct $table:ident $symbol:ident [$($($path:ident).+ $(as $c:ident)?),* $(,)?] $(#[$doc:meta])* $name:ident
     { $($(#[$note:meta])* $field:ident: $t:ty),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        #[must_use = "an operator does nothing before it runs"]
        #[allow(missing_docs)] // fields that say no more than their name, which is that of the operator's page
        pub struct $name<'a> {
            $($(#[$note])* pub $field: $t,)*
        }

        impl<'a> $name<'a> {
            /// Enters the operator into the stream.
            ///
            /// # Errors
            /// [`crate::Error::Missing`] if the toolkit lacks it, [`crate::Error::Call`] if it refuses its operands.
            pub fn run(self, stream: &'a crate::Stream) -> crate::Result<()> {
                let mut call = crate::Call::new(stream, stringify!($symbol));
                $(let c_name!($($path).+ $(as $c)?) =
                    call.operand(c_text!($($path).+ $(as $c)?), self.$($path).+)?;)*
                let functions = stream.0.context.toolkit.cann().$table.$symbol;
                // SAFETY: the published types, as the table declares them; handles live until `call` ends, texts forever.
                call.plan(functions, |first, size, executor| unsafe {
                    first($(c_name!($($path).+ $(as $c)?),)* size, executor)
                })?
                .run()
            }
        }
    };
    (@names $($($path:ident).+ $(as $c:ident)?),* $(,)?) => { vec![$(c_text!($($path).+ $(as $c)?)),*] };
}

/// Groups of operands that may be left out, each with what it is then.
macro_rules! options {
    ($($(#[$doc:meta])* struct $name:ident<'a> {
        $($(#[$note:meta])* $field:ident: $t:ty = $default:expr),* $(,)?
    })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $name<'a> {
            $($(#[$note])* pub $field: $t,)*
        }

        impl<'a> Default for $name<'a> {
            fn default() -> $name<'a> {
                $name { $($field: $default,)* }
            }
        }
    )*};
}

mod attention;
mod dense;
mod experts;
mod inference;
pub mod joint;
mod losses;
#[cfg(test)]
mod tests;

pub use attention::*;
pub use dense::*;
pub use experts::*;
pub use inference::*;
pub use losses::*;

/// Name, and whether the opened toolkit has both phases, of every operator of this module; those of [`joint`] are listed there.
pub fn available(toolkit: &crate::Toolkit) -> Vec<(&'static str, bool)> {
    [attention::listed, dense::listed, experts::listed, inference::listed, losses::listed]
        .iter()
        .flat_map(|of_file| of_file(toolkit))
        .collect()
}

/// A C string that lives forever: names of layouts and reductions.
type Text = &'static CStr;

/// A tensor that may be null.
type Maybe<'a> = Option<View<'a>>;

/// A list of tensors that may be null.
type MaybeList<'a> = Option<Vec<View<'a>>>;

/// Tokens before or after a query that attention reaches, where it reaches all.
const ALL_TOKENS: i64 = i32::MAX as i64;

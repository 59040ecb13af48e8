//! The macros behind options. Every crate that has options takes this file as a module of its own (`#[path]`): of what a macro
//! of another crate makes, the compiler does not say that nobody reads it.

#![allow(unused_macros)] // not every crate has several groups

/// Makes a group of options: a struct with a field for each flag, and the list of the flags.
///
/// ```text
/// options! {
///     /// Numbers of the optimizer.
///     pub(crate) struct Numbers in "Optimizer" {
///         /// Upstream's flag: its default is in the table.
///         beta1: f64 = "--adam-beta1", "decay of the first moment", range = "[0,1)";
///         /// A flag of ours.
///         threads: Option<usize> = "--threads", "threads of each rank", range = "[1,1024]", own = own("threads");
///     }
/// }
/// let numbers: Numbers = args.read()?;
/// ```
macro_rules! options {
    ($(#[$doc:meta])* $vis:vis struct $name:ident in $group:literal {
        $($(#[$about:meta])* $fvis:vis $field:ident : $ty:ty = $flag:literal, $help:expr $(, $key:ident = $value:expr)*;)*
    }) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        $vis struct $name {
            $($(#[$about])* $fvis $field: $ty,)*
        }

        impl ::ms_cli::megatron::Options for $name {
            fn entries() -> Vec<::ms_cli::megatron::Entry> {
                #[allow(unused_imports)] // for flags of ours
                use ::ms_cli::megatron::{Unset, own, own_of, own_or};
                vec![$(::ms_cli::megatron::Entry {
                    $($key: $value,)*
                    ..::ms_cli::megatron::Entry::new::<$ty>($flag, $help, $group)
                }),*]
            }

            fn read(from: &::ms_cli::megatron::Reader<'_>) -> Result<Self, ::ms_cli::Usage> {
                Ok(Self { $($field: from.take($flag)?,)* })
            }
        }
    };
}

/// Makes one group of options of several. `= COMMANDS` behind a group names the commands that read those of its flags which do
/// not say so themselves (`by = COMMANDS`).
macro_rules! gathered_options {
    ($(#[$doc:meta])* $vis:vis struct $name:ident {
        $($(#[$about:meta])* $fvis:vis $field:ident : $ty:path $(= $by:expr)?),* $(,)?
    }) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        $vis struct $name {
            $($(#[$about])* $fvis $field: $ty,)*
        }

        impl ::ms_cli::megatron::Options for $name {
            fn entries() -> Vec<::ms_cli::megatron::Entry> {
                let mut all = Vec::new();
                $(
                    #[allow(unused_mut)] // for groups that name their commands
                    let mut of = <$ty as ::ms_cli::megatron::Options>::entries();
                    $(of.iter_mut().filter(|entry| entry.by.is_empty()).for_each(|entry| entry.by = $by);)?
                    all.extend(of);
                )*
                all
            }

            fn read(from: &::ms_cli::megatron::Reader<'_>) -> Result<Self, ::ms_cli::Usage> {
                Ok(Self { $($field: ::ms_cli::megatron::Options::read(from)?,)* })
            }
        }
    };
}

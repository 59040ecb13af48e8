//! Errors in the description of a model.

/// A requested distribution of layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlacementOption {
    /// So many stages.
    Stages,
    /// So many layers in each.
    LayerList,
    /// Chunks with this many layers.
    LayersPerChunk,
    /// Slots without a layer.
    NoopLayers,
}

/// Megatron's names of the arguments that sizes are made of: in each row the first that is given makes one.
pub type ArgNames = &'static [&'static [&'static str]];

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A field that is needed is missing.
    #[error("{source_name}: field `{field}` is missing")]
    Missing {
        /// Where it was looked for: `config.json`, `checkpoint args`.
        source_name: &'static str,
        /// Its name.
        field: &'static str,
    },
    /// A field has a value of the wrong kind or size.
    #[error("{source_name}: field `{field}`: expected {want}, got {got}")]
    Field {
        /// Where it stands.
        source_name: &'static str,
        /// Its name.
        field: &'static str,
        /// What was expected.
        want: &'static str,
        /// What was found.
        got: String,
    },
    /// The model is of a kind that is not supported.
    #[error("{source_name}: {what}")]
    Unsupported {
        /// Where it stands.
        source_name: &'static str,
        /// What is not supported.
        what: String,
    },
    /// Sizes that do not fit together.
    #[error("model: {what}")]
    Inconsistent {
        /// What does not fit.
        what: String,
        /// The arguments that make it.
        args: ArgNames,
    },
    /// The model cannot be sharded as requested.
    #[error("{what}: {size} is not divisible by {axis} {ranks}; {}", ms_core::nearest_divisors(*size, *ranks))]
    Cut {
        /// What is cut.
        what: &'static str,
        /// Its size.
        size: usize,
        /// The axis.
        axis: ms_core::Axis,
        /// Ranks along it.
        ranks: usize,
    },
    /// A part of the model cannot be shared along an axis.
    #[error("{part} cannot be shared by {axis} {ranks}: {reason}")]
    Rule {
        /// The part.
        part: &'static str,
        /// The axis.
        axis: ms_core::Axis,
        /// Ranks along it.
        ranks: usize,
        /// Why.
        reason: &'static str,
    },
    /// Layers cannot be distributed over stages as requested.
    #[error("{what}")]
    Placement {
        /// Which of the wishes cannot be.
        option: PlacementOption,
        /// What does not fit.
        what: String,
    },
    /// A tensor cannot be sharded as requested.
    #[error(transparent)]
    Core(#[from] ms_core::Error),
}

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Sizes of no argument's that do not fit together.
    pub(crate) fn inconsistent(what: impl Into<String>) -> Self {
        Self::of(&[], what)
    }

    /// Sizes that do not fit together, and what they are made of.
    pub(crate) fn of(args: ArgNames, what: impl Into<String>) -> Self {
        Self::Inconsistent { what: what.into(), args }
    }

    /// Megatron's names of the arguments concerned: each row has alternatives, of which the first that is given applies.
    pub fn arg_names(&self) -> Vec<Vec<&'static str>> {
        match self {
            Self::Missing { field, .. } | Self::Field { field, .. } => vec![vec![*field]],
            Self::Inconsistent { args, .. } => args.iter().map(|row| row.to_vec()).collect(),
            _ => Vec::new(),
        }
    }
}

/// What is said where a layer has a part whose sizes the model lacks.
pub(crate) fn lacks(what: &str) -> String {
    format!("a layer needs {what}, which the model does not have")
}

/// An error about `what`, where it `is` not there.
pub(crate) fn needs(is: bool, what: &str) -> Result<()> {
    if is { Ok(()) } else { Err(Error::inconsistent(lacks(what))) }
}

/// Checks that one number divides another.
pub(crate) fn divides(args: ArgNames, what: &str, n: usize, by: &str, d: usize) -> Result<()> {
    if n.is_multiple_of(d) {
        Ok(())
    } else {
        Err(Error::of(args, format!("{n} {what} are not divisible by {d} {by}")))
    }
}

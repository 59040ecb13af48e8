//! What can be wrong with a model on paper.

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Numbers of a configuration that do not fit together.
    #[error("model configuration: {field}: expected {expected}, found {found}")]
    Config {
        /// The field, as the source spells it.
        field: String,
        /// What would be legal.
        expected: String,
        /// What is there.
        found: String,
    },
    /// A family or feature that this version does not know.
    #[error("model configuration: {feature} is not supported; supported: {supported}")]
    Unsupported {
        /// What was asked for.
        feature: String,
        /// What there is.
        supported: &'static str,
    },
    /// Sharding arithmetic failed.
    #[error(transparent)]
    Core(#[from] ms_core::Error),
}

impl Error {
    /// A [`Error::Config`] from anything printable.
    pub fn config(
        field: impl Into<String>,
        expected: impl Into<String>,
        found: impl std::fmt::Display,
    ) -> Self {
        Self::Config { field: field.into(), expected: expected.into(), found: found.to_string() }
    }
}

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

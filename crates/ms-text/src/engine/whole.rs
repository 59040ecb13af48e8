//! Texts encoded as a whole.

use super::Encode;
use crate::Result;

/// Bytes that are encoded as a whole at most: the engines take up to some hundred bytes of memory for each of them.
pub(super) const WHOLE: usize = 8 << 20;

/// An engine used directly, without splitting texts.
pub(super) trait Whole: Encode {
    /// [`Encode::encode_into`], all of the text at once.
    ///
    /// # Errors
    /// [`crate::Error::Encode`].
    fn whole(&self, text: &str, special: bool, out: &mut Vec<u32>) -> Result<()>;
}

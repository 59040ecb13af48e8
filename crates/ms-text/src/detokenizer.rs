//! Streaming detokenization: ids to text, one id at a time.

use crate::{Result, Tokenizer};

/// More pending ids than any incomplete character can have: what is held back then is not UTF-8 at all.
const MAX_PENDING: usize = 8;

/// Turns a stream of ids into a stream of text, holding back a character until all its bytes are there.
///
/// The pieces joined give the text of [`Tokenizer::decode`] on all ids; only what is not UTF-8 at all may give its U+FFFD in
/// other numbers.
///
/// ```
/// # use ms_text::{bpe, Detokenizer, Tokenizer};
/// # let dir = tempfile::tempdir()?;
/// # bpe::train(&bpe::Options { vocab_size: 260, ..Default::default() }, ["a b c".to_string()])?.write(dir.path())?;
/// # let tokenizer = Tokenizer::load(dir.path())?;
/// let mut stream = Detokenizer::new(&tokenizer, true);
/// let mut pieces = Vec::new();
/// for id in tokenizer.encode("é!")? { // three bytes, three ids in this tiny vocabulary
///     pieces.push(stream.push(id)?);
/// }
/// assert_eq!(pieces, [None, Some("é".to_string()), Some("!".to_string())]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Detokenizer<'a> {
    tokenizer: &'a Tokenizer,
    skip_special: bool,
    /// Ids of the last two emissions. The first `read` of them are already emitted; they stay as left context, because some
    /// decoders treat the first token of a text in a special way.
    window: Vec<u32>,
    read: usize,
    /// The first so many are of the last emission that was more than blanks. Blanks alone are no context: a decoder may leave
    /// them out at the beginning of a text.
    solid: usize,
}

impl<'a> Detokenizer<'a> {
    /// Starts an empty stream. With `skip_special`, special tokens give no text.
    pub fn new(tokenizer: &'a Tokenizer, skip_special: bool) -> Self {
        Self { tokenizer, skip_special, window: Vec::new(), read: 0, solid: 0 }
    }

    /// Starts a stream after ids whose text is known: the first piece begins as it continues that text, with the space that
    /// some decoders omit at the beginning of a text.
    pub fn behind(tokenizer: &'a Tokenizer, skip_special: bool, ids: &[u32]) -> Self {
        let window = ids[ids.len().saturating_sub(MAX_PENDING)..].to_vec();
        Self { tokenizer, skip_special, read: window.len(), solid: window.len(), window }
    }

    /// Takes the next id and returns the text that has become certain, if any.
    ///
    /// # Errors
    /// [`crate::Error::Decode`].
    pub fn push(&mut self, id: u32) -> Result<Option<String>> {
        self.window.push(id);
        let text = self.held()?;
        let incomplete = text.ends_with('\u{FFFD}') && self.window.len() - self.read < MAX_PENDING;
        if text.is_empty() || incomplete {
            return Ok(None);
        }
        if text.trim().is_empty() {
            self.window.drain(self.solid..self.read);
        } else {
            self.window.drain(..self.read);
            self.solid = self.window.len();
        }
        self.read = self.window.len();
        Ok(Some(text))
    }

    /// Ends the stream and returns what was held back; bytes that never became a character give U+FFFD.
    ///
    /// # Errors
    /// [`crate::Error::Decode`].
    pub fn finish(self) -> Result<Option<String>> {
        let text = self.held()?;
        Ok((!text.is_empty()).then_some(text))
    }

    /// The text that is held back, as [`Detokenizer::finish`] would give it.
    ///
    /// # Errors
    /// [`crate::Error::Decode`].
    pub fn held(&self) -> Result<String> {
        let all = self.tokenizer.decode(&self.window, self.skip_special)?;
        let seen = self.tokenizer.decode(&self.window[..self.read], self.skip_special)?;
        // Bytes that were given up as no character may stand otherwise in the longer text.
        let same = all.chars().zip(seen.chars()).take_while(|(a, b)| a == b);
        let same: usize = same.map(|(c, _)| c.len_utf8()).sum();
        Ok(all[same..].to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpe;

    #[test]
    fn blanks_do_not_pile_up_as_context() {
        let dir = tempfile::tempdir().unwrap();
        let options = bpe::Options { vocab_size: 300, ..Default::default() };
        bpe::train(&options, ["words ".to_owned()]).unwrap().write(dir.path()).unwrap();
        let tokenizer = Tokenizer::load(dir.path()).unwrap();
        let ids = tokenizer.encode(&("a".to_owned() + &"\t\n".repeat(50) + "b")).unwrap();
        assert!(ids.len() > 50, "no long tokens of blanks");
        let (mut stream, mut text) = (Detokenizer::new(&tokenizer, false), String::new());
        for id in ids {
            text.extend(stream.push(id).unwrap());
            assert!(stream.window.len() < 8, "{} ids are held", stream.window.len());
        }
        text.extend(stream.finish().unwrap());
        assert_eq!(text, "a".to_owned() + &"\t\n".repeat(50) + "b");
    }
}

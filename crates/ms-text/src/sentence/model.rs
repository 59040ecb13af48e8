//! A trained model: its files and its queries.

use super::trained::{Context, Trained};
use super::words::Forms;
use super::{Edition, pickle};
use crate::{Error, Result};
use sha2::{Digest, Sha256};
use std::io::Read;
use std::path::{Path, PathBuf};

/// Largest file of a model that is read, in bytes; NLTK's largest has 2 MB.
const MAX_FILE: u64 = 1 << 28;

/// A model that is ready for questions.
#[derive(Debug)]
pub(super) struct Model {
    trained: Trained,
    content_hash: String,
    pub(super) forms: Forms,
}

impl Model {
    pub(super) fn load(path: &Path, edition: Edition) -> Result<Self> {
        let mut digest = Sha256::new();
        let mut read = |path: &Path| {
            let bytes = read_file(path)?;
            digest.update((bytes.len() as u64).to_le_bytes());
            digest.update(&bytes);
            Ok::<_, Error>(bytes)
        };
        let trained = if path.is_dir() {
            Trained::of_tables(path, &mut read)?
        } else {
            pickle::read(&read(path)?).map_err(|reason| not_a_model(path, reason))?
        };
        let content_hash = digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Self { trained, content_hash, forms: Forms::new(edition) })
    }

    pub(super) fn content_hash(&self) -> &str {
        &self.content_hash
    }

    pub(super) fn is_abbreviation(&self, word: &str) -> bool {
        self.trained.abbreviations.contains(word)
    }

    pub(super) fn is_starter(&self, word: &str) -> bool {
        self.trained.starters.contains(word)
    }

    pub(super) fn go_together(&self, word: &str, next: &str) -> bool {
        self.trained.together.get(word).is_some_and(|all| all.contains(next))
    }

    pub(super) fn context(&self, word: &str) -> Context {
        self.trained.contexts.get(word).copied().unwrap_or_default()
    }
}

impl Trained {
    /// The four files of `punkt_tab/LANGUAGE`.
    fn of_tables(folder: &Path, read: &mut impl FnMut(&Path) -> Result<Vec<u8>>) -> Result<Self> {
        let mut trained = Self::default();
        let mut each = |name: &str, take: &mut dyn FnMut(&str) -> std::result::Result<(), String>| {
            let path = folder.join(name);
            let bytes = read(&path)?;
            let text = std::str::from_utf8(&bytes).map_err(|e| not_a_model(&path, e.to_string()))?;
            // Python's text files: all three kinds of line breaks.
            let text = text.replace("\r\n", "\n").replace('\r', "\n");
            for (number, line) in text.split_terminator('\n').enumerate() {
                take(line).map_err(|reason| not_a_model(&path, format!("line {}: {reason}", number + 1)))?;
            }
            Ok::<_, Error>(())
        };
        each("collocations.tab", &mut |line| {
            // A line with another number of words is not a pair; NLTK keeps it, and nothing ever equals it.
            if let Some((first, second)) = line.split_once('\t').filter(|(_, second)| !second.contains('\t'))
            {
                trained.together.entry(first.into()).or_default().insert(second.into());
            }
            Ok(())
        })?;
        each("sent_starters.txt", &mut |line| {
            trained.starters.insert(line.into());
            Ok(())
        })?;
        each("abbrev_types.txt", &mut |line| {
            trained.abbreviations.insert(line.into());
            Ok(())
        })?;
        each("ortho_context.tab", &mut |line| {
            let pair = line.split_once('\t').and_then(|(word, bits)| Some((word, bits.trim().parse().ok()?)));
            let (word, bits) = pair.ok_or("expected a word, a tab and a number")?;
            trained.contexts.insert(word.into(), Context(bits));
            Ok(())
        })?;
        Ok(trained)
    }
}

/// The model of a language in folders of NLTK's data, in order: first the tables of `punkt_tab`, then the pickles of `punkt`.
///
/// # Errors
/// [`Error::NoSentenceModel`], with where it was looked for.
pub fn find_model(roots: &[PathBuf], language: &str) -> Result<PathBuf> {
    let plain = !language.is_empty() && language.chars().all(|c| c.is_alphanumeric() || c == '-' || c == '_');
    let places = [
        format!("tokenizers/punkt_tab/{language}"),
        format!("tokenizers/punkt/PY3/{language}.pickle"),
        format!("tokenizers/punkt/{language}.pickle"),
    ];
    let mut all = places.iter().flat_map(|place| roots.iter().map(move |root| root.join(place)));
    let found = if plain { all.find(|path| path.exists()) } else { None };
    found.ok_or_else(|| Error::NoSentenceModel {
        language: language.into(),
        looked_in: roots.iter().map(|root| root.display().to_string()).collect::<Vec<_>>().join(", "),
    })
}

fn read_file(path: &Path) -> Result<Vec<u8>> {
    let io = |source| Error::Io { path: path.into(), source };
    let mut bytes = Vec::new();
    std::fs::File::open(path).map_err(io)?.take(MAX_FILE + 1).read_to_end(&mut bytes).map_err(io)?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(not_a_model(path, format!("more than {MAX_FILE} bytes")));
    }
    Ok(bytes)
}

fn not_a_model(path: &Path, reason: impl Into<String>) -> Error {
    Error::SentenceModel { path: path.into(), reason: reason.into() }
}

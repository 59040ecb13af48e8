//! The strings and ids of a tokenizer: the model's vocabulary and the added tokens.

use crate::{Error, Result};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::sync::Arc;

/// An added token, outside the model's vocabulary, and how it matches.
#[derive(serde::Serialize, serde::Deserialize, Clone, Debug, PartialEq, Eq)]
pub(crate) struct AddedToken {
    pub(crate) content: String,
    #[serde(default)]
    pub(crate) lstrip: bool,
    #[serde(default)]
    pub(crate) rstrip: bool,
    #[serde(default)]
    pub(crate) single_word: bool,
    #[serde(default)]
    pub(crate) normalized: bool,
    #[serde(default)]
    pub(crate) special: bool,
}

impl AddedToken {
    /// Matched whole inside any text, not normalised, no spaces stripped.
    pub(crate) fn special(content: &str) -> Self {
        Self {
            content: content.to_owned(),
            lstrip: false,
            rstrip: false,
            single_word: false,
            normalized: false,
            special: true,
        }
    }

    pub(crate) fn json(&self, id: u32) -> Value {
        json!({
            "id": id, "content": self.content, "single_word": self.single_word, "lstrip": self.lstrip,
            "rstrip": self.rstrip, "normalized": self.normalized, "special": self.special
        })
    }
}

/// Both directions of the model's own vocabulary, in a few flat blocks of memory.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Texts {
    pub(crate) texts: String,
    /// Start and length in `texts` of each id; no token has a length of `u32::MAX`.
    pub(crate) spans: Vec<[u32; 2]>,
    /// Ids in the order of their texts.
    pub(crate) sorted: Vec<u32>,
}

/// The model's vocabulary and the tokens added to it.
pub(crate) struct Vocabulary {
    model: Arc<Texts>,
    added: Vec<(u32, AddedToken)>,
    added_places: BTreeMap<String, usize>,
    /// Where the first of the added tokens with an id stands.
    added_ids: BTreeMap<u32, usize>,
    /// Number of tokens of the model, and of all.
    own: usize,
    size: usize,
}

const HOLE: [u32; 2] = [0, u32::MAX];
/// Ids above this are a mistake of the file, not a vocabulary; and so are those far above the number of its tokens.
const MAX_ID: u64 = 1 << 26;
const MAX_SPARSE: u64 = 1 << 20;

impl Texts {
    fn put(&mut self, text: &str, id: u32) {
        let at = id as usize;
        if at >= self.spans.len() {
            self.spans.resize(at + 1, HOLE);
        }
        self.spans[at] = [self.texts.len() as u32, text.len() as u32];
        self.texts.push_str(text);
        self.sorted.push(id);
    }

    /// Puts blocks that were written before back together; `None` if they do not fit each other.
    pub(crate) fn of_parts(texts: String, spans: Vec<[u32; 2]>, sorted: Vec<u32>) -> Option<Self> {
        let whole = |&[start, len]: &[u32; 2]| {
            let (start, end) = (start as usize, start as usize + len as usize);
            end <= texts.len() && texts.is_char_boundary(start) && texts.is_char_boundary(end)
        };
        let fits = spans.iter().all(|span| *span == HOLE || whole(span))
            && sorted.iter().all(|&id| spans.get(id as usize).is_some_and(|span| *span != HOLE));
        fits.then_some(Self { texts, spans, sorted })
    }

    /// Text of a token.
    pub(crate) fn text(&self, id: u32) -> Option<&str> {
        let &[start, len] = self.spans.get(id as usize).filter(|span| **span != HOLE)?;
        self.texts.get(start as usize..start as usize + len as usize)
    }

    /// Id of the token with exactly this text.
    pub(crate) fn id(&self, text: &str) -> Option<u32> {
        let at = self.sorted.binary_search_by(|&id| self.text(id).unwrap_or_default().cmp(text));
        at.ok().map(|at| self.sorted[at])
    }
}

impl Vocabulary {
    /// Reads the model's vocabulary and the added tokens of a `tokenizer.json` value.
    pub(crate) fn of(path: &Path, definition: &Value) -> Result<Self> {
        let field = |field: &str, want| Error::Field { path: path.into(), field: field.into(), want };
        let mut model = Texts::default();
        match &definition["model"]["vocab"] {
            Value::Object(map) => {
                let most = MAX_ID.min(MAX_SPARSE.max(8 * map.len() as u64));
                for (text, id) in map {
                    let id = id.as_u64().filter(|&id| id < most);
                    let id = id.ok_or_else(|| field("model.vocab", "an object of ids"))? as u32;
                    if model.text(id).is_some() {
                        return Err(field("model.vocab", "an object of ids, each of them once"));
                    }
                    model.put(text, id);
                }
            }
            Value::Array(list) => {
                for (id, row) in list.iter().enumerate() {
                    let text = row.get(0).and_then(Value::as_str);
                    let text = text.ok_or_else(|| field("model.vocab", "a list of pieces and scores"))?;
                    model.put(text, id as u32);
                }
            }
            _ => return Err(field("model.vocab", "an object, or a list of pieces")),
        }
        let mut sorted = std::mem::take(&mut model.sorted);
        let text = |id: u32| model.text(id).unwrap_or_default();
        sorted.sort_by(|&a, &b| text(a).cmp(text(b)).then(b.cmp(&a)));
        sorted.dedup_by(|b, a| text(*a) == text(*b));
        model.sorted = sorted;
        let mut out = Self::bare(Arc::new(model));
        // In the order of the file: that is how engines hand out ids to tokens the model lacks.
        for row in definition["added_tokens"].as_array().into_iter().flatten() {
            let token: AddedToken = serde_json::from_value(row.clone())
                .map_err(|_| field("added_tokens", "objects with id, content and matching flags"))?;
            // Engines leave out those without a text.
            if !token.content.is_empty() {
                out.add(token);
            }
        }
        Ok(out)
    }

    fn bare(model: Arc<Texts>) -> Self {
        let own = model.spans.iter().filter(|span| **span != HOLE).count();
        Self {
            own,
            size: own,
            model,
            added: Vec::new(),
            added_places: BTreeMap::new(),
            added_ids: BTreeMap::new(),
        }
    }

    /// A vocabulary whose added tokens have their ids already; `None` if two have one text.
    pub(crate) fn of_parts(model: Arc<Texts>, added: Vec<(u32, AddedToken)>) -> Option<Self> {
        let mut out = Self::bare(model);
        for (place, (id, token)) in added.iter().enumerate() {
            if u64::from(*id) >= 2 * MAX_ID {
                return None;
            }
            out.size += usize::from(out.model.id(&token.content).is_none());
            out.added_ids.entry(*id).or_insert(place);
            if out.added_places.insert(token.content.clone(), place).is_some() {
                return None;
            }
        }
        Some(Self { added, ..out })
    }

    /// The model's own part.
    pub(crate) fn model(&self) -> &Arc<Texts> {
        &self.model
    }

    /// The added tokens with their ids.
    pub(crate) fn added(&self) -> &[(u32, AddedToken)] {
        &self.added
    }

    /// Whether a token with exactly this text is an added one.
    pub(crate) fn is_added(&self, text: &str) -> bool {
        self.added_places.contains_key(text)
    }

    /// The added token with exactly this text.
    pub(crate) fn added_token(&self, text: &str) -> Option<&AddedToken> {
        self.added_places.get(text).map(|&place| &self.added[place].1)
    }

    /// Makes the added tokens with these texts special.
    pub(crate) fn make_special(&mut self, texts: &HashSet<&str>) {
        self.added.iter_mut().for_each(|(_, token)| token.special |= texts.contains(token.content.as_str()));
    }

    /// Adds a token, or changes how it matches. Returns its id and whether anything changed.
    pub(crate) fn add(&mut self, token: AddedToken) -> (u32, bool) {
        if let Some(&place) = self.added_places.get(&token.content) {
            let (id, old) = &mut self.added[place];
            let changed = *old != token;
            *old = token;
            return (*id, changed);
        }
        let id = self.model.id(&token.content).unwrap_or_else(|| {
            self.size += 1;
            let model = self.own as u32;
            let highest = self.added_ids.last_key_value();
            highest.map_or(model, |(id, _)| if *id >= model { id + 1 } else { model })
        });
        self.added_ids.entry(id).or_insert(self.added.len());
        self.added_places.insert(token.content.clone(), self.added.len());
        self.added.push((id, token));
        (id, true)
    }

    /// Id of the token with exactly this text; added tokens first.
    pub(crate) fn id(&self, text: &str) -> Option<u32> {
        self.added_places.get(text).map(|&place| self.added[place].0).or_else(|| self.model.id(text))
    }

    /// Text of a token as the vocabulary spells it; added tokens first.
    pub(crate) fn text(&self, id: u32) -> Option<&str> {
        let added = self.added_ids.get(&id).map(|&place| self.added[place].1.content.as_str());
        added.or_else(|| self.model.text(id))
    }

    /// Whether an id gives no text: that of no token, or of a special one where these are skipped. Those that are matched in
    /// normalized text are not, if they look different then.
    pub(crate) fn is_silent(&self, id: u32, skip_special: bool) -> bool {
        match self.added_ids.get(&id).map(|&place| &self.added[place].1) {
            Some(token) => skip_special && token.special && !token.normalized,
            None => self.model.text(id).is_none(),
        }
    }

    /// Number of tokens, added ones included.
    pub(crate) fn len(&self) -> usize {
        self.size
    }

    /// The added tokens as `tokenizer.json` lists them.
    pub(crate) fn added_json(&self) -> Value {
        let mut rows: Vec<_> = self.added.iter().collect();
        rows.sort_by_key(|(id, _)| *id);
        rows.iter().map(|(id, token)| token.json(*id)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vocabulary(json: &Value) -> Vocabulary {
        Vocabulary::of(Path::new("t.json"), json).unwrap()
    }

    #[test]
    fn new_tokens_get_the_next_free_id_and_known_ones_keep_theirs() {
        let mut v = vocabulary(&json!({"model": {"vocab": {"a": 0, "b": 1}}}));
        assert_eq!(v.add(AddedToken::special("<x>")), (2, true));
        assert_eq!(v.add(AddedToken::special("b")), (1, true));
        assert_eq!(v.add(AddedToken::special("<y>")), (3, true));
        assert_eq!(v.add(AddedToken::special("<x>")), (2, false));
        assert_eq!(
            (v.len(), v.id("<y>"), v.text(3), v.text(0), v.text(9)),
            (4, Some(3), Some("<y>"), Some("a"), None)
        );
        assert_eq!(v.id("b"), Some(1));
    }

    #[test]
    fn a_list_of_pieces_is_a_vocabulary_too() {
        let v = vocabulary(&json!({"model": {"vocab": [["<unk>", 0.0], ["x", -1.5]]}}));
        assert_eq!((v.len(), v.id("x"), v.text(0)), (2, Some(1), Some("<unk>")));
    }

    #[test]
    fn an_absurd_id_is_refused_before_memory_is_taken() {
        // Above all ids; and far above those that a vocabulary of one token has.
        for id in [u64::MAX, MAX_ID, MAX_SPARSE] {
            let error = Vocabulary::of(Path::new("t.json"), &json!({"model": {"vocab": {"a": id}}}));
            assert!(error.is_err(), "{id}");
        }
        assert!(
            Vocabulary::of(Path::new("t.json"), &json!({"model": {"vocab": {"a": MAX_SPARSE - 1}}})).is_ok()
        );
        // An added token from a file that was kept, before ids run out.
        let added = vec![(u32::MAX, AddedToken::special("<x>"))];
        assert!(Vocabulary::of_parts(Arc::new(Texts::default()), added).is_none());
    }
}

//! The tokens that a folder names: added ones, those with a role, and those that stand around a text.

use super::frame::surround;
use super::{SpecialToken, Tokenizer};
use crate::Result;
use crate::vocabulary::AddedToken;
use serde_json::Value;

impl Tokenizer {
    /// Adds the tokens that the folder names beside its vocabulary, and finds those that have a role.
    pub(super) fn name_tokens(&mut self) {
        self.add_named();
        // A file's own idea of a role holds where nothing else mentions it, if it is in the vocabulary.
        let own = self.source.roles();
        let known = |text: Option<String>| text.filter(|text| self.vocabulary.id(text).is_some());
        let facts = &self.facts;
        let [bos, eos, pad, unk] = std::array::from_fn(|i| {
            let passed_over = facts.of_class[i] && self.source.knows_its_roles();
            let said = facts.roles[i].clone().filter(|_| !passed_over);
            said.unwrap_or_else(|| known(own[i].clone()))
        });
        let named = |name: &str| self.facts.named(name).map(str::to_owned);
        let [sep, cls, mask] = ["sep_token", "cls_token", "mask_token"].map(named);
        let extra = self.facts.extra.iter().map(|(_, text)| text.clone());
        let listed: Vec<String> = self.facts.additional.iter().cloned().chain(extra).collect();
        self.bos = self.role(bos);
        self.eos = self.role(eos);
        self.unk = self.role(unk);
        self.role(sep);
        self.pad = self.role(pad);
        for text in [cls, mask].into_iter().flatten().chain(listed) {
            self.role(Some(text));
        }
    }

    /// Adds the tokens that the folder names beside its vocabulary. What `added_tokens_decoder` says of how a token matches wins,
    /// and what has been special remains it.
    ///
    /// # Source
    /// transformers 4.43, `PreTrainedTokenizerFast.__init__`; `tokenizers` 0.23, `AddedVocabulary::add_tokens`.
    fn add_named(&mut self) {
        let Self { facts, vocabulary, .. } = self;
        let with_role = facts.special();
        if !facts.added_in_config {
            vocabulary.make_special(&with_role);
        }
        for (_, row) in facts.added.iter().filter(|(_, row)| !row.content.is_empty()) {
            let old = vocabulary.added_token(&row.content);
            if old.is_some() && !facts.added_in_config {
                continue;
            }
            let special =
                row.special || with_role.contains(row.content.as_str()) || old.is_some_and(|old| old.special);
            vocabulary.add(AddedToken { special, ..row.clone() });
        }
    }

    /// A token with a role, added if it is none of the added tokens yet.
    fn role(&mut self, text: Option<String>) -> Option<SpecialToken> {
        let text = text?;
        if !self.vocabulary.is_added(&text) {
            self.vocabulary
                .add(self.facts.described.get(&text).cloned().unwrap_or_else(|| AddedToken::special(&text)));
        }
        Some(SpecialToken { id: self.vocabulary.id(&text)?, text })
    }

    /// Whether a text begins with an added token that is none of the named ones.
    ///
    /// # Source
    /// transformers 4.57, `models/llama/tokenization_llama.py`, `tokenize`.
    pub(super) fn begins_without_role(&self, text: &str) -> bool {
        let added = self.vocabulary.added().iter().map(|(_, token)| token.content.as_str());
        let longest = added.filter(|&token| text.starts_with(token)).max_by_key(|token| token.len());
        let Self { bos, eos, pad, unk, facts, .. } = self;
        let roles = [bos, eos, pad, unk].into_iter().flatten().map(|token| &token.text);
        let more = facts.more_roles.iter().map(|(_, text)| text);
        let extra = facts.extra.iter().map(|(_, text)| text);
        let mut named = roles.chain(more).chain(&facts.additional).chain(extra);
        longest.is_some_and(|token| named.all(|name| name != token))
    }

    /// The definition with the added tokens of now and what stands around a text.
    pub(super) fn fitted(&self, mut definition: Value) -> Result<Value> {
        definition["added_tokens"] = self.vocabulary.added_json();
        if let Some((add_bos, add_eos)) = self.surround {
            let prefix = self.facts.class_prefix.iter();
            let prefix = prefix
                .filter_map(|&text| Some(SpecialToken { id: self.vocabulary.id(text)?, text: text.into() }));
            let (bos, eos) = if self.facts.separates() {
                let token = |name| {
                    let text = self.facts.named(name)?.to_owned();
                    Some(SpecialToken { id: self.vocabulary.id(&text)?, text })
                };
                (token("cls_token"), token("sep_token"))
            } else {
                (self.bos.clone(), self.eos.clone())
            };
            let before: Vec<SpecialToken> = prefix.chain(bos.filter(|_| add_bos)).collect();
            definition["post_processor"] = surround(&before, eos.as_ref().filter(|_| add_eos));
        }
        Ok(definition)
    }
}

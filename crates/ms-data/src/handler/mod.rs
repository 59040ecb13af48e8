//! Handlers: records to rows of tokens, as upstream's handlers make them.
//!
//! A [`Handler`] holds everything a record needs: its kind, the tokenizer (already fitted to the prompt template), the names
//! of the fields. [`Handler::encode`] is pure, so records can be encoded on any number of threads.
//!
//! Source: MindSpeed-LLM v2.0.0 `mindspeed_llm/tasks/preprocess/{data_handler,utils}.py`.

mod align;
mod alignment;
mod conversation;
mod dataset_info;
mod fields;
mod framed;
mod kind;
mod openai;
mod reward;
mod strict;
mod text;

#[cfg(test)]
mod tests;

pub use dataset_info::{DescribedSet, described_sets};
pub use fields::FieldMap;
pub use kind::RecordKind;

pub use crate::row::Row;
use crate::sink::Level;
use crate::{Error, Reason, Result, Upstream};
use align::Reading;
use alignment::Alignment;
use ms_text::Tokenizer;
use ms_text::sentence::SentenceSplitter;
use ms_text::template::{Effort, Template};
use serde_json::{Map, Value};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The options of a handler; the rest follows from its [`RecordKind`].
#[derive(Clone, Debug)]
pub struct HandlerOptions {
    /// What the records are.
    pub kind: RecordKind,
    /// `--prompt-type`.
    pub prompt_type: Option<String>,
    /// `--prompt-type-path`.
    pub prompt_type_path: Option<PathBuf>,
    /// `--map-keys`.
    pub map_keys: Option<Map<String, Value>>,
    /// `--json-keys`; for pretraining.
    pub json_keys: Vec<String>,
    /// `--split-sentences`: texts become a sequence per sentence, and file names say `sentence` whatever the records are.
    pub sentences: Option<Arc<SentenceSplitter>>,
    /// `--append-eod`.
    pub append_eod: bool,
    /// `--seq-length`.
    pub seq_length: Option<usize>,
    /// `--neat-pack`; at upstream's head it shortens turns.
    pub neat_pack: bool,
    /// `--pad-to-multiple-of`; at upstream's head, pretraining.
    pub pad_to_multiple_of: usize,
    /// `--dataset-additional-keys`; for the R1 kinds.
    pub additional_keys: Vec<String>,
    /// `--placeholder-token`; for process rewards.
    pub placeholder_token: String,
    /// `--reward-tokens`; for process rewards.
    pub reward_tokens: Vec<String>,
    /// `--enable-thinking`; for templates of reasoning models.
    pub enable_thinking: Option<bool>,
    /// `--reasoning-effort`; for DeepSeek-V4.
    pub reasoning_effort: Option<Effort>,
    /// `--drop-thinking`; for DeepSeek-V4.
    pub drop_thinking: bool,
    /// Whether what upstream does silently is an error: records left out or replaced, texts that vanish.
    pub strict: bool,
    /// Fields of the records of each input file, in file order; empty if [`HandlerOptions::map_keys`] says it for all.
    /// For several sets of a `dataset_info.json`.
    pub fields_of_files: Vec<FieldMap>,
    /// Whose behaviour to follow.
    pub upstream: Upstream,
}

impl HandlerOptions {
    /// Upstream's defaults for one kind of records.
    pub fn new(kind: RecordKind) -> Self {
        Self {
            kind,
            prompt_type: None,
            prompt_type_path: None,
            map_keys: None,
            json_keys: vec!["text".into()],
            sentences: None,
            append_eod: false,
            seq_length: None,
            neat_pack: false,
            pad_to_multiple_of: 1,
            additional_keys: Vec::new(),
            placeholder_token: "ки".into(),
            reward_tokens: Vec::new(),
            enable_thinking: None,
            reasoning_effort: None,
            drop_thinking: true,
            strict: false,
            fields_of_files: Vec::new(),
            upstream: Upstream::V2_0_0,
        }
    }
}

/// What became of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Encoded {
    /// It became a row.
    Row(Row),
    /// It became several sequences of one document.
    Rows(Vec<Row>),
    /// It is not a conversation; upstream puts an empty one in its place.
    Replaced(Row),
    /// It has no prompt or no answer and is left out.
    Dropped,
}

/// The meaning of the records' fields, which decides which records become rows.
#[derive(Debug)]
pub struct Alignments {
    kind: RecordKind,
    fields: FieldMap,
    /// By the number of the input file; empty if all have the same fields.
    of_files: Vec<FieldMap>,
}

impl Alignments {
    /// Whether a record of the input file with the number `file` becomes a row at all.
    ///
    /// # Errors
    /// What is wrong with the record.
    pub fn keeps(&self, record: &Map<String, Value>, file: u32) -> std::result::Result<bool, Reason> {
        Ok(!self.kind.aligned() || matches!(self.align(record, file)?, Alignment::Conversation(..)))
    }

    /// Why a record of the input file with the number `file` becomes no row; `None` if it becomes one.
    pub fn why_not(&self, record: &Map<String, Value>, file: u32) -> Option<String> {
        if !self.kind.aligned() {
            return None;
        }
        match self.align(record, file) {
            Ok(Alignment::Conversation(..)) => None,
            Ok(Alignment::Dropped(reason)) => Some(reason.to_owned()),
            Err(reason) => Some(reason.to_string()),
        }
    }

    fn align(&self, record: &Map<String, Value>, file: u32) -> std::result::Result<Alignment, Reason> {
        let reading = match self.kind {
            RecordKind::OpenAiInstruction => Reading::OpenAi,
            RecordKind::Hunyuan => Reading::Threes,
            kind if kind.ranking() => Reading::Ranking,
            _ => Reading::Plain,
        };
        self.of_files.get(file as usize).unwrap_or(&self.fields).align(record, reading)
    }
}

/// Turns records into rows.
pub struct Handler {
    options: HandlerOptions,
    tokenizer: Tokenizer,
    template: Option<Template>,
    alignments: Arc<Alignments>,
    columns: Vec<String>,
    reward: Option<reward::Reward>,
    hunyuan: Option<conversation::Spans>,
    /// Set when a record's tools were first left out.
    tools_lost: AtomicBool,
}

impl Handler {
    /// Fits the tokenizer to the options.
    ///
    /// # Errors
    /// [`Error::Options`] if something is missing or makes no sense for this kind; [`Error::Text`] for the template and
    /// for a tokenizer without an end-of-sequence token.
    pub fn new(options: HandlerOptions, mut tokenizer: Tokenizer) -> Result<Self> {
        let kind = options.kind;
        if kind.head_only() && options.upstream == Upstream::V2_0_0 {
            return Err(Error::options(format!(
                "{} records exist only at upstream's head\nhint: pass --upstream head",
                kind.name()
            )));
        }
        let template = match (&options.prompt_type, &options.prompt_type_path) {
            (None, _) if kind.needs_template() => {
                return Err(Error::options(format!(
                    "{} records need a prompt template\nhint: pass --prompt-type, such as --prompt-type qwen",
                    kind.name()
                )));
            }
            (None, _) => None,
            (Some(_), _) if !kind.takes_template() => {
                return Err(Error::options(format!(
                    "--prompt-type has no meaning for {} records",
                    kind.name()
                )));
            }
            (Some(name), Some(path)) => Some(Template::from_file(name, path)?),
            (Some(name), None) => Some(Template::named(name)?),
        };
        let template = template.map(|template| Template {
            thinking: options.enable_thinking,
            effort: options.reasoning_effort,
            // Upstream creates the template with its tokenizer; only its instruction handlers change it, if an effort is
            // requested.
            drop_thinking: options.drop_thinking || options.reasoning_effort.is_none() || !kind.packable(),
            ..template
        });
        match &template {
            Some(template) if template.head_only && options.upstream == Upstream::V2_0_0 => {
                return Err(Error::options(format!(
                    "the prompt template {} exists only at upstream's head\nhint: pass --upstream head",
                    template.name
                )));
            }
            Some(template) => template.adjust(&mut tokenizer)?,
            None => tokenizer.pad_with_eos(),
        }
        // Upstream's wrapper refuses a tokenizer without an end of sequence, whether it is used or not.
        tokenizer.eod()?;
        if options.pad_to_multiple_of == 0 {
            return Err(Error::options("documents cannot be padded to a multiple of 0 tokens"));
        }
        let alignments = Arc::new(Alignments {
            kind,
            fields: FieldMap::new(kind, options.map_keys.as_ref())?,
            of_files: options.fields_of_files.clone(),
        });
        let reward = match kind {
            RecordKind::ProcessReward => {
                Some(reward::Reward::new(&tokenizer, &options.placeholder_token, &options.reward_tokens)?)
            }
            _ => None,
        };
        let hunyuan = match kind {
            RecordKind::Hunyuan => Some(conversation::Spans::new(&tokenizer)?),
            _ => None,
        };
        if let (true, Some(template)) = (options.strict, &template) {
            strict::check_template(template, &tokenizer)?;
        }
        tokenizer.ready()?;
        let columns = kind.columns(&options);
        if columns.is_empty() {
            return Err(Error::options("no field to tokenize: --json-keys is empty"));
        }
        let tools_lost = AtomicBool::new(false);
        Ok(Self { options, tokenizer, template, alignments, columns, reward, hunyuan, tools_lost })
    }

    /// What the records are.
    pub fn kind(&self) -> RecordKind {
        self.options.kind
    }

    /// What it was made of.
    pub fn options(&self) -> &HandlerOptions {
        &self.options
    }

    /// Names of the columns of every row, which are also the keys in file names.
    pub fn columns(&self) -> &[String] {
        &self.columns
    }

    /// What a sequence is, as file names say it.
    pub fn level(&self) -> Level {
        if self.options.sentences.is_some() { Level::Sentence } else { Level::Document }
    }

    /// The tokenizer, fitted to the prompt template.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Whether a record of the input file with the number `file` becomes a row at all, without tokenizing it.
    ///
    /// # Errors
    /// What is wrong with the record.
    pub fn keeps(&self, record: &Map<String, Value>, file: u32) -> std::result::Result<bool, Reason> {
        self.alignments.keeps(record, file)
    }

    /// What decides whether records become rows, without the tokenizer.
    pub fn alignments(&self) -> &Arc<Alignments> {
        &self.alignments
    }

    /// Encodes a record, of whatever file if all files have the same fields.
    ///
    /// # Errors
    /// Those of [`Handler::encode_from`].
    pub fn encode(&self, record: &Map<String, Value>) -> std::result::Result<Encoded, Reason> {
        self.encode_from(record, 0)
    }

    /// Encodes a record of the input file with the number `file`.
    ///
    /// # Errors
    /// What is wrong with the record: a field that is missing, null or of the wrong type; with [`HandlerOptions::strict`]
    /// also what upstream would do to it silently.
    pub fn encode_from(
        &self,
        record: &Map<String, Value>,
        file: u32,
    ) -> std::result::Result<Encoded, Reason> {
        let encoded = match self.options.kind {
            RecordKind::Pretrain => self.pretrain(record),
            RecordKind::AlpacaPretrain => self.alpaca_pretrain(record),
            RecordKind::StackOverflowPretrain => self.stack_overflow(record),
            RecordKind::SharegptPretrain => self.sharegpt_pretrain(record),
            RecordKind::GeneralInstruction => self.general_instruction(record).map(Encoded::Row),
            RecordKind::BelleMultiTurn => self.belle(record).map(Encoded::Row),
            RecordKind::LeetcodePython => self.leetcode(record).map(Encoded::Row),
            RecordKind::MossMultiTurn => self.moss_multi_turn(record).map(Encoded::Row),
            RecordKind::MossInstruction => self.moss(record).map(Encoded::Rows),
            RecordKind::ProcessReward => self.process_reward(record).map(Encoded::Row),
            _ => self.conversation(record, file),
        }?;
        if self.options.strict {
            self.check_encoded(&encoded)?;
        }
        Ok(encoded)
    }

    /// The field whose text is all that it reads of a record, if there is only one.
    pub(crate) fn only_field(&self) -> Option<&str> {
        match &self.columns[..] {
            [key] if self.options.kind == RecordKind::Pretrain => Some(key),
            _ => None,
        }
    }

    /// Encodes the text of [`Handler::only_field`], as [`Handler::encode_from`] does a record that has it.
    ///
    /// # Errors
    /// Those of [`Handler::encode_from`].
    pub(crate) fn encode_text(&self, text: &str) -> std::result::Result<Encoded, Reason> {
        let encoded = self.documents(std::iter::once(Ok(text)))?;
        if self.options.strict {
            self.check_encoded(&encoded)?;
        }
        Ok(encoded)
    }

    fn conversation(&self, record: &Map<String, Value>, file: u32) -> std::result::Result<Encoded, Reason> {
        let aligned = match self.alignments.align(record, file)? {
            Alignment::Conversation(aligned, oddity) => {
                if self.options.strict {
                    self.check_conversation(&aligned, oddity)?;
                } else if !self.tools_lost.load(Ordering::Relaxed)
                    && let Some(template) = self.loses_tools(&aligned)
                    && !self.tools_lost.swap(true, Ordering::Relaxed)
                {
                    tracing::warn!(
                        "tools of a record are not in a form that the template {template} describes: they vanish, as upstream"
                    );
                }
                aligned
            }
            Alignment::Dropped(reason) if self.options.strict => {
                return Err(format!("{reason}; upstream leaves such a record out").into());
            }
            Alignment::Dropped(_) => return Ok(Encoded::Dropped),
        };
        match self.options.kind {
            RecordKind::AlpacaPairwise | RecordKind::SharegptPairwise => self.pairwise(&aligned),
            RecordKind::AlpacaPrompts => self.prompts(&aligned),
            RecordKind::AlpacaR1 | RecordKind::SharegptR1 => self.r1(&aligned, record),
            RecordKind::Hunyuan => self.hunyuan(&aligned),
            _ => self.instruction(&aligned),
        }
    }

    fn template(&self) -> std::result::Result<&Template, Reason> {
        self.template.as_ref().ok_or_else(|| "the handler has no prompt template".into())
    }

    fn eos(&self) -> std::result::Result<i32, Reason> {
        self.tokenizer.eod().map(|id| id as i32).map_err(|e| e.to_string().into())
    }

    /// Ids of a text with what the tokenizer puts around it.
    fn framed(&self, text: &str) -> std::result::Result<Vec<i32>, Reason> {
        self.tokenizer.encode_with_special(text).map(signed).map_err(|e| e.to_string().into())
    }

    /// Ids of a text alone.
    fn plain(&self, text: &str) -> std::result::Result<Vec<i32>, Reason> {
        self.tokenizer.encode(text).map(signed).map_err(|e| e.to_string().into())
    }
}

fn three_columns(ids: Vec<i32>, labels: Vec<i32>) -> Row {
    let mask = vec![1; ids.len()];
    Row::new(vec![Some(ids), Some(mask), Some(labels)])
}

/// Ids are below 2^31: vocabularies are.
fn signed(ids: Vec<u32>) -> Vec<i32> {
    bytemuck::cast_vec(ids)
}

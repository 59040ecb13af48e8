//! Items of a fine-tuning dataset and their training rows.

use super::cut::{cut_pair, cut_turns};
use super::{IGNORED, Order, index_file, order};
use crate::indexed::IndexedDataset;
use crate::random::PythonRandom;
use crate::samples::check_index;
use crate::split::NAMES;
use crate::{Error, Result, Sample, Samples, Split};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What the stored sequences are and how they become rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// One conversation each; long ones are cut in proportion, turn by turn. `closing`: the template has `efficient_eos`.
    Conversation {
        /// The template trains one end-of-sequence id at the very end.
        closing: bool,
    },
    /// One sample each; long ones are cut at the end (`--cut-max-seqlen`, process reward sets).
    CutAtEnd,
    /// Packs, which v2.0.0 takes by `--reset-position-ids` and the head by `--reset-attention-mask`: what was packed together
    /// attends apart.
    Packed {
        /// The attention mask numbers the samples of a pack from 1, as `--neat-pack` makes it.
        neat: bool,
        /// Positions start again with each sample, `--reset-position-ids`; else they count through the row.
        restart: bool,
    },
    /// Preference pairs (`--is-pairwise-dataset`).
    Pairs,
}

/// How a fine-tuning dataset is read.
#[derive(Clone, Debug)]
pub struct SftOptions {
    /// Longest row: `--seq-length`, plus the multi-token-prediction layers at v2.0.0.
    pub row_tokens: usize,
    /// Form of the stored sequences.
    pub form: Form,
    /// End-of-sequence id, at which positions restart in packs.
    pub eos: i32,
    /// Order of sequences.
    pub order: Order,
    /// Repeat upstream's defect that puts −100 into the input ids of over-long conversations with a closing end of
    /// sequence. Only to compare with upstream: such rows cannot be trained on.
    pub negative_ids_as_upstream: bool,
    /// Whether orders are read from files next to the data, where upstream has them, and written if missing. Not with
    /// [`Order::full_shuffle`], which their names do not encode.
    pub index_files: bool,
}

/// What is stored for one number, cut, and in upstream's terms: labels are not shifted, −100 is ignored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SftItem {
    /// Input ids; for pairs the chosen ones.
    pub input_ids: Vec<i32>,
    /// Labels, aligned with the inputs.
    pub labels: Vec<i32>,
    /// 1, or the number of the sample inside a neat pack, 0 for its padding.
    pub attention_mask: Vec<i32>,
    /// For packs.
    pub position_ids: Option<Vec<i32>>,
    /// For packs: where each of its samples but the last ends.
    pub ends: Vec<i32>,
    /// For pairs: ids and labels of the rejected answer.
    pub rejected: Option<(Vec<i32>, Vec<i32>)>,
}

/// One split of a fine-tuning dataset, with its order.
pub struct SftDataset {
    columns: Vec<IndexedDataset>,
    order: Vec<i64>,
    options: SftOptions,
}

/// The parts of `P` that are opened.
fn column_names(form: Form) -> &'static [&'static str] {
    match form {
        Form::Pairs => &["chosen_input_ids", "chosen_labels", "rejected_input_ids", "rejected_labels"],
        Form::Packed { neat: true, .. } => &["input_ids", "labels", "attention_mask"],
        _ => &["input_ids", "labels"],
    }
}

/// Prefixes of the indexed datasets that hold the input ids of the fine-tuning datasets that `--data-path` names.
///
/// # Errors
/// [`Error::Options`] for a list that mixes forms.
pub fn input_prefixes(paths: &[String], options: &SftOptions) -> Result<Vec<PathBuf>> {
    let list = crate::gpt::BlendList::parse(paths)?;
    let names = column_names(options.form).iter().filter(|name| name.ends_with("input_ids"));
    let of_set = |prefix: &PathBuf| names.clone().map(|name| column_prefix(prefix, name)).collect::<Vec<_>>();
    Ok(list.prefixes.iter().flat_map(of_set).collect())
}

impl SftDataset {
    /// Opens `PREFIX_packed_KEY_document` for the keys that `form` needs and gives the three splits, `samples[k]` rows each
    /// (rounded up to whole epochs). `None` where a split is empty.
    ///
    /// # Errors
    /// What opening a dataset returns; [`Error::Mismatch`] if the keys do not agree in number and lengths of sequences;
    /// [`Error::Options`] if there are too few to fill a batch with.
    pub fn open(
        prefix: impl AsRef<Path>,
        split: &Split,
        samples: [u64; 3],
        options: &SftOptions,
    ) -> Result<[Option<Arc<Self>>; 3]> {
        let prefix = prefix.as_ref();
        let open = || -> Result<Vec<IndexedDataset>> {
            let columns = column_names(options.form)
                .iter()
                .map(|key| IndexedDataset::open(column_prefix(prefix, key)))
                .collect::<Result<Vec<_>>>()?;
            check_agreement(&columns, options.form)?;
            Ok(columns)
        };
        let count = open()?[0].len();
        let mut rng = PythonRandom::new(options.order.seed.into());
        let mut out = [None, None, None];
        for (which, range) in split.finetuning_ranges(count).into_iter().enumerate() {
            let Some(range) = range.filter(|_| samples[which] > 0) else { continue };
            tracing::debug!(split = NAMES[which], sequences = range.len(), "fine-tuning set");
            let order = ordered(prefix, which, range, samples[which], options, &mut rng)?;
            // Filling counts from 0, whatever there is.
            if let (Some(batch), Some(last)) = (options.order.fill_to, order.iter().max())
                && *last >= count as i64
            {
                return Err(Error::options(format!(
                    "--padded-samples: filling a batch of {batch} takes sequences 0 to {last}, and {} has {count}",
                    prefix.display()
                )));
            }
            out[which] = Some(Arc::new(Self { columns: open()?, order, options: options.clone() }));
        }
        Ok(out)
    }

    /// Number of sequences of the set at `prefix`.
    pub(super) fn sequences_of(prefix: &Path, options: &SftOptions) -> Result<usize> {
        Ok(IndexedDataset::open(column_prefix(prefix, column_names(options.form)[0]))?.len())
    }

    /// Sequence number of each row.
    pub fn order(&self) -> &[i64] {
        &self.order
    }

    /// The item of row `index`, in upstream's terms.
    ///
    /// # Errors
    /// [`Error::NoSuchSample`]; what reading gives.
    pub fn item(&self, index: u64) -> Result<SftItem> {
        check_index(index, self.order.len() as u64)?;
        let sequence = self.order[index as usize] as usize;
        let column = |key: usize| -> Result<Vec<i32>> {
            let mut out = Vec::new();
            self.columns[key].read(sequence, &mut out)?;
            Ok(out)
        };
        let room = self.options.row_tokens;
        match self.options.form {
            Form::Pairs => {
                let (chosen, rejected) = cut_pair(&column(0)?, &column(1)?, &column(2)?, room);
                let attention_mask = vec![1; chosen.0.len()];
                Ok(SftItem {
                    input_ids: chosen.0,
                    labels: chosen.1,
                    attention_mask,
                    rejected: Some(rejected),
                    ..SftItem::default()
                })
            }
            Form::Conversation { closing } => {
                let as_upstream = self.options.negative_ids_as_upstream;
                let (input_ids, labels) = cut_turns(&column(0)?, &column(1)?, room, closing, as_upstream);
                Ok(SftItem {
                    attention_mask: vec![1; input_ids.len()],
                    input_ids,
                    labels,
                    ..SftItem::default()
                })
            }
            Form::CutAtEnd | Form::Packed { .. } => {
                let (mut input_ids, mut labels) = (column(0)?, column(1)?);
                input_ids.truncate(room);
                labels.truncate(room);
                let neat = matches!(self.options.form, Form::Packed { neat: true, .. });
                let mut attention_mask = if neat { column(2)? } else { vec![1; input_ids.len()] };
                attention_mask.truncate(room);
                let (mut position_ids, mut ends) = (None, Vec::new());
                if let Form::Packed { neat, restart } = self.options.form {
                    let inside = if neat {
                        positions_by_mask(&attention_mask)
                    } else {
                        positions_by_eos(&input_ids, self.options.eos)
                    };
                    let length = inside.len() as i32;
                    ends = (1..length).filter(|&i| inside[i as usize] == 0).collect();
                    position_ids = Some(if restart { inside } else { (0..length).collect() });
                }
                Ok(SftItem { input_ids, labels, attention_mask, position_ids, ends, rejected: None })
            }
        }
    }
}

/// The order of one split, from its file or built.
fn ordered(
    prefix: &Path,
    which: usize,
    range: Range<usize>,
    samples: u64,
    options: &SftOptions,
    rng: &mut PythonRandom,
) -> Result<Vec<i64>> {
    let how = &options.order;
    // The files' names do not say that an order is fully shuffled.
    let index_files = options.index_files && !how.full_shuffle;
    if index_files && let Some(order) = index_file::read(prefix, NAMES[which], &range, samples, how) {
        return Ok(order);
    }
    let mut order = order(range, samples, how);
    if how.full_shuffle {
        rng.shuffle(&mut order);
    }
    if index_files {
        index_file::write(prefix, NAMES[which], samples, how, &order)?;
    }
    Ok(order)
}

impl Samples for SftDataset {
    fn len(&self) -> u64 {
        self.order.len() as u64
    }

    fn get(&self, index: u64) -> Result<Sample> {
        let item = self.item(index)?;
        let rejected = item.rejected.map(|(ids, labels)| Box::new(row(ids, &labels, None)));
        let packed = item.position_ids.map(|positions| (positions, item.ends));
        Ok(Sample { rejected, ..row(item.input_ids, &item.labels, packed) })
    }

    fn row_tokens(&self, index: u64) -> Option<usize> {
        let packed = matches!(self.options.form, Form::Packed { .. });
        let sequence = self.order.get(index as usize).filter(|_| packed).map(|&sequence| sequence as usize);
        let sequence = sequence.filter(|&sequence| sequence < self.columns[0].len())?;
        Some(self.columns[0].length(sequence).min(self.options.row_tokens))
    }
}

/// Shifts labels by one: upstream drops the first label and the last logit, here both stay and the last is masked. `packed`: the
/// positions, and where each sample but the last ends.
pub(crate) fn row(tokens: Vec<i32>, labels: &[i32], packed: Option<(Vec<i32>, Vec<i32>)>) -> Sample {
    let next: Vec<i32> = labels.iter().skip(1).copied().chain([IGNORED]).take(tokens.len()).collect();
    let length = tokens.len() as i32;
    let (position_ids, mut segment_ends) = packed.unwrap_or_else(|| ((0..length).collect(), Vec::new()));
    segment_ends.push(length);
    Sample {
        loss_mask: next.iter().map(|&label| if label == IGNORED { 0.0 } else { 1.0 }).collect(),
        labels: next.into_iter().map(|label| if label == IGNORED { 0 } else { label }).collect(),
        tokens,
        position_ids,
        segment_ends,
        rejected: None,
    }
}

/// Positions count up inside each numbered sample; padding (0) has position 0.
fn positions_by_mask(mask: &[i32]) -> Vec<i32> {
    // A file may number its samples as it likes.
    let mut lengths = BTreeMap::new();
    for sample in mask.iter().filter(|sample| **sample > 0) {
        *lengths.entry(*sample).or_insert(0i32) += 1;
    }
    // As upstream: all of sample 1, all of sample 2, …, then the padding; packs store them in that order.
    let mut out: Vec<i32> = lengths.into_values().flat_map(|length| 0..length).collect();
    out.resize(mask.len(), 0);
    out
}

/// Positions restart after every end of sequence, also those that close a turn inside a conversation.
fn positions_by_eos(ids: &[i32], eos: i32) -> Vec<i32> {
    let mut position = 0;
    ids.iter()
        .map(|&id| {
            let here = position;
            position = if id == eos { 0 } else { position + 1 };
            here
        })
        .collect()
}

/// `PREFIX_packed_KEY_document`.
pub(crate) fn column_prefix(prefix: &Path, key: &str) -> PathBuf {
    // The name of one of the columns, or of one of its files, means the set.
    let text = prefix.to_string_lossy();
    let text = text.strip_suffix(".bin").or(text.strip_suffix(".idx")).unwrap_or(&text);
    let whole =
        text.strip_suffix("_document").and_then(|text| text.rsplit_once("_packed_")).map(|(set, _)| set);
    let mut name = match whole {
        Some(set) => set.into(),
        None => prefix.as_os_str().to_os_string(),
    };
    name.push(format!("_packed_{key}_document"));
    name.into()
}

fn check_agreement(columns: &[IndexedDataset], form: Form) -> Result<()> {
    let mismatch = |set: &IndexedDataset, what, want: usize, found: usize| Error::Mismatch {
        path: set.prefix().into(),
        what,
        want: want.to_string(),
        found: found.to_string(),
    };
    for set in &columns[1..] {
        if set.len() != columns[0].len() {
            return Err(mismatch(set, "number of sequences", columns[0].len(), set.len()));
        }
    }
    let pairs: &[(usize, usize)] = match form {
        Form::Pairs => &[(0, 1), (2, 3)],
        Form::Packed { neat: true, .. } => &[(0, 1), (0, 2)],
        _ => &[(0, 1)],
    };
    for &(ids, other) in pairs {
        for i in 0..columns[ids].len() {
            let (want, found) = (columns[ids].length(i), columns[other].length(i));
            if want != found {
                return Err(mismatch(&columns[other], "tokens of a sequence", want, found));
            }
        }
    }
    Ok(())
}

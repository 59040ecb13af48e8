//! Ready samples in a safetensors file (`--data-path F.safetensors`).

use crate::samples::check_index;
use crate::sft;
use crate::{Documents, Error, Result, Sample, Samples};
use ms_files::{Mapped, safetensors};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Samples in the order of the file.
///
/// Either `tokens` `[iterations, global batch, S+1]` (row: first `S` are inputs, last `S` targets) and an optional
/// `loss_mask` `[iterations, global batch, S]`; or preference pairs, `chosen_input_ids`, `chosen_labels`,
/// `rejected_input_ids`, `rejected_labels` `[iterations, global batch, S]` with labels not shifted and −100 ignored.
/// Ids are int32 or int64; the mask is any of int8, uint8, bool, int32, float32.
pub struct SafetensorsSamples {
    path: PathBuf,
    file: Mapped,
    shape: [usize; 3],
    form: Form,
    documents: Option<Documents>,
}

enum Form {
    Plain { tokens: Column, loss_mask: Option<Column> },
    Pairs([Column; 4]),
}

/// A tensor's place in the file.
struct Column {
    /// As files spell it.
    dtype: String,
    bytes: Range<usize>,
    /// Numbers of one sample.
    row: usize,
}

impl SafetensorsSamples {
    /// Opens and checks a file.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Input`] if it is not such a file.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let bad = |reason: String| Error::Input { path: path.into(), reason };
        let file = Mapped::open(path)?;
        let bytes = file.bytes();
        let tensors =
            safetensors::header(bytes).map_err(|e| bad(format!("not a safetensors file: {e}")))?.tensors;
        let column = |name: &str, dtypes: &[&str]| -> Result<([usize; 3], Column)> {
            let found = tensors.iter().find(|t| t.name == name);
            let t = found.ok_or_else(|| bad(format!("no tensor {name:?}")))?;
            let &[iterations, batch, row] = &t.shape[..] else {
                return Err(bad(format!("{name}: expected three dimensions, found shape {:?}", t.shape)));
            };
            if !dtypes.contains(&t.dtype.as_str()) {
                let expected = dtypes.join(", ");
                return Err(bad(format!("{name}: expected one of {expected}, found {}", t.dtype)));
            }
            let column = Column { dtype: t.dtype.clone(), bytes: t.start..t.end, row };
            Ok(([iterations, batch, row], column))
        };
        let ids = ["I32", "I64"];
        let masks = ["I8", "U8", "BOOL", "I32", "F32"];
        let names: Vec<&str> = tensors.iter().map(|t| t.name.as_str()).collect();
        let has = |name: &str| names.contains(&name);
        let same = |name: &str, want: [usize; 3], found: [usize; 3]| {
            if want == found {
                Ok(())
            } else {
                Err(bad(format!("{name}: expected shape {want:?}, found {found:?}")))
            }
        };
        let (shape, form) = if has("tokens") {
            let (mut shape, tokens) = column("tokens", &ids)?;
            if shape[2] < 2 {
                return Err(bad(format!("tokens: expected rows of at least 2, found {}", shape[2])));
            }
            shape[2] -= 1;
            let mut loss_mask = None;
            if has("loss_mask") {
                let (found, mask) = column("loss_mask", &masks)?;
                same("loss_mask", shape, found)?;
                loss_mask = Some(mask);
            }
            (shape, Form::Plain { tokens, loss_mask })
        } else if has("chosen_input_ids") {
            let (shape, chosen) = column("chosen_input_ids", &ids)?;
            let more = |name: &str| -> Result<Column> {
                let (found, column) = column(name, &ids)?;
                same(name, shape, found)?;
                Ok(column)
            };
            let columns =
                [chosen, more("chosen_labels")?, more("rejected_input_ids")?, more("rejected_labels")?];
            (shape, Form::Pairs(columns))
        } else {
            return Err(bad(format!("expected a tensor tokens or chosen_input_ids, found {names:?}")));
        };
        Ok(Self { path: path.into(), file, shape, form, documents: None })
    }

    /// The same rows, with what the flags about documents ask for. Without it a row is one document.
    pub fn with_documents(mut self, documents: Option<Documents>) -> Self {
        self.documents = documents;
        self
    }

    /// Iterations, global batch size, and tokens of a row (`S`).
    pub fn shape(&self) -> [usize; 3] {
        self.shape
    }

    /// Whether the samples are preference pairs.
    pub fn holds_pairs(&self) -> bool {
        matches!(self.form, Form::Pairs(_))
    }

    fn ids(&self, column: &Column, index: usize) -> Result<Vec<i32>> {
        let bytes = &self.file.bytes()[column.bytes.clone()];
        if column.dtype == "I32" {
            let row = &bytes[index * column.row * 4..(index + 1) * column.row * 4];
            return Ok(row
                .chunks_exact(4)
                .map(|b| i32::from_le_bytes(b.try_into().expect("four bytes")))
                .collect());
        }
        let row = &bytes[index * column.row * 8..(index + 1) * column.row * 8];
        row.chunks_exact(8)
            .map(|b| {
                let value = i64::from_le_bytes(b.try_into().expect("eight bytes"));
                i32::try_from(value).map_err(|_| Error::TokenRange {
                    path: self.path.clone(),
                    value,
                    dtype: "int32",
                })
            })
            .collect()
    }

    /// What each token of a row counts.
    ///
    /// # Errors
    /// For less than nothing, and for what is no finite number.
    fn mask(&self, column: &Column, index: usize) -> Result<Vec<f32>> {
        let size = if matches!(column.dtype.as_str(), "I32" | "F32") { 4 } else { 1 };
        let bytes = &self.file.bytes()[column.bytes.clone()];
        let row = &bytes[index * column.row * size..(index + 1) * column.row * size];
        let mask: Vec<f32> = match column.dtype.as_str() {
            "F32" => {
                row.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().expect("four bytes"))).collect()
            }
            "I32" => row
                .chunks_exact(4)
                .map(|b| i32::from_le_bytes(b.try_into().expect("four bytes")) as f32)
                .collect(),
            "I8" => row.iter().map(|&b| f32::from(b as i8)).collect(),
            _ => row.iter().map(|&b| f32::from(b)).collect(),
        };
        match mask.iter().find(|weight| !(weight.is_finite() && **weight >= 0.0)) {
            Some(weight) => Err(Error::Input {
                path: self.path.clone(),
                reason: format!(
                    "loss_mask of row {index}: expected finite numbers from 0 on, found {weight}"
                ),
            }),
            None => Ok(mask),
        }
    }
}

impl Samples for SafetensorsSamples {
    fn len(&self) -> u64 {
        (self.shape[0] * self.shape[1]) as u64
    }

    fn get(&self, index: u64) -> Result<Sample> {
        check_index(index, self.len())?;
        let index = index as usize;
        match &self.form {
            Form::Plain { tokens, loss_mask } => {
                let text = self.ids(tokens, index)?;
                let rows = text.len() - 1;
                let tokens = text[..rows].to_vec();
                let mut loss_mask = match loss_mask {
                    Some(mask) => self.mask(mask, index)?,
                    None => vec![1.0; rows],
                };
                let mut position_ids: Vec<i32> = (0..rows as i32).collect();
                let segment_ends = match self.documents {
                    Some(documents) => documents.mark(&tokens, None, &mut position_ids, &mut loss_mask),
                    None => vec![rows as i32],
                };
                let labels = text[1..].to_vec();
                Ok(Sample { tokens, labels, loss_mask, position_ids, segment_ends, rejected: None })
            }
            Form::Pairs([chosen, chosen_labels, rejected, rejected_labels]) => {
                let row = |ids: &Column, labels: &Column| -> Result<Sample> {
                    Ok(sft::row(self.ids(ids, index)?, &self.ids(labels, index)?, None))
                };
                let rejected = Some(Box::new(row(rejected, rejected_labels)?));
                Ok(Sample { rejected, ..row(chosen, chosen_labels)? })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_training_goldens_open_and_read_in_row_order() {
        for (case, pairs) in [("dense", false), ("masked", false), ("llama-tiny-dpo", true)] {
            let file = format!("train/{case}/data.safetensors");
            let Some(path) = ms_testing::golden_or_shared(&file) else {
                assert!(case.contains("tiny"), "{case} is the repository's own");
                continue;
            };
            let set = SafetensorsSamples::open(&path).unwrap();
            let (tensors, _) = ms_testing::read_golden(&path);
            let name = if pairs { "chosen_input_ids" } else { "tokens" };
            let golden = &tensors[name];
            let row = golden.shape[2];
            assert_eq!(set.len() as usize, golden.shape[0] * golden.shape[1]);
            let sample = set.get(5).unwrap();
            let want: Vec<i64> = golden.i64()[5 * row..6 * row].to_vec();
            let got: Vec<i64> = sample.tokens.iter().map(|&v| v.into()).collect();
            assert_eq!(got, want[..sample.tokens.len()], "{case}");
            assert_eq!(sample.rejected.is_some(), pairs, "{case}");
            if let Some(mask) = tensors.get("loss_mask") {
                let s = mask.shape[2];
                assert_eq!(sample.loss_mask, mask.f32()[5 * s..6 * s]);
            }
        }
    }

    #[test]
    fn documents_restart_positions_end_stretches_and_lose_their_last_loss() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rows.safetensors");
        let rows: Vec<u8> = [9i32, 5, 6, 9, 7, 9, 3].iter().flat_map(|v| v.to_le_bytes()).collect();
        let mut bytes = Vec::new();
        let text = safetensors::make_header(&[("tokens".to_owned(), "I32", vec![1, 1, 7])], &[]);
        safetensors::write_header(&mut bytes, &text).unwrap();
        bytes.extend(rows);
        std::fs::write(&path, bytes).unwrap();
        let all =
            Documents { eod: 9, reset_position_ids: true, reset_attention_mask: true, eod_mask_loss: true };
        let row =
            |documents| SafetensorsSamples::open(&path).unwrap().with_documents(documents).get(0).unwrap();
        let marked = row(Some(all));
        assert_eq!(marked.position_ids, [0, 0, 1, 2, 0, 1]);
        assert_eq!(marked.segment_ends, [1, 4, 6]);
        assert_eq!(marked.loss_mask, [0.0, 1.0, 1.0, 0.0, 1.0, 0.0]);
        let apart = Documents { reset_position_ids: false, ..all };
        assert_eq!(
            (row(Some(apart)).position_ids, row(Some(apart)).segment_ends),
            ((0..6).collect(), vec![1, 4, 6])
        );
        let restarted = row(Some(Documents { reset_attention_mask: false, ..all }));
        assert_eq!((restarted.position_ids, restarted.segment_ends), (marked.position_ids, vec![6]));
        let only_loss = Documents { reset_position_ids: false, reset_attention_mask: false, ..all };
        assert_eq!(row(Some(only_loss)).segment_ends, [6]);
        assert_eq!(row(None).position_ids, [0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn what_counts_less_than_nothing_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rows.safetensors");
        let with = |mask: [f32; 2]| {
            let shape = |n| vec![1, 1, n];
            let tensors = [("tokens".to_owned(), "I32", shape(3)), ("loss_mask".to_owned(), "F32", shape(2))];
            let mut bytes = Vec::new();
            safetensors::write_header(&mut bytes, &safetensors::make_header(&tensors, &[])).unwrap();
            bytes.extend([1i32, 2, 3].iter().flat_map(|v| v.to_le_bytes()));
            bytes.extend(mask.iter().flat_map(|v| v.to_le_bytes()));
            std::fs::write(&path, bytes).unwrap();
            SafetensorsSamples::open(&path).unwrap().get(0)
        };
        assert_eq!(with([0.5, 0.0]).unwrap().loss_mask, [0.5, 0.0]);
        for wrong in [-1.0, f32::NAN, f32::INFINITY] {
            let error = with([1.0, wrong]).unwrap_err().to_string();
            let expected = format!("loss_mask of row 0: expected finite numbers from 0 on, found {wrong}");
            assert!(error.contains(&expected), "{error}");
        }
    }

    #[test]
    fn other_files_are_refused_with_the_reason() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.safetensors");
        std::fs::write(&path, b"not").unwrap();
        let error = SafetensorsSamples::open(&path).err().unwrap().to_string();
        assert!(error.contains("not a safetensors file"), "{error}");
    }
}

//! `ms-infer logits`: the logits of given token ids, for comparison with other programs.

use crate::options::Options;
use crate::setup::{self, Ask};
use anyhow::{Context, Result, bail, ensure};
use ms_cli::megatron::Args;
use ms_cli::{Usage, refuse};
use ms_core::DType;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::json;
use std::io::{IsTerminal, Read, Write};
use std::path::{Path, PathBuf};

/// Reads `input_ids` `[B,S]` (int32 or int64) of `--input`,
/// writes `logits` `[B,S,V]` to `--output`: float64 with `--dtype fp64`, else float32;
/// `--json` says what was written. `-` is stdin and stdout.
///
/// # Errors
/// If a file cannot be read or written, or an id is not in the vocabulary.
pub(crate) fn run(args: &Args, o: &Options) -> Result<()> {
    fn need<'a>(path: &'a Option<PathBuf>, flag: &str) -> Result<&'a Path> {
        Ok(path.as_deref().ok_or_else(|| Usage(format!("{flag} is required: a safetensors file")))?)
    }
    let (input, output) = (need(&o.generation.input, "--input")?, need(&o.generation.output, "--output")?);
    if is_stream(output) {
        if args.json() {
            refuse!("--output -: the logits go to stdout, and so does what --json says; name a file");
        }
        if std::io::stdout().is_terminal() {
            refuse!("--output -: stdout is a terminal; redirect it or name a file");
        }
    }
    let (ids, batch, seq) = read_ids(input)?;
    let model = setup::model(o, DType::F32, Ask::Logits(batch, seq))?;
    let vocab = model.config().vocab;
    let window = model.config().max_positions;
    if seq > window {
        tracing::warn!(
            "--input: sequences of {seq} tokens are longer than the {window} that the model is made for"
        );
    }
    let borders: Vec<i32> = (0..=batch).map(|b| (b * seq) as i32).collect();
    // One sequence at a time: the logits of all of them are the result, but not their activations.
    let dtype = match model.store.dtype().wide() {
        DType::F64 => Dtype::F64,
        _ => Dtype::F32,
    };
    let mut logits = Vec::with_capacity(batch * seq * vocab * dtype.bitsize() / 8);
    for row in 0..batch {
        let tokens = &ids[row * seq..(row + 1) * seq];
        let of_row = model.logits(tokens, &[0, borders[1]]).map_err(|e| match e {
            ms_generate::Error::NotFinite { token, .. } => {
                ms_generate::Error::NotFinite { sequence: row, token }
            }
            other => other,
        })?;
        match dtype {
            Dtype::F64 => logits.extend(of_row.iter().flat_map(|v| v.to_le_bytes())),
            _ => logits.extend(of_row.iter().flat_map(|&v| (v as f32).to_le_bytes())),
        }
    }
    let shape = [batch, seq, vocab];
    write(output, dtype, &shape, &logits)?;
    if args.json() {
        let report = json!({"output": output.display().to_string(), "tensor": "logits", "dtype": if dtype == Dtype::F64 { "float64" } else { "float32" }, "shape": shape});
        writeln!(std::io::stdout().lock(), "{report}")?;
    }
    Ok(())
}

/// Whether a name stands for stdin or stdout.
fn is_stream(path: &Path) -> bool {
    path == Path::new("-")
}

fn read_ids(path: &Path) -> Result<(Vec<i32>, usize, usize)> {
    let name = if is_stream(path) { "stdin".into() } else { path.display().to_string() };
    let bytes = if is_stream(path) {
        let mut bytes = Vec::new();
        std::io::stdin().read_to_end(&mut bytes).map(|_| bytes)
    } else {
        std::fs::read(path)
    };
    let bytes = bytes.with_context(|| name.clone())?;
    let file = SafeTensors::deserialize(&bytes).with_context(|| format!("{name}: not a safetensors file"))?;
    let ids =
        file.tensor("input_ids").with_context(|| format!("{name}: expected a tensor input_ids [B,S]"))?;
    let [batch, seq] = ids.shape()[..] else {
        bail!("{name}: expected input_ids of shape [B,S], found {:?}", ids.shape());
    };
    ensure!(batch > 0 && seq > 0, "{name}: input_ids is empty: {:?}", ids.shape());
    let values: Vec<i32> = match ids.dtype() {
        Dtype::I64 => {
            let wide =
                ids.data().chunks_exact(8).map(|c| i64::from_le_bytes(c.try_into().expect("eight bytes")));
            wide.map(|v| i32::try_from(v).unwrap_or(-1)).collect()
        }
        Dtype::I32 => ids
            .data()
            .chunks_exact(4)
            .map(|c| i32::from_le_bytes(c.try_into().expect("four bytes")))
            .collect(),
        other => bail!("{name}: expected input_ids of type int32 or int64, found {other:?}"),
    };
    Ok((values, batch, seq))
}

fn write(path: &Path, dtype: Dtype, shape: &[usize], bytes: &[u8]) -> Result<()> {
    let view = TensorView::new(dtype, shape.to_vec(), bytes)?;
    let file = safetensors::serialize([("logits", view)], None)?;
    if is_stream(path) {
        let mut out = std::io::stdout().lock();
        return Ok(out.write_all(&file).and_then(|()| out.flush())?);
    }
    Ok(ms_files::write_file(path, &file)?)
}

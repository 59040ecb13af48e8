//! Lists the weights of a checkpoint of any layout under their canonical names, and reads a part of one.
//!
//! ```sh
//! cargo run -p ms-ckpt --example list_tensors -- FOLDER
//! ```

use std::path::Path;

use ms_ckpt::Result;
use ms_core::{DType, Region};

/// A line per weight; the last one gives the first elements of the first weight.
pub(crate) fn run(folder: &Path) -> Result<Vec<String>> {
    let checkpoint = ms_ckpt::open(folder)?; // maps files and reads headers; no weight is read
    let mut lines: Vec<String> =
        checkpoint.tensors().map(|(name, shape, dtype)| format!("{name} {shape} {dtype}")).collect();
    let spec = &ms_spec::params(checkpoint.config())[0];
    let mut bytes = vec![0; 4 * spec.shape.numel()];
    checkpoint.read(spec, &Region::whole(&spec.shape), DType::F32, &mut bytes)?;
    let first: Vec<f32> = bytes.as_chunks().0.iter().take(4).map(|b| f32::from_le_bytes(*b)).collect();
    lines.push(format!("{} begins {first:?}", spec.name));
    Ok(lines)
}

#[allow(dead_code, clippy::print_stdout)] // unused where a test includes this file; a program that shows
fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::args_os().nth(1).ok_or("expected the folder of a checkpoint")?;
    run(Path::new(&folder))?.iter().for_each(|line| println!("{line}"));
    Ok(())
}

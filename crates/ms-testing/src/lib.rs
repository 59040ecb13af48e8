//! Shared by the tests of several crates: where reference values are, and how floats are compared.
//!
//! A dev-dependency only; no product crate depends on it.
//!
//! Reference values produced by other software are in `tests/golden`, where [`golden`] finds them, if they are small and
//! numeric. The others are in a folder `shared` next to the repository, which users do not have. [`shared`] finds it; a test
//! that needs it returns early if it is absent, unless `MS_REQUIRE_SHARED=1` is set, as in CI, so that such a test cannot be
//! skipped unnoticed.

mod data;
mod families;
mod samples;

pub use data::write_data_sets;
pub use families::{converted_model, form_of, golden_model, golden_models};

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The workspace root: the folder that holds the root `Cargo.toml`.
pub fn workspace_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the workspace root exists")
}

/// Path of `relative` inside the shared reference folder, or `None` where that folder is absent.
///
/// # Panics
/// If the path is absent while `MS_REQUIRE_SHARED=1`: the test must not pass by skipping.
pub fn shared(relative: &str) -> Option<PathBuf> {
    let path = workspace_root().join("../shared").join(relative);
    if path.exists() {
        return Some(path);
    }
    assert!(
        std::env::var_os("MS_REQUIRE_SHARED").is_none_or(|v| v != "1"),
        "MS_REQUIRE_SHARED=1, but {} does not exist",
        path.display()
    );
    None
}

/// A file or folder of the reference values that every clone has, those in `tests/golden`.
///
/// # Panics
/// If it is not there.
pub fn golden(relative: &str) -> PathBuf {
    let path = workspace_root().join("tests/golden").join(relative);
    assert!(path.exists(), "{}: expected reference values", path.display());
    path
}

/// A file or folder of reference values: the repository's own or, where it has none, the shared one.
pub fn golden_or_shared(relative: &str) -> Option<PathBuf> {
    let own = workspace_root().join("tests/golden").join(relative);
    if own.exists() { Some(own) } else { shared(&format!("goldens/{relative}")) }
}

/// The bytes of every file below a folder, by its path in it.
///
/// # Panics
/// If the folder or a file in it cannot be read.
pub fn tree(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let read = |e: std::io::Error, path: &Path| -> ! { panic!("{}: {e}", path.display()) };
    let mut all = BTreeMap::new();
    for entry in std::fs::read_dir(folder).unwrap_or_else(|e| read(e, folder)) {
        let path = entry.unwrap_or_else(|e| read(e, folder)).path();
        let name = PathBuf::from(path.file_name().expect("entries of a folder have names"));
        if path.is_dir() {
            all.extend(tree(&path).into_iter().map(|(inner, bytes)| (name.join(inner), bytes)));
        } else {
            all.insert(name, std::fs::read(&path).unwrap_or_else(|e| read(e, &path)));
        }
    }
    all
}

/// One tensor of a golden file, widened for comparison.
#[derive(Clone, Debug)]
pub struct Golden {
    /// Dimensions.
    pub shape: Vec<usize>,
    /// Values, row-major, widened to f64 (integers exactly up to 2^53).
    pub values: Vec<f64>,
}

impl Golden {
    /// Values as f32.
    pub fn f32(&self) -> Vec<f32> {
        self.values.iter().map(|&v| v as f32).collect()
    }
    /// Values as bf16, rounded to nearest even.
    pub fn bf16(&self) -> Vec<half::bf16> {
        self.values.iter().map(|&v| half::bf16::from_f32(v as f32)).collect()
    }
    /// Values as i64.
    pub fn i64(&self) -> Vec<i64> {
        self.values.iter().map(|&v| v as i64).collect()
    }
}

/// All tensors of a safetensors file, and its string metadata.
///
/// # Panics
/// If the file cannot be read: a test's own input must be valid.
pub fn read_golden(path: &Path) -> (BTreeMap<String, Golden>, BTreeMap<String, String>) {
    use safetensors::{Dtype, SafeTensors};
    let bytes = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let (_, meta) = SafeTensors::read_metadata(&bytes).expect("a golden's header is sound");
    let metadata = meta.metadata().clone().unwrap_or_default().into_iter().collect();
    let file = SafeTensors::deserialize(&bytes).expect("a golden is sound");
    let widen = |dtype: Dtype, b: &[u8]| -> Vec<f64> {
        macro_rules! each {
            ($t:ty, $f:expr) => {
                b.chunks_exact(size_of::<$t>())
                    .map(|c| $f(<$t>::from_le_bytes(c.try_into().expect("exact chunk"))))
                    .collect()
            };
        }
        match dtype {
            Dtype::F64 => each!(f64, |v| v),
            Dtype::F32 => each!(f32, f64::from),
            Dtype::BF16 => each!(u16, |v| half::bf16::from_bits(v).to_f64()),
            Dtype::F16 => each!(u16, |v| half::f16::from_bits(v).to_f64()),
            Dtype::I64 => each!(i64, |v| v as f64),
            Dtype::I32 => each!(i32, f64::from),
            Dtype::I16 => each!(i16, f64::from),
            Dtype::I8 => b.iter().map(|&v| f64::from(v as i8)).collect(),
            Dtype::U8 | Dtype::BOOL => b.iter().map(|&v| f64::from(v)).collect(),
            other => panic!("golden dtype {other:?} is not used by any test"),
        }
    };
    let tensors = file
        .tensors()
        .into_iter()
        .map(|(name, view)| {
            (name, Golden { shape: view.shape().to_vec(), values: widen(view.dtype(), view.data()) })
        })
        .collect();
    (tensors, metadata)
}

/// Asserts `|got - want| <= atol + rtol * |want|` for every element and names the worst one on failure.
///
/// # Panics
/// If the lengths differ or an element is outside the tolerance or not a number.
#[track_caller]
pub fn assert_close(what: &str, got: &[impl Copy + Into<f64>], want: &[f64], rtol: f64, atol: f64) {
    assert_eq!(got.len(), want.len(), "{what}: length");
    let mut worst = (0.0f64, 0usize);
    for (i, (&g, &w)) in got.iter().zip(want).enumerate() {
        let excess = (g.into() - w).abs() / (atol + rtol * w.abs());
        let excess = if excess.is_nan() { f64::INFINITY } else { excess };
        if excess > worst.0 {
            worst = (excess, i);
        }
    }
    let i = worst.1;
    assert!(
        worst.0 <= 1.0,
        "{what}: element {i}: got {}, want {}, {:.2} times the tolerance (rtol {rtol:e}, atol {atol:e})",
        got[i].into(),
        want[i],
        worst.0
    );
}

/// Little-endian bytes as numbers.
pub fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

/// A shell line's words; quotes are single ones only.
pub fn words(line: &str) -> Vec<String> {
    let mut out = Vec::new();
    for (i, part) in line.split('\'').enumerate() {
        if i % 2 == 1 {
            out.push(part.to_owned());
        } else {
            out.extend(part.split_whitespace().map(str::to_owned));
        }
    }
    out
}

/// A program that responds to INT, TERM and HUP, however this test was started: processes in the background of a script are
/// started to ignore some of these signals, and children inherit that.
pub fn heeding_signals(program: impl AsRef<std::ffi::OsStr>) -> std::process::Command {
    let mut command = std::process::Command::new("env");
    command.arg("--default-signal=INT,TERM,HUP").arg(program);
    command
}

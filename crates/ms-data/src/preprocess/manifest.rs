//! The manifest: what a dataset was made from.

use super::Report;
use crate::records::FileDigest;
use crate::{AtomicFile, Error, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};
use std::io::{Read, Write};
use std::path::Path;
use std::time::UNIX_EPOCH;

/// Version of the file's form.
const VERSION: u32 = 1;

/// The file next to a dataset that says what it was made from, so that the same command finds nothing to do and a changed
/// input is noticed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Form of this file.
    pub version: u32,
    /// Program and version.
    pub program: String,
    /// The flags that decide the bytes.
    pub settings: Map<String, Value>,
    /// SHA-256 of the tokenizer.
    pub tokenizer_sha256: String,
    /// What was read, in order.
    pub inputs: Vec<InputRecord>,
    /// What happened to the records.
    pub report: Report,
    /// The written files, next to this one.
    pub outputs: Vec<OutputRecord>,
}

/// An input file as it was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputRecord {
    /// Its path as it was given or found; `-` is standard input.
    pub path: String,
    /// Its size.
    pub bytes: u64,
    /// When it was changed last, in nanoseconds since 1970; 0 if the system does not say.
    pub modified_ns: u64,
    /// SHA-256 of its bytes; empty for standard input.
    pub sha256: String,
}

/// An output file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputRecord {
    /// Its name, in the manifest's folder.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// CRC-32C of its bytes; manifests of earlier versions have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub crc32c: Option<u32>,
}

/// How a dataset relates to what is requested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ManifestStatus {
    /// There is no manifest.
    Absent,
    /// It is what the same command would make.
    UpToDate(Box<Manifest>),
    /// It is something else; what differs.
    Differs(String),
}

impl InputRecord {
    /// The current state of a file, with its digest.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn new(digest: &FileDigest) -> Result<Self> {
        let (_, modified_ns) = size_and_time(&digest.path)?;
        Ok(Self {
            path: digest.path.display().to_string(),
            bytes: digest.bytes,
            modified_ns,
            sha256: digest.sha256.clone(),
        })
    }

    /// Standard input.
    pub fn stdin() -> Self {
        Self { path: "-".into(), bytes: 0, modified_ns: 0, sha256: String::new() }
    }

    /// Whether the file has the bytes that it had. Its time says nothing: archives and copies set it as they like.
    fn holds(&self) -> Result<bool> {
        let path = Path::new(&self.path);
        if self.sha256.is_empty() || !path.is_file() {
            return Ok(false);
        }
        Ok(size_and_time(path)?.0 == self.bytes && file_sha256(path)? == self.sha256)
    }
}

impl OutputRecord {
    /// The current state of a file.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn new(path: &Path) -> Result<Self> {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Self { name, bytes: size_and_time(path)?.0, crc32c: Some(file_crc32c(path)?) })
    }

    /// A description of the difference between the file in `folder` and its record; `None`: no difference.
    ///
    /// # Errors
    /// [`Error::Io`] if a file that is there cannot be read.
    pub fn differs(&self, folder: &Path) -> Result<Option<String>> {
        let path = folder.join(&self.name);
        if !path.is_file() || size_and_time(&path)?.0 != self.bytes {
            return Ok(Some(format!("{} is missing or has another size", path.display())));
        }
        match self.crc32c {
            Some(noted) if file_crc32c(&path)? != noted => {
                Ok(Some(format!("{}: its bytes are not those that were written (CRC-32C)", path.display())))
            }
            _ => Ok(None),
        }
    }
}

impl Manifest {
    /// A manifest of this version of the form.
    pub fn new(program: String, settings: Map<String, Value>, tokenizer_sha256: String) -> Self {
        Self {
            version: VERSION,
            program,
            settings,
            tokenizer_sha256,
            inputs: Vec::new(),
            report: Report::default(),
            outputs: Vec::new(),
        }
    }

    /// Compares the manifest at `path` with `wanted`: inputs (paths), settings, tokenizer and program.
    ///
    /// # Errors
    /// [`Error::Io`] of the manifest or an input.
    pub fn standing(path: &Path, wanted: &Self) -> Result<ManifestStatus> {
        let bytes = match std::fs::read(path) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(ManifestStatus::Absent),
            Err(e) => return Err(Error::Io { path: path.into(), source: e }),
        };
        let differs = |what: String| Ok(ManifestStatus::Differs(what));
        let Ok(made) = serde_json::from_slice::<Self>(&bytes) else {
            return differs("its manifest cannot be read".into());
        };
        if (made.version, &made.program) != (wanted.version, &wanted.program) {
            return differs(format!("it was made by {}, this is {}", made.program, wanted.program));
        }
        let settings = || made.settings.keys().chain(wanted.settings.keys());
        if let Some(key) = settings().find(|key| made.settings.get(*key) != wanted.settings.get(*key)) {
            let show =
                |map: &Map<String, Value>| map.get(key).map_or("not given".to_owned(), Value::to_string);
            return differs(format!("{key} was {}, is {}", show(&made.settings), show(&wanted.settings)));
        }
        if made.tokenizer_sha256 != wanted.tokenizer_sha256 {
            return differs("the tokenizer is another".into());
        }
        let paths =
            |inputs: &[InputRecord]| inputs.iter().map(|input| input.path.clone()).collect::<Vec<_>>();
        if paths(&made.inputs) != paths(&wanted.inputs) {
            return differs(format!("it was made of {} files, not of the same ones", made.inputs.len()));
        }
        for input in &made.inputs {
            if !input.holds()? {
                return differs(format!("the input {} has changed since", input.path));
            }
        }
        let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        for output in &made.outputs {
            if let Some(what) = output.differs(folder)? {
                return differs(what);
            }
        }
        Ok(ManifestStatus::UpToDate(Box::new(made)))
    }

    /// Removes the manifest of a dataset that is complete and about to be replaced: what ends before its own is written must not
    /// leave one that describes other files.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn forget(path: &Path) -> Result<()> {
        match std::fs::remove_file(path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(Error::io(path)(e)),
            _ => Ok(()),
        }
    }

    /// The manifest at `path`; `None` if there is none, or another file.
    pub fn read(path: &Path) -> Option<Self> {
        std::fs::read(path).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok())
    }

    /// Writes the file.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn write(&self, path: &Path) -> Result<()> {
        let mut file = AtomicFile::create(path)?;
        let text = serde_json::to_string_pretty(self).expect("texts and numbers");
        writeln!(file, "{text}").map_err(Error::io(path))?;
        Ok(file.commit()?)
    }
}

/// Size in bytes, and the time of the last change in nanoseconds.
pub(super) fn size_and_time(path: &Path) -> Result<(u64, u64)> {
    let data = std::fs::metadata(path).map_err(Error::io(path))?;
    let since = data.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    Ok((data.len(), since.and_then(|since| u64::try_from(since.as_nanos()).ok()).unwrap_or(0)))
}

/// CRC-32C of a file, read at the speed of memory or of the disk.
///
/// # Errors
/// [`Error::Io`].
fn file_crc32c(path: &Path) -> Result<u32> {
    let mut file = std::fs::File::open(path).map_err(Error::io(path))?;
    let (mut sum, mut buffer) = (0, vec![0; 1 << 20]);
    loop {
        match file.read(&mut buffer).map_err(Error::io(path))? {
            0 => return Ok(sum),
            count => sum = crc32c::crc32c_append(sum, &buffer[..count]),
        }
    }
}

/// SHA-256 of a file, in hexadecimal.
///
/// # Errors
/// [`Error::Io`].
pub fn file_sha256(path: &Path) -> Result<String> {
    let mut file = std::fs::File::open(path).map_err(Error::io(path))?;
    let (mut state, mut buffer) = (Sha256::new(), vec![0; 1 << 18]);
    loop {
        match file.read(&mut buffer).map_err(Error::io(path))? {
            0 => return Ok(hex(&state.finalize())),
            count => state.update(&buffer[..count]),
        }
    }
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

//! What the targets share: files with fuzzed contents.

use std::path::PathBuf;
use tempfile::TempDir;

/// A folder that lives as long as the fuzzer.
pub struct Scratch(TempDir);

impl Scratch {
    /// An empty folder.
    pub fn new() -> Self {
        Self(tempfile::tempdir().expect("a temporary folder can be made"))
    }

    /// The path of `name` in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Writes a file, over the one before.
    pub fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.path(name);
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).expect("a folder can be made");
        }
        std::fs::write(&path, bytes).expect("a small file can be written");
        path
    }
}

impl Default for Scratch {
    fn default() -> Self {
        Self::new()
    }
}

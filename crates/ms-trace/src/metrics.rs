//! Metrics of each iteration as JSON lines.

use crate::error::at;
use crate::{Error, Result};
use serde_json::{Map, Value};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

/// A file with one JSON object per iteration; complete after every line.
#[derive(Debug)]
pub struct JsonLines {
    path: PathBuf,
    file: std::fs::File,
}

impl JsonLines {
    /// Opens `path` for a run that resumes after iteration `done`: lines of later iterations, which an interrupted run left
    /// behind, are removed. With `done == 0` the file starts empty.
    ///
    /// # Errors
    /// If the file cannot be written, or an existing one does not hold JSON objects with `iteration`.
    pub fn open(path: &Path, done: u64) -> Result<Self> {
        let mut kept = Vec::new();
        if done > 0 && path.exists() {
            let reader = BufReader::new(std::fs::File::open(path).map_err(at(path))?);
            for line in reader.split(b'\n') {
                let line = line.map_err(at(path))?;
                match serde_json::from_slice::<Value>(&line) {
                    Ok(value) if value["iteration"].as_u64().is_some_and(|i| i <= done) => {
                        kept.extend_from_slice(&line);
                        kept.push(b'\n');
                    }
                    Ok(Value::Object(map)) if map.contains_key("iteration") => {}
                    // The line that a killed run was writing.
                    Err(e) if e.is_eof() => {}
                    _ => {
                        let found = String::from_utf8_lossy(&line).chars().take(60).collect();
                        let expected = "one JSON object with an iteration per line";
                        return Err(Error::Format { path: path.to_owned(), expected, found });
                    }
                }
            }
        }
        let (name, mut file) = ms_files::Unfinished::create(path)?;
        file.write_all(&kept).map_err(at(path))?;
        name.publish(false)?;
        Ok(Self { path: path.to_owned(), file })
    }

    /// Appends one object.
    ///
    /// # Errors
    /// If the disk is full or the file is gone.
    pub fn write(&mut self, line: &Map<String, Value>) -> Result<()> {
        let mut bytes = serde_json::to_vec(line).expect("a map of JSON values is JSON");
        bytes.push(b'\n');
        self.file.write_all(&bytes).map_err(at(&self.path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resumed_run_replaces_the_lines_after_its_checkpoint() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.jsonl");
        let line = |i: u64, x: f64| match serde_json::json!({"iteration": i, "x": x}) {
            Value::Object(map) => map,
            _ => unreachable!("the macro makes an object"),
        };
        let mut file = JsonLines::open(&path, 0).unwrap();
        for i in 1..=4 {
            file.write(&line(i, 0.5)).unwrap();
        }
        file.file.write_all(b"{\"iteration\": 5, \"x").unwrap();
        let mut file = JsonLines::open(&path, 2).unwrap();
        file.write(&line(3, 1.5)).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(
            text,
            "{\"iteration\":1,\"x\":0.5}\n{\"iteration\":2,\"x\":0.5}\n{\"iteration\":3,\"x\":1.5}\n"
        );
    }
}

//! Temporary files next to an output: `NAME….PID-N.part`, as `ms-files` names them, and folders `NAME….PID.part`.

use std::path::{Path, PathBuf};

/// Removes those that this process has made.
pub(crate) fn remove_own(output: &Path) {
    let own = std::process::id();
    of(output).filter(|(pid, _)| *pid == own).for_each(|(_, path)| remove(&path));
}

/// Removes those whose process is dead.
pub(crate) fn remove_of_dead(output: &Path) {
    for (pid, path) in of(output).filter(|(pid, _)| !alive(*pid)) {
        tracing::info!("{}: removed, process {pid} has ended without it", path.display());
        remove(&path);
    }
}

/// The temporary files of an output with the process that each belongs to.
fn of(output: &Path) -> impl Iterator<Item = (u32, PathBuf)> {
    let folder = output.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = output.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let entries = std::fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    entries.filter_map(move |entry| {
        let file = entry.file_name().to_string_lossy().into_owned();
        let begins = file.strip_prefix('.').unwrap_or(&file).starts_with(&name);
        let pid = process_of(&file).filter(|_| begins && !name.is_empty())?;
        Some((pid, entry.path()))
    })
}

/// The process in the name of a temporary file.
fn process_of(name: &str) -> Option<u32> {
    let (_, last) = name.strip_suffix(".part")?.rsplit_once('.')?;
    let (pid, number) = last.split_once('-').unwrap_or((last, "0"));
    number.parse::<u32>().ok()?;
    pid.parse().ok()
}

/// Whether a process runs; where the system does not say, it is taken to.
fn alive(pid: u32) -> bool {
    !Path::new("/proc/self").exists() || Path::new("/proc").join(pid.to_string()).exists()
}

fn remove(path: &Path) {
    // Best effort: what cannot be removed is no worse than before.
    let _ = if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_whose_they_are() {
        assert_eq!(process_of("corpus_text_document.bin.417-0.part"), Some(417));
        assert_eq!(process_of(".out.json.12.part"), Some(12));
        for other in ["corpus.part", "a.b-0.part", "a.1-b.part", "a.12", "12.part"] {
            assert_eq!(process_of(other), None, "{other}");
        }
    }

    #[test]
    fn only_files_of_dead_processes_and_of_this_output_go() {
        let dir = tempfile::tempdir().unwrap();
        let (dead, own) = (u32::MAX - 1, std::process::id());
        let make = |name: String| std::fs::write(dir.path().join(name), b"x").unwrap();
        make(format!("corpus.bin.{dead}-0.part"));
        make(format!(".corpus.json.{dead}.part"));
        make(format!("corpus.bin.{own}-0.part"));
        make(format!("other.bin.{dead}-0.part"));
        make("corpus.bin".into());
        std::fs::create_dir(dir.path().join(format!("corpus.shuffle.{dead}.part"))).unwrap();
        remove_of_dead(&dir.path().join("corpus"));
        let mut left: Vec<String> = std::fs::read_dir(dir.path())
            .unwrap()
            .map(|e| e.unwrap().file_name().to_string_lossy().into_owned())
            .collect();
        left.sort();
        let mut want =
            ["corpus.bin".to_owned(), format!("corpus.bin.{own}-0.part"), format!("other.bin.{dead}-0.part")];
        want.sort();
        assert_eq!(left, want);
        remove_own(&dir.path().join("corpus"));
        assert!(!dir.path().join(format!("corpus.bin.{own}-0.part")).exists());
    }
}

//! Cache files of the programs.

use crate::env_vars;
use std::ffi::OsString;
use std::path::PathBuf;

/// The folder of cached tokenizers: `MS_TOKENIZER_CACHE`, else `ms-tools/tokenizers` in the user's cache folder; `None` where
/// `MS_TOKENIZER_CACHE` is `off`, or there is no such folder.
pub fn tokenizer_cache() -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    folder(
        variable(env_vars::MS_TOKENIZER_CACHE),
        variable(env_vars::XDG_CACHE_HOME),
        variable(env_vars::HOME),
    )
}

/// The file that records which instruction set was measured to be the fastest, in the user's cache folder; `None` where there
/// is no such folder.
pub fn processor_choice() -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let tokenizers = folder(None, variable(env_vars::XDG_CACHE_HOME), variable(env_vars::HOME))?;
    Some(tokenizers.with_file_name("processor.tsv"))
}

fn folder(own: Option<OsString>, caches: Option<OsString>, home: Option<OsString>) -> Option<PathBuf> {
    match own {
        Some(word) if word == "off" => None,
        Some(path) => Some(path.into()),
        None => {
            let caches = caches.map(PathBuf::from).or(home.map(|home| PathBuf::from(home).join(".cache")))?;
            // A relative one would be another folder in every folder.
            caches.is_absolute().then(|| caches.join("ms-tools/tokenizers"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_wins_and_off_is_off() {
        let some = |text: &str| Some(OsString::from(text));
        assert_eq!(folder(some("off"), some("/c"), some("/h")), None);
        assert_eq!(folder(some("here"), some("/c"), some("/h")), Some("here".into()));
        assert_eq!(folder(None, some("/c"), some("/h")), Some("/c/ms-tools/tokenizers".into()));
        assert_eq!(folder(None, None, some("/h")), Some("/h/.cache/ms-tools/tokenizers".into()));
        assert_eq!(folder(None, some("c"), some("/h")), None);
        assert_eq!(folder(None, None, None), None);
    }
}

//! `cargo xtask cann-emu DIR [--personality 8.1|9.1] [--without NAME]...`: the emulator as a folder that any client of CANN
//! accepts as `ASCEND_HOME_PATH`. `--without` leaves out a symbol, or a library (a name that ends in `.so`).

use anyhow::{Context, Result, bail};
use cann_emu::tree::{Layout, Personality, core_library, write};
use std::io::Write;
use std::path::PathBuf;

/// Reads the arguments and writes the folder.
pub(crate) fn lay_out(mut args: impl Iterator<Item = String>) -> Result<()> {
    let mut folder = None;
    let mut personality = Personality::V91;
    let (mut symbols, mut libraries) = (Vec::new(), Vec::new());
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--personality" => {
                personality = match args.next().as_deref() {
                    Some("8.1") => Personality::V81,
                    Some("9.1") => Personality::V91,
                    other => {
                        bail!("--personality: expected 8.1 or 9.1, found {}", other.unwrap_or("nothing"))
                    }
                }
            }
            "--without" => {
                let name = args.next().context("--without: expected a symbol or a library")?;
                if name.ends_with(".so") { libraries.push(name) } else { symbols.push(name) }
            }
            flag if flag.starts_with("--") => {
                bail!("unknown flag {flag}; expected --personality or --without")
            }
            path if folder.is_none() => folder = Some(PathBuf::from(path)),
            more => bail!("expected one folder, found {more} too"),
        }
    }
    let folder = folder.context("expected a folder: cargo xtask cann-emu DIR")?;
    std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let folder = folder.canonicalize()?;
    let symbols: Vec<&str> = symbols.iter().map(String::as_str).collect();
    let libraries: Vec<&str> = libraries.iter().map(String::as_str).collect();
    write(&Layout {
        folder: &folder,
        personality,
        core: &core_library()?,
        without_symbols: &symbols,
        without_libraries: &libraries,
    })?;
    let at = folder.display();
    writeln!(
        std::io::stdout(),
        "export ASCEND_HOME_PATH={at} ASCEND_OPP_PATH={at}/opp LD_LIBRARY_PATH={at}/lib64:$LD_LIBRARY_PATH"
    )?;
    Ok(())
}

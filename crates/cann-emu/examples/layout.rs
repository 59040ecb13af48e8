//! Lays out the emulator as a toolkit's folder, as `cargo xtask cann-emu` does, without building anything else:
//! `cargo run -p cann-emu --example layout -- DIR [8.1|9.1]`.

use cann_emu::tree::{Layout, Personality, core_library, write};
use std::path::Path;

fn main() -> std::io::Result<()> {
    let mut args = std::env::args().skip(1);
    let folder = args.next().ok_or_else(|| std::io::Error::other("expected a folder"))?;
    let personality = match args.next().as_deref() {
        Some("8.1") => Personality::V81,
        _ => Personality::V91,
    };
    std::fs::create_dir_all(&folder)?;
    let folder = Path::new(&folder).canonicalize()?;
    let core = core_library()?;
    write(&Layout { folder: &folder, personality, core: &core, without_symbols: &[], without_libraries: &[] })
}

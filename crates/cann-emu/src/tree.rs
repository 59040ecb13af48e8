//! Lays out the folder of a toolkit: small public libraries whose exports jump into the core.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The release that a tree looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Personality {
    /// CANN 8.1: one operator library, one library of collectives.
    V81,
    /// CANN 9.1: split libraries.
    V91,
}

impl Personality {
    /// `8.1` or `9.1`
    pub fn name(self) -> &'static str {
        match self {
            Personality::V81 => "8.1",
            Personality::V91 => "9.1",
        }
    }
}

/// Libraries that clients link although they need nothing from them here.
const EMPTY: [&str; 3] = ["libge_runner.so", "libgraph.so", "libacl_tdt_channel.so"];

/// Which library exports which symbols.
pub fn exports(personality: Personality) -> BTreeMap<&'static str, Vec<String>> {
    let mut out: BTreeMap<&'static str, Vec<String>> = EMPTY.map(|name| (name, Vec::new())).into();
    for row in crate::interface::rows() {
        for library in row.libraries[personality as usize].split('|').filter(|l| *l != "-") {
            out.entry(library).or_default().extend(row.symbols());
        }
    }
    for (symbol, library) in crate::api::adapter::SYMBOLS {
        out.entry(library).or_default().push(symbol.to_owned());
    }
    if personality == Personality::V91 {
        // Kept for older clients; it has nothing of its own and needs the others.
        out.entry("libopapi.so").or_default();
    }
    out
}

/// What a tree is to look like.
#[derive(Clone, Debug)]
pub struct Layout<'a> {
    /// Where it goes; made if it is not there.
    pub folder: &'a Path,
    /// The release.
    pub personality: Personality,
    /// The shared library of this crate.
    pub core: &'a Path,
    /// Symbols to leave out.
    pub without_symbols: &'a [&'a str],
    /// Libraries to leave out.
    pub without_libraries: &'a [&'a str],
}

/// The shared library of this crate beside a program that Cargo built, such as a test.
///
/// # Errors
/// Where none is found, with the places that were looked at.
pub fn core_library() -> io::Result<PathBuf> {
    if let Some(path) = std::env::var_os("CANN_EMU_CORE") {
        return Ok(PathBuf::from(path));
    }
    let program = std::env::current_exe()?;
    let mut newest: Option<(std::time::SystemTime, PathBuf)> = None;
    let folders: Vec<&Path> = program.ancestors().skip(1).take(3).collect();
    for folder in folders.iter().flat_map(|f| [f.to_path_buf(), f.join("deps")]) {
        let Ok(entries) = std::fs::read_dir(&folder) else { continue };
        for entry in entries.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with("libcann_emu") && name.ends_with(".so") {
                let time = entry.metadata()?.modified()?;
                if newest.as_ref().is_none_or(|(t, _)| *t < time) {
                    newest = Some((time, entry.path()));
                }
            }
        }
    }
    newest.map(|(_, path)| path).ok_or_else(|| {
        let text = format!("no libcann_emu.so near {}; build the crate cann-emu first", program.display());
        io::Error::new(io::ErrorKind::NotFound, text)
    })
}

/// The whole tree of a release, beside the shared library that it was made from: laid out by the first who asks.
///
/// # Errors
/// As [`core_library`] and [`write()`].
pub fn beside_core(personality: Personality) -> io::Result<PathBuf> {
    let core = core_library()?;
    let made =
        core.metadata()?.modified()?.duration_since(std::time::UNIX_EPOCH).map_err(io::Error::other)?;
    let parent = core.parent().unwrap_or(Path::new(".")).canonicalize()?;
    let folder = parent.join(format!("cann-emu-{}-{:x}", personality.name(), made.as_nanos()));
    if !folder.exists() {
        // Tests of one process run on several threads.
        let own = format!("{}-{:?}", std::process::id(), std::thread::current().id()).replace(['(', ')'], "");
        let part = parent.join(format!("cann-emu-{}-part-{own}", personality.name()));
        let none =
            Layout { folder: &part, personality, core: &core, without_symbols: &[], without_libraries: &[] };
        write(&none)?;
        if std::fs::rename(&part, &folder).is_err() {
            // Another was faster.
            std::fs::remove_dir_all(&part)?;
        }
    }
    Ok(folder)
}

/// Writes a tree.
///
/// # Errors
/// When files cannot be written or the C compiler, which assembles and links the libraries, fails.
pub fn write(layout: &Layout<'_>) -> io::Result<()> {
    let lib = layout.folder.join("lib64");
    let scratch = layout.folder.join("build");
    std::fs::create_dir_all(&lib)?;
    std::fs::create_dir_all(&scratch)?;
    // Clients look for these folders before they open a library.
    for folder in ["opp/vendors", "runtime", "compiler"] {
        std::fs::create_dir_all(layout.folder.join(folder))?;
    }
    let core = layout.folder.join("libcannemu_core.so");
    std::fs::copy(layout.core, &core)?;
    let tables = exports(layout.personality);
    let split: Vec<&str> = tables.keys().copied().filter(|l| l.starts_with("libopapi_")).collect();
    let mut order: Vec<&str> = tables.keys().copied().collect();
    // Libraries come after those that they need.
    order.sort_by_key(|l| match *l {
        "libopapi.so" => 2,
        "libprofapi.so" => 1,
        "libascendcl.so" => 2,
        "libacl_op_compiler.so" => 3,
        l if l.starts_with("libopapi") => 1,
        _ => 0,
    });
    for library in order {
        if layout.without_libraries.contains(&library) {
            continue;
        }
        let symbols =
            tables[library].iter().map(String::as_str).filter(|s| !layout.without_symbols.contains(s));
        let source = scratch.join(format!("{library}.s"));
        std::fs::write(&source, assembly(symbols))?;
        let mut command = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
        command.args(["-shared", "-nostdlib", "-x", "assembler"]).arg(&source).args(["-x", "none", "-o"]);
        command.arg(lib.join(library)).arg(format!("-Wl,-soname,{library}"));
        // The table of both kinds: that of the older kind says how many symbols there are.
        command
            .args(["-Wl,-rpath,$ORIGIN/..:$ORIGIN", "-Wl,--no-as-needed", "-Wl,--hash-style=both"])
            .arg(&core);
        let present = |l: &&str| !layout.without_libraries.contains(l);
        if library == "libopapi.so" {
            command.args(split.iter().copied().filter(present).map(|l| lib.join(l)));
        }
        if library == "libascendcl.so" {
            // The vendor's adapter links functions of these three and names only libascendcl.
            let behind = ["libascend_dump.so", "libprofapi.so", "libruntime.so"];
            command.args(behind.iter().copied().filter(present).map(|l| lib.join(l)));
        }
        if library == "libacl_op_compiler.so" {
            // Clients look up options of the runtime in it.
            command.args(Some("libascendcl.so").filter(present).map(|l| lib.join(l)));
        }
        if library == "libprofapi.so" {
            command.args(Some("libmsprofiler.so").filter(present).map(|l| lib.join(l)));
        }
        if library.starts_with("libopapi") && present(&"libnnopbase.so") {
            command.arg(lib.join("libnnopbase.so"));
        }
        let output = command.output()?;
        if !output.status.success() {
            let text = format!("{library}: {}", String::from_utf8_lossy(&output.stderr));
            return Err(io::Error::other(text));
        }
    }
    std::fs::remove_dir_all(&scratch)?;
    let version = if layout.personality == Personality::V81 { "8.1.RC1" } else { "9.1.0" };
    std::fs::write(layout.folder.join("version.cfg"), format!("version={version}\nemulator=cann-emu\n"))?;
    std::fs::write(layout.folder.join("opp/version.info"), format!("Version={version}\n"))?;
    std::fs::write(layout.folder.join("opp/vendors/config.ini"), "load_priority=\n")?;
    let arch = layout.folder.join(format!("{}-linux", std::env::consts::ARCH));
    std::fs::create_dir_all(&arch)?;
    let info = format!(
        "package_name=Ascend-cann-toolkit\nversion={version}\narch={}\nos=linux\n",
        std::env::consts::ARCH
    );
    std::fs::write(arch.join("ascend_toolkit_install.info"), info)
}

fn assembly<'a>(symbols: impl Iterator<Item = &'a str>) -> String {
    let jump = if cfg!(target_arch = "aarch64") { "b" } else { "jmp" };
    let after = if cfg!(target_arch = "aarch64") { "" } else { "@PLT" };
    let mut text = String::from("\t.text\n");
    for symbol in symbols {
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "\t.globl {symbol}\n\t.type {symbol}, %function\n{symbol}:\n\t{jump} emu_{symbol}{after}\n\t.size {symbol}, .-{symbol}"
        );
    }
    // What runs when the library has been loaded.
    text.push_str(if cfg!(target_arch = "aarch64") {
        "emu_loaded:\n\tadrp x0, emu_loaded\n\tadd x0, x0, :lo12:emu_loaded\n\tb cannemu_loaded\n"
    } else {
        "emu_loaded:\n\tleaq emu_loaded(%rip), %rdi\n\tjmp cannemu_loaded@PLT\n"
    });
    text.push_str("\t.section .init_array,\"aw\"\n\t.balign 8\n\t.quad emu_loaded\n");
    text.push_str("\t.section .note.GNU-stack,\"\",%progbits\n");
    text
}

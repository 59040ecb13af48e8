//! Symbols that an injected fault removes: `CANN_EMU_FAULT=missing-symbol:aclnnX`.
//!
//! Each public library calls [`cannemu_loaded`] when it has been loaded, before its client can look anything up; symbols of
//! that name then become undefined in its table, as in a library that never had them. A client whose program names the symbol
//! itself was bound before; it needs a tree without it (`cargo xtask cann-emu DIR --without SYMBOL`).

use crate::knobs::knobs;
use std::ffi::{CStr, c_void};

/// The symbols that are to be missing.
fn wanted() -> Vec<&'static str> {
    knobs().faults.iter().filter_map(|f| f.strip_prefix("missing-symbol:")).collect()
}

/// What is known of a loaded library.
#[derive(Default)]
struct Tables {
    symbols: usize,
    strings: usize,
    /// How many symbols there are.
    count: usize,
}

struct Search {
    anchor: usize,
    found: Tables,
}

/// A public library has been loaded; `anchor` is an address in it.
#[unsafe(no_mangle)]
pub extern "C" fn cannemu_loaded(anchor: usize) {
    let wanted = wanted();
    if wanted.is_empty() {
        return;
    }
    let mut search = Search { anchor, found: Tables::default() };
    // SAFETY: the function is called for each loaded object while the list is locked, with our own data.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut search).cast()) };
    let Tables { symbols, strings, count } = search.found;
    for i in 0..count {
        let at = symbols + i * size_of::<libc::Elf64_Sym>();
        // SAFETY: one of the table's symbols, whose name is a C string of its string table.
        let name = unsafe {
            let symbol = &*(at as *const libc::Elf64_Sym);
            CStr::from_ptr((strings + symbol.st_name as usize) as *const libc::c_char)
        };
        if name.to_str().is_ok_and(|name| wanted.contains(&name.trim_end_matches("GetWorkspaceSize"))) {
            undefine(at);
        }
    }
}

/// Takes place and section of a symbol away.
fn undefine(at: usize) {
    const PAGE: usize = 4096;
    let first = at / PAGE * PAGE;
    let len = (at + size_of::<libc::Elf64_Sym>()).next_multiple_of(PAGE) - first;
    // SAFETY: the pages hold the symbol table of a library that is being loaded: nothing reads this symbol yet.
    unsafe {
        let pages = first as *mut c_void;
        if libc::mprotect(pages, len, libc::PROT_READ | libc::PROT_WRITE) != 0 {
            return;
        }
        let symbol = &mut *(at as *mut libc::Elf64_Sym);
        (symbol.st_value, symbol.st_shndx) = (0, 0);
        libc::mprotect(pages, len, libc::PROT_READ);
    }
}

/// Finds the tables of the object that holds the anchor.
extern "C" fn look(info: *mut libc::dl_phdr_info, _: usize, search: *mut c_void) -> i32 {
    const DT_HASH: i64 = 4;
    const DT_STRTAB: i64 = 5;
    const DT_SYMTAB: i64 = 6;
    // SAFETY: what `dl_iterate_phdr` gives, and our own data.
    let (info, search) = unsafe { (&*info, &mut *search.cast::<Search>()) };
    // SAFETY: the object's program headers.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum as usize) };
    let base = info.dlpi_addr as usize;
    let holds = |h: &libc::Elf64_Phdr| {
        let start = base + h.p_vaddr as usize;
        h.p_type == libc::PT_LOAD && (start..start + h.p_memsz as usize).contains(&search.anchor)
    };
    if !headers.iter().any(holds) {
        return 0;
    }
    let Some(dynamic) = headers.iter().find(|h| h.p_type == libc::PT_DYNAMIC) else { return 1 };
    let mut at = (base + dynamic.p_vaddr as usize) as *const [i64; 2];
    loop {
        // SAFETY: entries up to one of tag 0.
        let [tag, value] = unsafe { *at };
        // The loader may or may not have added the base.
        let address = if (value as usize) < base { base + value as usize } else { value as usize };
        match tag {
            0 => return 1,
            DT_SYMTAB => search.found.symbols = address,
            DT_STRTAB => search.found.strings = address,
            // SAFETY: a hash table's second word is the number of symbols.
            DT_HASH => search.found.count = unsafe { *(address as *const u32).add(1) } as usize,
            _ => {}
        }
        at = at.wrapping_add(1);
    }
}

//! The functions of the interface that the emulator has, by topic. Pointers and handles arrive as `usize`.

/// Functions of the interface, each with what it does: an expression whose error is the code that it answers (0 for none), or
/// for one with another result that result. `CALL` is the function's name.
macro_rules! calls {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $type:ty),*) $(-> $out:ty)? = $does:expr;)*) => {$(
        $(#[$doc])*
        pub(crate) fn $name($($arg: $type),*) -> calls!(@out $($out)?) {
            #[allow(dead_code)] // not every function names itself
            const CALL: &str = stringify!($name);
            calls!(@answer $does $(, $out)?)
        }
    )*};
    (@out) => { i32 };
    (@out $out:ty) => { $out };
    (@answer $does:expr) => { $crate::api::answer(|| $does) };
    (@answer $does:expr, $out:ty) => { $does };
}

pub mod adapter;
pub mod callback;
pub mod collective;
pub mod context;
pub mod error;
pub mod event;
pub mod graph;
pub mod hccl;
pub mod memory;
pub mod meta;
pub mod process;
pub mod profile;
mod rank_table;
pub mod stream;

pub(crate) use callback::*;
pub(crate) use collective::*;
pub(crate) use context::*;
pub(crate) use error::*;
pub(crate) use event::*;
pub(crate) use graph::*;
pub(crate) use hccl::*;
pub(crate) use memory::*;
pub(crate) use meta::*;
pub(crate) use process::*;
pub(crate) use profile::*;
pub(crate) use stream::*;

/// The current device and context of this thread.
pub fn current() -> Option<(u32, u64)> {
    context::now()
}

/// Runs a call: its error code, or 0.
pub(crate) fn answer(f: impl FnOnce() -> Result<(), i32>) -> i32 {
    f().err().unwrap_or(0)
}

/// Writes through an out parameter.
///
/// # Errors
/// 107000 for null.
pub(crate) fn give<T>(at: usize, value: T, call: &str) -> Result<(), i32> {
    if at == 0 {
        return Err(crate::report::fail(107_000, &format!("{call}: an out parameter is null")));
    }
    // SAFETY: not null; the interface asks for a valid pointer to `T`. It may be unaligned in foreign structs.
    unsafe { (at as *mut T).write_unaligned(value) };
    Ok(())
}

/// Reads element `i` of an array that the caller owns.
pub(crate) fn take<T: Copy>(at: usize, i: usize) -> T {
    // SAFETY: callers pass addresses that they have checked for null, with the element count of the interface.
    unsafe { (at as *const T).add(i).read_unaligned() }
}

/// A C string; empty for null.
pub(crate) fn text(at: usize) -> String {
    if at == 0 {
        return String::new();
    }
    // SAFETY: not null; the interface asks for a C string.
    unsafe { std::ffi::CStr::from_ptr(at as *const libc::c_char) }.to_string_lossy().into_owned()
}

/// Writes a C string into a buffer, cut to its size.
pub(crate) fn give_text(at: usize, size: usize, value: &str) {
    if at == 0 || size == 0 {
        return;
    }
    let n = value.len().min(size - 1);
    // SAFETY: the buffer has `size` bytes by the interface, and `n` is below that.
    unsafe {
        std::ptr::copy_nonoverlapping(value.as_ptr(), at as *mut u8, n);
        (at as *mut u8).add(n).write(0);
    }
}

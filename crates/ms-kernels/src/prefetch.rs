//! Requests for cache lines that are used soon. They may lie beyond any array; only speed depends on them.

/// Bytes of a cache line.
pub(crate) const LINE: usize = 64;

macro_rules! request {
    ($at:expr, $hint:ident) => {{
        #[cfg(target_arch = "x86_64")]
        {
            // SAFETY: a hint, which reads nothing.
            unsafe { std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::$hint }>($at.cast()) };
        }
        #[cfg(target_arch = "aarch64")]
        {
            // SAFETY: a hint, which reads nothing.
            unsafe {
                std::arch::asm!(concat!("prfm ", aarch64_hint!($hint), ", [{}]"), in(reg) $at.addr(),
                    options(nomem, nostack, preserves_flags));
            }
        }
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let _ = $at;
    }};
}

/// What aarch64 calls a hint.
#[cfg(target_arch = "aarch64")]
macro_rules! aarch64_hint {
    (_MM_HINT_T0) => {
        "pldl1keep"
    };
    (_MM_HINT_T1) => {
        "pldl2keep"
    };
}

/// Asks for the line of something that is read or written soon.
#[inline(always)]
pub(crate) fn fetch<T>(at: *const T) {
    request!(at, _MM_HINT_T0);
}

/// Asks for the line of something to be in the second-level cache soon.
#[inline(always)]
pub(crate) fn fetch_far<T>(at: *const T) {
    request!(at, _MM_HINT_T1);
}

/// Asks for `bytes` bytes to be written to. Sums go to rows that are far apart and were not read before: the stores of a
/// tile would otherwise wait for memory.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn fetch_to_write<T>(at: *const T, bytes: usize) {
    for byte in (0..bytes).step_by(LINE) {
        request!(at.wrapping_byte_add(byte), _MM_HINT_ET0);
    }
}

/// Asks for rows of `width` elements, `stride` apart: too far for the processor to guess the next one.
#[inline(always)]
pub(crate) fn fetch_rows<T>(first: *const T, stride: usize, rows: usize, width: usize) {
    for row in 0..rows {
        for at in (0..width).step_by(LINE / size_of::<T>()) {
            fetch(first.wrapping_add(row * stride + at));
        }
    }
}

/// Walks over the lines of rows of memory, so that a few at a time can be asked for.
#[derive(Clone, Debug)]
pub(crate) struct Lines {
    at: *const i8,
    /// Bytes of a row and from one row to the next.
    width: usize,
    stride: usize,
    rows: usize,
    /// Bytes of this row that were passed.
    done: usize,
}

impl Lines {
    /// Those of `rows` rows of `width` elements, `stride` apart.
    pub(crate) fn new<T>(first: *const T, stride: usize, rows: usize, width: usize) -> Self {
        let bytes = size_of::<T>();
        let rows = if width == 0 { 0 } else { rows };
        Self { at: first.cast(), width: width * bytes, stride: stride * bytes, rows, done: 0 }
    }

    /// How many are left, counting those of the row that it is in from the row's beginning.
    pub(crate) fn left(&self) -> usize {
        self.rows * self.width.div_ceil(LINE)
    }

    /// Does `ask` with the next `most` lines, or as many as there are.
    pub(crate) fn next(&mut self, most: usize, ask: impl Fn(*const i8)) {
        for _ in 0..most {
            if self.rows == 0 {
                return;
            }
            ask(self.at.wrapping_add(self.done));
            self.done += LINE;
            if self.done >= self.width {
                self.done = 0;
                self.at = self.at.wrapping_add(self.stride);
                self.rows -= 1;
            }
        }
    }
}

/// Whether the processor by itself keeps ahead of a loop in 64-byte registers that reads one stream. Zen 4 does: what is asked
/// for beside it costs such a loop up to 40 %. Emerald Rapids does not: there it gains up to 120 %. Only speed depends on it.
#[cfg(target_arch = "x86_64")]
pub(crate) fn sees_streams() -> bool {
    use std::arch::x86_64::__cpuid;
    static AMD: std::sync::LazyLock<bool> = std::sync::LazyLock::new(|| {
        [__cpuid(0).ebx, __cpuid(0).edx] == [*b"Auth", *b"enti"].map(u32::from_le_bytes)
    });
    *AMD
}

#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn sees_streams() -> bool {
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_those_of_the_rows() {
        let at = |byte: usize| std::ptr::null::<i8>().wrapping_add(byte);
        let mut lines = Lines::new(at(0).cast::<f32>(), 100, 2, 20);
        let seen = std::cell::RefCell::new(Vec::new());
        for left in [4, 2, 0] {
            assert_eq!(lines.left(), left);
            lines.next(2, |line| seen.borrow_mut().push(line));
        }
        assert_eq!(seen.take(), [0, 64, 400, 464].map(at));
        assert_eq!(Lines::new(at(0), 5, 3, 0).left(), 0);
    }
}

//! Rules for matrix products that every device follows.

/// Products `x · wᵀ` with at most this many rows of `x` have a summation order of their own, because it pays to leave the
/// weight unpacked.
pub const FEW_ROWS: usize = 8;

/// Bytes of a line of an 8-bit weight.
pub const INT8_LINE: usize = 64;

/// Bytes of a row of an 8-bit weight with `k` columns: its codes, padded to whole lines, then a line that begins with the
/// scale in f32.
///
/// ```
/// assert_eq!(ms_operands::int8_row_bytes(65), 192);
/// ```
pub fn int8_row_bytes(k: usize) -> usize {
    k.next_multiple_of(INT8_LINE) + INT8_LINE
}

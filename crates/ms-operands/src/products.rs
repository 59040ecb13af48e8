//! Rules for matrix products that every device follows.

/// Up to so many rows of `x`, a product `x · wᵀ` sums in an order of its own: it pays to leave the weight unpacked.
pub const FEW_ROWS: usize = 8;

/// Bytes of a line of a weight of eight bits.
pub const INT8_LINE: usize = 64;

/// Bytes of a row of a weight of eight bits with `k` columns: its codes, filled up to whole lines, then a line that begins with
/// the scale in f32.
///
/// ```
/// assert_eq!(ms_operands::int8_row_bytes(65), 192);
/// ```
pub fn int8_row_bytes(k: usize) -> usize {
    k.next_multiple_of(INT8_LINE) + INT8_LINE
}

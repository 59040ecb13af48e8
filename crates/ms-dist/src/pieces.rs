//! Document pieces held by ranks, the attention calls in which they meet, and the positions of queries, keys and values in
//! packed rows.

use ms_core::{AttentionOptions, Columns, Device, HeadLayout, Segment, Tensor};

/// A run of tokens of one document that a rank holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Number of the document in the micro-batch.
    pub document: usize,
    /// Where the run begins in its document.
    pub place: usize,
    /// First row on the rank.
    pub row: usize,
    /// Tokens.
    pub len: usize,
}

/// Calls of the attention kernel that together cover every pair of a query piece and a key piece that it sees: in one call no
/// query and no key occurs twice, and both are in ascending order.
pub(crate) fn calls(queries: &[Piece], keys: &[Piece], options: &AttentionOptions) -> Vec<Vec<Segment>> {
    let mut calls: Vec<Vec<Segment>> = Vec::new();
    for q in queries {
        for k in keys.iter().filter(|k| k.document == q.document) {
            let last = q.place + q.len - 1;
            let hidden = k.place > last
                || options.window.is_some_and(|w| (k.place + k.len - 1).saturating_add(w) <= q.place);
            if hidden {
                continue;
            }
            let aligned = k.len as i64 - q.len as i64;
            let ahead = q.place as i64 - k.place as i64 - aligned;
            let segment = Segment { q_start: q.row, q_len: q.len, k_start: k.row, k_len: k.len, ahead };
            // The kernel takes documents in which queries and keys ascend together.
            let free = |call: &&mut Vec<Segment>| {
                call.iter().all(|s| {
                    let queries = s.q_start.cmp(&segment.q_start);
                    queries.is_ne() && queries == s.k_start.cmp(&segment.k_start)
                })
            };
            match calls.iter_mut().find(free) {
                Some(call) => call.push(segment),
                None => calls.push(vec![segment]),
            }
        }
    }
    for call in &mut calls {
        call.sort_by_key(|s| s.q_start);
    }
    calls
}

/// Columns of packed rows and of rows with only keys and values.
pub(crate) struct PackedColumns {
    /// Keys and values of packed rows.
    pub(crate) kv: Vec<Columns>,
    /// Queries of packed rows.
    pub(crate) q: Vec<Columns>,
}

impl PackedColumns {
    pub(crate) fn new(h: HeadLayout) -> Self {
        let (group, q, kv) =
            ((h.heads_per_group + 2) * h.head_dim, h.heads_per_group * h.head_dim, 2 * h.head_dim);
        let copy = |start, len| Columns::Copy { start, len };
        Self {
            kv: (0..h.groups).map(|g| copy(g * group + q, kv)).collect(),
            q: (0..h.groups).map(|g| copy(g * group, q)).collect(),
        }
    }
}

/// Packed rows of queries `[T,N·D]` and of keys and values `[T,2·G·D]`.
pub(crate) fn packed(device: &Device, h: HeadLayout, q: &Tensor, kv: &Tensor) -> ms_core::Result<Tensor> {
    let (each, both) = (h.heads_per_group * h.head_dim, 2 * h.head_dim);
    let all = h.groups * each;
    let pack: Vec<Columns> = (0..h.groups)
        .flat_map(|g| {
            [Columns::Copy { start: g * each, len: each }, Columns::Copy { start: all + g * both, len: both }]
        })
        .collect();
    device.columns(&device.concat(&[q, kv])?, &pack)
}

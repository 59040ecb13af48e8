//! Token embedding.

use crate::Reference;
use crate::operand::{numbers, reals};
use ms_core::{EmbedBackend, Error, Result, Tensor, TensorMut, VocabShare};

/// The table's row of `id`; `None` where the table does not hold it.
fn row(id: i32, rows: usize, share: VocabShare) -> Result<Option<usize>> {
    let id = usize::try_from(id).ok().filter(|&id| id < share.whole).ok_or(Error::Range {
        what: "token ids",
        start: id as usize,
        end: (id as usize).saturating_add(1),
        len: share.whole,
    })?;
    Ok(id.checked_sub(share.first).filter(|&row| row < rows))
}

impl EmbedBackend for Reference {
    fn embedding(&self, table: &Tensor, ids: &Tensor, share: VocabShare) -> Result<Tensor> {
        let (rows, h) = table.as_matrix();
        let mut y = Vec::with_capacity(ids.numel() * h);
        for &id in numbers(ids)? {
            match row(id, rows, share)? {
                Some(row) => y.extend_from_slice(&reals(table)?[row * h..][..h]),
                None => y.resize(y.len() + h, 0.0),
            }
        }
        self.give(&[ids.numel(), h], &y)
    }

    fn embedding_backward(
        &self,
        mut dtable: TensorMut<'_>,
        dy: &Tensor,
        ids: &Tensor,
        share: VocabShare,
    ) -> Result<()> {
        let h = dy.as_matrix().1;
        let dtable = dtable.as_mut_slice::<f64>()?;
        let rows = dtable.len() / h.max(1);
        for (&id, d) in numbers(ids)?.iter().zip(reals(dy)?.chunks_exact(h)) {
            if let Some(row) = row(id, rows, share)? {
                dtable[row * h..][..h].iter_mut().zip(d).for_each(|(t, d)| *t += d);
            }
        }
        Ok(())
    }
}

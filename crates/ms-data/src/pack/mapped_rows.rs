//! Packing of token streams stored in files: samples are not copied until their row is written.

use super::window::Window;
use super::{PackCounts, PackOptions, PackedRow, Packing, RowBuilder, knapsack_bins};
use crate::Result;
use crate::token_stream::{RowPlace, TokenMap};

/// A sample: the number of its stream, and its row.
type Sample = (u32, RowPlace);

/// Packs all rows of `maps`, whose columns `columns` hold input ids and labels, and gives packed rows to `write`. The rows
/// are those that a [`super::Packer`] gives for the same samples. Memory: 16 bytes per sample for the knapsack.
pub(super) fn pack_maps(
    options: &PackOptions,
    (row, counts): (&mut RowBuilder, &mut PackCounts),
    maps: &[TokenMap],
    columns: (usize, usize),
    mut write: impl FnMut(&PackedRow) -> Result<()>,
) -> Result<()> {
    let capacity = options.row_tokens.saturating_sub(1);
    let mut fill = |samples: &mut dyn Iterator<Item = Sample>| {
        row.begin();
        for (stream, place) in samples {
            let map = &maps[stream as usize];
            let (ids, labels) = (map.sequence(place, columns.0), map.sequence(place, columns.1));
            let (ids, labels) = (ids.unwrap_or_default(), labels.unwrap_or_default());
            let kept = options.lengths(ids.len().min(labels.len())).map_or(0, |(kept, _)| kept);
            row.push(options, &ids[..kept], &labels[..kept]);
        }
        row.end(options);
        write(&row.row)
    };
    let samples = (0..).zip(maps).flat_map(|(stream, map)| map.rows().map(move |place| (stream, place)));
    let mut window = Window::new(options.packing, capacity);
    let (mut waiting, mut lengths): (Vec<Sample>, Vec<u32>) = (Vec::new(), Vec::new());
    for (stream, place) in samples {
        let map = &maps[stream as usize];
        let (ids, labels) = (map.sequence(place, columns.0), map.sequence(place, columns.1));
        let (Some(ids), Some(labels)) = (ids, labels) else { continue };
        let length = ids.len().min(labels.len());
        let Some((_, taken)) = counts.sample(options, length) else { continue };
        match &mut window {
            None => {
                waiting.push((stream, place));
                lengths.push(taken as u32);
            }
            Some(window) => {
                if let Some(closed) = window.add(taken, (stream, place)) {
                    counts.rows += 1;
                    fill(&mut closed.into_iter())?;
                }
            }
        }
    }
    if let Some(mut window) = window {
        for samples in window.finish() {
            counts.rows += 1;
            fill(&mut samples.into_iter())?;
        }
    }
    debug_assert!(
        options.packing == Packing::Knapsack || waiting.is_empty(),
        "a window keeps its samples itself"
    );
    knapsack_bins(&lengths, capacity as u32, |bin| {
        counts.rows += 1;
        fill(&mut bin.iter().map(|&sample| waiting[sample as usize]))
    })
}

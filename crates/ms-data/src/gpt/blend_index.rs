//! The order of a blend.

/// The order in which a blend draws from its datasets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlendIndex {
    /// Which set each sample comes from.
    pub dataset: Vec<i16>,
    /// Which of that set's samples it is.
    pub sample: Vec<i64>,
}

impl BlendIndex {
    /// `size` draws: each time from the dataset that lags furthest behind its weight. Source: Megatron-LM `core_r0.8.0`
    /// `megatron/core/datasets/helpers.cpp`, `build_blending_indices`.
    pub fn weighted(weights: &[f64], size: usize) -> Self {
        Self::draw(weights, size, |_, _| true)
    }

    /// All samples of all datasets, mixed evenly.
    pub fn exhaustive(lengths: &[u64]) -> Self {
        let total: u64 = lengths.iter().sum();
        let weights: Vec<f64> = lengths.iter().map(|&n| n as f64 / total as f64).collect();
        Self::draw(&weights, total as usize, |set, used| used < lengths[set] as i64)
    }

    fn draw(weights: &[f64], size: usize, open: impl Fn(usize, i64) -> bool) -> Self {
        let mut used = vec![0i64; weights.len()];
        let mut index = Self { dataset: Vec::with_capacity(size), sample: Vec::with_capacity(size) };
        for i in 0..size {
            let x = i.max(1) as f64;
            let mut best: Option<(usize, f64)> = None;
            for (set, weight) in weights.iter().enumerate() {
                let lag = weight * x - used[set] as f64;
                if open(set, used[set]) && best.is_none_or(|(_, most)| lag > most) {
                    best = Some((set, lag));
                }
            }
            let Some((set, _)) = best else { break };
            index.dataset.push(set as i16);
            index.sample.push(used[set]);
            used[set] += 1;
        }
        index
    }
}

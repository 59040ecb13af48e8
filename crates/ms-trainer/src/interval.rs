//! Values accumulated over the iterations since the last log line.

use crate::StepReport;

/// Sums since the last log line.
#[derive(Default)]
pub(crate) struct Interval {
    pub(crate) loss: f64,
    pub(crate) ahead: Vec<f64>,
    /// Auxiliary ones of routers, in the order of [`ms_core::ops::Auxiliary::each`].
    pub(crate) routers: [f64; 4],
    /// Of indexers, where they are trained.
    pub(crate) indexer: Option<f64>,
    pub(crate) seconds: f64,
    pub(crate) iterations: u64,
    pub(crate) skipped: u64,
    /// Iterations whose losses are in the sums.
    pub(crate) counted: u64,
    /// Iterations with a non-finite loss, skipped or not.
    pub(crate) nan: u64,
}

impl Interval {
    pub(crate) fn add(&mut self, report: &StepReport, seconds: f64) {
        self.seconds += seconds;
        self.iterations += 1;
        self.skipped += u64::from(report.skipped);
        self.nan += u64::from(!report.loss.is_finite());
        if !report.skipped && report.loss.is_finite() {
            self.counted += 1;
            self.loss += report.loss;
            if let Some(experts) = &report.experts {
                self.routers.iter_mut().zip(experts.auxiliary.each()).for_each(|(sum, loss)| *sum += loss);
            }
            self.indexer = report.indexer.map(|loss| loss + self.indexer.unwrap_or(0.0));
            self.ahead.resize(report.ahead.len(), 0.0);
            for (sum, loss) in self.ahead.iter_mut().zip(&report.ahead) {
                *sum += loss;
            }
        }
    }
}

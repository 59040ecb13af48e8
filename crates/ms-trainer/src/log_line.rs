//! Megatron's log line, character for character, so that existing log parsers keep working.
//!
//! # Source
//! Megatron-LM `core_r0.8.0`, `megatron/training/training.py`, `training_log` and `evaluate_and_print_results`; skipped
//! samples, `core_v0.12.1`.

use chrono::NaiveDateTime;
use std::fmt::Write;

/// The numbers of one log line.
#[derive(Clone, Debug, PartialEq)]
pub struct LogLine {
    /// Iterations done.
    pub iteration: u64,
    /// Iterations of the run.
    pub train_iters: u64,
    /// Samples trained on.
    pub consumed_samples: u64,
    /// Samples of iterations that were passed over.
    pub skipped_samples: u64,
    /// Milliseconds per iteration since the last line.
    pub iteration_ms: f64,
    /// TFLOP/s per rank, if requested.
    pub throughput: Option<f64>,
    /// Learning rate of the next iteration.
    pub learning_rate: f64,
    /// That of the word embedding and the output layer, where they have their own.
    pub decoupled_learning_rate: Option<f64>,
    /// Samples per iteration.
    pub global_batch_size: usize,
    /// Mean loss since the last line; left out when it is not above 0, as Megatron does.
    pub loss: f64,
    /// Mean auxiliary losses of routers since the last line, by upstream's names, where they are to be in it.
    pub routers: Vec<(&'static str, f64)>,
    /// Mean loss of each multi-token prediction module since the last line.
    pub ahead: Vec<f64>,
    /// Mean loss of indexers since the last line, with upstream's name of it, where they are trained.
    pub indexer: Option<(&'static str, f64)>,
    /// Factor of the loss in the next backward pass.
    pub loss_scale: f64,
    /// Norm of the last gradient before clipping; a skipped iteration has none.
    pub grad_norm: Option<f64>,
    /// Zeros among its elements, if requested.
    pub num_zeros: Option<u64>,
    /// Norm of the weights, if requested.
    pub params_norm: Option<f64>,
    /// Iterations without an update, since gradients overflowed.
    pub skipped_iterations: u64,
    /// Iterations whose loss was not a number.
    pub nan_iterations: u64,
}

impl LogLine {
    /// The line, with the time `now` in front: upstream prints the machine's own.
    pub fn format(&self, now: NaiveDateTime) -> String {
        let mut s = format!(" [{}]", now.format("%Y-%m-%d %H:%M:%S"));
        let _ = write!(s, " iteration {:8}/{:8} |", self.iteration, self.train_iters);
        let _ = write!(s, " consumed samples: {:12} |", self.consumed_samples);
        if self.skipped_samples > 0 {
            let _ = write!(s, " skipped samples: {:12} |", self.skipped_samples);
        }
        let _ = write!(s, " elapsed time per iteration (ms): {:.1} |", self.iteration_ms);
        if let Some(t) = self.throughput {
            let _ = write!(s, " throughput per GPU (TFLOP/s/GPU): {t:.1} |");
        }
        let _ = write!(s, " learning rate: {} |", exponent(self.learning_rate));
        if let Some(lr) = self.decoupled_learning_rate {
            let _ = write!(s, " decoupled learning rate: {} |", exponent(lr));
        }
        let _ = write!(s, " global batch size: {:5} |", self.global_batch_size);
        if self.loss > 0.0 {
            let _ = write!(s, " lm loss: {} |", exponent(self.loss));
        }
        for (name, loss) in self.routers.iter().filter(|(_, loss)| *loss > 0.0) {
            let _ = write!(s, " {name}: {} |", exponent(*loss));
        }
        for (k, loss) in self.ahead.iter().enumerate().filter(|(_, loss)| **loss > 0.0) {
            let _ = write!(s, " mtp_{} loss: {} |", k + 1, exponent(*loss));
        }
        if let Some((name, loss)) = self.indexer.filter(|(_, loss)| *loss > 0.0) {
            let _ = write!(s, " {name}: {} |", exponent(loss));
        }
        let _ = write!(s, " loss scale: {:.1} |", self.loss_scale);
        if let Some(norm) = self.grad_norm {
            let _ = write!(s, " grad norm: {norm:.3} |");
        }
        if let Some(zeros) = self.num_zeros {
            let _ = write!(s, " num zeros: {zeros}.0 |");
        }
        if let Some(norm) = self.params_norm {
            let _ = write!(s, " params norm: {norm:.3} |");
        }
        let _ = write!(
            s,
            " number of skipped iterations: {:3} | number of nan iterations: {:3} |",
            self.skipped_iterations, self.nan_iterations
        );
        s
    }
}

/// The block that reports a validation: three lines.
pub(crate) fn validation(prefix: &str, loss: f64) -> String {
    let ppl = loss.min(20.0).exp();
    let line = format!(
        " validation loss at {prefix} | lm loss value: {} | lm loss PPL: {} | ",
        exponent(loss),
        exponent(ppl)
    );
    let dashes = "-".repeat(line.len() + 1);
    format!("{dashes}\n{line}\n{dashes}")
}

/// `1.250000E-06`, as C's `%.6E` prints it.
fn exponent(x: f64) -> String {
    let text = format!("{x:.6E}");
    match text.split_once('E') {
        Some((mantissa, e)) => {
            let (sign, digits) = e.strip_prefix('-').map_or(('+', e), |d| ('-', d));
            format!("{mantissa}E{sign}{digits:0>2}")
        }
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chrono::NaiveDate;

    #[test]
    fn the_line_has_megatrons_fields_and_formats() {
        let line = LogLine {
            iteration: 10,
            train_iters: 2000,
            consumed_samples: 160,
            skipped_samples: 0,
            iteration_ms: 1234.56,
            throughput: Some(1.25),
            learning_rate: 1.25e-6,
            decoupled_learning_rate: None,
            global_batch_size: 16,
            loss: 10.5,
            routers: vec![("z_loss", 0.5), ("load_balancing_loss", 0.0)],
            ahead: vec![11.0],
            indexer: Some(("dsa_indexer_loss", 0.125)),
            loss_scale: 1.0,
            grad_norm: Some(1.23456),
            num_zeros: Some(12),
            params_norm: None,
            skipped_iterations: 0,
            nan_iterations: 0,
        };
        let leap_day = NaiveDate::from_ymd_opt(2024, 2, 29).unwrap().and_hms_opt(23, 59, 59).unwrap();
        assert_eq!(
            line.format(leap_day),
            " [2024-02-29 23:59:59] iteration       10/    2000 | consumed samples:          160 | elapsed time per \
             iteration (ms): 1234.6 | throughput per GPU (TFLOP/s/GPU): 1.2 | learning rate: 1.250000E-06 | global \
             batch size:    16 | lm loss: 1.050000E+01 | z_loss: 5.000000E-01 | mtp_1 loss: 1.100000E+01 | dsa_indexer_loss: 1.250000E-01 | loss scale: 1.0 | grad norm: 1.235 \
             | num zeros: 12.0 | number of skipped iterations:   0 | number of nan iterations:   0 |"
        );
        let skipped = LogLine {
            decoupled_learning_rate: Some(2.5e-6),
            loss: 0.0,
            routers: vec![],
            ahead: vec![],
            indexer: None,
            loss_scale: 65536.0,
            grad_norm: None,
            num_zeros: None,
            skipped_samples: 32,
            skipped_iterations: 1,
            ..line
        };
        let text = skipped.format(leap_day);
        assert!(text.contains(" consumed samples:          160 | skipped samples:           32 | elapsed"));
        let end = &text[text.find("1.25").unwrap()..];
        assert_eq!(
            end,
            "1.250000E-06 | decoupled learning rate: 2.500000E-06 | global batch size:    16 | loss scale: 65536.0 | number of skipped iterations:   1 | number of nan iterations:   0 |"
        );
        assert_eq!(exponent(0.0), "0.000000E+00");
        assert_eq!(exponent(2.5e-130), "2.500000E-130");
    }

    #[test]
    fn the_validation_block_is_framed() {
        let block = validation("iteration 1000", 2.345_678);
        let lines: Vec<&str> = block.lines().collect();
        assert_eq!(
            lines[1],
            " validation loss at iteration 1000 | lm loss value: 2.345678E+00 | lm loss PPL: 1.044035E+01 | "
        );
        assert_eq!((lines[0].len(), lines[0]), (lines[1].len() + 1, lines[2]));
    }
}

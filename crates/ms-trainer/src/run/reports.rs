//! Reports of the training loop: Megatron's lines, metrics files, TensorBoard.

use super::Loop;
use crate::Result;
use crate::config::Routing;
use crate::engine::ExpertReport;
use crate::indexers::IndexerTraining;
use crate::interval::Interval;
use crate::log_line::{LogLine, validation};
use crate::lr_schedule::Rates;
use chrono::Local;
use ms_core::ops::Auxiliary;
use ms_trace::{metrics::JsonLines, tensorboard::EventFile};
use serde_json::{Map, Value, json};

impl Loop<'_> {
    pub(super) fn open_reports(&mut self) -> Result<()> {
        if let Some(path) = &self.config.logging.metrics_file {
            self.metrics = Some(JsonLines::open(path, self.state.iteration)?);
            // One object per iteration is the contract of the metrics file; validations have their own.
            self.validations =
                Some(JsonLines::open(&path.with_extension("validation.jsonl"), self.state.iteration)?);
        }
        if let Some((dir, _)) = &self.config.logging.tensorboard {
            self.tensorboard = Some(EventFile::create(dir)?);
        }
        Ok(())
    }

    pub(super) fn report_evaluation(&mut self, prefix: &str, split: &str, loss: f64) -> Result<()> {
        if !self.reports {
            return Ok(());
        }
        self.hooks.observer.line(&validation(prefix, loss));
        if let Some(file) = &mut self.validations {
            let line = json!({"iteration": self.state.iteration, format!("{split} lm loss"): loss});
            file.write(&object(line))?;
        }
        if let Some(board) = &mut self.tensorboard {
            let ppl = loss.min(20.0).exp();
            let tags = [format!("lm loss {split}"), format!("lm loss {split} ppl")];
            board.scalars(self.state.iteration, &[(&tags[0], loss), (&tags[1], ppl)])?;
        }
        Ok(())
    }

    pub(super) fn write_metrics(
        &mut self,
        report: &crate::StepReport,
        Rates { lr, decoupled_lr, weight_decay }: Rates,
        seconds: f64,
        global: usize,
    ) -> Result<()> {
        let of_indexers = self.of_indexers(report.indexer);
        let of_layers: Vec<_> = report.experts.iter().flat_map(|e| self.of_layers(e)).collect();
        if let Some(metrics) = &mut self.metrics {
            let mut line = object(json!({
                "iteration": self.state.iteration,
                "consumed samples": self.state.consumed_train_samples,
                "lm loss": report.loss,
                "grad norm": (!report.skipped).then_some(report.grad_norm),
                "loss scale": report.loss_scale,
                "skipped": report.skipped,
                "learning rate": lr,
                "weight decay": weight_decay,
                "global batch size": global,
                "tokens": report.tokens,
                "seconds": seconds,
            }));
            line.extend(report.zeros.map(|zeros| ("num zeros".to_owned(), json!(zeros))));
            line.extend(decoupled_lr.map(|lr| ("decoupled learning rate".to_owned(), json!(lr))));
            for (k, loss) in report.ahead.iter().enumerate() {
                line.insert(format!("mtp_{} loss", k + 1), json!(loss));
            }
            line.extend(of_indexers.map(|(name, loss)| (name.to_owned(), json!(loss))));
            if let Some(experts) = &report.experts {
                let losses = auxiliary(&self.config.routing, &experts.auxiliary);
                line.extend(losses.map(|(name, loss)| (name.to_owned(), json!(loss))));
                line.extend(of_layers.iter().map(|(name, loss)| (name.clone(), json!(loss))));
                line.insert("tokens per expert".into(), json!(experts.tokens.values().collect::<Vec<_>>()));
                line.insert("dropped".into(), json!(experts.dropped));
            }
            metrics.write(&line)?;
        }
        if let (Some(board), Some((_, every))) = (&mut self.tensorboard, &self.config.logging.tensorboard)
            && self.state.iteration.is_multiple_of(*every.max(&1))
        {
            let routing = &self.config.routing;
            let experts = report.experts.iter();
            let balance: Vec<_> = experts.flat_map(|e| auxiliary(routing, &e.auxiliary)).collect();
            let memory = self.engine.device.arena().stats();
            // As upstream's points: the rates of the next iteration, as in the log line.
            let next = self.state.schedule.rates(self.state.scheduled_samples);
            let values = [
                ("lm loss", report.loss),
                ("learning-rate", next.lr),
                ("batch-size", global as f64),
                ("iteration-time", seconds),
                ("world-size", self.engine.ctx.grid.world() as f64),
                ("mem-allocated-bytes", memory.in_use_bytes as f64),
                ("mem-max-allocated-bytes", memory.peak_bytes as f64),
            ];
            let names: Vec<String> = (1..=report.ahead.len()).map(|k| format!("mtp_{k} loss")).collect();
            let ahead = names.iter().map(String::as_str).zip(report.ahead.iter().copied());
            let mut values: Vec<(&str, f64)> = values.into_iter().chain(ahead).collect();
            values.extend(of_indexers);
            values.extend(balance);
            values.extend(of_layers.iter().map(|(name, loss)| (name.as_str(), *loss)));
            values.extend(next.decoupled_lr.map(|lr| ("decoupled-learning-rate", lr)));
            values.extend(report.zeros.map(|zeros| ("num-zeros", zeros as f64)));
            // A skipped iteration has no norm.
            values.extend((!report.skipped).then_some(("grad-norm", report.grad_norm)));
            values.extend(
                self.config.optimizer.loss_scale.acts().then(|| ("loss-scale", self.engine.scaler().scale)),
            );
            board.scalars(self.state.iteration, &values)?;
        }
        Ok(())
    }

    /// The auxiliary losses of each layer that has experts, by upstream's names, if requested.
    fn of_layers(&self, experts: &ExpertReport) -> impl Iterator<Item = (String, f64)> + use<> {
        let (asked, routing, layers) =
            (self.config.logging.layers, self.config.routing, experts.layers.clone());
        layers.into_iter().filter(move |_| asked).flat_map(move |(layer, losses)| {
            auxiliary(&routing, &losses).map(move |(name, loss)| (format!("moe/{name}_layer_{layer}"), loss))
        })
    }

    /// The auxiliary losses that are trained on, in upstream's order, where its line has them: with TensorBoard.
    ///
    /// # Source
    /// Megatron-LM `core_r0.8.0` and `core_v0.12.1`, `megatron/core/transformer/moe/moe_utils.py`, `track_moe_metrics`.
    fn of_routers(&self, losses: &Auxiliary) -> Vec<(&'static str, f64)> {
        let coeffs = &self.config.routing.auxiliary;
        if self.config.logging.tensorboard.is_none() {
            return Vec::new();
        }
        let balanced = coeffs.experts != 0.0;
        let mut all: Vec<_> = auxiliary(&self.config.routing, losses).skip(usize::from(!balanced)).collect();
        all.rotate_right(usize::from(coeffs.z != 0.0));
        all
    }

    /// The loss of indexers by its name.
    fn of_indexers(&self, loss: Option<f64>) -> Option<(&'static str, f64)> {
        self.config.loss.indexer.as_ref().map(IndexerTraining::name).zip(loss)
    }

    pub(super) fn log(
        &self,
        interval: &mut Interval,
        report: &crate::StepReport,
        global: usize,
    ) -> Result<()> {
        let params_norm = self.config.logging.params_norm.then(|| self.engine.params_norm()).transpose()?;
        let Interval { loss, ahead, routers, indexer, seconds, iterations, skipped, counted, nan } =
            std::mem::take(interval);
        let counted = counted.max(1) as f64;
        if !self.reports {
            return Ok(());
        }
        let per_iteration = seconds / iterations.max(1) as f64;
        let flops = self.config.flops_per_sample * global as f64;
        let throughput = flops / (per_iteration * 1e12 * self.engine.ctx.grid.world() as f64);
        let rates = self.state.schedule.rates(self.state.scheduled_samples);
        let line = LogLine {
            iteration: self.state.iteration,
            train_iters: self.config.train_iters,
            consumed_samples: self.state.consumed_train_samples,
            skipped_samples: self.passed_over,
            iteration_ms: per_iteration * 1e3,
            throughput: self.config.logging.throughput.then_some(throughput),
            learning_rate: rates.lr,
            decoupled_learning_rate: rates.decoupled_lr,
            global_batch_size: global,
            loss: loss / counted,
            routers: self.of_routers(&Auxiliary::of(routers.map(|sum| sum / counted))),
            ahead: ahead.iter().map(|sum| sum / counted).collect(),
            indexer: self.of_indexers(indexer.map(|sum| sum / counted)),
            loss_scale: report.loss_scale,
            grad_norm: (!report.skipped).then_some(report.grad_norm),
            num_zeros: report.zeros,
            params_norm,
            skipped_iterations: skipped,
            nan_iterations: nan,
        };
        self.hooks.observer.line(&line.format(Local::now().naive_local()));
        self.hooks.observer.progress(self.state.iteration, self.config.train_iters, line.loss);
        Ok(())
    }
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        other => Map::from_iter([("value".to_owned(), other)]),
    }
}

/// The auxiliary losses by the names that upstream's logs give them: the balance of experts always, others where a run has
/// them.
fn auxiliary(routing: &Routing, losses: &Auxiliary) -> impl Iterator<Item = (&'static str, f64)> + use<> {
    let names = [
        "load_balancing_loss",
        "load_balancing_device_level_loss",
        "load_balancing_comm_level_loss",
        "z_loss",
    ];
    let all = names.into_iter().zip(losses.each()).zip(routing.auxiliary.each());
    all.enumerate().filter(|(i, (_, coeff))| *i == 0 || *coeff != 0.0).map(|(_, (named, _))| named)
}

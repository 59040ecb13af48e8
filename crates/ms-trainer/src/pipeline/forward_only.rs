//! Forward-only passes (validation).

use super::{Iteration, MicroBatchSize, Pipeline};
use crate::Result;
use crate::losses::Losses;
use ms_core::{Device, Graph, ParamStore};
use ms_data::MicroBatch;
use ms_dist::ParallelCtx;
use ms_nn::Gpt;

impl Pipeline {
    /// The losses of micro-batches, without gradients.
    pub(crate) fn evaluate(
        &self,
        model: &Gpt,
        store: &ParamStore,
        ctx: &ParallelCtx,
        device: &Device,
        micro_batches: impl Iterator<Item = Result<MicroBatch>>,
    ) -> Result<Losses> {
        let mut run = self.begin(model, store, ctx, device, None);
        for (micro, mb) in micro_batches.enumerate() {
            let mb = mb?;
            run.sizes.push(MicroBatchSize::of(&mb, ctx));
            let here = run.stage;
            for chunk in self.chain.of_stage(here) {
                run.evaluate(&mb, micro, chunk)?;
            }
        }
        Ok(run.losses)
    }

    /// A forward pass of a micro-batch of `iteration` as in training, saving nothing but the routers' statistics.
    pub(crate) fn try_out(
        &self,
        model: &Gpt,
        store: &ParamStore,
        ctx: &ParallelCtx,
        device: &Device,
        (iteration, mb): (u64, &MicroBatch),
    ) -> Result<()> {
        let mut run = self.begin(model, store, ctx, device, Some(iteration));
        run.sizes.push(MicroBatchSize::of(mb, ctx));
        let here = run.stage;
        for chunk in self.chain.of_stage(here) {
            let input = run.input(0, chunk)?;
            let pass = run.recorded((mb, 1), input, chunk, None)?;
            run.send_output(&pass.output, 0, chunk)?;
        }
        Ok(())
    }
}

impl Iteration<'_> {
    fn evaluate(&mut self, mb: &MicroBatch, micro: usize, chunk: usize) -> Result<()> {
        let input = self.input(micro, chunk)?;
        let prepared = self.prepare(mb, 1)?;
        let mut graph = Graph::inference(self.device);
        let (_, output) = self.pass(&mut graph, (&prepared, mb), input, chunk, None)?;
        self.send_output(&output, micro, chunk)
    }
}

//! Messages across stage boundaries overlap with the stages' work: in simulated time, which every rank counts and messages
//! carry, not in measured time.

use ms_core::{DType, Grid, GridRules, GridSizes};
use ms_dist::{CommCall, CommHook, ParallelCtx, ParallelOptions, Pending};
use ms_spec::{ModelConfig, Stages};
use ms_trainer::parity::{Shape, Trial, batches};
use ms_trainer::{Checks, PipelineConfig, PipelineOrder, Rates, TrainConfig};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};

const MICRO: usize = 8;

/// The simulated time of a rank: every multiply-add takes one unit.
#[derive(Clone, Copy, Default)]
struct Time {
    now: f64,
    /// When the wire to other stages is free.
    free: f64,
    /// What it took in all.
    wire: f64,
}

/// When messages arrive, by sender, receiver and tag.
type Arrivals = HashMap<(usize, usize, u64), VecDeque<f64>>;

/// The clocks of all ranks, and the messages between them.
#[derive(Default)]
struct World {
    per_byte: f64,
    ranks: Mutex<HashMap<ThreadId, Time>>,
    arrivals: Mutex<Arrivals>,
}

impl World {
    fn of_this_rank<T>(&self, change: impl FnOnce(&mut Time) -> T) -> T {
        change(self.ranks.lock().unwrap().entry(thread::current().id()).or_default())
    }
}

/// The wire between stages.
struct Wire(Arc<World>);

impl CommHook for Wire {
    fn exchange(
        &self,
        of: CommCall<'_>,
        begin: &mut dyn FnMut() -> ms_dist::Result<Pending>,
    ) -> ms_dist::Result<Pending> {
        let Some((other, tag)) = of.message else { return begin() };
        let me = of.group.rank();
        if of.kind == "send" {
            let takes = of.own.as_ref().unwrap().bytes().len() as f64 * self.0.per_byte;
            let at = self.0.of_this_rank(|time| {
                (time.free, time.wire) = (time.now.max(time.free) + takes, time.wire + takes);
                time.free
            });
            self.0.arrivals.lock().unwrap().entry((me, other, tag)).or_default().push_back(at);
            return begin();
        }
        let (world, pending) = (self.0.clone(), begin()?);
        Ok(Pending::new(move || {
            let got = pending.wait()?;
            let at = world.arrivals.lock().unwrap().get_mut(&(other, me, tag)).and_then(VecDeque::pop_front);
            world.of_this_rank(|time| time.now = time.now.max(at.unwrap()));
            Ok(got)
        }))
    }
}

/// When the last rank is through with a step, and the most that a rank's wire took; stages wait for what they hand each
/// other, or it is in transit while they work.
fn time((order, waits_at_borders): (PipelineOrder, bool), stages: &Stages, per_byte: f64) -> (f64, f64) {
    let model = ModelConfig { layers: 8, init_std: 0.02, ..ModelConfig::tiny() };
    let shape = Shape { rows: 1, length: 64, micro: MICRO, packed: false };
    let steps = batches(&model, shape, 1);
    let (stages, check_for_nan) = (stages.clone(), false);
    let config = TrainConfig {
        pipeline: PipelineConfig { order, stages, waits_at_borders, ..PipelineConfig::default() },
        checks: Checks { nan: check_for_nan, ..Checks::NONE },
        ..TrainConfig::steps(model, DType::F64, 64, 1)
    };
    let pp = config.pipeline.stages.pp;
    let grid = Grid::new(pp, &GridSizes { pp, ..GridSizes::default() }, GridRules::V2).unwrap();
    let trial = Trial { config, grid, parallel: ParallelOptions::default(), rates: Rates::from((1e-3, 0.1)) };
    let world = Arc::new(World { per_byte, ..World::default() });
    let wire: Arc<dyn CommHook> = Arc::new(Wire(world.clone()));
    let device = || {
        let world = world.clone();
        let worked = move |n: usize| world.of_this_rank(|time| time.now += n as f64);
        Ok(ms_reference::watched(Box::new(worked)))
    };
    trial.run(&device, &steps, Some(&|ctx: ParallelCtx| ctx.with_hook(&wire))).unwrap();
    let ranks = world.ranks.lock().unwrap();
    let most = |of: fn(&Time) -> f64| ranks.values().map(of).fold(0.0, f64::max);
    (most(|time| time.now), most(|time| time.wire))
}

#[test]
fn what_passes_borders_is_on_its_way_while_stages_work() {
    let plain = PipelineOrder::default();
    let zero = PipelineOrder::ZeroBubble { group: None };
    let one = |pp| Stages { pp, ..Stages::default() };
    let several = |pp| Stages { layers_per_chunk: Some(2), ..one(pp) };
    let both = Stages { dual_pipe: true, ..one(2) };
    for (what, order, stages) in [
        ("one forward, one backward", plain, one(2)),
        ("the same on four stages", plain, one(4)),
        ("zero bubble", zero, one(2)),
        ("chunks", plain, several(2)),
        ("zero bubble, chunks", zero, several(2)),
        ("both ends", PipelineOrder::DualPipeV, both),
    ] {
        let [grown, waiting] = [false, true].map(|waits| {
            let time = |per_byte| time((order, waits), &stages, per_byte);
            let quick = time(0.0).0;
            // A twentieth of the step.
            let (slow, wire) = time(0.05 * quick / time(1.0).1);
            (slow - quick) / wire
        });
        println!(
            "{what}: share of the wire's time that a step waits: {grown:.2}, where stages wait for it {waiting:.2}"
        );
        assert!(grown > 0.0, "{what}: the first and the last message have nothing beside them: {grown}");
        assert!(grown < 0.8, "{what}: {grown}");
        // Who sends one waits, too, and who would work meanwhile does not.
        assert!(waiting > grown + 0.2, "{what}: {waiting} for {grown}");
    }
}

//! Gradient reduction overlaps with the backward pass in wall-clock time; everywhere else, simulated time is used.

use ms_core::{DType, Device, Grid, GridRules, GridSizes};
use ms_dist::buckets::Bucketing;
use ms_dist::{CommCall, CommHook, ParallelCtx, ParallelOptions, Pending};
use ms_spec::ModelConfig;
use ms_trainer::parity::{Shape, Trial, batches};
use ms_trainer::{Checks, DataParallelConfig, Rates, TrainConfig};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// The time of a run's products, two thirds of which belong to backward passes.
const WORK: Duration = Duration::from_millis(360);
/// What the wire takes for all sums of gradients together.
const DELAYS: Duration = Duration::from_millis(90);

/// A rank's wire, over which one sum of gradients goes after the other.
struct Slow {
    each: Duration,
    /// When it is free, and how many went over it.
    free: Mutex<(Instant, u32)>,
}

/// Delays what goes over the wire.
struct Delaying(Arc<Slow>);

impl CommHook for Delaying {
    fn exchange(
        &self,
        of: CommCall<'_>,
        begin: &mut dyn FnMut() -> ms_dist::Result<Pending>,
    ) -> ms_dist::Result<Pending> {
        if of.name != "gradients" {
            return begin();
        }
        let at = {
            let mut free = self.0.free.lock().unwrap();
            *free = (free.0.max(Instant::now()) + self.0.each, free.1 + 1);
            free.0
        };
        let pending = begin()?;
        Ok(Pending::new(move || {
            let got = pending.wait()?;
            thread::sleep(at.saturating_duration_since(Instant::now()));
            Ok(got)
        }))
    }
}

/// What a run of two data-parallel ranks takes where every sum of gradients takes `each` and every multiply-add `product`
/// seconds, in which its rank sleeps; the sums, and the multiply-adds of a rank.
fn run(overlap_grad_reduce: bool, each: Duration, product: f64) -> (Duration, u32, usize) {
    let model = ModelConfig { layers: 4, init_std: 0.02, ..ModelConfig::tiny() };
    let steps = batches(&model, Shape { rows: 1, length: 8, micro: 4, packed: false }, 1);
    let config = TrainConfig {
        data_parallel: DataParallelConfig {
            overlap_grad_reduce,
            buckets: Bucketing::of(Some(300)),
            ..DataParallelConfig::default()
        },
        checks: Checks::NONE,
        ..TrainConfig::steps(model, DType::F64, 8, 1)
    };
    let grid = Grid::new(2, &GridSizes::default(), GridRules::V2).unwrap();
    let trial = Trial { config, grid, parallel: ParallelOptions::default(), rates: Rates::from((1e-3, 0.1)) };
    let wires: Mutex<Vec<Arc<Slow>>> = Mutex::default();
    let delayed = |ctx: ParallelCtx| {
        let wire = Arc::new(Slow { each, free: Mutex::new((Instant::now(), 0)) });
        wires.lock().unwrap().push(wire.clone());
        let hook: Arc<dyn CommHook> = Arc::new(Delaying(wire));
        ctx.with_hook(&hook)
    };
    let all = Arc::new(Mutex::new(0));
    let device = || -> ms_core::Result<Device> {
        let (all, owed) = (all.clone(), Mutex::new(0.0));
        Ok(ms_reference::watched(Box::new(move |multiply_adds| {
            *all.lock().unwrap() += multiply_adds;
            // A sleep takes longer than it should, and the shorter it is the more.
            let sleep = {
                let mut owed = owed.lock().unwrap();
                *owed += multiply_adds as f64 * product;
                if *owed > 2e-3 { std::mem::take(&mut *owed) } else { 0.0 }
            };
            thread::sleep(Duration::from_secs_f64(sleep));
        })))
    };
    let start = Instant::now();
    trial.run(&device, &steps, Some(&delayed)).unwrap();
    let took = start.elapsed();
    let sums = wires.lock().unwrap()[0].free.lock().unwrap().1;
    let multiply_adds = *all.lock().unwrap() / 2;
    (took, sums, multiply_adds)
}

/// Other work on the machine only adds time, so the least of some tries is what counts.
#[test]
fn a_step_takes_less_longer_than_the_wire_where_sums_run_beside_it() {
    let (_, sums, multiply_adds) = run(true, Duration::ZERO, 0.0);
    let product = WORK.as_secs_f64() / multiply_adds as f64;
    // Of steps that wait and of those with sums beside the pass: the least time without delays and with them.
    let mut least = [[f64::INFINITY; 2]; 2];
    let mut growth = [0.0; 2];
    for _ in 0..10 {
        for (overlap, least) in [false, true].into_iter().zip(&mut least) {
            for (each, least) in [Duration::ZERO, DELAYS / sums].into_iter().zip(least) {
                let (took, exchanged, _) = run(overlap, each, product);
                assert_eq!(exchanged, sums, "the same buckets");
                *least = least.min(took.as_secs_f64());
            }
        }
        growth = least.map(|[without, with]| (with - without) / DELAYS.as_secs_f64());
        let [waiting, beside] = growth;
        println!(
            "{sums} sums: a step grows by {waiting:.2} of what they take, beside the pass by {beside:.2}"
        );
        if waiting > 0.7 && beside < 0.5 {
            return;
        }
    }
    panic!(
        "a step grows by these shares of the delays where it waits and where sums run beside it: {growth:?}"
    );
}

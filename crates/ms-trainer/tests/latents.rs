//! That latents of keys and values are worked at while those of queries and the shared part of keys are on their way, in time
//! that is counted, not measured.

#![allow(clippy::unwrap_used)] // helpers of a test may fail like the test itself

use ms_core::{DType, Device, Dispatcher, Grid, GridRules, GridSizes, RingCache};
use ms_dist::{Around, ContextParallel, Exchange, LinearOverlap, ParallelCtx, Pending};
use ms_nn::{Keeping, Swapped};
use ms_spec::{Attention, Mla, ModelConfig};
use ms_trainer::parity::{Shape, Trial, batches};
use ms_trainer::{Rates, TrainConfig};
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};

const MLA: Mla =
    Mla { q_rank: Some(16), kv_rank: 8, nope: 6, rope: 2, value: 8, q_scale: 1.0, kv_scale: 1.0 };
const LENGTH: usize = 64;

/// Four layers, two micro-batches, whose gradients are formed by themselves and in a step.
const PASSES: usize = 4 * 2 * 2;

/// Elements of a token that a rank gathers for up projections: latents of keys and values, of queries, the shared part of keys.
const WIDTHS: [usize; 3] = [8, 16, 2];

#[derive(Clone, Copy, Default)]
struct Time {
    /// A unit for each multiply-add.
    now: f64,
    /// When the wire is free.
    free: f64,
    /// What it took in all.
    wire: f64,
    /// What was sent over it.
    exchanges: usize,
}

/// A rank's clock; its wire takes so much for each byte of what [`WIDTHS`] says, one exchange after the other.
struct Clock {
    per_byte: f64,
    time: Mutex<Time>,
}

struct Slow(Arc<Clock>);

impl Around for Slow {
    fn exchange(
        &self,
        of: Exchange<'_>,
        begin: &mut dyn FnMut() -> ms_dist::Result<Pending>,
    ) -> ms_dist::Result<Pending> {
        let bytes = of.own.as_ref().map_or(0, |own| own.bytes().len());
        let latents = WIDTHS.map(|width| LENGTH / 2 * width * 8);
        if of.kind != "all_gather" || of.name != "enter_tp" || !latents.contains(&bytes) {
            return begin();
        }
        let takes = bytes as f64 * self.0.per_byte;
        let there = {
            let mut time = self.0.time.lock().unwrap();
            (time.free, time.wire) = (time.now.max(time.free) + takes, time.wire + takes);
            time.exchanges += 1;
            time.free
        };
        let (clock, pending) = (self.0.clone(), begin()?);
        Ok(Pending::new(move || {
            let got = pending.wait()?;
            let mut time = clock.time.lock().unwrap();
            time.now = time.now.max(there);
            Ok(got)
        }))
    }
}

/// What a step of two micro-batches takes on the first of two tensor-parallel ranks that share the tokens.
fn time(latents: bool, keeping: Keeping, per_byte: f64) -> Time {
    let size = ModelConfig { layers: 4, hidden: 32, ffn: 48, head_dim: 8, groups: 4, ..ModelConfig::tiny() };
    let model = ModelConfig { attention: Attention::Latent(MLA), ..size };
    let tp_overlap = LinearOverlap { latents, ..LinearOverlap::default() };
    let config = TrainConfig {
        tp_overlap,
        keeping,
        check_for_nan: false,
        ..TrainConfig::steps(model, DType::F64, LENGTH, 1)
    };
    let shape = Shape { rows: 1, length: LENGTH, micro: 2, packed: false };
    let steps = batches(&config.model, shape, 1);
    let trial = Trial {
        config,
        grid: Grid::new(2, &GridSizes { tp: 2, ..GridSizes::default() }, GridRules::V2).unwrap(),
        sequence_parallel: true,
        context: ContextParallel::Gather,
        ring_cache: RingCache::default(),
        dispatcher: Dispatcher::default(),
        overlap_experts: false,
        rates: Rates::from((1e-3, 0.1)),
    };
    let clock = Arc::new(Clock { per_byte, time: Mutex::default() });
    let first: Mutex<Option<ThreadId>> = Mutex::new(None);
    let watched = |ctx: ParallelCtx| {
        if ctx.rank > 0 {
            return ctx;
        }
        *first.lock().unwrap() = Some(thread::current().id());
        let slow: Arc<dyn Around> = Arc::new(Slow(clock.clone()));
        ctx.around(&slow)
    };
    let device = || -> ms_core::Result<Device> {
        if *first.lock().unwrap() != Some(thread::current().id()) {
            return Ok(ms_reference::device());
        }
        let clock = clock.clone();
        Ok(ms_reference::watched(Box::new(move |multiply_adds| {
            clock.time.lock().unwrap().now += multiply_adds as f64;
        })))
    };
    trial.run(&device, &steps, Some(&watched)).unwrap();
    let time = clock.time.lock().unwrap();
    *time
}

#[test]
fn a_step_waits_for_less_of_the_latents_that_are_gathered_beside_products() {
    let none = Keeping::default();
    // Of each pass through a layer three are gathered, and two again where they are formed again.
    for (what, keeping, exchanges) in [
        ("kept", none, 3 * PASSES),
        ("formed again", Keeping { latents_up_again: true, ..none }, 5 * PASSES),
        ("swapped", Keeping { swapped: Swapped::ATTENTION, ..none }, 3 * PASSES),
    ] {
        let [plain, beside] = [false, true].map(|latents| {
            let quick = time(latents, keeping, 0.0);
            let per_byte = 0.01 * quick.now / time(latents, keeping, 1.0).wire;
            let slow = time(latents, keeping, per_byte);
            assert_eq!(slow.exchanges, exchanges, "{what}");
            ((slow.now - quick.now) / slow.wire, quick.now)
        });
        println!(
            "{what}: a step waits for {:.2} of the wire's time, beside products {:.2}",
            plain.0, beside.0
        );
        assert_eq!(plain.1, beside.1, "{what}: the same products");
        assert!((plain.0 - 1.0).abs() < 1e-9, "{what}: without overlap all of it: {}", plain.0);
        // Latents of keys and values come first, with nothing beside them: 8 of 26 elements.
        assert!(beside.0 < 0.4, "{what}: {}", beside.0);
    }
}

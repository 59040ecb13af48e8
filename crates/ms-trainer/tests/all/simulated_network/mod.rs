//! A rank's simulated time on a slow network.

use ms_dist::{CommCall, CommHook, LinearOverlap, ParallelCtx, Pending, Pieces};
use ms_trainer::parity::{Shape, Trial, batches};
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};

/// Every exchange is waited for at once.
pub(crate) const WAITING: LinearOverlap =
    LinearOverlap { weight_gradients: false, pieces: Pieces::Number(1), overlap_gathers: false };

/// What a rank's steps take.
#[derive(Clone, Copy, Default)]
pub(crate) struct Time {
    pub(crate) now: f64,
    /// When the wire is free.
    pub(crate) free: f64,
    /// When the last of what a thread of the rank has waited for was there.
    pub(crate) there: f64,
    /// What the wire took in all.
    pub(crate) wire: f64,
    /// How many exchanges went over it.
    pub(crate) exchanges: usize,
}

/// Which exchanges go over the wire: each comes with the name of the one that was begun before it.
type OnWire = Box<dyn Fn(&CommCall<'_>, &str) -> bool + Send + Sync>;

/// The clock of a rank whose products take one unit per multiply-add, and whose link to its tensor-parallel peers takes a
/// fixed time per byte, one exchange after another.
struct Work {
    per_byte: f64,
    on_wire: OnWire,
    last: Mutex<&'static str>,
    time: Mutex<Time>,
}

/// Delays what goes over that wire.
struct Slow(Arc<Work>);

impl CommHook for Slow {
    fn exchange(
        &self,
        of: CommCall<'_>,
        begin: &mut dyn FnMut() -> ms_dist::Result<Pending>,
    ) -> ms_dist::Result<Pending> {
        let last = std::mem::replace(&mut *self.0.last.lock().unwrap(), of.name);
        if !(self.0.on_wire)(&of, last) {
            return begin();
        }
        let at = {
            let mut time = self.0.time.lock().unwrap();
            let takes = of.own.as_ref().map_or(0, |own| own.bytes().len()) as f64 * self.0.per_byte;
            (time.free, time.wire) = (time.now.max(time.free) + takes, time.wire + takes);
            time.exchanges += 1;
            time.free
        };
        // A rank does not wait for what it sends. What it receives is there when what it sent meanwhile has gone: that comes of a
        // rank which does the same.
        if of.kind == "send" {
            return begin();
        }
        let (work, pending) = (self.0.clone(), begin()?);
        Ok(Pending::new(move || {
            let got = pending.wait()?;
            let mut time = work.time.lock().unwrap();
            time.now = time.now.max(at);
            Ok(got)
        }))
    }
}

/// What a step of two micro-batches takes on the first rank, whose products are counted.
pub(crate) fn time_of_work(trial: &Trial, names: &'static [&'static str], per_byte: f64) -> Time {
    time_of_work_behind(trial, (names, None), per_byte)
}

/// [`time_of_work`], where only what is started right after an exchange of a given name goes over the slow link.
pub(crate) fn time_of_work_behind(
    trial: &Trial,
    (names, behind): (&'static [&'static str], Option<&'static str>),
    per_byte: f64,
) -> Time {
    let on_wire = move |of: &CommCall<'_>, last: &str| {
        names.contains(&of.name) && behind.is_none_or(|behind| behind == last)
    };
    time_of_work_where(trial, Box::new(on_wire), per_byte)
}

/// [`time_of_work`], where `on_wire` says what goes over the slow wire.
pub(crate) fn time_of_work_where(trial: &Trial, on_wire: OnWire, per_byte: f64) -> Time {
    let shape = Shape { rows: 1, length: trial.config.longest_row, micro: 2, packed: false };
    let steps = batches(&trial.config.model, shape, 1);
    let work = Arc::new(Work { per_byte, on_wire, last: Mutex::default(), time: Mutex::default() });
    let first: Mutex<Option<ThreadId>> = Mutex::new(None);
    let watched = |ctx: ParallelCtx| {
        if ctx.rank > 0 {
            return ctx;
        }
        *first.lock().unwrap() = Some(thread::current().id());
        let slow: Arc<dyn CommHook> = Arc::new(Slow(work.clone()));
        ctx.with_hook(&slow)
    };
    let device = || {
        if *first.lock().unwrap() != Some(thread::current().id()) {
            return Ok(ms_reference::device());
        }
        let work = work.clone();
        Ok(ms_reference::watched(Box::new(move |multiply_adds| {
            work.time.lock().unwrap().now += multiply_adds as f64;
        })))
    };
    trial.run(&device, &steps, Some(&watched)).unwrap();
    let time = work.time.lock().unwrap();
    *time
}

/// By which share of what the wire takes a step grows, of all that products take the wire taking `share`.
pub(crate) fn grown_by(share: f64, time: impl Fn(f64) -> Time) -> f64 {
    let quick = time(0.0).now;
    let slow = time(share * quick / time(1.0).wire);
    (slow.now - quick) / slow.wire
}

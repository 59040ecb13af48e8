//! Spans of a running program, recorded as events.

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id};
use tracing::{Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Layer};
use tracing_subscriber::registry::LookupSpan;

/// The kind of work that a span stands for, given by the target of the `tracing` span.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Category {
    /// An operation of the backend (`ms_op`).
    Op,
    /// A collective or a message (`ms_comm`).
    Communication,
    /// An iteration or a part of one (`ms_step`).
    Step,
}

impl Category {
    fn of(metadata: &Metadata<'_>) -> Option<Self> {
        match metadata.target() {
            "ms_op" => Some(Self::Op),
            "ms_comm" => Some(Self::Communication),
            "ms_step" => Some(Self::Step),
            _ => None,
        }
    }

    /// `op`, `communication` or `step`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Op => "op",
            Self::Communication => "communication",
            Self::Step => "step",
        }
    }
}

/// A span that has ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// What was done: `linear`, `all_gather`, `iteration`.
    pub name: String,
    /// Kind of work.
    pub category: Category,
    /// The rank that did it.
    pub rank: usize,
    /// Start in microseconds since the recorder was made.
    pub start_us: f64,
    /// Duration in microseconds.
    pub duration_us: f64,
    /// Floating-point operations, where the span tells.
    pub flops: u64,
    /// Bytes read and written, where the span tells.
    pub bytes: u64,
    /// What else the span tells: a shape, the name of a collective, the number of an iteration.
    pub detail: String,
}

#[derive(Default)]
struct Fields {
    flops: u64,
    bytes: u64,
    detail: String,
}

impl Fields {
    fn note(&mut self, field: &Field, value: &dyn std::fmt::Display) {
        use std::fmt::Write;
        let gap = if self.detail.is_empty() { "" } else { " " };
        // Writing to a String cannot fail.
        let _ = write!(self.detail, "{gap}{}={value}", field.name());
    }
}

impl Visit for Fields {
    fn record_u64(&mut self, field: &Field, value: u64) {
        match field.name() {
            "flops" => self.flops = value,
            "bytes" => self.bytes = value,
            _ => self.note(field, &value),
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.note(field, &value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.note(field, &format_args!("{value:?}"));
    }
}

struct Open {
    start: Instant,
    fields: Fields,
}

struct Inner {
    epoch: Instant,
    on: AtomicBool,
    /// Ranks that are recorded while `on` is not set.
    ranks: Mutex<BTreeSet<usize>>,
    /// Whether there are such ranks: what every span asks first.
    some: AtomicBool,
    events: Mutex<Vec<Event>>,
}

/// Collects events while it is on. Cloning shares it; a clone is a layer for a `tracing` subscriber.
///
/// The rank of an event is the number in the name of its thread, `rank 3`, or 0.
#[derive(Clone)]
pub struct Recorder(Arc<Inner>);

impl Default for Recorder {
    fn default() -> Self {
        Self::new()
    }
}

impl Recorder {
    /// A recorder that is off.
    pub fn new() -> Self {
        let epoch = Instant::now();
        let (on, some) = (AtomicBool::new(false), AtomicBool::new(false));
        Self(Arc::new(Inner { epoch, on, ranks: Mutex::default(), some, events: Mutex::default() }))
    }

    /// Switches recording on or off, of all ranks.
    pub fn set(&self, on: bool) {
        self.0.on.store(on, Ordering::Relaxed);
    }

    /// Switches recording on or off for the rank of this thread only: others may start later, or still be running.
    pub fn set_here(&self, on: bool) {
        let mut ranks = self.0.ranks.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = if on { ranks.insert(current_rank()) } else { ranks.remove(&current_rank()) };
        self.0.some.store(!ranks.is_empty(), Ordering::Relaxed);
    }

    /// Whether it records what this thread does.
    pub fn is_on(&self) -> bool {
        let ranks = || self.0.ranks.lock().unwrap_or_else(PoisonError::into_inner);
        self.0.on.load(Ordering::Relaxed)
            || self.0.some.load(Ordering::Relaxed) && ranks().contains(&current_rank())
    }

    /// Takes the events out, ordered by rank and start.
    pub fn take(&self) -> Vec<Event> {
        let mut events = std::mem::take(&mut *self.0.events.lock().unwrap_or_else(PoisonError::into_inner));
        events.sort_by(|a, b| {
            (a.rank, a.start_us).partial_cmp(&(b.rank, b.start_us)).expect("times are numbers")
        });
        events
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Recorder {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        if !self.is_on() || Category::of(attributes.metadata()).is_none() {
            return;
        }
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        if let Some(span) = context.span(id) {
            span.extensions_mut().insert(Open { start: Instant::now(), fields });
        }
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let Some(span) = context.span(&id) else { return };
        let Some(Open { start, fields }) = span.extensions_mut().remove::<Open>() else { return };
        let Some(category) = Category::of(span.metadata()) else { return };
        let micros = |d: std::time::Duration| d.as_nanos() as f64 / 1e3;
        let event = Event {
            name: span.name().to_owned(),
            category,
            rank: current_rank(),
            start_us: micros(start.duration_since(self.0.epoch)),
            duration_us: micros(start.elapsed()),
            flops: fields.flops,
            bytes: fields.bytes,
            detail: fields.detail,
        };
        self.0.events.lock().unwrap_or_else(PoisonError::into_inner).push(event);
    }
}

fn current_rank() -> usize {
    let thread = std::thread::current();
    thread.name().and_then(|n| n.strip_prefix("rank ")).and_then(|n| n.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing_subscriber::prelude::*;

    #[test]
    fn only_spans_while_it_is_on_become_events() {
        let recorder = Recorder::new();
        let subscriber = tracing_subscriber::registry().with(recorder.clone());
        tracing::subscriber::with_default(subscriber, || {
            let op =
                || drop(tracing::trace_span!(target: "ms_op", "linear", flops = 8u64, m = 2u64).entered());
            op();
            recorder.set(true);
            op();
            drop(tracing::trace_span!("elsewhere").entered());
            drop(tracing::trace_span!(target: "ms_comm", "all_gather", what = "weights").entered());
            recorder.set(false);
            op();
        });
        let events = recorder.take();
        assert_eq!(events.len(), 2);
        assert_eq!(
            (events[0].name.as_str(), events[0].flops, events[0].detail.as_str()),
            ("linear", 8, "m=2")
        );
        assert_eq!(events[1].category, Category::Communication);
        assert!(events[0].start_us <= events[1].start_us);
        assert!(recorder.take().is_empty());
    }
    #[test]
    fn a_rank_that_is_done_does_not_end_what_is_recorded_of_another() {
        let recorder = Recorder::new();
        let here = |rank: usize, work: &(dyn Fn() + Sync)| {
            std::thread::scope(|scope| {
                let thread = std::thread::Builder::new().name(format!("rank {rank}"));
                thread.spawn_scoped(scope, work).unwrap().join().unwrap();
            });
        };
        let switch = |rank: usize, on: bool| here(rank, &|| recorder.set_here(on));
        let recorded = || {
            (0..3).filter(|&rank| {
                let on = AtomicBool::new(false);
                here(rank, &|| on.store(recorder.is_on(), Ordering::Relaxed));
                on.into_inner()
            })
        };
        switch(0, true);
        switch(1, true);
        switch(0, false);
        assert_eq!(recorded().collect::<Vec<_>>(), [1]);
        switch(1, false);
        assert_eq!(recorded().count(), 0);
    }
}

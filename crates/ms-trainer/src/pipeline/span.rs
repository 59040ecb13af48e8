//! Profiling spans of a stage's work.

use ms_dist::schedule::{Action, PassId};

/// What a profile shows of an action: which it is, and of how many forward passes the stage holds something that they keep,
/// this one and those whose gradients of weights are deferred included.
pub(super) fn span(action: Action, live: usize) -> tracing::Span {
    let PassId { micro, chunk } = action.pass();
    macro_rules! named {
        ($name:literal) => {
            tracing::trace_span!(target: "ms_step", $name, micro, chunk, live)
        };
    }
    match action {
        Action::Forward { .. } => named!("forward"),
        Action::Backward { .. } => named!("backward"),
        Action::BackwardInput { .. } => named!("backward by inputs"),
        Action::BackwardWeight { .. } => named!("backward by weights"),
    }
}

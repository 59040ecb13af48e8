//! What the ranks of a tensor-parallel group hold of a value and of its gradient.
//!
//! Debug builds follow it through a graph: an operation says what comes out of what goes in ([`crate::Op::hold`]), only what
//! ranks exchange changes it, and what cannot be computed so ends the program with the operation's name. A weight brings what the
//! table of parameters says of it, so a table that forgets whose gradients are summands is found by any training step on two
//! ranks, whatever the values are.
//!
//! Nothing is known of some values (what layers lend each other over a border of stages, tokens among experts), and nothing of
//! what is made of them.
//!
//! # Source
//! The states and how operations combine them are those of PyTorch's types of values in programs that all ranks run (2025):
//! invariant, replicate, varying, partial.

/// The state of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// No gradient flows to it: it goes with all others.
    Constant,
    /// All ranks hold the same, and the same gradient.
    Invariant,
    /// All ranks hold the same; their gradients are summands.
    Replicated,
    /// Every rank holds its own part, and of the gradient the same part.
    Sharded,
    /// Of a weight: every rank holds the columns that take its part of the input, so that a product is a summand.
    ShardedInputs,
    /// Every rank holds a summand; the gradients are the same.
    Partial,
}

/// What goes into an operation: of each input its state, where that is known.
pub type Holds<'a> = &'a [Option<Hold>];

/// Ranks cannot compute so with what they hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clash;

/// What comes out.
pub type Held = Result<Option<Hold>, Clash>;

/// Of an operation that is no sum of what its inputs give one by one: all invariant, or none.
///
/// # Errors
/// If summands go in, or what is invariant beside what is not: its gradient would be a part of it.
pub fn together(inputs: Holds<'_>) -> Held {
    let mut out = Hold::Constant;
    for hold in inputs.iter().flatten() {
        out = match (out, *hold) {
            (_, Hold::Partial | Hold::ShardedInputs) => return Err(Clash),
            (Hold::Constant, hold) | (hold, Hold::Constant) => hold,
            (Hold::Invariant, Hold::Invariant) => Hold::Invariant,
            (Hold::Invariant, _) | (_, Hold::Invariant) => return Err(Clash),
            (Hold::Replicated, Hold::Replicated) => Hold::Replicated,
            _ => Hold::Sharded,
        };
    }
    Ok(Some(out).filter(|_| inputs.iter().all(Option::is_some)))
}

/// Of an operation that adds its inputs or rearranges one: summands stay summands.
///
/// # Errors
/// As [`together`]; if only some are summands.
pub fn added(inputs: Holds<'_>) -> Held {
    if let [one] = inputs {
        return Ok(*one);
    }
    let is = |of: Hold| move |hold: &Option<Hold>| *hold == Some(of);
    match inputs.iter().any(is(Hold::Partial)) {
        true if inputs.iter().all(is(Hold::Partial)) => Ok(Some(Hold::Partial)),
        // What is not known may be a summand.
        true if inputs.iter().all(|hold| hold.is_none() || is(Hold::Partial)(hold)) => Ok(None),
        true => Err(Clash),
        false => together(inputs),
    }
}

/// Of a product of values element by element or row by row: a summand times what all ranks hold is a summand.
///
/// # Errors
/// As [`together`]; if both are summands, or the other differs from rank to rank.
pub fn multiplied(inputs: Holds<'_>) -> Held {
    let known = || inputs.iter().flatten();
    match known().filter(|hold| **hold == Hold::Partial).count() {
        0 => together(inputs),
        1 if known().all(|hold| matches!(hold, Hold::Partial | Hold::Replicated | Hold::Constant)) => {
            Ok(Some(Hold::Partial).filter(|_| inputs.iter().all(Option::is_some)))
        }
        _ => Err(Clash),
    }
}

/// Of a linear layer of `[x, w]` and perhaps a bias.
///
/// # Errors
/// As [`together`]; if a weight whose columns are shared out meets an input that is not.
pub fn projected(inputs: Holds<'_>) -> Held {
    match *inputs {
        [x, Some(Hold::ShardedInputs), ref bias @ ..] => match x {
            None | Some(Hold::Sharded) if bias.iter().all(|b| matches!(b, None | Some(Hold::Constant))) => {
                Ok(Some(Hold::Partial))
            }
            _ => Err(Clash),
        },
        _ => together(inputs),
    }
}

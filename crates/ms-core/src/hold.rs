//! Sharding states: what ranks hold of a value and of its gradient, along every axis of the grid.
//!
//! | state                    | PyTorch's name       | the value on each rank               | its gradient on each rank |
//! |--------------------------|----------------------|--------------------------------------|---------------------------|
//! | [`Hold::Constant`]       | -                    | the same                             | none                      |
//! | [`Hold::Invariant`]      | Invariant            | the same                             | the same                  |
//! | [`Hold::Replicated`]     | Replicate            | the same                             | a partial sum             |
//! | [`Hold::Tokens`]         | Varying (tokens)     | its own tokens                       | the same tokens           |
//! | [`Hold::Sharded`]        | Varying (heads)      | its own heads, columns or vocabulary | the same shard            |
//! | [`Hold::ShardedInputs`]  | Varying (weights)    | the columns for its part of the input | the same columns         |
//! | [`Hold::Routed`]         | Varying (experts)    | the rows routed to its own experts   | the same rows             |
//! | [`Hold::Partial`]        | Partial              | a partial sum                        | the same                  |
//!
//! Debug builds track these states through a graph. An operation derives its output state from its input states
//! ([`crate::Op::hold`]), and only communication changes a state. A combination that cannot be computed panics with the
//! operation's name and the axis. A weight starts with the state given by the parameter table, so a table that omits a
//! gradient all-reduce is caught by any training step on two ranks, whatever the values are.
//!
//! One rule serves all axes. It is evaluated separately for each [`Digit`] of the rank number; a digit lies along one axis of
//! the dense layers and one axis of the experts. Each exchange knows the digits of its group.
//!
//! Some values have no known state (after a group that had no rows to exchange); nothing is known of values computed from
//! them either.
//!
//! # Source
//! The states and how operations combine them follow PyTorch's types for values in SPMD programs (2025): invariant,
//! replicate, varying, partial. Varying values are distinguished here by what is sharded.

use crate::{Digit, Digits};
use std::fmt;

/// The state of a value along a digit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// No gradient flows to it; it combines with every other state.
    Constant,
    /// All ranks hold the same, and the same gradient.
    Invariant,
    /// All ranks hold the same value; their gradients are partial sums.
    Replicated,
    /// Every rank holds its own tokens, and the gradient of the same tokens.
    Tokens,
    /// Every rank holds its own heads, columns or vocabulary entries of an otherwise common value, and the same shard of the
    /// gradient.
    Sharded,
    /// For a weight: every rank holds the columns that multiply its part of the input, so the product is a partial sum.
    ShardedInputs,
    /// Every rank holds the rows routed to its own experts, whichever rank the tokens came from.
    Routed,
    /// Every rank holds a partial sum; the gradients are the same.
    Partial,
}

/// The known state of each input of an operation along one digit.
pub type Holds<'a> = &'a [Option<Hold>];

/// The operation is not defined on these states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clash;

/// The output state, or a clash.
pub type Held = Result<Option<Hold>, Clash>;

/// The states of a value along all digits.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct States([Option<Hold>; Digit::COUNT]);

impl States {
    /// The same along all digits.
    pub const fn all(hold: Option<Hold>) -> Self {
        Self([hold; Digit::COUNT])
    }

    /// The same states, with another one along some digits.
    #[must_use]
    pub fn with(mut self, along: Digits, hold: impl Into<Option<Hold>>) -> Self {
        let hold = hold.into();
        along.each().for_each(|digit| self.0[digit.index()] = hold);
        self
    }

    /// The state along one digit.
    pub const fn along(&self, digit: Digit) -> Option<Hold> {
        self.0[digit.index()]
    }

    /// Checks that they are what was `declared` of `what`, as far as both are known.
    ///
    /// # Panics
    /// In debug builds, if they differ along a digit; the message names both.
    pub fn assert_declared(self, declared: Self, what: &str) {
        for digit in Digit::all().filter(|_| cfg!(debug_assertions)) {
            let (found, declared) = (self.along(digit), declared.along(digit));
            // A value without a gradient is compatible with every state.
            let fits =
                found == declared || declared.is_none() || matches!(found, None | Some(Hold::Constant));
            assert!(fits, "{what}: along {digit} ranks hold {found:?}, and {declared:?} was declared");
        }
    }

    /// The states of the same value detached from the graph: replicated values become constants.
    #[must_use]
    pub fn without_gradient(self) -> Self {
        Self(self.0.map(|hold| match hold {
            Some(Hold::Invariant | Hold::Replicated) => Some(Hold::Constant),
            part => part,
        }))
    }

    /// The output states of an operation with this `rule` for inputs in the states `inputs`.
    ///
    /// # Errors
    /// The first digit along which the states clash.
    pub fn of(inputs: &[Self], rule: impl Fn(Digit, Holds<'_>) -> Held) -> Result<Self, Digit> {
        let (mut out, mut holds) = (Self::default(), vec![None; inputs.len()]);
        for digit in Digit::all() {
            holds.iter_mut().zip(inputs).for_each(|(hold, input)| *hold = input.along(digit));
            out.0[digit.index()] = rule(digit, &holds).map_err(|Clash| digit)?;
        }
        Ok(out)
    }
}

impl fmt::Debug for States {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = Digit::all().filter_map(|digit| Some((digit, self.along(digit)?)));
        f.debug_map().entries(known.map(|(digit, hold)| (digit.to_string(), hold))).finish()
    }
}

/// `hold`, if all input states are known.
fn known(inputs: Holds<'_>, hold: Hold) -> Held {
    Ok(Some(hold).filter(|_| inputs.iter().all(Option::is_some)))
}

/// For an operation that is not linear in its inputs: all invariant, or none, and shards of one kind.
///
/// # Errors
/// If an input is a partial sum, if invariant and other inputs are mixed (the invariant one's gradient would be incomplete),
/// or if the shards are of different kinds.
pub fn together(inputs: Holds<'_>) -> Held {
    let mut out = Hold::Constant;
    for hold in inputs.iter().flatten() {
        out = match (out, *hold) {
            (_, Hold::Partial | Hold::ShardedInputs) => return Err(Clash),
            (Hold::Constant, hold) | (hold, Hold::Constant) => hold,
            (Hold::Replicated, part @ (Hold::Tokens | Hold::Sharded)) => part,
            (part @ (Hold::Tokens | Hold::Sharded), Hold::Replicated) => part,
            (one, other) if one == other => one,
            _ => return Err(Clash),
        };
    }
    known(inputs, out)
}

/// For an operation that adds its inputs or rearranges one: partial sums stay partial sums.
///
/// # Errors
/// As [`together`]; if only some are partial sums.
pub fn added(inputs: Holds<'_>) -> Held {
    if let [one] = inputs {
        return Ok(*one);
    }
    let is = |of: Hold| move |hold: &Option<Hold>| *hold == Some(of);
    match inputs.iter().any(is(Hold::Partial)) {
        true if inputs.iter().all(is(Hold::Partial)) => Ok(Some(Hold::Partial)),
        // What is not known may be a partial sum.
        true if inputs.iter().all(|hold| hold.is_none() || is(Hold::Partial)(hold)) => Ok(None),
        true => Err(Clash),
        false => together(inputs),
    }
}

/// For a product of values, element by element or row by row: a partial sum times a replicated value is a partial sum.
///
/// # Errors
/// As [`together`]; if both are partial sums, or the other differs from rank to rank.
pub fn multiplied(inputs: Holds<'_>) -> Held {
    let holds = || inputs.iter().flatten();
    match holds().filter(|hold| **hold == Hold::Partial).count() {
        0 => together(inputs),
        1 if holds().all(|hold| matches!(hold, Hold::Partial | Hold::Replicated | Hold::Constant)) => {
            known(inputs, Hold::Partial)
        }
        _ => Err(Clash),
    }
}

/// For the combine of each token's expert rows, with inputs `[rows, weights]`: from rows of a rank's own experts, a partial
/// sum.
///
/// # Errors
/// As [`multiplied`]; if rows of a rank's experts, of whichever tokens, meet the weights of the rank's own tokens.
pub fn combined(inputs: Holds<'_>) -> Held {
    match *inputs {
        [Some(Hold::Routed), weights] => match weights {
            None | Some(Hold::Replicated | Hold::Constant) => known(inputs, Hold::Partial),
            _ => Err(Clash),
        },
        _ => multiplied(inputs),
    }
}

/// For a linear layer with inputs `[x, w]` and possibly a bias.
///
/// # Errors
/// As [`together`]; if a weight sharded by columns gets an input that is not sharded; if one sharded by rows gets an input
/// that is not replicated.
pub fn projected(inputs: Holds<'_>) -> Held {
    match *inputs {
        [x, Some(Hold::ShardedInputs), ref bias @ ..] => match x {
            None | Some(Hold::Sharded)
                if bias.iter().all(|b| matches!(b, None | Some(Hold::Constant | Hold::Partial))) =>
            {
                Ok(Some(Hold::Partial))
            }
            _ => Err(Clash),
        },
        [Some(Hold::Tokens | Hold::Sharded), Some(Hold::Sharded), ..] => Err(Clash),
        _ => together(inputs),
    }
}

/// For a linear layer of experts: as [`projected`]; rows that were sent to the ranks of their experts are multiplied with
/// these.
///
/// # Errors
/// As [`projected`]; if such rows get replicated weights.
pub fn by_expert(inputs: Holds<'_>) -> Held {
    match *inputs {
        [Some(Hold::Routed), ref layer @ ..] => {
            match layer.iter().flatten().all(|w| matches!(w, Hold::Sharded | Hold::Constant)) {
                true => known(inputs, Hold::Routed),
                false => Err(Clash),
            }
        }
        _ => projected(inputs),
    }
}

/// For an operation in which tokens of a document see each other's rows of the inputs `seen`.
///
/// # Errors
/// As [`together`]; if ranks hold tokens of the same documents.
pub fn in_sequence(along: Digit, inputs: Holds<'_>, seen: std::ops::Range<usize>) -> Held {
    match !along.of_samples() && inputs[seen].contains(&Some(Hold::Tokens)) {
        true => Err(Clash),
        false => together(inputs),
    }
}

impl Digits {
    /// For an exchange between the ranks along these digits: from one of the states `before` to `behind`. Along other digits
    /// the state is unchanged.
    ///
    /// # Errors
    /// If an input is in none of these states.
    pub fn exchanged(self, along: Digit, inputs: Holds<'_>, before: &[Hold], behind: Hold) -> Held {
        if !self.contains(along) {
            return added(inputs);
        }
        match inputs.iter().flatten().all(|hold| *hold == Hold::Constant || before.contains(hold)) {
            true => Ok(Some(behind)),
            false => Err(Clash),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Hold::{Constant, Invariant, Partial, Replicated, Routed, Sharded, ShardedInputs, Tokens};

    fn of(rule: fn(Holds<'_>) -> Held, inputs: &[Hold]) -> Result<Hold, Clash> {
        let inputs: Vec<Option<Hold>> = inputs.iter().copied().map(Some).collect();
        rule(&inputs).map(|out| out.expect("all inputs are known"))
    }

    #[test]
    fn what_is_alike_goes_with_parts_of_one_kind_and_invariant_values_alone() {
        for part in [Tokens, Sharded] {
            assert_eq!(of(together, &[part, Replicated]), Ok(part));
            assert_eq!(of(together, &[Replicated, part, Constant]), Ok(part));
            assert_eq!(of(together, &[part, Invariant]), Err(Clash));
        }
        assert_eq!(of(together, &[Invariant, Invariant]), Ok(Invariant));
        assert_eq!(of(together, &[Invariant, Replicated]), Err(Clash));
        assert_eq!(of(together, &[Tokens, Sharded]), Err(Clash));
        assert_eq!(of(together, &[Routed, Replicated]), Err(Clash));
        assert_eq!(of(together, &[Partial]), Err(Clash));
        assert_eq!(together(&[None, Some(Tokens)]), Ok(None));
        assert_eq!(together(&[None, Some(Partial)]), Err(Clash));
    }

    #[test]
    fn summands_are_added_to_summands_and_multiplied_by_what_is_alike() {
        assert_eq!(of(added, &[Partial, Partial]), Ok(Partial));
        assert_eq!(of(added, &[Partial, Replicated]), Err(Clash));
        assert_eq!(added(&[Some(Partial), None]), Ok(None));
        assert_eq!(of(multiplied, &[Partial, Replicated]), Ok(Partial));
        assert_eq!(of(multiplied, &[Partial, Tokens]), Err(Clash));
        assert_eq!(of(multiplied, &[Partial, Partial]), Err(Clash));
    }

    #[test]
    fn products_are_summands_where_columns_meet_their_part_of_the_input() {
        assert_eq!(of(projected, &[Sharded, ShardedInputs, Constant]), Ok(Partial));
        assert_eq!(of(projected, &[Replicated, ShardedInputs, Constant]), Err(Clash));
        // A bias that every rank adds would be added as often as there are ranks.
        assert_eq!(of(projected, &[Sharded, ShardedInputs, Replicated]), Err(Clash));
        assert_eq!(of(projected, &[Replicated, Sharded, Sharded]), Ok(Sharded));
        assert_eq!(of(projected, &[Tokens, Sharded]), Err(Clash), "tokens were not gathered");
        assert_eq!(of(projected, &[Tokens, Replicated]), Ok(Tokens));
        assert_eq!(of(projected, &[Tokens, Invariant]), Err(Clash), "the table forgot a sum");
    }

    #[test]
    fn experts_take_rows_that_were_sent_to_them() {
        assert_eq!(of(by_expert, &[Routed, Sharded, Sharded]), Ok(Routed));
        assert_eq!(of(by_expert, &[Tokens, Sharded, Constant]), Err(Clash), "rows were not sent");
        assert_eq!(
            of(by_expert, &[Routed, Replicated, Constant]),
            Err(Clash),
            "the table has all experts everywhere"
        );
        // Along ranks with the same experts, and along those that cut one.
        assert_eq!(of(by_expert, &[Tokens, Replicated, Replicated]), Ok(Tokens));
        assert_eq!(of(by_expert, &[Replicated, Sharded, Sharded]), Ok(Sharded));
        assert_eq!(of(by_expert, &[Sharded, ShardedInputs, Partial]), Ok(Partial));
        assert_eq!(of(combined, &[Routed, Replicated]), Ok(Partial));
        assert_eq!(of(combined, &[Routed, Tokens]), Err(Clash), "rows were not sent back");
        assert_eq!(of(combined, &[Tokens, Tokens]), Ok(Tokens));
        assert_eq!(of(combined, &[Sharded, Replicated]), Ok(Sharded));
    }

    #[test]
    fn tokens_of_one_document_see_each_other_on_one_rank() {
        let (samples, parts): (Vec<Digit>, Vec<Digit>) = Digit::all().partition(|d| d.of_samples());
        let rows = [Some(Tokens), Some(Replicated)];
        assert!(samples.iter().all(|&d| in_sequence(d, &rows, 0..1) == Ok(Some(Tokens))));
        assert!(parts.iter().all(|&d| in_sequence(d, &rows, 0..1) == Err(Clash)));
        // Queries may stay where they are, if keys are gathered.
        assert!(parts.iter().all(|&d| in_sequence(d, &rows, 1..2) == Ok(Some(Tokens))));
    }

    #[test]
    fn an_exchange_changes_what_its_own_ranks_hold_alone() {
        let digits: Vec<Digit> = Digit::all().collect();
        let over = |digit: Digit| digits[1].index() == digit.index();
        let states = States::all(Some(Tokens));
        let ours = Digits::only(digits[1]);
        let gathered =
            States::of(&[states], |along, holds| ours.exchanged(along, holds, &[Tokens], Replicated))
                .unwrap();
        let want = |digit: Digit| Some(if over(digit) { Replicated } else { Tokens });
        assert!(digits.iter().all(|&digit| gathered.along(digit) == want(digit)));
        let again =
            States::of(&[gathered], |along, holds| ours.exchanged(along, holds, &[Tokens], Replicated));
        assert!(again == Err(digits[1]), "gathered twice");
    }
}

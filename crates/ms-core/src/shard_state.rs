//! Sharding states: what ranks hold of a value and of its gradient, along every axis of the grid.
//!
//! | state                         | PyTorch's name    | the value on each rank                | its gradient on each rank |
//! |-------------------------------|-------------------|---------------------------------------|---------------------------|
//! | [`ShardState::Constant`]      | -                 | the same                              | none                      |
//! | [`ShardState::Invariant`]     | Invariant         | the same                              | the same                  |
//! | [`ShardState::Replicated`]    | Replicate         | the same                              | a partial sum             |
//! | [`ShardState::Tokens`]        | Varying (tokens)  | its own tokens                        | the same tokens           |
//! | [`ShardState::Sharded`]       | Varying (heads)   | its own heads, columns or vocabulary  | the same shard            |
//! | [`ShardState::ShardedInputs`] | Varying (weights) | the columns for its part of the input | the same columns          |
//! | [`ShardState::Routed`]        | Varying (experts) | the rows routed to its own experts    | the same rows             |
//! | [`ShardState::Partial`]       | Partial           | a partial sum                         | the same                  |
//!
//! Debug builds track these states through a graph. An operation derives its output state from its input states
//! ([`crate::Op::shard_state`]), and only communication changes a state. A combination that cannot be computed panics with the
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
pub enum ShardState {
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
pub type InputStates<'a> = &'a [Option<ShardState>];

/// The operation is not defined on these states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateConflict;

/// The output state, or a conflict.
pub type OutputState = Result<Option<ShardState>, StateConflict>;

/// The states of a value along all digits.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct ShardStates([Option<ShardState>; Digit::COUNT]);

impl ShardStates {
    /// The same along all digits.
    pub const fn all(state: Option<ShardState>) -> Self {
        Self([state; Digit::COUNT])
    }

    /// The same states, with another one along some digits.
    #[must_use]
    pub fn with(mut self, along: Digits, state: impl Into<Option<ShardState>>) -> Self {
        let state = state.into();
        along.each().for_each(|digit| self.0[digit.index()] = state);
        self
    }

    /// The state along one digit.
    pub const fn along(&self, digit: Digit) -> Option<ShardState> {
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
                found == declared || declared.is_none() || matches!(found, None | Some(ShardState::Constant));
            assert!(fits, "{what}: along {digit} ranks hold {found:?}, and {declared:?} was declared");
        }
    }

    /// The states of the same value detached from the graph: replicated values become constants.
    #[must_use]
    pub fn without_gradient(self) -> Self {
        Self(self.0.map(|state| match state {
            Some(ShardState::Invariant | ShardState::Replicated) => Some(ShardState::Constant),
            part => part,
        }))
    }

    /// The output states of an operation with this `rule` for inputs in the states `inputs`.
    ///
    /// # Errors
    /// The first digit along which the states conflict.
    pub fn of(inputs: &[Self], rule: impl Fn(Digit, InputStates<'_>) -> OutputState) -> Result<Self, Digit> {
        let (mut out, mut states) = (Self::default(), vec![None; inputs.len()]);
        for digit in Digit::all() {
            states.iter_mut().zip(inputs).for_each(|(state, input)| *state = input.along(digit));
            out.0[digit.index()] = rule(digit, &states).map_err(|StateConflict| digit)?;
        }
        Ok(out)
    }
}

impl fmt::Debug for ShardStates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = Digit::all().filter_map(|digit| Some((digit, self.along(digit)?)));
        f.debug_map().entries(known.map(|(digit, state)| (digit.to_string(), state))).finish()
    }
}

/// `hold`, if all input states are known.
fn known(inputs: InputStates<'_>, state: ShardState) -> OutputState {
    Ok(Some(state).filter(|_| inputs.iter().all(Option::is_some)))
}

/// For an operation that is not linear in its inputs: all invariant, or none, and shards of one kind.
///
/// # Errors
/// If an input is a partial sum, if invariant and other inputs are mixed (the invariant one's gradient would be incomplete),
/// or if the shards are of different kinds.
pub fn nonlinear(inputs: InputStates<'_>) -> OutputState {
    let mut out = ShardState::Constant;
    for state in inputs.iter().flatten() {
        out = match (out, *state) {
            (_, ShardState::Partial | ShardState::ShardedInputs) => return Err(StateConflict),
            (ShardState::Constant, state) | (state, ShardState::Constant) => state,
            (ShardState::Replicated, part @ (ShardState::Tokens | ShardState::Sharded)) => part,
            (part @ (ShardState::Tokens | ShardState::Sharded), ShardState::Replicated) => part,
            (one, other) if one == other => one,
            _ => return Err(StateConflict),
        };
    }
    known(inputs, out)
}

/// For an operation that adds its inputs or rearranges one: partial sums stay partial sums.
///
/// # Errors
/// As [`nonlinear`]; if only some are partial sums.
pub fn additive(inputs: InputStates<'_>) -> OutputState {
    if let [one] = inputs {
        return Ok(*one);
    }
    let is = |of: ShardState| move |state: &Option<ShardState>| *state == Some(of);
    match inputs.iter().any(is(ShardState::Partial)) {
        true if inputs.iter().all(is(ShardState::Partial)) => Ok(Some(ShardState::Partial)),
        // What is not known may be a partial sum.
        true if inputs.iter().all(|state| state.is_none() || is(ShardState::Partial)(state)) => Ok(None),
        true => Err(StateConflict),
        false => nonlinear(inputs),
    }
}

/// For a product of values, element by element or row by row: a partial sum times a replicated value is a partial sum.
///
/// # Errors
/// As [`nonlinear`]; if both are partial sums, or the other differs from rank to rank.
pub fn product(inputs: InputStates<'_>) -> OutputState {
    let states = || inputs.iter().flatten();
    match states().filter(|state| **state == ShardState::Partial).count() {
        0 => nonlinear(inputs),
        1 if states().all(|state| {
            matches!(state, ShardState::Partial | ShardState::Replicated | ShardState::Constant)
        }) =>
        {
            known(inputs, ShardState::Partial)
        }
        _ => Err(StateConflict),
    }
}

/// For the combine of each token's expert rows, with inputs `[rows, weights]`: from rows of a rank's own experts, a partial
/// sum.
///
/// # Errors
/// As [`product`]; if rows of a rank's experts, of whichever tokens, meet the weights of the rank's own tokens.
pub fn expert_combine(inputs: InputStates<'_>) -> OutputState {
    match *inputs {
        [Some(ShardState::Routed), weights] => match weights {
            None | Some(ShardState::Replicated | ShardState::Constant) => known(inputs, ShardState::Partial),
            _ => Err(StateConflict),
        },
        _ => product(inputs),
    }
}

/// For a linear layer with inputs `[x, w]` and possibly a bias.
///
/// # Errors
/// As [`nonlinear`]; if a weight sharded by columns gets an input that is not sharded; if one sharded by rows gets an input
/// that is not replicated.
pub fn linear_layer(inputs: InputStates<'_>) -> OutputState {
    match *inputs {
        [x, Some(ShardState::ShardedInputs), ref bias @ ..] => match x {
            None | Some(ShardState::Sharded)
                if bias
                    .iter()
                    .all(|b| matches!(b, None | Some(ShardState::Constant | ShardState::Partial))) =>
            {
                Ok(Some(ShardState::Partial))
            }
            _ => Err(StateConflict),
        },
        [Some(ShardState::Tokens | ShardState::Sharded), Some(ShardState::Sharded), ..] => Err(StateConflict),
        _ => nonlinear(inputs),
    }
}

/// For a linear layer of experts: as [`linear_layer`]; rows that were sent to the ranks of their experts are multiplied with
/// these.
///
/// # Errors
/// As [`linear_layer`]; if such rows get replicated weights.
pub fn expert_linear_layer(inputs: InputStates<'_>) -> OutputState {
    match *inputs {
        [Some(ShardState::Routed), ref layer @ ..] => {
            if layer.iter().flatten().all(|w| matches!(w, ShardState::Sharded | ShardState::Constant)) {
                known(inputs, ShardState::Routed)
            } else {
                Err(StateConflict)
            }
        }
        _ => linear_layer(inputs),
    }
}

/// For an operation in which tokens of a document see each other's rows of the inputs `seen`.
///
/// # Errors
/// As [`nonlinear`]; if ranks hold tokens of the same documents.
pub fn token_mixing(along: Digit, inputs: InputStates<'_>, seen: std::ops::Range<usize>) -> OutputState {
    if !along.of_samples() && inputs[seen].contains(&Some(ShardState::Tokens)) {
        Err(StateConflict)
    } else {
        nonlinear(inputs)
    }
}

impl Digits {
    /// For an exchange between the ranks along these digits: from one of the states `before` to `after`. Along other digits
    /// the state is unchanged.
    ///
    /// # Errors
    /// If an input is in none of these states.
    pub fn exchanged(
        self,
        along: Digit,
        inputs: InputStates<'_>,
        before: &[ShardState],
        after: ShardState,
    ) -> OutputState {
        if !self.contains(along) {
            return additive(inputs);
        }
        if inputs.iter().flatten().all(|state| *state == ShardState::Constant || before.contains(state)) {
            Ok(Some(after))
        } else {
            Err(StateConflict)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ShardState::{Constant, Invariant, Partial, Replicated, Routed, Sharded, ShardedInputs, Tokens};

    fn of(
        rule: fn(InputStates<'_>) -> OutputState,
        inputs: &[ShardState],
    ) -> Result<ShardState, StateConflict> {
        let inputs: Vec<Option<ShardState>> = inputs.iter().copied().map(Some).collect();
        rule(&inputs).map(|out| out.expect("all inputs are known"))
    }

    #[test]
    fn what_is_alike_goes_with_parts_of_one_kind_and_invariant_values_alone() {
        for part in [Tokens, Sharded] {
            assert_eq!(of(nonlinear, &[part, Replicated]), Ok(part));
            assert_eq!(of(nonlinear, &[Replicated, part, Constant]), Ok(part));
            assert_eq!(of(nonlinear, &[part, Invariant]), Err(StateConflict));
        }
        assert_eq!(of(nonlinear, &[Invariant, Invariant]), Ok(Invariant));
        assert_eq!(of(nonlinear, &[Invariant, Replicated]), Err(StateConflict));
        assert_eq!(of(nonlinear, &[Tokens, Sharded]), Err(StateConflict));
        assert_eq!(of(nonlinear, &[Routed, Replicated]), Err(StateConflict));
        assert_eq!(of(nonlinear, &[Partial]), Err(StateConflict));
        assert_eq!(nonlinear(&[None, Some(Tokens)]), Ok(None));
        assert_eq!(nonlinear(&[None, Some(Partial)]), Err(StateConflict));
    }

    #[test]
    fn summands_are_added_to_summands_and_multiplied_by_what_is_alike() {
        assert_eq!(of(additive, &[Partial, Partial]), Ok(Partial));
        assert_eq!(of(additive, &[Partial, Replicated]), Err(StateConflict));
        assert_eq!(additive(&[Some(Partial), None]), Ok(None));
        assert_eq!(of(product, &[Partial, Replicated]), Ok(Partial));
        assert_eq!(of(product, &[Partial, Tokens]), Err(StateConflict));
        assert_eq!(of(product, &[Partial, Partial]), Err(StateConflict));
    }

    #[test]
    fn products_are_summands_where_columns_meet_their_part_of_the_input() {
        assert_eq!(of(linear_layer, &[Sharded, ShardedInputs, Constant]), Ok(Partial));
        assert_eq!(of(linear_layer, &[Replicated, ShardedInputs, Constant]), Err(StateConflict));
        // A bias that every rank adds would be added as often as there are ranks.
        assert_eq!(of(linear_layer, &[Sharded, ShardedInputs, Replicated]), Err(StateConflict));
        assert_eq!(of(linear_layer, &[Replicated, Sharded, Sharded]), Ok(Sharded));
        assert_eq!(of(linear_layer, &[Tokens, Sharded]), Err(StateConflict), "tokens were not gathered");
        assert_eq!(of(linear_layer, &[Tokens, Replicated]), Ok(Tokens));
        assert_eq!(of(linear_layer, &[Tokens, Invariant]), Err(StateConflict), "the table forgot a sum");
    }

    #[test]
    fn experts_take_rows_that_were_sent_to_them() {
        assert_eq!(of(expert_linear_layer, &[Routed, Sharded, Sharded]), Ok(Routed));
        assert_eq!(
            of(expert_linear_layer, &[Tokens, Sharded, Constant]),
            Err(StateConflict),
            "rows were not sent"
        );
        assert_eq!(
            of(expert_linear_layer, &[Routed, Replicated, Constant]),
            Err(StateConflict),
            "the table has all experts everywhere"
        );
        // Along ranks with the same experts, and along those that cut one.
        assert_eq!(of(expert_linear_layer, &[Tokens, Replicated, Replicated]), Ok(Tokens));
        assert_eq!(of(expert_linear_layer, &[Replicated, Sharded, Sharded]), Ok(Sharded));
        assert_eq!(of(expert_linear_layer, &[Sharded, ShardedInputs, Partial]), Ok(Partial));
        assert_eq!(of(expert_combine, &[Routed, Replicated]), Ok(Partial));
        assert_eq!(of(expert_combine, &[Routed, Tokens]), Err(StateConflict), "rows were not sent back");
        assert_eq!(of(expert_combine, &[Tokens, Tokens]), Ok(Tokens));
        assert_eq!(of(expert_combine, &[Sharded, Replicated]), Ok(Sharded));
    }

    #[test]
    fn tokens_of_one_document_see_each_other_on_one_rank() {
        let (samples, parts): (Vec<Digit>, Vec<Digit>) = Digit::all().partition(|d| d.of_samples());
        let rows = [Some(Tokens), Some(Replicated)];
        assert!(samples.iter().all(|&d| token_mixing(d, &rows, 0..1) == Ok(Some(Tokens))));
        assert!(parts.iter().all(|&d| token_mixing(d, &rows, 0..1) == Err(StateConflict)));
        // Queries may stay where they are, if keys are gathered.
        assert!(parts.iter().all(|&d| token_mixing(d, &rows, 1..2) == Ok(Some(Tokens))));
    }

    #[test]
    fn an_exchange_changes_what_its_own_ranks_hold_alone() {
        let digits: Vec<Digit> = Digit::all().collect();
        let over = |digit: Digit| digits[1].index() == digit.index();
        let states = ShardStates::all(Some(Tokens));
        let ours = Digits::only(digits[1]);
        let gathered =
            ShardStates::of(&[states], |along, states| ours.exchanged(along, states, &[Tokens], Replicated))
                .unwrap();
        let want = |digit: Digit| Some(if over(digit) { Replicated } else { Tokens });
        assert!(digits.iter().all(|&digit| gathered.along(digit) == want(digit)));
        let again = ShardStates::of(&[gathered], |along, states| {
            ours.exchanged(along, states, &[Tokens], Replicated)
        });
        assert!(again == Err(digits[1]), "gathered twice");
    }
}

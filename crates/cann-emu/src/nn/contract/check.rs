//! Whether the clauses of a contract hold for a call.

mod attention;
mod elements;
mod lists;
mod numbers;
mod shapes;

use super::letters::{Letters, Size};
use super::{Clause, groups};
use crate::abi::Arg;
use crate::hccl::{self, Use};
use crate::knobs::{chip, knobs};
use crate::nn::exec::{Call, Value};
use crate::nn::tensor::View;

/// The tensors of an argument: of a list, all; none where it is null.
pub(super) fn views<'a>(call: &'a Call, name: &str) -> Vec<&'a View> {
    match call.value(name) {
        Some(Value::Tensor(Some((_, v)))) => vec![v],
        Some(Value::List(Some(list))) => list.iter().map(|(_, v)| v).collect(),
        _ => Vec::new(),
    }
}

/// Whether a number is one of `1|2|4` or within `1..8`.
fn listed(value: i64, list: &str) -> bool {
    let number = |t: &str| t.parse::<i64>().expect("a number");
    list.split('|').any(|one| match one.split_once("..") {
        Some((low, high)) => (number(low)..=number(high)).contains(&value),
        None => value == number(one),
    })
}

/// Whether a clause holds, or what was expected and found.
type Holds = Result<(), String>;

/// An error with this text where a clause does not hold.
fn holds(it_does: bool, text: impl FnOnce() -> String) -> Holds {
    if it_does { Ok(()) } else { Err(text()) }
}

/// What clauses are about: a call's arguments, and the letters that are bound so far.
struct Facts<'a> {
    call: &'a Call,
    letters: &'a Letters,
}

impl<'a> Facts<'a> {
    fn views(&self, name: &str) -> Vec<&'a View> {
        views(self.call, name)
    }

    /// The tensor of an argument, or the first of its list.
    fn first(&self, name: &str) -> Option<&'a View> {
        self.views(name).first().copied()
    }

    fn is_there(&self, name: &str) -> bool {
        !self.views(name).is_empty()
    }

    fn size(&self, size: &Size) -> Option<i64> {
        size.value(self.letters, self.call)
    }

    fn number(&self, name: &str) -> Option<i64> {
        match self.call.value(name) {
            Some(Value::Number(Arg::I(n))) => Some(*n),
            _ => None,
        }
    }

    fn ints(&self, name: &str) -> Option<&'a [i64]> {
        match self.call.value(name) {
            Some(Value::Ints(Some(list))) => Some(list),
            _ => None,
        }
    }

    fn text(&self, name: &str) -> Option<&'a str> {
        match self.call.value(name) {
            Some(Value::Text(Some(text))) => Some(text),
            _ => None,
        }
    }

    /// `says(reduceOp,sum)`.
    fn says(&self, name: &str, list: &str) -> Holds {
        let Some(Value::Text(text)) = self.call.value(name) else { return Ok(()) };
        let text = text.as_deref().unwrap_or("");
        holds(list.split('|').any(|one| one == text), || format!("{name}: expected {list:?}, found {text:?}"))
    }

    /// `none(a,b)`.
    fn none(&self, names: &[String]) -> Holds {
        let there = |name: &&String| match self.call.value(name) {
            Some(Value::Tensor(t)) => t.is_some(),
            Some(Value::List(l)) => l.is_some(),
            Some(Value::Ints(l)) => l.is_some(),
            _ => false,
        };
        match names.iter().find(there) {
            Some(name) => Err(format!("{name} must be null: this release keeps it for later")),
            None => Ok(()),
        }
    }
}

/// `chips(A2|A3)`.
fn chips(kinds: &str) -> Holds {
    holds(kinds.split('|').any(|k| k == chip()), || format!("it runs on {kinds}, not on {}", knobs().soc))
}

/// `group(group>R)`: the communicator, its number of ranks and this one.
fn group(name: &str, letter: &str, of: Use, call: &Call, letters: &mut Letters) -> Holds {
    let Some(Value::Text(Some(text))) = call.value(name) else {
        return Err(format!("{name}: expected a communicator's name, found null"));
    };
    let comm = hccl::named(text, call.device)
        .ok_or_else(|| format!("{name}: no communicator of device {} has the name {text:?}", call.device))?;
    comm.claim(call.decl.name, of).map_err(|code| format!("refused with {code}"))?;
    letters.set(letter, i64::from(comm.size));
    letters.set(&format!("{letter}.rank"), i64::from(comm.rank));
    Ok(())
}

/// Whether a clause holds; letters that it meets first are bound.
pub(super) fn check(clause: &Clause, call: &Call, letters: &mut Letters) -> Holds {
    let facts = Facts { call, letters };
    match clause {
        Clause::Let(letter, size) => {
            if let Some(v) = facts.size(size) {
                letters.set(letter, v);
            }
            Ok(())
        }
        Clause::Default(letter, number) => {
            letters.set_default(letter, *number);
            Ok(())
        }
        Clause::Letters(shape) => {
            views(call, &shape.name).into_iter().try_for_each(|view| shape.check(view, letters, call))
        }
        Clause::Group { name, letter, of } => group(name, letter, *of, call, letters),
        Clause::Chips(kinds) => chips(kinds),
        Clause::Says(name, list) => facts.says(name, list),
        Clause::None(names) => facts.none(names),

        Clause::Types(name, types) => facts.types(name, types),
        Clause::Type(names) => facts.one_type(names),
        Clause::Contiguous(names) => facts.contiguous(names),
        Clause::Turned(names) => facts.turned(names),

        Clause::In(size, list) => facts.among(size, list),
        Clause::On(kind, size, list) => facts.among_on(kind, size, list),
        Clause::Multiple(a, b) => facts.multiple(a, b),
        Clause::Equal(a, b) => facts.equal(a, b),
        Clause::Either(a, list) => facts.either(a, list),
        Clause::AtMost(a, b) => facts.at_most(a, b),
        Clause::Axes(name, list) => facts.axes(name, list),
        Clause::Count(name, size) => facts.count(name, size),
        Clause::Each(name, list) => facts.each(name, list),

        Clause::Long(name, list) => facts.long(name, list),
        Clause::One(name, mode, modes) => facts.one(name, mode, modes),
        Clause::Needs(a, b) => facts.needs(a, b),
        Clause::Together(names) => facts.together(names),
        Clause::Lists(names) => facts.lists(names),
        Clause::Groups(names) => groups::check(names, call),

        Clause::Same(names) => facts.same(names),
        Clause::Rank(name, low, high) => facts.rank(name, *low..=*high),
        Clause::Last(name, list) => facts.last(name, list),
        Clause::Ends(name, list) => facts.ends(name, list),
        Clause::Even(name, dim) => facts.even(name, dim),
        Clause::Broadcast(from, to) => facts.broadcast(from, to),
        Clause::Spread(from, to) => facts.spread(from, to),
        Clause::Joined(list, dim, to) => facts.joined(list, dim, to),
        Clause::Product(a, b, to) => facts.product(a, b, to),

        Clause::Covered { mode, mask, needed } => facts.covered(mode, mask, *needed),
        Clause::Layout(query, layout, heads) => facts.layout(query, layout, heads),

        Clause::Null(_) | Clause::Out(_) | Clause::InOut(_) | Clause::Code(_) => Ok(()),
    }
}

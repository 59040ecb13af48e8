//! What a list is, how deep lists and dicts may stand in each other, and lists that Python writes in another way.

use minijinja::value::{Enumerator, Object, ObjectRepr, Value, ValueKind};
use minijinja::{Error, functions};
use std::sync::Arc;

type Result<T> = std::result::Result<T, Error>;

/// Most lists and dicts in each other.
pub(super) const MOST_DEPTH: usize = 200;

/// Whether it is a list or tuple; slices and sums of lists are values that are gone over, with a length.
pub(super) fn is_list(value: &Value) -> bool {
    value.kind() == ValueKind::Seq || (value.kind() == ValueKind::Iterable && value.len().is_some())
}

/// What `dict.items()` and its like and `range` give: a list that is written otherwise.
#[derive(Debug)]
pub(super) struct View {
    pub(super) name: String,
    items: Value,
    /// Whether the items are written behind the name.
    pub(super) written: bool,
}

impl View {
    /// What the method `name` gives of a dict, whose elements are `items`.
    pub(super) fn of_dict(name: &str, items: &Value) -> Result<Value> {
        let name = match name {
            "keys" => "dict_keys",
            "values" => "dict_values",
            _ => "dict_items",
        };
        Ok(Value::from_object(Self {
            name: name.to_owned(),
            items: items.try_iter()?.collect(),
            written: true,
        }))
    }

    /// Jinja's function.
    pub(super) fn of_range(lower: isize, upper: Option<isize>, step: Option<isize>) -> Result<Value> {
        let items = functions::range(lower, upper, step)?;
        let (start, end) = upper.map_or((0, lower), |upper| (lower, upper));
        let step = step.filter(|step| *step != 1).map_or(String::new(), |step| format!(", {step}"));
        Ok(Value::from_object(Self { name: format!("range({start}, {end}{step})"), items, written: false }))
    }
}

impl Object for View {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Iterable
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        self.items.try_iter().map_or(Enumerator::Empty, |items| Enumerator::Iter(Box::new(items)))
    }
}

//! Arguments of filters by place and by name.

use minijinja::value::{Kwargs, Rest, Value, ValueOrKwargs};

/// The arguments behind the first under the names that they have in Jinja, as the engine takes them.
pub(super) fn named(names: &[&str], args: Rest<ValueOrKwargs>) -> Vec<Value> {
    let mut args = args.into_values();
    let given = args.pop_if(|last| last.is_kwargs());
    // More than there are names for are the engine's error.
    if (2..=names.len() + 1).contains(&args.len()) {
        let given = given.iter().flat_map(|given| {
            let keys = given.try_iter().into_iter().flatten();
            keys.map(|key| (key.to_string(), given.get_item(&key).unwrap_or_default()))
        });
        let places = names.iter().map(|name| (*name).to_owned()).zip(args.drain(1..).collect::<Vec<_>>());
        let all: Kwargs = places.chain(given).collect();
        args.push(all.into());
    } else {
        args.extend(given);
    }
    args
}

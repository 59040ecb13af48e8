//! A field of `config.json` or a Megatron argument: its names, the place in the model that it describes, and its default. One
//! value, read in both directions.

use serde_json::{Map, Value, json};

use crate::fields::Fields;
use crate::{ModelConfig, Result};

/// A place in a model; `None` where the model has no such part.
pub(crate) type FieldRef<T> = fn(&mut ModelConfig) -> Option<&mut T>;

/// The keywords that a field may have.
type Words = fn(&ModelConfig) -> &'static [&'static str];

/// What a field says, and how it is taken and given.
#[derive(Clone, Copy)]
enum Kind {
    Size(FieldRef<usize>),
    /// A number, or a list with the same one for every layer.
    SameSize(FieldRef<usize>),
    /// Null means none.
    MaybeSize(FieldRef<Option<usize>>),
    Float(FieldRef<f64>),
    /// Null means none.
    MaybeFloat(FieldRef<Option<f64>>),
    Flag(FieldRef<bool>),
    /// In other units than the model's: how it is written, and how it is read.
    SizeAs(fn(&ModelConfig) -> Option<usize>, fn(&mut ModelConfig, usize)),
    FloatAs(fn(&ModelConfig) -> Option<f64>, fn(&mut ModelConfig, f64)),
    /// The same, written as an integer if it is one: some classes want that.
    WholeAs(fn(&ModelConfig) -> Option<f64>, fn(&mut ModelConfig, f64)),
    FlagAs(fn(&ModelConfig) -> Option<bool>, fn(&mut ModelConfig, bool)),
    /// One of a few keywords: how it is written, how it is read (`false`: unknown), and the keywords.
    Word(fn(&ModelConfig) -> Option<&'static str>, fn(&mut ModelConfig, &str) -> bool, Words),
    /// Not read, and written where it is something.
    Alias(fn(&ModelConfig) -> Option<usize>),
    /// Not read: other readers want to find it.
    Told(fn(&ModelConfig) -> Value),
    /// The one value that is supported, and what another one would be.
    Only(bool, &'static str),
    /// Nothing: something follows from the fields before it.
    Then(fn(&mut ModelConfig)),
    /// What one field cannot say.
    Rule(fn(&Fields<'_>, &mut ModelConfig) -> Result<()>, fn(&ModelConfig, &mut Writer)),
}

/// What stands in the model where the file says nothing.
#[derive(Clone, Copy)]
enum IfAbsent {
    /// What the class assumes.
    Keep,
    /// The file is wrong.
    Wrong,
    /// What follows from what was read before.
    Follows(fn(&mut ModelConfig)),
}

/// When a field is written.
#[derive(Clone, Copy)]
enum WriteWhen {
    Always,
    Never,
    /// If the class would assume something else.
    IfOther,
    If(fn(&ModelConfig) -> bool),
}

/// One field. Tables of them describe a class; a reader goes through them in order.
#[derive(Clone, Copy)]
pub(crate) struct Field {
    /// The name that is written.
    name: &'static str,
    /// The names that are read, the first that is there.
    names: &'static [&'static str],
    kind: Kind,
    if_absent: IfAbsent,
    write_when: WriteWhen,
}

/// Constructors: a name, and a place.
impl Field {
    const fn new(name: &'static str, kind: Kind) -> Self {
        Self { name, names: &[], kind, if_absent: IfAbsent::Keep, write_when: WriteWhen::Always }
    }

    pub(crate) const fn size(name: &'static str, at: FieldRef<usize>) -> Self {
        Self::new(name, Kind::Size(at))
    }

    pub(crate) const fn same_size(name: &'static str, at: FieldRef<usize>) -> Self {
        Self::new(name, Kind::SameSize(at))
    }

    pub(crate) const fn maybe_size(name: &'static str, at: FieldRef<Option<usize>>) -> Self {
        Self::new(name, Kind::MaybeSize(at))
    }

    pub(crate) const fn float(name: &'static str, at: FieldRef<f64>) -> Self {
        Self::new(name, Kind::Float(at))
    }

    pub(crate) const fn maybe_float(name: &'static str, at: FieldRef<Option<f64>>) -> Self {
        Self::new(name, Kind::MaybeFloat(at))
    }

    pub(crate) const fn flag(name: &'static str, at: FieldRef<bool>) -> Self {
        Self::new(name, Kind::Flag(at))
    }

    pub(crate) const fn size_as(
        name: &'static str,
        get: fn(&ModelConfig) -> Option<usize>,
        set: fn(&mut ModelConfig, usize),
    ) -> Self {
        Self::new(name, Kind::SizeAs(get, set))
    }

    pub(crate) const fn float_as(
        name: &'static str,
        get: fn(&ModelConfig) -> Option<f64>,
        set: fn(&mut ModelConfig, f64),
    ) -> Self {
        Self::new(name, Kind::FloatAs(get, set))
    }

    pub(crate) const fn whole_as(
        name: &'static str,
        get: fn(&ModelConfig) -> Option<f64>,
        set: fn(&mut ModelConfig, f64),
    ) -> Self {
        Self::new(name, Kind::WholeAs(get, set))
    }

    pub(crate) const fn flag_as(
        name: &'static str,
        get: fn(&ModelConfig) -> Option<bool>,
        set: fn(&mut ModelConfig, bool),
    ) -> Self {
        Self::new(name, Kind::FlagAs(get, set))
    }

    pub(crate) const fn word(
        name: &'static str,
        get: fn(&ModelConfig) -> Option<&'static str>,
        set: fn(&mut ModelConfig, &str) -> bool,
        words: Words,
    ) -> Self {
        Self::new(name, Kind::Word(get, set, words))
    }

    /// Another name of what an earlier field reads, for readers that want that one.
    pub(crate) const fn alias(name: &'static str, get: fn(&ModelConfig) -> Option<usize>) -> Self {
        Self::new(name, Kind::Alias(get))
    }

    pub(crate) const fn told(name: &'static str, value: fn(&ModelConfig) -> Value) -> Self {
        Self::new(name, Kind::Told(value))
    }

    /// A flag with one supported value; `what` says what the other would be.
    pub(crate) const fn only(name: &'static str, value: bool, what: &'static str) -> Self {
        Self::new(name, Kind::Only(value, what))
    }

    pub(crate) const fn rule(
        read: fn(&Fields<'_>, &mut ModelConfig) -> Result<()>,
        write: fn(&ModelConfig, &mut Writer),
    ) -> Self {
        Self::new("", Kind::Rule(read, write))
    }

    /// What follows from the fields before it.
    pub(crate) const fn then(follows: fn(&mut ModelConfig)) -> Self {
        Self::new("", Kind::Then(follows))
    }

    /// A rule that has nothing to write.
    pub(crate) const fn reading(read: fn(&Fields<'_>, &mut ModelConfig) -> Result<()>) -> Self {
        Self::rule(read, |_, _| {})
    }
}

/// What differs from the usual.
impl Field {
    /// It is read under any of `names`; the first that is there counts, and a complaint names the first.
    pub(crate) const fn or(mut self, names: &'static [&'static str]) -> Self {
        self.names = names;
        self
    }

    pub(crate) const fn needed(mut self) -> Self {
        self.if_absent = IfAbsent::Wrong;
        self
    }

    /// What silence means, by what stands before it in the table.
    pub(crate) const fn else_by(mut self, follows: fn(&mut ModelConfig)) -> Self {
        self.if_absent = IfAbsent::Follows(follows);
        self
    }

    pub(crate) const fn read_only(mut self) -> Self {
        self.write_when = WriteWhen::Never;
        self
    }

    pub(crate) const fn if_other(mut self) -> Self {
        self.write_when = WriteWhen::IfOther;
        self
    }

    pub(crate) const fn written_if(mut self, when: fn(&ModelConfig) -> bool) -> Self {
        self.write_when = WriteWhen::If(when);
        self
    }
}

impl Field {
    fn names(&self) -> impl Iterator<Item = &'static str> + Clone {
        let own = if self.names.is_empty() { Some(self.name) } else { None };
        own.into_iter().chain(self.names.iter().copied())
    }

    /// Whether the model has the part that the field describes.
    fn has_place(&self, c: &mut ModelConfig) -> bool {
        match self.kind {
            Kind::Size(at) | Kind::SameSize(at) => at(c).is_some(),
            Kind::MaybeSize(at) => at(c).is_some(),
            Kind::Float(at) => at(c).is_some(),
            Kind::MaybeFloat(at) => at(c).is_some(),
            Kind::Flag(at) => at(c).is_some(),
            _ => true,
        }
    }

    /// Takes what the file says into the model.
    pub(crate) fn read(&self, f: &Fields<'_>, c: &mut ModelConfig) -> Result<()> {
        match self.kind {
            Kind::Rule(read, _) => return read(f, c),
            Kind::Then(follows) => {
                follows(c);
                return Ok(());
            }
            Kind::Told(_) | Kind::Alias(_) => return Ok(()),
            _ => {}
        }
        if !self.has_place(c) {
            return Ok(());
        }
        // For optional fields, null is a value of its own; for flags of `config.json` it is false, as Python has it.
        let may_be_none = match self.kind {
            Kind::MaybeSize(_) | Kind::MaybeFloat(_) => true,
            Kind::Flag(_) | Kind::FlagAs(..) | Kind::Only(..) => f.source == crate::hf::SOURCE,
            _ => false,
        };
        let there = |name: &&str| f.get(name).is_some() || (may_be_none && f.map.contains_key(*name));
        let Some(name) = self.names().find(there) else {
            return match self.if_absent {
                IfAbsent::Keep => Ok(()),
                IfAbsent::Wrong => Err(f.missing(self.name)),
                IfAbsent::Follows(follows) => {
                    follows(c);
                    Ok(())
                }
            };
        };
        match self.kind {
            Kind::Size(at) => put(at(c), f.size(name)?),
            Kind::SameSize(at) => put(at(c), f.same_size(name)?),
            Kind::MaybeSize(at) => put(at(c), Some(f.size(name)?)),
            Kind::Float(at) => put(at(c), f.float(name)?),
            Kind::MaybeFloat(at) => put(at(c), Some(f.float(name)?)),
            Kind::Flag(at) => put(at(c), Some(f.on(name)?)),
            Kind::SizeAs(_, set) => f.same_size(name)?.into_iter().for_each(|n| set(c, n)),
            Kind::FloatAs(_, set) | Kind::WholeAs(_, set) => {
                f.float(name)?.into_iter().for_each(|x| set(c, x));
            }
            Kind::FlagAs(_, set) => set(c, f.on(name)?),
            Kind::Word(_, set, words) => {
                if let Some(word) = f.text(name)?.filter(|word| !set(c, word)) {
                    let words = words(c).join(", ");
                    let what = format!("field `{name}`: `{word}` is not supported; supported: {words}");
                    return Err(f.unsupported(what));
                }
            }
            Kind::Only(supported, what) => {
                if f.on(name)? != supported {
                    let got = !supported;
                    let what =
                        format!("field `{name}`: expected {supported}, got {got}; {what} is not supported");
                    return Err(f.unsupported(what));
                }
            }
            Kind::Told(_) | Kind::Alias(_) | Kind::Then(_) | Kind::Rule(..) => {}
        }
        Ok(())
    }

    /// Writes the model's value. `c` is not modified; places are accessed through mutable paths.
    pub(crate) fn write(&self, c: &mut ModelConfig, silent: &mut ModelConfig, w: &mut Writer) {
        let wanted = match self.write_when {
            WriteWhen::Always => true,
            WriteWhen::Never => false,
            WriteWhen::IfOther => self.value(c) != self.value(silent),
            WriteWhen::If(when) => when(c),
        };
        match self.kind {
            _ if !wanted => {}
            Kind::Rule(_, write) => write(c, w),
            _ => {
                if let Some(value) = self.value(c) {
                    w.set(self.name, value);
                }
            }
        }
    }

    fn value(&self, c: &mut ModelConfig) -> Option<Value> {
        match self.kind {
            Kind::Size(at) | Kind::SameSize(at) => at(c).map(|n| json!(*n)),
            Kind::MaybeSize(at) => at(c).map(|n| json!(*n)),
            Kind::Float(at) => at(c).map(|x| json!(*x)),
            Kind::MaybeFloat(at) => at(c).map(|x| json!(*x)),
            Kind::Flag(at) => at(c).map(|on| json!(*on)),
            Kind::SizeAs(get, _) => get(c).map(|n| json!(n)),
            Kind::FloatAs(get, _) => get(c).map(|x| json!(x)),
            Kind::WholeAs(get, _) => get(c).map(whole),
            Kind::FlagAs(get, _) => get(c).map(|on| json!(on)),
            Kind::Word(get, ..) => get(c).map(|word| json!(word)),
            Kind::Alias(get) => get(c).map(|n| json!(n)),
            Kind::Told(value) => Some(value(c)),
            Kind::Only(value, _) => Some(json!(value)),
            Kind::Then(_) | Kind::Rule(..) => None,
        }
    }
}

fn put<T>(place: Option<&mut T>, value: Option<T>) {
    if let (Some(place), Some(value)) = (place, value) {
        *place = value;
    }
}

/// A number that classes may want as an integer: written as one if it is, but for the rounding of products.
fn whole(value: f64) -> Value {
    let whole = value.round();
    if (value - whole).abs() <= 1e-9 * whole.abs() && whole.abs() < 1e15 {
        json!(whole as i64)
    } else {
        json!(value)
    }
}

/// Which transformers version's spelling is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Dialect {
    /// `torch_dtype`, `rope_theta`, `rope_scaling`.
    #[default]
    V4,
    /// `dtype`, `rope_parameters`.
    V5,
}

/// The object that is written.
pub(crate) struct Writer {
    pub(crate) out: Map<String, Value>,
    pub(crate) dialect: Dialect,
}

impl Writer {
    pub(crate) fn new(dialect: Dialect) -> Self {
        Self { out: Map::new(), dialect }
    }

    pub(crate) fn set(&mut self, key: &str, value: Value) {
        self.out.insert(key.to_owned(), value);
    }
}

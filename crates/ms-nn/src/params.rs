//! Finding parameters by name.

use ms_core::ParamId;
use ms_spec::ParamSpec;
use std::collections::HashMap;

/// The ids of a parameter table by name.
pub(crate) struct Table<'a> {
    by_name: HashMap<&'a str, ParamId>,
}

impl<'a> Table<'a> {
    pub(crate) fn new(specs: &'a [ParamSpec]) -> Self {
        Self {
            by_name: specs.iter().enumerate().map(|(i, s)| (s.name.as_str(), ParamId(i as u32))).collect(),
        }
    }

    /// The parameters whose names begin with `prefix`.
    pub(crate) fn under(&self, prefix: impl Into<String>) -> Scope<'_> {
        Scope { table: self, prefix: prefix.into() }
    }
}

/// The parameters of one module.
pub(crate) struct Scope<'a> {
    table: &'a Table<'a>,
    prefix: String,
}

impl Scope<'_> {
    /// The parameter `name` of this module.
    ///
    /// # Panics
    /// If the table does not have it: the table and the model are made from one configuration.
    pub(crate) fn id(&self, name: &str) -> ParamId {
        self.find(name).unwrap_or_else(|| panic!("the parameter table has no {}{name}", self.prefix))
    }

    /// The parameter `name` of this module, if it has one.
    pub(crate) fn find(&self, name: &str) -> Option<ParamId> {
        self.table.by_name.get(format!("{}{name}", self.prefix).as_str()).copied()
    }

    /// A module of this module.
    pub(crate) fn under(&self, name: &str) -> Scope<'_> {
        Scope { table: self.table, prefix: format!("{}{name}.", self.prefix) }
    }

    /// Weight and, if there is one, bias of module `name`.
    pub(crate) fn linear(&self, name: &str) -> Linear {
        Linear { weight: self.id(&format!("{name}.weight")), bias: self.find(&format!("{name}.bias")) }
    }
}

/// A matrix and, for some, a bias; also scale and shift of a norm.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Linear {
    pub(crate) weight: ParamId,
    pub(crate) bias: Option<ParamId>,
}

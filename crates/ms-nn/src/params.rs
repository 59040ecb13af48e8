//! Looking up parameters by their role (slot).

use ms_core::ParamId;
use ms_spec::{ParamSpec, Part, Place, Role, Slot};
use std::collections::HashMap;

/// The ids of a parameter table by slot.
pub(crate) struct Table {
    by_slot: HashMap<Slot, ParamId>,
}

impl Table {
    pub(crate) fn new(specs: &[ParamSpec]) -> Self {
        Self { by_slot: specs.iter().enumerate().map(|(i, s)| (s.slot, ParamId(i as u32))).collect() }
    }

    /// The parameters of a part of a layer or of an end of the model; of shortcut blocks of one half.
    pub(crate) const fn at(&self, place: Place, half: Option<usize>, part: Part) -> Scope<'_> {
        Scope { table: self, place, half, part }
    }

    /// The parameter at `slot`, if this rank has it.
    pub(crate) fn find(&self, slot: &Slot) -> Option<ParamId> {
        self.by_slot.get(slot).copied()
    }
}

/// The parameters of one part.
#[derive(Clone, Copy)]
pub(crate) struct Scope<'a> {
    table: &'a Table,
    place: Place,
    half: Option<usize>,
    part: Part,
}

impl Scope<'_> {
    const fn slot(&self, role: Role, bias: bool) -> Slot {
        Slot { place: self.place, part: self.part, half: self.half, role, bias }
    }

    /// The weight that does this.
    ///
    /// # Panics
    /// If the table does not have it: the table and the model are made from one configuration.
    pub(crate) fn id(&self, role: Role) -> ParamId {
        self.find(role)
            .unwrap_or_else(|| panic!("the parameter table has no {}", self.slot(role, false).name()))
    }

    /// The weight that does this, if the part has it.
    pub(crate) fn find(&self, role: Role) -> Option<ParamId> {
        self.table.find(&self.slot(role, false))
    }

    /// What the module that does this adds, if it adds something.
    pub(crate) fn bias(&self, role: Role) -> Option<ParamId> {
        self.table.find(&self.slot(role, true))
    }

    /// Another part at the same place.
    pub(crate) const fn of(&self, part: Part) -> Self {
        Self { part, ..*self }
    }

    /// The same part of the whole layer, if this is a half.
    pub(crate) const fn whole(&self) -> Self {
        Self { half: None, ..*self }
    }

    /// Weight and, if there is one, bias of a module.
    pub(crate) fn linear(&self, role: Role) -> Linear {
        Linear { weight: self.id(role), bias: self.bias(role) }
    }
}

/// A matrix and, for some, a bias; also scale and shift of a norm.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Linear {
    pub(crate) weight: ParamId,
    pub(crate) bias: Option<ParamId>,
}

//! Prototypes by name, read from the table of the interface: a call of a test names its arguments.

use crate::abi::{Kind, OpDecl, Param};
use crate::interface;
use std::collections::HashMap;
use std::sync::OnceLock;

/// An operator's first phase, with the class of every parameter as the table of the interface has it.
pub(super) struct Prototype {
    pub(super) decl: &'static OpDecl,
    pub(super) classes: Vec<&'static str>,
}

fn kind(class: &str) -> Kind {
    match class {
        "T" => Kind::T,
        "To" => Kind::To,
        "TL" => Kind::TL,
        "TLo" => Kind::TLo,
        "S" => Kind::S,
        "SL" => Kind::SL,
        "IA" => Kind::IA,
        "FA" => Kind::FA,
        "BA" => Kind::BA,
        "Str" => Kind::Str,
        "P" => Kind::P,
        _ => Kind::Number,
    }
}

fn prototype(row: interface::Row) -> Prototype {
    let arguments = row.arguments.split_whitespace().filter_map(|a| a.split_once(':'));
    let (params, classes): (Vec<Param>, Vec<&str>) =
        arguments.map(|(name, class)| (Param { name, kind: kind(class) }, class)).unzip();
    let decl = Box::leak(Box::new(OpDecl { name: row.symbol, params: params.leak() }));
    Prototype { decl, classes }
}

/// Every operator of the interface by its name without `aclnn`.
pub(super) fn all() -> &'static HashMap<&'static str, Prototype> {
    static ALL: OnceLock<HashMap<&'static str, Prototype>> = OnceLock::new();
    ALL.get_or_init(|| {
        let operators = interface::rows().filter(|row| row.kind == "operator");
        operators.map(|row| (row.symbol.trim_start_matches("aclnn"), prototype(row))).collect()
    })
}

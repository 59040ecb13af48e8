//! Prototypes by name, read from the generated entry points: a call of a test names its arguments.

use crate::abi::{Kind, OpDecl, Param};
use std::collections::HashMap;
use std::sync::OnceLock;

/// An operator's first phase, with the class of every parameter as the table of the interface has it.
pub(super) struct Prototype {
    pub(super) decl: &'static OpDecl,
    pub(super) classes: Vec<&'static str>,
}

const SOURCES: [&str; 4] = [
    include_str!("../../generated/opapi_math.rs"),
    include_str!("../../generated/opapi_nn.rs"),
    include_str!("../../generated/opapi_transformer.rs"),
    include_str!("../../generated/opapi_cv.rs"),
];

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

fn read(line: &'static str) -> Option<Prototype> {
    let rest = line.strip_prefix("op!(")?;
    let (name, rest) = rest.split_once(',')?;
    let (_, list) = rest.split_once('[')?;
    let list = list.trim_end().trim_end_matches("]);");
    let (mut params, mut classes) = (Vec::new(), Vec::new());
    for one in list.split(", ").filter(|p| !p.is_empty()) {
        let mut parts = one.split('"');
        let (name, class) = (parts.nth(1)?, parts.next()?.trim());
        params.push(Param { name, kind: kind(class) });
        classes.push(class);
    }
    let decl = Box::leak(Box::new(OpDecl { name, params: params.leak() }));
    Some(Prototype { decl, classes })
}

/// Every operator of the interface by its name without `aclnn`.
pub(super) fn all() -> &'static HashMap<&'static str, Prototype> {
    static ALL: OnceLock<HashMap<&'static str, Prototype>> = OnceLock::new();
    ALL.get_or_init(|| {
        let lines = SOURCES.iter().flat_map(|text| text.lines());
        lines.filter_map(read).map(|p| (p.decl.name.trim_start_matches("aclnn"), p)).collect()
    })
}

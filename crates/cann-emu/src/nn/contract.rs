//! Contracts: what an operator's page asks of its arguments, as data.
//!
//! A contract is a line of clauses separated by spaces:
//!
//! - `self:FDI`: the element types of a tensor or list. `F` f16, bf16, f32; `D` f64; `I` integers; `B` bool; `C` complex;
//!   `L` int32 and int64, `i` int32, `l` int64, `u` uint64, `8` int8; `H` f16 and bf16, `b` bf16; `S` f32; `U` uint8 and bool.
//! - `null(a,b)`: these tensors, lists, scalars, arrays and texts may be null, besides all whose names have `Optional` in them.
//! - `out(a,b)`, `inout(a)`: roles that names and constness do not tell.
//! - `same(a,b)`: equal shapes. `type(a,b)`: equal element types.
//! - `bcast(a,b>c)`: `a` and `b` broadcast to the shape of `c`.
//! - `spread(a>b)`: `a` can be broadcast to `b`, which may be larger.
//! - `rank(a,2..6)`: number of dimensions. `contig(a)`: elements follow one another.
//! - `lists(a,b)`: lists of equal length with equal shapes.
//! - `product(a,b>c)`: matrices or stacks of them that can be multiplied, and the shape of their product.
//! - `covered(mode,mask)`: modes 2 to 4 need the mask of 2048 by 2048; of names separated by `|` the one that the operator has.
//! - `whole(mode,mask)`: as `covered`, but without a mask the mode is passed over, as training's attention does.
//! - `joined(a,dim>c)`: the tensors of a list differ in no dimension but the one that `dim` names, where they add up to `c`;
//!   empty tensors of one dimension are passed over.
//! - `layout(q,layout,heads)`: the letters of `layout` are those of a tensor of that many dimensions, which holds `heads` heads
//!   of a number; heads have at most 768 elements and there are at most 256.
//! - `even(a,dim)`: the dimension that `dim` names has an even size.
//! - `x[.s,m,k*R]`, `x^flag[k,n]`: a shape by letters, see `letters`. A list's tensors have it each.
//! - `in(m/R,1..8)`, `in(mode,0|2)`: what letters or number parameters come to. `multiple(m,R)`: divisible.
//! - `on(A2,R,2|4|8)`: as `in`, on a chip of that kind only. `chips(A2|A3)`: the kinds of chips that have the operator.
//! - `says(reduceOp,sum)`: a text is one of those separated by `|`; null is the empty one. `none(a,b)`: these must be null.
//! - `equal(a,b)`: the same number. `either(a,b,c)`: the number of one of two. `let(n,a-b)`: a letter for a number.
//! - `atmost(a,b)`: a number that is not above another. `default(k,1)`: a letter's number where no tensor determines it.
//! - `long(list,1..128)`: how many tensors a list has. `one(list,mode,2|3)`: a single one where a parameter is among these.
//! - `last(list,1..65535)`: the last dimension of a tensor or of each of a list. `needs(a,b)`: `a` is there only if `b` is.
//! - `axes(name,-2,-1)`: a list of integers that is null, empty or these. `count(list,e*R)`: so many integers.
//!   `each(list,0..8)`: every one of them. `ends(a,list)`: the last dimensions are these.
//! - `together(a,b)`: all of these are there, or none.
//! - `groups(x,weight,bias,ends>y)`: lists whose products are those of each group's rows with its matrix, see `groups`.
//! - `group(group>R)`: the name of a communicator of the current device; `R` is its number of ranks, `R.rank` this one.
//!   `route(group>R)`: as that, for tokens on their way to experts: nothing else may use that communicator. `meet(group>R)`: for
//!   both.
//! - `turned(x2)`: elements follow one another, or do so once the last two dimensions are exchanged.
//! - `code(561002)`: what follows is answered with this code instead of 161002.

mod check;
mod groups;
mod letters;
mod parse;

use super::exec::{Call, Value};
use crate::abi::{Kind, Param};
use crate::hccl::Use;
use crate::report::{self, Rule};
use check::check;
use letters::{Letters, Shape, Size};

/// What a call does with a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Reads it.
    In,
    /// Writes it.
    Out,
    /// Both.
    InOut,
}

#[derive(Debug)]
enum Clause {
    Types(String, String),
    Null(Vec<String>),
    Out(Vec<String>),
    InOut(Vec<String>),
    Same(Vec<String>),
    Type(Vec<String>),
    Broadcast(Vec<String>, String),
    Rank(String, usize, usize),
    Contiguous(Vec<String>),
    Lists(Vec<String>),
    Even(String, String),
    Covered { mode: String, mask: String, needed: bool },
    Product(String, String, String),
    Spread(String, String),
    Joined(String, String, String),
    Layout(String, String, String),
    Letters(Shape),
    In(Size, String),
    Multiple(Size, Size),
    Equal(Size, Size),
    Either(Size, [Size; 2]),
    Let(String, Size),
    AtMost(Size, Size),
    Default(String, i64),
    Long(String, String),
    One(String, Size, String),
    Last(String, String),
    Needs(String, String),
    Axes(String, Vec<i64>),
    Count(String, Size),
    Each(String, String),
    Ends(String, String),
    Groups([String; 5]),
    Together(Vec<String>),
    On(String, Size, String),
    Chips(String),
    Says(String, String),
    None(Vec<String>),
    Group { name: String, letter: String, of: Use },
    Turned(Vec<String>),
    Code(i32),
}

/// A parsed contract.
#[derive(Debug, Default)]
pub struct Contract {
    clauses: Vec<Clause>,
}

impl Contract {
    /// What a call does with a parameter.
    pub fn role(&self, param: &Param) -> Role {
        for clause in &self.clauses {
            match clause {
                Clause::Out(names) if names.iter().any(|n| n == param.name) => return Role::Out,
                Clause::InOut(names) if names.iter().any(|n| n == param.name) => return Role::InOut,
                _ => {}
            }
        }
        let name = param.name;
        if name.ends_with("Ref") || name.ends_with("RefOptional") || name.ends_with("OptionalRef") {
            return Role::InOut;
        }
        // The gradient of an output is an input.
        let told =
            name == "out" || (name.ends_with("Out") && name != "gradOut") || name.ends_with("OutOptional");
        if told || matches!(param.kind, Kind::To | Kind::TLo) { Role::Out } else { Role::In }
    }

    fn may_be_null(&self, name: &str) -> bool {
        name.contains("Optional")
            || self.clauses.iter().any(
                |c| matches!(c, Clause::Null(names) | Clause::None(names) if names.iter().any(|n| n == name)),
            )
    }

    /// Evaluates the contract.
    ///
    /// # Errors
    /// 161001 for a required argument that is null, else 161002 or the code that the contract names, and the rule and sentence of
    /// the first clause that does not hold.
    pub fn check(&self, call: &Call) -> Result<(), (i32, String)> {
        for param in call.decl.params {
            let missing = matches!(
                call.value(param.name),
                Some(
                    Value::Tensor(None)
                        | Value::List(None)
                        | Value::Scalar(None)
                        | Value::Scalars(None)
                        | Value::Ints(None)
                        | Value::Floats(None)
                        | Value::Bools(None)
                        | Value::Text(None)
                )
            );
            if missing && !self.may_be_null(param.name) {
                return Err((161_001, format!("{} must not be null", param.name)));
            }
        }
        let (mut letters, mut code) = (Letters::default(), 161_002);
        for clause in &self.clauses {
            if let Clause::Code(other) = clause {
                code = *other;
            }
            if let Err(text) = check(clause, call, &mut letters) {
                return Err((code, format!("{}: {text}", rule(clause).id)));
            }
        }
        Ok(())
    }

    /// Whether it names the element types of an argument.
    #[cfg(test)]
    pub fn has_types(&self) -> bool {
        self.clauses.iter().any(|c| matches!(c, Clause::Types(..)))
    }

    /// The parameters that name communicators.
    pub fn groups(&self) -> impl Iterator<Item = &str> {
        self.clauses.iter().filter_map(|c| match c {
            Clause::Group { name, .. } => Some(name.as_str()),
            _ => None,
        })
    }
}

/// What a clause is about.
fn rule(clause: &Clause) -> &'static Rule {
    match clause {
        Clause::Types(..) | Clause::Type(..) => &report::NN_TYPE,
        Clause::In(..)
        | Clause::Multiple(..)
        | Clause::Equal(..)
        | Clause::Either(..)
        | Clause::AtMost(..)
        | Clause::Needs(..)
        | Clause::Axes(..)
        | Clause::Count(..)
        | Clause::Each(..)
        | Clause::Together(..)
        | Clause::On(..)
        | Clause::Says(..)
        | Clause::None(..)
        | Clause::Covered { .. }
        | Clause::Layout(..) => &report::NN_VALUE,
        Clause::Chips(..) => &report::NN_CHIP,
        Clause::Group { .. } => &report::COMM_NAME,
        _ => &report::NN_SHAPE,
    }
}

//! Reading the line of a contract.

use super::letters::{Shape, Size};
use super::{Clause, Contract};
use crate::hccl::Use;

fn words(text: &str) -> Vec<String> {
    text.split(',').map(|w| w.trim().to_owned()).collect()
}

impl Contract {
    /// Reads the line of a contract.
    ///
    /// # Panics
    /// On a clause that is none of the above: the tables are part of this crate.
    pub fn parse(text: &str) -> Contract {
        let clauses = text.split_whitespace().map(|clause| {
            if clause.ends_with(']') {
                return Clause::Letters(Shape::parse(clause));
            }
            if let Some((name, body)) = clause.split_once('(') {
                let body = body.trim_end_matches(')');
                return match name {
                    "null" => Clause::Null(words(body)),
                    "out" => Clause::Out(words(body)),
                    "inout" => Clause::InOut(words(body)),
                    "same" => Clause::Same(words(body)),
                    "type" => Clause::Type(words(body)),
                    "contig" => Clause::Contiguous(words(body)),
                    "lists" => Clause::Lists(words(body)),
                    "covered" | "whole" => {
                        let (mode, mask) = body.split_once(',').expect("covered(mode,mask)");
                        Clause::Covered {
                            mode: mode.to_owned(),
                            mask: mask.to_owned(),
                            needed: name == "covered",
                        }
                    }
                    "even" => {
                        let (a, d) = body.split_once(',').expect("even(a,dim)");
                        Clause::Even(a.to_owned(), d.to_owned())
                    }
                    "bcast" => {
                        let (from, to) = body.split_once('>').expect("bcast(a,b>c)");
                        Clause::Broadcast(words(from), to.to_owned())
                    }
                    "spread" => {
                        let (from, to) = body.split_once('>').expect("spread(a>b)");
                        Clause::Spread(from.to_owned(), to.to_owned())
                    }
                    "joined" => {
                        let (from, to) = body.split_once('>').expect("joined(a,dim>c)");
                        let (a, dim) = from.split_once(',').expect("joined(a,dim>c)");
                        Clause::Joined(a.to_owned(), dim.to_owned(), to.to_owned())
                    }
                    "product" => {
                        let (from, to) = body.split_once('>').expect("product(a,b>c)");
                        let (a, b) = from.split_once(',').expect("product(a,b>c)");
                        Clause::Product(a.to_owned(), b.to_owned(), to.to_owned())
                    }
                    "layout" => {
                        let [q, layout, heads] =
                            <[String; 3]>::try_from(words(body)).expect("layout(q,layout,heads)");
                        Clause::Layout(q, layout, heads)
                    }
                    "rank" => {
                        let (a, range) = body.split_once(',').expect("rank(a,1..6)");
                        let (low, high) = range.split_once("..").unwrap_or((range, range));
                        Clause::Rank(
                            a.to_owned(),
                            low.parse().expect("a number"),
                            high.parse().expect("a number"),
                        )
                    }
                    "in" => {
                        let (size, list) = body.split_once(',').expect("in(size,1..2)");
                        Clause::In(Size::parse(size), list.to_owned())
                    }
                    "multiple" => {
                        let (a, b) = body.split_once(',').expect("multiple(a,b)");
                        Clause::Multiple(Size::parse(a), Size::parse(b))
                    }
                    "equal" => {
                        let (a, b) = body.split_once(',').expect("equal(a,b)");
                        Clause::Equal(Size::parse(a), Size::parse(b))
                    }
                    "either" => {
                        let [a, b, c] = <[String; 3]>::try_from(words(body)).expect("either(a,b,c)");
                        Clause::Either(Size::parse(&a), [Size::parse(&b), Size::parse(&c)])
                    }
                    "let" => {
                        let (a, b) = body.split_once(',').expect("let(n,size)");
                        Clause::Let(a.to_owned(), Size::parse(b))
                    }
                    "atmost" => {
                        let (a, b) = body.split_once(',').expect("atmost(a,b)");
                        Clause::AtMost(Size::parse(a), Size::parse(b))
                    }
                    "default" => {
                        let (a, b) = body.split_once(',').expect("default(k,1)");
                        Clause::Default(a.to_owned(), b.parse().expect("a number"))
                    }
                    "long" | "last" => {
                        let (a, list) = body.split_once(',').expect("long(list,1..2)");
                        let (a, list) = (a.to_owned(), list.to_owned());
                        if name == "long" { Clause::Long(a, list) } else { Clause::Last(a, list) }
                    }
                    "one" => {
                        let [list, mode, modes] =
                            <[String; 3]>::try_from(words(body)).expect("one(list,mode,2|3)");
                        Clause::One(list, Size::parse(&mode), modes)
                    }
                    "needs" => {
                        let (a, b) = body.split_once(',').expect("needs(a,b)");
                        Clause::Needs(a.to_owned(), b.to_owned())
                    }
                    "axes" => {
                        let (a, list) = body.split_once(',').expect("axes(a,-2,-1)");
                        let list = list.split(',').map(|n| n.parse().expect("a number"));
                        Clause::Axes(a.to_owned(), list.collect())
                    }
                    "count" => {
                        let (a, b) = body.split_once(',').expect("count(list,size)");
                        Clause::Count(a.to_owned(), Size::parse(b))
                    }
                    "each" => {
                        let (a, list) = body.split_once(',').expect("each(list,0..8)");
                        Clause::Each(a.to_owned(), list.to_owned())
                    }
                    "ends" => {
                        let (a, b) = body.split_once(',').expect("ends(a,list)");
                        Clause::Ends(a.to_owned(), b.to_owned())
                    }
                    "groups" => {
                        let names = words(&body.replace('>', ","));
                        Clause::Groups(<[String; 5]>::try_from(names).expect("groups(x,weight,bias,ends>y)"))
                    }
                    "together" => Clause::Together(words(body)),
                    "on" => {
                        let [kind, size, list] = <[String; 3]>::try_from(words(body)).expect("on(A2,R,1|2)");
                        Clause::On(kind, Size::parse(&size), list)
                    }
                    "chips" => Clause::Chips(body.to_owned()),
                    "says" => {
                        let (a, list) = body.split_once(',').expect("says(a,text)");
                        Clause::Says(a.to_owned(), list.to_owned())
                    }
                    "none" => Clause::None(words(body)),
                    "group" | "route" | "meet" => {
                        let (a, letter) = body.split_once('>').expect("group(a>R)");
                        let of = match name {
                            "group" => Use::Fused,
                            "route" => Use::Routes,
                            _ => Use::Any,
                        };
                        Clause::Group { name: a.to_owned(), letter: letter.to_owned(), of }
                    }
                    "turned" => Clause::Turned(words(body)),
                    "code" => Clause::Code(body.parse().expect("a code")),
                    other => panic!("unknown clause {other}"),
                };
            }
            let (name, types) = clause.split_once(':').expect("name:types");
            Clause::Types(name.to_owned(), types.to_owned())
        });
        Contract { clauses: clauses.collect() }
    }
}

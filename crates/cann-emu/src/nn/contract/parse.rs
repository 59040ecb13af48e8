//! Reading the line of a contract.

use super::letters::{Shape, Size};
use super::{Clause, Contract};
use crate::hccl::Use;

/// What stands in the brackets of a clause, with the form that it must have.
#[derive(Clone, Copy)]
struct Body<'a> {
    text: &'a str,
    form: &'static str,
}

impl<'a> Body<'a> {
    fn wrong(self) -> ! {
        panic!("expected {}, found {}", self.form, self.text)
    }
    /// `a,b,c`
    fn words(self) -> Vec<String> {
        self.text.split(',').map(|w| w.trim().to_owned()).collect()
    }
    /// `a,b,c` of so many.
    fn exactly<const N: usize>(self) -> [String; N] {
        <[String; N]>::try_from(self.words()).unwrap_or_else(|_| self.wrong())
    }
    /// A name, and all behind the first comma.
    fn head(self) -> (String, &'a str) {
        let (head, rest) = self.text.split_once(',').unwrap_or_else(|| self.wrong());
        (head.to_owned(), rest)
    }
    /// A name, and all behind the first comma as text.
    fn named(self) -> (String, String) {
        let (name, rest) = self.head();
        (name, rest.to_owned())
    }
    /// `from>to`
    fn towards(self) -> (Body<'a>, String) {
        let (from, to) = self.text.split_once('>').unwrap_or_else(|| self.wrong());
        (Body { text: from, ..self }, to.to_owned())
    }
    fn number<T: std::str::FromStr>(self, text: &str) -> T {
        text.parse().unwrap_or_else(|_| self.wrong())
    }
}

/// A clause by its name.
fn clause(name: &str, text: &str) -> Clause {
    let of = |form| Body { text, form };
    let names = || of("names").words();
    match name {
        "null" => Clause::Null(names()),
        "out" => Clause::Out(names()),
        "inout" => Clause::InOut(names()),
        "same" => Clause::Same(names()),
        "type" => Clause::Type(names()),
        "contig" => Clause::Contiguous(names()),
        "lists" => Clause::Lists(names()),
        "together" => Clause::Together(names()),
        "none" => Clause::None(names()),
        "turned" => Clause::Turned(names()),
        "covered" | "whole" => {
            let (mode, mask) = of("covered(mode,mask)").named();
            Clause::Covered { mode, mask, needed: name == "covered" }
        }
        "even" => of("even(a,dim)").pair(Clause::Even),
        "bcast" => {
            let (from, to) = of("bcast(a,b>c)").towards();
            Clause::Broadcast(from.words(), to)
        }
        "spread" => {
            let (from, to) = of("spread(a>b)").towards();
            Clause::Spread(from.text.to_owned(), to)
        }
        "joined" => {
            let (from, to) = of("joined(a,dim>c)").towards();
            let [a, dim] = from.exactly();
            Clause::Joined(a, dim, to)
        }
        "product" => {
            let (from, to) = of("product(a,b>c)").towards();
            let [a, b] = from.exactly();
            Clause::Product(a, b, to)
        }
        "layout" => {
            let [q, layout, heads] = of("layout(q,layout,heads)").exactly();
            Clause::Layout(q, layout, heads)
        }
        "rank" => {
            let body = of("rank(a,1..6)");
            let (a, range) = body.head();
            let (low, high) = range.split_once("..").unwrap_or((range, range));
            Clause::Rank(a, body.number(low), body.number(high))
        }
        "in" => {
            let (size, list) = of("in(size,1..2)").named();
            Clause::In(Size::parse(&size), list)
        }
        "multiple" => of("multiple(a,b)").two(Clause::Multiple),
        "equal" => of("equal(a,b)").two(Clause::Equal),
        "atmost" => of("atmost(a,b)").two(Clause::AtMost),
        "either" => {
            let [a, b, c] = of("either(a,b,c)").exactly().map(|s: String| Size::parse(&s));
            Clause::Either(a, [b, c])
        }
        "let" => of("let(n,size)").sized(Clause::Let),
        "count" => of("count(list,size)").sized(Clause::Count),
        "default" => {
            let body = of("default(k,1)");
            let (a, number) = body.head();
            Clause::Default(a, body.number(number))
        }
        "long" => of("long(list,1..2)").pair(Clause::Long),
        "last" => of("last(list,1..2)").pair(Clause::Last),
        "needs" => of("needs(a,b)").pair(Clause::Needs),
        "each" => of("each(list,0..8)").pair(Clause::Each),
        "ends" => of("ends(a,list)").pair(Clause::Ends),
        "says" => of("says(a,text)").pair(Clause::Says),
        "one" => {
            let [list, mode, modes] = of("one(list,mode,2|3)").exactly();
            Clause::One(list, Size::parse(&mode), modes)
        }
        "on" => {
            let [kind, size, list] = of("on(A2,R,1|2)").exactly();
            Clause::On(kind, Size::parse(&size), list)
        }
        "axes" => {
            let body = of("axes(a,-2,-1)");
            let (a, list) = body.head();
            Clause::Axes(a, list.split(',').map(|n| body.number(n)).collect())
        }
        "groups" => {
            let (from, y) = of("groups(x,weight,bias,ends>y)").towards();
            let [x, weight, bias, ends] = from.exactly();
            Clause::Groups([x, weight, bias, ends, y])
        }
        "chips" => Clause::Chips(text.to_owned()),
        "group" => of("group(a>R)").group(Use::Fused),
        "route" => of("route(a>R)").group(Use::Routes),
        "meet" => of("meet(a>R)").group(Use::Any),
        "code" => Clause::Code(of("code(161002)").number(text)),
        other => panic!("unknown clause {other}"),
    }
}

/// Clauses of one form.
impl Body<'_> {
    /// Of two names, or a name and a text.
    fn pair(self, make: fn(String, String) -> Clause) -> Clause {
        let (a, b) = self.named();
        make(a, b)
    }
    /// Of two sizes.
    fn two(self, make: fn(Size, Size) -> Clause) -> Clause {
        let (a, b) = self.head();
        make(Size::parse(&a), Size::parse(b))
    }
    /// Of a name and a size.
    fn sized(self, make: fn(String, Size) -> Clause) -> Clause {
        let (a, b) = self.head();
        make(a, Size::parse(b))
    }
    /// Of a communicator and the letter of its ranks.
    fn group(self, of: Use) -> Clause {
        let (name, letter) = self.towards();
        Clause::Group { name: name.text.to_owned(), letter, of }
    }
}

impl Contract {
    /// Reads the line of a contract.
    ///
    /// # Panics
    /// On a clause that is none of the above: the tables are part of this crate.
    pub fn parse(text: &str) -> Contract {
        let clauses = text.split_whitespace().map(|word| {
            if word.ends_with(']') {
                return Clause::Letters(Shape::parse(word));
            }
            if let Some((name, body)) = word.split_once('(') {
                return clause(name, body.trim_end_matches(')'));
            }
            let (name, types) = word.split_once(':').expect("name:types");
            Clause::Types(name.to_owned(), types.to_owned())
        });
        Contract { clauses: clauses.collect() }
    }
}

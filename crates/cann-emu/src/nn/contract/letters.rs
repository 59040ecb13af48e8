//! Shapes by letters: `x1[m,k] x2[k,n] output[m*R,n]`. A letter stands for the size where it is first met, or for a number
//! parameter of its name; after that it must be the same everywhere. `x2^transposeX2[k,n]` is the shape once the last two
//! dimensions are exchanged, where the flag of that name is set.

use crate::abi::Arg;
use crate::nn::exec::{Call, Value};
use crate::nn::tensor::View;
use std::collections::HashMap;

/// What the letters of a contract stand for in one call.
#[derive(Debug, Default)]
pub struct Letters {
    sizes: HashMap<String, i64>,
    runs: HashMap<String, Vec<i64>>,
}

impl Letters {
    /// Gives a letter its number.
    pub fn set(&mut self, letter: &str, size: i64) {
        self.sizes.insert(letter.to_owned(), size);
    }
    /// Gives a letter its number if no tensor has.
    pub fn set_default(&mut self, letter: &str, size: i64) {
        self.sizes.entry(letter.to_owned()).or_insert(size);
    }
    fn get(&self, name: &str, call: &Call) -> Option<i64> {
        self.sizes.get(name).copied().or_else(|| match call.value(name) {
            Some(Value::Number(Arg::I(v))) => Some(*v),
            Some(Value::Number(Arg::U(v))) => i64::try_from(*v).ok(),
            Some(Value::Number(Arg::B(v))) => Some(i64::from(*v)),
            Some(Value::Ints(Some(list))) => Some(list.iter().sum()),
            _ => None,
        })
    }
}

/// A sum of products of letters, parameters and numbers; a list of integers counts as its sum.
#[derive(Debug)]
pub struct Size(Vec<(char, Product)>);

/// Factors, each behind `*` or `/`.
type Product = Vec<(char, String)>;

/// The parts of a text between these signs, each with the sign before it.
fn parts(text: &str, first: char, signs: [char; 2]) -> Vec<(char, &str)> {
    let (mut out, mut sign, mut rest) = (Vec::new(), first, text);
    while let Some(at) = rest.find(signs) {
        out.push((sign, &rest[..at]));
        sign = if rest[at..].starts_with(signs[0]) { signs[0] } else { signs[1] };
        rest = &rest[at + 1..];
    }
    out.push((sign, rest));
    out
}

impl Size {
    /// Reads `a*b/2+c-1`.
    pub fn parse(text: &str) -> Size {
        let factor = |(sign, text): (char, &str)| (sign, text.to_owned());
        let product = |text: &str| parts(text, '*', ['*', '/']).into_iter().map(factor).collect();
        Size(parts(text, '+', ['+', '-']).into_iter().map(|(sign, text)| (sign, product(text))).collect())
    }
    /// The number, if all of its letters have one.
    pub fn value(&self, letters: &Letters, call: &Call) -> Option<i64> {
        let mut sum = 0i64;
        for (side, product) in &self.0 {
            let mut value = 1i64;
            for (sign, factor) in product {
                let f = factor.parse().ok().or_else(|| letters.get(factor, call))?;
                value = if *sign == '/' { value.checked_div(f)? } else { value.checked_mul(f)? };
            }
            sum = if *side == '-' { sum.checked_sub(value)? } else { sum.checked_add(value)? };
        }
        Some(sum)
    }
    fn letter(&self) -> Option<&str> {
        match &self.0[..] {
            [(_, product)] if product.len() == 1 => Some(&product[0].1),
            _ => None,
        }
    }
}

impl std::fmt::Display for Size {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (i, (side, product)) in self.0.iter().enumerate() {
            for (j, (sign, factor)) in product.iter().enumerate() {
                match if j > 0 { Some(sign) } else { Some(side).filter(|_| i > 0) } {
                    Some(sign) => write!(f, "{sign}{factor}")?,
                    None => write!(f, "{factor}")?,
                }
            }
        }
        Ok(())
    }
}

#[derive(Debug)]
enum Item {
    /// `.s`: as many dimensions as are left; `s.n` is their product.
    Run(String),
    /// `_`: any size.
    Any,
    Size(Size),
}

/// The shape of a tensor by letters.
#[derive(Debug)]
pub struct Shape {
    /// The parameter.
    pub name: String,
    /// The flag that says whether the last two dimensions are exchanged.
    flag: Option<String>,
    items: Vec<Item>,
    text: String,
}

impl Shape {
    /// Reads `name[.s,m*R,k]` or `name^flag[k,n]`.
    ///
    /// # Panics
    /// On a text of another form: contracts are part of this crate.
    pub fn parse(text: &str) -> Shape {
        let (name, body) = text.split_once('[').expect("name[letters]");
        let (name, flag) = match name.split_once('^') {
            Some((name, flag)) => (name, Some(flag.to_owned())),
            None => (name, None),
        };
        let item = |text: &str| match text {
            "_" => Item::Any,
            t if t.starts_with('.') => Item::Run(t[1..].to_owned()),
            t => Item::Size(Size::parse(t)),
        };
        let body = body.strip_suffix(']').expect("name[letters]");
        let items = if body.is_empty() { Vec::new() } else { body.split(',').map(item).collect() };
        Shape { name: name.to_owned(), flag, items, text: body.to_owned() }
    }
    /// Compares a tensor with the shape, and gives new letters their sizes.
    ///
    /// # Errors
    /// A sentence with the shape that is asked for and the one that was found.
    pub fn check(&self, view: &View, letters: &mut Letters, call: &Call) -> Result<(), String> {
        let mut dims = view.dims.clone();
        let flag = self.flag.as_ref().filter(|f| letters.get(f, call).is_some_and(|v| v != 0));
        if flag.is_some()
            && let [.., a, b] = &mut dims[..]
        {
            std::mem::swap(a, b);
        }
        let how = flag.map_or(String::new(), |f| format!(" as {f} says"));
        let wrong =
            |told: &str| Err(format!("{}: expected [{}]{told}, found {dims:?}{how}", self.name, self.text));
        let fixed = self.items.iter().filter(|i| !matches!(i, Item::Run(_))).count();
        if dims.len() < fixed || (fixed == self.items.len() && dims.len() != fixed) {
            return wrong("");
        }
        let mut at = 0;
        for item in &self.items {
            match item {
                Item::Any => at += 1,
                Item::Run(name) => {
                    let run = dims[at..at + dims.len() - fixed].to_vec();
                    at += run.len();
                    // `k.n` stands for how many elements the dimensions of `.k` come to.
                    letters.set(&format!("{name}.n"), run.iter().product());
                    let held = letters.runs.entry(name.clone()).or_insert_with(|| run.clone());
                    if *held != run {
                        return wrong(&format!(" with {name} {held:?}"));
                    }
                }
                Item::Size(size) => {
                    let found = dims[at];
                    at += 1;
                    match size.value(letters, call) {
                        Some(v) if v == found => {}
                        Some(v) => {
                            return wrong(&format!(" with {size} {v}"));
                        }
                        None => {
                            // A product with the size of a tensor that was left out is unknown.
                            if let Some(letter) = size.letter() {
                                letters.set(letter, found);
                            }
                        }
                    }
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::{Kind, OpDecl, Param};
    use crate::nn::tensor::Dtype;

    fn view(dims: &[i64]) -> View {
        let strides = vec![1; dims.len()];
        View {
            dims: dims.to_vec(),
            strides,
            offset: 0,
            dtype: Dtype::F32,
            format: 2,
            storage: vec![],
            base: 0,
        }
    }

    #[test]
    fn letters_are_bound_once_and_compared_after() {
        static PARAMS: &[Param] = &[Param { name: "ranks", kind: Kind::Number }];
        static DECL: OpDecl = OpDecl { name: "aclnnTest", params: PARAMS };
        let call = Call::new(&DECL, vec![Value::Number(Arg::I(2))], 0);
        let mut letters = Letters::default();
        let mut check =
            |shape: &str, dims: &[i64]| Shape::parse(shape).check(&view(dims), &mut letters, &call);
        assert_eq!(check("x[.s,m,k]", &[7, 5, 3, 4]), Ok(()));
        assert_eq!(check("w[k,n]", &[4, 6]), Ok(()));
        assert_eq!(check("y[.s,m*ranks,n]", &[7, 5, 6, 6]), Ok(()));
        assert_eq!(check("z[_,n/ranks+k]", &[1, 7]), Ok(()));
        let refused = check("y[.s,m*ranks,n]", &[7, 5, 3, 6]).unwrap_err();
        assert_eq!(refused, "y: expected [.s,m*ranks,n] with m*ranks 6, found [7, 5, 3, 6]");
        assert!(check("y[.s,m,n]", &[7, 3, 6]).unwrap_err().contains("with s [7, 5]"));
        assert!(check("w[k,n]", &[4, 6, 1]).is_err() && check("w[k,n]", &[4]).is_err());
        // A flag that is set exchanges the last two; one that is not does nothing.
        assert_eq!(check("v^ranks[k,n]", &[6, 4]), Ok(()));
        assert!(check("v^ranks[k,n]", &[4, 6]).unwrap_err().ends_with("found [6, 4] as ranks says"));
        assert!(check("v^ranks[k,n]", &[4]).is_err());
        assert_eq!(check("v^none[k,n]", &[4, 6]), Ok(()));
    }
}

//! Ranges of numeric flags.

use std::fmt;

/// An interval of finite numbers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Range {
    low: Bound,
    high: Bound,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Bound {
    Open,
    Without(f64),
    With(f64),
}

impl Range {
    /// Reads `[0,1)`: `[` and `]` with the bound, `(` and `)` without it, nothing on a side for any finite number.
    pub fn parse(text: &str) -> Option<Self> {
        let (low, high) = text.split_once(',')?;
        let bound = |number: &str, with: bool| match (number, with) {
            ("", false) => Some(Bound::Open),
            (_, false) => number.parse().ok().map(Bound::Without),
            (_, true) => number.parse().ok().map(Bound::With),
        };
        let low = match low.split_at_checked(1)? {
            ("[", number) => bound(number, true)?,
            ("(", number) => bound(number, false)?,
            _ => return None,
        };
        let high = match high.split_at_checked(high.len().checked_sub(1)?)? {
            (number, "]") => bound(number, true)?,
            (number, ")") => bound(number, false)?,
            _ => return None,
        };
        Some(Self { low, high })
    }

    /// Whether `x` lies in it; infinities and NaN never do.
    pub fn contains(&self, x: f64) -> bool {
        let low = match self.low {
            Bound::Open => true,
            Bound::Without(bound) => x > bound,
            Bound::With(bound) => x >= bound,
        };
        let high = match self.high {
            Bound::Open => true,
            Bound::Without(bound) => x < bound,
            Bound::With(bound) => x <= bound,
        };
        x.is_finite() && low && high
    }
}

impl fmt::Display for Range {
    /// `a number of at least 0`, `a number from 0 to below 1`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.low, self.high) {
            (Bound::Open, Bound::Open) => write!(f, "a finite number"),
            (Bound::Without(low), Bound::Open) => write!(f, "a number above {low}"),
            (Bound::With(low), Bound::Open) => write!(f, "a number of at least {low}"),
            (Bound::Open, Bound::Without(high)) => write!(f, "a number below {high}"),
            (Bound::Open, Bound::With(high)) => write!(f, "a number of at most {high}"),
            (low, high) => {
                match low {
                    Bound::Without(low) => write!(f, "a number above {low}")?,
                    Bound::With(low) => write!(f, "a number from {low}")?,
                    Bound::Open => write!(f, "a number")?,
                }
                match high {
                    Bound::Without(high) => write!(f, " to below {high}"),
                    Bound::With(high) => write!(f, " to {high}"),
                    Bound::Open => Ok(()),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_read_and_hold_what_they_say() {
        let within = |text: &str, x: f64| Range::parse(text).unwrap().contains(x);
        assert!(within("[0,1)", 0.0) && !within("[0,1)", 1.0) && !within("[0,1)", -1e-9));
        assert!(!within("(0,1]", 0.0) && within("(0,1]", 1.0));
        assert!(within("(,)", -1e300) && !within("(,)", f64::NAN) && !within("[0,)", f64::INFINITY));
        for wrong in ["", "0,1", "[0;1]", "[,1)", "[a,1]", "[0,1"] {
            assert_eq!(Range::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_range_is_said_in_words() {
        let said = |text: &str| Range::parse(text).unwrap().to_string();
        assert_eq!(said("[0,1)"), "a number from 0 to below 1");
        assert_eq!(said("(0,1]"), "a number above 0 to 1");
        assert_eq!(said("[1,)"), "a number of at least 1");
        assert_eq!(said("(0,)"), "a number above 0");
    }
}

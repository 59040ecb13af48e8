//! Argument classes of the interface and the macros that the generated entry points are written in.

/// One argument of a first phase as it arrived: its bits in the class that the table gives it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arg {
    /// A pointer or handle.
    P(usize),
    /// A signed integer of any width.
    I(i64),
    /// An unsigned integer of any width.
    U(u64),
    /// A float of any width.
    F(f64),
    /// A C `bool`.
    B(bool),
}

/// What a parameter is, from its C type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `const aclTensor*`
    T,
    /// `aclTensor*`
    To,
    /// `const aclTensorList*`
    TL,
    /// `aclTensorList*`
    TLo,
    /// `aclScalar*`
    S,
    /// `aclScalarList*`
    SL,
    /// `aclIntArray*`
    IA,
    /// `aclFloatArray*`
    FA,
    /// `aclBoolArray*`
    BA,
    /// `char*`
    Str,
    /// any other pointer
    P,
    /// a number
    Number,
}

/// A parameter of an operator's first phase.
#[derive(Clone, Copy, Debug)]
pub struct Param {
    /// The name in the published prototype.
    pub name: &'static str,
    /// What it is.
    pub kind: Kind,
}

/// An operator's first phase without its last two parameters.
#[derive(Debug)]
pub struct OpDecl {
    /// `aclnnAdd`
    pub name: &'static str,
    /// Parameters in order.
    pub params: &'static [Param],
}

macro_rules! number_arg {
    ($($t:ty => $v:ident as $wide:ty),*) => {$(
        impl From<$t> for Arg {
            fn from(value: $t) -> Arg {
                Arg::$v(<$wide>::from(value))
            }
        }
    )*};
}
number_arg!(i8 => I as i64, i16 => I as i64, i32 => I as i64, i64 => I as i64, u8 => U as u64, u16 => U as u64, u32 => U as u64, u64 => U as u64, f32 => F as f64, f64 => F as f64, bool => B as bool);
impl From<usize> for Arg {
    fn from(value: usize) -> Arg {
        Arg::P(value)
    }
}

/// The Rust types that carry the classes, and the kinds they stand for.
pub mod class {
    use super::Kind;
    macro_rules! pointers {
        ($($name:ident),*) => {$(
            #[allow(missing_docs)]
            pub struct $name;
            impl super::Class for $name { type Raw = usize; const KIND: Kind = Kind::$name; }
        )*};
    }
    pointers!(T, To, TL, TLo, S, SL, IA, FA, BA, Str, P);
    macro_rules! numbers {
        ($($name:ident = $raw:ty),*) => {$(
            #[allow(missing_docs)]
            pub struct $name;
            impl super::Class for $name { type Raw = $raw; const KIND: Kind = Kind::Number; }
        )*};
    }
    numbers!(I8 = i8, U8 = u8, I32 = i32, U32 = u32, I64 = i64, U64 = u64, F32 = f32, F64 = f64, Bool = bool);
}

/// How a class of the table is passed.
pub trait Class {
    /// The type in the C call.
    type Raw: Into<Arg>;
    /// What it is.
    const KIND: Kind;
}

/// Both phases of one operator.
macro_rules! op {
    ($name:ident, $p1:ident, $p2:ident, [$($a:ident $text:literal $kind:ident),*]) => {
        #[unsafe(no_mangle)]
        pub extern "C" fn $p1($($a: <crate::abi::class::$kind as crate::abi::Class>::Raw,)* ws: *mut u64, ex: *mut usize) -> i32 {
            static DECL: crate::abi::OpDecl = crate::abi::OpDecl {
                name: stringify!($name),
                params: &[$(crate::abi::Param { name: $text, kind: <crate::abi::class::$kind as crate::abi::Class>::KIND }),*],
            };
            crate::nn::phase1(&DECL, &[$($a.into()),*], ws, ex)
        }
        #[unsafe(no_mangle)]
        pub extern "C" fn $p2(ws: usize, size: u64, ex: usize, stream: usize) -> i32 {
            crate::nn::phase2(stringify!($name), ws, size, ex, stream)
        }
    };
}

/// A function that `crate::api` implements.
macro_rules! entry {
    ($name:ident, $export:ident, ($($a:ident: $t:ty),*) $(-> $r:ty)?, ($($v:ident),*)) => {
        #[unsafe(no_mangle)]
        pub extern "C" fn $export($($a: $t),*) $(-> $r)? {
            crate::report::trace(stringify!($name), &[$(crate::abi::Arg::from($v)),*]);
            crate::api::$name($($v),*)
        }
    };
}

/// Functions of this type that the emulator exports and does not have: their own answer for "not supported".
macro_rules! absent {
    ($t:ty, $answer:expr; $($name:ident)*) => {$(
        const _: () = {
            const NAME: &str = stringify!($name);
            #[unsafe(export_name = concat!("emu_", stringify!($name)))]
            extern "C" fn absent() -> $t {
                crate::report::absent(NAME);
                $answer
            }
        };
    )*};
}

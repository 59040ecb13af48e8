//! Argument classes of the interface, the macros that entry points are written in, and the entry points.

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

/// Both phases of one operator: the second has its name, the first `GetWorkspaceSize` behind it.
macro_rules! op {
    ($op:ident($($a:ident: $t:ty = $name:literal $kind:ident),*)) => {
        const _: () = {
            static DECL: crate::abi::OpDecl = crate::abi::OpDecl {
                name: stringify!($op),
                params: &[$(crate::abi::Param { name: $name, kind: crate::abi::Kind::$kind }),*],
            };
            #[unsafe(export_name = concat!("emu_", stringify!($op), "GetWorkspaceSize"))]
            extern "C" fn first($($a: $t,)* workspace_size: *mut u64, executor: *mut usize) -> i32 {
                crate::nn::phase1(&DECL, &[$($a.into()),*], workspace_size, executor)
            }
            #[unsafe(export_name = concat!("emu_", stringify!($op)))]
            extern "C" fn second(workspace: usize, size: u64, executor: usize, stream: usize) -> i32 {
                crate::nn::phase2(DECL.name, workspace, size, executor, stream)
            }
        };
    };
}

/// A function that `crate::api` implements.
macro_rules! entry {
    ($name:ident($($a:ident: $t:ty),*) $(-> $r:ty)?) => {
        const _: () = {
            #[unsafe(export_name = concat!("emu_", stringify!($name)))]
            extern "C" fn entry($($a: $t),*) $(-> $r)? {
                crate::report::trace(stringify!($name), &[$(crate::abi::Arg::from($a)),*]);
                crate::api::$name($($a),*)
            }
        };
    };
}

/// A function that the emulator exports and does not have, with its answer.
macro_rules! absent {
    ($name:ident() -> $t:ty $(= $answer:expr)?) => {
        const _: () = {
            #[unsafe(export_name = concat!("emu_", stringify!($name)))]
            extern "C" fn absent() -> $t {
                crate::report::absent(stringify!($name));
                $($answer)?
            }
        };
    };
}

/// An entry point for each row of the table, written by the build script.
mod entries {
    include!(concat!(env!("OUT_DIR"), "/entries.rs"));
}

//! Macros for declarations: a struct of optional function pointers, how it is filled, and its dump. Functions of one prototype
//! share a declaration, and so do neighbouring arguments of one type: `first, second(a b: T, c: U; ...) -> R;`.

/// The type of a function.
macro_rules! prototype {
    (($($($arg:ident)+: $t:ty),* $(; $($dots:tt)+)?) -> $r:ty) => {
        unsafe extern "C" fn($($($arg: $t),+),* $(, $($dots)+)?) -> $r
    };
}

/// The type of an operator's first phase.
macro_rules! first_phase {
    (($($($arg:ident)+: $t:ty),*)) => {
        unsafe extern "C" fn($($($arg: $t,)+)* *mut u64, *mut *mut aclOpExecutor) -> i32
    };
}

/// The classes of arguments; `v` for none.
macro_rules! classes_of {
    (($($($arg:ident)+: $t:ty),* $(; $($dots:tt)+)?)) => {{
        let classes: Vec<&str> = vec![
            $($((stringify!($arg), <$t as crate::types::AbiClass>::CLASS).1,)+)*
            $(stringify!($($dots)+),)?
        ];
        if classes.is_empty() { "v".to_owned() } else { classes.join(" ") }
    }};
}

/// `name` as a C string.
macro_rules! c_name {
    ($($part:expr),+) => {
        std::ffi::CStr::from_bytes_with_nul(concat!($($part,)+ "\0").as_bytes()).unwrap_or_default()
    };
}

macro_rules! functions {
    ($(#[$doc:meta])* $table:ident $($($name:ident),+ ($($argument:tt)*) -> $r:ty;)*) => {
        functions! { @ $(#[$doc])* $table $([$($name),+] ($($argument)*) -> $r;)* }
    };
    // Each list of arguments is one token here, so that it can stand at every name before it.
    (@ $(#[$doc:meta])* $table:ident $([$($name:ident),+] $arguments:tt -> $r:ty;)*) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default)]
        pub struct $table {
            $($(#[doc = concat!("`", stringify!($name), stringify!($arguments), "`")]
            pub $name: Option<prototype!($arguments -> $r)>,)+)*
        }
        impl $table {
            /// Looks every function up; `find` gives its address or 0.
            pub(crate) fn fill(find: &mut dyn FnMut(&std::ffi::CStr) -> usize) -> Self {
                $table {
                    $($($name: {
                        let address = find(c_name!(stringify!($name)));
                        // SAFETY: an address that the dynamic linker gave for this symbol, whose type is the published one;
                        // zero is the empty option.
                        unsafe { std::mem::transmute::<usize, Option<prototype!($arguments -> $r)>>(address) }
                    },)+)*
                }
            }
            pub(crate) fn dump(out: &mut Vec<crate::Declaration>) {
                $($(out.push(crate::Declaration {
                    name: stringify!($name),
                    table: stringify!($table),
                    arguments: classes_of!($arguments),
                    result: <$r as crate::types::AbiClass>::CLASS,
                });)+)*
            }
        }
    };
}

macro_rules! operators {
    ($(#[$doc:meta])* $table:ident $($($name:ident),+ ($($argument:tt)*);)*) => {
        operators! { @ $(#[$doc])* $table $([$($name),+] ($($argument)*);)* }
    };
    // As in `functions`.
    (@ $(#[$doc:meta])* $table:ident $([$($name:ident),+] $arguments:tt;)*) => {
        $(#[$doc])*
        ///
        /// Each entry holds both phases, from one library.
        #[derive(Clone, Copy, Debug, Default)]
        pub struct $table {
            $($(#[doc = concat!("`", stringify!($name), stringify!($arguments), "`; the first phase has `workspaceSize, executor` behind these.")]
            pub $name: Option<(first_phase!($arguments), crate::SecondPhase)>,)+)*
        }
        impl $table {
            /// Looks every operator up; `find` gives the addresses of its phases from one library, or zeros.
            pub(crate) fn fill(find: &mut dyn FnMut(&std::ffi::CStr, &std::ffi::CStr) -> (usize, usize)) -> Self {
                $table {
                    $($($name: {
                        let (first, second) =
                            find(c_name!(stringify!($name), "GetWorkspaceSize"), c_name!(stringify!($name)));
                        // SAFETY: as for functions.
                        let first = unsafe { std::mem::transmute::<usize, Option<first_phase!($arguments)>>(first) };
                        // SAFETY: as for functions.
                        let second = unsafe { std::mem::transmute::<usize, Option<crate::SecondPhase>>(second) };
                        first.zip(second)
                    },)+)*
                }
            }
            pub(crate) fn dump(out: &mut Vec<crate::Declaration>) {
                $($(out.push(crate::Declaration {
                    name: concat!(stringify!($name), "GetWorkspaceSize"),
                    table: stringify!($table),
                    // The size of the workspace and the executor come last.
                    arguments: format!("{} p p", classes_of!($arguments)),
                    result: "i32",
                });)+)*
            }
        }
    };
}

/// Constants of each type with their values, and a list of them all.
macro_rules! constants {
    ($($t:ident { $($name:ident = $value:expr),* $(,)? })*) => {
        $($(#[doc = concat!("`", stringify!($name), "` = ", stringify!($value))] pub const $name: $t = $value;)*)*
        /// Every constant of this file.
        pub(crate) fn all() -> Vec<(&'static str, i128)> {
            vec![$($((stringify!($name), i128::from($name)),)*)*]
        }
    };
}

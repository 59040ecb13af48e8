//! One macro for declarations: a struct of optional function pointers, how it is filled, and its dump.

macro_rules! declare_one {
    (@result) => {
        ()
    };
    (@result $r:ty) => {
        $r
    };
}

macro_rules! functions {
    ($(#[$doc:meta])* $table:ident $($name:ident($($arg:ident: $t:ty),* $(; $($dots:tt)+)?) $(-> $r:ty)?;)*) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default)]
        pub struct $table {
            $(#[doc = concat!("`", stringify!($name), "(", $(stringify!($arg: $t), ", ",)* ")`")]
            pub $name: Option<unsafe extern "C" fn($($arg: $t),* $(, $($dots)+)?) $(-> $r)?>,)*
        }
        impl $table {
            /// Looks every function up; `find` gives its address or 0.
            pub(crate) fn fill(find: &mut dyn FnMut(&std::ffi::CStr) -> usize) -> Self {
                $table {
                    $($name: {
                        let text = concat!(stringify!($name), "\0");
                        let name = std::ffi::CStr::from_bytes_with_nul(text.as_bytes()).unwrap_or_default();
                        let address = find(name);
                        // SAFETY: an address that the dynamic linker gave for this symbol, whose type is the published one;
                        // zero is the empty option.
                        unsafe { std::mem::transmute::<usize, Option<unsafe extern "C" fn($($t),* $(, $($dots)+)?) $(-> $r)?>>(address) }
                    },)*
                }
            }
            pub(crate) fn dump(out: &mut Vec<crate::Declaration>) {
                $(out.push(crate::Declaration {
                    name: stringify!($name),
                    table: stringify!($table),
                    arguments: {
                        let classes: &[&str] = &[$(<$t as crate::types::AbiClass>::CLASS,)* $(stringify!($($dots)+),)?];
                        if classes.is_empty() { "v".to_owned() } else { classes.join(" ") }
                    },
                    result: <declare_one!(@result $($r)?) as crate::types::AbiClass>::CLASS,
                });)*
            }
        }
    };
}

macro_rules! operators {
    ($(#[$doc:meta])* $table:ident $($name:ident($($arg:ident: $t:ty),*);)*) => {
        $(#[$doc])*
        ///
        /// Each entry holds both phases, from one library.
        #[derive(Clone, Copy, Debug, Default)]
        pub struct $table {
            $(#[doc = concat!("`", stringify!($name), "GetWorkspaceSize(", $(stringify!($arg: $t), ", ",)* "workspaceSize, executor)` and its second phase.")]
            pub $name: Option<(
                unsafe extern "C" fn($($arg: $t,)* *mut u64, *mut *mut aclOpExecutor) -> i32,
                crate::SecondPhase,
            )>,)*
        }
        impl $table {
            /// Looks every operator up; `find` gives the addresses of its phases from one library, or zeros.
            pub(crate) fn fill(find: &mut dyn FnMut(&std::ffi::CStr, &std::ffi::CStr) -> (usize, usize)) -> Self {
                $table {
                    $($name: {
                        let first = concat!(stringify!($name), "GetWorkspaceSize\0");
                        let second = concat!(stringify!($name), "\0");
                        let first = std::ffi::CStr::from_bytes_with_nul(first.as_bytes()).unwrap_or_default();
                        let second = std::ffi::CStr::from_bytes_with_nul(second.as_bytes()).unwrap_or_default();
                        let (a, b) = find(first, second);
                        // SAFETY: as for functions.
                        let a = unsafe { std::mem::transmute::<usize, Option<unsafe extern "C" fn($($t,)* *mut u64, *mut *mut aclOpExecutor) -> i32>>(a) };
                        // SAFETY: as for functions.
                        let b = unsafe { std::mem::transmute::<usize, Option<crate::SecondPhase>>(b) };
                        a.zip(b)
                    },)*
                }
            }
            pub(crate) fn dump(out: &mut Vec<crate::Declaration>) {
                $(out.push(crate::Declaration {
                    name: concat!(stringify!($name), "GetWorkspaceSize"),
                    table: stringify!($table),
                    arguments: {
                        let classes: &[&str] = &[$(<$t as crate::types::AbiClass>::CLASS,)* "p", "p"];
                        classes.join(" ")
                    },
                    result: "i32",
                });)*
            }
        }
    };
}

macro_rules! constants {
    (PART $($name:ident: $t:ty = $value:expr;)*) => {
        $(#[doc = concat!("`", stringify!($name), "` = ", stringify!($value))] pub const $name: $t = $value;)*
        /// Every constant of this part.
        pub(crate) fn all() -> Vec<(&'static str, i128)> {
            vec![$((stringify!($name), i128::from($name))),*]
        }
    };
}

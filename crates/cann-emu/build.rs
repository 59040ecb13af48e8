//! Gives the shared library the name under which the public libraries of the tree look for it.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcannemu_core.so");
    println!("cargo:rerun-if-changed=build.rs");
}

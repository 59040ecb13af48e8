//! `ms-profile`: what this machine can do, and where a step's time went. See [`ms_profile::main`].

fn main() -> std::process::ExitCode {
    ms_cli::run("ms-profile", |_interrupt| ms_profile::main())
}

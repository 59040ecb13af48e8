//! `ms-infer`: runs a model. See [`ms_infer::main`].

fn main() -> std::process::ExitCode {
    ms_cli::run("ms-infer", |_interrupt| ms_infer::main())
}

//! `ms-train`: trains a model. See [`ms_train::main`].

fn main() -> std::process::ExitCode {
    ms_cli::run("ms-train", ms_train::main)
}

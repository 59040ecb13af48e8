//! `ms-eval`: scores a model on benchmarks. See [`ms_eval::main`].

fn main() -> std::process::ExitCode {
    ms_cli::run("ms-eval", ms_eval::main)
}

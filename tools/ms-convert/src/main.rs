//! `ms-convert`: see this package's library.

fn main() -> std::process::ExitCode {
    ms_cli::run("ms-convert", |_interrupt| ms_convert::main(std::env::args_os().skip(1).collect()))
}

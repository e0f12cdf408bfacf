//! `polder`: the command people type.

fn main() -> std::process::ExitCode {
    polder_cli::run(std::env::args_os()).into()
}

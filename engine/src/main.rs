//! The program `engine`.

fn main() -> std::process::ExitCode {
    engine::cli::run()
}

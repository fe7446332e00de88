//! The native command line; in a browser build there is nothing to do.

#[cfg(not(target_arch = "wasm32"))]
fn main() -> std::process::ExitCode {
    semif::cli::main()
}

#[cfg(target_arch = "wasm32")]
fn main() {}

//! The native command line; in a browser build there is nothing to do.

#[cfg(not(target_arch = "wasm32"))]
fn main() -> std::process::ExitCode {
    // Mesa's device-select layer asks Wayland which GPU the desktop uses, and complains on stderr where there is no desktop.
    if cfg!(target_os = "linux") && std::env::var_os("XDG_RUNTIME_DIR").is_none_or(|folder| folder.is_empty()) {
        // SAFETY: this is the first that the program does, so no other thread can be reading the environment.
        unsafe { std::env::set_var("NODEVICE_SELECT", "1") };
    }
    semif::cli::main()
}

#[cfg(target_arch = "wasm32")]
fn main() {}

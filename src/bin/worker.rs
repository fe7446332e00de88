//! The engine in a Web Worker. On the desktop this program is empty, so that one package builds everywhere.

fn main() {
    #[cfg(target_arch = "wasm32")]
    semif::web::worker::run();
}

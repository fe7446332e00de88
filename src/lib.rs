//! semif: semantic ifs from open models.
//!
//! A state, a question and 2 to 20 described options go in; a probability for each option comes out, read from the
//! logits of one forward pass. The same engine runs natively (Vulkan, Metal, DX12) and in a browser tab (WebGPU), from
//! the same GGUF file. `docs/architecture.md` shows the rooms and which may import which.

// In a browser, wgpu's handles are JavaScript values of one thread; the same code needs Arc natively.
#![cfg_attr(target_arch = "wasm32", allow(clippy::arc_with_non_send_sync))]

pub mod bench;
pub mod decision;
pub mod engine;
pub mod eval;
pub mod gguf;
pub mod gpu;
pub mod hub;
pub mod kernels;
pub mod model;
pub mod quant;
pub mod text;

#[cfg(not(target_arch = "wasm32"))]
pub mod cli;
#[cfg(target_arch = "wasm32")]
pub mod web;

#[cfg(test)]
mod rooms;

//! Faults in words, each with a way out.

use leptos::prelude::*;

use crate::web::protocol::{Fault, FaultKind};

/// What a person can do about a fault of this kind.
pub fn way_out(kind: FaultKind) -> &'static str {
    match kind {
        FaultKind::NoWebGpu => {
            "Open this page in a current Chrome or Edge (113 or later), Safari 26, or Firefox 141 or later on Windows. WebGPU also needs a secure address: https, or localhost."
        }
        FaultKind::NoAdapter => {
            "Turn on hardware acceleration in the browser's settings, update the graphics driver, and start the browser again. On Linux, Chrome may need the flag “Unsafe WebGPU Support”. Then ask again."
        }
        FaultKind::Gpu => "Load the model again. If it happens again, close other programs that use the GPU, or choose a smaller model.",
        FaultKind::GpuMemory => "Choose a smaller model or a stronger quantisation of the same one, and close other tabs that use the GPU.",
        FaultKind::Quota => {
            "Delete models that you no longer need, or free space on the disk. A file from your disk can also be used without keeping it."
        }
        FaultKind::Gone => {
            "Browsers clear storage when space runs low, or on request. Choose the model again: it is fetched once more, and what you typed is kept."
        }
        FaultKind::Damaged => "Choose the model again: it is fetched once more and checked. What you typed is kept.",
        FaultKind::Storage => "Close other tabs of this page and try again, or use the file from your disk.",
        FaultKind::ModelFile => {
            "Choose another GGUF file: architectures qwen2, qwen3, qwen35 and llama in the usual quantisations run here."
        }
        FaultKind::Network => {
            "Check the connection and the address, then try again: what has arrived is kept, and the download goes on from there."
        }
        FaultKind::Input => "Shorten the state or the options, or complete what is missing.",
        FaultKind::NoModel => "Choose a model first.",
        FaultKind::Cancelled => "",
        FaultKind::Crash => "Load the model again; what you typed is kept. If it happens again, a smaller model may run.",
    }
}

/// A short title for a fault.
pub fn title(kind: FaultKind) -> &'static str {
    match kind {
        FaultKind::NoWebGpu => "This browser has no WebGPU",
        FaultKind::NoAdapter => "No GPU was offered",
        FaultKind::Gpu => "The GPU stopped",
        FaultKind::GpuMemory => "Not enough GPU memory",
        FaultKind::Quota => "Not enough storage",
        FaultKind::Gone => "The stored model is gone",
        FaultKind::Damaged => "The stored model is damaged",
        FaultKind::Storage => "The browser's storage failed",
        FaultKind::ModelFile => "This file does not run here",
        FaultKind::Network => "The download did not work",
        FaultKind::Input => "This decision cannot be run",
        FaultKind::NoModel => "No model is loaded",
        FaultKind::Cancelled => "Stopped",
        FaultKind::Crash => "The engine stopped",
    }
}

/// A fault, what to do about it, and whatever buttons belong to it.
#[component]
pub fn FaultNotice(fault: Fault, children: Children) -> impl IntoView {
    let way_out = way_out(fault.kind);
    view! {
        <div class="notice" role="alert">
            <p class="notice-title">{title(fault.kind)}</p>
            <p>{fault.message}</p>
            {(!way_out.is_empty()).then(|| view! { <p>{way_out}</p> })}
            <div class="row">{children()}</div>
        </div>
    }
}

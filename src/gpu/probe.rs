//! What an adapter computes with, beyond plain floats. Facts that drivers and browsers tell, never a timing: the tier that is chosen by
//! them must be the same on every start, since its bits are.

/// What an adapter computes with.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Abilities {
    /// `dot4I8Packed` is part of the shading language here, in hardware or not.
    pub packed_dot: bool,
    /// It is one instruction of the hardware and not many, so that it pays.
    pub fast_dot: bool,
    /// f16 in shaders was asked for and granted.
    pub half: bool,
    /// Cooperative matrices of 16 x 16 x 16, f16 into f32, of subgroups that are always 32 wide.
    pub matrices: bool,
}

/// With `plain`, without anything that a device has to be asked for.
pub(super) fn of(instance: &wgpu::Instance, adapter: &wgpu::Adapter, software: bool, plain: bool) -> Abilities {
    use wgpu::{CooperativeScalarType as Scalar, Features, WgslLanguageFeatures};
    let packed_dot = instance.wgsl_language_features().contains(WgslLanguageFeatures::Packed4x8IntegerDotProduct);
    let wanted = Features::EXPERIMENTAL_COOPERATIVE_MATRIX | Features::SHADER_F16;
    let info = adapter.get_info();
    let matrices = !plain
        && (info.subgroup_min_size, info.subgroup_max_size) == (32, 32)
        && adapter.features().contains(wanted)
        && adapter.cooperative_matrix_properties().iter().any(|p| {
            (p.m_size, p.n_size, p.k_size) == (16, 16, 16)
                && p.ab_type == Scalar::F16
                && p.cr_type == Scalar::F32
                && !p.saturating_accumulation
        });
    Abilities { packed_dot, fast_dot: packed_dot && !software && fast_dot(adapter), half: false, matrices }
}

/// Names of adapters that are software, in lower case.
const SOFTWARE: [&str; 3] = ["swiftshader", "llvmpipe", "basic render"];

/// Is an adapter of this name software? Browsers leave the name out and say it in other words.
pub(super) async fn software(name: &str) -> bool {
    let all = format!("{name} {}", words().await).to_lowercase();
    SOFTWARE.iter().any(|one| all.contains(one))
}

#[cfg(not(target_arch = "wasm32"))]
async fn words() -> String {
    String::new()
}

/// Maker and family of the browser's adapter, which wgpu does not pass on.
#[cfg(target_arch = "wasm32")]
async fn words() -> String {
    use js_sys::{Function, Promise, Reflect};
    use wasm_bindgen::JsCast as _;
    let info = async {
        let navigator = Reflect::get(&js_sys::global(), &"navigator".into()).ok()?;
        let gpu = Reflect::get(&navigator, &"gpu".into()).ok()?;
        let request: Function = Reflect::get(&gpu, &"requestAdapter".into()).ok()?.dyn_into().ok()?;
        let promise: Promise = request.call0(&gpu).ok()?.dyn_into().ok()?;
        let adapter = wasm_bindgen_futures::JsFuture::from(promise).await.ok()?;
        Reflect::get(&adapter, &"info".into()).ok()
    };
    let Some(info) = info.await else { return String::new() };
    let text = |key: &str| Reflect::get(&info, &key.into()).ok().and_then(|v| v.as_string());
    ["vendor", "architecture", "description"].into_iter().filter_map(text).collect::<Vec<_>>().join(" ")
}

/// Vulkan tells whether the product of packed bytes is accelerated. Of the other native interfaces DX12 compiles it to one instruction,
/// Metal to many.
#[cfg(not(target_arch = "wasm32"))]
fn fast_dot(adapter: &wgpu::Adapter) -> bool {
    #[cfg(any(windows, target_os = "linux", target_os = "android"))]
    // SAFETY: the handle is only read, and lives as long as the borrow of the adapter.
    if let Some(vulkan) = unsafe { adapter.as_hal::<wgpu::hal::api::Vulkan>() } {
        let instance = vulkan.shared_instance().raw_instance();
        let device = vulkan.raw_physical_device();
        // SAFETY: the physical device belongs to this instance; an extension that a driver does not know leaves its structure as it was.
        return unsafe {
            if instance.get_physical_device_properties(device).api_version < ash::vk::API_VERSION_1_3 {
                return false;
            }
            let mut dot = ash::vk::PhysicalDeviceShaderIntegerDotProductProperties::default();
            let mut all = ash::vk::PhysicalDeviceProperties2::default().push_next(&mut dot);
            instance.get_physical_device_properties2(device, &mut all);
            dot.integer_dot_product4x8_bit_packed_signed_accelerated != 0
        };
    }
    adapter.get_info().backend == wgpu::Backend::Dx12
}

/// Browsers tell the maker at best. Apple's GPUs have no such instruction, all others of the last years do.
#[cfg(target_arch = "wasm32")]
fn fast_dot(_: &wgpu::Adapter) -> bool {
    let text = |object: &wasm_bindgen::JsValue, key: &str| js_sys::Reflect::get(object, &key.into()).ok().and_then(|v| v.as_string());
    let navigator = js_sys::Reflect::get(&js_sys::global(), &"navigator".into()).unwrap_or_default();
    let platform = text(&navigator, "platform").unwrap_or_default();
    !["Mac", "iPhone", "iPad", "iPod"].iter().any(|apple| platform.starts_with(apple))
}

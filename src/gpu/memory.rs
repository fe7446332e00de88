//! How much memory an adapter has, where somebody tells.

/// Bytes of the adapter's own memory: the largest device-local heap under Vulkan, otherwise unknown.
// wgpu has the Vulkan backend on these systems alone.
#[cfg(any(windows, target_os = "linux", target_os = "android", target_os = "freebsd"))]
pub(super) fn of(adapter: &wgpu::Adapter) -> Option<u64> {
    // SAFETY: the handle is only read, and lives as long as the borrow of the adapter.
    let vulkan = unsafe { adapter.as_hal::<wgpu::hal::api::Vulkan>() }?;
    let instance = vulkan.shared_instance().raw_instance();
    // SAFETY: the physical device belongs to this instance.
    let properties = unsafe { instance.get_physical_device_memory_properties(vulkan.raw_physical_device()) };
    let heaps = properties.memory_heaps.iter().take(properties.memory_heap_count as usize);
    // Bit 0 of the flags is DEVICE_LOCAL.
    heaps.filter(|heap| heap.flags.as_raw() & 1 == 1).map(|heap| heap.size).max()
}

/// Browsers and Metal do not tell.
#[cfg(not(any(windows, target_os = "linux", target_os = "android", target_os = "freebsd")))]
pub(super) fn of(_: &wgpu::Adapter) -> Option<u64> {
    None
}

// Reads a buffer once, neighbouring threads neighbouring 16 bytes, 8 of them on their way at a time.

struct Params {
    // Units of 16 bytes, a multiple of 8 times all threads.
    units: u32,
    threads: u32,
}

@group(0) @binding(0) var<storage, read> x: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read_write> out: array<u32>;
@group(0) @binding(2) var<uniform> p: Params;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    var sum = vec4<u32>(0u);
    for (var i = group.x * 256u + thread; i < p.units; i += 8u * p.threads) {
        //#for j in 0..8
        let v{{j}} = x[i + {{j}}u * p.threads];
        //#end
        sum ^= ((v0 ^ v1) ^ (v2 ^ v3)) ^ ((v4 ^ v5) ^ (v6 ^ v7));
    }
    let all = (sum.x ^ sum.y) ^ (sum.z ^ sum.w);
    if (group.x == 0u) {
        out[thread] = all;
    } else if (all == 0x12345678u) {
        out[256u + (group.x & 255u)] = all;
    }
}

// Nothing but f32 multiply-adds in registers: 8 chains of vec4, 32 steps a round. What comes out is kept alive, not meant.

struct Params {
    rounds: u32,
    factor: f32,
}

@group(0) @binding(0) var<storage, read_write> out: array<vec4<f32>>;
@group(0) @binding(1) var<uniform> p: Params;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let x = vec4<f32>(p.factor);
    //#for i in 0..8
    var a{{i}} = vec4<f32>(f32(thread + {{i}}u));
    //#end
    for (var k = 0u; k < p.rounds; k++) {
        //#for j in 0..32
        a{{j % 8}} = fma(a{{j % 8}}, x, a{{(j + 3) % 8}});
        //#end
    }
    let sum = ((a0 + a1) + (a2 + a3)) + ((a4 + a5) + (a6 + a7));
    if (group.x == 0u) {
        out[thread] = sum;
    } else if (sum.x == 12345.0) {
        out[256u + (group.x & 255u)] = sum;
    }
}

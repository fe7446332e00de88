// Nothing but dot products of four 8-bit integers in registers: 16 chains, 64 steps a round.

struct Params {
    rounds: u32,
    factor: u32,
}

@group(0) @binding(0) var<storage, read_write> out: array<i32>;
@group(0) @binding(1) var<uniform> p: Params;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let x = p.factor;
    //#for i in 0..16
    var a{{i}} = i32(thread + {{i}}u);
    //#end
    for (var k = 0u; k < p.rounds; k++) {
        //#for j in 0..64
        a{{j % 16}} += dot4I8Packed(bitcast<u32>(a{{(j + 5) % 16}}), x);
        //#end
    }
    var sum = 0;
    //#for i in 0..16
    sum += a{{i}};
    //#end
    if (group.x == 0u) {
        out[thread] = sum;
    } else if (sum == 12345) {
        out[256u + (group.x & 255u)] = sum;
    }
}

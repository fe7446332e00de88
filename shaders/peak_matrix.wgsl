// Nothing but products of 16 x 16 x 16 in cooperative matrices, f16 into f32: 8 chains, 16 products a round in each of four subgroups.

enable f16;
enable wgpu_cooperative_matrix;

struct Params {
    rounds: u32,
    factor: f32,
}

@group(0) @binding(0) var<storage, read_write> out: array<vec4<f32>>;
@group(0) @binding(1) var<uniform> p: Params;

var<workgroup> sx: array<vec4<f16>, 64>;
var<workgroup> sy: array<vec4<f32>, 256>;  // 16 x 16 of each subgroup

@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    if (thread < 64u) {
        sx[thread] = vec4<f16>(f16(p.factor));
    }
    workgroupBarrier();
    let a = coopLoadT<coop_mat16x16<f16,A>>(&sx[0], 4u);
    let b = coopLoad<coop_mat16x16<f16,B>>(&sx[0], 4u);
    //#for i in 0..8
    var c{{i}} = coop_mat16x16<f32,C>();
    //#end
    for (var k = 0u; k < p.rounds; k++) {
        //#for j in 0..16
        c{{j % 8}} = coopMultiplyAdd(a, b, c{{j % 8}});
        //#end
    }
    let at = (thread / 32u) * 64u;
    var sum = vec4<f32>(0.0);
    //#for i in 0..8
    workgroupBarrier();
    coopStoreT(c{{i}}, &sy[at], 4u);
    workgroupBarrier();
    sum += sy[thread];
    //#end
    if (group.x == 0u) {
        out[thread] = sum;
    } else if (sum.x == 12345.0) {
        out[256u + (group.x & 127u)] = sum;
    }
}

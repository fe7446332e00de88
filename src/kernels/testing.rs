//! What kernel tests share: a device (with the WebGPU default limits and no features), random weights of every type, readback.

use super::weight::{Matrix, Part};
use crate::gguf::TensorType;
use crate::gpu::{Buffer, Gpu, GpuOptions, Recorder};
use crate::quant::{Planes, dequantize, repack_groups};
use pollster::block_on;
use std::sync::Arc;

/// A recorder on a device that grants nothing beyond the WebGPU defaults.
pub fn recorder() -> Recorder {
    let gpu = block_on(Gpu::open(&GpuOptions { default_limits: true, ..GpuOptions::default() })).expect("a GPU or a software adapter");
    block_on(Recorder::new(&gpu)).unwrap()
}

/// A recorder on a device with the cooperative matrices of the tensor tier, if the adapter has them. Software adapters do not; where it
/// ran stands in docs/testing.md.
pub fn matrix_recorder() -> Option<Recorder> {
    let gpu = block_on(Gpu::open(&GpuOptions::default())).expect("a GPU or a software adapter");
    if !gpu.info().abilities.matrices {
        println!("SKIPPED: {} has no cooperative matrices of 16 x 16 x 16", gpu.info().adapter.name);
        return None;
    }
    Some(block_on(Recorder::new(&gpu)).unwrap())
}

/// A small generator with a fixed sequence for each seed.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn bits(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Uniform in -1 .. 1.
    pub fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    pub fn values(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.unit()).collect()
    }
}

/// Random blocks of a type: any quants, scales that are finite and often subnormal or negative.
pub fn random_rows(ty: TensorType, rows: usize, cols: usize, random: &mut Random) -> (Vec<u8>, Vec<f32>) {
    let blocks = rows * cols / ty.block_len();
    let mut bytes = Vec::with_capacity(blocks * ty.block_bytes());
    for b in 0..blocks {
        let start = bytes.len();
        match ty {
            TensorType::F32 => bytes.extend(random.unit().to_le_bytes()),
            TensorType::F16 => bytes.extend(half::f16::from_f32(random.unit() * if b % 3 == 0 { 3e-5 } else { 1.0 }).to_le_bytes()),
            TensorType::BF16 => bytes.extend(half::bf16::from_f32(random.unit()).to_le_bytes()),
            _ => {
                bytes.extend((0..ty.block_bytes()).map(|_| random.bits() as u8));
                // f16 scales: normal, subnormal (every third block) or negative.
                let scale = half::f16::from_f32(random.unit() * if b % 3 == 0 { 4e-5 } else { 0.02 }).to_le_bytes();
                let at = if ty == TensorType::Q6_K { start + 208 } else { start };
                bytes[at..at + 2].copy_from_slice(&scale);
                if matches!(ty, TensorType::Q4_1 | TensorType::Q5_1 | TensorType::Q4_K | TensorType::Q5_K) {
                    let minimum = half::f16::from_f32(random.unit() * 0.1).to_le_bytes();
                    bytes[start + 2..start + 4].copy_from_slice(&minimum);
                }
            }
        }
    }
    let mut values = vec![0.0; rows * cols];
    dequantize(ty, &bytes, &mut values).unwrap();
    (bytes, values)
}

/// Uploads rows as one part whose first row is `first`.
pub fn part(gpu: &Gpu, ty: TensorType, rows: usize, cols: usize, bytes: &[u8], first: u32) -> Part {
    let mut planes = Planes::default();
    repack_groups(ty, cols as u64, bytes, &mut planes).unwrap();
    let (mut at, mut views, mut data) = (0u64, Vec::new(), Vec::new());
    for plane in [&planes.quants, &planes.high, &planes.scales, &planes.scales2] {
        if !plane.is_empty() {
            views.push((at, plane.len() as u64));
            data.extend_from_slice(plane);
            data.resize(data.len().next_multiple_of(256), 0);
            at = data.len() as u64;
        }
    }
    let buffer = block_on(gpu.buffer("test weights", at)).unwrap();
    gpu.write(&buffer, 0, &data);
    Part { ty, first, rows: rows as u32, buffer: Arc::new(buffer), planes: views }
}

/// A matrix of consecutive parts (type, rows) and its values.
pub fn matrix(gpu: &Gpu, parts: &[(TensorType, usize)], cols: usize, random: &mut Random) -> (Matrix, Vec<f32>) {
    let (mut all, mut values, mut first) = (Vec::new(), Vec::new(), 0);
    for &(ty, rows) in parts {
        let (bytes, v) = random_rows(ty, rows, cols, random);
        all.push(part(gpu, ty, rows, cols, &bytes, first));
        values.extend(v);
        first += rows as u32;
    }
    (Matrix { cols: cols as u32, rows: first, parts: all }, values)
}

/// Uploads words.
pub fn upload<T: bytemuck::Pod>(gpu: &Gpu, data: &[T]) -> Buffer {
    let bytes: &[u8] = bytemuck::cast_slice(data);
    let buffer = block_on(gpu.buffer("test data", bytes.len() as u64)).unwrap();
    gpu.write(&buffer, 0, bytes);
    buffer
}

/// Submits and reads the first `n` words.
pub fn download<T: bytemuck::Pod>(rec: &mut Recorder, buffer: &Buffer, n: usize) -> Vec<T> {
    let bytes = block_on(rec.finish_and_read(buffer.range(0, (n * size_of::<T>()) as u64))).unwrap();
    bytemuck::pod_collect_to_vec(&bytes)
}

/// Attention of one query head over positions `0 ..= position`, in f64: scaled products, softmax, weighted values. `at` gives where the
/// key and value of a position begin; with `gate` the gate's logits stand behind the `d` values of the query.
pub fn attended(query: &[f32], d: usize, gate: bool, position: u32, keys: &[f32], values: &[f32], at: impl Fn(u32) -> usize) -> Vec<f64> {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    let scores: Vec<f64> = (0..=position).map(|i| dot(&query[..d], &keys[at(i)..][..d]) / (d as f64).sqrt()).collect();
    let most = scores.iter().copied().fold(f64::MIN, f64::max);
    let weights: Vec<f64> = scores.iter().map(|v| (v - most).exp()).collect();
    let sum: f64 = weights.iter().sum();
    let value = |c: usize| {
        let v = (0..=position).zip(&weights).map(|(i, w)| w * f64::from(values[at(i) + c])).sum::<f64>() / sum;
        if gate { v / (1.0 + (-f64::from(query[d + c])).exp()) } else { v }
    };
    (0..d).map(value).collect()
}

/// The largest |a - b| / (scale + |b|).
pub fn error(found: &[f32], wanted: &[f64], scale: f64) -> f64 {
    assert_eq!(found.len(), wanted.len());
    let worst = found.iter().zip(wanted).map(|(a, b)| (f64::from(*a) - b).abs() / (scale + b.abs()));
    worst.fold(0.0, |m, e| if e.is_nan() { f64::INFINITY } else { m.max(e) })
}

//! Vectors of the reference, and planes against blocks.

use proptest::prelude::*;

use super::*;

/// Four blocks of every quantised type with the values that the reference reads from them, subnormal scales included.
const VECTORS: &str = include_str!("../../tests/fixtures/oracle/dequant_vectors.json");

#[derive(serde::Deserialize)]
struct Vector {
    hex: String,
    values: Vec<serde_json::Number>,
}

fn hex(text: &str) -> Vec<u8> {
    (0..text.len() / 2).map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap()).collect()
}

#[test]
fn vectors_bit_for_bit() {
    let vectors: std::collections::BTreeMap<String, Vec<Vector>> = serde_json::from_str(VECTORS).unwrap();
    let mut seen = 0;
    let mut subnormal = 0;
    for (name, blocks) in &vectors {
        let ty = TensorType::ALL.into_iter().find(|ty| ty.name() == name).unwrap();
        for (index, block) in blocks.iter().enumerate() {
            let bytes = hex(&block.hex);
            let mut out = vec![0.0; ty.block_len()];
            dequantize(ty, &bytes, &mut out).unwrap();
            assert_eq!(block.values.len(), out.len());
            for (i, (found, expected)) in out.iter().zip(&block.values).enumerate() {
                let expected = expected.as_f64().unwrap() as f32;
                assert_eq!(found.to_bits(), expected.to_bits(), "{name} block {index} value {i}: {found:e}, not {expected:e}");
            }
            let d = u16::from_le_bytes(bits::part(&bytes, if ty == TensorType::Q6_K { 208 } else { 0 }));
            subnormal += usize::from(d & 0x7c00 == 0 && d & 0x3ff != 0);
            seen += 1;
        }
    }
    assert_eq!(seen, 8 * 4);
    assert!(subnormal >= 4, "only {subnormal} subnormal scales: the vectors no longer test them");
}

#[test]
fn floats() {
    let mut out = [0.0; 2];
    dequantize(TensorType::BF16, &[0x80, 0x3f, 0x01, 0x80], &mut out).unwrap();
    assert_eq!(out.map(f32::to_bits), [1f32.to_bits(), 0x8001_0000]);
    dequantize(TensorType::F16, &[0x01, 0x00, 0x00, 0xbc], &mut out).unwrap();
    assert_eq!(out, [2f32.powi(-24), -1.0]);
    dequantize(TensorType::F32, &[1, 0, 0, 0, 0, 0, 0, 0x80], &mut out).unwrap();
    assert_eq!(out.map(f32::to_bits), [1, 0x8000_0000]);
}

/// Cheap, reproducible bytes.
fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut x = seed | 1;
    let mut step = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        (x >> 32) as u8
    };
    (0..len).map(|_| step()).collect()
}

fn types() -> impl Strategy<Value = TensorType> {
    prop::sample::select(TensorType::ALL.to_vec())
}

fn bits_of(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| if v.is_nan() { f32::NAN.to_bits() } else { v.to_bits() }).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// Planes hold exactly the values of the blocks, for any number of rows, cut into pieces anywhere between groups.
    #[test]
    fn planes_hold_the_same_values(ty in types(), rows in 0usize..130, blocks in 1usize..5, cut in 0usize..4, seed: u64) {
        let cols = blocks * ty.block_len().max(32);
        let row = ty.row_bytes(cols as u64).unwrap() as usize;
        let bytes = noise(rows * row, seed);
        let mut expected = vec![0.0; rows * cols];
        dequantize(ty, &bytes, &mut expected).unwrap();

        let mut planes = Planes::default();
        let (first, second) = bytes.split_at((cut * GROUP).min(rows) * row);
        repack_groups(ty, cols as u64, first, &mut planes).unwrap();
        repack_groups(ty, cols as u64, second, &mut planes).unwrap();
        prop_assert_eq!(planes.layout(), plane_layout(ty, rows as u64, cols as u64).unwrap());

        let mut found = vec![f32::NAN; rows * cols];
        dequantize_planes(ty, rows as u64, cols as u64, &planes, &mut found).unwrap();
        prop_assert_eq!(bits_of(&found), bits_of(&expected));
    }

    #[test]
    fn planes_are_small_and_aligned(ty in types(), groups in 1u64..5000, blocks in 1u64..200) {
        let cols = blocks * ty.block_len().max(32) as u64;
        let rows = groups * GROUP as u64;
        let layout = plane_layout(ty, rows, cols).unwrap();
        let tensor = ty.row_bytes(cols).unwrap() * rows;
        prop_assert!(layout.total() >= tensor, "a bit was lost");
        prop_assert!(layout.total() as f64 <= 1.05 * tensor as f64, "{} for {tensor}", layout.total());
        for bytes in [layout.quants, layout.high, layout.scales, layout.scales2] {
            prop_assert_eq!(bytes % 16, 0);
        }
        prop_assert_eq!(layout.scales2_at() * 4, layout.scales);
        // Up to the padding, a tensor of fewer rows takes the same.
        prop_assert_eq!(plane_layout(ty, rows - 31, cols).unwrap(), layout);
    }
}

#[test]
fn padding_rows_are_zero() {
    for ty in TensorType::ALL {
        let cols = ty.block_len().max(32) as u64;
        let row = ty.row_bytes(cols).unwrap() as usize;
        let mut planes = Planes::default();
        // Memory that was used before must not show through.
        repack_groups(ty, cols, &vec![0xff; 32 * row], &mut planes).unwrap();
        planes.clear();
        let mut bytes = vec![0xff; 3 * row];
        repack_groups(ty, cols, &bytes, &mut planes).unwrap();
        let mut padded = Planes::default();
        bytes.resize(32 * row, 0);
        repack_groups(ty, cols, &bytes, &mut padded).unwrap();
        assert_eq!(planes, padded, "{ty}");
    }
}

#[test]
fn wrong_sizes_are_refused() {
    let mut planes = Planes::default();
    for (ty, cols, multiple) in
        [(TensorType::F32, 4, 32), (TensorType::BF16, 33, 32), (TensorType::Q4_K, 128, 256), (TensorType::Q8_0, 0, 32)]
    {
        let error = QuantError::Cols { ty, cols, multiple };
        assert_eq!(plane_layout(ty, 1, cols), Err(error.clone()));
        assert_eq!(repack_groups(ty, cols, &[], &mut planes), Err(error.clone()));
        assert_eq!(dequantize_planes(ty, 0, cols, &planes, &mut []), Err(error));
    }
    let text = plane_layout(TensorType::F32, 1, 4).unwrap_err().to_string();
    assert_eq!(text, "rows of 4 F32 values cannot be repacked: the number must be a multiple of 32, and not zero");
    for (rows, cols) in [(u64::MAX, 256), (1, u64::MAX - 255), (1 << 40, 1 << 40)] {
        assert!(matches!(plane_layout(TensorType::Q6_K, rows, cols), Err(QuantError::TooLarge { .. })), "{rows} x {cols}");
    }
    assert!(matches!(repack_groups(TensorType::Q8_0, 64, &[0; 67], &mut planes), Err(QuantError::Bytes { unit: 68, .. })));
    assert!(repack_groups(TensorType::Q6_K, 1 << 60, &[0; 67], &mut planes).is_err());
    assert_eq!(planes, Planes::default());
    assert!(matches!(dequantize(TensorType::Q8_0, &[0; 35], &mut [0.0; 32]), Err(QuantError::Bytes { unit: 34, .. })));
    assert!(matches!(dequantize(TensorType::Q8_0, &[0; 34], &mut [0.0; 33]), Err(QuantError::Length { wanted: 32, .. })));
    assert!(matches!(dequantize_planes(TensorType::Q8_0, 1, 32, &planes, &mut [0.0; 32]), Err(QuantError::Length { .. })));
}

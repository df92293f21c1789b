//! BLAKE3 of an output: its dtype, its shape and its bits.

use sgemm_bi_core::Dtype;

/// The hash of a logical matrix or array, as 64 hexadecimal digits.
///
/// What is hashed: the dtype's name in ASCII; a zero byte; the number of dimensions and then each
/// dimension, as little-endian u64; then every element in row-major order, little-endian, in as
/// many bytes as the dtype has. Where the elements lay in memory does not enter.
pub fn hash(dtype: Dtype, shape: &[usize], bits: &[u32]) -> String {
    assert_eq!(shape.iter().product::<usize>(), bits.len(), "{shape:?}");
    let mut bytes = dtype.to_string().into_bytes();
    bytes.push(0);
    bytes.extend((shape.len() as u64).to_le_bytes());
    for &dim in shape {
        bytes.extend((dim as u64).to_le_bytes());
    }
    for word in bits {
        bytes.extend(&word.to_le_bytes()[..dtype.size_in_bytes()]);
    }
    blake3::hash(&bytes).to_hex().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_framing_separates_dtype_shape_and_bits() {
        let hashes = [
            hash(Dtype::F32, &[2, 3], &[0; 6]),
            hash(Dtype::F32, &[3, 2], &[0; 6]),
            hash(Dtype::F32, &[6], &[0; 6]),
            hash(Dtype::F16, &[2, 3], &[0; 6]),
            hash(Dtype::BF16, &[2, 3], &[0; 6]),
            hash(Dtype::F32, &[2, 3], &[0, 0, 0, 0, 0, 1]),
            hash(Dtype::F32, &[0, 3], &[]),
            hash(Dtype::F32, &[3, 0], &[]),
        ];
        for (i, a) in hashes.iter().enumerate() {
            assert_eq!(a.len(), 64);
            assert!(hashes[..i].iter().all(|b| a != b), "hash {i} is not new");
        }
    }

    #[test]
    fn the_bytes_are_the_documented_ones() {
        let bytes = b"bf16\0\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\x34\x12\x80\x3f";
        assert_eq!(
            hash(Dtype::BF16, &[2], &[0x1234, 0x3F80]),
            blake3::hash(bytes).to_hex().to_string()
        );
    }
}

//! Bitwise comparison that says where two arrays first part.

use sgemm_bi_core::Dtype;

/// `Err` with the first coordinate at which `got` and `expected` differ, both hex words, and how
/// many elements differ. The arrays are row-major of the given shape.
pub fn compare_bits(
    dtype: Dtype,
    shape: &[usize],
    got: &[u32],
    expected: &[u32],
) -> Result<(), String> {
    if got.len() != expected.len() {
        let (got, expected) = (got.len(), expected.len());
        return Err(format!("{got} elements, expected {expected}"));
    }
    let differing = || (0..got.len()).filter(|&i| got[i] != expected[i]);
    let Some(first) = differing().next() else {
        return Ok(());
    };
    let digits = 2 * dtype.size_in_bytes();
    Err(format!(
        "{dtype} {shape:?}: at {:?} got {:#0width$x}, expected {:#0width$x}; \
         {} of {} elements differ",
        coordinate(shape, first),
        got[first],
        expected[first],
        differing().count(),
        got.len(),
        width = digits + 2,
    ))
}

/// Panics with [`compare_bits`]' message, after what was compared.
#[track_caller]
pub fn assert_bits(what: &str, dtype: Dtype, shape: &[usize], got: &[u32], expected: &[u32]) {
    if let Err(message) = compare_bits(dtype, shape, got, expected) {
        panic!("{what}: {message}");
    }
}

/// [`assert_bits`] of f32 values, one row of them.
#[track_caller]
pub fn assert_f32_bits(what: &str, got: &[f32], expected: &[f32]) {
    let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
    let shape = [expected.len()];
    assert_bits(what, Dtype::F32, &shape, &bits(got), &bits(expected));
}

fn coordinate(shape: &[usize], mut index: usize) -> Vec<usize> {
    let mut coordinate: Vec<usize> = shape
        .iter()
        .rev()
        .map(|&dim| {
            let i = index % dim;
            index /= dim;
            i
        })
        .collect();
    coordinate.reverse();
    coordinate
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mismatch_names_its_place_and_both_words() {
        let message = compare_bits(
            Dtype::F32,
            &[2, 3],
            &[1, 2, 3, 4, 9, 0],
            &[1, 2, 3, 4, 5, 6],
        );
        assert_eq!(
            message.unwrap_err(),
            "f32 [2, 3]: at [1, 1] got 0x00000009, expected 0x00000005; 2 of 6 elements differ"
        );
        let message = compare_bits(Dtype::F16, &[1], &[0x7E00], &[0x7FFF]);
        assert_eq!(
            message.unwrap_err(),
            "f16 [1]: at [0] got 0x7e00, expected 0x7fff; 1 of 1 elements differ"
        );
        let message = compare_bits(Dtype::F16, &[1], &[], &[0x7FFF]);
        assert_eq!(message.unwrap_err(), "0 elements, expected 1");
    }

    #[test]
    fn zeros_of_different_sign_and_different_nans_differ() {
        assert!(compare_bits(Dtype::F32, &[1], &[0x8000_0000], &[0]).is_err());
        assert!(compare_bits(Dtype::F32, &[1], &[0x7FC0_0000], &[0x7FFF_FFFF]).is_err());
        assert!(compare_bits(Dtype::F32, &[0], &[], &[]).is_ok());
    }
}

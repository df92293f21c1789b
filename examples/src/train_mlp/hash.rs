//! The hash of a model's parameters, defined in words so that any program can compute it.
//!
//! It is BLAKE3 (default mode, 32 bytes) over the parameters in ascending order of their names'
//! bytes. Each parameter adds, in this order:
//!
//! 1. the length of its name in bytes, then the name in UTF-8;
//! 2. the length of its dtype's name, then that name: `f32`;
//! 3. its number of dimensions, then each dimension;
//! 4. the length of its data in bytes, then its elements, row-major, each little-endian.
//!
//! Every length, count and dimension is an unsigned 64-bit little-endian integer. The hash covers
//! nothing else: no file format, no setting, no time.

/// The name of the parameters' dtype. Whatever `--dtype` says, the weights that are trained, saved
/// and hashed are f32.
const DTYPE: &str = "f32";

/// A named f32 parameter.
#[derive(Clone, Debug)]
pub struct Parameter {
    /// Its name in the saved file.
    pub name: String,
    /// Its dimensions.
    pub shape: Vec<usize>,
    /// Its elements, row-major, little-endian.
    pub data: Vec<u8>,
}

/// The hash of `parameters`, which may come in any order.
pub fn hash(parameters: &[Parameter]) -> blake3::Hash {
    let mut sorted: Vec<&Parameter> = parameters.iter().collect();
    sorted.sort_by(|a, b| a.name.as_bytes().cmp(b.name.as_bytes()));
    let mut hasher = blake3::Hasher::new();
    for parameter in sorted {
        update_framed(&mut hasher, parameter.name.as_bytes());
        update_framed(&mut hasher, DTYPE.as_bytes());
        update_number(&mut hasher, parameter.shape.len());
        for &dim in &parameter.shape {
            update_number(&mut hasher, dim);
        }
        update_framed(&mut hasher, &parameter.data);
    }
    hasher.finalize()
}

fn update_framed(hasher: &mut blake3::Hasher, bytes: &[u8]) {
    update_number(hasher, bytes.len());
    hasher.update(bytes);
}

fn update_number(hasher: &mut blake3::Hasher, number: usize) {
    hasher.update(&(number as u64).to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::{Parameter, hash};

    fn parameter(name: &str, shape: &[usize], values: &[f32]) -> Parameter {
        Parameter {
            name: name.to_owned(),
            shape: shape.to_vec(),
            data: values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        }
    }

    #[test]
    fn the_hash_is_that_of_the_bytes_in_the_definition() {
        let weight = parameter("w", &[2, 1], &[1.0, -2.0]);
        let bias = parameter("b", &[1], &[0.5]);
        let mut bytes = Vec::new();
        bytes.extend(b"\x01\0\0\0\0\0\0\0b\x03\0\0\0\0\0\0\0f32");
        bytes.extend(b"\x01\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0");
        bytes.extend(b"\x04\0\0\0\0\0\0\0\0\0\0\x3f");
        bytes.extend(b"\x01\0\0\0\0\0\0\0w\x03\0\0\0\0\0\0\0f32");
        bytes.extend(b"\x02\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0");
        bytes.extend(b"\x08\0\0\0\0\0\0\0\0\0\x80\x3f\0\0\0\xc0");
        let expected = blake3::hash(&bytes);
        assert_eq!(hash(&[weight.clone(), bias.clone()]), expected);
        assert_eq!(
            hash(&[bias, weight]),
            expected,
            "the order given does not matter"
        );
    }

    #[test]
    fn names_shapes_and_the_sign_of_zero_count() {
        let base = hash(&[parameter("w", &[2, 1], &[0.0, 1.0])]);
        assert_ne!(base, hash(&[parameter("v", &[2, 1], &[0.0, 1.0])]));
        assert_ne!(base, hash(&[parameter("w", &[1, 2], &[0.0, 1.0])]));
        assert_ne!(base, hash(&[parameter("w", &[2], &[0.0, 1.0])]));
        assert_ne!(base, hash(&[parameter("w", &[2, 1], &[-0.0, 1.0])]));
    }
}

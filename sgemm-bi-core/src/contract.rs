//! The constants of the bit contract (`docs/contract.md`): the one place where they live in code.

/// Version of the bit contract that this crate implements.
///
/// Two results made under the same version, tier and dtype from the same operands are equal bit
/// for bit, whatever computed them.
pub const CONTRACT_VERSION: u32 = 1;

/// Elements of the reduction in one chunk, for every operation of the scalar and tensor-core
/// tiers (contract section 3).
pub const CHUNK: usize = 4096;

/// The bits of a NaN in an f32 output (contract section 7).
pub const CANONICAL_NAN_F32: u32 = 0x7FFF_FFFF;

/// The bits of a NaN in a bf16 or f16 output (contract section 7).
pub const CANONICAL_NAN_16: u16 = 0x7FFF;

/// The arithmetic that reduces a chunk: a bit contract, never a speed (contract sections 4 to 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Tier {
    /// One binary32 fused multiply-add per element of the reduction, in ascending order
    /// (contract section 4). Defined by IEEE 754 alone, so every device has it.
    Scalar,
    /// The block arithmetic of a generation of NVIDIA tensor cores (contract section 5), for bf16
    /// and f16 operands.
    TensorCore(TensorCoreModel),
}

impl std::fmt::Display for Tier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Tier::Scalar => f.write_str("scalar"),
            Tier::TensorCore(model) => write!(f, "tensor-core ({model})"),
        }
    }
}

/// A generation of tensor cores, by the arithmetic of its blocks (contract section 5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TensorCoreModel {
    /// Compute capabilities 8.0, 8.6 and 8.9.
    Ampere,
    /// Compute capabilities 9.0 and 10.0.
    Hopper,
}

impl std::fmt::Display for TensorCoreModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            TensorCoreModel::Ampere => "Ampere",
            TensorCoreModel::Hopper => "Hopper",
        })
    }
}

/// The parameters of the block function T (contract section 5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BlockParameters {
    /// L: elements of the reduction in one block.
    pub length: usize,
    /// F: fraction bits kept when a term is aligned to the largest exponent.
    pub alignment_bits: i32,
    /// P: fraction bits of a block's result.
    pub result_bits: i32,
    /// e₀: the exponent that a zero term takes.
    pub zero_exponent: i32,
}

impl TensorCoreModel {
    /// The block parameters for bf16 and f16 operands (contract section 5, table).
    pub const fn half_precision(self) -> BlockParameters {
        match self {
            TensorCoreModel::Ampere => BlockParameters {
                length: 8,
                alignment_bits: 24,
                result_bits: 23,
                zero_exponent: -132,
            },
            TensorCoreModel::Hopper => BlockParameters {
                length: 16,
                alignment_bits: 25,
                result_bits: 23,
                zero_exponent: -133,
            },
        }
    }

    /// The block parameters for e4m3 and e5m2 operands (contract section 5, table).
    pub const fn eight_bit(self) -> BlockParameters {
        match self {
            TensorCoreModel::Ampere => BlockParameters {
                length: 16,
                alignment_bits: 13,
                result_bits: 13,
                zero_exponent: -132,
            },
            TensorCoreModel::Hopper => BlockParameters {
                length: 32,
                alignment_bits: 13,
                result_bits: 13,
                zero_exponent: -133,
            },
        }
    }
}

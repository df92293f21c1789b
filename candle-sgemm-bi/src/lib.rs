//! Deterministic, batch-invariant linear layers, products and losses for Candle.

mod engine;
mod error;
pub mod functional;
mod linear;
mod ops;
mod storage;

pub use candle_core::Module;
pub use error::Error;
pub use linear::{Linear, linear, linear_b, linear_no_bias};
pub use sgemm_bi_core::{TensorCoreModel, Tier, WeightLayout};

/// [`functional::matmul`] in the scalar tier.
pub fn matmul(
    a: &candle_core::Tensor,
    b: &candle_core::Tensor,
) -> candle_core::Result<candle_core::Tensor> {
    functional::matmul(a, b, Tier::Scalar)
}

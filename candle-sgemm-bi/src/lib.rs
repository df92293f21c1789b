//! Deterministic, batch-invariant linear layers, products and losses for Candle.

mod engine;
mod error;
mod storage;

pub use error::Error;
pub use sgemm_bi_core::{TensorCoreModel, Tier, WeightLayout};

//! Deterministic, batch-invariant linear layers, products and losses for Candle.

pub use sgemm_bi_core::{TensorCoreModel, Tier, WeightLayout};

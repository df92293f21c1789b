//! Deterministic, batch-invariant linear layers, products and losses for
//! [Candle](candle_core), whose every output bit is defined by a written contract
//! (`docs/contract.md`), forward and backward.
//!
//! [`Linear`] takes the place of [`candle_nn::Linear`], [`matmul`] that of
//! [`broadcast_matmul`](candle_core::Tensor::broadcast_matmul), [`loss::cross_entropy`] and
//! [`log_softmax`] those of their namesakes, and [`Sgd`] that of [`candle_nn::SGD`]. A training
//! step made of them and of elementwise operations gives the same bits in every run, with any
//! number of threads and on every processor; a row's forward pass and its input gradient do not
//! change with the batch around it. `docs/candle.md` says how to replace the layers of an existing
//! model, and what is not covered.
//!
//! ```
//! use candle_core::{DType, Device, Tensor};
//! use candle_nn::{Optimizer, VarBuilder, VarMap};
//! use candle_sgemm_bi::{Linear, Module, Sgd, linear, loss};
//!
//! struct Mlp {
//!     hidden: Linear,
//!     head: Linear,
//! }
//!
//! impl Module for Mlp {
//!     fn forward(&self, x: &Tensor) -> candle_core::Result<Tensor> {
//!         self.head.forward(&self.hidden.forward(x)?.relu()?)
//!     }
//! }
//!
//! # fn main() -> candle_core::Result<()> {
//! let varmap = VarMap::new();
//! let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
//! let model = Mlp {
//!     hidden: linear(4, 16, vb.pp("hidden"))?,
//!     head: linear(16, 3, vb.pp("head"))?,
//! };
//! let mut sgd = Sgd::new(varmap.all_vars(), 0.1)?;
//!
//! let x = Tensor::new(&[[1f32, 0., 0., 1.], [0., 1., 0., 0.], [0., 0., 1., 1.]], &Device::Cpu)?;
//! let classes = Tensor::new(&[0u32, 1, 2], &Device::Cpu)?;
//!
//! let before = loss::cross_entropy(&model.forward(&x)?, &classes)?;
//! sgd.backward_step(&before)?;
//! let after = loss::cross_entropy(&model.forward(&x)?, &classes)?;
//! assert!(after.to_scalar::<f32>()? < before.to_scalar::<f32>()?);
//!
//! // The second example alone has the bits that it has in the batch.
//! let alone = model.forward(&x.narrow(0, 1, 1)?)?;
//! let in_batch = model.forward(&x)?.narrow(0, 1, 1)?;
//! assert_eq!(alone.to_vec2::<f32>()?, in_batch.to_vec2::<f32>()?);
//! # Ok(())
//! # }
//! ```
//!
//! Tensors are f32, bf16 or f16, on the CPU, or with the feature `cuda` on a CUDA device, which gives
//! the same bits on Candle's own stream. On the CPU, one engine serves the process, on rayon's global
//! threads (`RAYON_NUM_THREADS`); `SGEMM_BI_SIMD` (`portable`, `avx2`, `avx512`) chooses its SIMD
//! level, which changes no bit. Refusals are [`candle_core::Error`]s that carry an [`Error`].

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
mod engine;
mod error;
pub mod functional;
mod linear;
pub mod loss;
mod ops;
mod optim;
mod softmax;
mod storage;

pub use candle_core::Module;
pub use error::Error;
pub use linear::{Linear, linear, linear_b, linear_no_bias};
pub use optim::Sgd;
pub use sgemm_bi_core::{TensorCoreModel, Tier, WeightLayout};
pub use softmax::log_softmax;

/// The matrix product `a·b` with broadcast batch dimensions: [`functional::matmul`] in the scalar
/// tier.
///
/// ```
/// use candle_core::{Device, Tensor};
///
/// # fn main() -> candle_core::Result<()> {
/// let a = Tensor::new(&[[1f32, 2.], [3., 4.]], &Device::Cpu)?;
/// let b = Tensor::new(&[10f32, 100.], &Device::Cpu)?;
/// assert_eq!(candle_sgemm_bi::matmul(&a, &b)?.to_vec1::<f32>()?, [210.0, 430.0]);
/// # Ok(())
/// # }
/// ```
pub fn matmul(
    a: &candle_core::Tensor,
    b: &candle_core::Tensor,
) -> candle_core::Result<candle_core::Tensor> {
    functional::matmul(a, b, Tier::Scalar)
}

/// The README's programs, as tests.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
pub struct Readme;

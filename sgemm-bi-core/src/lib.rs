//! Deterministic, batch-invariant matrix multiplication whose every output bit is defined by a
//! written contract (`docs/contract.md`) and not by a kernel.
//!
//! A [`Gemm`] says what to compute, [`Operands`] where the data lies, and an engine such as
//! [`CpuEngine`] computes it. Engines may choose any tiling, SIMD width or number of threads: the
//! bits of an output element depend only on its own row, its own column, its bias, the value it
//! is accumulated into, the dtype, the [`Tier`] and [`contract::CONTRACT_VERSION`].
//!
//! ```
//! use sgemm_bi_core::{CpuEngine, Dtype, Gemm, Operands, Shape, WeightLayout};
//!
//! # fn main() -> Result<(), sgemm_bi_core::Error> {
//! let engine = CpuEngine::new()?;
//! let x = [1.0f32, 2.0, 3.0, 4.0]; // [2, 2]
//! let w = [1.0f32, 0.0, 0.5, 1.0, 2.0, 4.0]; // [out = 3, in = 2]
//! let bias = [0.0f32, 10.0, 100.0];
//! let mut y = [0.0f32; 6]; // [2, 3]
//!
//! let forward = Gemm::forward(Shape { m: 2, k: 2, n: 3 }, Dtype::F32, WeightLayout::OutIn)
//!     .with_bias(Dtype::F32);
//! engine.gemm(&forward, Operands::new(&x, &w, &mut y).with_bias(&bias))?;
//! assert_eq!(y, [1.0, 12.5, 110.0, 3.0, 15.5, 122.0]);
//! # Ok(())
//! # }
//! ```

pub mod contract;
pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
mod dtype;
mod error;
mod gemm;
pub mod math;
mod operands;
pub mod reference;
mod rows;
pub mod tensor_core;
mod turn;

pub use contract::{TensorCoreModel, Tier};
pub use cpu::CpuEngine;
#[cfg(feature = "cuda")]
pub use cuda::CudaEngine;
pub use dtype::{Dtype, Element};
pub use error::{Error, Result};
pub use gemm::{BatchDim, BiasGradient, Gemm, Op, Shape, View, WeightLayout};
pub use operands::{Operands, SliceMut, SliceRef};
pub use rows::{Rows, Targets};

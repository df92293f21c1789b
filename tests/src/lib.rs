//! What the tests share: seeded data, placement in memory, hashing, comparison and golden cases.
//!
//! Nothing here computes a product: results come from an engine of `sgemm-bi-core` or, in
//! [`exact`], from integer arithmetic that shares no code with it.

pub mod buffer;
pub mod compare;
#[cfg(feature = "cuda")]
pub mod cuda;
pub mod data;
pub mod engine;
pub mod exact;
pub mod golden;
pub mod hash;
pub mod place;
pub mod prepared;
pub mod problem;

pub use buffer::Buffer;
#[cfg(feature = "cuda")]
pub use cuda::Cuda;
pub use data::{Data, SplitMix64};
pub use engine::{Engine, Reference, engines};
pub use exact::Format;
pub use problem::Problem;

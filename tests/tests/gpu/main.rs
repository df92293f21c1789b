//! The CUDA engine against the goldens and the CPU engine, and what callers may do to it. Every test
//! says that it is skipped where there is no GPU, and fails instead if `SGEMM_BI_REQUIRE_GPU` is
//! set.

mod batch_sizes;
mod concurrency;
mod errors;
mod goldens;
mod graphs;
mod large;
mod rows;
mod sweep;

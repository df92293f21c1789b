//! The one CPU engine that every operation of the process runs on.

use std::sync::OnceLock;

use sgemm_bi_core::CpuEngine;

use crate::error::Error;

/// The process's CPU engine, made at the first call.
///
/// Errors: [`Error::Engine`] when it could not be made, for example because `SGEMM_BI_SIMD` names
/// a SIMD level that does not exist.
pub(crate) fn engine() -> Result<&'static CpuEngine, Error> {
    static ENGINE: OnceLock<sgemm_bi_core::Result<CpuEngine>> = OnceLock::new();
    ENGINE
        .get_or_init(CpuEngine::new)
        .as_ref()
        .map_err(Error::Engine)
}

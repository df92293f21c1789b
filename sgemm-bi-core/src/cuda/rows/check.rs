//! The check of targets before anything is computed from them.

use std::slice::from_mut;

use cudarc::driver::result;

use super::super::driver::{Driver, driver};
use super::super::launch::Workspace;
use super::super::{CudaEngine, DeviceTargets};
use super::RowOp;
use super::kernels::Args;
use crate::Rows;
use crate::error::Result;

impl CudaEngine {
    /// Waits for the stream, and refuses a target that is no column's index. Does nothing while the
    /// stream records a graph.
    pub(super) fn check_targets(
        &self,
        op: RowOp,
        rows: &Rows,
        targets: &DeviceTargets<'_>,
    ) -> Result<()> {
        let Some(kernel) = op.check() else {
            return Ok(());
        };
        if rows.rows == 0 || Driver::is_capturing(&self.stream)? {
            return Ok(());
        }
        let loaded = self.load_kernel(op.name(), kernel)?;
        let first = Workspace::new(op.name(), size_of::<u64>() as u64, &self.stream)?;
        let stream = self.stream.cu_stream();
        let mut row = u64::MAX;
        // SAFETY: the workspace is one u64.
        unsafe { result::memset_d8_async(first.address, 0xFF, size_of::<u64>(), stream) }
            .map_err(driver("set memory"))?;
        {
            let (targets, _guard) = targets.pin(&self.stream);
            let args = Args {
                targets,
                out: first.address,
                ..Args::of(rows)
            };
            // SAFETY: there is a target for each row, and the result is one u64.
            unsafe { self.launch_rows(&loaded, args) }?;
        }
        // SAFETY: the workspace is one u64, and `row` outlives the copy, which is waited for.
        unsafe { result::memcpy_dtoh_async(from_mut(&mut row), first.address, stream) }
            .map_err(driver("read memory"))?;
        self.stream
            .synchronize()
            .map_err(driver("wait for a stream"))?;
        first.free()?;
        if row == u64::MAX {
            return Ok(());
        }
        let row = row as usize;
        let got = targets.read(row, &self.stream)?;
        Err(rows.target_out_of_range(op.name(), row, got))
    }
}

//! One product with its operands, placed in memory as its views say, and run on an engine.

use sgemm_bi_core::{Dtype, Gemm, Operands};

use crate::place::{Place, Placed, Stack};
use crate::{Buffer, Data, Engine};

/// A product of two matrices (no batch) and the row-major elements of its operands.
#[derive(Clone, Debug)]
pub struct Problem {
    /// What to compute and where the operands lie.
    pub gemm: Gemm,
    /// Elements of the first operand, `[rows, R]`.
    pub lhs: Buffer,
    /// Elements of the second operand, `[R, cols]`.
    pub rhs: Buffer,
    /// The bias, if the product has one.
    pub bias: Option<Buffer>,
    /// What the output holds before, `[rows, cols]`; the canary if the product overwrites it.
    pub start: Option<Buffer>,
}

/// Canaries after an output.
pub const TAIL: usize = 3;

impl Problem {
    /// Operands of one kind of data from one seed.
    pub fn seeded(gemm: Gemm, data: Data, seed: u64) -> Self {
        let (rows, cols, r) = (gemm.rows(), gemm.cols(), gemm.reduction());
        let fill = |dtype, len, operand| data.fill(dtype, len, seed.wrapping_mul(8) + operand);
        let start = gemm.accumulates();
        Problem {
            lhs: fill(gemm.dtype(), rows * r, 0),
            rhs: fill(gemm.dtype(), r * cols, 1),
            bias: gemm.bias().map(|dtype| fill(dtype, cols, 2)),
            start: start.then(|| fill(Dtype::F32, rows * cols, 3)),
            gemm,
        }
    }

    /// The same problem with its operands and output laid out otherwise.
    pub fn placed(mut self, [lhs, rhs, out]: [Place; 3]) -> Self {
        let (rows, cols, r) = (self.gemm.rows(), self.gemm.cols(), self.gemm.reduction());
        self.gemm =
            self.gemm
                .with_views(lhs.view(rows, r), rhs.view(r, cols), out.view(rows, cols));
        self
    }

    /// The bits of the output, row-major. Checks that nothing outside it was written.
    #[track_caller]
    pub fn run(&self, engine: &dyn Engine) -> Vec<u32> {
        let gemm = &self.gemm;
        let (rows, cols, r) = (gemm.rows(), gemm.cols(), gemm.reduction());
        let lhs = Placed::new(&self.lhs, Stack::one(rows, r, gemm.lhs()), 0);
        let rhs = Placed::new(&self.rhs, Stack::one(r, cols, gemm.rhs()), 0);
        let blank = || Buffer::from_bits(gemm.out_dtype(), rows * cols, |_| 0xDEAD_BEEF);
        let start = self.start.clone().unwrap_or_else(blank);
        let mut out = Placed::new(&start, Stack::one(rows, cols, gemm.out()), TAIL);
        let mut operands = Operands::new(
            lhs.buffer.as_ref(),
            rhs.buffer.as_ref(),
            out.buffer.as_mut(),
        );
        if let Some(bias) = &self.bias {
            operands = operands.with_bias(bias.as_ref());
        }
        if let Err(error) = engine.gemm(gemm, operands) {
            panic!("{}: {error}\n{gemm:?}", engine.name());
        }
        out.assert_canaries(&engine.name());
        out.bits()
    }

    /// The output's shape.
    pub fn shape(&self) -> [usize; 2] {
        [self.gemm.rows(), self.gemm.cols()]
    }
}
